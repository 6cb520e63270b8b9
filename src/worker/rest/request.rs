//! What a request brings: its body, the names in its path, its query, and the answer it accepts.
//!
//! Everything here comes from outside. A refusal says what is wrong and where, and never repeats what was sent.

use std::{collections::BTreeMap, time::Duration};

use axum::{
    body,
    extract::{FromRequest, FromRequestParts, OptionalFromRequest, RawPathParams, Request},
    http::{HeaderMap, header, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use futures::StreamExt as _;
use serde_json::{Map, Value};
use tokio::time::timeout;
use url::form_urlencoded;

use super::answer::Refusal;
use crate::{
    config::connector::{TargetState, coerce},
    worker::{
        herder::{Offset, Offsets, Patch, RunRequest},
        state::configs::Properties,
    },
};

/// The largest body: a configuration is a few kilobytes.
const BODY_LIMIT: usize = 1 << 20;
/// The longest a body may take to arrive.
const BODY_TIME: Duration = Duration::from_secs(2);

/// A JSON body.
pub(super) struct Body(pub(super) Value);

impl<S: Send + Sync> FromRequest<S> for Body {
    type Rejection = Refusal;

    async fn from_request(request: Request, _: &S) -> Result<Self, Refusal> {
        parsed(&arrived(request).await?)
    }
}

impl<S: Send + Sync> OptionalFromRequest<S> for Body {
    type Rejection = Refusal;

    /// None where nothing was sent.
    async fn from_request(request: Request, _: &S) -> Result<Option<Self>, Refusal> {
        let bytes = arrived(request).await?;
        if bytes.is_empty() { Ok(None) } else { parsed(&bytes).map(Some) }
    }
}

async fn arrived(request: Request) -> Result<Vec<u8>, Refusal> {
    let json =
        content_type(request.headers()).is_none_or(|found| found.eq_ignore_ascii_case("application/json"));
    if !json {
        return Err(Refusal::new(415, "HTTP 415 Unsupported Media Type"));
    }
    let late = |_| Refusal::new(408, "the body did not arrive in time");
    timeout(BODY_TIME, read(request.into_body())).await.map_err(late)?
}

fn parsed(bytes: &[u8]) -> Result<Body, Refusal> {
    serde_json::from_slice(bytes).map(Body).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        Refusal::bad_request(format!("the body is not JSON (line {line}, column {column})"))
    })
}

