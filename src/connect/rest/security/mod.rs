//! Who may do what, and what the audit log keeps.
//!
//! ```text
//! request ─▶ size of its head ─▶ preflight? ─▶ host ─▶ open path? ─▶ throttle, name and password ─▶ role ─▶ origin ─▶ handler
//!                                                                                                              │
//! answer ◀─ CORS headers ◀─ audit line (changes, refusals) ◀─ OPTIONS ◀─ deadline, panic ◀─────────────────────┘
//! ```
//!
//! - Without a login in the configuration every caller may do everything; such a configuration allows only loopback listeners
//!   unless it says otherwise.
//! - Without logins a request has to address this worker by one of its names (see [`hosts`]), also on open paths.
//! - An address with failed logins has to wait before its next login is checked (see [`throttle`]).
//! - A reader may read, and validate configurations. Its answers leave out text quoted from the provider.
//! - A page of another origin may change something only if `access.control.allow.origin` names it: the browser would send its
//!   user's password along.
//! - A change in progress is finished and written to the audit log even if its client disconnects. Every refusal is in the
//!   audit log too, within bounds (see [`audit`]), except that of a request with too large a head (414, 431).

mod audit;
mod cors;
mod hosts;
mod password;
mod throttle;

use std::{net::IpAddr, panic::AssertUnwindSafe, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::{MatchedPath, Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use futures::FutureExt as _;
use ipnet::IpNet;
use tokio::time::{Instant, timeout_at};

use base::{metrics, secret::Secret};

use self::{
    audit::{AuditedRequest, Audits},
    cors::Cors,
    hosts::Hosts,
    password::{AcceptedPassword, Checked},
    throttle::{LoginAttempt, Throttle},
};
use super::{ANSWER_RESERVE, DEADLINE, answer::Refusal, quotes};
use crate::{config::worker::Rest, connect::herder};

pub use self::password::Error as SecurityError;

/// Limit on the head of a request, in bytes: its target and all its headers.
const HEAD_LIMIT: usize = 32 * 1024;
/// The user in the audit log for a request without a configured user.
const UNKNOWN: &str = "unknown";
/// The answer to a caller without a valid name and password.
const LOGIN: &str = "the user name or password is missing or wrong; log in with HTTP basic authentication";
/// A reader may PUT to paths that end so.
const VALIDATE: &str = "/config/validate";

/// State of the guard.
#[derive(Debug)]
pub struct Security {
    accounts: Vec<RestUser>,
    open_paths: Vec<String>,
    hosts: Hosts,
    cors: Cors,
    /// Proxies whose `X-Forwarded-For` is trusted.
    proxies: Vec<IpNet>,
    throttle: Arc<Throttle>,
    audit: Audits,
    /// Limit for answering a request.
    deadline: Duration,
}

#[derive(Debug)]
struct RestUser {
    user: String,
    password: AcceptedPassword,
    role: Role,
}

/// What a caller may do; handlers find it in the request's extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Administrator,
    Reader,
}

impl Security {
    /// From the worker's configuration.
    ///
    /// # Errors
    /// A password looks like a hash and is invalid.
    pub fn new(rest: &Rest) -> Result<Self, SecurityError> {
        let logins = [(&rest.administrator, Role::Administrator), (&rest.reader, Role::Reader)];
        let accounts = logins.into_iter().filter_map(|(login, role)| Some((login.as_ref()?, role)));
        let accounts = accounts.map(|(login, role)| {
            let password = AcceptedPassword::new(&login.user, &login.password)?;
            Ok(RestUser { user: login.user.clone(), password, role })
        });
        Ok(Self {
            accounts: accounts.collect::<Result<_, _>>()?,
            open_paths: rest.open_paths.clone(),
            hosts: Hosts::new(&rest.hosts),
            cors: Cors::new(&rest.allowed_origins, &rest.allowed_methods),
            proxies: rest.proxies.clone(),
            throttle: Arc::default(),
            audit: Audits::default(),
            deadline: DEADLINE,
        })
    }

    fn is_open(&self, path: &str) -> bool {
        self.open_paths.iter().any(|open| {
            path.strip_prefix(open.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }

    /// The caller and its role, or why the login is refused.
    async fn identify(&self, facts: RequestRights) -> Result<(&str, Role), Denied> {
        let Some(first) = self.accounts.first() else { return Ok(("anonymous", Role::Administrator)) };
        let Some((user, password)) = facts.credentials else { return Err(Denied::new(401, LOGIN, UNKNOWN)) };
        let account = self.accounts.iter().find(|account| account.user == user);
        let who = account.map_or(UNKNOWN, |account| &account.user);
        let attempt = LoginAttempt {
            throttle: Arc::clone(&self.throttle),
            client: facts.client,
            role: account.map(|account| account.role),
        };
        // An unknown user takes as much time as a known one, so that the answer does not reveal which users exist.
        match (account.unwrap_or(first).password.check(password.reveal(), &attempt).await, account) {
            (Checked::Right, Some(account)) => Ok((&account.user, account.role)),
            (Checked::Right | Checked::Wrong, _) => Err(Denied::new(401, LOGIN, who)),
            (Checked::Busy, _) => {
                Err(Denied::new(503, "too many passwords are being checked; try again in a moment", who))
            }
            (Checked::Throttled(wait), _) => {
                let message =
                    "too many failed logins from this address; try again after the time in Retry-After";
                Err(Denied { wait: Some(wait), ..Denied::new(429, message, who) })
            }
        }
    }

    /// Extracts what decides about a request.
    fn facts(&self, request: &Request, audited: &AuditedRequest) -> RequestRights {
        let changes = is_change(request.method(), request.uri().path());
        RequestRights {
            changes,
            names_worker: self.hosts.own(request),
            is_open: !changes && self.is_open(request.uri().path()),
            may_change: self.cors.may_change(request),
            credentials: credentials(request.headers()),
            client: audited.client(),
        }
    }

    /// The caller and its role, or why the request is refused.
    async fn authorize(&self, facts: RequestRights) -> Result<(&str, Role), Denied> {
        let denied = |status, message, who| Err(Denied::new(status, message, who));
        // A password proves that the caller means this worker; without logins the addressed name has to.
        if self.accounts.is_empty() && !facts.names_worker {
            let message = "the Host header does not name this worker; call it by IP address or by a name in \
                        listeners, rest.advertised.host.name or admin.auth.anonymous.hosts";
            return denied(421, message, UNKNOWN);
        }
        if facts.is_open {
            // A caller that has not logged in may not see more than a reader.
            let role = if self.accounts.is_empty() { Role::Administrator } else { Role::Reader };
            return Ok((UNKNOWN, role));
        }
        let (changes, may_change) = (facts.changes, facts.may_change);
        match self.identify(facts).await? {
            (who, Role::Reader) if changes => {
                denied(403, "this user may read and validate, but not change anything", who)
            }
            (who, _) if changes && !may_change => {
                let message =
                    "a page of another origin may not change anything here; see access.control.allow.origin";
                denied(403, message, who)
            }
            allowed => Ok(allowed),
        }
    }
}

/// The parts of a request that decide whether it reaches a handler.
#[derive(Debug)]
struct RequestRights {
    changes: bool,
    /// Whether it addresses this worker by one of its names.
    names_worker: bool,
    /// Whether it reads an open path.
    is_open: bool,
    /// Whether the page that sent it, if any, may change something.
    may_change: bool,
    credentials: Option<(String, Secret)>,
    client: Option<IpAddr>,
}

/// A refused request.
#[derive(Debug)]
struct Denied {
    refusal: Refusal,
    /// A user of the configuration, or [`UNKNOWN`]: any other name may be a misplaced password.
    who: String,
    /// How long the client should wait before the next attempt.
    wait: Option<Duration>,
}

impl Denied {
    fn new(status: u16, message: &str, who: &str) -> Self {
        Self { refusal: Refusal::new(status, message), who: who.to_owned(), wait: None }
    }

    /// The answer; writes its line to the audit log.
    fn into_response(self, audited: &AuditedRequest, audit: &Audits) -> Response {
        let mut response = self.refusal.into_response();
        let status = response.status();
        audited.refused(audit, &self.who, status);
        let headers = response.headers_mut();
        if let Some(wait) = self.wait {
            // Whole seconds, rounded up.
            headers.insert(header::RETRY_AFTER, HeaderValue::from(wait.as_secs() + 1));
        }
        if status == StatusCode::UNAUTHORIZED {
            let basic = HeaderValue::from_static("Basic realm=\"tributary\", charset=\"UTF-8\"");
            headers.insert(header::WWW_AUTHENTICATE, basic);
        }
        response
    }
}

/// Puts the guard around all paths of a router.
pub fn protect(router: Router, security: Security) -> Router {
    router.layer(from_fn_with_state(Arc::new(security), guard))
}

/// Adds the matched path to the answer, for metrics. Only the innermost router knows it.
pub(super) async fn record_route(request: Request, next: Next) -> Response {
    let route = request.extensions().get::<MatchedPath>().cloned();
    let mut response = next.run(request).await;
    if let Some(route) = route {
        response.extensions_mut().insert(Route(route));
    }
    response
}

#[derive(Clone)]
struct Route(MatchedPath);

async fn guard(State(security): State<Arc<Security>>, request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let changes = is_change(request.method(), request.uri().path());
    // Set here for paths beside the API, such as /health.
    let beside = request.extensions().get::<MatchedPath>().cloned();
    let response = guarded(&security, request, next, begun + security.deadline).await;
    let route = response.extensions().get::<Route>().map(|Route(route)| route).or(beside.as_ref());
    let status = response.status().as_u16();
    metrics::rest_answered(route.map(MatchedPath::as_str), changes, status, begun.elapsed());
    response
}

async fn guarded(security: &Arc<Security>, request: Request, next: Next, end: Instant) -> Response {
    if let Err(refusal) = head_fits(&request) {
        return refusal.into_response();
    }
    if let Some(answer) = security.cors.preflight(request.method(), request.headers()) {
        return answer;
    }
    let origin = request.headers().get(header::ORIGIN).cloned();
    let mut response = admit(security, request, next, end).await;
    security.cors.mark(origin.as_ref(), response.headers_mut());
    response
}

/// Passes a request to its handler, or refuses it.
async fn admit(security: &Arc<Security>, mut request: Request, next: Next, end: Instant) -> Response {
    let audited = AuditedRequest::of(&request, &security.proxies);
    let facts = security.facts(&request, &audited);
    let (changes, security) = (facts.changes, Arc::clone(security));
    // Its own task: a login is in the audit log even if its client disconnects before the refusal.
    let decision = tokio::spawn(async move {
        match security.authorize(facts).await {
            Ok((who, role)) => Ok((who.to_owned(), role, audited)),
            Err(denied) => Err(denied.into_response(&audited, &security.audit)),
        }
    });
    let (who, role, audited) = match timeout_at(end, decision).await {
        Ok(Ok(Ok(allowed))) => allowed,
        Ok(Ok(Err(response))) => return response,
        Ok(Err(_)) => return panicked(),
        Err(_) => return timed_out(request.method(), request.uri().path()),
    };
    request.extensions_mut().insert(role);
    if !changes {
        let response = run(request, next, end).await;
        return match role {
            Role::Administrator => response,
            Role::Reader => quotes::remove(response).await,
        };
    }
    // Its own task: hyper drops a handler whose client disconnects. The deadline ends it.
    let change = tokio::spawn(async move {
        let response = run(request, next, end).await;
        audited.changed(&who, response.status());
        response
    });
    change.await.unwrap_or_else(|_| panicked())
}

/// Runs a handler until it answers, panics, or exceeds the deadline.
async fn run(request: Request, next: Next, end: Instant) -> Response {
    let options = request.method() == Method::OPTIONS;
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let handler = herder::handle_until(end - ANSWER_RESERVE, next.run(request));
    let response = match timeout_at(end, AssertUnwindSafe(handler).catch_unwind()).await {
        Ok(Ok(response)) => response,
        Ok(Err(_)) => {
            // Not the panic's text, which may hold a value of a configuration; the process's panic hook has logged it.
            tracing::error!(%method, path, "a handler panicked");
            panicked()
        }
        Err(_) => timed_out(&method, &path),
    };
    if options && response.status() == StatusCode::METHOD_NOT_ALLOWED {
        // Java's server answers OPTIONS itself, with the path's methods; axum adds that header later.
        return StatusCode::OK.into_response();
    }
    response
}

fn is_change(method: &Method, path: &str) -> bool {
    let reads = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
    let validates = *method == Method::PUT
        && path.starts_with("/connector-plugins/")
        && path.trim_end_matches('/').ends_with(VALIDATE);
    !reads && !validates
}

fn head_fits(request: &Request) -> Result<(), Refusal> {
    let target = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    let headers: usize =
        request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
    match target {
        0..=8192 if target + headers <= HEAD_LIMIT => Ok(()),
        0..=8192 => Err(Refusal::new(431, format!("the headers are larger than {HEAD_LIMIT} bytes"))),
        _ => Err(Refusal::new(414, "the address is longer than 8192 bytes")),
    }
}

fn credentials(headers: &HeaderMap) -> Option<(String, Secret)> {
    let (scheme, encoded) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let (user, password) = decoded.split_once(':')?;
    Some((user.to_owned(), Secret::new(password)))
}

fn timed_out(method: &Method, path: &str) -> Response {
    tracing::error!(%method, path, "a request exceeded its deadline");
    Refusal::new(500, "Request timed out. The worker is busy or waits for Kafka").into_response()
}

fn panicked() -> Response {
    Refusal::new(500, "the worker failed to do this; its log says why").into_response()
}

#[cfg(test)]
mod tests;
