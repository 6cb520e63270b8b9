//! One group commit: operations folded into at most one change a key, written, and accounted for.
//!
//! The newest database is first: an entry that moves into it must be durable there before an older one forgets it.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;

use super::{
    Error,
    entry::{self, Lane},
    generation::Generation,
    queue::{Done, Operation},
};
use crate::store::{self, Change};

/// What the operations of one commit mean for one key.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) lane: Lane,
    pub(super) sequence: u64,
    /// The entry to write; none if it was removed again meanwhile.
    put: Option<(Bytes, u64)>,
    /// Removals of it that this commit settles.
    pub(super) removals: u32,
    /// Who waits for it.
    pub(super) done: Vec<Done>,
    /// Databases that may hold the key, by position, with the size they count for it. One that could not look it up counts none:
    /// it gets the removal all the same, and recounts the lane.
    found: Vec<(usize, Option<u64>)>,
    pub(super) error: Option<Error>,
}

#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) plans: Vec<Plan>,
    /// Bytes of entries it took from the queue.
    pub(super) bytes: u64,
}

/// How a batch went.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) appended: u64,
    pub(super) removed: u64,
    /// Time of the durable commit, if there was one.
    pub(super) committed: Option<Duration>,
    /// Databases that failed, by position, and why.
    pub(super) failed: Vec<(usize, Arc<store::Error>)>,
}

impl Batch {
    /// Folds appends and removals, in order; gives back what else there is.
    pub(super) fn fold(operations: Vec<Operation>) -> (Self, Vec<Operation>) {
        let mut batch = Self::default();
        let mut others = Vec::new();
        let mut index: HashMap<(Lane, u64), usize> = HashMap::with_capacity(operations.len());
        for operation in operations {
            let (lane, sequence) = match &operation {
                Operation::Append { entry, .. } => (entry.lane.clone(), entry.sequence),
                Operation::Remove { lane, sequence } => (lane.clone(), *sequence),
                Operation::Disown { .. } | Operation::Recount { .. } | Operation::Survey(_) => {
                    others.push(operation);
                    continue;
                }
            };
            let position = *index.entry((lane.clone(), sequence)).or_insert_with(|| {
                batch.plans.push(Plan {
                    lane,
                    sequence,
                    put: None,
                    removals: 0,
                    done: Vec::new(),
                    found: Vec::new(),
                    error: None,
                });
                batch.plans.len() - 1
            });
            let plan = &mut batch.plans[position];
            match operation {
                Operation::Append { entry, at, done } => {
                    batch.bytes += entry.lane.size(&entry.payload);
                    plan.put = Some((entry.payload, at));
                    plan.done.push(done);
                }
                _ => {
                    plan.put = None;
                    plan.removals += 1;
                }
            }
        }
        (batch, others)
    }

    /// Writes to the last of the databases, if `writable`, and removes from all.
    pub(super) fn write(&mut self, generations: &[Arc<Generation>], writable: Result<(), Error>) -> Outcome {
        let mut outcome = Outcome::default();
        self.look_up(generations);
        let active = match (&writable, generations.len().checked_sub(1)) {
            (Ok(()), Some(last)) => Some(last),
            _ => None,
        };
        if let Some(active) = active {
            self.write_newest(generations, active, &mut outcome);
        } else {
            let reason = writable.err().unwrap_or(Error::Closed);
            for plan in self.plans.iter_mut().filter(|plan| plan.put.is_some()) {
                plan.error = Some(reason.clone());
            }
        }
        for position in (0..generations.len()).filter(|position| Some(*position) != active) {
            self.remove_from(generations, position, &mut outcome);
        }
        outcome.removed =
            self.plans.iter().filter(|plan| plan.put.is_none() && plan.is_counted()).count() as u64;
        outcome
    }

