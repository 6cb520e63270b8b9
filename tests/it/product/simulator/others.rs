//! What somebody else does at the provider, by hand: subscriptions of theirs, an end to some of ours, and when each
//! came into its state.

use serde_json::{Value, json};
use simulator::knobs::ReceiverUrls;

use super::{
    Client,
    control::{call, done, truth, with_webhook},
    pass, start,
};

crate::tests! {
    plain a_webhook_of_somebody_else_is_active_and_told_of_changes;
    plain a_webhook_is_deleted_or_forgotten_behind_the_back_of_who_made_it;
    plain the_truth_tells_when_a_webhook_came_into_each_state;
    plain hooks_of_somebody_else_are_made_and_deleted_by_hand;
    plain what_cannot_be_planted_or_lost_is_refused;
}

const NOBODY: &str = "00000000-0000-0000-0000-000000000000";

async fn a_webhook_of_somebody_else_is_active_and_told_of_changes() {
    let (_simulator, client, _) = with_webhook().await;
    // Nobody listens there: an attempt is all that is wanted.
    let theirs = json!({ "resource": "customers", "application": "theirs", "url": "http://127.0.0.1:9/theirs",
        "secret": "their own secret" });

    let id = done(&client, "POST", "/webhooks", theirs).await["id"].as_str().unwrap().to_owned();
    let company = truth(&client, "records/customers").await[0]["company"].clone();
    done(&client, "POST", "/records/customers", json!({ "company": company })).await;

    let planted = truth(&client, "webhooks").await.pop().unwrap();
    assert_eq!((&planted["id"], &planted["state"]), (&json!(id), &json!("active")));
    assert_eq!(
        (&planted["application"], &planted["url"]),
        (&json!("theirs"), &json!("http://127.0.0.1:9/theirs"))
    );
    let told = truth(&client, "deliveries").await;
    assert!(told.iter().any(|delivery| delivery["webhook"] == json!(id)), "{told:?}");
}

async fn a_webhook_is_deleted_or_forgotten_behind_the_back_of_who_made_it() {
    let (simulator, client, id) = with_webhook().await;
    let api = Client::accounting(&simulator);
    let path = format!("/accounting/customers/webhooks/{id}");
    let state = async || truth(&client, "webhooks").await.first().map(|one| one["state"].clone());

    done(&client, "POST", &format!("/webhooks/{id}/delete"), Value::Null).await;
    assert_eq!(state().await, Some(json!("deleted")));
    assert_eq!(call(&client, "POST", &format!("/webhooks/{id}/delete"), "").await.status, 404);

    done(&client, "POST", &format!("/webhooks/{id}/forget"), Value::Null).await;
    assert_eq!(state().await, None);
    assert_eq!(api.get(&path).await.status, 404);
    assert_eq!(call(&client, "POST", &format!("/webhooks/{id}/forget"), "").await.status, 404);
}

async fn the_truth_tells_when_a_webhook_came_into_each_state() {
    let (simulator, client, id) = with_webhook().await;

    pass(&simulator, 60);
    done(&client, "POST", &format!("/webhooks/{id}/disable"), Value::Null).await;

    let turns = truth(&client, "webhooks").await[0]["turns"].as_array().unwrap().clone();
    let states: Vec<&str> = turns.iter().map(|turn| turn["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["awaitingContract", "active", "disabled"]);
    let at = |turn: usize| turns[turn]["at"].as_str().unwrap().to_owned();
    assert!(at(0) <= at(1) && at(1) < at(2), "{turns:?}");
    let now = done(&client, "GET", "/clock", Value::Null).await;
    assert_eq!(json!(at(2)), now["now"]);
}

async fn hooks_of_somebody_else_are_made_and_deleted_by_hand() {
    let simulator = start(|settings| settings.knobs.delivery.receivers = ReceiverUrls::Any).await;
    let client = Client::bare(&simulator);
    let theirs = json!({
        "company": 0,
        "uri": "http://127.0.0.1:9/api/webhooks/incoming/Invoicing",
        "entity": "Customer",
        "action": "Updated",
        "secret": "a secret of at least thirty-two characters",
        "applicationName": "theirs",
        "description": "not yours",
    });

    let id = done(&client, "POST", "/hooks", theirs).await["id"].as_str().unwrap().to_owned();
    let planted = truth(&client, "hooks").await.pop().unwrap();
    done(&client, "POST", &format!("/hooks/{id}/pause"), Value::Null).await;
    let paused = truth(&client, "hooks").await.pop().unwrap();
    done(&client, "POST", &format!("/hooks/{id}/delete"), Value::Null).await;

    assert_eq!((&planted["effective"], &planted["application"]), (&json!(true), &json!("theirs")));
    assert_eq!((&planted["description"], &planted["pausedAt"]), (&json!("not yours"), &Value::Null));
    assert_eq!(paused["pausedAt"], done(&client, "GET", "/clock", Value::Null).await["now"]);
    assert!(truth(&client, "hooks").await.is_empty());
}

async fn what_cannot_be_planted_or_lost_is_refused() {
    let simulator = start(|_| {}).await;
    let client = Client::bare(&simulator);

    for (path, body, status) in [
        ("/webhooks", "", 400),
        (
            "/webhooks",
            r#"{"resource":"nothing","application":"a","url":"https://h.example/","secret":"s"}"#,
            400,
        ),
        ("/webhooks", r#"{"resource":"customers","application":"a","url":"nowhere","secret":"s"}"#, 400),
        ("/webhooks/x/delete", "", 400),
        (&*format!("/webhooks/{NOBODY}/delete"), "", 404),
        (&*format!("/webhooks/{NOBODY}/forget"), "", 404),
        ("/hooks", "{}", 400),
        ("/hooks", r#"{"company":99}"#, 400),
        ("/hooks", r#"{"company":0,"entity":"Customer"}"#, 400),
        (&*format!("/hooks/{NOBODY}/delete"), "", 404),
    ] {
        let answer = call(&client, "POST", path, body).await;
        assert_eq!(answer.status, status, "{path} {body}: {answer:?}");
    }
}
