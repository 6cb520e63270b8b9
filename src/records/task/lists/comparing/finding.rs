//! Results of comparisons, and the records to publish for repairs.

use std::sync::Arc;

use model::{Comparison, Difference, Epoch, Key, Rank, Run, RunProgress, Stamp, Value, Version};

use super::{
    super::{
        job::Answer,
        rows,
        topic::{Holds, digest, is_disabled},
    },
    Suspect, difference,
};
use crate::{
    plugin::Failure,
    records::{
        schedule::{Change, Entry, Subject},
        task::draft::Draft,
    },
};

/// Result of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Finding {
    Same,
    /// A disabled record, which is rightly not in its list.
    Disabled,
    Differs(Difference),
    /// The batch repairs the difference.
    Repaired(Difference),
    /// Read it again: an event in flight may explain it.
    Again,
}

impl Finding {
    pub(in super::super) fn count(self, progress: &mut RunProgress) {
        match self {
            Self::Same | Self::Again => {}
            Self::Disabled => progress.compared.disabled += 1,
            Self::Differs(kind) => {
                kind.count(&mut progress.compared.differences, 1);
                progress.work.vanished += u64::from(kind == Difference::Vanished);
            }
            Self::Repaired(kind) => kind.count(&mut progress.compared.repaired, 1),
        }
    }
}

/// A record that was read by id. `suspect` comes from its row; `None` if no page has shown the record.
pub(in super::super) struct Looked<'a> {
    pub(in super::super) suspect: Option<&'a Suspect>,
    pub(in super::super) subject: &'a Subject,
    pub(in super::super) answer: &'a Answer,
    /// The topic's record.
    pub(in super::super) holds: Holds,
    /// Whether to wait for events in flight.
    pub(in super::super) may_wait: bool,
}

impl Draft<'_> {
    /// Compares a record that was read by id, and publishes it if the run repairs and that helps.
    pub(in super::super) fn add_looked(
        &mut self,
        run: &Run,
        looked: &Looked<'_>,
    ) -> Result<Finding, Failure> {
        let Looked { suspect, subject, answer, .. } = looked;
        let entry = match answer {
            Answer::There(json) => {
                let version = suspect.and_then(|suspect| suspect.stamp.version.number());
                rows::entry_of_record(run, subject, json, version)
            }
            _ => None,
        };
        let key = subject.fence_key();
        let before = self.stored(&key)?;
        let Some((entry, (value, stamp))) =
            entry.and_then(|mut entry| published(&mut entry, before.as_ref()).map(|found| (entry, found)))
        else {
            return Ok(looked.without_record());
        };
        let found = match suspect {
            Some(suspect) => suspect.against(&value, &stamp, before.as_ref(), looked.holds),
            None => looked.unlisted(&value, &stamp, before.as_ref()),
        };
        let repairs = match found {
            Finding::Differs(kind) if kind.can_be_repaired() => run.verification.repair,
            // The record exists, although no list has it, so a newer version is published.
            Finding::Differs(Difference::Unlisted) => {
                let tells_version = !matches!(stamp.version, Version::Content { .. });
                run.verification.repair && tells_version && stamp.against(before.as_ref()).publishes()
            }
            _ => false,
        };
        if !repairs {
            return Ok(found);
        }
        self.write(key, entry);
        Ok(match found {
            Finding::Differs(kind) if kind.can_be_repaired() => Finding::Repaired(kind),
            found => found,
        })
    }

    /// Concludes a suspect that is not read by id, and publishes its row if the run repairs and that helps.
    pub(in super::super) fn add_found(
        &mut self,
        context: rows::Context<'_>,
        (key, suspect): &(Key, Suspect),
    ) -> Result<Finding, Failure> {
        let kind = suspect.kind;
        let key = Key::fence(context.list.topic(), key);
        let before = self.stored(&key)?;
        let epoch = before.as_ref().map_or(Epoch::default(), |before| before.epoch);
        let stamp = Stamp { epoch, ..suspect.stamp.clone() };
        let comparison = stamp.against(before.as_ref());
        let is_caught_up = match suspect.written_at {
            None => {
                is_tied(&stamp, before.as_ref()) && before != suspect.stored
                    || matches!(comparison, Comparison::Same | Comparison::HigherRank | Comparison::Older)
            }
            Some(_) => !stamp.is_of(before.as_ref()),
        };
        if kind.can_be_repaired() && is_caught_up {
            // The topic has caught up.
            return Ok(Finding::Same);
        }
        let Some(row) =
            suspect.row.as_deref().filter(|_| context.run.verification.repair && kind.can_be_repaired())
        else {
            return Ok(Finding::Differs(kind));
        };
        self.write(key, rows::entry_of_row(context, row, stamp));
        Ok(Finding::Repaired(kind))
    }
}

