//! Webhooks of the accounting family: management, states, envelopes, signatures.

mod answers;
mod envelopes;
mod family;
mod knobs;
mod refusals;
mod states;

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use simulator::{
    SimulatedProvider, Simulator,
    catalog::{Kind, Resource},
    control::{RecordTruth, records},
    deliveries::{End, JournalEntry},
    knobs::{Knobs, ReceiverUrls},
    settings::Settings,
    world::{RecordState, WorldChange},
};

use super::{Answer, Client, receiver::Receiver, start};
use crate::support::harness::Test;

pub(crate) fn tests() -> Vec<Test> {
    let parts = [
        answers::tests(),
        envelopes::tests(),
        family::tests(),
        knobs::tests(),
        refusals::tests(),
        states::tests(),
    ];
    parts.into_iter().flatten().collect()
}

/// The prefix of customers.
pub(crate) const CUSTOMERS: &str = "/accounting/api/customers";
/// The secret of webhooks, unless a test sets another.
pub(crate) const SECRET: &str = "señal de prueba";

/// A simulator whose receivers may use plain HTTP on any port, and a client for webhook management.
pub(crate) struct Stage {
    pub(crate) simulator: Simulator,
    /// With `context: none`.
    pub(crate) client: Client,
    /// For `/_control`: without key, token and context.
    pub(crate) control: Client,
}

impl Stage {
    /// Starts it with two short retries and these knobs.
    pub(crate) async fn start(turn: impl FnOnce(&mut Knobs)) -> Self {
        Self::with(|settings| turn(&mut settings.knobs)).await
    }

    /// The same with these settings.
    pub(crate) async fn with(adjust: impl FnOnce(&mut Settings)) -> Self {
        let simulator = start(|settings| {
            settings.knobs.delivery.receivers = ReceiverUrls::Any;
            settings.knobs.accounting.retries = vec![1, 1];
            adjust(settings);
        })
        .await;
        let client = Client::accounting(&simulator).context("none");
        let control = Client { key: None, authorization: None, context: None, ..client.clone() };
        Self { simulator, client, control }
    }

    /// Starts it with these knobs and a receiver that accepts everything.
    pub(crate) async fn accepting(turn: impl FnOnce(&mut Knobs)) -> (Self, Receiver) {
        let receiver = Receiver::accepting().await;
        (Self::start(turn).await, receiver)
    }

    /// The same, and its active webhook of customers.
    pub(crate) async fn subscribed() -> (Self, Receiver, String) {
        let (stage, mut receiver) = Self::accepting(|_| {}).await;
        let id = stage.active(CUSTOMERS, &mut receiver).await;
        (stage, receiver, id)
    }

    pub(crate) fn provider(&self) -> &Arc<SimulatedProvider> {
        self.simulator.provider()
    }

    pub(crate) fn turn(&self, change: impl FnOnce(&mut Knobs)) {
        self.provider().turn(change);
    }

    /// Waits until nothing is left to deliver.
    pub(crate) async fn idle(&self) {
        let idle = tokio::time::timeout(Duration::from_secs(20), self.provider().deliveries.idle());
        idle.await.expect("deliveries end");
    }

    /// A subscription to every event of a resource.
    pub(crate) async fn subscription(&self, prefix: &str, url: &str) -> Value {
        let events = self.client.get(&format!("{prefix}/webhooks/events")).await.ok();
        json!({ "thirdPartyApplicationName": "tests", "url": url, "secret": SECRET, "eventTypes": events })
    }

    pub(crate) async fn post(&self, prefix: &str, operation: &str, body: &Value) -> Answer {
        self.client.post(&format!("{prefix}/webhooks/{operation}"), body).await
    }

    /// Subscribes to every event of a resource and returns the webhook's id.
    pub(crate) async fn subscribe(&self, prefix: &str, url: &str) -> String {
        let body = self.subscription(prefix, url).await;
        id(&self.post(prefix, "subscribe", &body).await.ok())
    }

    /// The same, and waits until the webhook is active.
    pub(crate) async fn active(&self, prefix: &str, receiver: &mut Receiver) -> String {
        let id = self.subscribe(prefix, &receiver.url("/hook")).await;
        assert_eq!(receiver.next().await.event(), "Acknowledge");
        self.idle().await;
        assert_eq!(self.flags(prefix, &id).await, (true, false));
        id
    }

    pub(crate) async fn record(&self, prefix: &str, id: &str) -> Value {
        self.client.get(&format!("{prefix}/webhooks/{id}")).await.ok()
    }

