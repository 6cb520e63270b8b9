//! Keeps the receivers what the config topic says they are, and keeps them for a start without it.
//!
//! cache ─▶ table ─▶ openings, receivers, the spool's limit; then the same for every change of the config topic, which is kept
//! in the cache again. What configurations refer to is looked at every so often, and counts as a change of them does.
//!
//! Topics are opened before receivers change, so that no delivery is taken for topics nobody knows of.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    task::{JoinError, spawn_blocking},
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

use model::Moment;

use super::{
    gaps::Gaps,
    receiver_cache::Cache,
    receiver_configs::{Listed, Looked, Received, Table, listed, stopped_at},
    topic_readiness::{Kind, Opening, Prefixes},
};
use crate::{
    config::{Providers, connector::TargetState},
    plugin::ReceiverFaults,
    spool::Spool,
    state::{Tail, configs::Configs},
    webhooks::receivers::Receivers,
};

/// How long after a failure (a reference that does not resolve, a file that cannot be written) the next try is.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// How long after a reference has changed the second look is that confirms it: longer than it takes to write a file.
const SETTLED: Duration = Duration::from_secs(1);
/// What the spool may hold for connectors that are gone, where there is none that says so.
const NOBODYS: u64 = 64 << 20;

/// The config topic, once it is followed; another each time the worker starts anew on Kafka.
pub(super) type Source = watch::Receiver<Option<Tail<Configs>>>;

/// What it keeps in step.
pub(super) struct Parts {
    pub(super) providers: Providers,
    /// `secrets.reload.interval.ms`.
    pub(super) look_every: Duration,
    /// `topic.creation.enable`.
    pub(super) create: bool,
    pub(super) receivers: Receivers,
    pub(super) prefixes: Prefixes,
    pub(super) spool: Spool,
    pub(super) gaps: Arc<Gaps>,
    pub(super) faults: watch::Sender<ReceiverFaults>,
}

/// See the module's head.
pub(super) struct Follower {
    parts: Parts,
    cache: Cache,
    table: Table,
    listed: BTreeMap<String, Listed>,
}

impl Follower {
    /// Receives who was received last.
    pub(super) async fn start(parts: Parts, state_dir: &Path) -> Result<Self, JoinError> {
        let state_dir = state_dir.to_owned();
        let (cache, listed) = spawn_blocking(move || Cache::load(&state_dir)).await?;
        let mut follower = Self { parts, cache, table: Table::default(), listed: BTreeMap::new() };
        follower.show(listed, &BTreeMap::new()).await?;
        Ok(follower)
    }

    /// Follows until it is cancelled. Ends by itself only by a fault of the program.
    pub(super) async fn run(mut self, source: Source, cancel: CancellationToken) {
        if let Some(Err(error)) = cancel.run_until_cancelled(self.follow(source)).await {
            tracing::error!(%error, "connectors are not followed any more");
        }
    }

    async fn follow(&mut self, mut source: Source) -> Result<(), JoinError> {
        let mut kept = true;
        let mut look_at = Instant::now() + self.parts.look_every;
        loop {
            let mut looked = Looked::default();
            if Instant::now() >= look_at {
                looked = self.on_table(Table::look).await?;
                let every = self.parts.look_every;
                look_at = Instant::now() + if looked.unsettled { every.min(SETTLED) } else { every };
            }
            let tail = source.borrow_and_update().clone();
            let mut changes = tail.as_ref().map(Tail::changes);
            if let Some(changes) = &mut changes {
                changes.borrow_and_update();
            }
            let wanted =
                tail.as_ref().map(|tail| tail.read(|configs| (listed(configs), stopped_at(configs))));
            let anew = !looked.stale.is_empty() || !self.parts.faults.borrow().is_empty();
            match wanted {
                Some((wanted, stopped_at)) if wanted != self.listed || anew => {
                    self.show(wanted, &stopped_at).await?;
                }
                None if anew => self.show(self.listed.clone(), &BTreeMap::new()).await?,
                _ => {}
            }
            for connector in
                looked.stale.iter().filter(|name| !self.parts.faults.borrow().contains_key(*name))
            {
                tracing::info!(connector, "what it refers to has changed, and counts from now on");
            }
            if tail.is_some() {
                self.parts.receivers.set_partial(false);
                kept = self.cache.save(&self.listed).await;
            }
            let again = !kept || !self.parts.faults.borrow().is_empty();
            tokio::select! {
                // Both senders live as long as what this holds.
                _ = source.changed() => {}
                () = changed(changes) => {}
                () = sleep(RETRY_INTERVAL), if again => {}
                () = sleep_until(look_at) => {}
            }
        }
    }

