//! Secrets that live elsewhere: `${env:NAME}`, `${file:PATH:KEY}`, `${dir:PATH:FILE}`.
//!
//! The syntax and the worker keys are Kafka Connect's (`config.providers`, `config.providers.<name>.class`,
//! `.param.*`). A value may hold several references, and text around them. Only keys that are declared as secrets are
//! resolved, and the result is a [`Secret`]: nothing can format it.
//!
//! ```text
//! worker.properties ──▶ own scope: every variable and file; the operator wrote it
//! connector configs ──▶ connectors' scope: providers in config.providers, inside their allow lists, never what Guarded names
//! read-only callers ──▶ unresolved: the syntax is checked, nothing is read, a stand-in takes the value's place
//! ```
//!
//! - A reference that does not resolve is an error; Connect would leave it as text, and a password would become the
//!   literal `${env:PASSWORD}`.
//! - The result of a reference is not searched for references again.
//! - Only regular files are read, without blocking on pipes and devices, whole, up to [`FILE_LIMIT`] bytes, at each
//!   resolution: a rotated secret is seen at once.
//! - One trailing newline of a `dir` file is dropped. Kafka keeps it, but editors and `echo` write one, and no secret of ours
//!   ends in a line break.

use std::{
    collections::BTreeMap,
    io,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use regex::Regex;

use base::{durable, retry::Retry, secret::Secret};
use provider::HostPolicy;

use self::guarded::Guarded;
use super::{
    key::items,
    problem::{Problems, Warning},
    properties,
};

mod guarded;

/// Longest file a reference may point into, in bytes.
pub const FILE_LIMIT: u64 = 1024 * 1024;

/// Whether a secret may stand in a configuration as text (`secrets.policy`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SecretsPolicy {
    /// It may, with a warning.
    #[default]
    Warn,
    /// It must be a reference.
    References,
}

/// Resolves references in one scope; see the module's head. The environment is the one given at start.
#[derive(Debug, Clone)]
pub struct Providers {
    sources: BTreeMap<String, Source>,
    environment: BTreeMap<String, Secret>,
    scope: Scope,
    /// Whether a secret may stand in a configuration as text.
    pub policy: SecretsPolicy,
    /// Which hosts connectors may name (`provider.hosts.allowed`).
    pub hosts: HostPolicy,
}

/// Whose configuration is read.
#[derive(Debug, Clone)]
enum Scope {
    /// The worker's own.
    Worker,
    /// A connector's, which must not read what the worker keeps for itself.
    Connectors(Arc<Guarded>),
    /// A connector's, for a caller who may not learn anything about secrets: nothing is read.
    Unresolved,
}

/// A provider and what it may read.
#[derive(Debug, Clone)]
enum Source {
    Environment(Limit<Regex>),
    File(Limit<Vec<PathBuf>>),
    Directory(Limit<Vec<PathBuf>>),
}

/// How much of what a provider can reach may be referred to.
#[derive(Debug, Clone)]
enum Limit<T> {
    Everything,
    Nothing,
    Only(T),
}

/// A reference that cannot be resolved. Nothing in it repeats a value.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `${` without an end, or without a provider and a key.
    #[error("holds ${{ that does not begin a reference of the form ${{provider:[path:]key}}")]
    Syntax,
    /// There is no provider of that name.
    #[error("there is no config provider `{0}`")]
    UnknownProvider(String),
    /// Connectors may use a provider only inside its allow list, and it has none.
    #[error(
        "the config provider `{provider}` is closed to connectors: config.providers does not list it, or \
         config.providers.{provider}.{parameter} is not set"
    )]
    Closed {
        /// The provider.
        provider: String,
        /// The parameter that opens it.
        parameter: &'static str,
    },
    /// The worker keeps it for itself.
    #[error("the worker's own secrets are closed to connectors")]
    Guarded,
    /// The variable is not set, or not Unicode.
    #[error("environment variable {0} is not set, or is not UTF-8 text")]
    NoVariable(String),
    /// The variable is outside `allowlist.pattern`.
    #[error("environment variable {0} is outside the provider's allowlist.pattern")]
    VariableNotAllowed(String),
    /// `file` and `dir` need a path.
    #[error("a reference to `{0}` needs a path and a key, as in ${{{0}:/run/secrets:key}}")]
    NoPath(String),
    /// The path is outside `allowed.paths`.
    #[error("{} is outside the provider's allowed.paths", .0.display())]
    PathNotAllowed(PathBuf),
    /// `dir` takes the name of a file in the directory itself.
    #[error("`{0}` is not the name of a file in a directory")]
    NotAName(String),
    /// The file cannot be read.
    #[error("cannot read {} ({})", path.display(), source.kind())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The file is larger than [`FILE_LIMIT`].
    #[error("{} is larger than {FILE_LIMIT} bytes", .0.display())]
    TooLarge(PathBuf),
    /// The file is not UTF-8 text.
    #[error("{} is not UTF-8 text", .0.display())]
    NotText(PathBuf),
    /// The file is not in properties syntax.
    #[error("{} is not a properties file", path.display())]
    NotProperties {
        /// Which file.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: properties::Error,
    },
    /// The properties file has no such key.
    #[error("{} has no key `{key}`", path.display())]
    NoKey {
        /// Which file.
        path: PathBuf,
        /// Which key.
        key: String,
    },
}

