//! Delivery reports of a batch's records, and waiting for them.

use std::{mem, time::Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rdkafka::{
    Message as _,
    producer::{DeliveryResult, ProducerContext},
};

use super::CommittedBatch;
use crate::{Error, context::ClientCallbacks, producer::outcome};

/// Reports of the current batch.
#[derive(Default)]
pub(super) struct DeliveryReports {
    state: Mutex<ReportState>,
    changed: Condvar,
}

#[derive(Default)]
struct ReportState {
    /// Number of the batch; each record carries its batch's number.
    batch: usize,
    open: usize,
    /// A record was sent and refused.
    failures: bool,
    failed: Option<Error>,
    /// The first record purged because another one failed.
    purged: Option<Error>,
    committed: CommittedBatch,
}

impl DeliveryReports {
    /// Starts a new batch and returns its number.
    pub(super) fn begin(&self) -> usize {
        let mut state = self.state.lock();
        let batch = state.batch.wrapping_add(1);
        *state = ReportState { batch, ..ReportState::default() };
        batch
    }

    pub(super) fn expect_one(&self) {
        self.state.lock().open += 1;
    }

    pub(super) fn expect_one_less(&self) {
        self.state.lock().open -= 1;
    }

    fn record(&self, batch: usize, result: Result<(), Error>) {
        let mut state = self.state.lock();
        // Purged records of an aborted batch may be reported after the next one has started; ignore them.
        if batch != state.batch {
            return;
        }
        state.open = state.open.saturating_sub(1);
        if let Err(error) = result {
            state.failures |= !error.is_purged();
            let place = if error.is_purged() { &mut state.purged } else { &mut state.failed };
            place.get_or_insert(error);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Notes a record's offset. Called before `record`, because `committed` may be read right after that.
    fn note_offset(&self, batch: usize, topic: &str, partition: i32, offset: i64) {
        let mut state = self.state.lock();
        if batch == state.batch {
            state.committed.note_offset(topic, partition, offset);
        }
    }

    /// The positions of the batch's records.
    pub(super) fn committed(&self) -> CommittedBatch {
        mem::take(&mut self.state.lock().committed)
    }

    pub(super) fn has_failures(&self) -> bool {
        self.state.lock().failures
    }

    /// `false` if no report arrived in time.
    pub(super) fn wait_for_one(&self, end: Instant) -> Result<bool, Error> {
        let before = self.state.lock().open;
        self.wait(end, |state| state.open < before || before == 0)
    }

    pub(super) fn wait_for_all(&self, end: Instant) -> Result<bool, Error> {
        self.wait(end, |state| state.open == 0)
    }

    /// Waits for a condition, or for the failure of a record, which is returned as the error.
    fn wait(&self, end: Instant, wanted: impl Fn(&ReportState) -> bool) -> Result<bool, Error> {
        let mut state =
            self.wait_while(end, |state| state.failed.is_none() && state.purged.is_none() && !wanted(state));
        match state.failed.take().or_else(|| state.purged.take()) {
            Some(error) => Err(error),
            None => Ok(wanted(&state)),
        }
    }

    /// The failure that made librdkafka purge the rest, if it is reported in time.
    pub(super) fn first_failure(&self, end: Instant) -> Option<Error> {
        self.wait_while(end, |state| state.failed.is_none() && state.open > 0).failed.take()
    }

    fn wait_while(&self, end: Instant, waits: impl Fn(&ReportState) -> bool) -> MutexGuard<'_, ReportState> {
        let left = end.saturating_duration_since(Instant::now());
        let mut state = self.state.lock();
        self.changed.wait_while_for(&mut state, |state| waits(state), left);
        state
    }
}

impl ProducerContext for ClientCallbacks<DeliveryReports> {
    type DeliveryOpaque = usize;

    fn delivery(&self, report: &DeliveryResult<'_>, batch: usize) {
        if let Ok(message) = report {
            self.own.note_offset(batch, message.topic(), message.partition(), message.offset());
        }
        self.own.record(batch, outcome(report).map(drop));
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread, time::Duration};

    use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

    use super::*;
    use crate::Persisted;

    fn failure(topic: &str) -> Error {
        Error::Stopped { action: format!("publish to {topic}") }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(20)
    }

    #[test]
    fn batch_is_complete_when_every_record_is_reported() {
        let reports = DeliveryReports::default();
        let batch = reports.begin();
        reports.expect_one();
        reports.expect_one();

        reports.record(batch, Ok(()));
        assert!(!reports.wait_for_all(soon()).unwrap());

        reports.record(batch, Ok(()));
        assert!(reports.wait_for_all(soon()).unwrap());
    }

    #[test]
    fn first_failure_ends_the_wait() {
        let reports = DeliveryReports::default();
        let batch = reports.begin();
        (0..3).for_each(|_| reports.expect_one());

        reports.record(batch, Err(failure("first")));
        reports.record(batch, Err(failure("second")));

        let limit = Instant::now() + Duration::from_secs(10);
        let error = reports.wait_for_all(limit).unwrap_err();
        assert!(error.to_string().contains("first"), "{error}");
        assert!(Instant::now() < limit, "it waited for the third report");
    }

    #[test]
    fn failed_record_is_the_reason_though_purged_ones_come_first() {
        let reason = || KafkaError::MessageProduction(Code::PurgeQueue);
        let purged = || Error::delivery("given up", 0, Persisted::No, reason());
        let reports = DeliveryReports::default();
        let batch = reports.begin();
        (0..3).for_each(|_| reports.expect_one());
        reports.record(batch, Err(purged()));

        let first = reports.wait_for_all(soon()).unwrap_err();
        reports.record(batch, Err(purged()));
        reports.record(batch, Err(failure("the cause")));

        assert!(first.is_purged(), "{first}");
        let reason = reports.first_failure(soon()).unwrap();
        assert!(reason.to_string().contains("the cause"), "{reason}");
    }

    #[test]
    fn batch_knows_its_next_offset_in_each_partition() {
        let reports = DeliveryReports::default();
        let before = reports.begin();
        reports.note_offset(before, "records", 2, 70);
        let batch = reports.begin();

        reports.note_offset(before, "records", 2, 71);
        for (topic, partition, offset) in
            [("records", 0, 5), ("fences", 0, 9), ("records", 0, 4), ("records", 1, 0), ("state", 0, -1001)]
        {
            reports.note_offset(batch, topic, partition, offset);
        }
        let committed = reports.committed();

        for (topic, partition, next) in [
            ("records", 0, Some(6)),
            ("records", 1, Some(1)),
            ("fences", 0, Some(10)),
            ("records", 2, None),
            ("state", 0, None),
        ] {
            assert_eq!(committed.next_offset(topic, partition), next, "{topic} {partition}");
        }
    }

    #[test]
    fn report_from_another_thread_ends_the_wait() {
        let reports = Arc::new(DeliveryReports::default());
        let batch = reports.begin();
        reports.expect_one();
        let reporter = Arc::clone(&reports);

        let thread = thread::spawn(move || reporter.record(batch, Ok(())));
        let came = reports.wait_for_one(Instant::now() + Duration::from_secs(60)).unwrap();

        thread.join().unwrap();
        assert!(came);
    }

    #[test]
    fn late_reports_of_an_aborted_batch_are_ignored() {
        let reports = DeliveryReports::default();
        let aborted = reports.begin();
        reports.expect_one();
        reports.expect_one();
        reports.record(aborted, Err(failure("before")));

        let batch = reports.begin();
        reports.expect_one();
        reports.record(aborted, Err(failure("before, reported late")));

        assert!(!reports.wait_for_all(soon()).unwrap(), "its own record is still open");
        reports.record(batch, Ok(()));
        assert!(reports.wait_for_all(soon()).unwrap());
    }
}
