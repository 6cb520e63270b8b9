//! The invoicing API: login, hooks, echo, notifications.

mod echo;
mod hooks;
mod login;
mod notifications;

use std::{collections::BTreeSet, time::Duration};

use serde_json::{Value, json};
use simulator::{
    Simulator,
    deliveries::{End, JournalEntry},
    invoicing::ProviderHook,
    knobs::{Knobs, ReceiverUrls},
    world::WorldChange,
};

use super::{
    Answer, Client, KEY,
    receiver::{Received, Receiver, Reply},
    start,
};
use crate::support::harness::Test;

pub(crate) fn tests() -> Vec<Test> {
    let parts = [echo::tests(), hooks::tests(), login::tests(), notifications::tests()];
    parts.into_iter().flatten().collect()
}

const HOOKS: &str = "/invoicing/api/webhooks";
const LOGIN: &str = "/invoicing/api/users/login";
/// The documented path of receivers.
const INCOMING: &str = "/api/webhooks/incoming/Invoicing";
/// 32 characters, some of them not ASCII.
const SECRET: &str = "0123456789abcdef0123456789abñçé!";

/// A simulator with two invoicing companies, and a client that has selected the first.
struct Stage {
    simulator: Simulator,
    client: Client,
}

impl Stage {
    /// Receivers may use plain HTTP on any port, and there are two short retries.
    async fn start(turn: impl FnOnce(&mut Knobs)) -> Self {
        let simulator = start(|settings| {
            settings.world.invoicing_companies = 2;
            settings.knobs.delivery.receivers = ReceiverUrls::Any;
            settings.knobs.invoicing.retries = vec![1, 1];
            turn(&mut settings.knobs);
        })
        .await;
        let client = chosen(&simulator, 0).await;
        Self { simulator, client }
    }

    /// A stage and a receiver that echoes and accepts notifications.
    async fn echoing() -> (Self, Receiver) {
        let receiver = receiver().await;
        (Self::start(|_| {}).await, receiver)
    }

    fn turn(&self, change: impl FnOnce(&mut Knobs)) {
        self.simulator.provider().turn(change);
    }

    /// Creates a hook, waits for its echo to end, and returns its id.
    async fn hook(&self, receiver: &Receiver, entity: &str, action: &str) -> String {
        let created = self.client.post(HOOKS, &subscription(receiver, entity, action)).await;
        self.echoed().await;
        created.ok()["id"].as_str().unwrap().to_owned()
    }

    /// Waits until no echo is pending.
    async fn echoed(&self) {
        let echoed =
            tokio::time::timeout(Duration::from_secs(20), self.simulator.provider().invoicing.idle());
        echoed.await.expect("echoes end");
    }

    /// Waits until nothing is left to deliver.
    async fn idle(&self) {
        let idle = tokio::time::timeout(Duration::from_secs(20), self.simulator.provider().deliveries.idle());
        idle.await.expect("deliveries end");
    }

    /// Changes an entity of an invoicing company and returns its id.
    fn happen(&self, company: u32, entity: &str, action: &str) -> String {
        let (entity, action) =
            (serde_json::from_value(entity.into()).unwrap(), serde_json::from_value(action.into()).unwrap());
        self.simulator.provider().change(|world, clock| {
            let change = world.act_invoicing(company, entity, action, clock).unwrap();
            (change.id.clone(), vec![WorldChange::Invoicing(change)])
        })
    }

    fn truth(&self) -> Vec<ProviderHook> {
        self.simulator.provider().invoicing.hooks()
    }

    fn entries(&self) -> Vec<JournalEntry> {
        let deliveries = &self.simulator.provider().deliveries;
        deliveries.entries(0, usize::MAX).into_iter().map(|(_, entry)| entry).collect()
    }

    fn ends(&self) -> Vec<End> {
        self.entries().into_iter().map(|entry| entry.end.unwrap()).collect()
    }
}

/// A client with a key but without a token. The document does not show `Api-Version`, so it is not sent.
fn without_token(simulator: &Simulator) -> Client {
    Client { key: Some(KEY.to_owned()), ..Client::bare(simulator) }
}

/// Names of an object's members.
#[track_caller]
fn members(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

/// Logs in with the right mail and password.
async fn log_in(simulator: &Simulator) -> Value {
    let account = json!({ "mail": "ana@example.com", "password": "simulated-password" });
    without_token(simulator).post(LOGIN, &account).await.ok()
}

/// POST INV/companies/{id}/select with this body.
async fn select(client: &Client, company: &Value, body: &Value) -> Answer {
    client.post(&format!("/invoicing/api/companies/{company}/select"), body).await
}

/// A client that has logged in and selected the company at this index.
pub(crate) async fn chosen(simulator: &Simulator, company: usize) -> Client {
    let login = log_in(simulator).await;
    let client = authorized(&without_token(simulator), &login);
    let answer = select(&client, &login["companies"][company]["id"], &login["refreshToken"]).await;
    authorized(&client, &answer.ok())
}

/// The same client with the token in an answer.
fn authorized(client: &Client, answer: &Value) -> Client {
    Client { authorization: Some(answer["token"].as_str().unwrap().to_owned()), ..client.clone() }
}

/// A receiver that echoes and accepts notifications.
pub(super) async fn receiver() -> Receiver {
    answering(|_| Reply::Status(200)).await
}

/// A receiver that echoes and answers notifications by a script.
async fn answering(script: impl Fn(&Received) -> Reply + Send + Sync + 'static) -> Receiver {
    Receiver::scripted(move |received| match received.method.as_str() {
        "GET" => Reply::Echo,
        _ => script(received),
    })
    .await
}

fn subscription(receiver: &Receiver, entity: &str, action: &str) -> Value {
    json!({
        "uri": receiver.url(INCOMING),
        "entity": entity,
        "action": action,
        "secret": SECRET,
        "isPaused": false,
        "applicationName": "tests",
        "description": "for a test",
    })
}

/// Asserts an error with the API's body and a message about this field.
#[track_caller]
fn assert_refused(answer: &Answer, status: u16, field: &str) {
    assert_eq!(answer.status, status, "{field}: {answer:?}");
    let body = answer.json();
    assert_eq!((&body["ok"], &body["httpCode"]), (&json!(false), &json!(status)), "{body}");
    assert!(body["message"].as_str().is_some_and(|message| message.contains(field)), "{field}: {body}");
}
