//! The invariants of enrichment: topics match the provider and the events that it sent.
//!
//! [`Evidence`], collected from outside when all work is done ─▶ [`check`] ─▶ [`EnrichVerdict`].
//!
//! - For each key, in log order: the epoch never decreases (*epoch back*); within an epoch the version never decreases (*version
//!   back*), and no version of a read by id is published twice (*repeated*), but for the copy that ends a batch. A deleted record
//!   does not return at the version of its tombstone (*resurrected*).
//! - No epoch is raised unless the provider was restored to a backup (*epoch raised*).
//! - A key is in the partition of its company (*misplaced*), and headers agree with the value (*mislabelled*).
//! - The last value of a key equals the provider's record member by member (*different*, *behind*, *ahead*). A record with an event
//!   is in its topic (*missing*), a deleted one is a tombstone (*undead*), a living one has no tombstone in this epoch
//!   (*tombstoned*), and there is no record that the provider does not know (*foreign*).
//! - Each event lies before the settled offset of its partition (*unsettled*) and has an outcome: its key has reached its version, or
//!   it is parked, or it is a dead letter, or its kind needs no read (*unaccounted*).
//! - Every delivery that was answered 200 is among the events (*undelivered*).
//! - The fence of a key agrees with its last record (*fence*). A dead letter has a reason (*unreasoned*).
//! - A certified list misses no record that it showed throughout its reading, with or without an event (*certified*).
//!
//! A parked event or a dead letter excuses its key from matching the provider; nothing else does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use kafka::partition_of;
use model::{AccountingResource, RemovalKind};
use serde_json::Value;

use crate::product::oracle::judge::Faults;

/// A record's key in the topic of its resource.
pub(super) type RecordName = (AccountingResource, String);
/// Topic, partition and offset of an event.
pub(super) type EventPosition = (String, i32, i64);

/// A record of a record topic.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PublishedRecord {
    pub(super) key: String,
    pub(super) partition: i32,
    pub(super) offset: i64,
    /// `tributary.version`.
    pub(super) version: Option<u64>,
    /// `tributary.epoch`.
    pub(super) epoch: Option<u64>,
    /// `tributary.origin`.
    pub(super) origin: String,
    /// `tributary.batch`.
    pub(super) batch: Option<String>,
    /// The provider's object, decoded; `None` for a tombstone.
    pub(super) value: Option<Value>,
}

/// An event of an event topic.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PublishedEvent {
    pub(super) position: EventPosition,
    /// The key of its record; `None` if it names none.
    pub(super) key: Option<String>,
    pub(super) resource: AccountingResource,
    /// Its `SequenceVersion`, if that is a number.
    pub(super) version: Option<u64>,
    pub(super) kind: EventClass,
    /// Its `tributary.id`.
    pub(super) id: String,
}

/// What an event requires.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EventClass {
    /// A read.
    Changed,
    /// A read, and a tombstone if the record is gone.
    Deleted,
    /// Nothing.
    Silent,
    /// Unknown: the event cannot be decoded.
    Garbled,
}

/// A record as the provider has it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ProviderState {
    /// It exists; the answer to a read by id.
    Alive(Value),
    /// It was deleted.
    Deleted,
    /// It was deleted with its company, without an event for the record.
    Buried,
}

/// An entry of the fence topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fence {
    pub(super) epoch: u64,
    pub(super) version: u64,
    pub(super) deleted: bool,
}

/// A dead letter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Letter {
    /// The position of its event.
    pub(super) position: Option<EventPosition>,
    /// The class of the error.
    pub(super) class: String,
    /// Its message.
    pub(super) message: String,
}

/// Everything that the checker judges.
#[derive(Debug, Clone, Default)]
pub(super) struct Evidence {
    /// Partitions of every topic.
    pub(super) partitions: i32,
    /// Record topics, each partition in its order.
    pub(super) lines: BTreeMap<AccountingResource, Vec<PublishedRecord>>,
    pub(super) events: Vec<PublishedEvent>,
    pub(super) fences: BTreeMap<RecordName, Fence>,
    /// Parked records, and the version up to which each is parked.
    pub(super) parked: BTreeMap<RecordName, Option<u64>>,
    pub(super) letters: Vec<Letter>,
    /// The offset from which events are read, by topic and partition.
    pub(super) settled: BTreeMap<(String, i32), i64>,
    /// Every record that the provider ever had.
    pub(super) truth: BTreeMap<RecordName, ProviderState>,
    /// Ids of the deliveries that were answered 200.
    pub(super) accepted: BTreeSet<String>,
    /// Whether the provider was restored to a backup.
    pub(super) restored: bool,
    /// Records that certified lists showed throughout their reading.
    pub(super) certified: BTreeSet<RecordName>,
}

