//! Notifications: content, signature, retries.

use std::collections::BTreeSet;

use serde_json::json;
use simulator::{
    deliveries::End,
    knobs::{Accepts, InvoicingBody},
    random::Guid,
};

use super::{HOOKS, SECRET, Stage, answering, chosen, log_in, members, receiver, subscription};
use crate::product::simulator::receiver::{Receiver, Reply, signature};

crate::tests! {
    plain a_flat_notification_has_the_five_fields_of_the_document;
    plain a_wrapped_notification_has_its_four_members;
    plain tenants_are_dealt_out_to_the_companies;
    plain each_attempt_of_a_wrapped_notification_has_its_signature;
    plain a_knob_names_the_signature_header;
    plain only_matching_hooks_are_notified;
    plain a_hook_outlives_a_message_that_is_given_up;
    plain a_410_ends_the_retries_and_the_hook_stays;
    plain only_a_200_without_cookies_is_taken_unless_any_2xx_will_do;
    plain the_faults_of_deliveries_meet_notifications_too;
    plain a_paused_hook_misses_what_happens_until_it_is_resumed;
}

/// Creates an effective hook and takes the echo request from its receiver.
async fn hook(stage: &Stage, receiver: &mut Receiver, entity: &str, action: &str) -> String {
    let id = stage.hook(receiver, entity, action).await;
    assert_eq!(receiver.next().await.method.as_str(), "GET");
    id
}

async fn a_flat_notification_has_the_five_fields_of_the_document() {
    let (stage, mut receiver) = Stage::echoing().await;
    let login = log_in(&stage.simulator).await;

    for (entity, action) in [("Customer", "Created"), ("SaleInvoice", "Updated"), ("Due", "Deleted")] {
        hook(&stage, &mut receiver, entity, action).await;
        let id = stage.happen(0, entity, action);
        let received = receiver.next().await;

        let notified = received.json();
        assert_eq!(members(&notified), "Entity EntityId TenantId User Changes".split(' ').collect());
        assert_eq!((&notified["Entity"], &notified["EntityId"]), (&json!(entity), &json!(id)));
        assert_eq!(notified["TenantId"], login["companies"][0]["idCDA"]);
        assert!(notified["User"].as_str().is_some_and(|user| !user.is_empty()), "{notified}");
        let changes = notified["Changes"].as_array().unwrap();
        assert_eq!(changes.is_empty(), action == "Deleted", "{notified}");
        for change in changes {
            assert_eq!(members(change), BTreeSet::from(["Name", "Value"]));
            assert!(change["Name"].is_string() && change["Value"].is_string(), "{change}");
        }
        assert!(received.header("content-type").is_some_and(|kind| kind.starts_with("application/json")));
    }

    // A knob adds two members.
    stage.turn(|knobs| knobs.invoicing.extra_members = true);
    stage.happen(0, "SaleInvoice", "Updated");
    let notified = receiver.next().await.json();
    let expected = "Entity EntityId TenantId User Changes Host SourceApplication";
    assert_eq!(members(&notified), expected.split(' ').collect());
    assert!(notified["Host"].is_string() && notified["SourceApplication"].is_string(), "{notified}");
}

async fn tenants_are_dealt_out_to_the_companies() {
    let mut receiver = receiver().await;
    let stage = Stage::start(|knobs| knobs.invoicing.tenants = 3).await;
    let tenant = |number| stage.simulator.provider().invoicing.tenant(number);
    hook(&stage, &mut receiver, "Customer", "Created").await;

    let mut seen = BTreeSet::new();
    for _ in 0..32 {
        stage.happen(0, "Customer", "Created");
        seen.insert(receiver.next().await.json()["TenantId"].as_str().unwrap().to_owned());
    }

    // The other company has the one between them.
    assert_eq!(seen, BTreeSet::from([tenant(0), tenant(2)]));
}

