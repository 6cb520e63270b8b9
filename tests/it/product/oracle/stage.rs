//! What a test of a receiving worker stands on: the broker that tests may break, a registry behind a proxy, a worker with
//! TLS, a ledger.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tributary::avro::embedded::EmbeddedRegistry;

use super::delivery::{Id, Maker};
use super::judge::{Verdict, judge};
use super::ledger::Ledger;
use super::reader::Reader;
use super::senders::{Senders, client};
use super::worker::{SECRET, Settings, Worker};
use crate::support::{Error, Proxy, Result, breakable};

/// What a busy machine may need to read a topic.
const LIMIT: Duration = Duration::from_secs(60);
/// Until everything acknowledged is in the topic, once nothing is broken any more.
const RECOVERY: Duration = Duration::from_secs(120);
/// Time between two deliveries of a company.
const PACE: Duration = Duration::from_millis(20);
/// The worker's `session.timeout.ms`; as short as the broker allows, so that three of them are soon over.
pub(super) const SESSION: Duration = Duration::from_millis(1500);

/// Everything a test of a receiving worker stands on.
pub(super) struct Stage {
    pub(super) broker: breakable::Taken,
    /// The way to the registry.
    pub(super) registry: Proxy,
    pub(super) worker: Worker,
    pub(super) ledger: Arc<Ledger>,
    maker: Maker,
    /// Held, not used: dropping it would end it.
    _registry: EmbeddedRegistry,
}

impl Stage {
    /// Starts everything, the connector with these settings over those it needs, and waits until it is received.
    pub(super) async fn start(name: &str, connector: &[(&str, &str)]) -> Result<Self> {
        let session = SESSION.as_millis().to_string();
        let broker = breakable::take().await?;
        let server =
            EmbeddedRegistry::start().await.map_err(|error| Error(format!("start a registry: {error}")))?;
        let port = server.url().port().unwrap_or_default();
        let registry = Proxy::to(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await?;
        let settings = Settings {
            bootstrap: &broker.bootstrap(),
            registry: &format!("http://{}", registry.address()),
            tls: true,
            properties: &[
                ("session.timeout.ms", &session),
                ("heartbeat.interval.ms", "300"),
                ("shutdown.timeout.ms", "5000"),
            ],
            connector,
        };
        let worker = Worker::start(name, settings)?;
        until_received(&worker).await?;
        let (ledger, maker) = (Arc::new(Ledger::new()), Maker::new(SECRET, std::process::id()));
        Ok(Self { broker, registry, worker, ledger, maker, _registry: server })
    }

    /// The worker's next life, after its present one was ended this way; returns when it receives. What is sent meanwhile need
    /// not be answered.
    pub(super) async fn restart(&mut self, end: impl AsyncFnOnce(&Worker) -> Result<()>) -> Result<()> {
        self.ledger.nobody_listens();
        end(&self.worker).await?;
        self.worker.start_again()?;
        until_received(&self.worker).await?;
        self.ledger.somebody_listens();
        Ok(())
    }

    /// So many companies begin to send.
    pub(super) fn senders(&self, companies: u32) -> Senders {
        Senders::start(&self.ledger, &self.maker, self.worker.target(), companies, PACE)
    }

    /// Waits until so many more deliveries have been acknowledged.
    pub(super) async fn until_acknowledged(&self, more: u64) -> Result<()> {
        let wanted = self.ledger.acknowledged() + more;
        self.until(&format!("{more} more acknowledged"), async || self.ledger.acknowledged() >= wanted).await
    }

    /// Waits until everything accepted is in Kafka.
    pub(super) async fn until_drained(&self) -> Result<()> {
        let empty = async || self.worker.metric("tributary_spool_entries").await == Some(0.0);
        self.until("an empty spool", empty).await
    }

    /// Waits until this is so, as long as the worker lives.
    pub(super) async fn until(&self, what: &str, so: impl AsyncFnMut() -> bool) -> Result<()> {
        let waited = self.worker.until(what, so).await;
        waited.map_err(|error| Error(format!("{}: {error}", self.ledger.figures())))
    }

    /// Waits until everything acknowledged is in the topic and the spool is empty, ends the worker in order, and judges. The
    /// broker has to be well.
    pub(super) async fn verdict(&self) -> Result<Verdict> {
        let entries = self.ledger.entries();
        let owed: HashSet<Id> =
            entries.iter().filter(|entry| entry.acknowledged.is_some()).map(|entry| entry.id).collect();
        let bootstrap = self.broker.bootstrap_past_proxy();
        let (events, letters, maker) = (self.worker.events(), self.worker.dead_letters(), self.maker.clone());
        let reading = tokio::task::spawn_blocking(move || {
            let mut reader = Reader::open(&bootstrap, &events, &[&letters], maker);
            // Whether they came is the judge's to say.
            reader.until_seen(owed, RECOVERY);
            reader
        });
        let mut reader = reading.await.map_err(|error| Error(format!("read the topics: {error}")))?;
        let drained = self.until_drained().await;
        let stopped = self.worker.stop().await;
        let judging = tokio::task::spawn_blocking(move || judge(&entries, reader.read_to_end(LIMIT)));
        let verdict = judging.await.map_err(|error| Error(format!("judge: {error}")))?;
        // What was lost says more than a spool that is not empty.
        drained.and(stopped).map_err(|error| Error(format!("{verdict}: {error}")))?;
        Ok(verdict)
    }
}

/// Waits until the worker knows its connector and asks whoever delivers for a signature.
async fn until_received(worker: &Worker) -> Result<()> {
    let (client, url) = (client(worker.target(), true), &worker.target().url);
    let asked = async || {
        worker.is_received().await && client.post(url).send().await.is_ok_and(|answer| answer.status() == 401)
    };
    worker.until("a receiver", asked).await
}
