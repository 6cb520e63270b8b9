//! The directory of companies: the list of companies, read repeatedly.
//!
//! A company is known while one of the last two readings shows it, and absent if neither does. One reading is not enough, because rows
//! move between pages while the list is read. A reading that is empty, or has anomalous pages, does not count: it does not show which
//! companies are absent. If the provider returns fewer rows per page than requested, the reading requests pages of that size.
//!
//! The list is read at the start, every `companies.refresh.interval.ms`, and soon after a request: a shard has an event of an unknown
//! company, or suspects that the provider went back in a company, which the row of that company may refute.
//!
//! On failure of a page, the page is retried without a limit, also if the provider refuses it. Meanwhile known companies are read as
//! before, events of other companies wait, an error is logged from time to time, and the metric of the list's age grows. A failure of
//! the grant or of the whole provider that no retry can resolve stops the task, and so does a list with more rows than
//! `companies.rows.max`.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use base::retry::{Backoff, BackoffPolicy, ErrorChain};
use model::{Company, CompanyId, SequenceVersion, Version};
use provider::api::{
    self, Accounting, CallOptions, NextPage, Page, PageRequest, PageWalk, Priority, row_hash,
};

use super::{now, refused};
use crate::{
    plugin::{Failure, recorder::Recorder},
    records::schedule::{Companies, CompanyState, ListedVersion},
};

/// Time limit of one page.
const PAGE_LIMIT: Duration = Duration::from_secs(60);
/// Backoff after a page that could not be read.
const COMPANY_LIST_RETRY_BACKOFF: BackoffPolicy =
    BackoffPolicy { first: Duration::from_millis(200), longest: Duration::from_secs(30), total: None };
/// Minimum time between two readings.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// Repeated pages of one reading above which the provider seems to ignore page numbers.
const MAX_REPEATED_PAGES: u64 = 3;
/// Consecutive failures of one page per logged error. The page is retried without a limit.
const FAILURES_PER_ERROR: u32 = 8;
/// Consecutive readings that do not count after which runs no longer wait for one that does.
const MAX_ODD_READINGS: u32 = 2;

/// The companies of the provider, shared by all shards of a task. Clones are cheap and share the readings.
#[derive(Debug, Clone)]
pub(super) struct Directory {
    known: Arc<Mutex<KnownCompanies>>,
    asked: Arc<Notify>,
    every: Duration,
    /// `companies.rows.max`.
    most: usize,
    page_size: u32,
    connector: Arc<str>,
    recorder: Recorder,
}

/// The last readings.
#[derive(Debug, Default)]
struct KnownCompanies {
    /// The last two that count.
    readings: VecDeque<CompanyReading>,
    /// The last one that does not count, unless a later one does.
    odd: Option<OddReading>,
}

/// One reading of the whole list.
#[derive(Debug, Clone)]
struct CompanyReading {
    begun_at: i64,
    companies: ShownCompanies,
}

/// Companies of a list, with the versions it shows.
type ShownCompanies = HashMap<CompanyId, Option<SequenceVersion>>;

/// A reading that does not show which companies are absent.
#[derive(Debug)]
struct OddReading {
    /// Consecutive odd readings, including this one.
    count: u32,
    reading: CompanyReading,
    why: String,
}

/// Which companies there are, for a run that reads their lists.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Listed {
    /// Unknown: the list was not read to its end yet.
    Unread,
    /// All companies.
    Whole(Vec<CompanyId>),
    /// Some companies; and why there may be others.
    Part(Vec<CompanyId>, String),
}

impl Directory {
    pub(super) fn new(
        every: Duration,
        most: usize,
        page_size: u32,
        connector: Arc<str>,
        recorder: Recorder,
    ) -> Self {
        let (known, asked) = (Arc::default(), Arc::default());
        Self { known, asked, every, most, page_size, connector, recorder }
    }

