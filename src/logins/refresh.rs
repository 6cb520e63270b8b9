//! One refresh: intent, presentation, commit. This order keeps a rotated token from being lost.
//!
//! ```text
//!                                                             ┌─▶ answer to this disk ─┐
//! take the id, read ─▶ commit the intent ─▶ present the token ┴─▶ commit the answer ───┴─▶ used
//!                      └───── window, inside the lease ─────┘
//!                      └──────────── listening: 8 s longer ────────────┘     other workers wait: 10 s longer
//! ```
//!
//! - The token is sent once, only after the intent is committed, inside the window, while the lease holds, and unless an answer to
//!   an earlier refresh has turned up. The gate checks all of this when the request is written, so that a process that was frozen
//!   before does not send it afterwards.
//! - This process writes an answer for as long as it lives, with or without the lease, until the answer or something newer is in
//!   the topic. It never waits for the disk: a hanging disk must not keep the answer from Kafka.
//! - An answer for another tenant than the grant's is not stored: it makes the grant `Lost`.
//! - If the token was certainly not sent, the intent is withdrawn. If the outcome is unknown, it stays open until the wait is over.
//!
//! Remaining risks: a freeze between the gate and the socket goes unnoticed, since the provider takes no fencing token; a machine
//! that is paused with the request in its buffers sends it when it wakes up, and so may a proxy. An answer that only this process
//! has is lost with it, unless its file is found again in time. And if this process is frozen or cut off from Kafka for longer than
//! the wait, the grant's owner presents the token again before this process can commit its answer. The answer is then useless at a
//! provider that ends a grant whose token is presented twice.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::JoinHandle,
    time::{Instant, sleep, timeout, timeout_at},
};

use base::{
    failpoint,
    metrics::{self, RefreshLabel},
    retry::{Backoff, BackoffPolicy, ErrorChain, Retry},
};
use kafka::Lease;
use provider::auth::{
    grant::{Grant, GrantConflict, GrantState, RefreshBase, RefreshCause, RefreshIntent, RefreshOrigin},
    identity::{self, Gate, OAuthCode, RefreshOutcome},
};

use super::{
    GrantContext, GrantOwnership,
    files::PendingAnswer,
    issuer::{Issuer, issued_tokens},
    plan::NextStep,
    store::{Error, GrantWriter, wall_ms},
    view::{command, lost},
};

/// Limit between the start of an intent and sending the token.
const SEND_WINDOW: Duration = Duration::from_secs(5);
/// Shortest window for a refresh: commit and connection take that long.
const MIN_WINDOW: Duration = Duration::from_millis(1_500);
/// Upper bound of the lease that must be left when the window closes, and extra time that a presentation gets before it is cut off.
const WINDOW_MARGIN: Duration = Duration::from_millis(500);
/// Wait for the answer after the window: shorter than [`GRACE`](provider::auth::grant::GRACE), after which others try.
const ANSWER_WAIT: Duration = Duration::from_secs(8);
/// Limit for taking the transactional id.
const TAKE_LIMIT: Duration = Duration::from_secs(20);
/// Limit of one attempt to write the outcome.
const WRITE_LIMIT: Duration = Duration::from_secs(30);
/// Backoff between those attempts.
const WRITE_BACKOFF: BackoffPolicy =
    BackoffPolicy { first: Duration::from_millis(200), longest: Duration::from_secs(5), total: None };
/// Limit for removing the file of a committed answer.
const FILE_REMOVAL_WAIT: Duration = Duration::from_secs(2);
/// How long a stop waits for a refresh in progress: until the answer can have arrived, and some time to write it.
pub(super) const STOP_LIMIT: Duration = Duration::from_secs(20);

/// How an attempt ended.
#[derive(Debug)]
pub(super) enum AttemptEnd {
    /// The topic has another state now, from this attempt or a newer one.
    Settled,
    /// The intent that started at `started` is committed, and its outcome is unknown.
    OutcomeUnknown { intent: String, started: Instant },
    /// Nothing was sent; retry.
    Retry(Retry),
    /// The provider refuses the OAuth client.
    ClientRefused(String),
}

/// The inputs of an attempt.
pub(super) struct RefreshAttempt<'a> {
    pub(super) shared: &'a GrantContext,
    pub(super) name: &'a str,
    pub(super) issuer: &'a dyn Issuer,
    pub(super) lease: Lease,
}

/// A committed intent.
struct StartedRefresh {
    base: RefreshBase,
    cause: RefreshCause,
    grant: Grant,
    /// When it started, before it was committed.
    start: Instant,
    /// When the window closes.
    end: Instant,
}

