//! From a flat map to [`Worker`], section by section, with the rules across keys.

use ipnet::IpNet;
use url::Url;

use provider::HostPolicy;

use super::{
    ClientAuth, GroupSettings, InternalTopic, InternalTopics, LogSettings, PasswordHash, ReceiverSettings,
    Rest, RestLogin, TlsFiles, Worker, known_keys,
};
use crate::config::{
    Listener, address, client, key::ConfigKey, providers::Providers, reader::SettingsReader, registry, rules,
    tls, unknown_keys, worker_keys as keys,
};

/// Builds the worker's configuration; the reader collects its problems.
pub(super) fn worker(reader: &mut SettingsReader<'_>, providers: &Providers) -> Worker {
    unknown_keys::check(reader, &known_keys::WORKER);
    for key in [
        &keys::KEY_CONVERTER,
        &keys::VALUE_CONVERTER,
        &keys::HEADER_CONVERTER,
        &keys::CONFIG_PROVIDERS,
        &keys::SECRETS_POLICY,
    ] {
        // These have no effect, or were read before; reading checks their rules.
        reader.text(key);
    }
    let servers = reader.list(&keys::BOOTSTRAP_SERVERS);
    let listeners = reader.parsed_list(&keys::LISTENERS, address::listener);
    let grant_encryption_key = reader.secret(&keys::GRANT_KEY);
    let grant_encryption_key_previous = reader.secret(&keys::GRANT_KEY_PREVIOUS);
    if let Some(previous) = &grant_encryption_key_previous
        && grant_encryption_key.as_ref().is_none_or(|key| key.reveal() == previous.reveal())
    {
        reader.refuse(
            &keys::GRANT_KEY_PREVIOUS,
            "must differ from grant.encryption.key, which must be set too",
            "remove it, or set grant.encryption.key to the new one",
        );
    }
    if !reader.is_set(&keys::PROVIDER_HOSTS) && reader.is_set(&keys::CONFIG_PROVIDERS) {
        reader.warn(
            keys::PROVIDER_HOSTS.name,
            "is not set: a REST account that may change connectors can send the secrets that config.providers opens to any \
             public host; list the hosts of the provider and its identity service",
        );
    }
    Worker {
        kafka: client::read(reader, servers.join(","), known_keys::is_declared),
        registry: registry::read(reader),
        providers: providers.clone().with_hosts(HostPolicy::listing(&reader.list(&keys::PROVIDER_HOSTS))),
        group: group(reader),
        topics: topics(reader),
        topic_creation: reader.boolean(&keys::TOPIC_CREATION),
        grant_encryption_key,
        grant_encryption_key_previous,
        rest: rest(reader, &listeners, &servers),
        webhook: webhook(reader, &listeners),
        listeners,
        connectors_dir: reader.path(&keys::CONNECTORS_DIR),
        secrets_reload_interval: reader.milliseconds(&keys::SECRETS_RELOAD),
        connectors_dir_interval: reader.milliseconds(&keys::CONNECTORS_DIR_INTERVAL),
        connector_files: Vec::new(),
        state_dir: reader.path(&keys::STATE_DIR).unwrap_or_default(),
        clock_skew_max: reader.milliseconds(&keys::CLOCK_SKEW),
        shutdown_timeout: reader.milliseconds(&keys::SHUTDOWN_TIMEOUT),
        telemetry: LogSettings {
            format: reader.value(&keys::LOG_FORMAT),
            filter: reader.text_or_default(&keys::LOG_FILTER),
        },
    }
}

fn group(reader: &mut SettingsReader<'_>) -> GroupSettings {
    let group = GroupSettings {
        id: reader.text_or_default(&keys::GROUP_ID),
        session_timeout: reader.milliseconds(&keys::SESSION_TIMEOUT),
        heartbeat_interval: reader.milliseconds(&keys::HEARTBEAT_INTERVAL),
    };
    let sound = reader.are_valid(&[&keys::SESSION_TIMEOUT, &keys::HEARTBEAT_INTERVAL]);
    if sound && group.heartbeat_interval * 3 > group.session_timeout {
        reader.refuse(
            &keys::HEARTBEAT_INTERVAL,
            "must be at most a third of session.timeout.ms, or one lost packet moves every task",
            "lower it, or raise session.timeout.ms",
        );
    }
    group
}

