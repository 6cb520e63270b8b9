//! Three brokers with three replicas of each partition: the death of a leader only delays records.

use std::time::Duration;

use kafka::Kafka;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};

use super::publishing::Publishing;
use crate::support::topics::LIMIT;
use crate::support::{Cluster, Options, Result, prefix};

crate::tests! {
    disturbing a_leader_killed_while_publishing_only_delays_records within 240;
}

async fn a_leader_killed_while_publishing_only_delays_records() -> Result<()> {
    let cluster = Cluster::start(3, Options::default()).await?;
    let topic = prefix("outage-leader");
    let mut publishing = Publishing::start(Kafka::plaintext(cluster.bootstrap()), &topic).await;
    let leader = leader(&cluster.bootstrap(), &topic).await;
    publishing.send(2_000);

    cluster.brokers[leader].kill();
    // One partition in three has no leader until the controller notices.
    publishing.partial_outage(Duration::from_millis(500)).await;

    publishing.finish("killed leader").await;
    Ok(())
}

/// The index of the broker that leads a topic's first partition.
async fn leader(bootstrap: &str, topic: &str) -> usize {
    let (bootstrap, topic) = (bootstrap.to_owned(), topic.to_owned());
    let asking = tokio::task::spawn_blocking(move || {
        let client: BaseConsumer = ClientConfig::new().set("bootstrap.servers", &bootstrap).create().unwrap();
        let metadata = client.fetch_metadata(Some(&topic), LIMIT).unwrap();
        metadata.topics()[0].partitions()[0].leader()
    });
    // Ids are counted from 1.
    asking.await.unwrap() as usize - 1
}
