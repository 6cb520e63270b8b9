//! A small HTTP client that keeps every answer whole, so that a check can show it.
//!
//! A worker may answer 409, and Connect also 500, while it rebalances; this client retries such calls, as other clients do.

use std::time::Duration;

use reqwest::Method;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use serde_json::Value;
use tokio::time::Instant;

use super::shape::{self, ObjectShape, Strictness, brief, shorten};
use super::shapes;
use super::subject::{Credentials, Subject};

/// The timeout of Terraform's client.
const CALL_LIMIT: Duration = Duration::from_secs(10);
const REBALANCE_STEP: Duration = Duration::from_millis(100);
const REBALANCE_LIMIT: Duration = Duration::from_secs(20);

/// The result of a check; an error has the expected and the found value.
pub(crate) type CheckOutcome = Result<(), String>;

/// A client of one worker.
#[derive(Clone)]
pub(crate) struct RestClient {
    http: reqwest::Client,
    base: String,
    credentials: Option<Credentials>,
    strictness: Strictness,
    headers: HeaderMap,
}

/// The body of a call.
pub(crate) enum Body<'a> {
    None,
    /// JSON with its content type.
    Json(&'a Value),
    /// Any bytes under any content type.
    Raw(&'a str, &'a str),
}

impl RestClient {
    pub(crate) fn new(subject: &Subject) -> Result<Self, String> {
        let http = reqwest::Client::builder().timeout(CALL_LIMIT).no_proxy().build();
        Ok(Self {
            http: http.map_err(|error| format!("build a client: {error}"))?,
            base: subject.url.clone(),
            credentials: subject.credentials.clone(),
            strictness: subject.strictness(),
            headers: HeaderMap::new(),
        })
    }

    /// The same client with additional headers on every call, as a tool sends them.
    pub(crate) fn sending(&self, headers: &[(&'static str, &'static str)]) -> Self {
        let mut client = self.clone();
        for (name, value) in headers {
            client.headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        client
    }

    /// The same client with other credentials, or none.
    pub(crate) fn with_credentials(&self, credentials: Option<Credentials>) -> Self {
        Self { credentials, ..self.clone() }
    }

    pub(crate) async fn get(&self, path: &str) -> Result<RestAnswer, String> {
        self.call(Method::GET, path, Body::None).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Result<RestAnswer, String> {
        self.call(Method::DELETE, path, Body::None).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Result<RestAnswer, String> {
        self.call(Method::POST, path, Body::Json(body)).await
    }

    pub(crate) async fn put(&self, path: &str, body: &Value) -> Result<RestAnswer, String> {
        self.call(Method::PUT, path, Body::Json(body)).await
    }

    pub(crate) async fn patch(&self, path: &str, body: &Value) -> Result<RestAnswer, String> {
        self.call(Method::PATCH, path, Body::Json(body)).await
    }

    /// A POST without a body.
    pub(crate) async fn order(&self, path: &str) -> Result<RestAnswer, String> {
        self.call(Method::POST, path, Body::None).await
    }

    /// A PUT without a body.
    pub(crate) async fn set(&self, path: &str) -> Result<RestAnswer, String> {
        self.call(Method::PUT, path, Body::None).await
    }

    pub(crate) async fn call(
        &self,
        method: Method,
        path: &str,
        body: Body<'_>,
    ) -> Result<RestAnswer, String> {
        let deadline = Instant::now() + REBALANCE_LIMIT;
        loop {
            let answer = self.call_once(method.clone(), path, &body).await?;
            if !answer.is_rebalance() || Instant::now() >= deadline {
                return Ok(answer);
            }
            tokio::time::sleep(REBALANCE_STEP).await;
        }
    }

    async fn call_once(&self, method: Method, path: &str, body: &Body<'_>) -> Result<RestAnswer, String> {
        let call = format!("{method} {path}");
        let failed = |error: reqwest::Error| format!("{call}: expected an answer, got {error:?}");
        let mut request =
            self.http.request(method, format!("{}{path}", self.base)).headers(self.headers.clone());
        if let Some(Credentials { user, password }) = &self.credentials {
            request = request.basic_auth(user, Some(password));
        }
        // Additional headers win: a tool may send a more specific content type.
        let json = |request: reqwest::RequestBuilder| {
            let told = self.headers.contains_key(CONTENT_TYPE);
            if told { request } else { request.header(CONTENT_TYPE, "application/json") }
        };
        request = match body {
            Body::None => request,
            Body::Json(value) => json(request).body(value.to_string()),
            Body::Raw(content_type, text) => {
                request.header(CONTENT_TYPE, *content_type).body((*text).to_owned())
            }
        };
        let response = request.send().await.map_err(failed)?;
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        let text = response.text().await.map_err(failed)?;
        let json = serde_json::from_str(&text).unwrap_or(Value::Null);
        Ok(RestAnswer { call, status, headers, text, json, strictness: self.strictness })
    }
}

/// A path segment: a name as clients put it into a path.
pub(crate) fn segment(name: &str) -> String {
    let mut encoded = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded += &format!("%{byte:02X}");
        }
    }
    encoded
}

/// An answer.
#[derive(Debug)]
pub(crate) struct RestAnswer {
    call: String,
    status: u16,
    headers: HeaderMap,
    text: String,
    /// The body, or null if it is no JSON.
    pub(crate) json: Value,
    strictness: Strictness,
}

impl RestAnswer {
    /// A fault of this answer, with its call.
    pub(crate) fn fault(&self, text: &str) -> String {
        format!("{}: {text}", self.call)
    }

