//! One list that is read, from its first page to its certificate.
//!
//! ```text
//! pages ─▶ verdict ─▶ what is known and was not shown ─▶ read by id, one by one ─▶ certificate
//!   ▲ │ void: another pass                └ too much of it: waits for a person
//!   └─┘
//! ```

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
};

use bytes::Bytes;

use super::{
    super::state::{self, Again, Collection, Counts, Cursor},
    comparing::Comparing,
    pages::{Asked, Fetched, Fresh},
    sample::Sample,
};
use crate::{
    api::{self, Lane, row_hash},
    enrich::Subject,
    model::{AccountingResource, Certificate, CompanyId, Key, List, ListProgress, Method, RecordId, Run},
    snapshot::{Reading, Seen, Want},
};

/// Ids of vanished records that a certificate names.
const NAMED: usize = 100;
/// How often a page, or a record, is tried that cannot be read for its own sake.
pub(super) const TRIES: u32 = 8;
/// The same where the provider refuses it for good.
const REFUSED: u32 = 2;
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
    /// Nothing of it is asked for before.
    pub(super) due: i64,
    /// Parts of it that are not committed.
    pub(super) unwritten: usize,
    /// A filter of its own, for payroll.
    pub(super) filter: Option<String>,
    /// Records that its rows have asked for, and that are not read yet.
    pub(super) asked_for: Vec<Subject>,
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

/// Known records that were not shown.
#[derive(Debug, Default)]
pub(super) struct Missing {
    pub(super) waiting: VecDeque<(CompanyId, RecordId, u32)>,
    pub(super) open: usize,
    pub(super) vanished: Vec<String>,
    pub(super) vanished_count: u64,
    pub(super) unlisted: u64,
    pub(super) unreadable: u64,
    /// Where to go on once these are read, if there are more.
    pub(super) next: Option<String>,
}

/// What a read by id of a missing record says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// It is there.
    There(Bytes),
    /// The API says that it is not.
    Gone,
    /// Nobody knows.
    Unreadable,
    /// It is asked for once more.
    Again,
}

impl Missing {
    pub(super) fn is_over(&self) -> bool {
        self.waiting.is_empty() && self.open == 0
    }

    /// It is not there any more.
    pub(super) fn gone(&mut self, id: &RecordId) {
        self.vanished_count += 1;
        if self.vanished.len() < NAMED {
            self.vanished.push(id.as_str().to_owned());
        }
    }

    /// A read has ended.
    pub(super) fn count(&mut self, company: CompanyId, id: RecordId, tries: u32, answer: &Answer) {
        self.open = self.open.saturating_sub(1);
        match answer {
            Answer::There(_) => self.unlisted += 1,
            Answer::Gone => self.gone(&id),
            Answer::Unreadable => self.unreadable += 1,
            Answer::Again => self.waiting.push_back((company, id, tries + 1)),
        }
    }
}

/// What a failed read of one record means; whether it concerns more than that is the caller's to see.
pub(super) fn answer(read: Result<Bytes, &api::Error>, tries: u32) -> Answer {
    let error = match read {
        Ok(json) => return Answer::There(json),
        Err(error) => error,
    };
    let by_api = api::By::Api;
    match &error.cause {
        api::Cause::NotFound { by } | api::Cause::Gone { by } if *by == by_api => Answer::Gone,
        _ if error.retry().is_retriable() && tries < TRIES => Answer::Again,
        _ => Answer::Unreadable,
    }
}

impl Job {
    /// Before anything of it is read.
    pub(super) fn new(run: Arc<Run>, what: What, now: i64) -> Self {
        Self {
            run,
            what,
            reading: None,
            marks: 0,
            started_at: now,
            counts: Counts::default(),
            keeps_counts: false,
            has_counted: false,
            stage: Stage::Compare,
            tries: 0,
            due: i64::MIN,
            unwritten: 0,
            filter: None,
            asked_for: Vec::new(),
            answered: i64::MIN,
            cursor: Cursor::default(),
            comparing: None,
            sample: None,
            is_absent: false,
        }
    }

    pub(super) fn lane(&self) -> Lane {
        match self.run.kind {
            crate::model::RunKind::Repair => Lane::Repair,
            _ => Lane::Snapshot,
        }
    }

