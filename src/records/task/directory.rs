//! The directory of companies: reads the list of companies repeatedly, and proves it like any other list
//! ([`proof`](crate::records::proof)).
//!
//! A company exists if the newest proved reading shows it, or an unproved reading after that. It is absent if neither does. Before the
//! first proved reading no company counts as absent. An empty list proves nothing here.
//!
//! The list is read at the start, every `companies.refresh.interval.ms`, and soon after an event for an unknown company or a suspected
//! regression of a company: its row confirms or refutes that.
//!
//! If a single page fails, even with a refusal, it is retried without end: known companies are read as before and events of others wait.
//! The log and the age of the list show it. A failure of everything ends the task, and so does a list with more rows than
//! `companies.rows.max`.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use base::retry::{Backoff, BackoffPolicy, ErrorChain, Retry};
use model::{CompanyId, SequenceVersion, Version};
use provider::api;

use super::{
    Shared,
    lists::{Fetched, PASSES},
    micros, now, refused,
};
use crate::{
    plugin::{Failure, recorder::Recorder},
    records::{
        proof::{Reading, ReadingStep, Settings},
        schedule::{Companies, CompanyState, ListedVersion},
    },
};

/// Backoff after a page that could not be read.
const COMPANY_LIST_RETRY_BACKOFF: BackoffPolicy =
    BackoffPolicy { first: Duration::from_millis(200), longest: Duration::from_secs(30), total: None };
/// Shortest time between two readings.
const SOON: Duration = Duration::from_secs(1);
/// Consecutive failures of one page, some minutes, after which the list counts as unproved; retries continue.
const MAX_PAGE_FAILURES: u32 = 12;

/// The directory of companies. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Directory {
    known: Arc<Mutex<KnownCompanies>>,
    asked: Arc<Notify>,
    every: Duration,
    /// `companies.rows.max`.
    most: usize,
    connector: Arc<str>,
    recorder: Recorder,
}

/// The newest readings.
#[derive(Debug, Default)]
struct KnownCompanies {
    /// The newest proved reading.
    proved: Option<CompanyReading>,
    /// A newer one that is not proved, and why.
    unproved: Option<(CompanyReading, String)>,
}

/// One reading of the whole list.
#[derive(Debug, Clone)]
struct CompanyReading {
    begun_at: i64,
    companies: Shown,
}

/// Companies of a reading, with the versions that their rows show.
type Shown = HashMap<CompanyId, Option<SequenceVersion>>;

/// The companies whose lists a run reads.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Listed {
    /// No reading that is new enough has ended yet.
    Unread,
    /// All of them.
    Whole(Vec<CompanyId>),
    /// At least these, and why the reading is not proved.
    Part(Vec<CompanyId>, String),
}

impl Directory {
    pub(super) fn new(every: Duration, most: usize, connector: Arc<str>, recorder: Recorder) -> Self {
        Self { known: Arc::default(), asked: Arc::default(), every, most, connector, recorder }
    }

    /// Companies of a reading that began at `since` or later; older readings may show deleted companies.
    pub(super) fn listed_since(&self, since: i64) -> Listed {
        let known = self.known.lock();
        let ids = |readings: &[&CompanyReading]| -> Vec<CompanyId> {
            let all: BTreeSet<&CompanyId> = readings.iter().flat_map(|one| one.companies.keys()).collect();
            all.into_iter().cloned().collect()
        };
        match (&known.proved, &known.unproved) {
            (Some(proved), _) if proved.begun_at >= since => Listed::Whole(ids(&[proved])),
            // Together with the proved reading before it, it has every known company.
            (before, Some((reading, why))) if reading.begun_at >= since => {
                let both: Vec<&CompanyReading> = before.iter().chain([reading]).collect();
                Listed::Part(ids(&both), why.clone())
            }
            _ => Listed::Unread,
        }
    }

    /// The version in the newest row of a company, from a proved reading or not.
    pub(super) fn shown(&self, company: &CompanyId) -> Option<ListedVersion> {
        let known = self.known.lock();
        let unproved = known.unproved.iter().map(|(reading, _)| reading);
        let (read_at, version) = unproved.chain(&known.proved).find_map(|reading| {
            let version = reading.companies.get(company)?.as_ref()?;
            Some((reading.begun_at, version))
        })?;
        Some(ListedVersion { version: Version::Sequence(version.clone()), read_at })
    }

    /// Reads the list until it is canceled.
    ///
    /// # Errors
    /// An operator has to act, or the list has too many rows.
    pub(super) async fn run(self, shared: Arc<Shared>, cancel: CancellationToken) -> Result<(), Failure> {
        // From here on the metric shows the age of the list.
        self.recorder.companies_read();
        cancel.run_until_cancelled(self.follow(&shared)).await.unwrap_or(Ok(()))
    }

