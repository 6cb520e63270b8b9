//! The thread of one shard producer, which runs its blocking calls one after the other.
//!
//! The thread ends when the handle is dropped, unless a call hangs. The client is then closed by the thread that polls it, which
//! may take until the end of its poll ([`PolledProducer`]).

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use rdkafka::{
    error::{KafkaError, RDKafkaErrorCode as Code},
    producer::Producer as _,
    util::Timeout,
};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use base::failpoint;
use model::EncodedRecord;

use super::{CommitHook, CommittedBatch, TransactionOptions, delivery_reports::DeliveryReports};
use crate::{
    Error, Kafka, Persisted,
    client::{Settings, start_thread},
    context::ClientCallbacks,
    error::KafkaCause,
    poll_thread::PolledProducer,
    producer::base_record,
    role::ClientRole,
};

/// How long to wait for reports beyond the transaction timeout, at which librdkafka drops records by itself.
const REPORT_MARGIN: Duration = Duration::from_secs(10);
/// Time limit of an abort.
const ABORT_LIMIT: Duration = Duration::from_secs(30);
/// How long to wait, after an abort, for the report of the record that caused it.
const CAUSE_LIMIT: Duration = Duration::from_secs(1);
/// How long to wait until librdkafka counts the last report as delivered.
const LAST_REPORT_LIMIT: Duration = Duration::from_millis(20);

/// How a batch ended.
pub(super) enum BatchOutcome {
    /// Committed or aborted, as its purpose says. The positions of an aborted batch are empty.
    Done(CommittedBatch),
    /// Nothing is visible and the producer is usable, unless the broker refused a record: then the thread has ended.
    Aborted(Error),
    /// Another owner has taken the id.
    Fenced(Error),
    /// The producer is unusable; whether the batch is visible is unknown.
    Broken(Error),
}

/// The handle of a running, initialized producer.
pub(super) struct ProducerThread {
    batches: mpsc::Sender<QueuedBatch>,
    /// Connections its client has lost.
    disconnects: Arc<AtomicU64>,
    /// How many of them have been handled.
    handled_disconnects: u64,
}

/// How to end a batch's transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BatchPurpose {
    /// Commit it.
    Commit,
    /// Commit it, and with it the hanging transaction in its partitions.
    CommitHanging,
    /// Abort it, and with it any hanging transaction in its partitions.
    AbortHanging,
}

struct QueuedBatch {
    records: Vec<EncodedRecord>,
    purpose: BatchPurpose,
    answer: oneshot::Sender<BatchOutcome>,
}

impl ProducerThread {
    /// Starts the thread and initializes the transactional id. The turn ends with the initialization, even if the caller has
    /// stopped waiting.
    pub(super) async fn start(
        kafka: &Kafka,
        options: &TransactionOptions,
        transactional_id: &Arc<str>,
        turn: OwnedSemaphorePermit,
    ) -> Result<Self, Error> {
        let (batches, inbox) = mpsc::channel();
        let role = ClientRole::Transactional {
            id: Arc::clone(transactional_id),
            queue_bytes: options.queue_bytes,
            timeout: options.transaction_timeout,
        };
        let settings = Settings::new(kafka, &role)?;
        let (options, id) = (options.clone(), Arc::clone(transactional_id));
        let run = move |started: oneshot::Sender<Result<Arc<AtomicU64>, Error>>| {
            let shard = BatchWriter::init(&settings, &options, id);
            drop(turn);
            match shard {
                Err(error) => drop(started.send(Err(error))),
                Ok(shard) => {
                    if started.send(Ok(shard.producer.context().disconnects())).is_ok() {
                        shard.run(&inbox);
                    }
                }
            }
        };
        let action = format!("initialize transactional id {transactional_id}");
        let disconnects = start_thread("kafka-shard", &action, run).await??;
        let handled_disconnects = disconnects.load(Ordering::Acquire);
        Ok(Self { batches, disconnects, handled_disconnects })
    }

    /// How many connections were lost so far, if some were not handled yet.
    pub(super) fn new_disconnects(&self) -> Option<u64> {
        let disconnects = self.disconnects.load(Ordering::Acquire);
        (disconnects != self.handled_disconnects).then_some(disconnects)
    }

    /// Marks this many lost connections as handled.
    pub(super) fn mark_handled(&mut self, disconnects: u64) {
        self.handled_disconnects = disconnects;
    }

    /// Queues a batch. The receiver fails if the thread has ended.
    pub(super) fn hand_over(
        &self,
        records: Vec<EncodedRecord>,
        purpose: BatchPurpose,
    ) -> oneshot::Receiver<BatchOutcome> {
        let (answer, answered) = oneshot::channel();
        self.batches.send(QueuedBatch { records, purpose, answer }).ok();
        answered
    }
}

struct BatchWriter {
    producer: Arc<PolledProducer<ClientCallbacks<DeliveryReports>>>,
    transactional_id: Arc<str>,
    report_limit: Duration,
    before_commit: Option<CommitHook>,
}

impl BatchWriter {
    fn init(
        settings: &Settings,
        options: &TransactionOptions,
        transactional_id: Arc<str>,
    ) -> Result<Self, Error> {
        let shard = Self {
            producer: settings.create(DeliveryReports::default())?,
            transactional_id,
            report_limit: options.transaction_timeout + REPORT_MARGIN,
            before_commit: options.before_commit.clone(),
        };
        let initialized = shard.producer.init_transactions(options.init_limit);
        initialized.map_err(|error| match shard.error("initialize", error.clone()) {
            Error::Request { action, .. } => shard.producer.context().failed(action, error),
            fenced => fenced,
        })?;
        Ok(shard)
    }

