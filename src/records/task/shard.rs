//! One shard: its scheduler, and the loop that does what the scheduler decides.
//!
//! ```text
//! inbox ─▶ Scheduler ─▶ read by id (a slot each) ─▶ Scheduler ─▶ batch ─▶ Commit ─▶ fence, Scheduler, Lists
//!          ▲ due ◀──────────────────────────────────┘            one at a time; later entries join the next
//! ```
//!
//! - A transaction costs the same for one record as for many. So while reads are in flight, a small batch waits for their results,
//!   until `enrich.commit.interval.ms` after the last batch began. A full batch, one with parts of lists, or one without reads in
//!   flight begins at once.
//! - A shard keeps its share of the task's slots from read to read, unless another shard that has no read in flight waits for a slot.
//! - After the commit of a batch, its fence entries are stored on this disk. Reads continue meanwhile; the next batch begins
//!   afterwards.
//! - Each batch has room for lists beside events: a record is compared with the version that either of them wrote before.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};
use tokio_util::sync::CancellationToken;

use base::{failpoint, metrics, retry::ErrorChain};
use kafka::StartOffset;
use model::{AccountingResource, Key, List, Origin, Stamp};
use provider::api::{self, CallOptions};

use super::{
    Shared,
    commit::{Commit, CommitEnd, Moments, PostponedState, Written},
    draft::Draft,
    gauges::Gauges,
    lists::{Getting, Lists},
    not_found, now,
    reader::Input,
    refused,
    taking::unreadable,
};
use crate::{
    plugin::Failure,
    records::{
        fence::ShardFence,
        schedule::{self, Blocked, Change, Companies as _, ReadContext, Scheduler, Subject},
    },
};

/// Time limit of a read, including its waits for rates and retries.
const READ_LIMIT: Duration = Duration::from_secs(60);
/// Limits of one transaction: entries of the scheduler, and their bytes.
const BATCH_RECORDS: usize = 500;
const BATCH_BYTES: usize = 8 << 20;
/// Bytes of lists beside these entries.
const LISTS_BYTES: usize = 4 << 20;
/// How often events that hold back their offset for too long are parked.
const LATE: Duration = Duration::from_secs(1);
/// Events, or results of reads, to take in one turn if they have arrived.
const AT_ONCE: usize = 64;
/// Minimum wait for a due record.
const SHORTEST: Duration = Duration::from_millis(5);

/// A shard that this task owns.
pub(super) struct Shard {
    shared: Arc<Shared>,
    number: i32,
    scheduler: Scheduler,
    fence: ShardFence,
    starts: BTreeMap<AccountingResource, StartOffset>,
    lists: Lists,
    /// State of lists for the next batch, because Kafka rejected an entry of the last one.
    postponed: PostponedState,
    /// `None` while a batch is being committed.
    commit: Option<Commit>,
    /// When the delivery of the last taken event was received.
    taken: Option<i64>,
    gauges: Gauges,
}

/// A read that has ended: record, answer, whether the path is known to be served, and its slot.
type FinishedRead = (Subject, Result<Bytes, api::Error>, bool, OwnedSemaphorePermit);
/// Reads in flight.
type Reads = FuturesUnordered<BoxFuture<'static, FinishedRead>>;
/// A commit in flight.
type Committing = BoxFuture<'static, CommitEnd>;

impl Shard {
    /// Takes the shard over. When this returns, no earlier owner can write to it.
    ///
    /// # Errors
    /// The transactional id cannot be taken, or offsets, state or fences cannot be read.
    pub(super) async fn take(shared: Arc<Shared>, number: i32) -> Result<Self, Failure> {
        let begun = Instant::now();
        let mut writer = shared.take_writer(number).await?;
        let starts = shared.starts(number, writer.producer()).await?;
        let mut stored = shared.read_state(number).await?;
        let fence = shared.fence(number, &stored, &mut writer).await?;
        let mut scheduler = Scheduler::new(shared.rules());
        let left_over = stored.take_left_over(number);
        let parked = stored.parked.len();
        // Parked records of a resource whose events are no longer read stay in the state topic until they are read again.
        let own = std::mem::take(&mut stored.parked).into_values();
        let own = own.filter(|one| shared.source.enrich_resources.contains(&one.subject.resource));
        own.for_each(|parked| scheduler.adopt(parked));
        stored.paths.drain(..).for_each(|resource| scheduler.adopt_path(resource));
        for (resource, since, count) in stored.brakes.drain(..) {
            scheduler.adopt_brake(resource, since, count);
        }
        tracing::info!(
            connector = &*shared.task.connector,
            shard = number,
            parked,
            fences = fence.entries(),
            took = ?begun.elapsed(),
            "took a shard"
        );
        let (last, moments) = (stored.batch.take(), Moments::default());
        let lists = Lists::new(Arc::clone(&shared), number, stored.lists, left_over);
        let commit = Some(Commit { shared: Arc::clone(&shared), shard: number, writer, last, moments });
        Ok(Self {
            shared,
            number,
            scheduler,
            fence,
            starts,
            lists,
            postponed: PostponedState::default(),
            commit,
            taken: None,
            gauges: Gauges::default(),
        })
    }

