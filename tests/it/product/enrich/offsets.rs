//! Offsets that people edit: old events are read again without effect, and an offset out of range opens a gap.

use model::{AccountingResource, Topic};
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use rdkafka::{ClientConfig, Offset, TopicPartitionList};
use serde_json::json;
use simulator::catalog::Resource;
use tokio::time::timeout;

use super::checker::check;
use super::evidence::gaps;
use super::scene::{EnrichScene, Options, PARTITIONS, RECORDS};
use crate::support::stage::LIMIT;
use crate::support::{Error, Result, Shared};

crate::tests! {
    real reset_offsets_are_reread_and_nothing_is_published within 240;
    real an_offset_out_of_range_is_a_gap_and_what_is_there_is_read within 240;
}

async fn reset_offsets_are_reread_and_nothing_is_published(shared: &'static Shared) -> Result<()> {
    let scene = EnrichScene::start(shared.into(), "enrich-reset", Options::default(), |_| {}).await?;
    for _ in 0..2 {
        scene.update(&scene.living());
        scene.quiesce().await?;
    }
    let before = scene.evidence().await?;

    scene.stop().await?;
    scene.command("DELETE", "offsets", None, &[200]).await?;
    let none = scene.offsets().await?;
    scene.resume().await?;
    scene.quiesce().await?;
    let after = scene.evidence().await?;

    assert!(none.is_empty(), "{none:?}");
    check(&after).assert_sound();
    assert_eq!(after.settled, before.settled);
    assert_eq!(after.lines, before.lines, "something was published again");
    assert!(gaps(&scene, RECORDS).await?.is_empty());
    Ok(())
}

async fn an_offset_out_of_range_is_a_gap_and_what_is_there_is_read(shared: &'static Shared) -> Result<()> {
    let options = Options { resources: &[Resource::Customers], ..Options::default() };
    let scene = EnrichScene::start(shared.into(), "enrich-range", options, |_| {}).await?;
    let all = scene.living();
    scene.update(&all);
    scene.quiesce().await?;
    let before = scene.evidence().await?;
    let topic = scene.topic(Topic::AccountingEvents(AccountingResource::Customers));
    let used: Vec<i32> = scene
        .ends()
        .await?
        .into_iter()
        .filter(|(_, end)| *end > 0)
        .map(|((_, partition), _)| partition)
        .collect();

    // Beyond the end, as after a wrong edit.
    scene.stop().await?;
    let beyond = json!({ "offsets": [{
        "partition": { "topic": topic, "partition": used[0] },
        "offset": { "offset": 1_000_000 },
    }] });
    scene.command("PATCH", "offsets", Some(&beyond), &[200]).await?;
    scene.resume().await?;
    scene.until("a gap", async || Ok(!gaps(&scene, RECORDS).await?.is_empty())).await?;
    scene
        .until("read from there", async || Ok(scene.offsets().await?.values().all(|one| *one < 1_000_000)))
        .await?;
    scene.quiesce().await?;
    let again = scene.evidence().await?;

    // Before the start, as after a stop that was longer than the retention of events.
    scene.stop().await?;
    let first = gaps(&scene, RECORDS).await?;
    scene.update(&all);
    timeout(LIMIT, scene.provider().deliveries.idle())
        .await
        .map_err(|_| Error("deliveries never end".to_owned()))?;
    scene.until("all received", async || received(&scene, 2 * all.len()).await).await?;
    forget(&scene, &topic).await?;
    scene.resume().await?;
    scene.until("another gap, or a longer one", async || Ok(gaps(&scene, RECORDS).await? != first)).await?;
    scene.update(&all);
    scene.quiesce().await?;
    let mut after = scene.evidence().await?;

    check(&again).assert_sound();
    assert_eq!(again.lines, before.lines, "something was published again");
    // Retention removed most of the received events; those that came since cover every record.
    after.accepted.clear();
    check(&after).assert_sound();
    for gap in gaps(&scene, RECORDS).await? {
        assert_eq!(
            (&gap["cause"], &gap["target"]),
            (&json!("retention"), &json!("accounting/customers")),
            "{gap}"
        );
    }
    Ok(())
}

/// Whether `count` events were received.
async fn received(scene: &EnrichScene, count: usize) -> Result<bool> {
    Ok(scene.ends().await?.values().sum::<i64>() >= count as i64)
}

/// Deletes all records of a topic, as retention does.
async fn forget(scene: &EnrichScene, topic: &str) -> Result<()> {
    let failed = |error: rdkafka::error::KafkaError| Error(format!("delete records of {topic}: {error}"));
    let admin: AdminClient<DefaultClientContext> =
        ClientConfig::new().set("bootstrap.servers", &scene.backend.bootstrap).create().map_err(failed)?;
    let mut ends = TopicPartitionList::new();
    for partition in 0..PARTITIONS {
        ends.add_partition_offset(topic, partition, Offset::End).map_err(failed)?;
    }
    admin.delete_records(&ends, &AdminOptions::new()).await.map_err(failed).map(drop)
}
