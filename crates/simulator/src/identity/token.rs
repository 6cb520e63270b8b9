//! Step 3 and after: the token endpoint, where codes and refresh tokens become access tokens.
//!
//! ```text
//! request ─▶ form ─▶ latency ─▶ unavailable? ─▶ client ─▶ ledger ─▶ sign ─▶ answer ─▶ its latency ─▶ lost?
//! ```
//!
//! An answer that a knob delays or loses is so after all work was done: the code is used, the refresh token rotated. Every
//! code and refresh token that a form presents is in the journal of exchanges, whatever came of it, also if the client left
//! before anybody looked. A form that is none, or names something twice, presents nothing.

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

use server::HangUp;

use super::{
    Answer, Outcome,
    exchanges::{OnItsWay, Presented},
    faults::Drawn,
    ledger::{Exchanged, Grant},
    parameters::Parameters,
    refusal::Refusal,
};
use crate::{
    Provider,
    answer::bytes_answer,
    clock::Ticks,
    knobs::{BadClient, Endpoint, IdentityKnobs, Latency},
    settings::Client,
};

/// The document's fields, in its order.
#[derive(Debug, Serialize)]
struct Tokens {
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
    let fault = Drawn::new(&provider, Endpoint::Token);
    let form = read(&headers, body);
    let unseen = Unseen::new(&provider, form.as_ref().ok());
    wait(&provider, |knobs| &knobs.latency).await;
    let instead = instead(&provider, &fault).await;
    unseen.seen();
    let mut response = match instead {
        Some(response) => {
            let number = form.as_ref().ok().and_then(|form| undecided(&provider, form, Outcome::Unavailable));
            let hung_up = response.extensions().get::<HangUp>().is_some();
            let answer = if hung_up { Answer::Lost } else { Answer::Sent };
            OnItsWay::new(&provider.identity, number).end(answer);
            response
        }
        None => exchange(&provider, &headers, form, fault).await,
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::PRAGMA, HeaderValue::from_static("no-cache"));
    response
}

/// What is answered before any work, if a knob says so.
async fn instead(provider: &Provider, fault: &Drawn) -> Option<Response> {
    if let Some(response) = fault.before(&provider.identity).await {
        return Some(response);
    }
    // Turning a knob copies all of them, so that is done only where there is something to use up.
    let unavailable = provider.knobs().identity.unavailable > 0;
    (unavailable && take(provider, |knobs| &mut knobs.unavailable)).then(|| {
        let description = "the service is unavailable";
        Refusal { status: 503, error: "temporarily_unavailable", description }.into_response()
    })
}

/// The work and its answer, or what knobs leave of that.
async fn exchange(
    provider: &Provider,
    headers: &HeaderMap,
    form: Result<Parameters, Refusal>,
    fault: Drawn,
) -> Response {
    let (number, answer) = match form {
        Ok(form) => answer(provider, headers, &form),
        Err(refusal) => (None, Err(refusal)),
    };
    let on_its_way = OnItsWay::new(&provider.identity, number);
    let response = match answer {
        Ok(tokens) => bytes_answer(200, serde_json::to_vec(&tokens).unwrap_or_default()),
        Err(refusal) => refusal.into_response(),
    };
    wait(provider, |knobs| &knobs.answer_latency).await;
    let (mut response, right) = fault.after(provider, response).await;
    let lost = provider.knobs().identity.lose_answers > 0;
    if lost && take(provider, |knobs| &mut knobs.lose_answers) {
        response.extensions_mut().insert(HangUp);
    }
    on_its_way.end(if response.extensions().get::<HangUp>().is_some() {
        Answer::Lost
    } else if right {
        Answer::Sent
    } else {
        Answer::Spoiled
    });
    response
}

async fn wait(provider: &Provider, latency: impl FnOnce(&IdentityKnobs) -> &Latency) {
    let wait = provider.identity.latency(latency(&provider.knobs().identity));
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
}

