//! What an instance is told by the supervisor. The newest order counts; nothing is lost by missing one in between.

use std::sync::Arc;

use tokio::time::Instant;

use crate::{config::connector::TargetState, state::configs::Properties};

/// The whole of what an instance has to know.
#[derive(Debug, Clone)]
pub(super) struct Order {
    /// Its configuration.
    pub(super) config: Arc<Properties>,
    /// Which edit that is.
    pub(super) revision: i64,
    /// What it shall be doing.
    pub(super) target: TargetState,
    /// Restarts asked for so far.
    pub(super) restarts: Restarts,
    /// That it shall end.
    pub(super) end: Option<End>,
}

/// The last restarts asked for of one instance, by revision; -1 for none. Two numbers stand for any number of requests:
/// one that comes while another is served is served with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Restarts {
    /// Whatever it is doing.
    pub(super) always: i64,
    /// If it has failed.
    pub(super) if_failed: i64,
}

impl Restarts {
    /// The last of both kinds.
    pub(super) fn last(self) -> i64 {
        self.always.max(self.if_failed)
    }
}

impl Default for Restarts {
    fn default() -> Self {
        Self { always: -1, if_failed: -1 }
    }
}

/// How an instance ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct End {
    /// When patience ends: what runs then is aborted.
    pub(super) by: Instant,
    /// Whether the status topic is told that nobody runs it. Not if it is gone, since its status goes too, nor if the
    /// partition was lost, since a successor may have spoken already.
    pub(super) told: bool,
}

/// What an order means for an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Go on, perhaps towards another target.
    GoOn,
    /// Start anew, as if for the first time.
    Anew,
    /// End.
    End(End),
}

impl Order {
    /// What `next` means for an instance that follows this order, has served these restarts, and has failed or not.
    pub(super) fn meaning(&self, next: &Self, served: Restarts, failed: bool) -> Meaning {
        if let Some(end) = next.end {
            return Meaning::End(end);
        }
        let edited = self.config != next.config;
        let asked = next.restarts.always > served.always;
        // Written again to the same words, a configuration is still a reason to try again; and a stopped connector has
        // nothing that could have failed.
        let retried = failed
            && (next.revision != self.revision
                || next.restarts.if_failed > served.if_failed
                || (next.target == TargetState::Stopped && self.target != TargetState::Stopped));
        if edited || asked || retried { Meaning::Anew } else { Meaning::GoOn }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order() -> Order {
        let config = Arc::new(Properties::from([("topic".to_owned(), "a".to_owned())]));
        Order { config, revision: 5, target: TargetState::Running, restarts: Restarts::default(), end: None }
    }

    #[test]
    fn only_what_concerns_an_instance_makes_it_start_anew() {
        let other = Arc::new(Properties::from([("topic".to_owned(), "b".to_owned())]));
        let same = Arc::new((*order().config).clone());
        let restarts = |always, if_failed| Restarts { always, if_failed };
        // What changes, and whether that restarts a healthy instance and a failed one.
        let table = [
            ("nothing", order(), false, false),
            ("the configuration", Order { config: other, ..order() }, true, true),
            ("the same again", Order { config: same, revision: 6, ..order() }, false, true),
            ("a restart", Order { restarts: restarts(7, -1), ..order() }, true, true),
            ("one served before", Order { restarts: restarts(3, 3), ..order() }, false, false),
            ("one of what failed", Order { restarts: restarts(-1, 7), ..order() }, false, true),
            ("a pause", Order { target: TargetState::Paused, ..order() }, false, false),
            ("a stop", Order { target: TargetState::Stopped, ..order() }, false, true),
        ];
        let served = restarts(3, 3);

        for (what, next, healthy, failed) in table {
            let anew = |has_failed| order().meaning(&next, served, has_failed) == Meaning::Anew;

            assert_eq!((anew(false), anew(true)), (healthy, failed), "{what}");
        }
    }

    #[test]
    fn an_end_comes_before_everything_else() {
        let end = End { by: Instant::now(), told: true };
        let next =
            Order { revision: 9, restarts: Restarts { always: 9, if_failed: 9 }, end: Some(end), ..order() };

        assert_eq!(order().meaning(&next, Restarts::default(), true), Meaning::End(end));
    }
}
