//! Connectors that files declare: how they get into the config topic, and how they differ from their files afterwards.
//!
//! `connector-N` and `declared-N` (the hash of the file's content) are written in one transaction, after the same checks as any
//! other edit. If the stored hash is the file's hash, nothing is written: of several workers with the same files one writes, and
//! an edit by REST stays until the file's content changes.
//!
//! What REST shows of a declaration never contains a value of its configuration.

use std::{collections::BTreeMap, sync::Arc};

use serde::Serialize;

use super::{Error, Herder, TimeBudget, edit::named};
use crate::{
    config::connector::{ConnectorDocument, TargetState},
    state::configs::{self, Configs, StoredConnector, Write},
};

/// A connector as a file declares it.
#[derive(Debug, PartialEq, Eq)]
pub struct Declaration {
    /// Name of the file.
    pub file: String,
    /// Its content, with the name in the configuration.
    pub document: ConnectorDocument,
    /// Hash of the content.
    pub hash: String,
}

/// A file as this worker sees it.
#[derive(Debug, Clone)]
pub struct Sighting {
    /// Connector it declares; `None` if it could never be read.
    pub name: Option<String>,
    /// Name of the file.
    pub file: String,
    /// What this worker did with it.
    pub finding: DeclarationOutcome,
}

impl Sighting {
    /// Whether this is the file that declared the connector.
    fn is_of(&self, name: &str, stored: &configs::Declared) -> bool {
        self.name.as_ref().map_or(self.file == stored.file, |own| own == name)
    }

    /// The connector it declares, or probably declares if it could not be read.
    fn shown_name<'a>(&'a self, configs: &'a Configs) -> &'a str {
        let stored = || configs.declared().iter().find(|(_, stored)| stored.file == self.file);
        match &self.name {
            Some(name) => name,
            None => stored().map_or_else(|| self.file.trim_end_matches(".json"), |(name, _)| name),
        }
    }
}

/// What a worker did with a file.
#[derive(Debug, Clone)]
pub enum DeclarationOutcome {
    /// Its content is in the topic.
    Applied(Arc<Declaration>),
    /// It is not applied yet, for this reason.
    Pending(String),
    /// It cannot be applied, for this reason; its connector stays as it was.
    Refused(String),
}

/// How a file and its connector compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Drift {
    /// The connector is as the file declares it.
    #[serde(rename = "in sync")]
    InSync,
    /// The connector was changed by other means since.
    #[serde(rename = "edited")]
    Edited,
    /// The connector was deleted since.
    #[serde(rename = "deleted")]
    Deleted,
    /// The connector exists, its file is gone.
    #[serde(rename = "file removed")]
    FileRemoved,
    /// The file cannot be used.
    #[serde(rename = "refused")]
    Refused,
    /// The file has not been applied yet.
    #[serde(rename = "pending")]
    Pending,
}

