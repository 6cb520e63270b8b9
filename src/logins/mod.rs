//! Grants: stored in a topic, refreshed by one worker at a time, read by all.
//!
//! ```text
//! auth login ─▶ GrantWriter ──transaction──▶ grants topic ─▶ GrantTable ─┬─▶ view: opened, checked ─▶ Tokens, Watch, status
//! (any machine)    ▲                                                     ├─▶ copies: on this disk, for people
//!                  └── intent, answer ◀── refresh ◀── plan ◀── refresher ┘   acts only on grants of this worker
//! ```
//!
//! | file | job |
//! |---|---|
//! | `table` | the topic in memory; refuses old envelopes |
//! | `store` | opens, decides, seals and writes, under the transactional id of the grant |
//! | `plan` | what the owner of a grant does next: a pure function |
//! | `refresher`, `refresh` | one task for each grant that follows the plan; one refresh from intent to commit |
//! | `view` | what this worker knows of a grant; checks each access token once |
//! | `tokens` | tokens for the requests of one connector |
//! | `refusals` | reports refused tokens to the owner |
//! | `clients`, `issuer` | OAuth clients of connectors, and the identity service behind each |
//! | `files`, `copies` | answers that are not in the topic yet, and copies of grants, on this disk |
//! | `status` | metrics and health |
//! | `mod`, `task_group` | state that the tasks share; how they start and stop |
//! | `access` | clients of the provider's APIs, with the tokens of grants |
//!
//! | key | value |
//! |---|---|
//! | `grant/{name}` | the grant, encrypted ([`Envelope`](provider::auth::seal::Envelope)) |
//! | `refused/{name}` | the serial whose access token an API has refused, plain |
//! | `cluster` | which workers refresh the grants of this topic, plain |
//!
//! - One refresh of a grant is in progress at a time, across all workers: its owner commits an intent under the grant's own
//!   transactional id before the token leaves the process. [`grant`](provider::auth::grant) says why only a crash between the
//!   provider's rotation and our commit can lose a token.
//! - A token is used only after it is in the topic, and after the worker that uses it has checked it.
//! - However many requests are refused with one token, it is refreshed once: they write one record and wait for the next serial.
//! - The topic has no client secret and no subscription key: the owner takes them from the connectors that name the grant.
//! - Workers of another group on the same topic neither use nor refresh its grants. No worker refreshes before the topic names its
//!   group.
//! - A connector gets tokens only from a login that was made with its own client, at its own identity service, and only if the
//!   login covers the origin of its `provider.base.url`.
//!
//! On failure: without Kafka or without the identity service, tokens are given out until they expire. A hanging disk delays only
//! the files on it. A lost grant shows the command that repairs it; deliveries are received in any case.

