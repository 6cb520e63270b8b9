//! Keeps the status topic right: removes stale records and resends statuses that it does not show.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::sleep;

use super::{Background, READ_LIMIT, READ_RETRY_WAIT, ReconcileLoop};
use crate::{
    connect::supervisor::{
        InstanceId,
        instances::Instance,
        stale_statuses::{self, StaleStatus},
        status_reporter::{ObservedStatus, StatusComparison},
    },
    state::StateTables,
};

impl ReconcileLoop {
    /// Looks for stale records and, if there are any, reads the config topic to its end.
    pub(super) fn find_stale(&mut self) -> Background<(BTreeSet<StaleStatus>, Result<(), kafka::Error>)> {
        let version = self.stale_version();
        if self.clean_version == Some(version.clone()) || self.parts.state.behind().is_some() {
            return None;
        }
        let found = self.stale();
        if found.is_empty() {
            self.clean_version = Some(version);
            return None;
        }
        let configs = self.parts.state.configs.clone();
        Some(Box::pin(async move {
            let read = configs.read_to_end(READ_LIMIT).await;
            if read.is_err() {
                sleep(READ_RETRY_WAIT).await;
            }
            (found, read)
        }))
    }

    /// Everything that decides which records are stale.
    fn stale_version(&self) -> (u64, u64, BTreeMap<i32, i64>) {
        let StateTables { configs, statuses, .. } = &self.parts.state;
        (*configs.changes().borrow(), *statuses.changes().borrow(), self.held.clone())
    }

    fn stale(&self) -> BTreeSet<StaleStatus> {
        let state = &self.parts.state;
        let owns = |id: &InstanceId| self.held.contains_key(&id.partition(self.parts.partitions));
        state
            .configs
            .read(|configs| state.statuses.read(|statuses| stale_statuses::stale(statuses, configs, owns)))
    }

    /// Removes the records that were stale before the config topic was read to its end, and still are.
    pub(super) fn remove_stale(&mut self, found: &BTreeSet<StaleStatus>, read: Result<(), kafka::Error>) {
        if let Err(error) = read {
            tracing::warn!(%error, "could not read the config topic to its end; stale statuses stay until it can");
            return;
        }
        // Taken before the search: a later change starts another one, as do these removals once they are in the topic.
        self.clean_version = Some(self.stale_version());
        let stale = self.stale();
        stale_statuses::remove(found.intersection(&stale), &self.parts.statuses);
        if !stale.is_subset(found) {
            self.clean_version = None;
        }
    }

    /// Resends the statuses that the topic should show and does not, of instances whose partition this worker certainly holds.
    /// Forgets unreported ends for which the topic has another status by now.
    pub(super) fn resend(&mut self) {
        let statuses = &self.parts.state.statuses;
        if !statuses.is_caught_up() {
            return;
        }
        // Read before comparing: a change in between is compared again.
        self.compared_version = Some(*statuses.changes().borrow());
        let speaks = |instance: &Instance| !instance.is_ending() && self.holds(instance);
        // Reported after the read, which holds the table's lock.
        let mut due = Vec::new();
        let waits = statuses.read(|statuses| {
            let mut waits = false;
            let shadowed: BTreeSet<(&str, Option<u32>)> = statuses.shadowed().collect();
            for (id, instance) in self.instances.iter().filter(|(_, instance)| speaks(instance)) {
                let shown = ObservedStatus {
                    status: statuses.of(&id.connector, id.task),
                    generation: statuses.generation(&id.connector, id.task),
                    shadowed: shadowed.contains(&(&*id.connector, id.task)),
                };
                match instance.reporter.compare(shown) {
                    StatusComparison::Same => {}
                    StatusComparison::Waits => waits = true,
                    StatusComparison::Missing { remove_first } => {
                        due.push((&instance.reporter, remove_first))
                    }
                }
            }
            self.handle.prune_ended(|id, generation| {
                statuses.of(&id.connector, id.task).is_some_and(|status| status.generation <= generation)
            });
            waits
        });
        // Compare resent statuses again.
        self.compared_version = self.compared_version.filter(|_| !waits && due.is_empty());
        for (reporter, remove_first) in due {
            reporter.resend(remove_first);
        }
    }

    /// The same, if the topic has changed or a status is on its way there.
    pub(super) fn resend_if_changed(&mut self) {
        if self.compared_version != Some(*self.parts.state.statuses.changes().borrow()) {
            self.resend();
        }
    }
}
