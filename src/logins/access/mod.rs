//! Clients of the provider's APIs for the tasks of this worker: one for all connectors that reach a provider in the same way.
//!
//! ```text
//! task: ApiUser ─▶ client shared by address, key, transport and proxy ─▶ Accounting, Payroll: tokens of grants
//!                  │ clock of the identity service                    └▶ Invoicing: tokens of a login that connectors share
//!                  └ budget of address and key ◀── share: partitions owned here, of all
//! ```
//!
//! - The provider counts requests by subscription key, over all workers: clients with one key share one budget, and each worker
//!   takes the share of it that it owns of the work.
//! - A connector has one client at a time. A client that no connector names any more is dropped, and its budget once the last task
//!   that holds it has ended.
//! - A refused login of the invoicing API is not retried automatically; a task that a person restarts tries it once.
//!
//! On failure (a certificate, proxy or key cannot be used) nothing is cached, and the next call tries again.

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fmt,
    sync::Arc,
};

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use base::secret::Secret;
use kafka::OwnedPartitions;
use provider::{
    Provider,
    api::{
        Accounting, ApiOptions, Budget, Budgets, Cause, Client, Invoicing, Payroll, Rates,
        invoicing::{InvoicingTokens, Password, SuppliedToken},
    },
    auth::Area,
};

use super::{Grants, IdentityHost, IdentityHosts};
use crate::config::connector::InvoicingLogin;

/// The default of `invoicing.api.version`. Connectors that do not use invoicing have it too, so that all share a client.
const DEFAULT_API_VERSION: &str = "2.0";

/// The connector that uses an API, and how it reaches its provider.
#[derive(Debug, Clone, Copy)]
pub struct ApiUser<'a> {
    /// Name of the connector.
    pub connector: &'a str,
    /// Its provider.
    pub provider: &'a Provider,
    /// Requests a second that its configuration allows, if set.
    pub rates: Option<Rates>,
    /// `invoicing.api.version`; `None` to leave out the header.
    pub api_version: Option<&'a str>,
    /// `invoicing.egress.proxy`.
    pub egress_proxy: Option<&'a Secret>,
}

impl<'a> ApiUser<'a> {
    /// A connector without settings for rates or proxies.
    pub fn new(connector: &'a str, provider: &'a Provider) -> Self {
        Self { connector, provider, rates: None, api_version: Some(DEFAULT_API_VERSION), egress_proxy: None }
    }
}

/// Access to the provider's APIs. Clones share it.
#[derive(Clone)]
pub struct ApiAccess(Arc<AccessInner>);

/// Whether a connector with this name exists.
type ConnectorExists = Box<dyn Fn(&str) -> bool + Send + Sync>;

struct AccessInner {
    grants: Grants,
    hosts: Arc<IdentityHosts>,
    exists: ConnectorExists,
    budgets: Budgets,
    state: Mutex<AccessState>,
}

struct AccessState {
    /// This worker's share of every budget, from 0 to 1.
    share: f64,
    clients: BTreeMap<ClientKey, SharedClient>,
}

/// Connectors with different keys need different clients.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct ClientKey {
    base_url: String,
    /// The identity service, whose clock decides when tokens expire.
    auth_url: String,
    transport: String,
    api_version: Option<String>,
    /// Digests of the subscription key and the proxy.
    secrets: [[u8; 32]; 2],
}

/// A client and who uses it.
struct SharedClient {
    client: Client,
    /// Budget with the default rates.
    budget: Budget,
    /// Keeps the host's clock and circuit alive for its other users.
    _host: Arc<IdentityHost>,
    connectors: BTreeMap<String, ConnectorUse>,
}

/// What a connector uses of a client.
#[derive(Default)]
struct ConnectorUse {
    /// Holds the connector's rates; they count while this exists.
    own_budget: Option<Budget>,
    /// Its login at the invoicing API, if it has one.
    login: Option<(LoginKey, Arc<InvoicingTokens>)>,
}

/// Identifies a login: mail, password, company.
type LoginKey = (String, [u8; 32], Option<i64>);

impl ApiAccess {
    /// With the tokens of these grants, for the connectors for which `exists` is true.
    pub fn new(
        grants: Grants,
        hosts: Arc<IdentityHosts>,
        exists: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) -> Self {
        let state = Mutex::new(AccessState { share: 1.0, clients: BTreeMap::new() });
        Self(Arc::new(AccessInner {
            grants,
            hosts,
            exists: Box::new(exists),
            budgets: Budgets::default(),
            state,
        }))
    }

    /// The grants that tokens come from.
    pub fn grants(&self) -> &Grants {
        &self.0.grants
    }

    /// The accounting API and its webhooks, with the connector's grant.
    ///
    /// # Errors
    /// The client cannot be built from these settings on this worker.
    pub fn accounting(&self, user: &ApiUser<'_>) -> Result<Accounting, Cause> {
        let tokens = self.0.grants.tokens(user.provider, Area::Accounting, user.connector);
        self.with(user, |shared| shared.client.accounting(tokens))
    }

    /// The payroll API, with the connector's grant.
    ///
    /// # Errors
    /// The client cannot be built from these settings on this worker.
    pub fn payroll(&self, user: &ApiUser<'_>) -> Result<Payroll, Cause> {
        let tokens = self.0.grants.tokens(user.provider, Area::Payroll, user.connector);
        self.with(user, |shared| shared.client.payroll(tokens))
    }

