//! Lists and records: what a client reads of the accounting family and of payroll.
//!
//! ```text
//! call ──▶ context: which company ──▶ paging, filter: which rows ──▶ world: rows copied ──▶ render ──▶ answer
//!                                                                      ▲                └──▶ churn
//!                                                    replica: now, or as it was a while ago
//! ```
//!
//! - Lists: ACC/companies, ACC/customers, ACC/accounts and PAY/companies. By id: all nineteen resources.
//! - `context` is checked for each endpoint: a company's data needs that company, a company's own record needs what
//!   `reads.records.companyContext` says, data of no company needs `none`, payroll needs nothing. One company never sees another's record; it is as unknown as an id that never was.
//! - Pages count from 1 and a page past the end is empty. Names of query parameters count without case, the first of
//!   several with one name counts, unknown ones are ignored.
//! - The world is held only while rows are copied out of it, never while they are written.
//! - What cannot be understood is answered 400 with what was expected, in the body of an API error.

mod context;
mod filter;
mod lists;
mod paging;
mod payroll;
mod render;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use axum::{
    Extension, Router,
    extract::{Path, RawQuery, State, rejection::PathRejection},
    response::IntoResponse as _,
    routing::get,
};

pub use render::{
    Shape, payroll_code, payroll_identifier, payroll_json, payroll_name, record_json, write_payroll,
    write_record,
};

use super::{
    Provider, answer,
    call::Call,
    catalog::{Area, Resource},
    clock::Ticks,
    error_answer::ApiError,
    knobs::ReadKnobs,
    random::{Random, mix},
    world::View,
};

/// Purpose of the numbers that send reads to the replica.
const REPLICA: u64 = 0x7265_706C_6963_6121;

/// The view of the next read.
fn view(provider: &Provider, knobs: &ReadKnobs) -> View {
    View { as_of: moment(provider, knobs), disabled: knobs.disabled, order: knobs.order }
}

/// The moment that the lagging replica shows, where the read goes to that.
fn moment(provider: &Provider, knobs: &ReadKnobs) -> Option<Ticks> {
    if knobs.replica_lag == 0 {
        return None;
    }
    let number = provider.replica_reads.fetch_add(1, Ordering::Relaxed);
    let lags = Random::new(provider.settings.world.seed ^ mix(number), REPLICA).chance(knobs.replica_share);
    lags.then(|| provider.clock.latest().minus(Duration::from_millis(knobs.replica_lag)))
}

/// Routes of ACC, CORE, IMPORT (by id) and PAY.
pub fn router() -> Router<Arc<Provider>> {
    let mut router = Router::new();
    for resource in [Resource::Companies, Resource::Customers, Resource::Accounts] {
        let list = async move |State(provider): State<Arc<Provider>>,
                               Extension(call): Extension<Call>,
                               RawQuery(query): RawQuery| {
            lists::read(&provider, &call, resource, query.as_deref()).unwrap_or_else(ApiError::into_response)
        };
        router = router.route(&resource.prefix(), get(list));
    }
    for resource in Resource::ALL {
        let record = async move |State(provider): State<Arc<Provider>>,
                                 Extension(call): Extension<Call>,
                                 id: Result<Path<String>, PathRejection>| {
            match id {
                Ok(Path(id)) if is_other_path(resource, &id) => answer::unknown_path(),
                Ok(Path(id)) => {
                    lists::record(&provider, &call, resource, &id).unwrap_or_else(ApiError::into_response)
                }
                Err(_) => ApiError::api(400, "the correlationId in the path is not UTF-8").into_response(),
            }
        };
        router = router.route(&format!("{}/{{id}}", resource.prefix()), get(record));
    }
    let payroll = async |State(provider): State<Arc<Provider>>, RawQuery(query): RawQuery| {
        payroll::read(&provider, query.as_deref()).unwrap_or_else(ApiError::into_response)
    };
    router.route(&format!("{}/companies", Area::Payroll.path()), get(payroll))
}

/// Whether what stands in the place of an id belongs to another path: `activities/estimations`, `customers/webhooks`.
fn is_other_path(resource: Resource, id: &str) -> bool {
    id == "webhooks" || (resource == Resource::Activities && matches!(id, "estimations" | "prorates"))
}
