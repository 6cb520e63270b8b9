use std::fs;

use super::*;
use crate::config::{RegistryAuth, unknown_keys::matches_pattern};

const MINIMAL: &str = "value.converter.schema.registry.url=http://registry:8081\n";

fn load_with(file: &[u8], variables: &[(&str, &str)]) -> Result<LoadedConfig, Problems> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("worker.properties");
    fs::write(&path, file).unwrap();
    let environment = variables.iter().map(|(name, value)| (name.into(), value.into()));
    Worker::load(Some(&path), environment).map_err(|rejected| rejected.problems)
}

fn load(lines: &str) -> Result<LoadedConfig, Problems> {
    let variables = [("SECRET", "hunter2-hunter2-hunter2-hunter2-!"), ("POLICY", "references")];
    load_with(format!("{MINIMAL}{lines}").as_bytes(), &variables)
}

fn problems_of(lines: &str) -> String {
    load(lines).map(|loaded| format!("{:?}", loaded.warnings)).unwrap_err().to_string()
}

#[test]
fn the_smallest_file_gives_connects_and_our_defaults() {
    let LoadedConfig { config, warnings } = load("").unwrap();

    assert_eq!(warnings, []);
    assert_eq!(config.kafka.bootstrap_servers, "localhost:9092");
    assert_eq!(config.group.id, "tributary");
    let topics = &config.topics;
    let shape = |topic: &InternalTopic| (topic.name.clone(), topic.partitions, topic.replication_factor);
    assert_eq!(shape(&topics.config), ("tributary-configs".to_owned(), 1, 3));
    assert_eq!(shape(&topics.offset), ("tributary-offsets".to_owned(), 25, 3));
    assert_eq!(shape(&topics.status), ("tributary-status".to_owned(), 5, 3));
    assert_eq!(shape(&topics.work), ("tributary-work".to_owned(), 32, 3));
    assert_eq!(shape(&topics.grant), ("tributary-grants".to_owned(), 1, 3));
    assert_eq!(config.listeners, [Listener { tls: false, host: "127.0.0.1".to_owned(), port: 8083 }]);
    assert_eq!((config.rest.advertised_host.as_str(), config.rest.advertised_port), ("127.0.0.1", 8083));
    assert!(config.webhook.listeners.is_empty() && config.webhook.memory_bytes == 64 << 20);
    assert_eq!(config.telemetry, LogSettings { format: LogFormat::Text, filter: "info".to_owned() });
    assert_eq!(config.clock_skew_max, Duration::from_secs(300));
}

#[test]
fn environment_suffices_and_overrides_the_file() {
    let registry = ("CONNECT_VALUE_CONVERTER_SCHEMA_REGISTRY_URL", "http://other:8081/base");
    let environment = [registry].map(|(name, value)| (name.into(), value.into()));

    let alone = Worker::load(None, environment).unwrap().config;
    let both = load_with(MINIMAL.as_bytes(), &[registry, ("CONNECT_GROUP_ID", "g")]).unwrap().config;

    assert_eq!(alone.registry.urls[0].as_str(), "http://other:8081/base");
    assert_eq!(both.registry.urls[0].as_str(), "http://other:8081/base");
    assert_eq!(both.group.id, "g");
}

#[test]
fn an_empty_variable_is_ignored_with_a_warning() {
    let loaded = load_with(
        b"value.converter.schema.registry.url=http://registry:8081\ngroup.id=g\n",
        &[("CONNECT_GROUP_ID", "")],
    )
    .unwrap();

    assert_eq!(loaded.config.group.id, "g");
    assert_eq!(loaded.warnings.len(), 1);
    assert_eq!(loaded.warnings[0].key, "CONNECT_GROUP_ID");
}

#[test]
fn rejected_worker_still_names_its_connectors_directory() {
    let directory = tempfile::tempdir().unwrap();
    let environment = [("CONNECT_CONNECTORS_DIR".into(), directory.path().into())];

    let rejected = Worker::load(None, environment).unwrap_err();

    assert_eq!(rejected.connectors_dir.as_deref(), Some(directory.path()));
}