    fn reports(&self) -> &DeliveryReports {
        &self.producer.context().own
    }

    fn run(&self, inbox: &mpsc::Receiver<QueuedBatch>) {
        while let Ok(QueuedBatch { records, purpose, answer }) = inbox.recv() {
            let ended = self.write(&records, purpose);
            let is_over = match ended {
                BatchOutcome::Done(_) => false,
                // After a refused record librdkafka continues its sequence numbers, and fails on the gap for up to the
                // transaction timeout: do not reuse this client.
                BatchOutcome::Aborted(_) => self.reports().has_failures(),
                BatchOutcome::Fenced(_) | BatchOutcome::Broken(_) => true,
            };
            // If the caller has stopped waiting, the next commit treats the outcome as unknown.
            drop(answer.send(ended));
            if is_over {
                return;
            }
        }
    }

    fn write(&self, records: &[EncodedRecord], purpose: BatchPurpose) -> BatchOutcome {
        let batch = self.reports().begin();
        if let Err(error) = self.producer.begin_transaction() {
            return self.end(self.error("begin a transaction", error));
        }
        if let Err(error) = self.send(batch, records).and_then(|()| self.drain()) {
            return self.abort(error);
        }
        // The records are in the log now; without them the partitions would get no abort marker.
        if purpose == BatchPurpose::AbortHanging {
            return match self.producer.abort_transaction(ABORT_LIMIT) {
                Ok(()) => BatchOutcome::Done(CommittedBatch::default()),
                Err(error) => self.end(self.error("abort", error)),
            };
        }
        if let Some(hook) = &self.before_commit {
            hook();
        }
        self.fail_point("sent");
        self.await_last_report();
        // No timeout, because the outcome of a commit that timed out is unknown; the caller's watchdog bounds it.
        match self.producer.commit_transaction(Timeout::Never) {
            Ok(()) => {
                self.fail_point("committed");
                BatchOutcome::Done(self.reports().committed())
            }
            Err(error) => {
                let abortable = KafkaCause::from(error.clone()).requires_abort();
                let error = self.error("commit", error);
                if abortable { self.abort(error) } else { self.end(error) }
            }
        }
    }

    /// The name contains the transactional id, so that a test can choose one of the process's producers.
    fn fail_point(&self, step: &str) {
        failpoint::reach(format_args!("transaction.{}.{step}", self.transactional_id));
    }

    /// Queues all records, waiting for reports whenever the queue is full.
    fn send(&self, batch: usize, records: &[EncodedRecord]) -> Result<(), Error> {
        let end = Instant::now() + self.report_limit;
        for record in records {
            loop {
                self.reports().expect_one();
                let Err((error, _)) = self.producer.send(base_record(record, batch)) else { break };
                self.reports().expect_one_less();
                let full = error.rdkafka_error_code() == Some(Code::QueueFull);
                if !full || Instant::now() >= end || !self.reports().wait_for_one(end)? {
                    return Err(Error::delivery(&record.topic, record.partition, Persisted::No, error));
                }
            }
        }
        Ok(())
    }

    /// Waits until every record is reported, and fails with the first that was not acknowledged.
    fn drain(&self) -> Result<(), Error> {
        if self.reports().wait_for_all(Instant::now() + self.report_limit)? {
            return Ok(());
        }
        let action = format!("publish a batch with transactional id {}", self.transactional_id);
        Err(Error::Deadline { action, limit: self.report_limit })
    }

    /// Waits until librdkafka counts the last record as delivered, shortly after its report: a commit that comes too early would
    /// sleep 100 ms.
    fn await_last_report(&self) {
        let end = Instant::now() + LAST_REPORT_LIMIT;
        while self.producer.in_flight_count() > 0 && Instant::now() < end {
            thread::yield_now();
        }
    }

    fn abort(&self, cause: Error) -> BatchOutcome {
        // A fatal client cannot abort; and records of a fenced owner fail with various codes.
        if let Some(fatal) = self.fatal() {
            return self.end(fatal);
        }
        match self.producer.abort_transaction(ABORT_LIMIT) {
            // When one record fails, librdkafka purges the rest of the batch and may report the rest first. The error must
            // be that of the record, or a batch that can never succeed would be retried forever.
            Ok(()) if cause.is_purged() => BatchOutcome::Aborted(
                self.reports().first_failure(Instant::now() + CAUSE_LIMIT).unwrap_or(cause),
            ),
            Ok(()) => BatchOutcome::Aborted(cause),
            Err(error) => self.end(self.error("abort", error)),
        }
    }

    fn end(&self, error: Error) -> BatchOutcome {
        let error = self.fatal().unwrap_or(error);
        if matches!(error, Error::Fenced { .. }) {
            BatchOutcome::Fenced(error)
        } else {
            BatchOutcome::Broken(error)
        }
    }

    /// The client's fatal error, which takes precedence over the error of a single call.
    fn fatal(&self) -> Option<Error> {
        let (code, reason) = self.producer.client().fatal_error()?;
        Some(self.error(&format!("continue ({reason})"), KafkaError::Global(code)))
    }

    fn error(&self, what: &str, error: KafkaError) -> Error {
        let source = KafkaCause::from(error);
        let transactional_id = Arc::clone(&self.transactional_id);
        if source.is_fenced() {
            return Error::Fenced { transactional_id, source };
        }
        Error::Request { action: format!("{what} with transactional id {transactional_id}"), source }
    }
}
