//! Reads topics that a test reads many times. One pair of clients asks for the ends, and only new records are fetched.
//!
//! Records are kept, also those that compaction or retention removes later. A test of these reads with
//! [`topics::content`](super::topics::content).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use kafka::ConsumerRecord;
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode as Code};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _};
use rdkafka::{ClientConfig, Offset, TopicPartitionList};

use super::{Error, Result, lost};

/// The longest a reading may take, as [`lost::fair`] counts: a transaction that was left open takes 15 s to end.
const LIMIT: Duration = Duration::from_secs(60);
/// The longest that one answer of the broker may take.
const ASKING: Duration = Duration::from_secs(10);
/// Between two questions whether transactions have ended.
const STEP: Duration = Duration::from_millis(20);

/// Reads topics; keeps every record that it has read.
pub(crate) struct Reader {
    inner: Arc<Mutex<ReaderState>>,
}

struct ReaderState {
    bootstrap: String,
    /// Made by the first reading: one that sees committed records only, and one that sees all.
    clients: Option<(BaseConsumer, BaseConsumer)>,
    topics: BTreeMap<String, BTreeMap<i32, PartitionRead>>,
}

/// What was read of a partition.
#[derive(Default)]
struct PartitionRead {
    records: Vec<ConsumerRecord>,
    /// Offset behind the last of them.
    next: i64,
    /// End offset when it was read. Transaction markers may follow the last record.
    end: i64,
}

impl Reader {
    pub(crate) fn new(bootstrap: &str) -> Self {
        let inner = ReaderState { bootstrap: bootstrap.to_owned(), clients: None, topics: BTreeMap::new() };
        Self { inner: Arc::new(Mutex::new(inner)) }
    }

    /// Everything that is committed in a topic, by partition and offset; nothing where there is no such topic. Waits for transactions
    /// that are open.
    pub(crate) async fn read(&self, topic: &str) -> Result<Vec<ConsumerRecord>> {
        self.ask(topic, |inner, topic| {
            let read = inner.topics.get(topic).into_iter().flatten();
            read.flat_map(|(_, read)| read.records.iter().cloned()).collect()
        })
        .await
    }

    /// The end offset of each partition for a consumer with `read_committed`, once no transaction is open.
    pub(crate) async fn ends(&self, topic: &str) -> Result<BTreeMap<i32, i64>> {
        let ends: BTreeMap<i32, i64> = self
            .ask(topic, |inner, topic| {
                let read = inner.topics.get(topic).into_iter().flatten();
                read.map(|(partition, read)| (*partition, read.end)).collect()
            })
            .await?;
        if ends.is_empty() {
            return Err(Error(format!("find the end of {topic}: there is no such topic")));
        }
        Ok(ends)
    }

    /// Reads a topic to its end and returns what `make` finds in it.
    async fn ask<T: Send + 'static>(
        &self,
        topic: &str,
        make: impl FnOnce(&ReaderState, &str) -> T + Send + 'static,
    ) -> Result<T> {
        let (inner, name) = (Arc::clone(&self.inner), topic.to_owned());
        let read = tokio::task::spawn_blocking(move || {
            let mut inner = locked(&inner);
            inner.read(&name)?;
            Ok(make(&inner, &name))
        });
        read.await.map_err(|error| Error(format!("read {topic}: {error}")))?
    }
}

fn locked(inner: &Mutex<ReaderState>) -> MutexGuard<'_, ReaderState> {
    inner.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ReaderState {
    fn read(&mut self, topic: &str) -> Result<()> {
        let began = Instant::now();
        loop {
            match self.fetch_new(topic, began) {
                Ok(()) => return Ok(()),
                // A broker that is just coming back.
                Err(_) if lost::fair(began) < LIMIT => thread::sleep(STEP),
                Err(error) => return Err(Error(format!("read {topic}: {error}"))),
            }
        }
    }

    fn fetch_new(&mut self, topic: &str, began: Instant) -> KafkaResult<()> {
        let (committed, all) = match &mut self.clients {
            Some(clients) => clients,
            none => none.insert((
                client(&self.bootstrap, "read_committed")?,
                client(&self.bootstrap, "read_uncommitted")?,
            )),
        };
        let Some(partitions) = partitions(all, topic)? else {
            self.topics.remove(topic);
            return Ok(());
        };
        let last = ends(all, topic, &partitions)?;
        let ends = loop {
            let ends = ends(committed, topic, &partitions)?;
            if last.iter().all(|(partition, last)| ends[partition] >= *last) {
                break ends;
            }
            if lost::fair(began) >= LIMIT {
                return Err(KafkaError::OffsetFetch(Code::OperationTimedOut));
            }
            thread::sleep(STEP);
        };
        let topics = self.topics.entry(topic.to_owned()).or_default();
        let (mut wanted, mut open) = (TopicPartitionList::new(), BTreeSet::new());
        for (partition, end) in &ends {
            let read = topics.entry(*partition).or_default();
            if read.next > *end {
                // The topic was deleted and created again.
                *read = PartitionRead::default();
            }
            if read.end != *end {
                wanted.add_partition_offset(topic, *partition, Offset::Offset(read.next))?;
                open.insert(*partition);
            }
        }
        if open.is_empty() {
            return Ok(());
        }
        committed.assign(&wanted)?;
        let fetched = fetch(committed, topics, open, began);
        committed.unassign()?;
        fetched?;
        for (partition, end) in ends {
            topics.entry(partition).or_default().end = end;
        }
        Ok(())
    }
}

