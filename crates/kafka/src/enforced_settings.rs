//! Settings that the user cannot change, because the worker's guarantees depend on them, per kind of client.
//!
//! This is the one table: [`super::check_settings`] reports contradictions before anything starts, and no client is
//! created against it.

use std::{collections::BTreeMap, time::Duration};

use base::metrics::Client;

use super::{
    Error,
    role::{Role, Sight},
};

/// Bytes of records in one batch, unless one record alone is larger; below [`super::SMALLEST_LIMIT`].
const BATCH_BYTES: usize = 1_000_000;
/// How long the thread that polls for a group may be stuck before its partitions go to others, unless the session is
/// longer. The lease ends long before.
const POLL_LIMIT: Duration = Duration::from_secs(30);

/// A setting that the worker's guarantees depend on. With an empty value it is removed.
pub(super) struct EnforcedSetting {
    pub(super) key: &'static str,
    pub(super) value: String,
    accepted: Accepted,
    rule: &'static str,
}

/// What the user may write all the same.
enum Accepted {
    /// These words, which all mean the value; none where the worker alone chooses.
    Words(&'static [&'static str]),
    /// The value or any number below it, which then stays.
    AtMost,
}

impl EnforcedSetting {
    /// The user's contradiction to it, if there is one. `user` has librdkafka's name to the user's name and value.
    pub(super) fn refusal(&self, client: Client, user: &BTreeMap<&str, (&str, &str)>) -> Option<Error> {
        let (key, value) = user.get(self.key).filter(|(_, value)| !self.allows(value))?;
        let remedy = match &self.accepted {
            Accepted::Words([]) => "remove it".to_owned(),
            Accepted::Words([word, ..]) => format!("remove it or set it to {word}"),
            Accepted::AtMost => format!("remove it or set it to at most {}", self.value),
        };
        let (key, value) = (key.to_string(), value.to_string());
        Some(Error::Refused { client: client.label(), key, value, rule: self.rule, remedy })
    }

    /// Whether what the user wrote stays, where it is allowed.
    pub(super) fn leaves_the_users(&self) -> bool {
        matches!(self.accepted, Accepted::AtMost)
    }

    fn allows(&self, value: &str) -> bool {
        let number = |text: &str| text.trim().parse::<u64>().ok();
        match &self.accepted {
            Accepted::Words(words) => words.contains(&value),
            Accepted::AtMost => {
                number(value).zip(number(&self.value)).is_some_and(|(is, most)| 0 < is && is <= most)
            }
        }
    }
}

const TRUE: &[&str] = &["true", "1", "t"];
const FALSE: &[&str] = &["false", "0", "f"];
const LOSSLESS: &str =
    "a record counts as published only when all in-sync replicas have it, once and in order";

fn exactly(
    key: &'static str,
    value: &str,
    words: &'static [&'static str],
    rule: &'static str,
) -> EnforcedSetting {
    EnforcedSetting { key, value: value.to_owned(), accepted: Accepted::Words(words), rule }
}

fn ours(key: &'static str, value: impl Into<String>, rule: &'static str) -> EnforcedSetting {
    EnforcedSetting { key, value: value.into(), accepted: Accepted::Words(&[]), rule }
}

/// Everything that holds for a client of this kind against the cluster at `servers`.
pub(super) fn enforced_settings(role: &Role, servers: &str) -> Vec<EnforcedSetting> {
    let mut settings = vec![ours(
        "metadata.broker.list",
        servers,
        "all clients of a worker use the cluster of bootstrap.servers",
    )];
    match role {
        Role::Producer { queue_bytes } => {
            settings.extend(of_producers(*queue_bytes));
            settings.push(exactly(
                "message.timeout.ms",
                "0",
                &["0"],
                "a record must not be given up while a later one goes through, and deadlines are the receiver's",
            ));
            let rule = "the worker names its transactional producers after what they write";
            settings.push(ours("transactional.id", "", rule));
        }
        Role::Transactional { id, queue_bytes, timeout } => {
            settings.extend(of_producers(*queue_bytes));
            settings.extend([
                ours(
                    "transactional.id",
                    &**id,
                    "the id names the shard, so that the broker can refuse every earlier owner",
                ),
                ours(
                    "transaction.timeout.ms",
                    timeout.as_millis().to_string(),
                    "a frozen owner may hold back readers of its shard no longer than this",
                ),
                exactly(
                    "log.connection.close",
                    "true",
                    TRUE,
                    "who has lost a connection has to look what became of its last transaction",
                ),
            ]);
        }
        // assign() needs a group's name, though nothing is ever committed to it and it is never joined.
        Role::Consumer(_, sight) => settings.extend(of_consumers("tributary-reader", *sight)),
        Role::Query(sight) => settings.extend(of_consumers("", *sight)),
        Role::Member { group, session, heartbeat } => {
            settings.extend(of_members(group, *session, *heartbeat));
        }
        Role::Admin => settings.push(no_topics()),
    }
    settings
}

