//! The body of a task's instance: runs the code of its class.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    InstanceId, SupervisorParts,
    instance_runner::{BodyContext, InstanceBody},
};
use crate::{
    plugin::{Failure, Plugin, Plugins, Recorder, Task, TaskReports},
    state::{Table, configs::Properties, statuses::Statuses, writer::StatusWriter},
};

/// How long a reported topic may take to be read back before it is reported again.
const TOPIC_RESEND_AFTER: Duration = Duration::from_secs(5);

/// The body of a task. `may_act` says whether this worker certainly holds the partition under this claim.
pub(super) fn body(
    id: &InstanceId,
    generation: i64,
    parts: &SupervisorParts,
    recorder: &Recorder,
    may_act: &kafka::Lease,
) -> InstanceBody {
    let (connector, number) = (Arc::clone(&id.connector), id.task.unwrap_or_default());
    let (plugins, tools, recorder) = (parts.plugins.clone(), parts.tools.clone(), recorder.clone());
    let uses_topic = uses_topic(id, &parts.statuses, &parts.state.statuses);
    let may_act = Arc::clone(may_act);
    Arc::new(move |run: BodyContext| {
        let (plugins, tools, recorder) = (plugins.clone(), tools.clone(), recorder.clone());
        let (connector, uses_topic) = (Arc::clone(&connector), Arc::clone(&uses_topic));
        let may_act = Arc::clone(&may_act);
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
                // A cancelled instance that has not ended yet must not start anything.
                lease: Arc::new(move || !cancelled.is_cancelled() && may_act()),
                recorder,
                reports: TaskReports { startup: run.startup, rest: run.rest, uses_topic },
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
