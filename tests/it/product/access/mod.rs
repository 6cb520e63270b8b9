//! Logins, refreshes and token verification against the simulated provider, over real sockets.

mod exchange;
mod faults;
mod token;

use std::{sync::Arc, time::Duration};

use base::secret::Secret;
use provider::{
    AreaLogin, AreaLogins, OAuth, Provider, Transport,
    auth::{
        Area,
        check::TokenVerifier,
        http::ProviderClock,
        identity::{Granted, Identity, RefreshOutcome},
        login::{CompletedLogin, PendingLogin},
    },
};
use reqwest::redirect;
use simulator::Simulator;
use tokio::time::Instant;
use url::Url;

use crate::support::{allowed_hosts, harness::Test};

pub(crate) fn tests() -> Vec<Test> {
    let parts = [exchange::tests(), faults::tests(), token::tests()];
    parts.into_iter().flatten().collect()
}

const REDIRECT: &str = "http://localhost:8400/callback";

/// Settings of the simulator's client.
pub(crate) fn provider(simulator: &Simulator) -> Provider {
    let limit = Duration::from_secs(30);
    let login = |grant: &str| AreaLogin { grant: grant.to_owned(), scopes: Vec::new() };
    Provider {
        base_url: simulator.base_url(),
        auth_url: simulator.auth_url(),
        subscription_key: Secret::new("simulated-subscription-key"),
        oauth: OAuth {
            client_id: "simulated-client".into(),
            client_secret: Secret::new("simulated-secret"),
            logins: AreaLogins {
                accounting: login("accounting"),
                payroll: login("payroll"),
                invoicing: login("invoicing"),
            },
            redirect_uri: None,
            pkce: false,
            issuers: Vec::new(),
            audiences: Vec::new(),
            keys: None,
            login_lifetime: None,
            idle_lifetime: None,
        },
        transport: Transport {
            connect: limit,
            read: limit,
            request: limit,
            response_limit: 1 << 20,
            authorities: None,
            hosts: allowed_hosts(),
        },
    }
}

/// A clock with five minutes of leeway.
fn clock() -> ProviderClock {
    ProviderClock::new(Duration::from_secs(300))
}

fn identity(provider: &Provider) -> Identity {
    Identity::new(provider, clock()).unwrap()
}

/// The identity service and its token verifier.
fn checked(provider: &Provider) -> (Identity, TokenVerifier) {
    let identity = identity(provider);
    let check = TokenVerifier::new(&identity, &provider.oauth).unwrap();
    (identity, check)
}

/// Logs in at this URL and returns the query of the callback. The browser follows no redirect.
async fn press(provider: &Provider, address: &Url) -> String {
    let mut browser = reqwest::Client::builder().no_proxy().redirect(redirect::Policy::none());
    if let Some(path) = &provider.transport.authorities {
        let pem = std::fs::read(path).unwrap();
        browser = browser.tls_certs_only([reqwest::Certificate::from_pem(&pem).unwrap()]);
    }
    let mut address = address.clone();
    address.query_pairs_mut().append_pair("auto", "");
    let answer = browser.build().unwrap().get(address).send().await.unwrap();
    assert_eq!(answer.status(), 302, "{answer:?}");
    let location = Url::parse(answer.headers()["location"].to_str().unwrap()).unwrap();
    assert!(location.as_str().starts_with(REDIRECT), "{location}");
    location.query().unwrap().to_owned()
}

/// A complete login.
async fn log_in(provider: &Provider, area: Area) -> CompletedLogin {
    let login = PendingLogin::begin(provider, area, REDIRECT, &clock()).unwrap();
    let query = press(provider, login.address()).await;
    let code = login.accept(&query).unwrap();
    login.finish(code).await.unwrap()
}

/// Presents a refresh token.
async fn refresh(identity: &Identity, token: &Secret) -> RefreshOutcome {
    let end = Instant::now() + Duration::from_secs(30);
    identity.refresh(token, Arc::new(|| true), end).await
}

/// Presents a refresh token that must be accepted.
async fn refreshed(identity: &Identity, token: &Secret) -> Granted {
    match refresh(identity, token).await {
        RefreshOutcome::Granted(granted) => granted,
        other => panic!("{other:?}"),
    }
}
