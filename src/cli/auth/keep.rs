//! Where the grants are that this command reads and writes: the grants topic, through the store that workers use as well.
//!
//! - Whatever can be known to fail is found before anybody logs in: a key that is missing or not the workers', a Kafka that
//!   does not answer.
//! - Only the grants topic is created where it is missing; everything else is the workers'.
//! - A login is written over whatever stands: it is newer than all of that. What a worker is doing with the old tokens at that
//!   moment comes to nothing.

use std::{sync::Arc, time::Duration};

use tokio::time::{Instant, timeout};

use base::random;
use kafka::{Admin, TopicSpec};
use provider::{
    Provider,
    auth::{
        Area,
        grant::{Grant, Issued, Login, origin},
        http::ProviderClock,
        login::Entered,
        seal::{self, Envelope, Keyring},
    },
};

use crate::{
    cli::{Result, problem, until},
    config::{Problem, Worker, worker::InternalTopic},
    worker::{
        arbiter::{self, Arbiter},
        grants::{
            is_login_of, issued,
            store::{self, GrantStore},
            table::{GrantRecord, GrantTable, Owners, grant_key},
        },
        state::{Tail, configs},
    },
};

/// How long the topic may take to be read, or a write to be taken.
const LIMIT: Duration = Duration::from_secs(30);
/// Pause between two looks for a topic that was just created.
const PAUSE: Duration = Duration::from_millis(100);

/// A grant of the topic.
#[derive(Debug)]
pub(super) struct Known {
    /// Its name.
    pub(super) name: String,
    /// Fingerprint of the key that it is encrypted with; `None` where the record is none of ours.
    pub(super) kid: Option<String>,
    /// When the record was written, in milliseconds since 1970.
    pub(super) written_ms: Option<i64>,
    /// What it is, or why that cannot be known here.
    pub(super) grant: Result<Grant, Closed>,
}

/// Why it cannot be known here what a grant is.
#[derive(Debug, thiserror::Error)]
pub(super) enum Closed {
    /// There is no key.
    #[error("grant.encryption.key is not set here: set it to the key that the workers use")]
    NoKey,
    /// There is another.
    #[error("grant.encryption.key is the key {ours} here: set it to the key that the workers use")]
    OtherKey {
        /// Fingerprint of the key that is set.
        ours: String,
    },
    /// It is none that could be opened.
    #[error(transparent)]
    Sealed(seal::Error),
}

impl Known {
    /// A grant of this name, opened if that can be.
    pub(super) fn open(
        name: String,
        envelope: Option<&Envelope>,
        written_ms: Option<i64>,
        keys: Option<&Keyring>,
    ) -> Self {
        let opened = match (envelope, keys) {
            (None, _) => Err(Closed::Sealed(seal::Error::Damaged)),
            (Some(_), None) => Err(Closed::NoKey),
            (Some(envelope), Some(keys)) => {
                keys.open(&grant_key(&name), envelope).map_err(|error| match error {
                    seal::Error::UnknownKey { .. } => Closed::OtherKey { ours: keys.kid().to_owned() },
                    error => Closed::Sealed(error),
                })
            }
        };
        Self { name, kid: envelope.map(|envelope| envelope.kid.clone()), written_ms, grant: opened }
    }
}

/// The grants topic.
#[derive(Debug)]
pub(in crate::cli) struct Keep {
    store: GrantStore,
}

impl Keep {
    /// Reads the topic to its end; `None` where there is none.
    pub(super) async fn open(worker: &Worker) -> Result<Option<Self>> {
        let keys = keyring(worker)?;
        let admin = Admin::Real(worker.kafka.clone());
        match partitions(&admin, &worker.topics.grant.name).await? {
            None => Ok(None),
            Some(partitions) => Self::read(worker, keys, partitions).await.map(Some),
        }
    }

    /// The same, and makes the topic where there is none.
    pub(in crate::cli) async fn create(worker: &Worker, admin: &Admin) -> Result<Self> {
        let keys = keyring(worker)?;
        let partitions = ensure(admin, &worker.topics.grant).await?;
        Self::read(worker, keys, partitions).await
    }

    async fn read(worker: &Worker, keys: Arc<Keyring>, partitions: i32) -> Result<Self> {
        let table = table(worker, Some(&keys), partitions).await?;
        Ok(Self { store: GrantStore::new(&worker.kafka, table, keys) })
    }

    /// Every grant, by name.
    pub(super) fn grants(&self) -> Vec<Known> {
        known(self.store.table(), Some(self.store.keys()))
    }

