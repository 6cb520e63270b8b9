//! Verification: compares a list of the source with a topic. Each difference is counted once, and only when it is certain.
//!
//! ```text
//! row ─▶ fence, and digest of the topic's record: equal? ─▶ nothing
//!          └─ suspect ─▶ after all pages: compared again ─▶ equal by now ─▶ nothing
//!                          └─ read by id if that may explain or repair it ─▶ counted, or published and counted as repaired
//! known, but on no page ─▶ read by id ─▶ disabled: counted as such; else unlisted or vanished
//! in the topic, but unknown ─▶ after all lists: still unknown ─▶ foreign
//! ```
//!
//! - A record with an event in flight is no difference: records that the topic lacks or has in an older version are compared again
//!   for `enrich.park.after.ms` after the last page. A record that reached the topic after its first reading may be on no page.
//! - Records that the topic has in a newer version, as deleted, or with other content are read by id before they count: a page may be
//!   older than a later read by id, and a row may have members that the record by id lacks. The answer is at least as new as the
//!   fence entry at the time of the request. The entry may become newer afterwards, which is no difference.
//! - Contents are compared if the topic was read after the fence had that version, and the fence still has it.
//! - A difference is counted with the batch of its last comparison, so that no two passes count it.
//! - A repair publishes only records that the source shows, under the version that it shows. All others stay unchanged.

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
    Active, Getting, Got, LOOK, Lists, PartContent, Stage, UnlistedReads, What,
    job::{Answer, Job},
    pages::Fresh,
    topic::{self, Holds, View},
};
use crate::records::{
    fence::ShardFence,
    schedule::Subject,
    task::{Shared, micros},
};

/// Suspects of one list. Rows beyond this number are counted without a second look, and their contents are not compared.
const MOST_SUSPECTS: usize = 10_000;

/// A record that seems to differ.
#[derive(Debug)]
pub(super) struct Suspect {
    pub(super) kind: Difference,
    /// Stamp of its row.
    pub(super) stamp: Stamp,
    /// Digest of its row, if rows are whole records.
    pub(super) digest: Option<u64>,
    /// The record, if it can be read by id.
    pub(super) subject: Option<Subject>,
    /// Its row, if it cannot be read by id.
    pub(super) row: Option<Box<Fresh>>,
    /// Fence entry at the last comparison.
    pub(super) stored: Option<Stamp>,
    /// Since when the fence has the version of the row; `None` if it has another one.
    pub(super) written_at: Option<i64>,
}

/// The comparison of one list.
#[derive(Debug, Default)]
pub(super) struct Comparing {
    suspects: HashMap<Key, Suspect>,
    /// Until when to wait for events in flight; microseconds since 1970.
    waits_until: Option<i64>,
}

/// How a row or record differs from the fence and the topic.
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
    /// Number of suspects that may be added.
    pub(super) fn room(&self) -> usize {
        MOST_SUSPECTS.saturating_sub(self.suspects.len())
    }

    pub(super) fn add(&mut self, suspects: Vec<(Key, Suspect)>) {
        self.suspects.extend(suspects);
    }

    /// Drops suspects that no longer differ.
    fn look(&mut self, list: List, fence: &ShardFence, view: &View, now: i64) {
        self.suspects.retain(|key, suspect| {
            // The next write reports a failure of the local fence database.
            let Ok(stored) = fence.get(&Key::fence(list.topic(), key)) else { return true };
            suspect.look(stored, view.get(key), now)
        });
    }

    /// Whether the topic must be read again, because the fence had the version of a suspect only after the last reading.
    fn needs_topic(&self, view: &View) -> bool {
        let is_unseen = |one: &Suspect| one.written_at.is_some_and(|written| !view.is_newer_than(written));
        self.suspects.values().any(is_unseen)
    }

    /// Whether to wait, because suspects may have events in flight.
    fn waits(&mut self, limit: i64, now: i64) -> bool {
        let may_come = |one: &Suspect| {
            one.written_at.is_none() && matches!(one.kind, Difference::Missing | Difference::Behind)
        };
        self.suspects.values().any(may_come) && self.may_wait(limit, now)
    }

    /// Whether there is time left to wait for events in flight.
    pub(super) fn may_wait(&mut self, limit: i64, now: i64) -> bool {
        now < *self.waits_until.get_or_insert(now.saturating_add(limit))
    }

    /// Takes the suspects that need no read by id.
    fn take_certain(&mut self, repair: bool) -> Vec<(Key, Suspect)> {
        let certain = self.suspects.extract_if(|_, one| !one.is_read(repair));
        certain.collect()
    }

    /// The suspect of a key.
    pub(super) fn suspect(&self, key: &Key) -> Option<&Suspect> {
        self.suspects.get(key)
    }

    /// Queues the other suspects to be read by id.
    pub(super) fn ask(&self, reads: &mut UnlistedReads) {
        let subjects = self.suspects.values().filter_map(|one| one.subject.as_ref());
        reads.waiting.extend(subjects.map(|one| (one.company.clone(), one.id.clone(), 1)));
    }
}

impl Suspect {
    /// Compares again, and returns whether it still differs. It does not if the topic has a newer version by now.
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

    /// Whether to read it by id, which may explain or repair it.
    fn is_read(&self, repair: bool) -> bool {
        self.subject.is_some()
            && match self.kind {
                Difference::Ahead | Difference::Deleted | Difference::Content => true,
                kind => repair && kind.can_be_repaired(),
            }
    }
}

