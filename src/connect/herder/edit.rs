//! Changes of connectors: create, configure, pause, resume, stop, restart, delete.

use std::{collections::BTreeMap, sync::Arc};

use super::{CLASS, ConnectorStatus, Error, Herder, Info, NAME, READ_LIMIT, TimeBudget};
use crate::{
    config::connector::TargetState,
    state::{
        configs::{self, Configs, Properties, StoredConnector, Write},
        statuses::RunState,
    },
};

/// Keys to set; keys with `None` are removed.
pub type Patch = BTreeMap<String, Option<String>>;

impl Herder {
    /// Creates a connector, in the given state if there is one.
    ///
    /// # Errors
    /// The configuration is invalid, the name is taken, or Kafka did not take the write.
    pub async fn create(
        &self,
        name: &str,
        config: Properties,
        initial: Option<TargetState>,
    ) -> Result<Info, Error> {
        let budget = TimeBudget::start();
        self.ready().await?;
        let name = name.trim();
        let config = Arc::new(named(name, config)?);
        self.check_config(&config, budget).await?;
        let decide = |configs: &Configs| {
            if configs.connectors().contains_key(name) {
                return Err(Error::AlreadyExists(name.to_owned()));
            }
            self.check_exclusive_settings(name, &config, configs)?;
            let target = initial.map(|state| configs::target_state(name, Some(state)));
            let writes = [configs::connector(name, Some(&config))].into_iter().chain(target);
            Ok(((), writes.collect()))
        };
        self.parts.writers.configs.write(budget.left(), decide).await?;
        Ok(self.info_of(name, &fresh(Arc::clone(&config))))
    }

    /// Creates a connector or replaces its configuration; its target state stays. Returns whether it was created.
    ///
    /// # Errors
    /// As [`Herder::create`], and [`Error::Stale`] if another edit came in between.
    pub async fn put_config(&self, name: &str, config: Properties) -> Result<(Info, bool), Error> {
        let budget = TimeBudget::start();
        let before = self.newest(name, budget).await?;
        let config = Arc::new(named(name, config)?);
        self.check_config(&config, budget).await?;
        self.replace(name, config, before, budget).await
    }

    /// Changes some keys of a configuration.
    ///
    /// # Errors
    /// As [`Herder::put_config`], and there may be no such connector.
    pub async fn patch_config(&self, name: &str, patch: Patch) -> Result<Info, Error> {
        let budget = TimeBudget::start();
        let before = self.newest(name, budget).await?.ok_or_else(|| Error::no_connector(name))?;
        let config = Arc::new(named(name, patched(&before.config, patch))?);
        self.check_config(&config, budget).await?;
        let (info, _) = self.replace(name, config, Some(before), budget).await?;
        Ok(info)
    }

    /// Removes a connector. Its offsets stay.
    ///
    /// # Errors
    /// There is none, or Kafka did not take the write.
    pub async fn delete(&self, name: &str) -> Result<(), Error> {
        let missing = || Error::no_connector(name);
        self.change(name, missing, |configs, _| Ok(((), self.deletion(name, configs)))).await
    }

    /// Pauses, resumes or stops a connector; repeating it changes nothing. Stopping removes its tasks.
    ///
    /// # Errors
    /// There is none, or Kafka did not take the write.
    pub async fn set_target(&self, name: &str, target: TargetState) -> Result<(), Error> {
        let missing = || Error::NotFound(format!("Unknown connector {name}"));
        self.change(name, missing, |_, connector| Ok(((), target_writes(name, connector, target)))).await
    }

    /// Restarts a connector, and its tasks if `tasks`. Returns its state, with the restarted instances shown as RESTARTING.
    ///
    /// # Errors
    /// There is none, or Kafka did not take the write.
    pub async fn restart(
        &self,
        name: &str,
        tasks: bool,
        only_failed: bool,
    ) -> Result<ConnectorStatus, Error> {
        let decide = |configs: &Configs, connector: &StoredConnector| {
            // Read before the write: afterwards the owner may already have acted on it.
            let status =
                self.parts.state.statuses.read(|statuses| self.status_of(name, configs, connector, statuses));
            let command = configs::restart(name, tasks, only_failed, None);
            Ok((restarting(status, tasks, only_failed), vec![command]))
        };
        self.change(name, || unknown(name), decide).await
    }

    /// Restarts one task.
    ///
    /// # Errors
    /// There is no such connector or task, or Kafka did not take the write.
    pub async fn restart_task(&self, name: &str, task: u32) -> Result<(), Error> {
        let decide = |_: &Configs, connector: &StoredConnector| {
            if usize::try_from(task).map_or(true, |task| task >= connector.tasks.len()) {
                return Err(Error::NotFound(format!("Unknown task: {name}-{task}")));
            }
            Ok(((), vec![configs::restart(name, false, false, Some(task))]))
        };
        self.change(name, || unknown(name), decide).await
    }

