//! Values that live elsewhere: `${env:NAME}`, `${file:PATH:KEY}`, `${dir:PATH:FILE}`.
//!
//! The syntax and the worker keys are Kafka Connect's (`config.providers`, `config.providers.<name>.class`,
//! `.param.*`). A value may hold several references, and text around them.
//!
//! - A reference that does not resolve is an error; Connect would leave it as text, and a password would become the
//!   literal `${env:PASSWORD}`.
//! - What a reference yields is never searched for references again.
//! - A file is read whole, up to [`FILE_LIMIT`] bytes, each time it is asked for: a rotated secret is seen at once.
//! - One trailing newline of a `dir` file is dropped. Kafka keeps it, but editors and `echo` write one that nobody
//!   means, and no secret of ours ends in a line break.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use regex::Regex;

use super::{
    hosts::HostPolicy,
    key::items,
    problem::{Problem, Problems},
    properties,
};
use crate::{retry::Retry, secret::Secret};

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

/// Everything a reference can be resolved with. The environment is the one given at start.
#[derive(Debug, Clone)]
pub struct Providers {
    sources: BTreeMap<String, Source>,
    environment: BTreeMap<String, Secret>,
    /// Whether a secret may stand in a configuration as text.
    pub policy: SecretsPolicy,
    /// Which hosts connectors may name (`provider.hosts.allowed`).
    pub hosts: HostPolicy,
}

#[derive(Debug, Clone)]
enum Source {
    Environment { allowed: Option<Regex> },
    File { allowed: Vec<PathBuf> },
    Directory { allowed: Vec<PathBuf> },
}