    /// The companies that readings since this time have shown. Companies of earlier readings may be gone. Microseconds since 1970.
    pub(super) fn listed_since(&self, since: i64) -> Listed {
        let known = self.known.lock();
        let mut shown = known.readings.iter();
        let is_after = |reading: &CompanyReading| reading.begun_at >= since;
        let is_whole = !known.readings.is_empty() && known.readings.iter().all(is_after);
        let odd =
            known.odd.as_ref().filter(|odd| odd.count >= MAX_ODD_READINGS && odd.reading.begun_at >= since);
        let all = |readings: &mut dyn Iterator<Item = &CompanyReading>| -> Vec<CompanyId> {
            let all: BTreeSet<&CompanyId> = readings.flat_map(|reading| reading.companies.keys()).collect();
            all.into_iter().cloned().collect()
        };
        // If the list stays odd, no better reading may come for long: the last counted reading alone is enough then.
        let is_whole = is_whole || odd.is_some() && known.readings.back().is_some_and(is_after);
        match odd {
            _ if is_whole => Listed::Whole(all(&mut shown)),
            Some(odd) => Listed::Part(all(&mut shown.chain([&odd.reading])), odd.why.clone()),
            None => Listed::Unread,
        }
    }

    /// The version of a company in the last reading that shows it, odd ones included.
    pub(super) fn shown(&self, company: &CompanyId) -> Option<ListedVersion> {
        let known = self.known.lock();
        let readings = known.readings.iter().chain(known.odd.as_ref().map(|odd| &odd.reading));
        let rows = readings.filter_map(|reading| {
            let version = reading.companies.get(company)?.as_ref()?;
            Some((reading.begun_at, version))
        });
        let (read_at, version) = rows.max_by_key(|(begun_at, _)| *begun_at)?;
        Some(ListedVersion { version: Version::Sequence(version.clone()), read_at })
    }

    /// Reads until it is cancelled.
    ///
    /// # Errors
    /// No retry can help, or the list has too many rows.
    pub(super) async fn run(self, accounting: Accounting, cancel: CancellationToken) -> Result<(), Failure> {
        // Starts the age of the list in the metrics.
        self.recorder.companies_read();
        cancel.run_until_cancelled(self.follow(&accounting)).await.unwrap_or(Ok(()))
    }

    async fn follow(&self, accounting: &Accounting) -> Result<(), Failure> {
        loop {
            let begun = Instant::now();
            self.read(accounting).await?;
            // Requests for unknown companies must not keep a long list being read all the time.
            let least = begun.elapsed().saturating_mul(2).max(MIN_INTERVAL);
            tokio::time::sleep(least).await;
            tokio::select! {
                () = self.asked.notified() => {}
                () = tokio::time::sleep(self.every) => {}
            }
        }
    }

    /// Reads the whole list once. The reading is odd if it is empty or has repeated or short pages.
    async fn read(&self, accounting: &Accounting) -> Result<(), Failure> {
        let mut reading = CompanyReading { begun_at: now(), companies: ShownCompanies::new() };
        let (mut seen, mut walk, mut number) = (HashSet::new(), PageWalk::default(), 1);
        let mut size = self.page_size;
        loop {
            let page = self.page(accounting, PageRequest { number, size }, &reading).await?;
            let shown = page.rows.iter().filter_map(|row| {
                let id = CompanyId::new(row.correlation_id.as_deref()?).ok()?;
                let version = row.sequence_version.as_deref();
                Some((id, version.and_then(|version| SequenceVersion::parse(version).ok())))
            });
            reading.companies.extend(shown);
            self.check_size(reading.companies.len().max(seen.len()))?;
            let rows = u32::try_from(page.rows.len()).unwrap_or(u32::MAX);
            if number == 1 && (1..size).contains(&rows) {
                // The page is the whole list, or the provider limits the page size: the next page of that size decides.
                let behind = self.page(accounting, PageRequest { number: 2, size: rows }, &reading).await?;
                if behind.rows.is_empty() {
                    self.took(reading);
                    return Ok(());
                }
                (seen, walk, size) = (HashSet::new(), PageWalk::default(), rows);
                continue;
            }
            let mut is_new =
                |row: &Company| row.correlation_id.as_deref().is_none_or(|id| seen.insert(row_hash(id)));
            match walk.observe(&page, &mut is_new).next {
                NextPage::Page(next) | NextPage::Again(next) => number = next,
                NextPage::End | NextPage::TooLong => {
                    let odd = walk.oddities;
                    if reading.companies.is_empty() {
                        self.is_odd(reading, "it is empty".to_owned());
                    } else if odd.repeated > 0 || odd.clamped > 0 {
                        let why = format!(
                            "{} of its pages repeat another, {} are short",
                            odd.repeated, odd.clamped
                        );
                        self.is_odd(reading, why);
                    } else {
                        self.took(reading);
                    }
                    return Ok(());
                }
            }
            if walk.oddities.repeated > MAX_REPEATED_PAGES {
                self.is_odd(reading, "it repeats itself: the provider ignores page numbers".to_owned());
                return Ok(());
            }
        }
    }