/// Takes records until each of the open partitions was at its end.
fn fetch(
    client: &BaseConsumer,
    topic: &mut BTreeMap<i32, PartitionRead>,
    mut open: BTreeSet<i32>,
    began: Instant,
) -> KafkaResult<()> {
    while !open.is_empty() {
        match client.poll(ASKING) {
            Some(Ok(message)) => {
                let read = topic.entry(message.partition()).or_default();
                if message.offset() >= read.next {
                    read.next = message.offset() + 1;
                    read.records.push(received(&message));
                }
            }
            Some(Err(KafkaError::PartitionEOF(partition))) => drop(open.remove(&partition)),
            Some(Err(error)) => return Err(error),
            None if lost::fair(began) < LIMIT => {}
            None => return Err(KafkaError::MessageConsumption(Code::OperationTimedOut)),
        }
    }
    Ok(())
}

fn client(bootstrap: &str, isolation: &str) -> KafkaResult<BaseConsumer> {
    ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("group.id", "reads-without-a-group")
        .set("enable.auto.commit", "false")
        .set("enable.partition.eof", "true")
        .set("auto.offset.reset", "earliest")
        .set("isolation.level", isolation)
        .set("fetch.wait.max.ms", "5")
        .create()
}

/// The partitions of a topic; `None` where there is no such topic.
fn partitions(client: &BaseConsumer, topic: &str) -> KafkaResult<Option<Vec<i32>>> {
    let metadata = client.fetch_metadata(Some(topic), ASKING)?;
    let Some(found) = metadata.topics().iter().find(|found| found.name() == topic) else { return Ok(None) };
    match found.error().map(Code::from) {
        None => Ok(Some(found.partitions().iter().map(|partition| partition.id()).collect())),
        Some(Code::UnknownTopicOrPartition | Code::UnknownTopic) => Ok(None),
        Some(code) => Err(KafkaError::MetadataFetch(code)),
    }
}

/// Where each partition ends for this client, all in one request.
fn ends(client: &BaseConsumer, topic: &str, partitions: &[i32]) -> KafkaResult<BTreeMap<i32, i64>> {
    let mut asked = TopicPartitionList::new();
    for partition in partitions {
        asked.add_partition_offset(topic, *partition, Offset::End)?;
    }
    let answered = client.offsets_for_times(asked, ASKING)?;
    let one = |element: &rdkafka::topic_partition_list::TopicPartitionListElem<'_>| {
        element.error()?;
        let offset = element.offset().to_raw().filter(|offset| *offset >= 0);
        Ok((element.partition(), offset.ok_or(KafkaError::OffsetFetch(Code::NoOffset))?))
    };
    answered.elements().iter().map(one).collect()
}

fn received(message: &BorrowedMessage<'_>) -> ConsumerRecord {
    let owned = |bytes: Option<&[u8]>| bytes.map(Bytes::copy_from_slice);
    let headers = message.headers().map_or_else(Vec::new, |headers| {
        let each = headers.iter();
        each.map(|header| (header.key.to_owned(), owned(header.value).unwrap_or_default())).collect()
    });
    ConsumerRecord {
        topic: message.topic().into(),
        partition: message.partition(),
        offset: message.offset(),
        key: owned(message.key()),
        value: owned(message.payload()),
        headers,
        timestamp_ms: message.timestamp().to_millis(),
    }
}
