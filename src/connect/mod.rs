//! The control plane: connectors and tasks, shared with other workers through Kafka alone, driven by Kafka Connect's REST API.
//!
//! ```text
//!                            ┌─▶ {prefix}.state: runs, commands, accepted gaps
//!                            ├─▶ status topic: a reset of the topics that a connector uses
//! HTTP ──▶ rest ─────┐       │
//! files ─▶ declared ─┴─▶ herder ─edits─▶ config_writer ─transaction─▶ config topic, offset topic ──▶ state: tables
//!                          ▲                  ▲                                                       ▲   │   │
//!                          │                  │ task configurations                                   │   │   │
//!                          │                  └────── supervisor ──statuses──▶ status topic ──────────┘   │   │
//!                          │                          ▲  ▲  └──▶ plugin: starts and stops tasks           │   │
//!                          │                          │  └─── what should run ────────────────────────────┘   │
//!                          │                          └─ owned partitions ◀── group on the work topic         │
//!                          └── answers ───────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! `cluster` runs before all of this: it checks that the topics belong to this group of workers.
//!
//! | module | job |
//! |---|---|
//! | `cluster` | which group of workers the topics belong to |
//! | `rest` | HTTP: routes, authentication, audit |
//! | `declared` | connectors declared by files |
//! | `herder` | what the API does: reads from the tables, edits through the config writer |
//! | `config_writer` | decides and writes edits of the config topic; reads it past hanging transactions |
//! | `supervisor` | runs the connectors and tasks that this worker owns |
//!
//! - There is no leader and no forwarding: every worker follows the same topics and answers from them. Kafka arbitrates
//!   edits (one transactional id for the config topic; a request in `{prefix}.state` is a single record), and the worker that writes
//!   answers once it has read the write back.
//! - A connector belongs to partition `p = murmur2(name) mod n` of the work topic, its task `i` to partition `(p + i) mod n`; so
//!   task 0 is beside its connector. `n` is the partition count in the cluster's record (`cluster`), even if the topic has grown.
//!   The owner of the partition runs it.
//! - A worker owns a partition under a *claim*: the offset of a record that it wrote to the partition when it was assigned, higher
//!   than every earlier claim ([`kafka::Membership`]).
//! - Two instances of a task may overlap for a moment: their writes are fenced, and a status record carries the claim as its
//!   `generation`, so readers ignore one with a lower claim.
//! - A panic in a task fails that task. Transient failures are retried with growing waits; FAILED needs a person and says what to do.
//! - The classes of connectors are known through [`plugin`](crate::plugin) alone.

pub mod cluster;

pub mod rest;

pub mod declared;
pub mod herder;

pub mod config_writer;
pub mod supervisor;
