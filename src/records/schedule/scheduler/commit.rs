//! Builds batches, and continues with their records after the commit.

use model::Stamp;

use super::{AfterCommit, Scheduler};
use crate::records::schedule::{Batch, Cause, Change, Entry, Event, Outcome, Subject, judge, pending::Late};

impl Scheduler {
    /// Number of entries that are ready to be committed.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.output.ready.len()
    }

    /// Takes the next batch: at most `most` entries and, unless one entry exceeds it, at most `weight` bytes. One batch at a time.
    pub fn batch(&mut self, most: usize, weight: usize) -> Batch {
        let mut batch = Batch::default();
        let mut taken = 0;
        while let Some((entry, _, _)) = self.output.ready.front() {
            let heavy = entry.weight();
            if !batch.entries.is_empty() && (batch.entries.len() >= most || taken + heavy > weight) {
                break;
            }
            taken += heavy;
            let Some((entry, settled, after)) = self.output.ready.pop_front() else { break };
            for (resource, ticket) in settled {
                self.offsets.settle(resource, ticket);
            }
            if let (Some(subject), Some(after)) = (&entry.subject, after) {
                self.output.committing.push((subject.clone(), after));
            }
            batch.entries.push(entry);
        }
        batch.offsets = self.offsets.take_settled();
        batch
    }

    /// Continues after the commit of the batch. `refused` are the records that Kafka rejected and that became dead letters; `stored`
    /// reads the fence as of the commit.
    pub fn committed(&mut self, refused: &[Subject], stored: &dyn Fn(&Subject) -> Option<Stamp>, now: i64) {
        for (subject, after) in std::mem::take(&mut self.output.committing) {
            let Some(record) = self.records.get_mut(&subject) else { continue };
            let later = record.take_later();
            match after {
                AfterCommit::Due(at) if !refused.contains(&subject) => {
                    // A record published without a version keeps its second read, unless a new event needs an earlier one.
                    let is_unsure = record.tries.is_published && later.is_empty();
                    for Late { wanted, event, settle } in later {
                        if judge::is_above(wanted.floor.as_ref(), stored(&subject).as_ref()) {
                            // An event above the published version contradicts a regression.
                            record.doubt.below_since = None;
                        }
                        record.join(wanted, event, settle, now);
                    }
                    if let Some(row) = record.take_row() {
                        let was_parked = record.parked.is_some();
                        record.join_row(*row, now);
                        if !was_parked {
                            self.count_parked(&subject);
                        }
                        // The commit may have replaced the row's entry in the state topic by an older request: write it again.
                        self.park(&subject, Cause::Listed, now, Vec::new());
                        continue;
                    }
                    let (is_held, cause) = (record.oldest().is_some(), record.suspected_cause());
                    let soon = now.saturating_add(self.rules.retry_first);
                    match cause.filter(|_| is_held && at > soon) {
                        // Confirming a regression takes long; park it so that the offset moves on.
                        Some(cause) => self.park(&subject, cause, at, Vec::new()),
                        None => {
                            self.wait_until(&subject, if is_held && !is_unsure { at.min(soon) } else { at });
                        }
                    }
                }
                AfterCommit::Due(_) | AfterCommit::End => {
                    let Some(mut record) = self.records.remove(&subject) else { continue };
                    if let Some(parked) = &record.parked {
                        self.forget_parked(&subject.company, parked.is_counted);
                    }
                    // A rejected record settles its remaining events too.
                    for settle in record.take_tickets() {
                        let event = Event::clone(&record.wants.event);
                        self.settle_event(event, settle, Vec::new(), Outcome::Coalesced);
                    }
                    let stored = stored(&subject);
                    match record.take_row() {
                        Some(row) if judge::is_above(row.floor.as_ref(), stored.as_ref()) => {
                            // The committed version is older than the row: write its entry in the state topic again.
                            let subject = self.insert_parked(*row);
                            self.park(&subject, Cause::Listed, now, Vec::new());
                        }
                        // The row is satisfied, but its entry in the state topic may be newer than the commit: remove it.
                        Some(row) => {
                            let entry = Entry::new(
                                Some(subject.clone()),
                                row.event,
                                vec![Change::Unpark],
                                Vec::new(),
                            );
                            self.output.ready.push_back((entry, Vec::new(), None));
                        }
                        None => {}
                    }
                    for Late { wanted, event, settle } in later {
                        self.take_wanted(wanted, event, settle, stored.as_ref(), now);
                    }
                }
            }
        }
    }
}
