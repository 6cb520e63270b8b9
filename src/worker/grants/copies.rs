//! The copy of one grant on this disk, kept up to date by a task of its own: a disk that does not answer holds up nothing else.

use std::{sync::Arc, time::Duration};

use tokio::{task::spawn_blocking, time::timeout};
use tokio_util::sync::CancellationToken;

use super::Shared;

/// How long the last copy may take when the worker stops.
const LAST: Duration = Duration::from_secs(2);

/// Keeps it, until cancelled.
pub(super) async fn keep(shared: Arc<Shared>, name: String, cancel: CancellationToken) {
    let mut copies = Copies { shared, name, copied: None };
    if cancel.run_until_cancelled(copies.run()).await.is_none() {
        timeout(LAST, copies.copy()).await.ok();
    }
}

struct Copies {
    shared: Arc<Shared>,
    name: String,
    /// Partition and offset of the record that was copied last.
    copied: Option<(i32, i64)>,
}

impl Copies {
    async fn run(&mut self) {
        let table = self.shared.store.table().clone();
        let mut changes = table.changes();
        // What an earlier run has left is looked at before it is written over: if it is damaged, somebody should know.
        let (files, name) = (self.shared.files.clone(), self.name.clone());
        spawn_blocking(move || drop(files.copy(&name))).await.ok();
        table.caught_up().await;
        loop {
            changes.borrow_and_update();
            self.copy().await;
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    async fn copy(&mut self) {
        let name = &self.name;
        let Some(found) = self.shared.store.table().read(|table| table.grants().get(name).cloned()) else {
            return;
        };
        let place = (found.partition, found.offset);
        let Some(envelope) = found.envelope.filter(|_| self.copied != Some(place)) else { return };
        // Logged once: the next change is copied anyway.
        self.copied = Some(place);
        if let Err(error) = self.shared.files.keep(name, envelope).await {
            tracing::warn!(grant = name, %error, "the copy of a grant on this machine was not written; the topic has it");
        }
    }
}
