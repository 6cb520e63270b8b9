//! Kafka errors, and whether a retry can help.

use std::{collections::BTreeSet, fmt, sync::Arc, time::Duration};

use rdkafka::error::{KafkaError, RDKafkaErrorCode as Code};

use base::retry::Retry;

/// A failure of any part of [`crate`].
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A user's setting contradicts an enforced one.
    #[error("{client} setting {key}={value} is refused: {rule}; {remedy}")]
    Refused {
        /// The client it applies to: `producer`, `consumer`, `transactional` or `admin`.
        client: &'static str,
        /// The setting's name as the user wrote it.
        key: String,
        /// Its value; never a secret, since no secret is enforced.
        value: String,
        /// Why the setting is enforced.
        rule: &'static str,
        /// What to do.
        remedy: String,
    },
    /// A setting that librdkafka does not know or cannot use.
    #[error("{client} setting {key} cannot be used: {reason}; {remedy}")]
    Setting {
        /// The client it applies to.
        client: &'static str,
        /// The setting.
        key: String,
        /// librdkafka's reason, without secret values.
        reason: String,
        /// What to do.
        remedy: String,
    },
    /// librdkafka refused to create a client from settings that are each valid alone.
    #[error("create the {client} client: {reason}")]
    Create {
        /// Which client.
        client: &'static str,
        /// librdkafka's reason.
        reason: String,
    },
    /// A request or local call failed.
    #[error("{action}")]
    Request {
        /// What was attempted, with its ids.
        action: String,
        /// Why it failed.
        #[source]
        source: KafkaCause,
    },
    /// A record was not acknowledged.
    #[error("publish to {topic} partition {partition} ({persisted} in the log)")]
    Delivery {
        /// Topic of the record.
        topic: String,
        /// Partition of the record.
        partition: i32,
        /// Whether the broker may still have it.
        persisted: Persisted,
        /// Why it failed.
        #[source]
        source: KafkaCause,
    },
    /// Another owner has taken the transactional id: this instance has ended and must not build a new producer.
    #[error("write with transactional id {transactional_id}: a newer owner has taken it over")]
    Fenced {
        /// The contested id.
        transactional_id: Arc<str>,
        /// What the broker said.
        #[source]
        source: KafkaCause,
    },
    /// The lease on the shard ended while its producer was being created; the new owner may write.
    #[error(
        "initialize transactional id {transactional_id}: the lease of its shard has ended; the shard can be taken when it is assigned again"
    )]
    LeaseEnded {
        /// The shard's id.
        transactional_id: Arc<str>,
    },
    /// A connection was lost since the last transaction began; its outcome must be read before the next one.
    #[error(
        "write with transactional id {transactional_id}: a connection was lost since the last transaction began, so its outcome is unknown"
    )]
    Disconnected {
        /// The shard's id.
        transactional_id: Arc<str>,
    },
    /// The log does not, or no longer, contain the offset to read from.
    #[error("read {topic} partition {partition} from offset {offset}: the broker keeps {low} up to {high}")]
    OffsetOutOfRange {
        /// Topic.
        topic: Arc<str>,
        /// Partition.
        partition: i32,
        /// The offset asked for.
        offset: i64,
        /// The first offset the broker has, -1 if unknown.
        low: i64,
        /// The offset of the next record, -1 if unknown.
        high: i64,
    },
    /// Topics exist with other settings than required.
    #[error("{}: {}", counted(.0), listed(.0))]
    Topics(Vec<TopicMismatch>),
    /// Getting a token for OAUTHBEARER failed.
    #[error("get a token for sasl.mechanism=OAUTHBEARER from {from}: {reason}")]
    Token {
        /// The endpoint or file.
        from: String,
        /// Why; never the token.
        reason: String,
    },
    /// Open transactions hide what was committed behind them. The broker aborts the transaction of a dead writer after its
    /// `transaction.timeout.ms`; a hanging one, which the coordinator has lost track of, stays open forever.
    #[error(
        "wait for open transactions: {}: still open after {waited:?}; if their writers are gone, find them with \
         kafka-transactions.sh find-hanging and end them with kafka-transactions.sh abort{}",
        named(.open),
        .open.first().map(OpenTransaction::arguments).unwrap_or_default()
    )]
    Undecided {
        /// The first open transaction of each partition that has one.
        open: Vec<OpenTransaction>,
        /// How long we waited for them.
        waited: Duration,
    },
    /// An operation did not finish within its limit.
    #[error("{action}: not done within {limit:?}")]
    Deadline {
        /// What was attempted.
        action: String,
        /// Its time limit.
        limit: Duration,
    },
    /// The client's thread has ended; only a new client helps.
    #[error("{action}: the client has stopped")]
    Stopped {
        /// What was attempted.
        action: String,
    },
}

