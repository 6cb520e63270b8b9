//! librdkafka settings for each kind of client, in one place.
//!
//! Three layers, the later ones win: our defaults, what the user passes through, and what our promises depend on. A user's
//! setting that contradicts the last layer is refused instead of overruled in silence. Settings librdkafka cannot take
//! (token endpoint; it is built without curl) are taken out and served by [`super::oauth`].

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
};

use rdkafka::{
    ClientContext,
    config::{ClientConfig, FromClientConfigAndContext},
    error::KafkaError,
};
use tokio::sync::oneshot;

use super::{
    Error,
    context::{Context, Handle, Link},
    oauth,
    promise::promises,
    sys,
};
use crate::{
    config::{ClientRole, Kafka},
    metrics::Client,
    retry::Retry,
    secret::HIDDEN,
};

/// How long to wait for an answer before we look whether something is wrong for good.
const STEP: Duration = Duration::from_secs(2);

/// The largest record a producer takes, in bytes. What a topic takes is often less, and the broker's to judge; a dead
/// letter, which carries what another topic refused, may be this large.
pub const LARGEST_RECORD: usize = 32 << 20;

/// The least `max.message.bytes` a topic may have, in bytes. The broker judges whole batches by it, and refuses all of one
/// for what none of its records did; a batch therefore stays below.
pub const SMALLEST_LIMIT: u64 = 1 << 20;

/// The least librdkafka takes for `message.max.bytes`.
const SMALLEST_MAX: usize = 1_000;

/// A kind of client with the figures that differ from one to the next.
#[derive(Debug, Clone)]
pub(super) enum Role {
    /// The idempotent producer.
    Producer { queue_bytes: usize },
    /// The producer of one shard.
    Transactional { id: Arc<str>, queue_bytes: usize, timeout: Duration },
    /// A reader of this many partitions.
    Consumer { partitions: usize, prefetch_bytes: usize },
    /// The topic admin.
    Admin,
}

impl Role {
    pub(super) fn client(&self) -> Client {
        match self {
            Self::Producer { .. } => Client::Producer,
            Self::Transactional { .. } => Client::Transactional,
            Self::Consumer { .. } => Client::Consumer,
            Self::Admin => Client::Admin,
        }
    }

    fn user_settings(&self) -> ClientRole {
        match self {
            Self::Producer { .. } | Self::Transactional { .. } => ClientRole::Producer,
            Self::Consumer { .. } => ClientRole::Consumer,
            Self::Admin => ClientRole::Admin,
        }
    }

    fn queue_bytes(&self) -> Option<usize> {
        match self {
            Self::Producer { queue_bytes } | Self::Transactional { queue_bytes, .. } => Some(*queue_bytes),
            Self::Consumer { .. } | Self::Admin => None,
        }
    }

    fn defaults(&self) -> Vec<(&'static str, String)> {
        let mut defaults: Vec<(&'static str, String)> = vec![
            ("client.id", format!("tributary-{}", self.client().label())),
            // A broker that comes back is used within a quarter of a second; librdkafka's own limit is ten.
            ("reconnect.backoff.ms", "50".into()),
            ("reconnect.backoff.max.ms", "250".into()),
        ];
        let largest = |queue_bytes: &usize| {
            ("message.max.bytes", (*queue_bytes).clamp(SMALLEST_MAX, LARGEST_RECORD).to_string())
        };
        match self {
            Self::Producer { queue_bytes } => defaults.extend([
                largest(queue_bytes),
                ("statistics.interval.ms", "5000".into()),
                ("queue.buffering.max.ms", "0".into()),
                // Measured fastest with linger 0: what waits behind the one request becomes the next, fuller batch.
                ("max.in.flight.requests.per.connection", "1".into()),
                ("compression.codec", "lz4".into()),
            ]),
            Self::Transactional { queue_bytes, .. } => defaults.extend([
                largest(queue_bytes),
                ("statistics.interval.ms", "5000".into()),
                ("queue.buffering.max.ms", "0".into()),
                ("compression.codec", "lz4".into()),
            ]),
            Self::Consumer { partitions, prefetch_bytes } => {
                // Limits hold per partition here, so the whole is divided: half may wait when the other half is fetched.
                let share = prefetch_bytes / 2 / (*partitions).max(1);
                defaults.extend([
                    ("fetch.message.max.bytes", share.clamp(16 << 10, 1 << 20).to_string()),
                    ("statistics.interval.ms", "5000".into()),
                    // The end of a partition is reported one such wait after its last record.
                    ("fetch.wait.max.ms", "10".into()),
                    ("queued.max.messages.kbytes", (share / 1024).clamp(16, 65_536).to_string()),
                    ("queued.min.messages", "1000".into()),
                    // A full local queue pauses fetching by this long; the default of a second would starve us.
                    ("fetch.queue.backoff.ms", "5".into()),
                ]);
            }
            // Nobody serves the admin client's queue between calls, so statistics would pile up there.
            Self::Admin => {}
        }
        defaults
    }
}