    /// `isActive` and `isDeleted`.
    pub(crate) async fn flags(&self, prefix: &str, id: &str) -> (bool, bool) {
        let record = self.record(prefix, id).await;
        (record["isActive"].as_bool().unwrap(), record["isDeleted"].as_bool().unwrap())
    }

    pub(crate) async fn switch(&self, prefix: &str, id: &str, enable: bool) -> Answer {
        let body = json!({ "webhookId": id, "enable": enable });
        self.client.put(&format!("{prefix}/webhooks/status/{id}"), &body).await
    }

    pub(crate) async fn change(&self, prefix: &str, id: &str, url: &str) -> Answer {
        let body = json!({ "webhookId": id, "url": url });
        self.client.put(&format!("{prefix}/webhooks/change/{id}"), &body).await
    }

    pub(crate) async fn delete(&self, prefix: &str, id: &str) -> Answer {
        self.client.delete(&format!("{prefix}/webhooks/delete/{id}")).await
    }

    /// The answers of all operations on one webhook: read, status, change, delete.
    pub(crate) async fn operations(&self, prefix: &str, id: &str) -> [Answer; 4] {
        [
            self.client.get(&format!("{prefix}/webhooks/{id}")).await,
            self.switch(prefix, id, false).await,
            self.change(prefix, id, "http://127.0.0.1:9/new").await,
            self.delete(prefix, id).await,
        ]
    }

    /// Correlation ids of all readable companies.
    pub(crate) fn companies(&self) -> Vec<String> {
        let found = records(self.provider(), Resource::Companies);
        found.into_iter().filter(|company| company.readable).map(|company| company.id).collect()
    }

    /// Creates a record of a resource, or changes the first enabled one; returns its state after the change.
    pub(crate) fn happen(&self, resource: &str, kind: &str) -> RecordTruth {
        self.happen_in(None, resource, kind)
    }

    /// The same in one company.
    pub(crate) fn happen_in(&self, company: Option<&str>, resource: &str, kind: &str) -> RecordTruth {
        let named: Resource = serde_json::from_value(resource.into()).unwrap();
        let fits = |record: &RecordTruth| {
            record.readable
                && record.state == RecordState::Enabled
                && company.is_none_or(|company| record.company.as_deref() == Some(company))
        };
        let first = records(self.provider(), named).into_iter().find(fits).unwrap();
        let kind: Kind = serde_json::from_value(kind.into()).unwrap();
        let id = self.provider().change(|world, clock| {
            let (place, _) = world.find(named, &first.id).unwrap();
            let change = match kind {
                Kind::Created => world.create(named, place.company, clock),
                kind => world.act(place, kind, clock),
            };
            let change = change.unwrap();
            (world.id(change.place), vec![WorldChange::Record(change)])
        });
        records(self.provider(), named).into_iter().find(|record| record.id == id).unwrap()
    }

    /// The journal of deliveries.
    pub(crate) fn entries(&self) -> Vec<JournalEntry> {
        self.provider().deliveries.entries(0, usize::MAX).into_iter().map(|(_, entry)| entry).collect()
    }

    /// Event and end of each delivery in the journal.
    pub(crate) fn ends(&self) -> Vec<(String, Option<End>)> {
        let entries = self.entries().into_iter();
        entries.map(|entry| (last_part(&entry.about.event), entry.end)).collect()
    }
}

/// `webhookId` of an operation result that worked.
#[track_caller]
pub(crate) fn id(result: &Value) -> String {
    result["webhookId"].as_str().unwrap_or_else(|| panic!("{result}")).to_owned()
}

/// The event type in a semantic name.
pub(crate) fn last_part(semantic_name: &str) -> String {
    semantic_name.rsplit('.').next().unwrap_or_default().to_owned()
}

/// Asserts a successful operation result.
#[track_caller]
pub(crate) fn assert_done(answer: &Answer, state: i64, id: &str) {
    assert_eq!(answer.ok(), json!({ "responseState": state, "webhookId": id, "errors": [] }));
}

/// Asserts a failed operation result with the default status and state.
#[track_caller]
pub(crate) fn assert_refused(answer: &Answer, about: &str) {
    assert_eq!(answer.status, 422, "{about}: {answer:?}");
    let result = answer.json();
    assert_eq!(result["responseState"], 0, "{about}: {result}");
    assert!(super::receiver::is_guid(&result["webhookId"]), "{about}: {result}");
    assert!(result["errors"].as_array().is_some_and(|errors| !errors.is_empty()), "{about}: {result}");
}
