//! Step 3: the token endpoint, which exchanges codes and refresh tokens for access tokens.
//!
//! ```text
//! request ─▶ form ─▶ latency ─▶ unavailable? ─▶ client ─▶ grants ─▶ sign ─▶ answer ─▶ its latency ─▶ lost?
//! ```
//!
//! Knobs delay or lose an answer only after all work was done: the code is used, the refresh token rotated. Every code and
//! refresh token that a form presents is in the journal of exchanges, even if the client left before it was looked up. A body
//! that is not a form, or repeats a parameter, presents nothing.

use std::sync::Arc;

use axum::{
    body::Bytes,
    extract::{State, rejection::BytesRejection},
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use server::HangUp;

use super::{
    AnswerFate, ExchangeKind, ExchangeOutcome, IdentityProvider,
    exchanges::{ExchangeRecord, PresentedToken, record_undecided},
    faults::ActiveFault,
    grants::Exchanged,
    has_type,
    oauth_error::OAuthError,
    parameters::Parameters,
};
use crate::{
    answer::json_answer,
    knobs::{BadClient, IdentityEndpoint, IdentityKnobs, Latency},
    settings::OAuthClient,
};

/// POST `/auth/core/connect/token`.
pub(super) async fn token(
    State(identity): State<Arc<IdentityProvider>>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let fault = ActiveFault::new(&identity.core, IdentityEndpoint::Token);
    let form = read(&headers, body);
    let mut record = ExchangeRecord::new(&identity, form.as_ref().ok());
    wait(&identity, |knobs| &knobs.latency).await;
    let (mut response, unchanged) = match replacement(&identity, &fault).await {
        Some(response) => {
            record.set_undecided();
            (response, true)
        }
        None => {
            let (number, answer) = match &form {
                Ok(form) => answer(&identity, form),
                Err(refusal) => (None, Err(*refusal)),
            };
            record.set_decided(number);
            exchange(&identity, answer, fault).await
        }
    };
    record.end(if response.extensions().get::<HangUp>().is_some() {
        AnswerFate::Lost
    } else if unchanged {
        AnswerFate::Sent
    } else {
        AnswerFate::Spoiled
    });
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::PRAGMA, HeaderValue::from_static("no-cache"));
    response
}

/// The answer that replaces any work.
async fn replacement(identity: &IdentityProvider, fault: &ActiveFault) -> Option<Response> {
    if let Some(response) = fault.before(identity).await {
        return Some(response);
    }
    // Counting may copy all knobs, so look first.
    if identity.core.knobs().identity.unavailable == 0 {
        return None;
    }
    let was_left = identity.core.use_up(|knobs| {
        let left = knobs.unavailable;
        knobs.unavailable = left.saturating_sub(1);
        left > 0
    });
    was_left.then(|| {
        let description = "the service is unavailable";
        OAuthError { status: 503, error: "temporarily_unavailable", description }.into_response()
    })
}

/// The answer after its faults, and whether it is unchanged.
async fn exchange(
    identity: &IdentityProvider,
    answer: Result<Value, OAuthError>,
    fault: ActiveFault,
) -> (Response, bool) {
    let response = match answer {
        Ok(tokens) => json_answer(200, &tokens),
        Err(refusal) => refusal.into_response(),
    };
    wait(identity, |knobs| &knobs.answer_latency).await;
    fault.after(identity, response).await
}

async fn wait(identity: &IdentityProvider, latency: impl FnOnce(&IdentityKnobs) -> &Latency) {
    let wait = identity.latency(latency(&identity.core.knobs().identity));
    if !wait.is_zero() {
        tokio::time::sleep(wait).await;
    }
}

/// Reads the form of a request.
fn read(headers: &HeaderMap, body: Result<Bytes, BytesRejection>) -> Result<Parameters, OAuthError> {
    const ONCE: &str = "client_id client_secret grant_type code redirect_uri refresh_token code_verifier";
    let body = body.map_err(|rejection| OAuthError {
        status: rejection.status().as_u16(),
        ..OAuthError::request("the body is too long or did not arrive")
    })?;
    if !has_type(headers, "application/x-www-form-urlencoded") {
        return Err(OAuthError::request("the body must be application/x-www-form-urlencoded"));
    }
    let parameters = Parameters::parse(&body);
    if parameters.repeats(ONCE) {
        return Err(OAuthError::request("a parameter was sent more than once"));
    }
    Ok(parameters)
}

/// The answer, and the number of the journal entry if there is one.
fn answer(identity: &IdentityProvider, parameters: &Parameters) -> (Option<u64>, Result<Value, OAuthError>) {
    let knobs = identity.core.knobs();
    let knobs = &knobs.identity;
    if !is_client(parameters, &identity.core.settings.client) {
        return (
            record_undecided(identity, parameters, ExchangeOutcome::Client),
            Err(wrong_client(knobs.bad_client)),
        );
    }
    let missing = match parameters.get("grant_type") {
        Some("authorization_code") => OAuthError::grant("code is missing"),
        Some("refresh_token") => OAuthError::request("refresh_token is missing"),
        _ => {
            let description = "grant_type must be authorization_code or refresh_token";
            OAuthError::other("unsupported_grant_type", description)
        }
    };
    let Some(presented) = PresentedToken::read(parameters) else { return (None, Err(missing)) };
    let now = identity.core.clock.now();
    // Ends the lock before tokens are signed.
    let (number, exchanged) = identity.grants.lock().exchange(presented, parameters, knobs, now);
    let answer = exchanged.map(|Exchanged { grant, refresh, rotated }| {
        // Only the identity token of the login has the nonce.
        let nonce = grant.nonce.as_deref().filter(|_| presented.kind == ExchangeKind::Code);
        let refreshed = knobs.refreshed_tenant.as_deref().filter(|_| presented.kind == ExchangeKind::Refresh);
        let tenant = refreshed.or(grant.tenant.as_deref());
        let (access_token, id_token) = identity.issue(&grant, nonce, tenant, knobs, now);
        let mut tokens = json!({
            "access_token": access_token,
            "id_token": id_token,
            "expires_in": knobs.access_seconds,
            "token_type": "Bearer",
        });
        if let Some(refresh) = refresh.filter(|_| rotated || !knobs.omit_unrotated) {
            tokens["refresh_token"] = json!(refresh);
        }
        tokens
    });
    (Some(number), answer)
}

/// Whether id and secret are correct.
fn is_client(parameters: &Parameters, client: &OAuthClient) -> bool {
    parameters.get("client_id") == Some(&client.id) && parameters.get("client_secret") == Some(&client.secret)
}

fn wrong_client(how: BadClient) -> OAuthError {
    let description = "the client is unknown or its secret is wrong";
    match how {
        BadClient::InvalidClient => OAuthError { status: 400, error: "invalid_client", description },
        BadClient::UnauthorizedClient => {
            OAuthError { status: 401, error: "unauthorized_client", description }
        }
    }
}
