//! The worker's own topics: created if they are missing, refused if they cannot keep what they must.
//!
//! All five are compacted and nothing else: with `delete` among the policies the broker would drop connectors, offsets and grants
//! as they get old. Edits of connectors have one order, so the config topic has one partition. The other configured counts apply
//! only to new topics; an existing topic keeps its count, as in Kafka Connect.
//!
//! On failure: if an existing topic does not fit, nothing is created or changed, and the error says for each topic what is wrong
//! and the command that repairs it.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use kafka::{Admin, Error, TopicSpec};

use crate::config::worker::{InternalTopic, InternalTopics};

/// Actual partition counts of the worker's topics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Partitions {
    /// Of the config topic: always 1.
    pub config: i32,
    /// Of the offset topic.
    pub offset: i32,
    /// Of the status topic.
    pub status: i32,
    /// Of the work topic.
    pub work: i32,
    /// Of the grant topic.
    pub grant: i32,
}

/// Ensures that all five exist and have the required settings.
///
/// # Errors
/// The broker does not answer or refuses, or topics do not fit: [`Error::Topics`] has all of them.
pub async fn ensure(admin: &Admin, topics: &InternalTopics) -> Result<Partitions, Error> {
    let specs = specs(admin, topics);
    admin.ensure(&specs).await.map_err(|error| explained(error, topics))?;
    counts(admin, topics).await
}

/// Checks the existing topics without changing anything, and returns the names of the missing ones.
///
/// # Errors
/// As [`ensure`].
pub async fn inspect(admin: &Admin, topics: &InternalTopics) -> Result<Vec<String>, Error> {
    let specs = specs(admin, topics);
    admin.inspect(&specs).await.map_err(|error| explained(error, topics))
}

/// Partitions of a new topic in the in-process cluster, which has no default, if the broker should choose.
const EMBEDDED_PARTITIONS: i32 = 1;

/// How long to wait until all brokers know a new topic.
const KNOWN_LIMIT: Duration = Duration::from_secs(10);
/// Pause between two checks.
const KNOWN_PAUSE: Duration = Duration::from_millis(100);

fn all(topics: &InternalTopics) -> [&InternalTopic; 5] {
    let InternalTopics { config, offset, status, work, grant } = topics;
    [config, offset, status, work, grant]
}

fn specs(admin: &Admin, topics: &InternalTopics) -> Vec<TopicSpec> {
    let spec = |topic: &InternalTopic| {
        let mut spec = TopicSpec::from(topic);
        if topic.name == topics.config.name {
            spec.partitions = 1;
            spec.may_grow = false;
        } else if matches!(admin, Admin::Embedded(_)) && spec.partitions < 1 {
            spec.partitions = EMBEDDED_PARTITIONS;
        }
        spec
    };
    all(topics).into_iter().map(spec).collect()
}

/// Asks until all are known: the broker that answers may not know yet what another one has just created.
async fn counts(admin: &Admin, topics: &InternalTopics) -> Result<Partitions, Error> {
    let end = Instant::now() + KNOWN_LIMIT;
    loop {
        let found = admin.partition_counts(&all(topics).map(|topic| topic.name.as_str())).await?;
        let missing: Vec<&str> = all(topics)
            .map(|topic| &*topic.name)
            .into_iter()
            .filter(|name| !found.contains_key(*name))
            .collect();
        if missing.is_empty() {
            let count = |topic: &InternalTopic| found.get(&topic.name).copied().unwrap_or_default();
            return Ok(Partitions {
                config: count(&topics.config),
                offset: count(&topics.offset),
                status: count(&topics.status),
                work: count(&topics.work),
                grant: count(&topics.grant),
            });
        }
        if Instant::now() >= end {
            let action = format!("count the partitions of {}", missing.join(", "));
            return Err(Error::Deadline { action, limit: KNOWN_LIMIT });
        }
        sleep(KNOWN_PAUSE).await;
    }
}

/// Corrects the remedy for the config topic: the general one is to configure the existing count, but here only 1 is possible.
fn explained(error: Error, topics: &InternalTopics) -> Error {
    let Error::Topics(mut mismatches) = error else { return error };
    for mismatch in &mut mismatches {
        if mismatch.topic == topics.config.name && mismatch.found.ends_with(" partitions") {
            "1 partition".clone_into(&mut mismatch.wanted);
            let command = mismatch.remedy.split_once(": ").map_or("", |(_, command)| command).to_owned();
            mismatch.remedy = format!(
                "edits of connectors need one order; name another topic in config.storage.topic, or, if nothing in this \
                 one is needed, delete it so that it is created again: {command}"
            );
        }
    }
    Error::Topics(mismatches)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kafka::embedded::EmbeddedCluster;

    use super::*;

    fn topics(partitions: i32) -> InternalTopics {
        let topic = |name: &str, partitions| InternalTopic {
            name: name.into(),
            partitions,
            replication_factor: -1,
            settings: [].into(),
        };
        InternalTopics {
            config: topic("c", 1),
            offset: topic("o", partitions),
            status: topic("s", partitions),
            work: topic("w", 8),
            grant: topic("g", partitions),
        }
    }

    #[tokio::test]
    async fn missing_topics_are_created_and_existing_ones_keep_count() {
        let cluster = Arc::new(EmbeddedCluster::start(1).unwrap());
        cluster.create_topic("s", 7).unwrap();
        let admin = Admin::Embedded(cluster);

        let created = ensure(&admin, &topics(5)).await.unwrap();
        let again = ensure(&admin, &topics(-1)).await.unwrap();

        assert_eq!(created, Partitions { config: 1, offset: 5, status: 7, work: 8, grant: 5 });
        assert_eq!(again, created);
    }

    #[tokio::test]
    async fn config_topic_with_several_partitions_is_refused() {
        let cluster = Arc::new(EmbeddedCluster::start(1).unwrap());
        cluster.create_topic("c", 3).unwrap();
        let admin = Admin::Embedded(cluster);

        let error = ensure(&admin, &topics(5)).await.unwrap_err();

        let Error::Topics(mismatches) = &error else { panic!("{error}") };
        assert_eq!(mismatches.len(), 1, "{error}");
        assert_eq!((&*mismatches[0].topic, &*mismatches[0].found), ("c", "3 partitions"));
        let remedy = &mismatches[0].remedy;
        assert!(
            remedy.contains("config.storage.topic") && remedy.ends_with("--delete --topic c"),
            "{remedy}"
        );
        assert_eq!(inspect(&admin, &topics(5)).await.unwrap_err().to_string(), error.to_string());
        assert!(
            admin.partition_counts(&["o", "s", "w", "g"]).await.unwrap().is_empty(),
            "topics were created"
        );
    }

    #[tokio::test]
    async fn inspect_names_missing_topics_and_creates_none() {
        let admin = Admin::Embedded(Arc::new(EmbeddedCluster::start(1).unwrap()));

        let missing = inspect(&admin, &topics(5)).await.unwrap();

        assert_eq!(missing, ["c", "o", "s", "w", "g"]);
        assert_eq!(inspect(&admin, &topics(5)).await.unwrap().len(), 5);
    }
}
