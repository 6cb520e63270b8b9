//! Keeps the receivers as the config topic says, and on disk for a start without Kafka.
//!
//! cache ─▶ receiver configs ─▶ topic readiness, receivers, the spool's limit; then the same for every change of the config topic, which
//! is written to the cache again. References in configurations are resolved again at an interval; a change applies like one of the
//! configuration.
//!
//! Topics are set before receivers, so that no delivery arrives for topics that are not known.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    task::{JoinError, spawn_blocking},
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use model::Moment;

use super::{
    gap_file::GapFile,
    receiver_cache::ReceiverCache,
    receiver_configs::{
        ListedConnector, ReceivedConnector, ReceiverConfigs, ReferenceChanges, listed, stopped_at,
    },
    topic_readiness::{TopicOpening, TopicOwner, TopicReadiness},
};
use crate::{
    config::{Providers, connector::TargetState},
    plugin::ReceiverFaults,
    spool::Spool,
    state::configs::Configs,
    webhooks::receiver_table::Receivers,
};

/// Time until the next try after a reference did not resolve or a file could not be written.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Time until a changed reference is read again to confirm it: longer than it takes to write a file.
const REFERENCE_RECHECK: Duration = Duration::from_secs(1);
/// Limit of the spool without any connector: it may hold deliveries of deleted ones.
const DEFAULT_SPOOL_LIMIT: u64 = 64 << 20;

/// The config topic, once it is followed; replaced each time the worker restarts on Kafka.
pub(super) type ConfigTopic = watch::Receiver<Option<kafka::Table<Configs>>>;

/// What the watcher keeps in step with the config topic.
pub(super) struct WatchedParts {
    pub(super) providers: Providers,
    /// `secrets.reload.interval.ms`.
    pub(super) recheck_interval: Duration,
    /// `topic.creation.enable`.
    pub(super) create: bool,
    pub(super) receivers: Receivers,
    pub(super) readiness: TopicReadiness,
    pub(super) spool: Spool,
    pub(super) gaps: Arc<GapFile>,
    pub(super) faults: watch::Sender<ReceiverFaults>,
}

/// Follows the config topic.
pub(super) struct ConfigWatcher {
    parts: WatchedParts,
    cache: ReceiverCache,
    configs: ReceiverConfigs,
    listed: BTreeMap<String, ListedConnector>,
}

impl ConfigWatcher {
    /// Starts with the receivers of the last run.
    pub(super) async fn start(parts: WatchedParts, state_dir: &Path) -> Result<Self, JoinError> {
        let state_dir = state_dir.to_owned();
        let (cache, listed) = spawn_blocking(move || ReceiverCache::load(&state_dir)).await?;
        let mut watcher = Self { parts, cache, configs: ReceiverConfigs::default(), listed: BTreeMap::new() };
        watcher.apply(listed, &BTreeMap::new()).await?;
        Ok(watcher)
    }

    /// Follows until it is cancelled; ends by itself only through a bug.
    pub(super) async fn run(mut self, source: ConfigTopic, cancel: CancellationToken) {
        if let Some(Err(error)) = cancel.run_until_cancelled(self.follow(source)).await {
            tracing::error!(%error, "connectors are not followed any more");
        }
    }

    async fn follow(&mut self, mut source: ConfigTopic) -> Result<(), JoinError> {
        let mut kept = true;
        let mut recheck_at = Instant::now() + self.parts.recheck_interval;
        loop {
            let mut references = ReferenceChanges::default();
            if Instant::now() >= recheck_at {
                references = self.on_configs(ReceiverConfigs::recheck_references).await?;
                let every = self.parts.recheck_interval;
                recheck_at =
                    Instant::now() + if references.unsettled { every.min(REFERENCE_RECHECK) } else { every };
            }
            let configs = source.borrow_and_update().clone();
            let mut changes = configs.as_ref().map(kafka::Table::changes);
            if let Some(changes) = &mut changes {
                changes.borrow_and_update();
            }
            let wanted = configs
                .as_ref()
                .map(|configs| configs.read(|configs| (listed(configs), stopped_at(configs))));
            let anew = !references.stale.is_empty() || !self.parts.faults.borrow().is_empty();
            match wanted {
                Some((wanted, stopped_at)) if wanted != self.listed || anew => {
                    self.apply(wanted, &stopped_at).await?;
                }
                None if anew => self.apply(self.listed.clone(), &BTreeMap::new()).await?,
                _ => {}
            }
            for connector in
                references.stale.iter().filter(|name| !self.parts.faults.borrow().contains_key(*name))
            {
                tracing::info!(connector, "references resolved to new values; applying them");
            }
            if configs.is_some() {
                self.parts.receivers.set_not_loaded(false);
                kept = self.cache.save(&self.listed).await;
            }
            let again = !kept || !self.parts.faults.borrow().is_empty();
            tokio::select! {
                // Both senders live as long as what this holds.
                _ = source.changed() => {}
                () = changed(changes) => {}
                () = sleep(RETRY_INTERVAL), if again => {}
                () = sleep_until(recheck_at) => {}
            }
        }
    }