    /// Fails if the list has more rows than `companies.rows.max`.
    fn check_size(&self, rows: usize) -> Result<(), Failure> {
        if rows <= self.most {
            return Ok(());
        }
        let message = format!("the list of companies has more rows than companies.rows.max ({})", self.most);
        let remedy = "check that provider.base.url is the provider's; if it is, raise companies.rows.max";
        Err(Failure::permanent("TooManyCompanies", message, remedy))
    }

    /// Reads a page, with retries.
    async fn page(
        &self,
        accounting: &Accounting,
        page: PageRequest,
        reading: &CompanyReading,
    ) -> Result<Page<Company>, Failure> {
        let mut backoff = Backoff::new(COMPANY_LIST_RETRY_BACKOFF, reading.begun_at.unsigned_abs());
        let mut failures = 0_u32;
        loop {
            let read = accounting.companies(page, &CallOptions::within(Priority::Repair, PAGE_LIMIT)).await;
            let error = match read {
                Ok(page) => return Ok(page),
                Err(error) => error,
            };
            // Without the list, events of unknown companies cannot be settled, so a failure of the page alone is always retried.
            let verdict = match error.reach() {
                api::Reach::Record | api::Reach::Company => {
                    failures += 1;
                    if failures.is_multiple_of(FAILURES_PER_ERROR) {
                        tracing::error!(connector = &*self.connector, page = page.number, failures, error = %ErrorChain(&error),
                            "cannot read the list of companies; events of companies that it has not shown wait, others are processed; retrying");
                        let why = format!("page {} cannot be read: {}", page.number, ErrorChain(&error));
                        self.is_odd(reading.clone(), why);
                    }
                    base::retry::Retry::Later
                }
                api::Reach::Grant | api::Reach::Everything => error.retry(),
            };
            let Some(wait) = backoff.next_wait(verdict) else { return Err(refused(&error)) };
            tracing::warn!(connector = &*self.connector, error = %ErrorChain(&error), ?wait, "cannot read a page of the list of companies; retrying");
            tokio::time::sleep(wait).await;
        }
    }

    fn took(&self, reading: CompanyReading) {
        self.recorder.companies_read();
        let mut known = self.known.lock();
        known.odd = None;
        known.readings.push_back(reading);
        if known.readings.len() > 2 {
            known.readings.pop_front();
        }
    }

    fn is_odd(&self, reading: CompanyReading, why: String) {
        let found = reading.companies.len();
        tracing::warn!(
            connector = &*self.connector,
            found,
            why,
            "the list of companies is incomplete or inconsistent; companies that it does not show do not count as absent"
        );
        let mut known = self.known.lock();
        let count = known.odd.as_ref().map_or(0, |odd| odd.count).saturating_add(1);
        known.odd = Some(OddReading { count, reading, why });
    }
}

impl Companies for Directory {
    fn state(&self, company: &CompanyId) -> CompanyState {
        let readings = &self.known.lock().readings;
        if readings.iter().any(|reading| reading.companies.contains_key(company)) {
            return CompanyState::Known;
        }
        match (readings.front(), readings.len()) {
            (Some(first), 2) => CompanyState::Absent { since: first.begun_at },
            _ => CompanyState::Unread,
        }
    }

