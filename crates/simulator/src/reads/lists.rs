//! The lists of companies, customers and accounts, and records of all nineteen resources by id.

use axum::response::Response;

use super::{
    ApiError, context,
    paging::{ListBody, ListQuery},
    render::{self, Shape},
    view,
};
use crate::{
    SimulatedProvider, answer, call::AdmittedCall, catalog::Resource, knobs::Churn, world::WorldChange,
};

const TYPICAL_ROW_BYTES: usize = 420;

/// A page of a list.
pub(super) fn read(
    provider: &SimulatedProvider,
    call: &AdmittedCall,
    resource: Resource,
    query: Option<&str>,
) -> Result<Response, ApiError> {
    let knobs = provider.knobs();
    let reads = &knobs.reads;
    let page = ListQuery::parse(query).page(reads, false)?;
    let view = view(provider, reads);

    let (company, (rows, mut total), naming) = {
        let world = provider.world();
        let company = match resource {
            Resource::Companies => {
                context::company_list(&call.context, reads.companies_context)?;
                None
            }
            _ => Some(context::company(&world, &call.context, view.as_of, reads.unknown_company.get())?),
        };
        let slice = world.slice((resource, company), page.offset(), page.rows(), &view);
        (company, slice, world.naming())
    };
    // The list changes before its next page is read. An empty page ends the reading, so nothing changes after it.
    if !rows.is_empty() && reads.churn != Churn::default() {
        provider.change(|world, clock| {
            let changes = world.churn((resource, company), &reads.churn, clock);
            ((), changes.into_iter().map(WorldChange::Record).collect())
        });
    }

    let shape = Shape::row(reads);
    let mut body = ListBody::new(rows.len(), TYPICAL_ROW_BYTES);
    for (place, row) in &rows {
        body.row(|out| render::write_record(out, &naming, *place, row, shape));
    }
    if let (Resource::Accounts, Some(company)) = (resource, company) {
        for number in page.part(total, u64::from(reads.template_accounts)) {
            body.row(|out| render::write_template_account(out, &naming, company, number, shape));
        }
        total += u64::from(reads.template_accounts);
    }
    Ok(body.answer(reads.empty_list, page, reads.accounting_pagination.then_some(total)))
}

/// A record with all its fields, even where list rows are thin.
pub(super) fn record(
    provider: &SimulatedProvider,
    call: &AdmittedCall,
    resource: Resource,
    id: &str,
) -> Result<Response, ApiError> {
    let knobs = provider.knobs();
    let reads = &knobs.reads;
    let view = view(provider, reads);

    let (found, naming) = {
        let world = provider.world();
        let company = context::record(&world, &call.context, resource, id, view.as_of, reads)?;
        (world.record(resource, company, id, &view), world.naming())
    };
    let (place, row) = found.ok_or_else(|| context::unknown_record(resource, id, reads))?;

    let shape = Shape::record(reads, resource);
    Ok(answer::bytes_answer(200, render::record_json(&naming, place, &row, shape)))
}
