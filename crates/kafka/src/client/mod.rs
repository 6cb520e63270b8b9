//! librdkafka settings for each kind of client, in one place.
//!
//! Three layers, later ones win: our defaults, the user's settings, the enforced settings. A user's setting that
//! contradicts an enforced one is refused, not silently overridden. Settings that librdkafka cannot use (the token
//! endpoint: our librdkafka is built without curl) are removed and handled by [`super::oauth`].

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
};

use rdkafka::{
    ClientContext,
    config::{ClientConfig, FromClientConfigAndContext, RDKafkaLogLevel},
    error::KafkaError,
};
use tokio::sync::oneshot;

use base::{metrics::KafkaClient, retry::Retry, secret::HIDDEN};

use crate::Kafka;
use crate::{
    Error,
    context::{ClientCallbacks, ClientHandle, ClientLink},
    enforced_settings::enforced_settings,
    oauth,
    role::{ClientRole, FetchOptions, Isolation},
    sys,
};

/// Timeout of one request; after it we check whether the failure is permanent.
const ASK_TIMEOUT: Duration = Duration::from_secs(2);
/// Pause between two such requests.
const ASK_PAUSE: Duration = Duration::from_millis(20);

/// Largest record a producer accepts, in bytes. Topics often accept less, which the broker checks; a dead letter, which
/// carries a record that another topic refused, may be this large.
pub const MAX_RECORD_BYTES: usize = 32 << 20;

/// Smallest `max.message.bytes` a topic may have, in bytes. The broker applies it to whole batches and may refuse a batch
/// whose records would each fit; our batches therefore stay below it.
pub const MIN_MAX_MESSAGE_BYTES: u64 = 1 << 20;

/// Smallest `message.max.bytes` that librdkafka accepts.
const MIN_MESSAGE_MAX_BYTES: usize = 1_000;

/// Checks the user's settings without a broker. Returns the first error of each wrong setting.
#[must_use]
pub fn check_settings(kafka: &Kafka) -> Vec<Error> {
    // These values do not come from the user, so any will do.
    let (queue_bytes, timeout) = (MAX_RECORD_BYTES, Duration::from_secs(15));
    let roles = [
        ClientRole::Producer { queue_bytes },
        ClientRole::Transactional { id: "check".into(), queue_bytes, timeout },
        ClientRole::Consumer(
            Some(FetchOptions { partitions: 1, bytes: queue_bytes, wait: timeout }),
            Isolation::ReadCommitted,
        ),
        ClientRole::Member { group: "check".into(), session: timeout, heartbeat: timeout / 3 },
        ClientRole::Admin,
    ];
    let mut reported = BTreeSet::new();
    let mut errors = Vec::new();
    for role in &roles {
        for error in Settings::faults(kafka, role) {
            let setting = match &error {
                Error::Refused { key, .. } | Error::Setting { key, .. } => key.clone(),
                other => other.to_string(),
            };
            // A shared setting would be reported once per client.
            if reported.insert(kafka.key_of(role.client().label(), &setting)) {
                errors.push(error);
            }
        }
    }
    errors
}

/// Everything needed to create one client.
pub(super) struct Settings {
    client: KafkaClient,
    config: ClientConfig,
    token: Option<oauth::TokenSource>,
}