/// A reference that cannot be resolved. Nothing in it repeats a value.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `${` without an end, or without a provider and a key.
    #[error("what begins with ${{ is not a reference of the form ${{provider:[path:]key}}")]
    Syntax,
    /// Nobody by that name.
    #[error("there is no config provider `{0}`")]
    UnknownProvider(String),
    /// The variable is not set, or not Unicode.
    #[error("the environment variable {0} is not set to UTF-8 text")]
    NoVariable(String),
    /// The variable is outside `allowlist.pattern`.
    #[error("the environment variable {0} is outside the provider's allowlist.pattern")]
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
    /// The three standard providers without restrictions.
    pub fn new(environment: impl IntoIterator<Item = (String, String)>) -> Self {
        let sources = [
            ("env", Source::Environment { allowed: None }),
            ("file", Source::File { allowed: Vec::new() }),
            ("dir", Source::Directory { allowed: Vec::new() }),
        ];
        Self {
            sources: sources.into_iter().map(|(name, source)| (name.to_owned(), source)).collect(),
            environment: environment.into_iter().map(|(name, value)| (name, Secret::new(value))).collect(),
            policy: SecretsPolicy::default(),
            hosts: HostPolicy::default(),
        }
    }

    /// The same, for connectors that may name these hosts.
    #[must_use]
    pub fn with_hosts(self, hosts: HostPolicy) -> Self {
        Self { hosts, ..self }
    }

    /// The providers that the worker's `config.providers` lists, or the standard ones where it is not set.
    pub(crate) fn configured(
        settings: &BTreeMap<String, String>,
        environment: impl IntoIterator<Item = (String, String)>,
        problems: &mut Problems,
    ) -> Self {
        let mut providers = Self::new(environment);
        let listed = settings.get("config.providers").map_or("env,file,dir", String::as_str);
        let listed: Vec<&str> = items(listed).collect();
        providers.sources.retain(|name, _| listed.contains(&name.as_str()));
        for name in &listed {
            let class = format!("config.providers.{name}.class");
            if !settings.contains_key(&class) && !providers.sources.contains_key(*name) {
                problems.about(
                    class,
                    "is required for a provider other than env, file and dir",
                    "set it to the provider's class, or remove the name from config.providers",
                );
            }
        }
        for (key, value) in settings {
            let Some(rest) = key.strip_prefix("config.providers.") else { continue };
            let problem = match rest.split_once('.') {
                Some((name, "class")) if !listed.contains(&name) => Err(unlisted(name)),
                Some((name, "class")) => providers.set_class(name, value.trim()),
                Some(_) => Ok(()),
                None => Err("is not a key of a provider".to_owned()),
            };
            if let Err(rule) = problem {
                problems.push(refused(key, value, rule));
            }
        }
        for (key, value) in settings {
            let setting = key.strip_prefix("config.providers.").and_then(|rest| rest.split_once('.'));
            let Some((name, parameter)) = setting.filter(|(_, parameter)| *parameter != "class") else {
                continue;
            };
            if let Err(rule) = providers.set_parameter(name, parameter, value.trim()) {
                problems.push(refused(key, value, rule));
            }
        }
        providers
    }

    fn set_class(&mut self, name: &str, class: &str) -> Result<(), String> {
        let source = match class.strip_prefix("org.apache.kafka.common.config.provider.").unwrap_or(class) {
            "EnvVarConfigProvider" => Source::Environment { allowed: None },
            "FileConfigProvider" => Source::File { allowed: Vec::new() },
            "DirectoryConfigProvider" => Source::Directory { allowed: Vec::new() },
            _ => {
                return Err(
                    "must be EnvVarConfigProvider, FileConfigProvider or DirectoryConfigProvider".to_owned()
                );
            }
        };
        self.sources.insert(name.to_owned(), source);
        Ok(())
    }

    fn set_parameter(&mut self, name: &str, parameter: &str, value: &str) -> Result<(), String> {
        let source = self.sources.get_mut(name).ok_or_else(|| unlisted(name))?;
        match (source, parameter) {
            (Source::Environment { allowed }, "param.allowlist.pattern") => {
                // Kafka matches the whole name.
                let pattern = Regex::new(&format!("^(?:{value})$"));
                *allowed = Some(pattern.map_err(|_| "must be a regular expression".to_owned())?);
                Ok(())
            }
            (Source::File { allowed } | Source::Directory { allowed }, "param.allowed.paths") => {
                *allowed = items(value).map(PathBuf::from).collect();
                match allowed.iter().find(|path| !path.is_absolute()) {
                    Some(_) => Err("must be absolute paths, separated by commas".to_owned()),
                    None => Ok(()),
                }
            }
            _ => Err(format!("is not a parameter of the config provider `{name}`")),
        }
    }

    /// Replaces every reference in `text`.
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

    /// `provider:key` or `provider:path:key`; as in Kafka the path ends at the second colon.
    fn look_up(&self, reference: &str) -> Result<Secret, Error> {
        let (provider, rest) = reference.split_once(':').ok_or(Error::Syntax)?;
        let source = self.sources.get(provider).ok_or_else(|| Error::UnknownProvider(provider.to_owned()))?;
        let with_path = || match rest.split_once(':') {
            Some((path, key)) if !path.is_empty() && !key.is_empty() => Ok((Path::new(path), key)),
            _ => Err(Error::NoPath(provider.to_owned())),
        };
        match source {
            Source::Environment { allowed } => {
                if allowed.as_ref().is_some_and(|pattern| !pattern.is_match(rest)) {
                    return Err(Error::VariableNotAllowed(rest.to_owned()));
                }
                self.environment.get(rest).cloned().ok_or_else(|| Error::NoVariable(rest.to_owned()))
            }
            Source::File { allowed } => {
                let (path, key) = with_path()?;
                let mut parsed = properties::parse(&read(path, allowed)?);
                if !parsed.errors.is_empty() {
                    let source = parsed.errors.swap_remove(0);
                    return Err(Error::NotProperties { path: path.to_owned(), source });
                }
                let value = parsed.pairs.get(key).map(|value| Secret::new(value.as_str()));
                value.ok_or_else(|| Error::NoKey { path: path.to_owned(), key: key.to_owned() })
            }
            Source::Directory { allowed } => {
                let (path, name) = with_path()?;
                if name.contains('/') || name == ".." || name == "." {
                    return Err(Error::NotAName(name.to_owned()));
                }
                let path = path.join(name);
                let text = String::from_utf8(read(&path, allowed)?).map_err(|_| Error::NotText(path))?;
                let line = text
                    .strip_suffix('\n')
                    .map_or(text.as_str(), |line| line.strip_suffix('\r').unwrap_or(line));
                Ok(Secret::new(line))
            }
        }
    }
}

fn unlisted(name: &str) -> String {
    format!("is about `{name}`, which config.providers does not list")
}

fn refused(key: &str, value: &str, rule: String) -> Problem {
    let remedy = "correct or remove it".to_owned();
    Problem { key: key.to_owned(), value: Some(value.to_owned()), rule, remedy }
}

/// Reads a file inside the allowed paths. Symbolic links are followed first, so that none leads outside, and what was
/// looked at is what is opened, so that a link changed in between makes no difference.
fn read(path: &Path, allowed: &[PathBuf]) -> Result<Vec<u8>, Error> {
    let failed = |source| Error::Read { path: path.to_owned(), source };
    let real = path.canonicalize().map_err(failed)?;
    let inside = |root: &PathBuf| root.canonicalize().is_ok_and(|root| real.starts_with(root));
    if !allowed.is_empty() && !allowed.iter().any(inside) {
        return Err(Error::PathNotAllowed(path.to_owned()));
    }
    properties::read_bounded(&real, FILE_LIMIT)
        .map_err(failed)?
        .ok_or_else(|| Error::TooLarge(path.to_owned()))
}

#[cfg(test)]
mod tests;
