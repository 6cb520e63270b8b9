//! The gateway in front of every API: what each request passes before it reaches one.

use std::sync::Arc;

use axum::Router;

use super::{Provider, catalog::Area, identity::Caller, settings::Settings};

/// Limits, faults and the journal of requests.
#[derive(Debug)]
pub struct Gateway {}

/// A request that has passed the gateway and the token check; handlers get it as `Extension<Call>`.
#[derive(Debug, Clone)]
pub struct Call {
    /// Part of the API.
    pub area: Area,
    /// Who calls; `None` on the invoicing login.
    pub caller: Option<Caller>,
    /// The `context` header.
    pub context: Context,
    /// The address the request comes from.
    pub peer: std::net::SocketAddr,
}

/// The `context` header as it was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Context {
    /// Not sent.
    Absent,
    /// The text `none`.
    None,
    /// A JSON object with one member `clientId`.
    Company(String),
    /// Anything else, with what is wrong.
    Invalid(String),
}

/// A request as the journal keeps it.
#[derive(Debug, Clone, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// When it came.
    pub at: super::clock::Ticks,
    /// Method.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Company in `context`.
    pub company: Option<String>,
    /// Status of the answer; `None` if the connection was ended instead.
    pub status: Option<u16>,
    /// Name of the fault that hit it.
    pub fault: Option<&'static str>,
}

impl Gateway {
    /// Nothing used up yet.
    #[must_use]
    pub fn new(settings: &Settings) -> Self {
        Self {}
    }

    /// Requests since the start, in order, within the journal's limit: `(number, request)` from a number on.
    #[must_use]
    pub fn requests(&self, from: u64, limit: usize) -> Vec<(u64, Request)> {
        todo!()
    }

    /// How many there ever were.
    #[must_use]
    pub fn request_count(&self) -> u64 {
        todo!()
    }
}

/// Puts the gateway in front of the APIs' routes; what none of them knows gets the gateway's 404.
pub fn guard(provider: &Arc<Provider>, apis: Router<Arc<Provider>>) -> Router<Arc<Provider>> {
    let _ = provider;
    apis
}
