//! Management of hooks: create, list, delete. Callers see the hooks of their selected company.

use std::sync::{Arc, atomic::Ordering};

use axum::{
    Extension,
    body::Bytes,
    extract::{Path, State, rejection::PathRejection},
    response::Response,
};
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::{
    ApiError, InvoicingService, echo,
    hooks::{MAX_HOOKS, ProviderHook},
    rules,
};
use crate::{
    answer::{empty_answer, json_answer, then},
    call::AdmittedCall,
    knobs::{EchoTime, Knobs},
    random::Guid,
};

/// The random stream of echoes.
const ECHOES: u64 = 0x696e_765f_6563_686f;
pub(super) const MAX_CONCURRENT_ECHOES: usize = 64;

/// A hook as the API returns it.
fn item(hook: &ProviderHook) -> Value {
    json!({
        "id": hook.id.simple(),
        "uri": hook.uri,
        "entity": hook.subject.entity,
        "action": hook.subject.action,
        "isPaused": hook.paused,
        "applicationName": hook.application,
        "description": hook.description,
    })
}

/// POST INV/webhooks.
pub(super) async fn create(
    State(invoicing): State<Arc<InvoicingService>>,
    Extension(call): Extension<AdmittedCall>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let company = company(&call)?;
    let knobs = invoicing.core.knobs();
    let hook = rules::parse(&body, company, &knobs).map_err(|text| ApiError::api(400, text))?;
    if knobs.invoicing.check_origin {
        let origin = rules::check_origin(&hook.url, call.peer, &knobs.delivery).await;
        origin.map_err(|text| ApiError::api(400, text))?;
    }
    if invoicing.hooks.full() {
        return Err(too_many());
    }
    let hooks = &invoicing.hooks;
    let add = |hook, effective| hooks.add(ProviderHook { effective, ..hook }).ok_or_else(too_many);
    let created = |hook: &ProviderHook| answer(knobs.invoicing.created_status.get(), hook, &knobs);
    if !rules::is_asked(&hook.url, &knobs) {
        return Ok(created(&add(hook, false)?));
    }
    if knobs.invoicing.echo == EchoTime::DuringPost {
        // Without the echo there is no hook, as with the software behind the provider.
        let text = echo_text(&invoicing, &knobs);
        let echoed = echo::ask(&invoicing, &hook.url, &text).await;
        echoed
            .map_err(|failure| ApiError::api(400, format!("uri: the echo did not come back: {failure}")))?;
        return Ok(created(&add(hook, true)?));
    }
    // As documented: the hook exists at once and is effective after the echo.
    if invoicing.echo_tasks.len() >= MAX_HOOKS {
        return Err(too_many());
    }
    let hook = add(hook, false)?;
    let (held, answered) = oneshot::channel();
    let answer = then(created(&hook), held);
    let text = echo_text(&invoicing, &knobs);
    invoicing.echo_tasks.spawn(make_effective(Arc::clone(&invoicing), hook, text, answered));
    Ok(answer)
}

/// GET INV/webhooks.
pub(super) async fn list(
    State(invoicing): State<Arc<InvoicingService>>,
    Extension(call): Extension<AdmittedCall>,
) -> Result<Response, ApiError> {
    let company = company(&call)?;
    let hooks = invoicing.hooks.all(|hook| hook.subject.company == company);
    let items: Vec<Value> = hooks.iter().map(item).collect();
    Ok(json_answer(200, &items))
}

/// DELETE INV/webhooks/{id}.
pub(super) async fn delete(
    State(invoicing): State<Arc<InvoicingService>>,
    Extension(call): Extension<AdmittedCall>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let company = company(&call)?;
    let id = id.ok().and_then(|Path(id)| Guid::parse(&id));
    let hook = id.and_then(|id| invoicing.hooks.remove(Some(company), id));
    let hook = hook.ok_or_else(|| ApiError::api(404, "there is no such webhook"))?;
    Ok(answer(200, &hook, &invoicing.core.knobs()))
}

/// Waits for the answer and for its turn, then requests the echo within the time limit of deliveries.
async fn make_effective(
    invoicing: Arc<InvoicingService>,
    hook: ProviderHook,
    text: String,
    answered: oneshot::Receiver<()>,
) {
    // The channel is closed when the answer has been sent.
    answered.await.ok();
    let echoed = echo::ask(&invoicing, &hook.url, &text).await;
    invoicing.hooks.update(hook.id, |hook| match echoed {
        Ok(()) => hook.effective = true,
        Err(failure) => hook.echo_failure = Some(failure),
    });
}

fn company(call: &AdmittedCall) -> Result<u32, ApiError> {
    let company = call.caller.as_ref().and_then(|caller| caller.invoicing_company);
    company.ok_or_else(|| ApiError::api(403, "no company has been chosen"))
}

fn too_many() -> ApiError {
    ApiError::api(400, format!("no more than {MAX_HOOKS} webhooks are kept"))
}

fn echo_text(invoicing: &InvoicingService, knobs: &Knobs) -> String {
    let number = invoicing.echo_count.fetch_add(1, Ordering::Relaxed);
    let guid = Guid::nth(invoicing.core.seed(), ECHOES, number);
    if knobs.invoicing.echo_dashes { guid.to_string() } else { guid.simple() }
}

fn answer(status: u16, hook: &ProviderHook, knobs: &Knobs) -> Response {
    if knobs.invoicing.silent {
        return empty_answer(status);
    }
    json_answer(status, &item(hook))
}
