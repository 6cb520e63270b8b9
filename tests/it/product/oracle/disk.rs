//! Answers in time, and no loss, whatever the spool's disk does: receiver, intake and spool in this process, without Kafka, on a disk
//! that is slow, full or stuck on request.
//!
//! Every delivery is spooled, so every answer depends on the disk. Acknowledged deliveries must be in the spool, in order.

use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kafka::ProducerOptions;
use server::{Server, ServerOptions};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tributary::config;
use tributary::spool::{Spool, SpoolOptions};
use tributary::webhooks::delivery::DeliveryContext;
use tributary::webhooks::intake::{AnswerTimes, Intake, KafkaProducers, PublishReadiness, ReadyTopics};
use tributary::webhooks::receiver::{self, router};
use tributary::webhooks::receiver_table::{
    AccountingReceiver, Advertised, Receiver, ReceiverState, Receivers,
};
use tributary::webhooks::signature::SigningKeys;

use super::delivery::{Id, Maker};
use super::judge::{Appearance, judge};
use super::ledger::{Figures, LIMIT as ANSWERED, Ledger};
use super::senders::{Senders, Target};
use super::worker::SECRET;
use crate::support::fault::{Fault, Faulty};
use crate::support::{Result, lost, run_directory};

crate::tests! {
    plain every_answer_is_200_in_time_while_each_sync_takes_20_ms;
    plain a_stuck_disk_is_answered_503_in_time_until_it_recovers;
    plain a_full_disk_is_answered_503_in_time_until_there_is_room;
    plain writes_that_fail_are_answered_503_in_time_and_lose_nothing;
}

const COMPANIES: u32 = 32;
const ENOUGH: u64 = 10 * COMPANIES as u64;
const PACE: Duration = Duration::from_millis(5);
/// Limit for each step; time that the machine lost does not count.
const LIMIT: Duration = Duration::from_secs(30);
/// The same for limits of the product, which are wall time.
const ENDING: Duration = lost::longest(LIMIT);

async fn every_answer_is_200_in_time_while_each_sync_takes_20_ms() -> Result<()> {
    let receiver = SpoolingReceiver::start("disk-slow").await?;
    receiver.disk.slow_down(Duration::from_millis(20));
    let senders = receiver.senders();

    receiver.until("answers", |figures| figures.status(200) >= ENOUGH).await;

    let figures = receiver.finish("each sync takes 20 ms", senders).await;
    assert!(figures.statuses.keys().eq([&200]), "{figures}");
    Ok(())
}

async fn a_stuck_disk_is_answered_503_in_time_until_it_recovers() -> Result<()> {
    recovers("disk-stuck", "the disk hangs", COMPANIES.into(), Faulty::hold, Faulty::release).await
}

async fn a_full_disk_is_answered_503_in_time_until_there_is_room() -> Result<()> {
    recovers(
        "disk-full",
        "the disk is full",
        ENOUGH,
        |disk| disk.set_free_bytes(Some(0)),
        |disk| disk.set_free_bytes(None),
    )
    .await
}

/// Harms the disk until there are this many refusals, and heals it.
async fn recovers(name: &str, case: &str, refusals: u64, harm: fn(&Faulty), heal: fn(&Faulty)) -> Result<()> {
    let receiver = SpoolingReceiver::start(name).await?;
    let senders = receiver.senders();
    receiver.until("answers", |figures| figures.status(200) >= ENOUGH).await;

    harm(&receiver.disk);
    receiver.until("refusals", |figures| figures.status(503) >= refusals).await;
    heal(&receiver.disk);
    let before = receiver.ledger.figures().status(200);
    receiver.until("more answers", |figures| figures.status(200) >= before + ENOUGH).await;

    let figures = receiver.finish(case, senders).await;
    assert!(figures.statuses.keys().eq([&200, &503]), "{figures}");
    Ok(())
}

async fn writes_that_fail_are_answered_503_in_time_and_lose_nothing() -> Result<()> {
    let receiver = SpoolingReceiver::start("disk-failing").await?;
    let senders = receiver.senders();

    for (cycle, fault) in [Fault::NoSpace, Fault::Write, Fault::Sync].into_iter().enumerate() {
        let before = receiver.ledger.figures().status(200);
        receiver.until("answers", |figures| figures.status(200) >= before + ENOUGH).await;
        receiver.disk.fail_commits(&[fault]);
        receiver.until("refusals", |figures| figures.status(503) > cycle as u64).await;
    }
    let before = receiver.ledger.figures().status(200);
    receiver.until("more answers", |figures| figures.status(200) >= before + ENOUGH).await;

    let figures = receiver.finish("writes fail", senders).await;
    assert!(figures.statuses.keys().eq([&200, &503]), "{figures}");
    Ok(())
}

