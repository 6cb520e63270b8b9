//! Webhooks of the accounting family: management, states, events.
//!
//! ```text
//! subscribe, change ──▶ awaiting contract ──▶ Acknowledge ──▶ 200 ──▶ active ◀──▶ disabled
//! a change of the world ──▶ announce ──▶ active: envelope, signature ──▶ deliveries
//!                                    └─▶ awaiting or disabled: noted as missed
//! ```
//!
//! - A webhook is in exactly one [`WebhookState`]. Only rows of the document's table are transitions; without
//!   `strictTransitions`, also those a generous provider might allow.
//! - Ids follow from the seed and a counter: the same calls in the same order give the same bytes.
//! - Locks are taken in the order world, webhooks, deliveries.
//!
//! A request that fails changes nothing and returns an operation result with the reasons; an unknown webhook gets 404. When the
//! last retry of an event fails, its webhook is disabled.

use std::sync::Arc;

use axum::http::HeaderName;
use parking_lot::Mutex;
use serde::Serialize;

use super::{
    catalog::{Kind, Resource},
    core::Core,
    deliveries::{About, Deliveries, DeliveryBody, DeliveryOrder, Family, Purpose, hash, signature},
    knobs::FailedAcknowledge,
    random::{Guid, mix},
    world::{Place, RecordChange, World},
};

mod envelope;
mod operations;
mod registry;
mod request;
mod routes;
mod webhook;

pub(super) use routes::router;

use envelope::{EventDescriptor, NotificationEnvelope, PartitionInformation};
use registry::WebhookRegistry;
use webhook::StoredWebhook;

const SIGNATURE: HeaderName = HeaderName::from_static("svc-webhook-signature");

/// Random streams of GUIDs.
mod purpose {
    pub(super) const WEBHOOK: u64 = 0x6163_0001;
    pub(super) const OUTGOING: u64 = 0x6163_0002;
    /// One per change of the world, shared by all webhooks.
    pub(super) const CONVERSATION: u64 = 0x6163_0003;
    /// For deliveries without a change, one each.
    pub(super) const OWN_CONVERSATION: u64 = 0x6163_0004;
    pub(super) const PROCESS: u64 = 0x6163_0005;
    pub(super) const USER: u64 = 0x6163_0006;
    pub(super) const AUTHOR: u64 = 0x6163_0007;
}

/// Every webhook; at the limit the oldest ended ones are dropped.
#[derive(Debug)]
pub struct WebhookService {
    core: Arc<Core>,
    deliveries: Arc<Deliveries>,
    tenant: Arc<str>,
    registry: Mutex<WebhookRegistry>,
}

/// The state of a webhook, for tests.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WebhookTruth {
    /// Its id.
    pub id: Guid,
    /// Its resource.
    pub resource: Resource,
    /// Receiver address.
    pub url: String,
    /// `thirdPartyApplicationName`.
    pub application: String,
    /// State.
    pub state: WebhookState,
    /// Semantic names.
    pub events: Vec<String>,
    /// Its last state transitions, oldest first.
    pub turns: Vec<WebhookTransition>,
}

/// A transition into a state.
#[derive(Debug, Clone, Serialize)]
pub struct WebhookTransition {
    /// By the provider's clock.
    pub at: String,
    /// The state.
    pub state: WebhookState,
}

/// The states of the document's table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum WebhookState {
    /// The Acknowledge has not been accepted.
    AwaitingContract,
    /// Events are delivered.
    Active,
    /// Disabled by the caller or after failed deliveries.
    Disabled,
    /// Ended by unsubscribe.
    Unsubscribed,
    /// Ended by delete.
    Deleted,
}

impl WebhookService {
    pub(super) fn new(core: &Arc<Core>, deliveries: &Arc<Deliveries>) -> Self {
        let settings = &core.settings;
        Self {
            core: Arc::clone(core),
            deliveries: Arc::clone(deliveries),
            tenant: settings.tenant.as_str().into(),
            registry: Mutex::new(WebhookRegistry::default()),
        }
    }

    /// Sends a change to its webhooks, in the order of their creation. For a webhook that is not active the journal gets a missed
    /// delivery; an ended one gets none.
    pub(super) fn announce(&self, world: &World, change: &RecordChange) {
        let Place { resource, company, .. } = change.place;
        let mut registry = self.registry.lock();
        let concerned = registry.concerned(resource, change.kind);
        if concerned.is_empty() {
            return;
        }
        let event = EventDescriptor::of(resource, change.kind);
        let record: Arc<str> = world.id(change.place).into();
        let company: Option<Arc<str>> = match resource {
            Resource::Companies => Some(Arc::clone(&record)),
            _ => company.map(|company| world.company_id(company).into()),
        };
        let process = Guid::nth(self.core.seed(), purpose::PROCESS, change.number);
        let json_data = envelope::change_data(change, &record, process);
        let about = About {
            company: company.clone(),
            record: Some(record),
            sequence: (change.kind != Kind::ErrorOccurred).then_some(change.row.sequence),
            ..About::new(&event.semantic_name)
        };
        let mut message = NotificationContent {
            number: 0,
            purpose: Purpose::Event,
            conversation: Guid::nth(self.core.seed(), purpose::CONVERSATION, change.number),
            partition: PartitionInformation {
                company: company.as_deref(),
                user_name: Some(self.author(change.number)),
            },
            // With a frozen clock, changes are dated ahead of it.
            timestamp: self.core.clock.now().max(change.row.changed),
            json_data: &json_data,
        };
        for id in concerned {
            if registry.get(id).is_some_and(|webhook| webhook.state != WebhookState::Active) {
                self.deliveries.missed(Family::Accounting, id, about.clone());
                continue;
            }
            message.number = registry.next_outgoing();
            if let Some(webhook) = registry.get(id) {
                let order = self.order(webhook, &event, &message, about.clone());
                self.deliveries.send(order);
            }
        }
    }

