//! Ingest as a service of every worker: it receives whatever the config topic lists, before there is a Kafka and after.
//!
//! ```text
//!                    receivers.json ─┐                      ┌▶ receivers ─▶ public listeners ─▶ intake ─▶ Kafka or spool
//! config topic ─ once it is there ───┴▶ follower ─▶ table ──┼▶ openings (topics, ids of schemas) ────┘
//!                                                           └▶ the spool's limit
//! Acknowledges, gaps, what was heard ─▶ notes ─▶ {prefix}.state
//! ```
//!
//! - Every worker with `webhook.listeners` receives every `WebhookSource`, whoever runs its task. One without serves none and
//!   publishes what its spool holds.
//! - The listeners open before Kafka is asked for anything, with what was received last; what the config topic says replaces
//!   that, and every change of it counts within a moment. What configurations refer to is looked at every so often.
//! - RUNNING is received and published, PAUSED received and kept in the spool, STOPPED answered 503. One that is deleted is not
//!   received any more; what was is published.
//!
//! On failure: a connector that cannot be received as configured keeps the receiver it had, and `/health` and its status tell;
//! a part that ends by itself ends the worker; a spool that cannot be opened keeps it from starting, with the reason.
//!
//! Stop: listeners, so that what was taken is answered; then the intake until two seconds before the end; then the spool.

mod cache;
mod follow;
mod gaps;
mod health;
mod notes;
mod openings;
mod table;
mod telling;
#[cfg(test)]
mod tests;

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
use kafka::{Admin, PlainWriter, ProducerOptions};
use server::Server;

pub(crate) use self::health::Watch;
use self::{
    follow::{Follower, Parts},
    gaps::Gaps,
    notes::{Ears, Notes},
    openings::Prefixes,
    telling::Telling,
};

use crate::{
    avro, config,
    plugin::ReceiverFaults,
    publish::LetterSigner,
    spool::{self, Missing, Opened, Spool},
    state::{Table, configs::Configs},
    webhooks::{
        hearing::Hearing,
        intake::{Intake, Producers, Times},
        receiver::{self, Echoed, Noted, Oversized},
        receivers::Receivers,
    },
};

/// Directory of the spool below `state.dir`.
const SPOOL: &str = "spool";
/// Acknowledges and oversized deliveries that may wait to be noted; more are counted and dropped.
const NOTES: usize = 1_000;
/// What is left of a stop for the spool, once the intake is done.
const CLOSING: Duration = Duration::from_secs(2);
/// What the spool may hold until it is known whose deliveries are received.
const UNTIL_KNOWN: u64 = 1 << 30;

