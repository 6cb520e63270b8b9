//! What somebody else does at the provider, with a login of their own: subscriptions that nobody here has made, and an
//! end to some that were.

use std::sync::Arc;

use axum::{Router, body::Bytes, extract::State, routing::post};
use serde::Deserialize;
use serde_json::{Value, json};
use url::Url;

use super::{
    body::{Answer, Path, Refusal, done, parse},
    guid, truth,
};
use crate::{Provider, accounting::Planted};

pub(super) fn router() -> Router<Arc<Provider>> {
    Router::new()
        .route("/_control/webhooks", post(plant_webhook))
        .route("/_control/webhooks/{id}/delete", post(delete_webhook))
        .route("/_control/webhooks/{id}/forget", post(forget_webhook))
        .route("/_control/hooks", post(plant_hook))
        .route("/_control/hooks/{id}/delete", post(delete_hook))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Webhook {
    /// By its name in paths.
    resource: String,
    /// `thirdPartyApplicationName`.
    application: String,
    /// Receiver address.
    url: Url,
    secret: String,
}

/// A webhook that is active at once, for every event of a resource.
async fn plant_webhook(State(provider): State<Arc<Provider>>, body: Bytes) -> Answer {
    let Webhook { resource, application, url, secret } = parse(&body)?;
    let planted = Planted { resource: truth::resource_named(&resource)?, application, url, secret };
    let id = provider.accounting.plant(&provider, planted);
    let id = id.ok_or_else(|| Refusal::bad("there are too many webhooks"))?;
    Ok(done(&json!({ "id": id })))
}

/// It is deleted: a GET says so.
async fn delete_webhook(State(provider): State<Arc<Provider>>, Path(id): Path<String>) -> Answer {
    lose_webhook(&provider, &id, false)
}

/// It is gone: a GET answers 404.
async fn forget_webhook(State(provider): State<Arc<Provider>>, Path(id): Path<String>) -> Answer {
    lose_webhook(&provider, &id, true)
}

fn lose_webhook(provider: &Provider, id: &str, forget: bool) -> Answer {
    if !provider.accounting.lose(provider, guid(id)?, forget) {
        return Err(Refusal::missing(&format!("no webhook {id}")));
    }
    Ok(done(&json!({ "lost": id })))
}

/// A hook of an invoicing company, by its number: the members of a POST of the API beside `company`.
async fn plant_hook(State(provider): State<Arc<Provider>>, body: Bytes) -> Answer {
    let mut members: Value = parse(&body)?;
    let company = members.as_object_mut().and_then(|members| members.remove("company"));
    let company = company.as_ref().and_then(Value::as_u64).and_then(|company| u32::try_from(company).ok());
    let company = company.filter(|company| *company < provider.settings.world.invoicing_companies);
    let company = company.ok_or_else(|| Refusal::bad("company is the number of an invoicing company"))?;
    let id = provider.invoicing.plant(&provider, company, members.to_string().as_bytes());
    let id = id.map_err(|rule| Refusal::bad(&rule))?;
    Ok(done(&json!({ "id": id })))
}

async fn delete_hook(State(provider): State<Arc<Provider>>, Path(id): Path<String>) -> Answer {
    if !provider.invoicing.lose(guid(&id)?) {
        return Err(Refusal::missing(&format!("no hook {id}")));
    }
    Ok(done(&json!({ "lost": id })))
}
