//! Steps 1 and 2: the authorization request, the login page, and the redirect with a code.
//!
//! Errors about the client or its redirect address are shown on a page; all others are sent to that address. A valid request
//! shows a page with one button, which sends the same request with the parameter `auto`. That parameter logs in at once.

use std::sync::Arc;

use axum::{
    extract::{RawQuery, State},
    response::Response,
};

use super::{
    IdentityProvider, claims, oauth_error::OAuthError, page, parameters::Parameters, pkce::Challenge,
    redirect::Redirect,
};
use crate::{knobs::Knobs, settings::OAuthClient};

const MAX_QUERY_BYTES: usize = 16 * 1_024;

/// A valid authorization request.
#[derive(Debug, Clone)]
pub(super) struct AuthorizationRequest {
    /// Where the code is sent.
    pub(super) redirect: Redirect,
    /// Returned unchanged.
    pub(super) state: String,
    /// Returned inside the identity token.
    pub(super) nonce: String,
    /// Requested scopes, without duplicates.
    pub(super) scopes: Arc<[String]>,
    /// What the code's verifier must match.
    pub(super) challenge: Option<Challenge>,
    /// The tenant that the user chooses, if it is not the one of the settings.
    pub(super) tenant: Option<String>,
}

/// GET `/auth/core/connect/authorize`.
pub(super) async fn authorize(
    State(identity): State<Arc<IdentityProvider>>,
    RawQuery(query): RawQuery,
) -> Response {
    let query = query.unwrap_or_default();
    if query.len() > MAX_QUERY_BYTES {
        return page::refusal("the request is too long");
    }
    let parameters = Parameters::parse(query.as_bytes());
    let settings = &identity.core.settings;
    let redirect = match check_client(&settings.client, &parameters) {
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
    let tenant = login.tenant.as_deref().unwrap_or(&settings.tenant);
    page::login(settings, tenant, &login.scopes, redirect.text(), &parameters)
}

/// Grants the login, unless a knob refuses it.
fn finish(identity: &IdentityProvider, login: AuthorizationRequest) -> Response {
    let knobs = identity.core.knobs();
    let redirect = login.redirect.clone();
    let state = if knobs.identity.bend_state { super::altered(&login.state) } else { login.state.clone() };
    if let Some(text) = &knobs.identity.refuse_login {
        return redirect.refuse("access_denied", text, Some(&state));
    }
    let now = identity.core.clock.now();
    // Ends the lock before a token is signed.
    let (grant, code) = identity.grants.lock().grant(login, knobs.identity.code_seconds, now);
    let issue = || identity.issue_callback_token(&grant, &code, knobs.identity.bend_nonce, now);
    let token = knobs.identity.callback_id_token.then(issue);
    redirect.grant(&code, token.as_deref(), &state)
}

/// Checks client and redirect address. Without both, nothing may be redirected.
fn check_client(client: &OAuthClient, parameters: &Parameters) -> Result<Redirect, &'static str> {
    if parameters.repeats("client_id redirect_uri") {
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

/// Checks everything else.
fn check_request(
    parameters: &Parameters,
    redirect: &Redirect,
    knobs: &Knobs,
) -> Result<AuthorizationRequest, OAuthError> {
    const ONCE: &str = "response_type response_mode scope state nonce code_challenge code_challenge_method";
    if parameters.repeats(ONCE) {
        return Err(OAuthError::request("a parameter was sent more than once"));
    }
    match parameters.get("response_type") {
        Some("code") => {}
        None => return Err(OAuthError::request("response_type is missing")),
        Some(_) => return Err(OAuthError::other("unsupported_response_type", "response_type must be code")),
    }
    // Another mode than the requested one would be worse than an error.
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
        tenant: knobs.identity.tenant.clone(),
    })
}

/// Parses scopes, which are separated by spaces. The scope of invoicing is known only by its knob.
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
