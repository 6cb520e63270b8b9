//! `TestSource`: counts, fails and panics on request, to demonstrate the lifecycle of tasks.
//!
//! Each task writes the numbers from 0 as text to a topic, a few at a time, in one transaction with its source offset
//! `{"task": i}` → `{"count": n}`. A new instance takes the transactional id, which fences the one before it, reads the offsets to
//! their end, and continues from there.
//!
//! - Whatever is killed, frozen or restarted, a read-committed consumer sees 0, 1, 2 … from each task, without a gap or a
//!   duplicate. The only exception is a batch that a dying broker commits in one partition and not in the other.
//! - Numbers of one task are in one partition, in order, with the key `connector/task`.
//!
//! On failure: as the configuration requests, or as Kafka's error requires.

mod keys;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::{Map, Value};
use tokio::time::{Instant, MissedTickBehavior, interval};

use base::retry::Retry;
use kafka::{Admin, ShardProducer, TopicSpec};
use model::{Cleanup, EncodedRecord};

use self::keys::Settings;
use crate::{
    config::{KeyDef, Providers, Validation, connector, definition},
    plugin::{Depth, Failure, MOST_TASKS, Past, Plugin, Task, Tools, unusable},
    state::{configs::Properties, offsets::OffsetEdit},
};

const CLASS: &str = "TestSource";
/// Limit on the records of a transaction.
const LARGEST_BATCH: u64 = 1000;
/// Minimum time between two transactions.
const SHORTEST_PERIOD: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct TestSource {
    pub(super) providers: Providers,
    /// `group.id` of the worker.
    pub(super) group: String,
}

impl TestSource {
    fn transactional_id(&self, connector: &str, task: u32) -> String {
        format!("{}-{connector}-{task}", self.group)
    }
}

#[async_trait]
impl Plugin for TestSource {
    fn class(&self) -> &'static str {
        CLASS
    }

    fn definitions(&self) -> Vec<KeyDef> {
        definition::definitions(keys::all())
    }

    fn validate(&self, config: &Properties, depth: Depth) -> Validation {
        let class = connector::keys::CONNECTOR_CLASS.name;
        let mut config = config.clone();
        let submitted = config.entry(class.to_owned()).or_insert_with(|| CLASS.to_owned()).clone();
        let problems = keys::read("", &config, &depth.apply(&self.providers)).err().unwrap_or_default();
        let declared: Vec<_> = keys::all().collect();
        connector::answer(submitted, &declared, &config, &problems)
    }

    fn task_configs(&self, name: &str, config: &Properties) -> Result<Vec<Properties>, Failure> {
        let settings = keys::read(name, config, &self.providers).map_err(unusable)?;
        Ok((0..settings.tasks_max.min(MOST_TASKS)).map(|_| config.clone()).collect())
    }

    async fn run(&self, task: Task) -> Result<(), Failure> {
        let settings = keys::read(&task.connector, &task.config, &self.providers).map_err(unusable)?;
        let cancel = task.cancel.clone();
        let id = self.transactional_id(&task.connector, task.number);
        // Before the first write there is nothing to finish.
        match cancel.run_until_cancelled(Counter::start(&task, settings, id)).await {
            Some(counter) => {
                let counter = counter?;
                task.started();
                counter.count(task).await
            }
            None => Ok(()),
        }
    }

    /// Includes tasks of an earlier, larger set: a worker frozen since then may wake up and commit the offset of its last task.
    fn transactional_ids(&self, name: &str, config: &Properties, past: &Past) -> Vec<String> {
        let tasks = keys::read(name, config, &self.providers).map_or(0, |settings| settings.tasks_max);
        let counted = past.partitions.iter().filter_map(|partition| partition.get("task")?.as_u64());
        let counted = counted.filter_map(|task| u32::try_from(task).ok()?.checked_add(1)).max().unwrap_or(0);
        // No task ever had a number above the limit, whatever other programs wrote.
        let tasks = tasks.max(past.tasks).max(counted).min(MOST_TASKS);
        (0..tasks).map(|task| self.transactional_id(name, task)).collect()
    }

    fn check_offsets(&self, offsets: &[OffsetEdit]) -> Result<(), String> {
        let number = |members: &Map<String, Value>, name: &str| {
            members.len() == 1 && members.get(name).is_some_and(|value| value.as_u64().is_some())
        };
        let sound = |(partition, offset): &OffsetEdit| {
            let Some(offset) = offset else { return true };
            number(partition, "task") && number(offset, "count")
        };
        if offsets.iter().all(sound) {
            Ok(())
        } else {
            Err("expected partitions {\"task\": number} with offsets {\"count\": number}".to_owned())
        }
    }
}

/// A task that is ready to write.
struct Counter {
    settings: Settings,
    producer: ShardProducer,
    topic: Arc<str>,
    /// Partition of this task's numbers.
    partition: i32,
    /// The next number.
    next: u64,
    /// Numbers written by this instance.
    written: u64,
}

impl Counter {
    async fn start(task: &Task, settings: Settings, transactional_id: String) -> Result<Self, Failure> {
        let tools = &task.tools;
        let own = &tools.worker.topics;
        if [&own.config, &own.offset, &own.status, &own.work, &own.grant]
            .iter()
            .any(|topic| topic.name == settings.topic)
        {
            let message = format!("topic {} is the worker's own", settings.topic);
            return Err(Failure::permanent("InvalidConfiguration", message, "name another topic"));
        }
        let partitions = partitions(tools, &settings.topic).await?;
        let producer = tools
            .shards
            .take(transactional_id, Arc::clone(&task.permission.lease))
            .await
            .map_err(|error| Failure::kafka("take the task's transactional id", error))?;
        let mut counter = Self {
            topic: settings.topic.as_str().into(),
            settings,
            producer,
            partition: i32::try_from(task.number).unwrap_or_default() % partitions,
            next: 0,
            written: 0,
        };
        counter.find_place(task).await?;
        Ok(counter)
    }

