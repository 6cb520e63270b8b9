//! The parts of a request: its body, the names in its path, its query, and the answer it accepts.
//!
//! All of it is untrusted. A refusal says what is wrong and where, and repeats no value that was sent, only names: of keys, and of
//! unknown members, which are truncated.

use std::time::Duration;

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
    connect::herder::{ConnectorOffsets, Error, Herder, Offset, Patch, RunRequest, TimeBudget},
    state::configs::Properties,
};

/// Limit on a body: a configuration has a few kilobytes.
const BODY_LIMIT: usize = 1 << 20;
/// Limit on the time a body takes to arrive, unless its request has less left.
const BODY_TIME_LIMIT: Duration = Duration::from_secs(2);

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

    /// `None` for an empty body.
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
    let limit = TimeBudget::start().at_most(BODY_TIME_LIMIT).left();
    // Used up before the body, by a slow login: the client is not to blame.
    if limit.is_zero() {
        return Err(Error::TimedOut { doing: "waiting to read the body" }.into());
    }
    timeout(limit, read(request.into_body())).await.map_err(late)?
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
        let mut members = self.members()?;
        let name = members.take("name", "text", |name| match name {
            Value::Number(name) => Some(name.to_string()),
            name => text(name),
        })?;
        let config = match members.0.remove("config") {
            Some(Value::Object(config)) => coerced(config)?,
            Some(_) => return Err(Refusal::bad_request("config must be a JSON object")),
            None => return Err(Refusal::bad_request("config is missing")),
        };
        let parse = |state: Value| state.as_str().and_then(TargetState::parse);
        let initial = members.take("initial_state", "RUNNING, PAUSED or STOPPED", parse)?;
        members.nothing_else("name, config and initial_state")?;
        Ok((name.unwrap_or_default(), config, initial))
    }

    /// A flat configuration.
    pub(super) fn config(self) -> Result<Properties, Refusal> {
        coerced(self.members()?.0)
    }

    /// Keys to set; keys with null are removed.
    pub(super) fn patch(self) -> Result<Patch, Refusal> {
        let (removed, set): (Map<_, _>, Map<_, _>) =
            self.members()?.0.into_iter().partition(|(_, value)| value.is_null());
        let set = coerced(set)?.into_iter().map(|(key, value)| (key, Some(value)));
        Ok(set.chain(removed.into_iter().map(|(key, _)| (key, None))).collect())
    }

    /// Offsets to set; none if the member is missing.
    pub(super) fn offsets(self) -> Result<ConnectorOffsets, Refusal> {
        let mut members = self.members()?;
        let offsets = members.take("offsets", "a JSON array", array)?.unwrap_or_default();
        members.nothing_else("offsets")?;
        let each = offsets.into_iter().enumerate().map(|(index, one)| offset(one, index));
        Ok(ConnectorOffsets { offsets: each.collect::<Result<_, _>>()? })
    }

    /// The level in `{"level": …}`.
    pub(super) fn level(self) -> Result<String, Refusal> {
        let missing = || Refusal::bad_request("Desired 'level' parameter was not specified in request.");
        self.members()?.take("level", "text", text)?.ok_or_else(missing)
    }

    /// The gap in `{"id": …}`.
    pub(super) fn gap(self) -> Result<String, Refusal> {
        let mut members = self.members()?;
        let Some(Value::String(id)) = members.0.remove("id") else {
            return Err(Refusal::bad_request("id must be the id of a gap, as GET …/gaps shows it"));
        };
        members.nothing_else("id")?;
        Ok(id)
    }

    /// What a run should read, in `{"id", "kind", "lists", "companies", "incremental", "sample", "repair"}`; all are optional.
    pub(super) fn run(self) -> Result<RunRequest, Refusal> {
        let mut members = self.members()?;
        let mut flag =
            |name| members.take(name, "true or false", |flag| flag.as_bool()).map(Option::unwrap_or_default);
        let (incremental, repair) = (flag("incremental")?, flag("repair")?);
        let request = RunRequest {
            sample: members.take("sample", "a whole number of rows", |sample| sample.as_u64())?,
            id: members.take("id", "text", text)?,
            kind: members.take("kind", "text", text)?,
            lists: members.take("lists", "a JSON array of texts", texts)?,
            companies: members.take("companies", "a JSON array of texts", texts)?,
            incremental,
            repair,
        };
        members.nothing_else("id, kind, lists, companies, incremental, sample and repair")?;
        Ok(request)
    }

    fn members(self) -> Result<BodyMembers, Refusal> {
        match self.0 {
            Value::Object(members) => Ok(BodyMembers(members)),
            _ => Err(Refusal::bad_request("the body must be a JSON object")),
        }
    }
}

/// Members of a JSON object, taken one by one.
struct BodyMembers(Map<String, Value>);

