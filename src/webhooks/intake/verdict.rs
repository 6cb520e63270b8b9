//! One answer for all parts of a delivery.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use super::{Outcome, seen::Ticket};

/// How a delivery of several parts ends, told once all of them have.
pub(super) struct Verdict {
    inner: Mutex<Inner>,
}

struct Inner {
    open: usize,
    outcome: Outcome,
    ticket: Option<Ticket>,
    sender: Option<oneshot::Sender<Outcome>>,
}

impl Verdict {
    pub(super) fn of(parts: usize, ticket: Option<Ticket>) -> (Arc<Self>, oneshot::Receiver<Outcome>) {
        let (sender, receiver) = oneshot::channel();
        let inner = Inner { open: parts, outcome: Outcome::Durable, ticket, sender: Some(sender) };
        let verdict = Self { inner: Mutex::new(inner) };
        verdict.tell_if_done();
        (Arc::new(verdict), receiver)
    }

    fn part(&self, outcome: Outcome) {
        {
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            inner.open = inner.open.saturating_sub(1);
            if outcome != Outcome::Durable {
                inner.outcome = outcome;
            }
        }
        self.tell_if_done();
    }

    fn tell_if_done(&self) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.open > 0 {
            return;
        }
        let outcome = inner.outcome;
        if let Some(ticket) = inner.ticket.take() {
            ticket.end(outcome);
        }
        // Nobody listens any more where the sender has hung up.
        inner.sender.take().map(|sender| sender.send(outcome).ok());
    }
}

/// The answer for one part, given once. `None` once it has been, or where nobody asks.
pub(super) struct Answer(pub(super) Option<Arc<Verdict>>);

impl Answer {
    pub(super) fn give(&mut self, outcome: Outcome) {
        if let Some(verdict) = self.0.take() {
            verdict.part(outcome);
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.0.is_some()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.give(Outcome::Late);
    }
}
