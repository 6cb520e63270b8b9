//! One list, from its first page to its certificate; or the known records of a resource, read again by id.
//!
//! ```text
//! Pages ─▶ Asking ─▶ verdict ─▶ Compare ─▶ Comparing ─▶ missing records ─┬─▶ Missing: read by id ─▶ Ending: certificate
//!   ▲         │                    ▲                                     │            │
//!   └─────────┘ next page or pass  │                                     └─▶ Braked   │ known records: the next part
//!                                  ├──── an operator resumes the run ◀────────┘       │
//!                                  └──────────────────────────────────────────────────┘
//! ```

mod missing;
mod outcome;
mod paging;
#[cfg(test)]
mod tests;

use std::{collections::HashSet, sync::Arc};

use model::{AccountingResource, Key, List, ListProgress, Run};
use provider::api::Priority;

pub(super) use self::missing::{Answer, Missing, answer};
use super::{
    super::state::{self, Again, Collection, Counts, Cursor},
    IDLE_AFTER, MOST_UNMARKED, PageMark,
    comparing::Comparing,
    pages::Load,
    sample::Sample,
};
use crate::records::{proof::Reading, schedule::Subject};

/// Attempts to read a page or record whose failure concerns nothing else.
const TRIES: u32 = 8;
/// Reason of a list that is uncertified because records of it went back to older versions while it was read.
pub(super) const WENT_BACK: &str = "the provider went back to older versions while it was read";

/// What to read: a list, or the known records of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    List(Collection),
    Known(AccountingResource),
}

/// A list in progress, or known records that are read again.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) run: Arc<Run>,
    pub(super) what: What,
    /// The proof of the list. `None` for known records, and while the scan of the fence has it.
    pub(super) reading: Option<Reading>,
    /// Number of rows that the proof remembers, as counted for the task.
    pub(super) load: Load,
    /// Number of the last page mark.
    pub(super) marks: u64,
    pub(super) started_at: i64,
    /// Results of its rows, and of its records that were read by id.
    pub(super) counts: Counts,
    /// Whether the state topic has counts; `has_counted` says whether they have changed since.
    pub(super) keeps_counts: bool,
    pub(super) has_counted: bool,
    pub(super) stage: Stage,
    pub(super) tries: u32,
    /// The last failure of a page.
    pub(super) problem: Option<String>,
    /// Earliest time of its next request, in microseconds since 1970.
    pub(super) due: i64,
    /// Number of its parts that are not committed yet.
    pub(super) unwritten: usize,
    /// Filter of the payroll list.
    pub(super) filter: Option<String>,
    /// Records that thin rows have requested and that are not settled yet.
    pub(super) asked_for: Vec<Subject>,
    /// Requested records that were given up. Later passes do not request them again.
    pub(super) lost: HashSet<Subject>,
    /// Marks of its last pages, in order: they are written once all requests are settled.
    pub(super) rest: Vec<PageMark>,
    /// When its last page was answered, in microseconds since 1970.
    pub(super) answered: i64,
    /// Up to where known records were read again.
    pub(super) cursor: Cursor,
    /// Differences, if the run verifies.
    pub(super) comparing: Option<Comparing>,
    /// The pages to read, if the run reads samples.
    pub(super) sample: Option<Sample>,
    /// The provider does not know its path, and the run reads its known records by id instead.
    pub(super) is_absent: bool,
    /// It is a list of accounts, and the provider has no such path.
    pub(super) is_unoffered: bool,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// The next page has to be requested, as soon as the previous one is committed.
    Pages,
    /// A page is requested.
    Asking,
    /// The fence has to be scanned for records that no page has shown.
    Compare,
    /// The scan is running.
    Comparing,
    /// Too many records are missing: the list waits for an operator since this time. The scan is repeated afterwards, so that waiting
    /// lists hold no ids.
    Braked(i64),
    /// Missing records are read by id.
    Missing(Missing),
    /// The end of the list waits for its commit.
    Ending,
}

impl Job {
    /// Sets the proof of the list.
    pub(super) fn set_reading(&mut self, reading: Reading) {
        self.load.set(reading.remembered());
        self.reading = Some(reading);
    }