impl Body {
    /// The body of `POST /connectors`: name, configuration, and the state to create it in.
    pub(super) fn creation(self) -> Result<(String, Properties, Option<TargetState>), Refusal> {
        let mut members = self.object()?;
        let name = match members.remove("name") {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(name)) => name,
            Some(Value::Number(name)) => name.to_string(),
            Some(_) => return Err(Refusal::bad_request("name must be text")),
        };
        let config = match members.remove("config") {
            Some(Value::Object(config)) => coerced(config)?,
            Some(_) => return Err(Refusal::bad_request("config must be a JSON object")),
            None => return Err(Refusal::bad_request("config is missing")),
        };
        let initial = match members.remove("initial_state") {
            None | Some(Value::Null) => None,
            Some(state) => {
                let parsed = state.as_str().and_then(TargetState::parse);
                let told = "initial_state must be RUNNING, PAUSED or STOPPED";
                Some(parsed.ok_or_else(|| Refusal::bad_request(told))?)
            }
        };
        nothing_else(&members, "name, config and initial_state")?;
        Ok((name, config, initial))
    }

    /// A flat configuration.
    pub(super) fn config(self) -> Result<Properties, Refusal> {
        coerced(self.object()?)
    }

    /// Keys to set, and with null keys to remove.
    pub(super) fn patch(self) -> Result<Patch, Refusal> {
        let (removed, set): (Map<_, _>, Map<_, _>) =
            self.object()?.into_iter().partition(|(_, value)| value.is_null());
        let set = coerced(set)?.into_iter().map(|(key, value)| (key, Some(value)));
        Ok(set.chain(removed.into_iter().map(|(key, _)| (key, None))).collect())
    }

    /// Offsets to set; none where the member is missing.
    pub(super) fn offsets(self) -> Result<Offsets, Refusal> {
        let mut members = self.object()?;
        let offsets = match members.remove("offsets") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(offsets)) => offsets,
            Some(_) => return Err(Refusal::bad_request("offsets must be a JSON array")),
        };
        nothing_else(&members, "offsets")?;
        let each = offsets.into_iter().enumerate().map(|(index, one)| offset(one, index));
        Ok(Offsets { offsets: each.collect::<Result<_, _>>()? })
    }

    /// The level in `{"level": …}`.
    pub(super) fn level(self) -> Result<String, Refusal> {
        match self.object()?.remove("level") {
            Some(Value::String(level)) => Ok(level),
            None | Some(Value::Null) => {
                Err(Refusal::bad_request("Desired 'level' parameter was not specified in request."))
            }
            Some(_) => Err(Refusal::bad_request("level must be text")),
        }
    }

    /// The gap in `{"id": …}`.
    pub(super) fn gap(self) -> Result<String, Refusal> {
        let mut members = self.object()?;
        let Some(Value::String(id)) = members.remove("id") else {
            return Err(Refusal::bad_request("id must be the id of a gap, as GET …/gaps shows it"));
        };
        nothing_else(&members, "id")?;
        Ok(id)
    }

    /// What a run shall read, in `{"id", "kind", "lists", "companies", "incremental", "sample", "repair"}`; each may be left out.
    pub(super) fn run(self) -> Result<RunRequest, Refusal> {
        let mut members = self.object()?;
        let mut flag = |name: &str| match members.remove(name) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(_) => Err(Refusal::bad_request(format!("{name} must be true or false"))),
        };
        let (incremental, repair) = (flag("incremental")?, flag("repair")?);
        let sample = match members.remove("sample") {
            None | Some(Value::Null) => None,
            Some(sample) => {
                let told = || Refusal::bad_request("sample must be a whole number of rows");
                Some(sample.as_u64().ok_or_else(told)?)
            }
        };
        let request = RunRequest {
            id: text(members.remove("id"), "id")?,
            kind: text(members.remove("kind"), "kind")?,
            lists: texts(members.remove("lists"), "lists")?,
            companies: texts(members.remove("companies"), "companies")?,
            incremental,
            sample,
            repair,
        };
        nothing_else(&members, "id, kind, lists, companies, incremental, sample and repair")?;
        Ok(request)
    }

    fn object(self) -> Result<Map<String, Value>, Refusal> {
        match self.0 {
            Value::Object(members) => Ok(members),
            _ => Err(Refusal::bad_request("the body must be a JSON object")),
        }
    }
}

/// The name in a path: `{name}`, `{plugin}` or `{logger}`.
pub(super) struct Name(pub(super) String);

/// The run in a path: `{run}`.
pub(super) struct Run(pub(super) String);

/// The number in a path: `{task}`.
pub(super) struct TaskNumber(pub(super) u32);

/// Everything behind the question mark.
pub(super) struct Query(Vec<(String, String)>);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let captured = captured(parts, state).await?;
        let name = ["name", "plugin", "logger"].iter().find_map(|key| captured.get(*key));
        name.filter(|name| !name.is_empty()).cloned().map(Self).ok_or_else(Refusal::no_path)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Run {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let captured = captured(parts, state).await?;
        captured.get("run").filter(|run| !run.is_empty()).cloned().map(Self).ok_or_else(Refusal::no_path)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for TaskNumber {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let captured = captured(parts, state).await?;
        let number = captured.get("task").and_then(|text| text.parse().ok());
        number.map(Self).ok_or_else(Refusal::no_path)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Query {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let query = parts.uri.query().unwrap_or_default();
        Ok(Self(form_urlencoded::parse(query.as_bytes()).into_owned().collect()))
    }
}

impl Query {
    /// Every value of a parameter; `None` where it does not stand there.
    pub(super) fn all(&self, name: &str) -> Option<Vec<&str>> {
        let values: Vec<&str> =
            self.0.iter().filter(|(key, _)| key == name).map(|(_, value)| value.as_str()).collect();
        (!values.is_empty()).then_some(values)
    }

    /// The first value of a parameter that is not empty.
    pub(super) fn one(&self, name: &str) -> Option<String> {
        self.all(name)?.first().filter(|value| !value.is_empty()).map(|value| (*value).to_owned())
    }

    /// A boolean as Java reads it: anything but `true` is false.
    pub(super) fn flag(&self, name: &str, default: bool) -> bool {
        let first = self.all(name).and_then(|values| values.first().copied());
        first.map_or(default, |value| value.eq_ignore_ascii_case("true"))
    }
}

/// Refuses a client that takes anything but JSON, before anything is done for it.
pub(super) async fn acceptable(request: Request, next: Next) -> Response {
    if accepts_json(request.headers()) {
        next.run(request).await
    } else {
        Refusal::new(406, "HTTP 406 Not Acceptable").into_response()
    }
}

async fn read(body: body::Body) -> Result<Vec<u8>, Refusal> {
    let mut chunks = body.into_data_stream();
    let mut bytes = Vec::new();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| Refusal::bad_request("the body broke off"))?;
        if bytes.len() + chunk.len() > BODY_LIMIT {
            return Err(Refusal::new(413, format!("the body is larger than {BODY_LIMIT} bytes")));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

pub(super) fn accepts_json(headers: &HeaderMap) -> bool {
    let mut named = headers.get_all(header::ACCEPT).iter().peekable();
    if named.peek().is_none() {
        return true;
    }
    named.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')).any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        let refused = parts.any(|parameter| {
            let weight = parameter.strip_prefix("q=").or_else(|| parameter.strip_prefix("Q="));
            weight.is_some_and(|weight| weight.trim().parse() == Ok(0.0))
        });
        let fits = ["*/*", "application/*", "application/json", "*"]
            .iter()
            .any(|json| media.eq_ignore_ascii_case(json));
        fits && !refused
    })
}

