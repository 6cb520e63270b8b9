//! Reads typed values from a flat map and collects everything that is wrong with it.
//!
//! ```text
//! plain key ──▶ trimmed ──▶ checked against its ConfigKey ──▶ String, number, list …      a reference is refused
//! secret key ─▶ references resolved ──▶ trimmed ──▶ checked ──▶ Secret                    which nothing can format
//! ```
//!
//! A reader does not stop at the first problem: it returns a placeholder, and the caller drops the struct built with it if
//! [`SettingsReader::problems`] is not empty.
//!
//! - A problem names the key, the rule and the remedy, never the value.
//! - An empty value counts as not set, except for a list (an empty list) and a secret (a mistake).

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use base::secret::{HIDDEN, Secret};
use provider::HostPolicy;

use super::{
    key::{ConfigKey, Fallback, Type, Violation, items},
    problem::{Problems, Warning},
    providers::{Providers, ResolvedText, SecretsPolicy},
};

pub(crate) struct SettingsReader<'a> {
    values: &'a BTreeMap<String, String>,
    providers: &'a Providers,
    pub(crate) problems: Problems,
    warnings: Vec<Warning>,
}

impl<'a> SettingsReader<'a> {
    pub(crate) fn new(values: &'a BTreeMap<String, String>, providers: &'a Providers) -> Self {
        Self { values, providers, problems: Problems::default(), warnings: Vec::new() }
    }

