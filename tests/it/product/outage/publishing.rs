//! Publishing that continues while a test breaks things, and the check of the log afterwards.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kafka::{
    Ack, Assignment, Consumer, ConsumerEvent, ConsumerRecord, Kafka, Producer, ProducerOptions, StartOffset,
    partition_of,
};
use model::{Cleanup, EncodedRecord};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::wants_figures;
use crate::support::topics::{self, PARTITIONS};

/// From the end of an outage until every record is acknowledged, on a busy machine.
const RECOVERY: Duration = Duration::from_secs(60);
/// Distinct keys, spread over all partitions.
const KEYS: usize = 20;
/// So large that an outage can begin while the first records are sent.
const BODY: usize = 1000;

/// A producer, all records that it was given, and a consumer that follows.
pub(super) struct Publishing {
    kafka: Kafka,
    topic: Arc<str>,
    producer: Producer,
    body: String,
    sent: Vec<Sent>,
    follower: JoinHandle<()>,
    followed: tokio::sync::watch::Receiver<Vec<ConsumerRecord>>,
}

struct Sent {
    record: EncodedRecord,
    /// The acknowledgement and how long it took.
    report: JoinHandle<(Result<Ack, kafka::Error>, Duration)>,
}

impl Publishing {
    /// Creates the topic and starts to publish: when this returns, some records are acknowledged and others in flight.
    pub(super) async fn start(kafka: Kafka, topic: &str) -> Self {
        topics::create(&kafka, topic, Cleanup::Delete, &[]).await;
        let producer = Producer::new(&kafka, &ProducerOptions::default()).unwrap();
        producer.warm_up(vec![topic.to_owned()], RECOVERY).await.unwrap();
        let (follower, followed) = follow(&kafka, topic).await;
        let body = topics::noise(BODY / 2).iter().map(|byte| format!("{byte:02x}")).collect();
        let mut this =
            Self { kafka, topic: topic.into(), producer, body, sent: Vec::new(), follower, followed };
        this.send(2_000);
        this.acknowledged_first().await;
        this
    }

    /// Gives the producer this many more records.
    pub(super) fn send(&mut self, count: usize) {
        for _ in 0..count {
            let number = self.sent.len();
            let key = format!("company-{}", number % KEYS);
            let partition = partition_of(key.as_bytes(), PARTITIONS);
            let record = topics::record(&self.topic, partition, &key, format!("{number} {}", self.body));
            let delivery = self.producer.send(record.clone()).unwrap();
            let sent_at = Instant::now();
            let report = tokio::spawn(async move { (delivery.await, sent_at.elapsed()) });
            self.sent.push(Sent { record, report });
        }
    }

    /// Sends more records and waits for `length`; none of them may be acknowledged in that time, or there is no outage.
    pub(super) async fn outage(&mut self, length: Duration) {
        self.send(500);
        let last = &mut self.sent.last_mut().unwrap().report;
        let acknowledged = timeout(length, last).await;
        assert!(acknowledged.is_err(), "acknowledged during the outage: {acknowledged:?}");
    }

    /// As [`Publishing::outage`], for one that delays only some of the records.
    pub(super) async fn partial_outage(&mut self, length: Duration) {
        self.send(500);
        let flushed = self.producer.flush(length).await;
        assert!(flushed.is_err(), "all was acknowledged during the outage");
    }

    /// Records acknowledged so far.
    pub(super) fn acknowledged(&self) -> usize {
        self.sent.len() - self.producer.outstanding()
    }

    /// Waits until every record so far is acknowledged.
    pub(super) async fn flush(&self) {
        self.producer.flush(RECOVERY).await.unwrap();
    }

    async fn acknowledged_first(&mut self) {
        let (ack, waited) = (&mut self.sent[0].report).await.unwrap();
        // Its report has been taken; finish() needs one for every record.
        self.sent[0].report = tokio::spawn(async move { (ack, waited) });
    }

    /// Sends the last records, waits for every acknowledgement, and compares the sent records with the log, the acknowledgements and
    /// the records that the consumer read: none is missing or repeated, and each partition is in order.
    pub(super) async fn finish(mut self, outage: &str) {
        let healed = Instant::now();
        self.send(500);
        self.flush().await;
        let recovery = healed.elapsed();

        let mut expected: BTreeMap<i32, Vec<(i64, EncodedRecord)>> = BTreeMap::new();
        let mut longest = Duration::ZERO;
        let count = self.sent.len();
        for Sent { record, report } in self.sent {
            let (ack, waited) = report.await.unwrap();
            let ack = ack.unwrap();
            assert_eq!(ack.partition, record.partition);
            longest = longest.max(waited);
            expected.entry(record.partition).or_default().push((ack.offset, record));
        }
        assert_eq!(expected.len(), PARTITIONS as usize, "a partition got no record");
        let log = topics::content(&self.kafka, &self.topic).await;
        self.followed.wait_for(|read| read.len() >= count).await.unwrap();
        let mut followed: BTreeMap<i32, Vec<ConsumerRecord>> = BTreeMap::new();
        for record in self.followed.borrow().iter().cloned() {
            followed.entry(record.partition).or_default().push(record);
        }
        self.follower.abort();

        for (partition, records) in expected {
            let in_log = &log[&partition];
            assert_eq!(in_log.len(), records.len(), "partition {partition}: not every record once");
            for (index, (received, (offset, record))) in in_log.iter().zip(&records).enumerate() {
                let place = format!("partition {partition}, record {index}");
                assert_eq!(received.offset, index as i64, "{place}");
                assert_eq!(received.offset, *offset, "{place}: acknowledged elsewhere");
                assert!(received.key.as_ref() == Some(&record.key), "{place}: {:?}", received.key);
                assert!(received.value == record.value, "{place}: {}", topics::text(received));
            }
            assert!(
                followed[&partition] == *in_log,
                "partition {partition}: the consumer read something else"
            );
        }
        if wants_figures() {
            println!(
                "{outage}: {count} records, longest wait {longest:.1?}, all acknowledged {recovery:.1?} after it"
            );
        }
    }
}

/// Reads a topic from its start as long as the task lives; the channel has all records.
async fn follow(
    kafka: &Kafka,
    topic: &str,
) -> (JoinHandle<()>, tokio::sync::watch::Receiver<Vec<ConsumerRecord>>) {
    let assignments = (0..PARTITIONS)
        .map(|partition| Assignment { topic: topic.into(), partition, start: StartOffset::Earliest })
        .collect();
    let mut consumer = Consumer::assign(kafka, assignments, &Default::default()).await.unwrap();
    let (sender, receiver) = tokio::sync::watch::channel(Vec::new());
    let follower = tokio::spawn(async move {
        loop {
            if let ConsumerEvent::Record(record) = consumer.next().await.unwrap() {
                sender.send_modify(|read: &mut Vec<ConsumerRecord>| read.push(record));
            }
        }
    });
    (follower, receiver)
}
