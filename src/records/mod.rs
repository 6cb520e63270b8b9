//! Records: everything between an event or a page of a list and a record topic.
//!
//! ```text
//! events ─▶ schedule: one read for each record ─┐
//!                                             ├─▶ task: shards, each with a transaction ─▶ record topics
//! lists ──▶ proof: pages and what they prove ──┘    │
//!                                                    └─▶ fence: the newest published version of each key
//! ```

pub mod fence;
pub mod plugin;
pub mod proof;
pub mod schedule;
mod stream;
pub mod task;