impl RefreshAttempt<'_> {
    /// Refreshes or recovers.
    pub(super) async fn run(&self, next: NextStep) -> AttemptEnd {
        // Before the intent, so that no intent has to be withdrawn.
        if let Err(error) = self.issuer.ready().await {
            tracing::debug!(grant = self.name, error = %ErrorChain(&error), "the identity service is not ready; retrying the refresh later");
            return AttemptEnd::Retry(error.retry());
        }
        let mut writer = self.shared.store.writer(self.name, Arc::clone(&self.lease));
        match writer.take(Instant::now() + TAKE_LIMIT).await {
            Ok(Some(_)) => {}
            Ok(None) => return AttemptEnd::Settled,
            Err(error) => return self.failed("take the grant", &error),
        }
        let GrantOwnership { membership, session, .. } = &self.shared.ownership;
        let window = SEND_WINDOW.min(membership.lease_left().saturating_sub(spare(*session)));
        if window < shortest(*session) {
            tracing::warn!(
                grant = self.name,
                ?window,
                "too little of the lease is left for a refresh; retrying. If this repeats, raise session.timeout.ms"
            );
            return AttemptEnd::Retry(Retry::Later);
        }
        let started = match self.begin(&mut writer, next, window).await {
            Ok(started) => started,
            Err(ended) => return ended,
        };
        let outcome = self.present(&started).await;
        // From here on only this process may have the answer.
        writer.insist();
        self.conclude(&mut writer, started, outcome).await
    }

    async fn begin(
        &self,
        writer: &mut GrantWriter,
        next: NextStep,
        window: Duration,
    ) -> Result<StartedRefresh, AttemptEnd> {
        // Before the commit: every other worker counts from when it has read the intent.
        let start = Instant::now();
        let end = start + window;
        let origin = RefreshOrigin { worker: self.shared.worker_id.to_string(), begun_ms: wall_ms() };
        let cause = match &next {
            NextStep::Refresh { cause, .. } => *cause,
            _ => RefreshCause::Recovery,
        };
        let window_ms = u64::try_from(window.as_millis()).unwrap_or(u64::MAX);
        let intent = RefreshIntent { id: self.shared.draw(), cause, origin, window_ms, withdrawn: false };
        let decide = |grant: Option<&Grant>| match &next {
            NextStep::Refresh { serial, .. } => grant?.begin(*serial, intent.clone()).ok(),
            NextStep::Recover { orphan, seen } => grant?.recover(orphan, seen.elapsed(), intent.clone()).ok(),
            _ => None,
        };
        match writer.write(end, decide).await {
            Ok(Some(grant)) if grant.intent().is_some_and(|open| open.id == intent.id) => {
                tracing::debug!(
                    grant = self.name,
                    serial = grant.serial,
                    ?cause,
                    "committed a refresh intent"
                );
                failpoint::reach("grants.intent");
                Ok(StartedRefresh { base: grant.base(&intent), cause, grant, start, end })
            }
            // Another write came first.
            Ok(_) => Err(AttemptEnd::Settled),
            Err(error) => {
                let ended = self.failed("announce the refresh", &error);
                self.take_back(writer, &intent).await;
                Err(ended)
            }
        }
    }

    /// Withdraws an intent that may be in the topic and under which nothing was sent. If this write fails too, the intent is
    /// recovered like any orphan.
    async fn take_back(&self, writer: &mut GrantWriter, intent: &RefreshIntent) {
        writer.insist();
        let withdraw = |grant: Option<&Grant>| grant?.withdraw(&grant?.base(intent)).ok();
        if let Err(error) = writer.write(Instant::now() + WRITE_LIMIT, withdraw).await {
            tracing::debug!(grant = self.name, error = %ErrorChain(&error), "could not withdraw an intent; it is recovered after the wait");
        }
    }

    async fn present(&self, started: &StartedRefresh) -> RefreshOutcome {
        let Some(tokens) = started.grant.tokens() else {
            return RefreshOutcome::NotSent(identity::Error::Silent);
        };
        let name = self.name.to_owned();
        let (lease, end, sent) = (Arc::clone(&self.lease), started.end, Arc::new(AtomicBool::new(false)));
        let (passed, store, base) = (Arc::clone(&sent), self.shared.store.clone(), started.base.clone());
        let gate: Gate = Arc::new(move || {
            // The answer to the previous refresh may have arrived at the last moment: then the token is used up.
            let is_current = || {
                let grant = store.grant(&name).ok().flatten();
                grant.is_some_and(|grant| grant.intent().is_some_and(|one| grant.base(one) == base))
            };
            let open = Instant::now() < end && lease() && is_current();
            passed.fetch_or(open, Ordering::SeqCst);
            open
        });
        let listen = end + ANSWER_WAIT;
        let presented = self.issuer.refresh(&tokens.refresh, gate, listen);
        // The issuer has this limit too; enforce it, so that no implementation blocks the grant.
        let presented = timeout_at(listen + WINDOW_MARGIN, presented).await;
        match presented {
            Ok(outcome) => outcome,
            Err(_) if sent.load(Ordering::SeqCst) => RefreshOutcome::Unknown(identity::Error::Silent),
            Err(_) => RefreshOutcome::NotSent(identity::Error::Silent),
        }
    }

    async fn conclude(
        &self,
        writer: &mut GrantWriter,
        started: StartedRefresh,
        outcome: RefreshOutcome,
    ) -> AttemptEnd {
        let (name, StartedRefresh { base, cause, start, .. }) = (self.name, started);
        match outcome {
            RefreshOutcome::Granted(granted) => {
                failpoint::reach("grants.rotated");
                let refresh = if cause == RefreshCause::Recovery {
                    RefreshLabel::Recovered
                } else {
                    RefreshLabel::Refreshed
                };
                let issued = issued_tokens(granted, self.issuer.now_ms());
                let pending = PendingAnswer { name: name.to_owned(), base, issued };
                let (files, stored) = (self.shared.files.clone(), pending.clone());
                let disk = tokio::spawn(async move {
                    match files.pend(&stored).await {
                        Ok(()) => failpoint::reach("grants.kept"),
                        Err(error) => tracing::warn!(
                            grant = stored.name,
                            %error,
                            "could not store the provider's answer on this disk; it is lost if this process ends before Kafka has it"
                        ),
                    }
                });
                keep_answer(self.shared, writer, pending, refresh, Some(disk)).await;
                AttemptEnd::Settled
            }
            RefreshOutcome::Refused(code @ OAuthCode::InvalidGrant) => {
                metrics::token_refreshed(RefreshLabel::Lost);
                let (at_ms, code) = (wall_ms(), code.to_string());
                let lose = |grant: &Grant| grant.lose(&base, &code, at_ms);
                if let Ok(Some(grant)) = insist(writer, name, lose).await
                    && matches!(grant.state, GrantState::Lost { at_ms: at, .. } if at == at_ms)
                {
                    report_loss(self.shared, &grant);
                }
                AttemptEnd::Settled
            }
            RefreshOutcome::Refused(code) => {
                metrics::token_refreshed(RefreshLabel::Refused);
                tracing::error!(grant = name, %code, "the identity service refuses the OAuth client; correct the client, here or at the provider");
                insist(writer, name, |grant| grant.withdraw(&base)).await.ok();
                AttemptEnd::ClientRefused(code.to_string())
            }
            RefreshOutcome::NotSent(error) => {
                metrics::token_refreshed(RefreshLabel::NotSent);
                tracing::warn!(grant = name, error = %ErrorChain(&error), "a refresh did not reach the identity service; retrying");
                insist(writer, name, |grant| grant.withdraw(&base)).await.ok();
                AttemptEnd::Retry(error.retry())
            }
            RefreshOutcome::Unknown(error) => {
                metrics::token_refreshed(RefreshLabel::Unknown);
                tracing::warn!(
                    grant = name,
                    error = %ErrorChain(&error),
                    "refresh outcome is unknown; presenting the stored token again after the wait"
                );
                AttemptEnd::OutcomeUnknown { intent: base.intent, started: start }
            }
        }
    }

    fn failed(&self, what: &str, error: &Error) -> AttemptEnd {
        tracing::warn!(grant = self.name, error = %ErrorChain(error), what, "could not start a refresh");
        AttemptEnd::Retry(error.retry())
    }
}