impl Error {
    /// Whether a retry can help.
    #[must_use]
    pub fn retry(&self) -> Retry {
        match self {
            Self::Request { source, .. } | Self::Delivery { source, .. } => source.retry(),
            Self::Token { .. }
            | Self::Deadline { .. }
            | Self::Undecided { .. }
            | Self::Disconnected { .. } => Retry::Later,
            Self::Refused { .. }
            | Self::Setting { .. }
            | Self::Create { .. }
            | Self::Fenced { .. }
            | Self::LeaseEnded { .. }
            | Self::OffsetOutOfRange { .. }
            | Self::Topics(_)
            | Self::Stopped { .. } => Retry::Never,
        }
    }

    /// Whether the client that returned this is unusable and must be rebuilt, or, if fenced, must not be.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::Request { source, .. } | Self::Delivery { source, .. } => source.is_fatal(),
            Self::Fenced { .. } | Self::Stopped { .. } => true,
            _ => false,
        }
    }

    /// For a failed delivery, whether the broker may have the record; no other error can leave one.
    #[must_use]
    pub fn persisted(&self) -> Persisted {
        match self {
            Self::Delivery { persisted, .. } => *persisted,
            _ => Persisted::No,
        }
    }

    /// Whether the broker or the client refuses this particular record: a dead letter, not an outage.
    #[must_use]
    pub fn refuses_record(&self) -> bool {
        matches!(self, Self::Delivery { source, .. } if source.refuses_record())
    }

    /// Whether the topic or this partition of it is missing: it was deleted meanwhile, or a restarted broker does not know it
    /// yet.
    #[must_use]
    pub fn lacks_topic(&self) -> bool {
        matches!(self, Self::Delivery { source, .. } | Self::Request { source, .. } if source.lacks_topic())
    }

    /// Whether there are fewer brokers than a new topic's replication factor. More may still join.
    #[must_use]
    pub fn lacks_brokers(&self) -> bool {
        matches!(self, Self::Request { source, .. } if source.code() == Some(Code::InvalidReplicationFactor))
    }

    /// Whether the client dropped a record for a reason that is not the record's.
    pub(super) fn is_purged(&self) -> bool {
        let purged =
            |cause: &KafkaCause| matches!(cause.code(), Some(Code::PurgeQueue | Code::PurgeInflight));
        matches!(self, Self::Delivery { source, .. } if purged(source))
    }

    /// Stable name of the kind of error, for dead letters.
    #[must_use]
    pub fn class(&self) -> &'static str {
        match self {
            Self::Delivery { .. } if self.refuses_record() => "kafka::Error::RecordRefused",
            Self::Delivery { .. } => "kafka::Error::Delivery",
            _ => "kafka::Error",
        }
    }

    pub(super) fn delivery(topic: &str, partition: i32, persisted: Persisted, source: KafkaError) -> Self {
        Self::Delivery { topic: topic.to_owned(), partition, persisted, source: KafkaCause::from(source) }
    }

    pub(super) fn request(action: impl Into<String>, source: KafkaError) -> Self {
        Self::Request { action: action.into(), source: KafkaCause::from(source) }
    }
}

/// An existing topic whose settings differ from the required ones.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("topic {topic} has {found} and must have {wanted}: {remedy}")]
pub struct TopicMismatch {
    /// Topic name.
    pub topic: String,
    /// Actual setting.
    pub found: String,
    /// Required setting.
    pub wanted: String,
    /// What the operator can do.
    pub remedy: String,
}

/// An open transaction in a partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenTransaction {
    /// Topic.
    pub topic: Arc<str>,
    /// Partition.
    pub partition: i32,
    /// Offset of its first record; read-committed consumers see nothing from here on.
    pub offset: i64,
    /// The age of that record, if it could be read.
    pub open_for: Option<Duration>,
}

impl OpenTransaction {
    /// The arguments with which Kafka's own tool ends it.
    fn arguments(&self) -> String {
        let Self { topic, partition, offset, .. } = self;
        format!(" --topic {topic} --partition {partition} --start-offset {offset}")
    }
}