/// Whether both versions have the same time or event number. Then each counts as newer if contents differ, so a row cannot be
/// distinguished from a record that another run has written since.
fn is_tied(stamp: &Stamp, before: Option<&Stamp>) -> bool {
    match (&stamp.version, before.map(|before| &before.version)) {
        (Version::Payroll { at, .. }, Some(Version::Payroll { at: before, .. })) => at == before,
        (Version::Content { event_number, .. }, Some(Version::Content { event_number: before, .. })) => {
            event_number == before
        }
        _ => false,
    }
}

impl Looked<'_> {
    /// Result if the record cannot be read or is unusable.
    fn without_record(&self) -> Finding {
        match (self.suspect.map(|suspect| suspect.kind), self.holds, self.answer) {
            // The page was older than the delete.
            (Some(Difference::Deleted), _, Answer::Gone) => Finding::Same,
            (Some(kind), _, _) => Finding::Differs(kind),
            (None, Holds::Record { is_new: true, .. }, _) => Finding::Same,
            (None, Holds::Record { is_disabled: true, .. }, _) => Finding::Disabled,
            (None, _, Answer::Gone) => Finding::Differs(Difference::Vanished),
            (None, _, _) => Finding::Differs(Difference::Unlisted),
        }
    }

    /// Result for an existing record that no page has shown.
    fn unlisted(&self, value: &Value, stamp: &Stamp, before: Option<&Stamp>) -> Finding {
        if matches!(self.holds, Holds::Record { is_new: true, .. }) {
            return Finding::Same;
        }
        let comparison = stamp.against(before);
        if comparison == Comparison::BehindDelete {
            // It was deleted after the scan of the fence, and a lagging replica answered.
            return Finding::Same;
        }
        let is_behind = matches!(comparison, Comparison::First | Comparison::Newer);
        match (is_disabled(value), is_behind) {
            // Its event may be in flight, and may explain why no page shows the record.
            (_, true) if self.may_wait => Finding::Again,
            (false, _) => Finding::Differs(Difference::Unlisted),
            (true, true) => Finding::Differs(Difference::Behind),
            (true, false) => Finding::Disabled,
        }
    }
}

impl Suspect {
    /// Result for a suspect whose record exists.
    fn against(&self, value: &Value, stamp: &Stamp, before: Option<&Stamp>, holds: Holds) -> Finding {
        let comparison = stamp.against(before);
        match self.kind {
            Difference::Ahead => match stamp.against(self.stored.as_ref()) {
                Comparison::Older => Finding::Differs(Difference::Ahead),
                _ => Finding::Same,
            },
            Difference::Deleted if comparison == Comparison::BehindDelete => {
                Finding::Differs(Difference::Deleted)
            }
            Difference::Deleted => Finding::Same,
            _ if stamp.is_of(before) => {
                // If the fence has changed since the last comparison, the topic has not been read for it.
                let is_seen = self.written_at.is_some() && before == self.stored.as_ref();
                let holds = if is_seen { holds } else { Holds::Unknown };
                difference(stamp, Some(digest(value)), before, holds).map_or(Finding::Same, Finding::Differs)
            }
            _ => match comparison {
                Comparison::First => Finding::Differs(Difference::Missing),
                Comparison::Newer => Finding::Differs(Difference::Behind),
                Comparison::Incomparable => Finding::Differs(Difference::Incomparable),
                _ => Finding::Same,
            },
        }
    }
}

