//! A request that has passed the gateway, as handlers get it.

use std::net::SocketAddr;

use axum::http::HeaderMap;
use serde::Deserialize;
use serde_json::{Value, json};

use super::identity::Caller;

/// A request that has passed the gateway and its token check: `Extension<Call>` of handlers.
#[derive(Debug, Clone)]
pub struct AdmittedCall {
    /// The caller; `None` on the invoicing login.
    pub caller: Option<Caller>,
    /// The `context` header.
    pub context: SentContext,
    /// The address of the client.
    pub peer: SocketAddr,
}

/// The `context` header as it was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SentContext {
    /// Not sent.
    Absent,
    /// The text `none`.
    None,
    /// A JSON object with one member `clientId`.
    Company(String),
    /// Anything else, with the reason why it is invalid.
    Invalid(String),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct CompanyObject {
    client_id: String,
}

impl SentContext {
    /// As transcripts have it.
    pub(super) fn json(&self) -> Value {
        match self {
            Self::Absent => Value::Null,
            Self::None => json!("none"),
            Self::Company(company) => json!({ "clientId": company }),
            Self::Invalid(_) => json!("invalid"),
        }
    }

    /// Parses the `context` of a request.
    pub(super) fn read(headers: &HeaderMap) -> Self {
        let mut values = headers.get_all("context").iter();
        let Some(value) = values.next() else { return Self::Absent };
        if values.next().is_some() {
            return Self::Invalid("context is sent more than once".to_owned());
        }
        let Ok(text) = std::str::from_utf8(value.as_bytes()) else {
            return Self::Invalid("context is not UTF-8".to_owned());
        };
        if text == "none" {
            return Self::None;
        }
        // serde would also accept an array.
        if !text.trim_start().starts_with('{') {
            return Self::Invalid("context is neither none nor a JSON object".to_owned());
        }
        match serde_json::from_str::<CompanyObject>(text) {
            Ok(company) if company.client_id.is_empty() => Self::Invalid("clientId is empty".to_owned()),
            Ok(company) => Self::Company(company.client_id),
            Err(error) => Self::Invalid(format!("context is not an object with one clientId: {error}")),
        }
    }
}
