//! What is committed together.

use std::sync::Arc;

use bytes::Bytes;

use model::{
    AccountingResource, Certificate, CompanyId, Error, GapCause, Key, Origin, PayrollCompany, Stamp, Value,
};

use super::{Event, Parked, Subject};
use crate::publish::Failure;

/// What became of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Outcome {
    /// Its record was published because of it.
    Published,
    /// The record was deleted because of it.
    Deleted,
    /// That version was published before.
    Duplicate,
    /// A later version was published before.
    Stale,
    /// Another event of the same record led to the read that settled it as well.
    Coalesced,
    /// It tells of no change.
    Filtered,
    /// It waits in the state topic.
    Parked,
    /// It is of a company that the list does not show.
    Foreign,
    /// Its record could not be read until the horizon.
    Unreadable,
    /// It, or its record, cannot be used.
    DeadLettered,
}

impl Outcome {
    /// Its name, as metrics have it.
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

/// A record's value that is to be written.
#[derive(Debug, Clone)]
pub enum Content {
    /// As it was read.
    Value(Arc<Value>),
    /// As it was sent. A value takes several times as much, and pages of them wait to be written.
    Json(Bytes),
}

impl Content {
    /// The value of this record. What has no subject is a payroll company: everything else that is published can be read by id.
    ///
    /// # Errors
    /// What was sent is not a JSON object.
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

/// One thing to write.
#[derive(Debug, Clone)]
pub enum Change {
    /// A record's value, and what guards it from then on.
    Publish {
        /// The value.
        value: Content,
        /// Its stamp.
        stamp: Stamp,
        /// Bytes it had as JSON.
        size: usize,
        /// Under the next epoch: what stood there when that was decided.
        over: Option<Box<Stamp>>,
    },
    /// The end of a record, and what guards it from then on.
    Tombstone {
        /// Its stamp.
        stamp: Stamp,
    },
    /// It waits from now on.
    Park(Box<Parked>),
    /// It does not wait any more.
    Unpark,
    /// The event goes to the dead letters.
    DeadLetter(Failure),
    /// Something may be missing.
    Gap(GapFound),
    /// The by-id path of this resource has answered.
    Path(AccountingResource),
    /// So many records of this resource have been deleted since then.
    Brake {
        /// Of what.
        resource: AccountingResource,
        /// From when on they are counted.
        since: i64,
        /// How many.
        count: u64,
    },
}

/// What may be missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GapFound {
    /// Why.
    pub cause: GapCause,
    /// Of what.
    pub resource: AccountingResource,
    /// Of whom; of all companies of the shard where there is none.
    pub company: Option<CompanyId>,
    /// From when on.
    pub from: i64,
    /// What has happened, in words.
    pub detail: String,
}

impl GapFound {
    /// An event whose record cannot be brought up to date.
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

/// What is written because of one record or event.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Which record; none where the event does not tell.
    pub subject: Option<Subject>,
    /// The event behind it.
    pub event: Event,
    /// What is written.
    pub changes: Vec<Change>,
    /// What became of the events.
    pub outcomes: Vec<Outcome>,
    /// When what the first of the events that are settled by it tells of happened; `None` where none is.
    pub first_at: Option<i64>,
    /// Kafka does not take what was to be written of it.
    pub is_refused: bool,
}

impl Entry {
    /// What is written of a record because of an event; of none where there is no subject.
    #[must_use]
    pub fn new(subject: Option<Subject>, event: Event, changes: Vec<Change>, outcomes: Vec<Outcome>) -> Self {
        Self { subject, event, changes, outcomes, first_at: None, is_refused: false }
    }

    /// Bytes it will take in Kafka, roughly: what bounds a batch.
    #[must_use]
    pub fn weight(&self) -> usize {
        let change = |change: &Change| match change {
            // Twice as long as JSON is more than Avro takes.
            Change::Publish { size, .. } => 512 + 2 * size,
            Change::Park(parked) => 512 + 2 * parked.event.original.value.len(),
            Change::DeadLetter(_) => 4096 + self.event.original.value.len(),
            _ => 512,
        };
        self.changes.iter().map(change).sum()
    }

    /// Whether there is something that could be left out.
    #[must_use]
    pub fn may_be_refused(&self) -> bool {
        !self.is_refused && self.changes.iter().any(is_large)
    }

    /// What guards the record may have changed since this was decided, by a list that shows it. What is not newer any more is not
    /// written.
    pub fn compare_again(&mut self, stored: Option<&Stamp>) {
        let is_overtaken = |change: &Change| match change {
            // That the provider went back is true of what stood there then, and of nothing newer.
            Change::Publish { over: Some(over), .. } if stored != Some(&**over) => true,
            Change::Publish { stamp, .. } | Change::Tombstone { stamp } => !stamp.against(stored).publishes(),
            _ => false,
        };
        self.leave_out(is_overtaken);
    }

    /// The provider did not go back: nobody suspects it any more, and what was to be published because of that is not.
    pub fn not_below(&mut self) {
        for change in &mut self.changes {
            if let Change::Park(parked) = change {
                parked.below_since = None;
            }
        }
        self.leave_out(|change| matches!(change, Change::Publish { over: Some(_), .. }));
    }

    /// What is of no use any more is not written, and its events tell of nothing newer.
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

    /// The stamp that guards the record once this is written, if it does that.
    #[must_use]
    pub fn stamp(&self) -> Option<&Stamp> {
        self.changes.iter().find_map(|change| match change {
            Change::Publish { stamp, .. } | Change::Tombstone { stamp } => Some(stamp),
            _ => None,
        })
    }

    /// Whether what it publishes is older than what stood there: the provider went back.
    #[must_use]
    pub fn goes_back(&self) -> bool {
        self.changes.iter().any(|change| matches!(change, Change::Publish { over: Some(_), .. }))
    }

    /// The same record refused: its event goes to the dead letters instead of what was to be written, and a gap tells of it.
    #[must_use]
    pub fn refused(mut self, failure: Failure) -> Self {
        let was_parked = self.changes.iter().any(|change| matches!(change, Change::Unpark));
        self.changes.retain(|change| !is_large(change) && !matches!(change, Change::Unpark));
        // A list shows it again; whoever repairs a gap must not open the next by it.
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

/// Whether a change may be more than its topic takes.
fn is_large(change: &Change) -> bool {
    matches!(change, Change::Publish { .. } | Change::Tombstone { .. } | Change::Park(_))
}

/// What is committed together: all of it or nothing.
#[derive(Debug, Clone, Default)]
pub struct Batch {
    /// By record.
    pub entries: Vec<Entry>,
    /// The next offset of each event topic that has moved.
    pub offsets: Vec<(AccountingResource, i64)>,
    /// State that must not come after any of them: lists of which nothing can be proved any more.
    pub first: Vec<(Key, Bytes)>,
    /// State that belongs to them: what was read of lists.
    pub state: Vec<(Key, Option<Bytes>)>,
    /// What was proved of lists, each with when its run was asked for.
    pub certificates: Vec<(Certificate, i64)>,
}
