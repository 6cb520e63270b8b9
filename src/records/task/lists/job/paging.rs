//! Pages of a list: which one to request next, and what follows from one that was read or failed.

use std::collections::HashSet;

use model::{AccountingResource, Key};
use provider::api;

use super::{
    super::pages::{Asked, Fetched, Fresh},
    Job, Stage, TRIES, WENT_BACK,
};
use crate::records::{
    proof::{Reading, ReadingStep, Seen},
    task::state::Collection,
};

/// Attempts to read a page that the provider finally refuses.
const REFUSED: u32 = 2;

impl Job {
    /// The page to request now, if any.
    pub(in super::super) fn wants_page(&self, now: i64) -> Option<Asked> {
        let Collection { list, company, .. } = self.collection()?;
        if !matches!(self.stage, Stage::Pages) || self.due > now || !self.may_read() {
            return None;
        }
        let want = match &self.sample {
            Some(sample) => {
                let (number, size) = sample.want()?;
                ReadingStep::Page { number, size, filtered: self.filter.is_some(), sent_after: i64::MIN }
            }
            None => self.reading.as_ref()?.want(),
        };
        let ReadingStep::Page { number, size, filtered, sent_after } = want else { return None };
        let filter = self.filter.clone().filter(|_| filtered);
        Some(Asked {
            list: *list,
            company: company.clone(),
            number,
            size,
            filter,
            // A remembered page of another run may be older than the request of this run.
            sent_after: sent_after.max(self.run.requested_at),
            requested_at: self.run.requested_at,
            priority: self.priority(),
        })
    }

    /// Rows of a page that an earlier page has shown.
    pub(in super::super) fn shown_of(&self, page: &Fetched) -> HashSet<Key> {
        if let Some(sample) = &self.sample {
            return sample.shown.clone();
        }
        let is_shown =
            |row: &&Fresh| self.reading.as_ref().is_some_and(|reading| reading.has_shown(row.hash));
        page.rows.iter().filter(is_shown).map(|row| row.key.clone()).collect()
    }

    /// Takes a page that was read. Returns whether it counts; if not, it is requested again.
    pub(in super::super) fn look(&mut self, page: &Fetched) -> bool {
        let is_taken = match (&mut self.sample, &mut self.reading) {
            (Some(sample), _) => {
                sample.look(&page.seen);
                sample.shown.extend(page.rows.iter().map(|row| row.key.clone()));
                true
            }
            (None, Some(reading)) => {
                let is_taken = reading.look(&page.seen).is_ok();
                self.load.set(reading.remembered());
                is_taken
            }
            (None, None) => return false,
        };
        if is_taken {
            (self.tries, self.unwritten) = (0, self.unwritten + 1);
            self.problem = None;
            self.answered = page.seen.answered;
        }
        self.advance();
        is_taken
    }

    /// Ends the proof, because a record of the list went back to an older version. Returns its collection, unless all its pages
    /// were read and marked before.
    pub(in super::super) fn went_back(&mut self) -> Option<Collection> {
        // A sample proves nothing.
        if self.sample.is_some() {
            return None;
        }
        if !matches!(self.stage, Stage::Pages | Stage::Asking) {
            // The verdict is reached here, but the next owner would read the pages without a mark again, after the change.
            return self.collection().filter(|_| !self.is_settled()).cloned();
        }
        self.reading.as_mut()?.end(WENT_BACK);
        // A page in flight will be ignored.
        self.advance();
        self.collection().cloned()
    }

    /// Moves on after a request: to the next page, or to the scan for missing records after the last one.
    pub(in super::super) fn advance(&mut self) {
        let is_over = match &self.sample {
            Some(sample) => sample.is_over(),
            None => self.reading.as_ref().is_some_and(Reading::is_over),
        };
        if matches!(self.stage, Stage::Asking | Stage::Pages) {
            self.stage = if is_over { Stage::Compare } else { Stage::Pages };
        }
    }

    /// Handles the failure of a page that concerns only this list or company. Returns the mark of a void pass, if the failure voids it.
    pub(in super::super) fn fails(
        &mut self,
        page: u32,
        error: &api::Error,
        why: &str,
        wait: i64,
        now: i64,
    ) -> Option<Seen> {
        self.advance();
        self.tries += 1;
        let is_refused =
            matches!(error.status, Some(401 | 403)) && !matches!(error.cause, api::Cause::Quota { .. });
        // If a page was read before, the refusal may be temporary, for example during a change of a gateway.
        let is_final = self.marks == 0 && (is_refused || !error.retry().is_retriable());
        let most = if is_final { REFUSED } else { TRIES };
        if self.tries < most {
            self.due = now.saturating_add(wait);
            return None;
        }
        self.tries = 0;
        if let Some(sample) = &mut self.sample {
            sample.fails();
            self.advance();
            return None;
        }
        // The same run may read the known records by id instead.
        let resource = self.collection().and_then(|collection| collection.list.resource());
        let is_made_up_for = resource.is_some_and(|resource| self.run.known.contains(&resource));
        let reading = self.reading.as_mut()?;
        let ReadingStep::Page { size, .. } = reading.want() else { return None };
        let mut kept = None;
        match error.cause {
            api::Cause::NotFound { by } | api::Cause::Gone { by } if is_final => {
                self.is_absent = is_made_up_for;
                self.is_unoffered =
                    resource == Some(AccountingResource::Accounts) && by != api::AnsweredBy::Api;
                reading.end(&format!("not offered: {why}"));
            }
            // Another pass would be refused too, and use up the rate limit.
            _ if is_final && is_refused => reading.end(&format!("refused: {why}")),
            _ => {
                let seen = Seen::unreadable(page, size, why, now);
                kept = reading.look(&seen).is_ok().then_some(seen);
            }
        }
        self.advance();
        kept
    }
}
