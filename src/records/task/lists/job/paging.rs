//! Pages of a list: which one to request next, and what follows from one that was read or failed.

use std::{collections::HashSet, sync::Arc};

use model::{AccountingResource, Key};
use provider::api;

use super::{
    super::pages::{Asked, Fetched, Fresh},
    Job, Stage, TRIES,
};
use crate::records::{
    proof::{ReadingStep, Seen},
    task::state::Collection,
};

/// Attempts to read a first page if its failure cannot be resolved by a retry.
const REFUSED: u32 = 2;

impl Job {
    /// The page to request now, if any.
    pub(in super::super) fn wants_page(&self, now: i64) -> Option<Asked> {
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
    pub(in super::super) fn shown_of(&self, page: &Fetched) -> HashSet<Key> {
        if let Some(sample) = &self.proof.sample {
            return sample.shown.clone();
        }
        let is_shown =
            |row: &&Fresh| self.proof.reading.as_ref().is_some_and(|reading| reading.has_shown(row.hash));
        page.rows.iter().filter(is_shown).map(|row| row.key.clone()).collect()
    }

    /// Whether a page was requested before the provider went back: its rows may be of the time before, so newer ones are read by id.
    pub(in super::super) fn is_outdated(&self, page: &Fetched) -> bool {
        self.proof.void_since.is_some_and(|since| page.seen.answer.sent <= since)
    }

    /// Takes a page that was read. Returns whether it counts; if not, it is requested again.
    pub(in super::super) fn look(&mut self, page: &Fetched) -> bool {
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

    /// Notes that the provider went back in a record of the list. While pages are read, this voids the proof; the rest is still read, to
    /// publish its rows. After the verdict the proof stands. But the next owner would read pages without a mark again, after the change.
    /// Returns the list if a mark has to say that nothing is proved.
    pub(in super::super) fn went_back(&mut self, now: i64) -> Option<Collection> {
        // A sample proves nothing.
        if self.proof.sample.is_some() {
            return None;
        }
        if !matches!(self.stage, Stage::Pages | Stage::Asking) {
            // The verdict is reached here, but the next owner would read the pages without a mark again, after the change.
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

    /// Moves on after a request: to the next page, or to the scan for missing records after the last one.
    pub(in super::super) fn advance(&mut self) {
        let is_over = match &self.proof.sample {
            Some(sample) => sample.is_over(),
            None => self.proof.reading.as_ref().is_some_and(|reading| reading.is_over()),
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