    fn look_up(&mut self, generations: &[Arc<Generation>]) {
        for plan in &mut self.plans {
            let key = plan.lane.key(plan.sequence);
            for (position, generation) in generations.iter().enumerate() {
                match generation.find(&plan.lane, plan.sequence, &key) {
                    Ok(Some(size)) => plan.found.push((position, Some(size))),
                    Ok(None) => {}
                    Err(error) => {
                        generation.doubt(&plan.lane, &error);
                        plan.found.push((position, None));
                    }
                }
            }
        }
    }

    fn write_newest(&mut self, generations: &[Arc<Generation>], active: usize, outcome: &mut Outcome) {
        let generation = &generations[active];
        let mut changes = Vec::with_capacity(self.plans.len());
        let mut written = 0;
        let mut durable = false;
        for plan in &self.plans {
            let key = plan.lane.key(plan.sequence);
            written += key.len() as u64;
            if let Some((payload, at)) = &plan.put {
                let value = entry::value(*at, payload);
                written += value.len() as u64;
                durable = true;
                changes.push(Change::Put(key, value));
            } else if plan.may_be_in(active) {
                changes.push(Change::Delete(key));
            }
        }
        if changes.is_empty() {
            return;
        }
        let start = Instant::now();
        let result = generation.database().commit(changes, durable);
        if let Err(error) = result {
            let error = Arc::new(error);
            generation.fail();
            for plan in &mut self.plans {
                if plan.put.is_some() {
                    plan.error = Some(refusal(&error));
                } else {
                    plan.hide_in(active, generation);
                }
            }
            outcome.failed.push((active, error));
            return;
        }
        if durable {
            outcome.committed = Some(start.elapsed());
        }
        generation.wrote(written);
        let mut ledger = generation.ledger();
        for plan in &self.plans {
            if let Some(size) = plan.size_in(active) {
                ledger.subtract(&plan.lane, plan.sequence, size);
            }
            if let Some((payload, at)) = &plan.put {
                ledger.add(&plan.lane, plan.sequence, plan.lane.size(payload), *at);
                outcome.appended += 1;
            }
        }
    }

    fn remove_from(&self, generations: &[Arc<Generation>], position: usize, outcome: &mut Outcome) {
        let generation = &generations[position];
        let here = || {
            // One that could not be written stays where it was.
            self.plans.iter().filter(|plan| plan.error.is_none() && plan.may_be_in(position))
        };
        let changes: Vec<_> = here().map(|plan| Change::Delete(plan.lane.key(plan.sequence))).collect();
        if changes.is_empty() {
            return;
        }
        let error =
            if generation.has_failed() { None } else { generation.database().commit(changes, false).err() };
        if let Some(error) = error {
            generation.fail();
            outcome.failed.push((position, Arc::new(error)));
        }
        for plan in here() {
            if generation.has_failed() {
                plan.hide_in(position, generation);
            } else if let Some(size) = plan.size_in(position) {
                generation.ledger().subtract(&plan.lane, plan.sequence, size);
            }
        }
    }
}

impl Plan {
    fn size_in(&self, position: usize) -> Option<u64> {
        self.found.iter().find(|(found, _)| *found == position).and_then(|(_, size)| *size)
    }

    /// Whether any database counts it.
    fn is_counted(&self) -> bool {
        self.found.iter().any(|(_, size)| size.is_some())
    }

    /// Also where the lookup failed: removing what is not there does no harm.
    fn may_be_in(&self, position: usize) -> bool {
        self.found.iter().any(|(found, _)| *found == position)
    }

    fn hide_in(&self, position: usize, generation: &Generation) {
        if self.may_be_in(position) {
            generation.hide(&self.lane, self.sequence);
        }
        if let Some(size) = self.size_in(position) {
            generation.ledger().subtract(&self.lane, self.sequence, size);
        }
    }
}

/// What callers are told about a failure of the store.
pub(super) fn refusal(error: &Arc<store::Error>) -> Error {
    if error.is_no_space() { Error::Full(super::Room::Disk) } else { Error::Failed(Arc::clone(error)) }
}
