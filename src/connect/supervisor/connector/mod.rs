//! The body of a connector's instance: keeps the task configurations in the config topic up to date.
//!
//! - RUNNING: the class divides the configuration into tasks. If the topic has others, they are written through the config
//!   writer, all of them or none.
//! - PAUSED: the tasks stay as they are. As in Kafka Connect, a connector that is created PAUSED has none until it is resumed.
//! - STOPPED: it has no tasks; the request that stops it removes them.
//!
//! Only the owner of the connector's partition writes, and only for the configuration it has divided: the next run handles an
//! edit that came in between.

use std::{collections::BTreeMap, convert::Infallible, sync::Arc, time::Duration};

use tokio::{sync::Semaphore, time::timeout};

use super::{
    InstanceId,
    instance_runner::{BodyContext, InstanceBody},
    task, trace,
};
use crate::{
    config::connector::{TargetState, keys},
    connect::config_writer::{self, ConfigWriter},
    plugin::{Depth, Failure, MOST_TASKS, Plugin, Plugins},
    state::{
        Table,
        configs::{self, Configs, Properties, Write},
    },
};

/// How long one write may take.
const WRITE_LIMIT: Duration = Duration::from_secs(30);
/// How long dividing a configuration may take: references may be files on a mount that hangs.
const DIVIDE_LIMIT: Duration = Duration::from_secs(20);

/// A lock for each connector, so that its task configurations are derived by one thread at a time: a thread that hangs cannot be
/// ended, and each start would add another one.
#[derive(Debug, Default)]
pub(super) struct TaskConfigLocks {
    running: BTreeMap<Arc<str>, Arc<Semaphore>>,
}

impl TaskConfigLocks {
    /// The lock of a connector.
    pub(super) fn of(&mut self, connector: &Arc<str>) -> Arc<Semaphore> {
        // Drop locks without a holder: no thread works under them.
        self.running.retain(|_, lock| Arc::strong_count(lock) > 1);
        let lock = self.running.entry(Arc::clone(connector)).or_insert_with(|| Arc::new(Semaphore::new(1)));
        Arc::clone(lock)
    }
}

/// The body of a connector. `lease` says whether this worker certainly holds the partition.
pub(super) fn body(
    id: &InstanceId,
    plugins: &Plugins,
    config_writer: &ConfigWriter,
    configs: &Table<Configs>,
    lease: &kafka::Lease,
    lock: Arc<Semaphore>,
) -> InstanceBody {
    let owner = TaskConfigWriter {
        name: Arc::clone(&id.connector),
        plugins: plugins.clone(),
        config_writer: config_writer.clone(),
        configs: configs.clone(),
        lease: Arc::clone(lease),
        lock,
        limit: DIVIDE_LIMIT,
    };
    Arc::new(move |run: BodyContext| Box::pin(owner.clone().run(run)))
}

#[derive(Clone)]
struct TaskConfigWriter {
    name: Arc<str>,
    plugins: Plugins,
    config_writer: ConfigWriter,
    configs: Table<Configs>,
    lease: kafka::Lease,
    /// Held while a thread derives the task configurations of this connector.
    lock: Arc<Semaphore>,
    /// How long that may take.
    limit: Duration,
}

impl TaskConfigWriter {
    async fn run(self, mut run: BodyContext) -> Result<(), Failure> {
        let mut changes = self.configs.changes();
        let mut divided: Option<Vec<Properties>> = None;
        loop {
            changes.borrow_and_update();
            let target = *run.target.borrow_and_update();
            // A stopped connector is not checked: its configuration may stay wrong.
            if target != TargetState::Stopped {
                let tasks = match divided.take() {
                    Some(tasks) => tasks,
                    None => match run.cancel.run_until_cancelled(self.divide(&run.config)).await {
                        Some(divided) => divided?,
                        None => return Ok(()),
                    },
                };
                let tasks = divided.insert(tasks);
                if target == TargetState::Running
                    && self.configs.read(|configs| differs(configs, &self.name, &run.config, tasks))
                {
                    let writing = self.write(&run.config, tasks);
                    // A write that is abandoned is in the topic or not; the next run compares.
                    match run.cancel.run_until_cancelled(writing).await {
                        Some(written) => written?,
                        None => return Ok(()),
                    }
                }
            }
            run.startup.notify_one();
            tokio::select! {
                () = run.cancel.cancelled() => return Ok(()),
                // Both senders outlive this loop.
                _ = run.target.changed() => {}
                _ = changes.changed() => {}
            }
        }
    }

