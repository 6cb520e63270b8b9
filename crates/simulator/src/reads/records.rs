//! One record of any of the nineteen resources, by its correlation id.

use axum::response::Response;

use super::{
    Refusal, context,
    render::{self, Shape},
};
use crate::{
    Provider, answer,
    catalog::Resource,
    gateway::Call,
    knobs::{MissingBody, RecordKnobs},
};

/// The record with all its fields, however thin the rows of lists are; or that there is none, as the knobs say.
pub(super) fn read(
    provider: &Provider,
    call: &Call,
    resource: Resource,
    id: &str,
) -> Result<Response, Refusal> {
    match found(provider, call, resource, id) {
        Err(refusal) if refusal.is_missing => Ok(missing(&provider.knobs().reads.records, &refusal.message)),
        found => found,
    }
}

fn found(provider: &Provider, call: &Call, resource: Resource, id: &str) -> Result<Response, Refusal> {
    let knobs = provider.knobs();
    let reads = &knobs.reads;
    let view = provider.reads.view(provider, reads);

    let (found, naming) = {
        let world = provider.world();
        let company = context::record(&world, &call.context, resource, id, view.as_of, reads)?;
        (world.record(resource, company, id, &view), world.naming())
    };
    let (place, row) = found.ok_or_else(|| context::unknown_record(resource, id))?;

    let shape = Shape::record(reads, resource);
    Ok(answer::bytes_answer(200, render::record_json(&naming, place, &row, shape)))
}

/// The answer for a record or a webhook that is not there.
pub(crate) fn missing(knobs: &RecordKnobs, message: &str) -> Response {
    let status = knobs.missing_status.get();
    match knobs.missing_body {
        MissingBody::Api => answer::api_error(status, message),
        MissingBody::Json => answer::json_answer(
            status,
            &serde_json::json!({ "error": { "code": "RecordNotFound", "detail": message } }),
        ),
        MissingBody::Gateway => answer::gateway_error(status, "Resource not found"),
        MissingBody::Empty => answer::empty_answer(status),
        MissingBody::Text => answer::text_answer(status, "Not here."),
        MissingBody::Html => answer::html_answer(status),
    }
}