impl fmt::Display for OpenTransaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { topic, partition, offset, open_for } = self;
        write!(f, "{topic} partition {partition} from offset {offset}")?;
        match open_for {
            Some(age) => write!(f, " (for {} s)", age.as_secs()),
            None => Ok(()),
        }
    }
}

/// Whether a record whose publication failed is in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Persisted {
    /// It is: only the report about it failed.
    Yes,
    /// It was in flight when the connection was lost; it may still appear.
    Possibly,
    /// It was never sent, or the broker refused it.
    No,
}

impl fmt::Display for Persisted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Yes => "it is",
            Self::Possibly => "it may be",
            Self::No => "it is not",
        })
    }
}

/// Kafka's own reason for a failure.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{error}{}", self.remedy())]
pub struct KafkaCause {
    error: KafkaError,
}

impl KafkaCause {
    /// Whether the client is now unusable.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        match &self.error {
            KafkaError::Transaction(error) => error.is_fatal(),
            KafkaError::MessageConsumptionFatal(_) => true,
            other => matches!(other.rdkafka_error_code(), Some(Code::Fatal | Code::Fenced)),
        }
    }

    fn remedy(&self) -> &'static str {
        // How librdkafka reports a batch whose codec was not built in.
        let is_unread = matches!(self.error, KafkaError::MessageConsumption(Code::NotImplemented));
        if !cfg!(feature = "zstd") && is_unread {
            "; the topic probably has records compressed with zstd, which this build cannot read: build with `--features zstd`"
        } else {
            ""
        }
    }

    fn refuses_record(&self) -> bool {
        matches!(
            self.code(),
            Some(
                Code::MessageSizeTooLarge
                    | Code::MessageBatchTooLarge
                    | Code::InvalidMessageSize
                    | Code::InvalidRecord
                    | Code::InvalidTimestamp
            )
        )
    }

    fn lacks_topic(&self) -> bool {
        let lacks = [Code::UnknownTopic, Code::UnknownPartition, Code::UnknownTopicOrPartition];
        self.code().is_some_and(|code| lacks.contains(&code))
    }

    pub(super) fn is_fenced(&self) -> bool {
        matches!(self.code(), Some(Code::Fenced | Code::ProducerFenced | Code::InvalidProducerEpoch))
    }

    pub(super) fn requires_abort(&self) -> bool {
        matches!(&self.error, KafkaError::Transaction(error) if error.txn_requires_abort())
    }

    pub(super) fn code(&self) -> Option<Code> {
        match &self.error {
            // rdkafka's wrapper returns no code for these.
            KafkaError::AdminOp(code) => Some(*code),
            other => other.rdkafka_error_code(),
        }
    }

    /// Lists the codes that need a person, another input or a new client; all others are temporary.
    fn retry(&self) -> Retry {
        if self.is_fatal() || self.is_fenced() || self.refuses_record() || self.lacks_topic() {
            return Retry::Never;
        }
        let Some(code) = self.code() else { return Retry::Never };
        match code {
            Code::InvalidTopic
            | Code::TopicAuthorizationFailed
            | Code::GroupAuthorizationFailed
            | Code::ClusterAuthorizationFailed
            | Code::TransactionalIdAuthorizationFailed
            | Code::Authentication
            | Code::SaslAuthenticationFailed
            | Code::SSL
            | Code::UnsupportedSASLMechanism
            | Code::InvalidConfig
            | Code::InvalidPartitions
            | Code::InvalidReplicationFactor
            | Code::InvalidReplicaAssignment
            | Code::InvalidRequiredAcks
            | Code::InvalidRequest
            | Code::InvalidTransactionTimeout
            | Code::PolicyViolation
            | Code::UnsupportedVersion
            | Code::UnsupportedFeature
            | Code::UnsupportedForMessageFormat
            | Code::UnsupportedCompressionType
            | Code::BadMessage
            | Code::BadCompression
            | Code::InvalidArgument
            | Code::NotImplemented
            | Code::NotConfigured
            | Code::AutoOffsetReset
            | Code::OffsetOutOfRange => Retry::Never,
            _ => Retry::Later,
        }
    }
}

impl From<KafkaError> for KafkaCause {
    fn from(error: KafkaError) -> Self {
        Self { error }
    }
}

/// How many open transactions an error names.
const MAX_NAMED_TRANSACTIONS: usize = 4;