impl Error {
    /// A file may be mounted or a permission given later; the rest stays as it is until someone changes it.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::Read { .. } => Retry::Later,
            _ => Retry::Never,
        }
    }
}

/// A value after its references were replaced.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub(crate) text: Secret,
    /// Whether any part came from a reference.
    pub(crate) referred: bool,
}

impl Providers {
    /// The three standard providers without limits, as for the worker's own file.
    pub fn new(environment: impl IntoIterator<Item = (String, String)>) -> Self {
        let sources = [
            ("env", Source::Environment(Limit::Everything)),
            ("file", Source::File(Limit::Everything)),
            ("dir", Source::Directory(Limit::Everything)),
        ];
        Self {
            sources: sources.into_iter().map(|(name, source)| (name.to_owned(), source)).collect(),
            environment: environment.into_iter().map(|(name, value)| (name, Secret::new(value))).collect(),
            scope: Scope::Worker,
            policy: SecretsPolicy::default(),
            hosts: HostPolicy::default(),
        }
    }

    /// The same, for connectors that may name these hosts.
    #[must_use]
    pub fn with_hosts(self, hosts: HostPolicy) -> Self {
        Self { hosts, ..self }
    }

    /// Adds the providers that the worker's `config.providers` lists under names of their own.
    pub(crate) fn configure(&mut self, settings: &BTreeMap<String, String>, problems: &mut Problems) {
        let listed = listed(settings);
        for name in &listed {
            let class = format!("config.providers.{name}.class");
            if !settings.contains_key(&class) && !self.sources.contains_key(*name) {
                problems.about(
                    class,
                    "is required for a provider other than env, file and dir",
                    "set it to the provider's class, or remove the name from config.providers",
                );
            }
        }
        for (key, value) in settings {
            let Some(rest) = key.strip_prefix(PROVIDERS) else { continue };
            let refused = match rest.split_once('.') {
                Some((name, "class")) if !listed.contains(&name) => Err(UNLISTED),
                Some((name, "class")) => self.set_class(name, value.trim()),
                Some(_) => Ok(()),
                None => {
                    Err(("is not a key of a provider", "write config.providers.<name>.class or .param.*"))
                }
            };
            if let Err((rule, remedy)) = refused {
                problems.about(key, rule, remedy);
            }
        }
    }

    /// The scope of connectors: the listed providers inside their allow lists, without the worker's own secrets. `file` is the
    /// worker's properties file.
    pub(crate) fn for_connectors(
        &self,
        settings: &BTreeMap<String, String>,
        file: Option<&Path>,
        problems: &mut Problems,
        warnings: &mut Vec<Warning>,
    ) -> Self {
        let listed = listed(settings);
        let mut scope = self.clone();
        scope.scope = Scope::Connectors(Arc::new(Guarded::of(settings, file, &self.sources)));
        scope.sources.retain(|name, _| listed.contains(&name.as_str()));
        for source in scope.sources.values_mut() {
            source.close();
        }
        for (key, value) in settings {
            let setting = key.strip_prefix(PROVIDERS).and_then(|rest| rest.split_once('.'));
            let Some((name, parameter)) = setting.filter(|(_, parameter)| *parameter != "class") else {
                continue;
            };
            let source = scope.sources.get_mut(name).ok_or(UNLISTED);
            if let Err((rule, remedy)) = source.and_then(|source| source.open(parameter, value.trim())) {
                problems.about(key, rule, remedy);
            }
        }
        for (name, source) in &scope.sources {
            if source.is_closed() {
                let parameter = source.parameter();
                warnings.push(Warning {
                    key: format!("{PROVIDERS}{name}.{parameter}"),
                    message: format!("is not set, so connectors cannot use the config provider {name}"),
                });
            }
        }
        scope
    }

    /// The same for a caller who may not learn anything about secrets: references are checked by their form alone.
    #[must_use]
    pub fn unresolved(&self) -> Self {
        Self { scope: Scope::Unresolved, ..self.clone() }
    }

    /// Whether nothing outside the configuration is looked at, neither secrets nor files.
    pub(crate) fn is_unresolved(&self) -> bool {
        matches!(self.scope, Scope::Unresolved)
    }

