//! What can go wrong with Kafka, and whether trying again helps.

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
        /// Whose setting: `producer`, `consumer`, `transactional` or `admin`.
        client: &'static str,
        /// The setting as the user wrote it.
        key: String,
        /// Its value; never a secret, since no secret is enforced.
        value: String,
        /// Why the setting is enforced.
        rule: &'static str,
        /// What to do.
        remedy: String,
    },
    /// A setting librdkafka does not know or cannot use.
    #[error("{client} setting {key} cannot be used: {reason}; {remedy}")]
    Setting {
        /// Whose setting.
        client: &'static str,
        /// The setting.
        key: String,
        /// librdkafka's reason, without secret values.
        reason: String,
        /// What to do.
        remedy: String,
    },
    /// librdkafka refused to make a client from settings that are each fine alone.
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
        /// Whether the broker has it all the same.
        persisted: Persisted,
        /// Why it failed.
        #[source]
        source: KafkaCause,
    },
    /// Another owner has taken the transactional id: this instance is over and must not build a new producer.
    #[error("write with transactional id {transactional_id}: a newer owner has taken it over")]
    Fenced {
        /// The id both wanted.
        transactional_id: Arc<str>,
        /// What the broker said.
        #[source]
        source: KafkaCause,
    },
    /// The shard stopped being ours while its producer was made; whoever has it now may write.
    #[error(
        "initialise transactional id {transactional_id}: the lease of its shard has ended; take the shard anew if it is assigned again"
    )]
    LeaseEnded {
        /// The shard's id.
        transactional_id: Arc<str>,
    },
    /// A connection was lost since the last transaction was begun; what became of that one has to be read before the next.
    #[error(
        "write with transactional id {transactional_id}: a connection was lost since the last transaction began"
    )]
    Disconnected {
        /// The shard's id.
        transactional_id: Arc<str>,
    },
    /// The position to read from is not, or no longer, in the log.
    #[error("read {topic} partition {partition} from offset {offset}: the broker keeps {low} up to {high}")]
    OffsetOutOfRange {
        /// Topic.
        topic: Arc<str>,
        /// Partition.
        partition: i32,
        /// The offset asked for.
        offset: i64,
        /// The first offset the broker has, -1 if it did not say.
        low: i64,
        /// The offset the next record will get, -1 if it did not say.
        high: i64,
    },
    /// Topics exist but are not what they must be.
    #[error("{}: {}", counted(.0), listed(.0))]
    Topics(Vec<TopicMismatch>),
    /// The token for OAUTHBEARER could not be had.
    #[error("get a token for sasl.mechanism=OAUTHBEARER from {from}: {reason}")]
    Token {
        /// The endpoint or file.
        from: String,
        /// What was wrong; never the token.
        reason: String,
    },
    /// Transactions that somebody began and nobody has ended hide what was committed behind them. A writer that has died is
    /// given up by the broker after its `transaction.timeout.ms`; one the broker itself has lost track of stays open for ever.
    #[error(
        "wait for transactions that are still open: {}: not decided within {waited:?}; where nobody writes any more, find \
         them with kafka-transactions.sh find-hanging and end them with kafka-transactions.sh abort{}",
        named(.open),
        .open.first().map(OpenTransaction::arguments).unwrap_or_default()
    )]
    Undecided {
        /// The first open transaction of each partition that has one.
        open: Vec<OpenTransaction>,
        /// How long we waited for them.
        waited: Duration,
    },
    /// Something bounded did not end in time.
    #[error("{action}: not done within {limit:?}")]
    Deadline {
        /// What was attempted.
        action: String,
        /// The time it had.
        limit: Duration,
    },
    /// The client's thread is gone; only a new client helps.
    #[error("{action}: the client has stopped")]
    Stopped {
        /// What was attempted.
        action: String,
    },
}

impl Error {
    /// Whether trying the same again can help.
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

    /// Whether the client that answered with this is unusable from now on and must be built anew (or, if fenced, not).
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::Request { source, .. } | Self::Delivery { source, .. } => source.is_fatal(),
            Self::Fenced { .. } | Self::Stopped { .. } => true,
            _ => false,
        }
    }

    /// For a failed delivery, whether the broker may have the record; nothing else can have left any.
    #[must_use]
    pub fn persisted(&self) -> Persisted {
        match self {
            Self::Delivery { persisted, .. } => *persisted,
            _ => Persisted::No,
        }
    }

    /// Whether the broker or the client refuses this one record, whatever becomes of others: a dead letter, not an outage.
    #[must_use]
    pub fn refuses_record(&self) -> bool {
        matches!(self, Self::Delivery { source, .. } if source.refuses_record())
    }

    /// Whether the topic is not there, or not with this partition: it was deleted since it was looked for, or a broker that has just
    /// come back does not know of it yet.
    #[must_use]
    pub fn lacks_topic(&self) -> bool {
        matches!(self, Self::Delivery { source, .. } | Self::Request { source, .. } if source.lacks_topic())
    }

    /// Whether there are fewer brokers than a new topic is to have copies. Some may only not be there yet.
    #[must_use]
    pub fn lacks_brokers(&self) -> bool {
        matches!(self, Self::Request { source, .. } if source.code() == Some(Code::InvalidReplicationFactor))
    }

    /// Whether a record was given up by the client for a reason that lies elsewhere.
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

