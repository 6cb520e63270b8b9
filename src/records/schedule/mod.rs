//! Enrichment: what an event asks for, what a read by id means for it, and when its offset may move. Decides, and does nothing.
//!
//! ```text
//! event ─▶ ReadRequest ─▶ Scheduler: one read a record at a time ─▶ judge ─▶ Entry: value, fence, tombstone, dead letter, gap ─▶ Batch
//!                    │  ▲ again, a little later            │                                                        │
//!                    │  └──────────────────────────────────┤                                             committed ─┘
//!                    └─ parked: durable, due much later ◀──┘
//! ```
//!
//! A [`Scheduler`] is one shard's. What it is told is the whole of what it knows: events in the order of their offsets, what reads
//! brought, what the fence stores, which companies there are, and the time. So a test lets thousands of shards live through
//! crashes, lost reads and provider restores within a second.
//!
//! - Of each record one thing is under way: it waits, is read, or waits for its batch to be committed. Events of it that come
//!   meanwhile join, and are settled by the same read if that reaches their version.
//! - An offset moves once everything before it is settled, and is in the same batch as what settled it.
//! - A row of a list that shows less than its record asks for a read as well, and holds back no offset: its list waits for it.
//! - An event is settled as exactly one of [`Outcome`]; one that is parked comes again as what becomes of it.
//! - A version below the fence is never published, except under the next epoch, once reads over a whole
//!   [`Rules::epoch_confirm`] have shown nothing else, nor has a list that was read meanwhile. Nobody waits for a list: where none is
//!   read, reads by id decide alone.
//! - A record that does not tell its version is published at the version of its event, and read once more after
//!   [`Rules::retry_longest`]: the first read may have come from a replica that is behind. See [`Version`](model::Version).
//! - A tombstone follows from a delete event and two answers of the API, [`Rules::tombstone_confirm`] apart, that the record is gone;
//!   from nothing else.
//!
//! On failure: what concerns one record or company is tried again, parked and at the horizon given up as a dead letter with a gap;
//! what concerns everything holds everything back; what needs a person comes out of [`Scheduler::read`] as [`Blocked`].

mod batch;
mod companies;
mod judge;
mod offsets;
mod parked;
mod pending;
mod queue;
mod request;
mod scheduler;
#[cfg(test)]
mod tests;

use std::sync::Arc;

#[cfg(test)]
pub(crate) use self::tests::rules;

use model::{AccountingResource, CompanyId, Error, Key, Origin, RecordId, Topic, Traceparent, Value};

pub use self::{
    batch::{Batch, Change, Content, Entry, GapFound, Outcome},
    companies::{Companies, CompanyState},
    parked::{Cause, Parked},
    pending::{Delete, ListedVersion},
    request::{ReadRequest, Wanted},
    scheduler::{Blocked, NextRead, ReadContext, Scheduler, SchedulerReport},
};
use crate::publish::Original;

/// Which record, and in whose name it is read.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Subject {
    /// What it is.
    pub resource: AccountingResource,
    /// The company part of its key, which is the key of its events: a company, or the tenant where there is none.
    pub company: CompanyId,
    /// Its id.
    pub id: RecordId,
    /// Whether it is read in the context of its company.
    pub in_company: bool,
}

impl Subject {
    /// Where its values go.
    #[must_use]
    pub const fn topic(&self) -> Topic {
        Topic::AccountingRecords(self.resource)
    }

    /// Its key there.
    #[must_use]
    pub fn key(&self) -> Key {
        Key::record(&self.company, &self.id)
    }

    /// The key of what guards it.
    #[must_use]
    pub fn fence_key(&self) -> Key {
        Key::fence(self.topic(), &self.key())
    }

    /// The record that a read by its id shows; `None` where that is another one. A record without an id has the one that was asked
    /// for.
    ///
    /// # Errors
    /// The text is not a JSON object.
    pub fn record(&self, json: &[u8]) -> Result<Option<Value>, Error> {
        let value = Value::from_resource_json(json, self.resource, &self.company)?.with_id(&self.id);
        Ok((value.key()? == self.key()).then_some(value))
    }

    /// The company it is read for.
    #[must_use]
    pub fn context(&self) -> Option<&CompanyId> {
        self.in_company.then_some(&self.company)
    }
}

/// An event as it was read: for the headers of what follows from it, and for the dead letters.
#[derive(Debug, Clone)]
pub struct Source {
    /// Its bytes and its place.
    pub original: Original,
    /// Its `tributary.id`.
    pub id: String,
    /// The trace it belongs to.
    pub trace: Option<Traceparent>,
    /// When the delivery came, microseconds since 1970.
    pub received_at: i64,
    /// When what it tells of happened, as far as that is known; microseconds since 1970.
    pub happened_at: i64,
    /// What it is: an event, or a row of a list that asks for its record.
    pub origin: Origin,
}

/// An event is kept once, however many hold it.
pub type Event = Arc<Source>;

/// Waits and bounds. Times are in microseconds.
#[derive(Debug, Clone)]
pub struct Rules {
    /// At most one read of a record in this time.
    pub window: i64,
    /// First wait after a read that was not enough; it grows up to `retry_longest`.
    pub retry_first: i64,
    /// See there.
    pub retry_longest: i64,
    /// How long an event may hold back its offset.
    pub park_after: i64,
    /// First wait of what is parked; it grows up to `parked_longest`.
    pub parked_first: i64,
    /// See there.
    pub parked_longest: i64,
    /// What could not be settled for this long is given up.
    pub horizon: i64,
    /// Two answers that a record is gone are so far apart.
    pub tombstone_confirm: i64,
    /// Reads below the fence for this long mean that the provider went back.
    pub epoch_confirm: i64,
    /// How often an event below the fence leads to a look whether the provider went back.
    pub look_back: i64,
    /// Records that hold back offsets at once; above it no event is taken.
    pub most_open: usize,
    /// Records that may be parked; above it no event is taken.
    pub most_parked: usize,
    /// Reads of one company at once.
    pub company_reads: usize,
    /// Tombstones of a resource in a day that are let through in any case, by this shard.
    pub brake_count: u64,
    /// Share of the shard's records of a resource, 0 to 1, that may be deleted in a day.
    pub brake_share: f64,
}

/// A wait that doubles with each try.
fn grown(first: i64, longest: i64, tries: u32) -> i64 {
    first.saturating_mul(1_i64.checked_shl(tries.saturating_sub(1).min(30)).unwrap_or(i64::MAX)).min(longest)
}
