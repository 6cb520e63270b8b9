//! The worker's own configuration: a properties file, overridden by `CONNECT_*` variables.
//!
//! Path of data: file → pairs → environment on top → references resolved → [`Worker`]. Everything that is wrong is
//! reported in one go; nothing is started with half a configuration.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fmt,
    fs::File,
    path::{Path, PathBuf},
    time::Duration,
};

use ipnet::IpNet;
use url::Url;

use base::secret::Secret;
use kafka::{Kafka, MIN_MAX_MESSAGE_BYTES, TopicSpec};
use model::Cleanup;
use provider::auth::seal::{self, Keyring};

use super::{
    Listener, Registry, environment,
    problem::{Problem, Problems, Warning},
    properties,
    providers::{FILE_LIMIT, Providers},
    reader::Reader,
    worker_keys as keys,
};

mod dialect;
mod password;
mod read;

pub use self::password::{PasswordDigest, PasswordHash};
pub use super::tls::Tls;

/// Everything a worker needs to know before it starts.
#[derive(Debug, Clone)]
pub struct Worker {
    /// How to reach Kafka.
    pub kafka: Kafka,
    /// How to reach the schema registry.
    pub registry: Registry,
    /// How references in connector configurations are resolved, and whether secrets must be (`secrets.policy`).
    pub providers: Providers,
    /// `secrets.reload.interval.ms`.
    pub secrets_reload_interval: Duration,
    /// How workers share the tasks.
    pub group: Group,
    /// The topics the worker keeps its own state in.
    pub topics: Topics,
    /// `topic.creation.enable`: whether topics are created at all.
    pub topic_creation: bool,
    /// `grant.encryption.key`.
    pub grant_encryption_key: Option<Secret>,
    /// `grant.encryption.key.previous`.
    pub grant_encryption_key_previous: Option<Secret>,
    /// `listeners`: REST, metrics and health. At least one.
    pub listeners: Vec<Listener>,
    /// The rest of what the REST API needs.
    pub rest: Rest,
    /// The receiver of deliveries.
    pub webhook: Webhook,
    /// `connectors.dir`.
    pub connectors_dir: Option<PathBuf>,
    /// `connectors.dir.interval.ms`.
    pub connectors_dir_interval: Duration,
    /// Connector files of the command line, which stand beside those of the directory.
    pub connector_files: Vec<PathBuf>,
    /// `state.dir`; may not exist yet.
    pub state_dir: PathBuf,
    /// `clock.skew.max.ms`.
    pub clock_skew_max: Duration,
    /// `shutdown.timeout.ms`.
    pub shutdown_timeout: Duration,
    /// Logs.
    pub telemetry: Telemetry,
}

/// How workers share the tasks.
#[derive(Debug, Clone)]
pub struct Group {
    /// `group.id`.
    pub id: String,
    /// `session.timeout.ms`.
    pub session_timeout: Duration,
    /// `heartbeat.interval.ms`; at most a third of the session timeout.
    pub heartbeat_interval: Duration,
}

/// The topics the worker keeps its own state in.
#[derive(Debug, Clone)]
pub struct Topics {
    /// Connector configurations and commands.
    pub config: Topic,
    /// Source offsets.
    pub offset: Topic,
    /// State of connectors and tasks.
    pub status: Topic,
    /// Assignment of tasks to workers.
    pub work: Topic,
    /// OAuth grants.
    pub grant: Topic,
}

/// A topic of the worker's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topic {
    /// Full name.
    pub name: String,
    /// Partitions on creation; -1 for the broker's default.
    pub partitions: i32,
    /// Replication factor on creation; -1 for the broker's default.
    pub replication_factor: i16,
    /// Further topic settings on creation, such as `segment.bytes`.
    pub settings: BTreeMap<String, String>,
}

impl From<&Topic> for TopicSpec {
    /// A topic of the worker's own: the last word on each key counts for ever.
    fn from(topic: &Topic) -> Self {
        Self {
            name: topic.name.clone(),
            partitions: topic.partitions,
            may_grow: true,
            replication_factor: topic.replication_factor.into(),
            cleanup: Cleanup::Compact,
            min_message_bytes: MIN_MAX_MESSAGE_BYTES,
            configs: topic.settings.clone(),
        }
    }
}

