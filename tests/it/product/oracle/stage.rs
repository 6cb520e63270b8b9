//! The parts of a test of a receiving worker: a breakable broker, a registry behind a proxy, a worker with TLS, a ledger.

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tributary::avro::embedded::EmbeddedRegistry;

use super::delivery::{Id, Maker};
use super::judge::{DeliveryVerdict, judge};
use super::ledger::Ledger;
use super::reader::Reader;
use super::senders::{Senders, client};
use super::worker::{SECRET, Settings, Worker};
use crate::support::{Error, Proxy, Result, breakable};

/// Limit for reading a topic on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);
/// Limit until all acknowledged deliveries are in the topic, once nothing is broken any more.
const RECOVERY: Duration = Duration::from_secs(120);
/// Time between two deliveries of a company.
const PACE: Duration = Duration::from_millis(20);
/// The worker's `session.timeout.ms`; as short as the broker allows, so that three of them are soon over.
pub(super) const SESSION: Duration = Duration::from_millis(1500);

/// A receiving worker with its broker, registry and ledger.
pub(super) struct ReceiverStage {
    pub(super) broker: breakable::BrokerGuard,
    /// The proxy before the registry.
    pub(super) registry: Proxy,
    pub(super) worker: Worker,
    pub(super) ledger: Arc<Ledger>,
    maker: Maker,
    /// Held, not used: dropping it ends it.
    _registry: EmbeddedRegistry,
}

impl ReceiverStage {
    /// Starts everything, with these settings of the connector over those it needs, and waits until the worker receives.
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

    /// Ends the worker with `end`, starts it again and waits until it receives. Deliveries that are sent meanwhile need no answer.
    pub(super) async fn restart(&mut self, end: impl AsyncFnOnce(&Worker) -> Result<()>) -> Result<()> {
        self.ledger.receiver_stops();
        end(&self.worker).await?;
        self.worker.start_again()?;
        until_received(&self.worker).await?;
        self.ledger.receiver_listens();
        Ok(())
    }

    /// Starts the senders of this many companies.
    pub(super) fn senders(&self, companies: u32) -> Senders {
        Senders::start(&self.ledger, &self.maker, self.worker.target(), companies, PACE)
    }

    /// Waits until `more` deliveries have been acknowledged.
    pub(super) async fn until_acknowledged(&self, more: u64) -> Result<()> {
        let wanted = self.ledger.acknowledged() + more;
        self.until(&format!("{more} more acknowledged"), async || self.ledger.acknowledged() >= wanted).await
    }

    /// Waits until all spooled deliveries are in Kafka.
    pub(super) async fn until_drained(&self) -> Result<()> {
        let empty = async || self.worker.metric("tributary_spool_entries").await == Some(0.0);
        self.until("an empty spool", empty).await
    }

    /// Waits until this holds, as long as the worker lives.
    pub(super) async fn until(&self, what: &str, so: impl AsyncFnMut() -> bool) -> Result<()> {
        let waited = self.worker.until(what, so).await;
        waited.map_err(|error| Error(format!("{}: {error}", self.ledger.figures())))
    }

    /// Waits until all acknowledged deliveries are in the topic and the spool is empty, stops the worker, and judges. The broker must
    /// be reachable.
    pub(super) async fn verdict(&self) -> Result<DeliveryVerdict> {
        let entries = self.ledger.entries();
        let owed: HashSet<Id> =
            entries.iter().filter(|entry| entry.acknowledged.is_some()).map(|entry| entry.id).collect();
        let bootstrap = self.broker.bootstrap_past_proxy();
        let (events, letters, maker) = (self.worker.events(), self.worker.dead_letters(), self.maker.clone());
        let reading = tokio::task::spawn_blocking(move || {
            let mut reader = Reader::open(&bootstrap, &events, &[&letters], maker);
            // The judge reports those that are missing.
            reader.until_seen(owed, RECOVERY);
            reader
        });
        let mut reader = reading.await.map_err(|error| Error(format!("read the topics: {error}")))?;
        let drained = self.until_drained().await;
        let stopped = self.worker.stop().await;
        let judging = tokio::task::spawn_blocking(move || judge(&entries, reader.read_to_end(LIMIT)));
        let verdict = judging.await.map_err(|error| Error(format!("judge: {error}")))?;
        // The verdict says more than a spool that is not empty.
        drained.and(stopped).map_err(|error| Error(format!("{verdict}: {error}")))?;
        Ok(verdict)
    }
}

/// Waits until the worker knows its connector and answers 401 to an unsigned request.
async fn until_received(worker: &Worker) -> Result<()> {
    let (client, url) = (client(worker.target(), true), &worker.target().url);
    let asked = async || {
        worker.is_received().await && client.post(url).send().await.is_ok_and(|answer| answer.status() == 401)
    };
    worker.until("a receiver", asked).await
}
