//! The state of one record that has to be read, and times of past reads.

use std::collections::{HashMap, VecDeque};

use model::{AccountingResource, Origin, SequenceVersion, Stamp, Version};

use super::{Event, ParkCause, Parked, Subject, Wanted, offsets::OffsetTicket};

/// Records whose last read time is remembered. Others may be read again sooner than the rules say.
const REMEMBERED_READS: usize = 20_000;

/// The version that a list shows for a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListedVersion {
    /// The version.
    pub version: Version,
    /// Earliest time at which it was read, microseconds since 1970.
    pub read_at: i64,
}

/// An open offset of an event topic, settled with an entry.
pub(super) type TopicTicket = (AccountingResource, OffsetTicket);

/// A delete that an event reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Delete {
    /// The event carries this version.
    AtVersion(SequenceVersion),
    /// The event carries no version.
    Unversioned,
}

impl Delete {
    /// A delete event with this version, if it carries one.
    #[must_use]
    pub fn new(version: Option<SequenceVersion>) -> Self {
        version.map_or(Self::Unversioned, Self::AtVersion)
    }

    /// The version that the event carries.
    #[must_use]
    pub const fn version(&self) -> Option<&SequenceVersion> {
        match self {
            Self::AtVersion(version) => Some(version),
            Self::Unversioned => None,
        }
    }
}

/// Where a record is between its first event and its last commit.
#[derive(Debug)]
pub(super) enum State {
    /// Waits until `at`; `number` separates records that are due at the same time.
    Due { at: i64, number: u64 },
    /// May be read as soon as it is its company's turn.
    Queued,
    /// A read is in flight since `asked_at`. Events without a version that arrive meanwhile need a later read.
    Reading { asked_at: i64, later: Vec<Late> },
    /// The result waits for its commit. Events and rows that arrive meanwhile are compared with it after the commit.
    Settling { later: Vec<Late> },
}

/// An event or a list row that has to wait until the read or commit in flight is over.
#[derive(Debug)]
pub(super) struct Late {
    pub(super) wanted: Wanted,
    pub(super) event: Event,
    /// `None` for a row.
    pub(super) settle: Option<TopicTicket>,
}

/// What the events and list rows of a record ask for.
#[derive(Debug)]
pub(super) struct Want {
    /// A read must show at least this version.
    pub(super) floor: Option<SequenceVersion>,
    /// The newest delete.
    pub(super) deleted: Option<Delete>,
    /// The event with the highest version; a row only where no event asks for the record.
    pub(super) event: Event,
    /// Since when this is wanted, microseconds since 1970.
    pub(super) since: i64,
    /// Timestamp of the first event; `None` where only lists ask for the record.
    pub(super) first_at: Option<i64>,
    /// Read only to check for a version regression.
    pub(super) checks_regression: bool,
}

/// Offsets that cannot be committed before the record is settled or parked. Never empty.
#[derive(Debug)]
struct HeldOffsets {
    tickets: Vec<TopicTicket>,
    /// Since when offsets are held.
    since: i64,
    /// When the first of their deliveries was received.
    received_at: i64,
}

/// Entry of a record in the state topic.
#[derive(Debug)]
pub(super) struct ParkedEntry {
    pub(super) cause: ParkCause,
    floor: Option<SequenceVersion>,
    /// An event parked it, so it counts toward [`Rules::most_parked`](super::Rules::most_parked).
    pub(super) is_counted: bool,
}

/// Reads that contradict what was published.
#[derive(Debug, Default)]
pub(super) struct Doubt {
    /// Since when the provider answers that the record is gone.
    pub(super) gone_since: Option<i64>,
    /// Since when reads show less than was published.
    pub(super) below_since: Option<i64>,
    /// Reads below the fence since this scheduler has the record.
    pub(super) below_reads: u32,
}

impl Doubt {
    /// Drops the suspicion of a version regression.
    pub(super) fn clear_regression(&mut self) {
        (self.below_since, self.below_reads) = (None, 0);
    }
}

/// Attempts to read the record.
#[derive(Debug, Default)]
pub(super) struct Tries {
    pub(super) count: u32,
    /// Number of answered reads at the last failure that looked like an outage.
    failed_at: Option<u64>,
    alone: Option<LoneFailure>,
    /// It was published at the version of its event and must be read once more.
    pub(super) is_published: bool,
}

/// How long a record has failed while reads of other records were answered.
#[derive(Debug)]
struct LoneFailure {
    time: i64,
    /// Time of the last such failure; `None` if only the previous owner of the shard saw one.
    at: Option<i64>,
}

impl Tries {
    /// A read of this record was answered.
    pub(super) fn answered(&mut self) {
        self.alone = None;
    }

