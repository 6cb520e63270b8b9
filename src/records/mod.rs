//! Records: everything between an event or a page of a list and a record topic.
//!
//! ```text
//! event topics                provider: reads by id, lists                state topic: runs
//!      │                            ▲              ▲                             │
//!      ▼                            │              │                             ▼
//! task/reader.rs             task/shard.rs   task/lists/pages.rs          task/runs/mod.rs
//!      │ event                      ▲              ▲                             │ orders
//!      ▼                            ▼              ▼                             ▼
//! ┌ one shard: task/shard.rs ─────────────────────────────────────────────────────────────┐
//! │ schedule: one read for each record      task/lists: pages ◀──▶ proof: what they prove │
//! │        │ entries                             │ rows, page marks, certificates         │
//! │        └───────────────▶ task/draft.rs ◀─────┘                                        │
//! │                               ▲ │ one batch                                           │
//! │    fence: published versions ─┘ ▼                                                     │
//! │                          task/commit.rs: one transaction per batch                    │
//! └─────────────────────────────────┬─────────────────────────────────────────────────────┘
//!                                   ▼
//!      record topics, fences, dead letters, state, certificates, offsets
//! ```
//!
//! | module | file | holds |
//! |---|---|---|
//! | [`plugin`] | `plugin.rs` | the connector class: its settings, its tasks, its transactional ids |
//! | `stream` | `stream.rs` | whether all later changes will be delivered, before the first page is read |
//! | [`task`] | `task/` | a task: reads events and pages, asks the provider, commits |
//! | [`schedule`] | `schedule/` | which read an event needs, and when its offset may be committed; no I/O |
//! | [`fence`] | `fence/` | the newest published version of each key, so that no older one is published over it |
//! | [`proof`] | `proof/` | which page of a list to request next, and what the pages prove; no I/O |
//!
//! Read [`schedule`], [`fence`], [`proof`], [`task`] in this order: the first three use no other module of `records`.
//!
//! - A **shard** is a partition number, the same in every topic of a prefix. One task owns it, one transactional id writes it.
//! - **Fence** and **epoch** are about versions of records here, not about Kafka producers: a fence entry is the newest published version
//!   of a key, and an epoch counts its version regressions.
//! - **Version regression**: the provider goes back to an older version of a record, for example after a restore.
//! - **Stamp**: epoch, version, rank (list row or read by id), and whether the record is deleted.
//! - **Known record**: published and not deleted, according to the fence.
//! - **Run**: one requested reading of lists: a snapshot, a repair or a verification.
//! - **Reading**: the proof of one list in one run. It makes several **passes** over the pages.
//! - **Page mark**: the state record of a page whose rows are published or counted.
//! - **Thin row**: a list row with fewer members than its record.
//! - **Offsets** are written as records of the Connect offset topic inside the transaction of their batch. There is no consumer group.

pub mod plugin;

mod stream;

pub mod task;

pub mod schedule;

pub mod fence;

pub mod proof;
