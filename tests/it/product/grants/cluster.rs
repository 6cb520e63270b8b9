//! Workers that only keep grants, on topics that no other test uses.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kafka::{Admin, GroupOptions, Membership};
use provider::{
    Provider,
    auth::grant::{Grant, GrantLogin, origin},
    auth::seal::Keyring,
    auth::{Access, Area, Error, Tokens},
};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tributary::{
    config::{self, Connector, Providers},
    connect::config_writer::ConfigWriter,
    logins::{
        GrantParts, GrantWatch, Grants,
        store::GrantStore,
        table::{GrantTable, TopicOwners},
    },
    state::{
        StateTables, Table,
        configs::{self, Properties},
        topics,
    },
};

use super::issuer::TestIssuer;
use crate::support::lost::{self, timeout};
use crate::support::{prefix, traced, worker_config};

/// Limit for one call on a busy machine.
pub(super) const LIMIT: Duration = Duration::from_secs(30);
pub(super) const KEY: &str = "the first key of the grants, long enough";
pub(super) const OTHER_KEY: &str = "another key of the grants, long enough";
/// Between two checks of a condition that gives no signal.
const STEP: Duration = Duration::from_millis(20);
const WORK_PARTITIONS: u32 = 8;

/// The topics of one cluster, and one connector that names the grants `accounting` and `payroll`.
pub(super) struct GrantCluster {
    bootstrap: String,
    pub(super) prefix: String,
    pub(super) issuer: TestIssuer,
    pub(super) directory: TempDir,
}

/// One worker.
pub(super) struct GrantWorker {
    pub(super) tokens: Arc<dyn Tokens>,
    pub(super) grants: Grants,
    pub(super) membership: Membership,
    pub(super) cancel: CancellationToken,
    pub(super) running: JoinHandle<()>,
}

impl GrantCluster {
    pub(super) async fn create(bootstrap: &str, name: &str, life: Duration) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let cluster = Self {
            bootstrap: bootstrap.to_owned(),
            prefix: prefix(name),
            issuer: TestIssuer::new(life),
            directory,
        };
        cluster.configure(&connector()).await;
        cluster
    }

    /// Changes a setting of the connector.
    pub(super) async fn edit(&self, key: &str, value: &str) {
        let mut edited = connector();
        edited.insert(key.to_owned(), value.to_owned());
        self.configure(&edited).await;
    }

    async fn configure(&self, config: &Properties) {
        let worker = self.config(KEY, None, "setup");
        let partitions = topics::ensure(&Admin::Real(worker.kafka.clone()), &worker.topics).await.unwrap();
        let state = StateTables::follow(&worker.kafka, &worker.topics, &partitions).await.unwrap();
        let config_writer =
            ConfigWriter::new(&worker.kafka, state.configs.clone(), state.offsets.topic_partitions());
        let write =
            |_: &configs::Configs| Ok::<_, Infallible>(((), vec![configs::connector("books", Some(config))]));
        config_writer.write(LIMIT, write).await.unwrap();
    }

    /// The configuration of a worker.
    pub(super) fn config(&self, key: &str, previous: Option<&str>, id: &str) -> Arc<config::Worker> {
        traced::hide("the encryption key", key);
        let state_dir = self.state_dir(id).display().to_string();
        let previous = previous.map(|key| ("CONNECT_GRANT_ENCRYPTION_KEY_PREVIOUS", key));
        let settings = [("CONNECT_GRANT_ENCRYPTION_KEY", key), ("CONNECT_STATE_DIR", &*state_dir)];
        let settings: Vec<(&str, &str)> = settings.into_iter().chain(previous).collect();
        let partitions = [("OFFSET", 1), ("STATUS", 1), ("WORK", WORK_PARTITIONS as usize), ("GRANT", 1)];
        worker_config(&self.bootstrap, &self.prefix, partitions, &settings)
    }

    /// The owners of the topic once a worker has started.
    pub(super) fn owners(&self) -> TopicOwners {
        let worker = self.config(KEY, None, "setup");
        TopicOwners { group: worker.group.id.clone(), work_topic: worker.topics.work.name.clone() }
    }

    pub(super) fn state_dir(&self, id: &str) -> PathBuf {
        self.directory.path().join(id)
    }

    /// Writes to the grants topic without a worker.
    pub(super) async fn ledger(&self, key: &str) -> GrantStore {
        let worker = self.config(key, None, "ledger");
        let keys = Arc::new(Keyring::new(&key.into(), None, &self.prefix).unwrap());
        let (blank, topic) = (GrantTable::with_keys(Arc::clone(&keys)), &worker.topics.grant.name);
        let table = Table::follow_from(blank, &worker.kafka, topic, 1).await.unwrap();
        timeout(LIMIT, table.caught_up()).await.unwrap();
        GrantStore::new(&worker.kafka, table, keys)
    }

    /// Logs in, with the refresh token of this number.
    pub(super) async fn log_in(&self, ledger: &GrantStore, number: u32) -> Grant {
        self.log_in_for(ledger, number, Area::Accounting).await
    }

    /// Logs in for an area, whose grant has its name.
    pub(super) async fn log_in_for(&self, ledger: &GrantStore, number: u32, area: Area) -> Grant {
        let issued = self.issuer.log_in(number);
        let login = GrantLogin {
            id: format!("login-{number}"),
            at_ms: issued.at_ms,
            subject: "0e5c9c3a".into(),
            shown: None,
            client_id: "client".into(),
            auth_url: provider().auth_url.to_string(),
            origins: vec![origin(&provider().base_url)],
            tenant: None,
        };
        let log_in =
            |before: Option<&Grant>| Grant::log_in(before, area.name(), area, login.clone(), issued.clone());
        let mut held = ledger.writer(area.name(), Arc::new(|| true));
        held.overwrite_unreadable();
        held.write(Instant::now() + LIMIT, log_in).await.unwrap().unwrap()
    }

    /// A worker that has a token of the first login, and what writes to the topic.
    pub(super) async fn logged_in(&self) -> (GrantWorker, GrantStore, Access) {
        let (worker, ledger) = (self.worker("one:1").await, self.ledger(KEY).await);
        self.log_in(&ledger, 1).await;
        let first = worker.serial(1).await;
        (worker, ledger, first)
    }

    pub(super) async fn worker(&self, id: &str) -> GrantWorker {
        self.worker_with(&self.config(KEY, None, id), id).await
    }

    pub(super) async fn worker_with(&self, worker: &Arc<config::Worker>, id: &str) -> GrantWorker {
        let options = GroupOptions {
            group: worker.group.id.clone(),
            topic: worker.topics.work.name.clone(),
            session: worker.group.session_timeout,
            heartbeat: worker.group.heartbeat_interval,
            member: id.to_owned(),
        };
        let membership = Membership::join(&worker.kafka, options).await.unwrap();
        let parts = GrantParts {
            worker: Arc::clone(worker),
            partitions: 1,
            membership: membership.clone(),
            work_partitions: WORK_PARTITIONS,
            configs: Table::follow(&worker.kafka, &worker.topics.config.name, 1).await.unwrap(),
            worker_id: id.into(),
            issuers: Arc::new(self.issuer.clone()),
            adopt: false,
        };
        parts.configs.caught_up().await;
        let grants = Grants::start(&parts).await.unwrap();
        let tokens = grants.tokens(&provider(), Area::Accounting, "books");
        let cancel = CancellationToken::new();
        let running = tokio::spawn(grants.clone().run(parts, cancel.clone()));
        GrantWorker { tokens, grants, membership, cancel, running }
    }
}

