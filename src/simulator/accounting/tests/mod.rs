#![allow(clippy::unwrap_used, reason = "a test may panic")]

use serde_json::Value;

use crate::simulator::{
    catalog::{Kind, Resource},
    deliveries::{
        Entry,
        rig::{Received, Receiver, Rig, subscription},
    },
    random::Guid,
    world::{Change, Place, RecordChange},
};

mod envelopes;
mod refusals;
mod states;

const CUSTOMERS: &str = "/accounting/api/customers/webhooks";

/// Subscribes to every event of customers; the webhook's id.
async fn subscribe(rig: &Rig, receiver: &Receiver) -> Guid {
    let (status, result) = post(rig, "subscribe", &subscription("customers", &receiver.url())).await;
    assert_eq!(status, 200, "{result}");
    id(&result)
}

async fn post(rig: &Rig, operation: &str, body: &str) -> (u16, Value) {
    rig.call("POST", &format!("{CUSTOMERS}/{operation}"), body).await
}

async fn switch(rig: &Rig, webhook: Guid, enable: bool) -> (u16, Value) {
    let body = format!(r#"{{"webhookId":"{webhook}","enable":{enable}}}"#);
    rig.call("PUT", &format!("{CUSTOMERS}/status/{webhook}"), &body).await
}

async fn move_to(rig: &Rig, webhook: Guid, url: &str) -> (u16, Value) {
    let body = format!(r#"{{"webhookId":"{webhook}","url":"{url}"}}"#);
    rig.call("PUT", &format!("{CUSTOMERS}/change/{webhook}"), &body).await
}

async fn delete(rig: &Rig, webhook: Guid) -> (u16, Value) {
    rig.call("DELETE", &format!("{CUSTOMERS}/delete/{webhook}"), "").await
}

async fn record(rig: &Rig, webhook: Guid) -> Value {
    let (status, record) = rig.call("GET", &format!("{CUSTOMERS}/{webhook}"), "").await;
    assert_eq!(status, 200, "{record}");
    record
}

fn id(result: &Value) -> Guid {
    Guid::parse(result["webhookId"].as_str().unwrap()).unwrap()
}

/// Something happens to the first record of a resource.
fn act(rig: &Rig, resource: Resource, kind: Kind) -> RecordChange {
    rig.provider.change(|world, clock| {
        let (place, _) = world.records(resource).next().unwrap();
        let change = world.act(place, kind, clock).unwrap();
        (change.clone(), vec![Change::Record(change)])
    })
}

fn company_id(rig: &Rig, index: u32) -> String {
    rig.provider.world().id(Place { resource: Resource::Companies, company: None, index })
}

fn entries(rig: &Rig) -> Vec<Entry> {
    rig.provider.deliveries.entries(0, 1_000).into_iter().map(|(_, entry)| entry).collect()
}

/// `EventType.EventType` of what came.
fn events(received: &[Received]) -> Vec<String> {
    received.iter().map(|one| json(one)["EventType"]["EventType"].as_str().unwrap().to_owned()).collect()
}

fn json(received: &Received) -> Value {
    serde_json::from_slice(&received.body).unwrap()
}
