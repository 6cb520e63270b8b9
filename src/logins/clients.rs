//! Which connectors name which grants, and with which OAuth client: from the config topic, resolved on this worker.
//!
//! Client secrets and subscription keys stay out of the grants topic. The owner of a grant takes them from a connector that names
//! the grant, and only if the connector's client and identity service are those of the login. No other connector gets its tokens.
//!
//! On failure: a connector whose references cannot be resolved for a while keeps the values they had before.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

use provider::{
    Provider,
    auth::{
        Area,
        grant::{Grant, GrantLogin},
        identity,
    },
};

use super::{
    issuer::{Issuer, IssuerFactory},
    store::wall_ms,
};
use crate::{
    config::{Connector, Providers},
    state::configs::{Configs, Properties},
};

/// A connector that uses a grant for an area.
#[derive(Debug, Clone)]
pub(super) struct GrantClient {
    pub(super) connector: String,
    pub(super) area: Area,
    pub(super) provider: Arc<Provider>,
}

/// The connectors that name each grant.
#[derive(Debug, Clone, Default)]
pub(super) struct GrantClients {
    by_grant: BTreeMap<String, Vec<GrantClient>>,
    /// By connector: the configuration that was read, and the provider it gave.
    read: BTreeMap<String, (Arc<Properties>, Option<Arc<Provider>>)>,
}

/// A digest of everything that decides which identity service answers for an OAuth client, and how it is asked. Connectors and
/// grants with the same key share one issuer, with its cached keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct IssuerKey([u8; 32]);

impl GrantClient {
    /// The name of the grant.
    pub(super) fn grant(&self) -> &str {
        grant_name(&self.provider, self.area)
    }

    /// The command that logs in for it.
    pub(super) fn login_command(&self) -> String {
        login_command(self.area, &self.connector)
    }
}

impl GrantClients {
    /// Reads these connectors, falling back to `before`. Resolves references: blocks.
    pub(super) fn of(connectors: &[(String, Arc<Properties>)], providers: &Providers, before: &Self) -> Self {
        let mut clients = Self::default();
        for (name, config) in connectors {
            let provider = match Connector::parse(name, config, providers) {
                Ok((Connector::WebhookSource(source), _)) => source.provider.map(Arc::new),
                Ok((Connector::RecordSource(source), _)) => Some(Arc::new(source.provider)),
                // If the same configuration was valid before, its references cannot be resolved at the moment: keep its
                // grants. The API reports other errors.
                Err(_) => {
                    let known = before.read.get(name).filter(|(read, _)| read == config);
                    known.and_then(|(_, provider)| provider.clone())
                }
            };
            clients.read.insert(name.clone(), (Arc::clone(config), provider.clone()));
            let Some(provider) = provider else { continue };
            for area in Area::ALL.into_iter().filter(|area| area.is_used(&provider.oauth)) {
                let client = GrantClient { connector: name.clone(), area, provider: Arc::clone(&provider) };
                clients.by_grant.entry(client.grant().to_owned()).or_default().push(client);
            }
        }
        clients
    }

    /// Whether nothing has changed that matters to the tasks of the grants.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.essence() == other.essence()
    }

    fn essence(&self) -> Vec<impl PartialEq> {
        let essence = self.by_grant.iter().flat_map(|(grant, clients)| {
            clients.iter().map(move |client| {
                let oauth = &client.provider.oauth;
                // The lifetimes decide when people are warned.
                let lifetimes = [oauth.login_lifetime, oauth.idle_lifetime];
                (grant, &client.connector, client.area, IssuerKey::of(&client.provider), lifetimes)
            })
        });
        essence.collect()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.by_grant.keys()
    }

    /// The connectors that name a grant, by name. Messages show the first one.
    pub(super) fn naming(&self, grant: &str) -> &[GrantClient] {
        self.by_grant.get(grant).map_or(&[], Vec::as_slice)
    }

    /// The first connector that names a grant with the client that has logged in.
    pub(super) fn of_login(&self, grant: &Grant) -> Option<&GrantClient> {
        self.all_of_login(grant).next()
    }

    /// The first one whose issuer key is not `refused`: a connector may have an outdated secret.
    pub(super) fn of_login_except(
        &self,
        grant: &Grant,
        refused: &BTreeSet<IssuerKey>,
    ) -> Option<(IssuerKey, &GrantClient)> {
        let mut clients = self.all_of_login(grant).map(|client| (IssuerKey::of(&client.provider), client));
        clients.find(|(key, _)| !refused.contains(key))
    }

    /// When the login of a grant ends, and when its refresh token expires; see [`Grant::ends_ms`].
    pub(super) fn ends_ms(&self, grant: &Grant) -> (Option<i64>, Option<i64>) {
        match self.of_login(grant).filter(|_| grant.tokens().is_some()) {
            Some(GrantClient { provider, .. }) => {
                grant.ends_ms(provider.oauth.login_lifetime, provider.oauth.idle_lifetime)
            }
            None => (None, None),
        }
    }

    /// The keys of all connectors.
    fn issuer_keys(&self) -> impl Iterator<Item = IssuerKey> {
        self.read.values().filter_map(|(_, provider)| provider.as_deref()).map(IssuerKey::of)
    }

    fn all_of_login(&self, grant: &Grant) -> impl Iterator<Item = &GrantClient> {
        let naming = self.naming(&grant.name).iter();
        naming.filter(move |client| client.area == grant.area && is_login_of(&client.provider, &grant.login))
    }
}

