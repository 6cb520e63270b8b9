//! Compares the rows of a page with the fence, and adds the newer ones to the batch.

use std::{collections::HashSet, sync::Arc};

use bytes::Bytes;

use model::{Comparison, Difference, Key, List, Origin, Rank, Run, RunKind, SequenceVersion, Stamp, Version};

use super::{
    comparing::{Suspect, difference},
    pages::Fresh,
    topic::{Holds, View, digest},
};
use crate::{
    plugin,
    publish::{Original, PublishFailure, PublishStage},
    records::{
        schedule::{Change, Content, Entry, Event, Scheduler, Source, Subject, Wanted},
        task::draft::Draft,
    },
};

/// A read by id that a row requests, with the row as its event.
pub(super) type Request = (Wanted, Event);

/// Rows of one page below the fence whose records are read by id, to check for a version regression.
const MOST_REGRESSION_CHECKS: usize = 20;

/// The context of a row.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) run: &'a Run,
    pub(super) list: List,
    /// Whether rows show less than their records.
    pub(super) is_thin: bool,
    pub(super) now: i64,
    /// Knows which records are suspected of a version regression.
    pub(super) scheduler: &'a Scheduler,
    /// Records that were given up and are not requested again.
    pub(super) lost: &'a HashSet<Subject>,
    /// Digests of the topic, if the run verifies.
    pub(super) view: Option<&'a View>,
    /// Number of suspects that may be added.
    pub(super) room: usize,
}

/// Results of the rows of a page.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) rows: u64,
    pub(super) published: u64,
    /// Rows that seem to differ, if the run verifies.
    pub(super) suspects: Vec<(Key, Suspect)>,
    /// Certain differences, each with whether the batch repairs it.
    pub(super) differences: Vec<(Difference, bool)>,
    /// Rows whose content was compared.
    pub(super) contents: u64,
    /// Rows without a version that can be compared.
    pub(super) unusable: u64,
    /// Read requests of thin rows.
    pub(super) requests: Vec<Request>,
    /// Checks for a version regression, of rows below the published version.
    pub(super) regression_checks: Vec<Request>,
    /// Suspected records whose row shows the published version.
    pub(super) cleared: Vec<Subject>,
}