/// Why deliveries cannot be received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is nowhere to keep them.
    #[error("open the spool in {}: deliveries could not be kept there; {remedy}", directory.display())]
    Spool {
        /// Where it should be.
        directory: PathBuf,
        /// What to do about it.
        remedy: &'static str,
        /// Why it cannot.
        #[source]
        source: spool::Error,
    },
    /// The registry cannot be asked.
    #[error("set up the schema registry")]
    Registry(#[source] avro::Error),
    /// A fault of the program.
    #[error("read what was received last")]
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

/// Tells ingest of the config topic. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Feed(Arc<watch::Sender<Option<Table<Configs>>>>);

impl Feed {
    /// This tail is followed from now on.
    pub(crate) fn follow(&self, configs: Table<Configs>) {
        self.0.send_replace(Some(configs));
    }
}

/// What it takes to write to topics of any prefix.
pub(crate) struct Writing {
    /// Topics.
    pub(crate) admin: Admin,
    /// Schema ids.
    pub(crate) ids: avro::Ids,
    /// Signs dead letters.
    pub(crate) signer: LetterSigner,
}

/// See the module's head.
pub(crate) struct Ingest {
    watch: Watch,
    servers: Vec<Server>,
    feed: Feed,
    /// What ends only when it is told to, by name.
    upkeep: Vec<(&'static str, JoinHandle<()>)>,
    cancel: CancellationToken,
    tasks: TaskTracker,
    routes: axum::Router,
}

impl Ingest {
    /// Opens the spool, begins to publish what it holds, and is ready to receive who was received last; [`Ingest::serve`] lets
    /// deliveries in. `None` where there is nothing to do: no listener, and no spool from before.
    ///
    /// # Errors
    /// There is nowhere to keep deliveries.
    pub(crate) async fn start(
        worker: &config::Worker,
        worker_id: &Arc<str>,
        write: Writing,
    ) -> Result<Option<Self>, Error> {
        let options = spool::Options::new(worker.state_dir.join(SPOOL), UNTIL_KNOWN);
        Self::start_on(options, worker, worker_id, write).await
    }

    /// The same with a spool that is told how to be.
    async fn start_on(
        options: spool::Options,
        worker: &config::Worker,
        worker_id: &Arc<str>,
        write: Writing,
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
        let Opened { spool, moved_aside, unopened } = opened;
        let prefixes = Prefixes::new(write, spool.clone(), worker.topic_creation);
        let (state_dir, worker_name) = (worker.state_dir.clone(), Arc::clone(worker_id));
        let gaps = spawn_blocking(move || Arc::new(Gaps::load(&state_dir, worker_name)))
            .await
            .map_err(Error::Read)?;
        tell_missing(&gaps, moved_aside, unopened).await;

        let receivers = Receivers::new();
        receivers.set_partial(true);
        let faults = watch::Sender::new(ReceiverFaults::default());
        let told_faults = faults.subscribe();
        let parts = Parts {
            providers: worker.providers.clone(),
            look_every: worker.secrets_reload_interval,
            create: worker.topic_creation,
            receivers: receivers.clone(),
            prefixes: prefixes.clone(),
            spool: spool.clone(),
            gaps: Arc::clone(&gaps),
            faults,
        };
        let follower = Follower::start(parts, &worker.state_dir).await.map_err(Error::Read)?;

        let memory = worker.webhook.memory_bytes;
        let producers = Producers {
            kafka: worker.kafka.clone(),
            options: ProducerOptions { queue_bytes: memory.max(ProducerOptions::default().queue_bytes) },
        };
        let openings = Arc::new(prefixes.clone());
        let closed = |source| Error::Spool { directory: directory.clone(), remedy: START_AGAIN, source };
        let intake = Intake::start(producers, spool.clone(), openings, memory, Times::default())
            .await
            .map_err(closed)?;
        let watch = Watch {
            receivers: receivers.clone(),
            spool: spool.clone(),
            intake: intake.clone(),
            prefixes: prefixes.clone(),
            faults: told_faults,
        };
        let (acknowledged, hears_acknowledged) = mpsc::channel::<Noted>(NOTES);
        let (oversized, hears_oversized) = mpsc::channel::<Oversized>(NOTES);
        let (echoed, hears_echoed) = mpsc::channel::<Echoed>(NOTES);
        let hearing = Hearing::default();
        let options = receiver::Options {
            proxies: worker.webhook.proxies.clone(),
            verified_bytes: memory,
            oversized: Some(oversized),
            echoed: Some(echoed),
            hearing: hearing.clone(),
            ..receiver::Options::default()
        };
        let routes = receiver::router(receivers.clone(), Arc::new(intake.clone()), acknowledged, options);

        let (cancel, tasks) = (CancellationToken::new(), TaskTracker::new());
        let (feed, follows) = watch::channel(None);
        let notes = Notes {
            writer: PlainWriter::new(&worker.kafka, notes::QUEUE_BYTES),
            prefixes: prefixes.clone(),
            gaps: Arc::clone(&gaps),
            receivers,
            worker: Arc::clone(worker_id),
        };
        let telling = Telling::new(Arc::clone(worker_id), hearing);
        let ears =
            Ears { acknowledged: hears_acknowledged, oversized: hears_oversized, echoed: hears_echoed };
        let upkeep = vec![
            ("follower of connectors", tasks.spawn(follower.run(follows, cancel.clone()))),
            ("writer of notes", tasks.spawn(notes.run(ears, telling, cancel.clone()))),
            ("keeper of schema ids", tasks.spawn(prefixes.clone().confirm_ids(cancel.clone()))),
            ("watch over the spool", tasks.spawn(watch_spool(spool.clone(), gaps, cancel.clone()))),
        ];
        let (servers, feed) = (Vec::new(), Feed(Arc::new(feed)));
        Ok(Some(Self { watch, servers, feed, upkeep, cancel, tasks, routes }))
    }

    /// What the public listeners answer.
    pub(crate) fn routes(&self) -> axum::Router {
        self.routes.clone()
    }

    /// From here on deliveries come in by these.
    pub(crate) fn serve(&mut self, servers: Vec<Server>, certificate: Option<JoinHandle<()>>) {
        self.servers = servers;
        self.upkeep.extend(certificate.map(|watching| ("watch over the certificate", watching)));
    }

    /// Where deliveries are received.
    pub(crate) fn addresses(&self) -> Vec<SocketAddr> {
        self.servers.iter().map(Server::address).collect()
    }

    /// Ends what it has started.
    pub(crate) fn cancelled(&self) -> CancellationToken {
        self.cancel.clone()
    }

    /// Where it is told of the config topic.
    pub(crate) fn feed(&self) -> Feed {
        self.feed.clone()
    }

    /// What there is to say of it.
    pub(crate) fn watch(&self) -> Watch {
        self.watch.clone()
    }

    /// Waits until a part has ended that must not, and names it.
    pub(crate) async fn ended(&mut self) -> &'static str {
        tokio::select! {
            part = crate::plugin::first_ended(&mut self.upkeep) => part,
            () = self.watch.spool.ended() => "spool",
        }
    }

    /// Takes no more deliveries, answers those it has taken, publishes what can be published and keeps the rest.
    pub(crate) async fn stop(self, listening: Duration, until: Instant) {
        // What waits for Kafka would outlive the listeners, and be cut.
        self.watch.intake.hurry();
        let finished = join_all(self.servers.into_iter().map(|server| server.stop(listening))).await;
        if finished.contains(&false) {
            tracing::warn!("deliveries were still under way and were cut: the provider sends them again");
        }
        let intake = until.checked_sub(CLOSING).unwrap_or(until);
        self.watch.intake.stop(intake.max(Instant::now() + Duration::from_millis(200))).await;
        self.cancel.cancel();
        self.watch.prefixes.close();
        self.tasks.close();
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(200));
        if !self.watch.spool.close(left).await {
            tracing::warn!("the spool is still writing; the next start reads what it has");
        }
    }
}

