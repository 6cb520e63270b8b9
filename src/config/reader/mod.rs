//! Reads typed values out of a flat map and keeps a list of everything that is wrong with it.
//!
//! Path of a value: text in the map → references resolved → trimmed → checked against its [`Key`] → typed. A reader
//! never stops at the first problem: it hands back a harmless stand-in, and whoever built a struct from it throws the
//! struct away when [`Reader::problems`] is not empty.
//!
//! - A value is shown as it was written, never as it was resolved; literal secrets and passwords in addresses are
//!   hidden.
//! - An empty value counts as not set, except for a list (an empty list) and a secret (a mistake).

use std::{collections::BTreeMap, path::PathBuf, str::FromStr, time::Duration};

use super::{
    hosts::HostPolicy,
    key::{Fallback, Key, Type, items},
    problem::{Problem, Problems, Warning},
    providers::{Providers, SecretsPolicy},
};
use crate::secret::{HIDDEN, Secret};

/// See the module's head.
pub(crate) struct Reader<'a> {
    values: &'a BTreeMap<String, String>,
    providers: &'a Providers,
    pub(crate) problems: Problems,
    warnings: Vec<Warning>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(values: &'a BTreeMap<String, String>, providers: &'a Providers) -> Self {
        Self { values, providers, problems: Problems::default(), warnings: Vec::new() }
    }

    /// Every pair, as written.
    pub(crate) fn values(&self) -> &'a BTreeMap<String, String> {
        self.values
    }

    /// Which hosts a connector may name.
    pub(crate) fn hosts(&self) -> &'a HostPolicy {
        &self.providers.hosts
    }

    /// What was built, unless something was wrong.
    pub(crate) fn finish<T>(self, built: T) -> Result<(T, Vec<Warning>), Problems> {
        if self.problems.is_empty() { Ok((built, self.warnings)) } else { Err(self.problems) }
    }

    /// As [`Reader::finish`], for what cannot be built with stand-ins: `None` only ever goes with a problem.
    pub(crate) fn finish_whole<T>(mut self, built: Option<T>) -> Result<(T, Vec<Warning>), Problems> {
        match built {
            Some(built) => self.finish(built),
            None => {
                if self.problems.is_empty() {
                    self.problems.about(
                        "the configuration",
                        "is incomplete",
                        "compare it with the reference",
                    );
                }
                Err(self.problems)
            }
        }
    }

    /// Whether the user wrote something for this key.
    pub(crate) fn is_set(&self, key: &Key) -> bool {
        self.values.get(key.name).is_some_and(|value| !value.trim().is_empty())
    }

    /// Whether nothing has been found wrong with these keys, so that a rule across them makes sense.
    pub(crate) fn are_sound(&self, keys: &[&Key]) -> bool {
        !self.problems.iter().any(|problem| keys.iter().any(|key| key.name == problem.key))
    }

    pub(crate) fn text(&mut self, key: &Key) -> Option<String> {
        self.value(key).map(|value| value.reveal().to_owned())
    }

    /// The text of a key that has a default or is required; empty after a problem.
    pub(crate) fn word(&mut self, key: &Key) -> String {
        self.text(key).unwrap_or_default()
    }

    pub(crate) fn list(&mut self, key: &Key) -> Vec<String> {
        self.value(key).map(|value| items(value.reveal()).map(str::to_owned).collect()).unwrap_or_default()
    }

    /// The items of a list, parsed by the function its rule checks with.
    pub(crate) fn parsed_list<T>(&mut self, key: &Key, parse: impl Fn(&str) -> Result<T, String>) -> Vec<T> {
        self.list(key).iter().filter_map(|item| parse(item).ok()).collect()
    }

    /// A value parsed by the function its rule checks with.
    pub(crate) fn parsed<T>(&mut self, key: &Key, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        self.text(key).and_then(|text| parse(&text).ok())
    }

    /// A number; zero after a problem.
    pub(crate) fn number<T: FromStr + Default>(&mut self, key: &Key) -> T {
        self.value(key).and_then(|value| value.reveal().parse().ok()).unwrap_or_default()
    }

    pub(crate) fn boolean(&mut self, key: &Key) -> bool {
        self.value(key).is_some_and(|value| value.reveal().eq_ignore_ascii_case("true"))
    }

    pub(crate) fn milliseconds(&mut self, key: &Key) -> Duration {
        Duration::from_millis(self.number(key))
    }

    pub(crate) fn secret(&mut self, key: &Key) -> Option<Secret> {
        self.value(key)
    }

    pub(crate) fn path(&mut self, key: &Key) -> Option<PathBuf> {
        self.text(key).map(PathBuf::from)
    }

    /// Reports that the value of this key breaks a rule that its declaration alone cannot tell.
    pub(crate) fn refuse(&mut self, key: &Key, rule: impl Into<String>, remedy: impl Into<String>) {
        let value = self.values.get(key.name).map(|raw| shown(key.kind, raw.trim()));
        let (rule, remedy) = (rule.into(), remedy.into());
        self.problems.push(Problem { key: key.name.to_owned(), value, rule, remedy });
    }

    /// Reports that this key has to be set in the present combination.
    pub(crate) fn demand(&mut self, key: &Key, because: &str) {
        if !self.is_set(key) {
            self.problems.about(key.name, format!("is required {because}"), "set it".to_owned());
        }
    }

    pub(crate) fn warn(&mut self, key: impl Into<String>, message: impl Into<String>) {
        let warning = Warning { key: key.into(), message: message.into() };
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// The value of a key that no declaration describes, such as a setting that passes through to librdkafka.
    pub(crate) fn undeclared(&mut self, name: &str, raw: &str) -> Option<Secret> {
        let kind = if names_a_secret(name) { Type::Password } else { Type::String };
        self.resolve(name, kind, raw.trim()).map(|(value, _)| value)
    }

    /// Resolved, trimmed, checked; `None` when not set or wrong.
    fn value(&mut self, key: &Key) -> Option<Secret> {
        let raw = self.values.get(key.name).map(|raw| raw.trim());
        let Some(raw) = raw.filter(|raw| !raw.is_empty() || matches!(key.kind, Type::List | Type::Password))
        else {
            return self.fallback(key);
        };
        let (value, referred) = self.resolve(key.name, key.kind, raw)?;
        if value.is_empty() {
            match key.kind {
                Type::Password => {
                    self.refuse(key, "is empty", "set it, or remove the key");
                    return None;
                }
                Type::List if key.fallback != Fallback::Required => {}
                _ => return self.fallback(key),
            }
        }
        let broken = match key.check(value.reveal()) {
            Ok(()) => return Some(value),
            Err(broken) => broken,
        };
        // The detail may name a part of the value, which is not ours to show when it came from elsewhere.
        let private = referred || shown(key.kind, raw) != raw;
        let says = key.valid_values();
        let rule = match (private && key.kind != Type::Password, says.is_empty()) {
            (true, false) => format!("must be {says}"),
            _ => broken.detail,
        };
        self.refuse(key, rule, broken.remedy);
        None
    }

    fn fallback(&mut self, key: &Key) -> Option<Secret> {
        match key.fallback {
            Fallback::Text(text) => Some(Secret::new(text)),
            Fallback::Unset => None,
            Fallback::Required => {
                self.problems.about(key.name, "is required", "set it".to_owned());
                None
            }
        }
    }

    /// Replaces references and holds the policy on secrets. The flag says whether anything was a reference.
    fn resolve(&mut self, name: &str, kind: Type, raw: &str) -> Option<(Secret, bool)> {
        match self.providers.resolve(raw) {
            Ok(resolved) => {
                if !resolved.referred && !raw.is_empty() && shown(kind, raw) != raw {
                    self.literal_secret(name);
                }
                Some((Secret::new(resolved.text.reveal().trim()), resolved.referred))
            }
            Err(error) => {
                // Part of a literal secret may look like a reference: then even its provider's name is not shown.
                let open = kind != Type::Password || is_reference(raw);
                let rule =
                    if open { chain(&error) } else { "holds a reference that does not resolve".to_owned() };
                let remedy =
                    "make the reference resolve; text with ${ in it goes into a file or variable".to_owned();
                let value = Some(shown(kind, raw));
                self.problems.push(Problem { key: name.to_owned(), value, rule, remedy });
                None
            }
        }
    }

    fn literal_secret(&mut self, name: &str) {
        match self.providers.policy {
            SecretsPolicy::Warn => self.warn(
                name,
                "holds a secret as text, which REST answers and topics then show; \
                 write a reference such as ${env:NAME} or ${dir:/run/secrets:name}",
            ),
            SecretsPolicy::References => self.problems.push(Problem {
                key: name.to_owned(),
                value: Some(HIDDEN.to_owned()),
                rule: "must be a reference, because secrets.policy is references".to_owned(),
                remedy: "write a reference such as ${env:NAME} or ${dir:/run/secrets:name}".to_owned(),
            }),
        }
    }
}

/// A value as it may be shown: literal secrets and credentials inside addresses are hidden.
pub(crate) fn shown(kind: Type, raw: &str) -> String {
    if kind == Type::Password {
        return if raw.is_empty() || is_reference(raw) { raw.to_owned() } else { HIDDEN.to_owned() };
    }
    let mut parts = raw.split("://");
    let mut masked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        masked.push_str("://");
        // Up to the last @: hiding too much of a malformed address is better than showing half a password.
        match part.rfind('@') {
            Some(at) => masked.extend([HIDDEN, &part[at..]]),
            None => masked.push_str(part),
        }
    }
    masked
}

/// Whether a pass-through setting is a secret, by the way such settings are named.
pub(crate) fn names_a_secret(name: &str) -> bool {
    ["password", "secret", "key.pem", "token", "jaas.config", "user.info"]
        .iter()
        .any(|end| name.ends_with(end))
}

/// Whether the whole text is one reference.
fn is_reference(raw: &str) -> bool {
    raw.starts_with("${") && raw.find('}') == Some(raw.len() - 1)
}

fn chain(error: &dyn std::error::Error) -> String {
    // A provider's error names its own cause, except where the file's syntax is at fault.
    match error.source().filter(|source| source.is::<super::properties::Error>()) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests;
