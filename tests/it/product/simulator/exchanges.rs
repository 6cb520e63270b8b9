//! The journal of codes and refresh tokens that were presented at the token endpoint.

use std::time::Duration;

use simulator::{
    Simulator,
    identity::{AnswerFate, Exchange, ExchangeKind, ExchangeOutcome as Outcome},
    knobs::Latency,
};

use super::{
    ACCOUNTING_SCOPES, Client,
    identity::{TOKEN, code, exchange, exchange_of, log_in, login_client, refresh, with},
    pass, start, started,
};

crate::tests! {
    plain every_presentation_of_a_token_is_in_the_journal;
    plain the_journal_has_the_reason_of_every_refusal;
    plain a_client_that_leaves_early_has_presented_its_token;
}

const NEVER: Latency = Latency::Fixed { milliseconds: 3_600_000.0 };

fn journal(simulator: &Simulator) -> Vec<Exchange> {
    simulator.provider().identity.exchanges(0, usize::MAX).into_iter().map(|(_, entry)| entry).collect()
}

async fn refreshed(client: &Client, token: &str) -> String {
    refresh(client, token).await.unwrap().ok()["refresh_token"].as_str().unwrap().to_owned()
}

async fn every_presentation_of_a_token_is_in_the_journal() {
    let (simulator, client) = started(login_client, |_| {}).await;
    let code = code(&client, &ACCOUNTING_SCOPES).await;
    let first = exchange(&client, &code).await.unwrap().ok()["refresh_token"].as_str().unwrap().to_owned();
    exchange(&client, &code).await.unwrap();
    let second = refreshed(&client, &first).await;
    for token in [&first, &second, &first] {
        refresh(&client, token).await.unwrap();
    }

    let entries = journal(&simulator);
    let expected = [
        (ExchangeKind::Code, &code, Outcome::Granted),
        (ExchangeKind::Code, &code, Outcome::Reused),
        (ExchangeKind::Refresh, &first, Outcome::Rotated),
        (ExchangeKind::Refresh, &first, Outcome::Reused),
        (ExchangeKind::Refresh, &second, Outcome::Revoked),
        (ExchangeKind::Refresh, &first, Outcome::Reused),
    ];
    let found: Vec<_> = entries.iter().map(|entry| (entry.kind, &entry.token, entry.outcome)).collect();
    assert_eq!(found, expected);
    assert!(entries.iter().all(|entry| entry.grant == Some(0) && entry.answer == AnswerFate::Sent));
}

async fn the_journal_has_the_reason_of_every_refusal() {
    let (simulator, client) =
        started(login_client, |settings| settings.knobs.identity.rotate_absolute = false).await;
    let login = log_in(&client, &ACCOUNTING_SCOPES).await;
    let token = login["refresh_token"].as_str().unwrap();
    let (open, late) = (code(&client, &ACCOUNTING_SCOPES).await, code(&client, &ACCOUNTING_SCOPES).await);
    let send = async |name, value| client.form(TOKEN, &with(exchange_of(&open), name, value)).await.unwrap();

    refresh(&client, token).await.unwrap();
    simulator.provider().turn(|knobs| knobs.identity.unavailable = 1);
    refresh(&client, token).await.unwrap();
    send("client_secret", Some("wrong")).await;
    send("redirect_uri", None).await;
    refresh(&client, "never issued").await.unwrap();
    pass(&simulator, 30 * 86_400);
    exchange(&client, &late).await.unwrap();
    refresh(&client, token).await.unwrap();
    // Neither presents anything.
    send("code", None).await;
    send("grant_type", Some("password")).await;

    let found: Vec<_> =
        journal(&simulator).iter().map(|entry| (entry.outcome, entry.grant.is_some())).collect();
    let expected = [
        (Outcome::Granted, true),
        (Outcome::Granted, true),
        (Outcome::Unavailable, false),
        (Outcome::Client, false),
        (Outcome::Refused, true),
        (Outcome::Unknown, false),
        (Outcome::Expired, true),
        (Outcome::Expired, true),
    ];
    assert_eq!(found, expected);
}

async fn a_client_that_leaves_early_has_presented_its_token() {
    for (before_work, outcome) in [(true, Outcome::Unavailable), (false, Outcome::Rotated)] {
        let simulator = start(|_| {}).await;
        let mut client = login_client(&simulator);
        let login = log_in(&client, &ACCOUNTING_SCOPES).await;
        let token = login["refresh_token"].as_str().unwrap();
        simulator.provider().turn(|knobs| {
            let identity = &mut knobs.identity;
            let latency = if before_work { &mut identity.latency } else { &mut identity.answer_latency };
            *latency = NEVER;
        });
        client.http =
            reqwest::Client::builder().no_proxy().timeout(Duration::from_millis(500)).build().unwrap();

        refresh(&client, token).await.unwrap_err();
        let ended = async {
            loop {
                match journal(&simulator).pop() {
                    Some(last) if last.token == token && last.answer != AnswerFate::Pending => break last,
                    _ => tokio::task::yield_now().await,
                }
            }
        };
        let last = tokio::time::timeout(Duration::from_secs(20), ended).await.expect("the entry ends");

        assert_eq!((last.outcome, last.answer), (outcome, AnswerFate::Lost));
    }
}
