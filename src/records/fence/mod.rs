//! Fences: the newest published stamp of every key, so that nothing older is ever published over it.
//!
//! ```text
//! a batch ─ one transaction ─▶ record topics, {p}.fences, offsets, state
//!                                   │             │
//!                   committed ──────┘             └─ read to the end when a shard is taken
//!                      │                                     │
//!            ShardFence::put (entries, offset behind them)   ShardFence::restore
//!                      └───────────▶ store ◀─────────────────┘
//!                                      │
//!                   candidate ─▶ ShardFence::get ─▶ Stamp::against
//! ```
//!
//! The truth is partition `shard` of `{p}.fences`. What is kept here, in one database a worker, is a cache of it: a [`ShardFence`] for
//! each shard, with the offset it is good up to, so that taking a shard again reads only what came since.
//!
//! Invariants:
//! - Entries and position change in one commit of the store, and commits are made in the order of the calls. A crash leaves a
//!   fence that is behind, never one whose position promises entries it does not have. Nothing is synced.
//! - Only a fence that has been [restored](ShardFence::restore) moves its position: before, something below it may be missing.
//! - A position counts only in the log it was taken from. Each partition has a *birth*, a record that its first owner writes
//!   before all others and nobody ever again; a log that does not begin with the birth that the fence remembers is another one, as
//!   after a topic was deleted and made again, however well the offsets fit.
//! - Prefixes and shards do not mix, and each shard has one fence at a time.
//! - Writes happen on threads that may block, in bounded steps; [`ShardFence::get`] reads where it is called.
//!
//! On failure:
//! - A database that cannot be opened or read, or that broke while it was written to, is removed and made anew, and shards are
//!   read from the start again. That is logged. One that the disk or the system refuses stays, and the error names the remedy.
//! - Once a commit or a read has failed, every fence of that database answers [`Error::Store`]: its shard has to be taken anew,
//!   and [`Fences::shard`] opens another.
//! - A record in `{p}.fences` that cannot be understood is an error and not passed over: without it, something older than what is
//!   published would pass for newer.

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

/// Who has which prefix and shard; as many as there ever were.
type ShardClaims = HashMap<(String, i32), Arc<Claim<()>>>;

/// The fences of a worker. Cheap to clone; clones are the same ones.
#[derive(Debug, Clone)]
pub struct Fences {
    cache: Arc<FenceCache>,
    claims: Arc<Mutex<ShardClaims>>,
}

impl Fences {
    /// Kept in this directory, which is nobody else's. Nothing is opened before the first shard is taken.
    #[must_use]
    pub fn new(directory: PathBuf) -> Self {
        Self::with(directory, Arc::new(Fjall::cache()))
    }

    fn with(directory: PathBuf, storage: Arc<dyn Storage>) -> Self {
        Self { cache: Arc::new(FenceCache::new(directory, storage)), claims: Arc::default() }
    }

    /// The fence of a shard. There is one at a time: this waits until the one before is dropped and what was put on it is
    /// written.
    ///
    /// # Errors
    /// The directory cannot be used, see [`Error::Open`].
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
