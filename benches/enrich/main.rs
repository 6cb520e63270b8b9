//! How fast a worker fetches the records behind events, what shards cost, what a large company does to others, and how long
//! fences take to be read back.
//!
//! ```text
//! feed ──as the receiver does──▶ event topic ─▶ worker (a process of its own) ──transactions──▶ record topic
//!  └ book                                         ▲ 50 ms a read                                     │
//!     │                      simulated provider ──┘ in this process                                  │
//!     └──────────────────────────────▶ check ◀────────────────────────────────────────────────────────┘
//! ```
//!
//! `cargo bench --bench enrich [-- speed [IN_FLIGHT…] | shards [COUNT…] | whale | restore [KEYS] | lists [RECORDS…] |
//! companies [COUNT…]] [--seconds N] [--companies N]`
//!
//! - `speed`: a backlog of events of records that are all different is there before the worker begins; how many are settled a
//!   second, against the bound of so many reads in flight at 50 ms each. Taken over the middle of the run, without start and end.
//! - `shards`: one task with so many shards: until it runs, what it takes of the machine, and commits at 200 events/s; then it is
//!   killed and another worker, with an empty disk, begins in that moment: until that one has committed.
//! - `whale`: half of 200 events/s are of one company, then its half is left out; from receiving to the commit, as a reader of
//!   the record topic sees it, of all *other* companies.
//! - `lists`: customers of a hundred companies, or of so many, read in full, until all of it is committed and proved; then once more,
//!   when nothing has changed.
//! - `companies`: a worker that has so many of them: until it runs, their list read in full, and its memory.
//! - `restore`: fences of one shard, read from Kafka into an empty directory, then again with what that left there.
//!
//! Whatever was told is looked for in the record topic at the end: where something is missing, or a version went back, the exit
//! code is 1. Ratios are printed and judged by whoever reads them. Provider, worker and broker share the machine's cores, so
//! figures of one run compare with each other, and no others; `provider cores` is what this process took, which has two threads:
//! near two, the provider was the bottleneck. Timers wake up to a millisecond late, so that a read takes rather 51 ms than 50.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for people, with nothing to recover"
)]

/// The worker's own, so that memory is comparable: `cargo bench -p tributary --features dist`.
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

/// What was asked for.
struct Scale {
    /// The parts, each with its numbers.
    parts: Vec<(String, Vec<u32>)>,
    /// Of one measurement at a given rate.
    time: Duration,
    /// Whose lists are read.
    companies: u32,
}

fn main() -> ExitCode {
    if let Ok(told) = std::env::var(restore::RESTORE) {
        restore::serve(&told);
        return ExitCode::SUCCESS;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    // Cargo passes this to a benchmark it measures, not to one it tests; a broker is too much for a look whether it runs.
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
    // Starts what it needs in a runtime of its own, hence not inside ours.
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
            // One part that fails does not take the others along.
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

/// Numbers belong to the part before them; without a part, all are measured.
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
