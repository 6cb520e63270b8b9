//! The source against a topic: what of a list differs, counted once and only when that is sure.
//!
//! ```text
//! row ─▶ fence, and a digest of what the topic holds: the same? ─▶ nothing
//!          └─ suspect ─▶ once all pages are read: looked at again ─▶ the same by now ─▶ nothing
//!                          └─ read by id where that may explain it, or is to be mended ─▶ counted, or published and counted as mended
//! known, and on no page ─▶ read by id ─▶ disabled: counted as such; else unlisted or vanished
//! in the topic, and not known ─▶ once all lists are over: still not known ─▶ foreign
//! ```
//!
//! - A record whose event is on its way is no difference: what the topic lacks or has older is looked at again for
//!   `enrich.park.after.ms` after the last page. One that came to the topic since it was first read is on no page for a good reason.
//! - What the topic has newer, has deleted, or has with another content is read by id before it is counted: a page may be older than
//!   what was read by id since, and a row may show members that the record by its id does not. What is read so is newer than what
//!   stood in the fence when it was asked for; what stands there later may be newer still, and is not held against it.
//! - Contents are compared where the topic was read after the fence had that version, and still has it.
//! - What was found is counted with the batch in which it is compared for the last time, so that no two passes count it.
//! - Mended is only what the source shows, under the version that it shows; what it does not show stays as it is.

mod finding;
mod strangers;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use futures::{FutureExt as _, future::BoxFuture};

use model::{CompanyId, Comparison, DesiredRunState, Difference, Key, List, RunId, Stamp};

pub(super) use self::{
    finding::{Finding, Looked},
    strangers::Strangers,
};
use super::{
    Getting, Got, LOOK, Lists, Missing, Stage, What, Written,
    job::{Answer, Job},
    pages::Fresh,
    topic::{self, Holds, View},
};
use crate::records::{
    fence::ShardFence,
    proof::Reading,
    schedule::Subject,
    task::{Shared, micros},
};

/// Suspects of one list that are looked at again. What is above is counted as its row says, and contents are not compared.
const MOST_SUSPECTS: usize = 10_000;

/// A record that seems to differ.
#[derive(Debug)]
pub(super) struct Suspect {
    pub(super) kind: Difference,
    /// What its row shows.
    pub(super) stamp: Stamp,
    /// Of its row, where rows are whole records.
    pub(super) digest: Option<u64>,
    /// What is read by its id, where that can be.
    pub(super) subject: Option<Subject>,
    /// Its row, where nothing can be read by its id.
    pub(super) row: Option<Box<Fresh>>,
    /// What the fence said when it was last looked at.
    pub(super) stored: Option<Stamp>,
    /// Since when the fence says that the topic has this version; `None` where it says otherwise.
    pub(super) written_at: Option<i64>,
}

/// What is compared of one list.
#[derive(Debug, Default)]
pub(super) struct Comparing {
    suspects: HashMap<Key, Suspect>,
    /// Until then it may be the same yet.
    waits_until: Option<i64>,
}

/// How a row, or a record, differs from what the fence and the topic say.
pub(super) fn difference(
    stamp: &Stamp,
    digest: Option<u64>,
    stored: Option<&Stamp>,
    holds: Holds,
) -> Option<Difference> {
    match stamp.against(stored) {
        Comparison::First => Some(Difference::Missing),
        Comparison::Newer => Some(Difference::Behind),
        Comparison::Older => Some(Difference::Ahead),
        Comparison::BehindDelete => Some(Difference::Deleted),
        Comparison::Incomparable => Some(Difference::Incomparable),
        Comparison::Same | Comparison::HigherRank => match (digest, holds) {
            (_, Holds::Nothing) => Some(Difference::Missing),
            (Some(own), Holds::Record { digest, .. }) if own != digest => Some(Difference::Content),
            _ => None,
        },
    }
}

impl Comparing {
    /// How many more there may be.
    pub(super) fn room(&self) -> usize {
        MOST_SUSPECTS.saturating_sub(self.suspects.len())
    }

    pub(super) fn add(&mut self, suspects: Vec<(Key, Suspect)>) {
        self.suspects.extend(suspects);
    }

