//! Reads the topics without code of the product.
//!
//! It reads every partition from its start in log order. A record is recognized by its `tributary.id`, its key, and the provider's
//! `JsonData` in its value, which Avro writes unchanged.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{BorrowedMessage, Headers};
use rdkafka::{ClientConfig, Message, Offset, TopicPartitionList};

use super::delivery::{Id, Maker};
use super::judge::Appearance;
use crate::support::lost;

/// Limit for one request to a broker: wall time, since the client keeps it.
const ASKING: Duration = lost::longest(Duration::from_secs(30));
const POLL: Duration = Duration::from_millis(100);

/// Reads topics; each call continues where the last one ended.
pub(crate) struct Reader {
    consumer: BaseConsumer,
    maker: Maker,
    /// The topic of deliveries; records in other topics are foreign.
    events: String,
    /// The next offset of each partition.
    next: HashMap<(String, i32), i64>,
    appearances: Vec<Appearance>,
}

impl Reader {
    /// A reader at the start of `events` and of those of `others` that exist.
    ///
    /// # Panics
    /// If no broker answers, or there is no topic `events`.
    pub(crate) fn open(bootstrap: &str, events: &str, others: &[&str], maker: Maker) -> Self {
        let mut config = ClientConfig::new();
        config
            .set("bootstrap.servers", bootstrap)
            .set("group.id", "oracle")
            .set("enable.auto.commit", "false");
        config.set("reconnect.backoff.ms", "50").set("reconnect.backoff.max.ms", "500");
        let consumer: BaseConsumer = config.create().unwrap();
        let mut next = HashMap::new();
        for topic in others.iter().chain([&events]) {
            let metadata = consumer.fetch_metadata(Some(topic), ASKING).unwrap();
            let partitions = metadata.topics().iter().flat_map(|topic| topic.partitions());
            next.extend(partitions.map(|partition| (((*topic).to_owned(), partition.id()), 0)));
        }
        assert!(next.keys().any(|(topic, _)| topic == events), "there is no topic {events}");
        let mut assignment = TopicPartitionList::new();
        for (topic, partition) in next.keys() {
            assignment.add_partition_offset(topic, *partition, Offset::Beginning).unwrap();
        }
        consumer.assign(&assignment).unwrap();
        Self { consumer, maker, events: events.to_owned(), next, appearances: Vec::new() }
    }

    /// Reads until all of these have appeared; whether they did within `limit` of [`lost::fair`] time.
    pub(crate) fn until_seen(&mut self, mut owed: HashSet<Id>, limit: Duration) -> bool {
        let began = Instant::now();
        for id in self.appearances.iter().filter_map(|found| found.id) {
            owed.remove(&id);
        }
        while !owed.is_empty() && lost::fair(began) < limit {
            if let Some(id) = self.poll().and_then(|found| found.id) {
                owed.remove(&id);
            }
        }
        owed.is_empty()
    }

    /// Reads to the present end of the topics; everything since their start.
    ///
    /// # Panics
    /// If the end cannot be reached within `limit` of [`lost::fair`] time.
    pub(crate) fn read_to_end(&mut self, limit: Duration) -> &[Appearance] {
        let began = Instant::now();
        let ends: Vec<((String, i32), i64)> = self
            .next
            .keys()
            .map(|(topic, partition)| {
                let (_, end) = self.consumer.fetch_watermarks(topic, *partition, ASKING).unwrap();
                ((topic.clone(), *partition), end)
            })
            .collect();
        while ends.iter().any(|(place, end)| self.next[place] < *end) {
            assert!(lost::fair(began) < limit, "not at {ends:?} within {limit:?} but at {:?}", self.next);
            self.poll();
        }
        &self.appearances
    }

    fn poll(&mut self) -> Option<Appearance> {
        // Errors of a broker that is still starting pass; the callers' deadlines end them.
        let message = self.consumer.poll(POLL)?.ok()?;
        let found = appearance(&message, &self.maker, message.topic() == self.events);
        self.next.insert((message.topic().to_owned(), message.partition()), message.offset() + 1);
        self.appearances.push(found);
        Some(found)
    }
}

fn appearance(message: &BorrowedMessage<'_>, maker: &Maker, belongs: bool) -> Appearance {
    let header =
        message.headers().and_then(|headers| headers.iter().find(|header| header.key == "tributary.id"));
    let id = header.and_then(|header| header.value).and_then(Id::parse).filter(|_| belongs);
    let value = message.payload().unwrap_or_default();
    let intact = id.and_then(|id| maker.made(id)).is_some_and(|(company, number)| {
        let data = maker.data(company, number);
        value.windows(data.len()).any(|window| window == data)
    });
    Appearance {
        id,
        key: message.key().and_then(Id::parse),
        partition: message.partition(),
        offset: message.offset(),
        intact,
    }
}