    /// Every setting, as written.
    pub(crate) fn values(&self) -> &'a BTreeMap<String, String> {
        self.values
    }

    /// Which hosts a connector may name.
    pub(crate) fn hosts(&self) -> &'a HostPolicy {
        &self.providers.hosts
    }

    /// What was built, unless there are problems.
    pub(crate) fn finish<T>(self, built: T) -> Result<(T, Vec<Warning>), Problems> {
        if self.problems.is_empty() { Ok((built, self.warnings)) } else { Err(self.problems) }
    }

    /// As [`SettingsReader::finish`], for a struct that placeholders cannot fill: `None` only ever comes with a problem.
    pub(crate) fn finish_complete<T>(mut self, built: Option<T>) -> Result<(T, Vec<Warning>), Problems> {
        if built.is_none() && self.problems.is_empty() {
            self.problems.add("the configuration", "is incomplete", "compare it with the reference");
        }
        let (built, warnings) = self.finish(built)?;
        Ok((built.ok_or_else(Problems::default)?, warnings))
    }

    /// Whether the key is set to more than blanks.
    pub(crate) fn is_set(&self, key: &ConfigKey) -> bool {
        self.values.get(key.name).is_some_and(|value| !value.trim().is_empty())
    }

    /// Whether these keys have no problem so far, so that a rule across them can be checked.
    pub(crate) fn are_valid(&self, keys: &[&ConfigKey]) -> bool {
        !self.problems.iter().any(|problem| keys.iter().any(|key| key.name == problem.key))
    }

    /// The value of a plain key: trimmed and checked. `None` if it is not set or invalid.
    pub(crate) fn text(&mut self, key: &ConfigKey) -> Option<String> {
        debug_assert!(key.kind != Type::Password, "{} is a secret", key.name);
        let raw = self.values.get(key.name).map(|raw| raw.trim());
        let Some(raw) = raw.filter(|raw| !raw.is_empty() || self.may_be_empty(key)) else {
            return self.fallback(key).map(str::to_owned);
        };
        if refers(raw) {
            self.refuse_reference(key.name);
            return None;
        }
        if key.is_file() && self.providers.is_unresolved() {
            return Some(raw.to_owned());
        }
        match key.check(raw) {
            Ok(()) => {
                if shown(key.kind, raw) != raw {
                    self.literal_secret(key.name, IN_ADDRESS);
                }
                Some(raw.to_owned())
            }
            Err(problem) => {
                self.problems.push(problem);
                None
            }
        }
    }

    /// The value of a key that has a default or is required; empty after a problem.
    pub(crate) fn text_or_default(&mut self, key: &ConfigKey) -> String {
        self.text(key).unwrap_or_default()
    }

    pub(crate) fn list(&mut self, key: &ConfigKey) -> Vec<String> {
        self.text(key).map(|value| items(&value).map(str::to_owned).collect()).unwrap_or_default()
    }

    /// The items of a list, parsed by the function that its rule checks with.
    pub(crate) fn parsed_list<T>(
        &mut self,
        key: &ConfigKey,
        parse: impl Fn(&str) -> Result<T, Violation>,
    ) -> Vec<T> {
        self.list(key).iter().filter_map(|item| parse(item).ok()).collect()
    }

    /// All that the items of a list name, by the function that its rule checks with.
    pub(crate) fn parsed_set<T: Ord>(
        &mut self,
        key: &ConfigKey,
        parse: impl Fn(&str) -> Result<Vec<T>, Violation>,
    ) -> BTreeSet<T> {
        self.parsed_list(key, parse).into_iter().flatten().collect()
    }

    /// A value, parsed by the function that its rule checks with.
    pub(crate) fn parsed<T>(
        &mut self,
        key: &ConfigKey,
        parse: impl Fn(&str) -> Result<T, Violation>,
    ) -> Option<T> {
        self.text(key).and_then(|text| parse(&text).ok())
    }

    /// A number or a word of a closed set; the type's default after a problem.
    pub(crate) fn value<T: FromStr + Default>(&mut self, key: &ConfigKey) -> T {
        self.text(key).and_then(|value| value.parse().ok()).unwrap_or_default()
    }

    pub(crate) fn boolean(&mut self, key: &ConfigKey) -> bool {
        self.text(key).is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }

    pub(crate) fn milliseconds(&mut self, key: &ConfigKey) -> Duration {
        Duration::from_millis(self.value(key))
    }

    /// The value of a secret key: references resolved, trimmed, checked. `None` if it is not set or invalid.
    pub(crate) fn secret(&mut self, key: &ConfigKey) -> Option<Secret> {
        debug_assert!(key.kind == Type::Password, "{} is no secret", key.name);
        let Some(raw) = self.values.get(key.name).map(|raw| raw.trim()) else {
            return self.fallback(key).map(Secret::new);
        };
        let (value, referred) = self.resolve(key.name, raw)?;
        if referred && self.providers.is_unresolved() {
            // Placeholders of two keys must differ, and be long enough for every rule.
            return Some(Secret::new(format!("{:x<64}", key.name)));
        }
        if value.is_empty() {
            self.refuse(key, "is empty", "set it, or remove the key");
            return None;
        }
        match key.check(value.reveal()) {
            Ok(()) => Some(value),
            Err(problem) => {
                // The message of a violation could reveal something about the secret; the description of the rule cannot.
                let says = key.valid_values();
                let rule = if says.is_empty() { problem.rule } else { format!("must be {says}") };
                self.refuse(key, rule, problem.remedy);
                None
            }
        }
    }

    pub(crate) fn path(&mut self, key: &ConfigKey) -> Option<PathBuf> {
        self.text(key).map(PathBuf::from)
    }

    /// Reports that the value of this key breaks a rule that its declaration cannot express.
    pub(crate) fn refuse(&mut self, key: &ConfigKey, rule: impl Into<String>, remedy: impl Into<String>) {
        self.problems.add(key.name, rule, remedy);
    }

    /// Reports a problem if this key is not set; `because` follows "is required".
    pub(crate) fn require(&mut self, key: &ConfigKey, because: &str) {
        if !self.is_set(key) {
            self.problems.add(key.name, format!("is required {because}"), "set it".to_owned());
        }
    }

    pub(crate) fn warn(&mut self, key: impl Into<String>, message: impl Into<String>) {
        let warning = Warning { key: key.into(), message: message.into() };
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// The value of an undeclared setting for librdkafka. References are allowed for settings whose name says that they are
    /// secrets.
    pub(crate) fn undeclared(&mut self, name: &str, raw: &str) -> Option<Secret> {
        if names_a_secret(name) || (names_a_credential(name) && refers(raw)) {
            self.resolve(name, raw.trim()).map(|(value, _)| value)
        } else {
            self.undeclared_text(name, raw).map(Secret::new)
        }
    }

    /// The value of an undeclared setting that is not a secret.
    fn undeclared_text(&mut self, name: &str, raw: &str) -> Option<String> {
        let raw = raw.trim();
        if refers(raw) {
            self.refuse_reference(name);
            return None;
        }
        if shown(Type::String, raw) != raw {
            self.literal_secret(name, IN_ADDRESS);
        }
        Some(raw.to_owned())
    }

    /// Topic settings behind a prefix, as in Kafka Connect: `offset.storage.segment.bytes` sets `segment.bytes`. `declared` keys
    /// are left out; `policy` says why `cleanup.policy` cannot be set.
    pub(crate) fn topic_settings(
        &mut self,
        prefix: &str,
        declared: &[ConfigKey],
        policy: &str,
    ) -> BTreeMap<String, String> {
        let mut settings = BTreeMap::new();
        for (name, raw) in self.values {
            let Some(setting) = name.strip_prefix(prefix) else { continue };
            if declared.iter().any(|key| key.name == name) {
                continue;
            }
            if setting == "cleanup.policy" {
                self.problems.add(name, policy, "remove it");
            } else if let Some(value) = self.undeclared_text(name, raw) {
                settings.insert(setting.to_owned(), value);
            }
        }
        settings
    }

    /// Whether an empty text is a value of this key, rather than unset.
    fn may_be_empty(&self, key: &ConfigKey) -> bool {
        key.is_emptiable || key.kind == Type::List && key.fallback != Fallback::Required
    }

    fn fallback(&mut self, key: &ConfigKey) -> Option<&'static str> {
        if key.fallback == Fallback::Required {
            self.problems.add(key.name, "is required", "set it");
        }
        key.default_value()
    }

    fn refuse_reference(&mut self, name: &str) {
        self.problems.add(
            name,
            "must not hold a reference: references are for keys of type password",
            "write the value itself; a secret belongs into a key of type password",
        );
    }

    /// Resolves the references of a secret and applies the policy on literal ones. The flag says whether there was a reference.
    fn resolve(&mut self, name: &str, raw: &str) -> Option<(Secret, bool)> {
        match self.providers.resolve(raw) {
            Ok(ResolvedText { text, referred }) => {
                if !referred && !raw.is_empty() {
                    self.literal_secret(name, AS_TEXT);
                }
                Some((Secret::new(text.reveal().trim()), referred))
            }
            Err(reason) => {
                // Part of a literal secret may look like a reference: then not even its provider's name is shown.
                let rule = match is_reference(raw) {
                    true => reason,
                    false => "holds a reference that does not resolve".to_owned(),
                };
                let remedy =
                    "correct the reference; put a secret that itself contains ${ into a file or variable";
                self.problems.add(name, rule, remedy);
                None
            }
        }
    }

    /// Applies the policy on secrets that are written as plain text.
    fn literal_secret(&mut self, name: &str, remedy: &'static str) {
        match self.providers.policy {
            SecretsPolicy::Warn => self.warn(
                name,
                format!("contains a secret as plain text, which REST answers and topics then show; {remedy}"),
            ),
            SecretsPolicy::References => self.problems.add(
                name,
                "must not contain a secret as plain text, because secrets.policy is references",
                remedy,
            ),
        }
    }
}

