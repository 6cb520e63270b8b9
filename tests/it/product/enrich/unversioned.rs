//! Records without version and id: each is published with those of its event, and no stale read stays.

use std::collections::BTreeMap;

use model::{AccountingResource, RunKind, SchemaKind};
use simulator::{catalog::Resource, knobs::LeftOut, world::Place};

use super::evidence::{letters, lines, parked};
use super::scene::{EnrichScene, Options, ours};
use crate::support::{Result, Shared};

crate::tests! {
    real records_without_version_or_id_arrive_and_none_stays_stale within 600;
    real an_unversioned_record_is_republished_only_if_it_changed within 240;
}

/// Resources whose members the provider does not document.
fn undocumented() -> Vec<Resource> {
    Resource::ALL.into_iter().filter(|one| ours(*one).schema() == SchemaKind::Record).collect()
}

async fn records_without_version_or_id_arrive_and_none_stays_stale(shared: &'static Shared) -> Result<()> {
    let resources = undocumented();
    assert_eq!(resources.len(), 16);
    let options = Options { resources: &resources, ..Options::default() };
    let scene = EnrichScene::start(shared.into(), "enrich-unversioned", options, |settings| {
        settings.world.others = 2;
        let records = &mut settings.knobs.reads.records;
        records.without_id = resources.iter().copied().collect();
        records.without_sequence = resources.iter().copied().collect();
    })
    .await?;
    let living = scene.living();

    for (round, left_out) in LeftOut::ALL.into_iter().enumerate() {
        scene.provider().turn(|knobs| {
            knobs.reads.records.left_out = left_out;
            // Half of the reads come from a replica that lags by less than the time until a record is read again.
            (knobs.reads.replica_lag, knobs.reads.replica_share) = (if round == 0 { 0 } else { 300 }, 0.5);
        });
        scene.update(&living);
        scene.quiesce().await?;
        scene.calm();
        let published = published(&scene).await?;

        assert_eq!(letters(&scene).await?, [], "{left_out:?}");
        for place in &living {
            let (versions, last) = &published[&scene.name(*place)];
            let id = scene.id(*place);
            let truth = scene.provider().world().find(place.resource, &id).unwrap().1;
            assert!(versions.is_sorted(), "{place:?}: {versions:?}");
            assert_eq!(versions.last(), Some(&truth.sequence), "{place:?} {left_out:?}");
            assert_eq!(Some(last), shown(&scene, *place).as_ref(), "{place:?} {left_out:?}");
        }
        println!(
            "enrich, unversioned: {left_out:?}, {} records of {} keys",
            total(&published),
            published.len()
        );
    }

    // Repeated events change nothing.
    let before = total(&published(&scene).await?);
    scene.repeat_events().await?;
    scene.quiesce().await?;
    assert_eq!(total(&published(&scene).await?), before, "an older event was published");
    Ok(())
}

async fn an_unversioned_record_is_republished_only_if_it_changed(shared: &'static Shared) -> Result<()> {
    let resources = [Resource::Journals];
    let options = Options { resources: &resources, ..Options::default() };
    let scene = EnrichScene::start(shared.into(), "enrich-unversioned-known", options, |settings| {
        settings.world.others = 3;
        settings.knobs.reads.records.without_sequence = resources.into();
    })
    .await?;
    let living = scene.living();
    scene.update(&living);
    scene.quiesce().await?;
    let first = published(&scene).await?;

    // Read again without an event: the same content is a duplicate.
    let known = [AccountingResource::Journals];
    scene.ask_for_all("same", RunKind::Repair, &[], &known).await?;
    scene.until_over("same").await?;
    assert_eq!(published(&scene).await?, first);

    // A change without an event.
    scene.provider().turn(|knobs| knobs.delivery.lose = 1.0);
    scene.update(&living[..1]);
    scene.settle().await?;
    scene.calm();
    scene.ask_for_all("changed", RunKind::Repair, &[], &known).await?;
    scene.until_over("changed").await?;
    scene.until("nothing parked", async || Ok(parked(&scene).await?.is_empty())).await?;
    let second = published(&scene).await?;

    assert_eq!(total(&second), total(&first) + 1);
    let (versions, last) = &second[&scene.name(living[0])];
    assert_eq!(versions.len(), 2);
    assert_eq!(versions[0], versions[1], "a version was invented");
    assert_eq!(Some(last), shown(&scene, living[0]).as_ref());
    assert_eq!(letters(&scene).await?, []);
    Ok(())
}

type PublishedVersions = BTreeMap<super::checker::RecordName, (Vec<u64>, serde_json::Value)>;

/// The versions of each key in log order, and its last value.
async fn published(scene: &EnrichScene) -> Result<PublishedVersions> {
    let mut found = PublishedVersions::new();
    for (resource, lines) in lines(scene).await? {
        for line in lines {
            let (versions, last) = found.entry((resource, line.key)).or_default();
            versions.extend(line.version);
            *last = line.value.unwrap_or_default();
        }
    }
    Ok(found)
}

fn total(published: &PublishedVersions) -> usize {
    published.values().map(|(versions, _)| versions.len()).sum()
}

/// A record as a read by id shows it now.
fn shown(scene: &EnrichScene, place: Place) -> Option<serde_json::Value> {
    let provider = scene.provider();
    let shape = simulator::reads::Shape::record(&provider.knobs().reads, place.resource);
    let world = provider.world();
    let id = world.id(place);
    let (place, row) = world.find(place.resource, &id)?;
    let json = simulator::reads::record_json(&world.naming(), place, &row, shape);
    serde_json::from_slice(&json).ok()
}