impl BodyMembers {
    /// An optional member, missing or null: `None`. Anything else must be `what`, as parsed by `read`.
    fn take<T>(
        &mut self,
        name: &str,
        what: &str,
        read: impl FnOnce(Value) -> Option<T>,
    ) -> Result<Option<T>, Refusal> {
        let Some(value) = self.0.remove(name).filter(|value| !value.is_null()) else { return Ok(None) };
        let wrong = || Refusal::bad_request(format!("{name} must be {what}"));
        read(value).map(Some).ok_or_else(wrong)
    }

    /// Refuses members that were not taken.
    fn nothing_else(self, known: &str) -> Result<(), Refusal> {
        let Some(unknown) = self.0.keys().next() else { return Ok(()) };
        // The name of a member may be a misplaced secret: repeat at most 64 characters.
        let unknown: String = unknown.chars().take(64).collect();
        Err(Refusal::bad_request(format!("Unrecognized field \"{unknown}\"; known are {known}")))
    }
}

fn text(value: Value) -> Option<String> {
    if let Value::String(text) = value { Some(text) } else { None }
}

fn array(value: Value) -> Option<Vec<Value>> {
    if let Value::Array(all) = value { Some(all) } else { None }
}

fn texts(value: Value) -> Option<Vec<String>> {
    array(value)?.into_iter().map(text).collect()
}

/// The herder, and the name in the path: `{name}`, `{plugin}` or `{logger}`.
pub(super) struct NamePath(pub(super) Herder, pub(super) String);

/// The herder, and the connector and run in the path.
pub(super) struct RunPath(pub(super) Herder, pub(super) String, pub(super) String);

/// The herder, and the connector and task in the path.
pub(super) struct TaskPath(pub(super) Herder, pub(super) String, pub(super) u32);

/// The query parameters.
pub(super) struct Query(Vec<(String, String)>);

impl FromRequestParts<Herder> for NamePath {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, herder: &Herder) -> Result<Self, Refusal> {
        Ok(Self(herder.clone(), captured(parts, &["name", "plugin", "logger"]).await?))
    }
}

impl FromRequestParts<Herder> for RunPath {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, herder: &Herder) -> Result<Self, Refusal> {
        Ok(Self(herder.clone(), captured(parts, &["name"]).await?, captured(parts, &["run"]).await?))
    }
}

impl FromRequestParts<Herder> for TaskPath {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, herder: &Herder) -> Result<Self, Refusal> {
        let (name, task) = (captured(parts, &["name"]).await?, captured(parts, &["task"]).await?);
        Ok(Self(herder.clone(), name, task.parse().map_err(|_| Refusal::no_path())?))
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
    /// Every value of a parameter; `None` if the query does not have it.
    pub(super) fn all(&self, name: &str) -> Option<Vec<&str>> {
        let values: Vec<&str> =
            self.0.iter().filter(|(key, _)| key == name).map(|(_, value)| value.as_str()).collect();
        (!values.is_empty()).then_some(values)
    }

    /// The first value of a parameter, unless that is empty.
    pub(super) fn one(&self, name: &str) -> Option<String> {
        self.all(name)?.first().filter(|value| !value.is_empty()).map(|value| (*value).to_owned())
    }

    /// A boolean as Java reads it: everything but `true` is false.
    pub(super) fn flag(&self, name: &str, default: bool) -> bool {
        let first = self.all(name).and_then(|values| values.first().copied());
        first.map_or(default, |value| value.eq_ignore_ascii_case("true"))
    }
}

/// Refuses a client that does not accept JSON, before anything is done for it.
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
        let chunk =
            chunk.map_err(|_| Refusal::bad_request("the connection closed before the body was complete"))?;
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

/// The value of the first of these path parameters that the path has.
async fn captured(parts: &mut Parts, places: &[&str]) -> Result<String, Refusal> {
    let params = RawPathParams::from_request_parts(parts, &()).await;
    let params = params.map_err(|_| Refusal::bad_request("the path is not UTF-8 text"))?;
    let found = params.iter().find(|(place, text)| places.contains(place) && !text.is_empty());
    found.map(|(_, text)| text.to_owned()).ok_or_else(Refusal::no_path)
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
    let Value::Object(members) = value else { return refuse(" must be a JSON object") };
    let mut members = BodyMembers(members);
    let Some(Value::Object(partition)) = members.0.remove("partition") else {
        return refuse(".partition must be a JSON object");
    };
    let offset = match members.0.remove("offset") {
        None | Some(Value::Null) => None,
        Some(Value::Object(offset)) => Some(offset),
        Some(_) => return refuse(".offset must be a JSON object or null"),
    };
    members.nothing_else("partition and offset")?;
    let nested = |value: &Value| value.is_object() || value.is_array();
    if partition.values().chain(offset.iter().flat_map(Map::values)).any(nested) {
        return refuse(" must hold texts, numbers and booleans only");
    }
    Ok(Offset { partition, offset })
}
