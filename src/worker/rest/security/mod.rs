//! Who may do what, and what is kept of it.
//!
//! ```text
//! request ─▶ size of its head ─▶ preflight? ─▶ open path? ─▶ host ─▶ name and password ─▶ role ─▶ origin ─▶ handler
//!                                                                                                    │
//! answer ◀─ CORS headers ◀─ audit line (changes only) ◀─ OPTIONS ◀─ deadline, panic ◀────────────────┘
//! ```
//!
//! - Without a login in the configuration everybody may do everything; the configuration then only takes loopback
//!   listeners, unless told otherwise.
//! - Where nobody is asked for a name, the request has to call this worker by one of its own (see [`hosts`]).
//! - A reader may read, and have a configuration validated. What the provider has said is left out of its answers.
//! - A page of another origin changes nothing, unless `access.control.allow.origin` lets it: a browser would send its
//!   user's password along.
//! - A change that has begun is finished and written to the audit log even if its client leaves.

mod cors;
mod hosts;
mod password;

use std::{
    net::{IpAddr, SocketAddr},
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    extract::{ConnectInfo, MatchedPath, Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
};
use base64::{Engine, engine::general_purpose::STANDARD};
use futures::FutureExt as _;
use tokio::time::{Instant, timeout_at};

use self::{
    cors::Cors,
    hosts::Hosts,
    password::{Checked, Password},
};
use super::{DEADLINE, answer::Refusal, quotes};
use crate::{config::worker::Rest, metrics};

pub use self::password::Error as SecurityError;

/// The largest head of a request: its target and all its headers.
const HEAD_LIMIT: usize = 32 * 1024;
/// Where a reader may use a method that otherwise changes something.
const VALIDATE: &str = "/config/validate";

/// What the guard knows. Made once, at start.
#[derive(Debug)]
pub struct Security {
    accounts: Vec<Account>,
    open_paths: Vec<String>,
    hosts: Hosts,
    cors: Cors,
    /// When a request is answered at the latest.
    deadline: Duration,
}

#[derive(Debug)]
struct Account {
    user: String,
    password: Password,
    role: Role,
}

/// What a caller may do; handlers find it among the extensions of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Administrator,
    Reader,
}

impl Security {
    /// As the worker's configuration has it.
    ///
    /// # Errors
    /// A password has the form of a hash and is none.
    pub fn new(rest: &Rest) -> Result<Self, SecurityError> {
        let logins = [(&rest.administrator, Role::Administrator), (&rest.reader, Role::Reader)];
        let accounts = logins.into_iter().filter_map(|(login, role)| Some((login.as_ref()?, role)));
        let accounts = accounts.map(|(login, role)| {
            let password = Password::new(&login.user, &login.password)?;
            Ok(Account { user: login.user.clone(), password, role })
        });
        Ok(Self {
            accounts: accounts.collect::<Result<_, _>>()?,
            open_paths: rest.open_paths.clone(),
            hosts: Hosts::new(&rest.hosts),
            cors: Cors::new(&rest.allowed_origins, &rest.allowed_methods),
            deadline: DEADLINE,
        })
    }

