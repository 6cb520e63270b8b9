//! Keeping the status topic what it should be: what is left over goes, what was said and is not shown is said again.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::sleep;

use super::{Duty, READ_LIMIT, READ_PAUSE, UnderWay};
use crate::{
    kafka,
    worker::{
        state::{State, statuses::Status},
        supervisor::{
            Id,
            roster::Instance,
            sweep::{self, Leftover},
        },
    },
};

impl Duty {
    /// Looks for what is left over, and if there is something, reads the config topic to its end.
    pub(super) fn find_leftovers(&mut self) -> UnderWay<(BTreeSet<Leftover>, Result<(), kafka::Error>)> {
        let at = self.sweepable();
        if self.swept_at == Some(at.clone()) || !self.parts.state.is_caught_up() {
            return None;
        }
        let found = self.leftovers();
        if found.is_empty() {
            self.swept_at = Some(at);
            return None;
        }
        let configs = self.parts.state.configs.clone();
        Some(Box::pin(async move {
            let read = configs.read_to_end(READ_LIMIT).await;
            if read.is_err() {
                sleep(READ_PAUSE).await;
            }
            (found, read)
        }))
    }

    /// All that a sweep depends on.
    fn sweepable(&self) -> (u64, u64, BTreeMap<i32, i64>) {
        let State { configs, statuses, .. } = &self.parts.state;
        (*configs.changes().borrow(), *statuses.changes().borrow(), self.held.clone())
    }

    fn leftovers(&self) -> BTreeSet<Leftover> {
        let state = &self.parts.state;
        let owns = |id: &Id| self.held.contains_key(&id.partition(self.parts.partitions));
        state
            .configs
            .read(|configs| state.statuses.read(|statuses| sweep::leftovers(statuses, configs, owns)))
    }

    /// Removes what was left over before the config topic was read to its end, and still is.
    pub(super) fn sweep(&mut self, found: &BTreeSet<Leftover>, read: Result<(), kafka::Error>) {
        if let Err(error) = read {
            tracing::warn!(%error, "statuses of what is gone stay until the config topic can be read");
            return;
        }
        // Before the look: what comes later is looked at again. So is what this changes, once it is in the topic.
        self.swept_at = Some(self.sweepable());
        let leftovers = self.leftovers();
        sweep::remove(found.intersection(&leftovers), &self.parts.statuses);
        if !leftovers.is_subset(found) {
            self.swept_at = None;
        }
    }

    /// Lets every instance compare what it said with what the topic shows.
    pub(super) fn insist(&self) {
        let statuses = &self.parts.state.statuses;
        if !statuses.is_caught_up() {
            return;
        }
        // Asked outside the look: whoever speaks looks at the topic too.
        let shown = statuses.read(|statuses| {
            let shadowed: BTreeSet<(&str, Option<u32>)> = statuses.shadowed().collect();
            let mut tasks_of: Option<(&str, BTreeMap<u32, &Status>)> = None;
            let mut shown = Vec::new();
            let speaks = |instance: &Instance| !instance.is_ending() && self.holds(instance);
            for (id, instance) in self.roster.iter().filter(|(_, instance)| speaks(instance)) {
                // All of one connector stand together.
                let (_, tasks) = match tasks_of.take() {
                    Some(known) if known.0 == &*id.connector => tasks_of.insert(known),
                    _ => tasks_of.insert((&id.connector, statuses.tasks(&id.connector))),
                };
                let status = match id.task {
                    None => statuses.connector(&id.connector),
                    Some(task) => tasks.get(&task).copied(),
                };
                let is_shadowed = shadowed.contains(&(&*id.connector, id.task));
                shown.push((&instance.voice, status.cloned(), is_shadowed));
            }
            shown
        });
        for (voice, shown, shadowed) in shown {
            voice.insist(shown.as_ref(), shadowed);
        }
    }
}
