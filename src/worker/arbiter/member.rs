//! Those who wait for the writer, and what they are told.

use std::collections::VecDeque;

use bytes::Bytes;
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::draft::{Ending, Message, Outcome, Turn};

/// Messages that one who waits may have before it: a turn that it has not taken yet, and that there will be no other.
pub(super) const MESSAGES: usize = 2;

/// An edit that waits for its turn.
pub(super) struct Request {
    /// When its caller gives up.
    pub(super) end: Instant,
    /// Whether what is left hanging beside the config topic has to be ended for it.
    pub(super) thorough: bool,
    pub(super) turns: mpsc::Sender<Message>,
}

/// An edit that has come to the writer.
pub(super) struct Member {
    pub(super) request: Request,
    pub(super) attempts: u32,
    /// Was part of a transaction that Kafka refused for good: the next one is its own, which tells whose fault it was.
    pub(super) alone: bool,
}

/// One that has decided and waits for the outcome.
pub(super) struct Decided {
    pub(super) member: Member,
    pub(super) outcome: oneshot::Sender<Outcome>,
}

/// A transaction whose outcome is not known, and whose it is.
pub(super) struct Unsure {
    pub(super) id: Bytes,
    pub(super) members: Vec<Decided>,
}

impl Member {
    pub(super) fn new(request: Request) -> Self {
        Self { request, attempts: 0, alone: false }
    }

    pub(super) fn is_there(&self) -> bool {
        !self.request.turns.is_closed()
    }

    /// Gives it a turn; not where it has one that it has not taken, nor where nobody waits any more.
    pub(super) fn give(&self, turn: Turn) -> bool {
        let is_free = self.request.turns.capacity() == MESSAGES;
        is_free && self.request.turns.try_send(Message::Turn(turn)).is_ok()
    }

    pub(super) fn end(self, ending: Ending) {
        // There is always room for it; a caller that has left needs it no more.
        self.request.turns.try_send(Message::Over(ending)).ok();
    }
}

impl Unsure {
    pub(super) fn is_awaited(&self) -> bool {
        self.members.iter().any(|one| one.member.is_there())
    }
}

pub(super) fn done(members: Vec<Decided>) {
    for Decided { outcome, .. } in members {
        // A caller that has left has had its answer.
        outcome.send(Outcome::Done).ok();
    }
}

/// Back to the front, in their order.
pub(super) fn again(members: Vec<Decided>, waiting: &mut VecDeque<Member>) {
    for Decided { member, outcome } in members.into_iter().rev() {
        drop(outcome);
        waiting.push_front(member);
    }
}
