//! One run of a body, from its start until an instruction, a failure or a panic ends it.

use std::{sync::Arc, time::Duration};

use futures::FutureExt as _;
use tokio::{
    sync::{Notify, watch},
    task::JoinError,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{BodyContext, InstanceRunner};
use crate::{
    config::connector::TargetState,
    connect::supervisor::{
        desired_state::{DesiredState, Instruction, Transition},
        trace,
    },
    plugin::Failure,
    state::statuses::RunState,
};

/// How long to wait for an aborted body to release its thread.
const ABORT_LIMIT: Duration = Duration::from_secs(1);

/// How a run ended.
pub(super) enum RunOutcome {
    /// An instruction ended it.
    Changed(Transition),
    /// The body ended or panicked.
    Failed { failure: Failure, panicked: bool, lasted: Duration },
}

/// Runs the body once. `desired` is the state it is started with; afterwards it is the last state it has followed.
pub(super) async fn run_once(
    runner: &mut InstanceRunner,
    desired: &mut DesiredState,
    instructions: &mut watch::Receiver<Instruction>,
) -> RunOutcome {
    let cancel = CancellationToken::new();
    let (target, run_target) = watch::channel(desired.target);
    let (paused, run_paused) = watch::channel(is_paused(desired.target));
    let (startup, pause_reached) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let run = BodyContext {
        config: Arc::clone(&desired.config),
        target: run_target,
        paused: run_paused,
        cancel: cancel.clone(),
        startup: Arc::clone(&startup),
        pause_reached: Arc::clone(&pause_reached),
    };
    let is_task = runner.id.task.is_some();
    runner.reporter.start_attempted();
    let begun = Instant::now();
    let mut body = AbortOnDropHandle::new(tokio::spawn((runner.body)(run)));
    let mut is_up = false;
    loop {
        tokio::select! {
            biased;
            changed = instructions.changed() => {
                let transition = match changed {
                    Err(_) => Transition::Stop(runner.abandoned_stop()),
                    Ok(()) => {
                        let next = instructions.borrow_and_update().clone();
                        let transition = desired.follow(next, runner.handled, false);
                        runner.set_handled(desired.restarts);
                        transition
                    }
                };
                let by = match transition {
                    Transition::Continue => {
                        if *target.borrow() != desired.target {
                            target.send_replace(desired.target);
                            paused.send_replace(is_paused(desired.target));
                            if is_up && !(is_task && desired.target == TargetState::Paused) {
                                runner.reporter.report(steady(desired.target), None);
                            }
                        }
                        continue;
                    }
                    Transition::Restart => {
                        runner.reporter.report(RunState::Restarting, None);
                        Instant::now() + runner.settings.task_grace
                    }
                    Transition::Stop(end) => end.deadline,
                };
                stop(runner, body, &cancel, by, instructions).await;
                return RunOutcome::Changed(transition);
            }
            () = startup.notified(), if !is_up => {
                is_up = true;
                runner.reporter.start_succeeded();
                runner.reporter.report(steady(desired.target), None);
            }
            () = pause_reached.notified(), if is_up => {
                if desired.target == TargetState::Paused {
                    runner.reporter.report(RunState::Paused, None);
                }
            }
            ended = &mut body => {
                // It may have reported its start and ended at once.
                if !is_up && startup.notified().now_or_never().is_none() {
                    runner.reporter.start_failed();
                }
                let (failure, panicked) = outcome(ended);
                return RunOutcome::Failed { failure, panicked, lasted: begun.elapsed() };
            }
        }
    }
}

/// Ends a body: cancels it, waits until `by` or an earlier deadline that arrives meanwhile, then aborts it.
async fn stop(
    runner: &InstanceRunner,
    mut body: AbortOnDropHandle<Result<(), Failure>>,
    cancel: &CancellationToken,
    mut by: Instant,
    instructions: &mut watch::Receiver<Instruction>,
) {
    let (connector, task) = (&*runner.id.connector, runner.id.task);
    cancel.cancel();
    let mut hears = true;
    loop {
        tokio::select! {
            biased;
            ended = &mut body => {
                // Its result changes nothing, but log a panic.
                if let (failure, true) = outcome(ended) {
                    tracing::warn!(connector, task, error = %failure, "instance panicked while it ended");
                }
                return;
            }
            () = sleep_until(by) => break,
            changed = instructions.changed(), if hears => match changed {
                Ok(()) => {
                    if let Instruction::End(end) = *instructions.borrow_and_update() {
                        by = by.min(end.deadline);
                    }
                }
                Err(_) => {
                    hears = false;
                    by = by.min(runner.abandoned_stop().deadline);
                }
            },
        }
    }
    tracing::warn!(connector, task, "instance did not end before its deadline; aborting it");
    body.abort();
    if timeout(ABORT_LIMIT, &mut body).await.is_err() {
        tracing::error!(
            connector,
            task,
            "instance still blocks its thread after the abort; leaving it behind"
        );
    }
}

/// The failure of a body that ended without being cancelled, and whether it panicked.
fn outcome(ended: Result<Result<(), Failure>, JoinError>) -> (Failure, bool) {
    match ended {
        Ok(Ok(())) => (Failure::retryable("Ended", "the instance ended without being asked to"), false),
        Ok(Err(failure)) => (failure, false),
        Err(error) => match error.try_into_panic() {
            Ok(payload) => (trace::panicked(&*payload), true),
            Err(_) => (Failure::retryable("Aborted", "the instance was aborted from outside"), false),
        },
    }
}

/// The state to report once the instance has reached its target.
fn steady(target: TargetState) -> RunState {
    match target {
        TargetState::Running => RunState::Running,
        TargetState::Paused => RunState::Paused,
        TargetState::Stopped => RunState::Stopped,
    }
}

fn is_paused(target: TargetState) -> bool {
    target != TargetState::Running
}
