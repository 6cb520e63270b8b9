//! Entries and the batches in which they are committed.

use std::sync::Arc;

use bytes::Bytes;

use model::{
    AccountingResource, Certificate, CompanyId, Error, GapCause, Key, Origin, PayrollCompany, Stamp, Value,
};

use super::{Event, Parked, Subject};
use crate::publish::PublishFailure;

/// How an event was settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// Its record was published because of it.
    Published,
    /// The record was deleted because of it.
    Deleted,
    /// The same version was published before.
    Duplicate,
    /// A later version was published before.
    Stale,
    /// It shared the read of another event of the same record.
    Coalesced,
    /// It reports no change of a record.
    Filtered,
    /// It waits in the state topic.
    Parked,
    /// Its company is not in the list of companies.
    Foreign,
    /// No read brought its record up to date within the horizon, or its company used up its parking space.
    Unreadable,
    /// The event or its record is unusable.
    DeadLettered,
}

impl Outcome {
    /// Value of the metric label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Published => "published",
            Self::Deleted => "deleted",
            Self::Duplicate => "duplicate",
            Self::Stale => "stale",
            Self::Coalesced => "coalesced",
            Self::Filtered => "filtered",
            Self::Parked => "parked",
            Self::Foreign => "foreign",
            Self::Unreadable => "unreadable",
            Self::DeadLettered => "dead_lettered",
        }
    }
}

/// The value to publish for a record.
#[derive(Debug, Clone)]
pub enum Content {
    /// Parsed.
    Value(Arc<Value>),
    /// Unparsed JSON: a parsed value takes several times the memory, and whole pages wait to be written.
    Json(Bytes),
}

impl Content {
    /// Parses the value. A record without a subject is a payroll company: all other published records can be read by id.
    ///
    /// # Errors
    /// The JSON is not an object.
    pub fn value(&self, subject: Option<&Subject>) -> Result<Arc<Value>, Error> {
        Ok(match (self, subject) {
            (Self::Value(value), _) => Arc::clone(value),
            (Self::Json(json), Some(Subject { resource, company, .. })) => {
                Arc::new(Value::from_resource_json(json, *resource, company)?)
            }
            (Self::Json(json), None) => Arc::new(PayrollCompany::from_json(json)?.into()),
        })
    }
}

/// One write of a batch.
#[derive(Debug, Clone)]
pub enum Change {
    /// Publishes a record and its fence entry.
    Publish {
        /// Value of the record.
        value: Content,
        /// Its fence entry.
        stamp: Stamp,
        /// Size as JSON, in bytes.
        size: usize,
        /// For a new epoch: the fence entry on which that decision was based.
        over: Option<Box<Stamp>>,
    },
    /// Publishes the deletion of a record and its fence entry.
    Tombstone {
        /// Its fence entry.
        stamp: Stamp,
    },
    /// Writes the parked record to the state topic.
    Park(Box<Parked>),
    /// Removes the parked record from the state topic.
    Unpark,
    /// Writes the event to the dead letters.
    DeadLetter(PublishFailure),
    /// Opens a gap.
    Gap(GapFound),
    /// Remembers that the by-id path of this resource has answered.
    Path(AccountingResource),
    /// Counts deletions for the brake.
    Brake {
        /// Resource of the deleted records.
        resource: AccountingResource,
        /// Start of the count, microseconds since 1970.
        since: i64,
        /// Deletions since then.
        count: u64,
    },
}

/// Records that may be missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GapFound {
    /// Why they may be missing.
    pub cause: GapCause,
    /// Resource of the records.
    pub resource: AccountingResource,
    /// Company of the records; `None` means all companies of the shard.
    pub company: Option<CompanyId>,
    /// Start of the gap, microseconds since 1970.
    pub from: i64,
    /// Description for operators.
    pub detail: String,
}

impl GapFound {
    /// The gap of an event whose record cannot be brought up to date.
    pub(super) fn of(cause: GapCause, subject: &Subject, event: &Event, why: &str) -> Self {
        Self {
            cause,
            resource: subject.resource,
            company: subject.context().cloned(),
            from: event.received_at,
            detail: format!("{}: {why}", subject.key()),
        }
    }
}

/// All writes for one record or event.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The record; `None` if the event does not name one.
    pub subject: Option<Subject>,
    /// The event that caused it.
    pub event: Event,
    /// The writes.
    pub changes: Vec<Change>,
    /// One for each event that this settles or parks.
    pub outcomes: Vec<Outcome>,
    /// Timestamp of the first event that this settles, or whose record this publishes before it is settled; `None` if there is no such
    /// event.
    pub first_at: Option<i64>,
    /// Kafka rejected the original writes.
    pub is_refused: bool,
}

impl Entry {
    /// An entry; without a subject it is about the event alone.
    #[must_use]
    pub fn new(subject: Option<Subject>, event: Event, changes: Vec<Change>, outcomes: Vec<Outcome>) -> Self {
        Self { subject, event, changes, outcomes, first_at: None, is_refused: false }
    }

