//! Settings that users cannot change, because the worker's guarantees depend on them, per kind of client.
//!
//! This is the only table: [`super::check_settings`] reports contradictions at startup, and every client is created with
//! these values.

use std::{collections::BTreeMap, time::Duration};

use base::metrics::KafkaClient;

use super::{
    Error,
    role::{ClientRole, Isolation},
};

/// Maximum bytes of a batch, unless a single record is larger; below [`super::MIN_MAX_MESSAGE_BYTES`].
const BATCH_BYTES: usize = 1_000_000;
/// How long the thread that polls for a group may be stuck before the group revokes its partitions, unless the session is
/// longer. The lease ends long before.
const POLL_LIMIT: Duration = Duration::from_secs(30);

/// A setting that the worker's guarantees depend on. An empty value removes it.
pub(super) struct EnforcedSetting {
    pub(super) key: &'static str,
    pub(super) value: String,
    accepted: AllowedValues,
    rule: &'static str,
}

/// The values a user may still write.
enum AllowedValues {
    /// These spellings of the enforced value; none if only the worker may set it.
    Words(&'static [&'static str]),
    /// The value or any positive number below it, which is then used.
    AtMost,
}

impl EnforcedSetting {
    /// The reason that users read when their setting is refused.
    fn because(self, rule: &'static str) -> Self {
        Self { rule, ..self }
    }

    /// The error if the user's setting contradicts it. `user` maps librdkafka's names to the user's name and value.
    pub(super) fn refusal(&self, client: KafkaClient, user: &BTreeMap<&str, (&str, &str)>) -> Option<Error> {
        let (key, value) = user.get(self.key).filter(|(_, value)| !self.allows(value))?;
        let remedy = match &self.accepted {
            AllowedValues::Words([]) => "remove it".to_owned(),
            AllowedValues::Words([word, ..]) => format!("remove it or set it to {word}"),
            AllowedValues::AtMost => format!("remove it or set it to at most {}", self.value),
        };
        let (key, value) = (key.to_string(), value.to_string());
        Some(Error::Refused { client: client.label(), key, value, rule: self.rule, remedy })
    }

    /// Whether an allowed value of the user replaces ours.
    pub(super) fn keeps_user_value(&self) -> bool {
        matches!(self.accepted, AllowedValues::AtMost)
    }

    fn allows(&self, value: &str) -> bool {
        let number = |text: &str| text.trim().parse::<u64>().ok();
        match &self.accepted {
            AllowedValues::Words(words) => words.contains(&value),
            AllowedValues::AtMost => {
                number(value).zip(number(&self.value)).is_some_and(|(is, most)| 0 < is && is <= most)
            }
        }
    }
}

const TRUE: &[&str] = &["true", "1", "t"];
const FALSE: &[&str] = &["false", "0", "f"];

const LOSSLESS: &str =
    "a record counts as published only when all in-sync replicas have it, once and in order";
const IN_ORDER: &str =
    "a record must not be dropped while a later one is written; the receiver has its own deadlines";
const AS_NEEDED: &str = "the worker creates topics with its own settings, never with the broker's defaults";
const NOT_READ: &str = "the group only assigns partitions; its consumer reads no records";

/// A value that only the worker may set.
fn sets(key: &'static str, value: impl Into<String>) -> EnforcedSetting {
    accepts(key, value, &[])
}

