//! Digests of the records in a shard's partition of a record topic, read from Kafka.
//!
//! A fence says what was written; this says what consumers can read. A run reads the partition once from the first offset, and later
//! only new records. Memory is bounded: above a limit only keys whose hash ends in one more zero bit are kept, which is a sample that
//! does not depend on any order.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use tokio::sync::Semaphore;

use kafka::{ConsumerRecord, ReadLimits, ReadToEnd, StartOffset};
use model::{Key, List, SchemaKind, Value};
use provider::api::row_hash;

use crate::{
    avro,
    records::{fence::FenceLookup, task::Shared},
};

/// Digests per topic and task, over all its shards; some 50 bytes each.
const MOST_HELD: usize = 2_000_000;
/// Digests that each shard may keep, however many shards there are.
const LEAST_HELD: usize = 20_000;
/// Time limit to read one topic of a shard to its end.
const READ_TIMEOUT: Duration = Duration::from_secs(1_800);
/// Concurrent readers of this process: each is a Kafka client.
static READERS: Semaphore = Semaphore::const_new(4);
/// Attempts to read a topic.
const TRIES: u32 = 3;
/// Keys of one topic and shard without a fence entry to keep; further ones are not counted.
const MOST_STRANGERS: usize = 10_000;
/// State of a record that is in use. The provider does not document other states.
const ENABLED: &str = "Enabled";

/// The topic's record of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holds {
    /// The topic was not read, or the key is not in the sample.
    Unknown,
    /// No record, or a tombstone.
    Nothing,
    Record {
        digest: u64,
        /// Its state is not [`ENABLED`].
        is_disabled: bool,
        /// It was missing at the first reading of the topic.
        is_new: bool,
    },
}

/// A bounded number of digests by hash of the key.
#[derive(Debug)]
pub(in crate::records::task) struct Digests {
    held: HashMap<u64, Holds>,
    /// Keys of records without a fence entry.
    strangers: BTreeSet<String>,
    /// Number of trailing zero bits that a hash must have.
    bits: u32,
    most: usize,
}

impl Digests {
    pub(super) fn new(most: usize) -> Self {
        Self { held: HashMap::new(), strangers: BTreeSet::new(), bits: 0, most: most.max(1) }
    }

    fn put(&mut self, key: u64, held: Holds) {
        if !self.takes(key) {
            return;
        }
        self.held.insert(key, held);
        while self.held.len() > self.most {
            self.bits += 1;
            let bits = self.bits;
            self.held.retain(|key, _| key.trailing_zeros() >= bits);
        }
    }

    /// Notes whether a key lacks a fence entry; false for tombstones.
    fn note(&mut self, key: &str, is_stranger: bool) {
        if !is_stranger {
            self.strangers.remove(key);
        } else if self.strangers.len() < MOST_STRANGERS {
            self.strangers.insert(key.to_owned());
        }
    }

    /// Adds the digests of a later reading.
    fn extend(&mut self, later: Self) {
        self.strangers.retain(|key| !matches!(later.held.get(&key_hash(key)), Some(Holds::Nothing)));
        later.strangers.iter().for_each(|key| self.note(key, true));
        self.bits = self.bits.max(later.bits);
        let bits = self.bits;
        self.held.retain(|key, _| key.trailing_zeros() >= bits);
        for (key, mut held) in later.held {
            let was_there = matches!(self.held.get(&key), Some(Holds::Record { is_new: false, .. }));
            if let Holds::Record { is_new, .. } = &mut held {
                *is_new = !was_there;
            }
            self.put(key, held);
        }
    }

    fn takes(&self, key: u64) -> bool {
        key.trailing_zeros() >= self.bits
    }
}

/// The digests of one topic, and the state of its readings.
#[derive(Debug, Default)]
pub(super) struct View {
    digests: Option<Digests>,
    next: Option<i64>,
    /// Start of the last finished reading.
    read_at: Option<i64>,
    /// Start of the reading in progress.
    reading: Option<i64>,
    tries: u32,
    due: Option<i64>,
}

/// Result of a reading: digests of new records, and the next offset.
pub(in crate::records::task) type TopicRead = Result<(Digests, Option<i64>), String>;

impl View {
    /// Whether the topic was read or given up.
    pub(super) fn is_ready(&self) -> bool {
        self.digests.is_some() || self.tries >= TRIES
    }

    /// Whether the topic was read after a moment, or given up.
    pub(super) fn is_newer_than(&self, moment: i64) -> bool {
        self.read_at > Some(moment) || self.tries >= TRIES
    }

    /// Starts a reading if one is due; returns where to read from.
    pub(super) fn begin(&mut self, now: i64) -> Option<StartOffset> {
        if self.reading.is_some() || self.due > Some(now) || self.tries >= TRIES {
            return None;
        }
        self.reading = Some(now);
        Some(self.next.map_or(StartOffset::Earliest, StartOffset::Offset))
    }