    /// Does what may block with the table.
    async fn on_table<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&mut Table, &Providers) -> T + Send + 'static,
    ) -> Result<T, JoinError> {
        let (mut table, providers) = (std::mem::take(&mut self.table), self.parts.providers.clone());
        let (table, done) = spawn_blocking(move || {
            let done = work(&mut table, &providers);
            (table, done)
        })
        .await?;
        self.table = table;
        Ok(done)
    }

    /// Makes these the ones that are received.
    async fn show(
        &mut self,
        listed: BTreeMap<String, Listed>,
        stopped_at: &BTreeMap<String, i64>,
    ) -> Result<(), JoinError> {
        let apply = |table: &mut Table, providers: &Providers| {
            table.apply(&listed, providers);
            listed
        };
        let listed = self.on_table(apply).await?;
        let Parts { receivers, prefixes, spool, gaps, create, .. } = &self.parts;
        let received: Vec<_> = self.table.received().collect();
        let opening = |(name, one): &(&str, &Received)| Opening {
            connector: (*name).to_owned(),
            layout: one.layout(*create),
            logged: one.source.common.errors.logged,
            kind: Kind::Configured,
        };
        let paused = received.iter().filter(|(_, one)| one.target == TargetState::Paused);
        let paused = paused.map(|(name, _)| (*name).to_owned()).collect();
        prefixes.set(received.iter().map(opening).collect(), paused);
        let table = received.iter().map(|(_, one)| Arc::clone(&one.receiver)).collect();
        receivers.set(table, self.table.faulty());
        let limit = received.iter().map(|(_, one)| one.source.spool_limit_bytes).reduce(u64::saturating_add);
        spool.set_limit(limit.unwrap_or(NOBODYS));

        let places: Vec<(String, String)> = received
            .iter()
            .map(|(name, one)| ((*name).to_owned(), one.receiver.prefix.to_string()))
            .collect();
        gaps.assign(&places).await;
        let is_stopped = |listed: &BTreeMap<String, Listed>, name: &String| {
            listed.get(name).map(|one| one.target == TargetState::Stopped)
        };
        for (name, prefix) in &places {
            let stops =
                is_stopped(&listed, name) == Some(true) && is_stopped(&self.listed, name) == Some(false);
            if stops {
                // Every worker opens it, under the one name that they all know.
                let at = stopped_at.get(name).copied().unwrap_or_else(|| Moment::now().micros());
                gaps.stopped(name, prefix, at).await;
            }
        }
        self.tell_faults();
        if listed != self.listed {
            let names: Vec<&str> = places.iter().map(|(name, _)| name.as_str()).collect();
            tracing::info!(connectors = names.join(","), "receivers are set");
        }
        self.listed = listed;
        Ok(())
    }

    /// Each fault once, when it appears.
    fn tell_faults(&self) {
        let faults = ReceiverFaults::new(self.table.faults());
        let before = self.parts.faults.send_replace(ReceiverFaults::clone(&faults));
        for (connector, fault) in faults.iter().filter(|(name, fault)| before.get(*name) != Some(fault)) {
            let kept = self.table.received().any(|(name, _)| name == connector);
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