    /// Records a failure that looks like an outage. Returns whether other reads (`answers` in total) were answered since the last
    /// one.
    pub(super) fn failed(&mut self, answers: u64, longest: i64, now: i64) -> bool {
        let is_alone = self.failed_at.replace(answers).is_some_and(|before| before < answers);
        if is_alone {
            let alone = self.alone.get_or_insert(LoneFailure { time: 0, at: None });
            // At most one backoff counts: the rest may have been an outage.
            let since = alone.at.replace(now).map_or(0, |before| now.saturating_sub(before));
            alone.time = alone.time.saturating_add(since.clamp(0, longest.max(0)));
        }
        is_alone
    }

    /// How long the record itself has failed: `tried`, minus the time in which no other read was answered either.
    pub(super) fn time(&self, tried: i64) -> i64 {
        self.alone.as_ref().map_or(tried, |alone| alone.time.min(tried))
    }
}

/// A record that events or rows of lists ask for.
#[derive(Debug)]
pub(super) struct PendingRecord {
    pub(super) wants: Want,
    holds: Option<HeldOffsets>,
    pub(super) parked: Option<ParkedEntry>,
    pub(super) doubt: Doubt,
    pub(super) tries: Tries,
    pub(super) state: State,
}

impl PendingRecord {
    /// `settle` is the offset that it holds back; `None` if a list asks for it.
    pub(super) fn new(
        wanted: Wanted,
        event: Event,
        settle: Option<TopicTicket>,
        checks_regression: bool,
        now: i64,
    ) -> Self {
        let Wanted { floor, is_delete, .. } = wanted;
        let received_at = event.received_at;
        let wants = Want {
            deleted: is_delete.then(|| Delete::new(floor.clone())),
            floor,
            first_at: settle.map(|_| event.happened_at),
            event,
            since: now,
            checks_regression,
        };
        Self {
            wants,
            holds: settle.map(|settle| HeldOffsets { tickets: vec![settle], since: now, received_at }),
            parked: None,
            doubt: Doubt::default(),
            tries: Tries::default(),
            state: State::Settling { later: Vec::new() },
        }
    }

    /// A record that the previous owner of the shard parked.
    pub(super) fn adopted(parked: Parked) -> (Subject, Self) {
        let Parked { subject, floor, deleted, cause, since, gone_since, below_since, event, .. } = parked;
        let wanted = Wanted { subject: subject.clone(), floor: floor.clone(), is_delete: false };
        let first_at = (event.origin == Origin::Enrichment).then_some(event.happened_at);
        let mut record = Self::new(wanted, event, None, false, since);
        (record.wants.deleted, record.wants.first_at) = (deleted, first_at);
        record.parked = Some(ParkedEntry { cause, floor, is_counted: false });
        record.doubt = Doubt { gone_since, below_since, below_reads: 0 };
        // The previous owner may have seen it fail alone: a change of owners must not restart the horizon.
        record.tries.alone =
            (cause == ParkCause::Unreadable).then_some(LoneFailure { time: i64::MAX, at: None });
        (subject, record)
    }

    /// Marks it as parked and returns its new entry for the state topic.
    pub(super) fn park_as(&mut self, subject: &Subject, cause: ParkCause, due: i64) -> Parked {
        let (Want { floor, deleted, event, since, .. }, is_counted) = (&self.wants, self.is_counted());
        self.parked = Some(ParkedEntry { cause, floor: floor.clone(), is_counted });
        Parked {
            subject: subject.clone(),
            floor: floor.clone(),
            deleted: deleted.clone(),
            cause,
            since: *since,
            due,
            gone_since: self.doubt.gone_since,
            below_since: self.doubt.below_since,
            event: Event::clone(event),
        }
    }

    /// Whether events have parked it.
    pub(super) fn is_counted(&self) -> bool {
        self.parked.as_ref().is_some_and(|parked| parked.is_counted)
    }

    /// Whether reads show an older version than the published one.
    pub(super) const fn is_suspected(&self) -> bool {
        self.doubt.below_since.is_some()
    }

    /// Why it is parked, if reads show an older version than the published one.
    pub(super) fn suspected_cause(&self) -> Option<ParkCause> {
        self.parked.as_ref().filter(|_| self.is_suspected()).map(|parked| parked.cause)
    }

    /// When its current read began, while it is read.
    pub(super) const fn asked_at(&self) -> Option<i64> {
        match self.state {
            State::Reading { asked_at, .. } => Some(asked_at),
            _ => None,
        }
    }

    /// Moves to [`State::Settling`].
    pub(super) fn begin_settling(&mut self) {
        if !matches!(self.state, State::Settling { .. }) {
            self.state = State::Settling { later: self.take_later() };
        }
    }