#[test]
fn all_problems_of_a_file_are_reported_without_secrets() {
    let file = b"group.id=\\u00g1\n\
        log.filter=caf\xe9\n\
        offset.storage.partitions=many\n\
        status.storage.replication.factor=0\n\
        config.storage.partitions=2\n\
        grant.encryption.key=hunter2\n\
        webhook.listeners=https://0.0.0.0:443\n\
        webhook.ssl.certificate.location=/does/not/exist.pem\n\
        webhook.advertised.url=https://hooks.example.com:8443\n\
        intake.memory.byte=1\n\
        webhook.colour=hunter2\n\
        sasl.password=${env:UNSUPPORTED}\n\
        sasl.jaas.config=hunter2\n\
        ssl.truststore.location=/a.jks\n\
        transforms=a\n\
        key.converter=org.apache.kafka.connect.json.JsonConverter\n\
        topic.prefix=acme\n\
        value.converter.basic.auth.credentials.source=USER_INFO\n\
        config.providers=vault\n";

    let problems = load_with(file, &[]).unwrap_err();

    let message = problems.to_string();
    let keys: Vec<_> =
        problems.iter().map(|problem| problem.key.as_str()).filter(|key| !key.contains('/')).collect();
    for key in [
        "offset.storage.partitions",
        "status.storage.replication.factor",
        "config.storage.partitions",
        "grant.encryption.key",
        "webhook.ssl.certificate.location",
        "webhook.ssl.key.location",
        "webhook.advertised.url",
        "intake.memory.byte",
        "webhook.colour",
        "sasl.password",
        "sasl.jaas.config",
        "ssl.truststore.location",
        "transforms",
        "key.converter",
        "topic.prefix",
        "value.converter.schema.registry.url",
        "value.converter.basic.auth.user.info",
        "config.providers.vault.class",
    ] {
        assert!(keys.contains(&key), "{key} is not reported in:\n{message}");
    }
    assert!(message.contains("worker.properties: line 1 has a malformed \\u escape"), "{message}");
    assert!(message.contains("worker.properties: line 2 is not UTF-8"), "{message}");
    assert!(
        message.contains("intake.memory.byte: is not a key of the worker; did you mean intake.memory.bytes?")
    );
    assert!(!message.contains("hunter2"), "{message}");
    assert_eq!(message.lines().count(), problems.len());
}

#[test]
fn a_file_that_cannot_be_read_is_the_only_problem() {
    let problems = Worker::load(Some(Path::new("/does/not/exist.properties")), []).unwrap_err().problems;

    assert_eq!(problems.len(), 1);
    assert!(problems.to_string().starts_with("/does/not/exist.properties: cannot be read"), "{problems}");
}

