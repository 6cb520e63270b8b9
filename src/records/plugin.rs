//! `RecordSource`: reads the record of each event by id, and reads whole lists in runs.
//!
//! This module defines the settings of the connector class, validates them, and generates the task configurations; [`task`] runs one.
//! Task `i` of `n` has the shards `s` with `s mod n = i`, so there are never more tasks than partitions. Beside its shards, each task
//! waits for the start of the stream (`stream`), logs whether it is verified, and reads no page before.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;
use tokio::sync::watch;

use super::stream::started;
use crate::{
    config::{
        self, KeyDef, Providers, Validation,
        connector::{Class, Common, definitions, keys, record::MAX_SHARDS},
    },
    plugin::{Depth, Failure, MOST_TASKS, Past, Plugin, Task, unusable},
    records::{fence::Fences, task},
    state::{configs::Properties, offsets::OffsetEdit},
};

/// The connector class `RecordSource`.
#[derive(Debug)]
pub struct RecordPlugin {
    /// Resolve references in settings, such as `${env:…}`.
    pub providers: Providers,
    /// The newest published version of each key, cached on this disk; shared by all tasks of this worker.
    pub fences: Fences,
}

impl RecordPlugin {
    fn parse(&self, name: &str, config: &Properties) -> Result<config::RecordSource, config::Problems> {
        config::RecordSource::parse(name, config, &self.providers).map(|(source, _)| source)
    }
}

#[async_trait]
impl Plugin for RecordPlugin {
    fn class(&self) -> &'static str {
        Class::RecordSource.name()
    }

    fn definitions(&self) -> Vec<KeyDef> {
        definitions(Class::RecordSource)
    }

    fn validate(&self, config: &Properties, depth: Depth) -> Validation {
        config::validate(self.class(), config, &depth.apply(&self.providers))
    }

    /// One task per configured partition, up to `tasks.max`. If the topics have fewer partitions, the last tasks have no shard; if they
    /// have more, tasks have several. Either way every shard has one task.
    fn task_configs(&self, name: &str, config: &Properties) -> Result<Vec<Properties>, Failure> {
        let source = self.parse(name, config).map_err(unusable)?;
        let most = shards(&source.common).unwrap_or(MOST_TASKS).min(MOST_TASKS);
        Ok((0..source.common.tasks_max.min(most)).map(|_| config.clone()).collect())
    }

    async fn run(&self, task: Task) -> Result<(), Failure> {
        let source = self.parse(&task.connector, &task.config).map_err(unusable)?;
        let tasks = self.task_configs(&task.connector, &task.config)?.len();
        let (tools, connector) = (task.tools.clone(), Arc::clone(&task.connector));
        let (prefix, limit) = (source.common.topic_prefix.clone(), source.snapshot.stream_start);
        let (sender, stream_started) = watch::channel(None);
        let report_stream = async move {
            let unverified = started(&tools, &prefix, limit).await;
            match &unverified {
                None => tracing::info!(%connector, "stream=verified: every subscription is active"),
                Some(why) => tracing::warn!(%connector, %why, "stream=unverified"),
            }
            // Pages wait for this: a change after an earlier page might not be delivered.
            sender.send_replace(Some(unverified.is_none()));
            std::future::pending::<()>().await;
        };
        let tasks = u32::try_from(tasks).unwrap_or(u32::MAX);
        tokio::select! {
            ended = task::run(task, source, tasks, stream_started, self.fences.clone()) => ended,
            () = report_stream => Ok(()),
        }
    }

    /// One transactional id per shard, named after the prefix and not after the connector, so the writers of a renamed connector are
    /// shut out too.
    fn transactional_ids(&self, name: &str, config: &Properties, past: &Past) -> Vec<String> {
        let Ok(source) = self.parse(name, config) else { return Vec::new() };
        // The topics may have more partitions than configured, or any number if the broker's default decides.
        let counted = past.partitions.iter().filter_map(|one| one.get("partition")?.as_u64());
        let counted = counted.filter_map(|one| u32::try_from(one + 1).ok()).max().unwrap_or(0);
        let most = MAX_SHARDS.unsigned_abs();
        let configured = shards(&source.common).unwrap_or(most);
        let (prefix, shards) = (&source.common.topic_prefix, configured.max(counted).min(most));
        (0..shards).map(|shard| task::transactional_id(prefix, shard)).collect()
    }

    fn check_offsets(&self, offsets: &[OffsetEdit]) -> Result<(), String> {
        const EXPECTED: &str = "expected partitions {\"topic\": text, \"partition\": number} with offsets {\"offset\": \
                                number}, as GET shows them";
        let number = |value: Option<&Value>| value.is_some_and(|value| value.as_u64().is_some());
        let sound = |(partition, offset): &OffsetEdit| {
            // Offsets that an earlier connector of another class left under this name may be removed in any form.
            let Some(offset) = offset else { return true };
            let named = partition.get("topic").is_some_and(Value::is_string);
            named
                && number(partition.get("partition"))
                && number(offset.get("offset"))
                && (partition.len(), offset.len()) == (2, 1)
        };
        if offsets.iter().all(sound) { Ok(()) } else { Err(EXPECTED.to_owned()) }
    }
}

