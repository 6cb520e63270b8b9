//! Reads of the accounting family and of payroll.
//!
//! ```text
//! call ──▶ context: which company ──▶ paging, filter: which rows ──▶ world: rows copied ──▶ render ──▶ answer
//!                                                                      ▲                └──▶ churn
//!                                                    replica: now, or as it was a while ago
//! ```
//!
//! - Lists: ACC/companies, ACC/customers, ACC/accounts and PAY/companies. By id: all nineteen resources.
//! - Each endpoint checks `context`: a company's data needs that company, a company's own record what
//!   `reads.records.companyContext` says, data of no company `none`, payroll nothing. Another company's record is reported as
//!   unknown.
//! - Pages count from 1; a page past the end is empty. Names of query parameters are case-insensitive, the first of several
//!   wins, and unknown ones are ignored.
//! - The world is locked only while rows are copied, not while they are rendered.
//! - Bad input gets 400 with what was expected, in the API's error body.

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
    SimulatedProvider, answer,
    call::AdmittedCall,
    catalog::{GatewayArea, Resource},
    clock::Ticks,
    error_answer::ApiError,
    knobs::ReadKnobs,
    random::{Random, mix},
    world::WorldView,
};

/// The random stream of replica reads.
const REPLICA: u64 = 0x7265_706C_6963_6121;

/// The view of the next read.
fn view(provider: &SimulatedProvider, knobs: &ReadKnobs) -> WorldView {
    WorldView { as_of: moment(provider, knobs), disabled: knobs.disabled, order: knobs.order }
}

/// The moment that a lagging replica shows, if this read goes to one.
fn moment(provider: &SimulatedProvider, knobs: &ReadKnobs) -> Option<Ticks> {
    if knobs.replica_lag == 0 {
        return None;
    }
    let number = provider.replica_reads.fetch_add(1, Ordering::Relaxed);
    let lags = Random::new(provider.settings.world.seed ^ mix(number), REPLICA).chance(knobs.replica_share);
    lags.then(|| provider.clock.latest().minus(Duration::from_millis(knobs.replica_lag)))
}

/// Routes of ACC, CORE, IMPORT (by id) and PAY.
pub fn router() -> Router<Arc<SimulatedProvider>> {
    let mut router = Router::new();
    for resource in [Resource::Companies, Resource::Customers, Resource::Accounts] {
        let list = async move |State(provider): State<Arc<SimulatedProvider>>,
                               Extension(call): Extension<AdmittedCall>,
                               RawQuery(query): RawQuery| {
            lists::read(&provider, &call, resource, query.as_deref()).unwrap_or_else(ApiError::into_response)
        };
        router = router.route(&resource.prefix(), get(list));
    }
    for resource in Resource::ALL {
        let record = async move |State(provider): State<Arc<SimulatedProvider>>,
                                 Extension(call): Extension<AdmittedCall>,
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
    let payroll = async |State(provider): State<Arc<SimulatedProvider>>, RawQuery(query): RawQuery| {
        payroll::read(&provider, query.as_deref()).unwrap_or_else(ApiError::into_response)
    };
    router.route(&format!("{}/companies", GatewayArea::Payroll.path()), get(payroll))
}

/// Whether the id is part of another path: `activities/estimations`, `customers/webhooks`.
fn is_other_path(resource: Resource, id: &str) -> bool {
    id == "webhooks" || (resource == Resource::Activities && matches!(id, "estimations" | "prorates"))
}
