//! Ingest, a service of every worker: it receives for every `WebhookSource` of the config topic, with and without Kafka.
//!
//! ```text
//!                    receivers.json ─┐                             ┌▶ receivers ─▶ public listeners ─▶ intake ─▶ Kafka or spool
//! config topic ─ once it is there ───┴▶ config watcher ─▶ configs ─┼▶ topic readiness (topics, schema ids) ─┘
//!                                                                  └▶ the spool's limit
//! Acknowledges, echoes, gaps, heartbeats ─▶ state notes ─▶ {prefix}.state
//! ```
//!
//! | File | Does |
//! |---|---|
//! | `service/` | starts the parts, watches them, stops them |
//! | `config_watcher.rs`, `receiver_configs/`, `receiver_cache.rs` | from configurations to receivers, with a file for a start without Kafka |
//! | `topic_readiness.rs` | topics and schema ids of each connector |
//! | `gap_file.rs` | deliveries that may be missing, on disk until Kafka has the gap |
//! | `heartbeat.rs`, `state_notes.rs` | records of the state topic |
//! | `health.rs` | what `/health` says |
//!
//! - Every worker with `webhook.listeners` receives for every `WebhookSource`, whichever worker runs its task. One without listeners
//!   serves none, sends no heartbeat, and publishes what its spool holds: it does not count as a worker that knows the secrets.
//! - The listeners open before Kafka is reachable, with the receivers of the last run; the config topic replaces them, and every
//!   change of it applies within a moment. References in configurations are resolved again at an interval.
//! - RUNNING is received and published, PAUSED received and kept in the spool, STOPPED answered 503. A deleted connector is not received
//!   any more; what it has received is published.
//!
//! On failure: a connector whose configuration cannot be used keeps the receiver it had; one that had none, or that cannot share its
//! segment, is not received. `/health` and its status show the fault. A part that ends by itself ends the worker. If the spool cannot be
//! opened, the worker does not start, and says why.
//!
//! Stop: listeners, so that what was taken is answered; then the intake until two seconds before the end; then the spool.

mod service;

mod config_watcher;
mod receiver_configs;

mod receiver_cache;
mod topic_readiness;

mod gap_file;
mod heartbeat;
mod state_notes;

mod health;

pub use self::service::Error;
pub(crate) use self::{
    health::IngestStatus,
    service::{ConfigFeed, Ingest},
};
