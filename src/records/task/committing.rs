//! Writing the batches of one shard.

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

/// Waits between tries to commit what the broker refused for now.
const COMMIT_RETRY_BACKOFF: BackoffPolicy = BackoffPolicy {
    first: Duration::from_millis(50),
    longest: Duration::from_secs(5),
    total: Some(Duration::from_secs(120)),
};

/// A batch that has ended.
pub(super) type Ended = (Commit, Result<Written, Failure>);

/// Writes the batches of a shard, whatever becomes of its producer.
pub(super) struct Commit {
    pub(super) shared: Arc<Shared>,
    pub(super) shard: i32,
    pub(super) writer: ShardWriter,
    /// The last batch that was committed.
    pub(super) last: Option<String>,
    pub(super) moments: Moments,
}

/// What has been committed.
#[derive(Default)]
pub(super) struct Written {
    pub(super) batches: Vec<Batch>,
    pub(super) fences: Vec<(Key, Stamp)>,
    /// The offset behind the fences.
    pub(super) behind: Option<i64>,
    /// State that must not become visible before the refusals of this batch are counted: the next batch has both.
    pub(super) held: Held,
    pub(super) took: Duration,
    /// The store on this disk has the fences.
    pub(super) is_kept: bool,
}

/// State of lists from a batch with a refused entry. A page must not become visible as read before the count that speaks against
/// it. Certificates move with the state that removes the marks of their lists.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// An entry of the batch was refused.
    is_needed: bool,
    /// Marks of pages, counts and progress.
    state: Vec<(Key, Option<Bytes>)>,
    /// Certificates, each with when its run was asked for.
    certificates: Vec<(Certificate, i64)>,
}

impl Held {
    /// Holds back what a batch says of lists, once an entry was refused.
    pub(super) fn hold_back(&mut self, batch: &mut Batch) {
        self.is_needed |= batch.entries.iter().any(|entry| entry.is_refused);
        if self.is_needed {
            self.state.append(&mut batch.state);
            self.certificates.append(&mut batch.certificates);
        }
    }

    /// Adds what was held back to the next batch, before what that says by itself.
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

    /// Commits all of it, in parts where the broker refuses a part.
    async fn try_write(&mut self, batch: Batch) -> Result<Written, Failure> {
        const ACTION: &str = "commit the batch of a shard";
        let begun = Instant::now();
        let mut written = Written::default();
        let mut parts = VecDeque::from([batch]);
        let mut backoff =
            Backoff::new(COMMIT_RETRY_BACKOFF, u64::from(murmur2(self.shard.to_string().as_bytes())));
        while let Some(mut batch) = parts.pop_front() {
            if self.shared.task.cancel.is_cancelled() && !backoff.is_fresh() {
                return Err(Failure::passing("Stopped", "the shard is let go of before its batch was taken"));
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
                    let topic = self.shared.preparer.topic_name(Topic::Fences);
                    written.behind = committed.next_offset(&topic, self.shard).or(written.behind);
                    self.done(id, batch, encoded.fences, &mut written);
                    // Each part that the broker refuses may cost a wait: they are not waits for the same thing.
                    backoff.reset();
                    continue;
                }
                Err(publish::Error::Transaction { source, .. }) => *source,
                Err(error) => return Err(unwritten(ACTION, error)),
            };
            match source {
                kafka::CommitError::Rebuilt { source } => {
                    // What the producer before has left hanging must not become visible with what is written next.
                    self.shared.starts(self.shard, self.writer.producer()).await?;
                    // Every batch says which it is, so that its outcome can be read.
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
                        let message = format!("somebody else has written to shard {}", self.shard);
                        return Err(Failure::passing("ShardTaken", message));
                    }
                }
                kafka::CommitError::Aborted { source }
                    if source.refuses_record() && batch.entries.iter().any(Entry::may_be_refused) =>
                {
                    let causes = vec![ErrorChain(&source).to_string()];
                    let message = "Kafka does not take the record".to_owned();
                    let class = "kafka::Error::RecordRefused";
                    let failure = publish::Failure { stage: PublishStage::Produce, class, message, causes };
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

/// Each entry for itself, so that the one is found that is refused; a single one is it.
fn apart(mut batch: Batch, failure: publish::Failure) -> Vec<Batch> {
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
    // Offsets and pages move once all that follows from them is there.
    if let Some(last) = parts.last_mut() {
        let (entries, first) = (std::mem::take(&mut last.entries), std::mem::take(&mut last.first));
        *last = Batch { entries, first, ..batch };
    }
    parts
}
