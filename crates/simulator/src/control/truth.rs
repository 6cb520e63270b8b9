//! What is true now: every record with its version, every delivery with its answers, every token and webhook.

use std::sync::Arc;

use axum::{Router, extract::State, response::Response, routing::get};
use serde::{Deserialize, Serialize};
use serde_json::{Value, value::RawValue};

use super::body::{Answer, Path, Query, Refusal, lines};
use crate::{
    Provider,
    catalog::Resource,
    identity::Issued,
    knobs::ListOrder,
    reads::{self, Shape},
    world::{Naming, PayrollRow, Place, RecordState, Row},
};

/// Entries of a journal that are copied at once: few enough that nobody notices how long it is held.
const ENTRIES_AT_ONCE: usize = 1_000;

pub(super) fn router() -> Router<Arc<Provider>> {
    Router::new()
        .route("/_control/truth/records/{resource}", get(record_lines))
        .route("/_control/truth/payroll", get(payroll_lines))
        .route("/_control/truth/deliveries", get(deliveries))
        .route("/_control/truth/requests", get(requests))
        .route("/_control/truth/tokens", get(tokens))
        .route("/_control/truth/exchanges", get(exchanges))
        .route("/_control/truth/webhooks", get(webhooks))
        .route("/_control/truth/hooks", get(hooks))
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
#[must_use]
pub fn records(provider: &Provider, resource: Resource) -> Vec<RecordTruth> {
    let (rows, naming) = {
        let world = provider.world();
        (world.records(resource).collect::<Vec<_>>(), world.naming())
    };
    rows.into_iter().map(|(place, row)| truth_of(&naming, place, row)).collect()
}

/// Every payroll company that is listed.
#[must_use]
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
    Path(resource): Path<String>,
    Query(filter): Query<Filter>,
) -> Answer {
    let resource = resource_named(&resource)?;
    let world = provider.world();
    let company = match &filter.company {
        None => None,
        Some(id) => Some(world.company(id).ok_or_else(|| Refusal::missing(&format!("no company {id:?}")))?),
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

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Range {
    /// Number of the first entry.
    from: u64,
    /// The most entries.
    limit: usize,
}

impl Default for Range {
    fn default() -> Self {
        Self { from: 0, limit: 100_000 }
    }
}

#[derive(Serialize)]
struct Numbered<T> {
    number: u64,
    #[serde(flatten)]
    entry: T,
}

/// The entries of a journal up to what is its end now, read in pieces while they are sent: whoever writes to it waits for one
/// piece at most. What the journal drops meanwhile is left out, the others keep their numbers.
fn numbered<T: Serialize>(
    range: Range,
    end: u64,
    read: impl Fn(u64, usize) -> Vec<(u64, T)>,
) -> impl Iterator<Item = Numbered<T>> {
    let (mut next, mut left) = (range.from, range.limit);
    let pieces = std::iter::from_fn(move || {
        let mut piece = read(next, left.min(ENTRIES_AT_ONCE));
        piece.retain(|(number, _)| *number < end);
        let (last, _) = piece.last()?;
        (next, left) = (last + 1, left - piece.len());
        Some(piece)
    });
    pieces.flatten().map(|(number, entry)| Numbered { number, entry })
}

async fn deliveries(State(provider): State<Arc<Provider>>, Query(range): Query<Range>) -> Response {
    let end = provider.deliveries.count();
    lines(numbered(range, end, move |from, limit| provider.deliveries.entries(from, limit)))
}

async fn requests(State(provider): State<Arc<Provider>>, Query(range): Query<Range>) -> Response {
    let end = provider.gateway.request_count();
    lines(numbered(range, end, move |from, limit| provider.gateway.requests(from, limit)))
}

async fn exchanges(State(provider): State<Arc<Provider>>, Query(range): Query<Range>) -> Response {
    let end = provider.identity.exchange_count();
    lines(numbered(range, end, move |from, limit| provider.identity.exchanges(from, limit)))
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TokenLine {
    /// `identity` or `invoicing`; each numbers its grants from 0.
    issued_by: &'static str,
    #[serde(flatten)]
    token: Issued,
}

async fn tokens(State(provider): State<Arc<Provider>>) -> Response {
    let by = |issued_by| move |token| TokenLine { issued_by, token };
    let identity = provider.identity.issued().into_iter().map(by("identity"));
    lines(identity.chain(provider.invoicing.issued().into_iter().map(by("invoicing"))))
}

async fn webhooks(State(provider): State<Arc<Provider>>) -> Response {
    lines(provider.accounting.webhooks().into_iter())
}

async fn hooks(State(provider): State<Arc<Provider>>) -> Response {
    lines(provider.invoicing.hooks().into_iter())
}

/// A resource by the name it has in knobs and paths: `inputInvoices`, `estimations`.
pub(super) fn resource_named(name: &str) -> Result<Resource, Refusal> {
    serde_json::from_value(Value::from(name)).map_err(|error| Refusal::bad(&error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::Journal;

    #[test]
    fn a_journal_is_read_in_pieces_while_it_grows_and_forgets() {
        let journal = Arc::new(Journal::new(5_000));
        for number in 0..5_000 {
            journal.push(number);
        }
        let range = Range { from: 10, limit: usize::MAX };
        let copied = Arc::clone(&journal);

        let mut entries = numbered(range, journal.count(), move |from, limit| copied.from(from, limit));
        let first: Vec<(u64, i32)> =
            entries.by_ref().take(1_000).map(|line| (line.number, line.entry)).collect();
        for number in 5_000..7_500 {
            journal.push(number);
        }
        let rest: Vec<(u64, i32)> = entries.map(|line| (line.number, line.entry)).collect();

        assert_eq!(first, (10..1_010).map(|number| (number, number as i32)).collect::<Vec<_>>());
        assert_eq!(rest, (2_500..5_000).map(|number| (number, number as i32)).collect::<Vec<_>>());
    }

    #[test]
    fn a_limit_counts_over_all_pieces() {
        let journal = Journal::new(10_000);
        for number in 0..4_000 {
            journal.push(number);
        }

        let counts = [0, 1, 1_000, 2_500, 9_999].map(|limit| {
            let range = Range { from: 0, limit };
            numbered(range, journal.count(), |from, limit| journal.from(from, limit)).count()
        });

        assert_eq!(counts, [0, 1, 1_000, 2_500, 4_000]);
    }
}
