//! Enrichment decisions: which read an event needs, what the answer means, and when the event's offset may be committed. No I/O.
//!
//! ```text
//!                         ┌─────────────── retry ◀───────────────┐
//!                         ▼                                      │
//! event, row, adopted ─▶ Due ─▶ Queued ─▶ Reading ─▶ verdict ────┴─▶ Settling ─▶ batch ─▶ commit
//!                         ▲                                                                 │
//!                         ├──── read again: parked, or published and to be confirmed ◀──────┤
//!                         │                                                                 ▼
//!                         └──── requests that arrived meanwhile ◀──────────────────────  removed
//! ```
//!
//! | file | holds |
//! |---|---|
//! | `request.rs` | the read that an event asks for |
//! | `scheduler/mod.rs` | [`Scheduler`]: takes events, rows and adopted records, and starts reads |
//! | `offsets.rs` | open offsets, and which may be committed |
//! | `pending.rs` | one record: its state, what is wanted of it, the offsets that it holds back |
//! | `queue.rs` | whose turn it is, and which companies may be read |
//! | `judge.rs` | what the answer to a read means |
//! | `scheduler/after_read.rs` | acts on it: publish, retry, park, give up; builds batches, and continues after their commit |
//! | `parked.rs` | a parked record as it is stored |
//! | `batch.rs` | what a batch writes |
//!
//! Each shard has one [`Scheduler`]. Its only inputs are
//!
//! - events in offset order ([`Scheduler::take`]),
//! - requests and versions from list rows ([`Scheduler::request`], [`Scheduler::check_regression`], [`Scheduler::clear_regression`]),
//! - state that a previous owner wrote: parked records, known paths, brakes,
//! - results of reads and of commits, fence entries, the known companies and the time.
//!
//! So a test runs thousands of shards through crashes, lost reads and provider restores within a second.
//!
//! - A record is in one state at a time: due, queued, being read, or settling (its result waits for a commit). Parked is not a state
//!   but an attribute: the state topic has the record, and it is due much later. Requests that arrive meanwhile join it, and the same
//!   read settles them if it reaches their version.
//! - An offset moves past an event in the batch that settles or parks the last open event up to there, never earlier.
//! - A list row without all members of its record requests a read too. It holds no offset, so only the suspicion of a version regression
//!   parks it. Its list waits for it, except while it is suspected.
//! - An event is settled with exactly one [`Outcome`], except that a parked one gets [`Outcome::Parked`] and a final one later.
//! - A version below the fence is published only under the next epoch, after all reads during [`Rules::epoch_confirm`] have shown a
//!   lower version and no list read meanwhile has shown the published one. Without list reads, reads by id alone decide.
//! - A record without a version is published at the version of its event and read once more after
//!   [`Rules::retry_longest`], because the first answer may come from a lagging replica. See [`Version`](model::Version).
//! - A tombstone requires a delete event and two API answers, [`Rules::tombstone_confirm`] apart, that the record is gone.
//!
//! On failure:
//! - Failures of one record or company are retried, then parked; at the horizon the event becomes a dead letter with a gap, and so does
//!   an event whose company has used up its parking space. A row is retried ever less often instead, and at the horizon it becomes a
//!   dead letter without a gap.
//! - Failures of the whole provider or grant pause all reads of the shard and give up nothing.
//! - Failures that need an operator are returned by [`Scheduler::take_answer`] as [`Blocked`].

mod request;

mod scheduler;

mod offsets;

mod pending;

mod queue;

mod judge;

mod parked;

mod batch;

#[cfg(test)]
mod tests;

use std::sync::Arc;

#[cfg(test)]
pub(crate) use self::tests::rules;

use model::{AccountingResource, CompanyId, Error, Key, Origin, RecordId, Topic, Traceparent, Value};

pub use self::{
    batch::{Batch, Change, Content, Entry, GapFound, Outcome},
    parked::{ParkCause, Parked},
    pending::{Delete, ListedVersion},
    queue::{Companies, CompanyState},
    request::{ReadRequest, Wanted},
    scheduler::{Blocked, NextRead, ReadContext, Scheduler, SchedulerReport},
};
use crate::publish::Original;