impl Settings {
    /// The settings of a role, or the first error in the user's settings.
    pub(super) fn new(kafka: &Kafka, role: &ClientRole) -> Result<Self, Error> {
        let client = role.client();
        let mut user = user_settings(kafka, role);
        let token = oauth::TokenSource::take(client.label(), &mut user)?;

        let mut config = ClientConfig::new();
        for (key, value) in defaults(role) {
            config.set(key, value);
        }
        for (key, (_, value)) in &user {
            config.set(*key, *value);
        }
        if let Some(most) = role.queue_bytes()
            && let Some(set) = config.get("message.max.bytes").and_then(|value| value.parse::<usize>().ok())
        {
            // Never above the queue size: a record that can never fit must be refused, or it would block the queue forever.
            config.set("message.max.bytes", set.min(most.max(MIN_MESSAGE_MAX_BYTES)).to_string());
        }
        for enforced in enforced_settings(role, &kafka.bootstrap_servers) {
            if let Some(refusal) = enforced.refusal(client, &user) {
                return Err(refusal);
            }
            if enforced.keeps_user_value() && user.contains_key(enforced.key) {
                continue;
            }
            if enforced.value.is_empty() {
                config.remove(enforced.key);
            } else {
                config.set(enforced.key, enforced.value);
            }
        }
        if client == KafkaClient::Transactional {
            // librdkafka reports lost connections only as log lines at this level; see `ClientCallbacks::disconnects`.
            let level =
                if config.get("debug").is_some() { RDKafkaLogLevel::Debug } else { RDKafkaLogLevel::Info };
            config.set_log_level(level);
        }
        Ok(Self { client, config, token })
    }

    /// Whether both describe the same client, secrets included.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        // `config_map` hides secrets, so values are compared through `get`.
        let (own, others) = (self.config.config_map(), other.config.config_map());
        own.len() == others.len() && own.keys().all(|key| self.config.get(key) == other.config.get(key))
    }

    /// Whether its clients log in with tokens, which must be refreshed.
    pub(super) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// All errors in the user's settings for a role, each setting checked alone.
    fn faults(kafka: &Kafka, role: &ClientRole) -> Vec<Error> {
        let client = role.client();
        let mut user = user_settings(kafka, role);
        let token = oauth::TokenSource::take(client.label(), &mut user);
        let enforced = enforced_settings(role, &kafka.bootstrap_servers);
        let refused = enforced.iter().filter_map(|setting| setting.refusal(client, &user));
        let unusable = user.values().filter_map(|(key, value)| {
            // Under the name the user wrote, so that librdkafka's error names that one.
            let set = ClientConfig::new().set(*key, *value).create_native_config();
            set.err().map(|error| explain(client, error))
        });
        token.err().into_iter().chain(refused).chain(unusable).collect()
    }

    /// Creates the client. `own` is the state of the callbacks that only this kind of client has.
    pub(super) fn create<R, T>(&self, own: R) -> Result<Arc<T>, Error>
    where
        ClientCallbacks<R>: ClientContext,
        T: FromClientConfigAndContext<ClientCallbacks<R>> + ClientHandle<R> + 'static,
    {
        self.create_with(own, |_| {})
    }

    /// As [`Settings::create`]; `prepare` runs before the client is shared.
    pub(super) fn create_with<R, T>(&self, own: R, prepare: impl FnOnce(&mut T)) -> Result<Arc<T>, Error>
    where
        ClientCallbacks<R>: ClientContext,
        T: FromClientConfigAndContext<ClientCallbacks<R>> + ClientHandle<R> + 'static,
    {
        prepare_tls();
        let link = ClientLink::<R>::default();
        let tokens = self.token.clone().map(|source| Arc::new(oauth::TokenCache::new(source)));
        let bootstrap = self.config.get("metadata.broker.list").unwrap_or_default().to_owned();
        let context = ClientCallbacks::new(self.client, bootstrap, tokens, Arc::clone(&link), own);
        let created = self.config.create_with_context(context).map(|mut client| {
            prepare(&mut client);
            Arc::new(client)
        });
        // Set even if creation failed, so that no callback waits for the client.
        let client: Weak<dyn ClientHandle<R>> =
            created.as_ref().map_or_else(|_| Weak::<T>::new(), Arc::downgrade);
        link.set(client).ok();
        created.map_err(|error| explain(self.client, error))
    }

    /// Gives a client its first token, if it needs one: the queue on which it would ask is not polled yet. Blocks.
    pub(super) fn hand_token<R>(
        &self,
        client: &rdkafka::client::Client<ClientCallbacks<R>>,
    ) -> Result<(), Error>
    where
        ClientCallbacks<R>: ClientContext,
    {
        let Some(token) = client.context().first_token() else { return Ok(()) };
        let handed = sys::set_token(client, token?);
        handed.map_err(|reason| Error::Create { client: self.client.label(), reason })
    }
}

