//! The instances of this worker: at most one of each, from its start until its keeper has ended.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use tokio::{sync::watch, task::JoinSet};

use super::{
    Id,
    keeper::Keeper,
    order::{End, Meaning, Order},
    plan::Wanted,
    voice::Voice,
};
use crate::{connect::supervisor::trace, state::statuses::RunState};

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
    /// Its keeper has panicked: it stays failed until an order gives it another chance, or its partition goes.
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

    /// Starts an instance that is not there yet.
    pub(super) fn start(&mut self, id: Id, wanted: Wanted, keeper: Keeper, voice: Arc<Voice>) {
        let Wanted { partition, claim, order } = wanted;
        let (orders, heard) = watch::channel(order);
        let task = self.keepers.spawn(keeper.run(heard));
        self.ids.insert(task.id(), id.clone());
        self.instances.insert(id, Instance { partition, claim, voice, orders, dead: false });
    }

    /// Tells an instance something new; false if there is none, and one should be started. One that is ending has heard its
    /// last.
    pub(super) fn tell(&mut self, id: &Id, order: &Order) -> bool {
        let Some(instance) = self.instances.get(id) else { return false };
        if instance.dead {
            let current = instance.orders.borrow();
            let anew =
                current.end.is_none() && current.meaning(order, current.restarts, true) == Meaning::Anew;
            drop(current);
            if anew {
                self.instances.remove(id);
            }
            return !anew;
        }
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
        true
    }

    /// Tells an instance to end, or to end sooner or more quietly than it was told before.
    pub(super) fn end(&mut self, id: &Id, end: End) {
        let Some(instance) = self.instances.get(id) else { return };
        if instance.dead {
            instance.voice.fall_silent(end.told);
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
                let failure = trace::panicked(&*payload);
                instance.voice.say(RunState::Failed, Some(trace::of(&failure, failure.next())));
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{Instant, timeout};

    use super::*;
    use crate::{
        config::connector::TargetState,
        connect::supervisor::{Settings, keeper::Body, order::Restarts, voice},
        plugin::samples::properties,
    };

    const LIMIT: Duration = Duration::from_secs(30);

    fn order(restart: i64) -> Order {
        let restarts = Restarts { always: restart, if_failed: -1 };
        let config = Arc::new(properties(&[("topic", "a")]));
        Order { config, revision: 0, target: TargetState::Running, restarts, end: None }
    }

    /// One instance of which the body runs, or whose keeper panics instead.
    fn start(roster: &mut Roster, id: &Id, order: Order, sound: bool) {
        let body: Body = Arc::new(move |run| {
            assert!(sound, "not even a body");
            Box::pin(async move {
                run.startup.notify_one();
                run.cancel.cancelled().await;
                Ok(())
            })
        });
        let (voice, ..) = voice::tests::voice(None);
        let voice = Arc::new(voice);
        let may_act = Arc::new(|| true);
        let keeper = Keeper::new(id.clone(), body, Arc::clone(&voice), may_act, Settings::default());
        roster.start(id.clone(), Wanted { partition: 0, claim: 5, order }, keeper, voice);
    }

    #[tokio::test]
    async fn one_whose_keeper_panicked_waits_for_an_order_and_is_then_started_anew() {
        let id = Id { connector: "c".into(), task: Some(0) };
        let mut roster = Roster::default();
        assert!(!roster.tell(&id, &order(1)), "there is none yet");
        start(&mut roster, &id, order(1), false);
        timeout(LIMIT, roster.ended()).await.unwrap();

        assert!(roster.tell(&id, &order(1)), "nothing new, and no reason to start it");
        assert!(!roster.tell(&id, &order(2)), "somebody restarts it");
        start(&mut roster, &id, order(2), true);

        assert!(roster.tell(&id, &order(3)));
        assert!(!roster.has_none(true));
        roster.end(&id, End { by: Instant::now() + LIMIT, told: false });
        timeout(LIMIT, roster.ended()).await.unwrap();
        assert!(roster.has_none(true));
    }
}