/// A declaration as REST shows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DeclarationInfo {
    /// Name of the connector.
    pub name: String,
    /// Name of the file.
    pub file: String,
    /// How the two compare.
    pub state: Drift,
    /// The reason, if there is more to say.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl Herder {
    /// Every connector that files declare or have declared, and how it compares with its file, as this worker sees them.
    ///
    /// # Errors
    /// The worker is starting.
    pub async fn declarations(&self) -> Result<Vec<DeclarationInfo>, Error> {
        self.ready().await?;
        let sightings = self.sightings();
        Ok(self.parts.state.configs.read(|configs| compare(sightings.as_deref(), configs)))
    }

    /// Replaces the files that this worker sees.
    pub fn set_sightings(&self, sightings: Vec<Sighting>) {
        self.sightings.send_replace(Some(sightings.into()));
    }

    /// The files this worker sees; `None` if it has none to scan. Cloned, so that its lock is never held together with a table's.
    fn sightings(&self) -> Option<Arc<[Sighting]>> {
        self.sightings.borrow().clone()
    }

    /// Whether the topic already has the content of this file, as far as this worker has read.
    pub fn has_declared(&self, declaration: &Declaration) -> bool {
        self.parts.state.configs.read(|configs| is_stored(declaration, configs))
    }

    /// Applies a file to its connector, unless that has been done. Returns whether anything was written.
    ///
    /// # Errors
    /// The configuration is invalid, or Kafka did not take the write.
    pub async fn declare(&self, declaration: &Declaration) -> Result<bool, Error> {
        let budget = TimeBudget::start();
        self.ready().await?;
        let ConnectorDocument { name, config, initial_state } = &declaration.document;
        let config = Arc::new(named(name, config.clone())?);
        self.check_config(&config, budget).await?;
        let decide = |configs: &Configs| {
            if is_stored(declaration, configs) {
                return Ok((false, Vec::new()));
            }
            let mut writes = Vec::new();
            let now = configs.connectors().get(name);
            // A connector that is as declared stays untouched: a new record would make concurrent edits stale and retry a failed
            // connector.
            if now.is_none_or(|now| now.config != config) {
                self.check_exclusive_settings(name, &config, configs)?;
                writes.push(configs::connector(name, Some(&config)));
            }
            if now.is_none() {
                writes.extend(initial_state.map(|state| configs::target_state(name, Some(state))));
            }
            let stored = configs::Declared { hash: declaration.hash.clone(), file: declaration.file.clone() };
            writes.push(configs::declared(name, Some(&stored)));
            Ok((true, writes))
        };
        Ok(self.parts.writers.configs.write(budget.left(), decide).await?)
    }

    /// Declared connectors that are gone together with their file.
    pub fn stale_declarations(&self) -> Vec<String> {
        let sightings = self.sightings();
        self.parts.state.configs.read(|configs| {
            let names = configs.declared().keys().filter(|name| !configs.connectors().contains_key(*name));
            names.filter(|name| has_lost_file(sightings.as_deref(), name, configs)).cloned().collect()
        })
    }

    /// Removes the record of a declaration, unless its connector exists again.
    ///
    /// # Errors
    /// Kafka did not take the write.
    pub async fn remove_declaration(&self, name: &str) -> Result<(), Error> {
        self.ready().await?;
        let decide = |configs: &Configs| {
            let is_over = configs.declared().contains_key(name) && !configs.connectors().contains_key(name);
            let writes = is_over.then(|| configs::declared(name, None));
            Ok::<_, Error>(((), writes.into_iter().collect()))
        };
        Ok(self.parts.writers.configs.write(TimeBudget::start().left(), decide).await?)
    }

    /// The records that delete a connector. If its file is gone, the declaration goes too; otherwise it keeps the file from
    /// recreating the connector.
    pub(super) fn deletion(&self, name: &str, configs: &Configs) -> Vec<Write> {
        let mut writes = configs.deletion(name);
        if has_lost_file(self.sightings().as_deref(), name, configs) {
            writes.push(configs::declared(name, None));
        }
        writes
    }
}

/// Whether a file has declared a connector, and this worker sees files but none that does. Without any file that is unknown: an empty
/// directory may be the mount point of a missing mount.
fn has_lost_file(sightings: Option<&[Sighting]>, name: &str, configs: &Configs) -> bool {
    let (Some(seen), Some(stored)) = (sightings, configs.declared().get(name)) else { return false };
    !seen.is_empty() && !seen.iter().any(|sighting| sighting.is_of(name, stored))
}

fn is_stored(declaration: &Declaration, configs: &Configs) -> bool {
    let stored = configs.declared().get(&declaration.document.name);
    stored.is_some_and(|stored| stored.hash == declaration.hash)
}

