//! Effects of fault rules on answers, shared by the gateway and the identity provider.

use std::io;

use axum::{
    body::{Body, BodyDataStream, Bytes},
    http::{HeaderValue, Uri, header, response::Parts},
    response::{IntoResponse as _, Response},
};
use futures::{StreamExt as _, stream};
use serde_json::{Value, json};
use url::form_urlencoded;

use crate::{
    answer::{hang_up, html_answer, may_have_body, oversized_answer, then, unknown_path},
    error_answer::{ApiError, throttled, used_up},
    knobs::{Effect, RetryHint},
    random::Random,
};

/// Larger answers are not rewritten; none is nearly as large.
const MAX_ANSWER_BYTES: usize = 256 << 20;

const PAGINATION_HEADER: &str = "x-pagination";

/// The answer that replaces any work; `None` for effects that need the right answer first.
pub(crate) fn replacement(effect: &Effect) -> Option<Response> {
    match *effect {
        Effect::Throttle { seconds, tells } => Some(throttled(seconds.into(), tells).into_response()),
        Effect::Quota { seconds } => Some(used_up(seconds.into(), RetryHint::Both).into_response()),
        Effect::Status(status) => Some(failed(status.get())),
        Effect::UnknownPath => Some(unknown_path()),
        Effect::Drop => Some(hang_up()),
        Effect::Html { status } => Some(html_answer(status.get())),
        Effect::Oversized { bytes, status } => Some(oversized_answer(status.get(), bytes as usize)),
        _ => None,
    }
}

fn failed(status: u16) -> Response {
    if status >= 502 {
        ApiError::gateway(status, "The service is unavailable.").into_response()
    } else {
        ApiError::api(status, "An error has occurred.").into_response()
    }
}

/// Applies an effect to the right answer, after the work was done.
pub(crate) async fn spoil(effect: &Effect, answer: Response, random: &mut Random) -> Response {
    match effect {
        Effect::Truncate => truncate(answer).await,
        Effect::InvalidJson => invalidate(answer).await,
        Effect::WrongContentType => {
            let (mut parts, body) = answer.into_parts();
            parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html"));
            Response::from_parts(parts, body)
        }
        Effect::WrongTypes => rewrite(answer, mistyped).await,
        Effect::Wrapped => rewrite(answer, |rows| json!({ "items": rows })).await,
        Effect::WithoutIds => rewrite(answer, without_ids).await,
        Effect::WrongTotal { surplus } => with_wrong_total(answer, (*surplus).into()),
        Effect::Delay(latency) => {
            tokio::time::sleep(latency.sample(random)).await;
            answer
        }
        Effect::LoseAnswer => hang_up(),
        // Applied before the work.
        _ => answer,
    }
}

/// Announces the whole length, sends half and ends the connection. An answer without a body just ends.
async fn truncate(answer: Response) -> Response {
    match whole(answer).await {
        Some((mut parts, body, rest)) if !body.is_empty() => {
            parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
            then(Response::from_parts(parts, cut_off(half(&body))), rest)
        }
        _ => hang_up(),
    }
}

/// Half of the JSON with a matching length. A status that allows no body is left alone.
async fn invalidate(answer: Response) -> Response {
    if !may_have_body(answer.status().as_u16()) {
        return answer;
    }
    let Some((mut parts, body, rest)) = whole(answer).await else { return hang_up() };
    let half = half(&body);
    // An empty body could be taken for an empty list.
    let half = if half.is_empty() { Bytes::from_static(b"{") } else { half };
    parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(half.len()));
    then(Response::from_parts(parts, Body::from(half)), rest)
}

/// Replaces a JSON body; any other body stays.
async fn rewrite(answer: Response, change: impl FnOnce(Value) -> Value) -> Response {
    let Some((mut parts, body, rest)) = whole(answer).await else { return hang_up() };
    let body = match serde_json::from_slice(&body) {
        Ok(value) => Bytes::from(change(value).to_string()),
        Err(_) => body,
    };
    if may_have_body(parts.status.as_u16()) {
        parts.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
    }
    then(Response::from_parts(parts, Body::from(body)), rest)
}

/// Keeps lists and objects and changes the type of every value in them.
fn mistyped(value: Value) -> Value {
    match value {
        Value::Null => Value::Null,
        Value::Bool(flag) => Value::from(flag.to_string()),
        Value::Number(number) => Value::from(number.to_string()),
        Value::String(text) => Value::from(text.len()),
        Value::Array(values) => values.into_iter().map(mistyped).collect(),
        Value::Object(members) => members.into_iter().map(|(name, value)| (name, mistyped(value))).collect(),
    }
}

/// Removes the ids of all rows.
fn without_ids(mut rows: Value) -> Value {
    for row in rows.as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
        row.retain(|name, _| !matches!(&**name, "correlationId" | "companyCode"));
    }
    rows
}

