//! One record that something is to be done about, and what is remembered of others.

use std::collections::{HashMap, VecDeque};

use model::{AccountingResource, Origin, SequenceVersion, Stamp, Version};

use super::{Cause, Event, Parked, Subject, Wanted, offsets::OffsetTicket};

/// Records whose last read, or look back, is remembered; of others it may come sooner.
const REMEMBERED: usize = 20_000;

/// What a list shows of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedVersion {
    /// Which version.
    pub version: Version,
    /// It was read then, or later; microseconds since 1970.
    pub read_at: i64,
}

/// An offset that is settled with an entry.
pub(super) type Settle = (AccountingResource, OffsetTicket);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It waits until then.
    Due(i64, u64),
    /// It may be read, when its company's turn comes.
    Queued,
    Reading,
    /// What it has come to is to be committed.
    Settling,
}

/// One record that something is to be done about.
#[derive(Debug)]
pub(super) struct PendingRecord {
    pub(super) floor: Option<SequenceVersion>,
    pub(super) deleted: Option<Option<SequenceVersion>>,
    /// The event that asks for the most.
    pub(super) event: Event,
    /// Offsets that it holds back, since when, and when the oldest of their deliveries came.
    tickets: Vec<Settle>,
    held_since: i64,
    received_at: i64,
    /// When what the first of its events tells of happened; `None` where only lists ask for it.
    pub(super) first_at: Option<i64>,
    /// Since when what it asks for has been asked for.
    pub(super) since: i64,
    /// When it was read last: from before that is no answer.
    pub(super) asked_at: i64,
    pub(super) tries: u32,
    /// Whether the state topic has it, and for which floor.
    pub(super) parked: Option<Cause>,
    /// It is one of those that events have parked.
    pub(super) is_counted: bool,
    parked_floor: Option<SequenceVersion>,
    pub(super) gone_since: Option<i64>,
    pub(super) below_since: Option<i64>,
    /// It was published at the version of its event, and is read once more.
    pub(super) is_published: bool,
    /// Reads below the fence since this scheduler has it.
    pub(super) below_reads: u32,
    /// It only looks whether the provider went back.
    pub(super) looks_back: bool,
    /// How many reads had been answered when one of this record failed as if nothing could be read.
    pub(super) failed_at: Option<u64>,
    /// How long it has failed so while others were answered, and when last.
    pub(super) alone_for: Option<i64>,
    pub(super) alone_at: Option<i64>,
    pub(super) state: State,
    /// What a row of a list has asked for meanwhile.
    pub(super) row: Option<Box<Parked>>,
    /// Events that came while it was being committed; or while it was read, and that tell no version.
    pub(super) later: Vec<(Wanted, Event, Settle)>,
}

impl PendingRecord {
    /// `tickets` are the offsets that it holds back: none where a list asks for it.
    pub(super) fn new(
        wanted: Wanted,
        event: Event,
        tickets: Vec<Settle>,
        looks_back: bool,
        now: i64,
    ) -> Self {
        let Wanted { floor, is_delete, .. } = wanted;
        Self {
            deleted: is_delete.then(|| floor.clone()),
            floor,
            received_at: event.received_at,
            first_at: (!tickets.is_empty()).then_some(event.happened_at),
            event,
            tickets,
            held_since: now,
            since: now,
            asked_at: now,
            tries: 0,
            parked: None,
            is_counted: false,
            parked_floor: None,
            gone_since: None,
            below_since: None,
            is_published: false,
            below_reads: 0,
            looks_back,
            failed_at: None,
            alone_for: None,
            alone_at: None,
            state: State::Settling,
            row: None,
            later: Vec::new(),
        }
    }

    pub(super) fn adopted(parked: Parked) -> (Subject, Self) {
        let Parked { subject, floor, deleted, cause, since, gone_since, below_since, event, .. } = parked;
        let wanted = Wanted { subject: subject.clone(), floor: floor.clone(), is_delete: false };
        let record = Self {
            deleted,
            first_at: (event.origin == Origin::Enrichment).then_some(event.happened_at),
            parked: Some(cause),
            parked_floor: floor,
            gone_since,
            below_since,
            // The owner before may have seen that it fails alone: a change of owners does not restart that count.
            alone_for: (cause == Cause::Unreadable).then_some(i64::MAX),
            ..Self::new(wanted, event, Vec::new(), false, since)
        };
        (subject, record)
    }