    /// Runs blocking work on the configs.
    async fn on_configs<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut ReceiverConfigs, &Providers) -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        let (mut table, providers) = (std::mem::take(&mut self.configs), self.parts.providers.clone());
        let (table, done) = spawn_blocking(move || {
            let done = work(&mut table, &providers);
            (table, done)
        })
        .await?;
        self.configs = table;
        Ok(done)
    }

    /// Receives these connectors.
    async fn apply(
        &mut self,
        listed: BTreeMap<String, ListedConnector>,
        stopped_at: &BTreeMap<String, i64>,
    ) -> Result<(), JoinError> {
        let apply = |table: &mut ReceiverConfigs, providers: &Providers| {
            table.apply(&listed, providers);
            listed
        };
        let listed = self.on_configs(apply).await?;
        let WatchedParts { receivers, readiness, spool, gaps, create, .. } = &self.parts;
        let received: Vec<_> = self.configs.received().collect();
        let opening = |(name, one): &(&str, &ReceivedConnector)| TopicOpening {
            connector: (*name).to_owned(),
            layout: one.layout(*create),
            logged: one.source.common.errors.logged,
            owner: TopicOwner::Configured,
        };
        let paused = received.iter().filter(|(_, one)| one.target == TargetState::Paused);
        let paused = paused.map(|(name, _)| (*name).to_owned()).collect();
        readiness.set(received.iter().map(opening).collect(), paused);
        let table = received.iter().map(|(_, one)| Arc::clone(&one.receiver)).collect();
        receivers.set(table, self.configs.faulty());
        let limit = received.iter().map(|(_, one)| one.source.spool_limit_bytes).reduce(u64::saturating_add);
        spool.set_limit(limit.unwrap_or(DEFAULT_SPOOL_LIMIT));

        let places: Vec<(String, String)> = received
            .iter()
            .map(|(name, one)| ((*name).to_owned(), one.receiver.prefix.to_string()))
            .collect();
        gaps.assign(&places).await;
        let is_stopped = |listed: &BTreeMap<String, ListedConnector>, name: &String| {
            listed.get(name).map(|one| one.target == TargetState::Stopped)
        };
        for (name, prefix) in &places {
            let stops =
                is_stopped(&listed, name) == Some(true) && is_stopped(&self.listed, name) == Some(false);
            if stops {
                // Every worker opens it, under the same name.
                let at = stopped_at.get(name).copied().unwrap_or_else(|| Moment::now().micros());
                gaps.stopped(name, prefix, at).await;
            }
        }
        self.log_faults();
        if listed != self.listed {
            let names: Vec<&str> = places.iter().map(|(name, _)| name.as_str()).collect();
            tracing::info!(connectors = names.join(","), "receivers are set");
        }
        self.listed = listed;
        Ok(())
    }

    /// Logs each fault once, when it appears.
    fn log_faults(&self) {
        let faults = ReceiverFaults::new(self.configs.faults());
        let before = self.parts.faults.send_replace(ReceiverFaults::clone(&faults));
        for (connector, fault) in faults.iter().filter(|(name, fault)| before.get(*name) != Some(fault)) {
            let kept = self.configs.received().any(|(name, _)| name == connector);
            tracing::error!(connector, fault, kept, "a connector cannot be received as it is configured");
        }
    }
}

async fn changed(changes: Option<watch::Receiver<u64>>) {
    let gone = match changes {
        Some(mut changes) => changes.changed().await.is_err(),
        None => true,
    };
    if gone {
        std::future::pending::<()>().await;
    }
}