/// A topic that exists with other settings than required.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("topic {topic} has {found} and must have {wanted}: {remedy}")]
pub struct TopicMismatch {
    /// Topic name.
    pub topic: String,
    /// Actual setting.
    pub found: String,
    /// Required setting.
    pub wanted: String,
    /// Remedy for the operator.
    pub remedy: String,
}

/// A transaction that has been begun in a partition and not been ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenTransaction {
    /// Topic.
    pub topic: Arc<str>,
    /// Partition.
    pub partition: i32,
    /// Of its first record; nobody who reads committed records sees anything from here on.
    pub offset: i64,
    /// The age of that record, if it could be had.
    pub open_for: Option<Duration>,
}

impl OpenTransaction {
    /// What Kafka's own tool has to be told to end it.
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
    /// It was on its way when contact was lost; it may still appear.
    Possibly,
    /// It never left, or the broker refused it.
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
    /// Whether the client is unusable from now on.
    #[must_use]
    pub fn is_fatal(&self) -> bool {
        match &self.error {
            KafkaError::Transaction(error) => error.is_fatal(),
            KafkaError::MessageConsumptionFatal(_) => true,
            other => matches!(other.rdkafka_error_code(), Some(Code::Fatal | Code::Fenced)),
        }
    }

    fn remedy(&self) -> &'static str {
        // librdkafka's only word for a batch whose codec was not built in.
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
            // The wrapper forgets to name the code of these.
            KafkaError::AdminOp(code) => Some(*code),
            other => other.rdkafka_error_code(),
        }
    }

    /// Names what only a person, a new input or a new client mends; everything else passes by itself.
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

/// Open transactions that are named.
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
    // One topic may be wrong in two ways.
    let topics: BTreeSet<&str> = mismatches.iter().map(|mismatch| mismatch.topic.as_str()).collect();
    match topics.len() {
        1 => "1 topic is not what it must be".to_owned(),
        many => format!("{many} topics are not what they must be"),
    }
}

fn listed(mismatches: &[TopicMismatch]) -> String {
    mismatches.iter().map(TopicMismatch::to_string).collect::<Vec<_>>().join("; ")
}

/// Failures as librdkafka reports them, for the tests of those who handle them.
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
    fn what_passes_by_itself_is_tried_again() {
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
    fn what_needs_a_person_or_another_record_is_never_tried_again() {
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
    fn a_fenced_or_failed_client_says_that_it_is_over() {
        for code in [Code::Fenced, Code::Fatal] {
            assert!(request(code).is_fatal(), "{code:?}");
            assert_eq!(request(code).retry(), Retry::Never, "{code:?}");
        }
    }

    #[test]
    fn an_open_transaction_is_named_with_its_age_and_with_what_ends_it() {
        let open = |partition| OpenTransaction {
            topic: "offsets".into(),
            partition,
            offset: 6,
            open_for: (partition == 2).then_some(Duration::from_secs(83)),
        };
        let error = Error::Undecided { open: (2..8).map(open).collect(), waited: Duration::from_secs(3) };

        let told = error.to_string();
        assert!(told.contains("offsets partition 2 from offset 6 (for 83 s), offsets partition 3"), "{told}");
        assert!(told.contains(" and 2 more: not decided within 3s"), "{told}");
        assert!(told.contains("kafka-transactions.sh find-hanging"), "{told}");
        assert!(told.ends_with("abort --topic offsets --partition 2 --start-offset 6"), "{told}");
        assert_eq!(error.retry(), Retry::Later);
    }

    #[test]
    fn the_code_of_an_admin_failure_decides_too() {
        let policy = Error::request("create topics", KafkaError::AdminOp(Code::PolicyViolation));
        let timeout = Error::request("create topics", KafkaError::AdminOp(Code::OperationTimedOut));

        assert_eq!(policy.retry(), Retry::Never);
        assert_eq!(timeout.retry(), Retry::Later);
    }
}
