//! One list, from its first page to its certificate; or the known records of a resource, read again by id.
//!
//! ```text
//! Pages ─▶ Asking ─▶ verdict ─▶ Scan ─▶ Scanning ─▶ records on no page ─┬─▶ Unlisted: read by id ─▶ Ending: certificate
//!   ▲         │                   ▲                                     │                  │
//!   └─────────┘ next page or pass │                                     └─▶ Braked         │ known records: the next part
//!                                 ├──── an operator resumes the run ◀─────────┘            │
//!                                 └────────────────────────────────────────────────────────┘
//! ```

mod end;
#[cfg(test)]
mod tests;

use std::{collections::HashSet, sync::Arc};

use model::{AccountingResource, Key, List, ListProgress, Run};
use provider::api::{self, Priority};

pub(super) use self::end::{Answer, UnlistedReads, answer};
use super::{
    super::state::{self, Again, Collection, Counts, Cursor},
    IDLE_AFTER, MOST_UNMARKED, PageMark,
    comparing::Comparing,
    pages::{Asked, Fetched, Fresh, Load},
    sample::Sample,
    spanning::{ListEnd, ListRole},
};
use crate::records::{
    proof::{Reading, ReadingStep, Seen},
    schedule::Subject,
};

/// Attempts to read a page or record whose failure concerns nothing else.
const TRIES: u32 = 8;
/// Attempts to read a first page if its failure cannot be resolved by a retry.
const REFUSED: u32 = 2;
/// Reason of a list that is uncertified because of a version regression while it was read.
pub(super) const REGRESSED: &str = "the provider went back to older versions while it was read";

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
    /// Whether this shard reads it, or gets its pages from another shard of the task.
    pub(super) role: ListRole,
    pub(super) stage: Stage,
    pub(super) proof: ListProof,
    pub(super) rows: RowResults,
    pub(super) written: WriteState,
    pub(super) requests: RequestState,
    /// Up to where known records were read again.
    pub(super) cursor: Cursor,
    /// Differences, if the run verifies.
    pub(super) comparing: Option<Comparing>,
}

/// How a list is read, and what is proved of it.
#[derive(Debug, Default)]
pub(super) struct ListProof {
    /// `None` for known records, and in a follower until the leader has read the whole list.
    pub(super) reading: Option<Arc<Reading>>,
    /// Since when the list cannot be certified, because of a version regression while it was read; microseconds since 1970.
    pub(super) void_since: Option<i64>,
    /// Number of rows that the proof remembers, as counted for the task.
    pub(super) load: Load,
    pub(super) started_at: i64,
    /// Filter of the payroll list.
    pub(super) filter: Option<String>,
    /// The pages to read, if the run reads samples.
    pub(super) sample: Option<Sample>,
    pub(super) offer: Offer,
}

/// Results of the rows of a list.
#[derive(Debug, Default)]
pub(super) struct RowResults {
    /// Of its rows, and of its records that were read by id.
    pub(super) counts: Counts,
    /// Whether the state topic has counts; `has_counted` says whether they have changed since.
    pub(super) keeps_counts: bool,
    pub(super) has_counted: bool,
    /// Whether its counts are in a batch that is not committed yet.
    pub(super) is_writing_counts: bool,
    /// Records that thin rows have requested and that are not settled yet.
    pub(super) asked_for: Vec<Subject>,
    /// Requested records that were given up. Later passes do not request them again.
    pub(super) lost: HashSet<Subject>,
}

/// What of a list is committed, and marked as read.
#[derive(Debug, Default)]
pub(super) struct WriteState {
    /// Number of the last page that was taken, over all passes; its mark may not be written yet. In a follower: the last mark of an earlier
    /// owner.
    pub(super) marks: u64,
    /// Marks of its last pages, in order: they are written once no request of any row is open, here and in all followers.
    pub(super) unmarked: Vec<PageMark>,
    /// Number of its parts that are not committed yet, and how many of these are marks.
    pub(super) unwritten: usize,
    pub(super) unwritten_marks: usize,
}

/// The last requests of a list, and when the next one is due.
#[derive(Debug)]
pub(super) struct RequestState {
    /// Failed attempts since the last success.
    pub(super) tries: u32,
    /// The last failure of a page.
    pub(super) problem: Option<String>,
    /// Earliest time of its next request, in microseconds since 1970.
    pub(super) due: i64,
    /// When its last page was answered, in microseconds since 1970.
    pub(super) answered: i64,
}

