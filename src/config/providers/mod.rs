//! References to secrets kept elsewhere: `${env:NAME}`, `${file:PATH:KEY}`, `${dir:PATH:FILE}`.
//!
//! The syntax and the worker keys are Kafka Connect's (`config.providers`, `config.providers.<name>.class`,
//! `.param.*`). A value may hold several references, and text around them. Only keys that are declared as secrets are
//! resolved, and the result is a [`Secret`]: nothing can format it.
//!
//! ```text
//! worker.properties ──▶ worker scope: every variable and file, because the operator wrote it
//! connector configs ──▶ connector scope: providers in config.providers, inside their allow lists, never the worker's own secrets
//! read-only callers ──▶ unresolved: only the syntax is checked, nothing is read, a placeholder replaces the value
//! ```
//!
//! - A reference that does not resolve is an error. Connect would leave it as text, and the password would be the literal
//!   `${env:PASSWORD}`.
//! - The value of a reference is not searched for further references.
//! - Only regular files of up to [`FILE_LIMIT`] bytes are read, so that pipes and devices cannot block. They are read at each
//!   resolution, so that a rotated secret is used at once.
//! - One trailing newline of a `dir` file is dropped. Kafka keeps it, but editors and `echo` add one, and no secret of ours ends
//!   in a newline.

use std::{
    collections::BTreeMap,
    io,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use regex::Regex;

use base::{durable, secret::Secret};
use provider::HostPolicy;

use self::worker_secrets::WorkerSecrets;
use super::{
    key::items,
    problem::{Problems, Warning},
    properties,
};

mod worker_secrets;

/// Largest file that a reference may point to, in bytes.
pub const FILE_LIMIT: u64 = 1024 * 1024;

/// Whether a configuration may contain a secret as plain text (`secrets.policy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, strum::EnumString)]
#[strum(serialize_all = "lowercase")]
pub enum SecretsPolicy {
    /// Allowed, with a warning.
    #[default]
    Warn,
    /// Refused: it must be a reference.
    References,
}

/// Resolves references in one scope; see the module's documentation. The environment is that of the start.
#[derive(Debug, Clone)]
pub struct Providers {
    sources: BTreeMap<String, ProviderKind>,
    environment: BTreeMap<String, Secret>,
    scope: Scope,
    /// Whether a configuration may contain a secret as plain text.
    pub policy: SecretsPolicy,
    /// Which hosts connectors may name (`provider.hosts.allowed`).
    pub hosts: HostPolicy,
}

/// Whose configuration is resolved.
#[derive(Debug, Clone)]
enum Scope {
    /// The worker's own.
    Worker,
    /// A connector's, within these limits.
    Connectors(Arc<ConnectorLimits>),
    /// A connector's, for a caller without access to secrets: nothing is read.
    Unresolved,
}

/// What connectors may refer to.
#[derive(Debug)]
struct ConnectorLimits {
    /// By provider; a provider without an entry is closed to connectors.
    allowed: BTreeMap<String, AllowList>,
    /// Secrets that no allow list opens.
    worker_secrets: WorkerSecrets,
}

/// The allow list of a provider.
#[derive(Debug)]
enum AllowList {
    /// Variables whose whole name matches the pattern.
    Variables(Regex),
    /// Files in or below these directories.
    Paths(Vec<PathBuf>),
}

/// What a provider reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProviderKind {
    Environment,
    File,
    Directory,
}

/// Providers that need no class setting.
const STANDARD_PROVIDERS: [(&str, ProviderKind); 3] =
    [("env", ProviderKind::Environment), ("file", ProviderKind::File), ("dir", ProviderKind::Directory)];

/// A value with its references resolved.
#[derive(Debug)]
pub(crate) struct ResolvedText {
    pub(crate) text: Secret,
    /// Whether any part came from a reference.
    pub(crate) referred: bool,
}

impl Providers {
    /// The three standard providers without limits, as for the worker's properties.
    pub fn new(environment: impl IntoIterator<Item = (String, String)>) -> Self {
        Self {
            sources: STANDARD_PROVIDERS.map(|(name, kind)| (name.to_owned(), kind)).into(),
            environment: environment.into_iter().map(|(name, value)| (name, Secret::new(value))).collect(),
            scope: Scope::Worker,
            policy: SecretsPolicy::default(),
            hosts: HostPolicy::default(),
        }
    }

