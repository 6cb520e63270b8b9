//! The state directory is lost: the topics are enough to continue.

use std::fs;

use super::checker::check;
use super::scene::{EnrichScene, Options};
use crate::support::{Error, Result, Shared};

crate::tests! {
    real a_lost_state_directory_republishes_nothing_unchanged_or_old within 240;
}

async fn a_lost_state_directory_republishes_nothing_unchanged_or_old(shared: &'static Shared) -> Result<()> {
    let mut scene = EnrichScene::start(shared.into(), "enrich-state", Options::default(), |_| {}).await?;
    let all = scene.living();
    for _ in 0..3 {
        scene.update(&all);
        scene.quiesce().await?;
    }
    let before = scene.evidence().await?;

    scene.stage.workers[0].stop().await?;
    let state = scene.stage.workers[0].state();
    fs::remove_dir_all(&state).map_err(|error| Error(format!("remove {}: {error}", state.display())))?;
    scene.stage.workers[0].start_again().await?;
    scene.stage.reach(0)?;
    scene.until_taken_over(&[0]).await?;
    // Old events come again; without fences all of them would be new.
    let repeated = scene.repeat_events().await?;
    scene.quiesce().await?;
    let silent = scene.evidence().await?;
    let changed: Vec<_> = all.into_iter().filter(|place| place.index == 0).collect();
    scene.update(&changed);
    scene.quiesce().await?;
    let after = scene.evidence().await?;

    println!(
        "enrich, state: {repeated} events came again, {} records changed; {}",
        changed.len(),
        check(&after)
    );
    check(&silent).assert_sound();
    check(&after).assert_sound();
    assert_eq!(silent.lines, before.lines, "an unchanged record was published");
    assert_eq!(after.published(), before.published() + changed.len());
    Ok(())
}