async fn a_wrapped_notification_has_its_four_members() {
    let mut receiver = receiver().await;
    let stage = Stage::start(|knobs| knobs.invoicing.body = InvoicingBody::Wrapped).await;
    let mut ids = BTreeSet::new();

    for action in ["Created", "Updated", "Deleted"] {
        hook(&stage, &mut receiver, "Contact", action).await;
        let id = stage.happen(0, "Contact", action);
        let received = receiver.next().await;

        let notified = received.json();
        assert_eq!(members(&notified), "Id Attempt Properties Notifications".split(' ').collect());
        assert_eq!((&notified["Attempt"], &notified["Properties"]), (&json!(1), &json!({})));
        assert!(ids.insert(notified["Id"].as_str().unwrap().to_owned()), "{notified}");
        let [one] = notified["Notifications"].as_array().unwrap().as_slice() else { panic!("{notified}") };
        let expected = "Action Entity EntityId TenantId User Changes";
        assert_eq!(members(one), expected.split(' ').collect());
        assert_eq!((&one["Action"], &one["EntityId"]), (&json!(action), &json!(id)));
        assert!(std::str::from_utf8(&received.body).unwrap().contains("\n  \"Id\""), "it is indented");
        assert_eq!(received.header("ms-signature"), Some(&*signature(SECRET, &received.body)));
    }
}

async fn each_attempt_of_a_wrapped_notification_has_its_signature() {
    let mut receiver = answering(|_| Reply::Status(503)).await;
    let stage = Stage::start(|knobs| knobs.invoicing.body = InvoicingBody::Wrapped).await;
    hook(&stage, &mut receiver, "Bank", "Updated").await;

    stage.happen(0, "Bank", "Updated");
    let attempts = receiver.several(3).await;

    for (number, attempt) in attempts.iter().enumerate() {
        let notified = attempt.json();
        assert_eq!(notified["Attempt"], number + 1);
        assert_eq!(notified["Id"], attempts[0].json()["Id"]);
        assert_eq!(notified["Notifications"], attempts[0].json()["Notifications"]);
        assert_eq!(attempt.header("ms-signature"), Some(&*signature(SECRET, &attempt.body)));
    }
}

async fn a_knob_names_the_signature_header() {
    let (stage, mut receiver) = Stage::echoing().await;
    hook(&stage, &mut receiver, "Supplier", "Updated").await;

    for name in ["ms-signature", "x-other-signature", ""] {
        stage.turn(|knobs| knobs.invoicing.signature_header = name.to_owned());
        stage.happen(0, "Supplier", "Updated");
        let received = receiver.next().await;

        let signed: Vec<(&str, &str)> = received
            .headers
            .iter()
            .filter(|(_, value)| value.to_str().is_ok_and(|text| text.starts_with("sha256=")))
            .map(|(name, value)| (name.as_str(), value.to_str().unwrap()))
            .collect();
        let expected = signature(SECRET, &received.body);
        if name.is_empty() {
            assert!(signed.is_empty(), "{signed:?}");
        } else {
            assert_eq!(signed, [(name, expected.as_str())]);
        }
    }
}

async fn only_matching_hooks_are_notified() {
    let (mut first, mut second) = (receiver().await, receiver().await);
    let stage = Stage::start(|_| {}).await;
    for receiver in [&mut first, &mut second] {
        hook(&stage, receiver, "Customer", "Updated").await;
    }
    for (entity, action) in [("Customer", "Created"), ("Supplier", "Updated")] {
        hook(&stage, &mut second, entity, action).await;
    }
    let mut elsewhere = receiver().await;
    let other = chosen(&stage.simulator, 1).await;
    other.post(HOOKS, &subscription(&elsewhere, "Customer", "Updated")).await.ok();
    elsewhere.next().await;
    stage.echoed().await;

    let id = stage.happen(0, "Customer", "Updated");
    stage.idle().await;
    let notified: Vec<usize> = [&mut first, &mut second, &mut elsewhere].map(|one| one.taken().len()).into();
    let other_id = stage.happen(1, "Customer", "Updated");
    stage.idle().await;

    assert_eq!(notified, [1, 1, 0]);
    let received = elsewhere.next().await.json();
    assert_eq!(received["EntityId"], other_id);
    assert_ne!(other_id, id);
    assert_eq!(received["TenantId"], log_in(&stage.simulator).await["companies"][1]["idCDA"]);
    assert!(first.taken().is_empty() && second.taken().is_empty());
}

async fn a_hook_outlives_a_message_that_is_given_up() {
    let mut receiver = answering(|received| {
        Reply::Status(if received.json()["Changes"].as_array().unwrap().is_empty() { 500 } else { 200 })
    })
    .await;
    let stage = Stage::start(|_| {}).await;
    let defaults = simulator::knobs::InvoicingKnobs::default().retries;
    stage.turn(|knobs| knobs.invoicing.retries = vec![10, 20]);
    hook(&stage, &mut receiver, "Customer", "Deleted").await;
    hook(&stage, &mut receiver, "Customer", "Created").await;

    stage.happen(0, "Customer", "Deleted");
    let attempts = receiver.several(3).await;
    stage.idle().await;
    stage.happen(0, "Customer", "Created");
    stage.happen(0, "Customer", "Deleted");
    stage.idle().await;

    assert_eq!(defaults, [60_000, 240_000], "at once, after a minute, after four more");
    for (pair, wait) in attempts.windows(2).zip([10, 20]) {
        assert!((pair[1].at - pair[0].at).as_millis() >= wait, "{wait} ms before a further attempt");
    }
    assert_eq!(stage.ends(), [End::GivenUp, End::Accepted, End::GivenUp]);
    assert!(stage.truth().iter().all(|hook| hook.effective && !hook.paused));
    assert_eq!(stage.client.get(HOOKS).await.rows().len(), 2);
}