    /// Sets the hosts that connectors may name.
    #[must_use]
    pub fn with_hosts(self, hosts: HostPolicy) -> Self {
        Self { hosts, ..self }
    }

    /// Adds the providers that the worker's `config.providers` lists under other names.
    pub(crate) fn configure(&mut self, settings: &BTreeMap<String, String>, problems: &mut Problems) {
        let listed = listed(settings);
        for name in &listed {
            let class = format!("config.providers.{name}.class");
            if !settings.contains_key(&class) && !self.sources.contains_key(*name) {
                problems.add(
                    class,
                    "is required for a provider other than env, file and dir",
                    "set it to the provider's class, or remove the name from config.providers",
                );
            }
        }
        for (key, value) in settings {
            let Some(rest) = key.strip_prefix(SETTINGS_PREFIX) else { continue };
            let refused = match rest.split_once('.') {
                Some((name, "class")) if !listed.contains(&name) => Err(UNLISTED),
                Some((name, "class")) => self.set_class(name, value.trim()),
                Some(_) => Ok(()),
                None => Err((
                    "is not a setting of a config provider",
                    "write config.providers.<name>.class or .param.*",
                )),
            };
            if let Err((rule, remedy)) = refused {
                problems.add(key, rule, remedy);
            }
        }
    }

    /// The connector scope: the listed providers inside their allow lists, without the worker's own secrets. `file` is the worker's
    /// properties file.
    pub(crate) fn for_connectors(
        &self,
        settings: &BTreeMap<String, String>,
        file: Option<&Path>,
        problems: &mut Problems,
        warnings: &mut Vec<Warning>,
    ) -> Self {
        let listed = listed(settings);
        let mut sources = self.sources.clone();
        sources.retain(|name, _| listed.contains(&name.as_str()));
        let mut allowed = BTreeMap::new();
        for (key, value) in settings {
            let setting = key.strip_prefix(SETTINGS_PREFIX).and_then(|rest| rest.split_once('.'));
            let Some((name, parameter)) = setting.filter(|(_, parameter)| *parameter != "class") else {
                continue;
            };
            let kind = sources.get(name).ok_or(UNLISTED);
            match kind.and_then(|kind| kind.allowed(parameter, value.trim())) {
                Ok(list) => allowed.extend(list.map(|list| (name.to_owned(), list))),
                Err((rule, remedy)) => problems.add(key, rule, remedy),
            }
        }
        for (name, kind) in sources.iter().filter(|(name, _)| !allowed.contains_key(*name)) {
            warnings.push(Warning {
                key: format!("{SETTINGS_PREFIX}{name}.{}", kind.parameter()),
                message: format!("is not set, so connectors cannot use the config provider {name}"),
            });
        }
        let worker_secrets = WorkerSecrets::of(settings, file, &self.sources);
        let scope = Scope::Connectors(Arc::new(ConnectorLimits { allowed, worker_secrets }));
        Self { sources, scope, ..self.clone() }
    }

    /// A copy for callers without access to secrets: only the form of references is checked.
    #[must_use]
    pub fn unresolved(&self) -> Self {
        Self { scope: Scope::Unresolved, ..self.clone() }
    }

    /// Whether neither secrets nor files are read.
    pub(crate) fn is_unresolved(&self) -> bool {
        matches!(self.scope, Scope::Unresolved)
    }

    fn set_class(&mut self, name: &str, class: &str) -> Result<(), RuleAndRemedy> {
        let kind = match class.strip_prefix("org.apache.kafka.common.config.provider.").unwrap_or(class) {
            "EnvVarConfigProvider" => ProviderKind::Environment,
            "FileConfigProvider" => ProviderKind::File,
            "DirectoryConfigProvider" => ProviderKind::Directory,
            _ => {
                return Err((
                    "must be EnvVarConfigProvider, FileConfigProvider or DirectoryConfigProvider",
                    "write one of these classes",
                ));
            }
        };
        self.sources.insert(name.to_owned(), kind);
        Ok(())
    }

