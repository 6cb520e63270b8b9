//! A fair queue of records to read: companies take turns, so that a large company does not delay the others. Also which companies may be
//! read.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use model::CompanyId;

use super::{Subject, doubled_delay};

/// Whether a company may be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompanyState {
    /// The list of companies shows it.
    Known,
    /// The list has not been read to its end yet.
    Unread,
    /// The list does not show it.
    Absent {
        /// When the reading of that list began, microseconds since 1970.
        since: i64,
    },
}

/// The reader of the list of companies.
pub trait Companies {
    /// Looks a company up in the list.
    fn state(&self, company: &CompanyId) -> CompanyState;

    /// Requests another reading of the list, because a record waits for a company that it does not show.
    fn ask(&self);
}

/// Records by company, and the order of the companies' turns.
#[derive(Debug)]
pub(super) struct FairQueue {
    /// Concurrent reads of one company.
    most: usize,
    queues: HashMap<CompanyId, CompanyQueue>,
    turns: VecDeque<CompanyId>,
    /// Companies that are backing off, by the end of the backoff.
    held: BTreeSet<(i64, CompanyId)>,
}

#[derive(Debug, Default)]
struct CompanyQueue {
    waiting: VecDeque<Subject>,
    reading: usize,
    /// End of its backoff.
    held_until: i64,
    holds: u32,
    in_turn: bool,
}

impl FairQueue {
    pub(super) fn new(most: usize) -> Self {
        let (queues, turns, held) = (HashMap::new(), VecDeque::new(), BTreeSet::new());
        Self { most: most.max(1), queues, turns, held }
    }

    /// Whether no company can take a turn.
    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// When the first backoff ends.
    pub(super) fn next_held(&self) -> Option<i64> {
        self.held.first().map(|(at, _)| *at)
    }

    /// Appends a record to the queue of its company.
    pub(super) fn push(&mut self, subject: Subject, now: i64) {
        let company = subject.company.clone();
        self.queues.entry(company.clone()).or_default().waiting.push_back(subject);
        self.line_up(&company, now);
    }

    /// The next record to read. It counts as being read until [`FairQueue::ended`].
    pub(super) fn pop(&mut self, now: i64) -> Option<Subject> {
        while self.held.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, company)) = self.held.pop_first() else { break };
            self.line_up(&company, now);
            self.tidy(&company, now);
        }
        while let Some(company) = self.turns.pop_front() {
            let Some(queue) = self.queues.get_mut(&company) else { continue };
            queue.in_turn = false;
            if queue.held_until > now {
                continue;
            }
            let Some(subject) = queue.waiting.pop_front() else {
                self.tidy(&company, now);
                continue;
            };
            queue.reading += 1;
            self.line_up(&company, now);
            return Some(subject);
        }
        None
    }

    /// Frees the read of a company, which has ended or was not started.
    pub(super) fn ended(&mut self, company: &CompanyId, now: i64) {
        if let Some(queue) = self.queues.get_mut(company) {
            queue.reading = queue.reading.saturating_sub(1);
        }
        self.line_up(company, now);
        self.tidy(company, now);
    }

    /// Stops reads of a company for `wait`, or else for a backoff that doubles from `first` to `longest`.
    pub(super) fn hold(
        &mut self,
        company: &CompanyId,
        wait: Option<i64>,
        first: i64,
        longest: i64,
        now: i64,
    ) {
        let queue = self.queues.entry(company.clone()).or_default();
        // Concurrent reads report the same failure: it counts once.
        if queue.held_until > now {
            return;
        }
        queue.holds = queue.holds.saturating_add(1);
        queue.held_until =
            now.saturating_add(wait.unwrap_or_else(|| doubled_delay(first, longest, queue.holds)).max(1));
        self.held.insert((queue.held_until, company.clone()));
    }

    /// Resets the backoff of a company that has answered.
    pub(super) fn answered(&mut self, company: &CompanyId) {
        if let Some(queue) = self.queues.get_mut(company) {
            queue.holds = 0;
        }
    }

    /// Removes and returns the waiting records that `is_one` selects.
    pub(super) fn take_out(&mut self, mut is_one: impl FnMut(&Subject) -> bool) -> Vec<Subject> {
        let found: HashSet<Subject> = self
            .queues
            .values()
            .flat_map(|queue| &queue.waiting)
            .filter(|one| is_one(one))
            .cloned()
            .collect();
        if !found.is_empty() {
            for queue in self.queues.values_mut() {
                queue.waiting.retain(|subject| !found.contains(subject));
            }
        }
        found.into_iter().collect()
    }

    /// Gives a company a turn if it has a record to read and is below its limits.
    fn line_up(&mut self, company: &CompanyId, now: i64) {
        let Some(queue) = self.queues.get_mut(company) else { return };
        let may = queue.reading < self.most && queue.held_until <= now;
        if may && !queue.in_turn && !queue.waiting.is_empty() {
            queue.in_turn = true;
            self.turns.push_back(company.clone());
        }
    }

    /// Drops the state of an idle company.
    fn tidy(&mut self, company: &CompanyId, now: i64) {
        let is_idle =
            |queue: &CompanyQueue| queue.waiting.is_empty() && queue.reading == 0 && queue.held_until <= now;
        if self.queues.get(company).is_some_and(is_idle) {
            self.queues.remove(company);
        }
    }
}