/// Logs why a grant is lost, and the command that logs in.
fn report_loss(shared: &GrantContext, grant: &Grant) {
    let GrantState::Lost { origin, reason, .. } = &grant.state else { return };
    let (reason, run) = (lost(origin.as_ref(), reason), command(shared, &grant.name, grant.area));
    tracing::error!(grant = grant.name, reason, run, "the grant is lost");
}

/// Writes an answer of the provider until it is in the topic or obsolete, while `disk` stores it.
async fn keep_answer(
    shared: &GrantContext,
    writer: &mut GrantWriter,
    pending: PendingAnswer,
    outcome: RefreshLabel,
    disk: Option<JoinHandle<()>>,
) {
    let PendingAnswer { name, base, issued } = pending;
    let answer = |grant: &Grant| grant.answer(&base, issued.clone());
    let access = issued.access.reveal();
    let has_it = |grant: &Grant| grant.tokens().is_some_and(|tokens| tokens.access.reveal() == access);
    match insist(writer, &name, answer).await {
        Ok(Some(grant)) if has_it(&grant) => {
            failpoint::reach("grants.committed");
            metrics::token_refreshed(outcome);
            tracing::info!(grant = name, serial = grant.serial, "the grant has new tokens");
        }
        // An answer that applies is stored, unless it is for another tenant.
        Ok(Some(grant)) if matches!(grant.state, GrantState::Lost { .. }) && base.is_of(&grant) => {
            metrics::token_refreshed(RefreshLabel::Lost);
            report_loss(shared, &grant);
        }
        Ok(_) => tracing::info!(
            grant = name,
            serial = base.serial,
            "an answer came too late: the grant has changed since"
        ),
        // A worker with the right key finds the file, unless a new login has made it obsolete.
        Err(_) => return,
    }
    let files = shared.files.clone();
    let tidy = tokio::spawn(async move {
        if let Some(disk) = disk {
            disk.await.ok();
        }
        if let Err(error) = files.settled(&name, &base).await {
            tracing::warn!(grant = name, %error, "could not remove the file of a committed answer; it is harmless");
        }
    });
    // A hanging disk does not delay the next refresh: the task continues in the background.
    timeout(FILE_REMOVAL_WAIT, tidy).await.ok();
}