/// What the REST API needs beside its listeners.
#[derive(Debug, Clone)]
pub struct Rest {
    /// Host in this worker's id.
    pub advertised_host: String,
    /// Port in this worker's id; 0 when the system chooses the listener's.
    pub advertised_port: u16,
    /// Whether Location headers say `https`.
    pub advertised_tls: bool,
    /// Certificate for https listeners.
    pub tls: Option<Tls>,
    /// Whose certificates https listeners ask clients for; `None` where they do not ask.
    pub client_auth: Option<ClientAuth>,
    /// `listeners.https.ssl.reload.interval.ms`.
    pub reload_interval: Duration,
    /// `admin.auth.proxies`: whose X-Forwarded-For is believed.
    pub proxies: Vec<IpNet>,
    /// Who may do everything; `None` when nobody is asked.
    pub administrator: Option<Login>,
    /// Who may only read.
    pub reader: Option<Login>,
    /// `admin.auth.open.paths`: what is answered without a name.
    pub open_paths: Vec<String>,
    /// Names this worker may be called by while nobody is asked who they are: those of its listeners, its advertised one
    /// and `admin.auth.anonymous.hosts`; `*` for any.
    pub hosts: Vec<String>,
    /// `access.control.allow.origin`; empty when no other origin is answered.
    pub allowed_origins: Vec<String>,
    /// `access.control.allow.methods`.
    pub allowed_methods: Vec<String>,
}

/// A name and its password.
#[derive(Debug, Clone)]
pub struct Login {
    /// The name.
    pub user: String,
    /// The password, or its hash.
    pub password: Secret,
}

/// `listeners.https.ssl.client.auth`, where that is not `none`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientAuth {
    /// PEM file of the authorities that issue client certificates.
    pub authorities: PathBuf,
    /// Whether a client without a certificate is refused in the handshake.
    pub required: bool,
}

/// The receiver of deliveries.
#[derive(Debug, Clone)]
pub struct Webhook {
    /// `webhook.listeners`; empty when this worker receives nothing.
    pub listeners: Vec<Listener>,
    /// Certificate for https listeners.
    pub tls: Option<Tls>,
    /// `webhook.advertised.url`: https, port 443.
    pub advertised_url: Option<Url>,
    /// `webhook.proxies`: whose X-Forwarded-For is believed.
    pub proxies: Vec<IpNet>,
    /// `webhook.ssl.reload.interval.ms`.
    pub reload_interval: Duration,
    /// `webhook.connections.max`.
    pub connections: usize,
    /// `webhook.connections.per.address`.
    pub connections_per_address: usize,
    /// `intake.memory.bytes`.
    pub memory_bytes: usize,
}

/// Logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Telemetry {
    /// `log.format`.
    pub format: LogFormat,
    /// `log.filter`, checked to be one.
    pub filter: String,
}

/// For whom log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, strum::EnumString)]
#[strum(serialize_all = "lowercase")]
pub enum LogFormat {
    /// People.
    #[default]
    Text,
    /// Machines.
    Json,
}

/// A configuration and what there is to say about it.
#[derive(Debug, Clone)]
pub struct Loaded<T> {
    /// The configuration.
    pub config: T,
    /// What works, but probably not as meant; to be logged.
    pub warnings: Vec<Warning>,
}

/// A worker's configuration that cannot be used, with what it takes to look at everything else all the same.
#[derive(Debug)]
pub struct Rejected {
    /// What is wrong; not empty.
    pub problems: Problems,
    /// How references are resolved, as far as that is known.
    pub providers: Providers,
    /// `connectors.dir`, if that is sound.
    pub connectors_dir: Option<PathBuf>,
    /// Settings of the Kafka clients, without those that are a problem already.
    pub kafka: Kafka,
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.problems.fmt(f)
    }
}

impl std::error::Error for Rejected {}

impl Worker {
    /// The keys that seal grants and sign dead letters; `None` without `grant.encryption.key`.
    ///
    /// # Errors
    /// As [`Keyring::new`].
    pub fn keyring(&self) -> Result<Option<Keyring>, seal::Error> {
        let previous = self.grant_encryption_key_previous.as_ref();
        let with = |key| Keyring::new(key, previous, &self.group.id);
        self.grant_encryption_key.as_ref().map(with).transpose()
    }

