//! What runs here: for health, for metrics, and for answers about this worker's own instances.
//!
//! Other workers see the status topic. While Kafka is unreachable this worker cannot write it: an instance that ended since
//! then is [`SupervisorHandle::ended`] until the topic has a newer status.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::InstanceId;
use crate::{
    plugin::Recorder,
    state::statuses::{RunState, Status},
};

/// A view of a supervisor. Cheap to clone and to query.
#[derive(Debug, Clone, Default)]
pub struct SupervisorHandle {
    known: Arc<Mutex<HandleState>>,
}

/// A connector or task that this worker runs, as of one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningInstance {
    /// Its id.
    pub id: InstanceId,
    /// Its state. UNASSIGNED before its first start.
    pub state: RunState,
    /// Starts, by request or after a failure.
    pub starts: u64,
    /// Time since its state last changed.
    pub since: Duration,
    /// Time since this worker first started it, through all restarts.
    pub age: Duration,
    /// Time of that in RUNNING.
    pub ran: Duration,
    /// Time of that in PAUSED.
    pub paused: Duration,
}

impl RunningInstance {
    /// The share of its age in RUNNING, from 0 to 1: Kafka Connect's `running-ratio`.
    pub fn running_ratio(&self) -> f64 {
        ratio(self.ran, self.age)
    }

    /// The share of its age in PAUSED, from 0 to 1: Kafka Connect's `pause-ratio`.
    pub fn pause_ratio(&self) -> f64 {
        ratio(self.paused, self.age)
    }
}

/// Starts and their outcome. A start in progress counts as an attempt only; so does one that a changed desired state cut short.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Startups {
    /// Starts attempted.
    pub attempts: u64,
    /// Starts that succeeded.
    pub successes: u64,
    /// Starts that failed.
    pub failures: u64,
}

impl SupervisorHandle {
    /// Every instance that runs here, ordered by name and number.
    pub fn running(&self) -> Vec<RunningInstance> {
        let now = Instant::now();
        self.known.lock().here.values().map(|entry| entry.at(now)).collect()
    }

    /// The measurements of a task that runs here.
    pub fn recorder(&self, id: &InstanceId) -> Option<Recorder> {
        self.known.lock().here.get(id).map(|entry| entry.recorder.clone())
    }

    /// Starts of connectors on this worker since the process started.
    pub fn connector_startups(&self) -> Startups {
        self.known.lock().connectors
    }

    /// Starts of tasks on this worker since the process started.
    pub fn task_startups(&self) -> Startups {
        self.known.lock().tasks
    }

    /// Whether `shown`, the status in the topic, is outdated because this worker ended the instance and could not report that, as
    /// when its lease expired. True for every status of that instance: its last one may not have reached the topic, which then
    /// shows an earlier one. False once a successor has reported.
    pub fn ended(&self, connector: &str, task: Option<u32>, shown: &Status) -> bool {
        let known = self.known.lock();
        // Almost always empty: avoid building an id for each call.
        !known.ended.is_empty() && {
            let id = InstanceId { connector: connector.into(), task };
            known
                .ended
                .get(&id)
                .is_some_and(|end| shown.generation <= end.generation && *end.worker_id == *shown.worker_id)
        }
    }

    /// Where a task that is about to start records its measurements.
    pub(super) fn recorder_for(&self, id: &InstanceId) -> Recorder {
        self.known.lock().entry(id).recorder.clone()
    }

    pub(super) fn set_state(&self, id: &InstanceId, state: RunState) {
        let mut known = self.known.lock();
        // From now on its reports are on their way to the topic.
        known.ended.remove(id);
        known.entry(id).turn(state, Instant::now());
    }

    pub(super) fn start_attempted(&self, id: &InstanceId) {
        let mut known = self.known.lock();
        known.startups(id).attempts += 1;
        known.entry(id).shown.starts += 1;
    }

    pub(super) fn start_succeeded(&self, id: &InstanceId) {
        self.known.lock().startups(id).successes += 1;
    }

    pub(super) fn start_failed(&self, id: &InstanceId) {
        self.known.lock().startups(id).failures += 1;
    }

    /// It has ended, and has reported that or has nothing to report.
    pub(super) fn remove(&self, id: &InstanceId) {
        self.known.lock().here.remove(id);
    }

    /// It has ended and could not report it: its last status is still in the topic.
    pub(super) fn remove_unreported(&self, id: &InstanceId, last: &Status) {
        let mut known = self.known.lock();
        known.here.remove(id);
        let end = EndedInstance { generation: last.generation, worker_id: last.worker_id.as_str().into() };
        known.ended.insert(id.clone(), end);
    }

    /// Forgets the unreported ends for which `stands` is false: the topic no longer shows that status.
    pub(super) fn prune_ended(&self, stands: impl Fn(&InstanceId, i64) -> bool) {
        self.known.lock().ended.retain(|id, end| stands(id, end.generation));
    }
}

#[derive(Debug, Default)]
struct HandleState {
    here: BTreeMap<InstanceId, InstanceRecord>,
    /// Instances that ended without a report, until the topic has another status.
    ended: BTreeMap<InstanceId, EndedInstance>,
    connectors: Startups,
    tasks: Startups,
}

