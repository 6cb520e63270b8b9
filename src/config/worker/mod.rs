//! The worker's own configuration: a properties file, overridden by `CONNECT_*` variables.
//!
//! Data flow: file → pairs → environment on top → references resolved → [`Worker`]. All problems are reported together; nothing
//! starts with half a configuration.

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
    Listener, RegistrySettings, environment,
    problem::{Problem, Problems, Warning},
    properties,
    providers::{FILE_LIMIT, Providers},
    reader::SettingsReader,
    worker_keys as keys,
};

mod known_keys;
mod password;
mod read;

pub use self::password::{PasswordDigest, PasswordHash};
pub use super::tls::TlsFiles;

/// Everything a worker needs to know before it starts.
#[derive(Debug, Clone)]
pub struct Worker {
    /// How to reach Kafka.
    pub kafka: Kafka,
    /// How to reach the schema registry.
    pub registry: RegistrySettings,
    /// How references in connector configurations are resolved, and whether secrets must be references (`secrets.policy`).
    pub providers: Providers,
    /// `secrets.reload.interval.ms`.
    pub secrets_reload_interval: Duration,
    /// How workers share the tasks.
    pub group: GroupSettings,
    /// The worker's internal topics.
    pub topics: InternalTopics,
    /// `topic.creation.enable`: whether the worker creates topics.
    pub topic_creation: bool,
    /// `grant.encryption.key`.
    pub grant_encryption_key: Option<Secret>,
    /// `grant.encryption.key.previous`.
    pub grant_encryption_key_previous: Option<Secret>,
    /// `listeners`: REST, metrics and health. At least one.
    pub listeners: Vec<Listener>,
    /// Further settings of the REST API.
    pub rest: Rest,
    /// The receiver of deliveries.
    pub webhook: ReceiverSettings,
    /// `connectors.dir`.
    pub connectors_dir: Option<PathBuf>,
    /// `connectors.dir.interval.ms`.
    pub connectors_dir_interval: Duration,
    /// Connector files of the command line, used in addition to those of the directory.
    pub connector_files: Vec<PathBuf>,
    /// `state.dir`; may not exist yet.
    pub state_dir: PathBuf,
    /// `clock.skew.max.ms`.
    pub clock_skew_max: Duration,
    /// `shutdown.timeout.ms`.
    pub shutdown_timeout: Duration,
    /// Logs.
    pub telemetry: LogSettings,
}

/// How workers share the tasks.
#[derive(Debug, Clone)]
pub struct GroupSettings {
    /// `group.id`.
    pub id: String,
    /// `session.timeout.ms`.
    pub session_timeout: Duration,
    /// `heartbeat.interval.ms`; at most a third of the session timeout.
    pub heartbeat_interval: Duration,
}

/// The worker's internal topics.
#[derive(Debug, Clone)]
pub struct InternalTopics {
    /// Connector configurations and commands.
    pub config: InternalTopic,
    /// Source offsets.
    pub offset: InternalTopic,
    /// State of connectors and tasks.
    pub status: InternalTopic,
    /// Assignment of connectors and tasks to workers.
    pub work: InternalTopic,
    /// OAuth grants.
    pub grant: InternalTopic,
}

/// An internal topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InternalTopic {
    /// Full name.
    pub name: String,
    /// Partitions on creation; -1 for the broker's default.
    pub partitions: i32,
    /// Replication factor on creation; -1 for the broker's default.
    pub replication_factor: i16,
    /// Further topic settings on creation, such as `segment.bytes`.
    pub settings: BTreeMap<String, String>,
}

