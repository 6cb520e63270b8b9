use rdkafka::consumer::{BaseConsumer, Consumer as _};

use super::*;

fn producer() -> ClientRole {
    ClientRole::Producer { queue_bytes: 1 << 20 }
}

fn fetching(partitions: usize) -> ClientRole {
    let fetch = FetchOptions { partitions, bytes: 16 << 20, wait: Duration::from_millis(50) };
    ClientRole::Consumer(Some(fetch), Isolation::ReadCommitted)
}

fn consumer() -> ClientRole {
    fetching(4)
}

fn member() -> ClientRole {
    ClientRole::Member {
        group: "workers".into(),
        session: Duration::from_secs(60),
        heartbeat: Duration::from_millis(500),
    }
}

fn kafka(producer: &[(&str, &str)], consumer: &[(&str, &str)]) -> Kafka {
    let owned = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).into())).collect();
    let plain = Kafka::plaintext("127.0.0.1:1");
    Kafka { producer: owned(producer), consumer: owned(consumer), ..plain }
}

fn error_text(kafka: &Kafka, role: &ClientRole) -> String {
    Settings::new(kafka, role).map(|_| ()).unwrap_err().to_string()
}

#[test]
fn default_may_be_changed_under_either_name() {
    let kafka = kafka(&[("linger.ms", "7"), ("compression.type", "zstd")], &[]);

    let settings = Settings::new(&kafka, &producer()).unwrap();

    assert_eq!(settings.config.get("queue.buffering.max.ms"), Some("7"));
    assert_eq!(settings.config.get("compression.codec"), Some("zstd"));
}

#[test]
fn settings_that_differ_only_in_a_secret_differ() {
    let with = |password| {
        let settings = [("sasl.username", "u"), ("sasl.password", password)];
        Settings::new(&kafka(&[], &settings), &consumer()).unwrap()
    };

    assert!(with("one").is_same(&with("one")));
    assert!(!with("one").is_same(&with("two")));
}

#[test]
fn zstd_is_refused_with_a_remedy_where_it_is_not_built_in() {
    let errors = check_settings(&kafka(&[("compression.type", "zstd")], &[]));

    let reported: Vec<String> = errors.iter().map(ToString::to_string).collect();
    if cfg!(feature = "zstd") {
        assert_eq!(reported, [""; 0]);
    } else {
        let has = |part: &str| reported.iter().any(|text| text.contains(part));
        assert!(
            has("compression.type") && has("libzstd not available") && has("`--features zstd`"),
            "{reported:?}"
        );
    }
}

#[test]
fn user_setting_against_an_enforced_one_is_refused() {
    let text = error_text(&kafka(&[("acks", "1")], &[]), &producer());

    assert!(text.contains("producer setting acks=1 is refused"), "{text}");
    assert!(text.contains("all in-sync replicas"), "{text}");
    assert!(text.contains("remove it or set it to -1"), "{text}");
}

#[test]
fn every_enforced_setting_refuses_another_value() {
    let roles = [
        producer(),
        ClientRole::Transactional { id: "t".into(), queue_bytes: 1024, timeout: Duration::from_secs(15) },
        consumer(),
        member(),
    ];

    for role in roles {
        for enforced in enforced_settings(&role, "127.0.0.1:1") {
            let wrong = if enforced.keeps_user_value() { "2000000000" } else { "77" };
            let other = kafka(&[(enforced.key, wrong)], &[(enforced.key, wrong)]);

            assert!(matches!(Settings::new(&other, &role), Err(Error::Refused { .. })), "{}", enforced.key);
        }
    }
}

#[test]
fn smaller_batch_size_is_kept() {
    let settings = Settings::new(&kafka(&[("batch.size", "5000")], &[]), &producer()).unwrap();

    assert_eq!(settings.config.get("batch.size"), Some("5000"));
    let text = error_text(&kafka(&[("batch.size", "1000001")], &[]), &producer());
    assert!(text.contains("remove it or set it to at most 1000000"), "{text}");
}

#[test]
fn client_setting_wins_over_the_common_one_under_any_name() {
    let mut kafka = kafka(&[], &[("sasl.mechanism", "SCRAM-SHA-512")]);
    kafka.common.insert("sasl.mechanisms".into(), "PLAIN".into());

    let consumer = Settings::new(&kafka, &consumer()).unwrap();
    let producer = Settings::new(&kafka, &producer()).unwrap();

    assert_eq!(consumer.config.get("sasl.mechanisms"), Some("SCRAM-SHA-512"));
    assert_eq!(producer.config.get("sasl.mechanisms"), Some("PLAIN"));
}

#[test]
fn record_limit_never_exceeds_the_queue() {
    let kafka = kafka(&[("message.max.bytes", "100000000")], &[]);

    let settings = Settings::new(&kafka, &producer()).unwrap();

    assert_eq!(settings.config.get("message.max.bytes"), Some("1048576"));
}

#[test]
fn fetched_and_queued_bytes_stay_within_the_prefetch() {
    for partitions in [1, 4, 48, 400] {
        let settings = Settings::new(&kafka(&[], &[]), &fetching(partitions)).unwrap();

        let number = |key: &str| settings.config.get(key).unwrap().parse::<usize>().unwrap();
        let most = number("queued.max.messages.kbytes") * 1024 + number("fetch.message.max.bytes");
        assert!(most * partitions <= 16 << 20, "{most} bytes for each of {partitions}");
    }
}

