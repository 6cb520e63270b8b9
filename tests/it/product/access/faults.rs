//! Every fault of the identity service: the outcome of a refresh, and of verifying a token without keys.

use base::retry::Retry;
use provider::auth::{Area, check, identity::RefreshOutcome};
use simulator::knobs::{Effect, HttpStatus, IdentityEndpoint, IdentityFault, Latency, RetryHint};

use super::token::key_set;
use super::{checked, identity, log_in, provider, refresh};
use crate::product::simulator::{pass, start};

crate::tests! {
    plain a_rotated_token_is_never_reported_as_not_sent;
    plain without_keys_no_token_is_trusted_and_none_is_dropped;
    plain the_clock_is_refreshed_before_a_token_is_rejected;
}

fn status(code: u16) -> HttpStatus {
    HttpStatus::new(code).unwrap()
}

/// All effects that apply to the identity service.
fn effects() -> Vec<Effect> {
    vec![
        Effect::Throttle { seconds: 7, tells: RetryHint::default() },
        Effect::Status(status(400)),
        Effect::Status(status(404)),
        Effect::Status(status(500)),
        Effect::Status(status(502)),
        Effect::Status(status(503)),
        Effect::UnknownPath,
        Effect::Drop,
        Effect::Truncate,
        Effect::InvalidJson,
        Effect::WrongContentType,
        Effect::WrongTypes,
        Effect::Html { status: status(200) },
        Effect::Html { status: status(403) },
        Effect::Html { status: status(503) },
        Effect::Oversized { bytes: 10 << 20, status: status(200) },
        Effect::Oversized { bytes: 10 << 20, status: status(500) },
        Effect::Delay(Latency::Fixed { milliseconds: 50.0 }),
        Effect::LoseAnswer,
    ]
}

/// The expected outcome, and whether the provider has rotated the token.
fn expected(effect: &Effect, after_work: bool) -> (&'static str, bool) {
    match effect {
        Effect::Delay(_) | Effect::WrongContentType => ("granted", true),
        Effect::Truncate | Effect::InvalidJson | Effect::WrongTypes | Effect::LoseAnswer => ("unknown", true),
        Effect::Throttle { .. } | Effect::UnknownPath => ("not sent", false),
        Effect::Status(code) if code.get() == 404 => ("not sent", false),
        _ => ("unknown", after_work),
    }
}

async fn a_rotated_token_is_never_reported_as_not_sent() {
    let simulator = start(|_| {}).await;
    let provider = provider(&simulator);
    // Statuses that mean "not executed" are believed; only a lying service would send them afterwards.
    let is_word = |effect: &Effect| expected(effect, false).0 == "not sent";
    let cases = effects().into_iter().flat_map(|effect| {
        let after = if is_word(&effect) { &[false][..] } else { &[false, true] };
        after.iter().map(move |after_work| (effect.clone(), *after_work))
    });

    for (effect, after_work) in cases {
        let token = log_in(&provider, Area::Accounting).await.granted.refresh.unwrap();
        let fault =
            IdentityFault { on: IdentityEndpoint::Token, effect: effect.clone(), times: Some(1), after_work };
        simulator.provider().turn(|knobs| knobs.identity.faults = vec![fault]);

        // A new client each time: five failures in a row would open the circuit.
        let outcome = refresh(&identity(&provider), &token).await;

        let word = match &outcome {
            RefreshOutcome::Granted(_) => "granted",
            RefreshOutcome::Refused(_) => "refused",
            RefreshOutcome::NotSent(_) => "not sent",
            RefreshOutcome::Unknown(_) => "unknown",
        };
        let (_, last) = simulator.provider().identity.exchanges(0, usize::MAX).pop().unwrap();
        let rotated = serde_json::to_value(&last).unwrap()["outcome"] == "rotated";
        assert_eq!((word, rotated), expected(&effect, after_work), "{effect:?}, {after_work}: {outcome:?}");
    }
}

async fn without_keys_no_token_is_trusted_and_none_is_dropped() {
    let simulator = start(|_| {}).await;
    let provider = provider(&simulator);
    let access = log_in(&provider, Area::Accounting).await.granted.access;

    for on in [IdentityEndpoint::Discovery, IdentityEndpoint::Keys] {
        for effect in effects() {
            let fault = IdentityFault { on, effect: effect.clone(), times: None, after_work: false };
            simulator.provider().turn(|knobs| knobs.identity.faults = vec![fault]);

            let outcome = checked(&provider).1.access(&access).await;

            match (&effect, outcome) {
                (Effect::Delay(_) | Effect::WrongContentType, outcome) => {
                    outcome.unwrap_or_else(|error| panic!("{on:?} {effect:?}: {error}"));
                }
                (_, Err(error @ check::Error::Keys(_))) => {
                    assert_ne!(error.retry(), Retry::Never, "{on:?} {effect:?}: {error}");
                }
                (_, other) => panic!("{on:?} {effect:?}: {other:?}"),
            }
        }
    }
}

async fn the_clock_is_refreshed_before_a_token_is_rejected() {
    const DAY: i64 = 86_400;
    for days in [-1, 1] {
        let simulator = start(|settings| settings.frozen_at = None).await;
        pass(&simulator, days * DAY);
        let mut provider = provider(&simulator);
        let access = log_in(&provider, Area::Accounting).await.granted.access;
        let directory = tempfile::tempdir().unwrap();
        let issuer = checked(&provider).1.access(&access).await.unwrap().issuer.unwrap();
        let path = directory.path().join("keys.json");
        std::fs::write(&path, key_set(&simulator).await).unwrap();
        (provider.oauth.keys, provider.oauth.issuers) = (Some(path), vec![issuer]);

        // With its own keys it has not observed the provider's clock yet.
        let (identity, check) = checked(&provider);
        assert_eq!(identity.clock().observed_age(), None);
        check.access(&access).await.unwrap_or_else(|error| panic!("{days} days off: {error}"));
    }
}
