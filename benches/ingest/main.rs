//! How many deliveries a second a worker receives, at what price, and what an outage does to it; beside the plain receiver
//! that anyone would write ([`baseline`]).
//!
//! ```text
//! generator ──HTTP/1.1, keep-alive──▶ receiver (a process of its own) ──acks=all──▶ Apache Kafka
//!     └── ledger ───────────────────────────▶ judge ◀───────────────────────────────┘
//! ```
//!
//! `cargo bench --bench ingest [-- speed | rates | outage | forged …] [--seconds N] [--rounds N] [--outage SECONDS]
//! [--rate N] [--receivers baseline,plain,tls]`
//!
//! - `speed`: as fast as 64 and 256 connections go, one request after the other on each; receivers take turns, and the
//!   median of the rounds counts. Our worker keeps all its promises meanwhile (Avro, spool, metrics), once behind a proxy
//!   that ends TLS and once with TLS.
//! - `rates`: so many deliveries a second, whatever the answers do; the latency of each counts from when it was due.
//! - `outage`: 5,000 a second, the broker killed for a minute; memory over time, when the spool was empty again.
//! - `forged`: what a forged delivery of 1 MiB costs, by the address it is sent to; only where it is asked for. An invoicing one
//!   that costs more than twice an accounting one is a failure.
//!
//! Everything our worker acknowledged is judged at the end by the oracle of the integration tests; where something is missing,
//! or the spool is not empty in time, the exit code is 1. `speed` is a closed loop, so its latencies are those of the answers
//! alone and not to be compared with those of `rates`. The broker is theirs
//! too; `TRIBUTARY_TEST_BOOTSTRAP` names another for `speed` and `rates`. Generator, receiver and broker share the machine's
//! cores, so figures compare receivers of one run, and no others. The processor time is the receiver's alone.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for people, with nothing to recover"
)]

mod baseline;
mod forged;
mod generator;
mod oracle;
mod outage;
mod receiver;
mod speed;
#[allow(
    dead_code,
    unused_imports,
    clippy::print_stderr,
    reason = "the rig of the tests, of which this needs a part"
)]
#[path = "../../tests/it/support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::time::Duration;

/// What was asked for.
#[derive(Debug, Clone)]
struct Scale {
    /// Of one measurement.
    time: Duration,
    /// How often each receiver has its turn.
    rounds: usize,
    /// Of the broker.
    outage: Duration,
    /// Deliveries a second through the outage.
    rate: u32,
    /// Those that are measured for speed: `baseline`, `plain` for ours behind a proxy, `tls` for ours with TLS.
    receivers: Vec<String>,
}

fn main() -> ExitCode {
    if let Ok(bootstrap) = std::env::var(baseline::BASELINE) {
        baseline::serve(&bootstrap);
        return ExitCode::SUCCESS;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // Cargo passes this to a benchmark it measures, not to one it tests; a broker is too much for a look whether it runs.
    if !arguments.iter().any(|given| given == "--bench") {
        generator::try_out();
        return ExitCode::SUCCESS;
    }
    let option = |name: &str, default: &str| {
        let place = arguments.iter().position(|given| given == name);
        place.and_then(|place| arguments.get(place + 1)).map_or(default, String::as_str).to_owned()
    };
    let number = |name: &str, default: &str| option(name, default).parse::<u64>().unwrap();
    let scale = Scale {
        time: Duration::from_secs(number("--seconds", "10")),
        rounds: number("--rounds", "3") as usize,
        outage: Duration::from_secs(number("--outage", "60")),
        rate: number("--rate", "5000") as u32,
        receivers: option("--receivers", "baseline,plain,tls").split(',').map(str::to_owned).collect(),
    };
    let named = |part: &str| arguments.iter().any(|given| given == part);
    let all = !["speed", "rates", "outage", "forged"].iter().any(|part| named(part));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let sound = runtime.block_on(async {
        let mut sound = true;
        if all || named("speed") || named("rates") {
            sound &= speed::measure(&scale, all || named("speed"), all || named("rates")).await.unwrap();
        }
        if all || named("outage") {
            sound &= outage::measure(&scale).await.unwrap();
        }
        if named("forged") {
            sound &= forged::measure().await.unwrap();
        }
        sound
    });
    support::process::kill_all();
    support::run_directory::remove();
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
