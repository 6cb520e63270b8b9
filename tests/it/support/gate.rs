//! A gate before a shard's commit, which holds a writer inside its batch.

use std::sync::{Arc, Mutex, mpsc};

use kafka::CommitHook;
use tokio::sync::Notify;

/// Holds a writer inside its batch, every record acknowledged, until [`Gate::open`].
pub(crate) struct Gate {
    reached: Notify,
    opened: mpsc::SyncSender<()>,
}

/// A hook that stops at the gate the first time it is called.
pub(crate) fn gate() -> (CommitHook, Arc<Gate>) {
    let (opened, open) = mpsc::sync_channel(1);
    let gate = Arc::new(Gate { reached: Notify::new(), opened });
    let (open, held) = (Mutex::new(Some(open)), Arc::clone(&gate));
    let hook: CommitHook = Arc::new(move || {
        let first = open.lock().unwrap().take();
        if let Some(open) = first {
            held.reached.notify_one();
            // An error means that the test is over.
            open.recv().ok();
        }
    });
    (hook, gate)
}

impl Gate {
    /// Waits for the writer.
    pub(crate) async fn reached(&self) {
        self.reached.notified().await;
    }

    /// Lets the writer commit.
    pub(crate) fn open(&self) {
        self.opened.try_send(()).ok();
    }
}
