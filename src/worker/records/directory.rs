//! Which companies there are: the list, read again and again.
//!
//! A company is there while one of the last two readings shows it; it is absent when two readings in a row do not. Rows move
//! between pages while a list is read, so that one reading alone proves nothing of one that it does not show. A reading that is
//! empty, or whose pages are odd, proves nothing at all.
//!
//! Read at the start, every `companies.refresh.interval.ms`, and soon after somebody has asked for a company that is not there.

use std::{
    collections::{BTreeSet, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{now, refused};
use crate::{
    api::{self, Accounting, Ask, Lane, Next, PageAsk, Walk, row_hash},
    enrich::{Companies, Standing},
    model::CompanyId,
    retry::{Backoff, Chain, Policy},
    worker::plugins::Failure,
};

/// The longest one page may take.
const PAGE_LIMIT: Duration = Duration::from_secs(60);
/// Waits after a page that could not be read.
const AGAIN: Policy =
    Policy { first: Duration::from_millis(200), longest: Duration::from_secs(30), total: None };
/// Between two readings, at least.
const SOON: Duration = Duration::from_secs(1);
/// Pages that may be the same as the one before, until the list is taken to have no end.
const REPEATED: u64 = 3;

/// See the module's head. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Directory {
    readings: Arc<Mutex<VecDeque<Reading>>>,
    asked: Arc<Notify>,
    every: Duration,
    page_size: u32,
}

/// One reading of the whole list.
#[derive(Debug)]
struct Reading {
    begun_at: i64,
    companies: HashSet<CompanyId>,
}

impl Directory {
    pub(super) fn new(every: Duration, page_size: u32) -> Self {
        Self { readings: Arc::default(), asked: Arc::default(), every, page_size }
    }

    /// Companies that are there, as a reading shows that began after this, and the one before it; `None` until there is one.
    pub(super) fn listed_since(&self, since: i64) -> Option<Vec<CompanyId>> {
        let readings = self.lock();
        readings.back().filter(|last| last.begun_at >= since)?;
        let all: BTreeSet<&CompanyId> = readings.iter().flat_map(|reading| &reading.companies).collect();
        Some(all.into_iter().cloned().collect())
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Reading>> {
        self.readings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads until it is cancelled.
    ///
    /// # Errors
    /// The provider refuses it for good.
    pub(super) async fn run(self, accounting: Accounting, cancel: CancellationToken) -> Result<(), Failure> {
        cancel.run_until_cancelled(self.follow(&accounting)).await.unwrap_or(Ok(()))
    }

    async fn follow(&self, accounting: &Accounting) -> Result<(), Failure> {
        loop {
            let begun = Instant::now();
            if let Some(reading) = self.read(accounting).await? {
                let mut readings = self.lock();
                readings.push_back(reading);
                if readings.len() > 2 {
                    readings.pop_front();
                }
            }
            // A long list is not read all the time because of somebody who is not there.
            let least = begun.elapsed().saturating_mul(2).max(SOON);
            tokio::time::sleep(least).await;
            tokio::select! {
                () = self.asked.notified() => {}
                () = tokio::time::sleep(self.every) => {}
            }
        }
    }

    /// One reading; `None` for one that proves nothing: empty, endless, or with pages that are not what they should be.
    async fn read(&self, accounting: &Accounting) -> Result<Option<Reading>, Failure> {
        let begun_at = now();
        let (mut companies, mut seen, mut walk) = (HashSet::new(), HashSet::new(), Walk::new());
        let mut backoff = Backoff::new(AGAIN, begun_at.unsigned_abs());
        let mut number = 1;
        loop {
            let page = PageAsk { number, size: self.page_size };
            let page = match accounting.companies(page, &Ask::within(Lane::Repair, PAGE_LIMIT)).await {
                Ok(page) => page,
                Err(error) => {
                    // A page that cannot be read for its own sake is tried on: without the list nothing can be told of
                    // companies that are not in it.
                    let verdict = match error.reach() {
                        api::Reach::Record | api::Reach::Company => crate::retry::Retry::Later,
                        api::Reach::Grant | api::Reach::Everything => error.retry(),
                    };
                    let Some(wait) = backoff.next_wait(verdict) else { return Err(refused(&error)) };
                    tracing::warn!(error = %Chain(&error), ?wait, "the list of companies cannot be read yet");
                    tokio::time::sleep(wait).await;
                    continue;
                }
            };
            backoff.reset();
            let ids = page.rows.iter().filter_map(|row| row.correlation_id.as_deref());
            companies.extend(ids.filter_map(|id| CompanyId::new(id).ok()));
            let id = |row: &crate::model::Company| row.correlation_id.as_deref().map(row_hash);
            match walk.look(&page, id, &mut seen).next {
                Next::Page(next) | Next::Again(next) => number = next,
                Next::End | Next::Endless => {
                    let odd = walk.oddities();
                    let is_whole = odd.repeated == 0 && odd.clamped == 0 && !companies.is_empty();
                    if !is_whole {
                        let found = companies.len();
                        tracing::warn!(
                            found,
                            ?odd,
                            "the list of companies proves nothing of those it does not show"
                        );
                    }
                    // What it shows is there all the same.
                    return Ok(is_whole.then_some(Reading { begun_at, companies }));
                }
            }
            if walk.oddities().repeated > REPEATED {
                tracing::warn!("the list of companies repeats itself: page numbers are not taken");
                return Ok(None);
            }
        }
    }
}

impl Companies for Directory {
    fn standing(&self, company: &CompanyId) -> Standing {
        let readings = self.lock();
        if readings.iter().any(|reading| reading.companies.contains(company)) {
            return Standing::Known;
        }
        match (readings.front(), readings.len()) {
            (Some(first), 2) => Standing::Absent { since: first.begun_at },
            _ => Standing::Unread,
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
        let directory = Directory::new(Duration::from_secs(60), 100);
        for (begun_at, companies) in readings {
            let companies = companies.iter().map(|id| CompanyId::new(*id).unwrap()).collect();
            directory.lock().push_back(Reading { begun_at: *begun_at, companies });
        }
        directory
    }

    #[test]
    fn a_company_is_absent_only_when_two_readings_in_a_row_do_not_show_it() {
        let company = CompanyId::new("c").unwrap();
        for (readings, standing) in [
            (&[][..], Standing::Unread),
            (&[(5, &["c"][..])][..], Standing::Known),
            (&[(5, &["d"][..])], Standing::Unread),
            (&[(5, &["c"][..]), (9, &["d"][..])], Standing::Known),
            (&[(5, &["d"][..]), (9, &["c"][..])], Standing::Known),
            (&[(5, &["d"][..]), (9, &["d"][..])], Standing::Absent { since: 5 }),
        ] {
            assert_eq!(directory(readings).standing(&company), standing, "{readings:?}");
        }
    }
}