/// A form before anybody looks at it. If its client leaves meanwhile, that is noted.
struct Unseen<'a> {
    provider: &'a Provider,
    form: Option<&'a Parameters>,
}

impl<'a> Unseen<'a> {
    const fn new(provider: &'a Provider, form: Option<&'a Parameters>) -> Self {
        Self { provider, form }
    }

    /// Somebody looks at it now.
    fn seen(mut self) {
        self.form = None;
    }
}

impl Drop for Unseen<'_> {
    fn drop(&mut self) {
        if let Some(form) = self.form.take() {
            let number = undecided(self.provider, form, Outcome::Unavailable);
            OnItsWay::new(&self.provider.identity, number).end(Answer::Lost);
        }
    }
}

/// Notes an exchange that nobody looked at.
fn undecided(provider: &Provider, form: &Parameters, outcome: Outcome) -> Option<u64> {
    let presented = Presented::read(form)?;
    Some(provider.identity.exchanges.push(presented.decided(provider.clock.now(), None, outcome)))
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

/// The form of a request.
fn read(headers: &HeaderMap, body: Result<Bytes, BytesRejection>) -> Result<Parameters, Refusal> {
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
    Ok(parameters)
}

/// What is answered, and the number of the exchange's entry if there is one.
fn answer(
    provider: &Provider,
    headers: &HeaderMap,
    parameters: &Parameters,
) -> (Option<u64>, Result<Tokens, Refusal>) {
    let knobs = provider.knobs();
    let knobs = &knobs.identity;
    if !is_client(headers, parameters, &provider.settings.client) {
        return (undecided(provider, parameters, Outcome::Client), Err(wrong_client(knobs.bad_client)));
    }
    match parameters.get("grant_type") {
        Some("authorization_code") => redeem(provider, parameters, knobs),
        Some("refresh_token") => refresh(provider, parameters, knobs),
        _ => {
            let description = "grant_type must be authorization_code or refresh_token";
            (None, Err(Refusal::other("unsupported_grant_type", description)))
        }
    }
}

fn redeem(
    provider: &Provider,
    parameters: &Parameters,
    knobs: &IdentityKnobs,
) -> (Option<u64>, Result<Tokens, Refusal>) {
    let now = provider.clock.now();
    let Some(code) = parameters.get("code") else {
        return (None, Err(Refusal::grant("code is missing")));
    };
    let (redirect, verifier) = (parameters.get("redirect_uri"), parameters.get("code_verifier"));
    // A statement of its own, so that the ledger is free again while tokens are signed.
    let (number, exchanged) = provider.identity.ledger().redeem(code, redirect, verifier, knobs, now);
    let answer = exchanged.map(|Exchanged { grant, refresh, .. }| {
        issue(provider, &grant, grant.nonce.as_deref(), refresh, knobs, now)
    });
    (Some(number), answer)
}

fn refresh(
    provider: &Provider,
    parameters: &Parameters,
    knobs: &IdentityKnobs,
) -> (Option<u64>, Result<Tokens, Refusal>) {
    let now = provider.clock.now();
    let Some(token) = parameters.get("refresh_token") else {
        return (None, Err(Refusal::request("refresh_token is missing")));
    };
    let (number, exchanged) = provider.identity.ledger().refresh(token, knobs, now);
    let answer = exchanged.map(|Exchanged { grant, refresh, rotated }| {
        // Only the identity token of the login itself carries the nonce.
        let refresh = refresh.filter(|_| rotated || !knobs.omit_unrotated);
        issue(provider, &grant, None, refresh, knobs, now)
    });
    (Some(number), answer)
}

fn issue(
    provider: &Provider,
    grant: &Arc<Grant>,
    nonce: Option<&str>,
    refresh_token: Option<String>,
    knobs: &IdentityKnobs,
    now: Ticks,
) -> Tokens {
    let (access_token, id_token) = provider.identity.issue(grant, nonce, knobs, now);
    let expires_in = knobs.access_seconds;
    Tokens { access_token, id_token, expires_in, token_type: "Bearer", refresh_token }
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
