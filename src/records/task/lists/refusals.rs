//! Payroll filters that the provider rejects. A task tries each filter once per run, for all its shards, pages and passes.
//!
//! A request with a rejected filter counts as an unreadable page: an incremental run then reads the whole list without the filter.

use std::collections::VecDeque;

use parking_lot::Mutex;

use base::retry::ErrorChain;
use model::Moment;
use provider::api::{self, Cause};

use super::pages::{Asked, Fetched};
use crate::records::proof::Seen;

/// Filters to remember.
const MOST: usize = 8;

/// The rejected filters of a task.
#[derive(Debug, Default)]
pub(super) struct Refusals(Mutex<VecDeque<Refused>>);

#[derive(Debug)]
struct Refused {
    /// The filter without its last word, because another value is rejected too.
    shape: String,
    why: String,
    at: i64,
}

impl Refusals {
    /// The unreadable page to use instead of a request whose filter was rejected since its run was requested.
    pub(super) fn get(&self, asked: &Asked) -> Option<Fetched> {
        let shape = shape(asked.filter.as_deref()?);
        let all = self.0.lock();
        let found = all.iter().find(|one| one.shape == shape && one.at >= asked.requested_at)?;
        Some(unreadable(asked, &found.why))
    }

    /// Remembers a rejected filter and returns an unreadable page for it. Returns every other result unchanged.
    pub(super) fn note(
        &self,
        asked: &Asked,
        read: Result<Fetched, api::Error>,
    ) -> Result<Fetched, api::Error> {
        let (Err(error), Some(filter)) = (&read, &asked.filter) else { return read };
        if !matches!(error.cause, Cause::Refused) {
            return read;
        }
        let why = ErrorChain(error).to_string();
        let page = unreadable(asked, &why);
        let shape = shape(filter).to_owned();
        let mut all = self.0.lock();
        all.retain(|one| one.shape != shape);
        if all.len() == MOST {
            all.pop_front();
        }
        all.push_back(Refused { shape, why, at: Moment::now().micros().max(asked.requested_at) });
        Ok(page)
    }
}

fn unreadable(asked: &Asked, why: &str) -> Fetched {
    let now = Moment::now().micros().max(asked.sent_after);
    Fetched::without_rows(Seen::unreadable(asked.number, asked.size, why, now))
}

fn shape(filter: &str) -> &str {
    filter.rsplit_once(' ').map_or(filter, |(shape, _)| shape)
}

#[cfg(test)]
mod tests {
    use model::List;
    use provider::api::{Acted, AnsweredBy, Endpoint, Priority};

    use super::*;

    fn asked(filter: Option<&str>, requested_at: i64) -> Asked {
        Asked {
            list: List::Payroll,
            company: None,
            number: 1,
            size: 10,
            filter: filter.map(str::to_owned),
            sent_after: requested_at,
            requested_at,
            priority: Priority::Snapshot,
        }
    }

    fn failed(cause: Cause) -> Result<Fetched, api::Error> {
        let endpoint = Endpoint { method: "GET", path: "payroll/api/companies".into() };
        let (status, acted) = (Some(400), Acted::No);
        Err(api::Error { endpoint, status, cause, excerpt: None, acted, in_company: false })
    }

    #[test]
    fn a_refused_filter_is_tried_once_in_a_run() {
        let refusals = Refusals::default();
        let first = asked(Some("lastUpdate gt 7"), 5);

        assert!(refusals.get(&first).is_none());
        let page = refusals.note(&first, failed(Cause::Refused)).unwrap();

        assert!(page.seen.problem.unwrap().contains("payroll/api/companies"));
        assert!(refusals.get(&first).is_some());
        assert!(refusals.get(&asked(Some("lastUpdate gt 9"), 5)).is_some(), "another value");
        assert!(refusals.get(&asked(Some("companyName eq x"), 5)).is_none(), "another filter");
        assert!(refusals.get(&asked(None, 5)).is_none(), "no filter");
        let later = Moment::now().micros() + 60_000_000;
        assert!(refusals.get(&asked(Some("lastUpdate gt 7"), later)).is_none(), "a later run");
    }

    #[test]
    fn only_a_refusal_of_a_filter_is_remembered() {
        let refusals = Refusals::default();
        for (filter, cause) in [
            (None, Cause::Refused),
            (Some("a gt 1"), Cause::Server { again: None }),
            (Some("a gt 1"), Cause::NotFound { by: AnsweredBy::Gateway }),
        ] {
            let asked = asked(filter, 5);
            assert!(refusals.note(&asked, failed(cause)).is_err());
            assert!(refusals.get(&asked).is_none());
        }
        for number in 0..2 * MOST {
            refusals.note(&asked(Some(&format!("{number} gt 1")), 5), failed(Cause::Refused)).unwrap();
        }
        assert_eq!(refusals.0.lock().len(), MOST);
    }
}
