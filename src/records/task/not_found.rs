//! Whether a 404 or 410 answer to a read after a delete event comes from the API, or from a gateway that does not know the path.
//!
//! If the path has returned a record since the worker started, its 404 counts as the API's. If the body is the gateway's, that record must
//! be recent (`enrich.retry.backoff.max.ms`), because a gateway may lose a path that it knew. Otherwise these checks read
//!
//! - other records of the same resource: the one that any shard read last, and some that the shard's fence knows. If one of them is
//!   returned, the path is served now.
//! - an id that cannot exist, unless the body is the gateway's. A gateway that does not know the path answers the same to every id. If
//!   the answer differs, the API made it. The record is then read once more, so that both answers are from the same time.
//!
//! If neither decides, the error stays as it is, and a warning is logged from time to time. The API's answer alone deletes nothing:
//! see [`schedule`](crate::records::schedule).

use std::{collections::BTreeMap, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use model::{AccountingResource, CompanyId, RecordId};
use provider::api::{self, AnsweredBy, CallOptions, Reach};

use super::Shared;
use crate::records::{
    fence::{self, ShardFence},
    schedule::{Companies as _, CompanyState, Subject},
};

/// Known records to read: this many after the record in key order, and this many from the first key on.
const NEIGHBORS: usize = 2;
/// An id that no record has.
const IMPOSSIBLE: &str = "00000000-0000-0000-0000-000000000000";
/// Minimum time between two warnings about one resource.
const WARN_EVERY: Duration = Duration::from_secs(300);

/// When the path of each resource was last checked, and when a warning about it was last logged.
#[derive(Debug, Default)]
pub(super) struct NotFoundChecks {
    asked: Mutex<BTreeMap<AccountingResource, Instant>>,
    warned: Mutex<BTreeMap<AccountingResource, Instant>>,
}

/// Whether at least `apart` has passed since the last time. If so, records the current time.
fn is_time(
    last: &Mutex<BTreeMap<AccountingResource, Instant>>,
    one: AccountingResource,
    apart: Duration,
) -> bool {
    let mut last = last.lock();
    let now = Instant::now();
    let is_time = last.get(&one).is_none_or(|at| now.duration_since(*at) >= apart);
    if is_time {
        last.insert(one, now);
    }
    is_time
}

/// Published records of the same resource that are not deleted: some after the record in key order, and the first of the shard, which
/// may belong to another company.
pub(super) fn neighbors(
    fence: &ShardFence,
    subject: &Subject,
) -> impl Future<Output = Result<Vec<(CompanyId, RecordId)>, fence::Error>> + Send + use<> {
    let (topic, own, id) = (subject.topic(), subject.fence_key(), subject.id.clone());
    let following = fence.known_after(topic, Some(own.as_str()), NEIGHBORS, |_| true);
    let first = fence.known_after(topic, None, NEIGHBORS, |_| true);
    async move {
        let (mut found, _) = following.await?;
        found.extend(first.await?.0);
        found.retain(|(_, one)| *one != id);
        Ok(found)
    }
}

/// What is the same in all answers of one kind: status, who answered, and the kind of body.
fn kind(error: &api::Error) -> (Option<u16>, Option<AnsweredBy>, Option<char>) {
    let first = error.excerpt.as_deref().and_then(|words| words.trim_start().chars().next());
    // JSON, a page, or text.
    let first = first.map(|first| if matches!(first, '{' | '[' | '<') { first } else { 'a' });
    (error.status, error.missing(), first)
}

/// Whether an answer is about the requested record, and no outage.
fn is_about_record(error: &api::Error) -> bool {
    error.status.is_some_and(|status| status < 500) && error.reach() == Reach::Record
}

impl Shared {
    /// Whether the path of a resource may be checked again. The scan for known records loads the fence, so it does not run for each of
    /// many deletes.
    pub(super) fn may_prove(&self, resource: AccountingResource) -> bool {
        let asked = self.evidence.not_found.asked.lock();
        asked.get(&resource).is_none_or(|at| at.elapsed() >= self.source.enrich.retry_max)
    }

    /// Attributes a "not found" error to the API if a check proves that. Returns whether the path is proved to be served. `asked_at` is
    /// the time before the read.
    pub(super) async fn attribute(
        &self,
        subject: &Subject,
        error: api::Error,
        asked_at: Instant,
        known: Option<impl Future<Output = Result<Vec<(CompanyId, RecordId)>, fence::Error>>>,
        ask: &CallOptions,
    ) -> (api::Error, bool) {
        let resource = subject.resource;
        let by_gateway = error.missing() == Some(AnsweredBy::Gateway);
        // The gateway may have lost a path that it knew before, so only a recent answer counts.
        let recent = self.source.enrich.retry_max;
        let is_served = self
            .requests
            .accounting
            .answered_at(resource)
            .is_some_and(|answered| !by_gateway || answered + recent >= asked_at);
        if is_served {
            return (error.by_api(), true);
        }
        let Some(known) = known.filter(|_| is_time(&self.evidence.not_found.asked, resource, recent)) else {
            return (error, false);
        };
        let last = self.requests.accounting.last_record(resource).filter(|(_, id)| *id != subject.id);
        let known = known.await.unwrap_or_default().into_iter().map(|(company, id)| {
            let in_company = !matches!(self.directory.state(&company), CompanyState::Absent { .. });
            (in_company.then_some(company), id)
        });
        for (company, id) in last.into_iter().chain(known) {
            let read = self.requests.accounting.record(resource, company.as_ref(), &id, ask).await;
            if read.is_ok_and(|record| record.is_of(&id)) {
                return (error.by_api(), true);
            }
        }
        if by_gateway {
            return (error, false);
        }
        let Ok(impossible) = RecordId::new(IMPOSSIBLE) else { return (error, false) };
        match self.requests.accounting.record(resource, subject.context(), &impossible, ask).await {
            Err(other) if !is_about_record(&other) || kind(&other) == kind(&error) => (error, false),
            _ => match self.requests.accounting.record(resource, subject.context(), &subject.id, ask).await {
                Err(again) if kind(&again) == kind(&error) => (error.by_api(), true),
                _ => (error, false),
            },
        }
    }

    /// Warns, at most every [`WARN_EVERY`], that a record is not found and that nothing proves that the API says so.
    pub(super) fn warn_unproved(&self, subject: &Subject, error: &api::Error, path_answers: bool) {
        let Some(by) = error.missing() else { return };
        if (by == AnsweredBy::Api && path_answers)
            || !is_time(&self.evidence.not_found.warned, subject.resource, WARN_EVERY)
        {
            return;
        }
        tracing::warn!(
            connector = &*self.task.connector,
            resource = %subject.resource,
            endpoint = %error.endpoint,
            status = error.status,
            record = %subject.key(),
            "a record is not found, and nothing proves yet that the API itself says so: the path has not answered with a record \
             since this worker started, or the gateway answered; the record stays published and is asked for again, and its event \
             becomes a dead letter with a gap after enrich.horizon.ms; check that provider.base.url serves this path, and that the \
             login may read this resource"
        );
    }
}
