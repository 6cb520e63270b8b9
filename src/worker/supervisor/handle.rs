//! What runs here, for health and metrics.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::SystemTime,
};

use super::Id;
use crate::worker::state::statuses::RunState;

/// A view of a supervisor. Cheap to clone and to ask.
#[derive(Debug, Clone, Default)]
pub struct Handle {
    shared: Arc<Shared>,
}

/// A connector or task this worker runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// Which.
    pub id: Id,
    /// When it was started last; `None` before the first time.
    pub started_at: Option<SystemTime>,
    /// What it does.
    pub state: RunState,
}

/// How often something was started, and what came of it. A start that is under way is only an attempt yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Startups {
    /// Starts begun.
    pub attempts: u64,
    /// Starts that led to something that runs.
    pub successes: u64,
    /// Starts that failed before that.
    pub failures: u64,
}

impl Handle {
    /// Everything that runs here, ordered by name and number.
    #[must_use]
    pub fn running(&self) -> Vec<Running> {
        self.shown().values().cloned().collect()
    }

    /// Starts of connectors on this worker.
    #[must_use]
    pub fn connector_startups(&self) -> Startups {
        self.shared.connectors.get()
    }

    /// Starts of tasks on this worker.
    #[must_use]
    pub fn task_startups(&self) -> Startups {
        self.shared.tasks.get()
    }

    pub(super) fn is(&self, id: &Id, state: RunState) {
        let mut shown = self.shown();
        shown.entry(id.clone()).and_modify(|running| running.state = state).or_insert_with(|| Running {
            id: id.clone(),
            started_at: None,
            state,
        });
    }

    pub(super) fn starts(&self, id: &Id) {
        self.counts(id).attempts.fetch_add(1, Ordering::Relaxed);
        let now = Some(SystemTime::now());
        self.shown()
            .entry(id.clone())
            .and_modify(|running| running.started_at = now)
            .or_insert_with(|| Running { id: id.clone(), started_at: now, state: RunState::Unassigned });
    }

    pub(super) fn started(&self, id: &Id) {
        self.counts(id).successes.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn did_not_start(&self, id: &Id) {
        self.counts(id).failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn forget(&self, id: &Id) {
        self.shown().remove(id);
    }

    fn counts(&self, id: &Id) -> &Counts {
        if id.task.is_some() { &self.shared.tasks } else { &self.shared.connectors }
    }

    fn shown(&self) -> MutexGuard<'_, BTreeMap<Id, Running>> {
        self.shared.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct Shared {
    shown: Mutex<BTreeMap<Id, Running>>,
    connectors: Counts,
    tasks: Counts,
}

#[derive(Debug, Default)]
struct Counts {
    attempts: AtomicU64,
    successes: AtomicU64,
    failures: AtomicU64,
}

impl Counts {
    fn get(&self) -> Startups {
        Startups {
            attempts: self.attempts.load(Ordering::Relaxed),
            successes: self.successes.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
        }
    }
}
