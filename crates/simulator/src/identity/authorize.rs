//! Step 1 and 2: the authorization request, the login page, and the way back with a code.
//!
//! Errors about the client or its redirect address are shown on a page and never sent to that address; all others go to
//! it. A request that passes shows a page with one button, or with the parameter `auto` logs in at once; the button sends the
//! same request with that parameter.

use std::sync::Arc;

use axum::{
    extract::{RawQuery, State},
    response::Response,
};

use super::{
    Identity, claims, oauth_error::OAuthError, page, parameters::Parameters, pkce::Challenge,
    redirect::Redirect,
};
use crate::{knobs::Knobs, settings::Client};

/// The longest query that is looked at.
const MAX_QUERY_BYTES: usize = 16 * 1_024;

/// An authorization request that has been checked.
#[derive(Debug, Clone)]
pub(super) struct AuthorizationRequest {
    /// Where its code goes.
    pub(super) redirect: Redirect,
    /// Returned unchanged.
    pub(super) state: String,
    /// Returned inside the identity token.
    pub(super) nonce: String,
    /// What is asked for, each once.
    pub(super) scopes: Arc<[String]>,
    /// What the code's verifier must match.
    pub(super) challenge: Option<Challenge>,
}

/// GET `/auth/core/connect/authorize`.
pub(super) async fn authorize(State(identity): State<Arc<Identity>>, RawQuery(query): RawQuery) -> Response {
    let query = query.unwrap_or_default();
    if query.len() > MAX_QUERY_BYTES {
        return page::refusal("the request is too long");
    }
    let parameters = Parameters::parse(query.as_bytes());
    let client = &identity.core.settings.client;
    let redirect = match check_client(client, &parameters) {
        Ok(redirect) => redirect,
        Err(text) => return page::refusal(text),
    };
    let login = match check_request(&parameters, &redirect, &identity.core.knobs()) {
        Ok(login) => login,
        Err(refusal) => {
            return redirect.refuse(refusal.error, refusal.description, parameters.get("state"));
        }
    };
    if parameters.contains("auto") {
        return finish(&identity, login);
    }
    page::login(&identity.user, &client.id, &login.scopes, redirect.text(), &parameters)
}

/// The user has logged in, or is not let in.
fn finish(identity: &Identity, login: AuthorizationRequest) -> Response {
    let knobs = identity.core.knobs();
    let redirect = login.redirect.clone();
    let state = if knobs.identity.bend_state { super::altered(&login.state) } else { login.state.clone() };
    if let Some(text) = &knobs.identity.refuse_login {
        return redirect.refuse("access_denied", text, Some(&state));
    }
    let now = identity.core.clock.now();
    // A statement of its own, so that the ledger is free again while a token is signed.
    let (grant, code) = identity.ledger.lock().grant(login, knobs.identity.code_seconds, now);
    let introduce = || identity.introduce(&grant, &code, knobs.identity.bend_nonce, now);
    let token = knobs.identity.callback_id_token.then(introduce);
    redirect.grant(&code, token.as_deref(), &state)
}

/// Client and redirect address: without both right, nothing may be sent anywhere.
fn check_client(client: &Client, parameters: &Parameters) -> Result<Redirect, &'static str> {
    if parameters.repeated(&["client_id", "redirect_uri"]).is_some() {
        return Err("client_id and redirect_uri may be sent only once");
    }
    match parameters.get("client_id") {
        None => return Err("client_id is missing"),
        Some(id) if id != client.id => return Err("the client is unknown"),
        Some(_) => {}
    }
    let redirect = parameters.get("redirect_uri").ok_or("redirect_uri is missing")?;
    Redirect::check(redirect)
}

/// Everything else.
fn check_request(
    parameters: &Parameters,
    redirect: &Redirect,
    knobs: &Knobs,
) -> Result<AuthorizationRequest, OAuthError> {
    const ONCE: [&str; 7] = [
        "response_type",
        "response_mode",
        "scope",
        "state",
        "nonce",
        "code_challenge",
        "code_challenge_method",
    ];
    if parameters.repeated(&ONCE).is_some() {
        return Err(OAuthError::request("a parameter was sent more than once"));
    }
    match parameters.get("response_type") {
        Some("code") => {}
        None => return Err(OAuthError::request("response_type is missing")),
        Some(_) => return Err(OAuthError::other("unsupported_response_type", "response_type must be code")),
    }
    // Answering in another way than asked for would be worse than saying so.
    if !matches!(parameters.get("response_mode"), None | Some("query")) {
        return Err(OAuthError::request("response_mode must be query"));
    }
    let scopes = parameters.get("scope").ok_or(OAuthError::request("scope is missing"))?;
    let scopes = check_scopes(scopes, knobs.invoicing.identity_scope.as_deref())?;
    let state = parameters.get("state").ok_or(OAuthError::request("state is missing"))?;
    let nonce = parameters.get("nonce").ok_or(OAuthError::request("nonce is missing"))?;
    let challenge = Challenge::read(parameters, knobs.identity.pkce)?;
    Ok(AuthorizationRequest {
        redirect: redirect.clone(),
        state: state.to_owned(),
        nonce: nonce.to_owned(),
        scopes,
        challenge,
    })
}

/// Scopes are separated by what a plus in a query means: a space. That of invoicing is known by its knob alone.
fn check_scopes(text: &str, invoicing: Option<&str>) -> Result<Arc<[String]>, OAuthError> {
    let known = |scope: &str| {
        let documented = [&claims::COMMON[..], &claims::ACCOUNTING, &claims::PAYROLL];
        documented.iter().any(|list| list.contains(&scope)) || invoicing == Some(scope)
    };
    let mut scopes: Vec<String> = Vec::new();
    for scope in text.split(' ').filter(|scope| !scope.is_empty()) {
        if !known(scope) {
            return Err(OAuthError::scope("a scope is unknown"));
        }
        if !scopes.iter().any(|other| other == scope) {
            scopes.push(scope.to_owned());
        }
    }
    if scopes.is_empty() {
        return Err(OAuthError::scope("no scope is asked for"));
    }
    Ok(scopes.into())
}