    fn ask(&self) {
        self.asked.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(readings: &[(i64, &[&str])]) -> Directory {
        let recorder = Recorder::default();
        let directory = Directory::new(Duration::from_secs(60), 3, 100, "records".into(), recorder);
        for (begun_at, ids) in readings {
            directory.took(CompanyReading { begun_at: *begun_at, companies: companies(ids) });
        }
        directory
    }

    #[test]
    fn company_is_absent_after_two_readings_without_it() {
        let company = CompanyId::new("c").unwrap();
        for (readings, standing) in [
            (&[][..], CompanyState::Unread),
            (&[(5, &["c"][..])][..], CompanyState::Known),
            (&[(5, &["d"][..])], CompanyState::Unread),
            (&[(5, &["c"][..]), (9, &["d"][..])], CompanyState::Known),
            (&[(5, &["d"][..]), (9, &["c"][..])], CompanyState::Known),
            (&[(5, &["d"][..]), (9, &["d"][..])], CompanyState::Absent { since: 5 }),
        ] {
            assert_eq!(directory(readings).state(&company), standing, "{readings:?}");
        }
    }

    #[test]
    fn list_that_is_too_long_fails_the_task() {
        let directory = directory(&[]);

        assert!(directory.check_size(3).is_ok());
        let failure = directory.check_size(4).unwrap_err();

        assert_eq!((failure.kind, failure.retry), ("TooManyCompanies", base::retry::Retry::Never));
        assert!(failure.message.contains("companies.rows.max") && failure.remedy.is_some());
    }

    fn companies(ids: &[&str]) -> ShownCompanies {
        ids.iter().map(|id| (CompanyId::new(*id).unwrap(), None)).collect()
    }

    #[test]
    fn shown_returns_the_last_row_with_the_start_of_its_reading() {
        let (directory, company) = (directory(&[(3, &["c"])]), CompanyId::new("c").unwrap());
        let reading = |begun_at, version: &str| {
            let companies = ShownCompanies::from([(company.clone(), SequenceVersion::parse(version).ok())]);
            CompanyReading { begun_at, companies }
        };
        let expected =
            |version: &str, read_at| Some(ListedVersion { version: version.parse().unwrap(), read_at });
        assert_eq!(directory.shown(&company), None, "its row had no version");

        directory.took(reading(5, "7"));
        assert_eq!(directory.shown(&company), expected("7", 5));
        directory.is_odd(reading(6, "8"), "odd".to_owned());
        assert_eq!(directory.shown(&company), expected("8", 6));
        directory.took(reading(9, "4"));
        assert_eq!(directory.shown(&company), expected("4", 9));

        // A reading without the company does not change its row.
        directory.took(CompanyReading { begun_at: 12, companies: companies(&["d"]) });
        assert_eq!(directory.shown(&company), expected("4", 9));
    }

    #[test]
    fn odd_list_does_not_count_as_read() {
        let directory = directory(&[]);

        directory.is_odd(CompanyReading { begun_at: 6, companies: companies(&[]) }, "it is empty".to_owned());
        assert_eq!(directory.recorder.companies_age(Instant::now()), None);

        directory.took(CompanyReading { begun_at: 7, companies: companies(&["a"]) });
        assert!(directory.recorder.companies_age(Instant::now()).is_some());
    }

    #[test]
    fn two_odd_readings_in_a_row_end_the_wait() {
        let listed =
            |ids: &[&str]| -> Vec<CompanyId> { ids.iter().map(|id| CompanyId::new(*id).unwrap()).collect() };
        let odd = |directory: &Directory, begun_at, ids: &[&str]| {
            directory.is_odd(CompanyReading { begun_at, companies: companies(ids) }, "odd".to_owned());
        };
        let directory = directory(&[(5, &["a"])]);
        assert_eq!(directory.listed_since(5), Listed::Whole(listed(&["a"])));
        assert_eq!(directory.listed_since(6), Listed::Unread);

        odd(&directory, 7, &["b"]);
        assert_eq!(directory.listed_since(6), Listed::Unread, "one odd reading may be chance");
        odd(&directory, 8, &["c"]);
        assert_eq!(directory.listed_since(6), Listed::Part(listed(&["a", "c"]), "odd".to_owned()));
        assert_eq!(directory.listed_since(9), Listed::Unread, "it began before");
        assert_eq!(directory.listed_since(5), Listed::Whole(listed(&["a"])));

        directory.took(CompanyReading { begun_at: 9, companies: companies(&["d"]) });
        odd(&directory, 10, &["e"]);
        assert_eq!(directory.listed_since(5), Listed::Whole(listed(&["a", "d"])));
        assert_eq!(directory.listed_since(6), Listed::Unread, "a may be gone since");
        odd(&directory, 10, &["e"]);
        assert_eq!(
            directory.listed_since(6),
            Listed::Whole(listed(&["a", "d"])),
            "one counted reading is enough while the list is odd"
        );
        directory.took(CompanyReading { begun_at: 11, companies: companies(&["d"]) });
        assert_eq!(directory.listed_since(6), Listed::Whole(listed(&["d"])));
        assert_eq!(directory.listed_since(10), Listed::Unread);
    }
}
