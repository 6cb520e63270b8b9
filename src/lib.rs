//! Tributary turns accounting, payroll and invoicing APIs into Kafka topics.
//!
//! ```text
//! model     plain data: ids, versions, the table of resources, keys, topics, events and records
//!   │
//! config    one declaration per key: parsing, validation, Kafka Connect's answers, the reference
//!   │
//! avro      schemas, registry, encode, decode          kafka    producer, shard transactions, consumer, topics
//!   │                                                    spool    accepted and not in Kafka yet, on this disk
//!   └──────────────┬───────────────────────────────────────┘
//! pipeline         source → record → bytes → acknowledgement → commit, written once
//!   │
//! cli              the only wiring
//!
//! simulator        the provider, written from its document alone
//! server           one way to serve HTTP, for every listener
//! ```
//!
//! Imports go down only. `retry`, `secret`, `metrics` and `durable` may be used by all: the verdict on a failure, a value
//! that cannot be printed, every metric's name, and small files that survive a crash.

pub mod avro;
pub mod cli;
pub mod config;
pub mod durable;
pub mod kafka;
pub mod metrics;
pub mod model;
pub mod pipeline;
pub mod retry;
pub mod secret;
pub mod server;
#[cfg(feature = "simulator")]
pub mod simulator;
pub mod spool;
pub mod telemetry;
pub mod webhooks;
pub mod worker;