impl From<&InternalTopic> for TopicSpec {
    /// Compacted, because the latest record of each key counts forever.
    fn from(topic: &InternalTopic) -> Self {
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

/// Settings of the REST API besides its listeners.
#[derive(Debug, Clone)]
pub struct Rest {
    /// Host in this worker's id.
    pub advertised_host: String,
    /// Port in this worker's id; 0 when the system chooses the listener's.
    pub advertised_port: u16,
    /// Whether Location headers say `https`.
    pub advertised_tls: bool,
    /// Certificate for https listeners.
    pub tls: Option<TlsFiles>,
    /// Which client certificates https listeners ask for; `None` if they do not ask.
    pub client_auth: Option<ClientAuth>,
    /// `listeners.https.ssl.reload.interval.ms`.
    pub reload_interval: Duration,
    /// `admin.auth.proxies`: proxies whose X-Forwarded-For is trusted.
    pub proxies: Vec<IpNet>,
    /// The user with full access; `None` if clients need not authenticate.
    pub administrator: Option<RestLogin>,
    /// The user with read-only access.
    pub reader: Option<RestLogin>,
    /// `admin.auth.open.paths`: paths that are answered without authentication.
    pub open_paths: Vec<String>,
    /// Host names under which clients may address this worker if they need not authenticate: those of its listeners, the
    /// advertised one and `admin.auth.anonymous.hosts`; `*` for any.
    pub hosts: Vec<String>,
    /// `access.control.allow.origin`; empty if no other origin is allowed.
    pub allowed_origins: Vec<String>,
    /// `access.control.allow.methods`.
    pub allowed_methods: Vec<String>,
}

/// A name and its password.
#[derive(Debug, Clone)]
pub struct RestLogin {
    /// The name.
    pub user: String,
    /// The password, or its hash.
    pub password: Secret,
}

/// `listeners.https.ssl.client.auth`, if it is not `none`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientAuth {
    /// PEM file with the authorities that issue client certificates.
    pub authorities: PathBuf,
    /// Whether a client without a certificate is refused in the handshake.
    pub required: bool,
}

/// The receiver of deliveries.
#[derive(Debug, Clone)]
pub struct ReceiverSettings {
    /// `webhook.listeners`; empty if this worker receives nothing.
    pub listeners: Vec<Listener>,
    /// Certificate for https listeners.
    pub tls: Option<TlsFiles>,
    /// `webhook.advertised.url`: https, port 443.
    pub advertised_url: Option<Url>,
    /// `webhook.proxies`: proxies whose X-Forwarded-For is trusted.
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
pub struct LogSettings {
    /// `log.format`.
    pub format: LogFormat,
    /// `log.filter`; it parses.
    pub filter: String,
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, strum::EnumString)]
#[strum(serialize_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For machines.
    Json,
}

/// A configuration and its warnings.
#[derive(Debug, Clone)]
pub struct LoadedConfig {
    /// The configuration.
    pub config: Worker,
    /// Settings that work, but probably not as intended; to be logged.
    pub warnings: Vec<Warning>,
}

/// A worker's configuration that cannot be used, with the parts needed to check everything else.
#[derive(Debug)]
pub struct RejectedConfig {
    /// All problems; not empty.
    pub problems: Problems,
    /// How references are resolved, as far as the configuration says.
    pub providers: Providers,
    /// `connectors.dir`, if it is valid.
    pub connectors_dir: Option<PathBuf>,
    /// Settings of the Kafka clients, without invalid ones.
    pub kafka: Kafka,
}

impl fmt::Display for RejectedConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.problems.fmt(f)
    }
}

impl std::error::Error for RejectedConfig {}

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
    ) -> Result<LoadedConfig, Box<RejectedConfig>> {
        let (mut problems, mut warnings) = (Problems::default(), Vec::new());
        let environment = environment::readable(environment, &mut problems);
        let settings = match settings(path, &environment, &mut problems, &mut warnings) {
            Ok(settings) => settings,
            // Without the file every required key would be reported as missing, which would mislead.
            Err(problem) => {
                problems.push(problem);
                let providers = Providers::new(environment);
                let (connectors_dir, kafka) = Default::default();
                return Err(Box::new(RejectedConfig { problems, providers, connectors_dir, kafka }));
            }
        };
        let mut own = Providers::new(environment);
        own.configure(&settings, &mut problems);
        // The policy applies to every other value, so it is read first; the reader reports an invalid one.
        let policy = settings.get(keys::SECRETS_POLICY.name).and_then(|raw| raw.trim().parse().ok());
        own.policy = policy.unwrap_or_default();
        let providers = own.for_connectors(&settings, path, &mut problems, &mut warnings);
        let mut reader = SettingsReader::new(&settings, &own);
        reader.problems.extend(problems);
        let worker = read::worker(&mut reader, &providers);
        let (connectors_dir, kafka) = (worker.connectors_dir.clone(), worker.kafka.clone());
        let hosts = worker.providers.hosts.clone();
        match reader.finish(worker) {
            Ok((config, more)) => {
                warnings.extend(more);
                Ok(LoadedConfig { config, warnings })
            }
            Err(problems) => {
                let providers = providers.with_hosts(hosts);
                Err(Box::new(RejectedConfig { problems, providers, connectors_dir, kafka }))
            }
        }
    }
}

/// Address of the REST API of the worker with these properties: the advertised address, or else the first listener as seen from
/// this machine. Reads no other key, so that a file with an invalid key elsewhere still leads to its worker.
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
    let mut reader = SettingsReader::new(&settings, &own);
    reader.problems.extend(problems);
    let found = read::rest_address(&mut reader);
    reader.finish_complete(found).map(|(url, _)| url)
}

/// The settings of file and environment. `Err` says why the file cannot be read; a malformed line is added to `problems`.
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
            problems.add(shown.clone(), error.to_string(), "correct the line");
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

fn load_file(path: &Path) -> Result<properties::PropertiesFile, Problem> {
    let problem = |rule, remedy| Problem::new(path.display().to_string(), rule, remedy);
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
