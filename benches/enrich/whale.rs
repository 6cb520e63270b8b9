//! The effect of one company with half of all events on the latency of the others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kafka::{Assignment, Consumer, ConsumerEvent, ConsumerOptions, StartOffset, partition_of};
use model::Moment;
use simulator::world::{CompanyNumber, Place};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::check::check;
use crate::feed::Feed;
use crate::provider::{self, LATENCY};
use crate::site::Site;
use crate::support::place::header;
use crate::support::{Error, Result, Shared};
use crate::worker::Worker;

const PARTITIONS: u32 = 12;
const WHALE: CompanyNumber = 0;
const OTHERS: u32 = 50;
/// Per company: no record comes again within its window, even if all events belong to one company.
const CUSTOMERS: u32 = 2_000;
/// Events a second, half of them the whale's.
const RATE: u32 = 200;
/// Reads in flight: twice what the rate needs.
const IN_FLIGHT: u32 = 20;
/// Warm-up, which is not measured.
const WARMING: Duration = Duration::from_secs(5);
/// Limit for the last records to be seen.
const LIMIT: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(50);

/// When a reader of the record topic first saw the record of an event, in microseconds since 1970, by the id of the event.
type Seen = Arc<Mutex<HashMap<String, i64>>>;

/// Latencies of one phase in milliseconds, sorted.
struct Latencies {
    others: Vec<f64>,
    /// Those in the whale's partition.
    neighbours: Vec<f64>,
    /// Events of others whose record was not seen: coalesced, or missing.
    unseen: usize,
}

/// Measures with and without the whale and prints a table. Returns whether everything was published.
pub(crate) async fn measure(shared: &Shared, time: Duration) -> Result<bool> {
    let simulator = provider::start(1 + OTHERS, CUSTOMERS).await?;
    let records = provider::customers(simulator.provider());
    let places = records.into_iter().map(|(place, _)| place);
    let (whale, others): (Vec<Place>, Vec<Place>) = places.partition(|place| place.company == Some(WHALE));
    let both: Vec<Place> =
        whale.iter().cycle().zip(&others).flat_map(|(whale, other)| [*whale, *other]).collect();
    let (site, feed) = Site::open(shared, "enrich-whale", PARTITIONS, IN_FLIGHT, &[], &simulator).await?;
    let worker = Worker::start(&site).await?;
    worker.prepare(&site).await?;
    worker.begin().await?;
    worker.until_running().await?;
    let (seen, stop) = (Seen::default(), CancellationToken::new());
    let _stopping = stop.clone().drop_guard();
    let watching = tokio::spawn(watch(open(&site).await?, Arc::clone(&seen), stop.clone()));
    let partitions: HashMap<CompanyNumber, i32> = {
        let world = simulator.provider().world();
        let partition = |company| partition_of(world.company_id(company).as_bytes(), site.partitions);
        (0..=OTHERS).map(|company| (company, partition(company))).collect()
    };

    println!(
        "\n{RATE} events/s, half of them of one company and half of {OTHERS} others, then the others' half alone, {time:?} each"
    );
    println!(
        "{IN_FLIGHT} reads of {LATENCY:?} at once; latency of the others, from receivedAt to a read-committed reader"
    );
    println!(
        "{:14} {:>7} {:>8} {:>8} {:>9} {:>19} {:>8} {:>7}",
        "", "events", "p50 ms", "p99 ms", "worst ms", "whale's shard: p50", "p99 ms", "unseen"
    );
    phase(&feed, "warm", RATE, &both, WARMING, &seen).await?;
    let mut measured = Vec::new();
    for (name, rate, places) in [("with", RATE, &both), ("without", RATE / 2, &others)] {
        phase(&feed, name, rate, places, time, &seen).await?;
        let latencies = latencies(&feed, name, &seen, &partitions);
        println!(
            "{:14} {:>7} {:8.1} {:8.1} {:9.1} {:19.1} {:8.1} {:>7}",
            format!("{name} whale"),
            latencies.others.len(),
            quantile(&latencies.others, 0.5),
            quantile(&latencies.others, 0.99),
            quantile(&latencies.others, 1.0),
            quantile(&latencies.neighbours, 0.5),
            quantile(&latencies.neighbours, 0.99),
            latencies.unseen,
        );
        measured.push(latencies);
    }
    let ratio = |part: f64, of: fn(&Latencies) -> &Vec<f64>| {
        quantile(of(&measured[0]), part) / quantile(of(&measured[1]), part)
    };
    println!(
        "{:14} {:>7} {:8.2} {:8.2} {:9.2} {:19.2} {:8.2}",
        "ratio",
        "",
        ratio(0.5, |one| &one.others),
        ratio(0.99, |one| &one.others),
        ratio(1.0, |one| &one.others),
        ratio(0.5, |one| &one.neighbours),
        ratio(0.99, |one| &one.neighbours),
    );
    stop.cancel();
    watching.await.map_err(|error| Error(format!("watch the record topic: {error}")))??;
    let verdict = check(&site, &feed).await?;
    println!("{verdict}");
    drop(worker);
    simulator.stop().await;
    Ok(verdict.is_sound())
}