    /// Leaves out what is the same by now.
    fn look(&mut self, list: List, fence: &ShardFence, view: &View, now: i64) {
        self.suspects.retain(|key, suspect| {
            // A store that fails is found so by whoever writes next.
            let Ok(stored) = fence.get(&Key::fence(list.topic(), key)) else { return true };
            suspect.look(stored, view.get(key), now)
        });
    }

    /// Whether the topic has to be read once more: it may have what the fence says it has.
    fn needs_topic(&self, view: &View) -> bool {
        let is_unseen = |one: &Suspect| one.written_at.is_some_and(|written| !view.is_newer_than(written));
        self.suspects.values().any(is_unseen)
    }

    /// Whether some of it may be on its way.
    fn waits(&mut self, limit: i64, now: i64) -> bool {
        let may_come = |one: &Suspect| {
            one.written_at.is_none() && matches!(one.kind, Difference::Missing | Difference::Behind)
        };
        self.suspects.values().any(may_come) && self.may_wait(limit, now)
    }

    /// Whether there is time left for what may be on its way.
    pub(super) fn may_wait(&mut self, limit: i64, now: i64) -> bool {
        now < *self.waits_until.get_or_insert(now.saturating_add(limit))
    }

    /// Those that nothing more is to be learnt about.
    fn take_certain(&mut self, repair: bool) -> Vec<(Key, Suspect)> {
        let certain = self.suspects.extract_if(|_, one| !one.is_read(repair));
        certain.collect()
    }

    /// What a row has led to.
    pub(super) fn suspect(&self, key: &Key) -> Option<&Suspect> {
        self.suspects.get(key)
    }

    /// Has the others read by id.
    pub(super) fn ask(&self, missing: &mut Missing) {
        let subjects = self.suspects.values().filter_map(|one| one.subject.as_ref());
        missing.waiting.extend(subjects.map(|one| (one.company.clone(), one.id.clone(), 1)));
    }
}

impl Suspect {
    /// Whether it still differs. What the topic has passed meanwhile does not.
    fn look(&mut self, stored: Option<Stamp>, holds: Holds, now: i64) -> bool {
        let found = difference(&self.stamp, self.digest, stored.as_ref(), holds);
        let is_written = self.stamp.is_of(stored.as_ref());
        self.written_at = is_written.then(|| self.written_at.unwrap_or(now));
        self.stored = stored;
        let is_passed = found == Some(Difference::Ahead) && self.kind != Difference::Ahead;
        match found.filter(|_| !is_passed) {
            Some(kind) => self.kind = kind,
            None => return false,
        }
        true
    }

    /// Whether it is read by id: that may explain it, or is what mends it.
    fn is_read(&self, repair: bool) -> bool {
        self.subject.is_some()
            && match self.kind {
                Difference::Ahead | Difference::Deleted | Difference::Content => true,
                kind => repair && kind.can_be_repaired(),
            }
    }
}

impl Lists {
    /// Whether a list may go on: the topic that it is compared with was read, and what differs in it is sure.
    pub(super) fn is_compared(
        &mut self,
        number: u64,
        getting: &mut Getting,
        fence: &ShardFence,
        now: i64,
    ) -> bool {
        let (runs, shared, shard) = (&self.runs, &self.shared, self.shard);
        self.views.retain(|(run, _), _| runs.contains_key(run));
        let Some(job) = self.jobs.get_mut(&number) else { return true };
        let is_settled = job.is_settled();
        let Job { run, what: What::List(collection), comparing: Some(comparing), .. } = job else {
            return true;
        };
        if runs.get(&run.id).is_none_or(|active| active.wanted != DesiredRunState::Running) {
            return true;
        }
        let view = self.views.entry((run.id.clone(), collection.list)).or_default();
        let of = (&run.id, collection.list);
        match &job.stage {
            Stage::Pages if !view.is_ready() => {
                read_topic(view, of, getting, (shared, shard, fence), now);
                false
            }
            Stage::Pages => match &job.sample {
                Some(sample) if sample.needs_count() => {
                    job.stage = Stage::Asking;
                    let shards =
                        if collection.list.spans_companies() { shared.preparer.partitions() } else { 1 };
                    getting.push(count(number, collection.list, collection.company.as_ref(), fence, shards));
                    false
                }
                _ => true,
            },
            Stage::Compare if is_settled && job.due <= now => {
                comparing.look(collection.list, fence, view, now);
                let needs_topic = comparing.needs_topic(view);
                if needs_topic {
                    read_topic(view, of, getting, (shared, shard, fence), now);
                }
                if needs_topic || comparing.waits(micros(shared.source.enrich.park_after), now) {
                    job.due = now.saturating_add(LOOK);
                    return false;
                }
                let certain = comparing.take_certain(run.repair);
                if !certain.is_empty() {
                    let bytes = 512 * certain.len();
                    self.put(number, Written::Found(certain), bytes);
                    return false;
                }
                // Of what is not proved complete, nothing can be said that is missing; of part of a list neither.
                if !job.reading.as_ref().is_some_and(Reading::is_proved) || job.filter.is_some() {
                    let mut missing = Missing::default();
                    comparing.ask(&mut missing);
                    job.stage = Stage::Missing(missing);
                }
                true
            }
            _ => true,
        }
    }