impl Draft<'_> {
    /// Adds a record that was read by id, if it is newer.
    pub(super) fn add_record(&mut self, mut entry: Entry) -> Result<(), plugin::Failure> {
        let Some(subject) = &entry.subject else { return Ok(()) };
        let key = subject.fence_key();
        let before = self.stored(&key)?;
        for change in &mut entry.changes {
            if let Change::Publish { stamp, .. } = change {
                *stamp = Stamp::reading(stamp.version.clone(), stamp.rank, before.as_ref());
            }
        }
        entry.compare_again(before.as_ref());
        if entry.stamp().is_some() {
            self.write(key, entry);
        }
        Ok(())
    }

    /// The request to read a record without a version, if it differs from the published one. A list may have read it before an event
    /// changed it, which no version would show. The scheduler has one read of a record in flight at a time, so it can order them.
    pub(super) fn ask_for(&self, entry: &Entry) -> Result<Option<Request>, plugin::Failure> {
        let (Some(subject), Some(stamp)) = (&entry.subject, entry.stamp()) else { return Ok(None) };
        let before = self.stored(&subject.fence_key())?;
        // Nothing follows if the published record carries a version or is deleted.
        let is_news = before.is_none_or(|before| {
            let is_untold = matches!(before.version, Version::Content { .. }) && !before.deleted;
            is_untold && !stamp.version.has_content_of(&before.version)
        });
        let wanted = Wanted { subject: subject.clone(), floor: None, is_delete: false };
        Ok(is_news.then(|| (wanted, Event::clone(&entry.event))))
    }

    /// Whether a record that was read by id has the published version or a newer one.
    pub(super) fn reaches(&self, entry: &Entry) -> Result<bool, plugin::Failure> {
        let (Some(subject), Some(stamp)) = (&entry.subject, entry.stamp()) else { return Ok(false) };
        let before = self.stored(&subject.fence_key())?;
        Ok(before.is_some_and(|before| stamp.version.reaches(&before)))
    }

    /// Adds the rows that are newer.
    pub(super) fn add_rows<'r>(
        &mut self,
        context: Context<'_>,
        rows: impl Iterator<Item = &'r Fresh>,
    ) -> Result<Tally, plugin::Failure> {
        let mut tally = Tally::default();
        for row in rows {
            tally.rows += 1;
            self.add_row(context, row, &mut tally)?;
        }
        Ok(tally)
    }

    fn add_row(
        &mut self,
        context: Context<'_>,
        row: &Fresh,
        tally: &mut Tally,
    ) -> Result<(), plugin::Failure> {
        let is_compared = context.run.kind == RunKind::Verify;
        let Some(version) = row.version.clone() else {
            tally.unusable += 1;
            if is_compared {
                tally.differences.push((Difference::Unversioned, false));
            } else {
                self.batch.entries.push(unversioned(context, row));
            }
            return Ok(());
        };
        let key = Key::fence(context.list.topic(), &row.key);
        let before = self.stored(&key)?;
        let stamp = Stamp::reading(version, Rank::List, before.as_ref());
        let comparison = stamp.against(before.as_ref());
        // In every kind of run: a verification has seen the row too, although it writes nothing.
        if before.as_ref().is_some_and(|before| stamp.version.reaches(before))
            && let Some(subject) =
                row.subject.as_ref().filter(|subject| context.scheduler.is_suspected(subject))
        {
            tally.cleared.push(subject.clone());
        }
        if is_compared && !tally.compare(context, row, &stamp, before.as_ref()) {
            return Ok(());
        }
        match comparison {
            comparison if comparison.publishes() && context.is_thin => {
                let request = request(context, row, &stamp);
                tally.requests.extend(request.filter(|(wanted, _)| !context.lost.contains(&wanted.subject)));
            }
            comparison if comparison.publishes() => {
                self.write(key, entry_of_row(context, row, stamp));
                tally.published += 1;
            }
            Comparison::Older | Comparison::BehindDelete => {
                base::metrics::row_was_old();
                if tally.regression_checks.len() < MOST_REGRESSION_CHECKS {
                    tally.regression_checks.extend(request(context, row, &stamp));
                }
            }
            _ => {}
        }
        Ok(())
    }
}

impl Tally {
    /// Notes how a row differs. Returns whether to write it at once, which only happens if there are too many suspects to compare again.
    fn compare(&mut self, context: Context<'_>, row: &Fresh, stamp: &Stamp, before: Option<&Stamp>) -> bool {
        let holds = context.view.map_or(Holds::Unknown, |view| view.get(&row.key));
        let value = if context.is_thin { None } else { row.value().ok() };
        let digest = value.map(|value| digest(&value));
        let is_content = digest.is_some() && holds != Holds::Unknown;
        let Some(kind) = difference(stamp, digest, before, holds) else {
            self.contents += u64::from(is_content);
            return false;
        };
        if self.suspects.len() < context.room {
            self.contents += u64::from(is_content);
            let subject = row.subject.clone();
            let kept = subject.is_none().then(|| Box::new(alone(row)));
            let stamp = stamp.clone();
            let suspect = Suspect { kind, stamp, digest, subject, row: kept, stored: None, written_at: None };
            self.suspects.push((row.key.clone(), suspect));
            return false;
        }
        let comparison = stamp.against(before);
        if comparison == Comparison::Same {
            // The topic may have it by now, so it is not counted.
            return false;
        }
        let mends = context.run.verification.repair && comparison.publishes();
        self.differences.push((kind, mends));
        mends
    }
}

/// The entry that publishes a row.
pub(super) fn entry_of_row(context: Context<'_>, row: &Fresh, stamp: Stamp) -> Entry {
    let change = Change::Publish { value: row.content(), stamp, size: row.raw.len(), over: None };
    let event = Arc::new(source(context, row));
    Entry::new(row.subject.clone(), event, vec![change], Vec::new())
}

