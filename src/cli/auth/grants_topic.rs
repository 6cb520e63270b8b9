//! The grants topic for the commands, through the same store that workers use.
//!
//! - Foreseeable failures are found before the person logs in: a key that is missing or differs from the workers', a Kafka that does
//!   not answer.
//! - The command creates only the grants topic if it is missing; the workers create the others.
//! - A login overwrites the existing grant, because it is newer. A worker's refresh of the old tokens at that moment is discarded. A
//!   login for another tenant is refused, unless the person asks for it: the write that would replace the grant decides.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, timeout};

use base::random;
use kafka::{Admin, TopicSpec};
use provider::{
    Provider,
    auth::{
        Area,
        grant::{Grant, GrantLogin, IssuedTokens, TenantMismatch, origin},
        http::ProviderClock,
        login::CompletedLogin,
        seal::{self, Envelope, Keyring},
    },
};

use crate::{
    cli::{Result, poll_until, problem},
    config::{Problem, Worker, worker::InternalTopic},
    connect::config_writer::{self, ConfigWriter},
    logins::{
        is_login_of, issued_tokens,
        store::{self, GrantStore},
        table::{GrantRecord, GrantTable, TopicOwners, grant_key},
    },
    state::{Table, configs},
};

/// Time limit for reading the topic and for a write.
const KAFKA_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause between two queries for a topic that was just created.
const TOPIC_POLL: Duration = Duration::from_millis(100);

/// A grant of the topic.
#[derive(Debug)]
pub(in crate::cli) struct StoredGrant {
    pub(in crate::cli) name: String,
    /// Fingerprint of the encryption key; `None` if the record is not one of ours.
    pub(super) kid: Option<String>,
    /// Time of the record, in milliseconds since 1970.
    pub(super) written_ms: Option<i64>,
    /// The grant, or why it cannot be decrypted here.
    pub(in crate::cli) grant: Result<Grant, UnreadableGrant>,
}

/// Why a grant cannot be decrypted here.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum UnreadableGrant {
    #[error("grant.encryption.key is not set here: set it to the key that the workers use")]
    NoKey,
    #[error("grant.encryption.key is the key {ours} here: set it to the key that the workers use")]
    OtherKey {
        /// Fingerprint of the key that is set.
        ours: String,
    },
    #[error(transparent)]
    Sealed(seal::Error),
}

impl StoredGrant {
    /// Decrypts a grant, if possible.
    pub(super) fn open(
        name: String,
        envelope: Option<&Envelope>,
        written_ms: Option<i64>,
        keys: Option<&Keyring>,
    ) -> Self {
        let opened = match (envelope, keys) {
            (None, _) => Err(UnreadableGrant::Sealed(seal::Error::Damaged)),
            (Some(_), None) => Err(UnreadableGrant::NoKey),
            (Some(envelope), Some(keys)) => {
                keys.open(&grant_key(&name), envelope).map_err(|error| match error {
                    seal::Error::UnknownKey { .. } => {
                        UnreadableGrant::OtherKey { ours: keys.kid().to_owned() }
                    }
                    error => UnreadableGrant::Sealed(error),
                })
            }
        };
        Self { name, kid: envelope.map(|envelope| envelope.kid.clone()), written_ms, grant: opened }
    }
}

/// The grants topic.
#[derive(Debug)]
pub(in crate::cli) struct GrantsTopic {
    store: GrantStore,
}

impl GrantsTopic {
    /// Reads the topic to its end; `None` if it does not exist.
    pub(super) async fn open(worker: &Worker) -> Result<Option<Self>> {
        let keys = keyring(worker)?;
        let admin = Admin::Real(worker.kafka.clone());
        match partitions(&admin, &worker.topics.grant.name).await? {
            None => Ok(None),
            Some(partitions) => Self::read(worker, keys, partitions).await.map(Some),
        }
    }

    /// The same, but creates a missing topic.
    pub(in crate::cli) async fn create(worker: &Worker, admin: &Admin) -> Result<Self> {
        let keys = keyring(worker)?;
        let partitions = ensure(admin, &worker.topics.grant).await?;
        Self::read(worker, keys, partitions).await
    }

