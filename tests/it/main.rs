//! Every integration test, in one binary with its own harness.
//!
//! What a test needs decides its kind. A `plain` test needs nothing from outside. A `real` one gets the
//! shared Apache Kafka and Apicurio registry, started together for the first test that asks and used by all
//! in parallel, each under its own [`support::prefix`] with three partitions a topic. A `disturbing` one
//! starts brokers or registries of its own to kill, pause or cut them off, and runs after the others, beside one like it.
//!
//! The real parts are jars from Maven Central, fetched once into the target directory (`tributary-rig`) and
//! run on Java 17. `TRIBUTARY_TEST_BOOTSTRAP` and `TRIBUTARY_TEST_REGISTRY` name running ones to use instead.
//! Where they are not to be had, the tests are ignored, and a block at the end of the run says which and what
//! to install; with `CI` set they fail.
//!
//! | variable | what it does |
//! |---|---|
//! | `TRIBUTARY_TEST_CYCLES` | how often repeating tests repeat themselves, and how many providers are drawn |
//! | `TRIBUTARY_TEST_SEED` | what drawn tests draw, and which fifth of the places `subscriptions::crash` visits |
//! | `TRIBUTARY_TEST_PLACES` | `all` visits all places where a worker dies in `subscriptions::crash` |
//! | `TRIBUTARY_TEST_OUTAGE_SECONDS` | how long outages last |
//! | `TRIBUTARY_TEST_PYTHON` | adds a reader in another language (`tests/interop/run` and `.ci/run` set it) |
//! | `TRIBUTARY_TEST_TRACE` | searches all that is logged at `trace` for secrets |
//! | `TRIBUTARY_TEST_CONNECT` | adds a real Kafka Connect (`tests/conformance/connect` sets it) |
//! | `TRIBUTARY_TEST_BROWSER` | adds a login in a browser (`tests/access/browser` sets it) |
//!
//! `cargo test --test it`, `cargo test --test it rig::` and `cargo test --test it -- --list` work as with any
//! test binary; output is not captured. Time that a busy machine lost is not counted by limits
//! ([`support::lost`]), and checks that are tried several times are counted ([`support::tries`]). Children die with the run, also when it is killed. Data and logs are
//! in the target directory's `tmp/tributary-rig`: removed at the end, or after a failure by the next run.
//!
//! A new module: functions `async fn sentence()`, for `real` ones `async fn sentence(shared: &'static
//! Shared)`, returning nothing or a `Result`; one [`tests!`] list; one line in [`main`] below.

#![allow(clippy::unwrap_used, reason = "a test may panic; the harness reports it")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the harness prints the report")]

mod support;

#[cfg(feature = "simulator")]
mod access;
#[cfg(feature = "simulator")]
mod api;
#[cfg(feature = "simulator")]
mod attacks;
#[cfg(feature = "simulator")]
mod auth;
mod canary;
mod cli;
mod cli_connectors;
#[cfg(feature = "simulator")]
mod cli_demo;
mod cli_help;
mod cli_snapshots;
mod cli_subscriptions;
#[cfg(feature = "simulator")]
mod cli_webhooks;
mod conformance;
mod dead_letters;
mod declared;
mod dependencies;
mod docs;
mod driver;
#[cfg(feature = "simulator")]
mod enrich;
mod fencing;
mod fuzz;
mod grants;
mod group;
mod image;
mod ingest;
mod interop;
mod layering;
mod lifecycle;
mod oracle;
mod outage;
mod partitions;
mod publish;
#[cfg(feature = "simulator")]
mod readme;
mod receiver;
mod registry;
mod rest;
mod rig;
mod security;
#[cfg(feature = "simulator")]
mod simulator;
mod spool;
mod state;
#[cfg(feature = "simulator")]
mod subscriptions;
mod telemetry;
mod topics;
mod worker;

use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::var_os(rig::SLEEPER).is_some() {
        return rig::sleeper();
    }
    if std::env::var_os(fencing::WRITER).is_some() {
        return fencing::writer();
    }
    if std::env::var_os(group::MEMBER).is_some() {
        return group::member();
    }
    if std::env::var_os(spool::SPOOLER).is_some() {
        return spool::spooler();
    }
    if std::env::var_os(state::EDITOR).is_some() {
        return state::editor();
    }
    if std::env::var_os(lifecycle::WORKER).is_some() {
        return lifecycle::worker();
    }
    if std::env::var_os(support::visit::VISIT).is_some() {
        return support::visit::visit();
    }
    if std::env::var_os(support::visit::HURRY).is_some() {
        return support::visit::hurry();
    }
    let tests = [
        #[cfg(feature = "simulator")]
        access::tests(),
        #[cfg(feature = "simulator")]
        attacks::tests(),
        #[cfg(feature = "simulator")]
        auth::tests(),
        #[cfg(feature = "simulator")]
        api::tests(),
        canary::tests(),
        cli::tests(),
        cli_connectors::tests(),
        #[cfg(feature = "simulator")]
        cli_demo::tests(),
        cli_help::tests(),
        cli_snapshots::tests(),
        cli_subscriptions::tests(),
        #[cfg(feature = "simulator")]
        cli_webhooks::tests(),
        conformance::tests(),
        dead_letters::tests(),
        declared::tests(),
        dependencies::tests(),
        docs::tests(),
        driver::tests(),
        #[cfg(feature = "simulator")]
        enrich::tests(),
        fencing::tests(),
        fuzz::tests(),
        grants::tests(),
        group::tests(),
        image::tests(),
        ingest::tests(),
        interop::tests(),
        layering::tests(),
        lifecycle::tests(),
        oracle::tests(),
        outage::tests(),
        partitions::tests(),
        publish::tests(),
        #[cfg(feature = "simulator")]
        readme::tests(),
        receiver::tests(),
        registry::tests(),
        rest::tests(),
        rig::tests(),
        security::tests(),
        #[cfg(feature = "simulator")]
        simulator::tests(),
        spool::tests(),
        state::tests(),
        #[cfg(feature = "simulator")]
        subscriptions::tests(),
        telemetry::tests(),
        topics::tests(),
        worker::tests(),
    ];
    support::harness::run(tests.into_iter().flatten().collect())
}
