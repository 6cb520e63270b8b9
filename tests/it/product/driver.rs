//! The pipeline's promise from end to end: in order, nothing lost, committed only once Kafka has it.
//!
//! A source of three lanes, each one company with a partition of its own, so that a lane's commit can be held
//! against the high watermark of one partition, asked for past the product at the moment of the commit.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use rdkafka::consumer::{BaseConsumer, Consumer};
use tokio_util::sync::CancellationToken;
use tributary::kafka::{Received, partition_of};
use tributary::model::{AccountingEvent, AccountingResource, Meta, Origin, Outgoing, Reception, Topic};
use tributary::pipeline::{
    Batch, Content, DeadLetters, Driver, End, Error, Failure, Item, LetterSigner, Limits, Original,
    Publisher, Source, Stage,
};
use tributary::retry::Retry;

use crate::support::examples::incompressible;
use crate::support::place::{PARTITIONS, Place, header};
use crate::support::{Result, Shared, cycles};

crate::tests! {
    real a_source_arrives_in_order_and_is_committed_only_once_kafka_has_it;
    real what_cannot_be_published_lies_in_the_dead_letters_as_it_came;
    real a_run_after_a_crash_repeats_records_under_their_id_and_loses_none;
}

const RESOURCE: AccountingResource = AccountingResource::Customers;
const EVENTS: Topic = Topic::AccountingEvents(RESOURCE);
/// Above what a topic takes by default (1 MiB and a little), below what the dead letters take.
const OVERSIZED: usize = 3 << 20;
const LANES: usize = 3;

async fn a_source_arrives_in_order_and_is_committed_only_once_kafka_has_it(
    shared: &'static Shared,
) -> Result<()> {
    let place = Place::on(shared, "driver")?;
    let publisher = place.open(&place.layout([EVENTS, Topic::DeadLetters])).await.unwrap();
    let per_lane = 200 * cycles("DRIVER", 1) as usize;
    let mut source = Lanes::new(&place, (0..LANES * per_lane).map(|n| plain(n % LANES, n / LANES)));

    let end = run(&place, &publisher, &mut source).await.unwrap();

    assert_eq!(end, End::Finished);
    let records = place.read(&place.name(EVENTS)).await;
    assert_eq!(records.len(), LANES * per_lane);
    for lane in 0..LANES {
        let wanted: Vec<String> = (0..per_lane).map(|number| id(lane, number)).collect();
        assert_eq!(ids(&records, lane), wanted);
        let committed = &source.commits[&lane];
        assert!(committed.is_sorted(), "commits went back: {committed:?}");
        assert_eq!(committed.last(), Some(&(per_lane - 1)));
    }
    assert_eq!(source.early, [], "commits before Kafka had the records");
    Ok(())
}

async fn what_cannot_be_published_lies_in_the_dead_letters_as_it_came(shared: &'static Shared) -> Result<()> {
    let place = Place::on(shared, "letters")?;
    let publisher = place.open(&place.layout([EVENTS, Topic::DeadLetters])).await.unwrap();
    let items = [plain(0, 0), unreadable(0, 1), plain(0, 2), oversized(0, 3), plain(0, 4), plain(1, 0)];
    let bodies: Vec<Bytes> = items.iter().map(|item| item.original.value.clone()).collect();
    let mut source = Lanes::new(&place, items);

    let end = run(&place, &publisher, &mut source).await.unwrap();

    assert_eq!(end, End::Finished);
    let published = place.read(&place.name(EVENTS)).await;
    assert_eq!(ids(&published, 0), [id(0, 0), id(0, 2), id(0, 4)]);
    let letters = place.read(&place.name(Topic::DeadLetters)).await;
    assert_eq!(letters.len(), 2);
    let letter = |stage: &str| {
        letters.iter().find(|letter| header(letter, "__connect.errors.stage") == Some(stage)).unwrap()
    };
    let (unreadable, oversized) = (letter("TASK_POLL"), letter("KAFKA_PRODUCE"));
    for (letter, body) in [(unreadable, &bodies[1]), (oversized, &bodies[3])] {
        assert!(letter.value.as_ref() == Some(body), "the body is not what was read");
        assert_eq!(letter.key.as_deref(), Some(company(0).as_bytes()));
        assert_eq!(letter.partition, partition_of(company(0).as_bytes(), PARTITIONS));
        assert_eq!(header(letter, "__connect.errors.connector.name"), Some("hooks"));
        assert_eq!(header(letter, "__connect.errors.task.id"), Some("0"));
    }
    assert_eq!(header(unreadable, "__connect.errors.topic"), Some("the.origin"));
    assert_eq!(header(unreadable, "__connect.errors.partition"), Some("7"));
    assert_eq!(header(unreadable, "__connect.errors.offset"), Some("1"));
    assert_eq!(header(unreadable, "__connect.errors.exception.class.name"), Some("test::Unreadable"));
    assert_eq!(header(unreadable, "__connect.errors.exception.message"), Some("no JSON"));
    let class = header(oversized, "__connect.errors.exception.class.name");
    assert_eq!(class, Some("kafka::Error::RecordRefused"));
    assert_eq!(header(oversized, "tributary.id"), Some(&*id(0, 3)));
    let trace = header(oversized, "__connect.errors.exception.stacktrace").unwrap();
    assert!(trace.contains(&place.name(EVENTS)) && trace.contains("too large"), "{trace}");
    assert_eq!((source.commits[&0].last(), source.commits[&1].last()), (Some(&4), Some(&0)));
    assert_eq!(source.early, [], "commits before Kafka had the records");
    Ok(())
}