/// Our defaults, which the user may override.
fn defaults(role: &ClientRole) -> Vec<(&'static str, String)> {
    let mut defaults: Vec<(&'static str, String)> = vec![
        ("client.id", format!("tributary-{}", role.client().label())),
        // Reconnect to a returning broker within 250 ms; librdkafka's default is 10 s.
        ("reconnect.backoff.ms", "50".into()),
        ("reconnect.backoff.max.ms", "250".into()),
    ];
    match role {
        ClientRole::Producer { queue_bytes } | ClientRole::Transactional { queue_bytes, .. } => {
            defaults.extend([
                (
                    "message.max.bytes",
                    (*queue_bytes).clamp(MIN_MESSAGE_MAX_BYTES, MAX_RECORD_BYTES).to_string(),
                ),
                ("statistics.interval.ms", "5000".into()),
                ("queue.buffering.max.ms", "0".into()),
                ("compression.codec", "lz4".into()),
            ]);
            if matches!(role, ClientRole::Producer { .. }) {
                // Measured fastest with linger 0: records that wait for the one request in flight fill the next batch.
                defaults.push(("max.in.flight.requests.per.connection", "1".into()));
            }
        }
        ClientRole::Consumer(Some(fetch), _) => {
            // These limits are per partition, so the total is divided: half may be queued while the other half is fetched.
            let share = fetch.bytes / 2 / fetch.partitions.max(1);
            defaults.extend([
                ("fetch.message.max.bytes", share.clamp(16 << 10, 1 << 20).to_string()),
                ("statistics.interval.ms", "5000".into()),
                ("fetch.wait.max.ms", fetch.wait.as_millis().to_string()),
                ("queued.max.messages.kbytes", (share / 1024).clamp(16, 65_536).to_string()),
                ("queued.min.messages", "1000".into()),
                // A full local queue pauses fetching this long; the default of 1 s would starve the reader.
                ("fetch.queue.backoff.ms", "5".into()),
            ]);
        }
        ClientRole::Member { session, .. } => defaults.extend([
            ("statistics.interval.ms", "5000".into()),
            // A renewal that takes longer than a session is useless and delays the next one.
            ("socket.timeout.ms", session.as_millis().to_string()),
        ]),
        // These clients' queues are not polled between calls, so statistics would pile up there.
        ClientRole::Consumer(None, _) | ClientRole::Query(_) | ClientRole::Admin => {}
    }
    defaults
}

/// Keeps OpenSSL initialized until the process exits; call it before creating a client. Otherwise OpenSSL cleans up when
/// `main` returns, and a librdkafka thread that is still in a TLS handshake crashes.
pub(super) fn prepare_tls() {
    openssl_sys::init();
}

/// The user's settings for a role: librdkafka's name to the user's name and value.
fn user_settings<'a>(kafka: &'a Kafka, role: &ClientRole) -> BTreeMap<&'a str, (&'a str, &'a str)> {
    // Canonical names first, so that one layer overrides the other whichever alias was used.
    let layers = kafka.layers(role.client().label());
    layers.map(|(key, value)| (canonical(key), (key, value.reveal()))).collect()
}

fn explain(client: KafkaClient, error: KafkaError) -> Error {
    let client = client.label();
    match error {
        KafkaError::ClientConfig(_, reason, key, value) => {
            let secret = ["password", "secret", "pem", "config"].iter().any(|word| key.contains(word));
            let reason = if secret && !value.is_empty() { reason.replace(&value, HIDDEN) } else { reason };
            Error::Setting { client, remedy: remedy(&key), key, reason }
        }
        KafkaError::ClientCreation(reason) => Error::Create { client, reason },
        other => Error::Create { client, reason: other.to_string() },
    }
}

