//! The keys of the worker's properties file. Separate from `worker`, because connectors and providers use them too.

use crate::config::{
    address::{ALLOWED_HOST, HOST_PORT, HTTP_URL, LISTENER, NETWORK},
    converter,
    key::{Rule, keys},
    rules,
};

const MINUTE: i64 = 60_000;
const MEBIBYTE: i64 = 1024 * 1024;

keys! {
    "Kafka" {
        /// Brokers to find the cluster through, as host:port.
        BOOTSTRAP_SERVERS = List("bootstrap.servers").or("localhost:9092").high().rule(HOST_PORT).not_empty();
        /// Name of this cluster of workers: workers with the same name share the connectors. It is a consumer group
        /// on the work topic, so no other application may use it.
        GROUP_ID = String("group.id").or("tributary").high().rule(rules::PLAIN);
        /// Milliseconds after which a silent worker counts as dead and its tasks move. The broker's
        /// group.min.session.timeout.ms (6000 by default) is the lower bound on a real cluster.
        SESSION_TIMEOUT = Int("session.timeout.ms").or("6000").low().rule(Rule::Range(1500, 5 * MINUTE))
            .dependents(&["heartbeat.interval.ms"]);
        /// Milliseconds between heartbeats; at most a third of session.timeout.ms.
        HEARTBEAT_INTERVAL = Int("heartbeat.interval.ms").or("500").low().rule(Rule::Range(100, MINUTE));
        /// Whether the worker creates the topics it writes. With false every topic must exist with the right partitions and
        /// cleanup policy; `tributary check` lists what is missing.
        TOPIC_CREATION = Boolean("topic.creation.enable").or("true").low();
    }
    "Internal topics" {
        /// Compacted topic with the connector configurations. Never share one between two clusters of workers, nor
        /// with Kafka Connect.
        CONFIG_TOPIC = String("config.storage.topic").or("tributary-configs").rule(rules::TOPIC);
        /// Always 1: commands need a total order.
        CONFIG_PARTITIONS = Int("config.storage.partitions").or("1").low().rule(Rule::Range(1, 1));
        /// Copies of each partition when the topic is created. A single broker needs 1; -1 takes the broker's
        /// default, which on many clusters is 1.
        CONFIG_REPLICATION = Short("config.storage.replication.factor").or("3").low().rule(Rule::Count);
        /// Compacted topic with the source offsets, as Kafka Connect writes them.
        OFFSET_TOPIC = String("offset.storage.topic").or("tributary-offsets").rule(rules::TOPIC);
        /// Partitions when the topic is created; -1 takes the broker's default.
        OFFSET_PARTITIONS = Int("offset.storage.partitions").or("25").low().rule(Rule::Count);
        /// Copies of each partition when the topic is created. A single broker needs 1; -1 takes the broker's
        /// default, which on many clusters is 1.
        OFFSET_REPLICATION = Short("offset.storage.replication.factor").or("3").low().rule(Rule::Count);
        /// Compacted topic with the state of connectors and tasks.
        STATUS_TOPIC = String("status.storage.topic").or("tributary-status").rule(rules::TOPIC);
        /// Partitions when the topic is created; -1 takes the broker's default.
        STATUS_PARTITIONS = Int("status.storage.partitions").or("5").low().rule(Rule::Count);
        /// Copies of each partition when the topic is created. A single broker needs 1; -1 takes the broker's
        /// default, which on many clusters is 1.
        STATUS_REPLICATION = Short("status.storage.replication.factor").or("3").low().rule(Rule::Count);
        /// Topic whose partitions represent connectors and tasks: the worker that owns a partition runs the connectors and
        /// tasks assigned to it.
        WORK_TOPIC = String("work.storage.topic").or("tributary-work").rule(rules::TOPIC);
        /// Maximum number of workers that can share the tasks. Used when the topic is created; fixed afterwards.
        WORK_PARTITIONS = Int("work.storage.partitions").or("32").low().rule(Rule::Range(1, 1024));
        /// Copies of each partition when the topic is created. A single broker needs 1; -1 takes the broker's
        /// default, which on many clusters is 1.
        WORK_REPLICATION = Short("work.storage.replication.factor").or("3").low().rule(Rule::Count);
        /// Compacted topic with the OAuth grants, encrypted with grant.encryption.key.
        GRANT_TOPIC = String("grant.storage.topic").or("tributary-grants").rule(rules::TOPIC);
        /// Partitions when the topic is created; -1 takes the broker's default.
        GRANT_PARTITIONS = Int("grant.storage.partitions").or("1").low().rule(Rule::Count);
        /// Copies of each partition when the topic is created. A single broker needs 1; -1 takes the broker's
        /// default, which on many clusters is 1.
        GRANT_REPLICATION = Short("grant.storage.replication.factor").or("3").low().rule(Rule::Count);
        /// Text of at least 32 bytes that encrypts the grants (AES-GCM), the same on all workers. Without it no grant can
        /// be stored, so nothing can be fetched from the provider. A key derived from it signs dead letters; without it
        /// they are unsigned, and a replay needs --trust-unsigned.
        GRANT_KEY = Password("grant.encryption.key").rule(Rule::Size(32, 1024));
        /// The old or the next key during a rotation: grants encrypted under it can be read, and dead letters signed under
        /// it can be replayed. The worker that holds a grant re-encrypts it under grant.encryption.key.
        GRANT_KEY_PREVIOUS = Password("grant.encryption.key.previous").low().rule(Rule::Size(32, 1024));
    }
    "REST" {
        /// Addresses on which the REST API, /metrics and /health are served. Anyone who can reach them can change
        /// connectors: keep them off public networks.
        LISTENERS = List("listeners").or("http://127.0.0.1:8083").rule(LISTENER).not_empty();
        /// PEM file with the certificate chain for https listeners.
        LISTENERS_CERTIFICATE = String("listeners.https.ssl.certificate.location").low().rule(Rule::File);
        /// PEM file with the private key of that certificate.
        LISTENERS_KEY = String("listeners.https.ssl.key.location").low().rule(Rule::File);
        /// Whether https listeners ask clients for a certificate: none does not ask, requested accepts clients without one,
        /// required refuses them in the handshake. A certificate only lets a client connect; admin.auth.method decides who
        /// may change connectors.
        LISTENERS_CLIENT_AUTH = String("listeners.https.ssl.client.auth").or("none")
            .rule(Rule::OneOf(&["none", "requested", "required"])).dependents(&["listeners.https.ssl.ca.location"]);
        /// PEM file with the certificates of the authorities that issue client certificates.
        LISTENERS_CA = String("listeners.https.ssl.ca.location").low().rule(Rule::File);
        /// Milliseconds between checks of the certificate, its key and the client authorities of https listeners. Changed
        /// files take effect without a restart.
        LISTENERS_RELOAD = Int("listeners.https.ssl.reload.interval.ms").or("10000").low()
            .rule(Rule::Range(100, 60 * MINUTE));
        /// Host name in this worker's id (host:port) and in Location headers. Unset: the first listener's host.
        ADVERTISED_HOST = String("rest.advertised.host.name").low().rule(rules::HOST);
        /// Port in this worker's id. Unset: the first listener's port.
        ADVERTISED_PORT = Int("rest.advertised.port").low().rule(Rule::Range(1, 65_535));
        /// Scheme of Location headers. Unset: the first listener's.
        ADVERTISED_LISTENER = String("rest.advertised.listener").low().rule(Rule::OneOf(&["http", "https"]));
        /// Whether REST clients must authenticate with a name and password. With none, all listeners must be on loopback
        /// addresses unless admin.auth.anonymous is true. With basic, listeners on other addresses must be https unless
        /// admin.auth.plaintext is true.
        AUTH_METHOD = String("admin.auth.method").or("none").rule(Rule::OneOf(&["none", "basic"]))
            .dependents(&["admin.auth.user", "admin.auth.password"]);
        /// Whether clients on other machines may change connectors without a password. Only for networks where something
        /// else restricts access to the listeners.
        AUTH_ANONYMOUS = Boolean("admin.auth.anonymous").or("false").low();
        /// Whether http listeners that other machines can reach may receive passwords, because a proxy in
        /// admin.auth.proxies terminates TLS.
        AUTH_PLAINTEXT = Boolean("admin.auth.plaintext").or("false").low().dependents(&["admin.auth.proxies"]);
        /// Addresses of the proxies in front of listeners. X-Forwarded-For is trusted only from these, for the audit log
        /// and for the backoff after failed logins.
        AUTH_PROXIES = List("admin.auth.proxies").low().rule(NETWORK);
        /// Host names under which clients may address this worker while admin.auth.method is none, besides IP addresses,
        /// localhost, the hosts of listeners and rest.advertised.host.name; * for any. Requests with other host names are
        /// answered 421, also on admin.auth.open.paths: otherwise a web page whose host name resolves to this worker could
        /// use a browser on this machine.
        AUTH_HOSTS = List("admin.auth.anonymous.hosts").low().rule(rules::HOST_OR_ANY);
        /// Paths that are answered without a name and password although admin.auth.method is basic, with everything below
        /// them.
        AUTH_OPEN_PATHS = List("admin.auth.open.paths").or("/health,/metrics").low()
            .rule(Rule::OneOf(&["/health", "/metrics"]));
        /// User with full access.
        AUTH_USER = String("admin.auth.user").rule(rules::PLAIN);
        /// Password of that user: in plain text, or as a hash of the form $pbkdf2-sha256$i=600000$salt$hash with salt and
        /// hash in base64.
        AUTH_PASSWORD = Password("admin.auth.password").rule(Rule::Size(8, 1024));
        /// User with read-only access.
        AUTH_READER = String("admin.auth.readonly.user").rule(rules::PLAIN);
        /// Password of that user, in plain text or as a hash.
        AUTH_READER_PASSWORD = Password("admin.auth.readonly.password").rule(Rule::Size(8, 1024));
        /// Origins whose pages may call the REST API from a browser, such as https://tools.example.com; * lets every page
        /// read and needs admin.auth.method=basic, but only an origin listed by name may change anything. Unset: none.
        ALLOW_ORIGIN = List("access.control.allow.origin").low().rule(rules::ORIGIN);
        /// HTTP methods that those pages may use.
        ALLOW_METHODS = List("access.control.allow.methods").or("GET,POST,HEAD").low()
            .rule(Rule::OneOf(&["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"]));
    }
    "Converters and schema registry" {
        /// Keys are UTF-8 text, so this is the only choice; a schema id in the key would break compaction.
        KEY_CONVERTER = Class("key.converter").or("org.apache.kafka.connect.storage.StringConverter").low()
            .rule(converter::KEY);
        /// Values are Avro in Confluent's wire format.
        VALUE_CONVERTER = Class("value.converter").or("io.confluent.connect.avro.AvroConverter").low()
            .rule(converter::VALUE);
        /// Headers are UTF-8 text.
        HEADER_CONVERTER = Class("header.converter").or("org.apache.kafka.connect.storage.SimpleHeaderConverter")
            .low().rule(converter::HEADER);
        /// Addresses of the schema registry, tried in order. A base path is kept, as in
        /// http://apicurio:8080/apis/ccompat/v7.
        REGISTRY_URL = List("value.converter.schema.registry.url").required().high().rule(HTTP_URL).not_empty();
        /// Where name and password for the registry come from: USER_INFO takes basic.auth.user.info, URL takes them
        /// from the address itself.
        REGISTRY_BASIC_SOURCE = String("value.converter.basic.auth.credentials.source")
            .rule(Rule::OneOf(&["USER_INFO", "URL"])).dependents(&["value.converter.basic.auth.user.info"]);
        /// Name and password for the registry, as name:password.
        REGISTRY_USER_INFO = Password("value.converter.basic.auth.user.info").rule(rules::USER_INFO);
        /// Where a bearer token for the registry comes from.
        REGISTRY_BEARER_SOURCE = String("value.converter.bearer.auth.credentials.source").low()
            .rule(Rule::OneOf(&["STATIC_TOKEN"])).dependents(&["value.converter.bearer.auth.token"]);
        /// Bearer token for the registry.
        REGISTRY_TOKEN = Password("value.converter.bearer.auth.token").low();
        /// PEM file with the certificates to trust for the registry, instead of the system's.
        REGISTRY_CA = String("value.converter.schema.registry.ssl.ca.location").low().rule(Rule::File);
        /// PEM file with the client certificate chain for the registry.
        REGISTRY_CERTIFICATE = String("value.converter.schema.registry.ssl.certificate.location").low()
            .rule(Rule::File);
        /// PEM file with the private key of that certificate, not encrypted.
        REGISTRY_KEY = String("value.converter.schema.registry.ssl.key.location").low().rule(Rule::File);
        /// Timeout of one request to the registry, in milliseconds.
        REGISTRY_TIMEOUT = Int("value.converter.schema.registry.request.timeout.ms").or("10000").low()
            .rule(Rule::Range(100, 5 * MINUTE));
    }
    "Receiving webhooks" {
        /// Addresses on which this worker receives deliveries, apart from the REST API. Unset: it receives none.
        WEBHOOK_LISTENERS = List("webhook.listeners").high().rule(LISTENER);
        /// PEM file with the certificate chain of the public address.
        WEBHOOK_CERTIFICATE = String("webhook.ssl.certificate.location").rule(Rule::File);
        /// PEM file with the private key of that certificate.
        WEBHOOK_KEY = String("webhook.ssl.key.location").rule(Rule::File);
        /// Public address that subscriptions are registered with; the paths of the connectors are appended. The provider
        /// only delivers to https on port 443. A path in it is refused when a connector has invoicing.hooks: the provider
        /// delivers those to /api/webhooks/incoming/<segment> at the root of the host.
        WEBHOOK_URL = String("webhook.advertised.url").high().rule(rules::ADVERTISED_URL);
        /// Addresses of the proxies in front of the listener. X-Forwarded-For is trusted only from these.
        WEBHOOK_PROXIES = List("webhook.proxies").rule(NETWORK);
        /// Whether http listeners are allowed for deliveries, because a proxy in webhook.proxies terminates TLS.
        WEBHOOK_PLAINTEXT = Boolean("webhook.plaintext").or("false").dependents(&["webhook.proxies"]);
        /// Milliseconds between checks of the certificate and its key. Changed files take effect without a restart.
        WEBHOOK_RELOAD = Int("webhook.ssl.reload.interval.ms").or("10000").low().rule(Rule::Range(100, 60 * MINUTE));
        /// Maximum number of open connections of one webhook listener. One more replaces the connection that has been idle
        /// longest, or waits while all have a request. The process needs as many open files and some more; the worker
        /// raises its limit as far as the system allows.
        WEBHOOK_CONNECTIONS = Int("webhook.connections.max").or("4096").low().rule(Rule::Range(1, 1_000_000));
        /// Maximum number of open connections of one webhook listener from one address; one more is closed. Connections
        /// from webhook.proxies are not counted.
        WEBHOOK_PER_ADDRESS = Int("webhook.connections.per.address").or("512").low().rule(Rule::Range(1, 1_000_000));
        /// Bytes of deliveries that may wait in memory for Kafka; above it they go through the spool only. At least
        /// 40 MiB, so that the largest record fits.
        INTAKE_MEMORY = Long("intake.memory.bytes").or("67108864").low()
            .rule(Rule::Range(40 * MEBIBYTE, 16 * 1024 * MEBIBYTE));
    }
    "Files" {
        /// Directory of connector files (*.json), applied at start and when they change. Unset: connectors come
        /// from the REST API alone.
        CONNECTORS_DIR = String("connectors.dir").rule(rules::CONNECTORS_DIR)
            .dependents(&["connectors.dir.interval.ms"]);
        /// Milliseconds between checks of the connector files.
        CONNECTORS_DIR_INTERVAL = Int("connectors.dir.interval.ms").or("5000").low()
            .rule(Rule::Range(100, 60 * MINUTE));
        /// Directory for the spool, the fence store and the state that a start without Kafka needs. Acknowledged deliveries
        /// may exist only here: put it on a disk that survives a restart. Other users must have no access to its contents:
        /// the worker removes such permissions (0700, 0600), and does not start where it cannot. The directory itself may
        /// belong to another user, as the root of a volume does.
        STATE_DIR = String("state.dir").or("state").high().rule(rules::STATE_DIR);
    }
    "Provider" {
        /// Hosts that connectors may name in provider.base.url, provider.auth.url and invoicing.egress.proxy, and that the
        /// identity service may name for its keys: host, host:port, or *.suffix for every host below a domain. Keys and
        /// tokens are sent to no other host. Unset: every public host; private, loopback and link-local addresses are
        /// refused, whichever name resolves to them. A host listed in full may be private, one matched only by a *.suffix
        /// may not. Behind a proxy from the environment (HTTPS_PROXY) the proxy resolves names: list the hosts, and the
        /// proxy if its address is private.
        PROVIDER_HOSTS = List("provider.hosts.allowed").high().rule(ALLOWED_HOST).not_empty();
    }
    "Secrets" {
        /// Names of the config providers that connectors may use, each only inside its allow list:
        /// config.providers.<name>.param.allowlist.pattern for env, .param.allowed.paths for file and dir. A provider other
        /// than env, file and dir needs config.providers.<name>.class. The worker's own file may always use env, file and
        /// dir; connectors cannot read the secrets that it refers to.
        CONFIG_PROVIDERS = List("config.providers").or("").rule(rules::PROVIDER);
        /// What happens to a secret written as plain text: warn logs a warning, references refuses the configuration.
        SECRETS_POLICY = String("secrets.policy").or("warn").rule(Rule::OneOf(&["warn", "references"]));
        /// Milliseconds between checks of the secrets that received connectors refer to. Changed secrets take effect unless
        /// config.action.reload is none.
        SECRETS_RELOAD = Int("secrets.reload.interval.ms").or("30000").low().rule(Rule::Range(100, 60 * MINUTE));
    }
    "Running" {
        /// Largest difference assumed between the provider's clock and the worker's where an answer has no Date header, in
        /// milliseconds. Snapshots use it to prove completeness.
        CLOCK_SKEW = Long("clock.skew.max.ms").or("300000").low().rule(Rule::Range(0, 60 * MINUTE));
        /// Time limit of a shutdown, in milliseconds; what is not published by then stays in the spool. A token refresh in
        /// progress is awaited for up to 20 seconds in any case: interrupting it may cost a login.
        SHUTDOWN_TIMEOUT = Long("shutdown.timeout.ms").or("30000").low().rule(Rule::Range(5000, 60 * MINUTE));
        /// Format of log lines: text for people, json for machines.
        LOG_FORMAT = String("log.format").or("text").rule(Rule::OneOf(&["text", "json"]));
        /// Which log lines appear: a level, or levels by module as in info,tributary::kafka=debug.
        LOG_FILTER = String("log.filter").or("info").rule(rules::LOG_FILTER);
    }
}
