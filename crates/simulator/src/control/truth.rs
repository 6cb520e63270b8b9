//! What is true now: every record with its version, every delivery with its answers, every token and webhook.

use std::sync::Arc;

use axum::{
    Router,
    body::{Body, Bytes},
    extract::{Path, Query, State},
    http::{HeaderValue, header},
    response::{IntoResponse as _, Response},
    routing::{MethodRouter, get},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ControlError, ControlResult};
use crate::{
    SimulatedProvider,
    catalog::Resource,
    identity::Issued,
    world::{Place, RecordState},
};

/// Bytes per chunk of a long list.
const CHUNK_BYTES: usize = 64 * 1024;

pub(super) fn router() -> Router<Arc<SimulatedProvider>> {
    Router::new()
        .route("/_control/truth/records/{resource}", get(record_lines))
        .route("/_control/truth/deliveries", journal(|of, from, limit| of.deliveries.entries(from, limit)))
        .route("/_control/truth/requests", journal(|of, from, limit| of.gateway.requests(from, limit)))
        .route("/_control/truth/exchanges", journal(|of, from, limit| of.identity.exchanges(from, limit)))
        .route("/_control/truth/tokens", all(tokens))
        .route("/_control/truth/webhooks", all(|of| of.accounting.webhooks()))
        .route("/_control/truth/hooks", all(|of| of.invoicing.hooks()))
}

/// The current state of a record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RecordTruth {
    /// Correlation id of its company; none for tenant-wide records.
    pub company: Option<String>,
    /// Correlation id.
    pub id: String,
    /// `version`.
    pub version: String,
    /// `sequenceVersion`.
    pub sequence_version: u64,
    /// `Enabled`, `Disabled` or `Deleted`.
    pub state: RecordState,
    /// Whether neither it nor its company is deleted. A disabled record is readable, even while a knob hides it.
    pub readable: bool,
}

/// Every record of a resource, deleted ones included.
pub fn records(provider: &SimulatedProvider, resource: Resource) -> Vec<RecordTruth> {
    let (rows, naming) = {
        let world = provider.world();
        (world.records(resource).collect::<Vec<_>>(), world.naming())
    };
    let truth = |(place, row): (Place, crate::world::WorldRow)| {
        let company = if resource == Resource::Companies { Some(place.index) } else { place.company };
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
    };
    rows.into_iter().map(truth).collect()
}

async fn record_lines(
    State(provider): State<Arc<SimulatedProvider>>,
    Path(name): Path<String>,
) -> ControlResult {
    let resource = serde_json::from_value(Value::from(name.as_str()))
        .map_err(|_| ControlError::bad_request(format!("there is no resource {name:?}")))?;
    Ok(lines(records(&provider, resource).into_iter()))
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Range {
    /// Number of the first entry.
    from: u64,
    /// Entries at most; all unless given.
    limit: Option<usize>,
}

#[derive(Serialize)]
struct Numbered<T> {
    number: u64,
    #[serde(flatten)]
    entry: T,
}

/// A route that returns a part of a journal.
fn journal<T: Serialize + Send + 'static>(
    read: fn(&SimulatedProvider, u64, usize) -> Vec<(u64, T)>,
) -> MethodRouter<Arc<SimulatedProvider>> {
    get(move |State(provider): State<Arc<SimulatedProvider>>, Query(range): Query<Range>| async move {
        let entries = read(&provider, range.from, range.limit.unwrap_or(usize::MAX));
        lines(entries.into_iter().map(|(number, entry)| Numbered { number, entry }))
    })
}

/// A route that returns everything of a kind.
fn all<T: Serialize + Send + 'static>(
    read: fn(&SimulatedProvider) -> Vec<T>,
) -> MethodRouter<Arc<SimulatedProvider>> {
    get(
        move |State(provider): State<Arc<SimulatedProvider>>| async move { lines(read(&provider).into_iter()) },
    )
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TokenLine {
    /// `identity` or `invoicing`; each numbers its grants from 0.
    issued_by: &'static str,
    #[serde(flatten)]
    token: Issued,
}

fn tokens(provider: &SimulatedProvider) -> Vec<TokenLine> {
    let by = |issued_by| move |token| TokenLine { issued_by, token };
    let identity = provider.identity.issued().into_iter().map(by("identity"));
    identity.chain(provider.invoicing.issued().into_iter().map(by("invoicing"))).collect()
}

/// One JSON object per line, serialized while it is sent, so that the text of a million records is never in memory at once.
fn lines<T: Serialize>(items: impl Iterator<Item = T> + Send + 'static) -> Response {
    let mut items = items.fuse();
    let chunks = std::iter::from_fn(move || {
        let mut chunk = Vec::with_capacity(CHUNK_BYTES + CHUNK_BYTES / 8);
        for item in items.by_ref() {
            if let Err(error) = serde_json::to_writer(&mut chunk, &item) {
                return Some(Err(error));
            }
            chunk.push(b'\n');
            if chunk.len() >= CHUNK_BYTES {
                break;
            }
        }
        (!chunk.is_empty()).then(|| Ok(Bytes::from(chunk)))
    });
    let kind = HeaderValue::from_static("application/x-ndjson");
    ([(header::CONTENT_TYPE, kind)], Body::from_stream(futures::stream::iter(chunks))).into_response()
}
