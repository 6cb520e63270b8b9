//! A broker outage, by default of a minute at 5,000 deliveries a second: memory over time, answers, and the time until the
//! spool has drained.
//!
//! Deliveries continue at the same rate until the spool is empty, or two and a half minutes after the broker came back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tributary::avro::embedded::EmbeddedRegistry;

use crate::Scale;
use crate::generator::{self, Book, Load};
use crate::receiver::Receiver;
use crate::speed::{verdict, warm};
use crate::support::{Broker, Error, Options, Result};

const COMPANIES: u32 = 1_000;
/// Time under load before the broker is killed.
const BEFORE: Duration = Duration::from_secs(10);
/// Limit for draining the spool after the broker came back.
const DRAINING: Duration = Duration::from_secs(150);
/// Interval between two lines of the table.
const STEP: Duration = Duration::from_secs(5);

/// Measures our worker and prints its memory every few seconds. Returns whether the spool drained in time and nothing was lost.
pub(crate) async fn measure(scale: &Scale) -> Result<bool> {
    let mut broker = Broker::start(Options::default()).await?;
    let registry =
        EmbeddedRegistry::start().await.map_err(|error| Error(format!("start a registry: {error}")))?;
    let receiver = Receiver::ours(&broker.bootstrap(), registry.url().as_str(), false)?;
    let book = Book::new();
    warm(&receiver, &book).await?;
    let stop = Arc::new(AtomicBool::new(false));
    let time = BEFORE + scale.outage + Duration::from_secs(60) + DRAINING;
    let load = Load { connections: 256, rate: Some(scale.rate), companies: COMPANIES, time };
    println!("\n{} deliveries/s, the broker killed for {:?}", scale.rate, scale.outage);
    println!("{:>6} {:>8} {:>14}  broker", "s", "RSS MB", "spool entries");
    let sending = generator::run(&receiver.target, load, &book, Arc::clone(&stop));
    let watching = async {
        let drained = cut_broker(&receiver, &mut broker, scale).await;
        stop.store(true, Ordering::Relaxed);
        drained
    };
    let (outcome, drained) = tokio::join!(sending, watching);
    let drained = drained?;
    println!(
        "{:.0} answers/s, p50 {:.2} ms, p99 {:.1} ms, worst {:.0} ms, statuses {:?}, {} without an answer",
        outcome.rate(),
        outcome.quantile(0.5),
        outcome.quantile(0.99),
        outcome.quantile(1.0),
        outcome.statuses,
        outcome.broken
    );
    match drained {
        Some(took) => {
            println!("spool drained in {took:.1?} after the broker was back, under the same load")
        }
        None => println!("spool was NOT empty {DRAINING:?} after the broker was back"),
    }
    println!("peak RSS {:.0} MB", receiver.usage.peak());
    let mut sound = drained.is_some();
    if let Some(worker) = receiver.worker() {
        let (kept, text) = verdict(worker, &broker.bootstrap(), book).await?;
        println!("{text}");
        sound &= kept;
    }
    Ok(sound)
}

/// Kills and restarts the broker, printing the worker's state meanwhile. Returns how long the spool took to drain.
async fn cut_broker(receiver: &Receiver, broker: &mut Broker, scale: &Scale) -> Result<Option<Duration>> {
    let began = Instant::now();
    print_until(receiver, began, began + BEFORE, "up", false).await;
    broker.kill();
    print_until(receiver, began, Instant::now() + scale.outage, "down", false).await;
    broker.restart().await?;
    let back = Instant::now();
    let drained = print_until(receiver, began, back + DRAINING, "up again", true).await;
    Ok(drained.map(|at| at - back))
}

/// Prints a line every few seconds until this time, or until the spool is empty if `awaits_empty`.
async fn print_until(
    receiver: &Receiver,
    began: Instant,
    until: Instant,
    broker: &str,
    awaits_empty: bool,
) -> Option<Instant> {
    let mut line = Instant::now();
    loop {
        let spool = match receiver.worker() {
            Some(worker) => worker.metric("tributary_spool_entries").await,
            None => None,
        };
        let now = Instant::now();
        let empty = awaits_empty && spool == Some(0.0);
        if now >= line || empty {
            let (seconds, resident) = (began.elapsed().as_secs(), receiver.usage.resident());
            println!("{seconds:6} {resident:8.0} {:14.0}  {broker}", spool.unwrap_or(f64::NAN));
            line = now + STEP;
        }
        if empty {
            return Some(now);
        }
        if now >= until {
            return None;
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}
