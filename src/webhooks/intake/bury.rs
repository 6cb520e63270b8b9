//! What Kafka will never take goes to the dead letters.

use std::sync::Arc;

use tokio::time::{Instant, sleep};

use base::retry::{Backoff, Retry};

use super::{
    AGAIN, Item, Line, Outcome, Shared,
    lane::NotSent,
    prepare,
    sinks::{self, Report, Sinks},
    verdict::Answer,
};
use crate::{
    pipeline::{Failure, Stage},
    webhooks::delivery::Delivery,
};

impl<S: Sinks> Shared<S> {
    /// Puts into the dead letters what Kafka will never take. Where that takes longer than there is time, the record is left in
    /// the spool, and the drain finds it refused again.
    pub(super) async fn bury(
        self: &Arc<Self>,
        line: &Arc<Line>,
        item: &Arc<Item>,
        error: &kafka::Error,
        since: Instant,
        mut answer: Answer,
    ) {
        let burying = async {
            let mut backoff = Backoff::new(AGAIN, item.sequence);
            while !self.try_bury(&item.delivery, error).await {
                sleep(backoff.next_wait(Retry::Later).unwrap_or(AGAIN.longest)).await;
            }
        };
        tokio::select! {
            () = burying => {
                self.published(line, item);
                answer.give(Outcome::Durable);
            }
            () = self.due(since) => {
                if self.store(line, item, since, &mut answer).await {
                    line.lane.left_in_spool(item.sequence);
                    self.ensure_drain(line);
                } else {
                    answer.give(Outcome::Full);
                }
            }
        }
    }

    /// Writes a delivery to the dead letters, whole or in pieces. Whether Kafka has it.
    pub(super) async fn try_bury(&self, delivery: &Delivery, error: &kafka::Error) -> bool {
        let failure = Failure::new(Stage::Produce, error.class(), error);
        let (Some(ready), Some(built)) = (self.openings.ready(&delivery.context), self.sinks.get()) else {
            return false;
        };
        for pieces in [1, prepare::pieces(&delivery.body)] {
            let letters = prepare::letters(&ready, delivery, None, &failure, pieces);
            match sinks::send(&*built.sink, letters) {
                Ok((reports, _)) => match reports.await {
                    Report::Landed => {
                        self.troubles.landed(&delivery.context.connector, &delivery.context.dead_letters);
                        return true;
                    }
                    Report::Refused(_) => {}
                    Report::Again(error) => {
                        self.doubt(delivery, &delivery.context.dead_letters, &error);
                        return false;
                    }
                },
                Err(NotSent::Refused(_)) => {}
                Err(NotSent::Later) => return false,
            }
        }
        false
    }
}