    /// A job of which nothing has been read.
    pub(super) fn new(run: Arc<Run>, what: What, now: i64) -> Self {
        Self {
            run,
            what,
            reading: None,
            load: Load::default(),
            marks: 0,
            started_at: now,
            counts: Counts::default(),
            keeps_counts: false,
            has_counted: false,
            stage: Stage::Compare,
            tries: 0,
            problem: None,
            due: i64::MIN,
            unwritten: 0,
            filter: None,
            asked_for: Vec::new(),
            lost: HashSet::new(),
            rest: Vec::new(),
            answered: i64::MIN,
            cursor: Cursor::default(),
            comparing: None,
            sample: None,
            is_absent: false,
            is_unoffered: false,
        }
    }

    /// Whether it has waited for more than [`IDLE_AFTER`] for requested records only. That may last until they are given up.
    pub(super) fn is_idle(&self, now: i64) -> bool {
        matches!(self.stage, Stage::Pages | Stage::Compare)
            && !self.asked_for.is_empty()
            && now.saturating_sub(self.answered) > IDLE_AFTER
    }

    /// Whether its next page may be requested: what was read is committed, and few pages wait for their mark.
    pub(super) const fn may_read(&self) -> bool {
        self.unwritten == 0 && self.rest.len() < MOST_UNMARKED
    }

    /// Whether everything that was read of it is committed, and all requests of its rows are settled.
    pub(super) const fn is_settled(&self) -> bool {
        self.unwritten == 0 && self.asked_for.is_empty() && self.rest.is_empty()
    }

    pub(super) fn priority(&self) -> Priority {
        match self.run.kind {
            model::RunKind::Repair => Priority::Repair,
            _ => Priority::Snapshot,
        }
    }

    pub(super) fn collection(&self) -> Option<&Collection> {
        match &self.what {
            What::List(collection) => Some(collection),
            What::Known(_) => None,
        }
    }

    /// Whether it is a list of one company whose next pages may show many new records.
    pub(super) fn grows(&self) -> bool {
        let is_of_company = self.collection().is_some_and(|collection| collection.company.is_some());
        is_of_company && self.reading.as_ref().is_none_or(Reading::grows)
    }

    /// The known records that it reads again; `None` for a list.
    pub(super) fn again(&self) -> Option<Again> {
        match self.what {
            What::List(_) => None,
            What::Known(resource) => Some((self.run.id.clone(), self.run.requested_at, resource)),
        }
    }

    /// Its keys in the state topic.
    pub(super) fn kept(&self, shard: i32) -> Vec<Key> {
        let marks = u64::from(!self.keeps_counts)..=self.marks;
        let pages = self.collection().map(|collection| marks.map(|n| collection.page(shard, n)));
        let cursor = self.again().map(|again| state::cursor(shard, &again));
        pages.into_iter().flatten().chain(cursor).collect()
    }

    /// Continues a braked list after an order of that time. Returns whether it was braked before the order.
    pub(super) fn release(&mut self, at: i64) -> bool {
        let is_released = matches!(self.stage, Stage::Braked(since) if since < at);
        if is_released {
            self.stage = Stage::Compare;
        }
        is_released
    }

    /// Moves the cursor behind the part of known records that was read; `None` if that was the last part.
    pub(super) fn take_cursor(&mut self) -> Option<Cursor> {
        let Stage::Missing(missing) = &mut self.stage else { return None };
        let after = missing.next.take()?;
        let (vanished, unreadable) = (missing.vanished_count, missing.unreadable);
        self.cursor = Cursor { after: Some(after), vanished, unreadable, is_over: false };
        self.stage = Stage::Compare;
        Some(self.cursor.clone())
    }

    pub(super) fn list(&self) -> Option<List> {
        self.collection().map(|collection| collection.list)
    }

    /// Its progress, for operators.
    pub(super) fn progress(&self) -> Option<ListProgress> {
        let Collection { list, company, .. } = self.collection()?;
        let (pass, pages, rows, of) = self.reading.as_ref()?.progress();
        Some(ListProgress { company: company.clone(), list: *list, pass, pages, rows, of })
    }
}
