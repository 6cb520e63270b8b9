//! Ingest as a service of every worker: it receives whatever the config topic lists, before there is a Kafka and after.
//!
//! ```text
//!                    receivers.json ─┐                      ┌▶ receivers ─▶ public listeners ─▶ intake ─▶ Kafka or spool
//! config topic ─ once it is there ───┴▶ follower ─▶ table ──┼▶ openings (topics, ids of schemas) ────┘
//!                                                           └▶ the spool's limit
//! Acknowledges, gaps, what was heard ─▶ notes ─▶ {prefix}.state
//! ```
//!
//! - Every worker with `webhook.listeners` receives every `WebhookSource`, whoever runs its task. One without serves none and
//!   publishes what its spool holds.
//! - The listeners open before Kafka is asked for anything, with what was received last; what the config topic says replaces
//!   that, and every change of it counts within a moment. What configurations refer to is looked at every so often.
//! - RUNNING is received and published, PAUSED received and kept in the spool, STOPPED answered 503. One that is deleted is not
//!   received any more; what was is published.
//!
//! On failure: a connector that cannot be received as configured keeps the receiver it had, and `/health` and its status tell;
//! a part that ends by itself ends the worker; a spool that cannot be opened keeps it from starting, with the reason.
//!
//! Stop: listeners, so that what was taken is answered; then the intake until two seconds before the end; then the spool.

mod config_watcher;
mod gaps;
mod health;
mod heartbeat;
mod receiver_cache;
mod receiver_configs;
mod service;
mod state_notes;
mod topic_readiness;

pub use self::service::Error;
pub(crate) use self::{
    health::IngestStatus,
    service::{ConfigFeed, Ingest, TopicClients},
};
