//! Whether a 404 or 410 is the API's own word on a deleted record, or somebody's on the way there who does not know the path.
//!
//! A path that has answered with a record since the worker started is served by the API: what it says of another record is the
//! API's own word, whatever its body. Otherwise, and where the body is the gateway's, this asks:
//!
//! - for the record of the same resource that was answered last, of any shard, and for those that the shard's fence knows. One that is
//!   answered proves that the path is served now.
//! - for an id that cannot exist. A gateway that does not know the path answers the same to every id; an answer of another kind comes
//!   from somebody who knows ids. The record is read once more then, so that both answers are of one moment.
//!
//! What is not decided stays as it is, and a warning says so now and then. The API's word alone deletes nothing: see
//! [`schedule`](crate::records::schedule).

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

/// Known records that are asked for: so many behind the record, and so many from the first on.
const NEIGHBORS: usize = 2;
/// An id that no record has.
const IMPOSSIBLE: &str = "00000000-0000-0000-0000-000000000000";
/// Warnings of one resource are so far apart.
const WARN_EVERY: Duration = Duration::from_secs(300);

/// When resources were last asked about, and warned of; one entry a resource each.
#[derive(Debug, Default)]
pub(super) struct NotFoundChecks {
    asked: Mutex<BTreeMap<AccountingResource, Instant>>,
    warned: Mutex<BTreeMap<AccountingResource, Instant>>,
}

/// Whether the last time was so long ago; then this is the last time.
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

/// Records of the same resource that were published and not deleted: some behind the record, and the first of the shard, which may be
/// of another company.
pub(super) fn neighbors(
    fence: &ShardFence,
    subject: &Subject,
) -> impl Future<Output = Result<Vec<(CompanyId, RecordId)>, fence::Error>> + Send + use<> {
    let (topic, own, id) = (subject.topic(), subject.fence_key(), subject.id.clone());
    let behind = fence.known_after(topic, Some(own.as_str()), NEIGHBORS, |_| true);
    let first = fence.known_after(topic, None, NEIGHBORS, |_| true);
    async move {
        let (mut found, _) = behind.await?;
        found.extend(first.await?.0);
        found.retain(|(_, one)| *one != id);
        Ok(found)
    }
}

/// What an answer is like, without what differs from request to request.
fn kind(error: &api::Error) -> (Option<u16>, Option<AnsweredBy>, Option<char>) {
    let first = error.excerpt.as_deref().and_then(|words| words.trim_start().chars().next());
    // JSON, a page, or text.
    let first = first.map(|first| if matches!(first, '{' | '[' | '<') { first } else { 'a' });
    (error.status, error.missing(), first)
}

/// Whether an answer is a refusal of what was asked for, and no outage.
fn is_about_record(error: &api::Error) -> bool {
    error.status.is_some_and(|status| status < 500) && error.reach() == Reach::Record
}

impl Shared {
    /// Whether it is time to look for proofs again: looking for known records takes the fence's time, so it is not done for each
    /// of many deletes.
    pub(super) fn may_prove(&self, resource: AccountingResource) -> bool {
        let asked = self.not_found.asked.lock();
        asked.get(&resource).is_none_or(|at| at.elapsed() >= self.source.enrich.retry_max)
    }

    /// The error with who says that the record is not there, as far as that can be found out, and whether the path is proved to be
    /// served. `asked_at` is from before the record was read.
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
        // The gateway may have lost a path that it knew before: only an answer of just now or later speaks against that.
        let recent = self.source.enrich.retry_max;
        let is_served = self
            .accounting
            .answered_at(resource)
            .is_some_and(|answered| !by_gateway || answered + recent >= asked_at);
        if is_served {
            return (error.by_api(), true);
        }
        let Some(known) = known.filter(|_| is_time(&self.not_found.asked, resource, recent)) else {
            return (error, false);
        };
        let last = self.accounting.last_record(resource).filter(|(_, id)| *id != subject.id);
        let known = known.await.unwrap_or_default().into_iter().map(|(company, id)| {
            let in_company = !matches!(self.directory.state(&company), CompanyState::Absent { .. });
            (in_company.then_some(company), id)
        });
        for (company, id) in last.into_iter().chain(known) {
            if self.accounting.record(resource, company.as_ref(), &id, ask).await.is_ok() {
                return (error.by_api(), true);
            }
        }
        if by_gateway {
            return (error, false);
        }
        let Ok(impossible) = RecordId::new(IMPOSSIBLE) else { return (error, false) };
        match self.accounting.record(resource, subject.context(), &impossible, ask).await {
            Err(other) if !is_about_record(&other) || kind(&other) == kind(&error) => (error, false),
            _ => match self.accounting.record(resource, subject.context(), &subject.id, ask).await {
                Err(again) if kind(&again) == kind(&error) => (error.by_api(), true),
                _ => (error, false),
            },
        }
    }

    /// A record is not there, and nothing proves that the API says so: a person is told, now and then.
    pub(super) fn warn_unproved(&self, subject: &Subject, error: &api::Error, path_answers: bool) {
        let Some(by) = error.missing() else { return };
        if (by == AnsweredBy::Api && path_answers)
            || !is_time(&self.not_found.warned, subject.resource, WARN_EVERY)
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