    /// Requires this status and, if there is a body, JSON with its content type.
    pub(crate) fn expect(self, status: u16) -> Result<Self, String> {
        if self.status != status {
            return Err(self.fault(&format!(
                "expected {status}, got {} {}",
                self.status,
                shorten(&self.text)
            )));
        }
        let content_type = self.header("content-type").unwrap_or_default();
        if status < 300 && !self.text.is_empty() && content_type.split(';').next() != Some("application/json")
        {
            return Err(self.fault(&format!("expected content type application/json, got {content_type:?}")));
        }
        Ok(self)
    }

    /// Requires this status and an empty body.
    pub(crate) fn expect_empty(self, status: u16) -> Result<Self, String> {
        let answer = self.expect(status)?;
        if answer.text.is_empty() {
            Ok(answer)
        } else {
            Err(answer.fault(&format!("expected an empty body, got {}", shorten(&answer.text))))
        }
    }

    /// Requires this status and an error body that repeats it.
    pub(crate) fn expect_error(self, status: u16) -> Result<Self, String> {
        let answer = self.expect(status)?.of(&shapes::ERROR)?;
        if answer.json["error_code"] == status {
            Ok(answer)
        } else {
            Err(answer.fault(&format!("expected error_code {status}, got {}", answer.json["error_code"])))
        }
    }

    /// Requires an error for a bad request, which Connect answers with 500 and our worker may answer with 400.
    pub(crate) fn expect_refusal(self) -> Result<Self, String> {
        let status = if self.strictness == Strictness::Compatible && self.status == 400 { 400 } else { 500 };
        self.expect_error(status)
    }

    /// Requires a body of this shape.
    pub(crate) fn of(self, shape: &ObjectShape) -> Result<Self, String> {
        self.check(shape, &self.json)?;
        Ok(self)
    }

    /// Requires a list of this shape.
    pub(crate) fn list_of(self, shape: &ObjectShape) -> Result<Self, String> {
        for item in self.list()? {
            self.check(shape, item)?;
        }
        Ok(self)
    }

    /// Requires an object in which every value has this shape.
    pub(crate) fn map_of(self, shape: &ObjectShape) -> Result<Self, String> {
        let Some(members) = self.json.as_object() else {
            return Err(self.fault(&format!("expected an object, got {}", brief(&self.json))));
        };
        for (key, value) in members {
            self.check(shape, value).map_err(|fault| format!("{fault} (under {key:?})"))?;
        }
        Ok(self)
    }

    /// Requires this part of the body to have this shape.
    pub(crate) fn check(&self, shape: &ObjectShape, value: &Value) -> CheckOutcome {
        shape::compare(shape, value, self.strictness).map_err(|fault| self.fault(&fault))
    }

    /// The body as a list.
    pub(crate) fn list(&self) -> Result<&Vec<Value>, String> {
        let list = self.json.as_array();
        list.ok_or_else(|| self.fault(&format!("expected a list, got {}", shorten(&self.text))))
    }

    /// A list at this pointer.
    pub(crate) fn list_at(&self, pointer: &str) -> Result<&Vec<Value>, String> {
        let list = self.json.pointer(pointer).and_then(Value::as_array);
        list.ok_or_else(|| self.fault(&format!("expected a list at {pointer}, got {}", shorten(&self.text))))
    }

    /// Requires this value at a JSON pointer.
    pub(crate) fn has(self, pointer: &str, expected: &Value) -> Result<Self, String> {
        match self.json.pointer(pointer) {
            Some(value) if value == expected => Ok(self),
            value => {
                let got = value.map_or_else(|| "nothing".to_owned(), brief);
                Err(self.fault(&format!("expected {pointer} to be {}, got {got}", brief(expected))))
            }
        }
    }

    /// Requires a message that contains this text.
    pub(crate) fn says(self, text: &str) -> Result<Self, String> {
        if self.message().contains(text) {
            Ok(self)
        } else {
            Err(self.fault(&format!("expected a message with {text:?}, got {:?}", shorten(self.message()))))
        }
    }

    /// The message of an error, or an empty text.
    pub(crate) fn message(&self) -> &str {
        self.json["message"].as_str().unwrap_or_default()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Whether the call should be retried; the conflict of an existing name should not.
    fn is_rebalance(&self) -> bool {
        match self.status {
            409 => !self.message().contains("already exists"),
            500 => self.message().contains("rebalance is expected"),
            _ => false,
        }
    }
}
