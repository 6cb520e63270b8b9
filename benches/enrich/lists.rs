//! Reads lists in full: records a second from the page to the commit, and the cost of a second run when nothing has changed.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::check::count;
use crate::machine::Usage;
use crate::provider;
use crate::site::Site;
use crate::support::{Error, Result, Shared};
use crate::worker::Worker;

const PARTITIONS: u32 = 12;
const IN_FLIGHT: u32 = 64;
const STEP: Duration = Duration::from_millis(100);
/// Longest time without a new row before the run fails.
const STALLED: Duration = Duration::from_secs(60);
const SETTINGS: [(&str, &str); 2] = [("snapshot.mode", "no_data"), ("snapshot.rows", "full")];

/// Measures each number of records on its own topics. Returns whether every record was published once and every list proved.
pub(crate) async fn measure(shared: &Shared, records: &[u32], companies: u32) -> Result<bool> {
    println!(
        "\nlists in pages of 1,000, a provider that answers at once, {PARTITIONS} shards in one task, {companies} companies"
    );
    println!(
        "{:>9} {:>10} {:>8} {:>11} {:>9} {:>13} {:>13} {:>12} {:>15} {:>10}",
        "records",
        "run",
        "seconds",
        "records/s",
        "pages/s",
        "CPU-s/1,000",
        "median RSS MB",
        "peak RSS MB",
        "provider cores",
        "written"
    );
    let mut sound = true;
    for records in records {
        let simulator = provider::at_once(companies, records.div_ceil(companies)).await?;
        let (site, _) = Site::open(shared, "lists", PARTITIONS, IN_FLIGHT, &SETTINGS, &simulator).await?;
        let worker = Worker::start(&site).await?;
        worker.prepare(&site).await?;
        worker.begin().await?;
        worker.until_running().await?;
        let total = u64::from(records.div_ceil(companies) * companies);
        for (run, expected) in [("first", total), ("unchanged", 0)] {
            worker.usage.reset_peak();
            let (own, began) = (Usage::own(), Instant::now());
            let (before, provider) = (worker.usage.processor_time(), own.processor_time());
            worker.ask_for_run(run).await?;
            let (over, resident) = follow(&worker, run).await?;
            let seconds = began.elapsed().as_secs_f64();
            let spent = (worker.usage.processor_time() - before).as_secs_f64();
            let cores = (own.processor_time() - provider).as_secs_f64() / seconds;
            let number = |member: &str| over[member].as_u64().unwrap_or_default();
            println!(
                "{total:>9} {run:>10} {seconds:8.1} {:11.0} {:9.1} {:13.3} {resident:13.0} {:12.0} {cores:15.2} {:>10}",
                total as f64 / seconds,
                number("pages") as f64 / seconds,
                spent * 1e3 / total as f64,
                worker.usage.peak(),
                number("published"),
            );
            sound &= number("published") == expected && over["certified"] == true;
        }
        let found = count(&site).await?;
        println!("{:>9} {found} records in the topic", "");
        sound &= found == total;
        simulator.stop().await;
    }
    Ok(sound)
}

/// Waits for the end of a run. Returns its status, and the median of the worker's memory in megabytes.
pub(crate) async fn follow(worker: &Worker, run: &str) -> Result<(serde_json::Value, f64)> {
    let mut resident = Vec::new();
    let mut moved = (0, Instant::now());
    loop {
        let status = worker.run(run).await?;
        resident.push(worker.usage.resident());
        if status["state"] == "ended" {
            resident.sort_by(f64::total_cmp);
            return Ok((status, resident[resident.len() / 2]));
        }
        let rows = status["rows"].as_u64().unwrap_or_default();
        if rows > moved.0 {
            moved = (rows, Instant::now());
        }
        if moved.1.elapsed() > STALLED {
            return Err(Error(format!("nothing was read for {STALLED:?}: {status}")));
        }
        sleep(STEP).await;
    }
}