fn named(open: &[OpenTransaction]) -> String {
    let mut text =
        open.iter().take(MAX_NAMED_TRANSACTIONS).map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if open.len() > MAX_NAMED_TRANSACTIONS {
        text += &format!(" and {} more", open.len() - MAX_NAMED_TRANSACTIONS);
    }
    text
}

fn counted(mismatches: &[TopicMismatch]) -> String {
    // A topic may have two mismatches.
    let topics: BTreeSet<&str> = mismatches.iter().map(|mismatch| mismatch.topic.as_str()).collect();
    match topics.len() {
        1 => "1 topic has wrong settings".to_owned(),
        many => format!("{many} topics have wrong settings"),
    }
}

fn listed(mismatches: &[TopicMismatch]) -> String {
    mismatches.iter().map(TopicMismatch::to_string).collect::<Vec<_>>().join("; ")
}

/// Failures as librdkafka reports them, for tests of their handling.
#[cfg(any(test, feature = "samples"))]
pub mod samples {
    use super::{Code, Error, KafkaError, Persisted};

    fn delivery(code: Code, persisted: Persisted) -> Error {
        Error::delivery("t", 0, persisted, KafkaError::MessageProduction(code))
    }

    /// The broker refused the record for its size.
    #[must_use]
    pub fn too_large() -> Error {
        delivery(Code::MessageSizeTooLarge, Persisted::No)
    }

    /// The queue of the producer is full.
    #[must_use]
    pub fn queue_full() -> Error {
        delivery(Code::QueueFull, Persisted::No)
    }

    /// The record was purged from the queue while in flight.
    #[must_use]
    pub fn purged() -> Error {
        delivery(Code::PurgeInflight, Persisted::Possibly)
    }

    /// The broker does not know the partition.
    #[must_use]
    pub fn unknown_partition() -> Error {
        Error::request("ask", KafkaError::MetadataFetch(Code::UnknownPartition))
    }

    /// The broker refused the client.
    #[must_use]
    pub fn unauthorised() -> Error {
        delivery(Code::TopicAuthorizationFailed, Persisted::No)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(code: Code) -> Error {
        Error::request("publish", KafkaError::MessageProduction(code))
    }

    #[test]
    fn temporary_errors_are_retried() {
        for code in [
            Code::QueueFull,
            Code::MessageTimedOut,
            Code::OperationTimedOut,
            Code::BrokerTransportFailure,
            Code::AllBrokersDown,
            Code::NotEnoughReplicas,
            Code::CoordinatorNotAvailable,
        ] {
            assert_eq!(request(code).retry(), Retry::Later, "{code:?}");
        }
    }

    #[test]
    fn permanent_errors_are_never_retried() {
        for code in [
            Code::MessageSizeTooLarge,
            Code::UnknownTopicOrPartition,
            Code::TopicAuthorizationFailed,
            Code::Authentication,
            Code::InvalidConfig,
        ] {
            assert_eq!(request(code).retry(), Retry::Never, "{code:?}");
            assert!(!request(code).is_fatal(), "{code:?}");
        }
    }

    #[test]
    fn fenced_or_failed_client_is_fatal() {
        for code in [Code::Fenced, Code::Fatal] {
            assert!(request(code).is_fatal(), "{code:?}");
            assert_eq!(request(code).retry(), Retry::Never, "{code:?}");
        }
    }

    #[test]
    fn open_transaction_is_named_with_age_and_remedy() {
        let open = |partition| OpenTransaction {
            topic: "offsets".into(),
            partition,
            offset: 6,
            open_for: (partition == 2).then_some(Duration::from_secs(83)),
        };
        let error = Error::Undecided { open: (2..8).map(open).collect(), waited: Duration::from_secs(3) };

        let message = error.to_string();
        assert!(
            message.contains("offsets partition 2 from offset 6 (for 83 s), offsets partition 3"),
            "{message}"
        );
        assert!(message.contains(" and 2 more: still open after 3s"), "{message}");
        assert!(message.contains("kafka-transactions.sh find-hanging"), "{message}");
        assert!(message.ends_with("abort --topic offsets --partition 2 --start-offset 6"), "{message}");
        assert_eq!(error.retry(), Retry::Later);
    }

    #[test]
    fn admin_failure_is_classified_by_its_code() {
        let policy = Error::request("create topics", KafkaError::AdminOp(Code::PolicyViolation));
        let timeout = Error::request("create topics", KafkaError::AdminOp(Code::OperationTimedOut));

        assert_eq!(policy.retry(), Retry::Never);
        assert_eq!(timeout.retry(), Retry::Later);
    }
}
