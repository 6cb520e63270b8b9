//! Compares the answers that the provider got with what the topics hold.

use std::{
    collections::{BTreeMap, HashMap, HashSet, hash_map},
    fmt,
};

use kafka::ConsumerRecord;
use simulator::deliveries::{End, Entry, Purpose};

/// How long the provider waits for an answer, milliseconds.
const PROVIDER_WAITS: u32 = 5_000;

/// How deliveries fare, for one line.
#[derive(Debug, Default)]
pub(super) struct Figures {
    /// Answered 200.
    pub(super) accepted: usize,
    /// Answered otherwise, or not at all, in some attempt.
    pub(super) failed: usize,
    /// Longest answer, milliseconds.
    pub(super) slowest: u32,
    /// Events published.
    pub(super) published: u64,
    /// Deliveries in the spool.
    pub(super) spooled: u64,
    /// Records published that were fetched for events.
    pub(super) records: u64,
}

impl Figures {
    /// Whether every attempt was answered 200, and while the provider was still waiting.
    pub(super) fn all_in_time(&self) -> bool {
        self.accepted > 0 && self.failed == 0 && self.slowest < PROVIDER_WAITS
    }

    pub(super) const HEAD: &str = "answered 200   otherwise   slowest   events   in the spool   records";

    /// What the provider knows of it.
    pub(super) fn of(entries: &[Entry]) -> Self {
        let attempts = || entries.iter().flat_map(|entry| &entry.attempts);
        Self {
            accepted: entries.iter().filter(|entry| entry.end == Some(End::Accepted)).count(),
            failed: attempts().filter(|attempt| attempt.status != Some(200)).count(),
            slowest: attempts().map(|attempt| attempt.took).max().unwrap_or_default(),
            ..Self::default()
        }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { accepted, failed, slowest, published, spooled, records } = self;
        write!(
            f,
            "{accepted:>12}   {failed:>9}   {slowest:>4} ms   {published:>6}   {spooled:>12}   {records:>7}"
        )
    }
}

/// How the ledger and the topics compare.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    /// Events by topic.
    pub(super) topics: BTreeMap<String, usize>,
    /// Deliveries that were answered 200, without those that only ask whether the address answers.
    pub(super) accepted: usize,
    /// Of these, not in any topic.
    pub(super) missing: usize,
    /// Of these, behind a later one of the same company and topic.
    pub(super) out_of_order: usize,
    /// Records of an id that was there already.
    pub(super) repeated: usize,
}

impl Verdict {
    /// Compares deliveries that have an id; the order is that of their acceptance, company by company.
    pub(super) fn of(entries: &[Entry], records: &[ConsumerRecord]) -> Self {
        let mut verdict = Self::default();
        let mut places: HashMap<String, usize> = HashMap::new();
        for (place, record) in records.iter().enumerate() {
            *verdict.topics.entry(record.topic.to_string()).or_default() += 1;
            let id = record.headers.iter().find(|(name, _)| name == "tributary.id");
            let id = String::from_utf8_lossy(id.map_or(&[][..], |(_, id)| id)).into_owned();
            match places.entry(id) {
                hash_map::Entry::Occupied(_) => verdict.repeated += 1,
                hash_map::Entry::Vacant(free) => drop(free.insert(place)),
            }
        }
        let mut last: HashMap<(&str, String), usize> = HashMap::new();
        let mut seen = HashSet::new();
        for entry in entries {
            let accepted = entry.end == Some(End::Accepted) && entry.purpose == Purpose::Event;
            let Some(id) = entry.about.outgoing.filter(|_| accepted).map(|id| id.to_string()) else {
                continue;
            };
            if !seen.insert(id.clone()) {
                continue;
            }
            verdict.accepted += 1;
            let Some(place) = places.get(&id) else {
                verdict.missing += 1;
                continue;
            };
            let topic = records[*place].topic.to_string();
            let company = entry.about.company.as_deref().unwrap_or_default();
            // One attempt each keeps the order in which they were ordered; a repeated one comes when it comes.
            if entry.attempts.len() == 1
                && let Some(before) = last.insert((company, topic), *place)
            {
                verdict.out_of_order += usize::from(before > *place);
            }
        }
        verdict
    }

