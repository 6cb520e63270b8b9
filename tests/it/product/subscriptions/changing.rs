//! What is declared changes: another secret, nothing at all, all of it again.

use model::{Fingerprint, Subscription, SubscriptionPhase};
use simulator::accounting::WebhookState;
use tributary::webhooks::subscriptions::Ledger;

use super::scene::{SECRET, Scene, active};
use crate::support::{Result, Shared};

crate::tests! {
    real another_secret_is_a_second_subscription_and_then_the_end_of_the_first within 240;
    real all_are_removed_when_people_wish_it_and_made_again_when_they_wish_that within 240;
}

const RESOURCES: (&str, &str) = ("accounting.resources", "customers,accounts");

async fn another_secret_is_a_second_subscription_and_then_the_end_of_the_first(
    shared: &'static Shared,
) -> Result<()> {
    let scene = Scene::start(shared, "subs-rotate", 1, |_| {}).await?;
    scene.connect(&[RESOURCES]).await?;
    let ledger = scene.ledger().await?;
    ledger.until(&scene, "both active", |ledger| active(ledger).len() == 2).await?;
    let first = scene.webhooks();

    let second = "fedcba9876543210-second";
    let rotated = [RESOURCES, ("accounting.secret", second), ("accounting.secret.previous", SECRET)];
    scene.configure(&rotated).await?;
    let is_rotated = |ledger: &Ledger| {
        let living: Vec<_> = ledger.subscriptions.values().filter(|one| one.phase.may_live()).collect();
        living.iter().all(|one| one.fingerprint == Fingerprint::of(second)) && active(ledger).len() == 2
    };
    let after = ledger.until(&scene, "rotated", is_rotated).await?;

    // No moment was without one: the first ended after the second was active.
    let ended = |one: &&Subscription| one.phase == SubscriptionPhase::Ended && one.id.is_some();
    for one in after.subscriptions.values().filter(ended) {
        let next = after.living(one.target).next().unwrap();
        assert!(next.active_since.unwrap() <= one.since, "{one:?} ended before {next:?}");
    }
    assert!(after.gaps.is_empty(), "{:?}", after.gaps);
    let standing = scene.webhooks();
    assert_eq!(standing.len(), 2);
    assert!(standing.iter().all(|one| one.state == WebhookState::Active), "{standing:?}");
    assert!(standing.iter().all(|one| first.iter().all(|before| before.id != one.id)), "{standing:?}");
    Ok(())
}

async fn all_are_removed_when_people_wish_it_and_made_again_when_they_wish_that(
    shared: &'static Shared,
) -> Result<()> {
    let scene = Scene::start(shared, "subs-wish", 1, |_| {}).await?;
    scene.connect(&[RESOURCES]).await?;
    let ledger = scene.ledger().await?;
    ledger.until(&scene, "both active", |ledger| active(ledger).len() == 2).await?;
    let is_done = |number| move |ledger: &Ledger| ledger.done.is_some_and(|done| done.number == number);

    ledger.wish(1, true).await;
    ledger.until(&scene, "removed", is_done(1)).await?;
    let removed = scene.webhooks();
    ledger.wish(2, false).await;
    let again = ledger.until(&scene, "made again", is_done(2)).await?;

    assert!(removed.is_empty(), "{removed:?}");
    assert_eq!((scene.webhooks().len(), active(&again).len()), (2, 2));
    Ok(())
}
