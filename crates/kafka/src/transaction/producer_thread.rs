//! The thread of one shard producer, where its blocking calls run one after the other.
//!
//! The thread ends, and its client with it, when the handle is dropped and no call hangs.

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

use super::{CommitHook, CommittedBatch, Options, delivery_reports::DeliveryReports};
use crate::{
    Error, Kafka, Persisted,
    client::{Settings, start_thread},
    context::Context,
    error::KafkaCause,
    poll_thread::PolledProducer,
    producer::base_record,
    role::ClientRole,
};

/// The most we wait for reports beyond the transaction's timeout, at which librdkafka gives records up by itself.
const REPORT_MARGIN: Duration = Duration::from_secs(10);
/// The most an abort may take.
const ABORT_LIMIT: Duration = Duration::from_secs(30);
/// The most we wait, once a batch is aborted, for the report of the record that failed it.
const CAUSE_LIMIT: Duration = Duration::from_secs(1);
/// The most we wait for the poll thread to let go of the last report.
const LAST_REPORT_LIMIT: Duration = Duration::from_millis(20);

/// How a batch ended.
pub(super) enum BatchOutcome {
    /// As its purpose says. Nothing is said of the records of a batch that was to be aborted.
    Done(CommittedBatch),
    /// Nothing is visible and the producer goes on, unless a record was sent and refused: then the thread has ended.
    Aborted(Error),
    /// Another owner has come.
    Fenced(Error),
    /// The producer is unusable; whether the batch is visible is unknown.
    Broken(Error),
}

/// The handle of a running, initialized worker.
pub(super) struct ProducerThread {
    batches: mpsc::Sender<QueuedBatch>,
    /// Connections that its client has lost.
    disconnects: Arc<AtomicU64>,
    /// How many of those have done no harm.
    handled_disconnects: u64,
}

/// What a batch is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BatchPurpose {
    /// To be seen.
    Commit,
    /// To be seen, and with it what stands open in its partitions.
    CommitHanging,
    /// To be aborted, and with it what stands open in its partitions.
    AbortHanging,
}

struct QueuedBatch {
    records: Vec<EncodedRecord>,
    purpose: BatchPurpose,
    answer: oneshot::Sender<BatchOutcome>,
}

impl ProducerThread {
    /// Starts the thread and initializes the transactional id. The turn ends with the initialization, also when nobody
    /// waits for it any more.
    pub(super) async fn start(
        kafka: &Kafka,
        options: &Options,
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

    /// How many connections were lost so far, if there is one of which nobody knows yet what it has done.
    pub(super) fn new_disconnects(&self) -> Option<u64> {
        let disconnects = self.disconnects.load(Ordering::Acquire);
        (disconnects != self.handled_disconnects).then_some(disconnects)
    }

    /// So many have done no harm.
    pub(super) fn mark_handled(&mut self, disconnects: u64) {
        self.handled_disconnects = disconnects;
    }

    /// Hands a batch over. When the thread has ended, there is no answer.
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
    producer: Arc<PolledProducer<Context<DeliveryReports>>>,
    transactional_id: Arc<str>,
    report_limit: Duration,
    before_commit: Option<CommitHook>,
}

impl BatchWriter {
    fn init(settings: &Settings, options: &Options, transactional_id: Arc<str>) -> Result<Self, Error> {
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
                // librdkafka counts on from a record that the broker refused, and stumbles over the gap for up to the
                // transaction's timeout: not with this client again.
                BatchOutcome::Aborted(_) => self.reports().has_failures(),
                BatchOutcome::Fenced(_) | BatchOutcome::Broken(_) => true,
            };
            // Nobody waits any more: the next commit finds the batch open and takes it as unknown.
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
        // The records are in the log by now, without which there would be nothing to abort there.
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
        // For ever, because a commit that timed out is neither: the caller's watchdog bounds it.
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

    /// The name has the transactional id, because a process has many of these producers and a test chooses one.
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

    /// The report of the last record reaches us a moment before librdkafka counts it as done; a commit that still finds it
    /// open would sleep a tenth of a second.
    fn await_last_report(&self) {
        let end = Instant::now() + LAST_REPORT_LIMIT;
        while self.producer.in_flight_count() > 0 && Instant::now() < end {
            thread::yield_now();
        }
    }

    fn abort(&self, cause: Error) -> BatchOutcome {
        // A fatal client cannot abort; and a record fails with all sorts of codes when the owner is fenced.
        if let Some(fatal) = self.fatal() {
            return self.end(fatal);
        }
        match self.producer.abort_transaction(ABORT_LIMIT) {
            // librdkafka gives up the rest of a batch when one record fails, and may report the rest first: the verdict
            // must be about the record, or a batch that can never pass would be tried for ever.
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

    /// The client's own verdict about itself, which outranks what a single call said.
    fn fatal(&self) -> Option<Error> {
        let (code, reason) = self.producer.client().fatal_error()?;
        Some(self.error(&format!("go on ({reason})"), KafkaError::Global(code)))
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
