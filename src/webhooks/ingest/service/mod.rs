//! Starts the parts in order, says when one has ended, and stops them in order.

use std::{
    fmt, io,
    net::SocketAddr,
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures::future::join_all;
use tokio::{
    sync::{mpsc, watch},
    task::{JoinHandle, spawn_blocking},
    time::Instant,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use base::retry::Retry;
use kafka::{PlainWriter, ProducerOptions};
use server::Server;

use super::{
    config_watcher::{ConfigWatcher, WatchedParts},
    gap_file::GapFile,
    health::IngestStatus,
    heartbeat::Heartbeat,
    state_notes::{self, NoteChannels, StateNotes},
    topic_readiness::TopicReadiness,
};
use crate::{
    avro, config,
    plugin::{ReceiverFaults, RecordWriting},
    spool::{self, OpenedSpool, Spool, UnusedDatabase},
    state::{Table, configs::Configs},
    webhooks::{
        intake::{AnswerTimes, Intake, KafkaProducers},
        receiver::{self, AcknowledgeNote, Echoed, Oversized},
        receiver_table::{DeliveryStats, Receivers},
    },
};

/// Directory of the spool below `state.dir`.
const SPOOL: &str = "spool";
/// Acknowledges, echoes and oversized deliveries that may wait to be written, of each kind. Above it the provider has to send an oversized
/// delivery again, and the Acknowledge of a managed subscription, which is also counted. A dropped echo is not repeated: the hook stays
/// `Awaiting` until its next echo or first delivery, and is recreated after `subscriptions.acknowledge.timeout.ms`.
const NOTE_QUEUE: usize = 1_000;
/// Part of a stop that is left for the spool.
const SPOOL_CLOSE_TIME: Duration = Duration::from_secs(2);
/// Limit while the spool opens; [`ConfigWatcher::start`] replaces it.
const INITIAL_SPOOL_LIMIT: u64 = 1 << 30;

/// Why deliveries cannot be received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The spool cannot be opened.
    #[error("open the spool in {}: deliveries could not be kept there; {remedy}", directory.display())]
    Spool {
        /// Its directory.
        directory: PathBuf,
        /// What to do about it.
        remedy: &'static str,
        /// The cause.
        #[source]
        source: spool::Error,
    },
    /// The registry cannot be asked.
    #[error("set up the schema registry")]
    Registry(#[source] avro::Error),
    /// A blocking read of `state.dir` panicked.
    #[error("read state.dir at the start: the thread that reads it panicked")]
    Read(#[source] tokio::task::JoinError),
}

impl Error {
    /// Whether trying again may help.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::Spool { source, .. } => source.retry(),
            Self::Registry(source) => source.retry(),
            Self::Read(_) => Retry::Never,
        }
    }
}

/// Gives ingest the config topic. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct ConfigFeed(Arc<watch::Sender<Option<Table<Configs>>>>);

impl ConfigFeed {
    /// Follows this table from now on.
    pub(crate) fn follow(&self, configs: Table<Configs>) {
        self.0.send_replace(Some(configs));
    }
}

/// The receiving service of a worker; the module's head says what it does.
pub(crate) struct Ingest {
    status: IngestStatus,
    servers: Vec<Server>,
    feed: ConfigFeed,
    /// Tasks that must not end before the stop, by name.
    upkeep: Vec<(&'static str, JoinHandle<()>)>,
    cancel: CancellationToken,
    tasks: TaskTracker,
    routes: axum::Router,
}

impl Ingest {
    /// Opens the spool, starts to publish what it holds, and loads the receivers of the last run; [`Ingest::serve`] lets deliveries in.
    /// `None`: there is neither a listener nor a spool from before.
    ///
    /// # Errors
    /// The spool cannot be opened.
    pub(crate) async fn start(
        worker: &config::Worker,
        worker_id: &Arc<str>,
        store: RecordWriting,
    ) -> Result<Option<Self>, Error> {
        let options = spool::SpoolOptions::new(worker.state_dir.join(SPOOL), INITIAL_SPOOL_LIMIT);
        Self::start_on(options, worker, worker_id, store).await
    }

    /// The same with other options for the spool.
    async fn start_on(
        options: spool::SpoolOptions,
        worker: &config::Worker,
        worker_id: &Arc<str>,
        store: RecordWriting,
    ) -> Result<Option<Self>, Error> {
        let receives = !worker.webhook.listeners.is_empty();
        let directory = options.directory.clone();
        if !receives && !directory.exists() {
            return Ok(None);
        }
        let opened = match open(options).await {
            Ok(opened) => opened,
            Err(error) if !receives => {
                let error = base::retry::ErrorChain(&error).to_string();
                tracing::warn!(error, "what may be in the spool is not published by this worker");
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let OpenedSpool { spool, moved_aside, unopened } = opened;
        let readiness = TopicReadiness::new(store, spool.clone(), worker.topic_creation);
        let (state_dir, worker_name) = (worker.state_dir.clone(), Arc::clone(worker_id));
        let gaps = spawn_blocking(move || Arc::new(GapFile::load(&state_dir, worker_name)))
            .await
            .map_err(Error::Read)?;
        open_gaps_for_missing(&gaps, moved_aside, unopened).await;

        let receivers = Receivers::new();
        receivers.set_not_loaded(true);
        let faults = watch::Sender::new(ReceiverFaults::default());
        let fault_receiver = faults.subscribe();
        let parts = WatchedParts {
            providers: worker.providers.clone(),
            recheck_interval: worker.secrets_reload_interval,
            create: worker.topic_creation,
            receivers: receivers.clone(),
            readiness: readiness.clone(),
            spool: spool.clone(),
            gaps: Arc::clone(&gaps),
            faults,
        };
        let watcher = ConfigWatcher::start(parts, &worker.state_dir).await.map_err(Error::Read)?;

        let memory = worker.webhook.memory_bytes;
        let producers = KafkaProducers {
            kafka: worker.kafka.clone(),
            options: ProducerOptions { queue_bytes: memory.max(ProducerOptions::default().queue_bytes) },
        };
        let topics_ready = Arc::new(readiness.clone());
        let closed = |source| Error::Spool { directory: directory.clone(), remedy: RESTART_REMEDY, source };
        let intake = Intake::start(producers, spool.clone(), topics_ready, memory, AnswerTimes::default())
            .await
            .map_err(closed)?;
        let status = IngestStatus {
            receivers: receivers.clone(),
            spool: spool.clone(),
            intake: intake.clone(),
            readiness: readiness.clone(),
            faults: fault_receiver,
        };
        let (acknowledged, acknowledged_receiver) = mpsc::channel::<AcknowledgeNote>(NOTE_QUEUE);
        let (oversized, oversized_receiver) = mpsc::channel::<Oversized>(NOTE_QUEUE);
        let (echoed, echoed_receiver) = mpsc::channel::<Echoed>(NOTE_QUEUE);
        let delivery_stats = DeliveryStats::default();
        let options = receiver::ReceiverOptions {
            proxies: worker.webhook.proxies.clone(),
            verified_bytes: memory,
            oversized: Some(oversized),
            echoed: Some(echoed),
            delivery_stats: delivery_stats.clone(),
            ..receiver::ReceiverOptions::default()
        };
        let routes = receiver::router(receivers.clone(), intake.accept(), acknowledged, options);

        let (cancel, tasks) = (CancellationToken::new(), TaskTracker::new());
        let (feed, follows) = watch::channel(None);
        let notes = StateNotes {
            writer: PlainWriter::new(&worker.kafka, state_notes::QUEUE_BYTES),
            readiness: readiness.clone(),
            gaps: Arc::clone(&gaps),
            receivers,
            worker: Arc::clone(worker_id),
        };
        let heartbeat = Heartbeat::new(Arc::clone(worker_id), delivery_stats, receives);
        let channels = NoteChannels {
            acknowledged: acknowledged_receiver,
            oversized: oversized_receiver,
            echoed: echoed_receiver,
        };
        let upkeep = vec![
            ("config watcher", tasks.spawn(watcher.run(follows, cancel.clone()))),
            ("state notes", tasks.spawn(notes.run(channels, heartbeat, cancel.clone()))),
            ("schema id refresh", tasks.spawn(readiness.clone().confirm_ids(cancel.clone()))),
            ("spool watcher", tasks.spawn(watch_spool_failures(spool.clone(), gaps, cancel.clone()))),
        ];
        let (servers, feed) = (Vec::new(), ConfigFeed(Arc::new(feed)));
        Ok(Some(Self { status, servers, feed, upkeep, cancel, tasks, routes }))
    }

    /// What the public listeners answer.
    pub(crate) fn routes(&self) -> axum::Router {
        self.routes.clone()
    }

    /// Receives through these listeners.
    pub(crate) fn serve(&mut self, servers: Vec<Server>, certificate: Option<JoinHandle<()>>) {
        self.servers = servers;
        self.upkeep.extend(certificate.map(|watching| ("webhook certificate watcher", watching)));
    }

    /// Where deliveries are received.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(Server::address).collect()
    }

    /// Cancels its tasks.
    pub(crate) fn cancelled(&self) -> CancellationToken {
        self.cancel.clone()
    }

    /// Takes the config topic.
    pub(crate) fn feed(&self) -> ConfigFeed {
        self.feed.clone()
    }

    /// Its status for `/health`.
    pub(crate) fn watch(&self) -> IngestStatus {
        self.status.clone()
    }

    /// Waits until a part ends that must not, and names it.
    pub(crate) async fn ended(&mut self) -> &'static str {
        tokio::select! {
            part = crate::plugin::first_ended(&mut self.upkeep) => part,
            () = self.status.spool.ended() => "spool",
        }
    }

    /// Takes no more deliveries, answers those it has taken, publishes what can be published and keeps the rest.
    pub(crate) async fn stop(self, listening: Duration, until: Instant) {
        // Requests that wait for Kafka would outlive the listeners.
        self.status.intake.stop_waiting_for_kafka();
        let finished = join_all(self.servers.into_iter().map(|server| server.stop(listening))).await;
        if finished.contains(&false) {
            tracing::warn!("deliveries were still under way and were cut: the provider sends them again");
        }
        let intake = until.checked_sub(SPOOL_CLOSE_TIME).unwrap_or(until);
        self.status.intake.stop(intake.max(Instant::now() + Duration::from_millis(200))).await;
        self.cancel.cancel();
        self.status.readiness.close();
        self.tasks.close();
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(200));
        if !self.status.spool.close(left).await {
            tracing::warn!("the spool is still writing; the next start reads what it has");
        }
    }
}

impl fmt::Debug for Ingest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ingest").field("addresses", &self.addresses()).finish_non_exhaustive()
    }
}