/// A value that users may also write, in one of these spellings.
fn accepts(key: &'static str, value: impl Into<String>, words: &'static [&'static str]) -> EnforcedSetting {
    EnforcedSetting { key, value: value.into(), accepted: AllowedValues::Words(words), rule: "" }
}

/// All that are enforced on a client of this kind against the cluster at `servers`.
pub(super) fn enforced_settings(role: &ClientRole, servers: &str) -> Vec<EnforcedSetting> {
    let mut settings = vec![
        sets("metadata.broker.list", servers)
            .because("all clients of a worker use the cluster of bootstrap.servers"),
    ];
    match role {
        ClientRole::Producer { queue_bytes } => {
            settings.extend(producer_settings(*queue_bytes));
            settings.extend([
                accepts("message.timeout.ms", "0", &["0"]).because(IN_ORDER),
                sets("transactional.id", "")
                    .because("the worker names its transactional producers after what they write"),
            ]);
        }
        ClientRole::Transactional { id, queue_bytes, timeout } => {
            settings.extend(producer_settings(*queue_bytes));
            settings.extend([
                sets("transactional.id", &**id)
                    .because("the id names the shard, so that the broker can refuse every earlier owner"),
                sets("transaction.timeout.ms", ms(*timeout))
                    .because("a frozen owner may hold back readers of its shard no longer than this"),
                accepts("log.connection.close", "true", TRUE).because(
                    "after a lost connection the worker must check the outcome of its last transaction",
                ),
            ]);
        }
        // assign() needs a group id, although the reader neither joins the group nor commits to it.
        ClientRole::Consumer(_, isolation) => {
            settings.extend(consumer_settings("tributary-reader", *isolation))
        }
        ClientRole::Query(isolation) => settings.extend(consumer_settings("", *isolation)),
        ClientRole::Member { group, session, heartbeat } => {
            settings.extend(member_settings(group, *session, *heartbeat));
        }
        ClientRole::Admin => settings.push(no_topic_creation()),
    }
    settings
}

fn ms(duration: Duration) -> String {
    duration.as_millis().to_string()
}

fn no_topic_creation() -> EnforcedSetting {
    accepts("allow.auto.create.topics", "false", FALSE).because(AS_NEEDED)
}

fn producer_settings(queue_bytes: usize) -> [EnforcedSetting; 8] {
    [
        accepts("enable.idempotence", "true", TRUE).because(LOSSLESS),
        accepts("request.required.acks", "-1", &["-1", "all"]).because(LOSSLESS),
        accepts("message.send.max.retries", "2147483647", &["2147483647"]).because(LOSSLESS),
        accepts("delivery.report.only.error", "false", FALSE)
            .because("a record counts as published only when its report says so"),
        EnforcedSetting {
            key: "batch.size",
            value: BATCH_BYTES.to_string(),
            accepted: AllowedValues::AtMost,
            rule: "a topic's max.message.bytes applies to the batch, and a larger batch is refused with all its records",
        },
        sets("partitioner", "").because("the company in the key decides the partition"),
        sets("queue.buffering.max.kbytes", (queue_bytes / 1024).max(1).to_string())
            .because("the worker bounds its own memory, see intake.memory.bytes"),
        no_topic_creation(),
    ]
}

/// Users may set `read_committed` even where this client itself must see open transactions.
fn consumer_settings(group: &str, isolation: Isolation) -> [EnforcedSetting; 7] {
    let isolation = match isolation {
        Isolation::ReadCommitted => "read_committed",
        Isolation::ReadUncommitted => "read_uncommitted",
    };
    [
        sets("group.id", group).because("readers are assigned their partitions and join no group"),
        sets("client.rack", "")
            .because("only a partition's leader knows its end; a follower that lags would report it early"),
        accepts("isolation.level", isolation, &["read_committed"])
            .because("records of a fenced or aborted writer must never be read"),
        accepts("enable.auto.commit", "false", FALSE)
            .because("the worker keeps its own offsets, with the records they belong to"),
        accepts("auto.offset.reset", "error", &["error", "none"])
            .because("an offset out of range opens a gap and is never a silent jump"),
        accepts("enable.partition.eof", "true", TRUE)
            .because("a read to the end stops where librdkafka reports the end"),
        no_topic_creation(),
    ]
}

/// Readers and members get the same user settings, so the allowed spellings are those of readers; the values are those that
/// a member needs.
fn member_settings(group: &str, session: Duration, heartbeat: Duration) -> [EnforcedSetting; 11] {
    [
        sets("group.id", group).because("the worker's group.id names the group that shares its work"),
        sets("group.instance.id", "").because("a leaving worker must hand over its partitions at once"),
        accepts("group.protocol", "classic", &["classic"])
            .because("the session must end within session.timeout.ms"),
        accepts("partition.assignment.strategy", "cooperative-sticky", &["cooperative-sticky"])
            .because("partitions stay where they are when a worker joins or leaves"),
        sets("session.timeout.ms", ms(session))
            .because("the worker's session.timeout.ms decides when its partitions move"),
        sets("heartbeat.interval.ms", ms(heartbeat))
            .because("the worker's heartbeat.interval.ms decides how often it sends heartbeats"),
        sets("max.poll.interval.ms", ms(session.max(POLL_LIMIT)))
            .because("the thread that polls for the group does nothing else"),
        accepts("enable.auto.commit", "false", FALSE)
            .because("commits prove that a worker still owns its partitions"),
        accepts("auto.offset.reset", "latest", &["error", "none"]).because(NOT_READ),
        accepts("enable.partition.eof", "false", TRUE).because(NOT_READ),
        no_topic_creation(),
    ]
}