/// The entry that publishes a record that was read by id; `None` if the record is unusable. The last argument is the version in its row,
/// for a record without a version.
pub(super) fn entry_of_record(
    run: &Run,
    subject: &Subject,
    json: &Bytes,
    told: Option<&SequenceVersion>,
) -> Option<Entry> {
    let value = subject.record(json).ok()??;
    let stamp = Stamp::reading(value.version_or(told), Rank::ById, None);
    let key = Bytes::copy_from_slice(subject.key().as_str().as_bytes());
    let event = Arc::new(Source {
        original: Original { key, value: json.clone(), place: None },
        id: format!("{}/{}", run.id, subject.fence_key()),
        trace: None,
        received_at: run.requested_at,
        happened_at: run.requested_at,
        origin: origin(run),
    });
    let value = Content::Value(Arc::new(value));
    let change = Change::Publish { value, stamp, size: json.len(), over: None };
    Some(Entry::new(Some(subject.clone()), event, vec![change], Vec::new()))
}

fn origin(run: &Run) -> Origin {
    match run.kind {
        RunKind::Verify if run.verification.repair => Origin::Repair,
        RunKind::Repair => Origin::Repair,
        RunKind::Snapshot | RunKind::Verify => Origin::Snapshot,
    }
}

/// The source of a row, for the headers of its record.
fn source(context: Context<'_>, row: &Fresh) -> Source {
    Source {
        original: Original {
            key: Bytes::copy_from_slice(row.key.as_str().as_bytes()),
            value: row.raw.clone(),
            place: None,
        },
        id: format!("{}/{}/{}", context.run.id, context.list, row.key),
        trace: None,
        received_at: context.now,
        happened_at: context.now,
        origin: origin(context.run),
    }
}

/// A copy of a row that does not keep its whole page in memory.
fn alone(row: &Fresh) -> Fresh {
    Fresh { raw: Bytes::copy_from_slice(&row.raw), ..row.clone() }
}

/// The request to read at least the version that a row shows; `None` if the record cannot be read by id.
fn request(context: Context<'_>, row: &Fresh, stamp: &Stamp) -> Option<Request> {
    let (subject, floor) = (row.subject.clone()?, stamp.version.number().cloned());
    let wanted = Wanted { subject, floor, is_delete: false };
    Some((wanted, Arc::new(source(context, &alone(row)))))
}