/// Everything that is wrong with the user's settings and shows without a broker: the first fault of each of them.
#[must_use]
pub fn check_settings(kafka: &Kafka) -> Vec<Error> {
    // The figures are the worker's own, so any will do.
    let (queue_bytes, timeout) = (LARGEST_RECORD, Duration::from_secs(15));
    let roles = [
        Role::Producer { queue_bytes },
        Role::Transactional { id: "check".into(), queue_bytes, timeout },
        Role::Consumer { partitions: 1, prefetch_bytes: queue_bytes },
        Role::Admin,
    ];
    let mut told = BTreeSet::new();
    let mut errors = Vec::new();
    for role in &roles {
        for error in Settings::faults(kafka, role) {
            let setting = match &error {
                Error::Refused { key, .. } | Error::Setting { key, .. } => key.clone(),
                other => other.to_string(),
            };
            // What clients share would be told once for each of them.
            if told.insert(kafka.key_of(role.user_settings(), &setting)) {
                errors.push(error);
            }
        }
    }
    errors
}

/// Everything needed to create one client.
pub(super) struct Settings {
    client: Client,
    config: ClientConfig,
    token: Option<oauth::Source>,
}

impl Settings {
    /// The settings of a role, or the first thing that is wrong with the user's.
    pub(super) fn new(kafka: &Kafka, role: &Role) -> Result<Self, Error> {
        let client = role.client();
        let mut user = user_settings(kafka, role);
        let token = oauth::Source::take(client.label(), &mut user)?;

        let mut config = ClientConfig::new();
        for (key, value) in role.defaults() {
            config.set(key, value);
        }
        for (key, (_, value)) in &user {
            config.set(*key, *value);
        }
        if let Some(most) = role.queue_bytes()
            && let Some(set) = config.get("message.max.bytes").and_then(|value| value.parse::<usize>().ok())
        {
            // Never above the queue: a record that can never fit must be refused, not found to be in the way for ever.
            config.set("message.max.bytes", set.min(most.max(SMALLEST_MAX)).to_string());
        }
        for promise in promises(role, &kafka.bootstrap_servers) {
            if let Some(refusal) = promise.refusal(client, &user) {
                return Err(refusal);
            }
            if promise.leaves_the_users() && user.contains_key(promise.key) {
                continue;
            }
            if promise.value.is_empty() {
                config.remove(promise.key);
            } else {
                config.set(promise.key, promise.value);
            }
        }
        Ok(Self { client, config, token })
    }

    /// Everything that is wrong with the user's settings for a role, each looked at alone.
    fn faults(kafka: &Kafka, role: &Role) -> Vec<Error> {
        let client = role.client();
        let mut user = user_settings(kafka, role);
        let token = oauth::Source::take(client.label(), &mut user);
        let promises = promises(role, &kafka.bootstrap_servers);
        let refused = promises.iter().filter_map(|promise| promise.refusal(client, &user));
        let unusable = user.values().filter_map(|(key, value)| {
            // Under the user's own name for it, so that librdkafka complains about that one.
            let set = ClientConfig::new().set(*key, *value).create_native_config();
            set.err().map(|error| explain(client, error))
        });
        token.err().into_iter().chain(refused).chain(unusable).collect()
    }

