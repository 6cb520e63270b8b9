//! Routes of the `/webhooks` family.

use std::sync::Arc;

use axum::{
    Extension, Router,
    extract::{Path, State, rejection::PathRejection},
    response::{IntoResponse as _, Response},
    routing::{delete, get, post, put},
};
use bytes::Bytes;
use serde_json::{Value, json};

use super::{
    Accounting,
    operations::{Acknowledged, OperationError},
};
use crate::{
    answer::{empty_answer, json_answer, then},
    call::Call,
    catalog::Resource,
    error_answer,
    knobs::{AcknowledgeTime, ChangeAnswer, Knobs},
    random::Guid,
};

/// `responseState` of successful operations. The document does not show that of a change.
const SUBSCRIBED: i64 = 3;
const UNSUBSCRIBED: i64 = 4;
const DELETED: i64 = 5;
const CHANGED: i64 = 6;
const SWITCHED: i64 = 7;

type AccountingState = State<Arc<Accounting>>;
type IdPath = Result<Path<String>, PathRejection>;

/// The `/webhooks` family under all nineteen prefixes.
pub(crate) fn router(accounting: &Arc<Accounting>) -> Router {
    let families = Resource::ALL.into_iter().fold(Router::new(), |router, resource| {
        router.nest(&format!("{}/webhooks", resource.prefix()), family(resource))
    });
    families.with_state(Arc::clone(accounting))
}

fn family(resource: Resource) -> Router<Arc<Accounting>> {
    let subscribe = move |State(accounting): AccountingState, call: Option<Extension<Call>>, body: Bytes| async move {
        subscribe(&accounting, resource, call, &body).await
    };
    let unsubscribe = move |State(accounting): AccountingState, body: Bytes| async move {
        answer(&accounting, UNSUBSCRIBED, accounting.unsubscribe(resource, &body))
    };
    let record = move |State(accounting): AccountingState, id: IdPath| async move {
        match accounting.record(resource, &text(id)) {
            Some(record) => json_answer(200, &record),
            None => unknown_webhook(&accounting.core.knobs()),
        }
    };
    let status = move |State(accounting): AccountingState, id: IdPath, body: Bytes| async move {
        answer(&accounting, SWITCHED, accounting.status(resource, &text(id), &body))
    };
    let change = move |State(accounting): AccountingState, id: IdPath, body: Bytes| async move {
        change(&accounting, resource, &text(id), &body).await
    };
    let end = move |State(accounting): AccountingState, id: IdPath| async move {
        answer(&accounting, DELETED, accounting.delete(resource, &text(id)))
    };
    Router::new()
        .route("/events", get(move || async move { events(resource) }))
        .route("/subscribe", post(subscribe))
        .route("/unsubscribe", post(unsubscribe))
        .route("/{id}", get(record))
        .route("/status/{id}", put(status))
        .route("/change/{id}", put(change))
        .route("/delete/{id}", delete(end))
}

fn events(resource: Resource) -> Response {
    json_answer(200, &resource.kinds().map(|kind| resource.semantic_name(kind)))
}

async fn subscribe(
    accounting: &Accounting,
    resource: Resource,
    call: Option<Extension<Call>>,
    body: &[u8],
) -> Response {
    // The subject of an accounting token is a GUID.
    let subject = call.and_then(|Extension(call)| call.caller).map(|caller| caller.subject);
    let user = subject.as_deref().and_then(Guid::parse);
    let subscribed = accounting.subscribe(resource, user, body);
    acknowledged(accounting, subscribed, |id| json_answer(200, &done(SUBSCRIBED, id))).await
}

async fn change(accounting: &Accounting, resource: Resource, id: &str, body: &[u8]) -> Response {
    let changed = accounting.change(resource, id, body);
    acknowledged(accounting, changed, |id| match accounting.core.knobs().accounting.change_answer {
        ChangeAnswer::Result => json_answer(200, &done(CHANGED, id)),
        ChangeAnswer::Record => json_answer(200, &accounting.record(resource, &id.to_string())),
        ChangeAnswer::Nothing => empty_answer(200),
    })
    .await
}

/// Sends the Acknowledge before or after the answer, by the knob.
async fn acknowledged(
    accounting: &Accounting,
    result: Result<Acknowledged, OperationError>,
    answer: impl FnOnce(Guid) -> Response,
) -> Response {
    let (id, order) = match result {
        Ok(acknowledged) => acknowledged,
        Err(refusal) => return refused(refusal, &accounting.core.knobs()),
    };
    let time = accounting.core.knobs().accounting.acknowledge;
    match (time, order) {
        (AcknowledgeTime::Never, _) | (_, None) => answer(id),
        (AcknowledgeTime::BeforeAnswer, Some(order)) => {
            accounting.deliveries.send_and_wait(order).await;
            answer(id)
        }
        (AcknowledgeTime::AfterAnswer, Some(order)) => {
            let reserved = accounting.deliveries.reserve(order);
            then(answer(id), reserved)
        }
    }
}

fn answer(accounting: &Accounting, state: i64, result: Result<Guid, OperationError>) -> Response {
    match result {
        Ok(id) => json_answer(200, &done(state, id)),
        Err(refusal) => refused(refusal, &accounting.core.knobs()),
    }
}

fn refused(refusal: OperationError, knobs: &Knobs) -> Response {
    let OperationError::Rejected(webhook, errors) = refusal else { return unknown_webhook(knobs) };
    let knobs = &knobs.accounting;
    let element = |error: super::request::RequestError| {
        if knobs.error_objects {
            json!({ "code": error.code, "message": error.message })
        } else {
            Value::from(error.message)
        }
    };
    let errors: Vec<Value> = errors.into_iter().map(element).collect();
    // The empty GUID, where there is no webhook.
    let webhook = webhook.unwrap_or(Guid(0));
    let result = json!({ "responseState": knobs.failure_state, "webhookId": webhook, "errors": errors });
    json_answer(knobs.failure_status.get(), &result)
}

/// The result of a successful operation.
fn done(state: i64, webhook: Guid) -> Value {
    json!({ "responseState": state, "webhookId": webhook, "errors": [] })
}

fn unknown_webhook(knobs: &Knobs) -> Response {
    error_answer::ApiError::missing(&knobs.reads.records, "there is no such webhook").into_response()
}

/// An id that is not UTF-8 is not a GUID.
fn text(id: IdPath) -> String {
    id.map(|Path(id)| id).unwrap_or_default()
}
