//! The journal of exchanges and the faults of the identity provider, through its routes.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod exchanges;
mod faults;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{
    body::{Body, to_bytes},
    http::{HeaderMap, Request},
};
use serde_json::Value;
use tower_service::Service as _;
use url::{Url, form_urlencoded};

use server::HangUp;

use crate::{
    Provider,
    clock::{midnight, ticks},
    identity::{AUTHORIZE, TOKEN, router},
    knobs::IdentityKnobs,
    settings::Settings,
};

const REDIRECT: &str = "https://client.example/callback";
const ACCOUNTING: &str = "offline_access openid SVC.ES.NEWPOL.COR.API SVC.ES.NEWPOL.ACC.API SVC.ES.NEWPOL.MNG.API \
                          SVC.ES.Webhooks";
const DAY: u64 = 86_400;

/// A provider of its own for each test, its clock standing at a midnight.
struct Simulated(Arc<Provider>);

/// An answer, read to its end.
#[derive(Debug)]
struct Answer {
    status: u16,
    headers: HeaderMap,
    text: String,
    hung_up: bool,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap()
    }

    /// A member that is a text.
    fn member(&self, name: &str) -> String {
        self.json()[name].as_str().unwrap_or_else(|| panic!("no {name} in {}", self.text)).to_owned()
    }

    /// Where it redirects to, and the parameters there.
    fn location(&self) -> (Url, BTreeMap<String, String>) {
        assert_eq!(self.status, 302, "{}", self.text);
        let url = Url::parse(self.headers["location"].to_str().unwrap()).unwrap();
        let parameters = url.query_pairs().into_owned().collect();
        (url, parameters)
    }
}

impl Simulated {
    fn new() -> Self {
        let settings = Settings { frozen_at: midnight(2026, 11, 15), ..Settings::default() };
        Self(Provider::new(settings).unwrap())
    }

    fn turn(&self, change: impl FnOnce(&mut IdentityKnobs)) {
        self.0.turn(|knobs| change(&mut knobs.identity));
    }

    fn advance(&self, seconds: u64) {
        self.0.clock.advance(ticks(Duration::from_secs(seconds)));
    }

    async fn call(&self, request: Request<Body>) -> Answer {
        let mut router = router(&self.0.identity);
        let response = router.call(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = to_bytes(body, 1 << 20).await.unwrap();
        Answer {
            status: parts.status.as_u16(),
            hung_up: parts.extensions.get::<HangUp>().is_some(),
            headers: parts.headers,
            text: String::from_utf8(body.to_vec()).unwrap(),
        }
    }

    async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        let mut request = Request::get(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.call(request.body(Body::empty()).unwrap()).await
    }

    async fn authorize(&self, parameters: &[(&str, &str)]) -> Answer {
        self.get(&format!("{AUTHORIZE}?{}", encode(parameters)), &[]).await
    }

    /// Logs in at once; the code.
    async fn code(&self, scope: &str) -> String {
        let mut parameters = request(scope);
        parameters.push(("auto", "1"));
        self.authorize(&parameters).await.location().1.remove("code").unwrap()
    }

    async fn token(&self, parameters: &[(&str, &str)]) -> Answer {
        let request = Request::post(TOKEN).header("content-type", "application/x-www-form-urlencoded");
        self.call(request.body(Body::from(encode(parameters))).unwrap()).await
    }

    async fn redeem(&self, code: &str) -> Answer {
        self.token(&exchange(code)).await
    }

    async fn refresh(&self, token: &str) -> Answer {
        let mut parameters = credentials();
        parameters.extend([("grant_type", "refresh_token"), ("refresh_token", token)]);
        self.token(&parameters).await
    }

    /// Logs in and redeems; the first answer.
    async fn login(&self, scope: &str) -> Answer {
        let answer = self.redeem(&self.code(scope).await).await;
        assert_eq!(answer.status, 200, "{}", answer.text);
        answer
    }
}

fn encode(parameters: &[(&str, &str)]) -> String {
    form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish()
}

/// An authorization request that passes.
fn request(scope: &str) -> Vec<(&str, &str)> {
    vec![
        ("client_id", "simulated-client"),
        ("response_type", "code"),
        ("redirect_uri", REDIRECT),
        ("scope", scope),
        ("state", "a state"),
        ("nonce", "a nonce"),
    ]
}

fn credentials() -> Vec<(&'static str, &'static str)> {
    vec![("client_id", "simulated-client"), ("client_secret", "simulated-secret")]
}

/// A code exchange that passes.
fn exchange(code: &str) -> Vec<(&str, &str)> {
    let mut parameters: Vec<(&str, &str)> = credentials();
    parameters.extend([("code", code), ("grant_type", "authorization_code"), ("redirect_uri", REDIRECT)]);
    parameters
}

/// The request with one parameter changed, or left out.
fn changed<'a>(
    parameters: &[(&'a str, &'a str)],
    name: &'a str,
    value: Option<&'a str>,
) -> Vec<(&'a str, &'a str)> {
    let others = parameters.iter().copied().filter(|(other, _)| *other != name);
    others.chain(value.map(|value| (name, value))).collect()
}