/// The dead letter of a row whose version cannot be compared.
fn unversioned(context: Context<'_>, row: &Fresh) -> Entry {
    let message = match row.value().and_then(|value| value.version()) {
        Err(error) => error.to_string(),
        Ok(_) => "the row has no version, so it cannot be compared with the published record".to_owned(),
    };
    let class = "model::Error::Unversioned";
    let failure = PublishFailure { stage: PublishStage::Read, class, message, causes: Vec::new() };
    Entry::new(None, Arc::new(source(context, row)), vec![Change::DeadLetter(failure)], Vec::new())
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use model::{CompanyId, Customer, Epoch, Value};

    use super::*;
    use crate::records::{
        schedule::{Batch, ParkCause, Parked},
        task::draft::Stored,
    };

    fn run(kind: RunKind) -> Run {
        serde_json::from_value(serde_json::json!({
            "connector": "records", "id": "r", "kind": kind.name(), "lists": ["customers"],
            "requestedBy": "test", "requestedAt": 1,
        }))
        .unwrap()
    }

    fn row(id: &str, version: &str) -> Fresh {
        let raw = format!(r#"{{"correlationId":"{id}","sequenceVersion":{version}}}"#);
        let company = CompanyId::new("c").unwrap();
        let value: Value = Customer::from_json(raw.as_bytes(), &company).unwrap().into();
        Fresh::new(&value, raw.into()).unwrap()
    }

    fn stamp(version: &str, rank: Rank, deleted: bool) -> Stamp {
        Stamp { epoch: Epoch(3), version: version.parse().unwrap(), rank, deleted }
    }

    /// No record was given up.
    static NONE: LazyLock<HashSet<Subject>> = LazyLock::new(HashSet::new);

    /// A scheduler without records.
    fn scheduler() -> Scheduler {
        Scheduler::new(crate::records::schedule::rules())
    }

    fn context<'a>(run: &'a Run, is_thin: bool, scheduler: &'a Scheduler) -> Context<'a> {
        Context { run, list: List::Customers, is_thin, now: 7, scheduler, lost: &NONE, view: None, room: 1 }
    }

    /// Adds rows to a batch; `stored` is the fence entry of every key.
    fn add(kind: RunKind, is_thin: bool, stored: Option<&Stamp>, rows: &[Fresh]) -> (Batch, Tally) {
        let (run, scheduler) = (run(kind), scheduler());
        let context = context(&run, is_thin, &scheduler);
        let stored = |_: &Key| Ok(stored.cloned());
        let mut draft = draft(Batch::default(), &stored);
        let tally = draft.add_rows(context, rows.iter()).unwrap();
        (draft.batch, tally)
    }

    fn draft<'a>(batch: Batch, stored: &'a Stored<'a>) -> Draft<'a> {
        Draft::new(batch, stored, |_, _| false).unwrap().0
    }

    fn writes_nothing(batch: &Batch) -> bool {
        let Batch { entries, offsets, first, state, certificates } = batch;
        entries.is_empty()
            && offsets.is_empty()
            && first.is_empty()
            && state.is_empty()
            && certificates.is_empty()
    }

    #[test]
    fn only_a_row_that_is_newer_is_written_and_in_the_epoch_that_stands() {
        let table = [
            (None, 1),
            (Some(stamp("8", Rank::ById, false)), 1),
            (Some(stamp("8", Rank::ById, true)), 1),
            (Some(stamp("9", Rank::List, false)), 0),
            (Some(stamp("9", Rank::ById, false)), 0),
            (Some(stamp("10", Rank::ById, false)), 0),
            (Some(stamp("9", Rank::ById, true)), 0),
        ];
        for (stored, published) in table {
            let (batch, tally) = add(RunKind::Snapshot, false, stored.as_ref(), &[row("a", r#""9""#)]);

            assert_eq!((batch.entries.len() as u64, tally.published), (published, published), "{stored:?}");
            let epoch = stored.as_ref().map_or(Epoch(0), |stored| stored.epoch);
            assert!(batch.entries.iter().all(|entry| entry.stamp().unwrap().epoch == epoch));
            assert!(batch.entries.iter().all(|entry| entry.event.origin == Origin::Snapshot));
        }
    }

    #[test]
    fn of_two_rows_of_one_record_the_newer_is_written_last_whatever_their_order() {
        for (rows, published) in
            [([row("a", r#""8""#), row("a", r#""9""#)], 2), ([row("a", r#""9""#), row("a", r#""8""#)], 1)]
        {
            let (batch, tally) = add(RunKind::Snapshot, false, None, &rows);

            assert_eq!(tally.published, published);
            let last = batch.entries.last().unwrap().stamp().unwrap();
            assert_eq!(last.version.to_string(), "9");
        }
    }

    #[test]
    fn a_row_that_is_newer_than_what_its_batch_writes_comes_after_it_and_an_older_one_not_at_all() {
        let (run, mut batch) = (run(RunKind::Snapshot), Batch::default());
        let subject = row("a", r#""9""#).subject.unwrap();
        let json = Bytes::from_static(br#"{"correlationId":"a","sequenceVersion":"9"}"#);
        batch.entries.push(entry_of_record(&run, &subject, &json, None).unwrap());
        let scheduler = scheduler();
        let context = context(&run, false, &scheduler);
        let none = |_: &Key| Ok(None);

        let rows = [row("a", r#""8""#), row("a", r#""9""#), row("a", r#""10""#)];
        let mut draft = draft(batch, &none);
        let tally = draft.add_rows(context, rows.iter()).unwrap();

        let batch = draft.batch;
        assert_eq!((tally.published, batch.entries.len()), (1, 2));
        assert_eq!(batch.entries[1].stamp().unwrap().version.to_string(), "10");
    }

    #[test]
    fn a_thin_row_that_is_newer_asks_for_its_record() {
        let (batch, tally) = add(RunKind::Snapshot, true, None, &[row("a", r#""9""#)]);

        assert!(writes_nothing(&batch), "nothing is kept of it");
        let [(wanted, _)] = &tally.requests[..] else { panic!("{tally:?}") };
        assert_eq!((tally.published, &wanted.floor), (0, &SequenceVersion::parse("9").ok()));
    }

    #[test]
    fn a_record_that_was_lost_is_not_asked_for_in_the_next_pass() {
        let (run, scheduler, rows) = (run(RunKind::Snapshot), scheduler(), [row("a", r#""9""#)]);
        let lost = HashSet::from([rows[0].subject.clone().unwrap()]);
        let context = Context { lost: &lost, ..context(&run, true, &scheduler) };

        let tally = draft(Batch::default(), &|_| Ok(None)).add_rows(context, rows.iter()).unwrap();

        assert!(tally.requests.is_empty());
    }

    /// A scheduler that suspects a version regression of a record.
    fn suspecting(subject: &Subject) -> Scheduler {
        let (run, mut scheduler) = (run(RunKind::Snapshot), scheduler());
        let event = Arc::new(source(context(&run, false, &scheduler), &row("a", r#""5""#)));
        scheduler.adopt(Parked {
            subject: subject.clone(),
            floor: SequenceVersion::parse("5").ok(),
            deleted: None,
            cause: ParkCause::Below,
            since: 1,
            due: 2,
            gone_since: None,
            below_since: Some(1),
            event,
        });
        scheduler
    }

    #[test]
    fn a_row_that_shows_what_was_published_clears_a_suspicion_whatever_it_was_read_for() {
        let suspected = row("a", r#""9""#).subject.unwrap();
        let scheduler = suspecting(&suspected);
        for kind in [RunKind::Snapshot, RunKind::Verify, RunKind::Repair] {
            for (version, deleted, is_cleared) in [
                (r#""8""#, false, false),
                (r#""9""#, false, true),
                (r#""10""#, false, true),
                (r#""9""#, true, false),
                (r#""10""#, true, true),
            ] {
                let run = run(kind);
                let stored = |_: &Key| Ok(Some(stamp("9", Rank::ById, deleted)));
                let rows = [row("a", version), row("b", version)];

                let context = context(&run, false, &scheduler);
                let tally = draft(Batch::default(), &stored).add_rows(context, rows.iter()).unwrap();

                let cleared: &[Subject] = if is_cleared { std::slice::from_ref(&suspected) } else { &[] };
                assert_eq!(tally.cleared, cleared, "{kind:?} {version} {deleted}");
            }
        }
    }

    #[test]
    fn a_record_that_was_read_by_id_for_a_list_is_held_against_what_was_published() {
        let run = run(RunKind::Repair);
        let subject = row("a", r#""9""#).subject.unwrap();
        let json = Bytes::from_static(br#"{"correlationId":"a","sequenceVersion":"9"}"#);
        let entry = entry_of_record(&run, &subject, &json, None).unwrap();
        let reached = |stored: &Stored<'_>| draft(Batch::default(), stored).reaches(&entry).unwrap();

        for (stored, reaches) in [("8", true), ("9", true), ("10", false)] {
            let stored = |_: &Key| Ok(Some(stamp(stored, Rank::ById, false)));

            assert_eq!(reached(&stored), reaches);
        }
        assert!(!reached(&|_: &Key| Ok(None)), "nothing was published");
    }

    #[test]
    fn a_known_record_without_version_is_read_again_only_if_it_differs() {
        let run = run(RunKind::Repair);
        let subject = row("a", r#""9""#).subject.unwrap();
        let entry =
            |json: &'static [u8]| entry_of_record(&run, &subject, &Bytes::from_static(json), None).unwrap();
        let (one, other) = (entry(br#"{"tradeName":"one"}"#), entry(br#"{"tradeName":"other"}"#));
        let untold = one.stamp().unwrap().clone();
        for (stored, entry, is_asked) in [
            (None, &one, true),
            (Some(untold.clone()), &one, false),
            (Some(untold.clone()), &other, true),
            (Some(Stamp { deleted: true, ..untold }), &other, false),
            // The published record carries a version, so the other cannot prove that it is newer.
            (Some(stamp("9", Rank::ById, false)), &other, false),
        ] {
            let guard = |_: &Key| Ok(stored.clone());
            let found = draft(Batch::default(), &guard).ask_for(entry);

            assert_eq!(found.unwrap().is_some(), is_asked, "{stored:?}");
        }
    }

    #[test]
    fn a_row_that_waits_to_be_read_by_id_does_not_keep_its_page_in_memory() {
        let alone = row("a", r#""9""#);
        // Each row is a slice of its page.
        let page = Bytes::from([&alone.raw[..], &[b' '; 1_000]].concat());
        let row = Fresh { raw: page.slice(..alone.raw.len()), ..alone };
        let newer = stamp("10", Rank::ById, false);

        let (_, below) = add(RunKind::Snapshot, false, Some(&newer), std::slice::from_ref(&row));
        let (_, thin) = add(RunKind::Snapshot, true, None, std::slice::from_ref(&row));

        for (_, event) in below.regression_checks.iter().chain(&thin.requests) {
            let kept = &event.original.value;
            assert_eq!(kept, &row.raw);
            assert!(!page.as_ptr_range().contains(&kept.as_ptr()), "it holds all of its page");
        }
    }

    #[test]
    fn a_comparison_writes_nothing_and_keeps_what_seems_to_differ() {
        use Difference::{Ahead, Behind, Deleted, Missing};
        let table = [
            (None, Some(Missing)),
            (Some(stamp("8", Rank::ById, false)), Some(Behind)),
            (Some(stamp("9", Rank::ById, false)), None),
            (Some(stamp("10", Rank::ById, false)), Some(Ahead)),
            (Some(stamp("9", Rank::ById, true)), Some(Deleted)),
        ];
        for (stored, kind) in table {
            let (batch, tally) = add(RunKind::Verify, false, stored.as_ref(), &[row("a", r#""9""#)]);

            assert!(writes_nothing(&batch) && tally.differences.is_empty());
            assert_eq!(tally.suspects.first().map(|(_, suspect)| suspect.kind), kind, "{stored:?}");
        }
    }

    #[test]
    fn suspects_beyond_the_room_count_at_once() {
        let rows = [row("a", r#""9""#), row("b", r#""9""#)];
        let (batch, tally) = add(RunKind::Verify, false, None, &rows);
        assert_eq!((tally.suspects.len(), &tally.differences[..]), (1, &[(Difference::Missing, false)][..]));
        assert!(writes_nothing(&batch));

        let mut run = run(RunKind::Verify);
        run.verification.repair = true;
        let (scheduler, none) = (scheduler(), |_: &Key| Ok(None));
        let mut draft = draft(Batch::default(), &none);
        let tally = draft.add_rows(context(&run, false, &scheduler), rows.iter()).unwrap();
        let batch = draft.batch;

        assert_eq!((tally.suspects.len(), &tally.differences[..]), (1, &[(Difference::Missing, true)][..]));
        assert_eq!((tally.published, batch.entries.len()), (1, 1));
        assert_eq!(batch.entries[0].event.origin, Origin::Repair);
    }

    #[test]
    fn a_row_without_a_version_that_can_be_compared_is_a_dead_letter() {
        for version in ["null", r#""x""#] {
            let (batch, _) = add(RunKind::Snapshot, false, None, &[row("a", version)]);

            assert!(matches!(&batch.entries[0].changes[..], [Change::DeadLetter(_)]), "{version}");
        }
    }
}
