//! Pages of other origins: which of them a browser lets call us, and which may change anything.
//!
//! As in Kafka Connect, no CORS header is sent until `access.control.allow.origin` names an origin. A page of a named origin may
//! send its user's password along; with `*` it may not, since then any page could use it.

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use url::Url;

/// Headers a page may send.
const HEADERS: HeaderValue =
    HeaderValue::from_static("X-Requested-With,Content-Type,Accept,Origin,Authorization");
/// Seconds a browser may cache the answer to a preflight.
const REMEMBERED: HeaderValue = HeaderValue::from_static("1800");

#[derive(Debug)]
pub(super) struct Cors {
    origins: Vec<String>,
    methods: Vec<String>,
    any: bool,
}

impl Cors {
    pub(super) fn new(origins: &[String], methods: &[String]) -> Self {
        let any = origins.iter().any(|origin| origin == "*");
        Self { origins: origins.to_vec(), methods: methods.to_vec(), any }
    }

    /// The answer to a preflight, in which a browser asks whether it may send a request. A preflight carries no password, so it
    /// is answered before the login.
    pub(super) fn preflight(&self, method: &Method, headers: &HeaderMap) -> Option<Response> {
        let wanted = headers.get(header::ACCESS_CONTROL_REQUEST_METHOD)?;
        if method != Method::OPTIONS || self.origins.is_empty() {
            return None;
        }
        let origin = headers.get(header::ORIGIN);
        let mut response = StatusCode::OK.into_response();
        let response_headers = response.headers_mut();
        self.mark(origin, response_headers);
        let allowed = self.methods.iter().any(|method| wanted == method.as_str());
        if allowed && origin.is_some_and(|origin| self.names(origin)) {
            if let Ok(methods) = HeaderValue::try_from(self.methods.join(",")) {
                response_headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, methods);
            }
            response_headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, HEADERS);
            response_headers.insert(header::ACCESS_CONTROL_MAX_AGE, REMEMBERED);
        }
        Some(response)
    }

    /// Adds the headers that let a page read an answer.
    pub(super) fn mark(&self, origin: Option<&HeaderValue>, headers: &mut HeaderMap) {
        if self.origins.is_empty() {
            return;
        }
        headers.append(header::VARY, HeaderValue::from_name(header::ORIGIN));
        let Some(origin) = origin.filter(|origin| self.names(origin)) else { return };
        if self.any {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        } else {
            headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
            headers.insert(header::ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        }
        headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_name(header::LOCATION));
    }

    /// Whether the sender may change anything: it is no page, a page of this worker, or a page of a named origin. Without this
    /// check a page could restart a connector: such a request needs no preflight.
    pub(super) fn may_change(&self, request: &Request) -> bool {
        let headers = request.headers();
        let Some(origin) = headers.get(header::ORIGIN) else {
            return headers.get(FETCH_SITE).is_none_or(|site| site != "cross-site");
        };
        self.is_named(origin) || is_same(origin, request)
    }

    /// Whether a page of this origin may read answers.
    fn names(&self, origin: &HeaderValue) -> bool {
        self.any || self.is_named(origin)
    }

    fn is_named(&self, origin: &HeaderValue) -> bool {
        self.origins.iter().any(|named| origin == named.as_str())
    }
}

const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Whether a page came from the host it now calls.
fn is_same(origin: &HeaderValue, request: &Request) -> bool {
    let Some(origin) = origin.to_str().ok().and_then(|origin| Url::parse(origin).ok()) else { return false };
    // HTTP/2 has the host in the request target.
    let named = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
    let Some(host) = named.or_else(|| request.uri().authority().map(|authority| authority.as_str())) else {
        return false;
    };
    // Uses the page's scheme: a proxy may terminate TLS in front of this worker.
    let Ok(called) = Url::parse(&format!("{}://{host}", origin.scheme())) else { return false };
    origin.host_str().is_some()
        && origin.host_str() == called.host_str()
        && origin.port_or_known_default() == called.port_or_known_default()
}
