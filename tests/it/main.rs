//! Every integration test, in one binary with its own harness.
//!
//! | directory | tests |
//! |---|---|
//! | `product` | the product: the library, the command line and the worker process |
//! | `repository` | files of the repository: layers, dependencies, documents, image, fuzz targets |
//! | `rig` | the harness and `support` themselves |
//!
//! The name of a test leaves out `product` and `repository`: `product/enrich/chaos.rs` has `enrich::chaos::…`.
//!
//! The kind of a test says what it needs. A `plain` test needs nothing from outside. A `real` one uses the shared Apache Kafka and
//! Apicurio registry, which are started for the first test that needs them and used by all in parallel, each under its own
//! [`support::prefix`] with three partitions a topic. A `disturbing` one kills, pauses or cuts off brokers or registries that no other
//! test uses; these run after all others, a few at a time.
//!
//! Kafka and the registry are jars from Maven Central, fetched once into the target directory (`tributary-rig`) and run on Java 17.
//! `TRIBUTARY_TEST_BOOTSTRAP` and `TRIBUTARY_TEST_REGISTRY` name running ones to use instead. That Kafka must allow short sessions
//! (`group.min.session.timeout.ms=1500`). Without Java and Maven these tests are ignored, and a block at the end of the run lists them
//! and says what to install; with `CI` set they fail.
//!
//! | variable | what it does |
//! |---|---|
//! | `TRIBUTARY_TEST_CYCLES_NAME` | cycles of the loop NAME in the table below |
//! | `TRIBUTARY_TEST_CYCLES` | multiplies the cycles of every loop; 1 unless set |
//! | `TRIBUTARY_TEST_SEED` | seed of drawn tests, and which fifth of its cases `subscriptions::crash` runs; the number of days since 1970 unless set. Each prints the command that repeats it |
//! | `TRIBUTARY_TEST_THREADS` | tests at a time; three times the number of cores unless set |
//! | `TRIBUTARY_TEST_PLACES` | `all` runs all cases of `subscriptions::crash` |
//! | `TRIBUTARY_TEST_DURATIONS` | a file for how long each test took; `tests/it/durations.tsv` decides the order of a run |
//! | `TRIBUTARY_TEST_OUTAGE_SECONDS` | how long outages last |
//! | `TRIBUTARY_TEST_PYTHON` | adds a reader in another language (`tests/peers/interop/run` and `.ci/run` set it); with `CI` set its tests fail without it, unless `TRIBUTARY_CI_MAY_LEAVE_OUT` names `python` |
//! | `TRIBUTARY_TEST_TRACE` | logs everything at `trace` and searches the logs for secrets |
//! | `TRIBUTARY_TEST_CONNECT` | adds a real Kafka Connect (`tests/peers/conformance/connect` sets it) |
//! | `TRIBUTARY_TEST_BROWSER` | adds a login in a browser (`tests/peers/browser` sets it) |
//!
//! Loops. The gate runs each often enough to show its claim once for each kind; `.ci/nightly` runs the long ones.
//!
//! | loop | where | one cycle is | gate |
//! |---|---|---|---|
//! | `KILL` | `oracle::kill` | a worker killed in some trouble of the broker | 3: one of each class |
//! | `CHAOS` | `enrich::chaos` | a worker killed or frozen, or the broker restarted | 3: one of each |
//! | `CROWD` | `enrich::crowd` | one of three workers killed under load | 1 |
//! | `LISTS` | `enrich::lists::killed` | a worker killed while it reads lists | 1 |
//! | `GRANTS` | `grants::kill` | a worker killed while it refreshes four grants | 1 |
//! | `DRAWN` | `support::drawn` | a drawn provider | 1, and the strict or the lenient one |
//! | `ANSWERS` | `enrich::deleting` | a body of the answer for a deleted record | 2 of 6, by day |
//! | `CANARY` | `canary` | a share of the pairs of configuration keys | 1 of 24, by day |
//! | `FUZZ` | `rest::fuzz` | a request | 250 |
//! | `RACES` | `rest::edits` | two workers that create one connector at once | 3 |
//! | `OVERLAPS` | `rest::edits` | two edits of one connector at once | 8: one has to be refused |
//! | `TURNS` | `rest::edits` | an edit after the other worker's | 4: two on each |
//! | `OFFSETS` | `rest::offsets` | an edit of offsets and a resume at once | 2 |
//! | `SPOOL` | `spool` | a process killed while it appends | 3: one opens what two others left |
//! | `TAKEOVERS` | `group::failure` | a member killed | 2: the faster one counts |
//! | `FREEZES` | `group::failure` | a member frozen and thawed | 1 |
//! | `CHURN` | `group::failure` | every way to lose a member | 1 |
//! | `CLAIMS` | `group::sharing` | a member joins; from the second on, one leaves | 2 |
//! | `REGISTRY` | `registry` | four workers that register a schema at once | 2 |
//! | `TOPICS` | `topics` | three workers that create topics at once | 2 |
//! | `LOSSES` | `outage::single` | a batch whose acknowledgement is lost | 1 |
//! | `TAILS` | `state::tails` | a committed and an aborted record, read to the end | 2 |
//! | `STATUSES` | `state::tails` | a status and an offset, written and read back | 2 |
//! | `WRITERS` | `fencing::takeover` | a writer killed with an open transaction | 2 |
//! | `MOVES` | `lifecycle::together` | a worker killed, or frozen | 2: one of each |
//! | `SIMULATION` | `src/records/proof/tests/simulation.rs` | a reading of a moving list, for each cell | 20 |
//! | `PROPERTIES` | `src/records/proof/tests/properties.rs` | a drawn list and its history | 400 |
//! | `PROVIDERS` | `src/records/proof/tests/providers.rs` | a random provider of pages | 4,000 |
//! | `LIVES` | `src/records/schedule/tests/simulation.rs` | random lives of a shard | 300 |
//! | `ORDER` | `src/webhooks/intake/tests/order.rs` | a drawn life of an intake | 6 |
//! | `REFERENCES` | `src/config/tests.rs` | a share of the pairs of configuration keys | 1 of 8, by day |
//! | `SUBSCRIPTIONS` | `src/webhooks/subscriptions/tests/chaos.rs` | a drawn life of a connector | 400 |
//! | `MODEL` | `src/spool/tests/model.rs` | a drawn life of a spool | 3 |
//! | `SHELF` | `src/records/fence/tests/reference.rs` | a random history of a fence | 4 |
//!
//! `cargo test --test it`, `cargo test --test it rig::` and `cargo test --test it -- --list` work as with any test binary; output is
//! not captured. Limits do not count time that a busy machine lost ([`support::lost`]), and checks that pass only after a retry are
//! counted ([`support::tries`]). Children die with the run, also when it is killed. Data and logs are in the target directory's
//! `tmp/tributary-rig`; the end of the run removes them, or after a failure the next run.
//!
//! A new module has functions `async fn claim()`, for `real` tests `async fn claim(shared: &'static Shared)`, which return nothing or
//! a `Result`, one [`tests!`] list, and one line in `tests` of the `mod.rs` above it.

#![allow(clippy::unwrap_used, reason = "a test may panic; the harness reports it")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the harness prints the report")]

mod product;
mod repository;
mod rig;
mod support;

use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::var_os(rig::SLEEPER).is_some() {
        return rig::sleeper();
    }
    if std::env::var_os(product::fencing::WRITER).is_some() {
        return product::fencing::writer();
    }
    if std::env::var_os(product::group::MEMBER).is_some() {
        return product::group::member();
    }
    if std::env::var_os(product::spool::SPOOLER).is_some() {
        return product::spool::spooler();
    }
    if std::env::var_os(product::lifecycle::WORKER).is_some() {
        return product::lifecycle::worker();
    }
    if std::env::var_os(support::visit::VISIT).is_some() {
        return support::visit::visit();
    }
    if std::env::var_os(support::visit::HURRY).is_some() {
        return support::visit::hurry();
    }
    let tests = [product::tests(), repository::tests(), rig::tests()];
    support::harness::run(tests.into_iter().flatten().collect())
}
