//! What a request asks for, in whose name, and the answer to it.

use std::borrow::Cow;

use bytes::Bytes;
use reqwest::{Method, header::HeaderMap};

use base::{metrics::ApiArea, secret::Secret};

use super::{
    Cut,
    address::Context,
    error::{Acted, Cause, Endpoint, Error},
};
use crate::auth::Tokens;

/// What is asked for.
#[derive(Debug)]
pub(super) struct Call<'a> {
    pub(super) area: ApiArea,
    pub(super) method: Method,
    /// What stands in errors.
    pub(super) path: Cow<'static, str>,
    /// Below the base address, encoded, with its query.
    pub(super) address: String,
    pub(super) context: Context<'a>,
    pub(super) authority: Authority<'a>,
    pub(super) body: Option<Vec<u8>>,
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
pub(super) struct Answer<'a> {
    /// From 200 to 299.
    pub(super) status: u16,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) cut: Cut,
    /// What it may repeat and nobody may see.
    pub(super) secrets: Vec<&'a Secret>,
}

impl Answer<'_> {
    /// Refuses every success but 200, for endpoints that document it: a 204 is no empty list, a 206 no whole one.
    pub(super) fn check_ok(&self) -> Result<(), Cause> {
        match self.status {
            200 => Ok(()),
            status => {
                Err(Cause::Malformed { what: format!("its status is {status}, and only 200 is documented") })
            }
        }
    }
}

impl<'a> Call<'a> {
    /// A call with neither context nor body.
    pub(super) fn new(
        area: ApiArea,
        method: Method,
        path: impl Into<Cow<'static, str>>,
        address: String,
        authority: Authority<'a>,
    ) -> Self {
        let context = Context::Absent;
        Self {
            area,
            method,
            path: path.into(),
            address,
            context,
            authority,
            body: None,
            hide: Vec::new(),
            egress: false,
        }
    }

    /// An error of this call before or instead of an answer.
    pub(super) fn failed(&self, cause: Cause, acted: Acted) -> Error {
        let in_company = self.company().is_some();
        Error { endpoint: self.endpoint(), status: None, cause, excerpt: None, acted, in_company }
    }

    /// What is called, with names for its ids.
    pub(super) fn endpoint(&self) -> Endpoint {
        let method = match self.method {
            Method::GET => "GET",
            Method::POST => "POST",
            Method::PUT => "PUT",
            Method::DELETE => "DELETE",
            _ => "?",
        };
        Endpoint { method, path: self.path.clone() }
    }

    /// Whose budget it counts in.
    pub(super) fn company(&self) -> Option<&'a str> {
        match self.context {
            Context::Company(company) => Some(company),
            Context::Absent | Context::None => None,
        }
    }
}
