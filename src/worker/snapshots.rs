//! Implements the REST API's access to runs with this worker's state topics.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use async_trait::async_trait;
use serde_json::Value;
use tokio::time::Instant;

use base::retry::ErrorChain;
use kafka::{Admin, Kafka};
use model::{Key, List, TopicPrefix};

use super::certificates;
use crate::{
    avro::{Decoder, Registry},
    config::RecordSource,
    connect::herder::{self, CertificateFilter, ConnectorRuns, Error, FoundCertificates},
    logins::Grants,
    state::state_topic::{self, StateTopic, StateTopics},
};

/// How long reading what other workers have written may take.
const READ_LIMIT: Duration = Duration::from_secs(3);

/// Reads and requests runs for the REST API.
pub struct WorkerSnapshots {
    state_topics: StateTopics,
    grants: Grants,
    kafka: Kafka,
    admin: Admin,
    decoder: Decoder,
}

impl WorkerSnapshots {
    /// Reads runs through `state_topics`, and certificates from Kafka.
    pub fn new(
        state_topics: StateTopics,
        grants: Grants,
        kafka: Kafka,
        admin: Admin,
        registry: Registry,
    ) -> Arc<Self> {
        Arc::new(Self { state_topics, grants, kafka, admin, decoder: Decoder::new(registry) })
    }
}

/// The action in errors of reading the state topic.
pub(super) const READING: &str = "read the state topic";

/// The state topic of a prefix as far as this worker has read it; `None` if it does not exist.
pub(super) async fn handle(
    state_topics: &StateTopics,
    prefix: &TopicPrefix,
) -> Result<Option<StateTopic>, Error> {
    state_topics.of(prefix).await.map_err(|error| refused(READING, error))
}

/// The same, after reading it to its end.
pub(super) async fn newest(
    state_topics: &StateTopics,
    prefix: &TopicPrefix,
) -> Result<Option<StateTopic>, Error> {
    let handle = handle(state_topics, prefix).await?;
    if let Some(handle) = &handle {
        handle.read_to_end(READ_LIMIT).await.map_err(|error| refused(READING, error))?;
    }
    Ok(handle)
}

#[async_trait]
impl herder::RunStore for WorkerSnapshots {
    async fn read(&self, prefix: &TopicPrefix, connector: &str) -> Result<ConnectorRuns, Error> {
        Ok(handle(&self.state_topics, prefix)
            .await?
            .map(|handle| stored_runs(&handle, connector))
            .unwrap_or_default())
    }

    async fn newest(&self, prefix: &TopicPrefix, connector: &str) -> Result<ConnectorRuns, Error> {
        Ok(newest(&self.state_topics, prefix)
            .await?
            .map(|handle| stored_runs(&handle, connector))
            .unwrap_or_default())
    }

    async fn write(&self, prefix: &TopicPrefix, key: &Key, value: &Value) -> Result<(), Error> {
        let Some(handle) = handle(&self.state_topics, prefix).await? else {
            return Err(Error::Conflict(format!(
                "the state topic of prefix {prefix} does not exist any more"
            )));
        };
        let doing = "write to the state topic (ask for the run to see whether it was taken)";
        handle.put(key, Some(value)).await.map_err(|error| refused(doing, error))
    }

    fn waiting(&self, source: &RecordSource) -> BTreeMap<List, String> {
        self.grants.waiting(source)
    }

    async fn certificates(
        &self,
        prefix: &TopicPrefix,
        wanted: &CertificateFilter,
        end: Instant,
    ) -> Result<FoundCertificates, Error> {
        let Self { kafka, admin, decoder, .. } = self;
        certificates::read(kafka, admin, decoder, prefix, wanted, end).await.map_err(|error| match error {
            certificates::Error::Kafka(source) => {
                Error::Kafka { doing: "read the topic of certificates", source: Box::new(source) }
            }
            certificates::Error::Registry(source) => {
                Error::Registry { doing: "decode certificates", reason: ErrorChain(&source).to_string() }
            }
        })
    }
}

fn stored_runs(handle: &StateTopic, connector: &str) -> ConnectorRuns {
    ConnectorRuns { runs: handle.runs(connector), shards: handle.shards() }
}

/// Converts an error of the state topic.
pub(super) fn refused(doing: &'static str, error: state_topic::Error) -> Error {
    match error {
        state_topic::Error::Kafka { source, .. } => Error::Kafka { doing, source: Box::new(source) },
        state_topic::Error::Topic(source) => {
            tracing::error!(error = %ErrorChain(&source), "cannot use the state topic");
            Error::Internal { doing: "use the state topic" }
        }
    }
}
