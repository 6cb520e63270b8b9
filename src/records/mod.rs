//! Records: everything between an event or a page of a list and a record topic.
//!
//! ```text
//! events ─▶ enrich: one read for each record ─┐
//!                                             ├─▶ task: shards, each with a transaction ─▶ record topics
//! lists ──▶ snapshot: pages and their proof ──┘      │
//!                                                    └─▶ fence: the newest published version of each key
//! ```

pub mod enrich;
pub mod fence;
pub mod plugin;
pub mod snapshot;
mod stream;
pub mod task;
