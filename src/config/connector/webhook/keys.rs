//! The keys that only a `WebhookSource` has.

use crate::config::{
    address::NETWORK,
    connector::provider_names,
    key::{
        ConfigKey, Rule,
        Type::{Boolean, List, Long, Password, String},
        keys,
    },
    rules,
};

/// A producer takes records of 32 MiB; the rest is for what an event adds to the body.
const MAX_BODY_BYTES: i64 = 30 * 1024 * 1024;

keys! {
    "Accounting webhooks" {
        APPLICATION_NAME = ConfigKey::new(String, "application.name",
            "Name under which subscriptions are registered at the provider.").or("tributary").rule(rules::PLAIN);
        ACCOUNTING_RESOURCES = ConfigKey::new(List, "accounting.resources",
            "Resources to subscribe to, such as customers,accounts, or all. Empty: no accounting webhooks.")
            .or("").high().rule(provider_names::RESOURCES).dependents(&["accounting.secret"]);
        ACCOUNTING_EVENTS = ConfigKey::new(List, "accounting.events",
            "Kinds of events to subscribe to, or all that the provider offers for a resource.")
            .or("all").low().rule(provider_names::EVENTS);
        ACCOUNTING_SECRET = ConfigKey::new(Password, "accounting.secret",
            "Secret that the provider signs accounting deliveries with; at least 16 bytes.")
            .high().rule(Rule::Size(16, 128));
        ACCOUNTING_PREVIOUS = ConfigKey::new(Password, "accounting.secret.previous",
            "The secret before that one, still accepted while subscriptions move to the new one.")
            .low().rule(Rule::Size(16, 128));
    }
    "InvoicingWebhooks webhooks" {
        INVOICING_HOOKS = ConfigKey::new(List, "invoicing.hooks",
            "Hooks to register, such as Customer:Created,SaleInvoice:Updated, or all. Empty: no invoicing webhooks.")
            .or("").high().rule(provider_names::HOOKS).dependents(&["invoicing.secret"]);
        INVOICING_SECRET = ConfigKey::new(Password, "invoicing.secret",
            "Secret from which that of each hook is derived; 32 to 128 bytes.").high().rule(Rule::Size(32, 128));
        INVOICING_PREVIOUS = ConfigKey::new(Password, "invoicing.secret.previous",
            "The secret before that one, still accepted while hooks move to the new one.")
            .low().rule(Rule::Size(32, 128));
        SIGNATURE_POLICY = ConfigKey::new(String, "invoicing.signature.policy",
            "Whether invoicing deliveries must be signed. With off anyone who reaches the listener can invent events, so \
             source.addresses is needed, and the action of an event is known only at a hook's own address.")
            .or("require").rule(Rule::OneOf(&["require", "off"])).dependents(&["source.addresses"]);
        SIGNATURE_HEADER = ConfigKey::new(String, "invoicing.signature.header",
            "Header that carries the signature of invoicing deliveries.").or("ms-signature").low().rule(rules::HEADER);
        SEGMENT = ConfigKey::new(String, "invoicing.segment",
            "Last segment of the receiving path, /api/webhooks/incoming/<segment>; one connector for each.")
            .or("Invoicing").low().rule(rules::SEGMENT);
        HOOK_ADDRESS = ConfigKey::new(String, "invoicing.hook.address",
            "Where the provider delivers: own gives each hook its address, /api/webhooks/incoming/<segment>/<hook> with a hook \
             such as customer-created, so that a delivery is verified with the secrets of that hook alone; shared gives all of \
             them /api/webhooks/incoming/<segment>, the form that the provider documents. With own, a hook whose address the \
             provider refuses, or does not ask for the echo, is registered at the shared one. Deliveries are taken at both.")
            .or("own").low().rule(Rule::OneOf(&["own", "shared"]));
        TENANTS = ConfigKey::new(List, "invoicing.tenants",
            "Company of each invoicing tenant, as tenant=company. Events of a mapped tenant are keyed by the company, \
             others by the tenant.")
            .rule(rules::TENANT);
        API_VERSION = ConfigKey::new(String, "invoicing.api.version",
            "Value of the header Api-Version on calls of the invoicing API. Empty: the header is not sent. The provider's document \
             does not show it.")
            .or("2.0").or_empty().low().rule(rules::VERSION);
        EGRESS_PROXY = ConfigKey::new(String, "invoicing.egress.proxy",
            "Proxy for registering hooks: the provider wants the request to come from the receiving host. Its host must be one \
             that provider.hosts.allowed of the worker allows.")
            .low().rule(rules::PROXY);
        EGRESS_USER_INFO = ConfigKey::new(Password, "invoicing.egress.proxy.user.info",
            "Name and password for that proxy, as name:password.").low().rule(rules::USER_INFO);
        LOGIN_MAIL = ConfigKey::new(String, "invoicing.login.mail", "User of the invoicing API.").rule(rules::PLAIN)
            .dependents(&["invoicing.login.password", "invoicing.login.company"]);
        LOGIN_PASSWORD = ConfigKey::new(Password, "invoicing.login.password", "Password of that user.");
        LOGIN_COMPANY = ConfigKey::new(Long, "invoicing.login.company",
            "Id of the company to choose after the login. Unset: the user's default.").rule(Rule::Range(0, i64::MAX));
    }
    "Receiving" {
        SOURCE_ADDRESSES = ConfigKey::new(List, "source.addresses",
            "Networks that deliveries may come from. Empty: any, because signatures decide.").rule(NETWORK);
        BODY_LIMIT = ConfigKey::new(Long, "body.limit.bytes",
            "Largest accounting delivery, in bytes. At most 30 MiB, so that it fits into one record.")
            .or("8388608").low().rule(Rule::Range(1024, MAX_BODY_BYTES));
        INVOICING_BODY_LIMIT = ConfigKey::new(Long, "invoicing.body.limit.bytes",
            "Largest invoicing delivery, in bytes. A larger one is answered 413 without verification.")
            .or("262144").low().rule(Rule::Range(1024, 8_388_608));
        SPOOL_LIMIT = ConfigKey::new(Long, "spool.limit.bytes",
            "Bytes the spool may hold for this connector before deliveries are answered 503. A worker has one spool: its \
             limit is the sum over the connectors it receives, and one of them may use what the others do not.")
            .or("1073741824").rule(Rule::Range(1_048_576, 1_099_511_627_776));
    }
    "Subscriptions" {
        MANAGE = ConfigKey::new(Boolean, "subscriptions.manage",
            "Whether the connector keeps the provider's subscriptions as configured. With false it only receives, and \
             needs no access to the provider.")
            .or("true");
        POLL = ConfigKey::new(Long, "subscriptions.poll.interval.ms",
            "How often the provider is asked how each subscription stands: one that it has disabled is noticed within this time.")
            .or("60000").rule(Rule::Range(100, 86_400_000));
        ACKNOWLEDGE = ConfigKey::new(Long, "subscriptions.acknowledge.timeout.ms",
            "How long the provider may wait for a receiver to accept a subscription, or take to ask for the echo of an invoicing hook, \
             before that is a gap, and the subscription is recreated.")
            .or("600000").low().rule(Rule::Range(100, 86_400_000));
        OVERLAP = ConfigKey::new(Long, "subscriptions.overlap.ms",
            "How long a subscription that is followed by another stays beside it: it may have deliveries to repeat.")
            .or("120000").low().rule(Rule::Range(0, 86_400_000));
        MOVE = ConfigKey::new(String, "subscriptions.move",
            "How a subscription gets another address: by a second one beside it, so that nothing is missing and some deliveries \
             come twice, or by a change of the one, which is a gap until the new address is accepted.")
            .or("overlap").low().rule(Rule::OneOf(&["overlap", "change"]));
        READY = ConfigKey::new(Long, "subscriptions.ready.timeout.ms",
            "How long receivers are given to know a new secret before subscriptions are made with it.")
            .or("60000").low().rule(Rule::Range(0, 3_600_000));
        BACKOFF = ConfigKey::new(Long, "subscriptions.retry.backoff.ms",
            "Wait after the first failure of a subscription; it doubles with each further one.")
            .or("1000").low().rule(Rule::Range(10, 3_600_000));
        BACKOFF_MAX = ConfigKey::new(Long, "subscriptions.retry.backoff.max.ms",
            "The longest such wait.").or("300000").low().rule(Rule::Range(10, 86_400_000));
        SILENCE = ConfigKey::new(String, "subscriptions.silence.factor",
            "Nothing heard for so many times the longest silence before is a gap, whatever the provider says; off for never.")
            .or("3").low().rule(provider_names::FACTOR);
        SILENCE_LEARNING = ConfigKey::new(Long, "subscriptions.silence.learning.ms",
            "How long is listened before a silence is judged; a week and a day, so that a weekend is known.")
            .or("691200000").low().rule(Rule::Range(100, 31_536_000_000));
        SILENCE_MIN = ConfigKey::new(Long, "subscriptions.silence.min.ms",
            "No silence is a gap that is shorter.").or("3600000").low().rule(Rule::Range(100, 31_536_000_000));
        GAP_MARGIN = ConfigKey::new(Long, "gap.margin.ms",
            "What a gap is made longer by at either end: clocks differ, and deliveries are under way.")
            .or("60000").low().rule(Rule::Range(0, 86_400_000));
    }
}
