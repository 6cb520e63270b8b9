//! `receivers.json`: the connectors of the config topic when it was last read, for a start without Kafka.
//!
//! It holds every `WebhookSource` with unresolved references and its target state. Schema ids have another file
//! ([`avro::Ids`](crate::avro::Ids)).

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use base::durable;

use super::receiver_configs::ListedConnector;
use crate::{config::connector::TargetState, state::configs::Properties};

const FILE: &str = "receivers.json";
/// Thousands of connectors fit; a larger file is not ours.
const MAX_FILE_BYTES: u64 = 64 << 20;
/// The one format there is.
const FORMAT: u32 = 1;

/// The file.
#[derive(Debug)]
pub(super) struct ReceiverCache {
    path: PathBuf,
    /// What it holds, where it was written or read by us.
    written: Option<BTreeMap<String, ListedConnector>>,
}

#[derive(Serialize, Deserialize)]
struct CacheContent {
    format: u32,
    connectors: BTreeMap<String, CachedConnector>,
}

#[derive(Serialize, Deserialize)]
struct CachedConnector {
    config: Arc<Properties>,
    target: String,
}

impl ReceiverCache {
    /// Reads what an earlier run left; what cannot be used is warned about and left out. Blocks.
    pub(super) fn load(state_dir: &Path) -> (Self, BTreeMap<String, ListedConnector>) {
        let path = state_dir.join(FILE);
        let found = match read(&path) {
            Ok(found) => found,
            Err(error) => {
                let path = path.display();
                tracing::warn!(%path, %error, "cannot read the receivers of the last run; they are loaded from Kafka");
                None
            }
        };
        let listed = found.clone().unwrap_or_default();
        (Self { path, written: found }, listed)
    }

    /// Keeps this for the next start. Whether it is kept: a failure is logged, and to be tried again.
    pub(super) async fn save(&mut self, listed: &BTreeMap<String, ListedConnector>) -> bool {
        if self.written.as_ref() == Some(listed) {
            return true;
        }
        let path = self.path.clone();
        let entry = |(name, one): (&String, &ListedConnector)| {
            (
                name.clone(),
                CachedConnector { config: Arc::clone(&one.config), target: one.target.name().to_owned() },
            )
        };
        let content = CacheContent { format: FORMAT, connectors: listed.iter().map(entry).collect() };
        let write = move || durable::replace(&path, &serde_json::to_vec_pretty(&content)?);
        match durable::off_runtime(write).await {
            Ok(()) => self.written = Some(listed.clone()),
            Err(error) => {
                // Not in doubt twice: the rename may have happened.
                let first = self.written.take().is_some();
                let path = self.path.display();
                if first {
                    tracing::error!(%path, %error, "receivers are not kept: a start without Kafka would not know them");
                } else {
                    tracing::debug!(%path, %error, "receivers are still not kept");
                }
            }
        }
        self.written.is_some()
    }
}

fn read(path: &Path) -> io::Result<Option<BTreeMap<String, ListedConnector>>> {
    let Some(content) = durable::read(path, MAX_FILE_BYTES)? else { return Ok(None) };
    let content: CacheContent = serde_json::from_slice(&content)?;
    if content.format != FORMAT {
        return Err(io::Error::other(format!("format {} is of another version", content.format)));
    }
    let listed = |(name, entry): (String, CachedConnector)| {
        let target = TargetState::parse(&entry.target)?;
        Some((name, ListedConnector { config: entry.config, target }))
    };
    content
        .connectors
        .into_iter()
        .map(listed)
        .collect::<Option<_>>()
        .map(Some)
        .ok_or_else(|| io::Error::other("a target state is none of Kafka Connect's"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn listed(secret: &str) -> BTreeMap<String, ListedConnector> {
        let config = Properties::from([("accounting.secret".to_owned(), secret.to_owned())]);
        let one = |target| ListedConnector { config: Arc::new(config.clone()), target };
        BTreeMap::from([
            ("a".to_owned(), one(TargetState::Paused)),
            ("b".to_owned(), one(TargetState::Running)),
        ])
    }

    #[tokio::test]
    async fn saved_receivers_load_with_their_references() {
        let directory = tempfile::tempdir().unwrap();
        let (mut cache, none) = ReceiverCache::load(directory.path());

        assert!(cache.save(&listed("${env:ONE}")).await);
        assert!(cache.save(&listed("${env:TWO}")).await);

        assert!(none.is_empty());
        assert_eq!(ReceiverCache::load(directory.path()).1, listed("${env:TWO}"));
    }

    #[tokio::test]
    async fn a_foreign_cache_file_is_ignored_and_replaced() {
        let directory = tempfile::tempdir().unwrap();
        for content in [
            "",
            "{}",
            "{\"format\":2,\"connectors\":{}}",
            "{\"format\":1,\"connectors\":{\"a\":{\"config\":{},\"target\":\"?\"}}}",
        ] {
            fs::write(directory.path().join(FILE), content).unwrap();

            let (mut cache, found) = ReceiverCache::load(directory.path());

            assert!(found.is_empty(), "{content}");
            assert!(cache.save(&listed("x")).await, "{content}");
            assert_eq!(ReceiverCache::load(directory.path()).1, listed("x"), "{content}");
        }
    }

    #[tokio::test]
    async fn a_failed_save_is_repeated() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("state");
        let (mut cache, _) = ReceiverCache::load(&place);

        let refused = cache.save(&listed("x")).await;
        fs::create_dir(&place).unwrap();

        assert!(!refused);
        assert!(cache.save(&listed("x")).await);
        assert_eq!(ReceiverCache::load(&place).1, listed("x"));
    }
}