fn compare(sightings: Option<&[Sighting]>, configs: &Configs) -> Vec<DeclarationInfo> {
    let mut infos = BTreeMap::new();
    for sighting in sightings.unwrap_or_default() {
        let name = sighting.shown_name(configs);
        let connector = configs.connectors().get(name);
        let (state, message) = match &sighting.finding {
            DeclarationOutcome::Refused(reason) => (Drift::Refused, Some(reason.clone())),
            DeclarationOutcome::Pending(reason) => (Drift::Pending, Some(reason.clone())),
            DeclarationOutcome::Applied(declaration) => match connector {
                None => (Drift::Deleted, None),
                Some(connector) if *connector.config == declaration.document.config => (Drift::InSync, None),
                Some(_) if is_stored(declaration, configs) => (Drift::Edited, None),
                Some(_) => (Drift::Edited, Some(OTHER_FILE.to_owned())),
            },
        };
        let (name, file) = (name.to_owned(), sighting.file.clone());
        infos.insert((name.clone(), file.clone()), DeclarationInfo { name, file, state, message });
    }
    for (name, stored) in configs.declared() {
        if sightings.unwrap_or_default().iter().any(|sighting| sighting.is_of(name, stored)) {
            continue;
        }
        let state = match configs.connectors().get(name) {
            None => Drift::Deleted,
            Some(_) if sightings.is_some() => Drift::FileRemoved,
            // This worker scans no files, so it compares with the recorded hash.
            Some(connector) if is_unchanged(name, connector, &stored.hash) => Drift::InSync,
            Some(_) => Drift::Edited,
        };
        let (name, file) = (name.clone(), stored.file.clone());
        infos.insert((name.clone(), file.clone()), DeclarationInfo { name, file, state, message: None });
    }
    infos.into_values().collect()
}

const OTHER_FILE: &str = "another worker sees other content in this file and has applied it";

