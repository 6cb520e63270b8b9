//! A directory of connector files, the workers that watch it, and the topic they write to.

use std::fs;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};
use tributary::connect::declared::{DeclaredOptions, Watch};

use crate::{
    product::rest::worker::{Answer, Group, Worker, config},
    support::{
        prefix, run_directory,
        topics::{content_of, text},
    },
};

/// REST path that shows the state of this worker's files.
pub(super) const DECLARATIONS: &str = "/admin/declarations";
/// Interval between two checks of the files.
const INTERVAL: Duration = Duration::from_millis(100);

/// Files and a group of workers.
pub(super) struct DeclaredFiles {
    pub(super) group: Group,
    pub(super) directory: PathBuf,
}

impl DeclaredFiles {
    pub(super) fn new(bootstrap: &str, name: &str) -> Self {
        let group = Group::new(bootstrap, name);
        Self { group, directory: run_directory::create(name).unwrap() }
    }

    /// The same group of workers with another directory.
    pub(super) fn beside(&self, name: &str) -> Self {
        Self { group: self.group.clone(), directory: run_directory::create(name).unwrap() }
    }

    /// A worker that watches the files until it is dropped.
    pub(super) async fn worker(&self) -> Watching {
        let worker = self.group.worker().await;
        let options = DeclaredOptions {
            directory: Some(self.directory.clone()),
            files: Vec::new(),
            interval: INTERVAL,
        };
        let cancel = CancellationToken::new();
        tokio::spawn(Watch::new(worker.herder.clone(), options).run(cancel.clone()));
        Watching { worker, _watch: cancel.drop_guard() }
    }

    pub(super) fn path(&self, file: &str) -> PathBuf {
        self.directory.join(file)
    }

    /// Replaces a file atomically: a worker sees either the old or the new one. A file without extension declares nothing.
    pub(super) fn write(&self, file: &str, text: impl AsRef<[u8]>) {
        fs::write(self.path("next"), text).unwrap();
        fs::rename(self.path("next"), self.path(file)).unwrap();
    }

    /// A file `{name}.json` that declares a connector with this client id.
    pub(super) fn declare(&self, name: &str, client: &str) {
        self.write(&format!("{name}.json"), self.document(name, client).to_string());
    }

    /// The content of that file.
    pub(super) fn document(&self, name: &str, client: &str) -> Value {
        let mut config = config(&format!("{}.{name}", self.group.topic_prefix()));
        config["oauth.client.id"] = json!(client);
        json!({"name": name, "config": config})
    }

    /// How often each of these was written: records in the config topic other than tombstones.
    pub(super) async fn written(&self, keys: &[&str]) -> Vec<usize> {
        let records = self.records().await;
        let count =
            |key: &str| records.iter().filter(|(found, value, _)| found == key && value.is_some()).count();
        keys.iter().map(|key| count(key)).collect()
    }

    /// Key, value and whether a write ends with it, of every record of the config topic.
    pub(super) async fn records(&self) -> Vec<(String, Option<String>, bool)> {
        let topic = format!("{}-configs", self.group.topic_prefix());
        let each = content_of(&self.group.kafka, &topic, 1).await.into_iter().map(|record| {
            let key = String::from_utf8(record.key.clone().unwrap().to_vec()).unwrap();
            let ends = record.headers.iter().any(|(name, _)| name == "tributary.write");
            (key, record.value.is_some().then(|| text(&record)), ends)
        });
        each.collect()
    }
}

/// A worker that watches files.
pub(super) struct Watching {
    worker: Worker,
    _watch: DropGuard,
}

impl Deref for Watching {
    type Target = Worker;

    fn deref(&self) -> &Worker {
        &self.worker
    }
}

impl Watching {
    /// Waits until a connector's file is in this state.
    pub(super) async fn until_state(&self, name: &str, state: &str) -> Value {
        self.until_entry(name, |entry| entry["state"] == state).await
    }

    /// Waits until the entry of a connector's file satisfies a condition.
    pub(super) async fn until_entry(&self, name: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
        let found = self.until(DECLARATIONS, |answer| is_wanted(entry(answer, name))).await;
        entry(&found, name).clone()
    }

    /// Waits until this worker shows a connector with this client id.
    pub(super) async fn until_client(&self, name: &str, client: &str) {
        let path = format!("/connectors/{name}/config");
        self.until(&path, |answer| answer.body["oauth.client.id"] == client).await;
    }

    /// Waits until the worker has checked the files at least twice, including all earlier changes.
    pub(super) async fn has_checked(&self, place: &DeclaredFiles) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        for _ in 0..2 {
            let name = format!("zz-{}", NEXT.fetch_add(1, Ordering::Relaxed));
            place.declare(&name, &prefix("marker"));
            self.until_state(&name, "in sync").await;
        }
    }
}

/// The entry of a connector's file; null if there is none.
pub(super) fn entry<'a>(answer: &'a Answer, name: &str) -> &'a Value {
    let entries = answer.body.as_array().unwrap();
    entries.iter().find(|entry| entry["name"] == name).unwrap_or(&Value::Null)
}
