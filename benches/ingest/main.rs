//! Deliveries a second that a worker receives, their cost, and the effect of a broker outage; compared with a straightforward
//! receiver ([`baseline`]).
//!
//! ```text
//! generator ──HTTP/1.1, keep-alive──▶ receiver (own process) ──acks=all──▶ Apache Kafka
//!     └── ledger ───────────────────────────▶ judge ◀───────────────────────────┘
//! ```
//!
//! `cargo bench --bench ingest [-- speed | rates | outage …] [--seconds N] [--rounds N] [--outage SECONDS]
//! [--rate N] [--receivers baseline,plain,tls]`
//!
//! - `speed`: 64 and 256 connections at full speed, each with one request at a time; receivers take turns, and the median
//!   of the rounds counts. Our worker does all it does in production (Avro, spool, metrics), once behind a proxy that
//!   ends TLS and once with TLS.
//! - `rates`: a fixed number of deliveries a second, independent of the answers; latency counts from when a request was due.
//! - `outage`: 5,000 a second, the broker killed for a minute; memory over time, and the time until the spool has drained.
//!
//! At the end, the oracle of the integration tests judges everything that our worker acknowledged; the exit code is 1 if
//! anything is missing or the spool did not drain in time. `speed` is a closed loop, so its latencies cover only the
//! answers and cannot be compared with those of `rates`. The benchmark starts its own broker;
//! `TRIBUTARY_TEST_BOOTSTRAP` names another one for `speed` and `rates`. Generator, receiver and broker share the
//! machine's cores, so only figures of the same run are comparable. The processor time is the receiver's alone.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for people, with nothing to recover"
)]

mod baseline;
mod generator;
#[allow(dead_code, reason = "shared with the benchmark `enrich`")]
#[path = "../enrich/machine.rs"]
mod machine;
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

/// Parameters of the run.
#[derive(Debug, Clone)]
struct Scale {
    /// Duration of one measurement.
    time: Duration,
    /// Rounds per receiver.
    rounds: usize,
    /// How long the broker is away.
    outage: Duration,
    /// Deliveries a second during the outage.
    rate: u32,
    /// Receivers to compare: `baseline`, `plain` (ours behind a proxy), `tls` (ours with TLS).
    receivers: Vec<String>,
}

fn main() -> ExitCode {
    if let Ok(bootstrap) = std::env::var(baseline::BASELINE) {
        baseline::serve(&bootstrap);
        return ExitCode::SUCCESS;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    // Cargo passes this only when it measures. When it tests, starting a broker would take too long.
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
    let all = !["speed", "rates", "outage"].iter().any(|part| named(part));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let sound = runtime.block_on(async {
        let mut sound = true;
        if all || named("speed") || named("rates") {
            sound &= speed::measure(&scale, all || named("speed"), all || named("rates")).await.unwrap();
        }
        if all || named("outage") {
            sound &= outage::measure(&scale).await.unwrap();
        }
        sound
    });
    support::process::kill_all();
    support::run_directory::remove();
    if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
