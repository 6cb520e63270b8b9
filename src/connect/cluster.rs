//! Which workers a set of topics belongs to: the workers of one group on one work topic, and no others.
//!
//! The first worker that starts writes the group and the work topic into the config topic as the cluster's record, through the
//! config writer. Every later worker has to agree with that record: two groups on the same topics would run everything twice, and
//! neither would notice.
//!
//! A foreign config topic is refused before anything is created or written. Foreign is
//!
//! - a topic whose record names another group or another work topic;
//! - a topic without a record in which Kafka Connect itself has written;
//! - a topic without a record that has connectors of classes this worker does not have. With a record, such a connector is one of
//!   a newer version: it fails, and every worker still starts.
//!
//! Connectors and tasks are placed by the partition count in the record, even if the work topic has grown. A work topic with fewer
//! partitions is refused, since some of them would have no owner.
//!
//! With `--adopt` a worker rewrites another record instead of refusing it: for a group or work topic that is renamed while every
//! worker is stopped.

use std::time::Duration;

use super::config_writer::ConfigWriter;
use crate::{
    config,
    plugin::Plugins,
    state::{
        Table,
        configs::{self, Cluster, Configs, Write},
    },
};

/// How long writing the record may take; after that the start is retried.
const WRITE_LIMIT: Duration = Duration::from_secs(20);
/// Foreign connectors named in an error.
const MAX_NAMED: usize = 5;

/// How the topics and this worker do not fit each other.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterMismatch {
    /// They belong to other workers.
    #[error(
        "{topic} belongs to the workers of group.id={theirs} on work.storage.topic={their_work}, and this one has \
         group.id={ours} on work.storage.topic={our_work}; a set of topics has one group: correct these two, or set \
         config.storage.topic, offset.storage.topic, status.storage.topic and grant.storage.topic to topics of its own; if the \
         group was renamed, stop every worker and start one with --adopt"
    )]
    Group {
        /// The config topic.
        topic: String,
        /// The group it belongs to.
        theirs: String,
        /// Their work topic.
        their_work: String,
        /// This worker's group.
        ours: String,
        /// This worker's work topic.
        our_work: String,
    },
    /// They hold connectors that this worker cannot run.
    #[error(
        "{topic} holds connectors of classes this worker does not have ({classes}); it belongs to another Connect cluster: \
         set config.storage.topic, offset.storage.topic and status.storage.topic to topics of its own"
    )]
    Classes {
        /// The config topic.
        topic: String,
        /// Connectors and their classes.
        classes: String,
    },
    /// Kafka Connect uses them.
    #[error(
        "{topic} holds the record {key}, which only Kafka Connect writes; it belongs to a Connect cluster: set \
         config.storage.topic, offset.storage.topic and status.storage.topic to topics of its own"
    )]
    Connect {
        /// The config topic.
        topic: String,
        /// The record.
        key: String,
    },
    /// The work topic was recreated with fewer partitions.
    #[error(
        "{topic} has {found} partitions and must have at least {recorded}, on which connectors and tasks are placed: give it \
         as many (kafka-topics.sh --alter --topic {topic} --partitions {recorded}), or stop every worker and start one with \
         --adopt"
    )]
    Shrunk {
        /// The work topic.
        topic: String,
        /// Partitions it has.
        found: u32,
        /// Partitions in the cluster's record.
        recorded: u32,
    },
    /// The topics were adopted while this worker was running.
    #[error(
        "connectors and tasks are placed on {recorded} partitions of {topic} from now on, and this worker places them on \
         {ours}: the topics were adopted while it was running; restart it"
    )]
    Replaced {
        /// The work topic.
        topic: String,
        /// Partitions in the record now.
        recorded: u32,
        /// Partitions in the record when this worker started.
        ours: u32,
    },
}

/// Why a worker cannot use its topics.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// They do not fit this worker.
    #[error(transparent)]
    Mismatch(#[from] ClusterMismatch),
    /// Kafka did not take the record.
    #[error("write the cluster's record to the config topic")]
    Kafka(#[source] kafka::Error),
}

/// The check that topics belong to this worker's cluster.
#[derive(Debug, Clone, Copy)]
pub struct ClusterCheck<'a> {
    /// Its configuration.
    pub worker: &'a config::Worker,
    /// Its classes.
    pub plugins: &'a Plugins,
    /// Whether to rewrite a record of another group (`--adopt`).
    pub adopt: bool,
}

