//! A directory of connector files, the workers that look at it, and the topic they write to.

use std::fs;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};
use tributary::connect::declared::{Options, Watch};

use crate::{
    product::rest::worker::{Answer, Group, Worker, config},
    support::{
        prefix, run_directory,
        topics::{content_of, text},
    },
};

/// Where what this worker sees of files is told.
pub(super) const DECLARATIONS: &str = "/admin/declarations";
/// Between two looks.
const INTERVAL: Duration = Duration::from_millis(100);

/// Files and a group of workers.
pub(super) struct Place {
    pub(super) group: Group,
    pub(super) directory: PathBuf,
}

impl Place {
    pub(super) fn new(bootstrap: &str, name: &str) -> Self {
        let group = Group::new(bootstrap, name);
        Self { group, directory: run_directory::create(name).unwrap() }
    }

    /// The same group of workers with files of its own.
    pub(super) fn beside(&self, name: &str) -> Self {
        Self { group: self.group.clone(), directory: run_directory::create(name).unwrap() }
    }

    /// A worker that looks at the files until it is dropped.
    pub(super) async fn worker(&self) -> Watching {
        let worker = self.group.worker().await;
        let options =
            Options { directory: Some(self.directory.clone()), files: Vec::new(), interval: INTERVAL };
        let cancel = CancellationToken::new();
        tokio::spawn(Watch::new(worker.herder.clone(), options).run(cancel.clone()));
        Watching { worker, _watch: cancel.drop_guard() }
    }

    pub(super) fn path(&self, file: &str) -> PathBuf {
        self.directory.join(file)
    }

    /// In one step: a worker that looks meanwhile finds what was there. What has no ending declares nothing.
    pub(super) fn write(&self, file: &str, text: impl AsRef<[u8]>) {
        fs::write(self.path("next"), text).unwrap();
        fs::rename(self.path("next"), self.path(file)).unwrap();
    }

    /// A file `{name}.json` that declares a connector with this client id.
    pub(super) fn declare(&self, name: &str, client: &str) {
        self.write(&format!("{name}.json"), self.document(name, client).to_string());
    }

    /// What that file says.
    pub(super) fn document(&self, name: &str, client: &str) -> Value {
        let mut config = config(&format!("{}.{name}", self.group.topic_prefix()));
        config["oauth.client.id"] = json!(client);
        json!({"name": name, "config": config})
    }

    /// How often each of these was written: records of the config topic that are no tombstones.
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

/// A worker that looks at files.
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
    /// Waits until a connector's file is told to be in this state.
    pub(super) async fn until_state(&self, name: &str, state: &str) -> Value {
        self.until_entry(name, |entry| entry["state"] == state).await
    }

    /// Waits until the entry of a connector's file satisfies a condition.
    pub(super) async fn until_entry(&self, name: &str, is_wanted: impl Fn(&Value) -> bool) -> Value {
        let told = self.until(DECLARATIONS, |answer| is_wanted(entry(answer, name))).await;
        entry(&told, name).clone()
    }

    /// Waits until a connector has this client id, as this worker tells it.
    pub(super) async fn until_client(&self, name: &str, client: &str) {
        let path = format!("/connectors/{name}/config");
        self.until(&path, |answer| answer.body["oauth.client.id"] == client).await;
    }

    /// Returns after the worker has seen the files, all that was done to them before, twice at least.
    pub(super) async fn has_looked(&self, place: &Place) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        for _ in 0..2 {
            let name = format!("zz-{}", NEXT.fetch_add(1, Ordering::Relaxed));
            place.declare(&name, &prefix("marker"));
            self.until_state(&name, "in sync").await;
        }
    }
}

/// What is told of a connector's file; null if nothing.
pub(super) fn entry<'a>(answer: &'a Answer, name: &str) -> &'a Value {
    let entries = answer.body.as_array().unwrap();
    entries.iter().find(|entry| entry["name"] == name).unwrap_or(&Value::Null)
}
