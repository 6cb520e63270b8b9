//! What is true now: every record with its version, every delivery with its answers, every token and webhook.

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    response::Response,
    routing::{MethodRouter, get},
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::body::{ControlError, ControlResult, Path, Query, lines};
use crate::{
    Provider,
    catalog::Resource,
    identity::Issued,
    knobs::ListOrder,
    reads::{self, Shape},
    world::{Naming, PayrollRow, Place, RecordState, Row},
};

pub(super) fn router() -> Router<Arc<Provider>> {
    Router::new()
        .route("/_control/truth/records/{resource}", get(record_lines))
        .route("/_control/truth/payroll", get(payroll_lines))
        .route("/_control/truth/deliveries", journal(|of, from, limit| of.deliveries.entries(from, limit)))
        .route("/_control/truth/requests", journal(|of, from, limit| of.gateway.requests(from, limit)))
        .route("/_control/truth/exchanges", journal(|of, from, limit| of.identity.exchanges(from, limit)))
        .route("/_control/truth/tokens", all(tokens))
        .route("/_control/truth/webhooks", all(|of| of.accounting.webhooks()))
        .route("/_control/truth/hooks", all(|of| of.invoicing.hooks()))
}

/// A record as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordTruth {
    /// Correlation id of its company; none for tenant-wide records.
    pub company: Option<String>,
    /// Its own.
    pub id: String,
    /// `version`.
    pub version: String,
    /// `sequenceVersion`.
    pub sequence_version: u64,
    /// `Enabled`, `Disabled` or `Deleted`.
    pub state: RecordState,
    /// Whether there is anything to read: neither it nor its company has been deleted. A disabled record is readable,
    /// even while a knob hides it.
    pub readable: bool,
}

/// A payroll company as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PayrollTruth {
    /// `companyCode`.
    pub company_code: u32,
    /// `lastUpdate`.
    pub last_update: String,
}

/// Every record of a resource, deleted ones included.
pub fn records(provider: &Provider, resource: Resource) -> Vec<RecordTruth> {
    let (rows, naming) = {
        let world = provider.world();
        (world.records(resource).collect::<Vec<_>>(), world.naming())
    };
    rows.into_iter().map(|(place, row)| truth_of(&naming, place, row)).collect()
}

/// Every payroll company that is listed.
pub fn payroll(provider: &Provider) -> Vec<PayrollTruth> {
    let (rows, seed) = payroll_rows(provider);
    rows.iter().map(|row| payroll_truth(seed, row)).collect()
}

fn truth_of(naming: &Naming, place: Place, row: Row) -> RecordTruth {
    let company = match place.resource {
        Resource::Companies => Some(place.index),
        _ => place.company,
    };
    let own = |index| Place { resource: Resource::Companies, company: None, index };
    RecordTruth {
        company: company.map(|number| naming.id(own(number))),
        id: naming.id(place),
        version: row.changed.iso(),
        sequence_version: row.sequence,
        state: row.state,
        // The world shows the records of a deleted company as deleted.
        readable: row.state != RecordState::Deleted,
    }
}

fn payroll_rows(provider: &Provider) -> (Vec<PayrollRow>, u64) {
    let world = provider.world();
    (world.payroll(ListOrder::Created), world.seed())
}

fn payroll_truth(seed: u64, row: &PayrollRow) -> PayrollTruth {
    PayrollTruth {
        company_code: reads::payroll_code(seed, row.index),
        last_update: row.updated.iso_milliseconds(),
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Filter {
    /// Only this company's.
    company: Option<String>,
    /// With the record itself, byte for byte as a read by id shows it under the knobs of the call; deleted ones, which no
    /// read shows, in their last state.
    full: bool,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PayrollFilter {
    /// With the company itself, byte for byte as the list shows it under the knobs of the call.
    full: bool,
}

/// What is true of something, and the thing itself where it was asked for.
#[derive(Serialize)]
struct Line<T> {
    #[serde(flatten)]
    truth: T,
    #[serde(skip_serializing_if = "Option::is_none")]
    record: Option<Box<RawValue>>,
}

impl<T> Line<T> {
    fn new(truth: T, record: Option<Vec<u8>>) -> Self {
        let record = record.and_then(|bytes| String::from_utf8(bytes).ok());
        Self { truth, record: record.and_then(|text| RawValue::from_string(text).ok()) }
    }
}

async fn record_lines(
    State(provider): State<Arc<Provider>>,
    Path(resource): Path<Resource>,
    Query(filter): Query<Filter>,
) -> ControlResult {
    let world = provider.world();
    let company = match &filter.company {
        None => None,
        Some(id) => {
            Some(world.company(id).ok_or_else(|| ControlError::missing(&format!("no company {id:?}")))?)
        }
    };
    let belongs = |place: Place| match (company, resource) {
        (None, _) => true,
        (Some(number), Resource::Companies) => place.index == number,
        (Some(number), _) => place.company == Some(number),
    };
    let found: Vec<(Place, Row)> = world.records(resource).filter(|(place, _)| belongs(*place)).collect();
    let naming = world.naming();
    drop(world);
    let shape = Shape::record(&provider.knobs().reads, resource);
    // The rows are copied so that the list shows one moment; their texts are made while they are sent.
    Ok(lines(found.into_iter().map(move |(place, row)| {
        let record = filter.full.then(|| reads::record_json(&naming, place, &row, shape));
        Line::new(truth_of(&naming, place, row), record)
    })))
}

async fn payroll_lines(
    State(provider): State<Arc<Provider>>,
    Query(filter): Query<PayrollFilter>,
) -> Response {
    let (rows, seed) = payroll_rows(&provider);
    let shape = Shape::row(&provider.knobs().reads);
    lines(rows.into_iter().map(move |row| {
        let record = filter.full.then(|| reads::payroll_json(seed, &row, shape));
        Line::new(payroll_truth(seed, &row), record)
    }))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Range {
    /// Number of the first entry.
    from: u64,
    /// The most entries; 100,000 unless it is said otherwise.
    limit: Option<usize>,
}

#[derive(Serialize)]
struct Numbered<T> {
    number: u64,
    #[serde(flatten)]
    entry: T,
}

/// A route that tells a part of a journal.
fn journal<T: Serialize + Send + 'static>(
    read: fn(&Provider, u64, usize) -> Vec<(u64, T)>,
) -> MethodRouter<Arc<Provider>> {
    get(move |State(provider): State<Arc<Provider>>, Query(range): Query<Range>| async move {
        let entries = read(&provider, range.from, range.limit.unwrap_or(100_000));
        lines(entries.into_iter().map(|(number, entry)| Numbered { number, entry }))
    })
}

/// A route that tells everything of a kind.
fn all<T: Serialize + Send + 'static>(read: fn(&Provider) -> Vec<T>) -> MethodRouter<Arc<Provider>> {
    get(move |State(provider): State<Arc<Provider>>| async move { lines(read(&provider).into_iter()) })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TokenLine {
    /// `identity` or `invoicing`; each numbers its grants from 0.
    issued_by: &'static str,
    #[serde(flatten)]
    token: Issued,
}

fn tokens(provider: &Provider) -> Vec<TokenLine> {
    let by = |issued_by| move |token| TokenLine { issued_by, token };
    let identity = provider.identity.issued().into_iter().map(by("identity"));
    identity.chain(provider.invoicing.issued().into_iter().map(by("invoicing"))).collect()
}
