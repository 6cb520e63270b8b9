//! Whose turn it is: records that may be read, by company, so that none with much to read keeps the others waiting.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use model::CompanyId;

use super::{Subject, grown};

/// Companies in line.
#[derive(Debug)]
pub(super) struct FairQueue {
    /// Reads of one company at once.
    most: usize,
    queues: HashMap<CompanyId, CompanyQueue>,
    turns: VecDeque<CompanyId>,
    /// Companies that are left alone for a while, by when that ends.
    held: BTreeSet<(i64, CompanyId)>,
}

#[derive(Debug, Default)]
struct CompanyQueue {
    waiting: VecDeque<Subject>,
    reading: usize,
    /// Nothing of it is read until then.
    held_until: i64,
    holds: u32,
    in_turn: bool,
}

impl FairQueue {
    pub(super) fn new(most: usize) -> Self {
        let (queues, turns, held) = (HashMap::new(), VecDeque::new(), BTreeSet::new());
        Self { most: most.max(1), queues, turns, held }
    }

    /// Whether somebody's turn has come.
    pub(super) fn is_empty(&self) -> bool {
        self.turns.is_empty()
    }

    /// When the next company is left alone no more.
    pub(super) fn next_held(&self) -> Option<i64> {
        self.held.first().map(|(at, _)| *at)
    }

    /// Puts a record behind the others of its company.
    pub(super) fn push(&mut self, subject: Subject, now: i64) {
        let company = subject.company.clone();
        self.queues.entry(company.clone()).or_default().waiting.push_back(subject);
        self.line_up(&company, now);
    }

    /// The record whose turn it is. It is under way until [`FairQueue::ended`] tells, or never was, as [`FairQueue::put_back`] tells.
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

    /// A read has ended, or was not started after all: its company may begin another.
    pub(super) fn ended(&mut self, company: &CompanyId, now: i64) {
        if let Some(queue) = self.queues.get_mut(company) {
            queue.reading = queue.reading.saturating_sub(1);
        }
        self.line_up(company, now);
        self.tidy(company, now);
    }

    /// A company is left alone for a while: so long, or longer each time.
    pub(super) fn hold(
        &mut self,
        company: &CompanyId,
        wait: Option<i64>,
        first: i64,
        longest: i64,
        now: i64,
    ) {
        let queue = self.queues.entry(company.clone()).or_default();
        // Others that were under way meanwhile say the same.
        if queue.held_until > now {
            return;
        }
        queue.holds = queue.holds.saturating_add(1);
        queue.held_until =
            now.saturating_add(wait.unwrap_or_else(|| grown(first, longest, queue.holds)).max(1));
        self.held.insert((queue.held_until, company.clone()));
    }

    /// A company has answered: the next hold is a short one.
    pub(super) fn answered(&mut self, company: &CompanyId) {
        if let Some(queue) = self.queues.get_mut(company) {
            queue.holds = 0;
        }
    }

    /// Takes those out of the line of which this is so.
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

    /// Gives a company a turn, if it has something to read and may.
    fn line_up(&mut self, company: &CompanyId, now: i64) {
        let Some(queue) = self.queues.get_mut(company) else { return };
        let may = queue.reading < self.most && queue.held_until <= now;
        if may && !queue.in_turn && !queue.waiting.is_empty() {
            queue.in_turn = true;
            self.turns.push_back(company.clone());
        }
    }

    /// Forgets a company of which nothing is to be read.
    fn tidy(&mut self, company: &CompanyId, now: i64) {
        let is_idle =
            |queue: &CompanyQueue| queue.waiting.is_empty() && queue.reading == 0 && queue.held_until <= now;
        if self.queues.get(company).is_some_and(is_idle) {
            self.queues.remove(company);
        }
    }
}
