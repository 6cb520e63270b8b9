//! Tables and the writers that decide on them, on real brokers. `lifecycle::hanging` tests transactions that a broker lost track of,
//! `state::tails` recreated topics.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use kafka::{
    ConsumerRecord, Error, FencedWriter, Kafka, Lease, PlainWriter, ShardProducers, Table, TableState,
    TransactionOptions, WriteError, WriterOptions,
};
use model::{Cleanup, EncodedRecord};
use tokio::time::Instant;

use crate::support::gate::gate;
use crate::support::lost::timeout;
use crate::support::topics::{LIMIT, PARTITIONS, content, create, delete_below, record, text};
use crate::support::{Result, Shared, breakable, prefix};

crate::tests! {
    real writers_of_one_id_lose_no_write within 120;
    real writer_that_was_replaced_writes_nothing;
    real writer_keeps_its_id_while_another_id_writes_the_table;
    real a_rivals_hanging_write_is_ended_by_a_writer_keeping_the_id;
    real writer_frozen_in_its_commit_decides_again;
    real refusal_is_decided_on_the_topic_as_of_the_call;
    real write_to_several_partitions_is_read_back_as_a_whole;
    disturbing write_with_a_lost_answer_is_made_once within 120;
    disturbing nothing_is_decided_on_a_table_that_lags within 120;
    disturbing truncated_topic_is_read_again_from_its_start within 120;
    disturbing plain_writer_continues_after_abandoning_waiting_records within 120;
}

/// The newest value of each key.
#[derive(Debug, Default)]
struct NewestValues(BTreeMap<String, String>);

impl TableState for NewestValues {
    fn apply(&mut self, record: &ConsumerRecord) {
        let key = String::from_utf8(record.key.as_deref().unwrap_or_default().to_vec()).unwrap();
        match &record.value {
            Some(_) => drop(self.0.insert(key, text(record))),
            None => drop(self.0.remove(&key)),
        }
    }
}

/// A compacted topic and one transactional id that writes it.
struct TableTopic {
    kafka: Kafka,
    name: Arc<str>,
}

impl TableTopic {
    async fn create(bootstrap: &str, name: &str) -> Self {
        Self::create_with(Cleanup::Compact, bootstrap, name).await
    }

    async fn create_with(cleanup: Cleanup, bootstrap: &str, name: &str) -> Self {
        let (kafka, topic) = (Kafka::plaintext(bootstrap), prefix(name));
        create(&kafka, &topic, cleanup, &[]).await;
        Self { kafka, name: topic.into() }
    }

    /// The same topic, with other bootstrap servers.
    fn over(&self, bootstrap: &str) -> Self {
        Self { kafka: Kafka::plaintext(bootstrap), name: Arc::clone(&self.name) }
    }

    async fn table(&self) -> Table<NewestValues> {
        let table = Table::follow(&self.kafka, &self.name, PARTITIONS).await.unwrap();
        timeout(LIMIT, table.caught_up()).await.unwrap();
        table
    }

    async fn writer(&self, takes_back: bool) -> FencedWriter<NewestValues> {
        self.writer_with(takes_back, TransactionOptions::default()).await
    }

    async fn writer_with(&self, takes_back: bool, options: TransactionOptions) -> FencedWriter<NewestValues> {
        self.writer_of(self.table().await, takes_back, options)
    }

    fn transactional_id(&self) -> Arc<str> {
        format!("{}-writer", self.name).into()
    }

    fn writer_of(
        &self,
        table: Table<NewestValues>,
        takes_back: bool,
        options: TransactionOptions,
    ) -> FencedWriter<NewestValues> {
        let owned = WriterOptions { takes_back, ..self.owned() };
        FencedWriter::new(table, ShardProducers::new(self.kafka.clone(), options), owned)
    }

    fn owned(&self) -> WriterOptions {
        WriterOptions {
            transactional_id: self.transactional_id(),
            lease: Arc::new(|| true),
            partitions: (0..PARTITIONS).collect(),
            other_partitions: Vec::new(),
            transaction_wait: Duration::from_millis(100),
            takes_back: true,
            must_read_back: true,
        }
    }