impl fmt::Debug for Ingest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ingest").field("addresses", &self.addresses()).finish_non_exhaustive()
    }
}

const START_AGAIN: &str = "start the worker again";

async fn open(options: spool::Options) -> Result<Opened, Error> {
    let directory = options.directory.clone();
    let opened = spawn_blocking(move || Spool::open(options)).await.map_err(Error::Read)?;
    opened.map_err(|source| {
        let remedy = match &source {
            spool::Error::InUse { .. } => "give each worker a state.dir of its own, or end the other process",
            spool::Error::Directory { .. } => "make state.dir a directory that this worker may write to",
            _ => START_AGAIN,
        };
        Error::Spool { directory, remedy, source }
    })
}

/// Opens a gap for each database of the spool that takes no part. One that lies aside is told of by every start until its gap is
/// kept.
async fn tell_missing(gaps: &Gaps, moved_aside: Vec<Missing>, unopened: Vec<Missing>) {
    for missing in moved_aside {
        let folder = missing.folder.display().to_string();
        if !gaps.lost(missing.since, format!("a database of the spool was moved to {folder}")).await {
            continue;
        }
        let marked = spawn_blocking(move || missing.mark_recorded()).await;
        if let Err(error) = marked.unwrap_or_else(|error| Err(io::Error::other(error))) {
            tracing::warn!(folder, %error, "the next start tells of this database of the spool once more");
        }
    }
    for Missing { folder, since } in unopened {
        let folder = folder.display();
        let detail = format!("{folder} of the spool could not be opened; the next start tries again");
        gaps.lost(since, detail).await;
    }
}

/// Opens a gap for what the spool finds that it cannot read, and for what it keeps for another version.
async fn watch_spool(spool: Spool, gaps: Arc<Gaps>, cancel: CancellationToken) {
    let mut failures = spool.failures();
    let (mut known, mut since) = (0, None);
    let watching = async {
        loop {
            let spool::Failures { unreadable, unreadable_since, foreign, .. } =
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
