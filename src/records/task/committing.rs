//! Commits the batches of one shard.
//!
//! A transient error is retried. After a rebuild of the producer, the batch id in the state topic says whether the transaction was
//! committed. If Kafka rejects a record, the batch is split into one transaction per entry, and the rejected entry becomes a dead letter.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::time::{Instant, sleep};

use base::retry::{Backoff, BackoffPolicy, ErrorChain, Retry};
use kafka::{murmur2, write_id};
use model::{Certificate, Key, Stamp, Topic};

use super::{Shared, encoding::Moments, now, taking::unwritten};
use crate::{
    plugin::Failure,
    publish::{self, PublishStage, ShardWriter},
    records::schedule::{Batch, Entry},
};

/// Backoff after an aborted transaction that may be retried.
const COMMIT_RETRY_BACKOFF: BackoffPolicy = BackoffPolicy {
    first: Duration::from_millis(50),
    longest: Duration::from_secs(5),
    total: Some(Duration::from_secs(120)),
};

/// The outcome of a batch, and the committer for the next one.
pub(super) type Ended = (Commit, Result<Written, Failure>);

/// Commits the batches of a shard, one at a time, also across rebuilds of its producer.
pub(super) struct Commit {
    pub(super) shared: Arc<Shared>,
    pub(super) shard: i32,
    pub(super) writer: ShardWriter,
    /// Id of the last committed batch.
    pub(super) last: Option<String>,
    pub(super) moments: Moments,
}

/// A committed batch, in parts if it was split.
#[derive(Default)]
pub(super) struct Written {
    pub(super) batches: Vec<Batch>,
    pub(super) fences: Vec<(Key, Stamp)>,
    /// Next offset of the fences topic after this batch.
    pub(super) behind: Option<i64>,
    /// State that must not become visible before the rejections of this batch are counted: the next batch writes both.
    pub(super) held: Held,
    pub(super) took: Duration,
    /// Whether the fence entries are stored on this disk.
    pub(super) is_kept: bool,
}

/// State of lists from a batch with a rejected entry. A page must not become visible as read before the count of its unusable rows.
/// Certificates move with the state that removes the page marks of their lists.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Whether an entry of the batch was rejected.
    is_needed: bool,
    /// Page marks, counts and progress.
    state: Vec<(Key, Option<Bytes>)>,
    /// Certificates, each with the time at which its run was requested.
    certificates: Vec<(Certificate, i64)>,
}

impl Held {
    /// Moves the state of lists out of the batch if an entry of it, or of an earlier part, was rejected.
    pub(super) fn hold_back(&mut self, batch: &mut Batch) {
        self.is_needed |= batch.entries.iter().any(|entry| entry.is_refused);
        if self.is_needed {
            self.state.append(&mut batch.state);
            self.certificates.append(&mut batch.certificates);
        }
    }

    /// Adds the held state to the next batch, before that batch's own.
    pub(super) fn add_to(&mut self, batch: &mut Batch) {
        let Self { state, certificates, .. } = std::mem::take(self);
        batch.state.splice(..0, state);
        batch.certificates.splice(..0, certificates);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.state.is_empty() && self.certificates.is_empty()
    }
}

impl Commit {
    pub(super) async fn write(mut self, batch: Batch) -> Ended {
        let written = self.try_write(batch).await;
        (self, written)
    }

