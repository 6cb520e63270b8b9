//! One worker: its topics, tables, membership, supervisor and admin listeners, started and stopped in order.
//!
//! ```text
//! bind: listeners, ingest ─▶ run: config topic is ours? ─▶ topics ─▶ tables ─▶ cluster's record ─▶ group ─▶ supervisor ─▶ API
//! stop: listeners (requests in flight are answered) ─┬▶ tasks, connectors ─▶ statuses ─▶ group
//!                                                    └▶ intake ─▶ spool
//! ```
//!
//! - Deliveries are received from the first moment, with the last known receivers ([`ingest`]), to the last, whether Kafka is
//!   reachable or not.
//! - The listeners come first: while the worker starts, `/health` says so, and requests wait a while for the API.
//! - Nothing is created or written before an existing config topic is known to be this cluster's.
//! - Start-up retries as long as a retry may help; a problem that needs a person (a topic of another cluster, a wrong policy)
//!   ends the worker with the reason.
//! - Stop is in the order listeners, tasks, producers, offsets, all within `shutdown.timeout.ms`: each task ends its own
//!   producer, whose last transaction holds its offsets. Then the statuses are flushed. Leaving the group comes last, so that
//!   no other worker takes over what is still being written.
//!
//! If an essential part ends (supervisor, membership, the topics' ownership, the connector file watcher, the log level
//! follower, the grant refresh), the worker is unhealthy, stops in the same order, and ends with the reason.

mod certificates;
mod classes;
mod health;
mod listen;
mod scrape;
pub mod snapshots;
mod start;
mod subscriptions;

pub(crate) use self::listen::certificate;

