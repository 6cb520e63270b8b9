//! Codes and refresh tokens, accepted and rejected by the provider.

use std::time::Duration;

use base::{retry::Retry, secret::Secret};
use provider::auth::{
    Area,
    check::{self, TokenVerifier},
    identity::{self, OAuthCode, RefreshOutcome},
    keys,
    login::PendingLogin,
};
use simulator::{
    Simulator,
    knobs::{BadClient, Effect, HttpStatus, IdentityEndpoint, IdentityFault, Pkce},
    settings::Tls,
};

use super::{REDIRECT, clock, identity, log_in, press, provider, refresh, refreshed};
use crate::product::simulator::{ACCOUNTING_SCOPES, Client, PAYROLL_SCOPES, pass, start};

crate::tests! {
    plain a_login_returns_tokens_that_the_apis_accept;
    plain each_area_has_its_own_scopes;
    plain a_login_works_over_tls_with_the_configured_authority;
    plain pkce_is_used_only_if_configured;
    plain a_code_is_redeemed_once;
    plain an_identity_token_in_the_callback_does_no_harm;
    plain a_refresh_token_that_stays_may_be_left_out;
    plain a_wrong_client_secret_is_not_a_lost_grant;
    plain a_refresh_during_an_outage_is_unknown_and_works_later;
    plain a_refresh_is_not_the_probe_of_a_failing_service;
    plain a_refresh_is_the_probe_if_there_is_no_other_request;
}

async fn a_login_returns_tokens_that_the_apis_accept() {
    let simulator = start(|_| {}).await;

    let entered = log_in(&provider(&simulator), Area::Accounting).await;

    let client = Client::accounting(&simulator).token(entered.granted.access.reveal());
    assert!(!client.companies().await.is_empty());
    assert!(entered.claims.text("email").is_some());
    assert_eq!(entered.claims.text("client_id"), Some("simulated-client"));
    // By the provider's clock, which shows another day than this machine's.
    let left = entered.granted.access_expires_ms.unwrap() - entered.claims.ends_ms;
    assert!(left.abs() < 30_000, "{left} ms apart");
}

async fn each_area_has_its_own_scopes() {
    let simulator = start(|_| {}).await;
    let mut provider = provider(&simulator);

    assert_eq!(log_in(&provider, Area::Accounting).await.scopes, ACCOUNTING_SCOPES);
    assert_eq!(log_in(&provider, Area::Payroll).await.scopes, PAYROLL_SCOPES);
    let narrow = ["openid", "offline_access", "IDInfo"].map(str::to_owned).to_vec();
    provider.oauth.logins.payroll.scopes.clone_from(&narrow);
    assert_eq!(log_in(&provider, Area::Payroll).await.scopes, narrow);
    assert_eq!(log_in(&provider, Area::Accounting).await.scopes, ACCOUNTING_SCOPES);
    provider.oauth.logins.accounting.scopes.clone_from(&narrow);
    assert_eq!(log_in(&provider, Area::Accounting).await.scopes, narrow);
}

async fn a_login_works_over_tls_with_the_configured_authority() {
    let simulator = start(|settings| settings.tls = Tls::Generated).await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ca.pem");
    std::fs::write(&path, simulator.certificate().unwrap()).unwrap();
    let mut provider = provider(&simulator);

    let stranger = refresh(&identity(&provider), &Secret::new("r")).await;
    assert!(matches!(stranger, RefreshOutcome::NotSent(identity::Error::Unreachable(_))), "{stranger:?}");
    provider.transport.authorities = Some(path);
    let entered = log_in(&provider, Area::Payroll).await;
    refreshed(&identity(&provider), &entered.granted.refresh.unwrap()).await;
}

async fn pkce_is_used_only_if_configured() {
    let simulator = start(|_| {}).await;
    let mut provider = provider(&simulator);

    for (knob, pkce, works) in [
        (Pkce::Refused, false, true),
        (Pkce::Refused, true, false),
        (Pkce::Required, true, true),
        (Pkce::Allowed, true, true),
        (Pkce::Allowed, false, true),
    ] {
        simulator.provider().turn(|knobs| knobs.identity.pkce = knob);
        provider.oauth.pkce = pkce;
        let login = PendingLogin::begin(&provider, Area::Accounting, REDIRECT, &clock()).unwrap();
        let code = login.accept(&press(&provider, login.address()).await).unwrap();

        let finished = login.finish(code).await;

        assert_eq!(finished.is_ok(), works, "{knob:?}, {pkce}: {finished:?}");
    }
}

/// An access and a refresh token of a service that has failed until its circuit opened.
async fn left_alone(simulator: &Simulator) -> (identity::Identity, Secret, Secret) {
    let provider = provider(simulator);
    let granted = log_in(&provider, Area::Accounting).await.granted;
    let (access, token) = (granted.access, granted.refresh.unwrap());
    let identity = identity(&provider);
    simulator.provider().turn(|knobs| knobs.identity.unavailable = 5);
    for _ in 0..5 {
        let outcome = refresh(&identity, &token).await;
        assert!(
            matches!(outcome, RefreshOutcome::Unknown(identity::Error::Unavailable { .. })),
            "{outcome:?}"
        );
    }
    (identity, access, token)
}