fn topics(reader: &mut SettingsReader<'_>) -> InternalTopics {
    const KEYS: [[&ConfigKey; 3]; 5] = [
        [&keys::CONFIG_TOPIC, &keys::CONFIG_PARTITIONS, &keys::CONFIG_REPLICATION],
        [&keys::OFFSET_TOPIC, &keys::OFFSET_PARTITIONS, &keys::OFFSET_REPLICATION],
        [&keys::STATUS_TOPIC, &keys::STATUS_PARTITIONS, &keys::STATUS_REPLICATION],
        [&keys::WORK_TOPIC, &keys::WORK_PARTITIONS, &keys::WORK_REPLICATION],
        [&keys::GRANT_TOPIC, &keys::GRANT_PARTITIONS, &keys::GRANT_REPLICATION],
    ];
    let topics = KEYS.map(|[name, partitions, replication]| topic(reader, name, partitions, replication));
    for (index, ([key, ..], topic)) in KEYS.iter().zip(&topics).enumerate() {
        let mut before = KEYS.iter().zip(&topics[..index]);
        let twin = before.find(|(_, other)| other.name == topic.name && !topic.name.is_empty());
        if let Some(([other, ..], _)) = twin {
            let rule = format!("must differ from {}: each topic has its own kind of records", other.name);
            reader.refuse(key, rule, "give each its own name");
        }
    }
    let [config, offset, status, work, grant] = topics;
    InternalTopics { config, offset, status, work, grant }
}

fn topic(
    reader: &mut SettingsReader<'_>,
    name: &ConfigKey,
    partitions: &ConfigKey,
    replication_factor: &ConfigKey,
) -> InternalTopic {
    let prefix = name.name.strip_suffix("topic").unwrap_or(name.name);
    let policy = "is always compact: the topic holds the latest state of each key";
    let settings = reader.topic_settings(prefix, keys::KEYS, policy);
    InternalTopic {
        name: reader.text_or_default(name),
        partitions: reader.value(partitions),
        replication_factor: reader.value(replication_factor),
        settings,
    }
}

/// See [`super::rest_address`].
pub(super) fn rest_address(reader: &mut SettingsReader<'_>) -> Option<Url> {
    let listeners = reader.parsed_list(&keys::LISTENERS, address::listener);
    let first = listeners.first()?;
    let is_advertised = reader.is_set(&keys::ADVERTISED_HOST);
    let host = reader.text(&keys::ADVERTISED_HOST).unwrap_or_else(|| first.host.clone());
    let advertised = Listener { host, ..advertised(reader, first) };
    let found = match is_advertised {
        true => (advertised.port != 0)
            .then(|| address::url(advertised.tls, &advertised.host, advertised.port))
            .flatten(),
        false => first.local_url(),
    };
    if found.is_none() && reader.are_valid(&[&keys::LISTENERS, &keys::ADVERTISED_PORT]) {
        reader.refuse(
            &keys::LISTENERS,
            "lets the system choose the port, so the worker's address is not known",
            "set a port, or pass the worker's address with --url",
        );
    }
    found
}

/// The first listener with the advertised scheme and port.
fn advertised(reader: &mut SettingsReader<'_>, first: &Listener) -> Listener {
    let port = match reader.value(&keys::ADVERTISED_PORT) {
        0 => first.port,
        port => port,
    };
    let tls = reader.text(&keys::ADVERTISED_LISTENER).map_or(first.tls, |scheme| scheme == "https");
    Listener { tls, port, host: first.host.clone() }
}

