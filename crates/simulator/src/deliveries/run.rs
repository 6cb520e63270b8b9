//! The delivery loop.

use std::{sync::Arc, time::Duration};

use axum::http::StatusCode;
use futures::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Attempt, Deliveries, DeliveryBody, DeliveryOrder, End, WebhookFamilies,
    attempt::{self, AttemptOutcome},
    hash,
    queue::{DeliveryQueue, QueuedDelivery},
};
use crate::{clock::Ticks, knobs::DeliveryKnobs};

/// Limits knobs, because a timer further ahead would overflow.
const MAX_WAIT: Duration = Duration::from_secs(365 * 86_400);
/// Attempts in flight at once.
const MAX_IN_FLIGHT: usize = 64;
/// Abandoned deliveries between two yields: all that wait may belong to a webhook that has just ended.
const ABANDON_BATCH: u64 = 256;

/// An attempt that has ended.
struct FinishedAttempt {
    job: QueuedDelivery,
    at: Ticks,
    body_hash: u64,
    outcome: AttemptOutcome,
}

/// Delivers until cancelled. Then attempts in flight and waiting deliveries are dropped.
pub(crate) async fn run(deliveries: &Deliveries, families: &impl WebhookFamilies, stop: CancellationToken) {
    let mut in_flight = FuturesUnordered::new();
    let mut abandoned = 0_u64;
    loop {
        let next = loop {
            let knobs = deliveries.core.knobs();
            if knobs.delivery.hold || in_flight.len() >= MAX_IN_FLIGHT {
                // Only a knob or the end of an attempt changes that, and both wake this loop.
                break None;
            }
            let job = match take(deliveries) {
                Ok(job) => job,
                Err(next) => break next,
            };
            if families.wants(&job.order) {
                in_flight.push(send(deliveries, job, &knobs.delivery));
            } else {
                abandon(deliveries, job);
                abandoned += 1;
                if abandoned.is_multiple_of(ABANDON_BATCH) {
                    tokio::task::yield_now().await;
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => break,
            Some(done) = in_flight.next() => {
                settle(deliveries, families, done);
                // Handle all results that are there before looking for more to send.
                while let Some(Some(done)) = in_flight.next().now_or_never() {
                    settle(deliveries, families, done);
                }
            }
            () = deliveries.due.notified() => {}
            () = until(next) => {}
        }
    }
    drop(in_flight);
    *deliveries.queue.lock() = DeliveryQueue::default();
    deliveries.idle_notify.notify_waiters();
}

/// The next delivery to send, or when there may be one.
fn take(deliveries: &Deliveries) -> Result<QueuedDelivery, Option<Instant>> {
    let mut queue = deliveries.queue.lock();
    queue.take(Instant::now()).ok_or_else(|| queue.next_due())
}

async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

fn send(
    deliveries: &Deliveries,
    mut job: QueuedDelivery,
    knobs: &DeliveryKnobs,
) -> impl Future<Output = FinishedAttempt> + use<> {
    let client = deliveries.client();
    let limit = Duration::from_millis(knobs.time_limit).min(MAX_WAIT);
    let at = deliveries.core.clock.now();
    job.attempts += 1;
    async move {
        let (body, signature) = match &job.order.body {
            DeliveryBody::Same(body, signature) => (body.clone(), signature.clone()),
            DeliveryBody::Numbered(write) => write(job.attempts),
        };
        let body_hash = if job.attempts == 1 { hash(&body) } else { 0 };
        let outcome = attempt::post(client, &job.order, body, signature, limit).await;
        FinishedAttempt { job, at, body_hash, outcome }
    }
}

fn settle(deliveries: &Deliveries, families: &impl WebhookFamilies, done: FinishedAttempt) {
    let FinishedAttempt { mut job, at, body_hash, outcome } = done;
    let order = Arc::clone(&job.order);
    let accepted = outcome.accepted(order.purpose, deliveries.core.knobs().delivery.accepts);
    let AttemptOutcome { took, status, error } = outcome;
    let gone = order.gone_ends && status == Some(StatusCode::GONE);
    let wait = order.retries.get(job.attempts as usize - 1).copied().filter(|_| !accepted && !gone);
    let end = match wait {
        Some(_) => None,
        None if accepted => Some(End::Accepted),
        None => Some(End::GivenUp),
    };
    let took = u32::try_from(took.as_millis()).unwrap_or(u32::MAX);
    let entry = Attempt { at, took, status: status.map(|status| status.as_u16()), error };
    deliveries.journal.update(job.number, |journaled| {
        if job.attempts == 1 {
            journaled.body_hash = body_hash;
        }
        journaled.attempts.push(entry);
        journaled.end = end;
    });
    if wait.is_none() {
        families.ended(&order, accepted);
    }
    let first = job.first.take();
    let is_first = job.attempts == 1;
    let retry = wait.map(|wait| (job, wait));
    attempt_ended(deliveries, &order, is_first, retry);
    if let Some(first) = first {
        // The waiting task may be gone.
        first.send(()).ok();
    }
}

/// An attempt ended or was not made: the delivery waits for its retry or has ended.
fn attempt_ended(
    deliveries: &Deliveries,
    order: &DeliveryOrder,
    first: bool,
    retry: Option<(QueuedDelivery, u64)>,
) {
    let now = Instant::now();
    let mut queue = deliveries.queue.lock();
    queue.attempt_ended(order, first, now);
    let idle_notify = match retry {
        Some((job, wait)) => {
            queue.retry(job, now + Duration::from_millis(wait).min(MAX_WAIT));
            false
        }
        None => queue.finish(),
    };
    drop(queue);
    if idle_notify {
        deliveries.idle_notify.notify_waiters();
    }
}

fn abandon(deliveries: &Deliveries, job: QueuedDelivery) {
    deliveries.end(job.number, End::Abandoned);
    attempt_ended(deliveries, &job.order, job.attempts == 0, None);
}
