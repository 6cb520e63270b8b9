//! The keys that only a `WebhookSource` has.

use crate::config::{
    address::NETWORK,
    connector::provider_names,
    key::{Rule, keys},
    rules,
};

/// Producers send records of up to 32 MiB; 2 MiB are left for what an event adds to the body.
const MAX_BODY_BYTES: i64 = 30 * 1024 * 1024;

keys! {
    "Accounting webhooks" {
        /// Name under which subscriptions are registered at the provider.
        APPLICATION_NAME = String("application.name").or("tributary").rule(rules::PLAIN);
        /// Resources to subscribe to, such as customers,accounts, or all. Empty: no accounting webhooks.
        ACCOUNTING_RESOURCES = List("accounting.resources").or("").high().rule(provider_names::RESOURCES)
            .dependents(&["accounting.secret"]);
        /// Kinds of events to subscribe to, or all that the provider offers for a resource.
        ACCOUNTING_EVENTS = List("accounting.events").or("all").low().rule(provider_names::EVENTS);
        /// Secret that the provider signs accounting deliveries with; at least 16 bytes.
        ACCOUNTING_SECRET = Password("accounting.secret").high().rule(Rule::Size(16, 128));
        /// Previous secret, still accepted while subscriptions move to the new one.
        ACCOUNTING_PREVIOUS = Password("accounting.secret.previous").low().rule(Rule::Size(16, 128));
    }
    "Invoicing webhooks" {
        /// Hooks to register, such as Customer:Created,SaleInvoice:Updated, or all. Empty: no invoicing webhooks.
        INVOICING_HOOKS = List("invoicing.hooks").or("").high().rule(provider_names::HOOKS)
            .dependents(&["invoicing.secret"]);
        /// Secret from which the secret of each hook is derived; 32 to 128 bytes. Connectors that share a segment need
        /// different ones.
        INVOICING_SECRET = Password("invoicing.secret").high().rule(Rule::Size(32, 128));
        /// Secret that hooks are registered with: hook derives one for each hook from invoicing.secret, so that the secret
        /// that verifies a delivery identifies its action; connector registers invoicing.secret as it is for all hooks, so
        /// that the action of an event is known only at a hook's own address. The provider may refuse more than 64 bytes.
        /// With connector, derived secrets are accepted too, so that hooks can move to it without a gap; not the reverse.
        SECRET_SCOPE = String("invoicing.secret.scope").or("hook").low().rule(Rule::OneOf(&["hook", "connector"]));
        /// Previous secret, still accepted while hooks move to the new one.
        INVOICING_PREVIOUS = Password("invoicing.secret.previous").low().rule(Rule::Size(32, 128));
        /// Whether invoicing deliveries must be signed. With off, anyone who reaches the listener can invent events, so
        /// source.addresses is needed, and the action of an event is known only at a hook's own address.
        SIGNATURE_POLICY = String("invoicing.signature.policy").or("require").rule(Rule::OneOf(&["require", "off"]))
            .dependents(&["source.addresses"]);
        /// Header that carries the signature of invoicing deliveries.
        SIGNATURE_HEADER = String("invoicing.signature.header").or("ms-signature").low().rule(rules::HEADER);
        /// Last segment of the receiving path, /api/webhooks/incoming/<segment>. At most 8 connectors may have the same:
        /// each requires signatures and has an invoicing.secret of its own, by which a delivery finds its connector.
        SEGMENT = String("invoicing.segment").or("Invoicing").low().rule(rules::SEGMENT);
        /// Address that the provider delivers to: own gives each hook its own, /api/webhooks/incoming/<segment>/<hook> with
        /// a hook such as customer-created, so that a delivery is verified with the secrets of that hook alone; shared
        /// gives all hooks /api/webhooks/incoming/<segment>, the form that the provider documents. With own, a hook is
        /// registered at the shared address if the provider refuses its own or does not ask for the echo there. Deliveries
        /// are accepted at both.
        HOOK_ADDRESS = String("invoicing.hook.address").or("own").low().rule(Rule::OneOf(&["own", "shared"]));
        /// Company of each invoicing tenant, as tenant=company. Events of a mapped tenant are keyed by the company,
        /// others by the tenant.
        TENANTS = List("invoicing.tenants").rule(rules::TENANT);
        /// Value of the header Api-Version on requests to the invoicing API. Empty: the header is not sent. The provider's
        /// document does not mention it.
        API_VERSION = String("invoicing.api.version").or("2.0").or_empty().low().rule(rules::VERSION);
        /// Proxy for registering hooks: the provider requires the request to come from the receiving host. Its host must be
        /// one that provider.hosts.allowed of the worker allows.
        EGRESS_PROXY = String("invoicing.egress.proxy").low().rule(rules::PROXY);
        /// Name and password for that proxy, as name:password.
        EGRESS_USER_INFO = Password("invoicing.egress.proxy.user.info").low().rule(rules::USER_INFO);
        /// User of the invoicing API. There are three ways to log in: mail and password, invoicing.login.token, and
        /// invoicing.oauth.scopes with `tributary auth login invoicing`.
        LOGIN_MAIL = String("invoicing.login.mail").rule(rules::PLAIN)
            .dependents(&["invoicing.login.password", "invoicing.login.company"]);
        /// Password of that user.
        LOGIN_PASSWORD = Password("invoicing.login.password");
        /// Id of the company to choose after the login. Unset: the user's default.
        LOGIN_COMPANY = Long("invoicing.login.company").rule(Rule::Range(0, i64::MAX));
        /// Token of the invoicing API for one company, instead of mail and password. The worker cannot renew it: replace it
        /// where the reference points before it ends. One that the provider refuses is not sent again; after that, restart
        /// the task.
        LOGIN_TOKEN = Password("invoicing.login.token");
    }
    "Receiving" {
        /// Networks that deliveries may come from. Empty: any, because signatures are verified.
        SOURCE_ADDRESSES = List("source.addresses").rule(NETWORK);
        /// Largest accounting delivery, in bytes. At most 30 MiB, so that it fits into one record.
        BODY_LIMIT = Long("body.limit.bytes").or("8388608").low().rule(Rule::Range(1024, MAX_BODY_BYTES));
        /// Largest invoicing delivery, in bytes. A larger one is answered 413 without verification.
        INVOICING_BODY_LIMIT = Long("invoicing.body.limit.bytes").or("262144").low().rule(Rule::Range(1024, 8_388_608));
        /// Bytes the spool may hold for this connector before deliveries are answered 503. A worker has one spool: its
        /// limit is the sum over the connectors it receives, and a connector may use what the others leave free.
        SPOOL_LIMIT = Long("spool.limit.bytes").or("1073741824").rule(Rule::Range(1_048_576, 1_099_511_627_776));
    }
    "Subscriptions" {
        /// Whether the connector keeps the provider's subscriptions as configured. With false it only receives, and
        /// needs no access to the provider.
        MANAGE = Boolean("subscriptions.manage").or("true");
        /// Milliseconds between polls of the state of each subscription: one that the provider has disabled is noticed
        /// within this time.
        POLL = Long("subscriptions.poll.interval.ms").or("60000").rule(Rule::Range(100, 86_400_000));
        /// Milliseconds within which a receiver must accept a new subscription, or the provider must ask for the echo of an
        /// invoicing hook. After that a gap is opened and the subscription is recreated.
        ACKNOWLEDGE = Long("subscriptions.acknowledge.timeout.ms").or("600000").low()
            .rule(Rule::Range(100, 86_400_000));
        /// Milliseconds for which a replaced subscription stays beside its successor: the provider may still retry
        /// deliveries of it.
        OVERLAP = Long("subscriptions.overlap.ms").or("120000").low().rule(Rule::Range(0, 86_400_000));
        /// How a subscription moves to another address: overlap registers a second one beside it, so that nothing is missed
        /// and some deliveries come twice; change updates the existing one, which is a gap until the new address is
        /// accepted.
        MOVE = String("subscriptions.move").or("overlap").low().rule(Rule::OneOf(&["overlap", "change"]));
        /// Milliseconds that receivers are given to load a new secret before subscriptions are created with it.
        READY = Long("subscriptions.ready.timeout.ms").or("60000").low().rule(Rule::Range(0, 3_600_000));
        /// Wait after the first failure of a subscription, in milliseconds; it doubles with each further one.
        BACKOFF = Long("subscriptions.retry.backoff.ms").or("1000").low().rule(Rule::Range(10, 3_600_000));
        /// Longest such wait, in milliseconds.
        BACKOFF_MAX = Long("subscriptions.retry.backoff.max.ms").or("300000").low().rule(Rule::Range(10, 86_400_000));
        /// A silence this many times as long as the longest one before is a gap, whatever the provider says; off for never.
        SILENCE = String("subscriptions.silence.factor").or("3").low().rule(provider_names::FACTOR);
        /// Milliseconds of observation before a silence is judged. The default, eight days, includes a weekend.
        SILENCE_LEARNING = Long("subscriptions.silence.learning.ms").or("691200000").low()
            .rule(Rule::Range(100, 31_536_000_000));
        /// Shortest silence that can be a gap, in milliseconds.
        SILENCE_MIN = Long("subscriptions.silence.min.ms").or("3600000").low().rule(Rule::Range(100, 31_536_000_000));
        /// Milliseconds by which a gap is extended at both ends, for differing clocks and deliveries in flight.
        GAP_MARGIN = Long("gap.margin.ms").or("60000").low().rule(Rule::Range(0, 86_400_000));
    }
}