async fn a_run_after_a_crash_repeats_records_under_their_id_and_loses_none(
    shared: &'static Shared,
) -> Result<()> {
    let place = Place::on(shared, "again")?;
    let publisher = place.open(&place.layout([EVENTS, Topic::DeadLetters])).await.unwrap();
    let per_lane = 50;
    let items = || (0..LANES * per_lane).map(|n| plain(n % LANES, n / LANES));

    // Every lane commits at least once, so a second commit is certain to come, and to be lost.
    let mut crashing = Lanes::new(&place, items());
    crashing.commits_left = 1;
    let crashed = run(&place, &publisher, &mut crashing).await;
    let durable = |item: &Item<usize, usize>| {
        crashing.commits.get(&item.lane).is_some_and(|done| done.last() >= Some(&item.position))
    };
    let mut source = Lanes::new(&place, items().filter(|item| !durable(item)));
    let end = run(&place, &publisher, &mut source).await.unwrap();

    assert!(matches!(crashed, Err(Error::Source { .. })), "{crashed:?}");
    assert_eq!(end, End::Finished);
    let records = place.read(&place.name(EVENTS)).await;
    assert!(
        records.len() > LANES * per_lane,
        "nothing was repeated: the crash came too late to show anything"
    );
    for lane in 0..LANES {
        let found = ids(&records, lane);
        let mut seen = BTreeSet::new();
        let firsts: Vec<&String> = found.iter().filter(|id| seen.insert(*id)).collect();
        let wanted: Vec<String> = (0..per_lane).map(|number| id(lane, number)).collect();
        assert_eq!(firsts, wanted.iter().collect::<Vec<_>>());
    }
    let mut bodies: BTreeMap<&str, &Option<Bytes>> = BTreeMap::new();
    for record in &records {
        let body = bodies.entry(header(record, "tributary.id").unwrap()).or_insert(&record.value);
        assert!(**body == record.value, "a repetition has another value");
    }
    assert_eq!(source.early, [], "commits before Kafka had the records");
    Ok(())
}

async fn run(
    place: &Place,
    publisher: &Publisher<tributary::kafka::Producer>,
    source: &mut Lanes,
) -> std::result::Result<End, Error> {
    let letters = DeadLetters {
        topic: place.name(Topic::DeadLetters).into(),
        partitions: PARTITIONS,
        connector: "hooks".into(),
        task: 0,
        logged: true,
        prefix: place.prefix.clone(),
        signer: LetterSigner::default(),
    };
    let limits = Limits { in_flight_bytes: 8 << 20, ..Limits::default() };
    Driver::new(source, publisher, Some(&letters), limits).run(&CancellationToken::new()).await
}

/// Items in memory, a few at a time, and what became of them.
struct Lanes {
    items: VecDeque<Item<usize, usize>>,
    /// Positions committed, by lane.
    commits: HashMap<usize, Vec<usize>>,
    /// Commits that succeed before one fails.
    commits_left: usize,
    /// Lane, position and high watermarks of commits that came before Kafka had the records.
    early: Vec<(usize, usize, i64)>,
    /// A client of its own, to look past the product.
    watcher: std::sync::Arc<BaseConsumer>,
    topics: [String; 2],
}

