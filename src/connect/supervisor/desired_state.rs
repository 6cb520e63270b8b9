//! What the supervisor tells an instance. Only the newest counts: an instance may miss those in between.

use std::sync::Arc;

use tokio::time::Instant;

use crate::{config::connector::TargetState, state::configs::Properties};

/// What an instance has to do. Nothing follows [`Self::End`] but an earlier end.
#[derive(Debug, Clone)]
pub(super) enum Instruction {
    /// Run, in this state.
    Run(DesiredState),
    /// End.
    End(StopRequest),
}

/// How an instance has to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DesiredState {
    /// Its configuration.
    pub(super) config: Arc<Properties>,
    /// Offset in the config topic of the record that sets it: `connector-N` for a connector, `commit-N` for a task.
    pub(super) revision: i64,
    /// The state it should be in.
    pub(super) target: TargetState,
    /// Restarts requested so far.
    pub(super) restarts: RestartRevisions,
}

/// The last restarts requested for one instance: offsets of the requests in the config topic; -1 for none. Two numbers cover any
/// number of requests: one restart handles every request that has arrived by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RestartRevisions {
    /// Restarts that apply in any state.
    pub(super) always: i64,
    /// Restarts that apply only to a failed instance.
    pub(super) if_failed: i64,
}

impl RestartRevisions {
    /// The later of the two.
    pub(super) fn last(self) -> i64 {
        self.always.max(self.if_failed)
    }
}

impl Default for RestartRevisions {
    fn default() -> Self {
        Self { always: -1, if_failed: -1 }
    }
}

/// How an instance ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StopRequest {
    /// When the instance is aborted if it has not ended.
    pub(super) deadline: Instant,
    /// Whether to report UNASSIGNED. Not for a deleted instance, whose status is removed, nor after the partition was lost,
    /// since the successor may have reported already.
    pub(super) report: bool,
}

/// What a changed desired state means for an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transition {
    /// Keep running, perhaps with another target.
    Continue,
    /// Restart, as if for the first time.
    Restart,
    /// Stop the instance.
    Stop(StopRequest),
}

impl StopRequest {
    /// Both requests: the earlier deadline, and no report if one of them wants none.
    pub(super) fn merged(self, other: Self) -> Self {
        Self { deadline: self.deadline.min(other.deadline), report: self.report && other.report }
    }
}

impl DesiredState {
    /// What an instruction means for an instance in this state that has handled these restarts, and has failed or not. The state
    /// becomes the new one.
    pub(super) fn follow(
        &mut self,
        next: Instruction,
        handled: RestartRevisions,
        failed: bool,
    ) -> Transition {
        match next {
            Instruction::End(end) => Transition::Stop(end),
            Instruction::Run(next) => {
                let transition = self.transition(&next, handled, failed);
                *self = next;
                transition
            }
        }
    }

    /// [`Self::follow`] for a desired state, without taking it.
    pub(super) fn transition(&self, next: &Self, handled: RestartRevisions, failed: bool) -> Transition {
        let edited = self.config != next.config;
        let asked = next.restarts.always > handled.always;
        // A failed instance retries when its record is written again, even unchanged: `connector-N` for a connector, a new `commit-N`
        // for a task. It also retries when its connector is stopped: a stopped connector has nothing that could have failed.
        let retried = failed
            && (next.revision != self.revision
                || next.restarts.if_failed > handled.if_failed
                || (next.target == TargetState::Stopped && self.target != TargetState::Stopped));
        if edited || asked || retried { Transition::Restart } else { Transition::Continue }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn desired() -> DesiredState {
        let config = Arc::new(Properties::from([("topic".to_owned(), "a".to_owned())]));
        DesiredState {
            config,
            revision: 5,
            target: TargetState::Running,
            restarts: RestartRevisions::default(),
        }
    }

    #[test]
    fn only_relevant_changes_restart_an_instance() {
        let other = Arc::new(Properties::from([("topic".to_owned(), "b".to_owned())]));
        let same = Arc::new((*desired().config).clone());
        let restarts = |always, if_failed| RestartRevisions { always, if_failed };
        // The change, and whether it restarts a healthy instance and a failed one.
        let table = [
            ("nothing", desired(), false, false),
            ("the configuration", DesiredState { config: other, ..desired() }, true, true),
            ("the same again", DesiredState { config: same, revision: 6, ..desired() }, false, true),
            ("a restart", DesiredState { restarts: restarts(7, -1), ..desired() }, true, true),
            ("one handled before", DesiredState { restarts: restarts(3, 3), ..desired() }, false, false),
            ("one of what failed", DesiredState { restarts: restarts(-1, 7), ..desired() }, false, true),
            ("a pause", DesiredState { target: TargetState::Paused, ..desired() }, false, false),
            ("a stop", DesiredState { target: TargetState::Stopped, ..desired() }, false, true),
        ];
        let handled = restarts(3, 3);

        for (what, next, healthy, failed) in table {
            let is_restart =
                |has_failed| desired().transition(&next, handled, has_failed) == Transition::Restart;

            assert_eq!((is_restart(false), is_restart(true)), (healthy, failed), "{what}");
        }
    }

    #[test]
    fn later_stops_never_move_the_end_back() {
        let now = Instant::now();
        let late = StopRequest { deadline: now + std::time::Duration::from_secs(1), report: true };
        let silent = StopRequest { deadline: now, report: false };

        assert_eq!([late.merged(silent), silent.merged(late)], [silent; 2]);
    }
}