    /// Decides to write one more than the number under `key`.
    fn add_one(
        &self,
        key: &str,
    ) -> impl Fn(&NewestValues) -> std::result::Result<(u32, Vec<EncodedRecord>), Infallible> {
        let (topic, key) = (Arc::clone(&self.name), key.to_owned());
        move |values| {
            let next = values.0.get(&key).map_or(0, |number| number.parse().unwrap()) + 1;
            Ok((next, vec![record(&topic, 0, &key, next.to_string())]))
        }
    }

    /// NewestValues of partition 0, in the order of the log.
    async fn log(&self) -> Vec<String> {
        content(&self.kafka, &self.name).await.get(&0).into_iter().flatten().map(text).collect()
    }
}

fn soon() -> Instant {
    Instant::now() + LIMIT
}

fn numbers(until: u32) -> Vec<String> {
    (1..=until).map(|number| number.to_string()).collect()
}

async fn writers_of_one_id_lose_no_write(shared: &'static Shared) {
    const EACH: u32 = 5;
    let topic = TableTopic::create(shared.bootstrap(), "table-rivals").await;
    let (mut one, mut other) = (topic.writer(true).await, topic.writer(true).await);

    let count = async |writer: &mut FencedWriter<NewestValues>| {
        let mut done = 0;
        while done < EACH {
            match writer.write(soon(), topic.add_one("n")).await {
                Ok(_) => done += 1,
                Err(WriteError::Conflict { .. }) => {}
                Err(error) => panic!("{error:?}"),
            }
        }
    };
    tokio::join!(count(&mut one), count(&mut other));

    assert_eq!(topic.log().await, numbers(2 * EACH), "each number once, in order");
}

async fn writer_that_was_replaced_writes_nothing(shared: &'static Shared) {
    let topic = TableTopic::create(shared.bootstrap(), "table-replaced").await;
    let (mut before, mut successor) = (topic.writer(false).await, topic.writer(false).await);
    before.write(soon(), topic.add_one("n")).await.unwrap();

    // Records of the successor are no reason to take the id back.
    successor.write(soon(), topic.add_one("n")).await.unwrap();
    before.table().read_to_end(LIMIT).await.unwrap();
    let refused = before.write(soon(), topic.add_one("n")).await;
    let again = before.write(soon(), topic.add_one("n")).await;
    let written = successor.write(soon(), topic.add_one("n")).await;

    assert!(matches!(refused, Err(WriteError::Kafka(kafka::Error::Fenced { .. }))), "{refused:?}");
    assert!(matches!(again, Err(WriteError::Kafka(kafka::Error::LeaseEnded { .. }))), "{again:?}");
    assert_eq!((written.unwrap(), topic.log().await), (3, numbers(3)));
}

async fn writer_keeps_its_id_while_another_id_writes_the_table(shared: &'static Shared) {
    let topic = TableTopic::create(shared.bootstrap(), "table-neighbors").await;
    let leased = Arc::new(AtomicBool::new(true));
    let asked = Arc::clone(&leased);
    let lease: Lease = Arc::new(move || asked.load(Ordering::SeqCst));
    let shards = ShardProducers::new(topic.kafka.clone(), TransactionOptions::default());
    let one = WriterOptions { lease, ..topic.owned() };
    let other = WriterOptions { transactional_id: format!("{}-other", topic.name).into(), ..topic.owned() };
    let mut one = FencedWriter::new(topic.table().await, shards.clone(), one);
    let mut other = FencedWriter::new(topic.table().await, shards, other);

    one.write(soon(), topic.add_one("n")).await.unwrap();
    other.write(soon(), topic.add_one("m")).await.unwrap();
    one.table().read_to_end(LIMIT).await.unwrap();
    // Without its lease it could not take the id again.
    leased.store(false, Ordering::SeqCst);
    let written = one.write(soon(), topic.add_one("n")).await;

    assert_eq!(written.unwrap(), 2);
}

