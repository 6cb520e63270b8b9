//! The body of a task's instance: runs the code of its class.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::FutureExt as _;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    InstanceId, SupervisorParts,
    instance_runner::{BodyContext, InstanceBody},
};
use crate::{
    connect::config_writer::ConfigWriter,
    plugin::{Failure, Plugin, Plugins, Recorder, Task, TaskPermission, TaskReports, WantedCheck},
    state::{
        Table,
        configs::{Configs, Properties},
        statuses::Statuses,
        writer::StatusWriter,
    },
};

/// How long reading the config topic to its end may take before the task restarts.
const WANTED_CHECK_LIMIT: Duration = Duration::from_secs(30);
/// How long a reported topic may take to be read back before it is reported again.
const TOPIC_RESEND_AFTER: Duration = Duration::from_secs(5);

/// The body of a task. `lease` says whether this worker certainly holds the partition under this claim.
pub(super) fn body(
    id: &InstanceId,
    generation: i64,
    parts: &SupervisorParts,
    recorder: &Recorder,
    lease: &kafka::Lease,
) -> InstanceBody {
    let (connector, number) = (Arc::clone(&id.connector), id.task.unwrap_or_default());
    let (plugins, tools, recorder) = (parts.plugins.clone(), parts.tools.clone(), recorder.clone());
    let uses_topic = uses_topic(id, &parts.statuses, &parts.state.statuses);
    let lease = Arc::clone(lease);
    let is_wanted = wanted_check(id, &parts.config_writer, &parts.state.configs);
    Arc::new(move |run: BodyContext| {
        let (plugins, tools, recorder) = (plugins.clone(), tools.clone(), recorder.clone());
        let (connector, uses_topic) = (Arc::clone(&connector), Arc::clone(&uses_topic));
        let (lease, is_wanted) = (Arc::clone(&lease), Arc::clone(&is_wanted));
        Box::pin(async move {
            let plugin = class(&plugins, &run.config)?;
            let cancelled = run.cancel.clone();
            let task = Task {
                connector,
                number,
                config: run.config,
                generation,
                cancel: run.cancel,
                paused: run.paused,
                tools,
                permission: TaskPermission {
                    // A cancelled instance that has not ended yet must not start anything.
                    lease: Arc::new(move || !cancelled.is_cancelled() && lease()),
                    is_wanted,
                },
                recorder,
                reports: TaskReports { startup: run.startup, pause_reached: run.pause_reached, uses_topic },
            };
            plugin.run(task).await
        })
    })
}

/// The class a configuration names.
pub(super) fn class(plugins: &Plugins, config: &Properties) -> Result<Arc<dyn Plugin>, Failure> {
    let named = config.get("connector.class").map_or("", String::as_str);
    plugins.find(named).map(Arc::clone).ok_or_else(|| {
        let message =
            format!("Failed to find any class that implements Connector and which name matches {named}");
        let remedy = "run a version of Tributary that has the class on every worker, or delete the connector";
        Failure::permanent("UnknownClass", message, remedy)
    })
}

/// Checks by the newest records whether the config topic has a task; a stopped connector has none.
fn wanted_check(id: &InstanceId, config_writer: &ConfigWriter, configs: &Table<Configs>) -> WantedCheck {
    let (id, config_writer, configs) = (id.clone(), config_writer.clone(), configs.clone());
    let number = usize::try_from(id.task.unwrap_or_default()).unwrap_or(usize::MAX);
    Arc::new(move || {
        let (name, config_writer, configs) =
            (Arc::clone(&id.connector), config_writer.clone(), configs.clone());
        let has_task = move |configs: &Configs| {
            configs.connectors().get(&*name).is_some_and(|one| number < one.tasks.len())
        };
        async move {
            config_writer.read_to_end(&configs, WANTED_CHECK_LIMIT).await?;
            Ok(configs.read(has_task))
        }
        .boxed()
    })
}

/// Reports the topics that a task writes to. Skips those the status topic shows already, so calling it after every batch is
/// cheap; after a reset it reports them again.
fn uses_topic(
    id: &InstanceId,
    writer: &StatusWriter,
    statuses: &Table<Statuses>,
) -> Arc<dyn Fn(&str) + Send + Sync> {
    let (id, writer, statuses) = (id.clone(), writer.clone(), statuses.clone());
    let sent: Mutex<BTreeMap<String, Instant>> = Mutex::default();
    Arc::new(move |topic| {
        if statuses.read(|statuses| statuses.topics(&id.connector).contains(&topic)) {
            return;
        }
        let mut sent = sent.lock();
        if sent.get(topic).is_some_and(|at| at.elapsed() < TOPIC_RESEND_AFTER) {
            return;
        }
        sent.insert(topic.to_owned(), Instant::now());
        writer.put_topic(&id.connector, id.task.unwrap_or_default(), topic);
    })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use kafka::{Producer, ProducerOptions, embedded::EmbeddedCluster};
    use model::EncodedRecord;

    use super::*;
    use crate::{
        config::connector::TargetState,
        plugin::samples::properties,
        state::configs::{self, Write},
    };

    #[tokio::test]
    async fn stop_that_this_worker_has_not_read_yet_counts() {
        let cluster = EmbeddedCluster::start(1).unwrap();
        cluster.create_topic("configs", 1).unwrap();
        let kafka = cluster.settings();
        let configs = Table::follow(&kafka, "configs", 1).await.unwrap();
        let writer = ConfigWriter::new(&kafka, configs.clone(), Vec::new());
        let checks = [0, 1].map(|task| {
            wanted_check(&InstanceId { connector: "c".into(), task: Some(task) }, &writer, &configs)
        });
        let other = Producer::new(&kafka, &ProducerOptions::default()).unwrap();
        let write = async |writes: Vec<Write>| {
            for (key, value) in writes {
                let value = value.map(|value| Bytes::from(value.to_string()));
                other.send(EncodedRecord::new(configs.topic(), 0, key, value)).unwrap().await.unwrap();
            }
        };
        let config = properties(&[("connector.class", "TestSource")]);
        write(vec![configs::connector("c", Some(&config))]).await;
        write(configs::tasks("c", &[config])).await;

        for (target, expected) in [(TargetState::Running, true), (TargetState::Stopped, false)].repeat(5) {
            write(vec![configs::target_state("c", Some(target))]).await;

            assert_eq!(checks[0]().await.unwrap(), expected, "{target:?}");
            assert!(!checks[1]().await.unwrap(), "the connector has one task");
        }
    }
}
