//! Runs one instance of a connector or task: starts, watches, restarts and ends it.
//!
//! An [`InstanceRunner`] runs an [`InstanceBody`] in its own tokio task and follows the [`Instruction`]s that the supervisor sends. A
//! run ends by an instruction, by a failure, or by a panic, which is caught at the edge of its task.
//!
//! - After a retryable failure the body restarts with a growing, jittered backoff, as long as the budget lasts (by default
//!   without a limit). Meanwhile the state is RESTARTING, with the trace: FAILED would call for a person, and RUNNING would hide it.
//! - A panic is a bug, and may be caused by one bad record or by all of them: the body restarts a few times within a window
//!   ([`RestartPolicy::panics`]), then the instance is FAILED.
//! - A permanent failure is FAILED, with the trace, until a restart is requested or its record is written again: `connector-N` for a
//!   connector, a new `commit-N` for a task.
//! - RUNNING, and with it a successful start, is what the body reports, not that it was called: a body that never starts keeps
//!   showing the state before it, with the trace.
//! - A run that lasted long enough to count as healthy resets the backoff.
//! - Without its lease an instance reports no failure and no UNASSIGNED: its successor may have reported already. Other late reports
//!   are harmless: they carry a lower generation.
//!
//! Ending: the body is cancelled, awaited until the deadline, then aborted. A body that blocks its thread even then is left
//! behind; its lease is gone, and its writes are fenced.

mod run_once;
#[cfg(test)]
mod tests;

use std::{collections::VecDeque, future::Future, pin::Pin, sync::Arc, time::Duration};