impl HandleState {
    fn startups(&mut self, id: &InstanceId) -> &mut Startups {
        if id.task.is_some() { &mut self.tasks } else { &mut self.connectors }
    }

    fn entry(&mut self, id: &InstanceId) -> &mut InstanceRecord {
        self.here.entry(id.clone()).or_insert_with(|| InstanceRecord::new(id.clone(), Instant::now()))
    }
}

#[derive(Debug)]
struct EndedInstance {
    generation: i64,
    worker_id: Arc<str>,
}

#[derive(Debug)]
struct InstanceRecord {
    /// As of its last change of state; [`InstanceRecord::at`] adds the time since.
    shown: RunningInstance,
    born: Instant,
    changed: Instant,
    recorder: Recorder,
}

impl InstanceRecord {
    fn new(id: InstanceId, now: Instant) -> Self {
        let [since, age, ran, paused] = [Duration::ZERO; 4];
        let shown = RunningInstance { id, state: RunState::Unassigned, starts: 0, since, age, ran, paused };
        Self { shown, born: now, changed: now, recorder: Recorder::default() }
    }

    fn turn(&mut self, state: RunState, now: Instant) {
        if state != self.shown.state {
            self.shown = RunningInstance { state, ..self.at(now) };
            self.changed = now;
        }
    }

    fn at(&self, now: Instant) -> RunningInstance {
        let (since, age) =
            (now.saturating_duration_since(self.changed), now.saturating_duration_since(self.born));
        let mut shown = RunningInstance { since, age, ..self.shown.clone() };
        match shown.state {
            RunState::Running => shown.ran += since,
            RunState::Paused => shown.paused += since,
            _ => {}
        }
        shown
    }
}

fn ratio(part: Duration, whole: Duration) -> f64 {
    if whole.is_zero() { 0.0 } else { part.as_secs_f64() / whole.as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task() -> InstanceId {
        InstanceId { connector: "c".into(), task: Some(0) }
    }

    fn status(generation: i64) -> Status {
        Status {
            state: RunState::Running,
            trace: None,
            worker_id: "w:1".into(),
            generation,
            handled_restart: None,
        }
    }

    #[test]
    fn ratios_cover_the_whole_age_of_a_task() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut entry = InstanceRecord::new(task(), begun);
        for (second, state) in [
            (1, RunState::Running),
            (3, RunState::Running),
            (5, RunState::Paused),
            (8, RunState::Restarting),
            (10, RunState::Running),
        ] {
            entry.turn(state, at(second));
        }

        let seen = entry.at(at(16));

        assert_eq!((seen.running_ratio(), seen.pause_ratio()), (10.0 / 16.0, 3.0 / 16.0), "{seen:?}");
        assert_eq!((seen.since, seen.age), (Duration::from_secs(6), Duration::from_secs(16)));
    }

    #[test]
    fn new_instance_has_finite_ratios() {
        let now = Instant::now();

        let seen = InstanceRecord::new(task(), now).at(now);

        assert_eq!((seen.running_ratio(), seen.pause_ratio()), (0.0, 0.0));
    }

    #[test]
    fn every_start_is_counted() {
        let handle = SupervisorHandle::default();

        handle.start_attempted(&task());
        handle.start_attempted(&task());
        handle.start_failed(&task());
        handle.start_succeeded(&task());

        let seen = handle.running().remove(0);
        assert_eq!((seen.starts, seen.state), (2, RunState::Unassigned));
        assert_eq!(handle.task_startups(), Startups { attempts: 2, successes: 1, failures: 1 });
        assert_eq!(handle.connector_startups(), Startups::default());
    }

    #[test]
    fn unreported_end_is_known_until_a_newer_status() {
        let handle = SupervisorHandle::default();
        handle.set_state(&task(), RunState::Running);
        handle.remove_unreported(&task(), &status(5));

        assert!(handle.running().is_empty());
        assert!(handle.ended("c", Some(0), &status(5)));
        assert!(handle.ended("c", Some(0), &status(4)), "an earlier status of the same instance");
        assert!(!handle.ended("c", Some(0), &status(6)), "a successor has reported");
        assert!(!handle.ended("c", Some(0), &Status { worker_id: "w:2".into(), ..status(5) }));
        assert!(!handle.ended("c", Some(1), &status(5)) && !handle.ended("c", None, &status(5)));

        handle.set_state(&task(), RunState::Running);
        assert!(!handle.ended("c", Some(0), &status(5)), "it runs again, under the same claim");
    }

    #[test]
    fn unreported_end_is_forgotten_once_the_topic_changes() {
        let handle = SupervisorHandle::default();
        handle.remove_unreported(&task(), &status(5));

        handle.prune_ended(|id, generation| *id == task() && generation == 5);
        assert!(handle.ended("c", Some(0), &status(5)));
        handle.prune_ended(|_, _| false);

        assert!(!handle.ended("c", Some(0), &status(5)));
    }
}