    /// Approximate size in Kafka, in bytes. It bounds a batch.
    #[must_use]
    pub fn weight(&self) -> usize {
        let change = |change: &Change| match change {
            // Avro needs less than twice the size of the JSON.
            Change::Publish { size, .. } => 512 + 2 * size,
            Change::Park(parked) => 512 + 2 * parked.event.original.value.len(),
            Change::DeadLetter(_) => 4096 + self.event.original.value.len(),
            _ => 512,
        };
        self.changes.iter().map(change).sum()
    }

    /// Whether it has a change that Kafka may reject for its size.
    #[must_use]
    pub fn may_be_refused(&self) -> bool {
        !self.is_refused && self.changes.iter().any(is_large)
    }

    /// Compares again with the fence entry, which a list may have changed since the decision, and drops writes that are no longer
    /// newer.
    pub fn compare_again(&mut self, stored: Option<&Stamp>) {
        let is_overtaken = |change: &Change| match change {
            // The regression was confirmed against that fence entry only.
            Change::Publish { over: Some(over), .. } if stored != Some(&**over) => true,
            Change::Publish { stamp, .. } | Change::Tombstone { stamp } => !stamp.against(stored).publishes(),
            _ => false,
        };
        self.leave_out(is_overtaken);
    }

    /// Drops the suspicion of a version regression, and with it a publication under a new epoch.
    pub fn clear_regression(&mut self) {
        for change in &mut self.changes {
            if let Change::Park(parked) = change {
                parked.below_since = None;
            }
        }
        self.leave_out(|change| matches!(change, Change::Publish { over: Some(_), .. }));
    }

    /// Removes outdated changes; their events become stale.
    fn leave_out(&mut self, is_useless: impl Fn(&Change) -> bool) {
        if !self.changes.iter().any(&is_useless) {
            return;
        }
        self.changes.retain(|change| !is_useless(change));
        for outcome in &mut self.outcomes {
            if matches!(outcome, Outcome::Published | Outcome::Deleted) {
                *outcome = Outcome::Stale;
            }
        }
    }

    /// The fence entry that this writes, if any.
    #[must_use]
    pub fn stamp(&self) -> Option<&Stamp> {
        self.changes.iter().find_map(|change| match change {
            Change::Publish { stamp, .. } | Change::Tombstone { stamp } => Some(stamp),
            _ => None,
        })
    }

    /// Whether it publishes an older version under a new epoch.
    #[must_use]
    pub fn raises_epoch(&self) -> bool {
        self.changes.iter().any(|change| matches!(change, Change::Publish { over: Some(_), .. }))
    }

    /// The entry to write after Kafka rejected this one: its event goes to the dead letters, and a gap is opened.
    #[must_use]
    pub fn refused(mut self, failure: PublishFailure) -> Self {
        let was_parked = self.changes.iter().any(|change| matches!(change, Change::Unpark));
        self.changes.retain(|change| !is_large(change) && !matches!(change, Change::Unpark));
        // Rows of lists open no gap: a list shows the row again, and a repair must not open the next gap.
        let is_event = self.event.origin == Origin::Enrichment;
        if self.subject.is_some() && (is_event || was_parked) {
            self.changes.push(Change::Unpark);
        }
        if let Some(subject) = self.subject.as_ref().filter(|_| is_event) {
            let gap = GapFound::of(GapCause::Unreadable, subject, &self.event, &failure.message);
            self.changes.push(Change::Gap(gap));
        }
        self.changes.push(Change::DeadLetter(failure));
        for outcome in &mut self.outcomes {
            if matches!(outcome, Outcome::Published | Outcome::Deleted | Outcome::Parked) {
                *outcome = Outcome::DeadLettered;
            }
        }
        self.is_refused = true;
        self
    }
}

/// Whether a change may exceed the size limit of its topic.
fn is_large(change: &Change) -> bool {
    matches!(change, Change::Publish { .. } | Change::Tombstone { .. } | Change::Park(_))
}

/// The writes of one transaction. If Kafka rejects a record, the batch is split and is no longer atomic; see [`offsets`](Self::offsets)
/// and [`first`](Self::first).
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// Writes by record or event.
    pub entries: Vec<Entry>,
    /// Next offset of each event topic whose offset moved. If the batch is split, it goes with the last part, like all that follows.
    pub offsets: Vec<(AccountingResource, i64)>,
    /// State that must not become visible later than any entry: lists that can no longer be certified. If Kafka rejects a record and
    /// the batch is split, it goes with the first part.
    pub first: Vec<(Key, Bytes)>,
    /// Progress of lists that belongs to the entries; `None` removes a key.
    pub state: Vec<(Key, Option<Bytes>)>,
    /// Certificates of lists, each with the time at which its run was requested.
    pub certificates: Vec<(Certificate, i64)>,
}