    /// Commits the whole batch, in parts if Kafka rejects a record of it.
    async fn try_write(&mut self, batch: Batch) -> Result<Written, Failure> {
        const ACTION: &str = "commit the batch of a shard";
        let begun = Instant::now();
        let mut written = Written::default();
        let mut parts = VecDeque::from([batch]);
        let mut backoff =
            Backoff::new(COMMIT_RETRY_BACKOFF, u64::from(murmur2(self.shard.to_string().as_bytes())));
        while let Some(mut batch) = parts.pop_front() {
            if self.shared.task.cancel.is_cancelled() && !backoff.is_fresh() {
                return Err(Failure::passing("Stopped", "the shard was released before its batch began"));
            }
            let id = String::from_utf8_lossy(&write_id()).into_owned();
            let encoded = self.shared.encode(
                self.shard,
                &id,
                &mut batch,
                (&mut self.moments, &mut written.held),
                now(),
            );
            let encoded = encoded.map_err(|error| unwritten(ACTION, error))?;
            let source = match self.writer.commit(encoded.batch).await {
                Ok(committed) => {
                    let topic = self.shared.output.preparer.topic_name(Topic::Fences);
                    written.behind = committed.next_offset(&topic, self.shard).or(written.behind);
                    self.done(id, batch, encoded.fences, &mut written);
                    // Waits for different parts do not add up.
                    backoff.reset();
                    continue;
                }
                Err(publish::Error::Transaction { source, .. }) => *source,
                Err(error) => return Err(unwritten(ACTION, error)),
            };
            match source {
                kafka::CommitError::Rebuilt { source } => {
                    // A transaction that the previous producer left open must not become visible with the next one.
                    self.shared.starts(self.shard, self.writer.producer()).await?;
                    // Every batch writes its id, from which an unknown outcome is resolved.
                    let found = self.shared.known(self.shard).await?.batch;
                    if found.as_deref() == Some(&id) {
                        self.done(id, batch, encoded.fences, &mut written);
                    } else if found == self.last {
                        let Some(wait) = backoff.next_wait(Retry::Later) else {
                            return Err(Failure::transaction(ACTION, kafka::CommitError::Rebuilt { source }));
                        };
                        sleep(wait).await;
                        tracing::warn!(shard = self.shard, error = %ErrorChain(&source), "a batch is committed again");
                        parts.push_front(batch);
                    } else {
                        let message = format!("another writer has written to shard {}", self.shard);
                        return Err(Failure::passing("ShardTaken", message));
                    }
                }
                kafka::CommitError::Aborted { source }
                    if source.refuses_record() && batch.entries.iter().any(Entry::may_be_refused) =>
                {
                    let causes = vec![ErrorChain(&source).to_string()];
                    let message = "Kafka does not take the record".to_owned();
                    let class = "kafka::Error::RecordRefused";
                    let failure =
                        publish::PublishFailure { stage: PublishStage::Produce, class, message, causes };
                    for part in apart(batch, failure).into_iter().rev() {
                        parts.push_front(part);
                    }
                }
                kafka::CommitError::Aborted { source } => {
                    let Some(wait) = backoff.next_wait(source.retry()) else {
                        return Err(Failure::transaction(ACTION, kafka::CommitError::Aborted { source }));
                    };
                    tracing::warn!(shard = self.shard, error = %ErrorChain(&source), ?wait, "a batch was not taken");
                    sleep(wait).await;
                    parts.push_front(batch);
                }
                failure => return Err(Failure::transaction(ACTION, failure)),
            }
        }
        written.took = begun.elapsed();
        Ok(written)
    }

    fn done(&mut self, id: String, batch: Batch, fences: Vec<(Key, Stamp)>, written: &mut Written) {
        self.last = Some(id);
        written.batches.push(batch);
        written.fences.extend(fences);
    }
}

/// Splits a batch into one part per entry, to find the rejected one. A batch of a single entry has found it: the entry is replaced.
fn apart(mut batch: Batch, failure: publish::PublishFailure) -> Vec<Batch> {
    if batch.entries.len() <= 1 {
        batch.entries = batch.entries.into_iter().map(|entry| entry.refused(failure.clone())).collect();
        return vec![batch];
    }
    let (entries, first) = (std::mem::take(&mut batch.entries), std::mem::take(&mut batch.first));
    let mut parts: Vec<Batch> =
        entries.into_iter().map(|entry| Batch { entries: vec![entry], ..Batch::default() }).collect();
    if let Some(part) = parts.first_mut() {
        part.first = first;
    }
    // Offsets, page marks and certificates must not become visible before the entries that they depend on.
    if let Some(last) = parts.last_mut() {
        let (entries, first) = (std::mem::take(&mut last.entries), std::mem::take(&mut last.first));
        *last = Batch { entries, first, ..batch };
    }
    parts
}
