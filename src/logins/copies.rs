//! The copy of one grant on this disk, kept up to date by its own task, so that a hanging disk blocks nothing else.

use std::{sync::Arc, time::Duration};

use tokio::{task::spawn_blocking, time::timeout};
use tokio_util::sync::CancellationToken;

use super::GrantContext;

/// Limit for the last copy when the worker stops.
const STOP_COPY_LIMIT: Duration = Duration::from_secs(2);

/// Keeps the copy up to date until cancelled.
pub(super) async fn run(shared: Arc<GrantContext>, name: String, cancel: CancellationToken) {
    let mut copied = None;
    let following = async {
        let table = shared.store.table();
        let mut changes = table.changes();
        // Read the copy of an earlier run before replacing it: damage is logged.
        let (files, copied_before) = (shared.files.clone(), name.clone());
        spawn_blocking(move || drop(files.copy(&copied_before))).await.ok();
        table.caught_up().await;
        loop {
            changes.borrow_and_update();
            copy(&shared, &name, &mut copied).await;
            changes.changed().await.ok();
        }
    };
    if cancel.run_until_cancelled(following).await.is_none() {
        timeout(STOP_COPY_LIMIT, copy(&shared, &name, &mut copied)).await.ok();
    }
}

/// Copies the record, unless it is the last copied one, by partition and offset.
async fn copy(shared: &GrantContext, name: &str, copied: &mut Option<(i32, i64)>) {
    let Some(found) = shared.store.table().read(|table| table.grants().get(name).cloned()) else { return };
    let place = (found.partition, found.offset);
    let Some(envelope) = found.envelope.filter(|_| *copied != Some(place)) else { return };
    // A failed copy is logged once and not retried: the next change is copied anyway.
    *copied = Some(place);
    if let Err(error) = shared.files.write_copy(name, envelope).await {
        tracing::warn!(grant = name, %error, "could not write the copy of a grant on this disk; the topic has it");
    }
}
