//! A batch while it is built. `new`, `add_row`, `add_record`, `add_looked` and `add_found` (the last four in `lists/`) compare candidates
//! with [`Draft::stored`] before [`Draft::write`].
//!
//! A version that the batch already writes takes precedence over the fence entry. So entries of the scheduler and rows of lists may
//! arrive in any order: within an epoch the version of a record never falls, within a batch and from one batch to the next.

use std::collections::HashMap;

use model::{Key, Stamp};

use crate::{
    plugin::Failure,
    records::schedule::{Batch, Entry, Subject},
};

/// Looks up the fence entry of a key.
pub(super) type Stored<'a> = dyn Fn(&Key) -> Result<Option<Stamp>, Failure> + 'a;

/// A batch to which compared entries are added.
pub(super) struct Draft<'a> {
    pub(super) batch: Batch,
    /// The newest stamp that the batch writes, by fence key.
    written: HashMap<Key, Stamp>,
    fence: &'a Stored<'a>,
}

impl<'a> Draft<'a> {
    /// Starts with the entries of the scheduler, and compares each again: since its decision, a list or an earlier entry of this batch
    /// may have written the record. Two subjects share a key if a tenant and a company have the same id. Writes that are no longer
    /// newer are dropped, and so is an older version under a new epoch if `is_shown` says that a list shows the published version.
    /// Also returns the fence keys of the records with a version regression.
    ///
    /// # Errors
    /// The local fence database failed.
    pub(super) fn new(
        mut batch: Batch,
        fence: &'a Stored<'a>,
        is_shown: impl Fn(&Subject, &Stamp) -> bool,
    ) -> Result<(Self, Vec<Key>), Failure> {
        let entries = std::mem::take(&mut batch.entries);
        let mut draft = Self { batch, written: HashMap::new(), fence };
        let mut regressions = Vec::new();
        for mut entry in entries {
            let Some(subject) = entry.subject.clone().filter(|_| entry.stamp().is_some()) else {
                draft.batch.entries.push(entry);
                continue;
            };
            let key = subject.fence_key();
            let before = draft.stored(&key)?;
            entry.compare_again(before.as_ref());
            if entry.raises_epoch() && before.is_some_and(|before| is_shown(&subject, &before)) {
                entry.clear_regression();
            }
            if entry.raises_epoch() {
                regressions.push(key.clone());
            }
            draft.write(key, entry);
        }
        Ok((draft, regressions))
    }

    /// The fence entry of a key as it will be after this batch.
    ///
    /// # Errors
    /// The local fence database failed.
    pub(super) fn stored(&self, key: &Key) -> Result<Option<Stamp>, Failure> {
        match self.written.get(key) {
            Some(stamp) => Ok(Some(stamp.clone())),
            None => (self.fence)(key),
        }
    }

