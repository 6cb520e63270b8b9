//! The worker dies at each step of a commit: every record is published once, its fence agrees, and offsets resume.
//!
//! Records keep changing, and each worker starts on the disk of the one that died. At the end every event is produced again: a
//! record without its fence would be published twice.

use kafka::partition_of;
use simulator::catalog::Resource;
use tributary::avro::embedded::EmbeddedRegistry;

use super::checker::check;
use super::load::Mix;
use super::scene::{EnrichScene, Options, PARTITIONS};
use crate::support::dice::seed;
use crate::support::stage::Backend;
use crate::support::{Error, Result, breakable};

crate::tests! {
    disturbing no_record_is_published_twice_at_any_failpoint within 240;
}

/// Changes a second.
const RATE: f64 = 20.0;

async fn no_record_is_published_twice_at_any_failpoint() -> Result<()> {
    let broker = breakable::take().await?;
    let registry =
        EmbeddedRegistry::start().await.map_err(|error| Error(format!("start a registry: {error}")))?;
    let backend = Backend { bootstrap: broker.bootstrap(), registry: registry.url().to_string() };
    // Short, so that the restarted worker soon owns the tasks.
    let properties = &[("session.timeout.ms", "1500"), ("heartbeat.interval.ms", "300")];
    let options = Options { resources: &[Resource::Customers], properties, ..Options::default() };
    let mut scene = EnrichScene::start(backend, "enrich-places", options, |settings| {
        // Many, so that the next change seldom repairs a record that a crash spoiled.
        (settings.world.customers, settings.world.others) = (200, 0);
    })
    .await?;
    let (_, key) = scene.name(scene.living()[0]);
    let company = key.split('/').next().unwrap_or_default();
    let shard = partition_of(company.as_bytes(), PARTITIONS);
    let transaction = format!("transaction.tributary-{}-shard-{shard}", scene.prefix);
    let failpoints = [
        // The batch is in the log and not committed. The second batch, so that one is committed before it.
        format!("{transaction}.sent:2"),
        // The batch is committed; the worker has not seen the answer.
        format!("{transaction}.committed"),
        // Its fences are in the local store; its events are not settled.
        "records.kept".to_owned(),
    ];

    let load = scene.load(RATE, Mix::Updates, seed());
    scene.stage.workers[0].kill();
    for failpoint in &failpoints {
        scene.stage.workers[0].start_again_to_die(failpoint).await?;
        scene.stage.reach(0)?;
        let died = scene.stage.workers[0].dead().await;
        died.map_err(|error| Error(format!("{failpoint}: {error}")))?;
    }
    let changes = load.stop();
    scene.stage.workers[0].start_again().await?;
    scene.stage.reach(0)?;
    scene.quiesce().await?;
    let published = scene.evidence().await?.published();
    let repeated = scene.repeat_events().await?;
    scene.quiesce().await?;
    let after = scene.evidence().await?;
    let verdict = check(&after);

    println!(
        "enrich, failpoints: a worker died at {} of them, {changes} changes, {repeated} events produced again; {verdict}",
        failpoints.len()
    );
    verdict.assert_sound();
    assert_eq!(verdict.letters, 0, "there are dead letters");
    assert_eq!(after.published(), published, "an old event published something");
    Ok(())
}
