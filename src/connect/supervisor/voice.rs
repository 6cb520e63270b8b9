//! What an instance says about itself in the status topic.
//!
//! Every status carries the claim of the instance's partition as its generation. A record of an earlier owner that comes
//! late is ignored by readers, but stands in the log as the last word; so what was said is compared with what the topic
//! shows, and said again where they differ. That is soon where the topic shows nothing: a status that was swept with its
//! deleted connector may be that of the connector's successor.
//!
//! Only who surely holds the partition compares. A higher generation than its own then cannot be: the work topic was made
//! anew, or somebody else writes here. It is removed, and what was said stands behind the removal.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Handle, Id, order::Restarts};
use crate::state::{
    Tail,
    statuses::{RunState, Status, Statuses},
    writer::StatusWriter,
};

/// Where statuses are written, and read back.
pub(super) trait Board: Send + Sync {
    /// Writes a status; never blocks, and the last word on each instance gets there if any does.
    fn put(&self, id: &Id, status: Status);

    /// The same, behind a removal that makes every reader forget a higher generation.
    fn put_anew(&self, id: &Id, status: Status);

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
    /// The same for the first time where the topic shows nothing, or what cannot be.
    impatience: Duration,
    /// `None` before the first word and after the last.
    said: Mutex<Option<Said>>,
    /// Revision of the last restart that the instance has seen.
    served: AtomicI64,
}

/// What was said last.
#[derive(Clone)]
struct Said {
    status: Status,
    at: Instant,
    /// It was said before, and was not shown.
    again: bool,
}

/// What the topic shows of an instance.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shown<'a> {
    pub(super) status: Option<&'a Status>,
    /// The highest generation known.
    pub(super) generation: Option<i64>,
    /// An ignored record has the last word in the log.
    pub(super) shadowed: bool,
}

/// How what was said stands to what is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Comparison {
    /// It is shown.
    Same,
    /// It may be on its way, and is looked for again soon.
    Waits,
    /// It has to be said again, behind a removal or not.
    Missing { anew: bool },
}

impl Voice {
    pub(super) fn new(
        id: Id,
        generation: i64,
        worker_id: Arc<str>,
        board: Arc<dyn Board>,
        handle: Handle,
    ) -> Self {
        let (patience, impatience) = (Duration::from_secs(5), Duration::from_millis(500));
        let (said, served) = (Mutex::default(), AtomicI64::new(-1));
        Self { id, generation, worker_id, board, handle, patience, impatience, said, served }
    }

    /// The instance has seen restarts up to this one: what it says from now on is from after it.
    pub(super) fn serves(&self, restarts: Restarts) {
        self.served.store(restarts.last(), Ordering::Relaxed);
    }

    pub(super) fn generation(&self) -> i64 {
        self.generation
    }

    /// Says what it is doing.
    pub(super) fn say(&self, state: RunState, trace: Option<String>) {
        let status = Status {
            state,
            trace,
            worker_id: self.worker_id.to_string(),
            generation: self.generation,
            served: Some(self.served.load(Ordering::Relaxed)),
        };
        self.handle.is(&self.id, state);
        let said = Said { status: status.clone(), at: Instant::now(), again: false };
        *self.said.lock() = Some(said);
        self.board.put(&self.id, status);
    }

    /// Says that nobody runs it, unless somebody newer does.
    pub(super) fn say_unassigned(&self) {
        if !self.is_replaced() {
            self.say(RunState::Unassigned, None);
        }
    }

    /// Compares what was said with what the topic shows. For one who surely holds the partition.
    pub(super) fn compare(&self, shown: Shown<'_>) -> Comparison {
        let mut said = self.said.lock();
        let Some(Said { status, at, again }) = said.as_mut() else { return Comparison::Same };
        if !shown.shadowed && shown.status == Some(status) {
            // The next time it is missing is another one.
            *again = false;
            return Comparison::Same;
        }
        let anew = shown.generation.is_some_and(|generation| generation > self.generation);
        let wrong = anew || shown.status.is_none();
        let patience = if wrong && !*again { self.impatience } else { self.patience };
        if at.elapsed() >= patience { Comparison::Missing { anew } } else { Comparison::Waits }
    }

    /// Says it again.
    pub(super) fn insist(&self, anew: bool) {
        let (connector, task, generation) = (&*self.id.connector, self.id.task, self.generation);
        let mut said = self.said.lock();
        let Some(said) = said.as_mut() else { return };
        (said.at, said.again) = (Instant::now(), true);
        if anew {
            tracing::warn!(connector, task, generation, "a higher generation that cannot be is removed");
            self.board.put_anew(&self.id, said.status.clone());
        } else {
            tracing::debug!(connector, task, generation, "status told again");
            self.board.put(&self.id, said.status.clone());
        }
    }

    fn is_replaced(&self) -> bool {
        self.board.generation(&self.id).is_some_and(|generation| generation > self.generation)
    }

    /// Says no more. `told`: the topic knows that it has ended; otherwise this worker remembers that the last word there
    /// is no longer true.
    pub(super) fn fall_silent(&self, told: bool) {
        match self.said.lock().take() {
            Some(said) if !told => self.handle.forget_unsaid(&self.id, &said.status),
            _ => self.handle.forget(&self.id),
        }
    }

