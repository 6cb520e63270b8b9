//! The discovery document and the key set.

use std::sync::Arc;

use axum::{
    extract::State,
    http::{HeaderMap, Uri, header, uri::Authority},
    response::{IntoResponse, Response},
};
use serde_json::json;

use super::{IdentityProvider, claims, faults::ActiveFault, oauth_error::OAuthError};
use crate::{
    answer::json_answer,
    core::Core,
    knobs::{IdentityEndpoint, Pkce},
    settings::Tls,
};

/// GET `/auth/core/.well-known/openid-configuration`. Its endpoints have the address that the client used, so that it works
/// behind any name and port.
pub(super) async fn discovery(
    State(identity): State<Arc<IdentityProvider>>,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    looked_up(&identity, IdentityEndpoint::Discovery, || document(&identity.core, &uri, &headers)).await
}

/// GET `/auth/core/.well-known/jwks`.
pub(super) async fn key_set(State(identity): State<Arc<IdentityProvider>>) -> Response {
    looked_up(&identity, IdentityEndpoint::Keys, || json_answer(200, &identity.keys.set())).await
}

/// Applies faults to a document.
async fn looked_up(
    identity: &IdentityProvider,
    on: IdentityEndpoint,
    look_up: impl FnOnce() -> Response,
) -> Response {
    let fault = ActiveFault::new(&identity.core, on);
    match fault.before(identity).await {
        Some(answer) => answer,
        None => fault.after(identity, look_up()).await.0,
    }
}

fn document(core: &Core, uri: &Uri, headers: &HeaderMap) -> Response {
    let Some(authority) = authority(uri, headers) else {
        return OAuthError::request("the Host header is missing or no address").into_response();
    };
    let scheme = if matches!(core.settings.tls, Tls::Off) { "http" } else { "https" };
    let at = |path: &str| format!("{scheme}://{authority}{path}");
    let scopes = [&claims::COMMON[..], &claims::ACCOUNTING, &claims::PAYROLL].concat();
    let mut document = json!({
        "issuer": core.settings.issuer,
        "jwks_uri": at(super::KEY_SET),
        "authorization_endpoint": at(super::AUTHORIZE),
        "token_endpoint": at(super::TOKEN),
        "scopes_supported": scopes,
        "response_types_supported": ["code"],
        "response_modes_supported": ["query"],
        "grant_types_supported": ["authorization_code", "refresh_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["RS256"],
        "token_endpoint_auth_methods_supported": ["client_secret_post"],
    });
    match core.knobs().identity.pkce {
        Pkce::Refused => {}
        Pkce::Allowed | Pkce::Required => document["code_challenge_methods_supported"] = json!(["S256"]),
    }
    json_answer(200, &document)
}

/// The host and port that the client used: in the target with HTTP/2, in a header with HTTP/1.
fn authority(uri: &Uri, headers: &HeaderMap) -> Option<Authority> {
    let sent = headers.get(header::HOST).and_then(|host| Authority::try_from(host.as_bytes()).ok());
    let authority = uri.authority().cloned().or(sent)?;
    // An address for others must have no credentials.
    (!authority.as_str().contains('@')).then_some(authority)
}