/// Runs a blocking call on its own thread: a tokio worker must not wait for a broker, and a hanging tokio blocking thread
/// would keep the runtime from shutting down.
pub(super) async fn blocking<T: Send + 'static>(
    action: &str,
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    // The caller may have stopped waiting.
    start_thread("kafka-call", action, move |answer| drop(answer.send(call()))).await
}

/// Starts a thread and waits for the one answer that it sends.
pub(super) async fn start_thread<T: Send + 'static>(
    name: &str,
    action: &str,
    run: impl FnOnce(oneshot::Sender<T>) + Send + 'static,
) -> Result<T, Error> {
    let (answer, answered) = oneshot::channel();
    let stopped = || Error::Stopped { action: action.to_owned() };
    thread::Builder::new().name(name.into()).spawn(move || run(answer)).map_err(|_| stopped())?;
    answered.await.map_err(|_| stopped())
}

/// Drops a client on its own thread, because dropping waits for librdkafka's threads. If no thread can be started, the
/// closure, and with it the client, is dropped on the calling thread.
pub(super) fn on_closing_thread(close: impl FnOnce() + Send + 'static) {
    if let Err(error) = thread::Builder::new().name("kafka-close".into()).spawn(close) {
        tracing::warn!(%error, "cannot start a thread to close a Kafka client; closing it on the calling thread");
    }
}

/// Repeats a request until it is answered, the limit has passed, or the failure is permanent: a wrong password first looks
/// like a timeout. `ask` gets the time it may take.
pub(super) fn ask_until_answered<T>(
    limit: Duration,
    mut ask: impl FnMut(Duration) -> Result<T, Error>,
) -> Result<T, Error> {
    let end = Instant::now() + limit;
    loop {
        let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        match ask(left.min(ASK_TIMEOUT)) {
            // Some requests fail at once, for example when a broker does not know a new topic yet.
            Err(error) if error.retry() != Retry::Never && Instant::now() < end => thread::sleep(ASK_PAUSE),
            answer => return answer,
        }
    }
}

/// librdkafka's canonical name of a property that has an alias: if both were set, which one wins would be random.
fn canonical(key: &str) -> &str {
    match key {
        "bootstrap.servers" => "metadata.broker.list",
        "max.in.flight" => "max.in.flight.requests.per.connection",
        "sasl.mechanism" => "sasl.mechanisms",
        "sasl.oauthbearer.client.credentials.client.id" => "sasl.oauthbearer.client.id",
        "sasl.oauthbearer.client.credentials.client.secret" => "sasl.oauthbearer.client.secret",
        "max.partition.fetch.bytes" => "fetch.message.max.bytes",
        "linger.ms" => "queue.buffering.max.ms",
        "retries" => "message.send.max.retries",
        "compression.type" => "compression.codec",
        "acks" => "request.required.acks",
        "delivery.timeout.ms" => "message.timeout.ms",
        other => other,
    }
}

/// What to write instead of a setting that only the Java client has.
fn remedy(key: &str) -> String {
    match key {
        "sasl.jaas.config" => "set sasl.username and sasl.password instead".into(),
        key if key.starts_with("ssl.truststore") => "set ssl.ca.location to a PEM file instead".into(),
        key if key.starts_with("ssl.keystore") => {
            "set ssl.keystore.location to a PKCS#12 file, or ssl.certificate.location and ssl.key.location to PEM files"
                .into()
        }
        "fetch.max.wait.ms" => "set fetch.wait.max.ms instead".into(),
        "compression.type" | "compression.codec" if !cfg!(feature = "zstd") => {
            "use lz4, gzip or snappy; zstd needs a build with `--features zstd`, as the image has it".into()
        }
        "buffer.memory" => "remove it; the worker bounds its own memory".into(),
        _ => "see librdkafka's CONFIGURATION.md for its properties and their values".into(),
    }
}

#[cfg(test)]
mod tests;
