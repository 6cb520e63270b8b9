//! Invoicing in the demo: changes at the provider, and a comparison of its signed notifications with the topics, by content.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use model::{
    InvoicingAction, InvoicingEntity, InvoicingEvent, InvoicingHook, InvoicingNotification, SchemaKind, Topic,
};
use simulator::{
    SimulatedProvider,
    catalog::{Action, Entity},
    deliveries::{self, End, Family, JournalEntry, Purpose},
    invoicing::ProviderHook,
    world::WorldChange,
};

use super::system::{DemoSystem, FAST_POLL};
use crate::cli::{Result, poll_until};

/// Entities with hooks, in the types of the worker and of the simulator.
const ENTITIES: [(InvoicingEntity, Entity); 2] =
    [(InvoicingEntity::Customer, Entity::Customer), (InvoicingEntity::SaleInvoice, Entity::SaleInvoice)];
/// One invoicing change for this many changes at the provider, few of which concern the hooks.
const INVOICING_SHARE: f64 = 10.0;
/// Minimum and maximum of these per second.
const RATE_BOUNDS: (f64, f64) = (2.0, 50.0);

/// All declared hooks.
pub(super) fn hooks() -> impl Iterator<Item = InvoicingHook> {
    ENTITIES
        .into_iter()
        .flat_map(|(entity, _)| InvoicingAction::ALL.map(|action| InvoicingHook { entity, action }))
}

/// The value of `invoicing.hooks`.
pub(super) fn declared() -> String {
    let written =
        |hook: InvoicingHook| format!("{}:{}", hook.entity.provider_name(), hook.action.provider_name());
    hooks().map(written).collect::<Vec<_>>().join(",")
}

/// Changes invoices and customers while the rate of all changes is above 0.
pub(super) async fn change(provider: Arc<SimulatedProvider>, mut rate: watch::Receiver<f64>) {
    let pairs = Action::ALL.into_iter().flat_map(|action| ENTITIES.map(|(_, entity)| (entity, action)));
    let pairs: Vec<(Entity, Action)> = pairs.collect();
    for (entity, action) in pairs.into_iter().cycle() {
        // The system owns the sender; stop with it.
        let Ok(all) = rate.wait_for(|rate| *rate > 0.0).await.map(|rate| *rate) else { return };
        provider.change(|world, clock| {
            // Asked again with the world locked, for `DemoSystem::change`.
            let change = (*rate.borrow() > 0.0).then(|| world.act_invoicing(0, entity, action, clock));
            ((), change.flatten().map(WorldChange::Invoicing).into_iter().collect())
        });
        sleep(Duration::from_secs_f64(1.0 / (all / INVOICING_SHARE).clamp(RATE_BOUNDS.0, RATE_BOUNDS.1)))
            .await;
    }
}

/// The result of comparing notifications with topics, by a hash of the body.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct NotificationCheck {
    /// Events by topic.
    pub(super) topics: BTreeMap<String, usize>,
    /// Notifications that were answered 200.
    pub(super) accepted: usize,
    /// Of these, missing in the topics with the sent content and action.
    pub(super) missing: usize,
    /// Events beyond the accepted notification of the same content.
    pub(super) repeated: usize,
    /// Events without a notification.
    pub(super) invented: usize,
}

/// A notification's name, such as `Customer.Created`, and the hash of its body.
type NotificationContent = (String, u64);

impl NotificationCheck {
    pub(super) fn of(entries: &[JournalEntry], events: &[(String, InvoicingEvent)]) -> Self {
        let mut notified = Self::default();
        // By content: times sent, and times answered 200.
        let mut sent: HashMap<NotificationContent, (usize, usize)> = HashMap::new();
        for entry in
            entries.iter().filter(|one| (one.family, one.purpose) == (Family::Invoicing, Purpose::Event))
        {
            let counts = sent.entry((entry.about.event.to_string(), entry.body_hash)).or_default();
            counts.0 += 1;
            counts.1 += usize::from(entry.end == Some(End::Accepted));
        }
        let mut found: HashMap<NotificationContent, usize> = HashMap::new();
        for (topic, event) in events {
            *notified.topics.entry(topic.clone()).or_default() += 1;
            *found.entry(content(event)).or_default() += 1;
        }
        notified.accepted = sent.values().map(|(_, accepted)| accepted).sum();
        for (content, (_, accepted)) in &sent {
            notified.missing += accepted.saturating_sub(found.get(content).copied().unwrap_or(0));
        }
        for (content, count) in &found {
            match sent.get(content) {
                None => notified.invented += count,
                Some((_, accepted)) => notified.repeated += count.saturating_sub(*accepted),
            }
        }
        notified
    }

    /// Whether the topics contain exactly the notifications that were answered 200.
    pub(super) fn is_exact(&self) -> bool {
        self.accepted > 0 && self.missing == 0 && self.invented == 0
    }
}