/// Issuers by the settings of connectors. They cache the provider's keys.
pub(super) struct IssuerCache {
    factory: Arc<dyn IssuerFactory>,
    known: Mutex<BTreeMap<IssuerKey, Arc<dyn Issuer>>>,
    /// Held while an issuer is made.
    making: Mutex<()>,
}

impl IssuerCache {
    pub(super) fn new(factory: Arc<dyn IssuerFactory>) -> Self {
        Self { factory, known: Mutex::default(), making: Mutex::default() }
    }

    /// The identity service of one of these clients, cached while a connector uses it.
    pub(super) fn issuer(
        &self,
        client: &GrantClient,
        clients: &watch::Sender<GrantClients>,
    ) -> Result<Arc<dyn Issuer>, identity::Error> {
        let key = IssuerKey::of(&client.provider);
        // Two locks: making an issuer reads certificates, and meanwhile every request asks existing issuers for the time.
        let _making = self.making.lock();
        if let Some(issuer) = self.known.lock().get(&key) {
            return Ok(Arc::clone(issuer));
        }
        let issuer = self.factory.issuer(&client.provider)?;
        let mut known = self.known.lock();
        known.insert(key, Arc::clone(&issuer));
        // After the insert, so that shared host state survives.
        let clients = clients.borrow();
        known.retain(|known, _| clients.issuer_keys().any(|key| key == *known));
        Ok(issuer)
    }

    /// The provider's time if an issuer knows it, else this machine's.
    pub(super) fn now_ms(&self, key: &IssuerKey) -> i64 {
        let issuer = self.known.lock().get(key).cloned();
        issuer.map_or_else(wall_ms, |issuer| issuer.now_ms())
    }
}

impl IssuerKey {
    /// The key of a connector's settings.
    pub(super) fn of(provider: &Provider) -> Self {
        let Provider { auth_url, oauth, transport, .. } = provider;
        let (issuers, audiences, keys) = (&oauth.issuers, &oauth.audiences, &oauth.keys);
        let settings = (auth_url.as_str(), &oauth.client_id, transport, issuers, audiences, keys);
        let secret = oauth.client_secret.reveal();
        Self(Sha256::new().chain_update(format!("{settings:?}")).chain_update(secret).finalize().into())
    }
}

/// Whether a connector's client and identity service are those that a login was made with. A slash at the end of an address does
/// not matter.
pub fn is_login_of(provider: &Provider, login: &GrantLogin) -> bool {
    provider.oauth.client_id == login.client_id
        && provider.auth_url.as_str().trim_end_matches('/') == login.auth_url.trim_end_matches('/')
}

/// Copies the connectors of the config topic, to read them without its lock.
pub(super) fn connectors(configs: &Configs) -> Vec<(String, Arc<Properties>)> {
    let connectors = configs.connectors().iter();
    connectors.map(|(name, connector)| (name.clone(), Arc::clone(&connector.config))).collect()
}

/// The grant that a connector uses for an area.
pub fn grant_name(provider: &Provider, area: Area) -> &str {
    &area.login(&provider.oauth).grant
}

/// The command that logs in, quoted for a shell.
pub fn login_command(area: Area, connector: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.');
    let is_plain = !connector.is_empty() && !connector.starts_with('-') && connector.chars().all(plain);
    if is_plain {
        format!("tributary auth login {area} --connector {connector}")
    } else {
        let quoted = connector.replace('\'', r"'\''");
        format!("tributary auth login {area} --connector='{quoted}'")
    }
}

#[cfg(test)]
mod tests {
    use provider::auth::grant::samples::{login, ready};

    use super::*;
    use crate::config::samples::{properties, record_config, webhook_config};

