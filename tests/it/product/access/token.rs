//! Verification of the provider's tokens, with the provider's own keys.

use base::secret::Secret;
use provider::auth::{
    Area,
    check::Error,
    keys,
    token::{Claims, TokenRule},
};
use simulator::Simulator;

use super::{checked, log_in, provider, refreshed};
use crate::product::simulator::{ACCOUNTING_SCOPES, pass, start};

crate::tests! {
    plain a_token_expires_by_the_providers_clock;
    plain a_clock_that_is_off_by_a_day_makes_no_difference;
    plain issuer_and_audience_are_configurable;
    plain a_rotated_key_is_found_without_a_restart;
    plain a_withdrawn_key_is_not_trusted_by_new_verifiers;
    plain keys_of_a_file_replace_published_ones;
    plain an_identity_token_is_no_access_token;
}

/// An access token with these scopes.
fn issued(simulator: &Simulator, scopes: &[&str]) -> Secret {
    Secret::new(simulator.provider().identity.grant(scopes).0)
}

fn rule(checked: Result<Claims, Error>) -> TokenRule {
    match checked {
        Err(Error::Rule(rule)) => rule,
        other => panic!("{other:?}"),
    }
}

async fn a_token_expires_by_the_providers_clock() {
    let simulator = start(|_| {}).await;
    let (identity, check) = checked(&provider(&simulator));
    let (access, refresh) = {
        let provider = simulator.provider();
        let (access, refresh) = provider.identity.grant(&ACCOUNTING_SCOPES);
        (Secret::new(access), Secret::new(refresh))
    };
    check.access(&access).await.unwrap();

    // The provider's clock is frozen, ours is not: it is learned from every response.
    pass(&simulator, 3_600 + 200);
    let second = refreshed(&identity, &refresh).await;
    check.access(&access).await.unwrap();
    pass(&simulator, 160);
    refreshed(&identity, &second.refresh.unwrap()).await;

    assert!(matches!(rule(check.access(&access).await), TokenRule::Expired { seconds: 360..=400 }));
    check.access(&second.access).await.unwrap();
}

async fn a_clock_that_is_off_by_a_day_makes_no_difference() {
    for days in [-1, 1] {
        let simulator = start(|settings| settings.frozen_at = None).await;
        pass(&simulator, days * 86_400);
        let provider = provider(&simulator);

        let entered = log_in(&provider, Area::Accounting).await;
        let (identity, check) = checked(&provider);
        let granted = refreshed(&identity, &entered.granted.refresh.unwrap()).await;
        let claims = check.access(&granted.access).await.unwrap();

        let left = claims.ends_ms - identity.clock().now_ms();
        assert!((3_500_000..=3_700_000).contains(&left), "{days} days off: ends in {left} ms");
        let difference = granted.access_expires_ms.unwrap() - claims.ends_ms;
        assert!(difference.abs() < 30_000, "{days} days off: {difference} ms apart");
    }
}

async fn issuer_and_audience_are_configurable() {
    let simulator = start(|_| {}).await;
    let mut provider = provider(&simulator);
    let token = issued(&simulator, &ACCOUNTING_SCOPES);
    let claims = checked(&provider).1.access(&token).await.unwrap();
    let (issuer, audience) = (claims.issuer.unwrap(), claims.audiences[0].clone());

    provider.oauth.issuers = vec!["https://other.example".into(), issuer.clone()];
    provider.oauth.audiences = vec!["other".into(), audience.clone()];
    checked(&provider).1.access(&token).await.unwrap();
    provider.oauth.audiences = vec!["any".into()];
    checked(&provider).1.access(&token).await.unwrap();
    provider.oauth.audiences = vec![format!("{audience}/")];
    let refused = rule(checked(&provider).1.access(&token).await);
    assert!(matches!(&refused, TokenRule::Audience { found } if *found == audience), "{refused:?}");
    provider.oauth.issuers = vec!["https://other.example".into()];
    let refused = rule(checked(&provider).1.access(&token).await);
    assert!(matches!(&refused, TokenRule::Issuer { found } if *found == issuer), "{refused:?}");
    assert!(refused.to_string().contains("oauth.issuers"), "{refused}");
    provider.oauth.issuers.clear();
    provider.oauth.audiences.clear();
    provider.oauth.client_id = "other".into();
    assert_eq!(rule(checked(&provider).1.access(&token).await), TokenRule::Client);
}

async fn a_rotated_key_is_found_without_a_restart() {
    let simulator = start(|_| {}).await;
    let (_, check) = checked(&provider(&simulator));
    let before = issued(&simulator, &ACCOUNTING_SCOPES);
    check.access(&before).await.unwrap();

    simulator.provider().identity.rotate_keys(true).unwrap();
    let after = issued(&simulator, &ACCOUNTING_SCOPES);

    check.access(&after).await.unwrap();
    check.access(&before).await.unwrap();
}

async fn a_withdrawn_key_is_not_trusted_by_new_verifiers() {
    let simulator = start(|_| {}).await;
    let provider = provider(&simulator);
    let (_, knows) = checked(&provider);
    let before = issued(&simulator, &ACCOUNTING_SCOPES);
    knows.access(&before).await.unwrap();
    simulator.provider().identity.rotate_keys(false).unwrap();

    let refused = checked(&provider).1.access(&before).await;

    assert!(matches!(refused, Err(Error::Keys(keys::Error::Unknown { .. }))), "{refused:?}");
    // A verifier that has the key set uses it for a day.
    knows.access(&before).await.unwrap();
}

async fn keys_of_a_file_replace_published_ones() {
    let simulator = start(|_| {}).await;
    let mut provider = provider(&simulator);
    let token = issued(&simulator, &ACCOUNTING_SCOPES);
    let issuer = checked(&provider).1.access(&token).await.unwrap().issuer.unwrap();
    let set = key_set(&simulator).await;
    let directory = tempfile::tempdir().unwrap();
    let entry: serde_json::Value = serde_json::from_str(&set).unwrap();
    let certificate = entry["keys"][0]["x5c"][0].as_str().unwrap();
    let pem = format!("-----BEGIN CERTIFICATE-----\n{certificate}\n-----END CERTIFICATE-----\n");

    for (name, content) in [("set.json", &set), ("certificate.pem", &pem)] {
        let path = directory.path().join(name);
        std::fs::write(&path, content).unwrap();
        provider.oauth.keys = Some(path);
        provider.oauth.issuers = vec![issuer.clone()];
        let (_, check) = checked(&provider);
        check.access(&token).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    // Only the file counts, even after the provider has rotated its keys.
    simulator.provider().identity.rotate_keys(true).unwrap();
    let (_, check) = checked(&provider);
    let refused = check.access(&issued(&simulator, &ACCOUNTING_SCOPES)).await;
    assert!(matches!(refused, Err(Error::Rule(TokenRule::Signature))), "{refused:?}");
}

/// The published key set.
pub(super) async fn key_set(simulator: &Simulator) -> String {
    let address = format!("{}auth/core/.well-known/jwks", simulator.auth_url());
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    client.get(address).send().await.unwrap().text().await.unwrap()
}

async fn an_identity_token_is_no_access_token() {
    let simulator = start(|_| {}).await;
    let provider = provider(&simulator);
    let granted = log_in(&provider, Area::Accounting).await.granted;

    let refused = rule(checked(&provider).1.access(&granted.identity.unwrap()).await);

    // Its audience is the client, not an API.
    assert_eq!(refused, TokenRule::Audience { found: provider.oauth.client_id.clone() });
}
