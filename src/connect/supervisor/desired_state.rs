//! The desired state of an instance, sent by the supervisor. Only the newest counts: an instance may miss those in between.

use std::sync::Arc;

use tokio::time::Instant;

use crate::{config::connector::TargetState, state::configs::Properties};

/// The whole of what an instance has to know.
#[derive(Debug, Clone)]
pub(super) struct DesiredState {
    /// Its configuration.
    pub(super) config: Arc<Properties>,
    /// Which edit that is.
    pub(super) revision: i64,
    /// What it shall be doing.
    pub(super) target: TargetState,
    /// Restarts requested so far.
    pub(super) restarts: RestartRevisions,
    /// That it shall end.
    pub(super) end: Option<StopRequest>,
}

/// The last restarts asked for of one instance, by revision; -1 for none. Two numbers cover any number of
/// requests: one that comes while another is served is served with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RestartRevisions {
    /// Whatever it is doing.
    pub(super) always: i64,
    /// If it has failed.
    pub(super) if_failed: i64,
}

impl RestartRevisions {
    /// The last of both kinds.
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
    /// When patience ends: what runs then is aborted.
    pub(super) deadline: Instant,
    /// Whether to report UNASSIGNED. Not for a deleted instance, whose status is removed, nor after the partition was lost,
    /// since the successor may have reported already.
    pub(super) report: bool,
}

/// What an order means for an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Transition {
    /// Keep running, perhaps with another target.
    Continue,
    /// Restart, as if for the first time.
    Restart,
    /// Stop the instance.
    Stop(StopRequest),
}

impl DesiredState {
    /// What `next` means for an instance that follows this order, has served these restarts, and has failed or not.
    pub(super) fn transition(&self, next: &Self, served: RestartRevisions, failed: bool) -> Transition {
        if let Some(end) = next.end {
            return Transition::Stop(end);
        }
        let edited = self.config != next.config;
        let asked = next.restarts.always > served.always;
        // Written again to the same words, a configuration is still a reason to try again; and a stopped connector has
        // nothing that could have failed.
        let retried = failed
            && (next.revision != self.revision
                || next.restarts.if_failed > served.if_failed
                || (next.target == TargetState::Stopped && self.target != TargetState::Stopped));
        if edited || asked || retried { Transition::Restart } else { Transition::Continue }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order() -> DesiredState {
        let config = Arc::new(Properties::from([("topic".to_owned(), "a".to_owned())]));
        DesiredState {
            config,
            revision: 5,
            target: TargetState::Running,
            restarts: RestartRevisions::default(),
            end: None,
        }
    }

    #[test]
    fn only_relevant_changes_restart_an_instance() {
        let other = Arc::new(Properties::from([("topic".to_owned(), "b".to_owned())]));
        let same = Arc::new((*order().config).clone());
        let restarts = |always, if_failed| RestartRevisions { always, if_failed };
        // What changes, and whether that restarts a healthy instance and a failed one.
        let table = [
            ("nothing", order(), false, false),
            ("the configuration", DesiredState { config: other, ..order() }, true, true),
            ("the same again", DesiredState { config: same, revision: 6, ..order() }, false, true),
            ("a restart", DesiredState { restarts: restarts(7, -1), ..order() }, true, true),
            ("one served before", DesiredState { restarts: restarts(3, 3), ..order() }, false, false),
            ("one of what failed", DesiredState { restarts: restarts(-1, 7), ..order() }, false, true),
            ("a pause", DesiredState { target: TargetState::Paused, ..order() }, false, false),
            ("a stop", DesiredState { target: TargetState::Stopped, ..order() }, false, true),
        ];
        let served = restarts(3, 3);

        for (what, next, healthy, failed) in table {
            let anew = |has_failed| order().transition(&next, served, has_failed) == Transition::Restart;

            assert_eq!((anew(false), anew(true)), (healthy, failed), "{what}");
        }
    }

    #[test]
    fn an_end_comes_before_everything_else() {
        let end = StopRequest { deadline: Instant::now(), report: true };
        let next = DesiredState {
            revision: 9,
            restarts: RestartRevisions { always: 9, if_failed: 9 },
            end: Some(end),
            ..order()
        };

        assert_eq!(order().transition(&next, RestartRevisions::default(), true), Transition::Stop(end));
    }
}