    async fn follow(&self, shared: &Shared) -> Result<(), Failure> {
        loop {
            let begun = Instant::now();
            self.read(shared).await?;
            // Events of unknown companies must not cause a long list to be read all the time.
            let least = begun.elapsed().saturating_mul(2).max(SOON);
            tokio::time::sleep(least).await;
            tokio::select! {
                () = self.asked.notified() => {}
                () = tokio::time::sleep(self.every) => {}
            }
        }
    }

    /// Reads the list once.
    async fn read(&self, shared: &Shared) -> Result<(), Failure> {
        let mut reading = Reading::new(Settings {
            page_size: shared.source.snapshot.page_size,
            most_passes: PASSES,
            filter: None,
            clock_skew: micros(shared.task.tools.worker.clock_skew_max),
        });
        let mut shown = CompanyReading { begun_at: now(), companies: Shown::new() };
        while let ReadingStep::Page { number, size, sent_after, .. } = reading.want() {
            let page = self.page(shared, (number, size, sent_after), &shown).await?;
            shown.companies.extend(page.companies());
            self.check_size(shown.companies.len())?;
            if let Err(why) = reading.look(&page.seen) {
                reading.end(&why);
            }
        }
        match reading.unproved() {
            // An account without companies has no events: more likely the login cannot reach them now.
            _ if shown.companies.is_empty() => self.store_unproved(shown, "it is empty".to_owned()),
            None => self.store_proved(shown),
            Some(why) => self.store_unproved(shown, why.to_owned()),
        }
        Ok(())
    }

    /// Fails if the list has more rows than may be kept in memory.
    fn check_size(&self, rows: usize) -> Result<(), Failure> {
        if rows <= self.most {
            return Ok(());
        }
        let message = format!("the list of companies has more rows than companies.rows.max ({})", self.most);
        let remedy = "check that provider.base.url is the provider's; if it is, raise companies.rows.max";
        Err(Failure::permanent("TooManyCompanies", message, remedy))
    }

    /// Reads a page, with as many retries as it takes.
    async fn page(
        &self,
        shared: &Shared,
        (number, size, sent_after): (u32, u32, i64),
        shown: &CompanyReading,
    ) -> Result<Fetched, Failure> {
        let mut backoff = Backoff::new(COMPANY_LIST_RETRY_BACKOFF, shown.begun_at.unsigned_abs());
        let mut failures = 0_u32;
        loop {
            let error = match shared.lists.pages.companies(number, size, sent_after).await {
                Ok(page) => return Ok(page),
                Err(error) => error,
            };
            // A page that alone cannot be read is retried: without the list, unknown companies cannot be distinguished from absent ones.
            let verdict = match error.reach() {
                api::Reach::Record | api::Reach::Company => {
                    failures += 1;
                    if failures.is_multiple_of(MAX_PAGE_FAILURES) {
                        tracing::error!(connector = &*self.connector, page = number, failures, error = %ErrorChain(&error),
                            "the list of companies cannot be read: events of companies that it has not shown wait, others flow on");
                        let why = format!("page {number} cannot be read: {}", ErrorChain(&error));
                        self.store_unproved(shown.clone(), why);
                    }
                    Retry::Later
                }
                api::Reach::Grant | api::Reach::Everything => error.retry(),
            };
            let Some(wait) = backoff.next_wait(verdict) else { return Err(refused(&error)) };
            tracing::warn!(connector = &*self.connector, error = %ErrorChain(&error), ?wait, "the list of companies cannot be read yet");
            tokio::time::sleep(wait).await;
        }
    }

    fn store_proved(&self, reading: CompanyReading) {
        self.recorder.companies_read();
        *self.known.lock() = KnownCompanies { proved: Some(reading), unproved: None };
    }

    fn store_unproved(&self, mut reading: CompanyReading, why: String) {
        let found = reading.companies.len();
        tracing::warn!(
            connector = &*self.connector,
            found,
            why,
            "the list of companies proves nothing of those it does not show"
        );
        let mut known = self.known.lock();
        // A company that an unproved reading showed stays known until a proved one does not show it.
        for company in known.unproved.take().into_iter().flat_map(|(before, _)| before.companies.into_keys())
        {
            reading.companies.entry(company).or_insert(None);
        }
        known.unproved = Some((reading, why));
    }
}

impl Companies for Directory {
    fn state(&self, company: &CompanyId) -> CompanyState {
        let known = self.known.lock();
        let mut readings = known.proved.iter().chain(known.unproved.iter().map(|(reading, _)| reading));
        match &known.proved {
            _ if readings.any(|reading| reading.companies.contains_key(company)) => CompanyState::Known,
            Some(proved) => CompanyState::Absent { since: proved.begun_at },
            None => CompanyState::Unread,
        }
    }