    async fn read(worker: &Worker, keys: Arc<Keyring>, partitions: i32) -> Result<Self> {
        let table = table(worker, Some(&keys), partitions).await?;
        Ok(Self { store: GrantStore::new(&worker.kafka, table, keys) })
    }

    /// All grants, by name.
    pub(super) fn grants(&self) -> Vec<StoredGrant> {
        known(self.store.table(), Some(self.store.keys()))
    }

    /// Checks that the key is the one of the other grants: workers could not read a grant under another key.
    pub(super) fn check_key(&self) -> Result<(), Problem> {
        let (grants, ours) = (self.grants(), self.store.keys().kid());
        let refused = |rule, remedy: &str| Err(problem("grant.encryption.key", None, rule, remedy));
        let is_closed = |known: &&StoredGrant| matches!(known.grant, Err(UnreadableGrant::OtherKey { .. }));
        if let Some(StoredGrant { name, kid: Some(kid), .. }) = grants.iter().find(is_closed) {
            let rule = format!("is the key {ours}, but the grant {name} is encrypted with the key {kid}");
            return refused(rule, "use the workers' key; if that is lost, log in with --new-key");
        }
        let kids: Vec<&str> = grants.iter().filter_map(|known| known.kid.as_deref()).collect();
        match kids.first() {
            // The workers may not have the new key yet, although grant.encryption.key.previous decrypts the grants here.
            Some(kid) if !kids.contains(&ours) => {
                let rule = format!(
                    "is the key {ours}, but every grant is encrypted with the key {kid}, which is \
                     grant.encryption.key.previous here"
                );
                let remedy = "wait until the workers have the new key and `auth status` shows it, or swap the two keys here";
                refused(rule, remedy)
            }
            _ => Ok(()),
        }
    }

    /// Checks that the topic belongs to the workers of this configuration.
    pub(super) fn check_owners(&self, worker: &Worker) -> Result<(), Problem> {
        let owners = self.store.table().read(|table| table.owners().cloned());
        let ours = |owners: &TopicOwners| {
            owners.group == worker.group.id && owners.work_topic == worker.topics.work.name
        };
        match owners.filter(|owners| !ours(owners)) {
            None => Ok(()),
            Some(owners) => {
                let rule = format!(
                    "belongs to the workers with group.id {} and work topic {}, and no other workers read it",
                    owners.group, owners.work_topic
                );
                let remedy = "use the configuration of those workers, or another grants topic";
                Err(problem("grant.storage.topic", worker.topics.grant.name.as_str(), rule, remedy))
            }
        }
    }

    /// Checks that a login does not replace one at another provider or with another client.
    pub(super) fn check_login(&self, name: &str, area: Area, provider: &Provider) -> Result<(), Problem> {
        let Some(before) = self.grants().into_iter().find(|known| known.name == name) else { return Ok(()) };
        let Some(Grant { login, area: its, .. }) = before.grant.ok().filter(|grant| grant.tokens().is_some())
        else {
            return Ok(());
        };
        let is_same = its == area
            && is_login_of(provider, &login)
            && (login.origins.is_empty() || login.origins.contains(&origin(&provider.base_url)));
        if is_same {
            return Ok(());
        }
        let rule = format!(
            "is the grant of the OAuth client {} at {} for {its}, valid for {}; this login would replace it",
            login.client_id,
            login.auth_url,
            if login.origins.is_empty() { "no origin".to_owned() } else { login.origins.join(", ") },
        );
        let remedy = "give this connector's grant another name, or log in with --replace";
        Err(problem(area.grant_key(), name, rule, remedy))
    }

