//! Compares the deliveries in the provider's journal with the topics.

use std::{
    collections::{BTreeMap, HashMap, HashSet, hash_map},
    fmt,
};

use kafka::ConsumerRecord;
use simulator::deliveries::{End, JournalEntry, Purpose};

/// How long the provider waits for an answer.
const PROVIDER_TIMEOUT_MS: u32 = 5_000;

/// Counts for one status line.
#[derive(Debug, Default)]
pub(super) struct DeliveryFigures {
    /// Answered 200.
    pub(super) accepted: usize,
    /// Attempts with another answer or none.
    pub(super) failed: usize,
    /// Longest time to an answer, in milliseconds.
    pub(super) slowest: u32,
    /// Published events.
    pub(super) published: u64,
    /// Deliveries in the spool.
    pub(super) spooled: u64,
    /// Published records that were fetched for events.
    pub(super) records: u64,
}

impl DeliveryFigures {
    /// Whether every attempt was answered 200 before the provider's timeout.
    pub(super) fn all_in_time(&self) -> bool {
        self.accepted > 0 && self.failed == 0 && self.slowest < PROVIDER_TIMEOUT_MS
    }

    pub(super) const HEAD: &str = "answered 200   otherwise   slowest   events   in the spool   records";

    /// Counts from the provider's journal.
    pub(super) fn of(entries: &[JournalEntry]) -> Self {
        let attempts = || entries.iter().flat_map(|entry| &entry.attempts);
        Self {
            accepted: entries.iter().filter(|entry| entry.end == Some(End::Accepted)).count(),
            failed: attempts().filter(|attempt| attempt.status != Some(200)).count(),
            slowest: attempts().map(|attempt| attempt.took).max().unwrap_or_default(),
            ..Self::default()
        }
    }
}

impl fmt::Display for DeliveryFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { accepted, failed, slowest, published, spooled, records } = self;
        write!(
            f,
            "{accepted:>12}   {failed:>9}   {slowest:>4} ms   {published:>6}   {spooled:>12}   {records:>7}"
        )
    }
}

/// The result of the comparison.
#[derive(Debug, Default)]
pub(super) struct DeliveryCheck {
    /// Events by topic.
    pub(super) topics: BTreeMap<String, usize>,
    /// Deliveries that were answered 200, without acknowledgement requests.
    pub(super) accepted: usize,
    /// Of these, missing in the topics.
    pub(super) missing: usize,
    /// Of these, after a later one of the same company and topic.
    pub(super) out_of_order: usize,
    /// Records with a repeated id.
    pub(super) repeated: usize,
}

impl DeliveryCheck {
    /// Compares deliveries with an id. The expected order is the order of acceptance per company.
    pub(super) fn of(entries: &[JournalEntry], records: &[ConsumerRecord]) -> Self {
        let mut delivery_check = Self::default();
        let mut places: HashMap<String, usize> = HashMap::new();
        for (place, record) in records.iter().enumerate() {
            *delivery_check.topics.entry(record.topic.to_string()).or_default() += 1;
            let id = record.headers.iter().find(|(name, _)| name == "tributary.id");
            let id = String::from_utf8_lossy(id.map_or(&[][..], |(_, id)| id)).into_owned();
            match places.entry(id) {
                hash_map::Entry::Occupied(_) => delivery_check.repeated += 1,
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
            delivery_check.accepted += 1;
            let Some(place) = places.get(&id) else {
                delivery_check.missing += 1;
                continue;
            };
            let topic = records[*place].topic.to_string();
            let company = entry.about.company.as_deref().unwrap_or_default();
            // Only deliveries with one attempt keep their order; a repeated one may come later.
            if entry.attempts.len() == 1
                && let Some(before) = last.insert((company, topic), *place)
            {
                delivery_check.out_of_order += usize::from(before > *place);
            }
        }
        delivery_check
    }

    /// Whether no delivery that was answered 200 is lost.
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

    fn entry(id: u128, end: End) -> JournalEntry {
        let company = Some(Arc::from("c"));
        let outgoing = Some(Guid(id));
        JournalEntry {
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

    /// Accepted, missing, out of order, repeated, complete.
    fn delivery_check(entries: &[(u128, End)], records: &[u128]) -> (usize, usize, usize, usize, bool) {
        let entries: Vec<_> = entries.iter().map(|(id, end)| entry(*id, *end)).collect();
        let records: Vec<_> = records.iter().enumerate().map(|(at, id)| record(*id, at as i64)).collect();
        let delivery_check = DeliveryCheck::of(&entries, &records);
        (
            delivery_check.accepted,
            delivery_check.missing,
            delivery_check.out_of_order,
            delivery_check.repeated,
            delivery_check.is_complete(),
        )
    }

    #[test]
    fn accepted_deliveries_must_be_published_in_order() {
        let accepted = [(1, End::Accepted), (2, End::Accepted)];

        assert_eq!(delivery_check(&accepted, &[1, 2]), (2, 0, 0, 0, true));
        assert_eq!(delivery_check(&accepted, &[1]), (2, 1, 0, 0, false));
        assert_eq!(delivery_check(&accepted, &[2, 1]), (2, 0, 1, 0, true));
        assert_eq!(delivery_check(&accepted, &[1, 2, 1]), (2, 0, 0, 1, true));
        assert_eq!(delivery_check(&[(1, End::Accepted), (2, End::GivenUp)], &[1]), (1, 0, 0, 0, true));
        assert_eq!(delivery_check(&[], &[]), (0, 0, 0, 0, false), "nothing was shown");
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
            let entry =
                JournalEntry { attempts: attempts.iter().map(attempt).collect(), ..entry(1, End::Accepted) };
            DeliveryFigures::of(&[entry]).all_in_time()
        };

        assert!(all_in_time(&[(4_999, Some(200))]));
        assert!(!all_in_time(&[(5_000, Some(200))]));
        assert!(!all_in_time(&[(1, Some(503)), (1, Some(200))]));
        assert!(!all_in_time(&[(1, None), (1, Some(200))]));
        assert!(!DeliveryFigures::of(&[]).all_in_time(), "nothing was shown");
    }
}
