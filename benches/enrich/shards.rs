//! Cost of shards: time until a task has taken them, threads, memory, commits, and time until another worker has taken over.

use std::sync::Arc;
use std::time::{Duration, Instant};

use simulator::world::Place;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::check::check;
use crate::provider;
use crate::site::Site;
use crate::support::{Error, Result, Shared};
use crate::worker::Worker;

/// Many, so that every shard has some.
const COMPANIES: u32 = 1_000;
/// Enough that a record comes again only long after its window.
const CUSTOMERS: u32 = 20;
/// Events a second.
const RATE: u32 = 200;
/// Reads in flight of the worker; more than the rate needs.
const IN_FLIGHT: u32 = 64;
/// Warm-up before commits are counted.
const WARMING: Duration = Duration::from_secs(5);

/// Milestones of the next worker, measured from the kill of the first.
struct Takeover {
    healthy: Duration,
    running: Duration,
    committed: Duration,
}

/// Measures each number of shards on its own topics and prints a table. Returns whether everything was published.
pub(crate) async fn measure(shared: &Shared, counts: &[u32], time: Duration) -> Result<bool> {
    let simulator = provider::start(COMPANIES, CUSTOMERS).await?;
    let records = provider::customers(simulator.provider());
    let places: Arc<[Place]> = records.into_iter().map(|(place, _)| place).collect();
    println!("\none task, {RATE} events/s of {COMPANIES} companies for {time:?}");
    println!("takeover: from SIGKILL to the next worker, which starts then with an empty disk");
    println!(
        "{:>6} {:>9} {:>8} {:>7} {:>12} {:>9} {:>10} {:>10} {:>10} {:>13}",
        "shards",
        "taking s",
        "threads",
        "RSS MB",
        "peak RSS MB",
        "events/s",
        "commits/s",
        "healthy s",
        "running s",
        "first commit s"
    );
    let mut sound = true;
    for count in counts {
        let (site, feed) = Site::open(shared, "enrich-shards", *count, IN_FLIGHT, &[], &simulator).await?;
        let feed = Arc::new(feed);
        let worker = Worker::start(&site).await?;
        worker.prepare(&site).await?;
        let began = Instant::now();
        worker.begin().await?;
        worker.until_running().await?;
        let taking = began.elapsed();

        let stop = CancellationToken::new();
        // Stops the feed even if this function returns early.
        let _stopping = stop.clone().drop_guard();
        let feeding = {
            let (feed, places, stop) = (Arc::clone(&feed), Arc::clone(&places), stop.clone());
            tokio::spawn(async move { feed.steady("steady", RATE, &places, &stop).await })
        };
        sleep(WARMING).await;
        let (before, counted) = (worker.metrics().await?, Instant::now());
        sleep(time).await;
        let (after, seconds) = (worker.metrics().await?, counted.elapsed().as_secs_f64());
        let usage = &worker.usage;
        let (threads, resident, peak) = (usage.threads(), usage.resident(), usage.peak());

        worker.kill();
        let killed = Instant::now();
        let next = Worker::start(&site).await?;
        let takeover = follow(&next, killed).await?;
        stop.cancel();
        feeding.await.map_err(|error| Error(format!("feed events: {error}")))??;
        println!(
            "{count:>6} {:9.2} {threads:8.0} {resident:7.0} {peak:12.0} {:9.1} {:10.1} {:10.2} {:10.2} {:13.2}",
            taking.as_secs_f64(),
            (after.published() - before.published()) / seconds,
            (after.committed() - before.committed()) / seconds,
            takeover.healthy.as_secs_f64(),
            takeover.running.as_secs_f64(),
            takeover.committed.as_secs_f64(),
        );
        let verdict = check(&site, &feed).await?;
        println!("{:>6} {verdict}", "");
        sound &= verdict.is_sound();
    }
    simulator.stop().await;
    Ok(sound)
}

/// Waits until the next worker runs the task and has committed events.
async fn follow(next: &Worker, killed: Instant) -> Result<Takeover> {
    let healthy = killed.elapsed();
    let (mut running, mut committed) = (None, None);
    next.until("the first commit after a takeover", async || {
        if running.is_none() && next.runs_task().await? {
            running = Some(killed.elapsed());
        }
        if committed.is_none() && next.metrics().await?.sum("tributary_enrich_events_total", "") > 0.0 {
            committed = Some(killed.elapsed());
        }
        Ok(running.is_some() && committed.is_some())
    })
    .await?;
    let both = running.zip(committed).map(|(running, committed)| Takeover { healthy, running, committed });
    both.ok_or_else(|| next.error("the task was never seen to run"))
}