    /// Resolves every reference in the value of a secret key. The reason why one does not resolve never contains a value.
    pub(crate) fn resolve(&self, text: &str) -> Result<ResolvedText, String> {
        let mut whole = String::with_capacity(text.len());
        let mut rest = text;
        let mut referred = false;
        while let Some(start) = rest.find("${") {
            let (before, reference) = rest.split_at(start);
            let end = reference.find('}').ok_or(NOT_A_REFERENCE)?;
            whole.push_str(before);
            whole.push_str(self.look_up(&reference[2..end])?.reveal());
            rest = &reference[end + 1..];
            referred = true;
        }
        whole.push_str(rest);
        Ok(ResolvedText { text: Secret::new(whole), referred })
    }

    fn look_up(&self, reference: &str) -> Result<Secret, String> {
        let (provider, target) = reference.split_once(':').ok_or(NOT_A_REFERENCE)?;
        let kind = *self.sources.get(provider).ok_or_else(|| missing(provider))?;
        let (path, key) = kind.split(target).ok_or_else(|| {
            format!(
                "a reference to `{provider}` needs a path and a key, as in ${{{provider}:/run/secrets:key}}"
            )
        })?;
        let limits = match &self.scope {
            Scope::Unresolved => return Ok(Secret::new("")),
            Scope::Worker => None,
            Scope::Connectors(limits) => {
                let allowed = limits.allowed.get(provider).ok_or_else(|| closed(provider, kind))?;
                Some((allowed, &limits.worker_secrets))
            }
        };
        match (kind, limits) {
            (ProviderKind::Environment, Some((AllowList::Variables(pattern), _)))
                if !pattern.is_match(key) =>
            {
                Err(format!("environment variable {key} is outside the provider's allowlist.pattern"))
            }
            (ProviderKind::Environment, Some((_, worker_secrets))) if worker_secrets.has_variable(key) => {
                Err(WORKER_SECRET.to_owned())
            }
            (ProviderKind::Environment, _) => {
                let unset = || format!("environment variable {key} is not set, or is not UTF-8 text");
                self.environment.get(key).cloned().ok_or_else(unset)
            }
            (ProviderKind::File, limits) => read_key(path, key, limits),
            (ProviderKind::Directory, limits) => read_whole(path, key, limits),
        }
    }
}

/// The allow list and the worker's own secrets, for the scope of connectors; `None` for the worker.
type AccessLimits<'a> = Option<(&'a AllowList, &'a WorkerSecrets)>;

/// A key of a properties file.
fn read_key(path: &Path, key: &str, bounds: AccessLimits<'_>) -> Result<Secret, String> {
    let parsed = properties::parse(&read(path, Some(key), bounds)?);
    if let Some(error) = parsed.errors.first() {
        return Err(format!("{} is not a properties file: {error}", path.display()));
    }
    let value = parsed.pairs.get(key).map(|value| Secret::new(value.as_str()));
    value.ok_or_else(|| format!("{} has no key `{key}`", path.display()))
}

/// A file of a directory, without one trailing newline.
fn read_whole(directory: &Path, name: &str, bounds: AccessLimits<'_>) -> Result<Secret, String> {
    if name.contains('/') || name == ".." || name == "." {
        return Err(format!("`{name}` is not the name of a file in a directory"));
    }
    let path = directory.join(name);
    let text = String::from_utf8(read(&path, None, bounds)?)
        .map_err(|_| format!("{} is not UTF-8 text", path.display()))?;
    let line = text.strip_suffix('\n').map_or(text.as_str(), |line| line.strip_suffix('\r').unwrap_or(line));
    Ok(Secret::new(line))
}

/// Reads a file inside the allowed paths. Symbolic links are resolved first, so that none leads outside, and the file is opened once
/// for check and read, so that a link changed in between makes no difference.
fn read(path: &Path, key: Option<&str>, bounds: AccessLimits<'_>) -> Result<Vec<u8>, String> {
    let failed = |error: io::Error| unreadable(path, &error);
    let Some((allowed, worker_secrets)) = bounds else {
        return read_bounded(durable::open_regular(path).map_err(failed)?, path);
    };
    // The answer for a path outside must not depend on whether the file exists.
    let outside = || format!("{} is outside the provider's allowed.paths", path.display());
    let AllowList::Paths(roots) = allowed else { return Err(outside()) };
    // Nor may it show which directories a path with `..` passes through.
    if path.components().any(|part| part == Component::ParentDir) {
        return Err(outside());
    }
    let inside = |path: &Path| {
        roots.iter().filter_map(|root| root.canonicalize().ok()).any(|root| path.starts_with(root))
    };
    let real = match path.canonicalize() {
        Ok(real) if inside(&real) => real,
        Ok(_) => return Err(outside()),
        Err(error) => {
            let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
            return Err(if parent.is_some_and(|parent| inside(&parent)) { failed(error) } else { outside() });
        }
    };
    let file = durable::open_regular(&real).map_err(failed)?;
    if worker_secrets.has_file(&real, &file, key) {
        Err(WORKER_SECRET.to_owned())
    } else {
        read_bounded(file, path)
    }
}

