//! What is committed of lists with the batch of their shard, and what follows from that.

use std::sync::Arc;

use super::{
    Ended, LOOK, Lists, NAMED, Part, Stage, Written,
    comparing::{Comparing, Finding, Looked},
    rows::{self, Compared},
    topic::Holds,
};
use crate::{
    config::connector::Rows,
    enrich::{Batch, Desk},
    fence::Shelf,
    metrics,
    model::{Difference, Key, Progress, RunId, RunKind, ShardState, Stamp},
    worker::{
        plugins::Failure,
        records::{micros, state, taking::unreadable},
    },
};

impl Lists {
    /// Adds what there is to a batch, at most so many bytes of it.
    ///
    /// # Errors
    /// The store failed.
    pub(in crate::worker::records) fn add_to(
        &mut self,
        batch: &mut Batch,
        (shelf, desk): (&Shelf, &Desk),
        room: usize,
        now: i64,
    ) -> Result<(), Failure> {
        let mut compared = Compared::new(batch);
        let mut taken = 0;
        let mut runs: Vec<RunId> = Vec::new();
        while let Some(part) = self.ready.front() {
            if taken > 0 && taken + part.bytes > room {
                break;
            }
            taken += part.bytes;
            let Some(part) = self.ready.pop_front() else { break };
            self.waiting_bytes = self.waiting_bytes.saturating_sub(part.bytes);
            self.add_part(batch, &part, &mut compared, (shelf, desk), now)?;
            if !runs.contains(&part.run) {
                runs.push(part.run.clone());
            }
            self.committing.push(part);
        }
        for run in runs {
            let current: Vec<_> = self.jobs.values().filter(|job| job.run.id == run).collect();
            let current = current.iter().filter_map(|job| job.progress()).take(NAMED).collect();
            let Some(active) = self.runs.get_mut(&run) else { continue };
            (active.progress.updated_at, active.progress.current) = (now, current);
            if active.progress.state.is_over() {
                active.progress.current.clear();
            }
            batch.state.push((active.progress.key(), Some(state::json(&active.progress))));
        }
        Ok(())
    }