fn no_topics() -> EnforcedSetting {
    exactly(
        "allow.auto.create.topics",
        "false",
        FALSE,
        "a topic is created as the worker needs it, never with the broker's defaults because it was asked for",
    )
}

fn of_producers(queue_bytes: usize) -> [EnforcedSetting; 8] {
    [
        exactly("enable.idempotence", "true", TRUE, LOSSLESS),
        exactly("request.required.acks", "-1", &["-1", "all"], LOSSLESS),
        exactly("message.send.max.retries", "2147483647", &["2147483647"], LOSSLESS),
        exactly(
            "delivery.report.only.error",
            "false",
            FALSE,
            "a record counts as published only when its report says so",
        ),
        EnforcedSetting {
            key: "batch.size",
            value: BATCH_BYTES.to_string(),
            accepted: Accepted::AtMost,
            rule: "a topic's max.message.bytes is judged per batch, and a batch above it is refused with all its records",
        },
        ours("partitioner", "", "the company in the key decides the partition"),
        ours(
            "queue.buffering.max.kbytes",
            (queue_bytes / 1024).max(1).to_string(),
            "the worker bounds its memory itself, see intake.memory.bytes",
        ),
        no_topics(),
    ]
}

/// `&["read_committed"]` is what users may set, also where this client itself has to see open transactions.
fn of_consumers(group: &str, sight: Sight) -> [EnforcedSetting; 7] {
    let isolation = match sight {
        Sight::Committed => "read_committed",
        Sight::All => "read_uncommitted",
    };
    [
        ours("group.id", group, "readers are assigned their partitions and join no group"),
        ours(
            "client.rack",
            "",
            "only a partition's leader knows its end; a follower that lags would report it early",
        ),
        exactly(
            "isolation.level",
            isolation,
            &["read_committed"],
            "what a fenced or aborted writer left behind must never be seen",
        ),
        exactly(
            "enable.auto.commit",
            "false",
            FALSE,
            "the worker keeps its own offsets, with the records they belong to",
        ),
        exactly(
            "auto.offset.reset",
            "error",
            &["error", "none"],
            "an offset out of range opens a gap and is never a silent jump",
        ),
        exactly("enable.partition.eof", "true", TRUE, "reading to the end needs to be told where the end is"),
        no_topics(),
    ]
}

/// The words are those allowed to readers, who get the same settings of the user's; the values are what a member needs.
fn of_members(group: &str, session: Duration, heartbeat: Duration) -> [EnforcedSetting; 11] {
    let ms = |duration: Duration| duration.as_millis().to_string();
    [
        ours("group.id", group, "the worker's group.id names the group that shares its work"),
        ours("group.instance.id", "", "a worker that leaves must give up its work at once"),
        exactly("group.protocol", "classic", &["classic"], "the session must end within session.timeout.ms"),
        exactly(
            "partition.assignment.strategy",
            "cooperative-sticky",
            &["cooperative-sticky"],
            "work stays where it is when a worker comes or goes",
        ),
        ours(
            "session.timeout.ms",
            ms(session),
            "the worker's session.timeout.ms decides when its work moves",
        ),
        ours(
            "heartbeat.interval.ms",
            ms(heartbeat),
            "the worker's heartbeat.interval.ms decides how often it shows signs of life",
        ),
        ours(
            "max.poll.interval.ms",
            ms(session.max(POLL_LIMIT)),
            "the thread that polls for the group does nothing else",
        ),
        exactly("enable.auto.commit", "false", FALSE, "commits prove that a worker still owns its work"),
        exactly("auto.offset.reset", "latest", &["error", "none"], "nobody reads what is shared out"),
        exactly("enable.partition.eof", "false", TRUE, "nobody reads what is shared out"),
        no_topics(),
    ]
}