    /// A delivery to this address was accepted or given up. It changes nothing if the webhook has moved since.
    pub(super) fn ended(&self, webhook: Guid, purpose: Purpose, url: &str, accepted: bool) {
        if purpose == Purpose::Event && accepted {
            return;
        }
        let mut registry = self.registry.lock();
        let Some(found) = registry.get_mut(webhook).filter(|found| found.wants(purpose, url)) else { return };
        match (purpose, accepted) {
            (Purpose::Acknowledge, true) => found.enter(WebhookState::Active, self.core.clock.now()),
            (Purpose::Event, _) => found.enter(WebhookState::Disabled, self.core.clock.now()),
            (Purpose::Acknowledge, false) => match self.core.knobs().accounting.failed_acknowledge {
                FailedAcknowledge::StaysAwaiting => {}
                FailedAcknowledge::Deleted => found.delete(self.core.clock.now()),
            },
        }
    }

    /// Whether a delivery is still wanted; its webhook may have been disabled, deleted or moved.
    pub(super) fn wants(&self, webhook: Guid, purpose: Purpose, url: &str) -> bool {
        self.registry.lock().get(webhook).is_some_and(|found| found.wants(purpose, url))
    }

    /// Every webhook, in the order of creation.
    pub fn webhooks(&self) -> Vec<WebhookTruth> {
        self.registry.lock().webhooks.iter().map(StoredWebhook::truth).collect()
    }

    /// Disables an active webhook, as the provider does after failed deliveries. Returns whether it was active.
    pub fn disable(&self, webhook: Guid) -> bool {
        let mut registry = self.registry.lock();
        let active = registry.get_mut(webhook).filter(|found| found.state == WebhookState::Active);
        active.map(|found| found.enter(WebhookState::Disabled, self.core.clock.now())).is_some()
    }

    /// The Acknowledge for a webhook that awaits its contract.
    fn acknowledge(&self, registry: &mut WebhookRegistry, webhook: Guid) -> Option<DeliveryOrder> {
        let number = registry.next_outgoing();
        let webhook = registry.get(webhook)?;
        let event = EventDescriptor::new(webhook.resource, "Acknowledge".to_owned());
        let message = NotificationContent {
            number,
            purpose: Purpose::Acknowledge,
            conversation: Guid::nth(self.core.seed(), purpose::OWN_CONVERSATION, number),
            partition: PartitionInformation::default(),
            timestamp: self.core.clock.now(),
            json_data: envelope::ACKNOWLEDGE_DATA,
        };
        Some(self.order(webhook, &event, &message, About::new(&event.semantic_name)))
    }

    /// A signed delivery to a webhook.
    fn order(
        &self,
        webhook: &StoredWebhook,
        event: &EventDescriptor,
        message: &NotificationContent<'_>,
        about: About,
    ) -> DeliveryOrder {
        let knobs = self.core.knobs();
        let outgoing = Guid::nth(self.core.seed(), purpose::OUTGOING, message.number);
        let envelope = NotificationEnvelope {
            webhook_id: webhook.id,
            outgoing_id: outgoing,
            conversation_id: message.conversation,
            tenant_id: &self.tenant,
            extra_partition_information: message.partition,
            event_type: event,
            timestamp: envelope::timestamp(message.timestamp, &knobs.accounting),
            json_data: message.json_data,
            user_identifier: webhook.user,
        };
        // Text and numbers always serialize.
        let body = serde_json::to_vec(&envelope).unwrap_or_default();
        let signature = Some(signature(&webhook.key, &body));
        let purpose = message.purpose;
        // An Acknowledge has its own lane: it does not wait for events or for one to a former url.
        let lane = match purpose {
            Purpose::Acknowledge => !hash(webhook.url.as_str().as_bytes()),
            Purpose::Event => hash(about.company.as_deref().unwrap_or_default().as_bytes()),
        };
        DeliveryOrder {
            family: Family::Accounting,
            webhook: webhook.id,
            purpose,
            url: webhook.url.clone(),
            body: DeliveryBody::Same(body.into(), signature),
            signature_header: Some(SIGNATURE),
            lane: mix(webhook.lane ^ mix(lane)),
            retries: knobs.accounting.retries.as_slice().into(),
            gone_ends: false,
            about: About { outgoing: Some(outgoing), ..about },
        }
    }

    /// `UserName` of a change.
    fn author(&self, change: u64) -> &'static str {
        /// Some are not ASCII, which reveals signatures over the wrong bytes.
        const NAMES: [&str; 4] = ["Ana García", "Jordi Puig", "Iñaki Etxeberria", "Olga O'Neill"];
        NAMES[mix(self.core.seed() ^ mix(change ^ purpose::AUTHOR)) as usize % NAMES.len()]
    }
}

/// The content of a notification, the same for every webhook.
#[derive(Debug)]
struct NotificationContent<'a> {
    /// Number of its `OutgoingId`.
    number: u64,
    purpose: Purpose,
    conversation: Guid,
    partition: PartitionInformation<'a>,
    timestamp: super::clock::Ticks,
    json_data: &'a str,
}