    fn is_open(&self, path: &str) -> bool {
        self.open_paths.iter().any(|open| {
            path.strip_prefix(open.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }

    /// Who asks and what they may do; a refusal if nobody knows them.
    async fn identify(&self, headers: &HeaderMap, peer: Option<IpAddr>) -> Result<(String, Role), Refusal> {
        let Some(first) = self.accounts.first() else {
            return Ok(("anonymous".to_owned(), Role::Administrator));
        };
        let unknown = || Refusal::new(401, "a name and password are needed, or these are wrong");
        let (user, password) = credentials(headers).ok_or_else(unknown)?;
        let account = self.accounts.iter().find(|account| account.user == user);
        // A name nobody has costs as much time as one somebody has: the answer does not tell which exist.
        match account.unwrap_or(first).password.check(&password, peer).await {
            Checked::Right if account.is_some() => {}
            Checked::Busy => {
                return Err(Refusal::new(503, "too many passwords are being checked; try again in a moment"));
            }
            Checked::Right | Checked::Wrong => return Err(unknown()),
        }
        account.map(|account| (user, account.role)).ok_or_else(unknown)
    }
}

/// Puts the guard around all paths of a router.
pub fn protect(router: Router, security: Security) -> Router {
    router.layer(from_fn_with_state(Arc::new(security), guard))
}

/// Tells whoever counts requests which path was meant. The router that is asked last knows it.
pub(super) async fn noted(request: Request, next: Next) -> Response {
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
    // Known here for what is beside the API, such as /health.
    let beside = request.extensions().get::<MatchedPath>().cloned();
    let response = guarded(&security, request, next, begun + security.deadline).await;
    let route = response.extensions().get::<Route>().map(|Route(route)| route).or(beside.as_ref());
    let status = response.status().as_u16();
    metrics::rest_answered(route.map(MatchedPath::as_str), changes, status, begun.elapsed());
    response
}

async fn guarded(security: &Security, request: Request, next: Next, end: Instant) -> Response {
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

/// Lets a request through to its handler, or says why not.
async fn admit(security: &Security, mut request: Request, next: Next, end: Instant) -> Response {
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let changes = is_change(&method, &path);
    if !changes && security.is_open(&path) {
        let response = run(request, next, end).await;
        // The caller has not authenticated, so it may not see more than a reader.
        return if security.accounts.is_empty() { response } else { quotes::left_out(response).await };
    }
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(peer)| peer.ip());
    let asked = Asked { remote: remote(&request), method, path };
    let allowed = match security.identify(request.headers(), peer).await {
        // A password is proof enough of who asks; without one the name that was called has to do.
        Ok((who, _)) if security.accounts.is_empty() && !security.hosts.own(&request) => {
            let told = "this worker does not go by the name in the Host header; call it by address or by a name in \
                        listeners, rest.advertised.host.name or admin.auth.anonymous.hosts";
            Err((Refusal::new(421, told), who))
        }
        Err(refusal) => Err((refusal, "unknown".to_owned())),
        Ok((who, Role::Reader)) if changes => {
            Err((Refusal::new(403, "this name may read and validate, not change"), who))
        }
        Ok((who, _)) if changes && !security.cors.may_change(&request) => {
            let told =
                "a page of another origin may not change anything here; see access.control.allow.origin";
            Err((Refusal::new(403, told), who))
        }
        Ok(allowed) => Ok(allowed),
    };
    let (who, role) = match allowed {
        Ok(allowed) => allowed,
        Err((refusal, who)) => {
            let mut response = refusal.into_response();
            if response.status() == StatusCode::UNAUTHORIZED {
                let basic = HeaderValue::from_static("Basic realm=\"tributary\", charset=\"UTF-8\"");
                response.headers_mut().insert(header::WWW_AUTHENTICATE, basic);
            }
            if changes {
                asked.note(&who, response.status());
            }
            return response;
        }
    };
    request.extensions_mut().insert(role);
    if !changes {
        let response = run(request, next, end).await;
        return match role {
            Role::Administrator => response,
            Role::Reader => quotes::left_out(response).await,
        };
    }
    // In a task of its own: hyper drops a handler whose client has left. It ends at the deadline at the latest.
    let change = tokio::spawn(async move {
        let response = run(request, next, end).await;
        asked.note(&who, response.status());
        response
    });
    change.await.unwrap_or_else(|_| panicked())
}

/// Runs a handler until it answers, panics, or the time is up.
async fn run(request: Request, next: Next, end: Instant) -> Response {
    let options = request.method() == Method::OPTIONS;
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let response = match timeout_at(end, AssertUnwindSafe(next.run(request)).catch_unwind()).await {
        Ok(Ok(response)) => response,
        Ok(Err(_)) => {
            // What it said may hold a value of a configuration: the process's own panic hook has told it.
            tracing::error!(%method, path, "a handler panicked");
            panicked()
        }
        Err(_) => {
            tracing::error!(%method, path, "a request took longer than it may");
            Refusal::new(500, "Request timed out. The worker is busy or waits for Kafka").into_response()
        }
    };
    if options && response.status() == StatusCode::METHOD_NOT_ALLOWED {
        // Java's server answers OPTIONS by itself, with the methods of the path; axum adds that header on the way out.
        return StatusCode::OK.into_response();
    }
    response
}

/// A request as the audit log has it. The path is as it was sent, percent-encoded: no line break can come out of it.
struct Asked {
    remote: String,
    method: Method,
    path: String,
}

impl Asked {
    fn note(&self, who: &str, status: StatusCode) {
        let Self { remote, method, path } = self;
        tracing::info!(target: "audit", who, %method, path, status = status.as_u16(), remote, "change");
    }
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

fn credentials(headers: &HeaderMap) -> Option<(String, String)> {
    let (scheme, encoded) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
    let (user, password) = decoded.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

fn remote(request: &Request) -> String {
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
    peer.map_or_else(|| "unknown".to_owned(), |ConnectInfo(peer)| peer.to_string())
}

fn panicked() -> Response {
    Refusal::new(500, "the worker failed to do this; its log says why").into_response()
}

#[cfg(test)]
mod tests;
