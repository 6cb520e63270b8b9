//! The instances of this worker: at most one of each, from its start until its keeper has ended.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use tokio::{sync::watch, task::JoinSet};

use super::{
    Id,
    keeper::Keeper,
    order::{End, Order},
    plan::Wanted,
    voice::Voice,
};
use crate::worker::{plugins::Failure, state::statuses::RunState, supervisor::trace};

/// See the module's head.
#[derive(Default)]
pub(super) struct Roster {
    instances: BTreeMap<Id, Instance>,
    keepers: JoinSet<()>,
    ids: HashMap<tokio::task::Id, Id>,
}

/// One instance, as the supervisor sees it.
pub(super) struct Instance {
    pub(super) partition: i32,
    pub(super) claim: i64,
    pub(super) voice: Arc<Voice>,
    orders: watch::Sender<Order>,
    /// Its keeper has panicked: it stays failed until its partition goes.
    dead: bool,
}

impl Instance {
    /// Whether it has been told to end.
    pub(super) fn is_ending(&self) -> bool {
        self.orders.borrow().end.is_some()
    }
}

impl Roster {
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Id, &Instance)> {
        self.instances.iter()
    }

    pub(super) fn contains(&self, id: &Id) -> bool {
        self.instances.contains_key(id)
    }

    /// Starts an instance that is not there yet.
    pub(super) fn start(&mut self, id: Id, wanted: Wanted, keeper: Keeper, voice: Arc<Voice>) {
        let Wanted { partition, claim, order } = wanted;
        let (orders, heard) = watch::channel(order);
        let task = self.keepers.spawn(keeper.run(heard));
        self.ids.insert(task.id(), id.clone());
        self.instances.insert(id, Instance { partition, claim, voice, orders, dead: false });
    }

    /// Tells an instance something new. One that is ending has heard its last.
    pub(super) fn tell(&self, id: &Id, order: &Order) {
        let Some(instance) = self.instances.get(id) else { return };
        instance.orders.send_if_modified(|current| {
            let known = current.end.is_some()
                || (current.revision == order.revision
                    && current.target == order.target
                    && current.restarts == order.restarts
                    && current.config == order.config);
            if !known {
                current.clone_from(order);
            }
            !known
        });
    }

    /// Tells an instance to end, or to end sooner or more quietly than it was told before.
    pub(super) fn end(&mut self, id: &Id, end: End) {
        let Some(instance) = self.instances.get(id) else { return };
        if instance.dead {
            instance.voice.fall_silent();
            self.instances.remove(id);
            return;
        }
        instance.orders.send_if_modified(|order| {
            let merged = match order.end {
                Some(before) => End { by: before.by.min(end.by), told: before.told && end.told },
                None => end,
            };
            // Told the same with every look, it would only ever end later.
            let news = order.end != Some(merged);
            order.end = Some(merged);
            news
        });
    }

    /// Waits until an instance has ended, and forgets it. Waits for ever while there is none.
    pub(super) async fn ended(&mut self) {
        let (task, panicked) = match self.keepers.join_next_with_id().await {
            None => return std::future::pending().await,
            Some(Ok((task, ()))) => (task, None),
            Some(Err(error)) => (error.id(), error.try_into_panic().ok()),
        };
        let Some(id) = self.ids.remove(&task) else { return };
        match (panicked, self.instances.get_mut(&id)) {
            (Some(payload), Some(instance)) => {
                tracing::error!(
                    connector = &*id.connector,
                    task = id.task,
                    "the keeper of an instance panicked"
                );
                let Failure { message, .. } = trace::panicked(&*payload);
                let failure = Failure::permanent("Panicked", message, "restart the worker, and report it");
                let next = "nothing happens until another worker takes over";
                instance.voice.say(RunState::Failed, Some(trace::of(&failure, next)));
                instance.dead = true;
            }
            _ => drop(self.instances.remove(&id)),
        }
    }

    /// Whether all instances of tasks, or of connectors, have ended.
    pub(super) fn has_none(&self, tasks: bool) -> bool {
        !self.instances.iter().any(|(id, instance)| id.task.is_some() == tasks && !instance.dead)
    }
}