    /// Whether the key is the one that the other grants are encrypted with: what is written with another, no worker could read.
    pub(super) fn check_key(&self) -> Result<(), Problem> {
        let (grants, ours) = (self.grants(), self.store.keys().kid());
        let refused = |rule, remedy: &str| Err(problem("grant.encryption.key", None, rule, remedy));
        let is_closed = |known: &&Known| matches!(known.grant, Err(Closed::OtherKey { .. }));
        if let Some(Known { name, kid: Some(kid), .. }) = grants.iter().find(is_closed) {
            let rule = format!("is the key {ours}, but the grant {name} is encrypted with the key {kid}");
            return refused(
                rule,
                "use the key that the workers use; if that one is lost, log in with --new-key",
            );
        }
        let kids: Vec<&str> = grants.iter().filter_map(|known| known.kid.as_deref()).collect();
        match kids.first() {
            // Workers may not have the new key yet, although grant.encryption.key.previous opens the grants here.
            Some(kid) if !kids.contains(&ours) => {
                let rule = format!(
                    "is the key {ours}, but every grant is encrypted with the key {kid}, which is \
                     grant.encryption.key.previous here"
                );
                let remedy = "wait until the workers have the new key and `auth status` shows it, or exchange the two here";
                refused(rule, remedy)
            }
            _ => Ok(()),
        }
    }

    /// Whether the workers of this configuration are those that read the topic.
    pub(super) fn check_owners(&self, worker: &Worker) -> Result<(), Problem> {
        let owners = self.store.table().read(|table| table.owners().cloned());
        let ours =
            |owners: &Owners| owners.group == worker.group.id && owners.work_topic == worker.topics.work.name;
        match owners.filter(|owners| !ours(owners)) {
            None => Ok(()),
            Some(owners) => {
                let rule = format!(
                    "belongs to the workers with group.id {} and work topic {}, and no other reads it",
                    owners.group, owners.work_topic
                );
                let remedy = "use the configuration of those workers, or another grants topic";
                Err(problem("grant.storage.topic", worker.topics.grant.name.as_str(), rule, remedy))
            }
        }
    }

    /// Whether a login would take the place of one at another provider, or with another client, that connectors use.
    pub(super) fn check_login(&self, name: &str, area: Area, provider: &Provider) -> Result<(), Problem> {
        let Some(before) = self.grants().into_iter().find(|known| known.name == name) else { return Ok(()) };
        let Ok(Grant { login, area: its, tokens: Some(_), .. }) = before.grant else { return Ok(()) };
        let is_same = its == area
            && is_login_of(provider, &login)
            && (login.origins.is_empty() || login.origins.contains(&origin(&provider.base_url)));
        if is_same {
            return Ok(());
        }
        let rule = format!(
            "is the grant of the OAuth client {} at {} for {its}, good for {}, which this login would take away",
            login.client_id,
            login.auth_url,
            if login.origins.is_empty() { "no origin".to_owned() } else { login.origins.join(", ") },
        );
        let remedy = "give this connector's grant another name, or log in with --replace";
        Err(problem(area.grant_key(), name, rule, remedy))
    }

    /// Keeps what a login has brought. This is the one place where that happens.
    pub(super) async fn log_in(
        &self,
        name: &str,
        area: Area,
        provider: &Provider,
        clock: &ProviderClock,
        entered: &Entered,
    ) -> Result<Grant, Error> {
        let id = random::hex::<16>().map_err(|_| Error::Random)?;
        let at_ms = clock.now_ms();
        let claims = &entered.claims;
        let login = Login {
            id,
            at_ms,
            subject: claims.subject.clone().unwrap_or_default(),
            shown: claims.email.clone().or_else(|| claims.given_name.clone()),
            client_id: provider.oauth.client_id.clone(),
            auth_url: provider.auth_url.to_string(),
            origins: vec![origin(&provider.base_url)],
        };
        let scopes = Some(entered.scopes.clone());
        let issued = Issued { scopes, ..issued(entered.granted.clone(), at_ms) };
        if issued.refresh.is_none() {
            return Err(Error::NoRefreshToken { area });
        }
        let log_in =
            |before: Option<&Grant>| Grant::log_in(before, name, area, login.clone(), issued.clone());
        let mut writer = self.store.writer(name, Arc::new(|| true));
        writer.overwrite_unreadable();
        let written = writer.write(Instant::now() + LIMIT, log_in).await?;
        // What was read back may already be newer than what was written, but never older.
        written.filter(|grant| grant.login.id == login.id).ok_or(Error::Superseded)
    }

    /// Removes a grant that cannot be opened.
    pub(super) async fn remove(&self, name: &str) -> Result<(), kafka::Error> {
        self.store.writer(name, Arc::new(|| true)).remove(Instant::now() + LIMIT).await
    }

    /// Forgets the tokens of a grant; `None` where there is no such grant.
    pub(super) async fn log_out(&self, name: &str, now_ms: i64) -> Result<Option<Grant>, Error> {
        let mut writer = self.store.writer(name, Arc::new(|| true));
        let log_out = |before: Option<&Grant>| before.map(|grant| grant.log_out(now_ms));
        Ok(writer.write(Instant::now() + LIMIT, log_out).await?)
    }
}

