//! Reports the state of one instance to the status topic.
//!
//! Every status carries the claim of the instance's partition as its generation. Readers ignore a late record of an earlier
//! owner, but compaction keeps only the last record of a key, which is then the ignored one. So the reporter compares its last
//! status with what the topic shows and sends it again where they differ. It does so sooner where the topic shows nothing: a
//! status that was removed with its deleted connector may be that of a new connector with the same name.
//!
//! Only a worker that surely holds the partition compares. A generation above its own is then invalid: the work topic was
//! recreated, or another program writes here. The reporter removes that record and writes its own status after the removal.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{InstanceId, SupervisorHandle, desired_state::RestartRevisions};
use crate::state::{
    Table,
    statuses::{RunState, Status, Statuses},
    writer::StatusWriter,
};

/// Writes statuses and knows the generations in the topic.
pub(super) trait StatusSink: Send + Sync {
    /// Queues a status; never blocks. A newer status of the same instance may replace one that is not written yet.
    fn put(&self, id: &InstanceId, status: Status);

    /// The same after a removal, which makes every reader forget a higher generation.
    fn put_after_removal(&self, id: &InstanceId, status: Status);

    /// The highest generation that the topic has had for an instance.
    fn generation(&self, id: &InstanceId) -> Option<i64>;
}

/// The reporter of one instance.
pub(super) struct StatusReporter {
    id: InstanceId,
    generation: i64,
    worker_id: Arc<str>,
    sink: Arc<dyn StatusSink>,
    handle: SupervisorHandle,
    /// How long to wait for a status to show in the topic before it is resent.
    resend_after: Duration,
    /// The same for the first resend if the topic shows no status or an invalid generation.
    first_resend_after: Duration,
    /// `None` before the first report and after [`StatusReporter::close`].
    reported: Mutex<Option<ReportedStatus>>,
    /// Revision of the last restart request that the instance has handled.
    handled_restart: AtomicI64,
}

/// The last reported status.
#[derive(Clone)]
struct ReportedStatus {
    status: Status,
    at: Instant,
    /// It was resent, and has not been shown since.
    again: bool,
}

/// What the topic shows of an instance.
#[derive(Debug, Clone, Copy)]
pub(super) struct ObservedStatus<'a> {
    pub(super) status: Option<&'a Status>,
    /// The highest generation known.
    pub(super) generation: Option<i64>,
    /// The last record in the log is an ignored one.
    pub(super) shadowed: bool,
}

/// How the last reported status compares with what the topic shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StatusComparison {
    /// The topic shows it.
    Same,
    /// It may be on its way: compare it again soon.
    Waits,
    /// Resend it, after a removal if `remove_first`.
    Missing { remove_first: bool },
}

impl StatusReporter {
    pub(super) fn new(
        id: InstanceId,
        generation: i64,
        worker_id: Arc<str>,
        sink: Arc<dyn StatusSink>,
        handle: SupervisorHandle,
    ) -> Self {
        let (resend_after, first_resend_after) = (Duration::from_secs(5), Duration::from_millis(500));
        let (reported, handled_restart) = (Mutex::default(), AtomicI64::new(-1));
        Self {
            id,
            generation,
            worker_id,
            sink,
            handle,
            resend_after,
            first_resend_after,
            reported,
            handled_restart,
        }
    }

    /// The instance has handled restart requests up to these; later reports say so.
    pub(super) fn set_handled_restarts(&self, restarts: RestartRevisions) {
        self.handled_restart.store(restarts.last(), Ordering::Relaxed);
    }

    pub(super) fn generation(&self) -> i64 {
        self.generation
    }

    /// Reports a state.
    pub(super) fn report(&self, state: RunState, trace: Option<String>) {
        let status = Status {
            state,
            trace,
            worker_id: self.worker_id.to_string(),
            generation: self.generation,
            handled_restart: Some(self.handled_restart.load(Ordering::Relaxed)),
        };
        self.handle.set_state(&self.id, state);
        let reported = ReportedStatus { status: status.clone(), at: Instant::now(), again: false };
        *self.reported.lock() = Some(reported);
        self.sink.put(&self.id, status);
    }

    /// Reports UNASSIGNED, unless a newer owner has reported already.
    pub(super) fn report_unassigned(&self) {
        if !self.is_replaced() {
            self.report(RunState::Unassigned, None);
        }
    }

