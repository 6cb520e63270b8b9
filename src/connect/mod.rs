//! The worker: connectors and tasks, shared with other workers through Kafka alone, driven by Kafka Connect's REST API.
//!
//! ```text
//! REST ─▶ herder ─▶ arbiter ──transaction──▶ config topic ─┐
//!   ▲        │                                             ├─▶ state (tails of config, offset and status topics)
//!   │        └── answers from ─────────────────────────────┘        │
//!   │                                                               ▼
//!   └── status topic ◀── supervisor ◀── owned partitions ◀── group membership on the work topic
//! ```
//!
//! - There is no leader and no forwarding: every worker tails the same topics and answers from them; a write is arbitrated
//!   by Kafka (one transactional id for the config topic), and its own worker answers once the write has come back to it.
//! - A set of topics belongs to one group of workers, which its config topic names; others are refused.
//! - A connector belongs to partition `murmur2(name) mod n` of the work topic, its task `i` to the `i`-th after it; who owns
//!   the partition runs it.
//! - Two instances of a task may overlap for a moment; what they write is fenced, status records carry the claim of the
//!   partition (as `generation`), and a lower one is ignored.
//! - Deliveries are received by every worker with a webhook listener, whoever runs the connector's task, and whether or not
//!   there is a Kafka: see [`ingest`].
//! - A panic in a task fails that task. Causes that pass are retried with growing waits; FAILED is for those that need a
//!   person, and says which and what to do.

pub mod arbiter;
pub mod cluster;
pub mod declared;
pub(crate) mod fresh;
pub mod herder;
pub mod rest;
pub mod supervisor;
