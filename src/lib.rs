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
//! modules of this crate, lowest first
//!
//! config       one declaration for each setting: parsing, validation, Kafka Connect's answers, the reference
//! store        keys and values on this disk
//! avro         schemas, registry, encode, decode        telemetry   logs and metrics of the process
//! spool        deliveries that are acknowledged and not yet in Kafka, on this disk
//! publish      topics and schemas of a prefix, records as bytes, dead letters, transactions of a shard
//! state        what the topics of a cluster and of a prefix say: configs, offsets, statuses, subscriptions, runs
//! logins       grants and access tokens, and one client of the provider for each connector
//! plugin       the interface of a connector class, and what a task is given
//!
//! connect              webhooks                  records                      three wings that do not import each other
//! REST, herder,        receiver, intake,         enrichment, lists,
//! supervisor           subscriptions             fence
//!
//! worker       one worker process: wires the wings, serves health and metrics
//! cli          the command line, and the only module that names the simulator
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