    /// Decides on a connector's newest state, and writes. `missing` is the error if there is no such connector.
    async fn change<T>(
        &self,
        name: &str,
        missing: impl Fn() -> Error + Send + Sync,
        decide: impl Fn(&Configs, &StoredConnector) -> Result<(T, Vec<Write>), Error> + Send + Sync,
    ) -> Result<T, Error> {
        self.ready().await?;
        let decide = move |configs: &Configs| {
            let connector = configs.connectors().get(name).ok_or_else(&missing)?;
            decide(configs, connector)
        };
        Ok(self.parts.writers.configs.write(TimeBudget::start().left(), decide).await?)
    }

    /// The connector as the config topic has it now, including what other workers have finished writing.
    pub(super) async fn newest(
        &self,
        name: &str,
        budget: TimeBudget,
    ) -> Result<Option<StoredConnector>, Error> {
        let _permit = self.limits.clients.permit(budget, "waiting to read the config topic").await?;
        self.ready().await?;
        let (configs, config_writer) = (&self.parts.state.configs, &self.parts.writers.configs);
        // Ending a hanging transaction may take as long again: half of the time left keeps some for the change itself.
        let limit = READ_LIMIT.min(budget.left() / 2);
        let read = config_writer.read_to_end(configs, limit).await;
        read.map_err(Error::kafka("read the config topic to its end"))?;
        Ok(self.known(name))
    }

    /// Replaces the configuration that was seen.
    async fn replace(
        &self,
        name: &str,
        config: Arc<Properties>,
        before: Option<StoredConnector>,
        budget: TimeBudget,
    ) -> Result<(Info, bool), Error> {
        let seen = before.as_ref().map(|connector| connector.revision);
        let decide = |configs: &Configs| {
            let now = configs.connectors().get(name);
            if now.map(|connector| connector.revision) != seen {
                return Err(Error::Stale);
            }
            self.check_exclusive_settings(name, &config, configs)?;
            let mut after = now.cloned().unwrap_or_else(|| fresh(Arc::clone(&config)));
            after.config = Arc::clone(&config);
            Ok((after, vec![configs::connector(name, Some(&config))]))
        };
        let after = self.parts.writers.configs.write(budget.left(), decide).await?;
        Ok((self.info_of(name, &after), before.is_none()))
    }
}

/// The error for restarts, in Kafka Connect's words.
fn unknown(name: &str) -> Error {
    Error::NotFound(format!("Unknown connector: {name}"))
}

/// The configuration with its name in it.
pub(super) fn named(name: &str, mut config: Properties) -> Result<Properties, Error> {
    match config.get(NAME) {
        Some(inner) if inner != name => {
            return Err(Error::BadRequest(format!(
                "Connector name configuration ({inner}) doesn't match connector name in the URL ({name})"
            )));
        }
        Some(_) => {}
        None => {
            config.insert(NAME.to_owned(), name.to_owned());
        }
    }
    let fault = if name.is_empty() {
        "name must not be empty"
    } else if name.chars().any(char::is_control) {
        "name must not contain control characters"
    } else if name.trim() != name {
        // Kafka Connect accepts it on PUT, which gives the user two connectors that look the same.
        "name must not begin or end with blanks"
    } else if matches!(name, "." | "..") {
        // Clients normalize them out of a path, so such a connector could not be reached again.
        "name must not be . or .., which clients remove from paths"
    } else {
        return Ok(config);
    };
    let class = config.get(CLASS).cloned().unwrap_or_default();
    Err(Error::Invalid { class, errors: vec![fault.to_owned()] })
}

fn patched(config: &Properties, patch: Patch) -> Properties {
    let mut config = config.clone();
    for (key, value) in patch {
        match value {
            Some(value) => config.insert(key, value),
            None => config.remove(&key),
        };
    }
    config
}

/// A connector that was just created.
fn fresh(config: Arc<Properties>) -> StoredConnector {
    StoredConnector {
        config,
        target: TargetState::Running,
        tasks: Arc::new([]),
        revision: 0,
        task_revision: 0,
    }
}

fn target_writes(name: &str, connector: &StoredConnector, target: TargetState) -> Vec<Write> {
    let mut writes = Vec::new();
    if connector.target != target {
        writes.push(configs::target_state(name, Some(target)));
    }
    // In the same transaction: no reader sees a stopped connector with tasks.
    if target == TargetState::Stopped && !connector.tasks.is_empty() {
        writes.extend(configs::tasks(name, &[]));
    }
    writes
}