    /// Takes the result of a reading.
    ///
    /// # Errors
    /// The reason of a failed reading, to be logged.
    pub(super) fn take(
        &mut self,
        read: TopicRead,
        wait: impl FnOnce(u32) -> i64,
        now: i64,
    ) -> Result<(), String> {
        let started = self.reading.take();
        match read {
            Ok((digests, next)) => {
                match &mut self.digests {
                    Some(known) => known.extend(digests),
                    None => self.digests = Some(digests),
                }
                (self.next, self.tries) = (next.or(self.next), 0);
                self.read_at = started.or(self.read_at);
                Ok(())
            }
            Err(why) => {
                self.tries += 1;
                if self.tries >= TRIES {
                    // Earlier digests are older than the fence entries to compare.
                    self.digests = None;
                }
                self.due = Some(now.saturating_add(wait(self.tries)));
                Err(why)
            }
        }
    }

    /// The view of a topic with these records.
    #[cfg(test)]
    pub(super) fn of<'a>(records: impl IntoIterator<Item = (Key, &'a Value)>) -> Self {
        let mut digests = Digests::new(usize::MAX);
        for (key, value) in records {
            let held = record(digest(value), is_disabled(value));
            digests.put(key_hash(key.as_str()), held);
        }
        Self { digests: Some(digests), ..Self::default() }
    }

    /// Keys of records that had no fence entry when they were read.
    pub(super) fn strangers(&self) -> impl Iterator<Item = &str> {
        self.digests.iter().flat_map(|digests| &digests.strangers).map(String::as_str)
    }

    pub(super) fn get(&self, key: &Key) -> Holds {
        let hash = key_hash(key.as_str());
        match &self.digests {
            Some(digests) if digests.takes(hash) => {
                digests.held.get(&hash).copied().unwrap_or(Holds::Nothing)
            }
            _ => Holds::Unknown,
        }
    }
}

/// Digests of a topic that one shard may keep.
pub(super) fn most_held(shards: usize) -> usize {
    (MOST_HELD / shards.max(1)).max(LEAST_HELD)
}

/// Reads a shard's partition of a topic from `start` to its end.
pub(super) async fn read(
    shared: Arc<Shared>,
    list: List,
    shard: i32,
    start: StartOffset,
    fence: FenceLookup,
) -> TopicRead {
    let topic = shared.output.preparer.topic_name(list.topic());
    let describe = |error: kafka::Error| format!("read {topic}: {}", base::retry::ErrorChain(&error));
    let starts = [(shard, start)].into();
    let kafka = &shared.task.tools.kafka;
    // The semaphore is never closed.
    let _turn = READERS.acquire().await;
    let mut reading =
        ReadToEnd::begin(kafka, &topic, &starts, &ReadLimits::up_to(READ_TIMEOUT)).await.map_err(describe)?;
    let mut digests = Digests::new(most_held(shared.shards.len()));
    while let Some(record) = reading.next().await.map_err(describe)? {
        let ConsumerRecord { key: Some(key), value, .. } = &record else { continue };
        let key = String::from_utf8_lossy(key);
        let hash = key_hash(&key);
        let is_known =
            value.is_none() || fence.knows(list.topic(), &key).map_err(|error| error.to_string())?;
        digests.note(&key, !is_known);
        if digests.takes(hash) {
            digests.put(hash, held(&shared.events.decoder, list, value.as_ref()).await?);
        }
    }
    Ok((digests, reading.positions().get(&shard).copied()))
}

async fn held(decoder: &avro::Decoder, list: List, value: Option<&Bytes>) -> Result<Holds, String> {
    let Some(value) = value else { return Ok(Holds::Nothing) };
    match decoder.decode(schema(list), value).await {
        Ok((_, value)) => Ok(record(digest(&value), is_disabled(&value))),
        // Not written by us, so it differs from any record of the source.
        Err(
            avro::Error::Malformed { .. }
            | avro::Error::WrongSchema { .. }
            | avro::Error::Incompatible { .. }
            | avro::Error::Refused { status: 404, .. },
        ) => Ok(record(row_hash(&String::from_utf8_lossy(value)) as u64, false)),
        Err(error) => Err(format!("decode a record: {}", base::retry::ErrorChain(&error))),
    }
}

const fn record(digest: u64, is_disabled: bool) -> Holds {
    Holds::Record { digest, is_disabled, is_new: false }
}

/// Hash of a record's content, independent of the order of its members.
pub(super) fn digest(value: &Value) -> u64 {
    row_hash(&value.to_json()) as u64
}

/// Whether a record has a state other than [`ENABLED`].
pub(super) fn is_disabled(value: &Value) -> bool {
    let state = match value {
        Value::Company(company) => &company.state,
        Value::Customer(customer) => &customer.state,
        Value::Account(account) => &account.state,
        _ => &None,
    };
    state.as_ref().is_some_and(|state| !state.eq_ignore_ascii_case(ENABLED))
}

const fn schema(list: List) -> SchemaKind {
    match list {
        List::Companies => SchemaKind::Company,
        List::Customers => SchemaKind::Customer,
        List::Accounts => SchemaKind::Account,
        List::Payroll => SchemaKind::PayrollCompany,
    }
}

