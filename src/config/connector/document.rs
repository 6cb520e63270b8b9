//! Connector files: JSON as it would be posted to the REST API.
//!
//! Two forms are accepted: `{"name": …, "config": {…}}`, as for `POST /connectors`, and the flat map of
//! `PUT /connectors/{name}/config`. Numbers and booleans become text, as in Kafka Connect; null and nested values are refused.
//! A member `_comment` next to `config` is ignored.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::Path,
};

use data_encoding::HEXLOWER;
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::{Map, Value, json, value::RawValue};
use sha2::{Digest, Sha256};

use base::durable::open_regular;

use super::{TargetState, keys::NAME};
use crate::config::{
    problem::{Problem, Problems, Warning},
    properties::read_bounded,
    providers::FILE_LIMIT,
};

/// A connector as a file or request defines it; its configuration is not checked yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectorDocument {
    /// Name of the connector, trimmed; not empty.
    pub name: String,
    /// Flat configuration, references unresolved.
    pub config: BTreeMap<String, String>,
    /// State in which it is created.
    pub initial_state: Option<TargetState>,
}

impl ConnectorDocument {
    /// Loads a connector file. A flat map without a `name` takes the file's name. Keys that are set twice give warnings.
    ///
    /// # Errors
    /// The file cannot be read, or is not a connector.
    pub fn load(path: &Path) -> Result<(Self, Vec<Warning>), Problems> {
        let shown = path.display().to_string();
        let problem = |rule: String, remedy: &str| Problem::new(shown.as_str(), rule, remedy);
        let bytes = open_regular(path)
            .and_then(|file| read_bounded(file, FILE_LIMIT))
            .map_err(|error| {
                problem(format!("cannot be read ({})", error.kind()), "correct its permissions")
            })?
            .ok_or_else(|| problem(format!("is larger than {FILE_LIMIT} bytes"), "name a connector file"))?;
        let value: Value = serde_json::from_slice(&bytes).map_err(|error| {
            let place = format!("is not JSON (line {}, column {})", error.line(), error.column());
            problem(place, "correct the file")
        })?;
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let warnings = repeated(&bytes)
            .into_iter()
            .map(|key| Warning { key, message: "is set more than once; the last one counts".to_owned() });
        Ok((Self::from_json(value, stem)?, warnings.collect()))
    }

    /// Reads either form. `default_name` is used for a flat map without a `name`; it may be empty.
    ///
    /// # Errors
    /// Everything that is wrong with its shape.
    pub fn from_json(value: Value, default_name: &str) -> Result<Self, Problems> {
        const FORM: &str = "write {\"name\": …, \"config\": {…}}";
        let Value::Object(mut members) = value else {
            return Err(Problem::new("the connector", "must be a JSON object", FORM).into());
        };
        let mut problems = Problems::default();
        let (name, config, initial_state) = match members.remove("config") {
            Some(Value::Object(config)) => {
                let name = members.remove("name");
                let state =
                    members.remove("initial_state").and_then(|state| target_state(&state, &mut problems));
                members.remove("_comment");
                for member in members.keys() {
                    problems.add(member, "is outside config", "move it into config, or remove it");
                }
                (name, config, state)
            }
            Some(_) => {
                problems.add("config", "must be a JSON object", FORM);
                (members.remove("name"), Map::new(), None)
            }
            None => (members.get("name").cloned(), members, None),
        };
        let config = flat(config, &mut problems);
        let inner = config.get("name").map(String::as_str);
        let name = match &name {
            Some(Value::String(name)) => name.as_str(),
            Some(_) => {
                problems.add("name", "must be text", "put it in quotes");
                ""
            }
            None => inner.unwrap_or(default_name),
        };
        let name = name.trim().to_owned();
        if name.is_empty() {
            problems.add("name", "is required", "set it");
        }
        if problems.is_empty() { Ok(Self { name, config, initial_state }) } else { Err(problems) }
    }

    /// Adds the name to the configuration, as it is stored.
    #[must_use]
    pub fn named(mut self) -> Self {
        // A different name is kept, so that the check refuses it.
        if self.config.get(NAME.name).is_none_or(|inner| inner.trim() == self.name) {
            self.config.insert(NAME.name.to_owned(), self.name.clone());
        }
        self
    }

    /// Hash of the meaning of a file: formatting, the order of keys and comments make no difference.
    #[must_use]
    pub fn hash(&self) -> String {
        let state = self.initial_state.map(TargetState::name);
        // An array, so that the order of members cannot change the hash; the configuration is a sorted map.
        let whole = json!([self.name, self.config, state]);
        HEXLOWER.encode(&Sha256::digest(whole.to_string()))
    }
}

/// Converts a JSON object to a flat map of texts, as Kafka Connect coerces it.
///
/// # Errors
/// Every member that is null, an array or an object.
pub fn coerce(members: Map<String, Value>) -> Result<BTreeMap<String, String>, Problems> {
    let mut problems = Problems::default();
    let config = flat(members, &mut problems);
    if problems.is_empty() { Ok(config) } else { Err(problems) }
}

fn flat(members: Map<String, Value>, problems: &mut Problems) -> BTreeMap<String, String> {
    let mut config = BTreeMap::new();
    for (key, value) in members {
        let (rule, remedy) = match value {
            Value::String(text) => {
                config.insert(key, text);
                continue;
            }
            Value::Number(_) | Value::Bool(_) => {
                config.insert(key, value.to_string());
                continue;
            }
            Value::Null => ("is null", "remove the key, or give it a value"),
            Value::Array(_) => ("is an array", "write one text with commas"),
            Value::Object(_) => ("is an object", "write flat keys with dots"),
        };
        problems.add(key, rule, remedy);
    }
    config
}