/// Writes a change until it is in the topic or no longer applies, for as long as this process lives. Returns the grant in the
/// topic after that. The only error is [`Error::Sealed`].
async fn insist(
    writer: &mut GrantWriter,
    name: &str,
    change: impl Fn(&Grant) -> Result<Grant, GrantConflict>,
) -> Result<Option<Grant>, Error> {
    let mut backoff = Backoff::new(WRITE_BACKOFF, 11);
    loop {
        let error = match writer.write(Instant::now() + WRITE_LIMIT, |grant| change(grant?).ok()).await {
            Err(error @ Error::Kafka(_)) => error,
            ended => {
                if let Err(error) = &ended {
                    tracing::error!(grant = name, error = %ErrorChain(error), "cannot write the outcome of a refresh with this worker's keys");
                }
                return ended;
            }
        };
        if backoff.is_fresh() {
            tracing::error!(grant = name, error = %ErrorChain(&error), "could not write the outcome of a refresh to Kafka yet; retrying");
        } else {
            tracing::debug!(grant = name, error = %ErrorChain(&error), "could not write the outcome of a refresh to Kafka yet");
        }
        sleep(backoff.next_wait(Retry::Later).unwrap_or(WRITE_BACKOFF.longest)).await;
    }
}

/// Writes an answer that an earlier process left on this disk, even if this worker does not own the grant.
pub(super) async fn salvage(shared: &GrantContext, pending: PendingAnswer) {
    tracing::warn!(
        grant = pending.name,
        "found an answer of the provider that an earlier run has not written"
    );
    let _under_way = shared.under_way.token();
    let mut writer = shared.store.writer(&pending.name, Arc::new(|| true));
    keep_answer(shared, &mut writer, pending, RefreshLabel::Salvaged, None).await;
}

/// Lease that must be left when the window closes.
fn spare(session: Duration) -> Duration {
    WINDOW_MARGIN.min(session / 12)
}

/// Shortest window for a refresh, as far as the session timeout allows.
fn shortest(session: Duration) -> Duration {
    MIN_WINDOW.min(session / 4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_allowed_session_timeout_leaves_a_window() {
        for session in [1_500, 2_000, 3_000, 6_000, 300_000].map(Duration::from_millis) {
            // The lease that is left one heartbeat, at most a third of the session, after the last renewal.
            let lease = session - (session / 6).min(Duration::from_secs(1));
            let window = SEND_WINDOW.min((lease - session / 3).saturating_sub(spare(session)));
            assert!(window >= shortest(session), "{session:?}: {window:?}");
        }
        assert_eq!(shortest(Duration::from_secs(6)), MIN_WINDOW);
    }

    #[test]
    fn stop_waits_for_the_answer_and_others_wait_longer() {
        assert!(STOP_LIMIT > SEND_WINDOW + ANSWER_WAIT + WINDOW_MARGIN);
        assert!(ANSWER_WAIT + WINDOW_MARGIN < provider::auth::grant::GRACE);
    }
}
