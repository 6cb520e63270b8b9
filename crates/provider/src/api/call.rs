//! What a request asks for, in whose name, and the answer to it.

use std::borrow::Cow;

use bytes::Bytes;
use reqwest::{Method, header::HeaderMap};
use serde_json::Value;

use base::{metrics::ApiArea, secret::Secret};

use super::{
    ReadTimes,
    address::{self, Context},
    body,
    error::{Acted, Cause, Endpoint, Error},
};
use crate::auth::Tokens;

/// What is asked for.
pub(super) struct Call<'a> {
    pub(super) area: ApiArea,
    pub(super) method: Method,
    /// Below the base address, with `{id}` where the id goes: errors show it so.
    pub(super) path: Cow<'static, str>,
    /// The text for `{id}`, not encoded.
    pub(super) id: Cow<'a, str>,
    /// Encoded, with its question mark; may be empty.
    pub(super) query: String,
    pub(super) context: Context<'a>,
    pub(super) authority: Authority<'a>,
    pub(super) body: Option<Value>,
    /// Further secrets that an answer might repeat.
    pub(super) hide: Vec<&'a Secret>,
    /// Through the proxy for what leaves under another address.
    pub(super) egress: bool,
}

/// In whose name.
#[derive(Debug, Clone, Copy)]
pub(super) enum Authority<'a> {
    /// With a token of this grant, and with another if it is refused.
    Tokens(&'a dyn Tokens),
    /// With this one alone: the value of `Authorization`, whole.
    Given(&'a Secret),
    /// Nobody's.
    Nobody,
}

/// A success, read to its end.
#[derive(Debug)]
pub(super) struct ApiResponse<'a> {
    /// From 200 to 299.
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) times: ReadTimes,
    /// What it may repeat and nobody may see.
    pub(super) secrets: Vec<&'a Secret>,
}

impl ApiResponse<'_> {
    /// The body of an endpoint that documents 200: a 204 is no empty list, a 206 no whole one.
    pub(super) fn documented(&self) -> Result<&Bytes, Cause> {
        match self.status {
            200 => self.json(),
            status => {
                Err(Cause::Malformed { what: format!("its status is {status}, and only 200 is documented") })
            }
        }
    }

    /// The body of an endpoint that documents no status.
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

impl<'a> Call<'a> {
    /// A call with neither id, query, context nor body.
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
            context: Context::Absent,
            authority,
            body: None,
            hide: Vec::new(),
            egress: false,
        }
    }

    /// Where it goes, below the base address.
    pub(super) fn address(&self) -> Result<String, Cause> {
        let path = match self.path.split_once("{id}") {
            Some((before, after)) => format!("{before}{}{after}", address::segment(&self.id)?),
            None => self.path.to_string(),
        };
        Ok(path + &self.query)
    }

    /// An error of this call before or instead of an answer.
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

    /// Whose budget it counts in.
    pub(super) fn company(&self) -> Option<&'a str> {
        if let Context::Company(company) = self.context { Some(company) } else { None }
    }
}