    pub(super) fn number(&self) -> i32 {
        self.number
    }

    /// The next offset of each event topic.
    pub(super) fn starts(&self) -> &BTreeMap<AccountingResource, StartOffset> {
        &self.starts
    }

    /// Runs until it is cancelled, and then waits for the commit in flight.
    ///
    /// # Errors
    /// The shard cannot continue.
    pub(super) async fn run(
        mut self,
        mut inbox: mpsc::Receiver<Input>,
        cancel: CancellationToken,
    ) -> Result<(), Failure> {
        let mut reads = Reads::new();
        let mut committing: Option<Committing> = None;
        let mut gathers_until = Instant::now();
        let mut spare_slots: Vec<OwnedSemaphorePermit> = Vec::new();
        // Kept from turn to turn: a new request would go to the end of the semaphore's queue.
        let mut slot: Option<BoxFuture<'static, Option<OwnedSemaphorePermit>>> = None;
        let mut starving: Option<Arc<()>> = None;
        let mut getting = Getting::new();
        let (mut orders, mut stream) = (self.shared.lists.orders.clone(), self.shared.lists.stream.clone());
        self.lists.apply_orders(now());
        let mut late = interval(LATE);
        late.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ended = loop {
            let is_starved = self.begin_reads(&mut reads, &mut spare_slots);
            // Before the lists check which records they still wait for.
            self.lists.given_up(&self.scheduler.take_given_up());
            self.lists.begin(&mut getting, &self.fence, now());
            let begun = Instant::now();
            let gathers = self.gathers(reads.len()) && begun < gathers_until;
            let has_more = self.scheduler.ready() > 0
                || self.lists.has_parts()
                || self.lists.has_counts()
                || !self.postponed.is_empty();
            if committing.is_none() && !gathers && has_more {
                gathers_until = begun + self.shared.source.enrich.commit;
                match self.begin_commit() {
                    Ok(begun) => committing = begun,
                    Err(failure) => break Err(failure),
                }
            }
            self.gauges.show(&self.scheduler, &self.fence);
            if !is_starved {
                slot = None;
            } else if slot.is_none() {
                let slots = Arc::clone(&self.shared.requests.slots);
                slot = Some(slots.acquire_owned().map(Result::ok).boxed());
            }
            // Makes other shards release slots that they could keep.
            let is_starving = slot.is_some() && reads.is_empty();
            if is_starving != starving.is_some() {
                starving = is_starving.then(|| Arc::clone(&self.shared.requests.starving));
            }
            // A due record waits for a slot.
            let wake = if is_starved { Instant::now() + LATE } else { self.wake() };
            let step = tokio::select! {
                () = cancel.cancelled() => break Ok(()),
                ended = next(&mut committing) => {
                    committing = None;
                    self.ended(ended).map(|more| committing = more)
                }
                Some(read) = reads.next() => self.take_answers(read, &mut reads, &mut spare_slots),
                Some(got) = getting.next() => self.lists.got(got, now()),
                () = Lists::changed(&mut orders, &mut stream) => {
                    self.lists.apply_orders(now());
                    Ok(())
                }
                input = inbox.recv(), if !self.scheduler.is_full() => match input {
                    Some(input) => self.take_all(input, &mut inbox),
                    None => break Ok(()),
                },
                given = next(&mut slot) => {
                    spare_slots.extend(given);
                    slot = None;
                    Ok(())
                }
                () = sleep_until(wake) => Ok(()),
                () = sleep_until(gathers_until), if gathers && committing.is_none() => Ok(()),
                _ = late.tick() => {
                    self.look(!inbox.is_empty());
                    Ok(())
                }
            };
            if let Err(failure) = step {
                break Err(failure);
            }
        };
        // The outcome decides what the next owner finds, so the commit in flight is not abandoned.
        let mut committed = Ok(());
        while let Some(waiting) = committing.take() {
            let ended = self.ended(waiting.await);
            committed = ended.map(|more| committing = more);
        }
        ended.and(committed)
    }

