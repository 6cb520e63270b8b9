//! `schema-ids.json`: the ids a registry gave, for a start while it is unavailable.
//!
//! A crash leaves the old file or the new one ([`durable`]). The file names the registry's addresses; it is ignored if it shares none
//! with the configured ones, since another registry's ids mean other schemas.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use base::durable;

use crate::avro::Error;

const FILE: &str = "schema-ids.json";
/// Room for far more subjects than a worker has; a larger file is not ours.
const MAX_FILE_BYTES: u64 = 4 * 1024 * 1024;
/// Further subjects are not stored: a restart asks the registry for them.
const MAX_SUBJECTS: usize = 10_000;
/// Versions stored of one schema: the current one and those a rolled-back worker needs.
const MAX_FINGERPRINTS: usize = 8;

/// Subject → schema texts, newest last, each with its id.
type KnownIds = BTreeMap<String, Vec<KnownId>>;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct KnownId {
    fingerprint: String,
    id: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct IdFile {
    /// Addresses of the registry that gave the ids, sorted.
    registry: Vec<String>,
    ids: KnownIds,
}

/// The file and what it holds.
#[derive(Debug)]
pub(super) struct IdStore {
    path: PathBuf,
    registry: Vec<String>,
    known: Mutex<KnownIds>,
    changed: AtomicBool,
    /// One writer at a time: two would use the same temporary file.
    writing: tokio::sync::Mutex<()>,
}

impl IdStore {
    /// Reads the file of an earlier run; ignores it with a warning if it cannot be used.
    pub(super) async fn load(state_dir: &Path, mut registry: Vec<String>) -> Self {
        registry.sort();
        registry.dedup();
        let path = state_dir.join(FILE);
        let reading = path.clone();
        let known = match durable::off_runtime(move || read(&reading)).await {
            Ok(None) => KnownIds::new(),
            // One in common is enough: a registry gains and loses nodes.
            Ok(Some(content)) if content.registry.iter().any(|address| registry.contains(address)) => {
                // A file within the byte limit may still hold more subjects than we would have written.
                content.ids.into_iter().take(MAX_SUBJECTS).collect()
            }
            Ok(Some(content)) => {
                let (path, theirs) = (path.display(), content.registry.join(","));
                tracing::warn!(%path, registry = theirs, "schema ids of another registry are not used");
                KnownIds::new()
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "schema ids of an earlier run cannot be read");
                KnownIds::new()
            }
        };
        let (known, changed) = (Mutex::new(known), AtomicBool::new(false));
        Self { path, registry, known, changed, writing: tokio::sync::Mutex::default() }
    }

    pub(super) fn get(&self, subject: &str, fingerprint: &str) -> Option<u32> {
        let known = self.known.lock();
        known.get(subject)?.iter().find(|entry| entry.fingerprint == fingerprint).map(|entry| entry.id)
    }

    /// Adds an id in memory; [`IdStore::save`] writes it to disk.
    pub(super) fn put(&self, subject: &str, fingerprint: &str, id: u32) {
        let entry = KnownId { fingerprint: fingerprint.to_owned(), id };
        let mut known = self.known.lock();
        if known.len() >= MAX_SUBJECTS && !known.contains_key(subject) {
            return;
        }
        let entries = known.entry(subject.to_owned()).or_default();
        if entries.last() == Some(&entry) {
            return;
        }
        entries.retain(|other| other.fingerprint != entry.fingerprint);
        entries.push(entry);
        let surplus = entries.len().saturating_sub(MAX_FINGERPRINTS);
        entries.drain(..surplus);
        self.changed.store(true, Ordering::Release);
    }

    /// Writes the file if anything changed. A failure is logged and retried with the next change.
    pub(super) async fn save(&self) {
        let _writing = self.writing.lock().await;
        if !self.changed.swap(false, Ordering::AcqRel) {
            return;
        }
        let content = IdFile { registry: self.registry.clone(), ids: self.known.lock().clone() };
        let path = self.path.clone();
        let write = move || durable::replace(&path, &serde_json::to_vec_pretty(&content)?);
        if let Err(source) = durable::off_runtime(write).await {
            self.changed.store(true, Ordering::Release);
            let error = Error::State { path: self.path.clone(), source: Arc::new(source) };
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "schema ids are not kept: a restart while the registry is away would not encode"
            );
        }
    }
}

fn read(path: &Path) -> io::Result<Option<IdFile>> {
    let content = durable::read(path, MAX_FILE_BYTES)?;
    Ok(content.map(|content| serde_json::from_slice(&content)).transpose()?)
}
