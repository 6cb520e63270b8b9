//! What goes from the writer to those who wait and back: a draft of the next transaction, and what became of it.

use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use tokio::sync::oneshot;

use model::EncodedRecord;

use super::Changes;
use crate::worker::state::{
    Tail,
    configs::{Configs, Write},
};

/// A transaction that is being put together.
pub(super) struct Draft {
    configs: Tail<Configs>,
    /// The state with the first `foreseen.1` writes in it; made for the first who decides after somebody has written.
    foreseen: Option<(Configs, usize)>,
    pub(super) writes: Vec<Write>,
    pub(super) along: Vec<EncodedRecord>,
    /// Those who have decided, refusals included.
    pub(super) decisions: usize,
}

impl Draft {
    pub(super) fn new(configs: Tail<Configs>) -> Self {
        Self { configs, foreseen: None, writes: Vec::new(), along: Vec::new(), decisions: 0 }
    }

    /// Lets one more decide, and keeps what it wants written.
    fn add<T, R>(&mut self, decide: impl Fn(&Configs) -> Result<(T, Changes), R>) -> Result<T, R> {
        let decided = if self.writes.is_empty() {
            self.configs.read(decide)
        } else {
            let start = || (self.configs.read(Configs::clone), 0);
            let (mut configs, seen) = self.foreseen.take().unwrap_or_else(start);
            configs.foresee(&self.writes[seen..]);
            let (configs, _) = self.foreseen.insert((configs, self.writes.len()));
            decide(configs)
        };
        self.decisions += 1;
        let (result, changes) = decided?;
        if !changes.writes.is_empty() {
            self.writes.extend(changes.writes);
            self.along.extend(changes.along);
        }
        Ok(result)
    }
}

/// What one who waits is told.
pub(super) enum Message {
    Turn(Turn),
    /// There will be no turn any more.
    Over(Ending),
}

/// What became of a decision. Without a word: it has to be made again.
pub(super) enum Outcome {
    /// It stands: what was to be written is written and read, what was refused is refused by what is in the topic.
    Done,
    Over(Ending),
}

/// Why there will be no further turn.
pub(super) enum Ending {
    Conflict { attempts: u32 },
    Failed(kafka::Error),
}

/// Somebody's turn to decide.
pub(super) struct Turn {
    slot: Slot,
    decided: oneshot::Sender<()>,
    outcome: oneshot::Receiver<Outcome>,
}

/// Where the draft lies during a turn. The writer takes it back, so that nobody adds to it when the turn is over.
type Slot = Arc<Mutex<Option<Draft>>>;

/// The writer's side of a turn.
pub(super) struct Given {
    slot: Slot,
    pub(super) decided: oneshot::Receiver<()>,
    pub(super) outcome: oneshot::Sender<Outcome>,
}

impl Turn {
    pub(super) fn new(draft: Draft) -> (Self, Given) {
        let slot = Arc::new(Mutex::new(Some(draft)));
        let (decided, hears_decided) = oneshot::channel();
        let (tells_outcome, outcome) = oneshot::channel();
        let given = Given { slot: Arc::clone(&slot), decided: hears_decided, outcome: tells_outcome };
        (Self { slot, decided, outcome }, given)
    }

    /// Decides; `None` where the turn was over before it was taken.
    pub(super) fn take<T, R>(
        self,
        decide: impl Fn(&Configs) -> Result<(T, Changes), R>,
    ) -> (Option<Result<T, R>>, oneshot::Receiver<Outcome>) {
        let mut slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        let decided = slot.as_mut().map(|draft| draft.add(decide));
        drop(slot);
        if decided.is_some() {
            // Nobody listens any more where the writer was ended.
            self.decided.send(()).ok();
        }
        (decided, self.outcome)
    }
}

impl Given {
    /// Takes the draft back, with what was decided; `None` while somebody is still at it.
    pub(super) fn take_back(&self) -> Option<Draft> {
        match self.slot.try_lock() {
            Ok(mut slot) => slot.take(),
            Err(TryLockError::Poisoned(slot)) => slot.into_inner().take(),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