    /// Adds an entry that was compared with [`Draft::stored`].
    pub(super) fn write(&mut self, key: Key, entry: Entry) {
        self.written.extend(entry.stamp().cloned().map(|stamp| (key, stamp)));
        self.batch.entries.push(entry);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::{
        AccountingResource, CompanyId, Customer, Epoch, Origin, Rank, RecordId, SequenceVersion, Value,
        Version,
    };
    use proptest::prelude::*;

    use super::*;
    use crate::{
        publish::Original,
        records::schedule::{Change, Content, Source},
    };

    fn subject(in_company: bool) -> Subject {
        let (company, id) = (CompanyId::new("c").unwrap(), RecordId::new("r").unwrap());
        Subject { resource: AccountingResource::Customers, company, id, in_company }
    }

    fn entry(subject: Subject, change: Change) -> Entry {
        let event = Arc::new(Source {
            original: Original::default(),
            id: "e".to_owned(),
            trace: None,
            received_at: 1,
            happened_at: 1,
            origin: Origin::Enrichment,
        });
        Entry::new(Some(subject), event, vec![change], Vec::new())
    }

    fn publish(stamp: Stamp, over: Option<Stamp>) -> Change {
        let value: Value = Customer::from_json(b"{}", &CompanyId::new("c").unwrap()).unwrap().into();
        Change::Publish { value: Content::Value(Arc::new(value)), stamp, size: 2, over: over.map(Box::new) }
    }

    fn number(number: u64) -> SequenceVersion {
        SequenceVersion::parse(number.to_string()).unwrap()
    }

    fn sequence(version: u64, rank: Rank) -> Stamp {
        Stamp { epoch: Epoch(0), version: Version::Sequence(number(version)), rank, deleted: false }
    }

    #[test]
    fn of_two_subjects_of_one_key_the_newest_is_written_last() {
        // The id of the tenant is that of a company too.
        assert_eq!(subject(true).fence_key(), subject(false).fence_key());
        for (versions, written) in [([7, 5], &[7][..]), ([5, 7], &[5, 7])] {
            let entries = [true, false].into_iter().zip(versions);
            let entries = entries.map(|(in_company, version)| {
                entry(subject(in_company), publish(sequence(version, Rank::ById), None))
            });
            let batch = Batch { entries: entries.collect(), ..Batch::default() };

            let (draft, regressions) = Draft::new(batch, &|_| Ok(None), |_, _| false).unwrap();

            let stamps: Vec<Stamp> = draft.batch.entries.iter().filter_map(Entry::stamp).cloned().collect();
            let written: Vec<Stamp> = written.iter().map(|one| sequence(*one, Rank::ById)).collect();
            assert_eq!((stamps, regressions, draft.batch.entries.len()), (written, Vec::new(), 2));
        }
    }

    #[test]
    fn waiting_page_contradicts_the_next_epoch() {
        let stored = sequence(100, Rank::ById);
        for is_shown in [true, false] {
            let next = Stamp { epoch: Epoch(1), ..sequence(51, Rank::ById) };
            let entries = vec![entry(subject(true), publish(next, Some(stored.clone())))];
            let batch = Batch { entries, ..Batch::default() };

            let fence = |_: &Key| Ok(Some(stored.clone()));
            let (draft, regressions) =
                Draft::new(batch, &fence, |_, over| is_shown && *over == stored).unwrap();

            let is_raised = draft.batch.entries.iter().any(Entry::raises_epoch);
            assert_eq!((is_raised, regressions.len()), (!is_shown, usize::from(!is_shown)));
        }
    }

    /// A candidate version of one record, and its source.
    #[derive(Debug, Clone)]
    enum Candidate {
        /// The scheduler has read it by id; the second number is the content of a record without a version.
        Read(u64, Option<u8>),
        /// The scheduler deletes it.
        Ended(u64),
        /// A row of a list shows it.
        Row(u64),
    }

    impl Candidate {
        fn stamp(&self) -> Stamp {
            match self {
                Self::Read(version, None) => sequence(*version, Rank::ById),
                Self::Read(version, Some(content)) => {
                    let version = Version::content(Some(number(*version)), &[*content]);
                    Stamp { version, ..sequence(0, Rank::ById) }
                }
                Self::Ended(version) => Stamp { deleted: true, ..sequence(*version, Rank::ById) },
                Self::Row(version) => sequence(*version, Rank::List),
            }
        }

        fn entry(&self) -> Entry {
            let change = match self {
                Self::Ended(_) => Change::Tombstone { stamp: self.stamp() },
                _ => publish(self.stamp(), None),
            };
            entry(subject(true), change)
        }
    }

    fn candidate() -> impl Strategy<Value = Candidate> {
        prop_oneof![
            3 => (1_u64..8, proptest::option::of(0_u8..3)).prop_map(|(version, content)| Candidate::Read(version, content)),
            1 => (1_u64..8).prop_map(Candidate::Ended),
            3 => (1_u64..8).prop_map(Candidate::Row),
        ]
    }

    proptest! {
        /// Rows may be written before earlier decisions of the scheduler.
        #[test]
        fn entries_and_rows_in_any_order_end_at_the_newest(
            batches in proptest::collection::vec(proptest::collection::vec(candidate(), 0..6), 1..8)
        ) {
            let mut last: Option<Stamp> = None;
            for candidates in &batches {
                let (rows, read): (Vec<_>, Vec<_>) =
                    candidates.iter().partition(|one| matches!(one, Candidate::Row(_)));
                let batch =
                    Batch { entries: read.iter().map(|one| one.entry()).collect(), ..Batch::default() };
                let fence = |_: &Key| Ok(last.clone());
                let (mut draft, _) = Draft::new(batch, &fence, |_, _| false).unwrap();
                for row in rows {
                    let key = subject(true).fence_key();
                    if row.stamp().against(draft.stored(&key).unwrap().as_ref()).publishes() {
                        draft.write(key, row.entry());
                    }
                }
                for stamp in draft.batch.entries.iter().filter_map(Entry::stamp).cloned().collect::<Vec<_>>() {
                    prop_assert!(stamp.against(last.as_ref()).publishes(), "{stamp:?} after {last:?}");
                    last = Some(stamp);
                }
            }
            let newest = batches.iter().flatten().map(Candidate::stamp).max_by_key(|one| one.version.number().cloned());
            let numbers = [newest, last].map(|one| one.and_then(|one| one.version.number().cloned()));
            prop_assert_eq!(&numbers[0], &numbers[1]);
        }
    }
}
