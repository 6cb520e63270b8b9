//! Events settled a second, against the bound set by the reads in flight.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::check::check;
use crate::machine::Usage;
use crate::provider::{self, LATENCY};
use crate::site::Site;
use crate::support::{Error, Result, Shared};
use crate::worker::{Metrics, Worker};

const PARTITIONS: u32 = 12;
const COMPANIES: u32 = 100;
/// Smallest backlog; a larger one lasts `BACKLOG_TIME` at the bound.
const MIN_BACKLOG: u32 = 20_000;
const BACKLOG_TIME: Duration = Duration::from_secs(15);
/// Measured part of the run: before it, connections are opened; after it, some shards have nothing left to do.
const MIDDLE: (f64, f64) = (0.2, 0.8);
/// Interval between two samples, each of which costs the worker something.
const STEP: Duration = Duration::from_millis(500);
/// Longest time without a newly settled event before the run fails.
const STALLED: Duration = Duration::from_secs(60);
/// Events of the backlog wait for a long time and must not be parked meanwhile.
const NO_PARKING: [(&str, &str); 1] = [("enrich.park.after.ms", "3600000")];

/// State of the run at one moment.
struct Sample {
    at: Instant,
    published: f64,
    committed: f64,
    /// Processor time of the worker.
    worker: Duration,
    /// Processor time of this process, which is the provider.
    provider: Duration,
}

/// Measures each number of reads in flight on its own topics and prints a table. Returns whether everything was published.
pub(crate) async fn measure(shared: &Shared, in_flight: &[u32]) -> Result<bool> {
    let most = in_flight.iter().map(|count| backlog(*count)).max().unwrap_or(MIN_BACKLOG);
    let simulator = provider::start(COMPANIES, most.div_ceil(COMPANIES)).await?;
    let records = provider::customers(simulator.provider());
    println!(
        "\nevents settled a second, reads of {LATENCY:?}, {PARTITIONS} shards in one task, {COMPANIES} companies"
    );
    println!(
        "{:>9} {:>8} {:>9} {:>7} {:>6} {:>12} {:>12} {:>15} {:>13} {:>15}",
        "in flight",
        "events",
        "events/s",
        "bound",
        "ratio",
        "CPU-s/1,000",
        "peak RSS MB",
        "transactions/s",
        "worker cores",
        "provider cores"
    );
    let mut sound = true;
    // The broker's JIT warms up during the first run, which is printed only for comparison.
    println!("{:>9} the first row is a warm-up of the broker", "");
    for count in in_flight.iter().max().into_iter().chain(in_flight) {
        let records = &records[..backlog(*count) as usize];
        let (site, feed) =
            Site::open(shared, "enrich-speed", PARTITIONS, *count, &NO_PARKING, &simulator).await?;
        feed.backlog(records).await?;
        let worker = Worker::start(&site).await?;
        worker.prepare(&site).await?;
        worker.usage.reset_peak();
        worker.begin().await?;
        let samples = follow(&worker, records.len()).await?;
        let peak = worker.usage.peak();
        let (first, last) = middle(&samples, records.len())?;
        let seconds = (last.at - first.at).as_secs_f64();
        let events = last.published - first.published;
        let (rate, bound) = (events / seconds, bound(*count));
        let cores = |of: fn(&Sample) -> Duration| (of(last) - of(first)).as_secs_f64() / seconds;
        let worker_cores = cores(|sample| sample.worker);
        println!(
            "{count:>9} {:>8} {rate:9.0} {bound:7.0} {:6.3} {:12.3} {peak:12.0} {:15.1} {worker_cores:13.2} {:15.2}",
            records.len(),
            rate / bound,
            worker_cores * 1000.0 / rate,
            (last.committed - first.committed) / seconds,
            cores(|sample| sample.provider),
        );
        let verdict = check(&site, &feed).await?;
        println!("{:>9} {verdict}", "");
        sound &= verdict.is_sound();
    }
    simulator.stop().await;
    Ok(sound)
}

/// Most events a second with this many reads in flight.
fn bound(in_flight: u32) -> f64 {
    f64::from(in_flight) / LATENCY.as_secs_f64()
}

fn backlog(in_flight: u32) -> u32 {
    MIN_BACKLOG.max((bound(in_flight) * BACKLOG_TIME.as_secs_f64()) as u32)
}

/// Samples the worker until everything is published.
async fn follow(worker: &Worker, events: usize) -> Result<Vec<Sample>> {
    let (own, mut samples) = (Usage::own(), Vec::new());
    let mut moved = (0.0, Instant::now());
    loop {
        let metrics: Metrics = worker.metrics().await?;
        let sample = Sample {
            at: Instant::now(),
            published: metrics.published(),
            committed: metrics.committed(),
            worker: worker.usage.processor_time(),
            provider: own.processor_time(),
        };
        if sample.published > moved.0 {
            moved = (sample.published, sample.at);
        }
        let (published, is_over) = (sample.published, sample.at - moved.1 > STALLED);
        samples.push(sample);
        if published >= events as f64 {
            return Ok(samples);
        }
        if is_over {
            let settled = metrics.sum("tributary_enrich_events_total", "");
            return Err(worker.error(&format!(
                "only {published} of {events} events were published ({settled} settled), none in the last {STALLED:?}"
            )));
        }
        sleep(STEP).await;
    }
}

/// The first and the last sample of the measured part.
fn middle(samples: &[Sample], events: usize) -> Result<(&Sample, &Sample)> {
    let part = |share: f64| share * events as f64;
    let first = samples.iter().find(|sample| sample.published >= part(MIDDLE.0));
    let last = samples.iter().rev().find(|sample| sample.published <= part(MIDDLE.1));
    let found = first.zip(last).filter(|(first, last)| last.at > first.at);
    found.ok_or_else(|| Error("the run was too short to measure its middle".to_owned()))
}