fn rest(reader: &mut SettingsReader<'_>, listeners: &[Listener], servers: &[String]) -> Rest {
    let tls = server_tls(reader, listeners, &keys::LISTENERS_CERTIFICATE, &keys::LISTENERS_KEY);
    let client_auth = client_auth(reader, listeners);
    let basic = reader.text_or_default(&keys::AUTH_METHOD) == "basic";
    if basic {
        reader.require(&keys::AUTH_USER, "when admin.auth.method is basic");
        reader.require(&keys::AUTH_PASSWORD, "when admin.auth.method is basic");
    } else {
        for key in [&keys::AUTH_USER, &keys::AUTH_READER] {
            if reader.is_set(key) {
                reader.refuse(
                    key,
                    "has no effect while admin.auth.method is none",
                    "set the method to basic",
                );
            }
        }
    }
    let anonymous = reader.boolean(&keys::AUTH_ANONYMOUS);
    if !basic
        && !anonymous
        && reader.are_valid(&[&keys::AUTH_METHOD, &keys::AUTH_ANONYMOUS])
        && listeners.iter().any(|listener| !listener.is_loopback())
    {
        reader.refuse(
            &keys::LISTENERS,
            "must be loopback addresses while admin.auth.method is none",
            "set admin.auth.method=basic, or admin.auth.anonymous=true if something else restricts access to it",
        );
    }
    let (plaintext, proxies) = plaintext(reader, &keys::AUTH_PLAINTEXT, &keys::AUTH_PROXIES);
    if basic
        && !plaintext
        && reader.are_valid(&[&keys::AUTH_PLAINTEXT])
        && listeners.iter().any(|listener| !listener.tls && !listener.is_loopback())
    {
        reader.refuse(
            &keys::LISTENERS,
            "must be https beyond loopback while admin.auth.method is basic: passwords would cross the network in clear \
             text",
            "write https:// and set listeners.https.ssl.certificate.location and .key.location, or set \
             admin.auth.plaintext=true if a proxy in admin.auth.proxies terminates TLS",
        );
    }
    let allowed_origins = reader.list(&keys::ALLOW_ORIGIN);
    if !basic && reader.are_valid(&[&keys::AUTH_METHOD]) && allowed_origins.iter().any(|origin| origin == "*")
    {
        reader.refuse(
            &keys::ALLOW_ORIGIN,
            "must not be * while admin.auth.method is none: every page that a browser opens could change connectors",
            "name the origins, such as https://tools.example.com, or set admin.auth.method=basic",
        );
    }
    let administrator = login(reader, &keys::AUTH_USER, &keys::AUTH_PASSWORD);
    let read_only = login(reader, &keys::AUTH_READER, &keys::AUTH_READER_PASSWORD);
    let first = listeners.first();
    let advertised_host = reader.text(&keys::ADVERTISED_HOST);
    if let Some(warning) = ambiguous_id_warning(advertised_host.as_deref(), first, servers) {
        reader.warn(keys::ADVERTISED_HOST.name, warning);
    }
    let advertised_host =
        advertised_host.or_else(|| first.map(|first| first.host.clone())).unwrap_or_default();
    let advertised = first.map(|first| advertised(reader, first));
    let mut hosts = reader.list(&keys::AUTH_HOSTS);
    hosts.extend(listeners.iter().map(|listener| listener.host.clone()));
    hosts.push(advertised_host.clone());
    Rest {
        advertised_host,
        advertised_port: advertised.as_ref().map_or(0, |advertised| advertised.port),
        advertised_tls: advertised.is_some_and(|advertised| advertised.tls),
        tls,
        client_auth,
        reload_interval: reader.milliseconds(&keys::LISTENERS_RELOAD),
        proxies,
        administrator: administrator.filter(|_| basic),
        reader: read_only.filter(|_| basic),
        open_paths: reader.list(&keys::AUTH_OPEN_PATHS),
        hosts,
        allowed_origins,
        allowed_methods: reader.list(&keys::ALLOW_METHODS),
    }
}