    /// Does the periodic work. `has_input`: the inbox has events.
    fn look(&mut self, has_input: bool) {
        let now = now();
        // The directory does not notify shards of new companies.
        self.lists.apply_orders(now);
        self.scheduler.park_late(now);
        let told = self.scheduler.take_report();
        metrics::stale_reads(told.stale_reads);
        for (resource, count) in told.braked {
            metrics::tombstones_braked(count);
            tracing::error!(connector = &*self.shared.task.connector, shard = self.number, %resource, count,
                "too much is deleted at once: deletes wait until somebody has looked and raises tombstones.brake.count or \
                 tombstones.brake.percent");
        }
        // Events in the inbox were received after the last taken one.
        let last_taken = self.taken.filter(|_| has_input);
        let in_hand = self.shared.events.in_hand.of_shard(self.number);
        self.shared.task.recorder.lags(self.number, lag([self.scheduler.oldest(), last_taken, in_hand], now));
    }

    /// Starts as many reads as there are slots. Returns whether more could be started.
    fn begin_reads(&mut self, reads: &mut Reads, spare_slots: &mut Vec<OwnedSemaphorePermit>) -> bool {
        loop {
            let slot = match spare_slots.pop() {
                Some(slot) => slot,
                None => match Arc::clone(&self.shared.requests.slots).try_acquire_owned() {
                    Ok(slot) => slot,
                    Err(_) => return self.scheduler.has_reads(now()),
                },
            };
            let Some(ask) = self.scheduler.next_read(&self.shared.directory, now()) else {
                spare_slots.clear();
                return false;
            };
            reads.push(self.begin_read(ask, slot));
        }
    }