pub mod access;
mod clients;
mod copies;
mod files;
mod issuer;
mod plan;
mod refresh;
mod refresher;
mod refusals;
mod status;
pub mod store;
pub mod table;
mod task_group;
mod tokens;
mod view;

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
    time::{Instant, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use base::{random, retry::ErrorChain};
use kafka::{Lease, Membership, partition_of, write_id};
use model::List;
use provider::{
    Provider,
    auth::{self, Area},
};

use self::{
    clients::{GrantClient, GrantClients, IssuerCache, IssuerKey},
    refusals::RefusalReporter,
    store::GrantStore,
    table::{GrantTable, TopicOwners, grant_key},
    task_group::TaskGroup,
    tokens::ConnectorTokens,
    view::{GrantView, LocalGrant},
};
pub use self::{
    clients::{grant_name, is_login_of, login_command},
    files::{GrantFiles, PendingAnswer},
    issuer::{IdentityHost, IdentityHosts, Issuer, IssuerFactory, TokenFault, issued_tokens},
    tokens::GrantWatch,
};
use crate::{
    config::{self, Providers, RecordSource},
    state::{Table, configs::Configs},
};

/// Limit of one attempt to claim the topic.
const CLAIM_LIMIT: Duration = Duration::from_secs(20);
/// Pause between two attempts to claim it.
const CLAIM_PAUSE: Duration = Duration::from_secs(2);
/// How often connectors are read again although none has changed: their references may resolve to other values.
const CONNECTOR_REREAD_INTERVAL: Duration = Duration::from_secs(60);
/// Limit for reading the answers of an earlier run; after it the worker starts without them.
const PENDING_READ_LIMIT: Duration = Duration::from_secs(5);

/// Dependencies of [`Grants::start`].
#[derive(Debug)]
pub struct GrantParts {
    /// The worker's configuration.
    pub worker: Arc<config::Worker>,
    /// Partitions of the grants topic.
    pub partitions: i32,
    /// The partitions this worker owns.
    pub membership: Membership,
    /// Partitions of the work topic among which grants are placed: the same number on every worker of the cluster.
    pub work_partitions: u32,
    /// Connectors.
    pub configs: Table<Configs>,
    /// This worker's id: `host:port`.
    pub worker_id: Arc<str>,
    /// Makes the identity services.
    pub issuers: Arc<dyn IssuerFactory>,
    /// Whether this worker adopts a topic of another group (`--adopt`).
    pub adopt: bool,
}

/// The grants of this worker. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Grants {
    /// `None` without `grant.encryption.key`.
    shared: Option<Arc<GrantContext>>,
    /// Why grants are not available although there is a key.
    fault: Option<Arc<str>>,
}

impl Grants {
    /// How long a stop should wait for refreshes in progress: this process may hold the only copy of the provider's answer.
    pub const STOP_LIMIT: Duration = refresh::STOP_LIMIT;

    /// Follows the topic. Nothing is refreshed before [`Grants::run`].
    ///
    /// # Errors
    /// A client of Kafka cannot be built.
    pub async fn start(parts: &GrantParts) -> Result<Self, kafka::Error> {
        let worker = &parts.worker;
        let keys = match worker.keyring() {
            Ok(None) => return Ok(Self::default()),
            Ok(Some(keys)) => Arc::new(keys),
            Err(error) => {
                tracing::error!(error = %ErrorChain(&error), "cannot use grant.encryption.key; grants are not available");
                let fault = format!("cannot use grant.encryption.key: {}", ErrorChain(&error));
                return Ok(Self { shared: None, fault: Some(fault.into()) });
            }
        };
        let (blank, topic) = (GrantTable::with_keys(Arc::clone(&keys)), &worker.topics.grant.name);
        let table = Table::follow_from(blank, &worker.kafka, topic, parts.partitions).await?;
        let shared = GrantContext {
            store: GrantStore::new(&worker.kafka, table, Arc::clone(&keys)),
            files: GrantFiles::new(&worker.state_dir, keys),
            ownership: GrantOwnership {
                membership: parts.membership.clone(),
                partitions: i32::try_from(parts.work_partitions).unwrap_or(i32::MAX),
                session: worker.group.session_timeout,
            },
            worker_id: Arc::clone(&parts.worker_id),
            clients: watch::Sender::default(),
            claim: TopicClaim {
                ours: TopicOwners {
                    group: worker.group.id.clone(),
                    work_topic: worker.topics.work.name.clone(),
                },
                adopting: AtomicBool::new(parts.adopt),
            },
            grants: Mutex::default(),
            issuers: IssuerCache::new(Arc::clone(&parts.issuers)),
            refusals: RefusalReporter::new(&worker.kafka)?,
            under_way: TaskTracker::new(),
        };
        // `wait` returns only on a closed tracker.
        shared.under_way.close();
        Ok(Self { shared: Some(Arc::new(shared)), fault: None })
    }