/// Why a grant was not kept.
#[derive(Debug, thiserror::Error)]
pub(in crate::cli) enum Error {
    /// There is nothing to keep it alive with.
    #[error("the provider gave no refresh token: {} must have offline_access", area.scopes_key())]
    NoRefreshToken {
        /// What was logged in for.
        area: Area,
    },
    /// Somebody else has logged in at the same moment.
    #[error("somebody else has logged in for the same grant at the same moment; theirs stands")]
    Superseded,
    /// The machine has no random numbers.
    #[error("draw random numbers for the login")]
    Random,
    /// The record in the topic cannot be opened.
    #[error("open the grant {grant}")]
    Sealed {
        /// Its name.
        grant: String,
        /// Why.
        #[source]
        source: seal::Error,
    },
    /// Kafka did not take it.
    #[error("write the grant to Kafka")]
    Kafka(#[source] kafka::Error),
}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        match error {
            store::Error::Sealed { grant, source } => Self::Sealed { grant, source },
            store::Error::Kafka(source) => Self::Kafka(source),
        }
    }
}

/// Has the failed tasks of every connector that names a grant begin again; their names. A worker that was told that its grant is
/// good again would not: FAILED is for people, and a person has just done their part.
pub(super) async fn restart_failed(
    worker: &Worker,
    area: Area,
    grant: &str,
) -> Result<Vec<String>, kafka::Error> {
    let topic = worker.topics.config.name.as_str();
    let Some(partitions) = partitions(&Admin::Real(worker.kafka.clone()), topic).await? else {
        return Ok(Vec::new());
    };
    let tail = Tail::<configs::Configs>::follow(&worker.kafka, topic, partitions).await?;
    tail.read_to_end(LIMIT).await?;
    let names = tail.read(|configs| naming(configs, area, grant));
    if names.is_empty() {
        return Ok(names);
    }
    let arbiter = Arbiter::new(&worker.kafka, tail, Vec::new());
    let written = arbiter
        .write(LIMIT, |configs| {
            let names = naming(configs, area, grant);
            let writes = names.iter().map(|name| configs::restart(name, true, true, None)).collect();
            Ok::<_, std::convert::Infallible>((names, writes))
        })
        .await;
    written.map_err(|error| match error {
        arbiter::Error::Kafka(source) => source,
        other => kafka::Error::Deadline { action: other.to_string(), limit: LIMIT },
    })
}

/// Connectors that use a grant, as far as their settings say so without a reference.
fn naming(configs: &configs::Configs, area: Area, grant: &str) -> Vec<String> {
    // Each grant is named after its area unless it is set.
    let (key, default) = (area.grant_key(), area.name());
    let connectors = configs.connectors().iter();
    connectors
        .filter(|(_, connector)| connector.config.get(key).map_or(default, |name| name.as_str()) == grant)
        .map(|(name, _)| name.clone())
        .collect()
}

/// Every grant of the topic, with or without a key to open them; none where there is no topic.
pub(super) async fn look(worker: &Worker) -> Result<Vec<Known>> {
    let keys = worker.keyring()?.map(Arc::new);
    let admin = Admin::Real(worker.kafka.clone());
    let Some(count) = partitions(&admin, &worker.topics.grant.name).await? else {
        return Ok(Vec::new());
    };
    Ok(known(&table(worker, keys.as_ref(), count).await?, keys.as_deref()))
}

/// The topic, read to its end.
async fn table(worker: &Worker, keys: Option<&Arc<Keyring>>, partitions: i32) -> Result<Tail<GrantTable>> {
    let topic = &worker.topics.grant.name;
    let blank = keys.map_or_else(GrantTable::default, |keys| GrantTable::with_keys(Arc::clone(keys)));
    let table = Tail::follow_from(blank, &worker.kafka, topic, partitions).await?;
    table.read_to_end(LIMIT).await?;
    Ok(table)
}

fn known(table: &Tail<GrantTable>, keys: Option<&Keyring>) -> Vec<Known> {
    let entries = table.read(|table| table.grants().clone());
    let known = |(name, entry): (String, GrantRecord)| {
        Known::open(name, entry.envelope.as_deref(), entry.at_ms, keys)
    };
    entries.into_iter().map(known).collect()
}

/// The keys that the configuration names.
fn keyring(worker: &Worker) -> Result<Arc<Keyring>> {
    worker.keyring()?.map(Arc::new).ok_or_else(|| {
        let rule = "is not set, so no grant can be read or kept";
        let remedy = "set it to the same 32 or more characters on all workers and here";
        problem("grant.encryption.key", None, rule, remedy).into()
    })
}

/// How many partitions a topic has; `None` where there is none.
async fn partitions(admin: &Admin, topic: &str) -> Result<Option<i32>, kafka::Error> {
    Ok(admin.partition_counts(&[topic]).await?.get(topic).copied())
}

/// The same of a topic that is made where it is missing.
async fn ensure(admin: &Admin, topic: &InternalTopic) -> Result<i32, kafka::Error> {
    if let Some(count) = partitions(admin, &topic.name).await? {
        return Ok(count);
    }
    admin.ensure(&[TopicSpec::from(topic)]).await?;
    // The broker that answers may not have heard yet of a topic that another has just created.
    let known = until(PAUSE, async || partitions(admin, &topic.name).await.transpose());
    let late =
        |_| kafka::Error::Deadline { action: format!("create the topic {}", topic.name), limit: LIMIT };
    timeout(LIMIT, known).await.map_err(late)?
}
