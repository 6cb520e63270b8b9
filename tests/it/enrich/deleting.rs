//! Records that are deleted: a tombstone once that is certain, and never anything after it.

use tributary::simulator::catalog::{Kind, Resource};
use tributary::simulator::clock::ticks;

use super::checker::check;
use super::scene::{CONFIRM, Options, Scene};
use crate::support::{Result, Shared};

crate::tests! {
    real a_deleted_record_is_a_tombstone_after_its_confirmation_and_nothing_that_was_told_before_brings_it_back within 240;
}

async fn a_deleted_record_is_a_tombstone_after_its_confirmation_and_nothing_that_was_told_before_brings_it_back(
    shared: &'static Shared,
) -> Result<()> {
    let options = Options { resources: &[Resource::Journals, Resource::Persons], ..Options::default() };
    let scene = Scene::start(shared.into(), "enrich-deleting", options, |_| {}).await?;
    scene.warm().await?;
    let gone: Vec<_> = scene.living().into_iter().filter(|place| place.index == 0).collect();
    let since = scene.provider().gateway.request_count();

    let versions: Vec<u64> = gone.iter().map(|place| scene.act(*place, Kind::Deleted)).collect();
    scene.quiesce().await?;
    let after = scene.evidence().await?;
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
        // Asked twice at least, and once when it had been gone for long enough.
        assert!(reads.iter().all(|read| read.status == Some(404)), "{reads:?}");
        let (first, last) = (reads.first().unwrap().at, reads.last().unwrap().at);
        assert!(last.0 - first.0 >= ticks(CONFIRM), "{reads:?}");
    }
    println!("enrich, deleting: {} tombstones; {repeated} events came once more", gone.len());
    assert_eq!(later.lines, after.lines, "something was published again");
    assert_eq!(later.events.len(), 2 * repeated);
    Ok(())
}