/// The content of an event, serialized like the provider's notification.
fn content(event: &InvoicingEvent) -> NotificationContent {
    let InvoicingNotification { entity, entity_id, tenant_id, user, changes, .. } = &event.notification;
    let changes = changes.iter().flatten();
    let changes: Vec<Value> =
        changes.map(|change| json!({ "Name": change.name, "Value": change.value })).collect();
    let body = json!({
        "Entity": entity,
        "EntityId": entity_id,
        "TenantId": tenant_id,
        "User": user,
        "Changes": changes,
    });
    let hash = deliveries::hash(&serde_json::to_vec(&body).unwrap_or_default());
    let action = event.action.map(InvoicingAction::provider_name).unwrap_or_default();
    (format!("{}.{action}", entity.as_deref().unwrap_or_default()), hash)
}

impl DemoSystem {
    /// Compares the sent notifications with the topics.
    pub(super) async fn notified(&self, entries: &[JournalEntry]) -> Result<NotificationCheck> {
        let decoder = self.decoder()?;
        let mut events = Vec::new();
        for (entity, _) in ENTITIES {
            for record in self.read(Topic::InvoicingEvents(entity)).await? {
                let value = record.value.unwrap_or_default();
                let decoded = decoder.decode_as(SchemaKind::InvoicingEvent, &value).await;
                events.push((record.topic.to_string(), decoded?.1));
            }
        }
        Ok(NotificationCheck::of(entries, &events))
    }

    /// Deletes a hook at the provider. Returns the seconds until another of the same kind is effective; `None` if there is none to
    /// delete.
    pub(super) async fn lose_a_hook(&self) -> Option<f64> {
        let provider = self.services.simulator.provider();
        let found = || {
            let mut hooks = provider.invoicing.hooks().into_iter().filter(|hook| hook.effective);
            let about = |hook: &ProviderHook| (hook.subject.entity, hook.subject.action);
            hooks.find(|hook| about(hook) == (Entity::Customer, Action::Created))
        };
        let lost = found()?.id;
        let start = Instant::now();
        provider.invoicing.remove(lost);
        poll_until(FAST_POLL, async || found().filter(|hook| hook.id != lost)).await;
        Some(start.elapsed().as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use model::{InvoicingContext, Reception};
    use simulator::{clock::Ticks, deliveries::About, random::Guid};

    use super::*;

    const BODY: &str = r#"{"Entity":"Customer","EntityId":"7","TenantId":"t","User":"a@example.com","Changes":[{"Name":"Name","Value":"Peña & \"Cía\""}]}"#;

    fn sent(body: &str, end: End) -> JournalEntry {
        JournalEntry {
            family: Family::Invoicing,
            webhook: Guid(1),
            purpose: Purpose::Event,
            about: About {
                event: "Customer.Created".into(),
                company: None,
                record: None,
                sequence: None,
                outgoing: None,
            },
            at: Ticks(0),
            // The provider sends members in the order of `serde_json`'s objects.
            body_hash: deliveries::hash(
                &serde_json::from_str::<Value>(body).unwrap().to_string().into_bytes(),
            ),
            attempts: Vec::new(),
            end: Some(end),
        }
    }

    fn published(body: &str, action: InvoicingAction) -> (String, InvoicingEvent) {
        let reception = Reception { connector: "webhooks", received_at: 1 };
        let hook = Some(InvoicingHook { entity: InvoicingEntity::Customer, action });
        let context = InvoicingContext { reception, hook, tenants: &BTreeMap::new() };
        let event = InvoicingEvent::from_json(body.as_bytes(), &context).unwrap().pop().unwrap();
        ("t".to_owned(), event)
    }

    #[test]
    fn a_notification_counts_only_unchanged() {
        let accepted = || sent(BODY, End::Accepted);
        let same = || published(BODY, InvoicingAction::Created);
        let other = BODY.replace("Peña", "Pena");
        for (what, entries, events, counts, is_exact) in [
            ("as sent", vec![accepted()], vec![same()], [1, 0, 0, 0], true),
            ("twice", vec![accepted()], vec![same(), same()], [1, 0, 1, 0], true),
            ("two alike", vec![accepted(), accepted()], vec![same()], [2, 1, 0, 0], false),
            ("lost", vec![accepted()], vec![], [1, 1, 0, 0], false),
            ("given up", vec![accepted(), sent(&other, End::GivenUp)], vec![same()], [1, 0, 0, 0], true),
            (
                "another content",
                vec![accepted()],
                vec![published(&other, InvoicingAction::Created)],
                [1, 1, 0, 1],
                false,
            ),
            (
                "another action",
                vec![accepted()],
                vec![published(BODY, InvoicingAction::Updated)],
                [1, 1, 0, 1],
                false,
            ),
            ("nothing was shown", vec![], vec![], [0, 0, 0, 0], false),
        ] {
            let found = NotificationCheck::of(&entries, &events);

            assert_eq!([found.accepted, found.missing, found.repeated, found.invented], counts, "{what}");
            assert_eq!(found.is_exact(), is_exact, "{what}");
        }
    }

    #[test]
    fn hooks_are_declared_by_provider_names() {
        assert_eq!(hooks().count(), 6);
        assert!(
            declared().starts_with("Customer:Created,Customer:Updated,Customer:Deleted,SaleInvoice:Created")
        );
    }
}