    /// Reads the worker's properties file, if any, and the process's environment.
    ///
    /// # Errors
    /// Every problem of file and environment together.
    pub fn load(
        path: Option<&Path>,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Loaded<Self>, Box<Rejected>> {
        let (mut problems, mut warnings) = (Problems::default(), Vec::new());
        let environment = environment::readable(environment, &mut problems);
        let settings = match settings(path, &environment, &mut problems, &mut warnings) {
            Ok(settings) => settings,
            // Without the file every required key would be reported as missing, which would only mislead.
            Err(problem) => {
                problems.push(problem);
                let providers = Providers::new(environment);
                let (connectors_dir, kafka) = Default::default();
                return Err(Box::new(Rejected { problems, providers, connectors_dir, kafka }));
            }
        };
        let mut own = Providers::new(environment);
        own.configure(&settings, &mut problems);
        // Every other value is read under the policy, so it comes first; the reader reports a wrong one.
        let policy = settings.get(keys::SECRETS_POLICY.name).and_then(|raw| raw.trim().parse().ok());
        own.policy = policy.unwrap_or_default();
        let providers = own.for_connectors(&settings, path, &mut problems, &mut warnings);
        let mut reader = Reader::new(&settings, &own);
        reader.problems.extend(problems);
        let worker = read::worker(&mut reader, &providers);
        let (connectors_dir, kafka) = (worker.connectors_dir.clone(), worker.kafka.clone());
        let hosts = worker.providers.hosts.clone();
        match reader.finish(worker) {
            Ok((config, more)) => {
                warnings.extend(more);
                Ok(Loaded { config, warnings })
            }
            Err(problems) => {
                let providers = providers.with_hosts(hosts);
                Err(Box::new(Rejected { problems, providers, connectors_dir, kafka }))
            }
        }
    }
}

/// Where clients reach the REST API of the worker with these properties: its advertised address, else its first listener as this
/// machine reaches it. Reads no other key, so that a file with a fault elsewhere still leads to its worker.
///
/// # Errors
/// The file cannot be read, one of these keys is wrong, or the system chooses the port.
pub fn rest_address(
    path: Option<&Path>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Url, Problems> {
    let environment = environment::readable(environment, &mut Problems::default());
    let settings = settings(path, &environment, &mut Problems::default(), &mut Vec::new())?;
    let (mut own, mut problems) = (Providers::new(environment), Problems::default());
    own.configure(&settings, &mut problems);
    let mut reader = Reader::new(&settings, &own);
    reader.problems.extend(problems);
    let found = read::rest_address(&mut reader);
    reader.finish_whole(found).map(|(url, _)| url)
}

/// The pairs of file and environment. `Err` says why there is no file to read; a fault of a line is one of `problems`.
fn settings(
    path: Option<&Path>,
    environment: &[(String, String)],
    problems: &mut Problems,
    warnings: &mut Vec<Warning>,
) -> Result<BTreeMap<String, String>, Problem> {
    let mut settings = BTreeMap::new();
    if let Some(path) = path {
        let shown = path.display().to_string();
        let parsed = load_file(path)?;
        for error in &parsed.errors {
            problems.about(shown.clone(), error.to_string(), "correct the line");
        }
        warnings.extend(parsed.repeated.into_iter().map(|key| Warning {
            key,
            message: format!("is set more than once in {shown}; the last one counts"),
        }));
        settings = parsed.pairs;
    }
    settings.extend(environment::overrides(environment, warnings));
    Ok(settings)
}

fn load_file(path: &Path) -> Result<properties::Parsed, Problem> {
    let problem = |rule, remedy| Problem::about(path.display().to_string(), rule, remedy);
    match File::open(path).and_then(|file| properties::read_bounded(file, FILE_LIMIT)) {
        Ok(Some(bytes)) => Ok(properties::parse(&bytes)),
        Ok(None) => Err(problem(format!("is larger than {FILE_LIMIT} bytes"), "name a properties file")),
        Err(error) => {
            let rule = format!("cannot be read ({})", error.kind());
            Err(problem(rule, "correct the path or its permissions, or leave it out"))
        }
    }
}

#[cfg(test)]
mod tests;
