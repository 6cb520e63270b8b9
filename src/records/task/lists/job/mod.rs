//! One list that is read, from its first page to its certificate.
//!
//! ```text
//! pages ─▶ verdict ─▶ what is known and was not shown ─▶ read by id, one by one ─▶ certificate
//!   ▲ │ void: another pass                └ too much of it: waits for a person
//!   └─┘
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
    IDLE_AFTER, PageMark,
    comparing::Comparing,
    pages::Load,
    sample::Sample,
};
use crate::records::{proof::Reading, schedule::Subject};

/// How often a page, or a record, is tried that cannot be read for its own sake.
const TRIES: u32 = 8;
/// Why a list is not proved whose records became older while it was read.
pub(super) const WENT_BACK: &str = "the provider went back to older versions while it was read";

/// What is read: a list, or the records of a resource that are known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    List(Collection),
    Known(AccountingResource),
}

/// See the module's head.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) run: Arc<Run>,
    pub(super) what: What,
    /// Away while the fences are looked through.
    pub(super) reading: Option<Reading>,
    /// What that remembers.
    pub(super) load: Load,
    /// Pages that are kept.
    pub(super) marks: u64,
    pub(super) started_at: i64,
    /// What became of its rows, and of its records that were read by id.
    pub(super) counts: Counts,
    /// The state topic has them; and they have changed since.
    pub(super) keeps_counts: bool,
    pub(super) has_counted: bool,
    pub(super) stage: Stage,
    pub(super) tries: u32,
    /// Why its page could not be read, the last time.
    pub(super) problem: Option<String>,
    /// Nothing of it is asked for before.
    pub(super) due: i64,
    /// Parts of it that are not committed.
    pub(super) unwritten: usize,
    /// A filter of its own, for payroll.
    pub(super) filter: Option<String>,
    /// Records that its rows have asked for, and that are not settled yet.
    pub(super) asked_for: Vec<Subject>,
    /// Those of them that were given up.
    pub(super) lost: HashSet<Subject>,
    /// The page whose rows have asked for them.
    pub(super) rest: Option<PageMark>,
    /// When its last page was answered.
    pub(super) answered: i64,
    /// How far known records are read again.
    pub(super) cursor: Cursor,
    /// What differs, where it is compared.
    pub(super) comparing: Option<Comparing>,
    /// Which of its pages are read, where that is not all.
    pub(super) sample: Option<Sample>,
    /// The provider does not know its path.
    pub(super) is_absent: bool,
    /// It is a list of accounts, and the provider has no such path.
    pub(super) is_unoffered: bool,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// The next page is to be asked for.
    Pages,
    /// It is.
    Asking,
    /// What is known and was not shown is to be looked for.
    Compare,
    /// It is being.
    Comparing,
    /// So many are missing that somebody should look; since then. They are looked for again afterwards: there may be many such lists.
    Braked(i64),
    /// They are read by id.
    Missing(Missing),
    /// All that is left is to be committed.
    Ending,
}

impl Job {
    /// Takes up a reading.
    pub(super) fn set_reading(&mut self, reading: Reading) {
        self.load.set(reading.remembered());
        self.reading = Some(reading);
    }

    /// Before anything of it is read.
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
            rest: None,
            answered: i64::MIN,
            cursor: Cursor::default(),
            comparing: None,
            sample: None,
            is_absent: false,
            is_unoffered: false,
        }
    }

    /// Whether it has long been waiting for nothing but records that its rows have asked for: that may last until these are given up.
    pub(super) fn is_idle(&self, now: i64) -> bool {
        matches!(self.stage, Stage::Pages | Stage::Compare)
            && !self.asked_for.is_empty()
            && now.saturating_sub(self.answered) > IDLE_AFTER
    }

    /// Whether all of it that was read is committed, with all that its rows have asked for.
    pub(super) const fn is_settled(&self) -> bool {
        self.unwritten == 0 && self.asked_for.is_empty() && self.rest.is_none()
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

    /// Whether it is a list of one company whose next pages may well show records that none has shown.
    pub(super) fn grows(&self) -> bool {
        let is_of_company = self.collection().is_some_and(|collection| collection.company.is_some());
        is_of_company && self.reading.as_ref().is_none_or(Reading::grows)
    }

    /// The known records that it reads again, if it does.
    pub(super) fn again(&self) -> Option<Again> {
        match self.what {
            What::List(_) => None,
            What::Known(resource) => Some((self.run.id.clone(), self.run.requested_at, resource)),
        }
    }

    /// All that the state topic has of it.
    pub(super) fn kept(&self, shard: i32) -> Vec<Key> {
        let marks = u64::from(!self.keeps_counts)..=self.marks;
        let pages = self.collection().map(|collection| marks.map(|n| collection.page(shard, n)));
        let cursor = self.again().map(|again| state::cursor(shard, &again));
        pages.into_iter().flatten().chain(cursor).collect()
    }

    /// A person has said then that it goes on; whether it has waited for that.
    pub(super) fn release(&mut self, at: i64) -> bool {
        let is_released = matches!(self.stage, Stage::Braked(since) if since < at);
        if is_released {
            self.stage = Stage::Compare;
        }
        is_released
    }

    /// Where known records that were looked up are read, it is kept; whether there are more.
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

    /// How far it is, for people.
    pub(super) fn progress(&self) -> Option<ListProgress> {
        let Collection { list, company, .. } = self.collection()?;
        let (pass, pages, rows, of) = self.reading.as_ref()?.progress();
        Some(ListProgress { company: company.clone(), list: *list, pass, pages, rows, of })
    }
}
