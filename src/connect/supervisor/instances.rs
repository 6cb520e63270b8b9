//! The instances of this worker: at most one of each, from its start until its runner has ended.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use tokio::{sync::watch, task::JoinSet};

use super::{
    InstanceId,
    desired_state::{DesiredState, Instruction, StopRequest, Transition},
    instance_runner::InstanceRunner,
    plan::PlannedInstance,
    status_reporter::StatusReporter,
};
use crate::{connect::supervisor::trace, state::statuses::RunState};

/// See the module's head.
#[derive(Default)]
pub(super) struct Instances {
    instances: BTreeMap<InstanceId, Instance>,
    runners: JoinSet<()>,
    ids: HashMap<tokio::task::Id, InstanceId>,
}

/// One instance, as the supervisor sees it.
pub(super) struct Instance {
    pub(super) partition: i32,
    pub(super) claim: i64,
    pub(super) reporter: Arc<StatusReporter>,
    runner: Runner,
}

/// The runner of an instance.
enum Runner {
    /// It runs, and follows the last instruction.
    Live(watch::Sender<Instruction>),
    /// It panicked in this state: the instance stays FAILED until a changed desired state restarts it, or its partition is gone.
    Panicked(DesiredState),
}

impl Instance {
    /// Whether it was asked to end.
    pub(super) fn is_ending(&self) -> bool {
        matches!(&self.runner, Runner::Live(instructions) if matches!(*instructions.borrow(), Instruction::End(_)))
    }
}

impl Instances {
    pub(super) fn iter(&self) -> impl Iterator<Item = (&InstanceId, &Instance)> {
        self.instances.iter()
    }

    /// Starts an instance that does not exist yet.
    pub(super) fn start(
        &mut self,
        id: InstanceId,
        wanted: PlannedInstance,
        runner: InstanceRunner,
        reporter: Arc<StatusReporter>,
    ) {
        let PlannedInstance { partition, claim, desired } = wanted;
        let (instructions, receiver) = watch::channel(Instruction::Run(desired));
        let task = self.runners.spawn(runner.run(receiver));
        self.ids.insert(task.id(), id.clone());
        let runner = Runner::Live(instructions);
        self.instances.insert(id, Instance { partition, claim, reporter, runner });
    }

    /// Sends an instance its desired state; `false` if there is none and one should be started. An ending instance ignores it.
    pub(super) fn update(&mut self, id: &InstanceId, desired: &DesiredState) -> bool {
        let Some(instance) = self.instances.get(id) else { return false };
        match &instance.runner {
            Runner::Panicked(last) => {
                let restarts = last.transition(desired, last.restarts, true) == Transition::Restart;
                if restarts {
                    self.instances.remove(id);
                }
                !restarts
            }
            Runner::Live(instructions) => {
                instructions.send_if_modified(|current| match current {
                    Instruction::Run(current) if current != desired => {
                        current.clone_from(desired);
                        true
                    }
                    Instruction::Run(_) | Instruction::End(_) => false,
                });
                true
            }
        }
    }

    /// Asks an instance to end, or to end sooner or without a report if it is ending already.
    pub(super) fn stop(&mut self, id: &InstanceId, end: StopRequest) {
        let Some(instance) = self.instances.get(id) else { return };
        let Runner::Live(instructions) = &instance.runner else {
            instance.reporter.close(end.report);
            self.instances.remove(id);
            return;
        };
        instructions.send_if_modified(|current| {
            // Every reconciliation asks again; the earliest deadline must win.
            let before = match current {
                Instruction::End(before) => Some(*before),
                Instruction::Run(_) => None,
            };
            let merged = before.map_or(end, |before| before.merged(end));
            *current = Instruction::End(merged);
            before != Some(merged)
        });
    }

    /// Waits until an instance has ended, and removes it. Never completes while there is none.
    pub(super) async fn next_ended(&mut self) {
        let (task, panicked) = match self.runners.join_next_with_id().await {
            None => return std::future::pending().await,
            Some(Ok((task, ()))) => (task, None),
            Some(Err(error)) => (error.id(), error.try_into_panic().ok()),
        };
        let Some(id) = self.ids.remove(&task) else { return };
        if let Some(payload) = panicked
            && let Some(instance) = self.instances.get_mut(&id)
            && let Runner::Live(instructions) = &instance.runner
        {
            tracing::error!(connector = &*id.connector, task = id.task, "the runner of an instance panicked");
            let failure = trace::panicked(&*payload);
            instance.reporter.report(RunState::Failed, Some(trace::of(&failure, failure.next())));
            let last = instructions.borrow().clone();
            match last {
                Instruction::Run(last) => {
                    instance.runner = Runner::Panicked(last);
                    return;
                }
                Instruction::End(end) => instance.reporter.close(end.report),
            }
        }
        self.instances.remove(&id);
    }

    /// Whether all instances of tasks, or of connectors, have ended.
    pub(super) fn all_ended(&self, tasks: bool) -> bool {
        !self
            .instances
            .iter()
            .any(|(id, instance)| id.task.is_some() == tasks && matches!(instance.runner, Runner::Live(_)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{Instant, timeout};

    use super::*;
    use crate::{
        config::connector::TargetState,
        connect::supervisor::{
            Settings, desired_state::RestartRevisions, instance_runner::InstanceBody, status_reporter,
        },
        plugin::samples::properties,
    };

    const LIMIT: Duration = Duration::from_secs(30);

    fn desired(restart: i64) -> DesiredState {
        let restarts = RestartRevisions { always: restart, if_failed: -1 };
        let config = Arc::new(properties(&[("topic", "a")]));
        DesiredState { config, revision: 0, target: TargetState::Running, restarts }
    }

    /// Starts an instance whose body runs, or whose runner panics (`sound` is false).
    fn start(instances: &mut Instances, id: &InstanceId, desired: DesiredState, sound: bool) {
        let body: InstanceBody = Arc::new(move |run| {
            assert!(sound, "not even a body");
            Box::pin(async move {
                run.startup.notify_one();
                run.cancel.cancelled().await;
                Ok(())
            })
        });
        let (reporter, ..) = status_reporter::tests::reporter(None);
        let reporter = Arc::new(reporter);
        let lease = Arc::new(|| true);
        let runner = InstanceRunner::new(id.clone(), body, Arc::clone(&reporter), lease, Settings::default());
        instances.start(id.clone(), PlannedInstance { partition: 0, claim: 5, desired }, runner, reporter);
    }

    #[tokio::test]
    async fn instance_restarts_on_request_after_its_runner_panicked() {
        let id = InstanceId { connector: "c".into(), task: Some(0) };
        let mut instances = Instances::default();
        assert!(!instances.update(&id, &desired(1)), "there is none yet");
        start(&mut instances, &id, desired(1), false);
        timeout(LIMIT, instances.next_ended()).await.unwrap();

        assert!(instances.update(&id, &desired(1)), "nothing new, and no reason to start it");
        assert!(!instances.update(&id, &desired(2)), "a restart was requested");
        start(&mut instances, &id, desired(2), true);

        assert!(instances.update(&id, &desired(3)));
        assert!(!instances.all_ended(true));
        instances.stop(&id, StopRequest { deadline: Instant::now() + LIMIT, report: false });
        timeout(LIMIT, instances.next_ended()).await.unwrap();
        assert!(instances.all_ended(true));
    }
}
