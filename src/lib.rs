//! Tributary turns accounting, payroll and invoicing APIs into Kafka topics.
//!
//! ```text
//! model     plain data: ids, versions, the table of resources, keys, topics, events and records
//!   │
//! config    one declaration per key: parsing, validation, Kafka Connect's answers, the reference
//!   │
//! avro      schemas, registry, encode, decode          store     keys to values on this disk
//! auth      logins, tokens and their check               │
//! api       one request path to the provider           spool     accepted and not in Kafka yet, on this disk
//!   │                                                  fence     the newest published version of every key
//!   │                                                  kafka     producer, shard transactions, consumer, topics, group membership
//!   │                                                      │
//!   └──────────────┬───────────────────────────────────────┘
//! pipeline         topics and schemas of a prefix, records as bytes, dead letters, shard transactions
//!   │
//! webhooks         deliveries and subscriptions        enrich    the record behind each event
//!   │                                                  snapshot  lists read in full, and the proof that they are complete
//!   │
//! worker           connectors, tasks, REST API
//!   │
//! cli              the only wiring
//!
//! simulator        the provider, written from its document alone
//! server           one way to serve HTTP, for every listener
//! telemetry        logs and metrics of the process
//! ```
//!
//! Imports go down only. At the bottom, beside `model`, are `retry`, `secret`, `metrics`, `durable`, `lapse`, `failpoint` and `random`:
//! the verdict on a failure, a value that cannot be printed, every metric's name, small files that survive a crash, a clock for
//! durations, the places where a test kills the process, and random bytes. Every module above them may use them, except the
//! simulator. `circuit` (a host that fails gets no requests for a while) is beside `config` and `store`; `server` and `telemetry` are
//! beside `kafka`. `cycles` is for tests alone.

pub mod api;
pub mod auth;
pub mod avro;
pub mod circuit;
pub mod cli;
pub mod config;
#[cfg(test)]
mod cycles;
pub mod durable;
pub mod enrich;
pub mod failpoint;
pub mod fence;
pub mod kafka;
mod lapse;
pub mod metrics;
pub mod model;
pub mod pipeline;
mod random;
pub mod retry;
pub mod secret;
pub mod server;
#[cfg(feature = "simulator")]
pub mod simulator;
pub mod snapshot;
pub mod spool;
pub mod store;
pub mod telemetry;
pub mod webhooks;
pub mod worker;