impl Evidence {
    /// The last record of each key.
    pub(super) fn last(&self) -> BTreeMap<RecordName, &PublishedRecord> {
        let all =
            self.lines.iter().flat_map(|(resource, lines)| lines.iter().map(move |line| (*resource, line)));
        all.map(|(resource, line)| ((resource, line.key.clone()), line)).collect()
    }

    /// # Panics
    /// If there is a dead letter or a fault.
    pub(super) fn assert_clean(&self) {
        assert!(self.letters.is_empty(), "{:?}", self.letters);
        check(self).assert_sound();
    }

    /// The number of tombstones.
    pub(super) fn tombstones(&self) -> usize {
        self.lines.values().flatten().filter(|line| line.value.is_none()).count()
    }

    /// The number of records, tombstones included.
    pub(super) fn published(&self) -> usize {
        self.lines.values().map(Vec::len).sum()
    }
}

/// The faults of each kind: how many, and the first few.
#[derive(Debug, Default)]
pub(super) struct EnrichVerdict {
    events: usize,
    records: usize,
    tombstones: usize,
    keys: usize,
    parked: usize,
    pub(super) letters: usize,
    faults: BTreeMap<&'static str, Faults>,
}

impl EnrichVerdict {
    /// The number of faults of a kind.
    pub(super) fn count(&self, kind: &str) -> u64 {
        self.faults.get(kind).map_or(0, |faults| faults.count)
    }

    /// The kinds of fault that were found.
    pub(super) fn kinds(&self) -> Vec<&'static str> {
        self.faults.keys().copied().collect()
    }

    /// # Panics
    /// With all faults, if there are any.
    pub(super) fn assert_sound(&self) {
        assert!(self.faults.is_empty(), "{self}");
    }

    fn add(&mut self, kind: &'static str, name: impl FnOnce() -> String) {
        self.faults.entry(kind).or_default().add(name);
    }
}

impl fmt::Display for EnrichVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { events, records, tombstones, keys, parked, letters, faults } = self;
        write!(
            f,
            "{events} events, {records} records of {keys} keys, {tombstones} of them tombstones, {parked} parked, \
             {letters} dead letters, {} violations",
            faults.values().map(|faults| faults.count).sum::<u64>()
        )?;
        for (kind, faults) in faults {
            write!(f, ", {} {kind}", faults.count)?;
        }
        for (kind, faults) in faults {
            for named in &faults.named {
                write!(f, "\n  {kind}: {named}")?;
            }
        }
        Ok(())
    }
}

/// Checks all invariants.
pub(super) fn check(evidence: &Evidence) -> EnrichVerdict {
    let mut verdict = EnrichVerdict {
        events: evidence.events.len(),
        records: evidence.published(),
        tombstones: evidence.tombstones(),
        keys: evidence.last().len(),
        parked: evidence.parked.len(),
        letters: evidence.letters.len(),
        faults: BTreeMap::new(),
    };
    for (resource, lines) in &evidence.lines {
        histories(evidence, *resource, lines, &mut verdict);
    }
    let excused = accounts(evidence, &mut verdict);
    contents(evidence, &excused, &mut verdict);
    certificates(evidence, &excused, &mut verdict);
    fences(evidence, &mut verdict);
    for letter in
        evidence.letters.iter().filter(|letter| letter.class.is_empty() || letter.message.is_empty())
    {
        verdict.add("unreasoned", || format!("{letter:?}"));
    }
    let received: BTreeSet<&str> = evidence.events.iter().map(|event| &*event.id).collect();
    for id in evidence.accepted.iter().filter(|id| !received.contains(id.as_str())) {
        verdict.add("undelivered", || id.clone());
    }
    verdict
}

/// Checks certificates alone against records and what is parked: for evidence from a time when events are still being processed.
pub(super) fn check_certificates(evidence: &Evidence) -> EnrichVerdict {
    let mut verdict = EnrichVerdict {
        records: evidence.published(),
        keys: evidence.last().len(),
        ..EnrichVerdict::default()
    };
    let excused = evidence.parked.keys().cloned().collect();
    certificates(evidence, &excused, &mut verdict);
    verdict
}