    /// Compares the last status with what the topic shows. Only while this worker certainly holds the partition.
    pub(super) fn compare(&self, observed: ObservedStatus<'_>) -> StatusComparison {
        let mut reported = self.reported.lock();
        let Some(ReportedStatus { status, at, again }) = reported.as_mut() else {
            return StatusComparison::Same;
        };
        if !observed.shadowed && observed.status == Some(status) {
            // If it goes missing later, that is a new loss: its first resend is soon again.
            *again = false;
            return StatusComparison::Same;
        }
        let remove_first = observed.generation.is_some_and(|generation| generation > self.generation);
        let wrong = remove_first || observed.status.is_none();
        let resend_after = if wrong && !*again { self.first_resend_after } else { self.resend_after };
        if at.elapsed() >= resend_after {
            StatusComparison::Missing { remove_first }
        } else {
            StatusComparison::Waits
        }
    }

    /// Sends the last status again.
    pub(super) fn resend(&self, remove_first: bool) {
        let (connector, task, generation) = (&*self.id.connector, self.id.task, self.generation);
        let mut reported = self.reported.lock();
        let Some(reported) = reported.as_mut() else { return };
        (reported.at, reported.again) = (Instant::now(), true);
        if remove_first {
            tracing::warn!(
                connector,
                task,
                generation,
                "removed a status with a generation above that of the partition's owner"
            );
            self.sink.put_after_removal(&self.id, reported.status.clone());
        } else {
            tracing::debug!(connector, task, generation, "resent the status");
            self.sink.put(&self.id, reported.status.clone());
        }
    }

    fn is_replaced(&self) -> bool {
        self.sink.generation(&self.id).is_some_and(|generation| generation > self.generation)
    }

    /// Ends the reports. `reported_end`: the topic knows that the instance has ended; otherwise this worker remembers that its
    /// last status there is outdated.
    pub(super) fn close(&self, reported_end: bool) {
        match self.reported.lock().take() {
            Some(reported) if !reported_end => self.handle.remove_unreported(&self.id, &reported.status),
            _ => self.handle.remove(&self.id),
        }
    }

    pub(super) fn start_attempted(&self) {
        self.handle.start_attempted(&self.id);
    }

    pub(super) fn start_succeeded(&self) {
        self.handle.start_succeeded(&self.id);
    }

    pub(super) fn start_failed(&self) {
        self.handle.start_failed(&self.id);
    }
}

/// The status topic.
pub(super) struct StatusTopic {
    pub(super) writer: StatusWriter,
    pub(super) statuses: Table<Statuses>,
}

impl StatusSink for StatusTopic {
    fn put(&self, id: &InstanceId, status: Status) {
        self.writer.put(&id.connector, id.task, &status);
    }

    fn put_after_removal(&self, id: &InstanceId, status: Status) {
        self.writer.put_after_removal(&id.connector, id.task, &status);
    }

    fn generation(&self, id: &InstanceId) -> Option<i64> {
        self.statuses.read(|statuses| statuses.generation(&id.connector, id.task))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use tokio::sync::mpsc;

    use super::*;

    /// Forwards each status, after a removal where one is asked for, and reports a fixed highest generation.
    pub(in crate::connect::supervisor) struct RecordingSink {
        pub(in crate::connect::supervisor) heard: mpsc::UnboundedSender<Status>,
        pub(in crate::connect::supervisor) generation: Option<i64>,
    }

    impl StatusSink for RecordingSink {
        fn put(&self, _: &InstanceId, status: Status) {
            self.heard.send(status).ok();
        }

        fn put_after_removal(&self, id: &InstanceId, status: Status) {
            let removal = Status { state: RunState::Unassigned, worker_id: String::new(), ..status.clone() };
            self.put(id, removal);
            self.put(id, status);
        }

        fn generation(&self, _: &InstanceId) -> Option<i64> {
            self.generation
        }
    }

    /// A reporter of generation 5, and its reports. The sink says that the topic has seen generation `seen`.
    pub(in crate::connect::supervisor) fn reporter(
        seen: Option<i64>,
    ) -> (StatusReporter, SupervisorHandle, mpsc::UnboundedReceiver<Status>) {
        let (heard, reported) = mpsc::unbounded_channel();
        let id = InstanceId { connector: "c".into(), task: Some(0) };
        let handle = SupervisorHandle::default();
        let sink = Arc::new(RecordingSink { heard, generation: seen });
        let mut reporter = StatusReporter::new(id, 5, "worker:8083".into(), sink, handle.clone());
        (reporter.resend_after, reporter.first_resend_after) = (Duration::ZERO, Duration::ZERO);
        (reporter, handle, reported)
    }

    #[test]
    fn unassigned_is_not_reported_after_a_newer_owner() {
        for (seen, is_reported) in [(None, true), (Some(4), true), (Some(5), true), (Some(6), false)] {
            let (reporter, _, mut reported) = reporter(seen);

            reporter.report_unassigned();

            assert_eq!(reported.try_recv().is_ok(), is_reported, "{seen:?}");
        }
    }

    fn observed(status: Option<&Status>, generation: Option<i64>, shadowed: bool) -> ObservedStatus<'_> {
        ObservedStatus { status, generation, shadowed }
    }