impl Lists {
    /// Continues the comparison of a list: reads the topic, and queues differences that are certain. Returns whether the list may go on
    /// with its requests.
    pub(super) fn advance_comparison(
        &mut self,
        number: u64,
        getting: &mut Getting,
        fence: &ShardFence,
        now: i64,
    ) -> bool {
        let (shared, shard) = (&self.shared, self.shard);
        let Some(job) = self.jobs.get_mut(&number) else { return true };
        let (is_settled, is_proved) = (job.is_settled(), job.is_proved());
        let Job { run, what: What::List(collection), comparing: Some(comparing), .. } = job else {
            return true;
        };
        let is_wanted = |active: &&mut Active| active.wanted == DesiredRunState::Running;
        let Some(active) = self.runs.get_mut(&run.id).filter(is_wanted) else { return true };
        let view = active.views.entry(collection.list).or_default();
        let of = (&run.id, collection.list);
        match &job.stage {
            Stage::Pages if !view.is_ready() => {
                read_topic(view, of, getting, (shared, shard, fence), now);
                false
            }
            Stage::Pages => match &job.proof.sample {
                Some(sample) if sample.needs_count() => {
                    job.stage = Stage::Asking;
                    let shards = if collection.list.spans_companies() {
                        shared.output.preparer.partitions()
                    } else {
                        1
                    };
                    let shards = u64::try_from(shards).unwrap_or(1);
                    getting.push(count(number, collection.list, collection.company.as_ref(), fence, shards));
                    false
                }
                _ => true,
            },
            Stage::Scan if is_settled && job.requests.due <= now => {
                comparing.look(collection.list, fence, view, now);
                let needs_topic = comparing.needs_topic(view);
                if needs_topic {
                    read_topic(view, of, getting, (shared, shard, fence), now);
                }
                if needs_topic || comparing.waits(micros(shared.source.enrich.park_after), now) {
                    job.requests.due = now.saturating_add(LOOK);
                    return false;
                }
                let certain = comparing.take_certain(run.verification.repair);
                if !certain.is_empty() {
                    let bytes = 512 * certain.len();
                    self.put(number, PartContent::Found(certain), bytes);
                    return false;
                }
                // An unproved or filtered list does not show which records are unlisted.
                if !is_proved || job.proof.filter.is_some() {
                    let mut reads = UnlistedReads::default();
                    comparing.ask(&mut reads);
                    job.stage = Stage::Unlisted(reads);
                }
                true
            }
            _ => true,
        }
    }

    /// Takes the result of reading a topic.
    pub(super) fn topic_read(&mut self, run: RunId, list: List, read: topic::TopicRead, now: i64) {
        let Some(view) = self.runs.get_mut(&run).and_then(|active| active.views.get_mut(&list)) else {
            return;
        };
        if let Err(why) = view.take(read, |tries| self.shared.wait(tries), now) {
            tracing::warn!(connector = &*self.shared.task.connector, shard = self.shard, %list, why,
                is_given_up = view.is_ready(), "cannot read a topic to compare its records");
        }
    }

    /// Takes the answer to a read by id.
    pub(super) fn looked_up(&mut self, number: u64, subject: Subject, tries: u32, answer: Answer) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        let Stage::Unlisted(reads) = &mut job.stage else { return };
        reads.open = reads.open.saturating_sub(1);
        if answer == Answer::Again {
            reads.waiting.push_back((subject.company, subject.id, tries + 1));
            return;
        }
        let bytes = 512 + if let Answer::There(json) = &answer { json.len() } else { 0 };
        self.put(number, PartContent::Looked(Box::new((subject, answer))), bytes);
    }
}

/// Reads the new records of a list's topic, if that is due.
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

/// Estimates the number of known records of a list that `shards` shards share.
fn count(
    number: u64,
    list: List,
    company: Option<&CompanyId>,
    fence: &ShardFence,
    shards: u64,
) -> BoxFuture<'static, Got> {
    let counted = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&counted);
    // Count without collecting.
    let known = fence.known(list.topic(), company, move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        false
    });
    async move {
        let known = known.await.map(|_| counted.load(Ordering::Relaxed));
        Got::Counted(number, known.map(|own| own.saturating_mul(shards)))
    }
    .boxed()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use model::{AccountingResource, Epoch, Rank, RecordId, Value};

    use super::{super::topic::digest, *};

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
    fn suspect_is_dropped_once_the_topic_has_caught_up() {
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
    fn topic_is_read_again_if_older_than_the_fence_entry() {
        let mut view = View::of([]);
        let mut comparing = Comparing::default();
        comparing.add(vec![(subject().key(), suspect(Difference::Behind))]);
        assert!(!comparing.needs_topic(&view), "the fence does not have it yet");
        comparing.suspects.get_mut(&subject().key()).unwrap().written_at = Some(7);
        assert!(comparing.needs_topic(&view));

        for (started, needs) in [(7, true), (8, false)] {
            view.begin(started).unwrap();
            view.take(Ok((topic::Digests::new(1), None)), |_| 0, started).unwrap();
            assert_eq!(comparing.needs_topic(&view), needs, "{started}");
        }
    }

    #[test]
    fn only_records_in_flight_are_awaited_up_to_a_limit() {
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
    fn suspects_are_read_by_id_if_that_explains_or_repairs() {
        let certain = |kind, repair| {
            let mut comparing = Comparing::default();
            comparing.add(vec![(subject().key(), suspect(kind))]);
            let certain = comparing.take_certain(repair).len();
            let mut reads = UnlistedReads::default();
            comparing.ask(&mut reads);
            assert_eq!(certain + reads.waiting.len(), 1);
            certain == 1
        };

        assert!(certain(Difference::Missing, false) && !certain(Difference::Missing, true));
        assert!(!certain(Difference::Content, false) && !certain(Difference::Ahead, false));
        assert!(certain(Difference::Incomparable, true));
    }
}
