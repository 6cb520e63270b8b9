//! A new secret and a new address under load: no delivery is refused for its signature, and none is missing.
//!
//! The provider makes `RATE` changes a second, each with a delivery. Its journal shows which changes were delivered; every delivery
//! must be in the topic.

use std::collections::BTreeSet;

use model::{AccountingResource, Fingerprint, Topic, TopicPrefix};
use simulator::{
    deliveries::{End, JournalEntry, Purpose},
    settings::Settings,
};
use tokio::time::timeout;
use tributary::state::subscriptions::SubscriptionState;

use super::scene::{HOST, LIMIT, SECRET, SubscriptionScene, active};
use crate::support::{Error, Result, Shared};

crate::tests! {
    real no_delivery_fails_while_secret_and_address_change_under_load within 300;
}

/// Changes a second: as many as a debug build manages, and ten times that in a release build.
const RATE: f64 = if cfg!(debug_assertions) { 50.0 } else { 500.0 };
const SECOND_SECRET: &str = "fedcba9876543210-second";
/// How long both subscriptions exist: longer than a delivery takes here.
const OVERLAP: (&str, &str) = ("subscriptions.overlap.ms", "5000");

/// Record and sequence of a change.
type ChangeId = (String, u64);

async fn no_delivery_fails_while_secret_and_address_change_under_load(shared: &'static Shared) -> Result<()> {
    // Deliveries to a stopped worker are retried at the other.
    let patient = |settings: &mut Settings| settings.knobs.accounting.retries = vec![200; 100];
    let mut scene = SubscriptionScene::start(shared, "subs-load", 2, patient).await?;
    let resources = ("accounting.resources", "customers");
    scene.connect(&[resources, OVERLAP]).await?;
    let ledger = scene.ledger().await?;
    ledger.until(&scene, "active", |ledger| active(ledger).len() == 1).await?;
    let provider = std::sync::Arc::clone(scene.stage.simulator.provider());

    provider.turn(|knobs| knobs.changes_per_second = RATE);
    let secrets = [("accounting.secret", SECOND_SECRET), ("accounting.secret.previous", SECRET)];
    scene.configure(&[&[resources, OVERLAP], &secrets[..]].concat()).await?;
    let one = |what: fn(&model::Subscription) -> bool| {
        move |ledger: &SubscriptionState| {
            let mut living = ledger.subscriptions.values().filter(|one| one.phase.may_live());
            living.all(what) && active(ledger).len() == 1
        }
    };
    let rotated = one(|one| one.registration.fingerprint == Fingerprint::of(SECOND_SECRET));
    ledger.until(&scene, "rotated", rotated).await?;

    // A worker learns its address when it starts, so they are restarted one after the other.
    scene.rename(&format!("other.{HOST}"))?;
    for (stops, receives) in [(0, 1), (1, 0)] {
        scene.stage.reach(receives)?;
        scene.stage.workers[stops].stop().await?;
        scene.stage.workers[stops].start_again().await?;
    }
    ledger.until(&scene, "moved", one(|one| one.registration.url.contains("other."))).await?;
    provider.turn(|knobs| knobs.changes_per_second = 0.0);
    timeout(LIMIT, provider.deliveries.idle()).await.map_err(|_| Error("deliveries never end".into()))?;

    let entries: Vec<JournalEntry> =
        provider.deliveries.entries(0, usize::MAX).into_iter().map(|(_, entry)| entry).collect();
    let entries: Vec<&JournalEntry> =
        entries.iter().filter(|entry| entry.purpose == Purpose::Event).collect();
    let refused =
        entries.iter().flat_map(|entry| &entry.attempts).filter(|one| one.status == Some(401)).count();
    let change =
        |entry: &&&JournalEntry| Some((entry.about.record.as_deref()?.to_owned(), entry.about.sequence?));
    let all: BTreeSet<ChangeId> = entries.iter().filter_map(|entry| change(&entry)).collect();
    let accepted = entries.iter().filter(|entry| entry.end == Some(End::Accepted));
    let delivered: BTreeSet<ChangeId> = accepted.clone().filter_map(|entry| change(&entry)).collect();
    let ids = published(&scene, shared).await?;
    let outgoing =
        |entry: &&&&JournalEntry| entry.about.outgoing.is_some_and(|id| !ids.contains(&id.to_string()));
    let unpublished = accepted.clone().filter(|entry| outgoing(&entry)).count();
    println!(
        "{} changes, {} deliveries of them accepted, {refused} refused, {} missing, {} in the topic",
        all.len(),
        accepted.count(),
        all.difference(&delivered).count(),
        ids.len()
    );
    let mut ends = std::collections::BTreeMap::<String, usize>::new();
    for entry in entries.iter().filter(|entry| change(entry).is_some_and(|id| !delivered.contains(&id))) {
        *ends.entry(format!("{:?} after {} attempts", entry.end, entry.attempts.len())).or_default() += 1;
    }
    assert!(all.len() as f64 > RATE * 5.0, "there was no load: {}", all.len());
    assert_eq!(refused, 0);
    assert_eq!(all.difference(&delivered).count(), 0, "{ends:?}");
    assert_eq!(unpublished, 0);
    assert!(ledger.now().gaps.is_empty(), "{:?}", ledger.now().gaps);
    Ok(())
}

/// The ids of all deliveries in the topic.
async fn published(scene: &SubscriptionScene, shared: &Shared) -> Result<BTreeSet<String>> {
    let prefix = TopicPrefix::new(&*scene.prefix).map_err(|error| Error(error.to_string()))?;
    let topic = Topic::AccountingEvents(AccountingResource::Customers).name(&prefix);
    let mut found = BTreeSet::new();
    let kafka = kafka::Kafka::plaintext(shared.bootstrap());
    kafka::read_to_end(&kafka, &topic, &[0, 1], LIMIT, |record| {
        let id = record.headers.iter().find(|(name, _)| &**name == "tributary.id");
        found.extend(id.map(|(_, id)| String::from_utf8_lossy(id).into_owned()));
    })
    .await
    .map_err(|error| Error(error.to_string()))?;
    Ok(found)
}
