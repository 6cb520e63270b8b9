//! Brokers and registries: shared, killed, paused, cut off, three at a time.

use std::time::{Duration, Instant};

use super::client::{answers, config, create_topic, producer, read, send, write};
use crate::support::broker::tool;
use crate::support::{Broker, Cluster, Options, Registry, Result, Shared, prefix, run_directory};

crate::tests! {
    real a_record_written_to_the_shared_kafka_can_be_read;
    real the_shared_registry_serves_the_confluent_api;
    disturbing an_acknowledged_record_survives_a_killed_broker within 120;
    disturbing kafkas_own_tools_see_what_a_client_created within 120;
    disturbing a_paused_broker_answers_again_once_resumed within 120;
    disturbing a_stalled_proxy_holds_up_only_its_own_client within 120;
    disturbing only_the_right_password_opens_a_scram_listener_over_tls within 120;
    disturbing a_registry_comes_back_empty_on_its_port within 180;
    disturbing three_brokers_take_writes_without_one_and_refuse_without_two within 240;
}

/// For calls that must fail: long enough for a busy machine, and short.
const SHORT: Duration = Duration::from_secs(2);
const MEDIUM: Duration = Duration::from_secs(15);
const LONG: Duration = Duration::from_secs(20);

async fn a_record_written_to_the_shared_kafka_can_be_read(shared: &'static Shared) {
    let topic = prefix("rig-shared");
    create_topic(shared.bootstrap(), &topic, 1).await;

    write(shared.bootstrap(), &topic, "hello", LONG).await.unwrap();

    assert_eq!(read(shared.bootstrap(), &topic, 1).await, ["hello"]);
}

