//! Compares record topics with event topics: each record must be as new as its last event.

use std::collections::{BTreeMap, BTreeSet};

use kafka::ConsumerRecord;
use model::{SequenceVersion, Topic, Version};

/// The result of the comparison.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct RecordCheck {
    /// Records that have events.
    pub(super) records: usize,
    /// Events of these records.
    pub(super) events: usize,
    /// Records that are older than their last event, or missing.
    pub(super) behind: usize,
    /// The same for deleted companies, whose records can no longer be read.
    pub(super) unreadable: usize,
    /// Of all, deleted records.
    pub(super) deleted: usize,
    /// Values published after a newer version of the same record.
    pub(super) back: usize,
}

/// Counts of dead letters.
#[derive(Debug, Default)]
pub(super) struct DeadLetterCounts {
    pub(super) given_up: usize,
    /// Not in `given_up`: dead letters of deleted companies, whose records can no longer be read.
    pub(super) of_deleted: usize,
}

impl RecordCheck {
    /// Compares versions; `gone` are the keys of records of deleted companies.
    pub(super) fn of(
        events: &[(Topic, String, SequenceVersion)],
        published: &[(Topic, ConsumerRecord)],
        gone: &BTreeSet<String>,
    ) -> Self {
        let mut wanted: BTreeMap<(Topic, &str), &SequenceVersion> = BTreeMap::new();
        for (topic, key, version) in events {
            let known = wanted.entry((*topic, key)).or_insert(version);
            *known = (*known).max(version);
        }
        let (mut found, mut ended, mut back) = (BTreeMap::new(), BTreeSet::new(), 0);
        for (topic, record) in published {
            let Some((key, version)) = key_and_version(record) else { continue };
            let place = (*topic, key);
            match record.value {
                Some(_) => drop(ended.remove(&place)),
                None => drop(ended.insert(place.clone())),
            }
            let before = found.insert(place, version.clone());
            back += usize::from(before.is_some_and(|before| before > version));
        }
        let is_behind = |((topic, key), version): (&(Topic, &str), &&SequenceVersion)| {
            found.get(&(*topic, (*key).to_owned())).is_none_or(|found| found < *version)
        };
        let behind = wanted.iter().filter(|one| is_behind(*one));
        let (unreadable, behind): (Vec<_>, Vec<_>) = behind.partition(|((_, key), _)| gone.contains(*key));
        Self {
            records: wanted.len(),
            events: events.len(),
            behind: behind.len(),
            unreadable: unreadable.len(),
            deleted: ended.len(),
            back,
        }
    }

    /// Whether every record exists and is as new as its last event.
    pub(super) fn is_current(&self) -> bool {
        self.records > 0 && self.behind == 0
    }
}

fn key_and_version(record: &ConsumerRecord) -> Option<(String, SequenceVersion)> {
    let key = std::str::from_utf8(record.key.as_deref()?).ok()?.to_owned();
    let (_, version) = record.headers.iter().find(|(name, _)| name == "tributary.version")?;
    let version: Version = std::str::from_utf8(version).ok()?.parse().ok()?;
    Some((key, version.number()?.clone()))
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use model::AccountingResource;

    use super::*;

    const TOPIC: Topic = Topic::AccountingRecords(AccountingResource::Customers);

    fn record(key: &str, version: &str, value: Option<&'static [u8]>) -> (Topic, ConsumerRecord) {
        let headers = vec![("tributary.version".to_owned(), Bytes::copy_from_slice(version.as_bytes()))];
        let record = ConsumerRecord {
            topic: "t".into(),
            partition: 0,
            offset: 0,
            key: Some(Bytes::copy_from_slice(key.as_bytes())),
            value: value.map(Bytes::from_static),
            headers,
            timestamp_ms: None,
        };
        (TOPIC, record)
    }

    fn event(key: &str, version: &str) -> (Topic, String, SequenceVersion) {
        (TOPIC, key.to_owned(), SequenceVersion::parse(version).unwrap())
    }

    #[test]
    fn a_record_is_behind_until_its_last_event() {
        let events = [event("c/a", "9"), event("c/a", "10"), event("c/b", "3"), event("c/d", "1")];
        let a = record("c/a", "9", Some(b"x"));
        let both = [a.clone(), record("c/b", "3", None)];

        let none = BTreeSet::new();
        let part = RecordCheck::of(&events, &both, &none);
        assert_eq!((part.records, part.events, part.behind, part.deleted, part.back), (3, 4, 2, 1, 0));
        assert!(!part.is_current());

        let more =
            [record("c/a", "10", Some(b"x")), record("c/b", "3", None), record("c/d", "2", Some(b"x"))];
        assert!(RecordCheck::of(&events, &more, &none).is_current());
        let back = [more.to_vec(), vec![a]].concat();
        assert_eq!(RecordCheck::of(&events, &back, &none).back, 1);
    }

    #[test]
    fn records_of_deleted_companies_are_not_behind() {
        let events = [event("c/a", "9"), event("d/b", "3"), event("d/c", "3")];
        let published = [record("c/a", "9", Some(b"x")), record("d/c", "3", Some(b"x"))];
        let gone = BTreeSet::from(["d/b".to_owned(), "d/c".to_owned()]);

        let enriched = RecordCheck::of(&events, &published, &gone);

        assert_eq!((enriched.behind, enriched.unreadable), (0, 1));
        assert!(enriched.is_current());
    }
}