async fn a_rivals_hanging_write_is_ended_by_a_writer_keeping_the_id(shared: &'static Shared) {
    // Below the 10 s after which the broker ends the rival's transaction by itself.
    const HEALED: Duration = Duration::from_secs(5);
    let topic = TableTopic::create(shared.bootstrap(), "table-hanging").await;
    let mut writer = topic.writer(true).await;
    writer.write(soon(), topic.add_one("n")).await.unwrap();
    let (hook, held) = gate();
    let options = TransactionOptions { before_commit: Some(hook), ..TransactionOptions::default() };
    let mut rival = ShardProducers::new(topic.kafka.clone(), options)
        .take(topic.transactional_id(), Arc::new(|| true))
        .await
        .unwrap();
    let open = vec![record(&topic.name, 0, "n", "lost")];
    let hanging = tokio::spawn(async move { rival.commit(open).await.map(drop) });
    held.reached().await;

    let seen = writer.write(Instant::now() + HEALED, |values| Err::<((), Vec<_>), _>(values.0["n"].clone()));
    let seen = seen.await;
    held.open();
    let lost = hanging.await.unwrap();

    assert!(matches!(&seen, Err(WriteError::Refused(seen)) if seen == "1"), "{seen:?}");
    assert!(lost.is_err(), "the rival's write was ended");
    assert_eq!(topic.log().await, numbers(1));
}

async fn writer_frozen_in_its_commit_decides_again(shared: &'static Shared) {
    let topic = TableTopic::create(shared.bootstrap(), "table-frozen").await;
    let (hook, held) = gate();
    let options = TransactionOptions { before_commit: Some(hook), ..TransactionOptions::default() };
    let mut frozen = topic.writer_with(true, options).await;
    let mut rival = topic.writer(true).await;

    let late = async { frozen.write(soon(), topic.add_one("n")).await.unwrap() };
    let meanwhile = async {
        held.reached().await;
        let first = rival.write(soon(), topic.add_one("n")).await.unwrap();
        held.open();
        first
    };
    let (second, first) = tokio::join!(late, meanwhile);

    assert_eq!((first, second, topic.log().await), (1, 2, numbers(2)));
}

async fn refusal_is_decided_on_the_topic_as_of_the_call(shared: &'static Shared) {
    let topic = TableTopic::create(shared.bootstrap(), "table-refusal").await;
    let (mut one, mut other) = (topic.writer(true).await, topic.writer(true).await);
    // It holds the id, so that a write needs no read.
    one.write(soon(), topic.add_one("n")).await.unwrap();

    for number in 2..5 {
        other.write(soon(), topic.add_one("n")).await.unwrap();
        let seen = one.write(soon(), |values| Err::<((), Vec<_>), _>(values.0["n"].clone())).await;
        assert!(matches!(&seen, Err(WriteError::Refused(seen)) if *seen == number.to_string()), "{seen:?}");
    }
}

async fn write_to_several_partitions_is_read_back_as_a_whole(shared: &'static Shared) {
    let topic = TableTopic::create(shared.bootstrap(), "table-whole").await;
    let mut writer = topic.writer(true).await;

    for number in 0..5 {
        let decide = |_: &NewestValues| {
            let records = (0..PARTITIONS).map(|partition| {
                record(&topic.name, partition, &format!("k-{partition}"), number.to_string())
            });
            Ok::<_, Infallible>(((), records.collect()))
        };
        writer.write(soon(), decide).await.unwrap();

        let seen: Vec<String> = writer.table().read(|values| values.0.values().cloned().collect());
        assert_eq!(seen, vec![number.to_string(); 3]);
    }
}

async fn write_with_a_lost_answer_is_made_once() -> Result<()> {
    let broker = breakable::take().await?;
    let topic = TableTopic::create(&broker.bootstrap(), "table-lost").await;
    let past = topic.over(&broker.bootstrap_past_proxy());
    let watcher = past.table().await;
    let (hook, held) = gate();
    let watchdog = Duration::from_secs(1);
    let options = TransactionOptions { before_commit: Some(hook), watchdog, ..TransactionOptions::default() };
    let mut writer = topic.writer_with(true, options).await;

    let disturbance = async {
        held.reached().await;
        broker.proxy()?.stall_responses();
        held.open();
        // Committed; the answer is held back until the writer has given up waiting for it.
        let mut changes = watcher.changes();
        while watcher.read(|values| values.0.is_empty()) {
            changes.changed().await.unwrap();
        }
        // There is no signal for this: the writer first connects again, which needs answers.
        tokio::time::sleep(2 * watchdog).await;
        broker.proxy()?.heal();
        Ok(())
    };
    let (written, disturbed) =
        tokio::join!(writer.write(Instant::now() + 2 * LIMIT, topic.add_one("n")), disturbance);
    disturbed?;

    assert_eq!((written.unwrap(), past.log().await), (1, numbers(1)));
    Ok(())
}