/// Whether a hash is that of this configuration. The initial state is part of the hash and stored nowhere else, so try each.
fn is_unchanged(name: &str, connector: &StoredConnector, hash: &str) -> bool {
    let states = [None, Some(TargetState::Running), Some(TargetState::Paused), Some(TargetState::Stopped)];
    states.into_iter().any(|initial_state| {
        let config = (*connector.config).clone();
        ConnectorDocument { name: name.to_owned(), config, initial_state }.hash() == hash
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{TableState, configs::Properties, samples};

    fn declaration(name: &str, value: &str) -> Declaration {
        let config = Properties::from([("k".to_owned(), value.to_owned())]);
        let document =
            ConnectorDocument { name: name.to_owned(), config, initial_state: Some(TargetState::Paused) };
        let document = document.named();
        Declaration { file: format!("{name}.json"), hash: document.hash(), document }
    }

    fn sighting(name: &str, finding: DeclarationOutcome) -> Sighting {
        Sighting { name: Some(name.to_owned()), file: format!("{name}.json"), finding }
    }

    fn applied(name: &str, value: &str) -> Sighting {
        sighting(name, DeclarationOutcome::Applied(Arc::new(declaration(name, value))))
    }

    /// A topic in which these files were applied, and these connectors were then edited or deleted.
    fn topic(files: &[(&str, &str)], edits: &[(&str, Option<&str>)]) -> Configs {
        let mut writes = Vec::new();
        for (name, value) in files {
            let Declaration { file, document, hash } = declaration(name, value);
            writes.push(configs::connector(name, Some(&document.config)));
            writes.push(configs::declared(name, Some(&configs::Declared { hash, file })));
        }
        for (name, value) in edits {
            let config = value.map(|value| declaration(name, value).document.config);
            writes.push(configs::connector(name, config.as_ref()));
        }
        let mut configs = Configs::default();
        for (offset, (key, value)) in (0..).zip(writes) {
            let value = value.map(|value| value.to_string());
            configs.apply(&samples::received(offset, &key, value.as_deref()));
        }
        configs
    }

    fn states(sightings: Option<&[Sighting]>, configs: &Configs) -> Vec<(String, Drift)> {
        compare(sightings, configs).into_iter().map(|info| (info.name, info.state)).collect()
    }

    fn named_states(expected: &[(&str, Drift)]) -> Vec<(String, Drift)> {
        expected.iter().map(|(name, state)| ((*name).to_owned(), *state)).collect()
    }

    #[test]
    fn every_drift_between_file_and_connector_is_shown() {
        let files = [("same", "1"), ("edited", "1"), ("deleted", "1"), ("orphan", "1"), ("both-gone", "1")];
        let configs = topic(&files, &[("edited", Some("2")), ("deleted", None), ("both-gone", None)]);
        let seen = [
            applied("same", "1"),
            applied("edited", "1"),
            applied("deleted", "1"),
            sighting("bad", DeclarationOutcome::Refused("why".to_owned())),
            sighting("new", DeclarationOutcome::Pending("not yet".to_owned())),
        ];

        let expected = [
            ("bad", Drift::Refused),
            ("both-gone", Drift::Deleted),
            ("deleted", Drift::Deleted),
            ("edited", Drift::Edited),
            ("new", Drift::Pending),
            ("orphan", Drift::FileRemoved),
            ("same", Drift::InSync),
        ];
        assert_eq!(states(Some(&seen), &configs), named_states(&expected));
    }

    #[test]
    fn worker_without_files_compares_with_the_recorded_hash() {
        let files = [("same", "1"), ("edited", "1"), ("deleted", "1")];
        let configs = topic(&files, &[("edited", Some("2")), ("deleted", None)]);

        let expected = [("deleted", Drift::Deleted), ("edited", Drift::Edited), ("same", Drift::InSync)];
        assert_eq!(states(None, &configs), named_states(&expected));
    }

    #[test]
    fn unreadable_file_is_shown_under_its_recorded_name() {
        let configs = topic(&[("a", "1")], &[]);
        let finding = || DeclarationOutcome::Refused("why".to_owned());
        let known = Sighting { name: None, file: "a.json".to_owned(), finding: finding() };
        let unknown = Sighting { name: None, file: "new.json".to_owned(), finding: finding() };

        let infos = states(Some(&[known, unknown]), &configs);

        assert_eq!(infos, named_states(&[("a", Drift::Refused), ("new", Drift::Refused)]));
    }

    #[test]
    fn renamed_connector_counts_as_file_removed() {
        let configs = topic(&[("old", "1"), ("new", "1")], &[]);
        let renamed = Sighting { file: "old.json".to_owned(), ..applied("new", "1") };

        let infos = states(Some(&[renamed]), &configs);

        assert_eq!(infos, named_states(&[("new", Drift::InSync), ("old", Drift::FileRemoved)]));
    }

    #[test]
    fn other_content_on_another_worker_is_shown_as_edited() {
        let configs = topic(&[("a", "2")], &[]);

        let infos = compare(Some(&[applied("a", "1")]), &configs);

        assert_eq!((infos[0].state, infos[0].message.as_deref()), (Drift::Edited, Some(OTHER_FILE)));
    }

    #[test]
    fn declaration_is_removed_only_if_other_files_are_seen() {
        let configs = topic(&[("a", "1")], &[]);
        let (own, other) = (applied("a", "1"), applied("other", "1"));
        let table = [
            (None, false),
            // Otherwise the file of a mount that comes back would recreate a deleted connector.
            (Some(vec![]), false),
            (Some(vec![other.clone()]), true),
            (Some(vec![other, own]), false),
        ];

        for (seen, is_lost) in table {
            assert_eq!(has_lost_file(seen.as_deref(), "a", &configs), is_lost, "{seen:?}");
        }
    }

    #[test]
    fn declaration_json_has_a_message_only_if_there_is_one() {
        let configs = topic(&[("a", "1")], &[]);

        let infos = serde_json::to_value(compare(Some(&[]), &configs)).unwrap();

        assert_eq!(infos, serde_json::json!([{"name": "a", "file": "a.json", "state": "file removed"}]));
    }
}