    /// Makes the client. `wrap` gives the shared context the shape this kind of client needs.
    pub(super) fn create<C, T>(&self, wrap: impl FnOnce(Context) -> C) -> Result<Arc<T>, Error>
    where
        C: ClientContext,
        T: FromClientConfigAndContext<C> + Handle + 'static,
    {
        self.create_with(wrap, |_| {})
    }

    /// As [`Settings::create`], with what has to be done before anybody shares the client.
    pub(super) fn create_with<C, T>(
        &self,
        wrap: impl FnOnce(Context) -> C,
        prepare: impl FnOnce(&mut T),
    ) -> Result<Arc<T>, Error>
    where
        C: ClientContext,
        T: FromClientConfigAndContext<C> + Handle + 'static,
    {
        let link = Link::default();
        let tokens = self.token.clone().map(|source| Arc::new(oauth::Tokens::new(source)));
        let context = wrap(Context::new(self.client, tokens, Arc::clone(&link)));
        let created = self.config.create_with_context(context).map(|mut client| {
            prepare(&mut client);
            Arc::new(client)
        });
        // Also where there is none, so that nobody waits for one.
        let client: Weak<dyn Handle> = created.as_ref().map_or_else(|_| Weak::<T>::new(), Arc::downgrade);
        link.set(client).ok();
        created.map_err(|error| explain(self.client, error))
    }

    /// Gives a client its first token, if it needs one, before anybody serves the queue on which it would ask. Blocks.
    pub(super) fn hand_token(&self, client: &rdkafka::client::Client<Context>) -> Result<(), Error> {
        let Some(token) = client.context().first_token() else { return Ok(()) };
        let handed = sys::set_token(client, token?);
        handed.map_err(|reason| Error::Create { client: self.client.label(), reason })
    }
}

/// The user's settings for a role: librdkafka's name to the user's name and value.
fn user_settings<'a>(kafka: &'a Kafka, role: &Role) -> BTreeMap<&'a str, (&'a str, &'a str)> {
    // One name for each property in each layer, before one layer covers the other.
    let own = match role.user_settings() {
        ClientRole::Producer => &kafka.producer,
        ClientRole::Consumer => &kafka.consumer,
        ClientRole::Admin => &kafka.admin,
    };
    let layers = kafka.common.iter().chain(own);
    layers.map(|(key, value)| (canonical(key), (key.as_str(), value.reveal()))).collect()
}

