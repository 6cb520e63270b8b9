//! One record of any of the nineteen resources, by its correlation id.

use axum::response::Response;

use super::{
    Refusal, context,
    render::{self, Shape},
};
use crate::{Provider, answer, catalog::Resource, gateway::Call};

/// The record with all its fields, however thin the rows of lists are; or that there is none, as the knobs say.
pub(super) fn read(
    provider: &Provider,
    call: &Call,
    resource: Resource,
    id: &str,
) -> Result<Response, Refusal> {
    let knobs = provider.knobs();
    let reads = &knobs.reads;
    let view = provider.reads.view(provider, reads);

    let (found, naming) = {
        let world = provider.world();
        let company = context::record(&world, &call.context, resource, id, view.as_of, reads)?;
        (world.record(resource, company, id, &view), world.naming())
    };
    let (place, row) = found.ok_or_else(|| context::unknown_record(resource, id, reads))?;

    let shape = Shape::record(reads, resource);
    Ok(answer::bytes_answer(200, render::record_json(&naming, place, &row, shape)))
}
