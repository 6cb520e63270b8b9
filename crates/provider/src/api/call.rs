//! A request before it is sent, its credentials, and the response to it.

use std::borrow::Cow;

use bytes::Bytes;
use reqwest::{Method, header::HeaderMap};
use serde_json::Value;

use base::{metrics::ApiArea, secret::Secret};

use super::{
    ReadTimes,
    address::{self, ContextHeader},
    body,
    error::{Acted, Cause, Endpoint, Error},
};
use crate::auth::Tokens;

/// A request to one endpoint.
pub(super) struct ApiCall<'a> {
    pub(super) area: ApiArea,
    pub(super) method: Method,
    /// Path below the base URL, with `{id}` for the id, as errors show it.
    pub(super) path: Cow<'static, str>,
    /// The id, not encoded.
    pub(super) id: Cow<'a, str>,
    /// Encoded, with its question mark; may be empty.
    pub(super) query: String,
    pub(super) context: ContextHeader<'a>,
    pub(super) authority: Authority<'a>,
    pub(super) body: Option<Value>,
    /// More secrets to redact from the response.
    pub(super) hide: Vec<&'a Secret>,
    /// Whether it goes through the egress proxy.
    pub(super) egress: bool,
}

/// Credentials of a request.
#[derive(Debug, Clone, Copy)]
pub(super) enum Authority<'a> {
    /// A token of this grant, replaced once if it is rejected.
    Tokens(&'a dyn Tokens),
    /// Only this value of `Authorization`.
    Given(&'a Secret),
    /// None.
    Nobody,
}

/// A response. Only a successful one (200 to 299) is parsed and always read to its end.
#[derive(Debug)]
pub(super) struct ApiResponse<'a> {
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) times: ReadTimes,
    /// Secrets to redact where its text is shown.
    pub(super) secrets: Vec<&'a Secret>,
}

impl ApiResponse<'_> {
    /// The body, for endpoints that document 200: a 204 is no empty list, and a 206 is incomplete.
    pub(super) fn documented(&self) -> Result<&Bytes, Cause> {
        match self.status {
            200 => self.json(),
            status => {
                Err(Cause::Malformed { what: format!("its status is {status}, and only 200 is documented") })
            }
        }
    }

    /// The body, for endpoints that document no status.
    pub(super) fn json(&self) -> Result<&Bytes, Cause> {
        body::check_type(&self.headers, &self.body)?;
        Ok(&self.body)
    }
}

#[cfg(test)]
impl ApiResponse<'_> {
    /// A 200 with this body.
    pub(super) fn of(body: &'static str) -> Self {
        let now = std::time::SystemTime::UNIX_EPOCH;
        let times = ReadTimes { sent: now, answered: now, date: None, age: None };
        Self { status: 200, headers: HeaderMap::new(), body: body.into(), times, secrets: Vec::new() }
    }
}

impl<'a> ApiCall<'a> {
    /// A call without id, query, context and body.
    pub(super) fn new(
        area: ApiArea,
        method: Method,
        path: impl Into<Cow<'static, str>>,
        authority: Authority<'a>,
    ) -> Self {
        Self {
            area,
            method,
            path: path.into(),
            id: "".into(),
            query: String::new(),
            context: ContextHeader::Absent,
            authority,
            body: None,
            hide: Vec::new(),
            egress: false,
        }
    }

    /// Path and query below the base URL.
    pub(super) fn address(&self) -> Result<String, Cause> {
        let path = match self.path.split_once("{id}") {
            Some((before, after)) => format!("{before}{}{after}", address::segment(&self.id)?),
            None => self.path.to_string(),
        };
        Ok(path + &self.query)
    }

    /// An error before a response, or without one.
    pub(super) fn failed(&self, cause: Cause, acted: Acted) -> Error {
        let method = match self.method {
            Method::GET => "GET",
            Method::POST => "POST",
            Method::PUT => "PUT",
            Method::DELETE => "DELETE",
            _ => "?",
        };
        let endpoint = Endpoint { method, path: self.path.clone() };
        Error { endpoint, status: None, cause, excerpt: None, acted, in_company: self.company().is_some() }
    }

    /// The company whose budget it uses.
    pub(super) fn company(&self) -> Option<&'a str> {
        if let ContextHeader::Company(company) = self.context { Some(company) } else { None }
    }
}
