//! One delivery: deduplicated, let into its queues, and each part followed from the producer to the answer, until it is published or
//! only the spool has it.
//!
//! ```text
//! direct ── report ──▶ acknowledged ─▶ Durable
//!    │         ├─ refused permanently ─▶ dead letter ─▶ Durable
//!    │         └─ to be sent again ──▶ its queue goes behind; spool copy after `spool_after` ─▶ Durable
//!    └─ no report by `spool_after` ──▶ spool copy ─▶ Durable; the late report removes the copy
//! behind ─▶ spool ─▶ Durable; the drain publishes it
//! ```
//!
//! [`IntakeState::complete`] runs all parts of a delivery in the request that waits for the answer: a task for each delivery would
//! cost as much as the rest of its way. When the request ends first, because it has its answer or its sender hangs up, a task
//! runs the rest. A part that panics is answered [`DeliveryOutcome::Late`] and leaves its queue usable; the other parts continue.

use std::{
    panic::{self, AssertUnwindSafe},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, join, join_all},
};
use tokio::{
    runtime::Handle,
    sync::{SetOnce, oneshot},
    time::{Instant, sleep, sleep_until, timeout_at},
};
use tokio_util::task::task_tracker::TrackedFuture;

use base::{
    failpoint, metrics,
    retry::{Backoff, ErrorChain, Retry},
};

use super::{
    Accept, DeliveryOutcome, Intake, IntakeState, NamedQueue, PUBLISH_BACKOFF, QueuedPart,
    dedup::{DedupTicket, DedupVerdict},
    encode,
    lane_queue::LaneQueue,
    producer::{PartReport, PendingReports, ProducerFactory},
};
use crate::{
    publish::{PublishFailure, PublishStage},
    spool::{Lane, SpoolEntry},
    webhooks::{
        dead_letter,
        delivery::{Delivery, DeliveryContent, DeliveryPart, topic_of},
    },
};

/// Memory that a part takes beside its bytes, roughly.
const PART_OVERHEAD_BYTES: usize = 512;

/// A part of a delivery, from the producer or the spool to its answer.
pub(super) struct InFlight<S: ProducerFactory> {
    pub(super) shared: Arc<IntakeState<S>>,
    pub(super) queue: Arc<NamedQueue>,
    pub(super) queued: Arc<QueuedPart>,
    /// When the head of its request arrived.
    pub(super) since: Instant,
    /// Takes the answer; dropped, it is [`DeliveryOutcome::Late`]. `None`: answered, or no request waits.
    pub(super) answer: Option<oneshot::Sender<DeliveryOutcome>>,
}

/// A future; if this is dropped before its end, a task finishes it.
struct FinishedByTask {
    rest: Option<TrackedFuture<BoxFuture<'static, ()>>>,
    runtime: Handle,
}

impl FinishedByTask {
    async fn finish(&mut self) {
        if let Some(rest) = &mut self.rest {
            rest.await;
            self.rest = None;
        }
    }
}

impl Drop for FinishedByTask {
    fn drop(&mut self) {
        if let Some(rest) = self.rest.take() {
            drop(self.runtime.spawn(rest));
        }
    }
}

impl<S: ProducerFactory> Intake<S> {
    /// Where the receiver hands its deliveries to.
    #[must_use]
    pub fn accept(&self) -> Accept {
        let intake = self.clone();
        Arc::new(move |delivery, content, since| {
            let intake = intake.clone();
            async move { intake.take(delivery, content, since).await }.boxed()
        })
    }

    /// Makes a delivery durable and returns the outcome, at the latest [`AnswerTimes::answer_by`](super::AnswerTimes::answer_by) after
    /// `since`.
    pub async fn take(
        &self,
        delivery: Delivery,
        content: DeliveryContent,
        since: Instant,
    ) -> DeliveryOutcome {
        let shared = &self.0;
        if shared.tasks.stopping.is_cancelled() {
            return DeliveryOutcome::Full;
        }
        let last = since + shared.times.answer_by;
        let ticket = match &content.outgoing_id {
            Some(id) => match shared.dedup.see(&delivery.context.connector, id, &delivery.body) {
                DedupVerdict::First(ticket) => Some(ticket),
                DedupVerdict::Twin(pending) => {
                    metrics::delivery_repeated();
                    return timeout_at(last, pending.wait())
                        .await
                        .map_or(DeliveryOutcome::Late, |outcome| *outcome);
                }
                DedupVerdict::Before => {
                    metrics::delivery_repeated();
                    return DeliveryOutcome::Durable;
                }
            },
            None => None,
        };
        shared.complete(&delivery, content.parts, since, ticket).await
    }
}

