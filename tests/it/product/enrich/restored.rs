//! A company that the provider restored to a backup: versions repeat, with other contents.

use std::collections::BTreeSet;

use simulator::world::Place;
use tokio::time::sleep;

use super::checker::{Evidence, check};
use super::evidence::lines;
use super::scene::{CONFIRM, EnrichScene, Options};
use crate::support::{Result, Shared};

crate::tests! {
    real a_restored_company_gets_an_epoch_and_matches_the_provider within 240;
}

/// Changes of each record that the restore undoes. More than follow right after, so that no version has two consecutive contents.
const UNDONE: usize = 4;

async fn a_restored_company_gets_an_epoch_and_matches_the_provider(shared: &'static Shared) -> Result<()> {
    let options = Options { settings: &[("epoch.confirm.ms", "1000")], ..Options::default() };
    let scene = EnrichScene::start(shared.into(), "enrich-restored", options, |_| {}).await?;
    let all = scene.living();
    let (restored, others): (Vec<Place>, Vec<Place>) = all.iter().partition(|place| place.company == Some(0));
    scene.update(&all);
    scene.quiesce().await?;
    let backup = scene.provider().clock.latest();
    (0..UNDONE).for_each(|_| scene.update(&all));
    scene.quiesce().await?;
    scene.verdict().await?.assert_sound();

    // A late event of the changes above may have scheduled a check for a restore, which suppresses further checks for this long.
    sleep(CONFIRM).await;
    let undone = scene.provider().change(|world, _| (world.restore(0, backup), Vec::new()));
    // A restore sends no event; the next change of each record shows it.
    scene.update(&restored);
    scene
        .until("every restored record in a new epoch", async || {
            let lines = lines(&scene).await?;
            let raised = lines.values().flatten().filter(|line| line.epoch == Some(1));
            let keys: BTreeSet<&str> = raised.map(|line| &*line.key).collect();
            Ok(keys.len() == restored.len())
        })
        .await?;
    scene.quiesce().await?;
    let again = Evidence { restored: true, ..scene.evidence().await? };
    (0..2).for_each(|_| scene.update(&all));
    scene.quiesce().await?;
    let later = Evidence { restored: true, ..scene.evidence().await? };

    println!("enrich, restored: {undone} records went back; {}", check(&later));
    assert_eq!(undone, restored.len() as u64);
    check(&again).assert_sound();
    check(&later).assert_sound();
    for (places, epoch) in [(&restored, 1), (&others, 0)] {
        for place in places {
            assert_eq!(later.last()[&scene.name(*place)].epoch, Some(epoch), "{place:?}");
        }
    }
    assert_eq!(later.tombstones(), 0);
    Ok(())
}
