//! Webhooks: everything between a delivery and an event topic. A delivery answered 200 is never lost, and every one is answered in time.
//!
//! ```text
//! request ─▶ receiver ── receiver_table: whose address?   404 another path or method; 503 faulty, or not loaded yet
//!               │        body, budget: read it            400, 408, 413, 503
//!               │        signature: verify it             401; an unknown connector gets it after the same work;
//!               │                                         503 while another connector of the segment is missing
//!               ├─ valid, but too large (invoicing: only in a shared segment) ─▶ queue the report ─▶ 413; the gap is written afterwards
//!               ▼
//!           delivery ─ event `Acknowledge` (the provider probes a new subscription) ─▶ {prefix}.state ─▶ 200
//!               │ parts, one for each lane
//!               ▼
//!            intake ─▶ deduplicate ─▶ encode ─▶ queue ─▶ producer ─▶ Kafka acknowledges ─▶ 200
//!                                                 │ behind    │ no report in time
//!                                                 └─────┬─────┘
//!                                                       ▼
//!                                                    spool (fsync) ─▶ 200;  drain ─▶ producer
//!                                                       └ not in time either ─▶ 503
//!
//! ingest         runs receiver and intake on every worker with `webhook.listeners`: configurations, topics, gaps, heartbeats
//! dead_letter    makes the dead letter of a delivery, and reads it back for a replay
//! subscriptions  decides what to ask the provider for, without I/O
//! reconciler     asks it: the loop of a WebhookSource's task
//! plugin         validates a WebhookSource and runs its task
//! ```
//!
//! - Lane: an ordered queue for one topic, one connector and one of 32 numbers that the record's partitioning key is hashed to. It is
//!   independent of Kafka's partitions.
//! - Part: the records of one delivery in one lane.
//! - A verified body that cannot be parsed or encoded goes to the dead-letter topic and gets 200.
//!
//! The way of one accepted accounting delivery, from its connection to the answer, with Kafka reachable. Outside this module each crate
//! and each neighboring module is one stop:
//!
//! | # | Stop | Does |
//! |---|---|---|
//! | 1 | crate `server` | accepts the connection, stamps the arrival of the head |
//! | 2 | `receiver/request.rs` | routes the path; at the end answers 200 |
//! | 3 | `receiver_table/mod.rs` | finds the connector; at the end counts the delivery for its subscription |
//! | 4 | `receiver/address.rs` | chooses the secrets that may have signed it |
//! | 5 | `signature.rs` | reads the signature header, hashes, compares |
//! | 6 | `receiver/budget.rs` | counts the bytes of the body and its hashing |
//! | 7 | `receiver/body.rs` | reads the body within its time and limit |
//! | 8 | `delivery/mod.rs` | makes parts of the body |
//! | 9 | crate `model` | parses the event |
//! | 10 | `intake/in_flight.rs` | lets each part into its queue, waits for its report |
//! | 11 | `intake/dedup.rs` | drops the delivery if this process has seen it before |
//! | 12 | `ingest/topic_readiness.rs` | knows that topics and schemas are ready |
//! | 13 | `intake/encode.rs` | encodes the records of the part |
//! | 14 | `publish`, with `avro` | makes the bytes of a record |
//! | 15 | `delivery/memory.rs` | counts the bytes of the part until Kafka has it |
//! | 16 | `intake/lane_queue.rs` | numbers the part and keeps its order |
//! | 17 | `intake/producer.rs` | hands the record to the producer, collects the report, removes the topic from the failing ones in `/health` |
//! | 18 | crate `kafka` | sends it with an idempotent producer, reports that all replicas have it |
//! | 19 | crate `base` | counts it in the metrics |
//!
//! 19 stops: 14 files here, 4 crates and one neighboring module.

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
