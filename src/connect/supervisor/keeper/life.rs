//! One life of a body, from its start to its end by order, failure or panic.

use std::{sync::Arc, time::Duration};

use futures::FutureExt as _;
use tokio::{
    sync::{Notify, watch},
    task::JoinError,
    time::{Instant, sleep_until, timeout},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{Keeper, Run};
use crate::{
    config::connector::TargetState,
    connect::supervisor::{
        order::{Meaning, Order},
        trace,
    },
    plugin::Failure,
    state::statuses::RunState,
};

/// How long an aborted body may take to let go of its thread.
const ABORT_LIMIT: Duration = Duration::from_secs(1);

/// How a life ended.
pub(super) enum Life {
    /// By an order.
    Told(Meaning),
    /// By itself.
    Failed { failure: Failure, panicked: bool, lasted: Duration },
}

/// Lives one life. `order` is what the body was started with, and in the end the last order it has followed.
pub(super) async fn live(
    keeper: &mut Keeper,
    order: &mut Order,
    orders: &mut watch::Receiver<Order>,
) -> Life {
    let cancel = CancellationToken::new();
    let (target, run_target) = watch::channel(order.target);
    let (paused, run_paused) = watch::channel(is_paused(order.target));
    let (startup, rest) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let run = Run {
        config: Arc::clone(&order.config),
        target: run_target,
        paused: run_paused,
        cancel: cancel.clone(),
        startup: Arc::clone(&startup),
        rest: Arc::clone(&rest),
    };
    let is_task = keeper.id.task.is_some();
    keeper.voice.starts();
    let begun = Instant::now();
    let mut body = AbortOnDropHandle::new(tokio::spawn((keeper.body)(run)));
    let mut is_up = false;
    loop {
        tokio::select! {
            biased;
            changed = orders.changed() => {
                let meaning = match changed {
                    Err(_) => Meaning::End(keeper.abandoned()),
                    Ok(()) => {
                        let next = orders.borrow_and_update().clone();
                        let meaning = order.meaning(&next, keeper.served, false);
                        keeper.serve(next.restarts);
                        *order = next;
                        meaning
                    }
                };
                let by = match meaning {
                    Meaning::GoOn => {
                        if *target.borrow() != order.target {
                            target.send_replace(order.target);
                            paused.send_replace(is_paused(order.target));
                            if is_up && !(is_task && order.target == TargetState::Paused) {
                                keeper.voice.say(steady(order.target), None);
                            }
                        }
                        continue;
                    }
                    Meaning::Anew => {
                        keeper.voice.say(RunState::Restarting, None);
                        Instant::now() + keeper.settings.task_grace
                    }
                    Meaning::End(end) => end.by,
                };
                stop(keeper, body, &cancel, by, orders).await;
                return Life::Told(meaning);
            }
            () = startup.notified(), if !is_up => {
                is_up = true;
                keeper.voice.started();
                keeper.voice.say(steady(order.target), None);
            }
            () = rest.notified(), if is_up => {
                if order.target == TargetState::Paused {
                    keeper.voice.say(RunState::Paused, None);
                }
            }
            ended = &mut body => {
                // It may have started and ended at once.
                if !is_up && startup.notified().now_or_never().is_none() {
                    keeper.voice.did_not_start();
                }
                let (failure, panicked) = why(ended);
                return Life::Failed { failure, panicked, lasted: begun.elapsed() };
            }
        }
    }
}

/// Ends a body: cancelled, awaited until `by` or an earlier end that is ordered meanwhile, then aborted.
async fn stop(
    keeper: &Keeper,
    mut body: AbortOnDropHandle<Result<(), Failure>>,
    cancel: &CancellationToken,
    mut by: Instant,
    orders: &mut watch::Receiver<Order>,
) {
    let (connector, task) = (&*keeper.id.connector, keeper.id.task);
    cancel.cancel();
    let mut hears = true;
    loop {
        tokio::select! {
            biased;
            ended = &mut body => {
                // What it says on its way out changes nothing, but a fault should not pass unseen.
                if let (failure, true) = why(ended) {
                    tracing::warn!(connector, task, error = %failure, "panicked while it ended");
                }
                return;
            }
            () = sleep_until(by) => break,
            changed = orders.changed(), if hears => match changed {
                Ok(()) => by = orders.borrow_and_update().end.map_or(by, |end| end.by.min(by)),
                Err(_) => {
                    hears = false;
                    by = by.min(keeper.abandoned().by);
                }
            },
        }
    }
    tracing::warn!(connector, task, "did not end in time, and is aborted");
    body.abort();
    if timeout(ABORT_LIMIT, &mut body).await.is_err() {
        tracing::error!(connector, task, "blocks its thread, and is left behind");
    }
}

/// Why a body ended that nobody had told to, and whether it panicked.
fn why(ended: Result<Result<(), Failure>, JoinError>) -> (Failure, bool) {
    match ended {
        Ok(Ok(())) => (Failure::passing("Ended", "it ended although nobody had told it to"), false),
        Ok(Err(failure)) => (failure, false),
        Err(error) => match error.try_into_panic() {
            Ok(payload) => (trace::panicked(&*payload), true),
            Err(_) => (Failure::passing("Aborted", "it was aborted from outside"), false),
        },
    }
}

/// The state of an instance that does what it shall.
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
