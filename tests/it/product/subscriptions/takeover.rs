//! Two workers: one keeps the subscriptions, and when it dies the other does.

use std::time::Duration;

use model::GapCause;
use simulator::accounting::WebhookState;
use tokio::time::Instant;
use tributary::webhooks::subscriptions::Ledger;

use super::scene::{Scene, active};
use crate::support::{Result, Shared, lost};

crate::tests! {
    real a_takeover_keeps_the_ids_and_creates_nothing_twice within 240;
}

/// What a worker may be silent for, by default, and what is given beyond.
const SESSION: Duration = Duration::from_secs(6);
const BEYOND: Duration = Duration::from_secs(5);

async fn a_takeover_keeps_the_ids_and_creates_nothing_twice(shared: &'static Shared) -> Result<()> {
    let scene = Scene::start(shared, "subs-takeover", 2, |_| {}).await?;
    scene.connect(&[("accounting.resources", "customers,accounts,suppliers")]).await?;
    let ledger = scene.ledger().await?;
    let before = ledger.until(&scene, "all active", |ledger| active(ledger).len() == 3).await?;
    // Both receive, and both tell.
    ledger.until(&scene, "heard of both", |ledger| ledger.heard.len() == 2).await?;
    let webhooks = scene.webhooks();
    let dies = scene.runs_on().await?;
    let lives = 1 - dies;

    scene.stage.reach(lives)?;
    scene.stage.workers[dies].kill();
    let killed = Instant::now();
    assert!(scene.stage.simulator.provider().accounting.disable(webhooks[0].id));
    let gap = |ledger: &Ledger| ledger.gaps.values().any(|gap| gap.cause == GapCause::Disabled);
    ledger.until(&scene, "noticed by the other", gap).await?;
    let took = lost::promised(killed.into_std());
    let after = ledger
        .until(&scene, "enabled by the other", |ledger| {
            // A gap may be read before what it says of its subscription: the provider knows.
            let is_enabled = scene.webhooks().iter().all(|one| one.state == WebhookState::Active);
            gap(ledger) && active(ledger).len() == 3 && is_enabled
        })
        .await?;

    println!("the other had noticed it {took:?} after the kill, and mended it after {:?}", killed.elapsed());
    assert!(took < SESSION + BEYOND, "{took:?}");
    let ids =
        |ledger: &Ledger| ledger.subscriptions.values().filter_map(|one| one.id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&after), ids(&before));
    let standing = scene.webhooks();
    assert_eq!(standing.len(), 3);
    assert!(standing.iter().all(|one| one.state == WebhookState::Active), "{standing:?}");
    Ok(())
}
