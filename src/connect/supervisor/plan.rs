//! Which instances should run here, and why one ends: decided from the config topic and the owned partitions alone.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    InstanceId,
    desired_state::{DesiredState, RestartRevisions},
};
use crate::{
    config::connector::TargetState,
    state::configs::{Configs, StoredConnector},
};

/// An instance that should run.
#[derive(Debug, Clone)]
pub(super) struct PlannedInstance {
    /// Partition of the work topic that it belongs to.
    pub(super) partition: i32,
    /// The claim on that partition.
    pub(super) claim: i64,
    /// Its desired state.
    pub(super) desired: DesiredState,
}

/// Every instance that should run on a worker with these partitions, out of `partitions`. A connector has an instance whatever
/// its target; its tasks have one each unless it is stopped.
pub(super) fn plan(
    configs: &Configs,
    held: &BTreeMap<i32, i64>,
    partitions: u32,
) -> BTreeMap<InstanceId, PlannedInstance> {
    let mut wanted = BTreeMap::new();
    for (name, connector) in configs.connectors() {
        let name: Arc<str> = name.as_str().into();
        let count = if connector.target == TargetState::Stopped { 0 } else { connector.tasks.len() };
        let tasks = (0..u32::try_from(count).unwrap_or(u32::MAX)).map(Some);
        for task in std::iter::once(None).chain(tasks) {
            let id = InstanceId { connector: Arc::clone(&name), task };
            let partition = id.partition(partitions);
            if let (Some(claim), Some(desired)) =
                (held.get(&partition), desired_state(configs, connector, &id))
            {
                wanted.insert(id, PlannedInstance { partition, claim: *claim, desired });
            }
        }
    }
    wanted
}

/// Why an instance ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StopReason {
    /// Its partition is lost: another worker may run it already.
    Lost,
    /// Its partition was revoked: another worker will run it.
    Revoked,
    /// It is deleted, stopped or no longer configured.
    NotWanted,
}

/// Facts about an instance and its partition.
#[derive(Debug, Clone, Copy)]
pub(super) struct InstanceOwnership {
    /// The claim it was started under.
    pub(super) claim: i64,
    /// The claim this worker has on the partition now.
    pub(super) owned: Option<i64>,
    /// Whether this worker certainly holds the partition.
    pub(super) holds: bool,
    /// Whether this worker has any lease.
    pub(super) leased: bool,
    /// Whether the instance should run.
    pub(super) wanted: bool,
}

impl InstanceOwnership {
    /// Why the instance ends, if it does.
    pub(super) fn stop_reason(self) -> Option<StopReason> {
        match self.owned {
            Some(claim) if claim == self.claim => match (self.holds, self.wanted) {
                (false, _) => Some(StopReason::Lost),
                (true, false) => Some(StopReason::NotWanted),
                (true, true) => None,
            },
            // Revoked and assigned again: another worker may have owned it in between.
            Some(_) => Some(StopReason::Lost),
            // A member with a lease gave the partition up; a member that was expelled has no lease either.
            None if self.leased => Some(StopReason::Revoked),
            None => Some(StopReason::Lost),
        }
    }
}

