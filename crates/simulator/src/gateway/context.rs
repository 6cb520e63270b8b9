//! Strict parsing of the `context` header.

use axum::http::HeaderMap;
use serde::Deserialize;

use crate::call::Context;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct CompanyObject {
    client_id: String,
}

/// Parses the `context` of a request.
pub(super) fn read(headers: &HeaderMap) -> Context {
    let mut values = headers.get_all("context").iter();
    let Some(value) = values.next() else { return Context::Absent };
    if values.next().is_some() {
        return Context::Invalid("context is sent more than once".to_owned());
    }
    let Ok(text) = std::str::from_utf8(value.as_bytes()) else {
        return Context::Invalid("context is not UTF-8".to_owned());
    };
    if text == "none" {
        return Context::None;
    }
    // serde would also accept an array.
    if !text.trim_start().starts_with('{') {
        return Context::Invalid("context is neither none nor a JSON object".to_owned());
    }
    match serde_json::from_str::<CompanyObject>(text) {
        Ok(company) if company.client_id.is_empty() => Context::Invalid("clientId is empty".to_owned()),
        Ok(company) => Context::Company(company.client_id),
        Err(error) => Context::Invalid(format!("context is not an object with one clientId: {error}")),
    }
}