fn key_hash(key: &str) -> u64 {
    row_hash(key) as u64
}

#[cfg(test)]
mod tests {
    use model::{CompanyId, Customer, RecordId};

    use super::*;

    fn customer(json: &str) -> Value {
        Customer::from_json(json.as_bytes(), &CompanyId::new("c").unwrap()).unwrap().into()
    }

    #[test]
    fn digest_depends_on_content_and_not_on_member_order() {
        let one = customer(r#"{"correlationId":"a","state":"Enabled","more":[1,2]}"#);
        let same = customer(r#"{"more":[1,2],"state":"Enabled","correlationId":"a"}"#);
        let other = customer(r#"{"more":[2,1],"state":"Enabled","correlationId":"a"}"#);

        assert_eq!(digest(&one), digest(&same));
        assert_ne!(digest(&one), digest(&other));
    }

    #[test]
    fn only_a_state_other_than_enabled_is_disabled() {
        for (state, disabled) in
            [(r#""Enabled""#, false), (r#""enabled""#, false), ("null", false), (r#""Disabled""#, true)]
        {
            let json = format!(r#"{{"correlationId":"a","state":{state}}}"#);
            assert_eq!(is_disabled(&customer(&json)), disabled, "{state}");
        }
    }

    #[test]
    fn keys_above_the_limit_are_unknown_and_not_absent() {
        let mut view = View::default();
        let keys: Vec<Key> = (0..1_000)
            .map(|n| Key::record(&CompanyId::new("c").unwrap(), &RecordId::new(format!("r{n}")).unwrap()))
            .collect();
        let mut digests = Digests::new(100);
        for key in &keys {
            digests.put(key_hash(key.as_str()), record(7, false));
        }
        assert!(digests.held.len() <= 100 && digests.held.len() > 20, "{}", digests.held.len());

        view.begin(1);
        view.take(Ok((digests, Some(5))), |_| 1, 2).unwrap();

        let known = keys.iter().filter(|key| view.get(key) != Holds::Unknown).count();
        assert!((21..=100).contains(&known), "{known}");
        assert!(keys.iter().all(|key| view.get(key) != Holds::Nothing));
    }

    #[test]
    fn later_readings_replace_earlier_ones() {
        let key = Key::record(&CompanyId::new("c").unwrap(), &RecordId::new("r").unwrap());
        let mut view = View::default();
        let mut put = |held: Option<Holds>, now: i64| {
            let mut digests = Digests::new(10);
            held.into_iter().for_each(|held| digests.put(key_hash(key.as_str()), held));
            view.begin(now).unwrap();
            view.take(Ok((digests, Some(now))), |_| 1, now).unwrap();
            view.get(&key)
        };

        let first = put(Some(record(1, false)), 1);
        let nothing_new = put(None, 2);
        let changed = put(Some(record(2, false)), 3);
        let gone = put(Some(Holds::Nothing), 4);
        let new = put(Some(record(3, false)), 5);

        let holds = |digest, is_new| Holds::Record { digest, is_disabled: false, is_new };
        assert_eq!((first, nothing_new, changed), (holds(1, false), holds(1, false), holds(2, false)));
        assert_eq!((gone, new), (Holds::Nothing, holds(3, true)));
        assert!(view.is_newer_than(4) && !view.is_newer_than(5));
    }

    #[test]
    fn stranger_is_kept_until_its_tombstone() {
        let mut view = View::default();
        let mut put = |keys: &[(&str, Holds)], now: i64| {
            let mut digests = Digests::new(10);
            for (key, held) in keys {
                digests.put(key_hash(key), *held);
                digests.note(key, matches!(held, Holds::Record { .. }));
            }
            view.begin(now).unwrap();
            view.take(Ok((digests, Some(now))), |_| 1, now).unwrap();
            view.strangers().map(str::to_owned).collect::<Vec<_>>()
        };

        assert_eq!(put(&[("a", record(1, false)), ("b", record(1, false))], 1), ["a", "b"]);
        assert_eq!(put(&[("a", record(2, false)), ("b", Holds::Nothing)], 2), ["a"]);
        assert_eq!(put(&[("a", Holds::Nothing), ("c", record(1, false)), ("c", Holds::Nothing)], 3), [""; 0]);
    }

    #[test]
    fn unreadable_topic_is_given_up_after_some_attempts() {
        let mut view = View::default();
        for now in 0..i64::from(TRIES) {
            assert!(!view.is_ready());
            assert_eq!(view.begin(now * 10), Some(StartOffset::Earliest));
            assert_eq!(view.begin(now * 10), None, "one at a time");
            assert!(view.take(Err("no".to_owned()), |_| 5, now * 10).is_err());
        }

        assert!(view.is_ready() && view.is_newer_than(i64::MAX));
        assert_eq!(view.begin(1_000), None);
        assert_eq!(view.get(&Key::company(&CompanyId::new("c").unwrap())), Holds::Unknown);
    }
}
