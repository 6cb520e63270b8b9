//! The keys that both connectors have: Kafka Connect's common ones, topics, errors, and access to the provider.

use crate::config::{
    address::HTTP_URL,
    converter,
    key::{
        ConfigKey, Rule,
        Type::{Boolean, Class, Int, List, Long, Password, Short, String},
        keys,
    },
    rules,
};

keys! {
    "Common" {
        NAME = ConfigKey::new(String, "name", "Name of the connector, unique in the cluster of workers.")
            .required().high().rule(rules::PLAIN);
        CONNECTOR_CLASS = ConfigKey::new(Class, "connector.class",
            "WebhookSource or RecordSource, with or without a package and the word Connector.")
            .required().high();
        PLUGIN_VERSION = ConfigKey::new(String, "connector.plugin.version",
            "Taken for compatibility; there is one version, that of the worker.").low();
        TASKS_MAX = ConfigKey::new(Int, "tasks.max",
            "Most tasks to run. A WebhookSource always runs one; a RecordSource at most one for each of \
             topic.creation.default.partitions (12 if that is unset, whatever topics that exist have: each task then has \
             several partitions, or the last have none) and never more than 128.")
            .or("1").high().rule(Rule::Range(1, 10_000));
        TASKS_MAX_ENFORCE = ConfigKey::new(Boolean, "tasks.max.enforce", "Always true: tasks.max is never passed.")
            .or("true").low().rule(ALWAYS_TRUE);
        KEY_CONVERTER = ConfigKey::new(Class, "key.converter", "Unset: the worker's. Keys are UTF-8 text.")
            .low().rule(converter::KEY);
        VALUE_CONVERTER = ConfigKey::new(Class, "value.converter",
            "Unset: the worker's. Values are Avro in Confluent's wire format.").low().rule(converter::VALUE);
        HEADER_CONVERTER = ConfigKey::new(Class, "header.converter", "Unset: the worker's. Headers are UTF-8 text.")
            .low().rule(converter::HEADER);
        RELOAD = ConfigKey::new(String, "config.action.reload",
            "Whether the connector restarts when a referenced secret changes. A receiver of deliveries takes it up \
             without one.")
            .or("restart").low().rule(Rule::OneOf(&["restart", "none"]));
        EXACTLY_ONCE = ConfigKey::new(String, "exactly.once.support",
            "required makes sure that records and offsets are written in one transaction. A RecordSource always does; \
             a WebhookSource cannot, because a provider may deliver twice.")
            .or("requested").low().rule(Rule::OneOf(&["requested", "required"]));
        BOUNDARY = ConfigKey::new(String, "transaction.boundary", "A transaction holds one batch.")
            .or("poll").low().rule(Rule::OneOf(&["poll"]));
    }
    "Topics" {
        TOPIC_PREFIX = ConfigKey::new(String, "topic.prefix",
            "Beginning of every topic name: acme gives acme.accounting.customers. One tenant of the provider has one \
             prefix, and one RecordSource writes to it.")
            .required().high().rule(rules::TOPIC_PREFIX);
        PARTITIONS = ConfigKey::new(Int, "topic.creation.default.partitions",
            "Partitions of every keyed topic; fixed for life, because the company decides the partition. Unset, topics \
             of the prefix that exist decide; set, they must have this count. -1 takes the broker's default for new ones.")
            .or("12").rule(Rule::Count);
        REPLICATION = ConfigKey::new(Short, "topic.creation.default.replication.factor",
            "Copies of each partition when a topic is created. A single broker needs 1; -1 takes the broker's default.")
            .or("3").rule(Rule::Count);
    }
    "Errors" {
        RETRY_TIMEOUT = ConfigKey::new(Long, "errors.retry.timeout",
            "Has no effect, accepted for compatibility: temporary failures to publish are retried until they pass.")
            .or("0").rule(Rule::Range(-1, i64::MAX));
        RETRY_DELAY = ConfigKey::new(Long, "errors.retry.delay.max.ms",
            "Has no effect, accepted for compatibility: the backoff between attempts to publish is built in.")
            .or("60000").rule(Rule::Range(1, 86_400_000));
        TOLERANCE = ConfigKey::new(String, "errors.tolerance",
            "Has no effect, accepted for compatibility: a record that cannot be published is always written to \
             the dead letters.")
            .or("none").rule(Rule::OneOf(&["none", "all"]));
        LOG_ENABLE = ConfigKey::new(Boolean, "errors.log.enable",
            "Whether each failed record is logged, with its ids and never its contents.").or("false");
        LOG_MESSAGES = ConfigKey::new(Boolean, "errors.log.include.messages",
            "Always false: contents of records are never logged.").or("false").low().rule(NEVER_LOGGED);
        DEAD_LETTER_TOPIC = ConfigKey::new(String, "errors.deadletterqueue.topic.name",
            "Topic for what cannot be published. Unset: dead-letters under the topic prefix.").rule(rules::TOPIC);
        DEAD_LETTER_REPLICATION = ConfigKey::new(Short, "errors.deadletterqueue.topic.replication.factor",
            "Copies of the dead-letter topic when it is created. Unset: as for the other topics.")
            .low().rule(Rule::Count);
        DEAD_LETTER_HEADERS = ConfigKey::new(Boolean, "errors.deadletterqueue.context.headers.enable",
            "Always true: without __connect.errors.* headers nobody could tell what went wrong.")
            .or("true").low().rule(ALWAYS_TRUE);
    }
    "Provider" {
        BASE_URL = ConfigKey::new(String, "provider.base.url",
            "Base address of the provider's APIs. Its host must be one that provider.hosts.allowed of the worker allows, and \
             a login is good for the origin that was set here when it was made.")
            .high().rule(HTTP_URL);
        AUTH_URL = ConfigKey::new(String, "provider.auth.url",
            "Address of the provider's identity service. Its host must be one that provider.hosts.allowed of the worker \
             allows.")
            .high().rule(HTTP_URL);
        SUBSCRIPTION_KEY = ConfigKey::new(Password, "provider.subscription.key",
            "Subscription key from the provider's developer portal; sent with every call.").high();
        CLIENT_ID = ConfigKey::new(String, "oauth.client.id", "OAuth client that the provider issued.").high()
            .rule(rules::PLAIN);
        CLIENT_SECRET = ConfigKey::new(Password, "oauth.client.secret", "Secret of that client.").high();
        ACCOUNTING_GRANT = ConfigKey::new(String, "accounting.oauth.grant",
            "Name of the grant for the accounting API, as given to `tributary auth login`.")
            .or("accounting").rule(rules::GRANT);
        PAYROLL_GRANT = ConfigKey::new(String, "payroll.oauth.grant", "Name of the grant for the payroll API.")
            .or("payroll").rule(rules::GRANT);
        INVOICING_GRANT = ConfigKey::new(String, "invoicing.oauth.grant",
            "Name of the grant for the invoicing API, where invoicing.oauth.scopes is set.")
            .or("invoicing").low().rule(rules::GRANT);
        ACCOUNTING_SCOPES = ConfigKey::new(List, "accounting.oauth.scopes",
            "Scopes that a login for the accounting API asks for. Unset: oauth.scopes, or those that the provider documents: \
             offline_access, openid, SVC.ES.NEWPOL.COR.API, SVC.ES.NEWPOL.ACC.API, SVC.ES.NEWPOL.MNG.API, SVC.ES.Webhooks.")
            .low().rule(rules::PLAIN);
        PAYROLL_SCOPES = ConfigKey::new(List, "payroll.oauth.scopes",
            "Scopes that a login for the payroll API asks for. Unset: oauth.scopes, or those that the provider documents: \
             offline_access, openid, IDInfo, SVC.ES.EquipoContex.")
            .low().rule(rules::PLAIN);
        INVOICING_SCOPES = ConfigKey::new(List, "invoicing.oauth.scopes",
            "Scopes that a login for the invoicing API asks for at the identity service (`tributary auth login invoicing`). The provider \
             documents none, nor whether that API takes such tokens, so that there is no default. Unset: the invoicing API is \
             entered with invoicing.login.mail and invoicing.login.password.")
            .low().rule(rules::PLAIN);
        SCOPES = ConfigKey::new(List, "oauth.scopes",
            "Scopes for the accounting and the payroll API, where they have no setting of their own. Unset: those that the provider \
             documents for each.")
            .low().rule(rules::PLAIN);
        REDIRECT_URI = ConfigKey::new(String, "oauth.redirect.uri",
            "Redirect address registered for the client. Unset: http://localhost:PORT/callback, on the port that `auth login` is given, or a free one.")
            .low().rule(rules::REDIRECT);
        PKCE = ConfigKey::new(Boolean, "oauth.pkce",
            "Whether a login sends a PKCE challenge (S256), so that a stolen code is of no use. Set it to false only if the \
             identity service answers invalid_grant because the client is not set up for PKCE.")
            .or("true").low();
        ISSUERS = ConfigKey::new(List, "oauth.issuers",
            "Issuers accepted in tokens. Unset: the identity service's own. The provider's tokens may name another \
             host.").low().rule(rules::PLAIN);
        AUDIENCES = ConfigKey::new(List, "oauth.audiences",
            "Audiences accepted in access tokens, or any for no check. Unset: an accepted issuer followed by /resources, as \
             the provider's identity software writes it; its document only says that aud is an address. If a refused login \
             names another audience that is the provider's, set that one.").low().rule(rules::PLAIN);
        KEYS_LOCATION = ConfigKey::new(String, "oauth.keys.location",
            "File with the keys that sign the provider's tokens: PEM (public key or certificate) or a JSON key set. \
             Unset: those the identity service publishes.").low().rule(Rule::File);
        LOGIN_LIFETIME = ConfigKey::new(Int, "oauth.login.lifetime.days",
            "Days after which a login ends whatever is refreshed; a warning comes 7 days before. 0: it does not end.")
            .or("30").low().rule(Rule::Range(0, 3_650));
        IDLE_LIFETIME = ConfigKey::new(Int, "oauth.idle.lifetime.days",
            "Days after which a refresh token ends that is not used, for clients whose logins slide. 0: it does not end.")
            .or("0").low().rule(Rule::Range(0, 3_650));
        CONNECT_TIMEOUT = ConfigKey::new(Int, "provider.connect.timeout.ms",
            "Longest wait for a connection to the provider.").or("5000").low().rule(Rule::Range(100, 60_000));
        READ_TIMEOUT = ConfigKey::new(Int, "provider.read.timeout.ms",
            "Longest wait for the provider's next bytes.").or("10000").low().rule(Rule::Range(100, 300_000));
        REQUEST_TIMEOUT = ConfigKey::new(Int, "provider.request.timeout.ms",
            "Longest one request may take, to the last byte of its answer.")
            .or("30000").low().rule(Rule::Range(1_000, 600_000));
        RESPONSE_LIMIT = ConfigKey::new(Long, "provider.response.limit.bytes",
            "Largest answer of the provider, in bytes once it is unpacked.")
            .or("16777216").low().rule(Rule::Range(65_536, 268_435_456));
        CA_LOCATION = ConfigKey::new(String, "provider.ssl.ca.location",
            "PEM file with the certificate authorities that vouch for the provider. Unset: the system's.")
            .low().rule(Rule::File);
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