    /// A topic was read.
    pub(super) fn topic_read(&mut self, run: RunId, list: List, read: topic::Read, now: i64) {
        let Some(view) = self.views.get_mut(&(run, list)) else { return };
        if let Err(why) = view.take(read, |tries| self.shared.wait(tries), now) {
            tracing::warn!(connector = &*self.shared.task.connector, shard = self.shard, %list, why,
                is_given_up = view.is_ready(), "what a topic holds cannot be compared");
        }
    }

    /// What was asked for by id has come, or will not.
    pub(super) fn looked_up(&mut self, number: u64, subject: Subject, tries: u32, answer: Answer) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        let Stage::Missing(missing) = &mut job.stage else { return };
        missing.open = missing.open.saturating_sub(1);
        if answer == Answer::Again {
            missing.waiting.push_back((subject.company, subject.id, tries + 1));
            return;
        }
        let bytes = 512 + if let Answer::There(json) = &answer { json.len() } else { 0 };
        self.put(number, Written::Looked(Box::new((subject, answer))), bytes);
    }
}

/// Reads what has come to the topic of a list, where that is due.
fn read_topic(
    view: &mut View,
    (run, list): (&RunId, List),
    getting: &mut Getting,
    (shared, shard, fence): (&Arc<Shared>, i32, &ShardFence),
    now: i64,
) {
    let Some(start) = view.begin(now) else { return };
    let (shared, run, fence) = (Arc::clone(shared), run.clone(), fence.lookup());
    let reading = async move { Got::Topic(run, list, topic::read(shared, list, shard, start, fence).await) };
    getting.push(reading.boxed());
}

/// How many records of a list are known, where each of so many shards knows its own part of it. Rounded up to a power of two then,
/// so that shards look at the same pages although each of them knows another number.
fn count(
    number: u64,
    list: List,
    company: Option<&CompanyId>,
    fence: &ShardFence,
    shards: i32,
) -> BoxFuture<'static, Got> {
    let counted = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&counted);
    // Counted, and none of them kept.
    let known = fence.known(list.topic(), company, move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        false
    });
    async move {
        let known = known.await.map(|_| counted.load(Ordering::Relaxed));
        Got::Counted(number, known.map(|own| of_all(own, shards)))
    }
    .boxed()
}