/// Checks that records of certified lists are there.
fn certificates(evidence: &Evidence, excused: &BTreeSet<RecordName>, verdict: &mut EnrichVerdict) {
    let last = evidence.last();
    let missing = |name: &&RecordName| !last.contains_key(*name) && !excused.contains(*name);
    for (resource, key) in evidence.certified.iter().filter(missing) {
        verdict.add("certified", || format!("{resource} {key} is missing from its certified list"));
    }
}

/// Checks the records of each key of a topic in log order.
fn histories(
    evidence: &Evidence,
    resource: AccountingResource,
    lines: &[PublishedRecord],
    verdict: &mut EnrichVerdict,
) {
    let mut before: BTreeMap<&str, &PublishedRecord> = BTreeMap::new();
    for line in lines {
        let shown = || format!("{resource} {line:?}");
        let (company, id) = line.key.split_once('/').unwrap_or((&line.key, ""));
        if line.partition != partition_of(company.as_bytes(), evidence.partitions) {
            verdict.add("misplaced", shown);
        }
        // A record may lack both members, and its version may be no number. They are compared with the provider below.
        let says = |member: &str| {
            line.value.as_ref().and_then(|value| value[member].as_str()).filter(|said| !said.is_empty())
        };
        let is_mislabelled = says("sequenceVersion")
            .and_then(|said| said.parse().ok())
            .is_some_and(|said: u64| Some(said) != line.version)
            || says("correlationId").is_some_and(|said| encoded(said) != *id);
        if is_mislabelled || line.version.is_none() || line.epoch.is_none() || line.origin.is_empty() {
            verdict.add("mislabelled", shown);
        }
        if line.epoch > Some(0) && !evidence.restored {
            verdict.add("epoch raised", shown);
        }
        let Some(last) = before.insert(&line.key, line) else { continue };
        // If a commit wrote markers to some partitions only, a copy of the batch's last record ends it and names the batch.
        if line.batch.is_some() && *line == (PublishedRecord { offset: line.offset, ..last.clone() }) {
            continue;
        }
        let shown = || format!("{resource} {line:?} after {last:?}");
        let same_form = line.value.is_some() == last.value.is_some();
        if line.epoch < last.epoch {
            verdict.add("epoch back", shown);
        } else if line.epoch == last.epoch && line.version < last.version {
            verdict.add("version back", shown);
        } else if (line.epoch, line.version) == (last.epoch, last.version) {
            if line.value.is_some() && last.value.is_none() {
                verdict.add("resurrected", shown);
            // After a row of a list the whole record may follow, which may have more members.
            } else if same_form && !matches!(&*last.origin, "snapshot" | "repair") {
                verdict.add("repeated", shown);
            }
        }
    }
}

/// Checks the outcome of each event; the keys that are parked or have a dead letter.
fn accounts(evidence: &Evidence, verdict: &mut EnrichVerdict) -> BTreeSet<RecordName> {
    let letters: BTreeSet<&EventPosition> =
        evidence.letters.iter().filter_map(|letter| letter.position.as_ref()).collect();
    let mut highest: BTreeMap<RecordName, u64> = BTreeMap::new();
    let fenced = evidence.fences.iter().map(|(name, fence)| (name.clone(), fence.version));
    let published = evidence.lines.iter().flat_map(|(resource, lines)| {
        lines.iter().filter_map(|line| Some(((*resource, line.key.clone()), line.version?)))
    });
    for (name, version) in fenced.chain(published) {
        let known = highest.entry(name).or_default();
        *known = version.max(*known);
    }
    let mut excused = BTreeSet::new();
    for event in &evidence.events {
        let (topic, partition, offset) = &event.position;
        let settled = evidence.settled.get(&(topic.clone(), *partition)).copied().unwrap_or(0);
        if settled <= *offset {
            verdict.add("unsettled", || format!("{event:?}, read from {settled}"));
        }
        let name = event.key.clone().map(|key| (event.resource, key));
        if letters.contains(&event.position) {
            excused.extend(name);
            continue;
        }
        if event.kind == EventClass::Silent {
            continue;
        }
        let readable = name.zip(event.version).filter(|_| event.kind != EventClass::Garbled);
        let Some((name, version)) = readable else {
            verdict.add("unaccounted", || format!("{event:?} is no dead letter"));
            continue;
        };
        let fence = evidence.fences.get(&name);
        // Versions of another epoch do not compare.
        let reached = highest.get(&name).is_some_and(|highest| *highest >= version)
            || fence.is_some_and(|f| f.epoch > 0);
        let parked = evidence.parked.get(&name);
        if reached {
        } else if parked.is_some_and(|floor| floor.is_none_or(|floor| floor >= version)) {
            excused.insert(name);
        } else {
            verdict.add("unaccounted", || format!("{event:?}, fence {fence:?}, parked {parked:?}"));
        }
    }
    excused.extend(evidence.parked.keys().cloned());
    excused
}

