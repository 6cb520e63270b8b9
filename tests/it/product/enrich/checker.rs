//! Whether what is in the topics is what the provider has and what was told: the invariants of enrichment.
//!
//! [`Evidence`] is what can be seen from outside, taken when nothing moves any more ─▶ [`check`] ─▶ [`Verdict`].
//!
//! - Of each key, in the order of the log, the epoch never decreases (*epoch back*), and within an epoch the version does not
//!   (*version back*), nor is the same version of a by-id read published twice (*repeated*), but for the copy that ends a batch. What a tombstone has ended does
//!   not come back at its version (*resurrected*).
//! - No epoch is raised unless the provider went back (*epoch raised*).
//! - A key is where its company part belongs (*misplaced*), and headers say what the value says (*mislabelled*).
//! - The last value of a key is the provider's record member by member (*different*, *behind*, *ahead*); a record that was told
//!   is there (*missing*), one that is deleted is a tombstone (*undead*), one that lives never was in this epoch
//!   (*tombstoned*), and there is nothing that the provider does not know (*foreign*).
//! - Each event lies before the settled offset of its partition (*unsettled*), and something became of it: its key has come to
//!   its version or beyond, or it is parked, or it is a dead letter, or there is nothing to read for its kind (*unaccounted*).
//! - What the provider was told is received is among the events (*undelivered*).
//! - The fence of a key is its last record's (*fence*). A dead letter says why (*unreasoned*).
//! - A certified list misses no record that it showed throughout its reading, whether or not an event told of it (*certified*).
//!
//! An event that is parked or a dead letter excuses its key from being what the provider has; nothing else does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use kafka::partition_of;
use model::{AccountingResource, RemovalKind};
use serde_json::Value;

use crate::product::oracle::judge::Faults;

/// A record's key in the topic of its resource.
pub(super) type Name = (AccountingResource, String);
/// Topic, partition and offset of an event.
pub(super) type Spot = (String, i32, i64);

/// A record of a record topic.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Line {
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

/// What an event says.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Told {
    pub(super) spot: Spot,
    /// What it is about; `None` where it does not say.
    pub(super) key: Option<String>,
    pub(super) resource: AccountingResource,
    /// Its `SequenceVersion`, if that is a number.
    pub(super) version: Option<u64>,
    pub(super) kind: Kind,
    /// Its `tributary.id`.
    pub(super) id: String,
}

/// What an event asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A read.
    Changed,
    /// A read, and a tombstone if there is nothing.
    Deleted,
    /// Nothing.
    Silent,
    /// It cannot be told: the event cannot be decoded.
    Garbled,
}

/// A record as the provider has it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Truth {
    /// It can be read, and this is what a read by id says.
    Alive(Value),
    /// It was deleted.
    Deleted,
    /// Its company was, and nobody was told of the record.
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
    /// Of the event it was.
    pub(super) spot: Option<Spot>,
    /// What failed.
    pub(super) class: String,
    /// Why.
    pub(super) message: String,
}

/// Everything that is judged.
#[derive(Debug, Clone, Default)]
pub(super) struct Evidence {
    /// Of every topic.
    pub(super) partitions: i32,
    /// Record topics, each partition in its order.
    pub(super) lines: BTreeMap<AccountingResource, Vec<Line>>,
    pub(super) events: Vec<Told>,
    pub(super) fences: BTreeMap<Name, Fence>,
    /// What is parked, and up to which version.
    pub(super) parked: BTreeMap<Name, Option<u64>>,
    pub(super) letters: Vec<Letter>,
    /// Where reading goes on, by topic and partition of the events.
    pub(super) settled: BTreeMap<(String, i32), i64>,
    /// Every record that the provider ever had.
    pub(super) truth: BTreeMap<Name, Truth>,
    /// Ids of the deliveries that were answered 200.
    pub(super) accepted: BTreeSet<String>,
    /// Whether the provider has gone back.
    pub(super) restored: bool,
    /// Records that certified lists showed throughout their reading.
    pub(super) certified: BTreeSet<Name>,
}