async fn nothing_is_decided_on_a_table_that_lags() -> Result<()> {
    const BLIND: Duration = Duration::from_secs(3);
    let broker = breakable::take().await?;
    let topic = TableTopic::create(&broker.bootstrap(), "table-lagging").await;
    let past = topic.over(&broker.bootstrap_past_proxy());
    // Its table reads through the proxy, its transactions go past it.
    let mut behind = past.writer_of(topic.table().await, true, TransactionOptions::default());
    let mut rival = past.writer(true).await;
    behind.write(soon(), topic.add_one("n")).await.unwrap();

    broker.proxy()?.stall();
    let refused = behind.write(Instant::now() + BLIND, |_| Err::<((), Vec<_>), _>("refused")).await;
    rival.write(soon(), topic.add_one("n")).await.unwrap();
    let written = behind.write(Instant::now() + BLIND, topic.add_one("n")).await;
    broker.proxy()?.heal();
    let later = behind.write(soon(), topic.add_one("n")).await.unwrap();

    assert!(matches!(refused, Err(WriteError::Kafka(_))), "{refused:?}");
    assert!(matches!(written, Err(WriteError::Kafka(_))), "{written:?}");
    assert_eq!((later, past.log().await), (3, numbers(3)));
    Ok(())
}

async fn truncated_topic_is_read_again_from_its_start() -> Result<()> {
    let broker = breakable::take().await?;
    // Kafka deletes no records of a topic that is only compacted.
    let topic = TableTopic::create_with(Cleanup::Delete, &broker.bootstrap(), "table-truncated").await;
    let past = topic.over(&broker.bootstrap_past_proxy());
    let mut rival = past.writer(true).await;
    let put = async |writer: &mut FencedWriter<NewestValues>, key: &str| {
        let decide = |_: &NewestValues| Ok::<_, Infallible>(((), vec![record(&topic.name, 0, key, "1")]));
        writer.write(soon(), decide).await.unwrap();
    };
    put(&mut rival, "before").await;
    let behind = topic.table().await;
    let mut changes = behind.changes();

    broker.proxy()?.stall();
    put(&mut rival, "removed").await;
    put(&mut rival, "kept").await;
    // Record and marker of each of the first two writes.
    delete_below(&past.kafka, &past.name, 4).await?;
    broker.proxy()?.heal();

    let keys = || behind.read(|values| values.0.keys().cloned().collect::<Vec<_>>());
    let read = async {
        while keys() != ["kept"] {
            assert!(keys() == ["before"], "neither the state before nor that after: {:?}", keys());
            changes.changed().await.unwrap();
        }
    };
    timeout(2 * LIMIT, read).await.expect("the table was not read again");
    behind.read_to_end(LIMIT).await.unwrap();
    Ok(())
}

async fn plain_writer_continues_after_abandoning_waiting_records() -> Result<()> {
    let broker = breakable::take().await?;
    let topic = TableTopic::create(&broker.bootstrap(), "table-plain").await;
    let past = topic.over(&broker.bootstrap_past_proxy());
    let writer = PlainWriter::new(&topic.kafka, 1 << 20);
    let put = |value: &str| record(&topic.name, 0, "k", value.to_owned());
    writer.write(put("1"), soon()).await.unwrap();

    broker.proxy()?.cut();
    let late = writer.write(put("lost"), Instant::now() + Duration::from_secs(1)).await;
    let waiting = writer.outstanding();
    writer.abandon();
    broker.proxy()?.heal();
    writer.write(put("2"), soon()).await.unwrap();

    assert!(matches!(late, Err(Error::Deadline { .. })), "{late:?}");
    assert_eq!((waiting, writer.outstanding()), (1, 0));
    // The abandoned record may have been sent already.
    let log: Vec<String> = past.log().await.into_iter().filter(|value| value != "lost").collect();
    assert_eq!(log, numbers(2));
    Ok(())
}
