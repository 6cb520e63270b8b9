//! One worker, whole: topics, tails, membership, supervisor and the admin listeners, started and stopped in order.
//!
//! The listeners are there first and go last to nobody: while the worker starts, and while Kafka is away, `/health` says so
//! and everything else is answered 503. Start-up goes on by itself as long as trying again may help; what needs a person
//! (a topic of another cluster, a wrong policy) ends it with the reason.
//!
//! Stop: listeners first, then tasks and connectors, then what is left of statuses, then the group; all within
//! `shutdown.timeout.ms`.

use std::{fs, io, net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use axum::{
    extract::{Request, State as Shared},
    response::Response,
};
use tokio::{
    net::{TcpListener, lookup_host},
    time::{Instant, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower_service::Service as _;

use super::{
    arbiter::Arbiter,
    declared,
    fresh::read_configs,
    health::{Health, Phase},
    herder::{Herder, Loggers, Parts as HerderParts},
    plugins::Plugins,
    rest::{self, Security, SecurityError},
    scrape::Scrape,
    state::{
        State,
        writer::{OffsetWriter, StatusWriter},
    },
    supervisor::{Handle, Parts, Settings, Supervisor},
    topics,
};
use crate::{
    config::{self, Listener, worker::Tls},
    kafka::{self, Admin, GroupOptions, Membership, Shards, TransactionOptions},
    retry::{Backoff, Chain, Policy, Retry},
    server::{self, CertificateError, Options, Server},
};

/// Connections of one admin listener: tools poll, they do not stream.
const CONNECTIONS: usize = 1_024;
/// Waits between attempts to start while Kafka is away.
const STARTING: Policy =
    Policy { first: Duration::from_millis(250), longest: Duration::from_secs(5), total: None };

/// How long reading the config topic to its very end may take before `/health` says why it does not.
const CONFIG_LIMIT: Duration = Duration::from_secs(10);

/// Why a worker did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An address cannot be had.
    #[error("listen on {listener}")]
    Listen {
        /// As configured.
        listener: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A file of a certificate cannot be read.
    #[error("read {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A certificate cannot be served.
    #[error("set up TLS of the admin listeners")]
    Certificate(#[from] CertificateError),
    /// A password cannot be used.
    #[error("set up authentication")]
    Security(#[from] SecurityError),
    /// Kafka does not allow it.
    #[error("start on Kafka")]
    Kafka(#[from] kafka::Error),
    /// The config topic belongs to somebody else.
    #[error(
        "{topic} holds connectors of classes this worker does not have ({classes}); it belongs to another Connect cluster: \
         set config.storage.topic, offset.storage.topic and status.storage.topic to topics of its own"
    )]
    Foreign {
        /// The config topic.
        topic: String,
        /// Connectors and their classes.
        classes: String,
    },
    /// It was told to stop before it had started.
    #[error("stopped before the start was done")]
    Stopped,
}

impl Error {
    /// Whether trying again may help.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::Kafka(error) => error.retry(),
            _ => Retry::Never,
        }
    }
}

/// What the process lends a worker.
#[derive(Clone)]
pub struct Process {
    /// Log levels.
    pub loggers: Arc<dyn Loggers>,
    /// Metrics in Prometheus' text format.
    pub metrics: Arc<dyn Fn() -> String + Send + Sync>,
    /// Classes.
    pub plugins: Plugins,
}

/// A running worker.
#[derive(Debug)]
pub struct Service {
    worker: Arc<config::Worker>,
    worker_id: Arc<str>,
    servers: Vec<Server>,
    addresses: Vec<SocketAddr>,
    health: Arc<Health>,
    cancel: CancellationToken,
    tasks: TaskTracker,
    running: Option<Running>,
}

/// What exists once the start is done.
#[derive(Debug)]
struct Running {
    statuses: StatusWriter,
    membership: Membership,
    handle: Handle,
}

impl Service {
    /// Binds the listeners and returns; [`Service::run`] does the rest.
    ///
    /// # Errors
    /// An address, certificate or password cannot be used.
    pub async fn bind(worker: Arc<config::Worker>, process: &Process) -> Result<Self, Error> {
        let tls = worker.rest.tls.as_ref().map(certificate).transpose()?;
        let health = Arc::new(Health::new(Arc::clone(&worker), Arc::clone(&process.metrics)));
        let security = Security::new(&worker.rest)?;
        let router = rest::protect(health.router().fallback(api).with_state(Arc::clone(&health)), security);
        let (mut servers, mut addresses) = (Vec::new(), Vec::new());
        for listener in &worker.listeners {
            let bound =
                bind(listener).await.map_err(|source| Error::Listen { listener: url(listener), source })?;
            let options = Options {
                tls: tls.clone().filter(|_| listener.tls),
                connections: CONNECTIONS,
                handshake: Duration::from_secs(10),
                head: Duration::from_secs(30),
            };
            let server = Server::start(bound, router.clone(), options)
                .map_err(|source| Error::Listen { listener: url(listener), source })?;
            addresses.push(server.address());
            servers.push(server);
        }
        let port = match worker.rest.advertised_port {
            0 => addresses.first().map_or(0, SocketAddr::port),
            port => port,
        };
        let worker_id = Arc::from(format!("{}:{port}", worker.rest.advertised_host));
        Ok(Self {
            worker,
            worker_id,
            servers,
            addresses,
            health,
            cancel: CancellationToken::new(),
            tasks: TaskTracker::new(),
            running: None,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Who it is: `host:port`.
    #[must_use]
    pub fn worker_id(&self) -> &str {
        &self.worker_id
    }

    /// Starts on Kafka and runs until `stop` is cancelled, then stops in order.
    ///
    /// # Errors
    /// It cannot start, and trying again would not help.
    pub async fn run(mut self, process: &Process, stop: CancellationToken) -> Result<(), Error> {
        let started = tokio::select! {
            started = self.start(process) => started,
            () = stop.cancelled() => Err(Error::Stopped),
        };
        match started {
            Ok(()) => stop.cancelled().await,
            // Asked to stop while it waited for Kafka: nothing has gone wrong.
            Err(Error::Stopped) => {}
            Err(error) => {
                self.stop().await;
                return Err(error);
            }
        }
        self.stop().await;
        Ok(())
    }

    async fn start(&mut self, process: &Process) -> Result<(), Error> {
        let mut backoff = Backoff::new(STARTING, u64::from(kafka::murmur2(self.worker_id.as_bytes())));
        loop {
            let error = match self.try_start(process).await {
                Ok(()) => return Ok(()),
                Err(error) => error,
            };
            let Some(wait) = backoff.next_wait(error.retry()) else { return Err(error) };
            tracing::warn!(error = %Chain(&error), ?wait, "Kafka is not ready, trying again");
            self.health.set(Phase::Starting(Chain(&error).to_string()));
            sleep(wait).await;
        }
    }

    async fn try_start(&mut self, process: &Process) -> Result<(), Error> {
        let worker = &self.worker;
        let admin = Admin::Real(worker.kafka.clone());
        let partitions = topics::ensure(&admin, &worker.topics).await?;
        self.health.set(Phase::Starting("reading the config, offset and status topics".to_owned()));
        let state = State::follow(&worker.kafka, &worker.topics, &partitions).await?;
        state.caught_up().await;
        refuse_foreign(worker, &state, &process.plugins)?;

        let arbiter =
            Arbiter::new(&worker.kafka, &worker.topics.config.name, &worker.group.id, state.configs.clone());
        // Being at the end of what can be read is not enough: an open write hides what was committed behind it.
        let topic = &worker.topics.config.name;
        self.health.set(Phase::Starting(format!("waiting until every write to {topic} is decided")));
        read_configs(&state.configs, &arbiter, CONFIG_LIMIT).await?;
        let statuses = StatusWriter::start(&worker.kafka, &worker.topics.status.name, partitions.status)?;
        let offsets = OffsetWriter::new(&worker.kafka, partitions.offset, state.offsets.clone());
        let membership = Membership::join(
            &worker.kafka,
            GroupOptions {
                group: worker.group.id.clone(),
                topic: worker.topics.work.name.clone(),
                session: worker.group.session_timeout,
                heartbeat: worker.group.heartbeat_interval,
                member: self.worker_id.to_string(),
            },
        )
        .await?;
        let supervisor = Supervisor::new(Parts {
            plugins: process.plugins.clone(),
            state: state.clone(),
            arbiter: arbiter.clone(),
            statuses: statuses.clone(),
            partitions: u32::try_from(membership.partitions()).unwrap_or_default(),
            membership: membership.clone(),
            worker_id: Arc::clone(&self.worker_id),
            worker: Arc::clone(worker),
            settings: Settings::default(),
        });
        let handle = supervisor.handle();
        let herder = Herder::new(HerderParts {
            state: state.clone(),
            arbiter,
            statuses: statuses.clone(),
            offsets,
            shards: Shards::new(worker.kafka.clone(), TransactionOptions::default()),
            plugins: process.plugins.clone(),
            providers: worker.providers.clone(),
            loggers: Arc::clone(&process.loggers),
            worker_id: self.worker_id.to_string(),
            url: format!(
                "{}://{}",
                if worker.rest.advertised_tls { "https" } else { "http" },
                self.worker_id
            ),
            cluster_id: admin.cluster_id().await?,
            running: handle.clone(),
        });
        let follower = herder.clone();
        let cancel = self.cancel.clone();
        self.tasks.spawn(async move { follower.follow_loggers(cancel).await });
        let grace =
            worker.shutdown_timeout.saturating_sub(Duration::from_secs(2)).max(Duration::from_millis(500));
        let supervising = supervisor.run(self.cancel.clone(), grace);
        self.tasks.spawn(async move {
            if let Err(error) = supervising.await {
                tracing::error!(%error, "the supervisor has ended");
            }
        });
        self.health.measure(Scrape {
            handle: handle.clone(),
            state: state.clone(),
            membership: membership.clone(),
            plugins: process.plugins.clone(),
        });
        self.health.serve(rest::router(herder.clone()), state, handle.clone());
        if let Some(options) = declared::Options::of(worker) {
            self.tasks.spawn(declared::Watch::new(herder, options).run(self.cancel.clone()));
        }
        self.running = Some(Running { statuses, membership, handle });
        tracing::info!(worker_id = &*self.worker_id, group = worker.group.id, "worker started");
        Ok(())
    }

    async fn stop(self) {
        let deadline = Instant::now() + self.worker.shutdown_timeout;
        let left = || deadline.saturating_duration_since(Instant::now());
        self.health.set(Phase::Stopping);
        for server in self.servers {
            server.stop(left().min(Duration::from_secs(2))).await;
        }
        self.cancel.cancel();
        self.tasks.close();
        if timeout(left(), self.tasks.wait()).await.is_err() {
            tracing::warn!("tasks did not end in time and were left behind");
        }
        if let Some(running) = self.running {
            if let Err(error) = running.statuses.flush(left().max(Duration::from_millis(200))).await {
                tracing::warn!(error = %error, "the last statuses may be missing");
            }
            drop(running.handle);
            timeout(left().max(Duration::from_millis(500)), running.membership.leave()).await.ok();
        }
        tracing::info!(worker_id = &*self.worker_id, "worker stopped");
    }
}

/// Everything but health and metrics: the REST API, once there is one.
async fn api(Shared(health): Shared<Arc<Health>>, request: Request) -> Response {
    match health.api() {
        // A router never fails and is always ready.
        Some(mut router) => match router.call(request).await {
            Ok(answer) => answer,
            Err(never) => match never {},
        },
        None => health.not_yet(),
    }
}

fn refuse_foreign(worker: &config::Worker, state: &State, plugins: &Plugins) -> Result<(), Error> {
    let foreign =
        state.configs.read(|configs| configs.foreign_classes(|class| plugins.find(class).is_some()));
    if foreign.is_empty() {
        return Ok(());
    }
    let classes: Vec<String> =
        foreign.iter().take(5).map(|(name, class)| format!("{name}: {class}")).collect();
    Err(Error::Foreign { topic: worker.topics.config.name.clone(), classes: classes.join(", ") })
}

fn certificate(files: &Tls) -> Result<Arc<rustls::ServerConfig>, Error> {
    let read = |path: &PathBuf| {
        fs::read_to_string(path).map_err(|source| Error::File { path: path.clone(), source })
    };
    Ok(server::tls(&read(&files.certificate)?, &read(&files.key)?)?)
}

async fn bind(listener: &Listener) -> io::Result<TcpListener> {
    let host = listener.host.trim_matches(['[', ']']);
    let addresses: Vec<SocketAddr> = lookup_host((host, listener.port)).await?.collect();
    TcpListener::bind(addresses.as_slice()).await
}

fn url(listener: &Listener) -> String {
    format!("{}://{}:{}", if listener.tls { "https" } else { "http" }, listener.host, listener.port)
}
