//! Grants: kept in a topic, refreshed by one worker at a time, read by all.
//!
//! ```text
//! auth login (any machine) ─▶ store ──transaction──▶ grants topic ─▶ table (tail) ─┬─▶ view: opened, checked ─▶ Tokens
//!                               ▲                                                  └─▶ refresher: due? refused? orphaned?
//!                               └── intent, answer ◀── refresh ◀───────────────────────────┘ where it is ours
//! ```
//!
//! | key | value |
//! |---|---|
//! | `grant/{name}` | the grant, encrypted ([`Envelope`](provider::auth::seal::Envelope)) |
//! | `refused/{name}` | the serial whose access token an API has refused, plain |
//! | `cluster` | which workers refresh the grants of this topic, plain |
//!
//! - One refresh of a grant is under way at a time, across all workers: its owner commits an intent under the grant's own
//!   transactional id before the token leaves the process; see [`grant`](provider::auth::grant) for why nothing but a crash between the
//!   provider's rotation and our commit loses a token.
//! - A token is used only after it stands in the topic, and after the worker that uses it has checked it.
//! - However many requests are refused with one token, it is refreshed once: they write one record and wait for the next serial.
//! - No client secret and no subscription key is in the topic: its owner has them from the connectors that name the grant.
//! - Workers of another group on the same topic give out nothing and refresh nothing. Nobody refreshes before the topic says whose
//!   it is.
//! - A connector gets tokens only of a login that was made with its own client, at its own identity service, and only if its
//!   `provider.base.url` has an origin that the login is good for.
//!
//! On failure: without Kafka tokens are given out until they end. Without the identity service the same. A disk that does not
//! answer holds up the copies on it and nothing else. A grant that is lost says so with the command that mends it; what is
//! received goes on in any case.

mod clients;
mod copies;
mod files;
mod hosts;
mod issuer;
mod plan;
mod refresh;
mod refresher;
mod refusals;
mod service;
mod shared;
mod status;
pub mod store;
pub mod table;
mod tasks;
mod tokens;
mod view;

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use tokio::{
    sync::{oneshot, watch},
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use base::retry::Chain;
use kafka::Membership;
use model::List;
use provider::{
    Provider,
    auth::{self, Area},
};

use self::{
    clients::IssuerKey,
    refusals::RefusalReporter,
    shared::Shared,
    store::GrantStore,
    table::{GrantTable, Owners},
    tasks::TaskGroup,
    tokens::{Tokens, Without},
    view::{Asker, LocalGrant, View},
};
pub use self::{
    clients::{grant_name, login_command},
    files::{Files, Pending},
    hosts::{Host, Hosts},
    issuer::{Fault, Issuer, Issuers},
    service::{Services, issued},
    status::GrantStatus,
};
use super::state::{Tail, configs::Configs};
use crate::config::{self, RecordSource};

/// The longest the topic may take to be read to its end for whoever begins again after a login.
const CATCH_UP: Duration = Duration::from_secs(10);
/// How long the disk may take to say what an earlier run has left, before grants are kept without knowing.
const LEFT: Duration = Duration::from_secs(5);

/// What grants are made of.
#[derive(Debug)]
pub struct Parts {
    /// The worker's configuration.
    pub worker: Arc<config::Worker>,
    /// Partitions of the grants topic.
    pub partitions: i32,
    /// What this worker owns.
    pub membership: Membership,
    /// Partitions of the work topic among which grants are placed: the same number on every worker of the cluster.
    pub work_partitions: u32,
    /// Connectors.
    pub configs: Tail<Configs>,
    /// Who this worker is: `host:port`.
    pub worker_id: Arc<str>,
    /// Who issues tokens.
    pub issuers: Arc<dyn Issuers>,
    /// Whether a topic of another group becomes this worker's.
    pub adopt: bool,
}

/// The grants of this worker. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Grants {
    /// `None` without `grant.encryption.key`.
    shared: Option<Arc<Shared>>,
    /// Why there is nothing, where there is a key.
    fault: Option<Arc<str>>,
}

impl Grants {
    /// How long a stop should wait for what is under way, beyond whatever else it waits for: an answer of the provider that comes
    /// meanwhile is one that nobody else has.
    pub const AT_STOP: Duration = refresh::AT_STOP;

    /// Follows the topic. Nothing is refreshed before [`Grants::run`].
    ///
    /// # Errors
    /// A client of Kafka cannot be built.
    pub async fn start(parts: &Parts) -> Result<Self, kafka::Error> {
        let worker = &parts.worker;
        let keys = match worker.keyring() {
            Ok(None) => return Ok(Self::default()),
            Ok(Some(keys)) => Arc::new(keys),
            Err(error) => {
                tracing::error!(error = %Chain(&error), "grants cannot be read");
                let fault = format!("make use of grant.encryption.key: {}", Chain(&error));
                return Ok(Self { shared: None, fault: Some(fault.into()) });
            }
        };
        let (blank, topic) = (GrantTable::with_keys(Arc::clone(&keys)), &worker.topics.grant.name);
        let table = Tail::follow_from(blank, &worker.kafka, topic, parts.partitions).await?;
        let shared = Shared {
            store: GrantStore::new(&worker.kafka, table, Arc::clone(&keys)),
            files: Files::new(&worker.state_dir, keys),
            membership: parts.membership.clone(),
            work_partitions: i32::try_from(parts.work_partitions).unwrap_or(i32::MAX),
            session: worker.group.session_timeout,
            worker_id: Arc::clone(&parts.worker_id),
            issuers: Arc::clone(&parts.issuers),
            clients: watch::Sender::default(),
            ours: Owners { group: worker.group.id.clone(), work_topic: worker.topics.work.name.clone() },
            adopt: parts.adopt,
            claimed: watch::Sender::default(),
            entries: Mutex::default(),
            made: Mutex::default(),
            making: Mutex::default(),
            refusals: RefusalReporter::new(&worker.kafka)?,
            under_way: watch::Sender::default(),
        };
        Ok(Self { shared: Some(Arc::new(shared)), fault: None })
    }