async fn the_shared_registry_serves_the_confluent_api(shared: &'static Shared) {
    let subject = prefix("rig-subject");
    let url = format!("{}/subjects/{subject}/versions", shared.registry());
    let client = reqwest::Client::new();

    let schema = serde_json::json!({ "schema": r#"{"type":"string"}"# });
    let registered = client.post(&url).json(&schema).send().await.unwrap();
    let versions: Vec<u32> = client.get(&url).send().await.unwrap().json().await.unwrap();

    assert_eq!(registered.status(), 200);
    assert_eq!(versions, [1]);
}

async fn an_acknowledged_record_survives_a_killed_broker() -> Result<()> {
    let mut broker = Broker::start(Options::default()).await?;
    let bootstrap = broker.bootstrap();
    create_topic(&bootstrap, "kept", 1).await;
    write(&bootstrap, "kept", "before", LONG).await.unwrap();

    broker.kill();
    assert!(!answers(config(&bootstrap), SHORT).await, "a killed broker answered");
    broker.restart().await?;
    write(&bootstrap, "kept", "after", LONG).await.unwrap();

    assert_eq!(read(&bootstrap, "kept", 2).await, ["before", "after"]);
    Ok(())
}

async fn kafkas_own_tools_see_what_a_client_created() -> Result<()> {
    let broker = Broker::start(Options::default()).await?;
    create_topic(&broker.bootstrap(), "described", 1).await;

    let arguments = ["--bootstrap-server", &broker.bootstrap(), "--describe", "--topic", "described"];
    let described = tool("org.apache.kafka.tools.TopicCommand", &arguments).await?;

    assert!(described.contains("PartitionCount: 3"), "{described}");
    let missing = tool("org.apache.kafka.tools.NoSuchCommand", &[]).await;
    assert!(missing.is_err(), "a tool that does not exist gave {missing:?}");
    Ok(())
}

async fn a_paused_broker_answers_again_once_resumed() -> Result<()> {
    let broker = Broker::start(Options::default()).await?;
    let bootstrap = broker.bootstrap();

    broker.pause()?;
    assert!(!answers(config(&bootstrap), SHORT).await, "a paused broker answered");
    broker.resume()?;
    assert!(answers(config(&bootstrap), LONG).await, "a resumed broker did not answer");
    broker.pause()?;
    broker.stop().await?;

    assert!(broker.resume().is_err(), "a stopped broker took a signal");
    Ok(())
}

/// The client has used the broker before the stall, so it has the address that the broker advertises.
async fn a_stalled_proxy_holds_up_only_its_own_client() -> Result<()> {
    let broker = Broker::start(Options::default().proxied()).await?;
    let past_proxy = broker.bootstrap_past_proxy();
    create_topic(&broker.bootstrap(), "seen", 1).await;
    let producer = producer(&broker.bootstrap(), MEDIUM);
    send(&producer, "seen", "first").await.unwrap();

    broker.proxy()?.stall();
    let stalled = send(&producer, "seen", "held").await;
    write(&past_proxy, "seen", "second", LONG).await.unwrap();
    let seen = read(&past_proxy, "seen", 2).await;
    broker.proxy()?.heal();
    let healed = write(&broker.bootstrap(), "seen", "third", LONG).await;

    assert!(stalled.is_err(), "a record passed a stalled proxy");
    assert_eq!(seen, ["first", "second"]);
    assert_eq!(healed, Ok(()));
    Ok(())
}

async fn only_the_right_password_opens_a_scram_listener_over_tls() -> Result<()> {
    let certified = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let store = run_directory::create("tls")?.join("keystore.pem");
    std::fs::write(&store, certified.signing_key.serialize_pem() + &certified.cert.pem()).unwrap();
    let login = "org.apache.kafka.common.security.scram.ScramLoginModule required;";
    let options = Options::default()
        .listener("SECURE", "SASL_SSL")
        .scram("SCRAM-SHA-512", "alice", "opensesame")
        .property("sasl.enabled.mechanisms", "SCRAM-SHA-512")
        .property("listener.name.secure.scram-sha-512.sasl.jaas.config", login)
        .property("listener.name.secure.ssl.keystore.type", "PEM")
        .property("listener.name.secure.ssl.keystore.location", &store.to_string_lossy());
    let broker = Broker::start(options).await?;
    let address = broker.listener("SECURE")?;
    let client = |password: &str| {
        let mut config = config(&address);
        config.set("security.protocol", "SASL_SSL").set("ssl.ca.pem", certified.cert.pem());
        config.set("sasl.mechanisms", "SCRAM-SHA-512");
        config.set("sasl.username", "alice").set("sasl.password", password);
        config
    };

    let wrong = answers(client("guess"), SHORT).await;
    let right = answers(client("opensesame"), LONG).await;

    assert!(!wrong, "a wrong password was taken");
    assert!(right, "the right password was refused");
    Ok(())
}

async fn a_registry_comes_back_empty_on_its_port() -> Result<()> {
    let mut registry = Registry::start().await?;
    let url = format!("{}/subjects", registry.url());
    let schema = serde_json::json!({ "schema": r#"{"type":"string"}"# });
    let client = reqwest::Client::new();
    let posted = client.post(format!("{url}/kept/versions")).json(&schema).send().await.unwrap();
    assert_eq!(posted.status(), 200);

    registry.pause()?;
    assert!(!registry.answers().await, "a paused registry answered");
    registry.resume()?;
    let resumed = Instant::now();
    while !registry.answers().await {
        assert!(resumed.elapsed() < LONG, "a resumed registry did not answer");
    }
    registry.stop().await?;
    registry.restart().await?;

    let subjects: Vec<String> = client.get(&url).send().await.unwrap().json().await.unwrap();
    assert!(subjects.is_empty(), "{subjects:?} outlived the registry");
    registry.kill();
    assert!(!registry.answers().await, "a killed registry answered");
    Ok(())
}

async fn three_brokers_take_writes_without_one_and_refuse_without_two() -> Result<()> {
    let mut cluster = Cluster::start(3, Options::default()).await?;
    create_topic(&cluster.bootstrap(), "replicated", 3).await;
    write(&cluster.bootstrap(), "replicated", "all three", LONG).await.unwrap();

    cluster.brokers[0].kill();
    write(&cluster.bootstrap(), "replicated", "two left", 2 * LONG).await.unwrap();
    cluster.brokers[1].kill();
    let alone = write(&cluster.bootstrap(), "replicated", "one left", SHORT).await;
    cluster.brokers[1].restart().await?;

    assert!(alone.is_err(), "one broker alone took an acks=all write");
    assert_eq!(read(&cluster.bootstrap(), "replicated", 2).await, ["all three", "two left"]);
    Ok(())
}
