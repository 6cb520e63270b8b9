//! Following a compacted topic: read to the end once, then on and on.
//!
//! A task of its own reads all partitions from the earliest record. Until each has been at its end the records go into a
//! state nobody sees, which then takes the place of the one before; from there on every record goes into what is seen,
//! batch by batch as they come.
//!
//! - What is seen is always a whole: never a topic half read, neither at the start nor when it has to be read anew.
//! - A consumer that fails for good is replaced and the topic read anew from its start, aside, while the state of before
//!   is still seen. That includes an offset the broker no longer has: a topic that was created anew, or cut.
//! - The task ends when the last clone of the tail is dropped.
//!
//! On failure: a lost broker only delays, and [`Tail::silent_for`] tells; records that cannot be understood are left out.

mod follow;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, PoisonError, RwLock},
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, timeout},
};
use tokio_util::task::AbortOnDropHandle;

use kafka::{Kafka, OpenTransaction, Place, Received, ShardProducer, Start, Waits};

/// How often the broker is asked whether it is there.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// The most it may take to answer.
const ASK_LIMIT: Duration = Duration::from_secs(2);
/// After this long without a word something is wrong: one question asked and not answered, and some room.
const SILENCE: Duration = Duration::from_secs(5);

/// A transaction at least this old was not begun by a writer that is well and merely happened to be at work.
const OLD: Duration = Duration::from_secs(1);

/// What a topic's records add up to.
pub trait Apply: Default + Send + Sync + 'static {
    /// Takes one more record, in the order of its partition. A record that cannot be understood is logged once and left
    /// out; it never stops the tail.
    fn apply(&mut self, record: &Received);

    /// The state before the first record, for a topic that has to be read again.
    #[must_use]
    fn blank(&self) -> Self {
        Self::default()
    }
}

/// A topic that is followed (read committed). Cheap to clone.
pub struct Tail<S> {
    shared: Arc<Shared<S>>,
    task: Arc<AbortOnDropHandle<()>>,
}

impl<S> Clone for Tail<S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), task: Arc::clone(&self.task) }
    }
}

impl<S> fmt::Debug for Tail<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tail").field("topic", &self.shared.topic).finish_non_exhaustive()
    }
}

impl<S: Apply> Tail<S> {
    /// Starts to follow; [`Tail::caught_up`] says when everything written before has been read. A broker that is away only
    /// delays it, then and later.
    ///
    /// # Errors
    /// The client cannot be built.
    pub async fn follow(kafka: &Kafka, topic: &str, partitions: i32) -> Result<Self, kafka::Error> {
        Self::follow_from(S::default(), kafka, topic, partitions).await
    }

    /// The same, with a state before the first record that is not the default.
    ///
    /// # Errors
    /// As [`Tail::follow`].
    pub async fn follow_from(
        blank: S,
        kafka: &Kafka,
        topic: &str,
        partitions: i32,
    ) -> Result<Self, kafka::Error> {
        let checked = kafka.clone();
        let faults = tokio::task::spawn_blocking(move || kafka::check_settings(&checked)).await;
        if let Some(fault) = faults.unwrap_or_default().into_iter().next() {
            return Err(fault);
        }
        let partitions = partitions.max(1);
        let positions = (0..partitions).map(|partition| (partition, None)).collect();
        let shared = Arc::new(Shared {
            kafka: kafka.clone(),
            topic: topic.into(),
            state: RwLock::new(blank),
            progress: watch::Sender::new(Progress { caught_up: false, positions }),
            changes: watch::Sender::new(0),
            heard: Mutex::new(Instant::now()),
        });
        let task = tokio::spawn(follow::run(Arc::clone(&shared)));
        Ok(Self { shared, task: Arc::new(AbortOnDropHandle::new(task)) })
    }

    /// The topic.
    #[must_use]
    pub fn topic(&self) -> &Arc<str> {
        &self.shared.topic
    }

    /// All of its partitions.
    #[must_use]
    pub fn places(&self) -> Vec<Place> {
        (0..self.partitions()).map(|partition| (Arc::clone(self.topic()), partition)).collect()
    }

    /// How many partitions it has, as far as they are followed.
    #[must_use]
    pub fn partitions(&self) -> i32 {
        // The count was one of these at first.
        i32::try_from(self.shared.progress.borrow().positions.len()).unwrap_or(i32::MAX)
    }