    /// Keeps them until cancelled. What is under way then is ended first.
    pub async fn run(self, parts: Parts, cancel: CancellationToken) {
        let Some(shared) = self.shared else { return cancel.cancelled().await };
        let Parts { worker, configs, .. } = parts;
        let mut tasks = TaskGroup::new(&cancel);
        let (read, known) = oneshot::channel();
        tasks.add(shared::salvage(Arc::clone(&shared), tasks.stop(), read));
        let (claiming, stop) = (Arc::clone(&shared), tasks.stop());
        tasks.add(async move {
            stop.run_until_cancelled(claiming.claim()).await;
        });
        // What is written from here on is not taken for what an earlier run has left.
        cancel.run_until_cancelled(timeout(LEFT, known)).await;
        let is_broken = shared.keep(&mut tasks, &configs, &worker.providers, &cancel).await;
        // A stop has a limit of its own.
        tasks.end(is_broken.then_some(Self::AT_STOP)).await;
    }

    /// Waits until nothing is under way.
    pub async fn at_rest(&self) {
        if let Some(shared) = &self.shared {
            shared.under_way.subscribe().wait_for(|count| *count == 0).await.ok();
        }
    }

    /// The tokens of the grant that a connector uses for an area.
    pub fn tokens(&self, provider: &Provider, area: Area, connector: &str) -> Arc<dyn auth::Tokens> {
        let asker = asker(provider, area, connector);
        let Some(shared) = &self.shared else { return Arc::new(self.without(asker.grant)) };
        Arc::new(Tokens {
            shared: Arc::clone(shared),
            entry: shared.entry(&asker.grant),
            asker,
            key: IssuerKey::of(provider),
        })
    }

    /// What keeps the grant of a connector from being used, if that does not pass within moments; and a signal for changes.
    pub fn watch(&self, provider: &Provider, area: Area, connector: &str) -> Watch {
        let asker = asker(provider, area, connector);
        let seen = match &self.shared {
            None => Err(self.without(asker.grant.clone())),
            Some(shared) => {
                let entry = shared.entry(&asker.grant);
                let view = entry.view.subscribe();
                Ok(Seen { shared: Arc::clone(shared), _entry: entry, view })
            }
        };
        Watch { seen, asker }
    }

    /// Lists of a connector that wait for a login, each with what to do about it. A list of the accounting API never waits: without
    /// that login the task fails.
    pub fn waiting(&self, source: &RecordSource) -> BTreeMap<List, String> {
        let connector = &source.common.name;
        let login = source.snapshot.lists.contains(&List::Payroll);
        let login = login.then(|| self.watch(&source.provider, Area::Payroll, connector));
        let problem = login.and_then(|mut login| login.problem());
        problem.map(|error| (List::Payroll, payroll_waits(&error))).into_iter().collect()
    }

    fn without(&self, grant: String) -> Without {
        Without { grant, fault: self.fault.clone() }
    }
}

/// What people are told about a payroll list that cannot be read without a login.
pub(in crate::worker) fn payroll_waits(error: &auth::Error) -> String {
    format!(
        "payroll waits for a login ({error}); other lists are read without it; if payroll is not wanted, remove it from snapshot.lists"
    )
}

fn asker(provider: &Provider, area: Area, connector: &str) -> Asker {
    let (grant, connector) = (grant_name(provider, area).to_owned(), connector.to_owned());
    Asker { grant, provider: provider.clone(), area, connector }
}

/// A look at one grant from time to time.
#[derive(Debug)]
pub struct Watch {
    /// Where it is from, and what is known of it.
    seen: Result<Seen, Without>,
    asker: Asker,
}

#[derive(Debug)]
struct Seen {
    shared: Arc<Shared>,
    /// Kept for as long as somebody looks.
    _entry: Arc<LocalGrant>,
    view: watch::Receiver<View>,
}

impl Watch {
    /// What keeps it from being used now.
    pub fn problem(&mut self) -> Option<auth::Error> {
        let Seen { shared, view, .. } = match &mut self.seen {
            Ok(seen) => seen,
            Err(without) => return Some(without.error()),
        };
        let view = view.borrow_and_update().clone();
        // The topic may be ahead of the view, and a login that is in the topic has mended it.
        let grant = shared.store.grant(&self.asker.grant).ok().flatten();
        if grant.is_some_and(|grant| view.is_mended_by(&grant)) {
            return None;
        }
        self.asker.problem(&view)
    }

    /// Reads all that is in the topic by now, or gives up after a while. Who was told to begin again after a login hears of
    /// that by another topic, and must not find what stood before it.
    pub async fn catch_up(&self) {
        let Ok(Seen { shared, .. }) = &self.seen else { return };
        if let Err(error) = shared.store.table().read_to_end(CATCH_UP).await {
            tracing::warn!(grant = self.asker.grant, error = %Chain(&error), "what is known of a grant may be old");
        }
    }

    /// Whether it is known by now whether it can be used.
    pub fn is_known(&self) -> bool {
        self.seen.as_ref().map_or(true, |seen| !matches!(&*seen.view.borrow(), View::Unread))
    }

    /// Waits for a change.
    pub async fn changed(&mut self) {
        let changed = match &mut self.seen {
            Ok(seen) => seen.view.changed().await.is_ok(),
            Err(_) => false,
        };
        // Nobody is left who could change it.
        if !changed {
            std::future::pending().await
        }
    }
}
