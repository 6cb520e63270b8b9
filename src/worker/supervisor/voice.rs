//! What an instance says about itself in the status topic.
//!
//! Every status carries the claim of the instance's partition as its generation. A record of an earlier owner that comes
//! late is ignored by readers, but stands in the log as the last word; so what was said is compared with what the topic
//! shows, and said again where they differ.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use super::{Handle, Id};
use crate::worker::state::{
    Tail,
    statuses::{RunState, Status, Statuses},
    writer::StatusWriter,
};

/// Where statuses are written, and read back.
pub(super) trait Board: Send + Sync {
    /// Writes a status; never blocks, and the last word on each instance gets there if any does.
    fn put(&self, id: &Id, status: Status);

    /// The highest generation the topic has seen of an instance.
    fn generation(&self, id: &Id) -> Option<i64>;
}

/// The voice of one instance.
pub(super) struct Voice {
    id: Id,
    generation: i64,
    worker_id: Arc<str>,
    board: Arc<dyn Board>,
    handle: Handle,
    /// How long what was said may take to come back before it is said again.
    patience: Duration,
    /// What was said last, and when; `None` before the first word and after the last.
    said: Mutex<Option<(Status, Instant)>>,
}

impl Voice {
    pub(super) fn new(
        id: Id,
        generation: i64,
        worker_id: Arc<str>,
        board: Arc<dyn Board>,
        handle: Handle,
    ) -> Self {
        let patience = Duration::from_secs(5);
        Self { id, generation, worker_id, board, handle, patience, said: Mutex::default() }
    }

    pub(super) fn generation(&self) -> i64 {
        self.generation
    }

    /// Says what it is doing.
    pub(super) fn say(&self, state: RunState, trace: Option<String>) {
        let status =
            Status { state, trace, worker_id: self.worker_id.to_string(), generation: self.generation };
        self.handle.is(&self.id, self.generation, state);
        *self.said.lock().unwrap_or_else(PoisonError::into_inner) = Some((status.clone(), Instant::now()));
        self.board.put(&self.id, status);
    }

    /// Says that nobody runs it, unless somebody newer does.
    pub(super) fn say_unassigned(&self) {
        if !self.is_replaced() {
            self.say(RunState::Unassigned, None);
        }
    }

    /// Says it again if the topic shows something else, or an ignored record has the last word in the log (`shadowed`).
    pub(super) fn insist(&self, shown: Option<&Status>, shadowed: bool) {
        let said = self.said.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some((status, at)) = said else { return };
        let differs = shadowed || shown != Some(&status);
        if differs && at.elapsed() >= self.patience && !self.is_replaced() {
            tracing::info!(connector = &*self.id.connector, task = self.id.task, "status told again");
            self.say(status.state, status.trace);
        }
    }

    fn is_replaced(&self) -> bool {
        self.board.generation(&self.id).is_some_and(|generation| generation > self.generation)
    }

    /// Says no more.
    pub(super) fn fall_silent(&self) {
        *self.said.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.handle.forget(&self.id);
    }

    pub(super) fn starts(&self) {
        self.handle.starts(&self.id, self.generation);
    }

    pub(super) fn started(&self) {
        self.handle.started(&self.id);
    }

    pub(super) fn did_not_start(&self) {
        self.handle.did_not_start(&self.id);
    }
}

/// The status topic.
pub(super) struct Topic {
    pub(super) writer: StatusWriter,
    pub(super) statuses: Tail<Statuses>,
}

impl Board for Topic {
    fn put(&self, id: &Id, status: Status) {
        self.writer.put(&id.connector, id.task, &status);
    }

    fn generation(&self, id: &Id) -> Option<i64> {
        self.statuses.read(|statuses| statuses.generation(&id.connector, id.task))
    }
}

impl fmt::Debug for Voice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Voice")
            .field("id", &self.id)
            .field("generation", &self.generation)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use tokio::sync::mpsc;

    use super::*;

    /// Hands on what is put, and has seen what it is told to have seen.
    pub(in crate::worker::supervisor) struct Ear {
        pub(in crate::worker::supervisor) heard: mpsc::UnboundedSender<Status>,
        pub(in crate::worker::supervisor) generation: Option<i64>,
    }

    impl Board for Ear {
        fn put(&self, _: &Id, status: Status) {
            self.heard.send(status).ok();
        }

        fn generation(&self, _: &Id) -> Option<i64> {
            self.generation
        }
    }

    /// A voice of generation 5 on a board that has seen this generation, and what it says.
    pub(in crate::worker::supervisor) fn voice(
        seen: Option<i64>,
    ) -> (Voice, Handle, mpsc::UnboundedReceiver<Status>) {
        let (heard, said) = mpsc::unbounded_channel();
        let id = Id { connector: "c".into(), task: Some(0) };
        let handle = Handle::default();
        let board = Arc::new(Ear { heard, generation: seen });
        let mut voice = Voice::new(id, 5, "worker:8083".into(), board, handle.clone());
        voice.patience = Duration::ZERO;
        (voice, handle, said)
    }

    #[test]
    fn nobody_is_told_unassigned_once_a_newer_owner_has_spoken() {
        for (seen, told) in [(None, true), (Some(4), true), (Some(5), true), (Some(6), false)] {
            let (voice, _, mut said) = voice(seen);

            voice.say_unassigned();

            assert_eq!(said.try_recv().is_ok(), told, "{seen:?}");
        }
    }

    #[test]
    fn what_the_topic_does_not_show_is_said_again_unless_a_newer_owner_has_spoken() {
        let (voice_of_owner, _, mut said) = voice(Some(5));
        voice_of_owner.say(RunState::Failed, Some("why".into()));
        let status = said.try_recv().unwrap();

        voice_of_owner.insist(Some(&status), false);
        assert!(said.try_recv().is_err(), "it is shown");
        voice_of_owner.insist(None, false);
        assert_eq!(said.try_recv().unwrap(), status);
        voice_of_owner.insist(Some(&status), true);
        assert_eq!(said.try_recv().unwrap(), status);

        let (replaced, _, mut said) = voice(Some(6));
        replaced.say(RunState::Running, None);
        said.try_recv().unwrap();
        replaced.insist(None, true);
        assert!(said.try_recv().is_err(), "a newer owner has spoken");
    }
}