    /// Resumes after the last committed transaction; called once no earlier instance can commit.
    async fn find_place(&mut self, task: &Task) -> Result<(), Failure> {
        let writes = [(Arc::clone(&self.topic), self.partition)];
        let stored = task.stored_offsets(&mut self.producer, &[source_partition(task)], &writes).await?;
        let count = stored.iter().flatten().find_map(|offset| offset.get("count")?.as_u64());
        self.next = count.unwrap_or(0);
        Ok(())
    }

    async fn count(mut self, task: Task) -> Result<(), Failure> {
        let mut paused = task.paused.clone();
        let recorder = &task.recorder;
        let rate = f64::from(self.settings.per_second);
        let mut ticks = interval(SHORTEST_PERIOD.max(Duration::from_secs_f64(1.0 / rate)));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut since = Instant::now();
        let mut written_since = 0;
        loop {
            if *paused.borrow_and_update() {
                if !task.wait_while_paused(&mut paused).await {
                    return Ok(());
                }
                (since, written_since) = (Instant::now(), 0);
            }
            tokio::select! {
                () = task.cancel.cancelled() => return Ok(()),
                Ok(()) = paused.changed() => continue,
                _ = ticks.tick() => {}
            }
            self.fail_on_request().inspect_err(|_| recorder.failed())?;
            let due = (since.elapsed().as_secs_f64() * rate) as u64;
            let size = due.saturating_sub(written_since).clamp(1, LARGEST_BATCH).min(self.left());
            let started = Instant::now();
            let batch = self.batch(&task, size);
            recorder.polled(size, started.elapsed());
            let started = Instant::now();
            // Not cancelled midway: a stop waits for the open transaction.
            match self.producer.commit(batch).await {
                Ok(_) => {
                    recorder.written(size);
                    recorder.committed(size, started.elapsed());
                    self.next += size;
                    self.written += size;
                    written_since += size;
                    task.uses_topic(&self.topic);
                }
                Err(failure) => {
                    recorder.dropped(size);
                    recorder.commit_failed();
                    if !matches!(failure, kafka::CommitError::Rebuilt { .. }) {
                        recorder.failed();
                        return Err(Failure::transaction("write a batch of numbers", failure));
                    }
                    recorder.erred();
                    self.find_place(&task).await?;
                    recorder.retried();
                }
            }
        }
    }

    fn fail_on_request(&self) -> Result<(), Failure> {
        if self.settings.panic_after.is_some_and(|after| self.written >= after) {
            panic!("the test source panics on request");
        }
        match self.settings.failure {
            Some((after, Retry::Never)) if self.written >= after => Err(Failure::permanent(
                "TestFailure",
                format!("the test source fails on request after {after} records"),
                "remove fail.after",
            )),
            Some((after, _)) if self.written >= after => {
                let message = format!("the test source fails for a while after {after} records");
                Err(Failure::retryable("TestFailure", message))
            }
            _ => Ok(()),
        }
    }

    /// Numbers left until it has to fail.
    fn left(&self) -> u64 {
        let limits = [self.settings.failure.map(|(after, _)| after), self.settings.panic_after];
        limits.iter().flatten().map(|after| after.saturating_sub(self.written)).min().unwrap_or(u64::MAX)
    }

    /// The next `size` numbers and the offset after them.
    fn batch(&self, task: &Task, size: u64) -> Vec<EncodedRecord> {
        let key = Bytes::from(format!("{}/{}", task.connector, task.number));
        let mut batch: Vec<EncodedRecord> = (self.next..self.next + size)
            .map(|number| {
                let value = Bytes::from(number.to_string());
                EncodedRecord::new(&self.topic, self.partition, key.clone(), Some(value))
            })
            .collect();
        let offset = Map::from_iter([("count".to_owned(), Value::from(self.next + size))]);
        batch.push(task.offset_record(&source_partition(task), &offset));
        batch
    }
}

/// The key of a task's offset.
fn source_partition(task: &Task) -> Map<String, Value> {
    Map::from_iter([("task".to_owned(), Value::from(task.number))])
}

/// Partitions of the topic; creates it if it is missing.
async fn partitions(tools: &Tools, topic: &str) -> Result<i32, Failure> {
    let admin = Admin::Real(tools.kafka.clone());
    let failed = |error| Failure::kafka(format!("find topic {topic}"), error);
    let mut counts = admin.partition_counts(&[topic]).await.map_err(failed)?;
    if !counts.contains_key(topic) {
        let spec = TopicSpec {
            name: topic.to_owned(),
            partitions: -1,
            may_grow: false,
            replication_factor: -1,
            cleanup: Cleanup::Delete,
            min_message_bytes: 0,
            configs: Default::default(),
        };
        admin.ensure(&[spec]).await.map_err(failed)?;
        counts = admin.partition_counts(&[topic]).await.map_err(failed)?;
    }
    let missing = || Failure::retryable("KafkaError", format!("topic {topic} does not exist yet"));
    counts.get(topic).copied().filter(|count| *count > 0).ok_or_else(missing)
}

#[cfg(test)]
mod tests;