    fn ask(&self) {
        self.asked.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> Directory {
        Directory::new(Duration::from_secs(60), 3, "records".into(), Recorder::default())
    }

    fn reading(begun_at: i64, ids: &[&str]) -> CompanyReading {
        CompanyReading { begun_at, companies: listed(ids).into_iter().map(|id| (id, None)).collect() }
    }

    fn listed(ids: &[&str]) -> Vec<CompanyId> {
        ids.iter().map(|id| CompanyId::new(*id).unwrap()).collect()
    }

    #[test]
    fn a_company_is_absent_only_when_a_proved_reading_lacks_it() {
        let company = CompanyId::new("c").unwrap();
        for (readings, state) in [
            (&[][..], CompanyState::Unread),
            (&[(true, 5, &["c"][..])][..], CompanyState::Known),
            (&[(true, 5, &["d"])], CompanyState::Absent { since: 5 }),
            (&[(true, 5, &["c"]), (true, 9, &["d"])], CompanyState::Absent { since: 9 }),
            (&[(false, 5, &["d"])], CompanyState::Unread),
            (&[(false, 5, &["c"])], CompanyState::Known),
            (&[(true, 5, &["c"]), (false, 9, &["d"])], CompanyState::Known),
            (&[(true, 5, &["d"]), (false, 9, &["c"])], CompanyState::Known),
            (&[(true, 5, &["d"]), (false, 9, &["d"])], CompanyState::Absent { since: 5 }),
            (&[(false, 5, &["c"]), (true, 9, &["d"])], CompanyState::Absent { since: 9 }),
        ] {
            let directory = directory();
            for (is_proved, begun_at, ids) in readings {
                match is_proved {
                    true => directory.store_proved(reading(*begun_at, ids)),
                    false => directory.store_unproved(reading(*begun_at, ids), "odd".to_owned()),
                }
            }
            assert_eq!(directory.state(&company), state, "{readings:?}");
        }
    }

    #[test]
    fn a_list_that_is_too_long_fails_the_task() {
        let directory = directory();

        assert!(directory.check_size(3).is_ok());
        let failure = directory.check_size(4).unwrap_err();

        assert_eq!((failure.kind, failure.retry), ("TooManyCompanies", Retry::Never));
        assert!(failure.message.contains("companies.rows.max") && failure.remedy.is_some());
    }

    #[test]
    fn the_last_row_of_a_company_has_the_start_of_its_reading() {
        let (directory, company) = (directory(), CompanyId::new("c").unwrap());
        let row = |begun_at, version: &str| {
            let companies = Shown::from([(company.clone(), SequenceVersion::parse(version).ok())]);
            CompanyReading { begun_at, companies }
        };
        let listed_version =
            |version: &str, read_at| Some(ListedVersion { version: version.parse().unwrap(), read_at });
        directory.store_proved(reading(3, &["c"]));
        assert_eq!(directory.shown(&company), None, "its row had no version");

        directory.store_proved(row(5, "7"));
        assert_eq!(directory.shown(&company), listed_version("7", 5));
        directory.store_unproved(row(6, "8"), "odd".to_owned());
        assert_eq!(directory.shown(&company), listed_version("8", 6), "also where nothing is proved");
        // A reading without the company keeps the last version.
        directory.store_unproved(reading(7, &["d"]), "odd".to_owned());
        assert_eq!(directory.shown(&company), listed_version("7", 5));
    }

    #[test]
    fn a_list_that_proves_nothing_does_not_count_as_read() {
        let directory = directory();

        directory.store_unproved(reading(6, &[]), "it is empty".to_owned());
        assert_eq!(directory.recorder.companies_age(Instant::now()), None);

        directory.store_proved(reading(7, &["a"]));
        assert!(directory.recorder.companies_age(Instant::now()).is_some());
    }

    #[test]
    fn companies_are_those_of_a_reading_that_began_late_enough() {
        let directory = directory();
        assert_eq!(directory.listed_since(i64::MIN), Listed::Unread);
        directory.store_proved(reading(5, &["a"]));
        assert_eq!(directory.listed_since(5), Listed::Whole(listed(&["a"])));
        assert_eq!(directory.listed_since(6), Listed::Unread, "a may be gone since");

        directory.store_unproved(reading(7, &["b"]), "odd".to_owned());
        assert_eq!(directory.listed_since(5), Listed::Whole(listed(&["a"])));
        assert_eq!(directory.listed_since(6), Listed::Part(listed(&["a", "b"]), "odd".to_owned()));
        assert_eq!(directory.listed_since(8), Listed::Unread, "it began before");

        directory.store_proved(reading(9, &["d"]));
        assert_eq!(directory.listed_since(6), Listed::Whole(listed(&["d"])));
        assert_eq!(directory.listed_since(10), Listed::Unread);
    }
}