async fn a_refresh_is_not_the_probe_of_a_failing_service() {
    let simulator = start(|_| {}).await;
    let (identity, access, token) = left_alone(&simulator).await;
    let count = || simulator.provider().identity.exchange_count();
    let before = count();

    let refused = refresh(&identity, &token).await;
    let RefreshOutcome::NotSent(error @ identity::Error::Resting { .. }) = refused else {
        panic!("{refused:?}")
    };
    assert!(matches!(error.retry(), Retry::After(_)), "{error:?}");
    assert_eq!(count(), before, "a token was presented to a service that is left alone");

    // The keys are requested at the same time: that request is the probe, and fails.
    let faults = vec![IdentityFault {
        on: IdentityEndpoint::Discovery,
        effect: Effect::Status(HttpStatus::try_from(503).unwrap()),
        times: Some(1),
        after_work: false,
    }];
    simulator.provider().turn(|knobs| knobs.identity.faults = faults);
    let check = TokenVerifier::new(&identity, &provider(&simulator).oauth).unwrap();
    let (checked, _) = tokio::join!(check.access(&access), identity.ready());
    let failed = checked.unwrap_err();
    assert!(matches!(failed, check::Error::Keys(keys::Error::Fetch(_))), "{failed:?}");
    assert_eq!(count(), before, "a token was the probe");

    let answered = async {
        loop {
            if identity.ready().await.is_ok()
                && let RefreshOutcome::Granted(_) = refresh(&identity, &token).await
            {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), answered).await.unwrap();
    assert_eq!(count(), before + 1);
}

async fn a_refresh_is_the_probe_if_there_is_no_other_request() {
    let simulator = start(|_| {}).await;
    let (identity, _, token) = left_alone(&simulator).await;

    identity.ready().await.unwrap();
    let granted = refreshed(&identity, &token).await;

    assert!(granted.refresh.is_some());
    refreshed(&identity, &granted.refresh.unwrap()).await;
}

async fn a_code_is_redeemed_once() {
    let simulator = start(|_| {}).await;
    let provider = provider(&simulator);
    let identity = identity(&provider);
    let fresh = async || {
        let login = PendingLogin::begin(&provider, Area::Accounting, REDIRECT, &clock()).unwrap();
        let query = press(&provider, login.address()).await;
        Secret::new(query.split('&').find_map(|part| part.strip_prefix("code=")).unwrap())
    };
    let code = fresh().await;

    identity.redeem(&code, REDIRECT, None).await.unwrap();
    let again = identity.redeem(&code, REDIRECT, None).await.unwrap_err();
    let elsewhere =
        identity.redeem(&fresh().await, "http://localhost:8400/Callback", None).await.unwrap_err();

    let code = |error| match error {
        identity::Error::Refused { code } => code,
        other => panic!("{other:?}"),
    };
    assert_eq!(code(again), OAuthCode::InvalidGrant);
    assert_eq!(code(elsewhere).to_string(), "unauthorized_client");
}

async fn an_identity_token_in_the_callback_does_no_harm() {
    let simulator = start(|_| {}).await;
    simulator.provider().turn(|knobs| knobs.identity.callback_id_token = true);
    let provider = provider(&simulator);
    let login = PendingLogin::begin(&provider, Area::Accounting, REDIRECT, &clock()).unwrap();
    let query = press(&provider, login.address()).await;
    assert!(query.contains("id_token="), "{query}");

    let code = login.accept(&query).unwrap();

    login.finish(code).await.unwrap();
}

async fn a_refresh_token_that_stays_may_be_left_out() {
    let simulator = start(|_| {}).await;
    simulator.provider().turn(|knobs| {
        knobs.identity.rotate_absolute = false;
        knobs.identity.omit_unrotated = true;
    });
    let provider = provider(&simulator);
    let first = log_in(&provider, Area::Accounting).await.granted;
    let identity = identity(&provider);
    let token = first.refresh.unwrap();
    pass(&simulator, 60);

    let second = refreshed(&identity, &token).await;

    assert!(second.refresh.is_none());
    assert_ne!(second.access.reveal(), first.access.reveal());
    assert!(second.access_expires_ms > first.access_expires_ms);
}

async fn a_wrong_client_secret_is_not_a_lost_grant() {
    let simulator = start(|_| {}).await;
    let mut provider = provider(&simulator);
    let token = log_in(&provider, Area::Accounting).await.granted.refresh.unwrap();
    provider.oauth.client_secret = Secret::new("wrong");

    for (knob, expected) in
        [(BadClient::InvalidClient, "invalid_client"), (BadClient::UnauthorizedClient, "unauthorized_client")]
    {
        simulator.provider().turn(|knobs| knobs.identity.bad_client = knob);
        let refused = refresh(&identity(&provider), &token).await;
        assert!(
            matches!(&refused, RefreshOutcome::Refused(code) if code.to_string() == expected),
            "{refused:?}"
        );
    }
    simulator.provider().identity.revoke_all(simulator.provider().clock.now());
    provider.oauth.client_secret = Secret::new("simulated-secret");
    let lost = refresh(&identity(&provider), &token).await;
    assert!(matches!(lost, RefreshOutcome::Refused(OAuthCode::InvalidGrant)), "{lost:?}");
}

async fn a_refresh_during_an_outage_is_unknown_and_works_later() {
    let simulator = start(|_| {}).await;
    let provider = provider(&simulator);
    let token = log_in(&provider, Area::Accounting).await.granted.refresh.unwrap();
    simulator.provider().turn(|knobs| knobs.identity.unavailable = 1);
    let identity = identity(&provider);

    let away = refresh(&identity, &token).await;

    // A proxy may answer so after its service has done the work.
    assert!(
        matches!(away, RefreshOutcome::Unknown(identity::Error::Unavailable { status: 503, .. })),
        "{away:?}"
    );
    // Here it had not, and the token is valid for another try.
    refreshed(&identity, &token).await;
}
