//! Changes of the declaration: a new secret, the removal of all subscriptions, and their return.

use model::{Fingerprint, Subscription, SubscriptionPhase};
use simulator::accounting::WebhookState;
use tributary::state::subscriptions::SubscriptionState;

use super::scene::{SECRET, SubscriptionScene, active};
use crate::support::{Result, Shared};

crate::tests! {
    real a_new_secret_adds_a_subscription_before_it_removes_the_old within 240;
    real subscriptions_are_removed_and_recreated_on_request within 240;
}

const RESOURCES: (&str, &str) = ("accounting.resources", "customers,accounts");

async fn a_new_secret_adds_a_subscription_before_it_removes_the_old(shared: &'static Shared) -> Result<()> {
    let scene = SubscriptionScene::start(shared, "subs-rotate", 1, |_| {}).await?;
    scene.connect(&[RESOURCES]).await?;
    let ledger = scene.ledger().await?;
    ledger.until(&scene, "both active", |ledger| active(ledger).len() == 2).await?;
    let first = scene.webhooks();

    let second = "fedcba9876543210-second";
    let rotated = [RESOURCES, ("accounting.secret", second), ("accounting.secret.previous", SECRET)];
    scene.configure(&rotated).await?;
    let is_rotated = |ledger: &SubscriptionState| {
        let living: Vec<_> = ledger.subscriptions.values().filter(|one| one.phase.may_live()).collect();
        living.iter().all(|one| one.registration.fingerprint == Fingerprint::of(second))
            && active(ledger).len() == 2
    };
    let after = ledger.until(&scene, "rotated", is_rotated).await?;

    // There was always a subscription: the first ended after the second was active.
    let ended = |one: &&Subscription| one.phase == SubscriptionPhase::Ended && one.id.is_some();
    for one in after.subscriptions.values().filter(ended) {
        let next = after.living(one.target).next().unwrap();
        assert!(next.times.active_since.unwrap() <= one.since, "{one:?} ended before {next:?}");
    }
    assert!(after.gaps.is_empty(), "{:?}", after.gaps);
    let second = scene.webhooks();
    assert_eq!(second.len(), 2);
    assert!(second.iter().all(|one| one.state == WebhookState::Active), "{second:?}");
    assert!(second.iter().all(|one| first.iter().all(|before| before.id != one.id)), "{second:?}");
    Ok(())
}

async fn subscriptions_are_removed_and_recreated_on_request(shared: &'static Shared) -> Result<()> {
    let scene = SubscriptionScene::start(shared, "subs-wish", 1, |_| {}).await?;
    scene.connect(&[RESOURCES]).await?;
    let ledger = scene.ledger().await?;
    ledger.until(&scene, "both active", |ledger| active(ledger).len() == 2).await?;
    let is_done = |number| {
        move |ledger: &SubscriptionState| ledger.requests.done.is_some_and(|done| done.number == number)
    };

    ledger.command(1, true).await;
    ledger.until(&scene, "removed", is_done(1)).await?;
    let removed = scene.webhooks();
    ledger.command(2, false).await;
    let again = ledger.until(&scene, "created again", is_done(2)).await?;

    assert!(removed.is_empty(), "{removed:?}");
    assert_eq!((scene.webhooks().len(), active(&again).len()), (2, 2));
    Ok(())
}