#[test]
fn rules_across_keys_are_enforced() {
    let table = [
        ("heartbeat.interval.ms=3000", "heartbeat.interval.ms: must be at most a third"),
        (
            "offset.storage.topic=tributary-status",
            "status.storage.topic: must differ from offset.storage.topic",
        ),
        ("offset.storage.cleanup.policy=delete", "is always compact"),
        ("listeners=", "listeners: must have at least one item"),
        ("bootstrap.servers=", "bootstrap.servers: must have at least one item"),
        (
            "value.converter.schema.registry.url=,",
            "value.converter.schema.registry.url: must have at least one item",
        ),
        ("listeners=https://:8083", "listeners.https.ssl.certificate.location: is required"),
        (
            "listeners=http://127.0.0.1:8083,http://10.0.0.1:8083",
            "must be loopback addresses while admin.auth.method is none; set admin.auth.method=basic",
        ),
        (
            "listeners=http://127.0.0.1:1,http://10.0.0.1:2\n\
             admin.auth.method=basic\nadmin.auth.user=a\nadmin.auth.password=${env:SECRET}",
            "must be https beyond loopback while admin.auth.method is basic: passwords would cross the network in clear \
             text; write https:// and set listeners.https.ssl.certificate.location and .key.location, or set \
             admin.auth.plaintext=true",
        ),
        ("admin.auth.plaintext=true", "admin.auth.proxies: is required when admin.auth.plaintext is true"),
        (
            "listeners.https.ssl.client.auth=required",
            "listeners.https.ssl.client.auth: has no effect without an https listener; write https://",
        ),
        (
            "listeners=https://:8083\nlisteners.https.ssl.client.auth=requested",
            "listeners.https.ssl.ca.location: is required when listeners.https.ssl.client.auth is not none",
        ),
        (
            "listeners.https.ssl.ca.location=/etc/hostname",
            "has no effect while listeners.https.ssl.client.auth is none; set that to required or requested",
        ),
        ("listeners.https.ssl.client.auth=want", "must be one of none, requested, required"),
        (
            "listeners.https.ssl.truststore.location=/a",
            "convert it to PEM and use listeners.https.ssl.ca.location",
        ),
        (
            "access.control.allow.origin=https://tools.example.com,*",
            "must not be * while admin.auth.method is none: every page that a browser opens could change connectors; \
             name the origins",
        ),
        ("access.control.allow.origin=tools.example.com", "must be an origin"),
        ("admin.auth.open.paths=/health,/connectors", "must be one of /health, /metrics"),
        ("admin.auth.method=basic", "admin.auth.password: is required"),
        (
            "admin.auth.method=basic\nadmin.auth.user=a\nadmin.auth.password=$argon2id$v=19$m=65536$c2FsdA$aGFzaA",
            "admin.auth.password: looks like a hash but is not a valid one: its algorithm is not pbkdf2-sha256",
        ),
        (
            "admin.auth.readonly.password=$pbkdf2-sha256$i=9$c2FsdHNhbHQ$aGFzaA",
            "admin.auth.readonly.password: looks like a hash but is not a valid one: its count of iterations",
        ),
        ("admin.auth.anonymous.hosts=a.example.com:8083", "must be host names, without port, or *"),
        (
            "admin.auth.user=me\nadmin.auth.password=${env:SECRET}",
            "no effect while admin.auth.method is none",
        ),
        (
            "admin.auth.method=basic\nadmin.auth.user=a\nadmin.auth.password=${env:SECRET}\nadmin.auth.readonly.user=b",
            "admin.auth.readonly.password: is required",
        ),
        ("webhook.listeners=http://:80", "must be https"),
        ("webhook.listeners=http://:80\nwebhook.plaintext=true", "webhook.proxies: is required"),
        (
            "webhook.listeners=http://:8083\nwebhook.plaintext=true\nwebhook.proxies=10.0.0.0/8",
            "must not share a port with listeners",
        ),
        ("webhook.ssl.key.location=/etc/hostname", "webhook.ssl.certificate.location: is required"),
        (
            "webhook.advertised.url=http://h",
            "webhook.advertised.url: must be an https:// address on port 443, because the provider delivers \
             nowhere else (it is not https); write for example https://hooks.example.com",
        ),
        (
            "webhook.advertised.url=https://h:8443",
            "webhook.advertised.url: must be an https:// address on port 443, because the provider \
             delivers nowhere else (it has another port)",
        ),
        (
            "value.converter.basic.auth.user.info=${env:SECRET}",
            "value.converter.basic.auth.user.info: must be name:password",
        ),
        ("value.converter.bearer.auth.credentials.source=STATIC_TOKEN", "bearer.auth.token: is required"),
        (
            "value.converter.basic.auth.credentials.source=URL",
            "needs name and password in the registry's address",
        ),
        ("value.converter.schema.registry.ssl.truststore.location=/a", "ssl.ca.location"),
        (
            "value.converter.schema.registry.ssl.certificate.location=/etc/hostname",
            "value.converter.schema.registry.ssl.key.location: is required",
        ),
        (
            "value.converter.schema.registry.ssl.key.location=/etc/hostname",
            "value.converter.schema.registry.ssl.certificate.location: is required",
        ),
        (
            "secrets.policy=references\nadmin.auth.password=hunter2-hunter2",
            "must not contain a secret as plain text",
        ),
        ("secrets.policy=${env:POLICY}", "secrets.policy: must not hold a reference"),
    ];

    for (lines, expected) in table {
        let message = problems_of(lines);
        assert!(message.contains(expected), "{lines}\n=> {message}");
    }
}

#[test]
fn passwords_need_tls_loopback_or_a_named_proxy() {
    let basic = "admin.auth.method=basic\nadmin.auth.user=a\nadmin.auth.password=${env:SECRET}\n\
                 rest.advertised.host.name=w\naccess.control.allow.origin=*\n";
    let files = "listeners.https.ssl.certificate.location=/etc/hostname\n\
                 listeners.https.ssl.key.location=/etc/hostname\n";
    let accepted = [
        "listeners=http://localhost:1,http://[::1]:2".to_owned(),
        format!("listeners=https://0.0.0.0:1,http://127.0.0.1:2\n{files}"),
        "listeners=http://:1\nadmin.auth.plaintext=true\nadmin.auth.proxies=10.0.0.0/8,::1".to_owned(),
    ];
    for lines in &accepted {
        let loaded = load(&format!("{basic}{lines}"));
        assert!(loaded.is_ok(), "{lines}: {}", loaded.unwrap_err());
    }

    let asks = format!(
        "listeners=https://127.0.0.1:1\n{files}listeners.https.ssl.client.auth=requested\n\
         listeners.https.ssl.ca.location=/etc/hostname"
    );
    let rest = load(&asks).unwrap().config.rest;

    let authorities = PathBuf::from("/etc/hostname");
    assert_eq!(rest.client_auth, Some(ClientAuth { authorities, required: false }));
    assert_eq!(rest.reload_interval, Duration::from_secs(10));
}