    fn set_class(&mut self, name: &str, class: &str) -> Result<(), Refused> {
        let source = match class.strip_prefix("org.apache.kafka.common.config.provider.").unwrap_or(class) {
            "EnvVarConfigProvider" => Source::Environment(Limit::Everything),
            "FileConfigProvider" => Source::File(Limit::Everything),
            "DirectoryConfigProvider" => Source::Directory(Limit::Everything),
            _ => {
                return Err((
                    "must be EnvVarConfigProvider, FileConfigProvider or DirectoryConfigProvider",
                    "write one of these classes",
                ));
            }
        };
        self.sources.insert(name.to_owned(), source);
        Ok(())
    }

    /// Replaces every reference in the value of a secret key.
    pub(crate) fn resolve(&self, text: &str) -> Result<Resolved, Error> {
        let mut whole = String::with_capacity(text.len());
        let mut rest = text;
        let mut referred = false;
        while let Some(start) = rest.find("${") {
            let (before, reference) = rest.split_at(start);
            let end = reference.find('}').ok_or(Error::Syntax)?;
            whole.push_str(before);
            whole.push_str(self.look_up(&reference[2..end])?.reveal());
            rest = &reference[end + 1..];
            referred = true;
        }
        whole.push_str(rest);
        Ok(Resolved { text: Secret::new(whole), referred })
    }

    fn look_up(&self, reference: &str) -> Result<Secret, Error> {
        let (provider, target) = reference.split_once(':').ok_or(Error::Syntax)?;
        let source = self.sources.get(provider).ok_or_else(|| self.missing(provider))?;
        let closed = || Error::Closed { provider: provider.to_owned(), parameter: source.parameter() };
        match source {
            _ if self.is_unresolved() => {
                source.split(target).ok_or_else(|| Error::NoPath(provider.to_owned()))?;
                Ok(Secret::new(""))
            }
            Source::Environment(limit) => {
                match limit {
                    Limit::Everything => {}
                    Limit::Nothing => return Err(closed()),
                    Limit::Only(pattern) if pattern.is_match(target) => {}
                    Limit::Only(_) => return Err(Error::VariableNotAllowed(target.to_owned())),
                }
                if let Scope::Connectors(guarded) = &self.scope {
                    guarded.check_variable(target)?;
                }
                self.environment.get(target).cloned().ok_or_else(|| Error::NoVariable(target.to_owned()))
            }
            Source::File(limit) | Source::Directory(limit) => {
                let (path, key) = source.split(target).ok_or_else(|| Error::NoPath(provider.to_owned()))?;
                let roots = match limit {
                    Limit::Everything => None,
                    Limit::Nothing => return Err(closed()),
                    Limit::Only(roots) => Some(roots.as_slice()),
                };
                match source {
                    Source::Directory(_) => self.read_whole(path, key, roots),
                    _ => self.read_key(path, key, roots),
                }
            }
        }
    }

    fn missing(&self, provider: &str) -> Error {
        let standard = [
            ("env", Source::Environment(Limit::Nothing)),
            ("file", Source::File(Limit::Nothing)),
            ("dir", Source::Directory(Limit::Nothing)),
        ];
        match standard.into_iter().find(|(name, _)| *name == provider) {
            Some((_, source)) => {
                Error::Closed { provider: provider.to_owned(), parameter: source.parameter() }
            }
            None => Error::UnknownProvider(provider.to_owned()),
        }
    }

    /// A key of a properties file.
    fn read_key(&self, path: &Path, key: &str, roots: Option<&[PathBuf]>) -> Result<Secret, Error> {
        let mut parsed = properties::parse(&self.read(path, Some(key), roots)?);
        if !parsed.errors.is_empty() {
            let source = parsed.errors.swap_remove(0);
            return Err(Error::NotProperties { path: path.to_owned(), source });
        }
        let value = parsed.pairs.get(key).map(|value| Secret::new(value.as_str()));
        value.ok_or_else(|| Error::NoKey { path: path.to_owned(), key: key.to_owned() })
    }

    /// A file of a directory, without one line break at its end.
    fn read_whole(&self, directory: &Path, name: &str, roots: Option<&[PathBuf]>) -> Result<Secret, Error> {
        if name.contains('/') || name == ".." || name == "." {
            return Err(Error::NotAName(name.to_owned()));
        }
        let path = directory.join(name);
        let text = String::from_utf8(self.read(&path, None, roots)?).map_err(|_| Error::NotText(path))?;
        let line =
            text.strip_suffix('\n').map_or(text.as_str(), |line| line.strip_suffix('\r').unwrap_or(line));
        Ok(Secret::new(line))
    }