/// Feeds for this time, and waits until all of it is seen.
async fn phase(
    feed: &Feed,
    name: &str,
    rate: u32,
    places: &[Place],
    time: Duration,
    seen: &Seen,
) -> Result<()> {
    let stop = CancellationToken::new();
    let ending = async {
        sleep(time).await;
        stop.cancel();
    };
    let (fed, ()) = tokio::join!(feed.steady(name, rate, places, &stop), ending);
    fed?;
    let written = ids(feed, name);
    let end = Instant::now() + LIMIT;
    while Instant::now() < end {
        let all = {
            let seen = seen.lock().unwrap();
            written.iter().all(|id| seen.contains_key(id))
        };
        if all {
            break;
        }
        sleep(STEP).await;
    }
    Ok(())
}

/// Ids of the events of a phase.
fn ids(feed: &Feed, phase: &str) -> Vec<String> {
    let begins = format!("{phase}-");
    feed.book().events.keys().filter(|id| id.starts_with(&begins)).cloned().collect()
}

fn latencies(feed: &Feed, phase: &str, seen: &Seen, partitions: &HashMap<CompanyNumber, i32>) -> Latencies {
    let written = ids(feed, phase);
    let (book, seen) = (feed.book(), seen.lock().unwrap());
    let mut latencies = Latencies { others: Vec::new(), neighbours: Vec::new(), unseen: 0 };
    for id in written {
        let event = book.events[&id];
        if event.company == WHALE {
            continue;
        }
        let Some(at) = seen.get(&id) else {
            latencies.unseen += 1;
            continue;
        };
        let milliseconds = (at - event.received_at) as f64 / 1000.0;
        latencies.others.push(milliseconds);
        if partitions[&event.company] == partitions[&WHALE] {
            latencies.neighbours.push(milliseconds);
        }
    }
    latencies.others.sort_unstable_by(f64::total_cmp);
    latencies.neighbours.sort_unstable_by(f64::total_cmp);
    latencies
}

/// The value that this share of all does not exceed.
fn quantile(sorted: &[f64], part: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * part) as usize).copied().unwrap_or(f64::NAN)
}

/// A read-committed consumer of the record topic from its end.
async fn open(site: &Site) -> Result<Consumer> {
    let topic: Arc<str> = site.records().into();
    let assignment = |partition| Assignment { topic: Arc::clone(&topic), partition, start: StartOffset::End };
    let assignments = (0..site.partitions).map(assignment).collect();
    let opened = Consumer::assign(&site.kafka, assignments, &ConsumerOptions::default()).await;
    opened.map_err(|error| Error(format!("read {topic}: {error}")))
}

async fn watch(mut consumer: Consumer, seen: Seen, stop: CancellationToken) -> Result<()> {
    while let Some(next) = stop.run_until_cancelled(consumer.next()).await {
        let next = next.map_err(|error| Error(format!("read the record topic: {error}")))?;
        let at = Moment::now().micros();
        if let ConsumerEvent::Record(record) = next
            && let Some(id) = header(&record, "tributary.id")
        {
            // The first sighting counts.
            seen.lock().unwrap().entry(id.to_owned()).or_insert(at);
        }
    }
    consumer.stop().await;
    Ok(())
}