#[test]
fn registry_credentials_are_removed_from_the_address() {
    let user_info = "value.converter.basic.auth.credentials.source=USER_INFO\n\
                     value.converter.basic.auth.user.info=us\\:er:pass:word";
    let url = "value.converter.schema.registry.url=http://us%40er:p%2B+%26&w@registry:8081";

    let from_key = load(user_info).unwrap();
    let from_url = load(url).unwrap();

    let basic = |loaded: &LoadedConfig| match &loaded.config.registry.auth {
        RegistryAuth::Basic { user, password } => (user.reveal().to_owned(), password.reveal().to_owned()),
        other => panic!("{other:?}"),
    };
    assert_eq!(basic(&from_key), ("us".to_owned(), "er:pass:word".to_owned()));
    assert_eq!(basic(&from_url), ("us@er".to_owned(), "p++&&w".to_owned()));
    assert_eq!(from_url.config.registry.urls[0].as_str(), "http://registry:8081/");
    assert_eq!(
        from_url.warnings.len(),
        2,
        "one for the repeated key, one for the secret: {:?}",
        from_url.warnings
    );
}

#[test]
fn no_secret_is_in_the_debug_output_of_a_loaded_worker() {
    let lines = "grant.encryption.key=${env:SECRET}\nsasl.password=${env:SECRET}\n\
                 admin.auth.method=basic\nadmin.auth.user=me\nadmin.auth.password=hunter2-hunter2\n\
                 value.converter.schema.registry.url=http://user:hunter2@registry:8081";

    let loaded = load(lines).unwrap();

    let shown = format!("{loaded:?} {:?}", loaded.warnings);
    assert!(!shown.contains("hunter2"), "{shown}");
    assert!(shown.contains("registry"), "{shown}");
}

#[test]
fn loopback_worker_with_remote_kafka_gives_a_warning() {
    let alone = load("bootstrap.servers=kafka-1:9092").unwrap();
    let named = load("bootstrap.servers=kafka-1:9092\nrest.advertised.host.name=worker-1").unwrap();

    let message: Vec<String> = alone.warnings.iter().map(ToString::to_string).collect();
    assert_eq!(message.len(), 1, "{message:?}");
    assert!(
        message[0].starts_with("rest.advertised.host.name: is not set and defaults to 127.0.0.1"),
        "{message:?}"
    );
    assert_eq!(named.warnings, []);
}

#[test]
fn a_worker_file_written_for_connect_loads_with_warnings_only() {
    let lines = "bootstrap.servers=kafka-1:9092,kafka-2:9092\n\
        group.id=connect-cluster\n\
        key.converter=org.apache.kafka.connect.storage.StringConverter\n\
        value.converter=io.confluent.connect.avro.AvroConverter\n\
        key.converter.schemas.enable=true\n\
        offset.storage.topic=o\noffset.storage.replication.factor=1\noffset.storage.segment.bytes=1048576\n\
        config.storage.topic=c\nconfig.storage.replication.factor=-1\n\
        status.storage.topic=s\n\
        offset.flush.interval.ms=10000\n\
        plugin.path=/usr/share/java\n\
        pipeline.in.flight.bytes=many\n\
        listeners=HTTP://:8083\nadmin.auth.anonymous=true\n\
        access.control.allow.origin=https://tools.example.com\naccess.control.allow.methods=GET,PUT\n\
        rest.advertised.host.name=worker-1\n\
        producer.compression.type=zstd\n\
        security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n\
        sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username=\"a\" password=\"${env:SECRET}\";\n";

    let LoadedConfig { config, warnings } = load(lines).unwrap();

    let warned: Vec<_> = warnings.iter().map(|warning| warning.key.as_str()).collect();
    let removed = "pipeline.in.flight.bytes";
    assert_eq!(warned, ["key.converter.schemas.enable", "offset.flush.interval.ms", removed, "plugin.path"]);
    assert_eq!(
        warnings[2].to_string(),
        "pipeline.in.flight.bytes: has no effect here: intake.memory.bytes limits deliveries that wait in memory"
    );
    assert_eq!(config.topics.offset.settings["segment.bytes"], "1048576");
    assert_eq!(config.topics.config.replication_factor, -1);
    assert_eq!(config.rest.advertised_host, "worker-1");
    assert_eq!(config.rest.allowed_origins, ["https://tools.example.com"]);
    assert_eq!(config.rest.allowed_methods, ["GET", "PUT"]);
    assert_eq!(config.rest.open_paths, ["/health", "/metrics"]);
    assert_eq!(config.kafka.common["sasl.username"].reveal(), "a");
    assert_eq!(config.kafka.producer["compression.type"].reveal(), "zstd");
}

#[test]
fn no_ignored_key_of_connect_hides_one_of_ours() {
    let patterns = known_keys::WORKER
        .unsupported
        .iter()
        .map(|row| row.0)
        .chain(known_keys::WORKER.ignored.iter().map(|row| row.0));

    for pattern in patterns {
        for key in keys::KEYS {
            // Declared keys are looked up first; a pattern that covers one would only mislead the reader.
            let sub_key = pattern.ends_with("converter.") || key.name.starts_with("admin.");
            assert!(sub_key || !matches_pattern(pattern, key.name), "{pattern} covers {}", key.name);
        }
    }
}