impl Evidence {
    /// The last record of each key.
    pub(super) fn last(&self) -> BTreeMap<Name, &Line> {
        let all =
            self.lines.iter().flat_map(|(resource, lines)| lines.iter().map(move |line| (*resource, line)));
        all.map(|(resource, line)| ((resource, line.key.clone()), line)).collect()
    }

    /// Tombstones, all there are.
    pub(super) fn tombstones(&self) -> usize {
        self.lines.values().flatten().filter(|line| line.value.is_none()).count()
    }

    /// Records, tombstones included.
    pub(super) fn published(&self) -> usize {
        self.lines.values().map(Vec::len).sum()
    }
}

/// What came of it all: how many faults of each kind, and the first few.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    events: usize,
    records: usize,
    tombstones: usize,
    keys: usize,
    parked: usize,
    pub(super) letters: usize,
    faults: BTreeMap<&'static str, Faults>,
}

impl Verdict {
    /// How many faults there are of a kind.
    pub(super) fn count(&self, kind: &str) -> u64 {
        self.faults.get(kind).map_or(0, |faults| faults.count)
    }

    /// The kinds of fault there are.
    pub(super) fn kinds(&self) -> Vec<&'static str> {
        self.faults.keys().copied().collect()
    }

    /// # Panics
    /// With all that is wrong.
    pub(super) fn assert_sound(&self) {
        assert!(self.faults.is_empty(), "{self}");
    }

    fn add(&mut self, kind: &'static str, name: impl FnOnce() -> String) {
        self.faults.entry(kind).or_default().add(name);
    }
}