    /// Whether nothing that was answered 200 is lost.
    pub(super) fn is_complete(&self) -> bool {
        self.accepted > 0 && self.missing == 0
    }
}

pub(super) fn by_topic(topics: &BTreeMap<String, usize>) -> String {
    topics.iter().map(|(topic, count)| format!("{count} in {topic}")).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;

    use simulator::{
        clock::Ticks,
        deliveries::{About, Attempt, Family},
        random::Guid,
    };

    use super::*;

    fn entry(id: u128, end: End) -> Entry {
        let company = Some(Arc::from("c"));
        let outgoing = Some(Guid(id));
        Entry {
            family: Family::Accounting,
            webhook: Guid(1),
            purpose: Purpose::Event,
            about: About { event: "Updated".into(), company, record: None, sequence: None, outgoing },
            at: Ticks(0),
            body_hash: 0,
            attempts: vec![Attempt { at: Ticks(0), took: 1, status: Some(200), error: None }],
            end: Some(end),
        }
    }

    fn record(id: u128, offset: i64) -> ConsumerRecord {
        ConsumerRecord {
            topic: "t".into(),
            partition: 0,
            offset,
            key: None,
            value: None,
            headers: vec![("tributary.id".to_owned(), Bytes::from(Guid(id).to_string()))],
            timestamp_ms: None,
        }
    }

    /// Accepted, missing, out of order, repeated, and whether nothing is lost.
    fn verdict(entries: &[(u128, End)], records: &[u128]) -> (usize, usize, usize, usize, bool) {
        let entries: Vec<_> = entries.iter().map(|(id, end)| entry(*id, *end)).collect();
        let records: Vec<_> = records.iter().enumerate().map(|(at, id)| record(*id, at as i64)).collect();
        let verdict = Verdict::of(&entries, &records);
        (verdict.accepted, verdict.missing, verdict.out_of_order, verdict.repeated, verdict.is_complete())
    }

    #[test]
    fn what_was_accepted_must_be_there_in_order() {
        let accepted = [(1, End::Accepted), (2, End::Accepted)];

        assert_eq!(verdict(&accepted, &[1, 2]), (2, 0, 0, 0, true));
        assert_eq!(verdict(&accepted, &[1]), (2, 1, 0, 0, false));
        assert_eq!(verdict(&accepted, &[2, 1]), (2, 0, 1, 0, true));
        assert_eq!(verdict(&accepted, &[1, 2, 1]), (2, 0, 0, 1, true));
        assert_eq!(verdict(&[(1, End::Accepted), (2, End::GivenUp)], &[1]), (1, 0, 0, 0, true));
        assert_eq!(verdict(&[], &[]), (0, 0, 0, 0, false), "nothing was shown");
    }

    #[test]
    fn every_attempt_must_be_answered_200_in_time() {
        let all_in_time = |attempts: &[(u32, Option<u16>)]| {
            let attempt = |(took, status): &(u32, Option<u16>)| Attempt {
                at: Ticks(0),
                took: *took,
                status: *status,
                error: None,
            };
            let entry = Entry { attempts: attempts.iter().map(attempt).collect(), ..entry(1, End::Accepted) };
            Figures::of(&[entry]).all_in_time()
        };

        assert!(all_in_time(&[(4_999, Some(200))]));
        assert!(!all_in_time(&[(5_000, Some(200))]));
        assert!(!all_in_time(&[(1, Some(503)), (1, Some(200))]));
        assert!(!all_in_time(&[(1, None), (1, Some(200))]));
        assert!(!Figures::of(&[]).all_in_time(), "nothing was shown");
    }
}