impl Default for RequestState {
    fn default() -> Self {
        Self { tries: 0, problem: None, due: i64::MIN, answered: i64::MIN }
    }
}

/// Whether the provider offers the path of a list.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Offer {
    /// It does not know the path, and the run reads the known records by id instead.
    pub(super) is_absent: bool,
    /// It is a list of accounts, and the provider has no such path.
    pub(super) is_unoffered: bool,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// The next page has to be requested, as soon as the previous one is committed. A follower waits for it instead.
    Pages,
    /// A page is requested.
    Asking,
    /// The fence has to be scanned for records that no page has shown.
    Scan,
    /// The scan is running.
    Scanning,
    /// Too many known records are on no page: the list waits for an operator since this time. The scan is repeated afterwards, so that
    /// waiting lists hold no ids.
    Braked(i64),
    /// Known records that no page has shown are read by id.
    Unlisted(UnlistedReads),
    /// The end of the list waits for its commit.
    Ending,
}

impl Job {
    /// Sets the proof of the list.
    pub(super) fn set_reading(&mut self, reading: Reading) {
        self.proof.load.set(reading.remembered());
        self.proof.reading = Some(Arc::new(reading));
    }

    /// Whether it is proved that its pages showed every record that the list had.
    pub(super) fn is_proved(&self) -> bool {
        self.proof.void_since.is_none()
            && self.proof.reading.as_ref().is_some_and(|reading| reading.is_proved())
    }

    /// A job of which nothing has been read.
    pub(super) fn new(run: Arc<Run>, what: What, now: i64) -> Self {
        Self {
            run,
            what,
            role: ListRole::default(),
            stage: Stage::Scan,
            proof: ListProof { started_at: now, ..ListProof::default() },
            rows: RowResults::default(),
            written: WriteState::default(),
            requests: RequestState::default(),
            cursor: Cursor::default(),
            comparing: None,
        }
    }

    /// Whether it has waited for more than [`IDLE_AFTER`] for requested records or followers only. That may last until records are
    /// given up.
    pub(super) fn is_idle(&self, now: i64) -> bool {
        matches!(self.stage, Stage::Pages | Stage::Scan)
            && !(self.rows.asked_for.is_empty()
                && self.written.unmarked.is_empty()
                && self.role.may_request())
            && now.saturating_sub(self.requests.answered) > IDLE_AFTER
    }

    /// Whether its next page may be requested: what was read is committed, and few pages wait for their mark.
    pub(super) fn may_read(&self) -> bool {
        self.is_committed() && self.written.unmarked.len() < MOST_UNMARKED && self.role.may_request()
    }

    /// Whether everything that was read of it is committed.
    pub(super) const fn is_committed(&self) -> bool {
        self.written.unwritten == self.written.unwritten_marks
    }

    /// Takes the marks that may be written: no request of any row of the list is open here, and all followers have settled the page.
    pub(super) fn take_due_marks(&mut self) -> Vec<PageMark> {
        if !self.is_committed() || !self.rows.asked_for.is_empty() {
            return Vec::new();
        }
        let due = self.written.unmarked.iter().take_while(|mark| self.role.may_mark(mark.number)).count();
        self.written.unmarked.drain(..due).collect()
    }

    /// Passes on how the reading has ended.
    pub(super) fn relay_end(&mut self) {
        if matches!(self.stage, Stage::Pages | Stage::Asking) || !self.is_settled() {
            return;
        }
        let Self { role, proof, requests, .. } = self;
        let end = || {
            let ListProof { started_at, offer, .. } = *proof;
            let (filter, answered) = (proof.filter.clone(), requests.answered);
            let (reading, is_void) = (proof.reading.clone()?, proof.void_since.is_some());
            Some(ListEnd { reading, started_at, filter, offer, is_void, answered })
        };
        role.leader().into_iter().for_each(|leader| leader.relay_end(end));
    }

    /// Takes the end of the reading from the leader.
    pub(super) fn follow_to_end(&mut self, end: &ListEnd, now: i64) {
        let ListEnd { reading, started_at, filter, offer, is_void, answered } = end;
        if *is_void {
            self.proof.void_since.get_or_insert(now);
        }
        self.requests.answered = *answered;
        self.proof.reading = Some(Arc::clone(reading));
        self.proof.filter.clone_from(filter);
        (self.proof.started_at, self.proof.offer, self.stage) = (*started_at, *offer, Stage::Scan);
    }