/// The certificate of a server; required for https listeners.
fn server_tls(
    reader: &mut SettingsReader<'_>,
    listeners: &[Listener],
    certificate: &ConfigKey,
    key: &ConfigKey,
) -> Option<TlsFiles> {
    let tls = tls::read(reader, certificate, key);
    if tls.is_none() && listeners.iter().any(|listener| listener.tls) {
        reader.require(certificate, "for an https listener");
        reader.require(key, "for an https listener");
    }
    tls
}

/// Whether listeners may be without TLS, and the proxies, one of which then terminates it.
fn plaintext(
    reader: &mut SettingsReader<'_>,
    plaintext: &ConfigKey,
    proxies: &ConfigKey,
) -> (bool, Vec<IpNet>) {
    let networks = reader.parsed_list(proxies, address::network);
    let is_plaintext = reader.boolean(plaintext);
    if is_plaintext && networks.is_empty() && reader.are_valid(&[proxies]) {
        reader.require(
            proxies,
            &format!("when {} is true: it names the proxy that terminates TLS", plaintext.name),
        );
    }
    (is_plaintext, networks)
}

/// Refuses settings that would protect nothing, so that no operator relies on them.
fn client_auth(reader: &mut SettingsReader<'_>, listeners: &[Listener]) -> Option<ClientAuth> {
    let word = reader.text_or_default(&keys::LISTENERS_CLIENT_AUTH);
    let asks = matches!(word.as_str(), "requested" | "required");
    if !asks {
        if reader.is_set(&keys::LISTENERS_CA) && reader.are_valid(&[&keys::LISTENERS_CLIENT_AUTH]) {
            let rule = "has no effect while listeners.https.ssl.client.auth is none";
            reader.refuse(&keys::LISTENERS_CA, rule, "set that to required or requested");
        }
        return None;
    }
    if !listeners.iter().any(|listener| listener.tls) {
        let rule = "has no effect without an https listener";
        reader.refuse(&keys::LISTENERS_CLIENT_AUTH, rule, "write https:// in listeners, or remove it");
    }
    reader.require(&keys::LISTENERS_CA, "when listeners.https.ssl.client.auth is not none");
    Some(ClientAuth { authorities: reader.path(&keys::LISTENERS_CA)?, required: word == "required" })
}

/// The warning if workers on several machines would have the same id. `set` is the advertised host, which defaults to the host of
/// the first listener.
fn ambiguous_id_warning(set: Option<&str>, first: Option<&Listener>, servers: &[String]) -> Option<String> {
    let host = set.or(first.map(|first| first.host.as_str()))?;
    let because = if set.is_none() && matches!(host, "0.0.0.0" | "::") {
        "is not set, and the first listener names no host: every worker would have the same id".to_owned()
    } else if address::is_loopback(host) && servers.iter().any(|server| is_remote(server)) {
        let host =
            if set.is_some() { format!("is {host}") } else { format!("is not set and defaults to {host}") };
        format!(
            "{host}, while Kafka is on other machines: workers on several machines would have the same id"
        )
    } else {
        return None;
    };
    Some(format!("{because}; set it to a name of this machine that no other worker has"))
}

/// Whether a server, `host:port`, is on another machine.
fn is_remote(server: &str) -> bool {
    address::host_port(server).is_ok_and(|(host, _)| !address::is_loopback(&host))
}

fn login(reader: &mut SettingsReader<'_>, user: &ConfigKey, password: &ConfigKey) -> Option<RestLogin> {
    if reader.is_set(user) {
        reader.require(password, &format!("when {} is set", user.name));
    } else if reader.is_set(password) {
        reader.require(user, &format!("when {} is set", password.name));
    }
    let (user, secret) = (reader.text(user), reader.secret(password));
    if let Some(Err(fault)) = secret.as_ref().map(|secret| PasswordHash::parse(secret.reveal())) {
        let rule = format!("looks like a hash but is not a valid one: {fault}");
        let remedy = "write it as $pbkdf2-sha256$i=600000$salt$hash, salt and hash in base64";
        reader.refuse(password, rule, remedy);
        return None;
    }
    Some(RestLogin { user: user?, password: secret? })
}

