//! The loop that sends what is due and settles what has come back.

use std::{sync::Arc, time::Duration};

use axum::http::StatusCode;
use futures::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Attempt, Body, Deliveries, End, Families, Order,
    attempt::{self, Outcome},
    hash,
    queue::{Job, Queue},
};
use crate::{clock::Ticks, knobs::DeliveryKnobs};

/// The longest wait for an answer or a retry, whatever a knob says: further ahead the timer would overflow.
const LONGEST_WAIT: Duration = Duration::from_secs(365 * 86_400);
/// How many are abandoned before others get their turn: all that wait may be for one webhook that has just ended.
const ABANDONED_IN_A_ROW: u64 = 256;

/// An attempt that is over.
struct Done {
    job: Job,
    at: Ticks,
    body_hash: u64,
    outcome: Outcome,
}

/// Delivers until cancelled. What is on its way then is dropped, what waits is forgotten.
pub(crate) async fn run(deliveries: &Deliveries, families: &impl Families, stop: CancellationToken) {
    let mut on_their_way = FuturesUnordered::new();
    let mut abandoned = 0_u64;
    loop {
        let next = loop {
            let knobs = deliveries.core.knobs();
            if knobs.delivery.hold || on_their_way.len() >= knobs.delivery.concurrency.max(1) {
                // Only a knob or the end of an attempt can change that, and both wake this loop.
                break None;
            }
            let job = match take(deliveries) {
                Ok(job) => job,
                Err(next) => break next,
            };
            if families.wants(&job.order) {
                on_their_way.push(send(deliveries, job, &knobs.delivery));
            } else {
                abandon(deliveries, job);
                abandoned += 1;
                if abandoned.is_multiple_of(ABANDONED_IN_A_ROW) {
                    tokio::task::yield_now().await;
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => break,
            Some(done) = on_their_way.next() => {
                settle(deliveries, families, done);
                // All that have come back meanwhile, before looking for more to send.
                while let Some(Some(done)) = on_their_way.next().now_or_never() {
                    settle(deliveries, families, done);
                }
            }
            () = deliveries.due.notified() => {}
            () = until(next) => {}
        }
    }
    drop(on_their_way);
    *deliveries.queue.lock() = Queue::default();
    deliveries.quiet.notify_waiters();
}

/// The next one to send, or when there may be one.
fn take(deliveries: &Deliveries) -> Result<Job, Option<Instant>> {
    let mut queue = deliveries.queue.lock();
    queue.take(Instant::now()).ok_or_else(|| queue.next_due())
}

async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

fn send(deliveries: &Deliveries, mut job: Job, knobs: &DeliveryKnobs) -> impl Future<Output = Done> + use<> {
    let client = deliveries.client();
    let limit = Duration::from_millis(knobs.time_limit).min(LONGEST_WAIT);
    let at = deliveries.core.clock.now();
    job.attempts += 1;
    async move {
        let (body, signature) = match &job.order.body {
            Body::Same(body, signature) => (body.clone(), signature.clone()),
            Body::Numbered(write) => write(job.attempts),
        };
        let body_hash = if job.attempts == 1 { hash(&body) } else { 0 };
        let outcome = attempt::post(client, &job.order, body, signature, limit).await;
        Done { job, at, body_hash, outcome }
    }
}

fn settle(deliveries: &Deliveries, families: &impl Families, done: Done) {
    let Done { mut job, at, body_hash, outcome } = done;
    let order = Arc::clone(&job.order);
    let verdict = outcome.verdict(order.purpose, deliveries.core.knobs().delivery.accepts);
    let status = outcome.answer.as_ref().ok().map(|(status, _)| *status);
    let gone = order.gone_ends && status == Some(StatusCode::GONE);
    let wait = order.retries.get(job.attempts as usize - 1).copied();
    let (end, error) = match verdict {
        Ok(()) => (Some(End::Accepted), None),
        Err(error) if gone || wait.is_none() => (Some(End::GivenUp), error),
        Err(error) => (None, error),
    };
    let took = u32::try_from(outcome.took.as_millis()).unwrap_or(u32::MAX);
    let entry = Attempt { at, took, status: status.map(|status| status.as_u16()), error };
    deliveries.journal.update(job.number, |journaled| {
        if job.attempts == 1 {
            journaled.body_hash = body_hash;
        }
        journaled.attempts.push(entry);
        journaled.end = end;
    });
    if let Some(end) = end {
        families.ended(&order, end == End::Accepted);
    }
    let first = job.first.take();
    let is_first = job.attempts == 1;
    let retry = wait.filter(|_| end.is_none()).map(|wait| (job, wait));
    over(deliveries, &order, is_first, retry);
    if let Some(first) = first {
        // Whoever waited may have gone.
        first.send(()).ok();
    }
}

/// An attempt is over, or was not made after all: the delivery waits for its retry, or has ended.
fn over(deliveries: &Deliveries, order: &Order, first: bool, retry: Option<(Job, u64)>) {
    let now = Instant::now();
    let mut queue = deliveries.queue.lock();
    queue.over(order, first, now);
    let quiet = match retry {
        Some((job, wait)) => {
            queue.retry(job, now + Duration::from_millis(wait).min(LONGEST_WAIT));
            false
        }
        None => queue.finish(),
    };
    drop(queue);
    if quiet {
        deliveries.quiet.notify_waiters();
    }
}

fn abandon(deliveries: &Deliveries, job: Job) {
    deliveries.end(job.number, End::Abandoned);
    over(deliveries, &job.order, job.attempts == 0, None);
}