/// A receiver of one connector without topics, so that every delivery is spooled.
struct SpoolingReceiver {
    disk: Faulty,
    spool: Spool,
    ledger: Arc<Ledger>,
    maker: Maker,
    target: Target,
    intake: Intake<KafkaProducers>,
    server: Server,
}

/// Reports that the connector's topics do not exist.
struct NoTopics;

impl PublishReadiness for NoTopics {
    fn ready(&self, _: &DeliveryContext) -> Option<Arc<ReadyTopics>> {
        None
    }

    fn recheck(&self, _: &DeliveryContext) {}

    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(pending())
    }
}

impl SpoolingReceiver {
    async fn start(name: &str) -> Result<Self> {
        let disk = Faulty::default();
        let options = SpoolOptions::new(run_directory::create(name)?.join("spool"), 1 << 30);
        let options = SpoolOptions { storage: Arc::new(disk.clone()), ..options };
        let spool = Spool::open(options).unwrap().spool;
        let producers = KafkaProducers { kafka: nowhere(), options: ProducerOptions::default() };
        let intake =
            Intake::start(producers, spool.clone(), Arc::new(NoTopics), 64 << 20, AnswerTimes::default())
                .await
                .unwrap();
        let receivers = Receivers::new();
        let receiver = Receiver {
            connector: "hooks".into(),
            prefix: "p".into(),
            dead_letter_topic: "p.dead-letters".into(),
            state: ReceiverState::Running,
            accounting: Some(AccountingReceiver {
                keys: SigningKeys::new([SECRET.as_bytes()]),
                body_limit: 1 << 20,
            }),
            invoicing: None,
            sources: Vec::new(),
            advertised: Advertised::default(),
        };
        receivers.set(vec![Arc::new(receiver)], Vec::new());
        let (acknowledged, _) = mpsc::channel(1);
        let router = router(receivers, intake.accept(), acknowledged, receiver::ReceiverOptions::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/webhooks/accounting/hooks", listener.local_addr().unwrap());
        let server = Server::start(listener, router, ServerOptions::default()).unwrap();
        Ok(Self {
            disk,
            spool,
            ledger: Arc::new(Ledger::new()),
            maker: Maker::new(SECRET, 1),
            target: Target { url, certificate: None },
            intake,
            server,
        })
    }

    fn senders(&self) -> Senders {
        Senders::start(&self.ledger, &self.maker, &self.target, COMPANIES, PACE)
    }

    async fn until(&self, what: &str, holds: impl Fn(&Figures) -> bool) {
        let began = Instant::now();
        while !holds(&self.ledger.figures()) {
            assert!(lost::fair(began) < LIMIT, "no {what} within {LIMIT:?}: {}", self.ledger.figures());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Ends everything and judges the spool.
    async fn finish(self, case: &str, senders: Senders) -> Figures {
        senders.stop().await;
        let (entries, figures) = (self.ledger.entries(), self.ledger.figures());
        self.intake.stop(tokio::time::Instant::now() + ENDING).await;
        assert!(self.server.stop(ENDING).await, "the listener ends");
        let verdict = judge(&entries, &appearances(&self.spool).await);
        assert!(self.spool.close(ENDING).await, "the spool closes");

        println!("{case}: worst answer {:.0?}; {figures}; {verdict}", figures.worst());
        verdict.check();
        assert_eq!((figures.late, figures.improper), (0, 0), "{figures}");
        assert_eq!((figures.broken, figures.refused), (0, 0), "{figures}");
        assert!(figures.worst() < ANSWERED, "{figures}");
        figures
    }
}

/// All entries of the spool, by lane and in sequence.
async fn appearances(spool: &Spool) -> Vec<Appearance> {
    let mut found = Vec::new();
    for state in spool.lanes().await.unwrap() {
        let mut after = None;
        loop {
            let entries = spool.read(&state.lane, after, 256, 1 << 20).await.unwrap().entries;
            let Some(last) = entries.last() else { break };
            after = Some(last.sequence);
            found.extend(entries.iter().map(|entry| Appearance {
                id: member(&entry.payload, "OutgoingId"),
                key: member(&entry.payload, "PartitionClientId"),
                partition: state.lane.number.into(),
                offset: entry.sequence as i64,
                intact: true,
            }));
        }
    }
    found
}

/// The GUID of this member in the delivery's JSON.
fn member(payload: &[u8], name: &str) -> Option<Id> {
    let name = format!("\"{name}\":\"");
    let at = payload.windows(name.len()).position(|window| window == name.as_bytes())? + name.len();
    Id::parse(payload.get(at..at + 36)?)
}

fn nowhere() -> kafka::Kafka {
    let settings = [
        ("CONNECT_BOOTSTRAP_SERVERS", "127.0.0.1:1"),
        ("CONNECT_VALUE_CONVERTER_SCHEMA_REGISTRY_URL", "http://127.0.0.1:1"),
    ];
    let settings = settings.map(|(key, value)| (key.into(), value.into()));
    config::Worker::load(None, settings).unwrap().config.kafka
}
