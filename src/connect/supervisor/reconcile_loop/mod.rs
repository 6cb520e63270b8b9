//! Compares what should run with what runs, and starts, updates and ends instances.

mod upkeep;

use std::{
    collections::{BTreeMap, BTreeSet},
    future::{Future, pending},
    pin::Pin,
    sync::Arc,
    time::Duration,
};

use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use kafka::{Lease, Membership, OwnedPartitions};

use super::{
    Error, InstanceId, SupervisorHandle, SupervisorParts,
    connector::{self, TaskConfigLocks},
    desired_state::StopRequest,
    instance_runner::InstanceRunner,
    instances::{Instance, Instances},
    plan::{InstanceOwnership, PlannedInstance, StopReason, plan},
    stale_statuses::StaleStatus,
    status_reporter::{StatusReporter, StatusTopic},
    task,
};
use crate::{connect::config_writer::ConfigWriter, state::StateTables};

/// How often everything is checked, changed or not: nothing signals the end of a lease.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// How often reported statuses are compared with the topic, changed or not: nothing signals that a resend is due.
const RESEND_INTERVAL: Duration = Duration::from_secs(2);
/// How long reading the topics to their end may take.
const READ_LIMIT: Duration = Duration::from_secs(15);
/// Wait before the next attempt.
const READ_RETRY_WAIT: Duration = Duration::from_secs(1);
/// Limit on the part of a stop that is reserved for writing final statuses.
const FLUSH_RESERVE: Duration = Duration::from_secs(2);
/// How long aborted instances may take beyond their deadline: first the tasks, then the connectors.
const ABORT_RESERVE: Duration = Duration::from_millis(1200);

/// Work that runs beside the loop.
type Background<T> = Option<Pin<Box<dyn Future<Output = T> + Send>>>;

pub(super) struct ReconcileLoop {
    parts: SupervisorParts,
    handle: SupervisorHandle,
    /// Partitions whose instances may start, by claim: the topics have been read to their end since it was made.
    ready: BTreeMap<i32, i64>,
    /// The part of `ready` that this worker certainly holds, as of the last comparison.
    held: BTreeMap<i32, i64>,
    instances: Instances,
    /// What should run on the held partitions, by the configs of `planned_version` (a table counts its changes).
    planned: BTreeMap<InstanceId, PlannedInstance>,
    planned_version: Option<u64>,
    /// The versions of configs and statuses at which no record was stale, and the partitions held then.
    clean_version: Option<(u64, u64, BTreeMap<i32, i64>)>,
    task_config_locks: TaskConfigLocks,
    /// The version of statuses at which the topic showed every reported status.
    compared_version: Option<u64>,
}

impl ReconcileLoop {
    pub(super) fn new(parts: SupervisorParts, handle: SupervisorHandle) -> Self {
        Self {
            parts,
            handle,
            ready: BTreeMap::new(),
            held: BTreeMap::new(),
            instances: Instances::default(),
            planned: BTreeMap::new(),
            planned_version: None,
            clean_version: None,
            compared_version: None,
            task_config_locks: TaskConfigLocks::default(),
        }
    }

    /// Reconciles until cancelled, or until a component it needs has stopped.
    pub(super) async fn run(&mut self, cancel: &CancellationToken) -> Result<(), Error> {
        let mut configs = self.parts.state.configs.changes();
        let mut owned = self.parts.membership.owned();
        let (mut checks, mut resends) = (ticks(CHECK_INTERVAL), ticks(RESEND_INTERVAL));
        let mut preparing: Background<(OwnedPartitions, Result<(), kafka::Error>)> = None;
        let mut finding: Background<(BTreeSet<StaleStatus>, Result<(), kafka::Error>)> = None;
        loop {
            // `self` holds the senders, so none of these can fail.
            tokio::select! {
                () = cancel.cancelled() => return Ok(()),
                _ = owned.changed() => {}
                _ = configs.changed() => {}
                () = self.instances.next_ended() => {}
                (claims, read) = done(&mut preparing) => {
                    preparing = None;
                    self.prepared(&claims, read);
                }
                (found, read) = done(&mut finding) => {
                    finding = None;
                    self.remove_stale(&found, read);
                }
                _ = checks.tick() => {
                    self.check()?;
                    self.resend_if_changed();
                }
                _ = resends.tick() => self.resend(),
            }
            if preparing.is_none() {
                preparing = self.prepare();
            }
            self.reconcile();
            if finding.is_none() {
                finding = self.find_stale();
            }
        }
    }

