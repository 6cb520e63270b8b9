//! A delivery's copy in the spool, and what its sender is told of it.

use std::{
    pin::pin,
    sync::{Arc, atomic::Ordering},
};

use tokio::time::{Instant, timeout_at};

use base::{failpoint, retry::Chain};

use super::{Item, Line, Outcome, Shared, sinks::Sinks, verdict::Answer};
use crate::spool::Entry;

impl<S: Sinks> Shared<S> {
    /// Appends a copy to the spool. Where that cannot be done, Kafka has until the last moment.
    pub(super) async fn store_or_wait(
        &self,
        line: &Line,
        item: &Arc<Item>,
        since: Instant,
        answer: &mut Answer,
    ) {
        if !self.store(line, item, since, answer).await {
            let published = timeout_at(since + self.times.last, item.published.wait()).await;
            answer.give(if published.is_ok() { Outcome::Durable } else { Outcome::Full });
        }
    }

    /// Appends a copy to the spool and answers with what came of it, or with [`Outcome::Late`] where nothing does in time.
    /// Whether it was stored.
    pub(super) async fn store(
        &self,
        line: &Line,
        item: &Arc<Item>,
        since: Instant,
        answer: &mut Answer,
    ) -> bool {
        item.copied.store(true, Ordering::Release);
        let entry = Entry {
            lane: line.id.clone(),
            sequence: item.sequence,
            payload: item.delivery.to_entry(&item.positions),
        };
        let mut append = pin!(self.spool.append(entry));
        let stored = match timeout_at(since + self.times.last, append.as_mut()).await {
            Ok(stored) => stored,
            Err(_) => {
                answer.give(Outcome::Late);
                append.await
            }
        };
        if stored.is_ok() {
            failpoint::reach("intake.spooled");
        }
        // Kafka may have taken it while the disk was at it.
        if item.published.initialized() {
            self.spool.remove(&line.id, item.sequence);
            answer.give(Outcome::Durable);
            return true;
        }
        match &stored {
            Ok(()) => answer.give(Outcome::Durable),
            Err(error) => {
                tracing::debug!(error = %Chain(error), "a delivery could not be stored");
            }
        }
        stored.is_ok()
    }
}
