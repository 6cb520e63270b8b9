//! Brokers and registries that are paused, killed and restarted, and a cluster of three.

use std::time::{Duration, Instant};

use super::client::{answers, create_topic, read, write};
use crate::support::broker::tool;
use crate::support::{Broker, Cluster, Options, Registry, Result};

crate::tests! {
    disturbing kafkas_own_tools_see_what_a_client_created within 120;
    disturbing a_paused_broker_answers_again_once_resumed within 120;
    disturbing a_registry_comes_back_empty_on_its_port within 180;
    disturbing three_brokers_take_writes_without_one_and_refuse_without_two within 240;
}

/// For calls that must fail: long enough for a busy machine, and short.
const SHORT: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(20);

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
    assert!(!answers(&bootstrap, SHORT).await, "a paused broker answered");
    broker.resume()?;
    assert!(answers(&bootstrap, LONG).await, "a resumed broker did not answer");
    broker.pause()?;
    broker.stop().await?;

    assert!(broker.resume().is_err(), "a stopped broker took a signal");
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
