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
//! - Only a [restored](ShardFence::restore) fence moves its position, because before that, earlier entries may be missing.
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
mod error;
mod layout;
mod record;
mod shard;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, path::PathBuf, sync::Arc};

use parking_lot::Mutex;
use tokio::{sync::Mutex as Claim, task::spawn_blocking};

use model::TopicPrefix;

use self::{cache::FenceCache, layout::ShardKeys, shard::ShardStore};
pub use self::{
    error::Error,
    record::{birth_record, of_value, record},
    shard::{FenceLookup, Restored, ShardFence},
};
use crate::store::{Fjall, Storage};

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