impl ProviderKind {
    /// The parameter with the provider's allow list.
    fn parameter(self) -> &'static str {
        match self {
            Self::Environment => "param.allowlist.pattern",
            Self::File | Self::Directory => "param.allowed.paths",
        }
    }

    /// Splits `path:key` of a file or directory; as in Kafka the path ends at the first colon. A variable's name is the key.
    fn split(self, target: &str) -> Option<(&Path, &str)> {
        if self == Self::Environment {
            return Some((Path::new(""), target));
        }
        let (path, key) = target.split_once(':')?;
        (!path.is_empty() && !key.is_empty()).then_some((Path::new(path), key))
    }

    /// Parses an allow list; an empty one allows nothing.
    fn allowed(self, parameter: &str, value: &str) -> Result<Option<AllowList>, RuleAndRemedy> {
        if parameter != self.parameter() {
            let remedy = match self {
                Self::Environment => "write param.allowlist.pattern, or remove it",
                Self::File | Self::Directory => "write param.allowed.paths, or remove it",
            };
            return Err(("is not a parameter of this config provider", remedy));
        }
        if value.is_empty() {
            return Ok(None);
        }
        if self == Self::Environment {
            let remedy = "name the variables, for example PROVIDER_KEY|OAUTH_SECRET";
            // Kafka matches the whole name.
            let pattern = Regex::new(&format!("^(?:{value})$"));
            return pattern
                .map(AllowList::Variables)
                .map(Some)
                .map_err(|_| ("must be a regular expression", remedy));
        }
        let roots: Vec<PathBuf> = items(value).map(PathBuf::from).collect();
        if roots.iter().any(|root| !root.is_absolute()) {
            let remedy = "write for example /run/secrets/connectors";
            return Err(("must be absolute paths, separated by commas", remedy));
        }
        Ok((!roots.is_empty()).then_some(AllowList::Paths(roots)))
    }
}

/// Why a provider without a source cannot be used.
fn missing(provider: &str) -> String {
    match STANDARD_PROVIDERS.iter().find(|(name, _)| *name == provider) {
        Some((_, kind)) => closed(provider, *kind),
        None => format!("there is no config provider `{provider}`"),
    }
}

fn closed(provider: &str, kind: ProviderKind) -> String {
    format!(
        "the config provider `{provider}` is closed to connectors: config.providers does not list it, or \
         config.providers.{provider}.{} is not set",
        kind.parameter()
    )
}

const NOT_A_REFERENCE: &str = "holds ${ that does not begin a reference of the form ${provider:[path:]key}";
const WORKER_SECRET: &str = "the worker's own secrets are closed to connectors";
const SETTINGS_PREFIX: &str = "config.providers.";
/// A rule that a setting breaks, and the remedy.
type RuleAndRemedy = (&'static str, &'static str);
const UNLISTED: RuleAndRemedy = (
    "is about a provider that config.providers does not list",
    "add the provider's name to config.providers, or remove the setting",
);

fn listed(settings: &BTreeMap<String, String>) -> Vec<&str> {
    settings.get("config.providers").map(|value| items(value).collect()).unwrap_or_default()
}

fn read_bounded(file: std::fs::File, path: &Path) -> Result<Vec<u8>, String> {
    properties::read_bounded(file, FILE_LIMIT)
        .map_err(|error| unreadable(path, &error))?
        .ok_or_else(|| format!("{} is larger than {FILE_LIMIT} bytes", path.display()))
}

fn unreadable(path: &Path, error: &io::Error) -> String {
    format!("cannot read {} ({})", path.display(), error.kind())
}

#[cfg(test)]
mod tests;