/// Raises `totalCount` of the pagination header.
fn with_wrong_total(mut answer: Response, surplus: u64) -> Response {
    let told =
        answer.headers().get(PAGINATION_HEADER).and_then(|told| serde_json::from_slice(told.as_bytes()).ok());
    if let Some(mut told) = told.filter(Value::is_object) {
        told["totalCount"] = json!(told["totalCount"].as_u64().unwrap_or(0).saturating_add(surplus));
        if let Ok(told) = HeaderValue::from_str(&told.to_string()) {
            answer.headers_mut().insert(PAGINATION_HEADER, told);
        }
    }
    answer
}

/// The same request for page 1.
pub(crate) fn first_page(uri: &Uri) -> Option<Uri> {
    let pairs = form_urlencoded::parse(uri.query()?.as_bytes());
    let pairs = pairs.map(|(name, value)| {
        let is_number = name.eq_ignore_ascii_case("pageNumber");
        (name, if is_number { "1".into() } else { value })
    });
    let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(pairs).finish();
    format!("{}?{query}", uri.path()).parse().ok()
}

/// Reads an answer to its end. The rest of the body stream must stay alive with the new answer, because it may hold a
/// guard.
pub(crate) async fn whole(answer: Response) -> Option<(Parts, Bytes, BodyDataStream)> {
    let (parts, body) = answer.into_parts();
    let mut rest = body.into_data_stream();
    let mut whole = Vec::new();
    while let Some(chunk) = rest.next().await {
        let chunk = chunk.ok()?;
        if chunk.len() > MAX_ANSWER_BYTES.saturating_sub(whole.len()) {
            return None;
        }
        whole.extend_from_slice(&chunk);
    }
    Some((parts, whole.into(), rest))
}

fn half(body: &Bytes) -> Bytes {
    body.slice(..body.len() / 2)
}

/// A body that fails after its first half.
fn cut_off(half: Bytes) -> Body {
    let failure = async {
        // hyper flushes what it has when a body is pending, and drops it when a body fails.
        tokio::task::yield_now().await;
        Err::<Bytes, _>(io::Error::other("cut off on purpose"))
    };
    Body::from_stream(stream::iter([Ok(half)]).chain(stream::once(failure)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{answer::bytes_answer, knobs::Latency};

    #[tokio::test]
    async fn a_guard_lives_as_long_as_the_spoiled_answer() {
        for effect in
            [Effect::Truncate, Effect::InvalidJson, Effect::WrongContentType, Effect::Delay(Latency::None)]
        {
            let guard = Arc::new(());
            let answer = then(bytes_answer(200, b"[1,2]".to_vec()), Arc::clone(&guard));

            let spoiled = spoil(&effect, answer, &mut Random::new(1, 1)).await;
            let before = Arc::strong_count(&guard);
            drop(spoiled);

            assert_eq!((before, Arc::strong_count(&guard)), (2, 1), "{effect:?}");
        }
    }

    #[tokio::test]
    async fn lists_are_wrapped_stripped_of_ids_or_miscounted() {
        let body = r#"[{"correlationId":"a","name":"b"},{"companyCode":7}]"#;
        for (effect, expected) in [
            (Effect::Wrapped, format!(r#"{{"items":{body}}}"#)),
            (Effect::WithoutIds, r#"[{"name":"b"},{}]"#.to_owned()),
            (Effect::WrongTotal { surplus: 3 }, body.to_owned()),
        ] {
            let mut answer = bytes_answer(200, body.as_bytes().to_vec());
            answer.headers_mut().insert(PAGINATION_HEADER, HeaderValue::from_static(r#"{"totalCount":2}"#));

            let spoiled = spoil(&effect, answer, &mut Random::new(1, 1)).await;

            let told = spoiled.headers()[PAGINATION_HEADER].to_str().unwrap().to_owned();
            let (_, body, _) = whole(spoiled).await.unwrap();
            let total = if matches!(effect, Effect::WrongTotal { .. }) { 5 } else { 2 };
            assert_eq!(
                (String::from_utf8_lossy(&body), told),
                (expected.into(), format!(r#"{{"totalCount":{total}}}"#))
            );
        }
    }

    #[test]
    fn the_first_page_replaces_any_page() {
        let uri = Uri::from_static("/a/b?pageNumber=12&pageSize=5&filter=a+gt+3");

        assert_eq!(first_page(&uri).unwrap(), "/a/b?pageNumber=1&pageSize=5&filter=a+gt+3");
        assert_eq!(first_page(&Uri::from_static("/a/b")), None);
    }

    #[tokio::test]
    async fn invalid_json_leaves_a_status_without_a_body_alone() {
        let spoiled =
            spoil(&Effect::InvalidJson, bytes_answer(204, Vec::new()), &mut Random::new(1, 1)).await;

        assert_eq!(http_body::Body::size_hint(spoiled.body()).upper(), None);
        assert!(http_body::Body::is_end_stream(spoiled.body()) && spoiled.headers().is_empty());
    }
}