    /// The invoicing API, with the connector's grant.
    ///
    /// # Errors
    /// The client cannot be built from these settings on this worker.
    pub fn invoicing_by_grant(&self, user: &ApiUser<'_>) -> Result<Invoicing, Cause> {
        let tokens = self.0.grants.tokens(user.provider, Area::Invoicing, user.connector);
        self.with(user, |shared| shared.client.invoicing(tokens))
    }

    /// The invoicing API, with a token that the configuration supplies, or a login that all connectors with the same credentials share.
    ///
    /// # Errors
    /// The client cannot be built from these settings on this worker.
    pub fn invoicing(&self, user: &ApiUser<'_>, login: &InvoicingLogin) -> Result<Invoicing, Cause> {
        let (mail, password, company) = match login.clone() {
            InvoicingLogin::Password { mail, password, company } => (mail, password, company),
            InvoicingLogin::Token(token) => {
                return self.with(user, |shared| {
                    shared.connectors.entry(user.connector.to_owned()).or_default().login = None;
                    shared.client.invoicing(Arc::new(SuppliedToken::new(token)))
                });
            }
        };
        let mark: LoginKey = (mail.clone(), digest(Some(&password)), company);
        self.with(user, |shared| {
            let mut known = shared.connectors.values().filter_map(|used| used.login.as_ref());
            let known = known.find(|(other, login)| *other == mark && !login.is_refused());
            let login = known.map(|(_, login)| Arc::clone(login)).unwrap_or_else(|| {
                let way = Arc::new(Password { mail, password, company });
                Arc::new(InvoicingTokens::new(shared.client.clone(), way))
            });
            let used = shared.connectors.entry(user.connector.to_owned()).or_default();
            used.login = Some((mark, Arc::clone(&login)));
            shared.client.invoicing(login)
        })
    }

    /// Keeps this worker's share of every budget up to date, until cancelled: the share of the work topic's partitions that it owns.
    pub async fn run(
        self,
        mut owned: watch::Receiver<OwnedPartitions>,
        partitions: u32,
        cancel: CancellationToken,
    ) {
        loop {
            let placed = |partition: &i32| u32::try_from(*partition).is_ok_and(|one| one < partitions);
            let count = owned.borrow_and_update().keys().filter(|partition| placed(partition)).count();
            self.set_share(count, partitions);
            tokio::select! {
                () = cancel.cancelled() => return,
                changed = owned.changed() => if changed.is_err() {
                    return cancel.cancelled().await;
                }
            }
        }
    }

    /// Updates the metrics of budgets: the one that is limited most is shown.
    pub fn measure(&self) {
        let mut state = self.0.state.lock();
        state.forget(&self.0.exists);
        drop(state);
        self.0.budgets.measure();
    }

    /// A worker without partitions keeps the smallest share, to finish its requests.
    fn set_share(&self, owned: usize, partitions: u32) {
        let mut state = self.0.state.lock();
        state.share = (owned.max(1) as f64 / f64::from(partitions.max(1))).min(1.0);
        for shared in state.clients.values() {
            shared.budget.set_share(state.share);
        }
    }

    /// Calls `then` with the client of a connector.
    fn with<T>(&self, user: &ApiUser<'_>, then: impl FnOnce(&mut SharedClient) -> T) -> Result<T, Cause> {
        let ApiUser { connector, provider, rates, api_version, egress_proxy } = *user;
        let key = ClientKey::of(user);
        let mut state = self.0.state.lock();
        // Drop the client it used before its settings changed.
        for (other, shared) in &mut state.clients {
            if *other != key {
                shared.connectors.remove(connector);
            }
        }
        state.forget(&self.0.exists);
        let budget = |rates| self.0.budgets.of(&provider.base_url, &provider.subscription_key, rates);
        let own_budget = budget(rates);
        own_budget.set_share(state.share);
        let shared = match state.clients.entry(key) {
            Entry::Occupied(shared) => shared.into_mut(),
            Entry::Vacant(vacant) => {
                let options = ApiOptions {
                    api_version: api_version.map(str::to_owned),
                    egress_proxy: egress_proxy.cloned(),
                    ..ApiOptions::from(provider)
                };
                let host = self.0.hosts.of(&provider.auth_url);
                let budget = budget(None);
                let client = Client::new(&options, budget.clone(), host.clock.clone())?;
                vacant.insert(SharedClient { client, budget, _host: host, connectors: BTreeMap::new() })
            }
        };
        shared.connectors.entry(connector.to_owned()).or_default().own_budget = Some(own_budget);
        Ok(then(shared))
    }
}

impl fmt::Debug for ApiAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.0.state.lock();
        f.debug_struct("ApiAccess").field("clients", &state.clients.len()).finish_non_exhaustive()
    }
}

impl AccessState {
    /// Drops clients that no existing connector uses.
    fn forget(&mut self, exists: &ConnectorExists) {
        self.clients.retain(|_, shared| {
            shared.connectors.retain(|name, _| exists(name));
            !shared.connectors.is_empty()
        });
    }
}

impl ClientKey {
    fn of(user: &ApiUser<'_>) -> Self {
        let Provider { base_url, auth_url, subscription_key, transport, .. } = user.provider;
        Self {
            base_url: base_url.to_string(),
            auth_url: auth_url.to_string(),
            transport: format!("{transport:?}"),
            api_version: user.api_version.map(str::to_owned),
            secrets: [digest(Some(subscription_key)), digest(user.egress_proxy)],
        }
    }
}

/// A digest that distinguishes secrets without keeping them.
fn digest(secret: Option<&Secret>) -> [u8; 32] {
    secret.map(|secret| Sha256::digest(secret.reveal()).into()).unwrap_or_default()
}