    #[test]
    fn only_connectors_of_the_logins_client_refresh_its_grant() {
        let mut other = record_config();
        other.insert("oauth.client.id".into(), "another".into());
        let connectors = [
            ("a".to_owned(), Arc::new(other)),
            ("b".to_owned(), Arc::new(webhook_config())),
            ("c".to_owned(), Arc::new(properties(&[("connector.class", "WebhookSource")]))),
        ];

        let clients = GrantClients::of(&connectors, &Providers::new([]), &GrantClients::default());

        assert_eq!(clients.names().collect::<Vec<_>>(), ["accounting", "payroll"]);
        assert_eq!(clients.naming("accounting").len(), 2);
        let found = |area, login: &GrantLogin| {
            let grant = Grant { area, login: login.clone(), ..ready("accounting") };
            clients.of_login(&grant).map(|client| client.connector.clone())
        };
        assert_eq!(found(Area::Accounting, &login("x")).as_deref(), Some("b"));
        assert_eq!(found(Area::Payroll, &login("x")), None, "a payroll login under the accounting name");
        let elsewhere = GrantLogin { auth_url: "https://other.example.com/".into(), ..login("x") };
        assert_eq!(found(Area::Accounting, &elsewhere), None);
        let bare = GrantLogin { auth_url: "https://login.example.com".into(), ..login("x") };
        assert_eq!(
            found(Area::Accounting, &bare).as_deref(),
            Some("b"),
            "a slash at the end is the same place"
        );
    }

    fn provider(changed: &[(&str, &str)]) -> Provider {
        let mut config = record_config();
        for (key, value) in changed {
            config.insert((*key).into(), (*value).into());
        }
        let (connector, _) = Connector::parse("a", &config, &Providers::new([])).unwrap();
        let Connector::RecordSource(source) = connector else { panic!("it is a RecordSource") };
        source.provider
    }

    #[test]
    fn an_invoicing_grant_is_kept_only_where_its_scopes_are_set() {
        let mut config = record_config();
        config.insert("invoicing.oauth.scopes".into(), "inv".into());
        let of = |config| {
            let clients =
                GrantClients::of(&[("a".to_owned(), config)], &Providers::new([]), &GrantClients::default());
            clients.names().cloned().collect::<Vec<_>>()
        };

        assert_eq!(of(Arc::new(record_config())), ["accounting", "payroll"]);
        assert_eq!(of(Arc::new(config)), ["accounting", "invoicing", "payroll"]);
    }

    #[test]
    fn settings_of_the_api_do_not_change_the_issuer_key() {
        let issuer_key = |key, value| IssuerKey::of(&provider(&[(key, value)]));
        let plain = IssuerKey::of(&provider(&[]));

        assert_eq!(issuer_key("accounting.oauth.grant", "acc-2"), plain);
        assert_eq!(issuer_key("provider.base.url", "https://other.example.com"), plain);
        assert_eq!(issuer_key("provider.subscription.key", "fedcba9876543210"), plain);
        for (key, value) in [
            ("oauth.client.secret", "fedcba9876543210"),
            ("oauth.client.id", "another"),
            ("provider.auth.url", "https://other.example.com"),
            ("oauth.audiences", "one"),
            ("provider.connect.timeout.ms", "4000"),
        ] {
            assert_ne!(issuer_key(key, value), plain, "{key}");
        }
    }

    #[test]
    fn unresolved_references_keep_the_last_clients() {
        let mut config = record_config();
        config.insert("oauth.client.secret".into(), "${env:SECRET}".into());
        let connectors = [("a".to_owned(), Arc::new(config.clone()))];
        let there = Providers::new([("SECRET".to_owned(), "0123456789abcdef".into())]);
        let away = Providers::new([]);

        let before = GrantClients::of(&connectors, &there, &GrantClients::default());
        let meanwhile = GrantClients::of(&connectors, &away, &before);

        assert!(meanwhile.is_same(&before) && meanwhile.names().count() == 2);
        config.insert("oauth.client.id".into(), "another".into());
        let edited = [("a".to_owned(), Arc::new(config))];
        assert_eq!(GrantClients::of(&edited, &away, &meanwhile).names().count(), 0);
        assert_eq!(GrantClients::of(&[], &away, &meanwhile).names().count(), 0);
    }

    #[test]
    fn every_secret_of_a_client_is_tried_for_a_refresh() {
        let (mut outdated, mut other) = (record_config(), record_config());
        outdated.insert("oauth.client.secret".into(), "fedcba9876543210".into());
        other.insert("provider.base.url".into(), "https://other.example.com".into());
        let connectors = [
            ("a".to_owned(), Arc::new(outdated)),
            ("b".to_owned(), Arc::new(record_config())),
            ("c".to_owned(), Arc::new(other)),
        ];
        let clients = GrantClients::of(&connectors, &Providers::new([]), &GrantClients::default());

        let (grant, mut refused, mut found) = (ready("accounting"), BTreeSet::new(), Vec::new());
        while let Some((key, client)) = clients.of_login_except(&grant, &refused) {
            refused.insert(key);
            found.push(client.connector.as_str());
        }

        assert_eq!(found, ["a", "b"]);
    }

    #[test]
    fn the_login_command_is_quoted_for_the_shell() {
        let command = |connector| login_command(Area::Accounting, connector);

        assert_eq!(command("books"), "tributary auth login accounting --connector books");
        assert_eq!(command("my books"), "tributary auth login accounting --connector='my books'");
        assert_eq!(command("-x"), "tributary auth login accounting --connector='-x'");
        assert_eq!(command("it's"), r"tributary auth login accounting --connector='it'\''s'");
    }
}