    /// Whether the topic is still followed: until a fault of the program ends that.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.task.is_finished()
    }

    /// Looks at the state. Nothing is read meanwhile: look, do not work.
    pub fn read<T>(&self, look: impl FnOnce(&S) -> T) -> T {
        look(&self.shared.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// A number that rises with every change.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.shared.changes.subscribe()
    }

    /// Whether all partitions have been read to their end once.
    #[must_use]
    pub fn is_caught_up(&self) -> bool {
        self.shared.progress.borrow().caught_up
    }

    /// Waits for that.
    pub async fn caught_up(&self) {
        self.progressed(|progress| progress.caught_up).await;
    }

    /// Waits until a record at this offset, or a later one, has been read.
    ///
    /// # Errors
    /// It was not within the limit.
    pub async fn read_past(&self, partition: i32, offset: i64, limit: Duration) -> Result<(), kafka::Error> {
        let action = || format!("read {} partition {partition} up to offset {offset}", self.shared.topic);
        let read = self.progressed(|progress| progress.is_past(partition, offset));
        timeout(limit, read).await.map_err(|_| kafka::Error::Deadline { action: action(), limit })
    }

    /// Finds what was committed until now and waits until that has been read.
    ///
    /// The end of a partition is no offset to wait for: markers of transactions and compaction leave holes before it. So
    /// another consumer reads on from where this one is, to the end, and tells the last record there really is.
    ///
    /// # Errors
    /// The broker did not answer, or the records did not come, within the limit.
    pub async fn read_to_end(&self, limit: Duration) -> Result<(), kafka::Error> {
        let all: Vec<i32> = (0..self.partitions()).collect();
        self.read_partitions_to_end(&all, Waits::up_to(limit)).await
    }

    /// The same, for some partitions only: what is open in the others is no reason to wait.
    ///
    /// # Errors
    /// As [`Tail::read_to_end`]; transactions that were not decided within their patience are told as such.
    pub async fn read_partitions_to_end(
        &self,
        partitions: &[i32],
        waits: Waits<'_>,
    ) -> Result<(), kafka::Error> {
        let limit = waits.limit;
        let read = async {
            // Its own first end may have been reached before the call.
            self.caught_up().await;
            let mut positions = self.shared.progress.borrow().positions.clone();
            positions.retain(|partition, _| partitions.contains(partition));
            let last = match self.last_from(&positions, waits).await {
                // Behind the last record we have, yet before the first there is: the log was cut between them.
                Err(kafka::Error::OffsetOutOfRange { .. }) => {
                    let start = positions.into_keys().map(|partition| (partition, None)).collect();
                    self.last_from(&start, waits).await?
                }
                other => other?,
            };
            self.progressed(|progress| last.iter().all(|(one, offset)| progress.is_past(*one, *offset)))
                .await;
            Ok(())
        };
        let action = || format!("read {} to the end", self.shared.topic);
        timeout(limit, read).await.unwrap_or_else(|_| Err(kafka::Error::Deadline { action: action(), limit }))
    }

    /// Reads partitions to their end for the writer who has just taken the id they are written with, so that nothing of that
    /// id can be under way any more. What all the same stands open in them, or in the places it writes `also`, beyond the
    /// patience has been left hanging, if it is of this id: that is ended. What is somebody else's is waited for where it is
    /// read, and left alone elsewhere; to have lost patience with it harms nobody.
    ///
    /// Until this has succeeded nothing may be written: it would make visible what was left hanging in the same place.
    ///
    /// # Errors
    /// As [`Tail::read_to_end`], or the id is another's by now.
    pub async fn read_settled(
        &self,
        producer: &mut ShardProducer,
        partitions: &[i32],
        waits: Waits<'_>,
    ) -> Result<(), kafka::Error> {
        let limit = waits.limit;
        let end = Instant::now() + limit;
        let open = match self.read_partitions_to_end(partitions, waits).await {
            Err(kafka::Error::Undecided { open, .. }) => open,
            other => return other,
        };
        let places: Vec<Place> = open.iter().map(|one| (Arc::clone(&one.topic), one.partition)).collect();
        let left = || end.saturating_duration_since(Instant::now());
        let settled = timeout(left(), producer.settle(&places)).await;
        let action = || format!("end what was left open in {}", self.shared.topic);
        settled.unwrap_or_else(|_| Err(kafka::Error::Deadline { action: action(), limit }))?;
        let read = self.read_partitions_to_end(partitions, Waits::up_to(left())).await;
        let id = producer.transactional_id();
        match &read {
            // Where a batch is missing or written twice after this, it began here.
            Ok(()) => {
                let is_old = |one: &&OpenTransaction| one.open_for.is_none_or(|age| age >= OLD);
                let old: Vec<String> = open.iter().filter(is_old).map(ToString::to_string).collect();
                if !old.is_empty() {
                    tracing::warn!(
                        id,
                        open = old.join(", "),
                        "ended transactions that had been left hanging"
                    );
                }
            }
            Err(error) => tracing::debug!(id, %error, "transactions of others are open"),
        }
        read
    }

    /// How long nothing has been heard from the broker that should have been: `None` while all is well.
    #[must_use]
    pub fn silent_for(&self) -> Option<Duration> {
        let silent = self.shared.heard.lock().unwrap_or_else(PoisonError::into_inner).elapsed();
        (silent > SILENCE).then_some(silent)
    }

    /// The last record of each partition that has one behind its position.
    async fn last_from(
        &self,
        positions: &BTreeMap<i32, Option<i64>>,
        waits: Waits<'_>,
    ) -> Result<BTreeMap<i32, i64>, kafka::Error> {
        let starts = positions
            .iter()
            .map(|(partition, position)| (*partition, position.map_or(Start::Earliest, Start::Offset)))
            .collect();
        let mut last = BTreeMap::new();
        let each = |record: Received| {
            last.insert(record.partition, record.offset);
        };
        let Shared { kafka, topic, .. } = &*self.shared;
        kafka::read_decided(kafka, topic, &starts, &waits, each).await?;
        Ok(last)
    }

    async fn progressed(&self, wanted: impl FnMut(&Progress) -> bool) {
        // The sender lives as long as we do.
        self.shared.progress.subscribe().wait_for(wanted).await.ok();
    }
}

/// What the task writes and the clones read.
struct Shared<S> {
    kafka: Kafka,
    topic: Arc<str>,
    state: RwLock<S>,
    /// How far `state` has come; changes after it.
    progress: watch::Sender<Progress>,
    changes: watch::Sender<u64>,
    /// When the broker was last heard from.
    heard: Mutex<Instant>,
}

#[derive(Debug, Clone)]
struct Progress {
    caught_up: bool,
    /// The offset behind the last record read, by partition; `None` where there was none.
    positions: BTreeMap<i32, Option<i64>>,
}

impl Progress {
    fn is_past(&self, partition: i32, offset: i64) -> bool {
        self.positions.get(&partition).copied().flatten().is_some_and(|position| position > offset)
    }
}
