//! The driver against a source and a sink in memory, whose every step the test decides.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use futures::channel::oneshot;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{
    avro::{Ids, Registry, embedded::Server},
    config,
    kafka::samples,
    model::{AccountingResource, Company, EncodedRecord, Meta, Origin, Outgoing, Topic, TopicPrefix},
    retry::Policy,
};

#[derive(Debug, thiserror::Error)]
#[error("the source is broken")]
struct Broken;

/// Gives what the test sends it, and tells what is committed.
struct Script {
    /// What becomes of commits of a lane, where it is not success.
    trouble: BTreeMap<&'static str, Trouble>,
    batches: mpsc::UnboundedReceiver<Result<Batch<Script>, Broken>>,
    committed: watch::Sender<BTreeMap<&'static str, u32>>,
    asked: watch::Sender<u32>,
}

impl Source for Script {
    type Lane = &'static str;
    type Position = u32;
    type Error = Broken;

    async fn next(&mut self) -> Result<Option<Batch<Self>>, Broken> {
        self.asked.send_modify(|asked| *asked += 1);
        self.batches.recv().await.transpose()
    }

    async fn commit(&mut self, lane: &&'static str, position: &u32) -> Result<(), Broken> {
        match self.trouble.get(lane) {
            Some(Trouble::Hangs) => std::future::pending().await,
            Some(Trouble::Fails) => return Err(Broken),
            None => {}
        }
        self.committed.send_modify(|committed| {
            let earlier = committed.insert(lane, *position);
            assert!(
                earlier.is_none_or(|earlier| earlier < *position),
                "{lane} went from {earlier:?} to {position}"
            );
        });
        Ok(())
    }

    fn retry(&self, _: &Broken) -> Retry {
        Retry::After(Duration::from_secs(7))
    }
}

/// A record and the means to report on it, until that is done.
type Sent = (EncodedRecord, Option<oneshot::Sender<Delivered>>);

#[derive(Clone, Copy)]
enum Trouble {
    Hangs,
    Fails,
}

/// Keeps what it is sent until the test reports on it.
#[derive(Clone, Default)]
struct Memory {
    sent: Arc<Mutex<Vec<Sent>>>,
    refusals: Arc<Mutex<VecDeque<kafka::Error>>>,
    bell: Arc<tokio::sync::Notify>,
}

impl RecordSink for Memory {
    type Delivery = futures::future::Map<oneshot::Receiver<Delivered>, fn(Reported) -> Delivered>;

    fn send(&self, record: EncodedRecord) -> Result<Self::Delivery, kafka::SendError> {
        if let Some(error) = self.refusals.lock().unwrap().pop_front() {
            return Err(kafka::SendError { record: Box::new(record), error });
        }
        let (report, reported) = oneshot::channel();
        self.sent.lock().unwrap().push((record, Some(report)));
        self.bell.notify_waiters();
        Ok(futures::FutureExt::map(reported, (|reported: Reported| reported.unwrap()) as fn(_) -> _))
    }
}

type Delivered = Result<kafka::Ack, kafka::Error>;
type Reported = Result<Delivered, oneshot::Canceled>;

impl Memory {
    /// Waits until `count` records have been sent.
    async fn sent(&self, count: usize) {
        loop {
            let rung = self.bell.notified();
            if self.sent.lock().unwrap().len() >= count {
                return;
            }
            rung.await;
        }
    }

    fn report(&self, index: usize, outcome: Delivered) {
        let report = self.sent.lock().unwrap()[index].1.take().unwrap();
        report.send(outcome).ok();
    }

    fn record(&self, index: usize) -> EncodedRecord {
        self.sent.lock().unwrap()[index].0.clone()
    }
}

fn ack() -> Delivered {
    Ok(kafka::Ack { partition: 0, offset: 0, timestamp_ms: None })
}

/// A running driver with all its strings in the test's hands.
struct Rig {
    feed: mpsc::UnboundedSender<Result<Batch<Script>, Broken>>,
    sink: Memory,
    committed: watch::Receiver<BTreeMap<&'static str, u32>>,
    asked: watch::Receiver<u32>,
    cancel: CancellationToken,
    run: tokio::task::JoinHandle<Result<End, Error>>,
}

impl Rig {
    async fn start(tolerant: bool, in_flight_bytes: usize, refusals: Vec<kafka::Error>) -> Self {
        let drain = Duration::from_secs(20);
        Self::start_with(tolerant, Limits { in_flight_bytes, drain, ..short() }, refusals, &[]).await
    }