    /// Checks that the components it needs still run.
    fn check(&self) -> Result<(), Error> {
        let SupervisorParts { statuses, state, .. } = &self.parts;
        let broken = [
            (statuses.is_running(), "writes the status topic"),
            (state.configs.is_running(), "follows the config topic"),
            (state.statuses.is_running(), "follows the status topic"),
            (state.offsets.is_running(), "follows the offset topic"),
        ];
        match broken.into_iter().find(|(runs, _)| !runs) {
            Some((_, does)) => Err(Error { does }),
            None => Ok(()),
        }
    }

    /// Ends everything, tasks before connectors, within `grace`.
    pub(super) async fn stop(mut self, grace: Duration) {
        let now = Instant::now();
        let deadline = now + grace;
        let StopTimes { patience, task_limit, connector_limit } =
            StopTimes::of(grace, self.parts.settings.task_grace);
        let by = now + patience;
        for (tasks, limit) in [(true, task_limit), (false, connector_limit)] {
            let ending = self.instances.iter().filter(|(id, _)| id.task.is_some() == tasks);
            let ending: Vec<(InstanceId, bool)> =
                ending.map(|(id, instance)| (id.clone(), self.holds(instance))).collect();
            for (id, report) in ending {
                self.instances.stop(&id, StopRequest { deadline: by, report });
            }
            while !self.instances.all_ended(tasks) {
                tokio::select! {
                    () = self.instances.next_ended() => {}
                    () = sleep_until(now + limit) => {
                        tracing::warn!(tasks, "instances did not end before the deadline");
                        break;
                    }
                }
            }
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if let Err(error) = self.parts.statuses.flush(left).await {
            tracing::warn!(%error, "could not write the final statuses before the deadline");
        }
    }

    /// Compares the plan with what runs, and ends, updates and starts instances.
    fn reconcile(&mut self) {
        let membership = &self.parts.membership;
        let owned = Arc::clone(&membership.owned().borrow());
        self.ready.retain(|partition, claim| owned.get(partition) == Some(claim));
        let held: BTreeMap<i32, i64> = self
            .ready
            .iter()
            .filter(|(partition, _)| membership.holds(**partition))
            .map(|(partition, claim)| (*partition, *claim))
            .collect();
        let configs = &self.parts.state.configs;
        // Read before planning: a change in between is planned again.
        let version = Some(*configs.changes().borrow());
        if self.planned_version != version || self.held != held {
            self.planned = configs.read(|configs| plan(configs, &held, self.parts.partitions));
            (self.planned_version, self.held) = (version, held);
        }

        let ends: Vec<(InstanceId, StopRequest)> = self
            .instances
            .iter()
            .filter_map(|(id, instance)| {
                Some((id.clone(), self.end(instance, &owned, self.planned.get(id))?))
            })
            .collect();
        for (id, end) in ends {
            self.instances.stop(&id, end);
        }
        let mut missing = Vec::new();
        for (id, wanted) in &self.planned {
            if !self.instances.update(id, &wanted.desired) {
                missing.push((id.clone(), wanted.clone()));
            }
        }
        for (id, wanted) in missing {
            self.start(id, wanted);
        }
    }

    /// How an instance ends, if it should.
    fn end(
        &self,
        instance: &Instance,
        owned: &OwnedPartitions,
        wanted: Option<&PlannedInstance>,
    ) -> Option<StopRequest> {
        let (settings, membership) = (&self.parts.settings, &self.parts.membership);
        let ownership = InstanceOwnership {
            claim: instance.claim,
            owned: owned.get(&instance.partition).copied(),
            holds: membership.holds(instance.partition),
            leased: !membership.lease_left().is_zero(),
            wanted: wanted.is_some(),
        };
        let now = Instant::now();
        ownership.stop_reason().map(|reason| match reason {
            StopReason::Lost => StopRequest { deadline: now + settings.lost_grace, report: false },
            // The connector's owner removes its status.
            StopReason::NotWanted => StopRequest { deadline: now + settings.task_grace, report: false },
            StopReason::Revoked => StopRequest { deadline: now + settings.task_grace, report: true },
        })
    }

    fn start(&mut self, id: InstanceId, wanted: PlannedInstance) {
        let SupervisorParts { plugins, state, config_writer, statuses, membership, tools, settings, .. } =
            &self.parts;
        let (partition, claim) = (wanted.partition, wanted.claim);
        let lease: Lease = {
            let membership = membership.clone();
            Arc::new(move || holds(&membership, partition, claim))
        };
        let body = match id.task {
            None => {
                let lock = self.task_config_locks.of(&id.connector);
                connector::body(&id, plugins, config_writer, &state.configs, &lease, lock)
            }
            Some(_) => task::body(&id, claim, &self.parts, &self.handle.recorder_for(&id), &lease),
        };
        let sink = Arc::new(StatusTopic { writer: statuses.clone(), statuses: state.statuses.clone() });
        let worker_id = Arc::clone(&tools.worker_id);
        let reporter = StatusReporter::new(id.clone(), claim, worker_id, sink, self.handle.clone());
        let reporter = Arc::new(reporter);
        tracing::info!(connector = &*id.connector, task = id.task, partition, generation = claim, "starting");
        let runner = InstanceRunner::new(id.clone(), body, Arc::clone(&reporter), lease, *settings);
        self.instances.start(id, wanted, runner, reporter);
    }

    /// Reads the topics to their end for newly claimed partitions.
    fn prepare(&self) -> Background<(OwnedPartitions, Result<(), kafka::Error>)> {
        let owned = Arc::clone(&self.parts.membership.owned().borrow());
        if owned.iter().all(|(partition, claim)| self.ready.get(partition) == Some(claim)) {
            return None;
        }
        let (state, config_writer) = (self.parts.state.clone(), self.parts.config_writer.clone());
        Some(Box::pin(async move {
            let read = read_to_end(&state, &config_writer).await;
            if read.is_err() {
                sleep(READ_RETRY_WAIT).await;
            }
            (owned, read)
        }))
    }

    fn prepared(&mut self, claims: &OwnedPartitions, read: Result<(), kafka::Error>) {
        match read {
            Ok(()) => self.ready = (**claims).clone(),
            Err(error) => {
                tracing::warn!(%error, "could not read the topics to their end; newly assigned instances start once they can be read")
            }
        }
    }

    fn holds(&self, instance: &Instance) -> bool {
        holds(&self.parts.membership, instance.partition, instance.claim)
    }
}

/// When the steps of a stop end, counted from its start. The rest of the grace is for the final statuses.
#[derive(Debug)]
struct StopTimes {
    /// Instances that have not ended are aborted.
    patience: Duration,
    /// Aborted tasks are left behind.
    task_limit: Duration,
    /// Aborted connectors are left behind.
    connector_limit: Duration,
}

impl StopTimes {
    fn of(grace: Duration, task_grace: Duration) -> Self {
        let (flush, abort) = (FLUSH_RESERVE.min(grace / 4), ABORT_RESERVE.min(grace / 4));
        let patience = grace.saturating_sub(flush + abort * 2).min(task_grace);
        Self { patience, task_limit: patience + abort, connector_limit: patience + abort * 2 }
    }
}

/// Whether this worker certainly holds a partition under this claim.
fn holds(membership: &Membership, partition: i32, claim: i64) -> bool {
    // Not in one expression: both take the same lock, and the first guard would still be held.
    let claimed = membership.owned().borrow().get(&partition) == Some(&claim);
    claimed && membership.holds(partition)
}

/// Reads configurations, commands and statuses. Not the offsets: open transactions of a dead worker are only decided there
/// once its successors take over its transactional ids, so tasks read offsets after that.
async fn read_to_end(state: &StateTables, config_writer: &ConfigWriter) -> Result<(), kafka::Error> {
    let configs = config_writer.read_to_end(&state.configs, READ_LIMIT);
    tokio::try_join!(configs, state.statuses.read_to_end(READ_LIMIT)).map(drop)
}

/// The result of background work; never completes while there is none.
async fn done<T>(under_way: &mut Background<T>) -> T {
    match under_way {
        Some(work) => work.await,
        None => pending().await,
    }
}

fn ticks(every: Duration) -> tokio::time::Interval {
    let mut ticks = interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stop_keeps_time_for_final_statuses_within_its_grace() {
        for millis in [0, 500, 4_000, 10_000, 18_500] {
            let grace = Duration::from_millis(millis);

            let times = StopTimes::of(grace, Duration::from_secs(5));

            assert!(
                times.patience <= times.task_limit && times.task_limit <= times.connector_limit,
                "{times:?}"
            );
            assert!(times.connector_limit + FLUSH_RESERVE.min(grace / 4) <= grace, "{grace:?}: {times:?}");
        }
    }
}