    pub(super) fn starts(&self) {
        self.handle.starts(&self.id);
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

    fn put_anew(&self, id: &Id, status: Status) {
        self.writer.put_anew(&id.connector, id.task, &status);
    }

    fn generation(&self, id: &Id) -> Option<i64> {
        self.statuses.read(|statuses| statuses.generation(&id.connector, id.task))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use tokio::sync::mpsc;

    use super::*;

    /// Hands on what is put, behind an empty word where it is put anew, and has seen what it is told to have seen.
    pub(in crate::connect::supervisor) struct Ear {
        pub(in crate::connect::supervisor) heard: mpsc::UnboundedSender<Status>,
        pub(in crate::connect::supervisor) generation: Option<i64>,
    }

    impl Board for Ear {
        fn put(&self, _: &Id, status: Status) {
            self.heard.send(status).ok();
        }

        fn put_anew(&self, id: &Id, status: Status) {
            let removal = Status { state: RunState::Unassigned, worker_id: String::new(), ..status.clone() };
            self.put(id, removal);
            self.put(id, status);
        }

        fn generation(&self, _: &Id) -> Option<i64> {
            self.generation
        }
    }

    /// A voice of generation 5 on a board that has seen this generation, and what it says.
    pub(in crate::connect::supervisor) fn voice(
        seen: Option<i64>,
    ) -> (Voice, Handle, mpsc::UnboundedReceiver<Status>) {
        let (heard, said) = mpsc::unbounded_channel();
        let id = Id { connector: "c".into(), task: Some(0) };
        let handle = Handle::default();
        let board = Arc::new(Ear { heard, generation: seen });
        let mut voice = Voice::new(id, 5, "worker:8083".into(), board, handle.clone());
        (voice.patience, voice.impatience) = (Duration::ZERO, Duration::ZERO);
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

    fn shown(status: Option<&Status>, generation: Option<i64>, shadowed: bool) -> Shown<'_> {
        Shown { status, generation, shadowed }
    }

    const MISSING: Comparison = Comparison::Missing { anew: false };

    #[test]
    fn what_the_topic_does_not_show_has_to_be_said_again() {
        let (voice, _, mut said) = voice(Some(5));
        assert_eq!(voice.compare(shown(None, None, false)), Comparison::Same, "nothing has been said");
        voice.say(RunState::Failed, Some("why".into()));
        let status = said.try_recv().unwrap();
        let other = Status { state: RunState::Running, ..status.clone() };

        assert_eq!(voice.compare(shown(Some(&status), Some(5), false)), Comparison::Same);
        assert_eq!(voice.compare(shown(None, Some(5), false)), MISSING);
        assert_eq!(voice.compare(shown(Some(&other), Some(4), false)), MISSING);
        assert_eq!(voice.compare(shown(Some(&status), Some(5), true)), MISSING, "an ignored record is last");
        voice.insist(false);

        assert_eq!(said.try_recv().unwrap(), status);
        voice.fall_silent(true);
        voice.insist(false);
        assert!(said.try_recv().is_err(), "it has fallen silent");
    }

    #[test]
    fn a_higher_generation_than_that_of_the_owner_is_removed_before_what_was_said() {
        let (voice, _, mut said) = voice(Some(6));
        voice.say(RunState::Running, None);
        let status = said.try_recv().unwrap();
        let foreign = Status { generation: 6, worker_id: "other:1".into(), ..status.clone() };

        let found = voice.compare(shown(Some(&foreign), Some(6), false));
        voice.insist(true);

        assert_eq!(found, Comparison::Missing { anew: true });
        assert_eq!(said.try_recv().unwrap().worker_id, "", "the removal");
        assert_eq!(said.try_recv().unwrap(), status);
    }

    #[test]
    fn nothing_shown_is_borne_less_long_than_something_else_but_once_each_time() {
        let (mut voice, _, mut said) = voice(Some(5));
        (voice.patience, voice.impatience) = (Duration::from_secs(3600), Duration::ZERO);
        voice.say(RunState::Running, None);
        let older = Status { generation: 4, ..said.try_recv().unwrap() };

        assert_eq!(voice.compare(shown(Some(&older), Some(4), false)), Comparison::Waits);
        assert_eq!(voice.compare(shown(None, Some(5), false)), MISSING);
        voice.insist(false);

        assert_eq!(voice.compare(shown(None, Some(5), false)), Comparison::Waits, "it was just said again");
        let back = said.try_recv().unwrap();
        assert_eq!(voice.compare(shown(Some(&back), Some(5), false)), Comparison::Same);
        assert_eq!(voice.compare(shown(None, Some(5), false)), MISSING, "shown once, it may be lost again");
    }

    #[test]
    fn an_end_that_nobody_was_told_of_is_remembered_by_the_last_word() {
        for (told, remembered) in [(false, true), (true, false)] {
            let (voice, handle, mut said) = voice(Some(5));
            voice.say(RunState::Running, None);
            let status = said.try_recv().unwrap();

            voice.fall_silent(told);

            assert_eq!(handle.ended("c", Some(0), &status), remembered);
            assert!(handle.running().is_empty());
        }
    }
}
