//! Webhooks: everything between a delivery and an event topic. Nothing acknowledged is lost, and every delivery is answered in time.
//!
//! ```text
//! request ─▶ receiver ── receivers: whose address?   404
//!               │        body, budget: read it       408, 413, 503
//!               │        signature: verify it        401
//!               ▼
//!           delivery ─▶ parts, one for each partition queue
//!               ▼
//!            intake ─▶ deduplicate ─▶ partition queue ─▶ encode ─▶ producer ─▶ Kafka acknowledges ─▶ 200
//!                                         └ no report in time ─▶ spool (fsync) ─▶ 200;  drain ─▶ producer
//!                                                                   └ neither in time ─▶ 503
//!
//! ingest         runs the two on every worker: listeners, configurations, topics, gaps, heartbeats
//! subscriptions  decides what to ask the provider for, without I/O
//! reconciler     asks it: the task of a WebhookSource
//! ```

pub mod receiver;
pub mod receivers;
pub mod signature;

pub mod delivery;
pub mod intake;

pub mod dead_letter;
pub mod ingest;

pub mod plugin;
pub mod reconciler;
pub mod subscriptions;
