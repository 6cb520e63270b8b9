//! A provider that allows a tenth of what the client could send.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use provider::api::{Accounting, CallOptions, Priority, Rates};
use simulator::{
    Simulator,
    clock::{SECOND, Ticks},
    knobs::{Rate, RetryHint},
};
use tokio::{
    task::AbortHandle,
    time::{Instant, interval, sleep},
};

use super::{Granted, client_of, options, page};
use crate::product::simulator::start;
use crate::support::tries::Tries;

crate::tests! {
    plain a_storm_of_refusals_settles_and_webhooks_stay_quick within 240;
}

const ALLOWED: u32 = 50;
/// Readers of endless lists: the lowest priority always has requests.
const READERS: usize = 200;
/// Time for the rate to settle.
const SETTLE: Duration = Duration::from_secs(15);
const MEASURED: Duration = Duration::from_secs(25);
/// A busy machine may disturb one measurement. A rate that has not settled fails all of them.
const MEASURED_TIMES: usize = 3;
/// How often the watch wakes up, and how late it may be.
const TICK: Duration = Duration::from_millis(10);
const LATE: Duration = Duration::from_millis(20);
/// Interval of webhook requests.
const EVERY: Duration = Duration::from_millis(200);

/// Time in which the busy machine did not run this process, provider included: subtracted from the measurements.
#[derive(Clone, Default)]
struct Lost(Arc<AtomicU64>);

impl Lost {
    /// Starts the watch.
    fn watch() -> (Self, AbortHandle) {
        let lost = Self::default();
        let watched = lost.clone();
        let watching = tokio::spawn(async move {
            loop {
                let since = Instant::now();
                sleep(TICK).await;
                let late = since.elapsed().saturating_sub(TICK);
                if late > LATE {
                    watched.0.fetch_add(late.as_micros() as u64, Ordering::Relaxed);
                }
            }
        });
        (lost, watching.abort_handle())
    }

    fn so_far(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

async fn a_storm_of_refusals_settles_and_webhooks_stay_quick() {
    let simulator = start(|settings| {
        settings.frozen_at = None;
        settings.knobs.gateway.rate = Some(Rate { requests: ALLOWED, seconds: 1.0, tells: RetryHint::Both });
    })
    .await;
    let demand = f64::from(ALLOWED) * 10.0;
    let rates = Rates { application: demand, company: demand, ..Rates::default() };
    let client = client_of(&options(&simulator, None), rates);
    let accounting = client.accounting(Granted::accounting(&simulator));
    let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));

    let readers: Vec<_> = (0..READERS)
        .map(|_| {
            let (accounting, stop, answered) = (accounting.clone(), Arc::clone(&stop), Arc::clone(&answered));
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    call(&accounting, Priority::Snapshot).await;
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    // There is no signal that a rate has settled: the claim is that it has by now.
    sleep(SETTLE).await;
    let (lost, watching) = Lost::watch();
    let (mut waits, mut webhook_calls) = (Vec::new(), 0);
    let mut tries = Tries::of("the allowed rate and webhook latency hold in a storm of refusals");
    let mut held = false;
    for _ in 0..MEASURED_TIMES {
        let (from, before) = (simulator.provider().clock.now(), lost.so_far());
        waits = webhook_latencies(&accounting, &lost).await;
        let (to, lost) = (simulator.provider().clock.now(), lost.so_far() - before);
        webhook_calls += waits.len();
        let most = passed_between(&simulator, from, to) / f64::from(ALLOWED);
        let seconds = (to.0 - from.0) as f64 / SECOND as f64;
        let share = most * seconds / (seconds - lost.as_secs_f64());
        waits.sort();
        // By nearest rank.
        let p99 = waits[(waits.len() * 99).div_ceil(100) - 1];
        println!(
            "{share:.3} of the allowed rate, {most:.3} with the {lost:?} that were lost; webhook requests p99 {p99:?} of {}",
            waits.len()
        );
        held = tries.held(share >= 0.9 && most <= 1.1 && p99 < Duration::from_secs(1));
        if held {
            break;
        }
    }
    watching.abort();
    stop.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.await.unwrap();
    }

    let requests = simulator.provider().gateway.requests(0, usize::MAX);
    let passed = requests.iter().filter(|(_, request)| request.status == Some(200)).count();
    println!("{} refused of {}", requests.len() - passed, requests.len());
    assert!(
        held,
        "neither the rate nor the webhook requests held in any of {MEASURED_TIMES} times: {waits:?}"
    );
    // Every call was answered, and only answered calls were counted.
    assert_eq!(answered.load(Ordering::Relaxed) + webhook_calls, passed);
}

/// Requests per second that passed in an interval.
fn passed_between(simulator: &Simulator, from: Ticks, to: Ticks) -> f64 {
    let requests = simulator.provider().gateway.requests(0, usize::MAX);
    let passed = requests
        .iter()
        .filter(|(_, request)| request.status == Some(200) && from <= request.at && request.at < to)
        .count();
    passed as f64 / ((to.0 - from.0) as f64 / SECOND as f64)
}

/// Latencies of webhook requests during the storm.
async fn webhook_latencies(accounting: &Accounting, lost: &Lost) -> Vec<Duration> {
    let end = Instant::now() + MEASURED;
    let mut ticks = interval(EVERY);
    let mut calls = Vec::new();
    while Instant::now() < end {
        ticks.tick().await;
        let (accounting, lost) = (accounting.clone(), lost.clone());
        calls.push(tokio::spawn(async move {
            let (since, before) = (Instant::now(), lost.so_far());
            call(&accounting, Priority::Webhook).await;
            since.elapsed().saturating_sub(lost.so_far() - before)
        }));
    }
    let mut waits = Vec::new();
    for call in calls {
        waits.push(call.await.unwrap());
    }
    waits
}

async fn call(accounting: &Accounting, priority: Priority) {
    let ask = CallOptions::within(priority, Duration::from_secs(90));
    accounting.companies_numbered(page(1, 10), &ask).await.unwrap();
}
