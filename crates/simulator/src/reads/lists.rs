//! The lists of the accounting API: companies, customers, accounts.

use axum::response::Response;

use super::{
    Refusal, context,
    paging::{Body, Query},
    render::{self, Shape},
};
use crate::{
    Provider,
    catalog::Resource,
    gateway::Call,
    knobs::{Churn, ReadKnobs},
    world::{Change, List, View, World},
};

/// Bytes of a usual row.
const ROW: usize = 420;

/// A page of one of the three lists.
pub(super) fn read(
    provider: &Provider,
    call: &Call,
    resource: Resource,
    query: Option<&str>,
) -> Result<Response, Refusal> {
    let knobs = provider.knobs();
    let reads = &knobs.reads;
    let page = Query::parse(query).page(reads, false)?;
    let view = provider.reads.view(provider, reads);

    let (list, slice, naming) = {
        let mut world = provider.world();
        let list = list(&world, call, resource, reads, &view)?;
        (list, world.slice(list, page.offset(), page.rows(), &view), world.naming())
    };
    if !slice.rows.is_empty() {
        churn(provider, list, &reads.churn);
    }

    let shape = Shape::row(reads);
    let mut body = Body::new(slice.rows.len(), ROW);
    for (place, row) in &slice.rows {
        body.row(|out| render::write_record(out, &naming, *place, row, shape));
    }
    let mut total = slice.total;
    if let List::Accounts(company) = list {
        for number in page.part(slice.total, u64::from(reads.template_accounts)) {
            body.row(|out| render::write_template_account(out, &naming, company, number, shape));
        }
        total += u64::from(reads.template_accounts);
    }
    Ok(body.answer(reads.empty_list, page, reads.accounting_pagination.then_some(total)))
}

fn list(
    world: &World,
    call: &Call,
    resource: Resource,
    knobs: &ReadKnobs,
    view: &View,
) -> Result<List, Refusal> {
    let company = || context::company(world, &call.context, view.as_of, knobs.unknown_company.get());
    match resource {
        Resource::Companies => {
            context::company_list(&call.context, knobs.companies_context).map(|()| List::Companies)
        }
        Resource::Accounts => company().map(List::Accounts),
        _ => company().map(List::Customers),
    }
}

/// What happens to the list before its next page is read. An empty page ends a reading, so nothing happens after it.
fn churn(provider: &Provider, list: List, churn: &Churn) {
    if *churn != Churn::default() {
        provider.change(|world, clock| {
            let changes = world.churn(list, churn, clock).into_iter().map(Change::Record).collect();
            ((), changes)
        });
    }
}
