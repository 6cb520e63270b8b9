//! The list of payroll companies: filtered, sorted, cut into pages.

use axum::response::Response;

use super::{
    ApiError,
    filter::PayrollFilter,
    paging::{ListBody, ListQuery},
    render::{self, Shape},
    view,
};
use crate::{
    SimulatedProvider,
    knobs::{Churn, Parameter, PayrollTotal},
    world::PayrollRow,
};

const TYPICAL_ROW_BYTES: usize = 160;

/// A page of the list; its totals are those of the filtered list.
pub(super) fn read(provider: &SimulatedProvider, query: Option<&str>) -> Result<Response, ApiError> {
    let knobs = provider.knobs();
    let reads = &knobs.reads;
    let query = ListQuery::parse(query);
    let page = query.page(reads, reads.payroll_paging_required)?;
    let refuse = |message: String| ApiError::api(400, message);
    let applied = |name: &str, text, what: Parameter| match (text, what) {
        (Some(_), Parameter::Refused) => Err(refuse(format!("{name} is not understood"))),
        (text, Parameter::Heeded) => Ok(text),
        _ => Ok(None),
    };
    let (filter, order) = (query.filter.as_deref(), query.order_by.as_deref());
    let is_empty = (filter.is_some() && reads.payroll_filter == Parameter::Empty)
        || (order.is_some() && reads.payroll_order == Parameter::Empty);
    let filter = applied("filter", filter, reads.payroll_filter)?
        .map(|text| PayrollFilter::parse(text, reads.filter_timestamps))
        .transpose()
        .map_err(|why| refuse(format!("filter: {why}")))?;
    let order: Option<&str> = applied("OrderBy", order, reads.payroll_order)?;
    let view = view(provider, reads);

    let (mut rows, mut total, seed) = if filter.is_none() && order.is_none() {
        let world = provider.world();
        let (rows, total) = world.payroll_slice(page.offset(), page.rows(), view.order, view.as_of);
        (rows, total, world.seed())
    } else {
        // Each page copies, filters and sorts all rows.
        let (mut rows, seed) = {
            let world = provider.world();
            (world.payroll_slice(0, usize::MAX, view.order, view.as_of).0, world.seed())
        };
        if let Some(filter) = filter {
            rows.retain(|row| filter.passes(seed, row));
        }
        if let Some(order) = order {
            sort(order, seed, &mut rows).map_err(|why| refuse(format!("OrderBy: {why}")))?;
        }
        let total = rows.len() as u64;
        let part = page.part(0, total);
        // Both ends are at most the length.
        (rows[part.start as usize..part.end as usize].to_vec(), total, seed)
    };
    if is_empty {
        (rows, total) = (Vec::new(), 0);
    }
    if !rows.is_empty() && reads.churn != Churn::default() {
        provider.change(|world, clock| {
            world.churn_payroll(&reads.churn, clock);
            ((), Vec::new())
        });
    }

    let shape = Shape::row(reads);
    let mut body = ListBody::new(rows.len(), TYPICAL_ROW_BYTES);
    for row in &rows {
        body.row(|out| render::write_payroll(out, seed, row, shape));
    }
    let total = match reads.payroll_total {
        PayrollTotal::Right => Some(total),
        PayrollTotal::Absent => None,
        PayrollTotal::Wrong => Some(total + 1),
    };
    Ok(body.answer(reads.empty_list, page, total))
}

/// Sorts by a field; equal rows keep their order.
fn sort(field: &str, seed: u64, rows: &mut [PayrollRow]) -> Result<(), String> {
    match field {
        "companyCode" => rows.sort_by_cached_key(|row| render::payroll_code(seed, row.index)),
        "companyName" => rows.sort_by_cached_key(|row| render::payroll_name(seed, row)),
        "identifierNumber" => rows.sort_by_cached_key(|row| render::payroll_identifier(seed, row.index)),
        "lastUpdate" => rows.sort_by_key(|row| row.updated),
        _ => return Err(format!("field {field:?} is not known")),
    }
    Ok(())
}