impl GrantWorker {
    pub(super) async fn token(&self) -> Result<Access, Error> {
        self.tokens.token(Instant::now() + LIMIT).await
    }

    /// Watches the grant of the connector.
    pub(super) fn watch(&self) -> GrantWatch {
        self.grants.watch(&provider(), Area::Accounting, "books")
    }

    /// Waits until a token of at least this serial is given out, whatever errors come before.
    pub(super) async fn serial(&self, serial: u64) -> Access {
        serial_of(&*self.tokens, serial).await
    }

    /// Waits until no token is given out; the reason.
    pub(super) async fn refusal(&self) -> Error {
        let began = Instant::now().into_std();
        loop {
            match self.tokens.token(Instant::now() + STEP).await {
                Ok(_) | Err(Error::Pending { .. }) => {}
                Err(error) => return error,
            }
            assert!(lost::fair(began) < 2 * LIMIT, "there is still a token");
            tokio::time::sleep(STEP).await;
        }
    }

    /// Ends it in order.
    pub(super) async fn stop(self) {
        self.cancel.cancel();
        timeout(LIMIT, self.running).await.unwrap().unwrap();
        self.membership.leave().await;
    }

    /// Ends it at once.
    pub(super) async fn kill(self) {
        self.running.abort();
        assert!(self.running.await.unwrap_err().is_cancelled());
        self.membership.leave().await;
    }
}

/// Waits until these give out a token of at least this serial, whatever errors come before.
pub(super) async fn serial_of(tokens: &dyn Tokens, serial: u64) -> Access {
    let began = Instant::now().into_std();
    loop {
        let token = tokens.token(Instant::now() + 2 * LIMIT).await;
        match token {
            Ok(token) if token.serial >= serial => return token,
            other => assert!(lost::fair(began) < 2 * LIMIT, "still {other:?}"),
        }
        tokio::time::sleep(STEP).await;
    }
}

/// A `RecordSource` whose provider is never asked.
pub(crate) fn connector() -> Properties {
    let pairs = [
        ("name", "books"),
        ("connector.class", "RecordSource"),
        ("topic.prefix", "acme"),
        ("provider.base.url", "https://api.example.com"),
        ("provider.auth.url", "https://login.example.com"),
        ("provider.subscription.key", "0123456789abcdef"),
        ("oauth.client.id", "client"),
        ("oauth.client.secret", "0123456789abcdef"),
    ];
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

pub(super) fn provider() -> Provider {
    provider_with(&[])
}

/// The provider of a connector with other settings.
pub(super) fn provider_with(changed: &[(&str, &str)]) -> Provider {
    let mut config = connector();
    config.extend(changed.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())));
    match Connector::parse("books", &config, &Providers::new([])).unwrap().0 {
        Connector::RecordSource(source) => source.provider,
        Connector::WebhookSource(_) => unreachable!("it is a RecordSource"),
    }
}
