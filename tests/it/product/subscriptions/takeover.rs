//! Two workers: one maintains the subscriptions, and the other takes over when it dies.

use std::time::Duration;

use model::GapCause;
use simulator::accounting::WebhookState;
use tokio::time::Instant;
use tributary::state::subscriptions::SubscriptionState;

use super::scene::{SubscriptionScene, active};
use crate::support::{Result, Shared, lost};

crate::tests! {
    real a_takeover_keeps_the_ids_and_creates_nothing_twice within 240;
}

/// The default session timeout of a worker, and the time for the takeover after it.
const SESSION: Duration = Duration::from_secs(6);
const TAKEOVER: Duration = Duration::from_secs(5);

async fn a_takeover_keeps_the_ids_and_creates_nothing_twice(shared: &'static Shared) -> Result<()> {
    let scene = SubscriptionScene::start(shared, "subs-takeover", 2, |_| {}).await?;
    scene.connect(&[("accounting.resources", "customers,accounts,suppliers")]).await?;
    let ledger = scene.ledger().await?;
    let before = ledger.until(&scene, "all active", |ledger| active(ledger).len() == 3).await?;
    // Both workers receive deliveries and report them.
    ledger.until(&scene, "reports of both", |ledger| ledger.heard.len() == 2).await?;
    let webhooks = scene.webhooks();
    let dies = scene.runs_on().await?;
    let lives = 1 - dies;

    scene.stage.reach(lives)?;
    scene.stage.workers[dies].kill();
    let killed = Instant::now();
    assert!(scene.stage.simulator.provider().accounting.disable(webhooks[0].id));
    let gap = |ledger: &SubscriptionState| ledger.gaps.values().any(|gap| gap.cause == GapCause::Disabled);
    ledger.until(&scene, "a gap by the other worker", gap).await?;
    let took = lost::promised(killed.into_std());
    let after = ledger
        .until(&scene, "enabled by the other", |ledger| {
            // The gap may be read before the change of its subscription, so ask the provider.
            let is_enabled = scene.webhooks().iter().all(|one| one.state == WebhookState::Active);
            gap(ledger) && active(ledger).len() == 3 && is_enabled
        })
        .await?;

    println!(
        "the other worker opened the gap {took:?} after the kill, and enabled it after {:?}",
        killed.elapsed()
    );
    assert!(took < SESSION + TAKEOVER, "{took:?}");
    let ids = |ledger: &SubscriptionState| {
        ledger.subscriptions.values().filter_map(|one| one.id.clone()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&after), ids(&before));
    let webhooks = scene.webhooks();
    assert_eq!(webhooks.len(), 3);
    assert!(webhooks.iter().all(|one| one.state == WebhookState::Active), "{webhooks:?}");
    Ok(())
}