impl Lanes {
    fn new(place: &Place, items: impl IntoIterator<Item = Item<usize, usize>>) -> Self {
        let mut config = rdkafka::ClientConfig::new();
        config.set("bootstrap.servers", &place.kafka.bootstrap_servers);
        Self {
            items: items.into_iter().collect(),
            commits: HashMap::new(),
            commits_left: usize::MAX,
            early: Vec::new(),
            watcher: std::sync::Arc::new(config.create().unwrap()),
            topics: [EVENTS, Topic::DeadLetters].map(|topic| place.name(topic)),
        }
    }

    /// Records in the log of a lane's partition, dead letters included.
    async fn written(&self, lane: usize) -> i64 {
        let (watcher, topics) = (std::sync::Arc::clone(&self.watcher), self.topics.clone());
        let partition = partition_of(company(lane).as_bytes(), PARTITIONS);
        let asking = tokio::task::spawn_blocking(move || {
            let high = |topic| watcher.fetch_watermarks(topic, partition, Duration::from_secs(10)).unwrap().1;
            topics.iter().map(|topic| high(topic)).sum()
        });
        asking.await.unwrap()
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the commit is lost in a crash")]
struct Crash;

impl Source for Lanes {
    type Lane = usize;
    type Position = usize;
    type Error = Crash;

    async fn next(&mut self) -> std::result::Result<Option<Batch<Self>>, Crash> {
        let count = self.items.len().min(7);
        Ok((count > 0).then(|| self.items.drain(..count).collect()))
    }

    async fn commit(&mut self, lane: &usize, position: &usize) -> std::result::Result<(), Crash> {
        let written = self.written(*lane).await;
        if written <= *position as i64 {
            self.early.push((*lane, *position, written));
        }
        self.commits_left = self.commits_left.checked_sub(1).ok_or(Crash)?;
        self.commits.entry(*lane).or_default().push(*position);
        Ok(())
    }

    fn retry(&self, _: &Crash) -> Retry {
        Retry::Later
    }
}

fn plain(lane: usize, number: usize) -> Item<usize, usize> {
    with_note(lane, number, format!("größe {number}"))
}

fn oversized(lane: usize, number: usize) -> Item<usize, usize> {
    with_note(lane, number, String::from_utf8(incompressible(OVERSIZED)).unwrap())
}

fn unreadable(lane: usize, number: usize) -> Item<usize, usize> {
    let failure = Failure {
        stage: Stage::Read,
        class: "test::Unreadable",
        message: "no JSON".into(),
        causes: Vec::new(),
    };
    let original = Original {
        key: company(lane).into(),
        value: Bytes::from_static(b"{ no JSON \xff\x00"),
        place: Some(("the.origin".into(), 7, number as i64)),
    };
    Item { lane, position: number, original, content: Content::Unreadable(failure) }
}

fn with_note(lane: usize, number: usize, note: String) -> Item<usize, usize> {
    let json = serde_json::json!({
        "ExtraPartitionInformation": { "PartitionClientId": company(lane) }, "Number": number, "Note": note,
    });
    let body = Bytes::from(json.to_string());
    let reception = Reception { connector: "hooks", received_at: 1 };
    let event = AccountingEvent::from_json(&body, RESOURCE, reception).unwrap();
    let meta = Meta::new(id(lane, number), Origin::Webhook);
    // Stamped by the producer: retention would remove a record of 1970.
    let outgoing = Outgoing { timestamp_ms: None, ..Outgoing::new(event.into(), meta).unwrap() };
    let original = Original { key: company(lane).into(), value: body, place: None };
    Item { lane, position: number, original, content: Content::Records(vec![outgoing]) }
}

/// A company whose partition is the lane's number.
fn company(lane: usize) -> String {
    let candidates = (0..).map(|number| format!("acc:{number}:CM:company"));
    let mut own = candidates.filter(|name| partition_of(name.as_bytes(), PARTITIONS) == lane as i32);
    own.next().unwrap()
}

fn id(lane: usize, number: usize) -> String {
    format!("{lane}/{number}")
}

/// The ids of a lane's records, in the order of its partition.
fn ids(records: &[Received], lane: usize) -> Vec<String> {
    let own = records.iter().filter(|record| record.key.as_deref() == Some(company(lane).as_bytes()));
    own.map(|record| header(record, "tributary.id").unwrap().to_owned()).collect()
}