fn restarting(mut status: ConnectorStatus, tasks: bool, only_failed: bool) -> ConnectorStatus {
    let (failed, restarting) = (RunState::Failed.word(), RunState::Restarting.word());
    let chosen = |state: &str| !only_failed || state == failed;
    if chosen(status.connector.state) {
        status.connector.state = restarting;
    }
    for task in status.tasks.iter_mut().filter(|task| tasks && chosen(task.state)) {
        task.state = restarting;
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        connect::herder::{ConnectorState, TaskState},
        plugin::samples::properties,
    };

    fn connector(target: TargetState, tasks: usize) -> StoredConnector {
        StoredConnector { target, tasks: vec![Arc::default(); tasks].into(), ..fresh(Arc::default()) }
    }

    fn status(connector: &'static str, tasks: &[&'static str]) -> ConnectorStatus {
        let worker_id = || "w:1".to_owned();
        let tasks =
            (0..).zip(tasks).map(|(id, state)| TaskState { id, state, worker_id: worker_id(), trace: None });
        ConnectorStatus {
            name: "a".to_owned(),
            connector: ConnectorState {
                state: connector,
                worker_id: worker_id(),
                trace: None,
                subscriptions: None,
                gaps: None,
            },
            tasks: tasks.collect(),
            kind: "source",
        }
    }

    #[test]
    fn name_is_added_to_the_configuration_or_must_match_it() {
        let put = named("a", properties(&[("k", "v")])).unwrap();
        let kept = named("a", properties(&[("name", "a")])).unwrap();
        let differs = named("a", properties(&[("name", "b")])).unwrap_err();

        assert_eq!(put, properties(&[("k", "v"), ("name", "a")]));
        assert_eq!(kept, properties(&[("name", "a")]));
        assert_eq!(differs.status(), 400);
        assert!(differs.to_string().contains("(b) doesn't match"), "{differs}");
    }

    #[test]
    fn unreadable_and_unreachable_names_are_refused() {
        for name in ["", "a\nb", "\u{0}", " a", "a\u{a0}", ".", ".."] {
            let error = named(name, Properties::new()).unwrap_err();

            assert!(matches!(error, Error::Invalid { .. }), "{name:?}: {error}");
        }
        for name in ["a b", "...", ".a", "ä/ö"] {
            assert!(named(name, Properties::new()).is_ok(), "{name:?}");
        }
    }

    #[test]
    fn patch_sets_and_removes_keys_and_keeps_the_rest() {
        let before = properties(&[("keep", " 1 "), ("change", "1"), ("remove", "1")]);
        let patch = [("change", Some("2")), ("remove", None), ("add", Some("")), ("absent", None)];
        let patch = patch.map(|(key, value)| (key.to_owned(), value.map(str::to_owned))).into();

        let after = patched(&before, patch);

        assert_eq!(after, properties(&[("add", ""), ("change", "2"), ("keep", " 1 ")]));
    }

    #[test]
    fn unchanged_target_writes_nothing_and_a_stop_removes_tasks() {
        let keys = |connector: &StoredConnector, target| -> Vec<String> {
            target_writes("a", connector, target).into_iter().map(|(key, _)| key).collect()
        };
        let (running, stopped) = (connector(TargetState::Running, 2), connector(TargetState::Stopped, 0));

        assert_eq!(keys(&running, TargetState::Running), Vec::<String>::new());
        assert_eq!(keys(&running, TargetState::Paused), ["target-state-a"]);
        assert_eq!(keys(&running, TargetState::Stopped), ["target-state-a", "commit-a"]);
        assert_eq!(keys(&stopped, TargetState::Stopped), Vec::<String>::new());
        assert_eq!(keys(&connector(TargetState::Stopped, 1), TargetState::Stopped), ["commit-a"]);
    }

    #[test]
    fn only_restarted_instances_are_shown_as_restarting() {
        let table = [
            ((false, false), ["RESTARTING", "FAILED", "RUNNING"]),
            ((true, false), ["RESTARTING", "RESTARTING", "RESTARTING"]),
            ((false, true), ["RUNNING", "FAILED", "RUNNING"]),
            ((true, true), ["RUNNING", "RESTARTING", "RUNNING"]),
        ];

        for ((tasks, only_failed), expected) in table {
            let shown = restarting(status("RUNNING", &["FAILED", "RUNNING"]), tasks, only_failed);

            let states = [shown.connector.state, shown.tasks[0].state, shown.tasks[1].state];
            assert_eq!(states, expected, "tasks {tasks}, only failed {only_failed}");
        }
    }
}
