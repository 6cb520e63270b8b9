//! Settings that the user cannot change, because the worker's guarantees depend on them, per kind of client.
//!
//! This is the one table: [`super::check_settings`] reports contradictions before anything starts, and no client is
//! created against it.

use std::{collections::BTreeMap, time::Duration};

use base::metrics::KafkaClient;

use super::{
    Error,
    role::{ClientRole, Isolation},
};

/// Bytes of records in one batch, unless one record alone is larger; below [`super::MIN_MAX_MESSAGE_BYTES`].
const BATCH_BYTES: usize = 1_000_000;
/// How long the thread that polls for a group may be stuck before its partitions go to others, unless the session is
/// longer. The lease ends long before.
const POLL_LIMIT: Duration = Duration::from_secs(30);

/// A setting that the worker's guarantees depend on. With an empty value it is removed.
pub(super) struct EnforcedSetting {
    pub(super) key: &'static str,
    pub(super) value: String,
    accepted: AllowedValues,
    rule: &'static str,
}

/// What the user may write all the same.
enum AllowedValues {
    /// These words, which all mean the value; none where the worker alone chooses.
    Words(&'static [&'static str]),
    /// The value or any number below it, which then stays.
    AtMost,
}

impl EnforcedSetting {
    /// Users read the rule when their setting is refused.
    fn because(self, rule: &'static str) -> Self {
        Self { rule, ..self }
    }

    /// The user's contradiction to it, if there is one. `user` has librdkafka's name to the user's name and value.
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

    /// Whether what the user wrote stays, where it is allowed.
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
    "a record must not be given up while a later one goes through, and deadlines are the receiver's";
const AS_NEEDED: &str = "a topic is created as the worker needs it, never with the broker's defaults because it was \
                         asked for";
const NOT_READ: &str = "the group only assigns partitions; its consumer reads no records";

/// A value that the worker alone chooses.
fn sets(key: &'static str, value: impl Into<String>) -> EnforcedSetting {
    accepts(key, value, &[])
}

/// A value that users may also write, in one of these words.
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
                accepts("log.connection.close", "true", TRUE)
                    .because("who has lost a connection has to look what became of its last transaction"),
            ]);
        }
        // assign() needs a group's name, though nothing is ever committed to it and it is never joined.
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
            rule: "a topic's max.message.bytes is judged per batch, and a batch above it is refused with all its records",
        },
        sets("partitioner", "").because("the company in the key decides the partition"),
        sets("queue.buffering.max.kbytes", (queue_bytes / 1024).max(1).to_string())
            .because("the worker bounds its memory itself, see intake.memory.bytes"),
        no_topic_creation(),
    ]
}

/// `&["read_committed"]` is what users may set, also where this client itself has to see open transactions.
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
            .because("what a fenced or aborted writer left behind must never be seen"),
        accepts("enable.auto.commit", "false", FALSE)
            .because("the worker keeps its own offsets, with the records they belong to"),
        accepts("auto.offset.reset", "error", &["error", "none"])
            .because("an offset out of range opens a gap and is never a silent jump"),
        accepts("enable.partition.eof", "true", TRUE)
            .because("a read to the end stops at the end that librdkafka reports"),
        no_topic_creation(),
    ]
}

/// The words are those allowed to readers, who get the same settings of the user's; the values are what a member needs.
fn member_settings(group: &str, session: Duration, heartbeat: Duration) -> [EnforcedSetting; 11] {
    [
        sets("group.id", group).because("the worker's group.id names the group that shares its work"),
        sets("group.instance.id", "").because("a worker that leaves must give up its work at once"),
        accepts("group.protocol", "classic", &["classic"])
            .because("the session must end within session.timeout.ms"),
        accepts("partition.assignment.strategy", "cooperative-sticky", &["cooperative-sticky"])
            .because("work stays where it is when a worker comes or goes"),
        sets("session.timeout.ms", ms(session))
            .because("the worker's session.timeout.ms decides when its work moves"),
        sets("heartbeat.interval.ms", ms(heartbeat))
            .because("the worker's heartbeat.interval.ms decides how often it shows signs of life"),
        sets("max.poll.interval.ms", ms(session.max(POLL_LIMIT)))
            .because("the thread that polls for the group does nothing else"),
        accepts("enable.auto.commit", "false", FALSE)
            .because("commits prove that a worker still owns its work"),
        accepts("auto.offset.reset", "latest", &["error", "none"]).because(NOT_READ),
        accepts("enable.partition.eof", "false", TRUE).because(NOT_READ),
        no_topic_creation(),
    ]
}