    /// Stores the tokens of a login. No other code does. With `replace` they may be for another tenant than the grant's.
    pub(super) async fn log_in(
        &self,
        name: &str,
        area: Area,
        provider: &Provider,
        clock: &ProviderClock,
        entered: &CompletedLogin,
        replace: bool,
    ) -> Result<Grant, Error> {
        let (login, issued) = login_of(area, provider, clock, entered)?;
        let check_tenant = |before: &Grant| match replace {
            true => Ok(()),
            false => before.check_tenant(login.tenant.as_deref()),
        };
        let log_in = |before: Option<&Grant>| {
            before.map_or(Ok(()), check_tenant).ok()?;
            Grant::log_in(before, name, area, login.clone(), issued.clone())
        };
        let mut writer = self.store.writer(name, Arc::new(|| true));
        writer.overwrite_unreadable();
        match writer.write(Instant::now() + KAFKA_TIMEOUT, log_in).await? {
            Some(grant) if grant.login.id == login.id => Ok(grant),
            Some(grant) => {
                let refused = |mismatch| Error::Tenant { grant: name.to_owned(), mismatch };
                check_tenant(&grant).map_err(refused)?;
                // The grant read back may be newer than the written one, never older.
                Err(Error::Superseded)
            }
            None => Err(Error::Superseded),
        }
    }

    /// Removes a grant that cannot be decrypted.
    pub(super) async fn remove(&self, name: &str) -> Result<(), kafka::Error> {
        self.store.writer(name, Arc::new(|| true)).remove(Instant::now() + KAFKA_TIMEOUT).await
    }

    /// Removes the tokens of a grant; `None` if it does not exist.
    pub(super) async fn log_out(&self, name: &str, now_ms: i64) -> Result<Option<Grant>, Error> {
        let mut writer = self.store.writer(name, Arc::new(|| true));
        let log_out = |before: Option<&Grant>| before.map(|grant| grant.log_out(now_ms));
        Ok(writer.write(Instant::now() + KAFKA_TIMEOUT, log_out).await?)
    }
}

/// The grant of a login that is not stored.
pub(super) fn new_grant(
    name: &str,
    area: Area,
    provider: &Provider,
    clock: &ProviderClock,
    entered: &CompletedLogin,
) -> Result<Grant, Error> {
    let (login, issued) = login_of(area, provider, clock, entered)?;
    Grant::log_in(None, name, area, login, issued).ok_or(Error::NoRefreshToken { area })
}

/// Who logged in, and the tokens of the login.
fn login_of(
    area: Area,
    provider: &Provider,
    clock: &ProviderClock,
    entered: &CompletedLogin,
) -> Result<(GrantLogin, IssuedTokens), Error> {
    let id = random::hex::<16>().map_err(|_| Error::Random)?;
    let at_ms = clock.now_ms();
    let claims = &entered.claims;
    let login = GrantLogin {
        id,
        at_ms,
        subject: claims.subject.clone().unwrap_or_default(),
        shown: claims.text("email").or_else(|| claims.text("given_name")).map(str::to_owned),
        client_id: provider.oauth.client_id.clone(),
        auth_url: provider.auth_url.to_string(),
        origins: vec![origin(&provider.base_url)],
        tenant: claims.tenant().map(str::to_owned),
    };
    let scopes = Some(entered.scopes.clone());
    let issued = IssuedTokens { scopes, ..issued_tokens(entered.granted.clone(), at_ms) };
    if issued.refresh.is_none() {
        return Err(Error::NoRefreshToken { area });
    }
    Ok((login, issued))
}

/// Why a grant was not stored.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum Error {
    #[error("the provider gave no refresh token: {} must contain offline_access", area.scopes_key())]
    NoRefreshToken { area: Area },
    #[error(
        "the grant {grant} is unchanged: {mismatch}; log in for that tenant, or change the tenant with --replace"
    )]
    Tenant { grant: String, mismatch: TenantMismatch },
    #[error("another login for the same grant finished at the same moment and replaced this one")]
    Superseded,
    #[error("draw random numbers for the login")]
    Random,
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// Restarts the failed tasks of every connector that uses a grant, and returns the connectors' names. Workers do not restart FAILED
/// tasks by themselves, because FAILED needs a person; the login is that person's action.
pub(super) async fn restart_failed(
    worker: &Worker,
    area: Area,
    grant: &str,
) -> Result<Vec<String>, kafka::Error> {
    let topic = worker.topics.config.name.as_str();
    let Some(partitions) = partitions(&Admin::Real(worker.kafka.clone()), topic).await? else {
        return Ok(Vec::new());
    };
    let tail = Table::<configs::Configs>::follow(&worker.kafka, topic, partitions).await?;
    tail.read_to_end(KAFKA_TIMEOUT).await?;
    let names = tail.read(|configs| naming(configs, area, grant));
    if names.is_empty() {
        return Ok(names);
    }
    let config_writer = ConfigWriter::new(&worker.kafka, tail, Vec::new());
    let written = config_writer
        .write(KAFKA_TIMEOUT, |configs| {
            let names = naming(configs, area, grant);
            let writes = names.iter().map(|name| configs::restart(name, true, true, None)).collect();
            Ok::<_, std::convert::Infallible>((names, writes))
        })
        .await;
    written.map_err(|error| match error {
        config_writer::Error::Kafka(source) => source,
        other => kafka::Error::Deadline { action: other.to_string(), limit: KAFKA_TIMEOUT },
    })
}