    /// A row of a list asks for as much as this; the state topic has it.
    pub(super) fn join_row(&mut self, parked: Parked, now: i64) {
        if parked.floor > self.floor {
            (self.floor, self.event, self.since) = (parked.floor.clone(), parked.event, now);
        }
        self.parked_floor = parked.floor;
        self.parked = Some(parked.cause);
        // The row is above what was published.
        (self.below_since, self.below_reads) = (None, 0);
    }

    /// What the state topic has of it from now on.
    pub(super) fn park_as(&mut self, subject: &Subject, cause: Cause, due: i64) -> Parked {
        self.parked_floor.clone_from(&self.floor);
        Parked {
            subject: subject.clone(),
            floor: self.floor.clone(),
            deleted: self.deleted.clone(),
            cause,
            since: self.since,
            due,
            gone_since: self.gone_since,
            below_since: self.below_since,
            event: Event::clone(&self.event),
        }
    }

    /// Whether the state topic has what waits for as much as an event asks for.
    pub(super) fn covers(&self, wanted: &Wanted) -> bool {
        self.parked.is_some()
            && wanted.floor.is_some()
            && wanted.floor <= self.parked_floor
            && (!wanted.is_delete || self.deleted.as_ref().is_some_and(|deleted| wanted.floor <= *deleted))
    }

    /// Another event of the same record.
    pub(super) fn join(&mut self, wanted: Wanted, event: Event, settle: Settle, now: i64) {
        let Wanted { floor, is_delete, .. } = wanted;
        if is_delete {
            let known = self.deleted.take();
            let is_news = known.as_ref().is_none_or(|known| floor.is_none() || floor > *known);
            self.deleted = Some(known.flatten().max(floor.clone()));
            if is_news {
                // However long it has waited for another reason: reads from before the delete are believed no sooner.
                self.since = now;
            }
        }
        self.first_at = Some(self.first_at.map_or(event.happened_at, |first| first.min(event.happened_at)));
        if self.tickets.is_empty() {
            (self.held_since, self.received_at) = (now, event.received_at);
        }
        if floor > self.floor {
            // It is as if it had been asked for now.
            (self.floor, self.event, self.since) = (floor, event, now);
        }
        self.tickets.push(settle);
    }

    /// The offsets that it holds back, which it does no more.
    pub(super) fn take_tickets(&mut self) -> Vec<Settle> {
        std::mem::take(&mut self.tickets)
    }

    /// Whether it has held back an offset for too long.
    pub(super) fn is_late(&self, now: i64, park_after: i64) -> bool {
        !self.tickets.is_empty() && now.saturating_sub(self.held_since) >= park_after
    }

    /// When the oldest delivery came whose offset it holds back.
    pub(super) fn oldest(&self) -> Option<i64> {
        (!self.tickets.is_empty()).then_some(self.received_at)
    }

    /// Whether a list, read since reads by id show less than was published, shows that much.
    pub(super) fn is_contradicted(&self, row: &ListedVersion, stored: Option<&Stamp>) -> bool {
        self.below_since.is_some_and(|since| row.read_at >= since)
            && stored.is_some_and(|stored| row.version.reaches(stored))
    }

    /// Whether a version is what the events tell of.
    pub(super) fn is_met(&self, version: &Version) -> bool {
        match (version, &self.floor) {
            (Version::Sequence(read), Some(floor)) => read >= floor,
            _ => true,
        }
    }
}

/// When something was last done about records, for as many as fit.
#[derive(Debug, Default)]
pub(super) struct LastTimes {
    at: HashMap<Subject, i64>,
    order: VecDeque<(i64, Subject)>,
}

impl LastTimes {
    pub(super) fn get(&self, subject: &Subject) -> Option<i64> {
        self.at.get(subject).copied()
    }

    /// Notes it, and forgets what is older than `keep`.
    pub(super) fn note(&mut self, subject: &Subject, now: i64, keep: i64) {
        while let Some((at, oldest)) = self.order.front() {
            if self.order.len() < REMEMBERED && at.saturating_add(keep) > now {
                break;
            }
            if self.at.get(oldest) == Some(at) {
                self.at.remove(oldest);
            }
            self.order.pop_front();
        }
        self.at.insert(subject.clone(), now);
        self.order.push_back((now, subject.clone()));
    }
}