/// Checks the last value of each key against the provider.
fn contents(evidence: &Evidence, excused: &BTreeSet<RecordName>, verdict: &mut EnrichVerdict) {
    let last = evidence.last();
    for (name, line) in &last {
        let shown = || format!("{} {line:?}", name.0);
        let is_excused = excused.contains(name);
        let Some(truth) = evidence.truth.get(name) else {
            verdict.add("foreign", shown);
            continue;
        };
        match (truth, &line.value) {
            (ProviderState::Alive(truth), Some(value)) => {
                let wanted = truth["sequenceVersion"].as_str().and_then(|text| text.parse::<u64>().ok());
                let kind = match line.version.cmp(&wanted) {
                    std::cmp::Ordering::Less => "behind",
                    std::cmp::Ordering::Greater => "ahead",
                    std::cmp::Ordering::Equal => "different",
                };
                if value != truth && !(is_excused && kind == "behind") {
                    verdict.add(kind, || format!("{} {}: {}", name.0, name.1, difference(value, truth)));
                }
            }
            (ProviderState::Alive(_) | ProviderState::Buried, None) => {}
            (ProviderState::Deleted, Some(_)) if !is_excused => verdict.add("undead", shown),
            (ProviderState::Deleted | ProviderState::Buried, _) => {}
        }
    }
    for (resource, lines) in &evidence.lines {
        for line in lines.iter().filter(|line| line.value.is_none()) {
            let name = (*resource, line.key.clone());
            let lives = matches!(evidence.truth.get(&name), Some(ProviderState::Alive(_)));
            let came_back = last.get(&name).is_some_and(|last| last.epoch > line.epoch);
            if lives && !came_back || resource.ending() == RemovalKind::Disabled {
                verdict.add("tombstoned", || format!("{resource} {line:?}"));
            }
        }
    }
    let changed: BTreeSet<RecordName> = evidence
        .events
        .iter()
        .filter(|event| event.kind == EventClass::Changed)
        .filter_map(|event| Some((event.resource, event.key.clone()?)))
        .collect();
    for name in changed.iter().filter(|name| !last.contains_key(name) && !excused.contains(name)) {
        if let Some(ProviderState::Alive(truth)) = evidence.truth.get(name) {
            verdict.add("missing", || format!("{} {}: {truth}", name.0, name.1));
        }
    }
}

/// Checks each fence against the last record of its key.
fn fences(evidence: &Evidence, verdict: &mut EnrichVerdict) {
    let last = evidence.last();
    for (name, line) in &last {
        let fence = evidence.fences.get(name);
        let agrees = fence.is_some_and(|fence| {
            (Some(fence.epoch), Some(fence.version), fence.deleted)
                == (line.epoch, line.version, line.value.is_none())
        });
        if !agrees {
            verdict.add("fence", || format!("{} {line:?}: {fence:?}", name.0));
        }
    }
    for (name, fence) in
        evidence.fences.iter().filter(|(name, fence)| !last.contains_key(name) && !fence.deleted)
    {
        verdict.add("fence", || format!("{} {}: {fence:?} of nothing", name.0, name.1));
    }
}

/// A part of a key, percent-encoded as in keys.
pub(super) fn encoded(part: &str) -> String {
    let mut text = String::new();
    for (place, letter) in part.char_indices() {
        if matches!(letter, '%' | '/') || letter.is_control() || letter == '~' && place == 0 {
            let bytes = letter.to_string().into_bytes();
            text.extend(bytes.iter().map(|byte| format!("%{byte:02X}")));
        } else {
            text.push(letter);
        }
    }
    text
}

/// The members in which two objects differ. The values are simulated, so they may be shown.
fn difference(ours: &Value, theirs: &Value) -> String {
    let (Some(ours), Some(theirs)) = (ours.as_object(), theirs.as_object()) else {
        return format!("{ours} is not {theirs}");
    };
    let names: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    let differ = names.into_iter().filter(|name| ours.get(*name) != theirs.get(*name));
    let show = |name: &String| format!("{name} is {:?}, not {:?}", ours.get(name), theirs.get(name));
    differ.map(show).collect::<Vec<_>>().join("; ")
}