    const MISSING: StatusComparison = StatusComparison::Missing { remove_first: false };

    #[test]
    fn missing_status_is_resent() {
        let (reporter, _, mut reported) = reporter(Some(5));
        assert_eq!(
            reporter.compare(observed(None, None, false)),
            StatusComparison::Same,
            "nothing has been reported"
        );
        reporter.report(RunState::Failed, Some("why".into()));
        let status = reported.try_recv().unwrap();
        let other = Status { state: RunState::Running, ..status.clone() };

        assert_eq!(reporter.compare(observed(Some(&status), Some(5), false)), StatusComparison::Same);
        assert_eq!(reporter.compare(observed(None, Some(5), false)), MISSING);
        assert_eq!(reporter.compare(observed(Some(&other), Some(4), false)), MISSING);
        assert_eq!(
            reporter.compare(observed(Some(&status), Some(5), true)),
            MISSING,
            "an ignored record is last"
        );
        reporter.resend(false);

        assert_eq!(reported.try_recv().unwrap(), status);
        reporter.close(true);
        reporter.resend(false);
        assert!(reported.try_recv().is_err(), "the reporter is closed");
    }

    #[test]
    fn invalid_generation_is_removed_before_the_resend() {
        let (reporter, _, mut reported) = reporter(Some(6));
        reporter.report(RunState::Running, None);
        let status = reported.try_recv().unwrap();
        let foreign = Status { generation: 6, worker_id: "other:1".into(), ..status.clone() };

        let found = reporter.compare(observed(Some(&foreign), Some(6), false));
        reporter.resend(true);

        assert_eq!(found, StatusComparison::Missing { remove_first: true });
        assert_eq!(reported.try_recv().unwrap().worker_id, "", "the removal");
        assert_eq!(reported.try_recv().unwrap(), status);
    }

    #[test]
    fn missing_status_is_resent_sooner_but_only_once() {
        let (mut reporter, _, mut reported) = reporter(Some(5));
        (reporter.resend_after, reporter.first_resend_after) = (Duration::from_secs(3600), Duration::ZERO);
        reporter.report(RunState::Running, None);
        let older = Status { generation: 4, ..reported.try_recv().unwrap() };

        assert_eq!(reporter.compare(observed(Some(&older), Some(4), false)), StatusComparison::Waits);
        assert_eq!(reporter.compare(observed(None, Some(5), false)), MISSING);
        reporter.resend(false);

        assert_eq!(
            reporter.compare(observed(None, Some(5), false)),
            StatusComparison::Waits,
            "it was just reported again"
        );
        let back = reported.try_recv().unwrap();
        assert_eq!(reporter.compare(observed(Some(&back), Some(5), false)), StatusComparison::Same);
        assert_eq!(
            reporter.compare(observed(None, Some(5), false)),
            MISSING,
            "observed once, it may be lost again"
        );
    }

    #[test]
    fn unreported_end_is_remembered_by_the_last_status() {
        for (reported_end, remembered) in [(false, true), (true, false)] {
            let (reporter, handle, mut reported) = reporter(Some(5));
            reporter.report(RunState::Running, None);
            let status = reported.try_recv().unwrap();

            reporter.close(reported_end);

            assert_eq!(handle.ended("c", Some(0), &status), remembered);
            assert!(handle.running().is_empty());
        }
    }
}