/// Keys that an object contains more than once, which a parsed value no longer shows.
fn repeated(json: &[u8]) -> BTreeSet<String> {
    let mut repeated = BTreeSet::new();
    if let Ok(RawMembers(members)) = serde_json::from_slice(json) {
        let mut seen = BTreeSet::new();
        for (key, value) in members {
            repeated.extend(self::repeated(value.get().as_bytes()));
            if !seen.insert(key.clone()) {
                repeated.insert(key);
            }
        }
    } else if let Ok(items) = serde_json::from_slice::<Vec<Box<RawValue>>>(json) {
        repeated.extend(items.iter().flat_map(|item| self::repeated(item.get().as_bytes())));
    }
    repeated
}

/// The members of an object, as written.
struct RawMembers(Vec<(String, Box<RawValue>)>);

impl<'de> Deserialize<'de> for RawMembers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Self(Vec::new()))
    }
}

impl<'de> Visitor<'de> for RawMembers {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut members: A) -> Result<Self, A::Error> {
        while let Some(member) = members.next_entry()? {
            self.0.push(member);
        }
        Ok(self)
    }
}

fn target_state(value: &Value, problems: &mut Problems) -> Option<TargetState> {
    let state = value.as_str().and_then(TargetState::parse);
    if state.is_none() {
        problems.add("initial_state", "must be RUNNING, PAUSED or STOPPED", "correct or remove it");
    }
    state
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::samples::properties;

    #[test]
    fn both_forms_are_read_and_scalars_become_text() {
        let wrapped = json!({"name": " a ", "_comment": ["x"], "initial_state": "paused",
            "config": {"tasks.max": 2, "oauth.pkce": true, "topic.prefix": "p"}});
        let flat = json!({"tasks.max": 2, "oauth.pkce": true, "topic.prefix": "p"});
        let config = properties(&[("oauth.pkce", "true"), ("tasks.max", "2"), ("topic.prefix", "p")]);

        let wrapped = ConnectorDocument::from_json(wrapped, "file").unwrap();
        let flat = ConnectorDocument::from_json(flat, "file").unwrap();

        assert_eq!((wrapped.name.as_str(), &wrapped.config), ("a", &config));
        assert_eq!(wrapped.initial_state, Some(TargetState::Paused));
        assert_eq!((flat.name.as_str(), &flat.config), ("file", &config));
    }

    #[test]
    fn everything_wrong_with_the_shape_is_reported() {
        let value = json!({"name": 7, "extra": 1, "initial_state": "ASLEEP",
            "config": {"a": null, "b": [1], "c": {"d": 1}}});

        let problems = ConnectorDocument::from_json(value, "").unwrap_err();

        let keys: Vec<_> = problems.iter().map(|problem| problem.key.as_str()).collect();
        assert_eq!(keys, ["initial_state", "extra", "a", "b", "c", "name", "name"]);
    }

    #[test]
    fn duplicate_key_gives_a_warning() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.json");
        let text = r#"{"name": "a", "_comment": [1, -1, 1.5, null], "config": {"tasks.max": 1, "x": true, "tasks.max": 2}}"#;
        std::fs::write(&path, text).unwrap();

        let (document, warnings) = ConnectorDocument::load(&path).unwrap();

        assert_eq!(document.config["tasks.max"], "2");
        assert_eq!(warnings.iter().map(|warning| warning.key.as_str()).collect::<Vec<_>>(), ["tasks.max"]);
    }

    #[test]
    fn broken_file_is_reported_by_position_without_its_text() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.json");
        std::fs::write(&path, "{\"accounting.secret\": \"hunter2\",}").unwrap();

        let message = ConnectorDocument::load(&path).unwrap_err().to_string();

        assert!(message.contains("line 1, column") && !message.contains("hunter2"), "{message}");
    }

    #[test]
    fn hash_covers_the_meaning_of_a_file_only() {
        let hash = |text: &str| {
            ConnectorDocument::from_json(serde_json::from_str(text).unwrap(), "a").unwrap().named().hash()
        };
        let plain = hash(r#"{"name": "a", "config": {"k": "1", "l": "2"}}"#);

        for same in [
            r#"{"config": {"l": 2, "name": "a", "k": 1}, "name": " a ", "_comment": "x"}"#,
            r#"{"l": "2", "k": "1"}"#,
        ] {
            assert_eq!(hash(same), plain, "{same}");
        }
        for other in [
            r#"{"name": "b", "config": {"k": "1", "l": "2"}}"#,
            r#"{"name": "a", "config": {"k": "1", "l": "3"}}"#,
            r#"{"name": "a", "config": {"k": "1"}}"#,
            r#"{"name": "a", "initial_state": "RUNNING", "config": {"k": "1", "l": "2"}}"#,
        ] {
            assert_ne!(hash(other), plain, "{other}");
        }
    }

    #[test]
    fn pipe_as_connector_file_is_refused_without_blocking() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe.json");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());

        let message = ConnectorDocument::load(&path).unwrap_err().to_string();

        assert!(message.contains("cannot be read"), "{message}");
    }
}