    /// Checks the configuration and divides it into tasks, outside the runtime's threads: references may be files.
    async fn divide(&self, config: &Arc<Properties>) -> Result<Vec<Properties>, Failure> {
        let plugin = task::class(&self.plugins, config)?;
        timeout(self.limit, self.divide_by(plugin, config)).await.unwrap_or_else(|_| {
            let message = format!(
                "the configuration was not checked within {} s; a file it refers to may be on a mount that hangs",
                self.limit.as_secs()
            );
            Err(Failure::retryable("TimedOut", message))
        })
    }

    async fn divide_by(
        &self,
        plugin: Arc<dyn Plugin>,
        config: &Arc<Properties>,
    ) -> Result<Vec<Properties>, Failure> {
        let (name, config) = (Arc::clone(&self.name), Arc::clone(config));
        let ending = || Failure::retryable("Aborted", "the worker is ending");
        // The semaphore is never closed.
        let permit = Arc::clone(&self.lock).acquire_owned().await.map_err(|_| ending())?;
        let divide = move || {
            let _permit = permit;
            let answer = plugin.validate(&config, Depth::Full);
            if answer.error_count > 0 {
                let errors: Vec<&str> =
                    answer.configs.iter().flat_map(|entry| &entry.value.errors).map(String::as_str).collect();
                let message = format!("the configuration cannot be used: {}", errors.join(", "));
                let remedy = "correct the configuration";
                return Err(Failure::permanent("InvalidConfiguration", message, remedy));
            }
            let tasks = plugin.task_configs(&name, &config)?;
            check_count(&tasks, &config)?;
            Ok(tasks)
        };
        match tokio::task::spawn_blocking(divide).await {
            Ok(divided) => divided,
            Err(error) => Err(match error.try_into_panic() {
                Ok(payload) => trace::panicked(&*payload),
                Err(_) => ending(),
            }),
        }
    }

    async fn write(&self, config: &Properties, tasks: &[Properties]) -> Result<(), Failure> {
        let decide = |configs: &Configs| -> Result<((), Vec<Write>), Infallible> {
            let due = (self.lease)() && differs(configs, &self.name, config, tasks);
            Ok(((), if due { configs::tasks(&self.name, tasks) } else { Vec::new() }))
        };
        let action = "write the task configurations";
        match self.config_writer.write(WRITE_LIMIT, decide).await {
            Ok(()) => Ok(()),
            Err(config_writer::Error::Kafka(source)) => Err(Failure::kafka(action, source)),
            Err(error) => Err(Failure::retryable("Conflict", format!("{action}: {error}"))),
        }
    }
}

/// Whether the topic has other tasks than these for this configuration. False if the connector was edited, stopped or deleted.
fn differs(configs: &Configs, name: &str, config: &Properties, tasks: &[Properties]) -> bool {
    configs.connectors().get(name).is_some_and(|current| {
        let same = current.tasks.iter().map(|task| &**task).eq(tasks) && !configs.is_half_written(name);
        *current.config == *config && current.target == TargetState::Running && !same
    })
}

/// Enforces `tasks.max` and the limit of a worker.
fn check_count(tasks: &[Properties], config: &Properties) -> Result<(), Failure> {
    if tasks.len() > MOST_TASKS as usize {
        let message = format!("the class returned {} tasks; the limit is {MOST_TASKS}", tasks.len());
        return Err(Failure::permanent("TooManyTasks", message, "lower tasks.max, and report the bug"));
    }
    let written = config.get(keys::TASKS_MAX.name).map(String::as_str).or(keys::TASKS_MAX.default_value());
    // The class checks a value that is not a number, such as a reference.
    match written.and_then(|text| text.trim().parse::<usize>().ok()) {
        Some(most) if tasks.len() > most => Err(Failure::permanent(
            "TooManyTasks",
            format!("the class returned {} tasks; tasks.max allows {most}", tasks.len()),
            "raise tasks.max, and report the bug",
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
