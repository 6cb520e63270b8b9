//! Builds batches, and continues with their records after the commit.

use model::Stamp;

use super::{AfterCommit, Scheduler};
use crate::records::schedule::{Batch, Event, Outcome, Subject, judge, pending::Late};

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
                    let asks_more = !later.is_empty();
                    for Late { wanted, event, settle } in later {
                        if judge::is_above(wanted.floor.as_ref(), stored(&subject).as_ref()) {
                            // An event above the published version contradicts a regression.
                            record.doubt.below_since = None;
                        }
                        self.open.holding += usize::from(record.join(wanted, event, settle, now));
                    }
                    let (is_held, cause) = (record.oldest().is_some(), record.suspected_cause());
                    // A record published without a version keeps its second read, unless a new request needs an earlier one.
                    let is_urgent = asks_more || is_held && !record.tries.is_published;
                    let soon = now.saturating_add(self.rules.retry_first);
                    match cause.filter(|_| is_held && at > soon) {
                        // Confirming a regression takes long; park it so that the offset moves on.
                        Some(cause) => self.park(&subject, cause, at, Vec::new()),
                        None => self.wait_until(&subject, if is_urgent { at.min(soon) } else { at }),
                    }
                }
                AfterCommit::Due(_) | AfterCommit::End => {
                    let Some(mut record) = self.records.remove(&subject) else { continue };
                    if let Some(parked) = &record.parked {
                        self.forget_parked(&subject.company, parked.is_counted);
                    }
                    // A rejected record settles its remaining events too.
                    let tickets = record.take_tickets();
                    self.open.holding -= usize::from(!tickets.is_empty());
                    for settle in tickets {
                        let event = Event::clone(&record.wants.event);
                        self.settle_event(event, Some(settle), Vec::new(), Outcome::Coalesced);
                    }
                    let stored = stored(&subject);
                    for Late { wanted, event, settle } in later {
                        self.take_wanted(wanted, event, settle, stored.as_ref(), now);
                    }
                }
            }
        }
    }
}