fn webhook(reader: &mut SettingsReader<'_>, rest_listeners: &[Listener]) -> ReceiverSettings {
    let listeners = reader.parsed_list(&keys::WEBHOOK_LISTENERS, address::listener);
    let tls = server_tls(reader, &listeners, &keys::WEBHOOK_CERTIFICATE, &keys::WEBHOOK_KEY);
    let (plaintext, proxies) = plaintext(reader, &keys::WEBHOOK_PLAINTEXT, &keys::WEBHOOK_PROXIES);
    if !plaintext && listeners.iter().any(|listener| !listener.tls) {
        reader.refuse(
            &keys::WEBHOOK_LISTENERS,
            "must be https: the provider delivers nowhere else",
            "write https://, or set webhook.plaintext=true if a proxy terminates TLS",
        );
    }
    if listeners.iter().any(|one| rest_listeners.iter().any(|other| same_socket(one, other))) {
        let rule = "must not share a port with listeners: REST stays off public networks";
        reader.refuse(&keys::WEBHOOK_LISTENERS, rule, "use another port");
    }
    ReceiverSettings {
        listeners,
        tls,
        advertised_url: reader.parsed(&keys::WEBHOOK_URL, rules::advertised_url),
        proxies,
        reload_interval: reader.milliseconds(&keys::WEBHOOK_RELOAD),
        connections: reader.value(&keys::WEBHOOK_CONNECTIONS),
        connections_per_address: reader.value(&keys::WEBHOOK_PER_ADDRESS),
        memory_bytes: reader.value(&keys::INTAKE_MEMORY),
    }
}

/// Whether two listeners would bind the same address; port 0 never collides.
fn same_socket(one: &Listener, other: &Listener) -> bool {
    let overlap = one.host == other.host || [one, other].iter().any(|listener| listener.host == "0.0.0.0");
    one.port == other.port && one.port != 0 && overlap
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ambiguous_worker_id_gives_a_warning() {
        let (here, elsewhere) = ("localhost:9092,127.0.0.1:9093,[::1]:9094", "localhost:9092,kafka-1:9092");
        let table = [
            (None, "http://127.0.0.1:8083", here, None),
            (
                None,
                "http://127.0.0.1:8083",
                elsewhere,
                Some("is not set and defaults to 127.0.0.1, while Kafka is"),
            ),
            (
                None,
                "http://[::1]:8083",
                "10.0.0.1:9092",
                Some("is not set and defaults to ::1, while Kafka is"),
            ),
            (Some("localhost"), "http://:8083", elsewhere, Some("is localhost, while Kafka is")),
            (Some("localhost"), "http://:8083", here, None),
            (Some("worker-1"), "http://127.0.0.1:8083", elsewhere, None),
            (None, "http://worker-1:8083", elsewhere, None),
            (None, "http://:8083", here, Some("is not set, and the first listener names no host")),
            (Some("worker-1"), "http://:8083", elsewhere, None),
        ];

        for (set, listener, servers, expected) in table {
            let first = address::listener(listener).unwrap();
            let servers: Vec<String> = servers.split(',').map(str::to_owned).collect();
            let message = ambiguous_id_warning(set, Some(&first), &servers);
            let fits = match (&message, expected) {
                (Some(message), Some(expected)) => {
                    message.starts_with(expected) && message.contains("; set it to")
                }
                (message, expected) => message.is_none() && expected.is_none(),
            };
            assert!(fits, "{set:?}, {listener}, {servers:?}: {message:?}");
        }
        assert_eq!(ambiguous_id_warning(None, None, &["kafka-1:9092".to_owned()]), None);
    }
}
