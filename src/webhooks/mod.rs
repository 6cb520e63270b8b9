//! Webhooks: everything between a delivery and an event topic. Nothing acknowledged is lost, and every delivery is answered in time.
//!
//! ```text
//! request ─▶ receiver ── receiver_table: whose address?   404 another path or method; 503 faulty, or not loaded yet
//!               │        body, budget: read it            400, 408, 413, 503
//!               │        signature: verify it             401; an unknown connector gets it after the same work
//!               ├─ valid, but too large ─▶ gap ─▶ 413
//!               ▼
//!           delivery ─ Acknowledge ─▶ state topic ─▶ 200
//!               │ parts, one for each lane
//!               ▼
//!            intake ─▶ deduplicate ─▶ encode ─▶ queue ─▶ producer ─▶ Kafka acknowledges ─▶ 200
//!                                                 │ behind    │ no report in time
//!                                                 └─────┬─────┘
//!                                                       ▼
//!                                                    spool (fsync) ─▶ 200;  drain ─▶ producer
//!                                                       └ not in time either ─▶ 503
//!
//! ingest         runs receiver and intake on every worker: listeners, configurations, topics, gaps, heartbeats
//! subscriptions  decides what to ask the provider for, without I/O
//! reconciler     asks it: the task of a WebhookSource
//! ```
//!
//! The way of one accepted accounting delivery, from its connection to the answer, with Kafka reachable. Outside this module each crate
//! and each neighboring module is one stop:
//!
//! | # | Stop | Does |
//! |---|---|---|
//! | 1 | crate `server` | accepts the connection, stamps the arrival of the head |
//! | 2 | `receiver/request.rs` | routes the path; at the end answers 200 |
//! | 3 | `receiver_table/mod.rs` | finds the connector; at the end counts the delivery for its subscription |
//! | 4 | `signature.rs` | reads the signature header, hashes, compares |
//! | 5 | `receiver/budget.rs` | counts the bytes of the body and its hashing |
//! | 6 | `receiver/body.rs` | reads the body within its time and limit |
//! | 7 | `delivery/mod.rs` | makes parts of the body |
//! | 8 | crate `model` | parses the event |
//! | 9 | `intake/in_flight.rs` | lets each part into its queue, waits for its report |
//! | 10 | `intake/dedup.rs` | is this the first delivery with its id? |
//! | 11 | `ingest/topic_readiness.rs` | knows that topics and schemas are ready |
//! | 12 | `intake/encode.rs` | asks for the bytes of the record |
//! | 13 | `publish`, with `avro` | makes them |
//! | 14 | `delivery/memory.rs` | counts the bytes of the part |
//! | 15 | `intake/lane_queue.rs` | numbers the part and keeps its order |
//! | 16 | `intake/producer.rs` | hands the record to the producer, collects the report, notes that Kafka takes records of the topic |
//! | 17 | crate `kafka` | sends it with an idempotent producer, reports that all replicas have it |
//! | 18 | crate `base` | counts it in the metrics |
//!
//! 18 stops: 13 files here, 4 crates and one neighboring module.

pub mod receiver;
pub mod receiver_table;
pub mod signature;

pub mod delivery;
pub mod intake;

pub mod dead_letter;
pub mod ingest;

pub mod plugin;
pub mod reconciler;
pub mod subscriptions;