    /// Takes the events and rows that wait for the end of the read or commit.
    pub(super) fn take_later(&mut self) -> Vec<Late> {
        match &mut self.state {
            State::Reading { later, .. } | State::Settling { later } => std::mem::take(later),
            State::Due { .. } | State::Queued => Vec::new(),
        }
    }

    /// Whether a row waits for the end of the read or commit; it may ask for a newer version than that brings.
    pub(super) fn has_late_row(&self) -> bool {
        match &self.state {
            State::Reading { later, .. } | State::Settling { later } => {
                later.iter().any(|late| late.settle.is_none())
            }
            State::Due { .. } | State::Queued => false,
        }
    }

    /// Whether the entry in the state topic already covers the request of an event.
    pub(super) fn covers(&self, wanted: &Wanted) -> bool {
        let has_floor = |parked: &ParkedEntry| wanted.floor.is_some() && wanted.floor <= parked.floor;
        let has_delete = |deleted: &Delete| wanted.floor.as_ref() <= deleted.version();
        self.parked.as_ref().is_some_and(has_floor)
            && (!wanted.is_delete || self.wants.deleted.as_ref().is_some_and(has_delete))
    }

    /// Adds the request of another event, or of a row, which holds no offset. Returns whether the record holds offsets only since now.
    pub(super) fn join(
        &mut self,
        wanted: Wanted,
        event: Event,
        settle: Option<TopicTicket>,
        now: i64,
    ) -> bool {
        let (Wanted { floor, is_delete, .. }, wants) = (wanted, &mut self.wants);
        if is_delete {
            let known = wants.deleted.take();
            let is_news =
                known.as_ref().is_none_or(|known| floor.is_none() || floor.as_ref() > known.version());
            let newest = known.as_ref().and_then(Delete::version).max(floor.as_ref()).cloned();
            wants.deleted = Some(Delete::new(newest));
            if is_news {
                // Restart the wait, however long it took for other reasons: an answer may still come from before this delete.
                wants.since = now;
            }
        }
        let (is_event, has_event, is_higher) =
            (settle.is_some(), wants.first_at.is_some(), floor > wants.floor);
        let is_first = is_event && self.holds.is_none();
        if let Some(settle) = settle {
            let first = wants.first_at.map_or(event.happened_at, |first| first.min(event.happened_at));
            wants.first_at = Some(first);
            let received_at = event.received_at;
            let holds =
                self.holds.get_or_insert(HeldOffsets { tickets: Vec::new(), since: now, received_at });
            holds.tickets.push(settle);
        }
        // The loss of an event is reported; a list shows its row again.
        if if is_event == has_event { is_higher } else { is_event } {
            wants.event = event;
        }
        if is_higher {
            // A higher version counts as a new request.
            (wants.floor, wants.since) = (floor, now);
        }
        is_first
    }

    /// Releases the offsets that it holds back.
    pub(super) fn take_tickets(&mut self) -> Vec<TopicTicket> {
        self.holds.take().map(|holds| holds.tickets).unwrap_or_default()
    }

    /// Whether it has held back an offset for `park_after` or longer.
    pub(super) fn is_late(&self, now: i64, park_after: i64) -> bool {
        self.holds.as_ref().is_some_and(|holds| now.saturating_sub(holds.since) >= park_after)
    }

    /// When the oldest delivery was received whose offset it holds back.
    pub(super) fn oldest(&self) -> Option<i64> {
        self.holds.as_ref().map(|holds| holds.received_at)
    }

    /// Whether a list row, read after the suspicion of a regression arose, shows at least the published version.
    pub(super) fn is_contradicted(&self, row: &ListedVersion, stored: Option<&Stamp>) -> bool {
        self.doubt.below_since.is_some_and(|since| row.read_at >= since)
            && stored.is_some_and(|stored| row.version.reaches(stored))
    }

    /// Whether a version satisfies the events. One that cannot be compared does.
    pub(super) fn is_met(&self, version: &Version) -> bool {
        match (version, &self.wants.floor) {
            (Version::Sequence(read), Some(floor)) => read >= floor,
            _ => true,
        }
    }
}

/// Last times by record, for at most [`REMEMBERED_READS`] of them.
#[derive(Debug, Default)]
pub(super) struct LastTimes {
    at: HashMap<Subject, i64>,
    order: VecDeque<(i64, Subject)>,
}

impl LastTimes {
    pub(super) fn get(&self, subject: &Subject) -> Option<i64> {
        self.at.get(subject).copied()
    }

    /// Notes a time and drops those older than `keep`.
    pub(super) fn note(&mut self, subject: &Subject, now: i64, keep: i64) {
        while let Some((at, oldest)) = self.order.front() {
            if self.order.len() < REMEMBERED_READS && at.saturating_add(keep) > now {
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
