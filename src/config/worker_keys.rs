//! The keys of the worker's properties file. A module of their own, because connectors and providers name them too.

use crate::config::{
    address::{ALLOWED_HOST, HOST_PORT, HTTP_URL, LISTENER, NETWORK},
    converter,
    key::{
        ConfigKey, Rule,
        Type::{Boolean, Class, Int, List, Long, Password, Short, String},
        keys,
    },
    rules,
};

const MINUTE: i64 = 60_000;
const MEBIBYTE: i64 = 1024 * 1024;

keys! {
    "Kafka" {
        BOOTSTRAP_SERVERS = ConfigKey::new(List, "bootstrap.servers",
            "Brokers to find the cluster through, as host:port.")
            .or("localhost:9092").high().rule(HOST_PORT).not_empty();
        GROUP_ID = ConfigKey::new(String, "group.id",
            "Name of this cluster of workers: workers with the same name share the connectors. It is a consumer group \
             on the work topic, so no other application may use it.")
            .or("tributary").high().rule(rules::PLAIN);
        SESSION_TIMEOUT = ConfigKey::new(Int, "session.timeout.ms",
            "Milliseconds after which a silent worker counts as dead and its tasks move. The broker's \
             group.min.session.timeout.ms (6000 by default) is the lower bound on a real cluster.")
            .or("6000").low().rule(Rule::Range(1500, 5 * MINUTE)).dependents(&["heartbeat.interval.ms"]);
        HEARTBEAT_INTERVAL = ConfigKey::new(Int, "heartbeat.interval.ms",
            "Milliseconds between signs of life; at most a third of session.timeout.ms.")
            .or("500").low().rule(Rule::Range(100, MINUTE));
        TOPIC_CREATION = ConfigKey::new(Boolean, "topic.creation.enable",
            "Whether the worker creates the topics it writes. With false every topic has to be there already, with \
             the right partitions and cleanup policy; `tributary check` says what is missing.")
            .or("true").low();
    }
    "Internal topics" {
        CONFIG_TOPIC = ConfigKey::new(String, "config.storage.topic",
            "Compacted topic with the connector configurations. Never share one between two clusters of workers, nor \
             with Kafka Connect.")
            .or("tributary-configs").rule(rules::TOPIC);
        CONFIG_PARTITIONS = ConfigKey::new(Int, "config.storage.partitions",
            "Always 1: commands need one order.").or("1").low().rule(Rule::Range(1, 1));
        CONFIG_REPLICATION = ConfigKey::new(Short, "config.storage.replication.factor", REPLICATION)
            .or("3").low().rule(Rule::Count);
        OFFSET_TOPIC = ConfigKey::new(String, "offset.storage.topic",
            "Compacted topic with the source offsets, as Kafka Connect writes them.")
            .or("tributary-offsets").rule(rules::TOPIC);
        OFFSET_PARTITIONS = ConfigKey::new(Int, "offset.storage.partitions", PARTITIONS)
            .or("25").low().rule(Rule::Count);
        OFFSET_REPLICATION = ConfigKey::new(Short, "offset.storage.replication.factor", REPLICATION)
            .or("3").low().rule(Rule::Count);
        STATUS_TOPIC = ConfigKey::new(String, "status.storage.topic",
            "Compacted topic with the state of connectors and tasks.")
            .or("tributary-status").rule(rules::TOPIC);
        STATUS_PARTITIONS = ConfigKey::new(Int, "status.storage.partitions", PARTITIONS)
            .or("5").low().rule(Rule::Count);
        STATUS_REPLICATION = ConfigKey::new(Short, "status.storage.replication.factor", REPLICATION)
            .or("3").low().rule(Rule::Count);
        WORK_TOPIC = ConfigKey::new(String, "work.storage.topic",
            "Topic whose partitions stand for connectors and tasks: who owns a partition runs what belongs to it.")
            .or("tributary-work").rule(rules::TOPIC);
        WORK_PARTITIONS = ConfigKey::new(Int, "work.storage.partitions",
            "Most workers that can share the tasks. Used when the topic is created; fixed afterwards.")
            .or("32").low().rule(Rule::Range(1, 1024));
        WORK_REPLICATION = ConfigKey::new(Short, "work.storage.replication.factor", REPLICATION)
            .or("3").low().rule(Rule::Count);
        GRANT_TOPIC = ConfigKey::new(String, "grant.storage.topic",
            "Compacted topic with the OAuth grants, encrypted with grant.encryption.key.")
            .or("tributary-grants").rule(rules::TOPIC);
        GRANT_PARTITIONS = ConfigKey::new(Int, "grant.storage.partitions", PARTITIONS)
            .or("1").low().rule(Rule::Count);
        GRANT_REPLICATION = ConfigKey::new(Short, "grant.storage.replication.factor", REPLICATION)
            .or("3").low().rule(Rule::Count);
        GRANT_KEY = ConfigKey::new(Password, "grant.encryption.key",
            "Text of at least 32 bytes that encrypts the grants (AES-GCM), the same on all workers. Without it no \
             grant can be stored, so nothing can be fetched from the provider. Another key that is derived from it \
             signs dead letters; without it they are unsigned, and a replay needs --trust-unsigned.")
            .rule(Rule::Size(32, 1024));
        GRANT_KEY_PREVIOUS = ConfigKey::new(Password, "grant.encryption.key.previous",
            "The key before, or the one to come, while it is being replaced: grants under it can be read too, \
             and dead letters signed under it are replayed. Every grant is encrypted anew under \
             grant.encryption.key by the worker that keeps it.")
            .low().rule(Rule::Size(32, 1024));
    }
    "REST" {
        LISTENERS = ConfigKey::new(List, "listeners",
            "Where the REST API, /metrics and /health listen. Whoever reaches it can change connectors: keep it off \
             public networks.")
            .or("http://127.0.0.1:8083").rule(LISTENER).not_empty();
        LISTENERS_CERTIFICATE = ConfigKey::new(String, "listeners.https.ssl.certificate.location",
            "PEM file with the certificate chain for https listeners.").low().rule(Rule::File);
        LISTENERS_KEY = ConfigKey::new(String, "listeners.https.ssl.key.location",
            "PEM file with the private key of that certificate.").low().rule(Rule::File);
        LISTENERS_CLIENT_AUTH = ConfigKey::new(String, "listeners.https.ssl.client.auth",
            "Whether https listeners ask clients for a certificate: none does not ask, requested also lets clients in that \
             show none, required refuses those in the handshake. A certificate lets a client connect; who may change \
             connectors is decided by admin.auth.method.")
            .or("none").rule(Rule::OneOf(&["none", "requested", "required"]))
            .dependents(&["listeners.https.ssl.ca.location"]);
        LISTENERS_CA = ConfigKey::new(String, "listeners.https.ssl.ca.location",
            "PEM file with the certificates of the authorities that issue client certificates.").low().rule(Rule::File);
        LISTENERS_RELOAD = ConfigKey::new(Int, "listeners.https.ssl.reload.interval.ms",
            "Milliseconds between two looks at the certificate, its key and the client authorities of https listeners; \
             what has changed is served from then on.")
            .or("10000").low().rule(Rule::Range(100, 60 * MINUTE));
        ADVERTISED_HOST = ConfigKey::new(String, "rest.advertised.host.name",
            "Host name in this worker's id (host:port) and in Location headers. Unset: the first listener's host.")
            .low().rule(rules::HOST);
        ADVERTISED_PORT = ConfigKey::new(Int, "rest.advertised.port",
            "Port in this worker's id. Unset: the first listener's port.").low().rule(Rule::Range(1, 65_535));
        ADVERTISED_LISTENER = ConfigKey::new(String, "rest.advertised.listener",
            "Scheme of Location headers. Unset: the first listener's.")
            .low().rule(Rule::OneOf(&["http", "https"]));
        AUTH_METHOD = ConfigKey::new(String, "admin.auth.method",
            "Whether REST callers must show a name and password. With none, only listeners on a loopback address are \
             accepted, unless admin.auth.anonymous is true. With basic, listeners beyond it must be https, unless \
             admin.auth.plaintext is true.")
            .or("none").rule(Rule::OneOf(&["none", "basic"]))
            .dependents(&["admin.auth.user", "admin.auth.password"]);
        AUTH_ANONYMOUS = ConfigKey::new(Boolean, "admin.auth.anonymous",
            "Whether everybody who reaches a listener beyond this machine may change connectors. Only for networks in \
             which something else decides who reaches it.")
            .or("false").low();
        AUTH_PLAINTEXT = ConfigKey::new(Boolean, "admin.auth.plaintext",
            "Whether passwords may come over http listeners beyond this machine, because a proxy in admin.auth.proxies \
             ends TLS.")
            .or("false").low().dependents(&["admin.auth.proxies"]);
        AUTH_PROXIES = ConfigKey::new(List, "admin.auth.proxies",
            "Addresses of the proxies in front of listeners. Only from these is X-Forwarded-For believed, for the audit log \
             and for the backoff after failed logins.")
            .low().rule(NETWORK);
        AUTH_HOSTS = ConfigKey::new(List, "admin.auth.anonymous.hosts",
            "Names that callers may use for this worker while nobody is asked who they are, besides addresses, localhost, \
             the hosts of listeners and rest.advertised.host.name; * for any. Other names are answered 421, also on \
             admin.auth.open.paths: a page that makes its own name point here could otherwise use a browser on this machine.")
            .low().rule(rules::HOST_OR_ANY);
        AUTH_OPEN_PATHS = ConfigKey::new(List, "admin.auth.open.paths",
            "What is answered without a name and password even so; what stands below a path belongs to it.")
            .or("/health,/metrics").low().rule(Rule::OneOf(&["/health", "/metrics"]));
        AUTH_USER = ConfigKey::new(String, "admin.auth.user", "Name that may do everything.").rule(rules::PLAIN);
        AUTH_PASSWORD = ConfigKey::new(Password, "admin.auth.password",
            "Password of that name: as it is, or as a hash of the form $pbkdf2-sha256$i=600000$salt$hash, salt and hash \
             in base64.")
            .rule(Rule::Size(8, 1024));
        AUTH_READER = ConfigKey::new(String, "admin.auth.readonly.user", "Name that may only read.").rule(rules::PLAIN);
        AUTH_READER_PASSWORD = ConfigKey::new(Password, "admin.auth.readonly.password",
            "Password of that name, as it is or as a hash.")
            .rule(Rule::Size(8, 1024));
        ALLOW_ORIGIN = ConfigKey::new(List, "access.control.allow.origin",
            "Origins whose pages may call the REST API from a browser, such as https://tools.example.com; * lets every page \
             read, but only an origin that is named may change anything, and needs admin.auth.method=basic. Unset: none.")
            .low().rule(rules::ORIGIN);
        ALLOW_METHODS = ConfigKey::new(List, "access.control.allow.methods",
            "Methods those pages may use.")
            .or("GET,POST,HEAD").low()
            .rule(Rule::OneOf(&["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE"]));
    }
    "Converters and schema registry" {
        KEY_CONVERTER = ConfigKey::new(Class, "key.converter",
            "Keys are UTF-8 text, so this is the only provider_names; a schema id in the key would break compaction.")
            .or("org.apache.kafka.connect.storage.StringConverter").low().rule(converter::KEY);
        VALUE_CONVERTER = ConfigKey::new(Class, "value.converter",
            "Values are Avro in Confluent's wire format.")
            .or("io.confluent.connect.avro.AvroConverter").low().rule(converter::VALUE);
        HEADER_CONVERTER = ConfigKey::new(Class, "header.converter", "Headers are UTF-8 text.")
            .or("org.apache.kafka.connect.storage.SimpleHeaderConverter").low().rule(converter::HEADER);
        REGISTRY_URL = ConfigKey::new(List, "value.converter.schema.registry.url",
            "Addresses of the schema registry, tried in order. A base path is kept, as in \
             http://apicurio:8080/apis/ccompat/v7.")
            .required().high().rule(HTTP_URL).not_empty();
        REGISTRY_BASIC_SOURCE = ConfigKey::new(String, "value.converter.basic.auth.credentials.source",
            "Where name and password for the registry come from: USER_INFO takes basic.auth.user.info, URL takes them \
             from the address itself.")
            .rule(Rule::OneOf(&["USER_INFO", "URL"]))
            .dependents(&["value.converter.basic.auth.user.info"]);
        REGISTRY_USER_INFO = ConfigKey::new(Password, "value.converter.basic.auth.user.info",
            "Name and password for the registry, as name:password.").rule(rules::USER_INFO);
        REGISTRY_BEARER_SOURCE = ConfigKey::new(String, "value.converter.bearer.auth.credentials.source",
            "Where a bearer token for the registry comes from.").low().rule(Rule::OneOf(&["STATIC_TOKEN"]))
            .dependents(&["value.converter.bearer.auth.token"]);
        REGISTRY_TOKEN = ConfigKey::new(Password, "value.converter.bearer.auth.token",
            "Bearer token for the registry.").low();
        REGISTRY_CA = ConfigKey::new(String, "value.converter.schema.registry.ssl.ca.location",
            "PEM file with the certificates to trust for the registry, instead of the system's.")
            .low().rule(Rule::File);
        REGISTRY_CERTIFICATE = ConfigKey::new(String, "value.converter.schema.registry.ssl.certificate.location",
            "PEM file with the client certificate chain for the registry.").low().rule(Rule::File);
        REGISTRY_KEY = ConfigKey::new(String, "value.converter.schema.registry.ssl.key.location",
            "PEM file with the private key of that certificate, not encrypted.").low().rule(Rule::File);
        REGISTRY_TIMEOUT = ConfigKey::new(Int, "value.converter.schema.registry.request.timeout.ms",
            "Longest wait for one answer of the registry, in milliseconds.")
            .or("10000").low().rule(Rule::Range(100, 5 * MINUTE));
    }
    "Receiving webhooks" {
        WEBHOOK_LISTENERS = ConfigKey::new(List, "webhook.listeners",
            "Where deliveries are received, apart from the REST API. Unset: this worker receives none.")
            .high().rule(LISTENER);
        WEBHOOK_CERTIFICATE = ConfigKey::new(String, "webhook.ssl.certificate.location",
            "PEM file with the certificate chain of the public address.").rule(Rule::File);
        WEBHOOK_KEY = ConfigKey::new(String, "webhook.ssl.key.location",
            "PEM file with the private key of that certificate.").rule(Rule::File);
        WEBHOOK_URL = ConfigKey::new(String, "webhook.advertised.url",
            "Public address that the provider is told to deliver to; the paths of the connectors are appended. The \
             provider only delivers to https on port 443. A path in it is refused when a connector has invoicing.hooks: \
             the provider delivers those to /api/webhooks/incoming/<segment> at the root of the host.")
            .high().rule(rules::ADVERTISED_URL);
        WEBHOOK_PROXIES = ConfigKey::new(List, "webhook.proxies",
            "Addresses of the proxies in front of the listener. Only from these is X-Forwarded-For believed.")
            .rule(NETWORK);
        WEBHOOK_PLAINTEXT = ConfigKey::new(Boolean, "webhook.plaintext",
            "Whether http listeners are allowed for deliveries, because a proxy in webhook.proxies ends TLS.")
            .or("false").dependents(&["webhook.proxies"]);
        WEBHOOK_RELOAD = ConfigKey::new(Int, "webhook.ssl.reload.interval.ms",
            "Milliseconds between two looks at the certificate and its key; what has changed is served from then on.")
            .or("10000").low().rule(Rule::Range(100, 60 * MINUTE));
        WEBHOOK_CONNECTIONS = ConfigKey::new(Int, "webhook.connections.max",
            "Connections of one webhook listener at a time. One more takes the place of the one that is longest without a \
             request, and waits where all have one. The process needs as many open files and some more; the limit is \
             raised as far as it may be.")
            .or("4096").low().rule(Rule::Range(1, 1_000_000));
        WEBHOOK_PER_ADDRESS = ConfigKey::new(Int, "webhook.connections.per.address",
            "Connections of one webhook listener from one address at a time; one more is closed. Those of \
             webhook.proxies are not counted.")
            .or("512").low().rule(Rule::Range(1, 1_000_000));
        INTAKE_MEMORY = ConfigKey::new(Long, "intake.memory.bytes",
            "Bytes of deliveries that may wait in memory for Kafka; above it they go through the spool only. At \
             least 40 MiB, so that the largest record fits.")
            .or("67108864").low().rule(Rule::Range(40 * MEBIBYTE, 16 * 1024 * MEBIBYTE));
    }
    "Files" {
        CONNECTORS_DIR = ConfigKey::new(String, "connectors.dir",
            "Directory of connector files (*.json), applied at start and when they change. Unset: connectors come \
             from the REST API alone.")
            .rule(rules::CONNECTORS_DIR).dependents(&["connectors.dir.interval.ms"]);
        CONNECTORS_DIR_INTERVAL = ConfigKey::new(Int, "connectors.dir.interval.ms",
            "Milliseconds between two looks at the connector files.")
            .or("5000").low().rule(Rule::Range(100, 60 * MINUTE));
        STATE_DIR = ConfigKey::new(String, "state.dir",
            "Directory for the spool, the fence store and what a start without Kafka needs. Deliveries that were \
             answered may exist only here: put it on a disk that survives a restart. No other user may use what \
             is in it: the worker takes such rights away (0700, 0600), and does not start where it cannot. The \
             directory itself may belong to another user, as the root of a volume does.")
            .or("state").high().rule(rules::STATE_DIR);
    }
    "Provider" {
        PROVIDER_HOSTS = ConfigKey::new(List, "provider.hosts.allowed",
            "Hosts that connectors may name in provider.base.url, provider.auth.url and invoicing.egress.proxy, and that the \
             identity service may name for its keys: host, host:port, or *.suffix for every host below a domain. Keys and tokens go \
             to no other host. Unset: every public host; private, loopback and link-local ones are refused, whatever name leads \
             there. A host listed in full may be private, one that only a *.suffix covers may not. Behind a proxy of the \
             environment (HTTPS_PROXY) that proxy resolves names: list the hosts, and the proxy's if it is private.")
            .high().rule(ALLOWED_HOST).not_empty();
    }
    "Secrets" {
        CONFIG_PROVIDERS = ConfigKey::new(List, "config.providers",
            "Names of the config providers that connectors may use, each only inside its allow list: \
             config.providers.<name>.param.allowlist.pattern for env, .param.allowed.paths for file and dir. One other than \
             env, file and dir needs config.providers.<name>.class. The worker's own file may always use env, file and dir; \
             what it refers to is closed to connectors.")
            .or("").rule(rules::PROVIDER);
        SECRETS_POLICY = ConfigKey::new(String, "secrets.policy",
            "What happens to a secret written as text: warn, or with references a refusal.")
            .or("warn").rule(Rule::OneOf(&["warn", "references"]));
        SECRETS_RELOAD = ConfigKey::new(Int, "secrets.reload.interval.ms",
            "Milliseconds between two looks at what the configurations of received connectors refer to; what has changed \
             counts from then on, unless config.action.reload is none.")
            .or("30000").low().rule(Rule::Range(100, 60 * MINUTE));
    }
    "Running" {
        CLOCK_SKEW = ConfigKey::new(Long, "clock.skew.max.ms",
            "Largest difference assumed between the provider's clock and ours where no Date header tells, in \
             milliseconds. Snapshots prove completeness with it.")
            .or("300000").low().rule(Rule::Range(0, 60 * MINUTE));
        SHUTDOWN_TIMEOUT = ConfigKey::new(Long, "shutdown.timeout.ms",
            "Longest time to stop in, in milliseconds; what is not sent by then is in the spool. A refresh of a token that \
             is under way is waited for up to 20 seconds in any case: cut off, it may cost a login.")
            .or("30000").low().rule(Rule::Range(5000, 60 * MINUTE));
        LOG_FORMAT = ConfigKey::new(String, "log.format", "Log lines for people or for machines.")
            .or("text").rule(Rule::OneOf(&["text", "json"]));
        LOG_FILTER = ConfigKey::new(String, "log.filter",
            "Which log lines appear: a level, or levels by module as in info,tributary::kafka=debug.")
            .or("info").rule(rules::LOG_FILTER);
    }
}

const REPLICATION: &str = "Copies of each partition when the topic is created. A single broker needs 1; -1 takes the \
                           broker's default, which on many clusters is 1.";
const PARTITIONS: &str = "Partitions when the topic is created; -1 takes the broker's default.";
