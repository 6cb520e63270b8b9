//! The `context` header, read strictly.

use axum::http::HeaderMap;
use serde::Deserialize;

use crate::call::Context;

/// The only member `context` may have.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct CompanyObject {
    client_id: String,
}

/// What a request's `context` says.
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
    // Looked at first, because a struct would be read from an array too.
    if !text.trim_start().starts_with('{') {
        return Context::Invalid("context is neither none nor a JSON object".to_owned());
    }
    match serde_json::from_str::<CompanyObject>(text) {
        Ok(company) if company.client_id.is_empty() => Context::Invalid("clientId is empty".to_owned()),
        Ok(company) => Context::Company(company.client_id),
        Err(error) => Context::Invalid(format!("context is not an object with one clientId: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn of(values: &[&[u8]]) -> Context {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append("context", HeaderValue::from_bytes(value).unwrap());
        }
        read(&headers)
    }

    #[test]
    fn none_and_an_object_with_one_client_id_are_understood() {
        assert_eq!(of(&[]), Context::Absent);
        assert_eq!(of(&[b"none"]), Context::None);
        for (text, company) in [
            (r#"{"clientId":"a"}"#, "a"),
            (r#"  { "clientId" : "a:7:CM:b" }  "#, "a:7:CM:b"),
            (r#"{"clientId":"\u00e9\"\\"}"#, "é\"\\"),
            (r#"{"clientId":"compañía"}"#, "compañía"),
            (r#"{"client\u0049d":"a"}"#, "a"),
        ] {
            assert_eq!(of(&[text.as_bytes()]), Context::Company(company.to_owned()), "{text}");
        }
    }

    #[test]
    fn everything_else_is_invalid() {
        for text in [
            "",
            "None",
            "NONE",
            "null",
            "a",
            "\"none\"",
            "[\"a\"]",
            " [\"a\"]",
            "{}",
            "{",
            r#"{"clientId":""}"#,
            r#"{"clientId":null}"#,
            r#"{"clientId":7}"#,
            r#"{"clientId":["a"]}"#,
            r#"{"ClientId":"a"}"#,
            r#"{"client_id":"a"}"#,
            r#"{"clientId":"a","more":1}"#,
            r#"{"clientId":"a","clientId":"a"}"#,
            r#"{"clientId":"a"} x"#,
            r#"{"clientId":"a",}"#,
            r#"{clientId:"a"}"#,
            r#"{'clientId':'a'}"#,
        ] {
            assert!(matches!(of(&[text.as_bytes()]), Context::Invalid(_)), "{text}");
        }
        assert!(matches!(of(&[b"none", b"none"]), Context::Invalid(_)));
        assert!(matches!(of(&[b"{\"clientId\":\"\xff\"}"]), Context::Invalid(_)));
    }
}