    async fn start_with(
        tolerant: bool,
        limits: Limits,
        refusals: Vec<kafka::Error>,
        trouble: &[(&'static str, Trouble)],
    ) -> Self {
        let server = Server::start().await.unwrap();
        let state = tempfile::tempdir().unwrap();
        let registry = Registry::new(&config::Registry::open(server.url().clone())).unwrap();
        let ids = Ids::open(registry, state.path()).await;
        let prefix = TopicPrefix::new("p").unwrap();
        let topics = [Topic::AccountingRecords(AccountingResource::Companies), topic_of_customers()];
        let subjects: Vec<_> = topics.iter().filter_map(|topic| avro::Subject::of(*topic, &prefix)).collect();
        ids.prepare(&subjects).await.unwrap();
        let preparer = Preparer::new(&prefix, 3, avro::Encoder::new(&ids, &subjects));
        let sink = Memory { refusals: Arc::new(Mutex::new(refusals.into())), ..Memory::default() };
        let (feed, batches) = mpsc::unbounded_channel();
        let (committed_sender, committed) = watch::channel(BTreeMap::new());
        let (asked_sender, asked) = watch::channel(0);
        let cancel = CancellationToken::new();
        let trouble = trouble.iter().copied().collect();
        let mut source = Script { trouble, batches, committed: committed_sender, asked: asked_sender };
        let publisher = Publisher::new(preparer, sink.clone());
        let dead_letters = DeadLetters {
            topic: "p.dead-letters".into(),
            partitions: 3,
            connector: "c".into(),
            task: 0,
            logged: false,
            prefix: TopicPrefix::new("p").unwrap(),
            signer: LetterSigner::default(),
        };
        let token = cancel.clone();
        let run = tokio::spawn(async move {
            let dead_letters = tolerant.then_some(&dead_letters);
            Driver::new(&mut source, &publisher, dead_letters, limits).run(&token).await
        });
        Self { feed, sink, committed, asked, cancel, run }
    }

    async fn tolerant() -> Self {
        Self::start(true, 1 << 20, vec![]).await
    }

    fn give(&self, items: Vec<Item<&'static str, u32>>) {
        self.feed.send(Ok(items)).unwrap();
    }

    async fn committed(&mut self, lane: &'static str, position: u32) {
        self.committed.wait_for(|committed| committed.get(lane) == Some(&position)).await.unwrap();
    }

    fn commits(&self) -> BTreeMap<&'static str, u32> {
        self.committed.borrow().clone()
    }

    /// Ends the source and waits for the run to end.
    async fn finish(self) -> Result<End, Error> {
        drop(self.feed);
        self.run.await.unwrap()
    }
}

/// Bounds under which nothing takes long.
fn short() -> Limits {
    Limits {
        in_flight_bytes: 1 << 20,
        open_positions: 100,
        retry: Policy { first: Duration::from_millis(1), longest: Duration::from_millis(2), total: None },
        drain: Duration::from_millis(50),
    }
}

fn topic_of_customers() -> Topic {
    Topic::AccountingRecords(AccountingResource::Customers)
}

fn company(id: u32) -> Outgoing {
    let json = format!(r#"{{"correlationId":"c-{id}","sequenceVersion":"1"}}"#);
    let value = Company::from_json(json.as_bytes()).unwrap().into();
    Outgoing::new(value, Meta::new(format!("id-{id}"), Origin::Snapshot)).unwrap()
}

fn item(lane: &'static str, position: u32, content: Content) -> Item<&'static str, u32> {
    let original = Original {
        key: Bytes::from(format!("key-{position}")),
        value: Bytes::from(format!("original-{position}")),
        place: None,
    };
    Item { lane, position, original, content }
}

fn records(lane: &'static str, position: u32, count: u32) -> Item<&'static str, u32> {
    item(lane, position, Content::Records((0..count).map(|n| company(position * 10 + n)).collect()))
}

fn header(record: &EncodedRecord, name: &str) -> String {
    let (_, value) = record.headers.iter().find(|(key, _)| *key == name).unwrap();
    String::from_utf8(value.to_vec()).unwrap()
}

#[tokio::test]
async fn a_position_is_committed_only_when_all_before_it_are_acknowledged() {
    let mut rig = Rig::tolerant().await;
    rig.give(vec![records("a", 1, 1), records("a", 2, 2), records("b", 7, 1)]);
    rig.sink.sent(4).await;

    rig.sink.report(1, ack());
    rig.sink.report(2, ack());
    rig.sink.report(3, ack());
    rig.committed("b", 7).await;
    assert_eq!(rig.commits().get("a"), None);

    rig.sink.report(0, ack());
    rig.committed("a", 2).await;
    assert_eq!(rig.finish().await.unwrap(), End::Finished);
}

#[tokio::test]
async fn records_are_sent_in_reading_order_even_when_the_queue_is_full_for_a_while() {
    let refusals = vec![samples::queue_full(), samples::queue_full()];
    let rig = Rig::start(true, 1 << 20, refusals).await;

    rig.give((1..=4).map(|position| records("a", position, 1)).collect());
    rig.sink.sent(4).await;

    let ids: Vec<_> = (0..4).map(|index| header(&rig.sink.record(index), "tributary.id")).collect();
    assert_eq!(ids, ["id-10", "id-20", "id-30", "id-40"]);
    (0..4).for_each(|index| rig.sink.report(index, ack()));
    assert_eq!(rig.finish().await.unwrap(), End::Finished);
}

#[tokio::test]
async fn what_cannot_be_read_converted_or_taken_becomes_a_dead_letter_and_counts_when_acknowledged() {
    let mut rig = Rig::tolerant().await;
    let unreadable = Failure { stage: Stage::Read, class: "x::Error", message: "no".into(), causes: vec![] };
    let mut misplaced = company(3);
    misplaced.topic = topic_of_customers();
    rig.give(vec![
        item("a", 1, Content::Unreadable(unreadable)),
        item("a", 2, Content::Records(vec![company(1), misplaced])),
        records("a", 3, 1),
    ]);
    rig.sink.sent(3).await;
    rig.sink.report(2, Err(samples::too_large()));
    rig.sink.sent(4).await;

    for (index, position, stage) in [(0, 1, "TASK_POLL"), (1, 2, "VALUE_CONVERTER"), (3, 3, "KAFKA_PRODUCE")]
    {
        let letter = rig.sink.record(index);
        assert_eq!(&*letter.topic, "p.dead-letters");
        assert_eq!(letter.value.as_deref(), Some(format!("original-{position}").as_bytes()));
        assert_eq!(header(&letter, "__connect.errors.stage"), stage);
    }
    assert_eq!(rig.commits(), BTreeMap::new());
    [0, 1, 3].into_iter().for_each(|index| rig.sink.report(index, ack()));
    rig.committed("a", 3).await;
    assert_eq!(rig.finish().await.unwrap(), End::Finished);
}

#[tokio::test]
async fn without_dead_letters_the_run_ends_and_the_position_stays_open() {
    let rig = Rig::start(false, 1 << 20, vec![]).await;
    let unreadable = Failure { stage: Stage::Read, class: "x::Error", message: "no".into(), causes: vec![] };

    rig.give(vec![records("a", 1, 1), item("a", 2, Content::Unreadable(unreadable))]);
    rig.sink.sent(1).await;
    rig.sink.report(0, ack());
    let commits = rig.committed.clone();
    let ended = rig.run.await.unwrap();

    assert!(matches!(ended, Err(Error::Intolerable { class: "x::Error", .. })), "{ended:?}");
    assert_eq!(commits.borrow().get("a"), Some(&1));
}

#[tokio::test]
async fn a_dead_letter_that_is_refused_ends_the_run_instead_of_being_dropped() {
    let rig = Rig::tolerant().await;
    rig.give(vec![records("a", 1, 1)]);
    rig.sink.sent(1).await;
    rig.sink.report(0, Err(samples::too_large()));
    rig.sink.sent(2).await;

    rig.sink.report(1, Err(samples::too_large()));
    let commits = rig.committed.clone();
    let ended = rig.run.await.unwrap();

    assert!(matches!(ended, Err(Error::Produce { .. })), "{ended:?}");
    assert!(commits.borrow().is_empty());
}

#[tokio::test]
async fn a_lost_delivery_ends_the_run_with_its_verdict_and_nothing_behind_it_is_committed() {
    for (error, verdict) in [(samples::purged(), Retry::Later), (samples::unauthorised(), Retry::Never)] {
        let rig = Rig::tolerant().await;
        rig.give((1..=3).map(|position| records("a", position, 1)).collect());
        rig.sink.sent(3).await;

        rig.sink.report(1, Err(error));
        rig.sink.report(0, ack());
        rig.sink.report(2, ack());
        let commits = rig.committed.clone();
        let ended = rig.run.await.unwrap().unwrap_err();

        assert_eq!(ended.retry(), verdict, "{ended}");
        assert_eq!(commits.borrow().get("a"), Some(&1));
    }
}

#[tokio::test]
async fn the_source_is_not_asked_for_more_while_the_bytes_in_flight_are_at_their_bound() {
    let mut rig = Rig::start(true, 1, vec![]).await;
    rig.give(vec![records("a", 1, 1), records("a", 2, 1)]);
    rig.give(vec![records("a", 3, 1)]);
    rig.sink.sent(1).await;
    assert_eq!(rig.sink.sent.lock().unwrap().len(), 1);
    assert_eq!(*rig.asked.borrow(), 1);

    rig.sink.report(0, ack());
    rig.sink.sent(2).await;
    rig.sink.report(1, ack());
    rig.sink.sent(3).await;
    rig.sink.report(2, ack());

    rig.committed("a", 3).await;
    assert_eq!(rig.finish().await.unwrap(), End::Finished);
}

#[tokio::test]
async fn a_cancelled_run_waits_for_reports_and_commits_what_they_settle() {
    let rig = Rig::tolerant().await;
    rig.give(vec![records("a", 1, 1), records("a", 2, 1)]);
    rig.sink.sent(2).await;
    rig.cancel.cancel();

    rig.sink.report(0, ack());
    rig.sink.report(1, ack());
    let commits = rig.committed.clone();
    let ended = rig.run.await.unwrap().unwrap();

    assert_eq!(ended, End::Cancelled);
    assert_eq!(commits.borrow().get("a"), Some(&2));
}

#[tokio::test]
async fn a_broken_source_ends_the_run_with_the_sources_own_verdict() {
    let rig = Rig::tolerant().await;

    rig.feed.send(Err(Broken)).unwrap();
    let ended = rig.run.await.unwrap().unwrap_err();

    assert_eq!(ended.retry(), Retry::After(Duration::from_secs(7)));
}

#[tokio::test]
async fn an_item_without_records_is_settled_at_once() {
    let mut rig = Rig::tolerant().await;

    rig.give(vec![records("a", 1, 0)]);

    rig.committed("a", 1).await;
    assert_eq!(rig.finish().await.unwrap(), End::Finished);
}

#[tokio::test]
async fn items_without_records_are_not_taken_in_without_end_behind_a_slow_one() {
    let mut rig = Rig::start(true, 1 << 20, vec![]).await;
    rig.give(vec![records("a", 0, 1)]);
    (1..1000).for_each(|position| rig.give(vec![records("a", position, 0)]));
    rig.sink.sent(1).await;
    // The bound is 100 positions; a batch of one item is asked for at a time.
    rig.asked.wait_for(|asked| *asked == 100).await.unwrap();
    tokio::task::yield_now().await;
    assert_eq!(*rig.asked.borrow(), 100);

    rig.sink.report(0, ack());

    rig.committed("a", 999).await;
    assert_eq!(rig.finish().await.unwrap(), End::Finished);
}

#[tokio::test]
async fn a_commit_that_hangs_does_not_outlive_the_stop() {
    let rig = Rig::start_with(true, short(), vec![], &[("a", Trouble::Hangs)]).await;
    rig.give(vec![records("a", 1, 1)]);
    rig.sink.sent(1).await;
    rig.sink.report(0, ack());

    rig.cancel.cancel();
    let ended = tokio::time::timeout(Duration::from_secs(20), rig.run).await;

    assert_eq!(ended.expect("the run goes on after the stop").unwrap().unwrap(), End::Cancelled);
}

#[tokio::test]
async fn a_lane_whose_commit_fails_neither_holds_back_the_others_nor_hides_why_the_run_ended() {
    let rig = Rig::start_with(true, short(), vec![], &[("bad", Trouble::Fails)]).await;
    rig.give(vec![records("good", 1, 1), records("bad", 1, 1), records("lost", 1, 1)]);
    rig.sink.sent(3).await;

    rig.sink.report(2, Err(samples::unauthorised()));
    rig.sink.report(0, ack());
    rig.sink.report(1, ack());
    let commits = rig.committed.clone();
    let ended = rig.run.await.unwrap().unwrap_err();

    assert!(matches!(ended, Error::Produce { .. }), "{ended:?}");
    assert_eq!(*commits.borrow(), BTreeMap::from([("good", 1)]));
}

#[tokio::test]
async fn a_record_for_a_topic_the_connector_does_not_have_is_a_dead_letter_not_a_standstill() {
    let mut rig = Rig::tolerant().await;
    let mut foreign = company(3);
    foreign.topic = Topic::AccountingRecords(AccountingResource::Suppliers);

    rig.give(vec![item("a", 1, Content::Records(vec![foreign])), records("a", 2, 1)]);
    rig.sink.sent(2).await;

    assert_eq!(&*rig.sink.record(0).topic, "p.dead-letters");
    (0..2).for_each(|index| rig.sink.report(index, ack()));
    rig.committed("a", 2).await;
}