async fn a_410_ends_the_retries_and_the_hook_stays() {
    let mut receiver = answering(|_| Reply::Status(410)).await;
    let stage = Stage::start(|knobs| knobs.invoicing.retries = vec![3_600_000]).await;
    hook(&stage, &mut receiver, "Customer", "Updated").await;

    for _ in 0..2 {
        stage.happen(0, "Customer", "Updated");
        stage.idle().await;
    }

    assert_eq!(receiver.taken().len(), 2, "one attempt for each");
    assert_eq!(stage.ends(), [End::GivenUp, End::GivenUp]);
    assert!(stage.truth()[0].effective);
}

async fn only_a_200_without_cookies_is_taken_unless_any_2xx_will_do() {
    let stage = Stage::start(|knobs| knobs.invoicing.retries = vec![]).await;

    for (reply, only_200, any_2xx) in [
        (Reply::Status(200), End::Accepted, End::Accepted),
        (Reply::Status(204), End::GivenUp, End::Accepted),
        (Reply::Header(200, "set-cookie", "a=b"), End::GivenUp, End::GivenUp),
        (Reply::Header(302, "location", "/elsewhere"), End::GivenUp, End::GivenUp),
        (Reply::Status(401), End::GivenUp, End::GivenUp),
    ] {
        let mut receiver = answering(move |_| reply).await;
        let id = hook(&stage, &mut receiver, "Due", "Updated").await;
        for (accepts, expected) in [(Accepts::Only200, only_200), (Accepts::Any2xx, any_2xx)] {
            stage.turn(|knobs| knobs.delivery.accepts = accepts);
            stage.happen(0, "Due", "Updated");
            stage.idle().await;

            assert_eq!(stage.ends().last(), Some(&expected), "{reply:?} where {accepts:?}");
        }
        stage.client.delete(&format!("{HOOKS}/{id}")).await.ok();
    }
}

async fn the_faults_of_deliveries_meet_notifications_too() {
    let (stage, mut receiver) = Stage::echoing().await;
    hook(&stage, &mut receiver, "Customer", "Updated").await;

    stage.turn(|knobs| knobs.delivery.duplicate = 1.0);
    let twice = stage.happen(0, "Customer", "Updated");
    stage.idle().await;
    stage.turn(|knobs| knobs.delivery.lose = 1.0);
    stage.happen(0, "Customer", "Updated");
    stage.idle().await;

    let received = receiver.taken();
    assert_eq!(received.len(), 2);
    assert!(received.iter().all(|one| one.json()["EntityId"] == twice && one.body == received[0].body));
    assert_eq!(stage.ends(), [End::Accepted, End::Accepted, End::Lost]);
}

async fn a_paused_hook_misses_what_happens_until_it_is_resumed() {
    let (stage, mut receiver) = Stage::echoing().await;
    let mut body = subscription(&receiver, "Customer", "Updated");
    body["isPaused"] = json!(true);
    let created = stage.client.post(HOOKS, &body).await.ok();
    stage.echoed().await;
    assert_eq!(receiver.next().await.method.as_str(), "GET", "a paused hook is asked for its echo too");

    let mut notified = Vec::new();
    let id = Guid::parse(created["id"].as_str().unwrap()).unwrap();
    for paused in [None, Some(false), Some(true), Some(false)] {
        if let Some(paused) = paused {
            assert!(stage.simulator.provider().invoicing.pause(id, paused));
        }
        stage.happen(0, "Customer", "Updated");
        stage.idle().await;
        notified.push((receiver.taken().len(), stage.client.get(HOOKS).await.rows()[0]["isPaused"] == true));
    }

    assert_eq!(notified, [(0, true), (1, false), (0, true), (1, false)]);
    assert_eq!(stage.ends(), [End::Missed, End::Accepted, End::Missed, End::Accepted]);
}