fn content_type(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::CONTENT_TYPE)?.to_str().unwrap_or("unreadable");
    Some(value.split(';').next().unwrap_or_default().trim().to_owned())
}

async fn captured<S: Send + Sync>(parts: &mut Parts, state: &S) -> Result<BTreeMap<String, String>, Refusal> {
    let params = RawPathParams::from_request_parts(parts, state).await;
    let params = params.map_err(|_| Refusal::bad_request("the path is not UTF-8 text"))?;
    Ok(params.iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
}

fn coerced(members: Map<String, Value>) -> Result<Properties, Refusal> {
    coerce(members).map_err(|problems| {
        let count = problems.len();
        Refusal::bad_request(format!(
            "Connector configuration is invalid and contains the following {count} error(s):\n{problems}"
        ))
    })
}

fn offset(value: Value, index: usize) -> Result<Offset, Refusal> {
    let refuse = |what: &str| Err(Refusal::bad_request(format!("offsets[{index}]{what}")));
    let Value::Object(mut members) = value else { return refuse(" must be a JSON object") };
    let Some(Value::Object(partition)) = members.remove("partition") else {
        return refuse(".partition must be a JSON object");
    };
    let offset = match members.remove("offset") {
        None | Some(Value::Null) => None,
        Some(Value::Object(offset)) => Some(offset),
        Some(_) => return refuse(".offset must be a JSON object or null"),
    };
    nothing_else(&members, "partition and offset")?;
    let nested = |value: &Value| value.is_object() || value.is_array();
    if partition.values().chain(offset.iter().flat_map(Map::values)).any(nested) {
        return refuse(" must hold texts, numbers and booleans only");
    }
    Ok(Offset { partition, offset })
}

fn text(value: Option<Value>, name: &str) -> Result<Option<String>, Refusal> {
    match value {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(Refusal::bad_request(format!("{name} must be text"))),
    }
}

fn texts(value: Option<Value>, name: &str) -> Result<Option<Vec<String>>, Refusal> {
    let told = || Refusal::bad_request(format!("{name} must be a JSON array of texts"));
    let all = match value {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::Array(all)) => all,
        Some(_) => return Err(told()),
    };
    let each = all.into_iter().map(|one| match one {
        Value::String(text) => Ok(text),
        _ => Err(told()),
    });
    each.collect::<Result<_, _>>().map(Some)
}

fn nothing_else(members: &Map<String, Value>, known: &str) -> Result<(), Refusal> {
    match members.keys().next() {
        // The name of a member may be a misplaced value; its length bounds what is repeated.
        Some(unknown) => {
            let unknown: String = unknown.chars().take(64).collect();
            Err(Refusal::bad_request(format!("Unrecognized field \"{unknown}\"; known are {known}")))
        }
        None => Ok(()),
    }
}
