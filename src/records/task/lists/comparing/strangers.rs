//! Keys of a topic that this worker never published: the fence of every published key is known, so no list and no read by id can
//! tell of them.
//!
//! They are looked for once all lists of a run are over, and again for `enrich.park.after.ms` where there are any: a record may be
//! in the topic a moment before its fence is known here. A sample does not look for them, as for nothing else that no list shows.

use std::collections::BTreeSet;

use model::{DesiredRunState, Difference, Key, List, Run, RunId, RunKind};

use super::{
    super::{Active, Getting, LOOK, Lists, Part},
    read_topic,
};
use crate::records::{fence::ShardFence, task::micros};

/// Keys that a log line names.
const MAX_NAMED_KEYS: usize = 10;

/// Topics of a run that are not looked through yet.
#[derive(Debug, Default)]
pub(in super::super) struct Strangers {
    lists: BTreeSet<List>,
    /// When to look again, while something is left.
    due: Option<i64>,
    /// Until then what was found may yet become known.
    waits_until: Option<i64>,
}

impl Strangers {
    /// Those of a run of these lists; none where nothing is compared.
    pub(in super::super) fn of(run: &Run, lists: &[List]) -> Self {
        let is_whole = run.kind == RunKind::Verify && run.sample.is_none();
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
    /// Whether every list of it is over.
    pub(in super::super) fn is_read(&self) -> bool {
        self.plan.is_settled() && self.waiting.is_empty() && self.open == 0
    }
}

impl Lists {
    /// Counts the keys that were never published, of runs whose lists are over.
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
                let view = self.views.entry((run.clone(), list)).or_default();
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
                // A store that fails is found so by the next write.
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
                        count = strangers.len(), keys, "a topic has keys that this worker never published");
                    let count = strangers.len() as u64;
                    Difference::Foreign.count(&mut active.progress.differences, count);
                    self.ready.push_back(Part::standing(&run));
                }
                active.strangers.lists.remove(&list);
            }
            self.end_if_done(&run, now);
        }
    }
}
