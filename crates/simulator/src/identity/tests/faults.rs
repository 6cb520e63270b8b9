//! What goes wrong at the identity provider on request.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};

use super::*;
use crate::{
    identity::{AnswerFate as Fate, DISCOVERY, ExchangeOutcome, KEY_SET},
    knobs::{Effect, Endpoint, IdentityFault, Latency, Status},
};

fn once(on: Endpoint, effect: Effect) -> IdentityFault {
    IdentityFault { on, effect, times: Some(1), after_work: false }
}

fn claims(token: &str) -> Value {
    let payload = URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap();
    serde_json::from_slice(&payload).unwrap()
}

#[tokio::test]
async fn a_rule_hits_its_endpoint_alone_and_as_often_as_it_says() {
    let simulated = Simulated::new();
    let page = Effect::Html { status: Status::OK };
    simulated
        .turn(|knobs| knobs.faults = vec![once(Endpoint::Keys, page), once(Endpoint::Keys, Effect::Drop)]);

    let discovery = simulated.get(DISCOVERY, &[("host", "id.example")]).await;
    let first = simulated.get(KEY_SET, &[]).await;
    let second = simulated.get(KEY_SET, &[]).await;
    let third = simulated.get(KEY_SET, &[]).await;

    assert!(discovery.json().is_object());
    assert!(first.text.starts_with("<!DOCTYPE html>"), "{}", first.text);
    assert!(second.hung_up && !third.hung_up);
    assert!(third.json()["keys"].is_array());
    assert!(simulated.0.knobs().identity.faults.iter().all(|fault| fault.times == Some(0)));
}

#[tokio::test]
async fn look_ups_can_be_spoiled_in_every_way() {
    let simulated = Simulated::new();
    let ask = async |on, effect| {
        simulated.turn(|knobs| knobs.faults = vec![once(on, effect)]);
        match on {
            Endpoint::Keys => simulated.get(KEY_SET, &[]).await,
            _ => simulated.get(DISCOVERY, &[("host", "id.example")]).await,
        }
    };

    for on in [Endpoint::Discovery, Endpoint::Keys] {
        let status = ask(on, Effect::Status(Status::SERVER_ERROR)).await;
        let half = ask(on, Effect::InvalidJson).await;
        let types = ask(on, Effect::WrongTypes).await;
        let large = ask(on, Effect::Oversized { bytes: 70_000, status: Status::OK }).await;
        let late = ask(on, Effect::Delay(Latency::Fixed { milliseconds: 1.0 })).await;

        assert_eq!(status.status, 500);
        assert!(serde_json::from_str::<Value>(&half.text).is_err(), "{}", half.text);
        assert!(types.json().is_object() && !types.text.contains("http"), "{}", types.text);
        assert_eq!(large.text.len(), 70_000);
        assert!(late.json().is_object());
    }
}

#[tokio::test]
async fn a_fault_of_the_token_endpoint_comes_before_the_work_or_after_it() {
    for after_work in [false, true] {
        let simulated = Simulated::new();
        let refresh = simulated.login(ACCOUNTING).await.member("refresh_token");
        let effect = Effect::Status(Status::SERVER_ERROR);
        simulated.turn(|knobs| {
            knobs.faults = vec![IdentityFault { after_work, ..once(Endpoint::Token, effect) }];
        });

        let failed = simulated.refresh(&refresh).await;
        let again = simulated.refresh(&refresh).await;

        assert_eq!((failed.status, again.status), (500, if after_work { 400 } else { 200 }));
        let entries = simulated.0.identity.exchanges(1, 2);
        let seen: Vec<_> = entries.iter().map(|(_, entry)| (entry.outcome, entry.answer)).collect();
        let expected = if after_work {
            [(ExchangeOutcome::Rotated, Fate::Spoiled), (ExchangeOutcome::Reused, Fate::Sent)]
        } else {
            [(ExchangeOutcome::Unavailable, Fate::Sent), (ExchangeOutcome::Rotated, Fate::Sent)]
        };
        assert_eq!(seen, expected);
    }
}

#[tokio::test]
async fn a_spoiled_answer_of_the_token_endpoint_has_done_its_work() {
    for effect in [Effect::InvalidJson, Effect::WrongTypes, Effect::LoseAnswer] {
        let simulated = Simulated::new();
        let refresh = simulated.login(ACCOUNTING).await.member("refresh_token");
        simulated.turn(|knobs| knobs.faults = vec![once(Endpoint::Token, effect.clone())]);

        let spoiled = simulated.refresh(&refresh).await;

        let fate = if spoiled.hung_up { Fate::Lost } else { Fate::Spoiled };
        assert_eq!(spoiled.hung_up, effect == Effect::LoseAnswer);
        let (_, entry) = simulated.0.identity.exchanges(1, 1).remove(0);
        assert_eq!((entry.outcome, entry.answer), (ExchangeOutcome::Rotated, fate), "{effect:?}");
    }
}

#[tokio::test]
async fn a_callback_can_return_another_state_and_a_token_another_nonce() {
    let simulated = Simulated::new();
    simulated
        .turn(|knobs| (knobs.bend_state, knobs.bend_nonce, knobs.callback_id_token) = (true, true, true));
    let asked = request(ACCOUNTING);
    let sent = |name: &str| asked.iter().find(|(sent, _)| *sent == name).unwrap().1.to_owned();

    let (_, callback) = simulated.authorize(&[&asked[..], &[("auto", "1")]].concat()).await.location();
    let redeemed = simulated.redeem(&callback["code"]).await;

    let differs = |is: &str, was: &str| is.len() == was.len() && is != was;
    assert!(differs(&callback["state"], &sent("state")), "{callback:?}");
    for token in [&callback["id_token"], &redeemed.member("id_token")] {
        let nonce = claims(token)["nonce"].as_str().unwrap().to_owned();
        assert!(differs(&nonce, &sent("nonce")), "{nonce}");
    }
}
