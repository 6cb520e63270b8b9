//! Three workers under load, one of which is killed and restarted in each cycle: the shards move, and no key has two writers.
//!
//! The writer of a record is not visible from outside; two writers would show as a repeated version, or as one that goes back.
//! `TRIBUTARY_TEST_CYCLES_CROWD` is the number of kills.

use simulator::catalog::Resource;

use super::load::Mix;
use super::scene::{EnrichScene, Options};
use crate::support::dice::seed;
use crate::support::{Result, Shared, cycles};

/// Kills of the gate: one worker dies, the others take over, and it comes back.
const CYCLES: u32 = 1;
const WORKERS: usize = 3;
/// Changes a second: as many as a debug build manages, and the requirement of a release build.
const RATE: f64 = if cfg!(debug_assertions) { 40.0 } else { 300.0 };

crate::tests! {
    real no_key_has_two_writers_while_workers_come_and_go_under_load limit (180 + 30 * u64::from(cycles("CROWD", CYCLES)));
}

async fn no_key_has_two_writers_while_workers_come_and_go_under_load(shared: &'static Shared) -> Result<()> {
    let resources = [Resource::Customers, Resource::Accounts, Resource::Journals, Resource::Persons];
    let options = Options { workers: WORKERS, resources: &resources, ..Options::default() };
    let mut scene = EnrichScene::start(shared.into(), "enrich-crowd", options, |settings| {
        settings.world.companies = 12;
    })
    .await?;
    scene.warm().await?;

    let load = scene.load(RATE, Mix::All, seed());
    for cycle in 0..cycles("CROWD", CYCLES) as usize {
        let dies = cycle % WORKERS;
        let others: Vec<usize> = (0..WORKERS).filter(|worker| *worker != dies).collect();
        scene.stage.reach(others[0])?;
        scene.stage.workers[dies].kill();
        scene.until_taken_over(&others).await?;
        scene.stage.workers[dies].start_again().await?;
    }
    let changes = load.stop();
    scene.quiesce().await?;
    let verdict = scene.verdict().await?;

    println!("enrich, crowd: {} kills, {changes} changes; {verdict}", cycles("CROWD", CYCLES));
    verdict.assert_sound();
    assert_eq!(verdict.letters, 0, "there are dead letters");
    assert!(changes > RATE as u64, "there was no load: {changes}");
    Ok(())
}