use tokio::{
    sync::{Notify, watch},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use base::retry::{Backoff, Retry};

use self::run_once::RunOutcome;
use super::{
    InstanceId, RestartPolicy, Settings,
    desired_state::{DesiredState, Instruction, RestartRevisions, StopRequest, Transition},
    status_reporter::StatusReporter,
    trace,
};
use crate::{
    config::connector::TargetState,
    plugin::Failure,
    state::{configs::Properties, statuses::RunState},
};

/// What an instance runs. It returns when it is cancelled, or with the failure that ended it.
pub(super) type InstanceBody = Arc<dyn Fn(BodyContext) -> BodyFuture + Send + Sync>;
/// A running body.
pub(super) type BodyFuture = Pin<Box<dyn Future<Output = Result<(), Failure>> + Send>>;

/// Context of one run of a body.
pub(super) struct BodyContext {
    pub(super) config: Arc<Properties>,
    pub(super) target: watch::Receiver<TargetState>,
    /// Whether the target is not RUNNING: all a task needs of it.
    pub(super) paused: watch::Receiver<bool>,
    pub(super) cancel: CancellationToken,
    /// Notified once the body has started; until then the reported state stays.
    pub(super) startup: Arc<Notify>,
    /// Notified once a task's body has paused; until then it is not reported PAUSED. A connector has nothing to finish first.
    pub(super) pause_reached: Arc<Notify>,
}

pub(super) struct InstanceRunner {
    id: InstanceId,
    body: InstanceBody,
    reporter: Arc<StatusReporter>,
    /// Whether this worker certainly holds the partition.
    lease: kafka::Lease,
    settings: Settings,
    handled: RestartRevisions,
    backoff: Backoff,
    /// Failed runs since the last healthy one.
    failures: u32,
    panics: VecDeque<Instant>,
}

impl InstanceRunner {
    pub(super) fn new(
        id: InstanceId,
        body: InstanceBody,
        reporter: Arc<StatusReporter>,
        lease: kafka::Lease,
        settings: Settings,
    ) -> Self {
        // Instances that fail at the same moment must not restart at the same moment.
        let seed = u64::from(kafka::murmur2(id.to_string().as_bytes())) << 16 ^ reporter.generation() as u64;
        let backoff = Backoff::new(settings.restarting.policy, seed);
        let (handled, failures, panics) = (RestartRevisions::default(), 0, VecDeque::new());
        Self { id, body, reporter, lease, settings, handled, backoff, failures, panics }
    }

    /// Follows the instructions until one says to end.
    pub(super) async fn run(mut self, mut instructions: watch::Receiver<Instruction>) {
        let end = loop {
            // The next start handles every restart that was requested up to now.
            let mut desired = match instructions.borrow_and_update().clone() {
                Instruction::Run(desired) => desired,
                Instruction::End(end) => break end,
            };
            self.set_handled(desired.restarts);
            let transition = match run_once::run_once(&mut self, &mut desired, &mut instructions).await {
                RunOutcome::Changed(transition) => transition,
                RunOutcome::Failed { failure, panicked, lasted } => {
                    if lasted >= self.settings.restarting.healthy_after {
                        self.reset_backoff();
                    }
                    self.wait_after_failure(&failure, panicked, desired, &mut instructions).await
                }
            };
            match transition {
                Transition::Stop(end) => {
                    break match *instructions.borrow() {
                        Instruction::End(newer) => newer,
                        Instruction::Run(_) => end,
                    };
                }
                Transition::Restart => {
                    self.reset_backoff();
                    self.panics.clear();
                }
                Transition::Continue => {}
            }
        };
        if end.report {
            self.reporter.report_unassigned();
        }
        self.reporter.close(end.report);
        tracing::info!(connector = &*self.id.connector, task = self.id.task, reported = end.report, "ended");
    }

    /// The next start handles the restarts that were requested up to these.
    fn set_handled(&mut self, restarts: RestartRevisions) {
        self.handled = restarts;
        self.reporter.set_handled_restarts(restarts);
    }

    fn reset_backoff(&mut self) {
        self.backoff.reset();
        self.failures = 0;
    }

    /// Waits until the backoff ends or an instruction ends the wait.
    async fn wait_after_failure(
        &mut self,
        failure: &Failure,
        panicked: bool,
        mut desired: DesiredState,
        instructions: &mut watch::Receiver<Instruction>,
    ) -> Transition {
        self.failures = self.failures.saturating_add(1);
        let wait = self.wait_after(failure, panicked);
        // Without the lease even a permanent failure is uncertain; the supervisor ends the instance soon.
        let has_lease = (self.lease)();
        let wait = if has_lease { wait } else { Some(wait.unwrap_or(self.settings.restarting.policy.first)) };
        self.report_failure(failure, wait, has_lease);
        let until = wait.map(|wait| Instant::now() + wait);
        loop {
            let pause = async {
                match until {
                    Some(until) => sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                changed = instructions.changed() => {
                    if changed.is_err() {
                        return Transition::Stop(self.abandoned_stop());
                    }
                    let next = instructions.borrow_and_update().clone();
                    match desired.follow(next, self.handled, true) {
                        Transition::Continue => self.set_handled(desired.restarts),
                        Transition::Restart => {
                            self.reporter.report(RunState::Restarting, None);
                            return Transition::Restart;
                        }
                        end @ Transition::Stop(_) => return end,
                    }
                }
                () = pause => return Transition::Continue,
            }
        }
    }

    /// How long to wait before the next run; `None` if there is none.
    fn wait_after(&mut self, failure: &Failure, panicked: bool) -> Option<Duration> {
        if !panicked {
            return self.backoff.next_wait(failure.retry);
        }
        let RestartPolicy { panics, panic_window, .. } = self.settings.restarting;
        let now = Instant::now();
        self.panics.push_back(now);
        self.panics.retain(|at| now.duration_since(*at) < panic_window);
        if self.panics.len() > panics as usize { None } else { self.backoff.next_wait(Retry::Later) }
    }

    fn report_failure(&self, failure: &Failure, wait: Option<Duration>, has_lease: bool) {
        let (connector, task) = (&*self.id.connector, self.id.task);
        let (kind, source) = (failure.kind, failure.source.as_ref().map(tracing::field::display));
        let Some(wait) = wait else {
            tracing::error!(connector, task, kind, error = %failure, source, "instance failed permanently; restart it after correcting the cause");
            return self.reporter.report(RunState::Failed, Some(trace::of(failure, failure.next())));
        };
        let failures = self.failures;
        if !has_lease {
            tracing::info!(connector, task, kind, error = %failure, source, "instance failed after its lease expired");
            return;
        }
        tracing::warn!(connector, task, kind, error = %failure, source, failures, ?wait, "instance failed; restarting it after the backoff");
        let next = format!("it restarts in {:.1} s; failures in a row: {failures}", wait.as_secs_f64());
        self.reporter.report(RunState::Restarting, Some(trace::of(failure, &next)));
    }

    /// The supervisor is gone: end without a report.
    fn abandoned_stop(&self) -> StopRequest {
        StopRequest { deadline: Instant::now() + self.settings.lost_grace, report: false }
    }
}