/// Remedy for a value that is a literal secret.
const AS_TEXT: &str = "write a reference such as ${env:NAME} or ${dir:/run/secrets:name}";
/// Remedy for a name and password in an address.
const IN_ADDRESS: &str =
    "remove the name and password from the address and set them in the key that ends in user.info";

/// A value as it may be shown: literal secrets and credentials in addresses are hidden.
pub(crate) fn shown(kind: Type, raw: &str) -> String {
    if kind == Type::Password {
        return if raw.is_empty() || is_reference(raw) { raw.to_owned() } else { HIDDEN.to_owned() };
    }
    let mut parts = raw.split("://");
    let mut masked = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        masked.push_str("://");
        // Up to the last @: in a malformed address, better hide too much than show part of a password.
        match part.rfind('@') {
            Some(at) => masked.extend([HIDDEN, &part[at..]]),
            None => masked.push_str(part),
        }
    }
    masked
}

/// Whether an undeclared setting is a secret, judged by its name.
pub(crate) fn names_a_secret(name: &str) -> bool {
    ["password", "secret", "key.pem", "token", "jaas.config", "user.info"]
        .iter()
        .any(|end| name.ends_with(end))
}

/// Whether a setting of a Kafka client is often stored together with a secret.
fn names_a_credential(name: &str) -> bool {
    ["sasl.username", "oauthbearer.client.id", ".pem"].iter().any(|end| name.ends_with(end))
}

/// Whether a text contains the start of a reference.
fn refers(raw: &str) -> bool {
    raw.contains("${")
}

/// Whether the whole text is one reference.
fn is_reference(raw: &str) -> bool {
    raw.starts_with("${") && raw.find('}') == Some(raw.len() - 1)
}

#[cfg(test)]
mod tests;