/// The configured number of partitions; `None` if the broker's default decides.
fn shards(common: &Common) -> Option<u32> {
    let fallback = || keys::PARTITIONS.default_value().and_then(|text| text.parse().ok());
    u32::try_from(common.topic_creation.partitions.or_else(fallback)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::samples::{object, record_config};

    fn plugin() -> RecordPlugin {
        RecordPlugin { providers: Providers::new([]), fences: Fences::new("fence".into()) }
    }

    fn task_count(tasks_max: &str, partitions: Option<&str>) -> usize {
        let mut config = record_config();
        config.insert("tasks.max".into(), tasks_max.into());
        if let Some(partitions) = partitions {
            config.insert("topic.creation.default.partitions".into(), partitions.into());
        }
        plugin().task_configs("records", &config).unwrap().len()
    }

    #[test]
    fn tasks_are_bounded_by_tasks_max_and_partitions() {
        assert_eq!(task_count("4", None), 4);
        assert_eq!(task_count("40", None), 12);
        assert_eq!(task_count("40", Some("24")), 24);
        assert_eq!(task_count("40", Some("-1")), 40);
        assert_eq!(task_count("10000", Some("-1")), MOST_TASKS as usize);
        assert_eq!(task_count("10000", Some("256")), MOST_TASKS as usize);
    }

    #[test]
    fn every_shard_has_an_id_named_after_prefix_and_shard() {
        let mut config = record_config();
        config.insert("topic.creation.default.partitions".into(), "2".into());

        assert_eq!(
            plugin().transactional_ids("any", &config, &Past::default()),
            ["tributary-acme-shard-0", "tributary-acme-shard-1"]
        );
    }

    #[test]
    fn offsets_of_another_form_are_rejected() {
        let partition =
            object(&[("topic", "acme.accounting.customers.events".into()), ("partition", 3.into())]);
        let sound = object(&[("offset", 17.into())]);
        let table = [
            (partition.clone(), Some(sound.clone()), true),
            (partition.clone(), None, true),
            (object(&[("file", "a".into())]), None, true),
            (object(&[("topic", "a".into())]), Some(sound.clone()), false),
            (object(&[("topic", 1.into()), ("partition", 3.into())]), Some(sound), false),
            (partition.clone(), Some(object(&[("offset", "17".into())])), false),
            (partition, Some(object(&[("offset", (-1).into())])), false),
        ];

        for (partition, offset, taken) in table {
            let case = format!("{partition:?} {offset:?}");
            assert_eq!(plugin().check_offsets(&[(partition, offset)]).is_ok(), taken, "{case}");
        }
    }
}
