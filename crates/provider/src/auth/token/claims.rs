//! The claims of a verified token.

use std::fmt;

use serde_json::{Map, Value};

use model::is_printable;

/// The claim with the tenant: the set of resources that the person chose at the login.
const TENANT: &str = "svc.es.clientid";
/// Longest tenant; a longer one counts as missing.
const MAX_TENANT_CHARS: usize = 256;

/// Claims of a token that was valid. A claim with another type than documented counts as missing.
#[derive(Clone, PartialEq)]
pub struct Claims {
    /// `iss`.
    pub issuer: Option<String>,
    /// `aud`, one or several.
    pub audiences: Vec<String>,
    /// `exp`, in milliseconds since 1970.
    pub ends_ms: i64,
    /// `scope`.
    pub scopes: Vec<String>,
    /// `sub`: who has logged in.
    pub subject: Option<String>,
    /// All claims.
    pub all: Map<String, Value>,
}

impl Claims {
    /// Reads the claims of a payload with a known expiry.
    pub(super) fn read(payload: Map<String, Value>, ends_ms: i64) -> Self {
        let text = |name: &str| payload.get(name).and_then(Value::as_str).map(str::to_owned);
        Self {
            issuer: text("iss"),
            audiences: payload.get("aud").map(texts).unwrap_or_default(),
            ends_ms,
            scopes: payload.get("scope").map(words).unwrap_or_default(),
            subject: text("sub"),
            all: payload,
        }
    }

    /// A claim that is a string, such as `client_id`, `email` and `given_name`.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.all.get(name).and_then(Value::as_str)
    }

    /// The tenant, if the token names one.
    pub fn tenant(&self) -> Option<&str> {
        tenant(&self.all)
    }
}

/// The tenant that a payload names. A text that cannot be shown as it is counts as missing.
pub(super) fn tenant(payload: &Map<String, Value>) -> Option<&str> {
    let text = payload.get(TENANT)?.as_str().filter(|text| !text.trim().is_empty())?;
    let is_shown = text.chars().all(is_printable) && text.chars().count() <= MAX_TENANT_CHARS;
    is_shown.then_some(text)
}

/// Keeps personal data out of logs.
impl fmt::Debug for Claims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claims")
            .field("issuer", &self.issuer)
            .field("audiences", &self.audiences)
            .field("ends_ms", &self.ends_ms)
            .field("scopes", &self.scopes)
            .finish_non_exhaustive()
    }
}

/// The words of a string, or the strings of a list.
pub(in crate::auth) fn words(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) => text.split_whitespace().map(str::to_owned).collect(),
        other => texts(other),
    }
}

/// A string, or the strings of a list.
fn texts(value: &Value) -> Vec<String> {
    let values = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    values.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}
