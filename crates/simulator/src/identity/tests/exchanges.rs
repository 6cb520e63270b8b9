//! The journal of what was presented at the token endpoint.

use super::*;
use crate::{
    identity::{AnswerFate as Fate, Exchange, ExchangeKind, ExchangeOutcome},
    knobs::Latency,
};

/// Longer than any test runs.
const FOR_EVER: Latency = Latency::Fixed { milliseconds: 3_600_000.0 };

impl Simulated {
    fn exchanges(&self) -> Vec<Exchange> {
        self.0.identity.exchanges(0, usize::MAX).into_iter().map(|(_, exchange)| exchange).collect()
    }

    fn outcomes(&self) -> Vec<ExchangeOutcome> {
        self.exchanges().iter().map(|exchange| exchange.outcome).collect()
    }
}

#[tokio::test]
async fn a_token_presented_twice_stands_twice_in_the_journal() {
    let simulated = Simulated::new();
    let code = simulated.code(ACCOUNTING).await;
    let first = simulated.redeem(&code).await.member("refresh_token");
    simulated.redeem(&code).await;

    let second = simulated.refresh(&first).await.member("refresh_token");
    simulated.refresh(&first).await;
    simulated.refresh(&second).await;
    simulated.refresh(&first).await;

    let entries = simulated.exchanges();
    let expected = [
        (ExchangeKind::Code, &code, ExchangeOutcome::Granted),
        (ExchangeKind::Code, &code, ExchangeOutcome::Reused),
        (ExchangeKind::Refresh, &first, ExchangeOutcome::Rotated),
        (ExchangeKind::Refresh, &first, ExchangeOutcome::Reused),
        (ExchangeKind::Refresh, &second, ExchangeOutcome::Revoked),
        (ExchangeKind::Refresh, &first, ExchangeOutcome::Reused),
    ];
    let seen: Vec<_> = entries.iter().map(|entry| (entry.kind, &entry.token, entry.outcome)).collect();
    assert_eq!(seen, expected);
    assert!(entries.iter().all(|entry| entry.grant == Some(0) && entry.answer == Fate::Sent), "{entries:?}");
}

#[tokio::test]
async fn every_refusal_stands_in_the_journal_under_its_reason() {
    let simulated = Simulated::new();
    let refresh = simulated.login(ACCOUNTING).await.member("refresh_token");
    let code = simulated.code(ACCOUNTING).await;
    let late = simulated.code(ACCOUNTING).await;

    simulated.turn(|knobs| knobs.rotate_absolute = false);
    simulated.refresh(&refresh).await;
    simulated.turn(|knobs| knobs.unavailable = 1);
    simulated.refresh(&refresh).await;
    simulated.token(&changed(&exchange(&code), "client_secret", Some("wrong"))).await;
    simulated.token(&changed(&exchange(&code), "redirect_uri", None)).await;
    simulated.refresh("never issued").await;
    simulated.advance(30 * DAY);
    simulated.redeem(&late).await;
    simulated.refresh(&refresh).await;
    // Neither presents anything.
    simulated.token(&changed(&exchange(&code), "code", None)).await;
    simulated.token(&changed(&exchange(&code), "grant_type", Some("password"))).await;

    let expected = [
        ExchangeOutcome::Granted,
        ExchangeOutcome::Granted,
        ExchangeOutcome::Unavailable,
        ExchangeOutcome::Client,
        ExchangeOutcome::Refused,
        ExchangeOutcome::Unknown,
        ExchangeOutcome::Expired,
        ExchangeOutcome::Expired,
    ];
    assert_eq!(simulated.outcomes(), expected);
    let known: Vec<bool> = simulated.exchanges().iter().map(|entry| entry.grant.is_some()).collect();
    assert_eq!(known, [true, true, false, false, true, false, true, true]);
}

#[tokio::test]
async fn a_client_that_leaves_before_a_late_answer_has_its_token_rotated_all_the_same() {
    let simulated = Arc::new(Simulated::new());
    let refresh = simulated.login(ACCOUNTING).await.member("refresh_token");
    simulated.turn(|knobs| knobs.answer_latency = FOR_EVER);
    let client = tokio::spawn({
        let (simulated, refresh) = (Arc::clone(&simulated), refresh.clone());
        async move { simulated.refresh(&refresh).await }
    });

    let decided = async {
        while simulated.exchanges().len() < 2 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), decided).await.expect("the work waits for the answer");
    let waiting = simulated.exchanges().pop().unwrap();
    client.abort();
    assert!(client.await.unwrap_err().is_cancelled());
    let left = simulated.exchanges().pop().unwrap();

    assert_eq!((waiting.outcome, waiting.answer), (ExchangeOutcome::Rotated, Fate::Pending));
    assert_eq!((left.outcome, left.answer), (ExchangeOutcome::Rotated, Fate::Lost));
}

#[tokio::test]
async fn a_client_that_leaves_before_anybody_looked_has_presented_its_token_all_the_same() {
    let simulated = Arc::new(Simulated::new());
    let refresh = simulated.login(ACCOUNTING).await.member("refresh_token");
    simulated.turn(|knobs| knobs.latency = FOR_EVER);
    let client = tokio::spawn({
        let (simulated, refresh) = (Arc::clone(&simulated), refresh.clone());
        async move { simulated.refresh(&refresh).await }
    });
    // Until it waits, whatever is on the way there.
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    client.abort();
    assert!(client.await.unwrap_err().is_cancelled());

    let left = simulated.exchanges().pop().unwrap();

    assert_eq!((left.token, left.outcome, left.answer), (refresh, ExchangeOutcome::Unavailable, Fate::Lost));
    assert_eq!(simulated.exchanges().len(), 2);
}