fn explain(client: Client, error: KafkaError) -> Error {
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

/// Runs a call that blocks on a thread of its own: a tokio worker must not wait for a broker, and a tokio blocking thread
/// that hangs would keep the runtime from ending.
pub(super) async fn blocking<T: Send + 'static>(
    action: &str,
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Error> {
    let (answer, answered) = oneshot::channel();
    let stopped = || Error::Stopped { action: action.to_owned() };
    thread::Builder::new()
        .name("kafka-call".into())
        .spawn(move || {
            // Nobody waits any more: the result is nobody's.
            drop(answer.send(call()));
        })
        .map_err(|_| stopped())?;
    answered.await.map_err(|_| stopped())
}

/// Repeats a question until it is answered, the limit has passed, or what is wrong will not pass: a wrong password looks
/// like silence, and waiting does not mend it. `ask` gets the time it may take.
pub(super) fn in_steps<T>(
    limit: Duration,
    mut ask: impl FnMut(Duration) -> Result<T, Error>,
) -> Result<T, Error> {
    let end = Instant::now() + limit;
    loop {
        let left = end.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        match ask(left.min(STEP)) {
            Err(error) if error.retry() != Retry::Never && Instant::now() < end => {}
            answer => return answer,
        }
    }
}

/// librdkafka's own name for a property that has two: set under both, which one wins would be chance.
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

/// What to write instead of settings only the Java client has.
fn remedy(key: &str) -> String {
    match key {
        "sasl.jaas.config" => "set sasl.username and sasl.password instead".into(),
        key if key.starts_with("ssl.truststore") => "set ssl.ca.location to a PEM file instead".into(),
        key if key.starts_with("ssl.keystore") => {
            "set ssl.keystore.location to a PKCS#12 file, or ssl.certificate.location and ssl.key.location to PEM files"
                .into()
        }
        "fetch.max.wait.ms" => "set fetch.wait.max.ms instead".into(),
        "buffer.memory" => "remove it; the worker bounds its memory itself".into(),
        _ => "see librdkafka's CONFIGURATION.md for its properties and their values".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn producer() -> Role {
        Role::Producer { queue_bytes: 1 << 20 }
    }

    fn consumer() -> Role {
        Role::Consumer { partitions: 4, prefetch_bytes: 16 << 20 }
    }

    fn kafka(producer: &[(&str, &str)], consumer: &[(&str, &str)]) -> Kafka {
        let owned =
            |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).into())).collect();
        let plain = Kafka::plaintext("127.0.0.1:1");
        Kafka { producer: owned(producer), consumer: owned(consumer), ..plain }
    }

    fn error_text(kafka: &Kafka, role: &Role) -> String {
        Settings::new(kafka, role).map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn a_user_may_change_a_default_under_either_of_its_names() {
        let kafka = kafka(&[("linger.ms", "7"), ("compression.type", "zstd")], &[]);

        let settings = Settings::new(&kafka, &producer()).unwrap();

        assert_eq!(settings.config.get("queue.buffering.max.ms"), Some("7"));
        assert_eq!(settings.config.get("compression.codec"), Some("zstd"));
    }

    #[test]
    fn a_setting_against_a_promise_is_refused_with_rule_and_remedy() {
        let text = error_text(&kafka(&[("acks", "1")], &[]), &producer());

        assert!(text.contains("producer setting acks=1 is refused"), "{text}");
        assert!(text.contains("all in-sync replicas"), "{text}");
        assert!(text.contains("remove it or set it to -1"), "{text}");
    }

    #[test]
    fn every_promise_holds_against_a_user_who_sets_something_else() {
        let roles = [
            producer(),
            Role::Transactional { id: "t".into(), queue_bytes: 1024, timeout: Duration::from_secs(15) },
            consumer(),
        ];

        for role in roles {
            for promise in promises(&role, "127.0.0.1:1") {
                let wrong = if promise.leaves_the_users() { "2000000000" } else { "77" };
                let other = kafka(&[(promise.key, wrong)], &[(promise.key, wrong)]);

                assert!(
                    matches!(Settings::new(&other, &role), Err(Error::Refused { .. })),
                    "{}",
                    promise.key
                );
            }
        }
    }

    #[test]
    fn a_batch_may_be_smaller_than_promised_and_stays_so() {
        let settings = Settings::new(&kafka(&[("batch.size", "5000")], &[]), &producer()).unwrap();

        assert_eq!(settings.config.get("batch.size"), Some("5000"));
        let text = error_text(&kafka(&[("batch.size", "1000001")], &[]), &producer());
        assert!(text.contains("remove it or set it to at most 1000000"), "{text}");
    }

    #[test]
    fn a_roles_setting_wins_over_the_common_one_under_whichever_name() {
        let mut kafka = kafka(&[], &[("sasl.mechanism", "SCRAM-SHA-512")]);
        kafka.common.insert("sasl.mechanisms".into(), "PLAIN".into());

        let consumer = Settings::new(&kafka, &consumer()).unwrap();
        let producer = Settings::new(&kafka, &producer()).unwrap();

        assert_eq!(consumer.config.get("sasl.mechanisms"), Some("SCRAM-SHA-512"));
        assert_eq!(producer.config.get("sasl.mechanisms"), Some("PLAIN"));
    }

    #[test]
    fn no_record_may_be_larger_than_the_queue_whatever_is_set() {
        let kafka = kafka(&[("message.max.bytes", "100000000")], &[]);

        let settings = Settings::new(&kafka, &producer()).unwrap();

        assert_eq!(settings.config.get("message.max.bytes"), Some("1048576"));
    }

    #[test]
    fn what_is_fetched_and_what_waits_stay_within_the_prefetch_together() {
        for partitions in [1, 4, 48, 400] {
            let role = Role::Consumer { partitions, prefetch_bytes: 16 << 20 };

            let settings = Settings::new(&kafka(&[], &[]), &role).unwrap();

            let number = |key: &str| settings.config.get(key).unwrap().parse::<usize>().unwrap();
            let most = number("queued.max.messages.kbytes") * 1024 + number("fetch.message.max.bytes");
            assert!(most * partitions <= 16 << 20, "{most} bytes for each of {partitions}");
        }
    }

    #[test]
    fn a_promise_in_other_words_is_no_contradiction() {
        let kafka =
            kafka(&[("acks", "all"), ("enable.idempotence", "true")], &[("auto.offset.reset", "none")]);

        assert!(Settings::new(&kafka, &producer()).is_ok());
        assert!(Settings::new(&kafka, &consumer()).is_ok());
    }

    #[test]
    fn an_unknown_property_is_named_and_a_java_one_is_translated() {
        let java = kafka(&[("sasl.jaas.config", "password=\"hunter2\"")], &[]);

        let error = super::super::Producer::new(&java, &Default::default()).unwrap_err();

        let text = error.to_string();
        assert!(text.contains("sasl.jaas.config") && text.contains("sasl.username"), "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }

    #[test]
    fn a_question_is_repeated_until_it_is_answered_or_can_never_be() {
        let silence = || Error::Deadline { action: "ask".into(), limit: STEP };
        let limit = Duration::from_secs(60);
        let mut answers = [Err(silence()), Err(silence()), Ok(7)].into_iter();
        let mut refusals = [Err(silence()), Err(Error::Stopped { action: "ask".into() })].into_iter();

        let answered = in_steps(limit, |_| answers.next().unwrap());
        let refused: Result<i32, Error> = in_steps(limit, |_| refusals.next().unwrap());
        let late: Result<i32, Error> = in_steps(Duration::ZERO, |_| Err(silence()));

        assert_eq!(answered.ok(), Some(7));
        assert!(matches!(refused, Err(Error::Stopped { .. })), "{refused:?}");
        assert!(matches!(late, Err(Error::Deadline { .. })), "{late:?}");
    }

    #[test]
    fn every_fault_shows_without_a_broker_and_once() {
        let mut bad = kafka(
            &[("linger.ms", "soon"), ("acks", "1"), ("lingr.ms", "5"), ("transactional.id", "mine")],
            &[("bootstrap.servers", "other:9092"), ("fetch.wait.max.ms", "10")],
        );
        bad.common.insert("security.protocol".into(), "TELNET".into());

        let told: Vec<String> = check_settings(&bad).iter().map(Error::to_string).collect();

        assert_eq!(told.len(), 6, "{told:#?}");
        for setting in
            ["linger.ms", "acks", "lingr.ms", "transactional.id", "bootstrap.servers", "security.protocol"]
        {
            let about = |text: &&String| text.contains(&format!("setting {setting}"));
            assert_eq!(told.iter().filter(about).count(), 1, "{setting}: {told:#?}");
        }
        assert!(check_settings(&Kafka::plaintext("127.0.0.1:1")).is_empty());
    }

    #[test]
    fn a_bad_value_is_an_error_that_names_the_key() {
        let bad = kafka(&[("linger.ms", "soon")], &[]);

        let error = super::super::Producer::new(&bad, &Default::default()).unwrap_err();

        assert!(matches!(&error, Error::Setting { key, .. } if key == "queue.buffering.max.ms"), "{error}");
    }
}