    /// Reads a file inside the allowed paths. Symbolic links are followed first, so that none leads outside, and the file that
    /// was checked is the file that is read, so that a link changed in between makes no difference.
    fn read(&self, path: &Path, key: Option<&str>, roots: Option<&[PathBuf]>) -> Result<Vec<u8>, Error> {
        let failed = |source| Error::Read { path: path.to_owned(), source };
        let Some(roots) = roots else {
            let file = durable::open_regular(path).map_err(failed)?;
            return read_bounded(file, path);
        };
        // What lies outside is not looked at: an answer must not depend on whether it exists.
        let outside = || Error::PathNotAllowed(path.to_owned());
        // Which directories a path passes on its way up must not show either.
        if path.components().any(|part| part == Component::ParentDir) {
            return Err(outside());
        }
        let real = path.canonicalize();
        let inside = |path: &Path| {
            roots.iter().filter_map(|root| root.canonicalize().ok()).any(|root| path.starts_with(root))
        };
        let real = match real {
            Ok(real) if inside(&real) => real,
            Ok(_) => return Err(outside()),
            Err(error) => {
                let parent = path.parent().and_then(|parent| parent.canonicalize().ok());
                return Err(if parent.is_some_and(|parent| inside(&parent)) {
                    failed(error)
                } else {
                    outside()
                });
            }
        };
        let file = durable::open_regular(&real).map_err(failed)?;
        if let Scope::Connectors(guarded) = &self.scope {
            guarded.check_file(&real, &file, key)?;
        }
        read_bounded(file, path)
    }
}

impl Source {
    /// The parameter that opens it to connectors.
    fn parameter(&self) -> &'static str {
        match self {
            Self::Environment(_) => "param.allowlist.pattern",
            Self::File(_) | Self::Directory(_) => "param.allowed.paths",
        }
    }

    fn close(&mut self) {
        match self {
            Self::Environment(limit) => *limit = Limit::Nothing,
            Self::File(limit) | Self::Directory(limit) => *limit = Limit::Nothing,
        }
    }

    fn is_closed(&self) -> bool {
        match self {
            Self::Environment(limit) => matches!(limit, Limit::Nothing),
            Self::File(limit) | Self::Directory(limit) => matches!(limit, Limit::Nothing),
        }
    }

    /// Takes an allow list.
    fn open(&mut self, parameter: &str, value: &str) -> Result<(), Refused> {
        if parameter != self.parameter() {
            let remedy = match self {
                Self::Environment(_) => "write param.allowlist.pattern, or remove it",
                Self::File(_) | Self::Directory(_) => "write param.allowed.paths, or remove it",
            };
            return Err(("is not a parameter of this config provider", remedy));
        }
        match self {
            // Kafka matches the whole name.
            Self::Environment(limit) => match Regex::new(&format!("^(?:{value})$")) {
                Ok(pattern) if !value.is_empty() => *limit = Limit::Only(pattern),
                Ok(_) => {}
                Err(_) => {
                    let remedy = "name the variables, for example PROVIDER_KEY|OAUTH_SECRET";
                    return Err(("must be a regular expression", remedy));
                }
            },
            Self::File(limit) | Self::Directory(limit) => {
                let roots: Vec<PathBuf> = items(value).map(PathBuf::from).collect();
                if roots.iter().any(|root| !root.is_absolute()) {
                    return Err((
                        "must be absolute paths, separated by commas",
                        "write for example /run/secrets/connectors",
                    ));
                }
                if !roots.is_empty() {
                    *limit = Limit::Only(roots);
                }
            }
        }
        Ok(())
    }

    /// `path:key` of a file or directory; as in Kafka the path ends at the first colon. For a variable, its name.
    fn split<'a>(&self, target: &'a str) -> Option<(&'a Path, &'a str)> {
        match self {
            Self::Environment(_) => Some((Path::new(""), target)),
            Self::File(_) | Self::Directory(_) => {
                let (path, key) = target.split_once(':')?;
                (!path.is_empty() && !key.is_empty()).then_some((Path::new(path), key))
            }
        }
    }
}

const PROVIDERS: &str = "config.providers.";
/// A rule that a setting breaks, and the remedy.
type Refused = (&'static str, &'static str);
const UNLISTED: Refused = (
    "is about a provider that config.providers does not list",
    "add the provider's name to config.providers, or remove the setting",
);

fn listed(settings: &BTreeMap<String, String>) -> Vec<&str> {
    settings.get("config.providers").map(|value| items(value).collect()).unwrap_or_default()
}

fn read_bounded(file: std::fs::File, path: &Path) -> Result<Vec<u8>, Error> {
    properties::read_bounded(file, FILE_LIMIT)
        .map_err(|source| Error::Read { path: path.to_owned(), source })?
        .ok_or_else(|| Error::TooLarge(path.to_owned()))
}

#[cfg(test)]
mod tests;