    /// Tells the leader what this shard has done.
    pub(super) fn report(&mut self, is_over: bool) {
        let is_settled = self.is_settled() && !self.has_new_counts() && !self.rows.is_writing_counts;
        let (is_void, is_braked) = (self.proof.void_since.is_some(), matches!(self.stage, Stage::Braked(_)));
        self.role.follower().into_iter().for_each(|one| one.report(is_settled, is_void, is_braked, is_over));
    }

    /// Whether everything that was read of it is committed, and all requests of its rows are settled.
    pub(super) const fn is_settled(&self) -> bool {
        self.written.unwritten == 0 && self.rows.asked_for.is_empty() && self.written.unmarked.is_empty()
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
        is_of_company && self.proof.reading.as_ref().is_none_or(|reading| reading.grows())
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
        let marks = u64::from(!self.rows.keeps_counts)..=self.written.marks;
        let pages = self.collection().map(|collection| marks.map(|n| collection.page(shard, n)));
        let cursor = self.again().map(|again| state::cursor(shard, &again));
        pages.into_iter().flatten().chain(cursor).collect()
    }

    /// Continues a braked list after an order of that time. Returns whether it was braked before the order.
    pub(super) fn release(&mut self, at: i64) -> bool {
        let is_released = matches!(self.stage, Stage::Braked(since) if since < at);
        if is_released {
            self.stage = Stage::Scan;
            self.report(false);
        }
        is_released
    }

    /// Moves the cursor after the part of known records that was read; `None` if that was the last part.
    pub(super) fn take_cursor(&mut self) -> Option<Cursor> {
        let Stage::Unlisted(reads) = &mut self.stage else { return None };
        let after = reads.next.take()?;
        let (vanished, unreadable) = (reads.vanished_count, reads.unreadable);
        self.cursor = Cursor { after: Some(after), vanished, unreadable, is_over: false };
        self.stage = Stage::Scan;
        Some(self.cursor.clone())
    }

    pub(super) fn list(&self) -> Option<List> {
        self.collection().map(|collection| collection.list)
    }

    /// Its progress, for operators.
    pub(super) fn progress(&self) -> Option<ListProgress> {
        let Collection { list, company, .. } = self.collection()?;
        let (pass, pages, rows, of) = self.proof.reading.as_ref()?.progress();
        Some(ListProgress { company: company.clone(), list: *list, pass, pages, rows, of })
    }
}

/// Pages: which one to request next, and what follows from one that was read or failed.
impl Job {
    /// The page to request now, if any.
    pub(super) fn wants_page(&self, now: i64) -> Option<Asked> {
        let Collection { list, company, .. } = self.collection()?;
        if !matches!(self.stage, Stage::Pages) || self.requests.due > now || !self.may_read() {
            return None;
        }
        let want = match &self.proof.sample {
            Some(sample) => {
                let (number, size) = sample.want()?;
                ReadingStep::Page {
                    number,
                    size,
                    filtered: self.proof.filter.is_some(),
                    sent_after: i64::MIN,
                }
            }
            None => self.proof.reading.as_ref()?.want(),
        };
        let ReadingStep::Page { number, size, filtered, sent_after } = want else { return None };
        let filter = self.proof.filter.clone().filter(|_| filtered);
        Some(Asked {
            list: *list,
            company: company.clone(),
            number,
            size,
            filter,
            // The run may come from a machine whose clock is ahead.
            sent_after: sent_after.max(self.run.requested_at),
            priority: self.priority(),
        })
    }

    /// Rows of a page that an earlier page has shown.
    pub(super) fn shown_of(&self, page: &Fetched) -> HashSet<Key> {
        if let Some(sample) = &self.proof.sample {
            return sample.shown.clone();
        }
        let is_shown =
            |row: &&Fresh| self.proof.reading.as_ref().is_some_and(|reading| reading.has_shown(row.hash));
        page.rows.iter().filter(is_shown).map(|row| row.key.clone()).collect()
    }

    /// Whether a page was requested before the version regression: its rows may be from before it, so those that seem newer are read
    /// by id.
    pub(super) fn is_outdated(&self, page: &Fetched) -> bool {
        self.proof.void_since.is_some_and(|since| page.seen.answer.sent <= since)
    }