impl<S: ProducerFactory> IntakeState<S> {
    fn queue(&self, id: &Lane) -> Arc<NamedQueue> {
        if let Some(queue) = self.queues.read().get(id) {
            return Arc::clone(queue);
        }
        let mut queues = self.queues.write();
        let new = || Arc::new(NamedQueue { id: id.clone(), order: LaneQueue::new(None) });
        Arc::clone(queues.entry(id.clone()).or_insert_with(new))
    }

    /// Lets a part into its queue. Returns the pending reports of the producer; `None`: the queue is behind.
    fn enter(
        &self,
        delivery: &Delivery,
        part: DeliveryPart,
    ) -> (Arc<NamedQueue>, Arc<QueuedPart>, Option<PendingReports<S>>) {
        let queue = self.queue(&part.lane);
        let ready = self.readiness.ready(&delivery.context);
        let records = ready
            .as_ref()
            .filter(|_| !queue.order.is_behind() && self.memory.has_room())
            .and_then(|ready| encode::records(ready, delivery, part.content));
        let size = records.iter().flatten().map(|prepared| prepared.record.size()).sum::<usize>()
            + delivery.body.len();
        let memory = self.memory.take(size + PART_OVERHEAD_BYTES);
        let queued = |sequence| {
            Arc::new(QueuedPart {
                sequence,
                delivery: delivery.clone(),
                positions: part.positions,
                copied: AtomicBool::new(false),
                published: SetOnce::new(),
                _memory: memory,
            })
        };
        let built = records.and_then(|records| Some((self.producers.get()?, records)));
        let send = built.map(|(built, records)| (built.number, move || self.producers.send(&built, records)));
        // A part that cannot be sent soon would only take memory from others.
        let keep = || ready.is_some() && self.memory.has_plenty();
        let (queued, reports) = queue.order.enter(self.times.spool_after, &self.numbers, queued, send, keep);
        (queue, queued, reports)
    }

    /// Returns when the spool gets a copy of a delivery without a report: after `spool_after`, or when the intake stops waiting for Kafka.
    async fn due(&self, since: Instant) {
        tokio::select! {
            () = sleep_until(since + self.times.spool_after) => {}
            () = self.tasks.stop_waiting_for_kafka.cancelled() => {}
        }
    }

