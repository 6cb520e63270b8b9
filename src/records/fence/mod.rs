//! Fences: the newest published stamp of every key, so that an older version is never published over a newer one.
//!
//! ```text
//! batch ─ one transaction ─▶ record topics, {p}.fences, offsets, state
//!                                 │              │
//!                   committed ────┘              └─ read to the end when a shard is assigned
//!                      │                                     │
//!            ShardFence::put (entries, next offset)          ShardFence::restore
//!                      └───────────▶ store ◀─────────────────┘
//!                                      │
//!                   candidate ─▶ ShardFence::get ─▶ Stamp::against
//! ```
//!
//! The source of truth is partition `shard` of `{p}.fences`. This module caches it in one database per worker: a [`ShardFence`] for
//! each shard, with the offset up to which it is complete. A worker that gets a shard again reads only the records since then.
//!
//! Invariants:
//! - Entries and position change in one commit of the database, and commits are made in call order. After a crash a fence may lag,
//!   but its position never covers entries that it lacks. Nothing is synced to disk.
//! - [`ShardFence::put`] moves the position only after [`ShardFence::restore`]: before that, earlier entries may be missing.
//! - A position is valid only for the log from which it was read. The first owner of a partition writes a *birth*, once and before any
//!   other record. If a log does not begin with the birth that the fence remembers, the topic was recreated, even if offsets fit.
//! - Prefixes and shards are separate, and each shard has one fence at a time.
//! - Writes run on blocking threads, in bounded steps. [`ShardFence::get`] reads on the caller's thread.
//!
//! On failure:
//! - A database that is corrupt when it is opened, read or written is deleted and recreated with a warning, and shards are read from
//!   the start. If the disk or the operating system denies access, the database stays and the error names the remedy.
//! - After a commit or a read has failed, every fence of that database returns [`Error::Store`]. The shard must be opened again with
//!   [`Fences::shard`], which reopens the database.
//! - A record in `{p}.fences` that cannot be parsed is an error. If it were skipped, an older version could be published as newer.

mod cache;
mod record;
mod shard;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, path::PathBuf, sync::Arc};

use parking_lot::Mutex;
use tokio::{sync::Mutex as Claim, task::spawn_blocking};

use base::retry::Retry;
use model::TopicPrefix;

use self::{cache::FenceCache, record::ShardKeys, shard::ShardStore};
pub use self::{
    record::{birth_record, of_value, record},
    shard::{FenceLookup, Restored, ShardFence},
};
use crate::store::{self, Fjall, Storage};

/// Locks by prefix and shard. Never shrinks.
type ShardClaims = HashMap<(String, i32), Arc<Claim<()>>>;

/// The fences of a worker. Clones are cheap and share the same database.
#[derive(Debug, Clone)]
pub struct Fences {
    cache: Arc<FenceCache>,
    claims: Arc<Mutex<ShardClaims>>,
}

impl Fences {
    /// Uses this directory exclusively. The database is opened with the first shard.
    #[must_use]
    pub fn new(directory: PathBuf) -> Self {
        Self::with(directory, Arc::new(Fjall::cache()))
    }

    fn with(directory: PathBuf, storage: Arc<dyn Storage>) -> Self {
        Self { cache: Arc::new(FenceCache::new(directory, storage)), claims: Arc::default() }
    }

    /// Opens the fence of a shard. Waits until its previous fence is dropped and has written all puts.
    ///
    /// # Errors
    /// The directory cannot be used, see [`Error::Open`], or the database failed twice.
    pub async fn shard(&self, prefix: &TopicPrefix, shard: i32) -> Result<ShardFence, Error> {
        let claim = {
            let mut claims = self.claims.lock();
            Arc::clone(claims.entry((prefix.as_str().to_owned(), shard)).or_default())
        };
        let claim = claim.lock_owned().await;
        let (cache, keys) = (Arc::clone(&self.cache), ShardKeys::new(prefix, shard));
        let opened = spawn_blocking(move || ShardStore::open(&cache, keys, claim)).await;
        opened.map_err(|_| Error::Stopped)?.map(|core| ShardFence::new(core, shard))
    }
}

/// A failure of any part of the fences.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The database can neither be opened nor created.
    #[error("open the fence database in {}: {remedy}", directory.display())]
    Open {
        /// The directory.
        directory: PathBuf,
        /// What to do.
        remedy: &'static str,
        /// Why it failed.
        #[source]
        source: Arc<store::Error>,
    },
    /// The database could not be read or written. It is reopened with the next shard.
    #[error("the fence database in {} failed; it is reopened when the next shard is taken", directory.display())]
    Store {
        /// The directory.
        directory: PathBuf,
        /// Why it failed; `None` if it had failed before.
        #[source]
        source: Option<Arc<store::Error>>,
    },
    /// The topic could not be read.
    #[error("restore fences from {topic} partition {partition}")]
    Read {
        /// The topic.
        topic: String,
        /// The partition.
        partition: i32,
        /// Why it failed.
        #[source]
        source: Box<kafka::Error>,
    },
    /// A record of the topic cannot be parsed.
    #[error(
        "restore fences from {topic} partition {partition}: the record at offset {offset} cannot be parsed; run the version \
         that wrote it, or write another record with its key"
    )]
    Record {
        /// The topic.
        topic: String,
        /// The partition.
        partition: i32,
        /// The offset of the record.
        offset: i64,
        /// What is wrong with it.
        #[source]
        source: Arc<serde_json::Error>,
    },
    /// The process is shutting down.
    #[error("use the fences: the process is shutting down")]
    Stopped,
}

impl Error {
    /// Whether opening the shard again can help.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            // A corrupt database was deleted and recreated already, which did not help.
            Self::Open { source, .. } if matches!(**source, store::Error::Broken { .. }) => Retry::Never,
            Self::Open { .. } | Self::Store { .. } => Retry::Later,
            Self::Read { source, .. } => source.retry(),
            Self::Record { .. } | Self::Stopped => Retry::Never,
        }
    }
}