const RESTART_REMEDY: &str = "start the worker again";

async fn open(options: spool::SpoolOptions) -> Result<OpenedSpool, Error> {
    let directory = options.directory.clone();
    let opened = spawn_blocking(move || Spool::open(options)).await.map_err(Error::Read)?;
    opened.map_err(|source| {
        let remedy = match &source {
            spool::Error::InUse { .. } => "give each worker its own state.dir, or end the other process",
            spool::Error::Directory { .. } => "make state.dir a directory that this worker may write to",
            _ => RESTART_REMEDY,
        };
        Error::Spool { directory, remedy, source }
    })
}

/// Opens a gap for each database of the spool that could not be opened or was moved aside. Every start repeats it for a moved one until
/// its gap is on disk.
async fn open_gaps_for_missing(
    gaps: &GapFile,
    moved_aside: Vec<UnusedDatabase>,
    unopened: Vec<UnusedDatabase>,
) {
    for missing in moved_aside {
        let folder = missing.folder.display().to_string();
        if !gaps.lost(missing.since, format!("a database of the spool was moved to {folder}")).await {
            continue;
        }
        let marked = spawn_blocking(move || missing.mark_recorded()).await;
        if let Err(error) = marked.unwrap_or_else(|error| Err(io::Error::other(error))) {
            tracing::warn!(folder, %error, "could not mark this database of the spool as reported; the next start reports it again");
        }
    }
    for UnusedDatabase { folder, since } in unopened {
        let folder = folder.display();
        let detail = format!("{folder} of the spool could not be opened; the next start tries again");
        gaps.lost(since, detail).await;
    }
}

/// Opens a gap for what the spool cannot read, and for what it keeps for another version.
async fn watch_spool_failures(spool: Spool, gaps: Arc<GapFile>, cancel: CancellationToken) {
    let mut failures = spool.failures();
    let (mut known, mut since) = (0, None);
    let watching = async {
        loop {
            let spool::SpoolFailures { unreadable, unreadable_since, foreign, .. } =
                failures.borrow_and_update().clone();
            if unreadable > known {
                let detail = format!("{} stretches of the spool cannot be read", unreadable - known);
                gaps.lost(unreadable_since.unwrap_or_else(SystemTime::now), detail).await;
                known = unreadable;
            }
            if let Some(oldest) = foreign.since.filter(|oldest| since.is_none_or(|since| *oldest < since)) {
                let detail = "deliveries in the spool are of a format that this version does not know; they stay there, and \
                              the version that wrote them publishes them";
                gaps.unusable(oldest, detail.to_owned()).await;
                since = Some(oldest);
            }
            if failures.changed().await.is_err() {
                return;
            }
        }
    };
    cancel.run_until_cancelled(watching).await;
}

#[cfg(test)]
mod tests;