    /// Takes a page that was read. Returns whether it counts; if not, it is requested again.
    pub(super) fn look(&mut self, page: &Fetched) -> bool {
        let is_taken = match (&mut self.proof.sample, &mut self.proof.reading) {
            (Some(sample), _) => {
                sample.look(&page.seen);
                sample.shown.extend(page.rows.iter().map(|row| row.key.clone()));
                true
            }
            (None, Some(reading)) => {
                let reading = Arc::make_mut(reading);
                let is_taken = reading.look(&page.seen).is_ok();
                self.proof.load.set(reading.remembered());
                is_taken
            }
            (None, None) => return false,
        };
        if is_taken {
            (self.requests.tries, self.requests.problem) = (0, None);
            self.requests.answered = page.seen.answer.answered;
        }
        self.advance();
        is_taken
    }

    /// Notes a version regression in a record of the list. While pages are read, this voids the proof; the rest is still read, to publish
    /// its rows. After the verdict the proof stands. But the next owner would read pages without a mark again, after the regression.
    /// Returns the list if a mark has to say that it cannot be certified.
    pub(super) fn note_regression(&mut self, now: i64) -> Option<Collection> {
        // A sample proves nothing.
        if self.proof.sample.is_some() {
            return None;
        }
        if !matches!(self.stage, Stage::Pages | Stage::Asking) {
            return self.collection().filter(|_| !self.is_settled()).cloned();
        }
        // Times of pages may be ahead of this clock.
        let sent_after = match self.proof.reading.as_ref().map(|reading| reading.want()) {
            Some(ReadingStep::Page { sent_after, .. }) => sent_after.max(self.run.requested_at),
            _ => i64::MIN,
        };
        self.proof.void_since = self.proof.void_since.max(Some(now.max(sent_after)));
        self.collection().cloned()
    }

    /// Moves on after a request: to the next page, or to the scan for known records that no page has shown.
    pub(super) fn advance(&mut self) {
        let is_over = match &self.proof.sample {
            Some(sample) => sample.is_over(),
            None => self.proof.reading.as_ref().is_some_and(|reading| reading.is_over()),
        };
        if matches!(self.stage, Stage::Asking | Stage::Pages) {
            self.stage = if is_over { Stage::Scan } else { Stage::Pages };
        }
    }

    /// Handles the failure of a page that concerns only this list or company. Returns the mark of a void pass, if the failure voids it.
    pub(super) fn fails(
        &mut self,
        page: u32,
        error: &api::Error,
        why: &str,
        wait: i64,
        now: i64,
    ) -> Option<Seen> {
        self.advance();
        self.requests.tries += 1;
        let is_refused =
            matches!(error.status, Some(401 | 403)) && !matches!(error.cause, api::Cause::Quota { .. });
        // If a page was read before, the refusal may be temporary, for example during a change of a gateway.
        let is_final = self.written.marks == 0 && (is_refused || !error.retry().is_retriable());
        // The provider rejects the filter, so a second attempt would be rejected too.
        let rejects_filter = self.proof.filter.is_some()
            && matches!(error.cause, api::Cause::Refused)
            && self.proof.reading.as_ref().is_some_and(|reading| reading.is_filtered());
        let most = match is_final {
            _ if rejects_filter => 1,
            true => REFUSED,
            false => TRIES,
        };
        if self.requests.tries < most {
            self.requests.due = now.saturating_add(wait);
            return None;
        }
        self.requests.tries = 0;
        if let Some(sample) = &mut self.proof.sample {
            sample.fails();
            self.advance();
            return None;
        }
        // The same run may read the known records by id instead.
        let resource = self.collection().and_then(|collection| collection.list.resource());
        let is_made_up_for = resource.is_some_and(|resource| self.run.known.contains(&resource));
        let reading = Arc::make_mut(self.proof.reading.as_mut()?);
        let ReadingStep::Page { size, .. } = reading.want() else { return None };
        let mut kept = None;
        match error.cause {
            api::Cause::NotFound { by } | api::Cause::Gone { by } if is_final => {
                self.proof.offer.is_absent = is_made_up_for;
                self.proof.offer.is_unoffered =
                    resource == Some(AccountingResource::Accounts) && by != api::AnsweredBy::Api;
                reading.end(&format!("not offered: {why}"));
            }
            // Another pass would be refused too, and use up the rate limit.
            _ if is_final && is_refused => reading.end(&format!("refused: {why}")),
            _ => {
                let seen = Seen::unreadable(page, size, why, now);
                kept = reading.look(&seen).is_ok().then_some(seen);
                // A filter that checks itself is given up by then; a configured one would be rejected in every pass.
                if rejects_filter && reading.is_filtered() {
                    reading.end(&format!("refused: {why}"));
                }
            }
        }
        self.advance();
        kept
    }
}