#[test]
fn other_spelling_of_an_enforced_value_is_accepted() {
    let kafka = kafka(&[("acks", "all"), ("enable.idempotence", "true")], &[("auto.offset.reset", "none")]);

    assert!(Settings::new(&kafka, &producer()).is_ok());
    assert!(Settings::new(&kafka, &consumer()).is_ok());
}

#[test]
fn unknown_property_is_named_and_a_java_one_translated() {
    let java = kafka(&[("sasl.jaas.config", "password=\"hunter2\"")], &[]);

    let error = crate::Producer::new(&java, &Default::default()).unwrap_err();

    let text = error.to_string();
    assert!(text.contains("sasl.jaas.config") && text.contains("sasl.username"), "{text}");
    assert!(!text.contains("hunter2"), "{text}");
}

#[test]
fn request_is_repeated_until_answered_or_permanent() {
    let silence = || Error::Deadline { action: "ask".into(), limit: ASK_TIMEOUT };
    let limit = Duration::from_secs(60);
    let mut answers = [Err(silence()), Err(silence()), Ok(7)].into_iter();
    let mut refusals = [Err(silence()), Err(Error::Stopped { action: "ask".into() })].into_iter();

    let answered = ask_until_answered(limit, |_| answers.next().unwrap());
    let refused: Result<i32, Error> = ask_until_answered(limit, |_| refusals.next().unwrap());
    let late: Result<i32, Error> = ask_until_answered(Duration::ZERO, |_| Err(silence()));

    assert_eq!(answered.ok(), Some(7));
    assert!(matches!(refused, Err(Error::Stopped { .. })), "{refused:?}");
    assert!(matches!(late, Err(Error::Deadline { .. })), "{late:?}");
}

#[test]
fn every_fault_is_reported_once_without_a_broker() {
    let mut bad = kafka(
        &[("linger.ms", "soon"), ("acks", "1"), ("lingr.ms", "5"), ("transactional.id", "mine")],
        &[("bootstrap.servers", "other:9092"), ("fetch.wait.max.ms", "10"), ("group.id", "mine")],
    );
    bad.common.insert("security.protocol".into(), "TELNET".into());

    let reported: Vec<String> = check_settings(&bad).iter().map(Error::to_string).collect();

    assert_eq!(reported.len(), 7, "{reported:#?}");
    for setting in [
        "linger.ms",
        "acks",
        "lingr.ms",
        "transactional.id",
        "bootstrap.servers",
        "security.protocol",
        "group.id",
    ] {
        let about = |text: &&String| text.contains(&format!("setting {setting}"));
        assert_eq!(reported.iter().filter(about).count(), 1, "{setting}: {reported:#?}");
    }
    assert!(check_settings(&Kafka::plaintext("127.0.0.1:1")).is_empty());
}

#[test]
fn member_accepts_reader_settings_and_enforces_its_own() {
    let kafka = kafka(&[], &[("auto.offset.reset", "none"), ("enable.partition.eof", "true")]);

    let settings = Settings::new(&kafka, &member()).unwrap();

    for (key, value) in [
        ("group.id", "workers"),
        ("session.timeout.ms", "60000"),
        ("heartbeat.interval.ms", "500"),
        ("max.poll.interval.ms", "60000"),
        ("partition.assignment.strategy", "cooperative-sticky"),
        ("auto.offset.reset", "latest"),
        ("enable.partition.eof", "false"),
    ] {
        assert_eq!(settings.config.get(key), Some(value), "{key}");
    }
}

#[test]
fn bad_value_is_an_error_that_names_the_key() {
    let bad = kafka(&[("linger.ms", "soon")], &[]);

    let error = crate::Producer::new(&bad, &Default::default()).unwrap_err();

    assert!(matches!(&error, Error::Setting { key, .. } if key == "queue.buffering.max.ms"), "{error}");
}

#[test]
fn client_without_brokers_uses_added_ones() {
    let cluster = crate::embedded::EmbeddedCluster::start(1).unwrap();
    cluster.create_topic("events", 1).unwrap();
    let mut settings = Settings::new(&cluster.settings(), &consumer()).unwrap();
    settings.config.remove("metadata.broker.list");
    let client: Arc<BaseConsumer<ClientCallbacks>> = settings.create(()).unwrap();
    let ask = || client.fetch_metadata(Some("events"), Duration::from_secs(2));
    assert!(ask().is_err(), "no broker is left");

    sys::add_brokers(client.client(), cluster.bootstrap_servers());

    let metadata =
        ask_until_answered(Duration::from_secs(20), |_| ask().map_err(|error| Error::request("ask", error)));
    assert_eq!(metadata.unwrap().brokers().len(), 1);
}

#[test]
fn client_remembers_its_bootstrap_servers() {
    let settings = Settings::new(&kafka(&[], &[]), &consumer()).unwrap();
    let client: Arc<BaseConsumer<ClientCallbacks>> = settings.create(()).unwrap();
    assert_eq!(client.client().context().bootstrap(), "127.0.0.1:1");
}
