//! Webhooks and hooks by hand: what the provider, or another of its users, may do to a subscription; and subscriptions that
//! another user has made.

use std::sync::Arc;

use axum::{Router, body::Bytes, extract::State, routing::post};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    body::{ControlError, ControlResult, Path, done, parse},
    guid,
};
use crate::{Provider, accounting::Planted};

pub(super) fn router() -> Router<Arc<Provider>> {
    Router::new()
        .route("/_control/webhooks", post(plant_webhook))
        .route("/_control/webhooks/{id}/send", post(send_event))
        .route("/_control/webhooks/{id}/{act}", post(act_on_webhook))
        .route("/_control/hooks", post(plant_hook))
        .route("/_control/hooks/{id}/{act}", post(act_on_hook))
}

/// A webhook that is active at once, for every event of a resource.
async fn plant_webhook(State(provider): State<Arc<Provider>>, body: Bytes) -> ControlResult {
    let planted: Planted = parse(&body)?;
    let id = provider.accounting.plant(planted);
    let id = id.ok_or_else(|| ControlError::bad("there are too many webhooks"))?;
    Ok(done(&json!({ "id": id })))
}

/// Disables one as after failed deliveries, deletes it (a GET says so), or forgets it (a GET answers 404).
async fn act_on_webhook(
    State(provider): State<Arc<Provider>>,
    Path((id, act)): Path<(String, String)>,
) -> ControlResult {
    let webhook = guid(&id)?;
    let was_there = match &*act {
        "disable" => provider.accounting.disable(webhook),
        "delete" => provider.accounting.lose(webhook, false),
        "forget" => provider.accounting.lose(webhook, true),
        _ => return Err(ControlError::missing("expected disable, delete, forget or send")),
    };
    if !was_there {
        return Err(ControlError::missing(&format!("no webhook {id} to {act}")));
    }
    Ok(done(&json!({ "webhook": id, "act": act })))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Event {
    /// Correlation id of the company; none for an event that belongs to no company.
    company: Option<String>,
    /// Last part of the semantic name.
    event_type: String,
    /// Text of `JsonData`.
    json_data: String,
}

async fn send_event(
    State(provider): State<Arc<Provider>>,
    Path(id): Path<String>,
    body: Bytes,
) -> ControlResult {
    let Event { company, event_type, json_data } = parse(&body)?;
    if !provider.accounting.send(guid(&id)?, company.as_deref(), &event_type, &json_data) {
        return Err(ControlError::missing(&format!("no active webhook {id}")));
    }
    Ok(done(&json!({ "sent": event_type })))
}

/// A hook of an invoicing company, by its number: the members of a POST of the API beside `company`.
async fn plant_hook(State(provider): State<Arc<Provider>>, body: Bytes) -> ControlResult {
    let mut members: Value = parse(&body)?;
    let company = members.as_object_mut().and_then(|members| members.remove("company"));
    let company = company.as_ref().and_then(Value::as_u64).and_then(|company| u32::try_from(company).ok());
    let company = company.filter(|company| *company < provider.settings.world.invoicing_companies);
    let company =
        company.ok_or_else(|| ControlError::bad("company is the number of an invoicing company"))?;
    let id = provider.invoicing.plant(company, members.to_string().as_bytes());
    let id = id.map_err(|rule| ControlError::bad(&rule))?;
    Ok(done(&json!({ "id": id })))
}

async fn act_on_hook(
    State(provider): State<Arc<Provider>>,
    Path((id, act)): Path<(String, String)>,
) -> ControlResult {
    let hook = guid(&id)?;
    let was_there = match &*act {
        "pause" | "resume" => provider.invoicing.pause(hook, act == "pause"),
        "delete" => provider.invoicing.lose(hook),
        _ => return Err(ControlError::missing("expected pause, resume or delete")),
    };
    if !was_there {
        return Err(ControlError::missing(&format!("no hook {id}")));
    }
    Ok(done(&json!({ "hook": id, "act": act })))
}