    /// Runs the tasks of all grants until canceled. Refreshes in progress are finished first.
    pub async fn run(self, parts: GrantParts, cancel: CancellationToken) {
        let Some(shared) = self.shared else { return cancel.cancelled().await };
        let GrantParts { worker, configs, .. } = parts;
        let mut tasks = TaskGroup::new(&cancel);
        let (read, known) = oneshot::channel();
        tasks.add(salvage(Arc::clone(&shared), tasks.stop(), read));
        let (claiming, stop) = (Arc::clone(&shared), tasks.stop());
        tasks.add(async move {
            stop.run_until_cancelled(claiming.claim()).await;
        });
        // Read the files of an earlier run before this one writes any.
        cancel.run_until_cancelled(timeout(PENDING_READ_LIMIT, known)).await;
        let is_broken = shared.run_tasks(&mut tasks, &configs, &worker.providers, &cancel).await;
        // A regular stop is limited by its caller.
        tasks.end(is_broken.then_some(Self::STOP_LIMIT)).await;
    }

    /// Waits until no refresh is in progress.
    pub async fn at_rest(&self) {
        if let Some(shared) = &self.shared {
            shared.under_way.wait().await;
        }
    }

    /// The tokens of the grant that a connector uses for an area.
    pub fn tokens(&self, provider: &Provider, area: Area, connector: &str) -> Arc<dyn auth::Tokens> {
        Arc::new(self.tokens_of(provider, area, connector))
    }

    /// Watches why a connector cannot use its grant, beyond delays of moments.
    pub fn watch(&self, provider: &Provider, area: Area, connector: &str) -> GrantWatch {
        GrantWatch::new(self.tokens_of(provider, area, connector))
    }

    fn tokens_of(&self, provider: &Provider, area: Area, connector: &str) -> ConnectorTokens {
        let client =
            GrantClient { connector: connector.to_owned(), area, provider: Arc::new(provider.clone()) };
        let local = match &self.shared {
            Some(shared) => shared.local(client.grant()),
            None => {
                let fault = self.fault.as_ref().map(|what| GrantView::Unusable { what: what.to_string() });
                Arc::new(LocalGrant::new(client.grant(), fault.unwrap_or(GrantView::NoKey)))
            }
        };
        ConnectorTokens { shared: self.shared.clone(), local, client, key: IssuerKey::of(provider) }
    }

    /// Lists of a connector that wait for a login, each with the remedy. A list of the accounting API never waits: without that login
    /// the task fails.
    pub fn waiting(&self, source: &RecordSource) -> BTreeMap<List, String> {
        let connector = &source.common.name;
        let login = source.snapshot.lists.contains(&List::Payroll);
        let login = login.then(|| self.watch(&source.provider, Area::Payroll, connector));
        let problem = login.and_then(|mut login| login.problem());
        problem.map(|error| (List::Payroll, payroll_waits(&error))).into_iter().collect()
    }
}

/// The message for a payroll list that waits for a login.
pub(crate) fn payroll_waits(error: &auth::Error) -> String {
    format!(
        "payroll waits for a login ({error}); other lists are read without it; if payroll is not wanted, remove it from snapshot.lists"
    )
}

/// State that the tasks of all grants share.
struct GrantContext {
    store: GrantStore,
    files: GrantFiles,
    ownership: GrantOwnership,
    worker_id: Arc<str>,
    /// The connectors that name each grant, as last read.
    clients: watch::Sender<GrantClients>,
    claim: TopicClaim,
    /// Grants that a connector names or a task uses.
    grants: Mutex<BTreeMap<String, Arc<LocalGrant>>>,
    issuers: IssuerCache,
    refusals: RefusalReporter,
    /// Refreshes and answers in progress, which a stop has to wait for. Closed from the start.
    under_way: TaskTracker,
}

/// Which grants this worker refreshes: those of the partitions of the work topic that it owns.
struct GrantOwnership {
    membership: Membership,
    partitions: i32,
    /// Time after which a silent worker counts as dead.
    session: Duration,
}

