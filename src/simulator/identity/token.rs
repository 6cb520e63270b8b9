//! Step 3 and after: the token endpoint, where codes and refresh tokens become access tokens.
//!
//! ```text
//! request ─▶ latency ─▶ unavailable? ─▶ form ─▶ client ─▶ ledger ─▶ sign ─▶ answer ─▶ lost?
//! ```
//!
//! An answer that a knob loses is lost after all work was done: the code is used, the refresh token rotated.

use std::sync::Arc;

use axum::{
    body::Bytes,
    extract::{State, rejection::BytesRejection},
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse, Response},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Serialize;
use url::form_urlencoded;

use super::{
    ledger::{Exchange, Grant},
    parameters::Parameters,
    refusal::Refusal,
};
use crate::{
    server::HangUp,
    simulator::{
        Provider,
        answer::bytes_answer,
        clock::Ticks,
        knobs::{BadClient, IdentityKnobs},
        settings::Client,
    },
};

/// The document's fields, in its order.
#[derive(Debug, Serialize)]
struct Answer {
    access_token: String,
    id_token: String,
    expires_in: u64,
    token_type: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    refresh_token: Option<String>,
}

/// POST `/auth/core/connect/token`.
pub(super) async fn token(
    State(provider): State<Arc<Provider>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let wait = provider.identity.latency(&provider.knobs().identity.latency);
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
    // Turning a knob copies all of them, so that is done only where there is something to use up.
    let unavailable = provider.knobs().identity.unavailable > 0;
    let mut response = if unavailable && take(&provider, |knobs| &mut knobs.unavailable) {
        let description = "the service is unavailable";
        Refusal { status: 503, error: "temporarily_unavailable", description }.into_response()
    } else {
        let mut response = match answer(&provider, &headers, body) {
            Ok(answer) => bytes_answer(200, serde_json::to_vec(&answer).unwrap_or_default()),
            Err(refusal) => refusal.into_response(),
        };
        let lost = provider.knobs().identity.lose_answers > 0;
        if lost && take(&provider, |knobs| &mut knobs.lose_answers) {
            response.extensions_mut().insert(HangUp);
        }
        response
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::PRAGMA, HeaderValue::from_static("no-cache"));
    response
}

/// Uses up one of a knob's count, if one is left.
fn take(provider: &Provider, count: impl FnOnce(&mut IdentityKnobs) -> &mut u32) -> bool {
    let mut taken = false;
    provider.turn(|knobs| {
        let count = count(&mut knobs.identity);
        taken = *count > 0;
        *count = count.saturating_sub(1);
    });
    taken
}

fn answer(
    provider: &Provider,
    headers: &HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Answer, Refusal> {
    const ONCE: [&str; 7] = [
        "client_id",
        "client_secret",
        "grant_type",
        "code",
        "redirect_uri",
        "refresh_token",
        "code_verifier",
    ];
    let body = body.map_err(|rejection| Refusal {
        status: rejection.status().as_u16(),
        ..Refusal::request("the body is too long or did not arrive")
    })?;
    if !is_form(headers) {
        return Err(Refusal::request("the body must be application/x-www-form-urlencoded"));
    }
    let parameters = Parameters::parse(&body);
    if parameters.repeated(&ONCE).is_some() {
        return Err(Refusal::request("a parameter was sent more than once"));
    }
    let knobs = provider.knobs();
    let knobs = &knobs.identity;
    if !is_client(headers, &parameters, &provider.settings.client) {
        return Err(wrong_client(knobs.bad_client));
    }
    match parameters.get("grant_type") {
        Some("authorization_code") => redeem(provider, &parameters, knobs),
        Some("refresh_token") => refresh(provider, &parameters, knobs),
        _ => Err(Refusal::other(
            "unsupported_grant_type",
            "grant_type must be authorization_code or refresh_token",
        )),
    }
}

fn redeem(provider: &Provider, parameters: &Parameters, knobs: &IdentityKnobs) -> Result<Answer, Refusal> {
    let now = provider.clock.now();
    let code = parameters.get("code").ok_or(Refusal::grant("code is missing"))?;
    let (redirect, verifier) = (parameters.get("redirect_uri"), parameters.get("code_verifier"));
    // A statement of its own, so that the ledger is free again while tokens are signed.
    let exchange = provider.identity.ledger().redeem(code, redirect, verifier, knobs, now)?;
    let Exchange { grant, refresh, .. } = exchange;
    Ok(issue(provider, &grant, grant.nonce.as_deref(), refresh, knobs, now))
}

fn refresh(provider: &Provider, parameters: &Parameters, knobs: &IdentityKnobs) -> Result<Answer, Refusal> {
    let now = provider.clock.now();
    let token = parameters.get("refresh_token").ok_or(Refusal::request("refresh_token is missing"))?;
    let exchange = provider.identity.ledger().refresh(token, knobs, now)?;
    let Exchange { grant, refresh, rotated } = exchange;
    // Only the identity token of the login itself carries the nonce.
    let refresh = refresh.filter(|_| rotated || !knobs.omit_unrotated);
    Ok(issue(provider, &grant, None, refresh, knobs, now))
}

fn issue(
    provider: &Provider,
    grant: &Arc<Grant>,
    nonce: Option<&str>,
    refresh_token: Option<String>,
    knobs: &IdentityKnobs,
    now: Ticks,
) -> Answer {
    let (access_token, id_token) = provider.identity.issue(grant, nonce, knobs, now);
    let expires_in = knobs.access_seconds;
    Answer { access_token, id_token, expires_in, token_type: "Bearer", refresh_token }
}

fn is_form(headers: &HeaderMap) -> bool {
    let value = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let essence = value.split(';').next().unwrap_or_default().trim();
    essence.eq_ignore_ascii_case("application/x-www-form-urlencoded")
}

/// Whether id and secret are the client's: from the `Authorization` header if there is one, else from the body.
fn is_client(headers: &HeaderMap, parameters: &Parameters, client: &Client) -> bool {
    let in_body = |name| parameters.get(name);
    let Some(header) = headers.get(header::AUTHORIZATION) else {
        return in_body("client_id") == Some(&client.id) && in_body("client_secret") == Some(&client.secret);
    };
    let Some((id, secret)) = header.to_str().ok().and_then(basic) else {
        return false;
    };
    // The standard wants both form-encoded inside Basic; many clients send them as they are.
    let same = |sent: &str, expected: &str| sent == expected || decoded(sent) == expected;
    let same_as_body = in_body("client_id").is_none_or(|sent| sent == client.id);
    same(&id, &client.id) && same(&secret, &client.secret) && same_as_body
}

/// Name and password of a `Basic` header.
fn basic(value: &str) -> Option<(String, String)> {
    let (scheme, encoded) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let text = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    text.split_once(':').map(|(id, secret)| (id.to_owned(), secret.to_owned()))
}

fn decoded(text: &str) -> String {
    // A lone value, so that `=` and `&` in it stay what they are once decoded.
    form_urlencoded::parse(text.as_bytes()).next().map_or_else(String::new, |(name, _)| name.into_owned())
}

fn wrong_client(how: BadClient) -> Refusal {
    let description = "the client is unknown or its secret is wrong";
    match how {
        BadClient::InvalidClient => Refusal { status: 400, error: "invalid_client", description },
        BadClient::UnauthorizedClient => Refusal { status: 401, error: "unauthorized_client", description },
    }
}
