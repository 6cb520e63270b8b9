//! Checks of a request before it reaches an API: key, limits, token, scopes, headers, in this order.
//!
//! The first check that fails decides the answer. Errors about the key and the limits have the gateway's body, all others
//! the API's.

use std::net::{Ipv4Addr, SocketAddr};

use axum::{
    extract::ConnectInfo,
    http::{HeaderMap, Method, request::Parts},
};

use super::Gateway;
use crate::{
    call::{AdmittedCall, SentContext},
    catalog::{GatewayArea, Resource},
    clock::Ticks,
    error_answer::ApiError,
    identity::{Caller, TokenStatus, bearer, has_type},
    knobs::{ExpiredToken, GatewayKnobs},
};

const KEY_HEADER: &str = "ocp-apim-subscription-key";
const CORE_SCOPE: &str = "SVC.ES.NEWPOL.COR.API";
const ACCOUNTING_SCOPE: &str = "SVC.ES.NEWPOL.ACC.API";
const WEBHOOKS_SCOPE: &str = "SVC.ES.Webhooks";
const PAYROLL_SCOPE: &str = "SVC.ES.EquipoContex";

/// The area that a path belongs to.
pub(super) fn area(path: &str) -> Option<GatewayArea> {
    GatewayArea::ALL.into_iter().find(|area| below(path, *area).is_some())
}

/// Whether a knob hides this by-id path.
pub(super) fn is_hidden(knobs: &GatewayKnobs, method: &Method, path: &str) -> bool {
    method == Method::GET
        && knobs.unknown_paths.iter().any(|resource| {
            below(path, resource.area())
                .and_then(|rest| rest.strip_prefix(resource.path())?.strip_prefix('/'))
                // CORE/activities/estimations is another resource, not an activity.
                .is_some_and(|id| !id.is_empty() && !id.contains('/') && !is_resource(path))
        })
}

/// The status of a token in an area. The invoicing API has its own tokens; a knob accepts identity tokens with a scope, too.
fn token_status(gateway: &Gateway, area: GatewayArea, bearer: &str, now: Ticks) -> TokenStatus {
    if area != GatewayArea::Invoicing {
        return gateway.identity.check(bearer, now);
    }
    let own = gateway.invoicing.check(bearer, now);
    let knobs = gateway.core.knobs();
    let (TokenStatus::Unknown, Some(scope)) = (&own, &knobs.invoicing.identity_scope) else { return own };
    match gateway.identity.check(bearer, now) {
        TokenStatus::Valid(caller) if caller.scopes.contains(scope) => {
            TokenStatus::Valid(Caller { invoicing_company: Some(0), ..caller })
        }
        TokenStatus::Expired => TokenStatus::Expired,
        TokenStatus::Valid(_) | TokenStatus::Unknown => TokenStatus::Unknown,
    }
}

/// Checks everything but the body and returns the call as handlers get it.
pub(super) fn admit(
    gateway: &Gateway,
    area: GatewayArea,
    parts: &Parts,
    context: SentContext,
) -> Result<AdmittedCall, ApiError> {
    let now = gateway.core.clock.now();
    let (headers, path) = (&parts.headers, parts.uri.path());
    let key = subscription(&gateway.core.settings.subscription_keys, headers)?;
    gateway.core.count(|knobs| gateway.limits.count(key, &knobs.gateway, now))?;

    let webhooks = below(path, area).is_some_and(|rest| rest.split('/').any(|segment| segment == "webhooks"));
    let caller = if area == GatewayArea::Invoicing && parts.method == Method::POST && is_login(path) {
        None
    } else {
        let status = bearer(headers).map(|bearer| token_status(gateway, area, bearer, now));
        let caller = caller(status, gateway.core.knobs().gateway.expired_token)?;
        scopes(area, webhooks, &caller)?;
        Some(caller)
    };
    common_headers(area, headers, gateway.core.knobs().invoicing.version_required)?;
    if webhooks && is_accounting(area) && context != SentContext::None {
        return Err(ApiError::api(400, "webhooks are managed with context none"));
    }
    let peer = parts.extensions.get::<ConnectInfo<SocketAddr>>();
    let peer = peer.map_or_else(|| SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)), |peer| peer.0);
    Ok(AdmittedCall { caller, context, peer })
}

/// The index of the request's key among the valid ones.
fn subscription(keys: &[String], headers: &HeaderMap) -> Result<usize, ApiError> {
    let Some(sent) = headers.get(KEY_HEADER).filter(|sent| !sent.is_empty()) else {
        return Err(ApiError::gateway(
            401,
            "Access denied due to missing subscription key. Make sure to include subscription key when making \
             requests to an API.",
        ));
    };
    keys.iter().position(|key| key.as_bytes() == sent.as_bytes()).ok_or_else(|| {
        ApiError::gateway(
            401,
            "Access denied due to invalid subscription key. Make sure to provide a valid key for an active \
             subscription.",
        )
    })
}

fn caller(status: Option<TokenStatus>, expired: ExpiredToken) -> Result<Caller, ApiError> {
    match status {
        Some(TokenStatus::Valid(caller)) => Ok(caller),
        Some(TokenStatus::Expired) => Err(match expired {
            ExpiredToken::Unauthorized => ApiError::api(401, "the access token has expired"),
            ExpiredToken::ServerError => ApiError::api(500, "An error has occurred."),
        }),
        Some(TokenStatus::Unknown) => Err(ApiError::api(401, "the access token is not valid")),
        None => Err(ApiError::api(401, "Authorization has been denied for this request.")),
    }
}

fn scopes(area: GatewayArea, webhooks: bool, caller: &Caller) -> Result<(), ApiError> {
    let api = match area {
        GatewayArea::Core => Some(CORE_SCOPE),
        // The document does not show which scope opens the import. Its files become accounting records, so it is that of
        // accounting.
        GatewayArea::Accounting | GatewayArea::Import => Some(ACCOUNTING_SCOPE),
        GatewayArea::Payroll => Some(PAYROLL_SCOPE),
        GatewayArea::Invoicing => None,
    };
    let needed = [api, (webhooks && is_accounting(area)).then_some(WEBHOOKS_SCOPE)];
    match needed.iter().flatten().find(|&&scope| !caller.scopes.iter().any(|granted| granted == scope)) {
        Some(missing) => Err(ApiError::api(403, format!("the token lacks the scope {missing}"))),
        None => Ok(()),
    }
}

fn common_headers(area: GatewayArea, headers: &HeaderMap, needs_version: bool) -> Result<(), ApiError> {
    if !has_type(headers, "application/json") {
        return Err(ApiError::api(415, "Content-Type must be application/json"));
    }
    let is_versioned = || headers.get("api-version").is_some_and(|version| version == "2.0");
    if area == GatewayArea::Invoicing && needs_version && !is_versioned() {
        return Err(ApiError::api(400, "Api-Version must be 2.0"));
    }
    Ok(())
}

const fn is_accounting(area: GatewayArea) -> bool {
    matches!(area, GatewayArea::Accounting | GatewayArea::Core | GatewayArea::Import)
}

fn is_login(path: &str) -> bool {
    below(path, GatewayArea::Invoicing) == Some("users/login")
}

fn is_resource(path: &str) -> bool {
    Resource::ALL.iter().any(|resource| below(path, resource.area()) == Some(resource.path()))
}

/// The path below an area, without the slash between.
fn below(path: &str, area: GatewayArea) -> Option<&str> {
    path.strip_prefix(area.path())?.strip_prefix('/')
}