    /// Runs all parts of a delivery and returns the answer; `ticket` ends with it, also if the sender hangs up.
    pub(super) async fn complete(
        self: &Arc<Self>,
        delivery: &Delivery,
        parts: Vec<DeliveryPart>,
        since: Instant,
        ticket: Option<DedupTicket>,
    ) -> DeliveryOutcome {
        let (mut running, mut answers) = (Vec::with_capacity(parts.len()), Vec::with_capacity(parts.len()));
        for part in parts {
            let (sender, answer) = oneshot::channel();
            answers.push(answer);
            let entered = panic::catch_unwind(AssertUnwindSafe(|| self.enter(delivery, part)));
            let Ok((queue, queued, reports)) = entered else {
                tracing::error!("handling a delivery panicked; its sender must repeat it");
                continue;
            };
            let part = InFlight { shared: Arc::clone(self), queue, queued, since, answer: Some(sender) };
            running.push(Box::pin(part.run(reports)));
        }
        let (sender, mut answer) = oneshot::channel();
        let answering = async move {
            let mut outcome = DeliveryOutcome::Durable;
            for answer in answers {
                match answer.await.unwrap_or(DeliveryOutcome::Late) {
                    DeliveryOutcome::Durable => {}
                    other => outcome = other,
                }
            }
            if let Some(ticket) = ticket {
                ticket.end(outcome);
            }
            // The sender may have hung up.
            sender.send(outcome).ok();
        };
        let all: BoxFuture<'static, ()> = Box::pin(async move {
            join(join_all(running), answering).await;
        });
        let mut all = FinishedByTask {
            rest: Some(self.tasks.tracker.track_future(all)),
            runtime: self.tasks.runtime.clone(),
        };
        tokio::select! {
            biased;
            () = all.finish() => (&mut answer).await,
            outcome = &mut answer => outcome,
        }
        .unwrap_or(DeliveryOutcome::Late)
    }

    /// Writes a delivery to the dead letters, whole or in pieces. Returns whether Kafka has it.
    pub(super) async fn write_dead_letter(&self, delivery: &Delivery, error: &kafka::Error) -> bool {
        let failure = PublishFailure::new(PublishStage::Produce, error.class(), error);
        let (Some(ready), Some(built)) = (self.readiness.ready(&delivery.context), self.producers.get())
        else {
            return false;
        };
        for pieces in [1, dead_letter::pieces(&delivery.body)] {
            let letters = encode::letters(&ready, delivery, None, &failure, pieces);
            let Some((reports, _)) = self.producers.send(&built, letters) else { return false };
            match reports.await {
                PartReport::Acknowledged => {
                    self.publish_errors
                        .acknowledged(&delivery.context.connector, &delivery.context.dead_letter_topic);
                    return true;
                }
                PartReport::Refused(_) => {}
                PartReport::Again(error) => {
                    self.recheck(delivery, &delivery.context.dead_letter_topic, &error);
                    return false;
                }
            }
        }
        false
    }

    /// Kafka did not take a record: checks whether the producer failed or the topic is gone.
    pub(super) fn recheck(&self, delivery: &Delivery, topic: &str, error: &kafka::Error) {
        // A stop purges the producer; what has no report by then is in the spool.
        if !self.tasks.stopping.is_cancelled() {
            self.publish_errors.failed(&delivery.context.connector, topic, error);
        }
        self.producers.replace_if_failed();
        if error.lacks_topic() {
            self.readiness.recheck(&delivery.context);
        }
    }

    /// Kafka takes records of this queue: removes its topic from the failing ones in `/health`.
    pub(super) fn clear_publish_error(&self, queue: &NamedQueue, delivery: &Delivery) {
        self.publish_errors.acknowledged(&delivery.context.connector, topic_of(&queue.id));
    }

    /// Kafka has the part: wakes its request and removes the copy in the spool.
    pub(super) fn published(&self, queue: &NamedQueue, queued: &QueuedPart) {
        // Setting it twice changes nothing.
        queued.published.set(()).ok();
        if queued.copied.load(Ordering::Acquire) {
            self.spool.remove(&queue.id, queued.sequence);
        }
    }
}

impl<S: ProducerFactory> InFlight<S> {
    /// Runs the part to its end. If that panics, the queue stops waiting for it; otherwise its drain would wait forever.
    async fn run(mut self, reports: Option<PendingReports<S>>) {
        let is_behind = reports.is_none();
        if AssertUnwindSafe(self.proceed(reports)).catch_unwind().await.is_ok() {
            return;
        }
        let (queue, sequence) = (&self.queue, self.queued.sequence);
        tracing::error!(
            topic = topic_of(&queue.id),
            "handling a delivery panicked; its sender must repeat it"
        );
        if is_behind {
            queue.order.appended(sequence, false);
        } else if queue.order.is_in_flight(sequence) {
            queue.order.failed(sequence, Arc::clone(&self.queued));
            self.shared.ensure_drain(queue);
        }
    }

    /// With `reports` the producer has the part; without, its queue is behind.
    async fn proceed(&mut self, reports: Option<PendingReports<S>>) {
        let Some(mut reports) = reports else { return self.behind().await };
        failpoint::reach("intake.sent");
        let report = tokio::select! {
            biased;
            report = &mut reports => report,
            () = self.shared.due(self.since) => {
                let mut stored = pin!(self.store_or_wait());
                tokio::select! {
                    // The append continues; a report that comes first decides.
                    report = &mut reports => report,
                    () = stored.as_mut() => reports.await,
                }
            }
        };
        self.reported(report).await;
    }

    /// The part goes only to the spool; the drain publishes it.
    async fn behind(&mut self) {
        self.shared.ensure_drain(&self.queue);
        let stored = self.store().await;
        self.queue.order.appended(self.queued.sequence, stored);
        // If the queue became direct meanwhile, it has sent the part from memory: its report may still be in time.
        if !stored && self.queue.order.is_in_flight(self.queued.sequence) {
            timeout_at(self.since + self.shared.times.answer_by, self.queued.published.wait()).await.ok();
        }
        let published = self.queued.published.initialized();
        self.answer_with(if published { DeliveryOutcome::Durable } else { DeliveryOutcome::Full });
    }

