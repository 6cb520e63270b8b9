//! The keys that both connectors have: Kafka Connect's common ones, topics, errors, and access to the provider.

use crate::config::{
    address::HTTP_URL,
    converter,
    key::{Rule, keys},
    rules,
};

keys! {
    "Common" {
        /// Name of the connector, unique in the cluster of workers.
        NAME = String("name").required().high().rule(rules::PLAIN);
        /// WebhookSource or RecordSource, with or without a package and the word Connector.
        CONNECTOR_CLASS = Class("connector.class").required().high();
        /// Accepted for compatibility; there is one version, that of the worker.
        PLUGIN_VERSION = String("connector.plugin.version").low();
        /// Maximum number of tasks. A WebhookSource always runs one; a RecordSource at most one for each of
        /// topic.creation.default.partitions (12 if that is unset, however many partitions existing topics have: each task
        /// then has several partitions, or the last have none) and never more than 128.
        TASKS_MAX = Int("tasks.max").or("1").high().rule(Rule::Range(1, 10_000));
        /// Always true: tasks.max is never exceeded.
        TASKS_MAX_ENFORCE = Boolean("tasks.max.enforce").or("true").low().rule(ALWAYS_TRUE);
        /// Unset: the worker's. Keys are UTF-8 text.
        KEY_CONVERTER = Class("key.converter").low().rule(converter::KEY);
        /// Unset: the worker's. Values are Avro in Confluent's wire format.
        VALUE_CONVERTER = Class("value.converter").low().rule(converter::VALUE);
        /// Unset: the worker's. Headers are UTF-8 text.
        HEADER_CONVERTER = Class("header.converter").low().rule(converter::HEADER);
        /// Whether the connector restarts when a referenced secret changes. A receiver of deliveries uses the new secret
        /// without a restart.
        RELOAD = String("config.action.reload").or("restart").low().rule(Rule::OneOf(&["restart", "none"]));
        /// required makes sure that records and offsets are written in one transaction. A RecordSource always does;
        /// a WebhookSource cannot, because a provider may deliver twice.
        EXACTLY_ONCE = String("exactly.once.support").or("requested").low()
            .rule(Rule::OneOf(&["requested", "required"]));
        /// A transaction holds one batch.
        BOUNDARY = String("transaction.boundary").or("poll").low().rule(Rule::OneOf(&["poll"]));
    }
    "Topics" {
        /// Beginning of every topic name: acme gives acme.accounting.customers. One tenant of the provider has one
        /// prefix, and one RecordSource writes to it.
        TOPIC_PREFIX = String("topic.prefix").required().high().rule(rules::TOPIC_PREFIX);
        /// Partitions of every keyed topic; fixed for the life of the topics, because the company decides the partition.
        /// Unset: existing topics of the prefix decide. If set, they must have this count. -1 takes the broker's default
        /// for new ones.
        PARTITIONS = Int("topic.creation.default.partitions").or("12").rule(Rule::Count);
        /// Copies of each partition when a topic is created. A single broker needs 1; -1 takes the broker's
        /// default.
        REPLICATION = Short("topic.creation.default.replication.factor").or("3").rule(Rule::Count);
    }
    "Errors" {
        /// Has no effect, accepted for compatibility: temporary failures to publish are retried until they pass.
        RETRY_TIMEOUT = Long("errors.retry.timeout").or("0").rule(Rule::Range(-1, i64::MAX));
        /// Has no effect, accepted for compatibility: the backoff between attempts to publish is built in.
        RETRY_DELAY = Long("errors.retry.delay.max.ms").or("60000").rule(Rule::Range(1, 86_400_000));
        /// Has no effect, accepted for compatibility: a record that cannot be published is always written to the
        /// dead letters.
        TOLERANCE = String("errors.tolerance").or("none").rule(Rule::OneOf(&["none", "all"]));
        /// Whether each failed record is logged, with its ids and never its contents.
        LOG_ENABLE = Boolean("errors.log.enable").or("false");
        /// Always false: contents of records are never logged.
        LOG_MESSAGES = Boolean("errors.log.include.messages").or("false").low().rule(NEVER_LOGGED);
        /// Topic for what cannot be published. Unset: dead-letters under the topic prefix.
        DEAD_LETTER_TOPIC = String("errors.deadletterqueue.topic.name").rule(rules::TOPIC);
        /// Copies of the dead-letter topic when it is created. Unset: as for the other topics.
        DEAD_LETTER_REPLICATION = Short("errors.deadletterqueue.topic.replication.factor").low().rule(Rule::Count);
        /// Always true: the __connect.errors.* headers say what went wrong.
        DEAD_LETTER_HEADERS = Boolean("errors.deadletterqueue.context.headers.enable").or("true").low()
            .rule(ALWAYS_TRUE);
    }
    "Provider" {
        /// Base address of the provider's APIs. Its host must be one that provider.hosts.allowed of the worker allows, and
        /// a login is only valid for the origin that was configured when it was made.
        BASE_URL = String("provider.base.url").high().rule(HTTP_URL);
        /// Address of the provider's identity service. Its host must be one that provider.hosts.allowed of the
        /// worker allows.
        AUTH_URL = String("provider.auth.url").high().rule(HTTP_URL);
        /// Subscription key from the provider's developer portal; sent with every call.
        SUBSCRIPTION_KEY = Password("provider.subscription.key").high();
        /// OAuth client that the provider issued.
        CLIENT_ID = String("oauth.client.id").high().rule(rules::PLAIN);
        /// Secret of that client.
        CLIENT_SECRET = Password("oauth.client.secret").high();
        /// Name of the grant for the accounting API, as given to `tributary auth login`.
        ACCOUNTING_GRANT = String("accounting.oauth.grant").or("accounting").rule(rules::GRANT);
        /// Name of the grant for the payroll API.
        PAYROLL_GRANT = String("payroll.oauth.grant").or("payroll").rule(rules::GRANT);
        /// Name of the grant for the invoicing API, where invoicing.oauth.scopes is set.
        INVOICING_GRANT = String("invoicing.oauth.grant").or("invoicing").low().rule(rules::GRANT);
        /// Scopes that a login for the accounting API asks for. Unset: oauth.scopes, or those that the provider
        /// documents: offline_access, openid, SVC.ES.NEWPOL.COR.API, SVC.ES.NEWPOL.ACC.API, SVC.ES.NEWPOL.MNG.API,
        /// SVC.ES.Webhooks.
        ACCOUNTING_SCOPES = List("accounting.oauth.scopes").low().rule(rules::PLAIN);
        /// Scopes that a login for the payroll API asks for. Unset: oauth.scopes, or those that the provider
        /// documents: offline_access, openid, IDInfo, SVC.ES.EquipoContex.
        PAYROLL_SCOPES = List("payroll.oauth.scopes").low().rule(rules::PLAIN);
        /// Scopes that a login for the invoicing API asks for at the identity service (`tributary auth login invoicing`).
        /// The provider documents none, nor whether that API accepts such tokens, so there is no default. Unset: the worker
        /// logs in to the invoicing API with invoicing.login.mail and invoicing.login.password, or has invoicing.login.token.
        INVOICING_SCOPES = List("invoicing.oauth.scopes").low().rule(rules::PLAIN);
        /// Scopes for the accounting and the payroll API, where accounting.oauth.scopes or payroll.oauth.scopes is not set.
        /// Unset: those that the provider documents for each.
        SCOPES = List("oauth.scopes").low().rule(rules::PLAIN);
        /// Redirect address registered for the client. Unset: http://localhost:PORT/callback, on the port that
        /// `auth login` is given, or a free one.
        REDIRECT_URI = String("oauth.redirect.uri").low().rule(rules::REDIRECT);
        /// Whether a login sends a PKCE challenge (S256), so that a stolen code cannot be redeemed. Set it to false only if
        /// the identity service answers invalid_grant because the client is not set up for PKCE.
        PKCE = Boolean("oauth.pkce").or("true").low();
        /// Issuers accepted in tokens. Unset: the identity service's own. The provider's tokens may name another
        /// host.
        ISSUERS = List("oauth.issuers").low().rule(rules::PLAIN);
        /// Audiences accepted in access tokens, or any for no check. Unset: an accepted issuer followed by /resources, as
        /// the provider's identity software writes it; its document only says that aud is an address. If the message about
        /// a refused login names another audience that belongs to the provider, set that one.
        AUDIENCES = List("oauth.audiences").low().rule(rules::PLAIN);
        /// File with the keys that sign the provider's tokens: PEM (public key or certificate) or a JSON key set.
        /// Unset: those the identity service publishes.
        KEYS_LOCATION = String("oauth.keys.location").low().rule(Rule::File);
        /// Days after which a login expires even if its tokens are refreshed; the worker warns 7 days before. 0: it does
        /// not expire.
        LOGIN_LIFETIME = Int("oauth.login.lifetime.days").or("30").low().rule(Rule::Range(0, 3_650));
        /// Days after which an unused refresh token expires, for clients with sliding logins. 0: it does not expire.
        IDLE_LIFETIME = Int("oauth.idle.lifetime.days").or("0").low().rule(Rule::Range(0, 3_650));
        /// Timeout of a connection attempt to the provider, in milliseconds.
        CONNECT_TIMEOUT = Int("provider.connect.timeout.ms").or("5000").low().rule(Rule::Range(100, 60_000));
        /// Longest wait for the next bytes of an answer of the provider, in milliseconds.
        READ_TIMEOUT = Int("provider.read.timeout.ms").or("10000").low().rule(Rule::Range(100, 300_000));
        /// Timeout of one request to the provider, up to the last byte of its answer, in milliseconds.
        REQUEST_TIMEOUT = Int("provider.request.timeout.ms").or("30000").low().rule(Rule::Range(1_000, 600_000));
        /// Largest answer of the provider, in bytes after decompression.
        RESPONSE_LIMIT = Long("provider.response.limit.bytes").or("16777216").low()
            .rule(Rule::Range(65_536, 268_435_456));
        /// PEM file with the certificate authorities to trust for the provider. Unset: the system's.
        CA_LOCATION = String("provider.ssl.ca.location").low().rule(Rule::File);
    }
}

const ALWAYS_TRUE: Rule = Rule::custom("true", |text| {
    if text.eq_ignore_ascii_case("true") { Ok(()) } else { Err("it cannot be switched off".into()) }
})
.remedy("remove it");

const NEVER_LOGGED: Rule = Rule::custom("false", |text| {
    if text.eq_ignore_ascii_case("false") { Ok(()) } else { Err("contents are never logged".into()) }
})
.remedy("remove it, and read the record from the dead letters");
