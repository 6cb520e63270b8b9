//! Deleted records: a tombstone once the delete is confirmed, and nothing after it.
//!
//! A provider may answer for a deleted record with six bodies. The gate tries two, other ones each day;
//! `TRIBUTARY_TEST_CYCLES_ANSWERS` is their number, `TRIBUTARY_TEST_SEED` selects the first.

use std::time::{SystemTime, UNIX_EPOCH};

use simulator::{
    catalog::{Kind, Resource},
    clock::ticks,
    knobs::{HttpStatus, MissingBody},
    world::Place,
};

use super::checker::check;
use super::evidence::{parked, tombstones};
use super::scene::{CONFIRM, EnrichScene, Options, RECORDS, ours};
use crate::support::dice::seed;
use crate::support::{Result, Shared, cycles};

/// Bodies that the gate tries.
const BODIES: u32 = 2;

crate::tests! {
    real a_confirmed_delete_is_a_tombstone_that_late_events_keep within 240;
    real every_answer_for_a_deleted_record_is_a_tombstone within 600;
    real deletes_beyond_the_daily_limit_wait_and_are_reported within 240;
}

async fn a_confirmed_delete_is_a_tombstone_that_late_events_keep(shared: &'static Shared) -> Result<()> {
    let options = Options { resources: &[Resource::Journals, Resource::Persons], ..Options::default() };
    let scene = EnrichScene::start(shared.into(), "enrich-deleting", options, |_| {}).await?;
    let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    scene.warm().await?;
    let gone: Vec<_> = scene.living().into_iter().filter(|place| place.index == 0).collect();
    let since = scene.provider().gateway.request_count();

    let versions: Vec<u64> = gone.iter().map(|place| scene.act(*place, Kind::Deleted)).collect();
    scene.quiesce().await?;
    let after = scene.evidence().await?;
    let changes = scene.stage.metric(0, "tributary_record_changes_total").await?;
    let last = scene.stage.metric(0, "tributary_last_change_timestamp_seconds").await?;
    let reads: Vec<_> = gone.iter().map(|place| scene.reads_of(*place, since)).collect();
    let repeated = scene.repeat_events().await?;
    scene.quiesce().await?;
    let later = scene.evidence().await?;

    check(&after).assert_sound();
    check(&later).assert_sound();
    assert_eq!(after.tombstones(), gone.len());
    for ((place, version), reads) in gone.iter().zip(versions).zip(&reads) {
        let name = scene.name(*place);
        let fence = later.fences[&name];
        assert_eq!((fence.version, fence.deleted), (version, true), "{name:?}");
        // Read at least twice, the last time after the confirmation time.
        assert!(reads.iter().all(|read| read.status == Some(404)), "{reads:?}");
        let (first, last) = (reads.first().unwrap().at, reads.last().unwrap().at);
        assert!(last.0 - first.0 >= ticks(CONFIRM), "{reads:?}");
    }
    println!("enrich, deleting: {} tombstones; {repeated} events came once more", gone.len());
    assert_eq!(later.lines, after.lines, "something was published again");
    assert_eq!(later.events.len(), 2 * repeated);
    for resource in &scene.resources {
        let resource = ours(*resource);
        let (published, deleted): (Vec<_>, Vec<_>) =
            after.lines[&resource].iter().partition(|line| line.value.is_some());
        for (op, lines) in [("publish", published), ("delete", deleted)] {
            let wanted = [format!("entity=\"{}\"", resource.name()), format!("op=\"{op}\"")];
            let counts = changes.iter().filter(|(labels, _)| wanted.iter().all(|one| labels.contains(one)));
            let counted: f64 = counts.map(|(_, count)| count).sum();
            assert_eq!(counted as usize, lines.len(), "{wanted:?}: {changes:?}");
        }
    }
    assert!(last.iter().any(|(labels, at)| labels.contains("enrichment") && *at > began), "{last:?}");
    Ok(())
}

