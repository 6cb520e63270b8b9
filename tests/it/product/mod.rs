//! Tests of the product: the library, the command line and the worker process.

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
#[cfg(feature = "simulator")]
mod enrich;
pub(crate) mod fencing;
mod grants;
pub(crate) mod group;
mod ingest;
mod interop;
pub(crate) mod lifecycle;
mod oracle;
mod outage;
mod partitions;
mod publish;
mod receiver;
mod registry;
mod rest;
mod security;
#[cfg(feature = "simulator")]
mod simulator;
pub(crate) mod spool;
pub(crate) mod state;
#[cfg(feature = "simulator")]
mod subscriptions;
mod tables;
mod telemetry;
mod topics;
mod worker;

use crate::support::harness::Test;

pub(crate) fn tests() -> Vec<Test> {
    [
        #[cfg(feature = "simulator")]
        access::tests(),
        #[cfg(feature = "simulator")]
        api::tests(),
        #[cfg(feature = "simulator")]
        attacks::tests(),
        #[cfg(feature = "simulator")]
        auth::tests(),
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
        #[cfg(feature = "simulator")]
        enrich::tests(),
        fencing::tests(),
        grants::tests(),
        group::tests(),
        ingest::tests(),
        interop::tests(),
        lifecycle::tests(),
        oracle::tests(),
        outage::tests(),
        partitions::tests(),
        publish::tests(),
        receiver::tests(),
        registry::tests(),
        rest::tests(),
        security::tests(),
        #[cfg(feature = "simulator")]
        simulator::tests(),
        spool::tests(),
        state::tests(),
        #[cfg(feature = "simulator")]
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
