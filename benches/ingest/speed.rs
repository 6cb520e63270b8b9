//! Compares receivers: at full speed, and at given rates.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use tributary::avro::embedded::EmbeddedRegistry;

use crate::Scale;
use crate::generator::{self, Book, Load, Outcome};
use crate::oracle::judge::judge;
use crate::oracle::reader::Reader;
use crate::oracle::worker::Worker;
use crate::receiver::Receiver;
use crate::support::{Broker, Error, Options, Result};

const CONNECTIONS: [u32; 2] = [64, 256];
const RATES: [u32; 4] = [500, 2_000, 5_000, 10_000];
/// Number of companies in the deliveries at a given rate.
const COMPANIES: u32 = 1_000;
/// Warm-up, which is not measured.
const WARMING: Duration = Duration::from_secs(3);
const LIMIT: Duration = Duration::from_secs(300);

/// Result of one round of one receiver.
struct Turn {
    outcome: Outcome,
    /// Processor time of the receiver's process.
    processor_time: Duration,
    peak: f64,
}

/// Measures the baseline and our receivers and prints two tables. Returns whether ours kept every delivery it acknowledged.
pub(crate) async fn measure(scale: &Scale, speed: bool, rates: bool) -> Result<bool> {
    let outside = std::env::var("TRIBUTARY_TEST_BOOTSTRAP").ok().filter(|given| !given.is_empty());
    let broker = if outside.is_none() { Some(Broker::start(Options::default()).await?) } else { None };
    let bootstrap = broker.as_ref().map(Broker::bootstrap).or(outside).unwrap_or_default();
    let registry =
        EmbeddedRegistry::start().await.map_err(|error| Error(format!("start a registry: {error}")))?;
    let registry = registry.url().as_str();
    let mut receivers = Vec::new();
    for kind in &scale.receivers {
        receivers.push(match kind.as_str() {
            "baseline" => Receiver::baseline(&bootstrap).await?,
            "plain" => Receiver::ours(&bootstrap, registry, false)?,
            "tls" => Receiver::ours(&bootstrap, registry, true)?,
            other => return Err(Error(format!("there is no receiver {other}: baseline, plain, tls"))),
        });
    }
    // One book per receiver, because each has its own topic.
    let books: Vec<Book> = receivers.iter().map(|_| Book::new()).collect();
    for (receiver, book) in receivers.iter().zip(&books) {
        warm(receiver, book).await?;
    }
    if speed {
        println!("\nfull speed, medians of {} turns of {:?} each", scale.rounds, scale.time);
        let loads = CONNECTIONS.map(|connections| (connections, None));
        table(&receivers, &books, scale, "connections", &loads).await;
    }
    if rates {
        println!("\nat given rates over 256 connections, latency from when a request was due");
        let loads = RATES.map(|rate| (256, Some(rate)));
        table(&receivers, &books, scale, "deliveries/s", &loads).await;
    }
    let mut all_sound = true;
    for (receiver, book) in receivers.iter().zip(books) {
        if let Some(worker) = receiver.worker() {
            let (sound, text) = verdict(worker, &bootstrap, book).await?;
            println!("{}: {text}", receiver.name);
            all_sound &= sound;
        }
    }
    Ok(all_sound)
}

/// Sends until the receiver answers, then for the warm-up time.
pub(crate) async fn warm(receiver: &Receiver, book: &Book) -> Result<()> {
    if let Some(worker) = receiver.worker() {
        let begins = async || {
            let load =
                Load { connections: 1, rate: Some(10), companies: 1, time: Duration::from_millis(200) };
            let listens = std::net::TcpStream::connect(address(receiver)).is_ok();
            listens && {
                let outcome = generator::run(&receiver.target, load, book, Default::default()).await;
                outcome.statuses.contains_key(&200)
            }
        };
        worker.until("the first answer", begins).await?;
        let direct = async || worker.metric("tributary_spool_entries").await == Some(0.0);
        worker.until("an empty spool", direct).await?;
    }
    let load = Load { connections: 64, rate: None, companies: 1, time: WARMING };
    let outcome = generator::run(&receiver.target, load, book, Default::default()).await;
    assert!(outcome.is_clean(), "{}: {:?}, {} broken", receiver.name, outcome.statuses, outcome.broken);
    Ok(())
}

