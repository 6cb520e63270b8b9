//! Benchmarks of a worker that reads the records behind events: throughput, cost of shards, the effect of one large company on
//! the others, and the time to restore fences.
//!
//! ```text
//! feed ──as the receiver does──▶ event topic ─▶ worker (own process) ──transactions──▶ record topic
//!  └ book                                         ▲ 50 ms a read                            │
//!     │                      simulated provider ──┘ in this process                         │
//!     └──────────────────────────────▶ check ◀──────────────────────────────────────────────┘
//! ```
//!
//! `cargo bench --bench enrich [-- speed [IN_FLIGHT…] | shards [COUNT…] | whale | restore [KEYS] | lists [RECORDS…] |
//! companies [COUNT…]] [--seconds N] [--companies N]`
//!
//! - `speed`: a backlog of events, each of another record, is written before the worker starts; events settled a second, against
//!   the bound set by the reads in flight at 50 ms each. Measured over the middle of the run, without start and end.
//! - `shards`: one task with a number of shards: time until it runs, its resources, and commits at 200 events/s; then it is
//!   killed, another worker with an empty disk starts at once, and the time until that one has committed is measured.
//! - `whale`: half of 200 events/s belong to one company, then that half is left out; latency of all *other* companies, from
//!   reception to the commit as a reader of the record topic sees it.
//! - `lists`: customers of a hundred companies, or of `--companies`, read in full until all of it is committed and proved; then
//!   once more without any change.
//! - `companies`: a worker with many companies: time until it runs, time to read their list in full, and its memory.
//! - `restore`: fences of one shard, read from Kafka into an empty directory, then again with the cache of the first read.
//!
//! At the end, the record topic is checked for everything that the feed announced; the exit code is 1 if something is missing
//! or a version went back. Ratios are printed for the reader to judge. Provider, worker and broker share the machine's cores,
//! so only figures of the same run are comparable. `provider cores` is the usage of this process, which has two threads: near
//! two, the provider was the bottleneck. Timers fire up to a millisecond late, so a read takes about 51 ms rather than 50.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for people, with nothing to recover"
)]

/// The worker's allocator, so that memory is comparable: `cargo bench -p tributary --features dist`.
#[cfg(feature = "jemalloc")]
#[path = "../../src/allocator.rs"]
mod allocator;
mod check;
mod companies;
mod feed;
mod lists;
mod machine;
mod provider;
mod restore;
mod shards;
mod site;
mod speed;
#[allow(
    dead_code,
    unused_imports,
    clippy::print_stderr,
    reason = "the rig of the tests, of which this needs a part"
)]
#[path = "../../tests/it/support/mod.rs"]
mod support;
mod whale;
mod worker;

use std::process::ExitCode;
use std::time::Duration;

use self::support::shared;

const PARTS: [&str; 6] = ["speed", "shards", "whale", "restore", "lists", "companies"];

/// Parameters of the run.
struct Scale {
    /// The parts, each with its numbers.
    parts: Vec<(String, Vec<u32>)>,
    /// Duration of one measurement at a given rate.
    time: Duration,
    /// Companies whose lists are read.
    companies: u32,
}

fn main() -> ExitCode {
    if let Ok(order) = std::env::var(restore::RESTORE) {
        restore::serve(&order);
        return ExitCode::SUCCESS;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    // Cargo passes this only when it measures. When it tests, starting a broker would take too long.
    if !arguments.iter().any(|given| given == "--bench") {
        runtime.block_on(feed::try_out());
        return ExitCode::SUCCESS;
    }
    let scale = match parse(&arguments) {
        Ok(scale) => scale,
        Err(problem) => {
            eprintln!("{problem}");
            return ExitCode::FAILURE;
        }
    };
    // `shared::get` starts a runtime, so it must not run inside ours.
    let shared = shared::get().unwrap();
    let sound = runtime.block_on(async {
        let mut sound = true;
        for (part, numbers) in &scale.parts {
            let or = |default: &[u32]| if numbers.is_empty() { default.to_vec() } else { numbers.clone() };
            let measured = match part.as_str() {
                "speed" => speed::measure(shared, &or(&[50, 100, 200])).await,
                "shards" => shards::measure(shared, &or(&[12, 64, 256]), scale.time).await,
                "whale" => whale::measure(shared, scale.time).await,
                "companies" => companies::measure(shared, &or(&[1_000, 100_000])).await,
                "lists" => lists::measure(shared, &or(&[10_000, 100_000, 1_000_000]), scale.companies).await,
                _ => restore::measure(shared, &or(&[1_000_000])).await,
            };
            // A failed part does not stop the others.
            sound &= measured.unwrap_or_else(|error| {
                eprintln!("{part}: {error}");
                false
            });
        }
        sound
    });
    support::process::kill_all();
    if sound {
        support::run_directory::remove();
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// A number belongs to the part before it; without a part, all are measured.
fn parse(arguments: &[String]) -> Result<Scale, String> {
    let mut scale = Scale { parts: Vec::new(), time: Duration::from_secs(30), companies: 100 };
    let mut arguments = arguments.iter().filter(|given| *given != "--bench");
    while let Some(given) = arguments.next() {
        let number = |text: &str| match text.parse::<u32>() {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(format!("{text} is neither of {} nor a number above 0", PARTS.join(", "))),
        };
        let mut next = || number(arguments.next().map(String::as_str).unwrap_or_default());
        if given == "--seconds" {
            scale.time = Duration::from_secs(next()?.into());
        } else if given == "--companies" {
            scale.companies = next()?;
        } else if PARTS.contains(&given.as_str()) {
            scale.parts.push((given.clone(), Vec::new()));
        } else {
            let (_, numbers) = scale.parts.last_mut().ok_or(format!("{given} belongs to no part"))?;
            numbers.push(number(given)?);
        }
    }
    if scale.parts.is_empty() {
        scale.parts = PARTS.map(|part| (part.to_owned(), Vec::new())).to_vec();
    }
    Ok(scale)
}