    /// Applies a report to the part, its queue and its sender.
    pub(super) async fn reported(&mut self, report: PartReport) {
        let sequence = self.queued.sequence;
        match report {
            PartReport::Acknowledged => {
                failpoint::reach("intake.published");
                self.shared.published(&self.queue, &self.queued);
                self.answer_with(DeliveryOutcome::Durable);
                self.queue.order.acknowledged(sequence);
                self.shared.clear_publish_error(&self.queue, &self.queued.delivery);
            }
            PartReport::Refused(error) => {
                self.queue.order.acknowledged(sequence);
                self.refused(&error).await;
            }
            PartReport::Again(error) => {
                self.shared.recheck(&self.queued.delivery, topic_of(&self.queue.id), &error);
                self.queue.order.failed(sequence, Arc::clone(&self.queued));
                self.shared.ensure_drain(&self.queue);
                let published = tokio::select! {
                    _ = self.queued.published.wait() => true,
                    () = self.shared.due(self.since) => false,
                };
                if published {
                    self.answer_with(DeliveryOutcome::Durable);
                } else if self.answer.is_some() {
                    self.store_or_wait().await;
                }
            }
        }
    }

    /// Kafka refuses a record permanently: the delivery becomes a dead letter. If that takes longer than there is time, the part is left
    /// in the spool, and the drain has it refused again.
    async fn refused(&mut self, error: &kafka::Error) {
        let writing = async {
            let mut backoff = Backoff::new(PUBLISH_BACKOFF, self.queued.sequence);
            while !self.shared.write_dead_letter(&self.queued.delivery, error).await {
                sleep(backoff.next_wait(Retry::Later).unwrap_or(PUBLISH_BACKOFF.longest)).await;
            }
        };
        let is_written = tokio::select! {
            () = writing => true,
            () = self.shared.due(self.since) => false,
        };
        if is_written {
            self.shared.published(&self.queue, &self.queued);
            self.answer_with(DeliveryOutcome::Durable);
        } else if self.store().await {
            self.queue.order.left_in_spool(self.queued.sequence);
            self.shared.ensure_drain(&self.queue);
        } else {
            self.answer_with(DeliveryOutcome::Full);
        }
    }

    /// Appends a copy to the spool. If that fails, waits for Kafka until the last moment.
    async fn store_or_wait(&mut self) {
        if !self.store().await {
            let last = self.since + self.shared.times.answer_by;
            let published = timeout_at(last, self.queued.published.wait()).await.is_ok();
            self.answer_with(if published { DeliveryOutcome::Durable } else { DeliveryOutcome::Full });
        }
    }

    /// Appends a copy to the spool and answers [`DeliveryOutcome::Durable`] once it is stored, or [`DeliveryOutcome::Late`] at the last
    /// moment. Returns whether it was stored.
    async fn store(&mut self) -> bool {
        let (shared, queue, queued) =
            (Arc::clone(&self.shared), Arc::clone(&self.queue), Arc::clone(&self.queued));
        queued.copied.store(true, Ordering::Release);
        let entry = SpoolEntry {
            lane: queue.id.clone(),
            sequence: queued.sequence,
            payload: queued.delivery.to_entry(&queued.positions),
        };
        let mut append = pin!(shared.spool.append(entry));
        let stored = match timeout_at(self.since + shared.times.answer_by, append.as_mut()).await {
            Ok(stored) => stored,
            Err(_) => {
                self.answer_with(DeliveryOutcome::Late);
                append.await
            }
        };
        if stored.is_ok() {
            failpoint::reach("intake.spooled");
        }
        // Kafka may have acknowledged it during the append.
        if queued.published.initialized() {
            shared.spool.remove(&queue.id, queued.sequence);
            self.answer_with(DeliveryOutcome::Durable);
            return true;
        }
        match &stored {
            Ok(()) => self.answer_with(DeliveryOutcome::Durable),
            Err(error) => tracing::debug!(error = %ErrorChain(error), "a delivery could not be stored"),
        }
        stored.is_ok()
    }

    fn answer_with(&mut self, outcome: DeliveryOutcome) {
        if let Some(answer) = self.answer.take() {
            // The sender may have hung up.
            answer.send(outcome).ok();
        }
    }
}