/// How many all shards know, as far as one can tell.
fn of_all(own: u64, shards: i32) -> u64 {
    match u64::try_from(shards) {
        Ok(shards) if shards > 1 => {
            own.saturating_mul(shards).checked_next_power_of_two().unwrap_or(u64::MAX)
        }
        _ => own,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use model::{AccountingResource, Epoch, Rank, RecordId, Value};

    use super::{super::topic::digest, *};

    #[test]
    fn shards_that_know_other_numbers_lay_a_sample_over_the_same_pages() {
        assert_eq!(of_all(57, 1), 57);
        assert_eq!([120, 128, 101].map(|own| of_all(own, 4)), [512; 3]);
        assert_eq!((of_all(0, 4), of_all(u64::MAX, 4)), (1, u64::MAX));
    }

    pub(super) fn subject() -> Subject {
        let (company, id) = (CompanyId::new("c").unwrap(), RecordId::new("a").unwrap());
        Subject { resource: AccountingResource::Customers, company, id, in_company: true }
    }

    pub(super) fn stamp(version: &str, rank: Rank, deleted: bool) -> Stamp {
        Stamp { epoch: Epoch(3), version: version.parse().unwrap(), rank, deleted }
    }

    pub(super) fn json(version: &str, state: &str) -> Bytes {
        format!(r#"{{"correlationId":"a","sequenceVersion":"{version}","state":"{state}"}}"#).into()
    }

    pub(super) fn value(version: &str, state: &str) -> Value {
        let Subject { resource, company, .. } = subject();
        Value::from_resource_json(&json(version, state), resource, &company).unwrap()
    }

    pub(super) fn suspect(kind: Difference) -> Suspect {
        let row = value("9", "Enabled");
        let digest = Some(digest(&row));
        Suspect {
            kind,
            stamp: stamp("9", Rank::List, false),
            digest,
            subject: Some(subject()),
            row: None,
            stored: None,
            written_at: None,
        }
    }

    #[test]
    fn a_suspect_that_the_topic_has_caught_up_with_or_passed_is_none_any_more() {
        use Difference::{Ahead, Behind, Content, Missing};
        let (older, same) = (stamp("8", Rank::ById, false), stamp("9", Rank::ById, false));
        let newer = stamp("10", Rank::ById, false);
        let own = digest(&value("9", "Enabled"));
        let holds = |digest| Holds::Record { digest, is_disabled: false, is_new: false };
        for (before, stored, held, now) in [
            (Missing, None, Holds::Nothing, Some(Missing)),
            (Missing, Some(&older), holds(1), Some(Behind)),
            (Missing, Some(&same), holds(own), None),
            (Missing, Some(&same), Holds::Unknown, None),
            (Behind, Some(&same), holds(1), Some(Content)),
            (Behind, Some(&same), Holds::Nothing, Some(Missing)),
            (Behind, Some(&newer), holds(1), None),
            (Content, Some(&newer), holds(1), None),
            (Ahead, Some(&newer), holds(1), Some(Ahead)),
        ] {
            let mut one = suspect(before);
            assert_eq!(one.look(stored.cloned(), held, 5), now.is_some(), "{before:?} {stored:?}");
            assert!(now.is_none_or(|now| one.kind == now), "{one:?}");
            assert_eq!(one.written_at, (stored == Some(&same)).then_some(5));
        }
    }

    #[test]
    fn a_topic_that_was_read_before_the_fence_had_that_version_is_read_again() {
        let mut view = View::of([]);
        let mut comparing = Comparing::default();
        comparing.add(vec![(subject().key(), suspect(Difference::Behind))]);
        assert!(!comparing.needs_topic(&view), "it is not written yet");
        comparing.suspects.get_mut(&subject().key()).unwrap().written_at = Some(7);
        assert!(comparing.needs_topic(&view));

        for (begun, needs) in [(7, true), (8, false)] {
            view.begin(begun).unwrap();
            view.take(Ok((topic::Digests::new(1), None)), |_| 0, begun).unwrap();
            assert_eq!(comparing.needs_topic(&view), needs, "{begun}");
        }
    }

    #[test]
    fn only_what_may_be_on_its_way_is_waited_for_and_not_for_ever() {
        let waits = |kind, at: &[i64]| {
            let mut comparing = Comparing::default();
            comparing.add(vec![(subject().key(), suspect(kind))]);
            at.iter().map(|now| comparing.waits(10, *now)).collect::<Vec<_>>()
        };

        assert_eq!(waits(Difference::Behind, &[5, 14, 15]), [true, true, false]);
        assert_eq!(waits(Difference::Missing, &[5, 20]), [true, false]);
        for kind in [Difference::Ahead, Difference::Content, Difference::Deleted] {
            assert_eq!(waits(kind, &[5]), [false], "{kind:?}");
        }
    }

    #[test]
    fn what_differs_is_read_by_id_where_that_may_explain_or_mend_it() {
        let certain = |kind, repair| {
            let mut comparing = Comparing::default();
            comparing.add(vec![(subject().key(), suspect(kind))]);
            let certain = comparing.take_certain(repair).len();
            let mut missing = Missing::default();
            comparing.ask(&mut missing);
            assert_eq!(certain + missing.waiting.len(), 1);
            certain == 1
        };

        assert!(certain(Difference::Missing, false) && !certain(Difference::Missing, true));
        assert!(!certain(Difference::Content, false) && !certain(Difference::Ahead, false));
        assert!(certain(Difference::Incomparable, true));
    }
}
