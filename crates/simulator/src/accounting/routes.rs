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
    WebhookService,
    operations::{Acknowledged, OperationError},
};
use crate::{
    answer::{empty_answer, json_answer, then},
    call::AdmittedCall,
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

type AccountingState = State<Arc<WebhookService>>;
type IdPath = Result<Path<String>, PathRejection>;

/// The `/webhooks` family under all nineteen prefixes.
pub(crate) fn router(accounting: &Arc<WebhookService>) -> Router {
    let families = Resource::ALL.into_iter().fold(Router::new(), |router, resource| {
        router.nest(&format!("{}/webhooks", resource.prefix()), family(resource))
    });
    families.with_state(Arc::clone(accounting))
}

/// An operation on a resource, with the id in the path (empty where there is none) and the body.
type WebhookOperation = fn(&WebhookService, Resource, &str, &[u8]) -> Response;

fn family(resource: Resource) -> Router<Arc<WebhookService>> {
    let operation = |run: WebhookOperation| {
        move |State(accounting): AccountingState, id: IdPath, body: Bytes| async move {
            run(&accounting, resource, &text(id), &body)
        }
    };
    let subscribe = move |State(accounting): AccountingState,
                          call: Option<Extension<AdmittedCall>>,
                          body: Bytes| async move {
        subscribe(&accounting, resource, call, &body).await
    };
    let change = move |State(accounting): AccountingState, id: IdPath, body: Bytes| async move {
        change(&accounting, resource, &text(id), &body).await
    };
    let events = operation(|_, resource, _, _| {
        json_answer(200, &resource.kinds().map(|kind| resource.semantic_name(kind)))
    });
    let record = operation(|accounting, resource, id, _| match accounting.record(resource, id) {
        Some(record) => json_answer(200, &record),
        None => unknown_webhook(&accounting.core.knobs()),
    });
    let unsubscribe = operation(|all, of, _, body| answer(all, UNSUBSCRIBED, all.unsubscribe(of, body)));
    let status = operation(|all, of, id, body| answer(all, SWITCHED, all.status(of, id, body)));
    let end = operation(|all, of, id, _| answer(all, DELETED, all.delete(of, id)));
    Router::new()
        .route("/events", get(events))
        .route("/subscribe", post(subscribe))
        .route("/unsubscribe", post(unsubscribe))
        .route("/{id}", get(record))
        .route("/status/{id}", put(status))
        .route("/change/{id}", put(change))
        .route("/delete/{id}", delete(end))
}

async fn subscribe(
    accounting: &WebhookService,
    resource: Resource,
    call: Option<Extension<AdmittedCall>>,
    body: &[u8],
) -> Response {
    // The subject of an accounting token is a GUID.
    let subject = call.and_then(|Extension(call)| call.caller).map(|caller| caller.subject);
    let user = subject.as_deref().and_then(Guid::parse);
    let subscribed = accounting.subscribe(resource, user, body);
    acknowledged(accounting, subscribed, |id| json_answer(200, &done(SUBSCRIBED, id))).await
}

async fn change(accounting: &WebhookService, resource: Resource, id: &str, body: &[u8]) -> Response {
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
    accounting: &WebhookService,
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

fn answer(accounting: &WebhookService, state: i64, result: Result<Guid, OperationError>) -> Response {
    match result {
        Ok(id) => json_answer(200, &done(state, id)),
        Err(refusal) => refused(refusal, &accounting.core.knobs()),
    }
}

fn refused(refusal: OperationError, knobs: &Knobs) -> Response {
    let OperationError::Rejected(webhook, errors) = refusal else { return unknown_webhook(knobs) };
    let knobs = &knobs.accounting;
    let errors = if knobs.error_objects {
        json!(errors)
    } else {
        errors.into_iter().map(|error| error.message).collect()
    };
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