    fn add_part(
        &mut self,
        batch: &mut Batch,
        part: &Part,
        compared: &mut Compared,
        (shelf, desk): (&Shelf, &Desk),
        now: i64,
    ) -> Result<(), Failure> {
        let Some(active) = self.runs.get_mut(&part.run) else { return Ok(()) };
        let run = Arc::clone(&active.run);
        let stored = |key: &Key| -> Result<Option<Stamp>, Failure> { shelf.get(key).map_err(unreadable) };
        match &part.what {
            Written::Standing => {}
            Written::Probe(list, probe) => {
                batch.state.push((state::probe(self.shard, *list), Some(state::json(probe))));
            }
            Written::Record(entry) => {
                let before = batch.entries.len();
                compared.add_record(batch, (**entry).clone(), &stored)?;
                let published = (batch.entries.len() - before) as u64;
                active.progress.published += published;
                if let Some(job) = part.job.and_then(|number| self.jobs.get_mut(&number)) {
                    job.published += published;
                }
            }
            Written::Forgotten(marks) => batch.state.extend(marks.iter().map(|mark| (mark.clone(), None))),
            Written::End { certificate, marks, ended } => {
                batch.state.extend(marks.iter().map(|mark| (mark.clone(), None)));
                let asked_at = run.requested_at;
                batch.certificates.extend(certificate.as_deref().map(|one| (one.clone(), asked_at)));
                // With its certificate, and not before: it must not be counted twice.
                let Ended { lists, certified, vanished, unread } = *ended;
                active.progress.ended += lists;
                active.progress.certified += certified;
                active.progress.vanished += vanished;
                active.progress.unread += unread;
                if run.kind == RunKind::Verify {
                    Difference::Vanished.count(&mut active.progress.differences, vanished);
                }
            }
            Written::Found(suspects) => {
                let Some(list) = part.job.and_then(|number| self.jobs.get(&number)?.list()) else {
                    return Ok(());
                };
                let context =
                    rows::Context { run: &run, list, is_thin: false, now, desk, view: None, room: 0 };
                let before = batch.entries.len();
                for suspect in suspects {
                    compared.add_found(batch, context, suspect, &stored)?.count(&mut active.progress);
                }
                active.progress.published += (batch.entries.len() - before) as u64;
            }
            Written::Looked(looked) => {
                let Some(job) = part.job.and_then(|number| self.jobs.get_mut(&number)) else { return Ok(()) };
                let (subject, answer) = &**looked;
                let view = job.list().and_then(|list| self.views.get(&(run.id.clone(), list)));
                let holds = view.map_or(Holds::Unknown, |view| view.get(&subject.key()));
                let Some(comparing) = &mut job.comparing else { return Ok(()) };
                let may_wait = comparing.may_wait(micros(self.shared.source.enrich.park_after), now);
                let suspect = comparing.suspect(&subject.key());
                let looked = Looked { suspect, subject, answer, holds, may_wait };
                let before = batch.entries.len();
                let found = compared.add_looked(batch, &run, &looked, &stored)?;
                found.count(&mut active.progress);
                active.progress.published += (batch.entries.len() - before) as u64;
                if let (Finding::Again, Stage::Missing(missing)) = (found, &mut job.stage) {
                    missing.waiting.push_back((subject.company.clone(), subject.id.clone(), 1));
                    job.due = now.saturating_add(LOOK);
                }
            }
            Written::Page { fetched, mark, shown } => {
                let Some(job) = part.job.and_then(|number| self.jobs.get_mut(&number)) else { return Ok(()) };
                let Some(collection) = job.collection().cloned() else { return Ok(()) };
                let is_thin = match self.shared.source.snapshot.rows {
                    Rows::Thin => collection.list.resource().is_some(),
                    Rows::Full => false,
                    // What nobody could compare may be less than its record.
                    Rows::Probe => {
                        let probe = self.probes.get(&collection.list);
                        collection.list.resource().is_some() && probe.is_none_or(|probe| probe.thin)
                    }
                };
                let is_own =
                    |key: &Key| !collection.list.spans_companies() || self.shared.shard_of(key) == self.shard;
                let view = self.views.get(&(run.id.clone(), collection.list));
                let room = job.comparing.as_ref().map_or(0, Comparing::room);
                let context =
                    rows::Context { run: &run, list: collection.list, is_thin, now, desk, view, room };
                let own = fetched.rows.iter().filter(|row| is_own(&row.key) && !shown.contains(&row.key));
                let tally = compared.add_rows(batch, context, own, &stored)?;
                job.published += tally.published;
                active.progress.pages += 1;
                active.progress.rows += tally.rows;
                active.progress.published += tally.published;
                active.progress.contents += tally.contents;
                for (kind, is_mended) in tally.differences {
                    let progress = &mut active.progress;
                    kind.count(if is_mended { &mut progress.repaired } else { &mut progress.differences }, 1);
                }
                if let Some(comparing) = &mut job.comparing {
                    comparing.add(tally.suspects);
                }
                metrics::list_rows(collection.list.name(), tally.rows);
                job.unusable += tally.unusable;
                job.asked_for.extend(tally.parked.iter().map(|parked| parked.subject.clone()));
                self.adopting.extend(tally.parked);
                self.looking_back.extend(tally.below);
                batch.state.push((mark.0.clone(), Some(mark.1.clone())));
            }
        }
        Ok(())
    }

    /// The batch is committed.
    pub(in crate::worker::records) fn committed(&mut self, desk: &mut Desk, now: i64) {
        for parked in self.adopting.drain(..) {
            desk.adopt_row(parked, now);
        }
        for (wanted, event) in self.looking_back.drain(..) {
            desk.look_back(wanted, event, now);
        }
        for part in std::mem::take(&mut self.committing) {
            let Some(number) = part.job else {
                self.end_if_done(&part.run, now);
                continue;
            };
            let Some(job) = self.jobs.get_mut(&number) else { continue };
            job.unwritten = job.unwritten.saturating_sub(1);
            if matches!(part.what, Written::End { .. }) {
                let collection = job.collection().cloned();
                self.jobs.remove(&number);
                self.done.extend(collection);
                if let Some(active) = self.runs.get_mut(&part.run) {
                    active.open = active.open.saturating_sub(1);
                }
                self.end_if_done(&part.run, now);
            }
        }
    }

    /// A run whose last list is over is over, once that is written.
    pub(super) fn end_if_done(&mut self, run: &RunId, now: i64) {
        let Some(active) = self.runs.get_mut(run) else { return };
        if active.progress.state.is_over() {
            // It is written: that was the last of it.
            let is_written = !self.ready.iter().any(|part| part.run == *run);
            if is_written && let Some(active) = self.runs.remove(run) {
                self.done.retain(|collection| collection.run != *run);
                self.progress.insert(run.clone(), active.progress);
            }
            return;
        }
        if active.is_planned && active.waiting.is_empty() && active.open == 0 {
            (active.progress.state, active.progress.ended_at) = (ShardState::Ended, Some(now));
            let Progress { lists, certified, rows, published, .. } = active.progress;
            tracing::info!(connector = &*self.shared.task.connector, shard = self.shard, %run, lists, certified, rows,
                published, "a run is over in this shard");
            self.ready.push_back(Part::standing(run));
        }
    }
}
