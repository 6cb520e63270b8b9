//! Many companies in one worker: time and memory from the start of its task to the end of the company list.

use std::time::{Duration, Instant};

use crate::lists::follow;
use crate::machine::Usage;
use crate::provider;
use crate::site::Site;
use crate::support::{Result, Shared};
use crate::worker::Worker;

const PARTITIONS: u32 = 12;
const IN_FLIGHT: u32 = 64;
const SETTINGS: [(&str, &str); 3] =
    [("snapshot.mode", "no_data"), ("snapshot.rows", "full"), ("snapshot.lists", "companies")];

/// Measures each number of companies on its own topics. Returns whether every list of companies was proved.
pub(crate) async fn measure(shared: &Shared, counts: &[u32]) -> Result<bool> {
    println!("\ncompanies of one worker, {PARTITIONS} shards in one task, pages of 1,000");
    println!(
        "read: every shard reads the list, from the request to the last certificate; again: another worker starts"
    );
    println!(
        "{:>9} {:>10} {:>11} {:>8} {:>10} {:>12} {:>13} {:>13} {:>14}",
        "companies",
        "running s",
        "RSS MB then",
        "read s",
        "written",
        "RSS MB then",
        "peak RSS MB",
        "start again s",
        "RSS MB then"
    );
    let mut sound = true;
    for companies in counts {
        let simulator = provider::at_once(*companies, 1).await?;
        let (site, _) = Site::open(shared, "companies", PARTITIONS, IN_FLIGHT, &SETTINGS, &simulator).await?;
        let worker = Worker::start(&site).await?;
        worker.prepare(&site).await?;
        let began = Instant::now();
        worker.begin().await?;
        worker.until_running().await?;
        let (running, at_first) = (began.elapsed(), worker.usage.resident());
        worker.usage.reset_peak();
        let began = Instant::now();
        worker.ask_for_run("companies").await?;
        let (over, _) = follow(&worker, "companies").await?;
        let (read, then) = (began.elapsed(), worker.usage.resident());
        let peak = worker.usage.peak();
        worker.kill();

        let next = Worker::start(&site).await?;
        let (began, usage) = (Instant::now(), &next.usage);
        next.until_running().await?;
        let again = began.elapsed();
        let row = Row { companies: *companies, running, at_first, read, then, peak, again };
        row.print(over["published"].as_u64().unwrap_or_default(), usage);
        sound &= over["certified"] == true && over["published"] == *companies;
        simulator.stop().await;
    }
    Ok(sound)
}

struct Row {
    companies: u32,
    running: Duration,
    at_first: f64,
    read: Duration,
    then: f64,
    peak: f64,
    again: Duration,
}

impl Row {
    fn print(&self, written: u64, usage: &Usage) {
        let Self { companies, running, at_first, read, then, peak, again } = self;
        println!(
            "{companies:>9} {:>10.2} {at_first:>11.0} {:>8.2} {written:>10} {then:>12.0} {peak:>13.0} {:>13.2} {:>14.0}",
            running.as_secs_f64(),
            read.as_secs_f64(),
            again.as_secs_f64(),
            usage.resident(),
        );
    }
}