/// Waits until every acknowledged delivery is in the worker's topic. Returns whether the result is sound, and the verdict as text.
pub(crate) async fn verdict(worker: &Worker, bootstrap: &str, book: Book) -> Result<(bool, String)> {
    let (bootstrap, events, letters) = (bootstrap.to_owned(), worker.events(), worker.dead_letters());
    let judging = tokio::task::spawn_blocking(move || {
        let entries = book.ledger.entries();
        let owed: HashSet<_> =
            entries.iter().filter(|entry| entry.acknowledged.is_some()).map(|entry| entry.id).collect();
        let mut reader = Reader::open(&bootstrap, &events, &[&letters], book.maker.clone());
        reader.until_seen(owed, LIMIT);
        let verdict = judge(&entries, reader.read_to_end(LIMIT));
        let sound = if verdict.is_sound() { "sound" } else { "NOT SOUND" };
        (verdict.is_sound(), format!("{sound}: {verdict}; {}", book.ledger.figures()))
    });
    judging.await.map_err(|error| Error(format!("judge: {error}")))
}

async fn table(
    receivers: &[Receiver],
    books: &[Book],
    scale: &Scale,
    kind: &str,
    loads: &[(u32, Option<u32>)],
) {
    let mut turns: BTreeMap<(usize, usize), Vec<Turn>> = BTreeMap::new();
    for round in 0..scale.rounds {
        for (line, (connections, rate)) in loads.iter().enumerate() {
            // Odd rounds run in reverse order, so that no receiver always follows the same other one.
            let mut order: Vec<usize> = (0..receivers.len()).collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for one in order {
                let load =
                    Load { connections: *connections, rate: *rate, companies: COMPANIES, time: scale.time };
                let turn = turn(&receivers[one], &books[one], load).await;
                turns.entry((line, one)).or_default().push(turn);
            }
        }
    }
    println!(
        "{kind:>12}  {:16} {:>8} {:>8} {:>8} {:>9} {:>13} {:>11}  not 200",
        "receiver", "req/s", "p50 ms", "p99 ms", "worst ms", "CPU-s/1,000", "peak RSS MB"
    );
    for ((line, one), turns) in turns {
        let (connections, rate) = loads[line];
        let median = |of: &dyn Fn(&Turn) -> f64| median(turns.iter().map(of).collect());
        println!(
            "{:>12}  {:16} {:8.0} {:8.2} {:8.2} {:9.1} {:13.4} {:11.0}  {}",
            rate.unwrap_or(connections),
            receivers[one].name,
            median(&|turn| turn.outcome.rate()),
            median(&|turn| turn.outcome.quantile(0.5)),
            median(&|turn| turn.outcome.quantile(0.99)),
            median(&|turn| turn.outcome.quantile(1.0)),
            median(&|turn| turn.processor_time.as_secs_f64() * 1000.0 / turn.outcome.micros.len() as f64),
            median(&|turn| turn.peak),
            turns.iter().map(|turn| odd(&turn.outcome)).sum::<u64>(),
        );
    }
}

async fn turn(receiver: &Receiver, book: &Book, load: Load) -> Turn {
    receiver.usage.reset_peak();
    let before = receiver.usage.processor_time();
    let outcome = generator::run(&receiver.target, load, book, Default::default()).await;
    Turn { outcome, processor_time: receiver.usage.processor_time() - before, peak: receiver.usage.peak() }
}

/// Requests that were not answered 200.
fn odd(outcome: &Outcome) -> u64 {
    let others = outcome.statuses.iter().filter(|(status, _)| **status != 200);
    outcome.broken + others.map(|(_, count)| count).sum::<u64>()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

fn address(receiver: &Receiver) -> String {
    let url: url::Url = receiver.target.url.parse().unwrap();
    format!("127.0.0.1:{}", url.port().unwrap_or_default())
}