use std::{io, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use futures::future::join_all;
use tokio::{
    sync::watch,
    task::{JoinHandle, spawn_blocking},
    time::{Instant, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use base::{
    durable,
    retry::{ErrorChain, Retry},
};
use kafka::{Admin, Membership};
use provider::auth::seal;
use server::{CertificateError, Certificates, Server};

use self::health::{Health, Phase};
use crate::{
    avro, config,
    connect::{
        cluster::{self, ClusterMismatch},
        rest::{self, SecurityError},
        supervisor,
    },
    logins::{GrantFiles, Grants},
    plugin::{Plugins, ReceiverFaults, RecordWriting, first_ended},
    publish::LetterSigner,
    state::{StateTables, configs::Cluster, writer::StatusWriter},
    telemetry::Filters,
    webhooks::ingest::{self, Ingest},
};

/// Why a worker did not start, or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An address cannot be bound.
    #[error("listen on {listener}")]
    Listen {
        /// As configured.
        listener: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A certificate cannot be served.
    #[error("set up TLS of the listeners")]
    Certificate(#[from] CertificateError),
    /// A password is invalid.
    #[error("set up authentication")]
    Security(#[from] SecurityError),
    /// Kafka refused.
    #[error("start on Kafka")]
    Kafka(#[from] kafka::Error),
    /// `state.dir` cannot be used, or other users cannot be kept out of it.
    #[error("open state.dir {}", path.display())]
    StateDirectory {
        /// The directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// No key can be derived from `grant.encryption.key`.
    #[error("use grant.encryption.key")]
    Key(#[source] seal::Error),
    /// Deliveries cannot be received.
    #[error("receive deliveries")]
    Ingest(#[from] ingest::Error),
    /// The topics do not fit this worker: most often they belong to another cluster.
    #[error(transparent)]
    ClusterMismatch(#[from] ClusterMismatch),
    /// The supervisor failed.
    #[error("run connectors and tasks")]
    Supervisor(#[source] supervisor::Error),
    /// A part that should run until it is cancelled has ended.
    #[error("the {part} has ended unexpectedly; the log says why")]
    Ended {
        /// Which.
        part: &'static str,
    },
}

impl From<cluster::Error> for Error {
    fn from(error: cluster::Error) -> Self {
        match error {
            cluster::Error::Mismatch(mismatch) => Self::ClusterMismatch(mismatch),
            cluster::Error::Kafka(source) => Self::Kafka(source),
        }
    }
}

impl Error {
    /// Whether a retry may help.
    pub fn retry(&self) -> Retry {
        match self {
            Self::Kafka(error) => error.retry(),
            Self::Ingest(error) => error.retry(),
            _ => Retry::Never,
        }
    }
}

/// What the process provides to a worker.
#[derive(Clone)]
pub struct Process {
    /// Log levels.
    pub loggers: Arc<Filters>,
    /// Metrics in Prometheus' text format.
    pub metrics: Arc<dyn Fn() -> String + Send + Sync>,
    /// Classes.
    pub plugins: Plugins,
    /// Whether this worker adopts topics of another group (`--adopt`).
    pub adopt: bool,
    /// The in-process cluster if Kafka is that one; only it can create its topics.
    pub embedded: Option<Arc<kafka::embedded::EmbeddedCluster>>,
}

impl Process {
    /// Topic administration of the worker's cluster.
    pub(super) fn admin(&self, worker: &config::Worker) -> Admin {
        match &self.embedded {
            Some(cluster) => Admin::Embedded(Arc::clone(cluster)),
            None => Admin::Real(worker.kafka.clone()),
        }
    }
}

/// A running worker.
pub struct Service {
    worker: Arc<config::Worker>,
    worker_id: Arc<str>,
    servers: Vec<Server>,
    /// Certificate of https listeners; reloaded while the worker runs.
    certificates: Option<Certificates>,
    health: Arc<Health>,
    ingest: Option<Ingest>,
    record_writing: RecordWriting,
    /// Why this worker cannot receive for a connector, by connector name.
    faults: watch::Receiver<ReceiverFaults>,
    cancel: CancellationToken,
    tasks: TaskTracker,
}

/// Creates `state.dir` and keeps other users out of it and of the grants in it. The spool and the fences do so themselves.
async fn open_state(path: PathBuf) -> Result<(), Error> {
    let directory = path.clone();
    let opened = spawn_blocking(move || {
        let foreign = durable::state_directory(&directory)?;
        GrantFiles::check(&directory)?;
        io::Result::Ok(foreign)
    });
    let opened = opened.await.unwrap_or_else(|error| Err(io::Error::other(error)));
    let foreign = opened.map_err(|source| Error::StateDirectory { path: path.clone(), source })?;
    if let Some(foreign) = foreign {
        tracing::warn!("state.dir {} {foreign}", path.display());
    }
    Ok(())
}

/// The parts of a started worker.
#[derive(Debug)]
struct Running {
    state: StateTables,
    statuses: StatusWriter,
    membership: Membership,
    /// The cluster's record at the start.
    cluster: Cluster,
    supervising: JoinHandle<Result<(), supervisor::Error>>,
    /// Other essential parts, by name.
    upkeep: Vec<(&'static str, JoinHandle<()>)>,
    /// Grants; a token refresh may be in progress when the worker stops.
    grants: Grants,
}

impl Service {
    /// Binds the listeners and starts receiving deliveries; [`Service::run`] does the rest.
    ///
    /// # Errors
    /// An address, certificate or password cannot be used, or deliveries cannot be stored.
    pub async fn bind(worker: Arc<config::Worker>, process: &Process) -> Result<Self, Error> {
        let health = Arc::new(Health::new(Arc::clone(&worker), Arc::clone(&process.metrics)));
        let (servers, certificates) = listen::bind(&worker, &health).await?;
        let port = match worker.rest.advertised_port {
            0 => servers.first().map_or(0, |server| server.address().port()),
            port => port,
        };
        let worker_id = Arc::from(format!("{}:{port}", worker.rest.advertised_host));
        open_state(worker.state_dir.clone()).await?;
        let registry = avro::Registry::new(&worker.registry).map_err(ingest::Error::Registry)?;
        let ids = avro::Ids::open(registry, &worker.state_dir).await;
        let signer = LetterSigner::of(&worker).map_err(Error::Key)?;
        let record_writing = RecordWriting { ids, admin: process.admin(&worker), signer };
        let mut ingest = Ingest::start(&worker, &worker_id, record_writing.clone()).await?;
        let mut faults = watch::Sender::default().subscribe();
        if let Some(ingest) = &mut ingest {
            listen::receive(&worker, ingest).await?;
            faults = ingest.watch().faults();
            health.receive(ingest.watch());
        }
        Ok(Self {
            worker,
            worker_id,
            servers,
            certificates,
            health,
            ingest,
            record_writing,
            faults,
            cancel: CancellationToken::new(),
            tasks: TaskTracker::new(),
        })
    }

    /// Addresses of the admin listeners.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(Server::address).collect()
    }

    /// Addresses that receive deliveries.
    pub fn webhook_addresses(&self) -> Vec<SocketAddr> {
        self.ingest.as_ref().map(Ingest::addresses).unwrap_or_default()
    }

    /// This worker's id: `host:port`.
    pub fn worker_id(&self) -> &str {
        &self.worker_id
    }

    /// Starts on Kafka and runs until `stop` is cancelled, then stops in order.
    ///
    /// # Errors
    /// It cannot start and a retry would not help, or an essential part has ended.
    pub async fn run(mut self, process: &Process, stop: CancellationToken) -> Result<(), Error> {
        let mut ingest = self.ingest.take();
        let feed = ingest.as_ref().map(Ingest::feed);
        let mut watching = self.watch_certificates();
        let started = stop.run_until_cancelled(async {
            tokio::select! {
                started = self.start(process, feed.as_ref()) => started,
                part = part_ended(&mut ingest) => Err(Error::Ended { part }),
                part = first_ended(&mut watching) => Err(Error::Ended { part }),
            }
        });
        let (running, ended) = match started.await {
            // Stopped while it waited for Kafka: no error.
            None => (None, Ok(())),
            Some(Err(error)) => (None, Err(error)),
            Some(Ok(mut running)) => {
                let ended = stop.run_until_cancelled(async {
                    tokio::select! {
                        error = self.until_broken(&mut running, process) => error,
                        part = part_ended(&mut ingest) => Error::Ended { part },
                        part = first_ended(&mut watching) => Error::Ended { part },
                    }
                });
                let ended = ended.await;
                (Some(running), ended.map_or(Ok(()), Err))
            }
        };
        match &ended {
            Ok(()) => self.health.set(Phase::Stopping),
            Err(error) => {
                let reason = ErrorChain(error).to_string();
                if running.is_some() {
                    tracing::error!(reason, "an essential part has ended; stopping the worker");
                }
                self.health.set(Phase::Failed(reason));
            }
        }
        self.stop(running, ingest).await;
        ended
    }

    /// Reloads the certificate of https listeners, if there is one.
    fn watch_certificates(&mut self) -> Vec<(&'static str, JoinHandle<()>)> {
        let interval = self.worker.rest.reload_interval;
        let watch = |certificates: Certificates| {
            let watch = certificates.watch("rest", interval, self.cancel.clone());
            ("REST certificate watcher", self.tasks.spawn(watch))
        };
        self.certificates.take().map(watch).into_iter().collect()
    }

    /// Waits until an essential part has ended.
    async fn until_broken(&self, running: &mut Running, process: &Process) -> Error {
        let Running { supervising, membership, state, cluster, upkeep, .. } = running;
        let check = start::cluster_check(&self.worker, process);
        tokio::select! {
            ended = supervising => match ended {
                Ok(Err(error)) => Error::Supervisor(error),
                // Unless cancelled, it ends only with an error.
                Ok(Ok(())) | Err(_) => Error::Ended { part: "supervisor" },
            },
            () = membership.ended() => Error::Ended { part: "membership in the group" },
            part = first_ended(upkeep) => Error::Ended { part },
            mismatch = check.until_mismatch(cluster, &state.configs) => Error::ClusterMismatch(mismatch),
        }
    }

    async fn stop(self, running: Option<Running>, ingest: Option<Ingest>) {
        let started = Instant::now();
        let whole = self.worker.shutdown_timeout;
        let receiving = async {
            if let Some(ingest) = ingest {
                ingest.stop(listening_time(whole), started + whole).await;
                tracing::info!(after = ?started.elapsed(), "deliveries are in Kafka or in the spool");
            }
        };
        let worker_id = Arc::clone(&self.worker_id);
        tokio::join!(receiving, self.stop_working(running, started));
        tracing::info!(worker_id = &*worker_id, took = ?started.elapsed(), "worker stopped");
    }

    /// Stops everything but ingest.
    async fn stop_working(self, running: Option<Running>, started: Instant) {
        let left = || (started + self.worker.shutdown_timeout).saturating_duration_since(Instant::now());
        let step = |step: &str| tracing::info!(step, after = ?started.elapsed(), "stopping");
        step("listeners");
        let within = listening_time(self.worker.shutdown_timeout);
        let finished = join_all(self.servers.into_iter().map(|server| server.stop(within))).await;
        if finished.contains(&false) {
            tracing::warn!("requests did not finish in time and were cut off");
        }
        step("tasks and their producers and offsets");
        self.cancel.cancel();
        self.tasks.close();
        let mut is_ended = timeout(left(), self.tasks.wait()).await.is_ok();
        if let Some(running) = running.as_ref().filter(|_| !is_ended) {
            // A provider answers a refresh once; losing the answer loses the token. So refreshes have their own limit.
            let refreshes = (started + Grants::STOP_LIMIT).saturating_duration_since(Instant::now());
            if timeout(refreshes, running.grants.at_rest()).await.is_err() {
                tracing::error!(
                    "a token refresh did not end in time; if the provider answers it, a new login may be needed"
                );
            }
            is_ended = self.tasks.is_empty();
        }
        if !is_ended {
            tracing::warn!("tasks did not end in time; leaving them behind");
        }
        if let Some(running) = running {
            step("statuses");
            if let Err(error) = running.statuses.flush(left().max(Duration::from_millis(200))).await {
                tracing::warn!(error = %error, "could not write the final statuses before the deadline");
            }
            step("group");
            timeout(left().max(Duration::from_millis(500)), running.membership.leave()).await.ok();
        }
    }
}

/// Waits until a part of ingest has ended, and returns its name.
async fn part_ended(ingest: &mut Option<Ingest>) -> &'static str {
    match ingest {
        Some(ingest) => ingest.ended().await,
        None => std::future::pending().await,
    }
}

/// Time in a stop for requests in flight: as long as an answer may take, and at most a third of it.
fn listening_time(whole: Duration) -> Duration {
    rest::DEADLINE.min(whole / 3)
}

/// Time in a stop for tasks and connectors. The rest is for statuses and the group.
fn grace(whole: Duration) -> Duration {
    let rest = whole.saturating_sub(listening_time(whole) + Duration::from_secs(2));
    rest.max(Duration::from_millis(500))
}
