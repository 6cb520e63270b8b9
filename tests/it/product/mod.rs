//! Tests of the product: the library, the command line and the worker process.

mod access;
mod api;
mod attacks;
mod auth;
mod canary;
mod cli;
mod cli_connectors;
mod cli_demo;
mod cli_help;
mod cli_snapshots;
mod cli_subscriptions;
mod cli_webhooks;
mod conformance;
mod dead_letters;
mod declared;
mod enrich;
mod events;
pub(crate) mod fencing;
mod grants;
pub(crate) mod group;
mod ingest;
mod interop;
pub(crate) mod lifecycle;
mod oracle;
mod outage;
mod partitions;
mod probe;
mod publish;
mod receiver;
mod registry;
mod rest;
mod security;
mod simulator;
pub(crate) mod spool;
pub(crate) mod state;
mod subscriptions;
mod tables;
mod telemetry;
mod topics;
mod worker;

use crate::support::harness::Test;

pub(crate) fn tests() -> Vec<Test> {
    [
        access::tests(),
        api::tests(),
        attacks::tests(),
        auth::tests(),
        canary::tests(),
        cli::tests(),
        cli_connectors::tests(),
        cli_demo::tests(),
        cli_help::tests(),
        cli_snapshots::tests(),
        cli_subscriptions::tests(),
        cli_webhooks::tests(),
        conformance::tests(),
        dead_letters::tests(),
        declared::tests(),
        enrich::tests(),
        events::tests(),
        fencing::tests(),
        grants::tests(),
        group::tests(),
        ingest::tests(),
        interop::tests(),
        lifecycle::tests(),
        oracle::tests(),
        outage::tests(),
        partitions::tests(),
        probe::tests(),
        publish::tests(),
        receiver::tests(),
        registry::tests(),
        rest::tests(),
        security::tests(),
        simulator::tests(),
        spool::tests(),
        state::tests(),
        subscriptions::tests(),
        tables::tests(),
        telemetry::tests(),
        topics::tests(),
        worker::tests(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
