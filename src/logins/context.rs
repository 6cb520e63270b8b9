//! What the tasks of all grants share, and how they are started: for every grant that a connector names a view, a refresher and a
//! copy on this disk.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::future::join_all;
use parking_lot::Mutex;
use tokio::{
    sync::{oneshot, watch},
    task::{AbortHandle, spawn_blocking},
    time::sleep,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use base::{random, retry::ErrorChain};
use kafka::{Membership, write_id};
use provider::auth::identity;

use super::{
    clients::{self, GrantClient, GrantClients, IssuerKey},
    copies,
    files::GrantFiles,
    issuer::{Issuer, IssuerFactory},
    refresh, refresher,
    refusals::RefusalReporter,
    store::{GrantStore, wall_ms},
    table::TopicOwners,
    task_group::TaskGroup,
    view::{self, GrantView, LocalGrant},
};
use crate::{
    config::Providers,
    state::{Table, configs::Configs},
};

/// Limit of one attempt to claim the topic.
const CLAIM_LIMIT: Duration = Duration::from_secs(20);
/// Pause between two attempts.
const CLAIM_PAUSE: Duration = Duration::from_secs(2);
/// How often connectors are read again although none has changed: what their references name may have.
const CONNECTOR_REREAD_INTERVAL: Duration = Duration::from_secs(60);

/// What the tasks of all grants share.
pub(super) struct GrantContext {
    pub(super) store: GrantStore,
    pub(super) files: GrantFiles,
    pub(super) membership: Membership,
    pub(super) work_partitions: i32,
    /// After which a silent worker counts as dead.
    pub(super) session: Duration,
    pub(super) worker_id: Arc<str>,
    pub(super) issuers: Arc<dyn IssuerFactory>,
    /// Who names which grant, as last read.
    pub(super) clients: watch::Sender<GrantClients>,
    /// Who this worker is one of.
    pub(super) ours: TopicOwners,
    /// Whether this worker still has to take over the topic from another group.
    pub(super) adopting: AtomicBool,
    /// Those that a connector names, or a task looks at.
    pub(super) grants: Mutex<BTreeMap<String, Arc<LocalGrant>>>,
    /// Issuers by what they are for. They keep keys.
    pub(super) made: Mutex<BTreeMap<IssuerKey, Arc<dyn Issuer>>>,
    /// Held while one is made.
    pub(super) making: Mutex<()>,
    pub(super) refusals: RefusalReporter,
    /// Refreshes and answers that have not ended, which a stop has to wait for. Closed from the start.
    pub(super) under_way: TaskTracker,
}

/// The tasks of one grant.
struct GrantTasks {
    stop: CancellationToken,
    tasks: [AbortHandle; 3],
}

impl GrantContext {
    pub(super) fn local(&self, name: &str) -> Arc<LocalGrant> {
        let mut grants = self.grants.lock();
        let local = grants.entry(name.to_owned());
        Arc::clone(local.or_insert_with(|| Arc::new(LocalGrant::new(name, GrantView::Unread))))
    }

    /// Keeps every grant that a connector names, until cancelled. Whether that is because a task was broken.
    pub(super) async fn keep(
        self: &Arc<Self>,
        tasks: &mut TaskGroup,
        configs: &Table<Configs>,
        providers: &Providers,
        cancel: &CancellationToken,
    ) -> bool {
        let mut running: BTreeMap<String, GrantTasks> = BTreeMap::new();
        let mut changes = configs.changes();
        loop {
            changes.borrow_and_update();
            // What a reference names may be on a disk that does not answer: then what was read before holds.
            let mut reading = std::pin::pin!(self.read_clients(configs, providers));
            loop {
                tokio::select! {
                    () = cancel.cancelled() => return false,
                    () = &mut reading => break,
                    is_broken = tasks.ended() => if is_broken { return true },
                }
            }
            let clients = self.clients.borrow().clone();
            self.prune(&clients);
            // A grant without connectors is not refreshed, although its view may still be in use.
            for (_, one) in running.iter().filter(|(name, _)| clients.naming(name).is_empty()) {
                one.stop.cancel();
            }
            running
                .retain(|_, one| !one.stop.is_cancelled() || !one.tasks.iter().all(AbortHandle::is_finished));
            for name in clients.names() {
                // One that is named again waits for its former tasks: each file and each intent has one.
                if running.contains_key(name) {
                    continue;
                }
                let (stop, local) = (tasks.stop(), self.local(name));
                let tasks = [
                    tasks.add(view::keep(Arc::clone(self), Arc::clone(&local), stop.clone())),
                    tasks.add(refresher::keep(Arc::clone(self), local, stop.clone())),
                    tasks.add(copies::keep(Arc::clone(self), name.clone(), stop.clone())),
                ];
                running.insert(name.clone(), GrantTasks { stop, tasks });
            }
            tokio::select! {
                () = cancel.cancelled() => return false,
                _ = changes.changed() => {}
                () = sleep(CONNECTOR_REREAD_INTERVAL) => {}
                is_broken = tasks.ended() => if is_broken { return true },
            }
        }
    }

    /// Claims the topic for this group, or finds out which group owns it. Retries until Kafka answers.
    pub(super) async fn claim(&self) {
        self.store.table().caught_up().await;
        loop {
            let is_adopting = self.adopting.load(Ordering::SeqCst);
            match self.store.claim(&self.ours, is_adopting, CLAIM_LIMIT).await {
                Ok(owners) => {
                    if owners != self.ours {
                        let topic = self.store.table().topic();
                        tracing::error!(%topic, group = owners.group, "the grants topic belongs to workers of another group");
                    }
                    self.adopting.store(false, Ordering::SeqCst);
                    return;
                }
                Err(error) => {
                    tracing::warn!(error = %ErrorChain(&error), "could not claim the grants topic yet; retrying");
                    sleep(CLAIM_PAUSE).await;
                }
            }
        }
    }

    /// Whether the topic says that these workers refresh its grants.
    pub(super) fn is_ours(&self) -> bool {
        self.store.table().read(|table| table.owners() == Some(&self.ours))
    }

    /// The group whose the topic is, if that is another: also where others have adopted it since.
    pub(super) fn foreign(&self) -> Option<String> {
        // Until then it still says whose it was.
        if self.adopting.load(Ordering::SeqCst) {
            return None;
        }
        self.store.table().read(|table| {
            table.owners().filter(|owners| **owners != self.ours).map(|owners| owners.group.clone())
        })
    }

    async fn read_clients(&self, configs: &Table<Configs>, providers: &Providers) {
        let (connectors, providers) = (configs.read(clients::connectors), providers.clone());
        let before = self.clients.borrow().clone();
        let read = spawn_blocking(move || GrantClients::of(&connectors, &providers, &before)).await;
        let Ok(read) = read else { return };
        self.clients.send_if_modified(|clients| {
            let is_other = !clients.is_same(&read);
            *clients = read;
            is_other
        });
    }

    /// Drops grants that no connector names and no task uses.
    fn prune(&self, clients: &GrantClients) {
        let mut grants = self.grants.lock();
        grants.retain(|name, local| !clients.naming(name).is_empty() || Arc::strong_count(local) > 1);
    }

    /// The identity service of a connector's client, kept for as long as a connector has it.
    pub(super) fn issuer(&self, client: &GrantClient) -> Result<Arc<dyn Issuer>, identity::Error> {
        let key = IssuerKey::of(&client.provider);
        // Two locks: certificates are read while one is made, and every request asks those that are there for the time.
        let _making = self.making.lock();
        if let Some(issuer) = self.made.lock().get(&key) {
            return Ok(Arc::clone(issuer));
        }
        let issuer = self.issuers.issuer(&client.provider)?;
        let mut made = self.made.lock();
        made.insert(key, Arc::clone(&issuer));
        // After the insert, so that shared host state survives.
        let clients = self.clients.borrow();
        made.retain(|known, _| clients.issuer_keys().any(|key| key == *known));
        Ok(issuer)
    }

    /// The provider's time if an issuer knows it, else this machine's.
    pub(super) fn now_ms(&self, key: &IssuerKey) -> i64 {
        let issuer = self.made.lock().get(key).cloned();
        issuer.map_or_else(wall_ms, |issuer| issuer.now_ms())
    }

    /// A new unique id.
    pub(super) fn draw(&self) -> String {
        // It must be unique, not secret.
        random::hex::<16>().unwrap_or_else(|_| String::from_utf8_lossy(&write_id()).into_owned())
    }
}

/// Writes the answers that an earlier run left on this disk, concurrently, so that one failure delays no other.
pub(super) async fn salvage(shared: Arc<GrantContext>, stop: CancellationToken, read: oneshot::Sender<()>) {
    let files = shared.files.clone();
    let Some(left) = stop.run_until_cancelled(spawn_blocking(move || files.pending())).await else { return };
    read.send(()).ok();
    join_all(left.unwrap_or_default().into_iter().map(|pending| refresh::salvage(&shared, pending))).await;
}

impl fmt::Debug for GrantContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrantContext").field("store", &self.store).finish_non_exhaustive()
    }
}
