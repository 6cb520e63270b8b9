//! What Kafka's report means: for a record, for its lane, for its sender, and for what was relied on.

use std::sync::{Arc, atomic::Ordering};

use tokio::time::Instant;

use base::failpoint;

use super::{
    Item, Line, Outcome, Shared,
    sinks::{Report, Sinks},
    verdict::Answer,
};
use crate::webhooks::delivery::{Delivery, topic_of};

impl<S: Sinks> Shared<S> {
    /// What a report means for its record, its lane and its sender.
    pub(super) async fn reported(
        self: &Arc<Self>,
        line: &Arc<Line>,
        item: &Arc<Item>,
        report: Report,
        since: Instant,
        mut answer: Answer,
    ) {
        match report {
            Report::Landed => {
                failpoint::reach("intake.published");
                self.published(line, item);
                answer.give(Outcome::Durable);
                line.lane.landed(item.sequence);
                self.landed(line, &item.delivery);
            }
            Report::Refused(error) => {
                line.lane.landed(item.sequence);
                self.bury(line, item, &error, since, answer).await;
            }
            Report::Again(error) => {
                self.doubt(&item.delivery, topic_of(&line.id), &error);
                line.lane.failed(item.sequence, Arc::clone(item));
                self.ensure_drain(line);
                self.secure(line, item, since, &mut answer).await;
            }
        }
    }

    /// What was relied on may not be there any more: the producer, or the topic.
    pub(super) fn doubt(&self, delivery: &Delivery, topic: &str, error: &kafka::Error) {
        // Of a stop it is no news: what has no report by then is in the spool.
        if !self.stopping.is_cancelled() {
            self.troubles.failed(&delivery.context.connector, topic, error);
        }
        self.sinks.replace_if_over();
        if error.lacks_topic() {
            self.openings.doubt(&delivery.context);
        }
    }

    /// Kafka takes what is for this lane.
    pub(super) fn landed(&self, line: &Line, delivery: &Delivery) {
        self.troubles.landed(&delivery.context.connector, topic_of(&line.id));
    }

    /// Waits until Kafka has the record or its time is over, and then stores it.
    pub(super) async fn secure(&self, line: &Line, item: &Arc<Item>, since: Instant, answer: &mut Answer) {
        tokio::select! {
            _ = item.published.wait() => answer.give(Outcome::Durable),
            () = self.due(since) => {
                if answer.is_open() {
                    self.store_or_wait(line, item, since, answer).await;
                }
            }
        }
    }

    /// Kafka has it: whoever waits for that is told, and a copy in the spool is not needed any more.
    pub(super) fn published(&self, line: &Line, item: &Item) {
        // A second time would say the same.
        item.published.set(()).ok();
        if item.copied.load(Ordering::Acquire) {
            self.spool.remove(&line.id, item.sequence);
        }
    }
}
