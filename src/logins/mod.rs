//! Grants: kept in a topic, refreshed by one worker at a time, read by all.
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
//! | `context`, `task_group` | state that the tasks share; how they start and stop |
//! | `access` | clients of the provider's APIs, with the tokens of grants |
//!
//! | key | value |
//! |---|---|
//! | `grant/{name}` | the grant, encrypted ([`Envelope`](provider::auth::seal::Envelope)) |
//! | `refused/{name}` | the serial whose access token an API has refused, plain |
//! | `cluster` | which workers refresh the grants of this topic, plain |
//!
//! - One refresh of a grant is under way at a time, across all workers: its owner commits an intent under the grant's own
//!   transactional id before the token leaves the process. [`grant`](provider::auth::grant) says why only a crash between the
//!   provider's rotation and our commit can lose a token.
//! - A token is used only after it is in the topic, and after the worker that uses it has checked it.
//! - However many requests are refused with one token, it is refreshed once: they write one record and wait for the next serial.
//! - The topic has no client secret and no subscription key: the owner has them from the connectors that name the grant.
//! - Workers of another group on the same topic neither use nor refresh its grants. No worker refreshes before the topic names its
//!   group.
//! - A connector gets tokens only of a login that was made with its own client, at its own identity service, and only if its
//!   `provider.base.url` has an origin that the login is good for.
//!
//! On failure: without Kafka or without the identity service, tokens are given out until they end. A disk that does not answer
//! delays only the files on it. A lost grant shows the command that repairs it; deliveries are received in any case.

pub mod access;
mod clients;
mod context;
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
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    sync::{oneshot, watch},
    time::timeout,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use base::retry::ErrorChain;
use kafka::Membership;
use model::List;
use provider::{
    Provider,
    auth::{self, Area},
};

use self::{
    clients::{GrantClient, IssuerKey},
    context::GrantContext,
    refusals::RefusalReporter,
    store::GrantStore,
    table::{GrantTable, TopicOwners},
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
    config::{self, RecordSource},
    state::{Table, configs::Configs},
};

/// Limit for reading the answers of an earlier run; after it the worker starts without them.
const PENDING_READ_LIMIT: Duration = Duration::from_secs(5);

/// Dependencies of [`Grants::start`].
#[derive(Debug)]
pub struct GrantParts {
    /// The worker's configuration.
    pub worker: Arc<config::Worker>,
    /// Partitions of the grants topic.
    pub partitions: i32,
    /// What this worker owns.
    pub membership: Membership,
    /// Partitions of the work topic among which grants are placed: the same number on every worker of the cluster.
    pub work_partitions: u32,
    /// Connectors.
    pub configs: Table<Configs>,
    /// Who this worker is: `host:port`.
    pub worker_id: Arc<str>,
    /// Who issues tokens.
    pub issuers: Arc<dyn IssuerFactory>,
    /// Whether a topic of another group becomes this worker's.
    pub adopt: bool,
}

/// The grants of this worker. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Grants {
    /// `None` without `grant.encryption.key`.
    shared: Option<Arc<GrantContext>>,
    /// Why there is nothing, where there is a key.
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
                let fault = format!("make use of grant.encryption.key: {}", ErrorChain(&error));
                return Ok(Self { shared: None, fault: Some(fault.into()) });
            }
        };
        let (blank, topic) = (GrantTable::with_keys(Arc::clone(&keys)), &worker.topics.grant.name);
        let table = Table::follow_from(blank, &worker.kafka, topic, parts.partitions).await?;
        let shared = GrantContext {
            store: GrantStore::new(&worker.kafka, table, Arc::clone(&keys)),
            files: GrantFiles::new(&worker.state_dir, keys),
            membership: parts.membership.clone(),
            work_partitions: i32::try_from(parts.work_partitions).unwrap_or(i32::MAX),
            session: worker.group.session_timeout,
            worker_id: Arc::clone(&parts.worker_id),
            issuers: Arc::clone(&parts.issuers),
            clients: watch::Sender::default(),
            ours: TopicOwners { group: worker.group.id.clone(), work_topic: worker.topics.work.name.clone() },
            adopting: AtomicBool::new(parts.adopt),
            grants: Mutex::default(),
            made: Mutex::default(),
            making: Mutex::default(),
            refusals: RefusalReporter::new(&worker.kafka)?,
            under_way: TaskTracker::new(),
        };
        // Closed, a tracker can be waited for whenever nothing is tracked.
        shared.under_way.close();
        Ok(Self { shared: Some(Arc::new(shared)), fault: None })
    }

    /// Runs the tasks of all grants until canceled. Refreshes in progress are finished first.
    pub async fn run(self, parts: GrantParts, cancel: CancellationToken) {
        let Some(shared) = self.shared else { return cancel.cancelled().await };
        let GrantParts { worker, configs, .. } = parts;
        let mut tasks = TaskGroup::new(&cancel);
        let (read, known) = oneshot::channel();
        tasks.add(context::salvage(Arc::clone(&shared), tasks.stop(), read));
        let (claiming, stop) = (Arc::clone(&shared), tasks.stop());
        tasks.add(async move {
            stop.run_until_cancelled(claiming.claim()).await;
        });
        // Read the files of an earlier run before this one writes any.
        cancel.run_until_cancelled(timeout(PENDING_READ_LIMIT, known)).await;
        let is_broken = shared.keep(&mut tasks, &configs, &worker.providers, &cancel).await;
        // A regular stop is limited by its caller.
        tasks.end(is_broken.then_some(Self::STOP_LIMIT)).await;
    }

    /// Waits until nothing is under way.
    pub async fn at_rest(&self) {
        if let Some(shared) = &self.shared {
            shared.under_way.wait().await;
        }
    }

    /// The tokens of the grant that a connector uses for an area.
    pub fn tokens(&self, provider: &Provider, area: Area, connector: &str) -> Arc<dyn auth::Tokens> {
        Arc::new(self.tokens_of(provider, area, connector))
    }

    /// What keeps the grant of a connector from being used, if that does not pass within moments; and a signal for changes.
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

    /// Lists of a connector that wait for a login, each with what to do about it. A list of the accounting API never waits: without
    /// that login the task fails.
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