/// A record, and the company context in which it is read.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Subject {
    /// Kind of the record.
    pub resource: AccountingResource,
    /// Owner of the record, the first part of its key and the key of its events: its company, or the tenant for records without one.
    pub company: CompanyId,
    /// Id of the record.
    pub id: RecordId,
    /// Whether requests for it carry its company as context.
    pub in_company: bool,
}

impl Subject {
    /// Topic of its values.
    #[must_use]
    pub const fn topic(&self) -> Topic {
        Topic::AccountingRecords(self.resource)
    }

    /// Its key in the topic.
    #[must_use]
    pub fn key(&self) -> Key {
        Key::record(&self.company, &self.id)
    }

    /// Key of its fence entry.
    #[must_use]
    pub fn fence_key(&self) -> Key {
        Key::fence(self.topic(), &self.key())
    }

    /// Parses the answer to a read by id; `None` if it is another record. A record without an id gets the requested one.
    ///
    /// # Errors
    /// The text is not a JSON object.
    pub fn record(&self, json: &[u8]) -> Result<Option<Value>, Error> {
        let value = Value::from_resource_json(json, self.resource, &self.company)?.with_id(&self.id);
        Ok((value.key()? == self.key()).then_some(value))
    }

    /// The company to name in requests for it.
    #[must_use]
    pub fn context(&self) -> Option<&CompanyId> {
        self.in_company.then_some(&self.company)
    }
}

/// An event as it was read, for the headers of records that it causes and for dead letters.
#[derive(Debug, Clone)]
pub struct Source {
    /// Key, value, and where they were read.
    pub original: Original,
    /// Its `tributary.id`.
    pub id: String,
    /// The trace it belongs to.
    pub trace: Option<Traceparent>,
    /// When the delivery was received, microseconds since 1970.
    pub received_at: i64,
    /// When the reported change happened, as far as known; microseconds since 1970.
    pub happened_at: i64,
    /// An event, or the list row that requested the record.
    pub origin: Origin,
}

/// Shared, because several entries may hold the same event.
pub type Event = Arc<Source>;

/// Delays and limits. Times are in microseconds.
#[derive(Debug, Clone)]
pub struct Rules {
    /// Minimum time between two reads of the same record for new events.
    pub window: i64,
    /// First delay before a read is repeated; doubles up to `retry_longest`.
    pub retry_first: i64,
    /// Longest delay before a read is repeated.
    pub retry_longest: i64,
    /// How long an event may hold back its offset before it is parked.
    pub park_after: i64,
    /// First delay of a parked record; doubles up to `parked_longest`.
    pub parked_first: i64,
    /// Longest delay of a parked record.
    pub parked_longest: i64,
    /// Events that cannot be settled for this long become dead letters.
    pub horizon: i64,
    /// Minimum time between the two answers that confirm a deletion.
    pub tombstone_confirm: i64,
    /// How long reads must stay below the fence before a version regression is confirmed.
    pub epoch_confirm: i64,
    /// Minimum time between two reads of a record that only check for a version regression.
    pub regression_check_every: i64,
    /// Records that hold back offsets at once; at this number no more events are taken.
    pub most_open: usize,
    /// Records that events have parked; at this number no more events are taken.
    pub most_parked: usize,
    /// Concurrent reads of one company.
    pub company_reads: usize,
    /// Tombstones of a resource that this shard always allows per day.
    pub brake_count: u64,
    /// Share of the shard's records of a resource, 0 to 1, that may be deleted per day.
    pub brake_share: f64,
}

/// The delay after this many failed attempts: doubles from `first` to `longest`.
pub(super) fn doubled_delay(first: i64, longest: i64, tries: u32) -> i64 {
    first.saturating_mul(1_i64.checked_shl(tries.saturating_sub(1).min(30)).unwrap_or(i64::MAX)).min(longest)
}
