//! A delivery whose sender waits for Kafka's report, without a task of its own for as long as that is in time.

use std::sync::Arc;

use tokio::{sync::oneshot, time::Instant};
use tokio_util::task::task_tracker::TaskTrackerToken;

use base::failpoint;

use super::{
    Item, Line, Outcome, Shared,
    lane::Way,
    seen::Ticket,
    sinks::{RecordSink, Report, Reports, Sinks},
    verdict::{Answer, Verdict},
};
use crate::webhooks::delivery::{Delivery, Part};

/// A part on its way to Kafka whose sender waits for the report. Dropped, because the sender has hung up or the time for
/// Kafka is over, a task sees it through.
struct Flight<'a, S: Sinks> {
    shared: &'a Arc<Shared<S>>,
    since: Instant,
    flying: Option<Flying<S::Sink>>,
    /// What Kafka has said, where that is not the end of it.
    report: Option<Report>,
}

struct Flying<K: RecordSink> {
    reports: Reports<K>,
    line: Arc<Line>,
    item: Arc<Item>,
    ticket: Option<Ticket>,
    /// A stop waits for this as for a task.
    awaited: TaskTrackerToken,
}

impl<S: Sinks> Flight<'_, S> {
    /// Leaves it to a task, which answers.
    fn leave(&mut self) -> Option<oneshot::Receiver<Outcome>> {
        let Flying { reports, line, item, ticket, awaited } = self.flying.take()?;
        let (report, since, shared) = (self.report.take(), self.since, Arc::clone(self.shared));
        let (verdict, answer) = Verdict::of(1, ticket);
        let told = Answer(Some(verdict));
        self.shared.spawn(async move {
            match report {
                Some(report) => shared.reported(&line, &item, report, since, told).await,
                None => shared.direct(&line, &item, reports, since, told).await,
            }
        });
        drop(awaited);
        Some(answer)
    }
}

impl<S: Sinks> Drop for Flight<'_, S> {
    fn drop(&mut self) {
        self.leave();
    }
}

impl<S: Sinks> Shared<S> {
    /// Takes a delivery that is all in one lane. What Kafka reports in time is awaited here, since a task for each would cost
    /// as much as the rest; anything else is seen through by one.
    pub(super) async fn take_one(
        self: &Arc<Self>,
        delivery: &Delivery,
        part: Part,
        since: Instant,
        ticket: Option<Ticket>,
    ) -> Outcome {
        let (line, item, way) = self.enter(delivery, part);
        let reports = match way {
            Way::Direct(reports) => reports,
            way => {
                let (verdict, answer) = Verdict::of(1, ticket);
                self.see_through(line, item, way, since, Answer(Some(verdict)));
                return answer.await.unwrap_or(Outcome::Late);
            }
        };
        failpoint::reach("intake.sent");
        let flying = Flying { reports, line, item, ticket, awaited: self.tasks.token() };
        let mut flight = Flight { shared: self, since, flying: Some(flying), report: None };
        if let Some(flying) = &mut flight.flying {
            let report = tokio::select! {
                biased;
                report = &mut flying.reports => Some(report),
                () = self.due(since) => None,
            };
            if let Some(Report::Landed) = report
                && let Some(Flying { line, item, ticket, .. }) = flight.flying.take()
            {
                failpoint::reach("intake.published");
                self.published(&line, &item);
                line.lane.landed(item.sequence);
                self.landed(&line, &item.delivery);
                if let Some(ticket) = ticket {
                    ticket.end(Outcome::Durable);
                }
                return Outcome::Durable;
            }
            flight.report = report;
        }
        match flight.leave() {
            Some(answer) => answer.await.unwrap_or(Outcome::Late),
            None => Outcome::Late,
        }
    }
}
