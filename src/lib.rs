//! Tributary turns accounting, payroll and invoicing APIs into Kafka topics.
//!
//! ```text
//! crates; the right column has those that each depends on
//!
//! base        retry verdicts, secrets, metric names, clocks, small durable files
//! model       plain data: ids, versions, the table of resources, keys, topics, events and records
//! server      one way to serve HTTP, for every listener                                            on base
//! kafka       producer, shard transactions, consumer, topics, group membership                     on base, model
//! provider    logins, tokens and their check; one request path to the provider                     on base, model
//! simulator   the provider, written from its document alone                                        on server
//!
//! modules of this crate
//!
//! config           one declaration per key: parsing, validation, Kafka Connect's answers, the reference
//!   │
//! avro             schemas, registry, encode, decode      store    keys to values on this disk
//! telemetry        logs and metrics of the process        spool    accepted and not in Kafka yet, on this disk
//!   │                                                     fence    the newest published version of every key
//!   │                                                       │
//!   └──────────────┬────────────────────────────────────────┘
//! pipeline         topics and schemas of a prefix, records as bytes, dead letters, shard transactions
//!   │
//! webhooks         deliveries and subscriptions           enrich   the record behind each event
//!   │                                                     snapshot lists read in full, and the proof that they are complete
//!   │
//! worker           connectors, tasks, REST API
//!   │
//! cli              the only wiring, and the only module that names the simulator
//! ```
//!
//! Imports go down only: `tests/it/repository/layering` checks crates and modules, and finds cycles. `cycles` is for tests alone.

pub mod avro;
pub mod cli;
pub mod config;
pub mod connect;
#[cfg(test)]
mod cycles;
pub mod logins;
pub mod plugin;
pub mod publish;
pub mod records;
pub mod spool;
pub mod state;
pub mod store;
pub mod telemetry;
pub mod webhooks;
pub mod worker;