    pub(super) fn collection(&self) -> Option<&Collection> {
        match &self.what {
            What::List(collection) => Some(collection),
            What::Known(_) => None,
        }
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

    /// So many records were written, and so many rows cannot be used.
    pub(super) fn count(&mut self, published: u64, unusable: u64) {
        self.counts.published += published;
        self.counts.unusable += unusable;
        self.has_counted |= published + unusable > 0;
    }

    /// A row that it has counted as published was not taken.
    pub(super) fn refuse(&mut self) {
        self.counts.published = self.counts.published.saturating_sub(1);
        self.count(0, 1);
    }

    /// What became of its rows, if that is to be kept now.
    pub(super) fn take_counts(&mut self, shard: i32) -> Option<(Key, Bytes)> {
        let key = self.collection()?.page(shard, 0);
        let is_new = std::mem::take(&mut self.has_counted);
        self.keeps_counts |= is_new;
        is_new.then(|| (key, state::json(&self.counts)))
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

    /// The page to ask for now, if there is one.
    pub(super) fn wants_page(&self, now: i64) -> Option<Asked> {
        let Collection { list, company, .. } = self.collection()?;
        if !matches!(self.stage, Stage::Pages) || self.due > now || self.unwritten > 0 {
            return None;
        }
        let want = match &self.sample {
            Some(sample) => {
                let (number, size) = sample.want()?;
                Want::Page { number, size, after: None, sent_after: i64::MIN }
            }
            None => self.reading.as_ref()?.want(),
        };
        let Want::Page { number, size, after, sent_after } = want else { return None };
        let filter = after.map(|after| format!("companyCode gt {after}")).or_else(|| self.filter.clone());
        Some(Asked {
            list: *list,
            company: company.clone(),
            number,
            size,
            filter,
            // What another run has read may be from before this one was asked for.
            sent_after: sent_after.max(self.run.requested_at),
            lane: self.lane(),
        })
    }

    /// Rows of a page that one before has shown.
    pub(super) fn shown_of(&self, page: &Fetched) -> HashSet<Key> {
        if let Some(sample) = &self.sample {
            return sample.shown.clone();
        }
        let is_shown = |row: &&Fresh| {
            let id = row.value.record_id();
            self.reading.as_ref().zip(id).is_some_and(|(reading, id)| Self::shows(reading, &id))
        };
        page.rows.iter().filter(is_shown).map(|row| row.key.clone()).collect()
    }

    /// Looks at a page that was read. Whether it is one that counts: one that does not is asked for again.
    pub(super) fn look(&mut self, page: &Fetched) -> bool {
        let is_taken = match (&mut self.sample, &mut self.reading) {
            (Some(sample), _) => {
                sample.look(&page.seen);
                sample.shown.extend(page.rows.iter().map(|row| row.key.clone()));
                true
            }
            (None, Some(reading)) => reading.look(&page.seen).is_ok(),
            (None, None) => return false,
        };
        if is_taken {
            (self.tries, self.unwritten) = (0, self.unwritten + 1);
            self.answered = page.seen.answered;
        }
        self.goes_on();
        is_taken
    }

    /// The provider went back in a record of it, so that nothing can be counted any more. What is kept of that, where it matters.
    pub(super) fn went_back(&mut self, now: i64) -> Option<Seen> {
        // A sample proves nothing anyway.
        if !matches!(self.stage, Stage::Pages | Stage::Asking) || self.sample.is_some() {
            return None;
        }
        let seen = Seen::end(WENT_BACK, now);
        self.reading.as_mut()?.look(&seen).ok()?;
        self.marks += 1;
        // What was asked for comes, and is of no use.
        self.goes_on();
        Some(seen)
    }

    /// What was asked for has come, or will not: the next page, or all that follows the last.
    pub(super) fn goes_on(&mut self) {
        let is_over = match &self.sample {
            Some(sample) => sample.is_over(),
            None => self.reading.as_ref().is_some_and(|reading| reading.verdict().is_some()),
        };
        if matches!(self.stage, Stage::Asking | Stage::Pages) {
            self.stage = if is_over { Stage::Compare } else { Stage::Pages };
        }
    }

    /// A page cannot be read, for its own or its company's sake.
    /// What is kept of that, where it voids the pass.
    pub(super) fn fails(
        &mut self,
        page: u32,
        error: &api::Error,
        why: &str,
        wait: i64,
        now: i64,
    ) -> Option<Seen> {
        self.goes_on();
        self.tries += 1;
        let is_refused =
            matches!(error.status, Some(401 | 403)) && !matches!(error.cause, api::Cause::Quota { .. });
        // What has answered before is not refused for good: whoever stands between may be changed just now.
        let is_final = self.marks == 0 && (is_refused || !error.retry().is_retriable());
        let most = if is_final { REFUSED } else { TRIES };
        if self.tries < most {
            self.due = now.saturating_add(wait);
            return None;
        }
        self.tries = 0;
        if let Some(sample) = &mut self.sample {
            sample.fails();
            self.goes_on();
            return None;
        }
        // Its known records are read by id in the same run: of others nothing stands in for the list.
        let resource = self.collection().and_then(|collection| collection.list.resource());
        let is_made_up_for = resource.is_some_and(|resource| self.run.known.contains(&resource));
        let reading = self.reading.as_mut()?;
        let Want::Page { size, .. } = reading.want() else { return None };
        let mut kept = None;
        if !is_final {
            let seen = Seen::unreadable(page, size, why, now);
            kept = reading.look(&seen).is_ok().then_some(seen);
        } else if matches!(error.cause, api::Cause::NotFound { .. } | api::Cause::Gone { .. }) {
            self.is_absent = is_made_up_for;
            reading.end(&format!("not offered: {why}"));
        } else if is_refused {
            // Another pass would be refused as well, and makes the provider answer us less.
            reading.end(&format!("refused: {why}"));
        } else {
            let seen = Seen::unreadable(page, size, why, now);
            kept = reading.look(&seen).is_ok().then_some(seen);
        }
        self.goes_on();
        kept
    }

    /// Whether a record was on a page.
    pub(super) fn shows(reading: &Reading, id: &str) -> bool {
        reading.has_shown(row_hash(id))
    }

    /// What was proved.
    pub(super) fn certificate(
        &self,
        connector: &str,
        shard: i32,
        is_heard: bool,
        now: i64,
    ) -> Option<Certificate> {
        let Collection { run, list, company, .. } = self.collection()?;
        let (reading, begun) = (self.reading.as_ref()?, self.started_at);
        let mut certificate = match company {
            Some(company) => {
                Certificate::of_company(connector, run.clone(), list.name(), company.clone(), begun)
            }
            None => Certificate::of_shard(connector, run.clone(), list.name(), shard, begun),
        };
        reading.verdict()?.fill(&mut certificate);
        certificate.ended_at = now;
        certificate.filter.clone_from(&self.filter);
        let Counts { published, unusable } = self.counts;
        if unusable > 0 && certificate.certified {
            (certificate.certified, certificate.method) = (false, Method::None);
            certificate.reason = Some(format!("{unusable} rows cannot be used: see the dead letters"));
        }
        certificate.published = i64::try_from(published).unwrap_or(i64::MAX);
        certificate.requested_by = Some(self.run.requested_by.clone());
        certificate.stream = Some(if is_heard { "verified" } else { "unverified" }.to_owned());
        if let Stage::Missing(missing) = &self.stage {
            let number = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
            certificate.vanished_count = number(missing.vanished_count);
            certificate.vanished.clone_from(&missing.vanished);
            certificate.unlisted = number(missing.unlisted);
            certificate.unreadable = number(missing.unreadable);
        }
        Some(certificate)
    }

    /// How far it is, for people.
    pub(super) fn progress(&self) -> Option<ListProgress> {
        let Collection { list, company, .. } = self.collection()?;
        let (pass, pages, rows, of) = self.reading.as_ref()?.progress();
        Some(ListProgress { company: company.clone(), list: *list, pass, pages, rows, of })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::List,
        snapshot::{Row, Settings, Wish},
    };

    fn run() -> Arc<Run> {
        let run = serde_json::json!({
            "connector": "records", "id": "r", "kind": "repair", "lists": ["customers"], "known": ["charges"],
            "requestedBy": "test", "requestedAt": 5,
        });
        Arc::new(serde_json::from_value(run).unwrap())
    }

    fn list() -> Job {
        let run = run();
        let company = CompanyId::new("c").ok();
        let collection = Collection { run: run.id.clone(), asked_at: 5, list: List::Customers, company };
        let settings = Settings { page_size: 2, most_passes: 4, method: Wish::Counting, clock_skew: 0 };
        let reading = Some(Reading::new(settings));
        Job { reading, stage: Stage::Pages, ..Job::new(run, What::List(collection), 7) }
    }

    fn page(asked: &Asked, ids: &[u128]) -> Fetched {
        let rows = ids.iter().map(|id| Row { id: *id, version: 1, changed_at: None }).collect();
        let sent = asked.sent_after + 1;
        let seen = Seen {
            rows,
            problem: None,
            content: u128::from(asked.number),
            answered: sent + 1,
            ..Seen::unreadable(asked.number, asked.size, "", sent)
        };
        Fetched::without_rows(seen)
    }

    #[test]
    fn the_next_page_is_asked_for_once_the_one_before_is_committed() {
        let mut job = list();
        let first = job.wants_page(10).unwrap();
        job.stage = Stage::Asking;
        assert!(job.look(&page(&first, &[1, 2])));

        assert_eq!((job.unwritten, job.wants_page(10)), (1, None), "a crash now costs one page");

        job.unwritten = 0;
        assert_eq!(job.wants_page(10).map(|asked| asked.number), Some(2));
    }

    #[test]
    fn a_list_whose_provider_went_back_is_over_and_a_page_that_comes_then_is_of_no_use() {
        let mut job = list();
        let first = job.wants_page(10).unwrap();
        job.stage = Stage::Asking;

        let kept = job.went_back(11).unwrap();

        assert!(kept.ends && job.marks == 1 && matches!(job.stage, Stage::Compare));
        assert!(!job.look(&page(&first, &[1, 2])) && job.went_back(12).is_none());
        let verdict = job.reading.as_ref().and_then(Reading::verdict).unwrap();
        assert_eq!((verdict.certified, verdict.reason.as_deref()), (false, Some(WENT_BACK)));
    }

    #[test]
    fn what_is_refused_is_so_for_good_only_where_nothing_of_it_was_read() {
        let endpoint = api::Endpoint { method: "GET", path: "accounting/api/customers".into() };
        let cause = || api::Cause::NotFound { by: api::By::Gateway };
        let error = api::Error {
            endpoint,
            status: Some(404),
            cause: cause(),
            excerpt: None,
            acted: api::Acted::No,
            in_company: true,
        };
        for (marks, is_over) in [(0, true), (1, false)] {
            let mut job = Job { marks, ..list() };
            let kept: Vec<Seen> =
                (0..TRIES).filter_map(|at| job.fails(1, &error, "why", 1, i64::from(at))).collect();

            assert_eq!(job.reading.as_ref().unwrap().verdict().is_some(), is_over, "{marks}");
            assert_eq!(kept.len(), usize::from(!is_over), "that the pass is void is kept");
        }
    }

    #[test]
    fn what_became_of_rows_is_kept_once_it_has_changed_and_forgotten_with_the_pages() {
        let mut job = list();
        job.marks = 1;
        let collection = job.collection().unwrap().clone();
        let [counts, page] = [0, 1].map(|n| collection.page(3, n));
        job.count(0, 0);
        assert_eq!((job.take_counts(3), job.kept(3)), (None, vec![page.clone()]));

        job.count(2, 1);
        let (key, value) = job.take_counts(3).unwrap();

        assert_eq!((&key, &value[..]), (&counts, &br#"{"published":2,"unusable":1}"#[..]));
        assert_eq!((job.take_counts(3), job.kept(3)), (None, vec![counts, page]));
        job.count(1, 0);
        assert!(job.take_counts(3).is_some());
    }

    #[test]
    fn known_records_are_read_part_by_part_and_it_is_kept_how_far() {
        let mut job = Job::new(run(), What::Known(AccountingResource::Charges), 7);
        assert_eq!(job.again(), Some((job.run.id.clone(), 5, AccountingResource::Charges)));
        let next = Some("accounting.charges/c/1".to_owned());
        job.stage = Stage::Missing(Missing { next: next.clone(), unreadable: 3, ..Missing::default() });

        let cursor = job.take_cursor().unwrap();

        assert_eq!(cursor, Cursor { after: next, vanished: 0, unreadable: 3, is_over: false });
        assert!(matches!(job.stage, Stage::Compare) && job.cursor == cursor);
        // The last part has nothing behind it.
        job.stage = Stage::Missing(Missing::default());
        assert_eq!(job.take_cursor(), None);
    }
}