/// The claim of this worker's group on the topic.
struct TopicClaim {
    /// This worker's group and work topic.
    ours: TopicOwners,
    /// Whether this worker still has to take over the topic from another group.
    adopting: AtomicBool,
}

/// A refusal that was reported.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RefusalReport {
    login: String,
    serial: u64,
    at: Instant,
}

/// The tasks of one grant.
struct GrantTasks {
    stop: CancellationToken,
    tasks: [AbortHandle; 3],
}

impl GrantOwnership {
    /// Checks that this worker still holds the grant's partition under the current claim; `None` if it does not own it.
    fn lease(&self, name: &str) -> Option<Lease> {
        let partition = partition_of(grant_key(name).as_bytes(), self.partitions);
        let owned = self.membership.owned();
        let claim = *owned.borrow().get(&partition)?;
        let membership = self.membership.clone();
        Some(Arc::new(move || {
            // Two statements: both take the same lock.
            let claimed = owned.borrow().get(&partition) == Some(&claim);
            claimed && membership.holds(partition)
        }))
    }
}

impl GrantContext {
    fn local(&self, name: &str) -> Arc<LocalGrant> {
        let mut grants = self.grants.lock();
        let local = grants.entry(name.to_owned());
        Arc::clone(local.or_insert_with(|| Arc::new(LocalGrant::new(name, GrantView::Unread))))
    }

    /// Runs the tasks of every grant that a connector names, until cancelled. Returns whether a task panicked.
    async fn run_tasks(
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
            // References may be on a hanging disk: meanwhile the last values hold.
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
                // A grant that is named again waits until its earlier tasks end: each file and each intent has one writer.
                if running.contains_key(name) {
                    continue;
                }
                let (stop, local) = (tasks.stop(), self.local(name));
                let tasks = [
                    tasks.add(view::run(Arc::clone(self), Arc::clone(&local), stop.clone())),
                    tasks.add(refresher::run(Arc::clone(self), local, stop.clone())),
                    tasks.add(copies::run(Arc::clone(self), name.clone(), stop.clone())),
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
    async fn claim(&self) {
        let TopicClaim { ours, adopting } = &self.claim;
        self.store.table().caught_up().await;
        loop {
            let is_adopting = adopting.load(Ordering::SeqCst);
            match self.store.claim(ours, is_adopting, CLAIM_LIMIT).await {
                Ok(owners) => {
                    if owners != *ours {
                        let topic = self.store.table().topic();
                        tracing::error!(%topic, group = owners.group, "the grants topic belongs to workers of another group");
                    }
                    adopting.store(false, Ordering::SeqCst);
                    return;
                }
                Err(error) => {
                    tracing::warn!(error = %ErrorChain(&error), "could not claim the grants topic yet; retrying");
                    sleep(CLAIM_PAUSE).await;
                }
            }
        }
    }

    /// Whether the topic names this worker's group as its owner.
    fn is_ours(&self) -> bool {
        self.store.table().read(|table| table.owners() == Some(&self.claim.ours))
    }

    /// The group that owns the topic, if it is another one; also if that group adopted it while this worker ran.
    fn foreign(&self) -> Option<String> {
        // Until the adoption is done the topic still names its old owner.
        if self.claim.adopting.load(Ordering::SeqCst) {
            return None;
        }
        self.store.table().read(|table| {
            table.owners().filter(|owners| **owners != self.claim.ours).map(|owners| owners.group.clone())
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

    /// A new unique id.
    fn draw(&self) -> String {
        // It must be unique, not secret.
        random::hex::<16>().unwrap_or_else(|_| String::from_utf8_lossy(&write_id()).into_owned())
    }
}

/// Writes the answers that an earlier run left on this disk, concurrently, so that one failure delays no other.
async fn salvage(shared: Arc<GrantContext>, stop: CancellationToken, read: oneshot::Sender<()>) {
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