impl fmt::Display for Verdict {
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

/// Holds all of it against each other.
pub(super) fn check(evidence: &Evidence) -> Verdict {
    let mut verdict = Verdict {
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

/// Judges certificates alone, by records and what is parked: for evidence taken while events are still under way.
pub(super) fn check_certificates(evidence: &Evidence) -> Verdict {
    let mut verdict =
        Verdict { records: evidence.published(), keys: evidence.last().len(), ..Verdict::default() };
    let excused = evidence.parked.keys().cloned().collect();
    certificates(evidence, &excused, &mut verdict);
    verdict
}

/// Records of certified lists that are missing.
fn certificates(evidence: &Evidence, excused: &BTreeSet<Name>, verdict: &mut Verdict) {
    let last = evidence.last();
    let missing = |name: &&Name| !last.contains_key(*name) && !excused.contains(*name);
    for (resource, key) in evidence.certified.iter().filter(missing) {
        verdict.add("certified", || format!("{resource} {key} is missing from its certified list"));
    }
}

/// What happened to each key of a topic, one record after the other.
fn histories(evidence: &Evidence, resource: AccountingResource, lines: &[Line], verdict: &mut Verdict) {
    let mut before: BTreeMap<&str, &Line> = BTreeMap::new();
    for line in lines {
        let told = || format!("{resource} {line:?}");
        let (company, id) = line.key.split_once('/').unwrap_or((&line.key, ""));
        if line.partition != partition_of(company.as_bytes(), evidence.partitions) {
            verdict.add("misplaced", told);
        }
        // A record may leave both out, or say no number. What it says is compared with the provider below.
        let says = |member: &str| {
            line.value.as_ref().and_then(|value| value[member].as_str()).filter(|said| !said.is_empty())
        };
        let is_mislabelled = says("sequenceVersion")
            .and_then(|said| said.parse().ok())
            .is_some_and(|said: u64| Some(said) != line.version)
            || says("correlationId").is_some_and(|said| encoded(said) != *id);
        if is_mislabelled || line.version.is_none() || line.epoch.is_none() || line.origin.is_empty() {
            verdict.add("mislabelled", told);
        }
        if line.epoch > Some(0) && !evidence.restored {
            verdict.add("epoch raised", told);
        }
        let Some(last) = before.insert(&line.key, line) else { continue };
        // A batch that Kafka did not tell all partitions of is ended by its last record once more, which says of which batch it is.
        if line.batch.is_some() && *line == (Line { offset: line.offset, ..last.clone() }) {
            continue;
        }
        let told = || format!("{resource} {line:?} after {last:?}");
        let same_form = line.value.is_some() == last.value.is_some();
        if line.epoch < last.epoch {
            verdict.add("epoch back", told);
        } else if line.epoch == last.epoch && line.version < last.version {
            verdict.add("version back", told);
        } else if (line.epoch, line.version) == (last.epoch, last.version) {
            if line.value.is_some() && last.value.is_none() {
                verdict.add("resurrected", told);
            // A row of a list is followed by the record itself, which may have more.
            } else if same_form && !matches!(&*last.origin, "snapshot" | "repair") {
                verdict.add("repeated", told);
            }
        }
    }
}

/// What became of each event. Keys with an event that has not come to its end.
fn accounts(evidence: &Evidence, verdict: &mut Verdict) -> BTreeSet<Name> {
    let letters: BTreeSet<&Spot> =
        evidence.letters.iter().filter_map(|letter| letter.spot.as_ref()).collect();
    let mut highest: BTreeMap<Name, u64> = BTreeMap::new();
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
        let (topic, partition, offset) = &event.spot;
        let settled = evidence.settled.get(&(topic.clone(), *partition)).copied().unwrap_or(0);
        if settled <= *offset {
            verdict.add("unsettled", || format!("{event:?}, reading goes on at {settled}"));
        }
        let name = event.key.clone().map(|key| (event.resource, key));
        if letters.contains(&event.spot) {
            excused.extend(name);
            continue;
        }
        if event.kind == Kind::Silent {
            continue;
        }
        let readable = name.zip(event.version).filter(|_| event.kind != Kind::Garbled);
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

/// What each key has come to, against what the provider has.
fn contents(evidence: &Evidence, excused: &BTreeSet<Name>, verdict: &mut Verdict) {
    let last = evidence.last();
    for (name, line) in &last {
        let told = || format!("{} {line:?}", name.0);
        let is_excused = excused.contains(name);
        let Some(truth) = evidence.truth.get(name) else {
            verdict.add("foreign", told);
            continue;
        };
        match (truth, &line.value) {
            (Truth::Alive(truth), Some(value)) => {
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
            (Truth::Alive(_) | Truth::Buried, None) => {}
            (Truth::Deleted, Some(_)) if !is_excused => verdict.add("undead", told),
            (Truth::Deleted | Truth::Buried, _) => {}
        }
    }
    for (resource, lines) in &evidence.lines {
        for line in lines.iter().filter(|line| line.value.is_none()) {
            let name = (*resource, line.key.clone());
            let lives = matches!(evidence.truth.get(&name), Some(Truth::Alive(_)));
            let came_back = last.get(&name).is_some_and(|last| last.epoch > line.epoch);
            if lives && !came_back || resource.ending() == RemovalKind::Disabled {
                verdict.add("tombstoned", || format!("{resource} {line:?}"));
            }
        }
    }
    let told: BTreeSet<Name> = evidence
        .events
        .iter()
        .filter(|event| event.kind == Kind::Changed)
        .filter_map(|event| Some((event.resource, event.key.clone()?)))
        .collect();
    for name in told.iter().filter(|name| !last.contains_key(name) && !excused.contains(name)) {
        if let Some(Truth::Alive(truth)) = evidence.truth.get(name) {
            verdict.add("missing", || format!("{} {}: {truth}", name.0, name.1));
        }
    }
}

/// Each fence against the last record of its key.
fn fences(evidence: &Evidence, verdict: &mut Verdict) {
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

/// A part of a key.
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

/// The members of two objects that are not the same; values are made up, so they may be shown.
fn difference(ours: &Value, theirs: &Value) -> String {
    let (Some(ours), Some(theirs)) = (ours.as_object(), theirs.as_object()) else {
        return format!("{ours} is not {theirs}");
    };
    let names: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    let differ = names.into_iter().filter(|name| ours.get(*name) != theirs.get(*name));
    let show = |name: &String| format!("{name} is {:?}, not {:?}", ours.get(name), theirs.get(name));
    differ.map(show).collect::<Vec<_>>().join("; ")
}