/// Connectors that use a grant, unless they name it by a reference.
fn naming(configs: &configs::Configs, area: Area, grant: &str) -> Vec<String> {
    // A grant is named after its area by default.
    let (key, default) = (area.grant_key(), area.name());
    let connectors = configs.connectors().iter();
    connectors
        .filter(|(_, connector)| connector.config.get(key).map_or(default, |name| name.as_str()) == grant)
        .map(|(name, _)| name.clone())
        .collect()
}

/// All grants of the topic, decrypted if there is a key; empty if the topic does not exist.
pub(in crate::cli) async fn look(worker: &Worker) -> Result<Vec<StoredGrant>> {
    let keys = worker.keyring()?.map(Arc::new);
    let admin = Admin::Real(worker.kafka.clone());
    let Some(count) = partitions(&admin, &worker.topics.grant.name).await? else {
        return Ok(Vec::new());
    };
    Ok(known(&table(worker, keys.as_ref(), count).await?, keys.as_deref()))
}

/// The topic, read to its end.
async fn table(worker: &Worker, keys: Option<&Arc<Keyring>>, partitions: i32) -> Result<Table<GrantTable>> {
    let topic = &worker.topics.grant.name;
    let blank = keys.map_or_else(GrantTable::default, |keys| GrantTable::with_keys(Arc::clone(keys)));
    let table = Table::follow_from(blank, &worker.kafka, topic, partitions).await?;
    table.read_to_end(KAFKA_TIMEOUT).await?;
    Ok(table)
}

fn known(table: &Table<GrantTable>, keys: Option<&Keyring>) -> Vec<StoredGrant> {
    let entries = table.read(|table| table.grants().clone());
    let known = |(name, entry): (String, GrantRecord)| {
        StoredGrant::open(name, entry.envelope.as_deref(), entry.at_ms, keys)
    };
    entries.into_iter().map(known).collect()
}

fn keyring(worker: &Worker) -> Result<Arc<Keyring>> {
    worker.keyring()?.map(Arc::new).ok_or_else(|| {
        let rule = "is not set, so grants can be neither read nor stored";
        let remedy = "set it to the same 32 or more characters on all workers and here";
        problem("grant.encryption.key", None, rule, remedy).into()
    })
}

/// Number of partitions of a topic; `None` if it does not exist.
async fn partitions(admin: &Admin, topic: &str) -> Result<Option<i32>, kafka::Error> {
    Ok(admin.partition_counts(&[topic]).await?.get(topic).copied())
}

/// The same, but creates a missing topic.
async fn ensure(admin: &Admin, topic: &InternalTopic) -> Result<i32, kafka::Error> {
    if let Some(count) = partitions(admin, &topic.name).await? {
        return Ok(count);
    }
    admin.ensure(&[TopicSpec::from(topic)]).await?;
    // Another broker may not know the new topic yet.
    let known = poll_until(TOPIC_POLL, async || partitions(admin, &topic.name).await.transpose());
    let late = |_| kafka::Error::Deadline {
        action: format!("create the topic {}", topic.name),
        limit: KAFKA_TIMEOUT,
    };
    timeout(KAFKA_TIMEOUT, known).await.map_err(late)?
}