/// Value and stamp that an entry publishes, in the current epoch.
fn published(entry: &mut Entry, before: Option<&Stamp>) -> Option<(Arc<Value>, Stamp)> {
    let subject = entry.subject.as_ref();
    entry.changes.iter_mut().find_map(|change| match change {
        Change::Publish { value, stamp, .. } => {
            *stamp = Stamp::reading(stamp.version.clone(), Rank::ById, before);
            Some((value.value(subject).ok()?, stamp.clone()))
        }
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use model::RunKind;

    use super::{
        super::tests::{json, stamp, subject, suspect, value},
        *,
    };
    use crate::records::{schedule::Batch, task::lists::topic::View};

    fn run(repair: bool) -> Run {
        let run = serde_json::json!({ "connector": "records", "id": "r", "kind": RunKind::Verify.name(), "lists": ["customers"],
            "repair": repair, "requestedBy": "test", "requestedAt": 1 });
        serde_json::from_value(run).unwrap()
    }

    /// A topic with at most one record.
    fn view(held: Option<&Value>) -> View {
        View::of(held.map(|value| (subject().key(), value)))
    }

    fn newer(version: &str) -> Option<Stamp> {
        Some(stamp(version, Rank::ById, false))
    }

    /// A suspect that was last compared with this fence entry.
    fn suspected(kind: Difference, stored: Option<&Stamp>) -> Suspect {
        let mut suspect = suspect(kind);
        suspect.written_at = suspect.stamp.is_of(stored).then_some(1);
        Suspect { stored: stored.cloned(), ..suspect }
    }

    fn find(repair: bool, looked: &Looked<'_>, stored: Option<&Stamp>) -> (Finding, Batch) {
        let stored = |_: &Key| Ok(stored.cloned());
        let (mut draft, _) = Draft::new(Batch::default(), &stored, |_, _| false).unwrap();
        let found = draft.add_looked(&run(repair), looked);
        (found.unwrap(), draft.batch)
    }

    type Case<'a> = (Option<Difference>, Answer, Option<&'a Stamp>, Option<&'a Value>, Finding);

    #[test]
    fn read_by_id_decides_and_only_source_values_are_repaired() {
        use Difference::{Ahead, Behind, Content, Deleted, Missing, Unlisted, Vanished};
        let (enabled, disabled) = (value("9", "Enabled"), value("9", "Disabled"));
        let there = |state: &str| Answer::There(json("9", state));
        let (older, same) = (stamp("8", Rank::ById, false), stamp("9", Rank::ById, false));
        let (newer, dead) = (stamp("10", Rank::ById, false), stamp("9", Rank::ById, true));
        let table: &[Case<'_>] = &[
            (Some(Missing), there("Enabled"), None, None, Finding::Repaired(Missing)),
            (Some(Behind), there("Enabled"), Some(&older), Some(&enabled), Finding::Repaired(Behind)),
            (Some(Behind), there("Enabled"), Some(&same), Some(&enabled), Finding::Same),
            (Some(Behind), Answer::Gone, Some(&older), Some(&enabled), Finding::Differs(Behind)),
            (Some(Ahead), there("Enabled"), Some(&newer), Some(&enabled), Finding::Differs(Ahead)),
            (Some(Ahead), there("Enabled"), Some(&same), Some(&enabled), Finding::Same),
            (Some(Deleted), there("Enabled"), Some(&dead), None, Finding::Differs(Deleted)),
            (Some(Deleted), Answer::Gone, Some(&dead), None, Finding::Same),
            // The row has more members than the record by id, which the topic has.
            (Some(Content), there("Disabled"), Some(&same), Some(&disabled), Finding::Same),
            (Some(Content), there("Enabled"), Some(&same), Some(&disabled), Finding::Repaired(Content)),
            // The fence has the version, but the topic does not.
            (Some(Missing), there("Enabled"), Some(&same), None, Finding::Repaired(Missing)),
            (None, there("Enabled"), Some(&same), Some(&enabled), Finding::Differs(Unlisted)),
            (None, there("Disabled"), Some(&same), Some(&disabled), Finding::Disabled),
            (None, there("Disabled"), Some(&older), Some(&enabled), Finding::Repaired(Behind)),
            (None, there("Enabled"), Some(&dead), Some(&enabled), Finding::Same),
            (None, Answer::Gone, Some(&same), Some(&disabled), Finding::Disabled),
            (None, Answer::Gone, Some(&same), Some(&enabled), Finding::Differs(Vanished)),
            (None, Answer::Unreadable, Some(&same), Some(&enabled), Finding::Differs(Unlisted)),
        ];
        for (kind, answer, stored, held, expected) in table {
            for repair in [true, false] {
                let suspect = kind.map(|kind| suspected(kind, *stored));
                let (subject, holds) = (subject(), view(*held).get(&subject().key()));
                let looked =
                    Looked { suspect: suspect.as_ref(), subject: &subject, answer, holds, may_wait: false };
                let (found, batch) = find(repair, &looked, *stored);

                let expected = match expected {
                    Finding::Repaired(kind) if !repair => Finding::Differs(*kind),
                    expected => *expected,
                };
                assert_eq!(found, expected, "{kind:?} {answer:?}");
                assert_eq!(batch.entries.len(), usize::from(matches!(expected, Finding::Repaired(_))));
                let stands = stored.map_or(Epoch(0), |stamp| stamp.epoch);
                let epochs = batch.entries.iter().map(|entry| entry.stamp().unwrap().epoch);
                assert!(epochs.into_iter().all(|epoch| epoch == stands));
            }
        }
    }

    #[test]
    fn only_payroll_of_the_same_time_is_tied() {
        let payroll = |time: &str, content: &str| Stamp {
            version: Version::payroll(time, content.as_bytes()).unwrap(),
            ..stamp("9", Rank::List, false)
        };
        let (early, other) = (payroll("2026-11-15T09:00:00Z", "a"), payroll("2026-11-15T09:00:00Z", "b"));
        let late = payroll("2026-11-15T09:00:01Z", "b");

        assert!(is_tied(&early, Some(&other)));
        assert!(!is_tied(&late, Some(&other)) && !is_tied(&early, None));
        assert!(!is_tied(&stamp("9", Rank::List, false), newer("9").as_ref()));
    }

    #[test]
    fn record_that_changes_while_compared_is_no_difference() {
        let (subject, answer) = (subject(), Answer::There(json("9", "Enabled")));
        let stale = view(Some(&value("8", "Enabled"))).get(&subject.key());
        for (kind, looked_at, stands) in [
            // An event was published between request and answer.
            (Difference::Ahead, newer("9"), newer("10")),
            (Difference::Behind, newer("8"), newer("9")),
            (Difference::Behind, newer("8"), newer("10")),
            (Difference::Content, newer("9"), newer("10")),
        ] {
            let suspect = suspected(kind, looked_at.as_ref());
            let looked = Looked {
                suspect: Some(&suspect),
                subject: &subject,
                answer: &answer,
                holds: stale,
                may_wait: false,
            };
            assert_eq!(find(true, &looked, stands.as_ref()).0, Finding::Same, "{kind:?}");
        }
    }

    #[test]
    fn unlisted_record_may_be_new_or_have_an_event_in_flight() {
        let (subject, there) = (subject(), Answer::There(json("9", "Disabled")));
        let look = |answer, is_new, may_wait, stored: Option<Stamp>| {
            let holds = Holds::Record { digest: 1, is_disabled: false, is_new };
            let looked = Looked { suspect: None, subject: &subject, answer, holds, may_wait };
            find(false, &looked, stored.as_ref()).0
        };

        assert_eq!(look(&there, true, false, newer("9")), Finding::Same);
        assert_eq!(look(&Answer::Gone, true, false, newer("9")), Finding::Same);
        assert_eq!(look(&there, false, true, newer("8")), Finding::Again);
        assert_eq!(look(&there, false, false, newer("8")), Finding::Differs(Difference::Behind));
    }
}