    fn begin_read(
        &self,
        ask: schedule::NextRead,
        slot: OwnedSemaphorePermit,
    ) -> BoxFuture<'static, FinishedRead> {
        let shared = Arc::clone(&self.shared);
        let schedule::NextRead { subject, priority, trace, is_delete } = ask;
        let looks = is_delete && shared.may_prove(subject.resource);
        let known = looks.then(|| not_found::neighbors(&self.fence, &subject));
        async move {
            let (asked_at, ask) =
                (Instant::now(), CallOptions { trace, ..CallOptions::within(priority, READ_LIMIT) });
            let accounting = &shared.requests.accounting;
            let read = accounting.record(subject.resource, subject.context(), &subject.id, &ask).await;
            let (read, is_proved) = match read {
                Err(error) if is_delete && error.missing().is_some() => {
                    let (error, is_proved) = shared.attribute(&subject, error, asked_at, known, &ask).await;
                    (Err(error), is_proved)
                }
                read => (read, false),
            };
            let path_answers = is_proved || accounting.answered_at(subject.resource).is_some();
            (subject, read.map(|document| document.json), path_answers, slot)
        }
        .boxed()
    }

    fn stored(&self, subject: &Subject) -> Result<Option<Stamp>, Failure> {
        self.fence.get(&subject.fence_key()).map_err(unreadable)
    }

    fn take_all(&mut self, first: Input, inbox: &mut mpsc::Receiver<Input>) -> Result<(), Failure> {
        self.take_in(first)?;
        for _ in 1..AT_ONCE {
            if self.scheduler.is_full() {
                break;
            }
            let Ok(input) = inbox.try_recv() else { break };
            self.take_in(input)?;
        }
        Ok(())
    }

    fn take_in(&mut self, Input { resource, next, request, event }: Input) -> Result<(), Failure> {
        self.shared.task.recorder.polled(1, Duration::ZERO);
        let stored = match &request {
            schedule::ReadRequest::Wanted(wanted) => self.stored(&wanted.subject)?,
            _ => None,
        };
        if !matches!(request, schedule::ReadRequest::Lost(_)) {
            self.taken = Some(event.received_at);
        }
        self.scheduler.take(resource, next, request, event, stored.as_ref(), now());
        Ok(())
    }

    fn take_answers(
        &mut self,
        first: FinishedRead,
        reads: &mut Reads,
        spare_slots: &mut Vec<OwnedSemaphorePermit>,
    ) -> Result<(), Failure> {
        // A slot that moves to another shard is idle until that shard's turn, so each shard keeps its share.
        let share = self.shared.source.requests_in_flight / self.shared.shards.len().max(1);
        let (mut next, mut taken) = (Some(first), 0);
        while let Some((subject, reading, path_answers, slot)) = next {
            let is_kept = Arc::strong_count(&self.shared.requests.starving) == 1;
            if is_kept && reads.len() + spare_slots.len() < share {
                spare_slots.push(slot);
            }
            self.take_answer(&subject, reading, path_answers)?;
            taken += 1;
            next = if taken < AT_ONCE { reads.next().now_or_never().flatten() } else { None };
        }
        Ok(())
    }

    fn take_answer(
        &mut self,
        subject: &Subject,
        reading: Result<Bytes, api::Error>,
        path_answers: bool,
    ) -> Result<(), Failure> {
        if let Err(error) = &reading {
            tracing::debug!(record = %subject.key(), resource = %subject.resource, error = %ErrorChain(error), "a record was not read");
            let path_answers = path_answers || self.scheduler.knows_path(subject.resource);
            self.shared.warn_unproved(subject, error, path_answers);
        }
        self.shared.evidence.answers.note(&reading);
        self.shared.evidence.failures.note(subject.resource, &reading);
        let stored = self.stored(subject)?;
        let entries = self.fence.entries_of(subject.topic());
        // The list of companies is read all the time. Rows of other lists come with runs, which report them when they are committed.
        let directory = &self.shared.directory;
        let is_company = subject.resource == AccountingResource::Companies;
        let row = if is_company { directory.shown(&subject.company) } else { None };
        let answers = self.shared.evidence.answers.count();
        let context =
            ReadContext { stored: stored.as_ref(), entries, answers, row: row.as_ref(), path_answers };
        let read = self.scheduler.take_answer(subject, reading, context, now());
        if is_company && self.scheduler.is_suspected(subject) {
            directory.ask();
        }
        read.map_err(|Blocked(error)| refused(&error))
    }

    fn wake(&self) -> Instant {
        let soon = Instant::now() + SHORTEST;
        let at = self.scheduler.wake_at().into_iter().chain(self.lists.wake_at(now())).min();
        let Some(at) = at else { return soon + Duration::from_secs(3_600) };
        let left = u64::try_from(at.saturating_sub(now())).unwrap_or(0);
        soon.max(Instant::now() + Duration::from_micros(left).min(Duration::from_secs(3_600)))
    }

    /// Whether the next transaction should wait, because reads in flight may add entries soon. With pages it is large enough.
    fn gathers(&self, reads: usize) -> bool {
        let ready = self.scheduler.ready();
        ready > 0 && ready < BATCH_RECORDS && reads > 0 && !self.lists.has_parts()
    }

    fn begin_commit(&mut self) -> Result<Option<Committing>, Failure> {
        let Some(commit) = self.commit.take() else { return Ok(None) };
        if !self.postponed.is_empty() {
            // Without entries, so that no further rejection can hold it back again.
            let mut batch = schedule::Batch::default();
            self.postponed.add_to(&mut batch);
            self.lists.add_counts(&mut batch);
            return Ok(Some(commit.write(batch).boxed()));
        }
        let batch = self.scheduler.batch(BATCH_RECORDS, BATCH_BYTES);
        let (fence, lists) = (&self.fence, &self.lists);
        let stored = |key: &Key| fence.get(key).map_err(unreadable);
        let (mut draft, regressions) =
            Draft::new(batch, &stored, |subject, over| lists.shows(subject, over))?;
        draft.batch.first = self.lists.note_regressions(&regressions, now());
        self.lists.add_to(&mut draft, &self.scheduler, LISTS_BYTES, now())?;
        let mut batch = draft.batch;
        self.lists.add_counts(&mut batch);
        Ok(Some(commit.write(batch).boxed()))
    }

    /// Handles the end of a commit, and then of storing its fence entries on this disk. Reads continue meanwhile: their results are
    /// compared when the next batch begins, which is later.
    fn ended(&mut self, (commit, written): CommitEnd) -> Result<Option<Committing>, Failure> {
        let mut written = match written {
            Ok(written) => written,
            Err(failure) => {
                self.commit = Some(commit);
                return Err(failure);
            }
        };
        if written.is_kept {
            failpoint::reach("records.kept");
            self.commit = Some(commit);
            self.committed(&written);
            self.postponed = written.postponed;
            if !self.postponed.is_empty() {
                failpoint::reach("lists.refused");
            }
            return Ok(None);
        }
        self.report_epochs(&written.fences);
        let kept = self.fence.put(std::mem::take(&mut written.fences), written.next_offset);
        written.is_kept = true;
        let keeping = async move {
            let kept = kept.await.map_err(unreadable);
            (commit, kept.map(|()| written))
        };
        Ok(Some(keeping.boxed()))
    }

    fn committed(&mut self, written: &Written) {
        let Written { batches, took, .. } = written;
        let task = &self.shared.task;
        let (mut published, mut told, mut dropped) = (0, 0, 0);
        // Metric series are looked up once per batch, not for each record.
        let (mut changed, mut topics, mut refused) = (BTreeMap::new(), BTreeSet::new(), Vec::new());
        let at = now();
        for entry in batches.iter().flat_map(|batch| &batch.entries) {
            for outcome in &entry.outcomes {
                metrics::event_enriched(outcome.label());
            }
            let is_event = entry.event.origin == Origin::Enrichment;
            dropped += entry.outcomes.len() as u64;
            let entity = entry.subject.as_ref().map_or(List::Payroll.name(), |one| one.resource.name());
            for change in &entry.changes {
                match change {
                    Change::Publish { .. } | Change::Tombstone { .. } => {
                        let is_deleted = matches!(change, Change::Tombstone { .. });
                        published += 1;
                        told += u64::from(is_event);
                        topics.insert(entry.subject.as_ref().map_or(List::Payroll.topic(), Subject::topic));
                        *changed.entry((entry.event.origin.name(), entity, is_deleted)).or_insert(0) += 1;
                        if let Some(first_at) = entry.first_at {
                            metrics::end_to_end(at.saturating_sub(first_at), is_deleted);
                        }
                        if is_deleted {
                            metrics::tombstone_written();
                        }
                    }
                    Change::DeadLetter(failure) => {
                        task.recorder.dead_letter(true);
                        metrics::dead_letter_written(failure.stage, failure.class);
                    }
                    Change::Gap(gap) => metrics::gap_written(gap.cause.name()),
                    _ => {}
                }
            }
            if entry.is_refused {
                self.lists.refused(entry.subject.as_ref(), entry.event.origin);
                refused.extend(entry.subject.clone());
            }
        }
        for ((origin, entity, is_deleted), count) in changed {
            metrics::records_changed(origin, entity, is_deleted, count, at);
        }
        task.recorder.written(published);
        // Rows of lists were not polled, so only events can count as dropped.
        task.recorder.dropped(dropped.saturating_sub(told));
        task.recorder.committed(published, *took);
        for topic in topics {
            task.uses_topic(&self.shared.output.preparer.topic_name(topic));
        }
        let fence = &self.fence;
        // The next event of the record reports a failure of the local fence database.
        let stored = |subject: &Subject| fence.get(&subject.fence_key()).ok().flatten();
        self.scheduler.committed(&refused, &stored, at);
        self.lists.committed(&mut self.scheduler, &stored, written.postponed.is_empty(), at);
    }

    /// Logs an error if records with a version regression are published under the next epoch.
    fn report_epochs(&self, fences: &[(Key, Stamp)]) {
        let is_raised = |(key, stamp): &&(Key, Stamp)| {
            let before = || self.fence.get(key).ok().flatten();
            stamp.epoch.0 > 0 && before().is_some_and(|before| before.epoch < stamp.epoch)
        };
        let raised: Vec<&(Key, Stamp)> = fences.iter().filter(is_raised).collect();
        if let Some((key, stamp)) = raised.first() {
            metrics::epochs_raised(raised.len() as u64);
            tracing::error!(connector = &*self.shared.task.connector, records = raised.len(), first = %key,
                epoch = stamp.epoch.0, version = %stamp.version,
                "the provider went back: records are published under the next epoch");
        }
    }
}

/// How long ago the oldest of these events was received; microseconds since 1970.
fn lag(came_at: [Option<i64>; 3], now: i64) -> Duration {
    let oldest = came_at.into_iter().flatten().min();
    let lag = oldest.map_or(0, |oldest| now.saturating_sub(oldest));
    Duration::from_micros(u64::try_from(lag).unwrap_or_default())
}

/// Waits for the future, or forever if there is none.
async fn next<T>(waiting: &mut Option<BoxFuture<'static, T>>) -> T {
    match waiting {
        Some(waiting) => waiting.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_lags_as_far_as_the_oldest_event_that_waits_wherever_it_waits() {
        for (came_at, lags) in [
            ([None, None, None], 0),
            ([Some(70), None, None], 30),
            ([None, Some(90), None], 10),
            // The schema registry is unavailable, and no other event is in flight.
            ([None, None, Some(40)], 60),
            ([Some(70), Some(90), Some(40)], 60),
            ([Some(70), Some(20), Some(40)], 80),
            // The clock of another machine is ahead.
            ([None, None, Some(300)], 0),
        ] {
            assert_eq!(lag(came_at, 100), Duration::from_micros(lags), "{came_at:?}");
        }
    }
}