fn desired_state(configs: &Configs, connector: &StoredConnector, id: &InstanceId) -> Option<DesiredState> {
    let (config, revision) = match id.task {
        None => (Arc::clone(&connector.config), connector.revision),
        Some(task) => (Arc::clone(connector.tasks.get(task as usize)?), connector.task_revision),
    };
    let mut restarts = RestartRevisions::default();
    for restart in configs.restarts(&id.connector).filter(|restart| restart.concerns(id.task)) {
        let last = if restart.only_failed { &mut restarts.if_failed } else { &mut restarts.always };
        *last = restart.revision.max(*last);
    }
    Some(DesiredState { config, revision, target: connector.target, restarts })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        plugin::samples::properties,
        state::{
            TableState,
            configs::{self, Write},
            samples::received,
        },
    };

    /// The table after these writes, at offsets from 0.
    fn configs(writes: impl IntoIterator<Item = Write>) -> Configs {
        let mut configs = Configs::default();
        for (offset, (key, value)) in (0..).zip(writes) {
            let value = value.map(|value| value.to_string());
            configs.apply(&received(offset, &key, value.as_deref()));
        }
        configs
    }

    fn connector(target: TargetState, tasks: usize) -> Vec<Write> {
        let config = properties(&[("connector.class", "TestSource")]);
        let mut writes =
            vec![configs::connector("21", Some(&config)), configs::target_state("21", Some(target))];
        writes.extend(configs::tasks("21", &vec![config; tasks]));
        writes
    }

    fn ids(wanted: &BTreeMap<InstanceId, PlannedInstance>) -> Vec<(Option<u32>, i32, i64)> {
        wanted.iter().map(|(id, wanted)| (id.task, wanted.partition, wanted.claim)).collect()
    }

    #[test]
    fn worker_runs_instances_of_its_partitions_under_their_claims() {
        // The connector belongs to partition 0 of 12.
        let configs = configs(connector(TargetState::Running, 3));

        assert_eq!(
            ids(&plan(&configs, &BTreeMap::from([(0, 7), (2, 9)]), 12)),
            [(None, 0, 7), (Some(0), 0, 7), (Some(2), 2, 9)]
        );
        assert!(plan(&configs, &BTreeMap::from([(5, 7)]), 12).is_empty());
    }

    #[test]
    fn stopped_connector_has_no_tasks_and_a_paused_one_keeps_them() {
        let held = BTreeMap::from([(0, 7), (1, 7)]);

        assert_eq!(ids(&plan(&configs(connector(TargetState::Stopped, 2)), &held, 12)), [(None, 0, 7)]);
        assert_eq!(plan(&configs(connector(TargetState::Paused, 2)), &held, 12).len(), 3);
    }

    #[test]
    fn ownership_decides_why_an_instance_ends() {
        let sound = InstanceOwnership { claim: 7, owned: Some(7), holds: true, leased: true, wanted: true };
        let table = [
            (sound, None),
            (InstanceOwnership { wanted: false, ..sound }, Some(StopReason::NotWanted)),
            (InstanceOwnership { holds: false, wanted: false, ..sound }, Some(StopReason::Lost)),
            (InstanceOwnership { owned: Some(9), ..sound }, Some(StopReason::Lost)),
            (
                InstanceOwnership { owned: None, holds: false, wanted: false, ..sound },
                Some(StopReason::Revoked),
            ),
            (
                InstanceOwnership { owned: None, holds: false, leased: false, wanted: false, ..sound },
                Some(StopReason::Lost),
            ),
        ];

        for (ownership, reason) in table {
            assert_eq!(ownership.stop_reason(), reason, "{ownership:?}");
        }
    }

    #[test]
    fn deleted_connector_has_no_instances() {
        let mut writes = connector(TargetState::Running, 2);
        writes.push(configs::connector("21", None));

        assert!(plan(&configs(writes), &BTreeMap::from([(0, 7), (1, 7)]), 12).is_empty());
    }

    #[test]
    fn instance_gets_the_restarts_that_apply_to_it() {
        let mut writes = connector(TargetState::Running, 2);
        let base = writes.len() as i64;
        writes.push(configs::restart("21", false, false, Some(1)));
        writes.push(configs::restart("21", false, false, Some(0)));
        writes.push(configs::restart("21", true, true, None));
        writes.push(configs::restart("21", false, false, None));

        let wanted = plan(&configs(writes), &BTreeMap::from([(0, 7), (1, 7)]), 12);

        let restarts: Vec<_> = wanted
            .values()
            .map(|wanted| (wanted.desired.restarts.always - base, wanted.desired.restarts.if_failed - base))
            .collect();
        assert_eq!(restarts, [(3, 2), (1, 2), (0, 2)]);
    }
}
