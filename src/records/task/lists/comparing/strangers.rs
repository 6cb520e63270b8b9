//! Strangers: keys of a topic that this worker never published. They have no fence entry, so neither lists nor reads by id find them.
//!
//! The search runs once all lists of a run have ended, and repeats for `enrich.park.after.ms` if it finds any, because a record may be
//! in the topic a moment before its fence entry is known here. Samples do not search for strangers.

use std::collections::BTreeSet;

use model::{DesiredRunState, Difference, Key, List, Run, RunId, RunKind};

use super::{
    super::{Active, Getting, LOOK, Lists, Part},
    read_topic,
};
use crate::records::{fence::ShardFence, task::micros};

/// Keys to name in a log message.
const MAX_NAMED_KEYS: usize = 10;

/// The search of a run.
#[derive(Debug, Default)]
pub(in super::super) struct Strangers {
    lists: BTreeSet<List>,
    /// When to search again.
    due: Option<i64>,
    /// Until when to wait for fence entries of found keys; microseconds since 1970.
    waits_until: Option<i64>,
}

impl Strangers {
    /// The search in the topics of these lists; empty unless the run verifies whole lists.
    pub(in super::super) fn of(run: &Run, lists: &[List]) -> Self {
        let is_whole = run.kind == RunKind::Verify && run.verification.sample.is_none();
        let lists = lists.iter().copied().filter(|_| is_whole).collect();
        Self { lists, ..Self::default() }
    }

    pub(in super::super) fn is_empty(&self) -> bool {
        self.lists.is_empty()
    }

    pub(in super::super) fn due(&self) -> Option<i64> {
        self.due.filter(|_| !self.is_empty())
    }
}

impl Active {
    /// Whether all lists of the run have ended.
    pub(in super::super) fn is_read(&self) -> bool {
        self.plan.is_settled() && self.waiting.is_empty() && self.open == 0
    }
}

impl Lists {
    /// Counts strangers for runs whose lists have ended.
    pub(in super::super) fn look_for_strangers(
        &mut self,
        getting: &mut Getting,
        fence: &ShardFence,
        now: i64,
    ) {
        let is_due = |active: &&Active| {
            active.wanted == DesiredRunState::Running
                && !active.strangers.is_empty()
                && active.strangers.due.is_none_or(|due| due <= now)
                && active.is_read()
        };
        let runs: Vec<RunId> =
            self.runs.values().filter(is_due).map(|active| active.run.id.clone()).collect();
        for run in runs {
            let Some(active) = self.runs.get_mut(&run) else { continue };
            active.strangers.due = Some(now.saturating_add(LOOK));
            for list in active.strangers.lists.clone() {
                let view = active.views.entry(list).or_default();
                if !view.is_ready() {
                    read_topic(view, (&run, list), getting, (&self.shared, self.shard, fence), now);
                    continue;
                }
                let fence = fence.lookup();
                let lead = Key::fences_of(list.topic(), None);
                let is_asked_for = |key: &str| match &active.run.companies {
                    Some(companies) if list != List::Payroll => companies.iter().any(|company| {
                        (lead.clone() + key).starts_with(&Key::fences_of(list.topic(), Some(company)))
                    }),
                    _ => true,
                };
                // The next write reports a failure of the local fence database.
                let is_stranger = |key: &&str| !fence.knows(list.topic(), key).unwrap_or(true);
                let strangers: Vec<&str> =
                    view.strangers().filter(|key| is_asked_for(key)).filter(is_stranger).collect();
                if !strangers.is_empty() {
                    let limit = micros(self.shared.source.enrich.park_after);
                    if now < *active.strangers.waits_until.get_or_insert(now.saturating_add(limit)) {
                        continue;
                    }
                    let keys = strangers[..strangers.len().min(MAX_NAMED_KEYS)].join(" ");
                    tracing::warn!(connector = &*self.shared.task.connector, shard = self.shard, %list,
                        count = strangers.len(), keys, "a topic has records that this worker never published");
                    let count = strangers.len() as u64;
                    Difference::Foreign.count(&mut active.progress.compared.differences, count);
                    self.parts.ready.push_back(Part::standing(&run));
                }
                active.strangers.lists.remove(&list);
            }
            self.end_if_done(&run, now);
        }
    }
}
