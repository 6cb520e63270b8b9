//! What can be committed, and what is left to do once it is.

use model::Stamp;

use super::{AfterCommit, Scheduler};
use crate::records::schedule::{Batch, Cause, Change, Entry, Event, Outcome, Subject, judge, pending::Late};

impl Scheduler {
    /// How many entries can be committed.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.output.ready.len()
    }

    /// What can be committed now, at most of this weight; one batch at a time.
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

    /// The batch is committed; `stored` tells what the fence has of a record since, `refused` which records were given to the dead
    /// letters in the place of what was to be written.
    pub fn committed(&mut self, refused: &[Subject], stored: &dyn Fn(&Subject) -> Option<Stamp>, now: i64) {
        for (subject, after) in std::mem::take(&mut self.output.committing) {
            let Some(record) = self.records.get_mut(&subject) else { continue };
            let later = record.take_later();
            match after {
                AfterCommit::Due(at) if !refused.contains(&subject) => {
                    // What was published without its own version is read again in its time, unless more was told of it.
                    let is_unsure = record.tries.is_published && later.is_empty();
                    for Late { wanted, event, settle } in later {
                        if judge::is_above(wanted.floor.as_ref(), stored(&subject).as_ref()) {
                            // The provider goes on beyond what was published: it did not go back.
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
                        // What was committed may be less, in the place of what the row asks for: that is written again.
                        self.park(&subject, Cause::Listed, now, Vec::new());
                        continue;
                    }
                    let (is_held, cause) = (record.oldest().is_some(), record.suspected_cause());
                    let soon = now.saturating_add(self.rules.retry_first);
                    match cause.filter(|_| is_held && at > soon) {
                        // Whether the provider went back takes its time: the offset does not wait for it.
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
                    // Those of a record that was refused are settled with it.
                    for settle in record.take_tickets() {
                        let event = Event::clone(&record.wants.event);
                        self.settle_event(event, settle, Vec::new(), Outcome::Coalesced);
                    }
                    let stored = stored(&subject);
                    match record.take_row() {
                        Some(row) if judge::is_above(row.floor.as_ref(), stored.as_ref()) => {
                            // What was settled meanwhile is less; that it waits is written again.
                            let subject = self.insert_parked(*row);
                            self.park(&subject, Cause::Listed, now, Vec::new());
                        }
                        // It is there already; that it waits may have been written after what has settled it.
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
