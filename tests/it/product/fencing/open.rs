//! Two writers of one partition: one commits while the other's batch is open.

use kafka::TransactionOptions;

use super::shard::FencedShard;
use crate::support::gate::gate;
use crate::support::topics::{PARTITIONS, content_of, text};
use crate::support::{Result, Shared};

crate::tests! {
    real reading_to_the_end_waits_for_open_batches_of_others;
}

async fn reading_to_the_end_waits_for_open_batches_of_others(shared: &'static Shared) -> Result<()> {
    let shard = FencedShard::create(shared.bootstrap(), "fencing-open", &[]).await;
    let (hook, gate) = gate();
    let options = TransactionOptions { before_commit: Some(hook), ..TransactionOptions::default() };
    let mut slow = shard.take_as("slow", options).await;
    let mut quick = shard.take_as("quick", TransactionOptions::default()).await;
    let batch = shard.batch("slow");
    let open = tokio::spawn(async move { slow.commit(batch).await });
    gate.reached().await;
    quick.commit(shard.batch("quick")).await.unwrap();

    let (kafka, topic) = (shard.kafka.clone(), shard.first_topic());
    let reading = tokio::spawn(async move {
        content_of(&kafka, &topic, PARTITIONS).await.iter().map(text).collect::<Vec<String>>()
    });
    // Meanwhile another reader has read a topic without open batches to its end.
    shard.read_elsewhere().await;
    assert!(!reading.is_finished(), "it has seen {:?}", reading.await);
    gate.open();

    open.await.unwrap().unwrap();
    let texts = reading.await.unwrap();
    assert!(texts.contains(&"slow".to_owned()) && texts.contains(&"quick".to_owned()), "{texts:?}");
    Ok(())
}