impl ClusterCheck<'_> {
    /// Refuses a config topic of another cluster. `work_partitions`: the work topic's partitions, if it exists.
    ///
    /// # Errors
    /// The topic belongs to another cluster, or the work topic has too few partitions.
    pub fn verify(&self, configs: &Configs, work_partitions: Option<u32>) -> Result<(), ClusterMismatch> {
        let topic = || self.worker.topics.config.name.clone();
        let Some(recorded) = configs.cluster() else {
            if let Some(key) = configs.connect_key() {
                return Err(ClusterMismatch::Connect { topic: topic(), key: key.to_owned() });
            }
            let foreign = configs.foreign_classes(|class| self.plugins.find(class).is_some());
            if foreign.is_empty() {
                return Ok(());
            }
            let named = foreign.iter().take(MAX_NAMED).map(|(name, class)| format!("{name}: {class}"));
            let classes = named.collect::<Vec<_>>().join(", ");
            return Err(ClusterMismatch::Classes { topic: topic(), classes });
        };
        if self.adopt {
            return Ok(());
        }
        self.agree(recorded)?;
        match work_partitions {
            Some(found) if found < recorded.work_partitions => Err(ClusterMismatch::Shrunk {
                topic: recorded.work_topic.clone(),
                found,
                recorded: recorded.work_partitions,
            }),
            _ => Ok(()),
        }
    }

    /// Returns the record that this worker agrees with; writes it if it is missing or is to be adopted.
    ///
    /// # Errors
    /// The topics belong to another cluster, or Kafka does not take the record.
    pub async fn ensure_record(
        &self,
        config_writer: &ConfigWriter,
        configs: &Table<Configs>,
        work_partitions: u32,
    ) -> Result<Cluster, Error> {
        let decide = |configs: &Configs| self.decide(configs, work_partitions);
        let (cluster, writes) = configs.read(decide)?;
        if writes.is_empty() {
            return Ok(cluster);
        }
        let cluster = config_writer.write(WRITE_LIMIT, decide).await.map_err(|error| {
            match error.passing(WRITE_LIMIT) {
                Ok(source) => Error::Kafka(source),
                Err(mismatch) => Error::Mismatch(mismatch),
            }
        })?;
        let Cluster { group, work_topic, work_partitions } = &cluster;
        tracing::info!(
            group,
            work_topic,
            work_partitions,
            "wrote the cluster's record; the topics belong to this group from now on"
        );
        Ok(cluster)
    }

    /// Waits until the record differs from the one at the start: the topics were adopted.
    pub async fn until_mismatch(&self, at_start: &Cluster, configs: &Table<Configs>) -> ClusterMismatch {
        let mut changes = configs.changes();
        loop {
            changes.borrow_and_update();
            if let Err(mismatch) = configs.read(|configs| self.keeps(at_start, configs)) {
                return mismatch;
            }
            if changes.changed().await.is_err() {
                // The table lives as long as this worker.
                std::future::pending::<()>().await;
            }
        }
    }

    fn keeps(&self, at_start: &Cluster, configs: &Configs) -> Result<(), ClusterMismatch> {
        // A topic without the record was emptied, which does not mean that another cluster uses it.
        let Some(recorded) = configs.cluster() else { return Ok(()) };
        self.agree(recorded)?;
        // With two counts, instances would run twice or nowhere.
        if recorded.work_partitions == at_start.work_partitions {
            return Ok(());
        }
        Err(ClusterMismatch::Replaced {
            topic: recorded.work_topic.clone(),
            recorded: recorded.work_partitions,
            ours: at_start.work_partitions,
        })
    }

    fn decide(
        &self,
        configs: &Configs,
        work_partitions: u32,
    ) -> Result<(Cluster, Vec<Write>), ClusterMismatch> {
        self.verify(configs, Some(work_partitions))?;
        let own = Cluster {
            group: self.worker.group.id.clone(),
            work_topic: self.worker.topics.work.name.clone(),
            work_partitions,
        };
        match configs.cluster() {
            Some(recorded) if self.agree(recorded).is_ok() && recorded.work_partitions <= work_partitions => {
                Ok((recorded.clone(), Vec::new()))
            }
            _ => {
                let record = configs::cluster(&own);
                Ok((own, vec![record]))
            }
        }
    }

    fn agree(&self, recorded: &Cluster) -> Result<(), ClusterMismatch> {
        let (group, work) = (&self.worker.group.id, &self.worker.topics.work.name);
        if (&recorded.group, &recorded.work_topic) == (group, work) {
            return Ok(());
        }
        Err(ClusterMismatch::Group {
            topic: self.worker.topics.config.name.clone(),
            theirs: recorded.group.clone(),
            their_work: recorded.work_topic.clone(),
            ours: group.clone(),
            our_work: work.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        plugin::samples,
        state::{TableState as _, samples::received},
    };

    fn configs(records: &[(&str, &str)]) -> Configs {
        let mut configs = Configs::default();
        for (offset, (key, value)) in (0..).zip(records) {
            configs.apply(&received(offset, key, Some(value)));
        }
        configs
    }

    fn record(group: &str, work: &str, partitions: u32) -> String {
        let cluster =
            Cluster { group: group.to_owned(), work_topic: work.to_owned(), work_partitions: partitions };
        configs::cluster(&cluster).1.unwrap().to_string()
    }

    /// Name, records, partitions of the work topic; part of the refusal, or the partition count to place by.
    type Case<'a> = (&'a str, &'a [(&'a str, &'a str)], u32, Option<&'a str>, Option<u32>);

    #[test]
    fn record_decides_the_owner_of_topics_and_the_partition_count() {
        let worker = samples::worker();
        let plugins = Plugins::of(&worker, false);
        let (group, work) = (&*worker.group.id, &*worker.topics.work.name);
        let ours = record(group, work, 8);
        let theirs = r#"{"properties":{"connector.class":"org.example.Theirs"}}"#;
        let table: [Case<'_>; 11] = [
            ("a new topic is ours from now on", &[], 8, None, Some(8)),
            ("our own", &[("tributary-cluster", &ours)], 8, None, Some(8)),
            ("a grown work topic changes nothing", &[("tributary-cluster", &ours)], 12, None, Some(8)),
            ("a smaller one", &[("tributary-cluster", &ours)], 7, Some("at least 8"), None),
            ("another group", &[("tributary-cluster", &record("x", work, 8))], 8, Some("--adopt"), None),
            (
                "another work topic",
                &[("tributary-cluster", &record(group, "x", 8))],
                8,
                Some("--adopt"),
                None,
            ),
            ("Kafka Connect's", &[("session-key", "{}")], 8, Some("only Kafka Connect"), None),
            ("Kafka Connect's too", &[("tasks-fencing-a", "{}")], 8, Some("only Kafka Connect"), None),
            (
                "an unknown class without a record",
                &[("connector-c", theirs)],
                8,
                Some("c: org.example.Theirs"),
                None,
            ),
            (
                "an unknown class of a newer version of ours",
                &[("connector-c", theirs), ("tributary-cluster", &ours)],
                8,
                None,
                Some(8),
            ),
            ("ours, after all", &[("session-key", "{}"), ("tributary-cluster", &ours)], 8, None, Some(8)),
        ];

        for (case, records, found, refusal, placed) in table {
            let check = ClusterCheck { worker: &worker, plugins: &plugins, adopt: false };
            let decided = check.decide(&configs(records), found);

            let refused = decided.as_ref().err().map(ToString::to_string);
            assert_eq!(refused.is_some(), refusal.is_some(), "{case}: {refused:?}");
            assert!(refused.unwrap_or_default().contains(refusal.unwrap_or_default()), "{case}: {decided:?}");
            let count = decided.as_ref().ok().map(|(cluster, _)| cluster.work_partitions);
            assert_eq!(count, placed, "{case}");
        }
    }

    #[test]
    fn adopt_rewrites_a_record_but_no_topic_of_kafka_connect() {
        let worker = samples::worker();
        let plugins = Plugins::of(&worker, false);
        let check = ClusterCheck { worker: &worker, plugins: &plugins, adopt: true };
        let (group, work) = (&*worker.group.id, &*worker.topics.work.name);
        let decide = |record: &str| check.decide(&configs(&[("tributary-cluster", record)]), 4).unwrap();

        let (other, writes) = decide(&record("x", "y", 8));
        let (shrunk, rewrites) = decide(&record(group, work, 8));
        let (same, nothing) = decide(&record(group, work, 4));

        assert_eq!((&*other.group, &*other.work_topic, other.work_partitions), (group, work, 4));
        assert_eq!((writes.len(), rewrites.len(), nothing.len()), (1, 1, 0));
        assert_eq!((shrunk.work_partitions, same.work_partitions), (4, 4));
        assert!(check.decide(&configs(&[("session-key", "{}")]), 4).is_err());
    }

    #[test]
    fn running_worker_notices_adopted_topics() {
        let worker = samples::worker();
        let plugins = Plugins::of(&worker, false);
        let check = ClusterCheck { worker: &worker, plugins: &plugins, adopt: false };
        let (group, work) = (&*worker.group.id, &*worker.topics.work.name);
        let at_start = Cluster { group: group.to_owned(), work_topic: work.to_owned(), work_partitions: 8 };
        let keeps = |record: &str| check.keeps(&at_start, &configs(&[("tributary-cluster", record)]));

        let fewer = keeps(&record(group, work, 4)).unwrap_err();

        assert!(fewer.to_string().contains("4 partitions") && fewer.to_string().contains("on 8"), "{fewer}");
        assert!(keeps(&record("x", work, 8)).is_err());
        assert!(keeps(&record(group, work, 8)).is_ok());
        assert!(check.keeps(&at_start, &Configs::default()).is_ok(), "an emptied topic has no owner");
    }
}