async fn every_answer_for_a_deleted_record_is_a_tombstone(shared: &'static Shared) -> Result<()> {
    let options = Options { resources: &[Resource::Journals], ..Options::default() };
    let mut scene =
        EnrichScene::start(shared.into(), "enrich-answers", options, |settings| settings.world.others = 8)
            .await?;
    let journals = scene.living();
    scene.update(&journals);
    scene.quiesce().await?;
    let mut left = journals.into_iter();
    let mut deleted = 0;

    let all = MissingBody::ALL;
    let count = (cycles("ANSWERS", BODIES) as usize).min(all.len());
    let first = (seed() % all.len() as u64) as usize * count;
    for body in all.into_iter().cycle().skip(first).take(count) {
        for status in [HttpStatus::NOT_FOUND, HttpStatus::GONE] {
            if status == HttpStatus::NOT_FOUND {
                // No path has answered since the worker started: a known record has to prove that it is served. A worker that stops
                // leaves its group at once; the session of a killed one would have to end first.
                scene.stage.workers[0].stop().await?;
                scene.stage.workers[0].start_again().await?;
                scene.stage.reach(0)?;
                scene.until_taken_over(&[0]).await?;
            }
            scene.provider().turn(|knobs| {
                let records = &mut knobs.reads.records;
                (records.missing_status, records.missing_body) = (status, body);
            });
            scene.act(left.next().unwrap(), Kind::Deleted);
            deleted += 1;
            let what = format!("a tombstone after {} with {body:?}", status.get());
            scene.until(&what, async || Ok(tombstones(&scene).await? == deleted)).await?;
        }
    }
    scene.quiesce().await?;
    let evidence = scene.evidence().await?;

    println!("enrich, answers: {deleted} kinds of answer, {} tombstones", evidence.tombstones());
    assert_eq!((deleted, evidence.tombstones()), (2 * count, 2 * count));
    evidence.assert_clean();
    Ok(())
}

async fn deletes_beyond_the_daily_limit_wait_and_are_reported(shared: &'static Shared) -> Result<()> {
    const BRAKED: &[(&str, &str)] = &[("tombstones.brake.count", "1"), ("tombstones.brake.percent", "0")];
    let resources = &[Resource::Journals, Resource::Customers];
    let options = Options { resources, settings: BRAKED, ..Options::default() };
    let scene =
        EnrichScene::start(shared.into(), "enrich-brake", options, |settings| settings.world.others = 5)
            .await?;
    let living = scene.living();
    scene.update(&living);
    scene.quiesce().await?;

    // All journals of one company, which are in one shard: the limit lets one of them be deleted.
    let is_one = |place: &Place| (place.resource, place.company) == (Resource::Journals, Some(0));
    let (gone, others): (Vec<Place>, Vec<Place>) = living.iter().partition(|place| is_one(place));
    for place in &gone {
        scene.act(*place, Kind::Deleted);
    }
    scene.update(&others);
    let mut reported = 0.0;
    scene
        .until("all but one braked and reported", async || {
            let braked = parked(&scene).await?.values().filter(|one| one["cause"] == "braked").count();
            let counted = scene.stage.metric(0, "tributary_tombstones_braked_total").await?;
            reported = counted.iter().map(|(_, count)| count).sum();
            Ok(braked == gone.len() - 1 && reported >= braked as f64)
        })
        .await?;
    let during = tombstones(&scene).await?;
    // A person raises the limit.
    scene.stage.configure(RECORDS, &scene.fetching(&[])).await?;
    scene.quiesce().await?;
    let after = scene.evidence().await?;

    println!(
        "enrich, brake: {during} of {} deleted before the limit was raised; reported {reported} times",
        gone.len()
    );
    assert!(gone.len() > 2, "{}", gone.len());
    assert_eq!(during, 1);
    assert_eq!(after.tombstones(), gone.len());
    after.assert_clean();
    Ok(())
}
