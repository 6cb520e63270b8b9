//! One shard: its desk, and the loop that does what the desk decides.
//!
//! ```text
//! inbox ─▶ Desk ─▶ read by id (a slot each) ─▶ Desk ─▶ batch ─▶ Commit ─▶ fence, Desk
//!           ▲ due ───────────────────────────────┘        one at a time; what settles meanwhile is the next
//! ```

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use tokio::{
    sync::{OwnedSemaphorePermit, mpsc},
    time::{Instant, MissedTickBehavior, interval, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    Shared,
    committing::{Commit, Ended, Written},
    encoding::Moments,
    gauges::Gauges,
    lists::{Getting, Lists},
    now,
    reader::Input,
    refused,
    taking::unreadable,
};
use crate::{
    api::{self, Ask},
    enrich::{self, Change, Desk, Stop, Subject},
    fence::Shelf,
    kafka::Start,
    metrics,
    model::{AccountingResource, Key, List, Origin, Stamp},
    retry::Chain,
    worker::plugins::Failure,
};

/// The longest a read may take, with all it waits for.
const READ_LIMIT: Duration = Duration::from_secs(60);
/// Records of one transaction, and their bytes, at most.
const BATCH_RECORDS: usize = 500;
const BATCH_BYTES: usize = 8 << 20;
/// How often it is looked for events that hold back their offset for too long.
const LATE: Duration = Duration::from_secs(1);
/// The shortest wait for what is due: nothing is looked at more often.
const SHORTEST: Duration = Duration::from_millis(5);

/// A shard that is this task's.
pub(super) struct Shard {
    shared: Arc<Shared>,
    number: i32,
    desk: Desk,
    shelf: Shelf,
    starts: BTreeMap<AccountingResource, Start>,
    lists: Lists,
    /// `None` while a batch is being committed.
    commit: Option<Commit>,
    /// When the delivery came whose event was taken last.
    taken: Option<i64>,
    gauges: Gauges,
}

/// A read that has ended.
type Read = (Subject, Result<Bytes, api::Error>);

impl Shard {
    /// Takes it over: once this returns nobody who had it before can write.
    ///
    /// # Errors
    /// It cannot be taken, or what is known of it cannot be read.
    pub(super) async fn take(shared: Arc<Shared>, number: i32) -> Result<Self, Failure> {
        let begun = Instant::now();
        let mut writer = shared.take_writer(number).await?;
        let starts = shared.starts(number, writer.producer()).await?;
        let mut known = shared.known(number).await?;
        let done = shared.certified(number, &known).await?;
        let shelf = shared.shelf(number, &known, &mut writer).await?;
        let mut desk = Desk::new(shared.rules());
        let lists = Lists::new(Arc::clone(&shared), number, &mut known, done);
        let parked = known.parked.len();
        // What is followed no more waits until it is again.
        let own = known.parked.into_values().filter(|one| shared.resources.contains(&one.subject.resource));
        own.for_each(|parked| desk.adopt(parked));
        known.paths.into_iter().for_each(|resource| desk.adopt_path(resource));
        for (resource, since, count) in known.brakes {
            desk.adopt_brake(resource, since, count);
        }
        tracing::info!(
            connector = &*shared.task.connector,
            shard = number,
            parked,
            fences = shelf.entries(),
            took = ?begun.elapsed(),
            "took a shard"
        );
        let (last, moments) = (known.batch, Moments::default());
        let commit = Some(Commit { shared: Arc::clone(&shared), shard: number, writer, last, moments });
        let gauges = Gauges::default();
        Ok(Self { shared, number, desk, shelf, starts, lists, commit, taken: None, gauges })
    }

    pub(super) fn number(&self) -> i32 {
        self.number
    }

    /// Where each event topic is read on.
    pub(super) fn starts(&self) -> &BTreeMap<AccountingResource, Start> {
        &self.starts
    }

    /// Does what there is to do until it is cancelled; what is being committed then ends.
    ///
    /// # Errors
    /// Why it cannot go on.
    pub(super) async fn run(
        mut self,
        mut inbox: mpsc::Receiver<Input>,
        cancel: CancellationToken,
    ) -> Result<(), Failure> {
        let mut reads: FuturesUnordered<BoxFuture<'static, Read>> = FuturesUnordered::new();
        let mut committing: Option<BoxFuture<'static, Ended>> = None;
        let mut held: Option<OwnedSemaphorePermit> = None;
        // Kept from turn to turn: whoever asks anew stands at the end of the line.
        let mut slot: Option<BoxFuture<'static, Option<OwnedSemaphorePermit>>> = None;
        let mut getting = Getting::new();
        let (mut orders, mut stream) = (self.shared.orders.clone(), self.shared.stream.clone());
        self.lists.look(now());
        let mut late = interval(LATE);
        late.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let ended = loop {
            let is_starved = self.begin_reads(&mut reads, &mut held);
            // Before lists look whom they still wait for.
            self.lists.given_up(&self.desk.take_given_up());
            self.lists.begin(&mut getting, &self.shelf, &self.desk, now());
            if committing.is_none() && (self.desk.ready() > 0 || self.lists.has_parts()) {
                match self.begin_commit() {
                    Ok(begun) => committing = begun,
                    Err(failure) => break Err(failure),
                }
            }
            self.gauges.show(&self.desk, &self.shelf);
            if !is_starved {
                slot = None;
            } else if slot.is_none() {
                let slots = Arc::clone(&self.shared.slots);
                slot = Some(slots.acquire_owned().map(Result::ok).boxed());
            }
            // What is due waits for a slot.
            let wake = if is_starved { Instant::now() + LATE } else { self.wake() };
            let step = tokio::select! {
                () = cancel.cancelled() => break Ok(()),
                ended = next(&mut committing) => {
                    committing = None;
                    self.committed(ended).await
                }
                Some((subject, reading)) = reads.next() => self.read(&subject, reading),
                Some(got) = getting.next() => self.lists.got(got, now()),
                () = Lists::changed(&mut orders, &mut stream) => {
                    self.lists.look(now());
                    Ok(())
                }
                input = inbox.recv(), if !self.desk.is_full() => match input {
                    Some(input) => self.take_in(input),
                    None => break Ok(()),
                },
                given = next(&mut slot) => {
                    (held, slot) = (given, None);
                    Ok(())
                }
                () = sleep_until(wake) => Ok(()),
                _ = late.tick() => {
                    self.look(!inbox.is_empty());
                    Ok(())
                }
            };
            if let Err(failure) = step {
                break Err(failure);
            }
        };
        // Whether it is committed decides what the next owner finds; nothing is left half done.
        let committed = match committing {
            Some(committing) => self.committed(committing.await).await,
            None => Ok(()),
        };
        ended.and(committed)
    }

    /// What is looked at every so often; whether there are events that are not taken.
    fn look(&mut self, is_behind: bool) {
        let now = now();
        // Companies become known, and nobody tells.
        self.lists.look(now);
        self.desk.park_late(now);
        let told = self.desk.take_told();
        metrics::stale_reads(told.stale_reads);
        for (resource, count) in told.braked {
            metrics::tombstones_braked(count);
            tracing::error!(connector = &*self.shared.task.connector, shard = self.number, %resource, count,
                "too much is deleted at once: deletes wait until somebody has looked and raises tombstones.brake.count or \
                 tombstones.brake.percent");
        }
        // Those that are not taken came after the last that was.
        let behind = self.taken.filter(|_| is_behind);
        let oldest = self.desk.oldest().into_iter().chain(behind).min();
        let lag = oldest.map_or(0, |oldest| now.saturating_sub(oldest));
        let lag = Duration::from_micros(u64::try_from(lag).unwrap_or_default());
        self.shared.task.tools.recorder.lags(self.number, lag);
    }

    /// Begins as many reads as there are slots; whether it wants more than there are.
    fn begin_reads(
        &mut self,
        reads: &mut FuturesUnordered<BoxFuture<'static, Read>>,
        held: &mut Option<OwnedSemaphorePermit>,
    ) -> bool {
        loop {
            let slot = match held.take() {
                Some(slot) => slot,
                None => match Arc::clone(&self.shared.slots).try_acquire_owned() {
                    Ok(slot) => slot,
                    Err(_) => return self.desk.has_reads(now()),
                },
            };
            let Some(ask) = self.desk.next_read(&self.shared.directory, now()) else { return false };
            reads.push(self.begin_read(ask, slot));
        }
    }

    fn begin_read(&self, ask: enrich::Ask, slot: OwnedSemaphorePermit) -> BoxFuture<'static, Read> {
        let accounting = self.shared.accounting.clone();
        async move {
            let enrich::Ask { subject, lane, trace } = ask;
            let ask = Ask { trace, ..Ask::within(lane, READ_LIMIT) };
            let read = accounting.record(subject.resource, subject.context(), &subject.id, &ask).await;
            drop(slot);
            (subject, read.map(|document| document.json))
        }
        .boxed()
    }

    fn stored(&self, subject: &Subject) -> Result<Option<Stamp>, Failure> {
        self.shelf.get(&subject.fence_key()).map_err(unreadable)
    }

    fn take_in(&mut self, input: Input) -> Result<(), Failure> {
        self.shared.task.tools.recorder.polled(1, Duration::ZERO);
        match input {
            Input::Event { lane, next, asked, event } => {
                let stored = match &asked {
                    enrich::Asked::Wanted(wanted) => self.stored(&wanted.subject)?,
                    _ => None,
                };
                self.taken = Some(event.received_at);
                self.desk.take(lane, next, asked, event, stored.as_ref(), now());
            }
            Input::Lost { lane, next, event, gap } => self.desk.skip(lane, next, event, gap),
        }
        Ok(())
    }

    fn read(&mut self, subject: &Subject, reading: Result<Bytes, api::Error>) -> Result<(), Failure> {
        if let Err(error) = &reading {
            tracing::debug!(record = %subject.key(), resource = %subject.resource, error = %Chain(error), "a record was not read");
        }
        let stored = self.stored(subject)?;
        let entries = self.shelf.entries_of(subject.topic());
        let read = self.desk.read(subject, reading, stored.as_ref(), entries, now());
        read.map_err(|Stop(error)| refused(&error))
    }

    fn wake(&self) -> Instant {
        let soon = Instant::now() + SHORTEST;
        let at = self.desk.wake_at().into_iter().chain(self.lists.wake_at(now())).min();
        let Some(at) = at else { return soon + Duration::from_secs(3_600) };
        let left = u64::try_from(at.saturating_sub(now())).unwrap_or(0);
        soon.max(Instant::now() + Duration::from_micros(left).min(Duration::from_secs(3_600)))
    }

    fn begin_commit(&mut self) -> Result<Option<BoxFuture<'static, Ended>>, Failure> {
        let Some(commit) = self.commit.take() else { return Ok(None) };
        let mut batch = self.desk.batch(BATCH_RECORDS, BATCH_BYTES);
        let mut gone_back = Vec::new();
        for entry in &mut batch.entries {
            let Some(key) = entry.subject.as_ref().map(Subject::fence_key) else { continue };
            if entry.stamp().is_some() {
                // A list may have shown more since this was decided.
                let stored = self.shelf.get(&key).map_err(unreadable)?;
                entry.compare_again(stored.as_ref());
            }
            if entry.goes_back() {
                gone_back.push(key);
            }
        }
        batch.first = self.lists.went_back(&gone_back, now());
        // What the desk has decided comes first: whoever shows a record after it is compared with that.
        if self.desk.ready() == 0 {
            self.lists.add_to(&mut batch, (&self.shelf, &self.desk), BATCH_BYTES / 2, now())?;
        }
        Ok(Some(commit.write(batch).boxed()))
    }

    async fn committed(&mut self, (commit, written): Ended) -> Result<(), Failure> {
        self.commit = Some(commit);
        let Written { batches, fences, behind, topics, took } = written?;
        self.tell_epochs(&fences);
        self.shelf.put(fences, behind).await.map_err(unreadable)?;
        let tools = &self.shared.task.tools;
        let (mut published, mut told, mut dropped) = (0, 0, 0);
        // Series are looked for once in a batch, not for each of its records.
        let mut changed = BTreeMap::new();
        let at = now();
        for entry in batches.iter().flat_map(|batch| &batch.entries) {
            for outcome in &entry.outcomes {
                metrics::event_enriched(outcome.label());
            }
            let is_event = entry.event.origin == Origin::Enrichment;
            dropped += entry.outcomes.len() as u64;
            let entity = entry.subject.as_ref().map_or(List::Payroll.name(), |one| one.resource.name());
            let mut count = |is_deleted| {
                *changed.entry((entry.event.origin.name(), entity, is_deleted)).or_insert(0) += 1;
            };
            for change in &entry.changes {
                match change {
                    Change::Publish { .. } => {
                        published += 1;
                        count(false);
                        told += u64::from(is_event);
                        if is_event {
                            metrics::end_to_end(at.saturating_sub(entry.event.received_at));
                        }
                    }
                    Change::Tombstone { .. } => {
                        published += 1;
                        told += u64::from(is_event);
                        count(true);
                        metrics::tombstone_written();
                    }
                    Change::DeadLetter(failure) => {
                        tools.recorder.dead_letter(true);
                        metrics::dead_letter_written(failure.stage, failure.class);
                    }
                    Change::Gap(gap) => metrics::gap_written(gap.cause.label()),
                    _ => {}
                }
            }
        }
        for ((origin, entity, is_deleted), count) in changed {
            metrics::records_changed(origin, entity, is_deleted, count, at);
        }
        tools.recorder.written(published);
        // What lists show was not polled: of events alone some are dropped.
        tools.recorder.dropped(dropped.saturating_sub(told));
        tools.recorder.committed(published, took);
        for topic in topics {
            (tools.uses_topic)(&self.shared.preparer.topic_name(topic));
        }
        let entries = batches.iter().flat_map(|batch| &batch.entries).filter(|entry| entry.is_refused);
        let refused: Vec<(Option<Subject>, Origin)> =
            entries.map(|entry| (entry.subject.clone(), entry.event.origin)).collect();
        self.lists.refused(&refused);
        let refused: Vec<Subject> = refused.into_iter().filter_map(|(subject, _)| subject).collect();
        let shelf = &self.shelf;
        // An entry that cannot be read is found so by whoever takes the next event of it.
        self.desk.committed(&refused, &|subject| shelf.get(&subject.fence_key()).ok().flatten(), at);
        self.lists.committed(&mut self.desk, at);
        Ok(())
    }

    /// The provider itself has gone back: that is told, and loudly.
    fn tell_epochs(&self, fences: &[(Key, Stamp)]) {
        let is_raised = |(key, stamp): &&(Key, Stamp)| {
            let before = || self.shelf.get(key).ok().flatten();
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

/// What is waited for, if anything is.
async fn next<T>(waiting: &mut Option<BoxFuture<'static, T>>) -> T {
    match waiting {
        Some(waiting) => waiting.await,
        None => std::future::pending().await,
    }
}
