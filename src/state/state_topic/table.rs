//! Subscriptions and runs of a state topic, by connector.
//!
//! The names of some keys are older than those of their types. `crates/model/src/ledger/mod.rs` also says who writes them.
//!
//! | key | type |
//! |---|---|
//! | `subscription/C/NONCE` | [`Subscription`](model::Subscription) |
//! | `acknowledge/C/WEBHOOK` | [`Acknowledge`](model::Acknowledge) |
//! | `echo/C`, `echo/C/HOOK` | [`Echo`](model::Echo) |
//! | `heard/C/WORKER` | [`ReceiverReport`](model::ReceiverReport) |
//! | `pace/C` | [`DeliveryIntervals`] |
//! | `gap/C/CAUSE/OPENED`, `gap/C/CAUSE/OPENED/TARGET` | [`Gap`](model::Gap) |
//! | `run/C/GAP` | [`Repair`](model::Repair), the request to repair a gap; not a [`Run`] |
//! | `accepted/C/GAP` | [`GapAccepted`](model::GapAccepted) |
//! | `start/C` | [`StreamStart`](model::StreamStart) |
//! | `wish/C`, `done/C` | [`SubscriptionCommand`](model::SubscriptionCommand), [`SubscriptionCommandDone`](model::SubscriptionCommandDone) |
//! | `snapshot/C/ID` | [`Run`] |
//! | `order/C/ID` | [`RunCommand`] |
//! | `progress/SHARD/C/ID` | [`RunProgress`] |

use std::collections::BTreeMap;

use serde::de::DeserializeOwned;

use kafka::ConsumerRecord;
use model::{DeliveryIntervals, Key, Nonce, Run, RunCommand, RunId, RunProgress};

use crate::state::{TableState, runs::Runs, subscriptions::SubscriptionState};

/// The subscriptions and runs of a state topic; other records are ignored.
#[derive(Debug, Clone, Default)]
pub struct StateTable {
    connectors: BTreeMap<String, SubscriptionState>,
    runs: BTreeMap<String, Runs>,
}

impl StateTable {
    /// The subscriptions of a connector.
    #[must_use]
    pub fn of(&self, connector: &str) -> Option<&SubscriptionState> {
        self.connectors.get(connector)
    }

    /// Every connector with subscriptions, gaps or requests.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &SubscriptionState)> {
        self.connectors.iter().map(|(name, state)| (name.as_str(), state))
    }

    /// The runs of a connector.
    #[must_use]
    pub fn runs_of(&self, connector: &str) -> Option<&Runs> {
        self.runs.get(connector)
    }

    /// Every connector that has a run.
    pub fn iter_runs(&self) -> impl Iterator<Item = (&str, &Runs)> {
        self.runs.iter().map(|(name, runs)| (name.as_str(), runs))
    }

    /// Applies a record, or returns what is wrong with it.
    fn take(&mut self, key: &str, value: Option<&[u8]>) -> Result<(), String> {
        let parts = Key::parts(key).map_err(|error| error.to_string())?;
        let texts: Vec<&str> = parts.iter().map(String::as_str).collect();
        match texts[..] {
            [Run::KIND | RunCommand::KIND, connector, run] => {
                self.take_run(texts[0], connector, run, None, value)
            }
            // The second part is the shard: these records are in its partition.
            [RunProgress::KIND, shard, connector, run] => {
                let shard = shard.parse().map_err(|_| "its key has no shard number".to_owned())?;
                self.take_run(texts[0], connector, run, Some(shard), value)
            }
            [kind, connector, ref rest @ ..] => self.take_subscription(key, kind, connector, rest, value),
            _ => Ok(()),
        }
    }

    fn take_run(
        &mut self,
        kind: &str,
        connector: &str,
        run: &str,
        shard: Option<i32>,
        value: Option<&[u8]>,
    ) -> Result<(), String> {
        let id = RunId::new(run).map_err(|error| error.to_string())?;
        let runs = self.runs.entry(connector.to_owned()).or_default();
        let taken = match (kind, shard) {
            (RunProgress::KIND, Some(shard)) => put(&mut runs.progress, (id, shard), value),
            (RunCommand::KIND, _) => put(&mut runs.commands, id, value),
            _ => put(&mut runs.runs, id, value),
        };
        if runs.is_empty() {
            self.runs.remove(connector);
        }
        taken
    }

    fn take_subscription(
        &mut self,
        key: &str,
        kind: &str,
        connector: &str,
        rest: &[&str],
        value: Option<&[u8]>,
    ) -> Result<(), String> {
        let state = self.connectors.entry(connector.to_owned()).or_default();
        let taken = match (kind, rest) {
            ("subscription", [nonce]) => {
                let nonce = nonce.parse::<Nonce>().map_err(|error| error.to_string());
                nonce.and_then(|nonce| put(&mut state.subscriptions, nonce, value))
            }
            ("acknowledge", [id]) => put(&mut state.acknowledges, (*id).to_owned(), value),
            ("echo", [] | [_]) => {
                let hook = rest.first().copied().unwrap_or_default().to_owned();
                put(&mut state.echoes, hook, value)
            }
            ("heard", [worker]) => put(&mut state.heard, (*worker).to_owned(), value),
            ("pace", []) => {
                read::<DeliveryIntervals>(value).map(|paces| state.paces = paces.unwrap_or_default())
            }
            ("gap", [_, _] | [_, _, _]) => {
                let id = key.strip_prefix("gap/").unwrap_or_default().to_owned();
                read(value).map(|gap| state.put_gap(id, gap))
            }
            ("run", [gap]) => put(&mut state.repairs, (*gap).to_owned(), value),
            ("start", []) => read(value).map(|start| state.start = start),
            ("done", []) => read(value).map(|done| state.requests.done = done),
            ("accepted", [gap]) => read(value).map(|accepted| state.accept((*gap).to_owned(), accepted)),
            ("wish", []) => read(value).map(|command| state.requests.command = command),
            // Records of other writers, or of a later version.
            _ => Ok(()),
        };
        if *state == SubscriptionState::default() {
            self.connectors.remove(connector);
        }
        taken
    }
}

impl TableState for StateTable {
    fn apply(&mut self, record: &ConsumerRecord) {
        let key = record.key.as_deref().and_then(|key| std::str::from_utf8(key).ok());
        let taken = match key {
            Some(key) => self.take(key, record.value.as_deref()),
            None => Err("its key is missing or not text".to_owned()),
        };
        if let Err(what) = taken {
            let ConsumerRecord { topic, partition, offset, .. } = record;
            tracing::warn!(%topic, partition, offset, what, "skipped a record of a state topic");
        }
    }
}

/// Puts the JSON of a record under its key; a tombstone removes it.
fn put<K: Ord, V: DeserializeOwned>(
    map: &mut BTreeMap<K, V>,
    key: K,
    value: Option<&[u8]>,
) -> Result<(), String> {
    match read(value)? {
        Some(value) => drop(map.insert(key, value)),
        None => drop(map.remove(&key)),
    }
    Ok(())
}

fn read<T: DeserializeOwned>(value: Option<&[u8]>) -> Result<Option<T>, String> {
    value.map(serde_json::from_slice).transpose().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use model::{
        AccountingResource, DeliveryInterval, Fingerprint, Gap, GapAccepted, GapCause, GapState, Repair,
        RepairState, StreamStart, Subscription, SubscriptionCommand, SubscriptionCommandDone,
        SubscriptionPhase, SubscriptionRegistration, SubscriptionTimes, Target,
    };

    use super::*;
    use crate::state::{samples::received, subscriptions::SubscriptionChange};

    fn changes() -> Vec<SubscriptionChange> {
        let target = Target::Accounting(AccountingResource::Customers);
        let subscription = Subscription {
            connector: "a/b".into(),
            target,
            nonce: Nonce::new(7),
            id: Some("w-1".into()),
            registration: SubscriptionRegistration {
                application: "tributary".into(),
                url: "https://hooks.example.com/x".into(),
                spelled: None,
                fingerprint: Fingerprint::of("0123456789abcdef"),
                events: ["a.b".to_owned()].into(),
            },
            phase: SubscriptionPhase::Active,
            since: 2,
            times: SubscriptionTimes {
                intended_at: 1,
                acknowledged_at: Some(2),
                active_since: Some(2),
                checked_at: Some(3),
                last_delivery: None,
            },
            problem: None,
            history: Vec::new(),
        };
        let gap = Gap {
            connector: "a/b".into(),
            cause: GapCause::Disabled,
            target: Some(target),
            company: None,
            from: 1,
            to: None,
            detail: "disabled".into(),
            opened_at: 5,
            worker: "w:1".into(),
            state: GapState::Open,
        };
        let pace = DeliveryInterval { since: 1, last: 2, longest: [1, 0], span: 1 };
        vec![
            SubscriptionChange::Put(Box::new(subscription)),
            SubscriptionChange::Paces(DeliveryIntervals { targets: [(target, pace)].into() }),
            SubscriptionChange::Gap(gap.clone()),
            SubscriptionChange::Repair(Repair { state: RepairState::Requested, ..Repair::of(&gap, 9, 10) }),
            SubscriptionChange::Start(StreamStart {
                connector: "a/b".into(),
                at: 3,
                targets: BTreeMap::new(),
            }),
            SubscriptionChange::Command(SubscriptionCommand { number: 1, removed: false, at: 4 }),
            SubscriptionChange::Done(SubscriptionCommandDone { number: 1, at: 5 }),
            SubscriptionChange::Accept(gap.id(), GapAccepted { at: 6 }),
        ]
    }

    fn apply(table: &mut StateTable, key: &str, value: Option<&str>) {
        table.apply(&received(0, key, value));
    }

    #[test]
    fn change_reads_back_as_applied() {
        let (mut table, mut state) = (StateTable::default(), SubscriptionState::default());

        for change in changes() {
            let value = change.value().map(|value| value.to_string());
            apply(&mut table, change.key("a/b").as_str(), value.as_deref());
            state.apply(&change);
        }

        assert_eq!(table.of("a/b"), Some(&state));
        assert_eq!(state.gaps.len() + state.repairs.len() + state.subscriptions.len(), 3);
    }

    /// The records of a run of `a/b`, with their keys.
    fn run_records() -> Vec<(Key, String)> {
        let id = RunId::new("2026/1").unwrap();
        let run =
            r#"{"connector":"a/b","id":"2026/1","lists":["payroll"],"requestedBy":"rest","requestedAt":1}"#;
        let progress = |shard: i32| {
            format!(
                r#"{{"connector":"a/b","run":"2026/1","shard":{shard},"state":"running","lists":1,"ended":0,
                "certified":0,"pages":1,"rows":2,"published":3,"vanished":0,"startedAt":4,"updatedAt":5}}"#
            )
        };
        vec![
            (Run::key_of("a/b", &id), run.to_owned()),
            (RunCommand::key("a/b", &id), r#"{"wanted":"paused","at":2}"#.to_owned()),
            (RunProgress::key_of(0, "a/b", &id), progress(0)),
            (RunProgress::key_of(3, "a/b", &id), progress(3)),
        ]
    }

    #[test]
    fn run_command_and_progress_records_belong_to_the_connector() {
        let mut table = StateTable::default();

        for (key, value) in run_records() {
            apply(&mut table, key.as_str(), Some(&value));
        }

        let runs = table.runs_of("a/b").unwrap();
        let id = RunId::new("2026/1").unwrap();
        assert_eq!(runs.runs.keys().collect::<Vec<_>>(), [&id]);
        assert_eq!(runs.wanted(&id), model::DesiredRunState::Paused);
        assert_eq!(runs.progress.keys().map(|(_, shard)| *shard).collect::<Vec<_>>(), [0, 3]);
        assert_eq!(
            (table.iter().count(), table.iter_runs().count()),
            (0, 1),
            "no shard counts as a connector"
        );
    }

    #[test]
    fn removed_runs_are_gone() {
        let mut table = StateTable::default();
        for (key, value) in run_records() {
            apply(&mut table, key.as_str(), Some(&value));
        }

        for (key, _) in run_records() {
            apply(&mut table, key.as_str(), None);
        }

        assert_eq!(table.iter_runs().count(), 0);
    }

    #[test]
    fn connector_without_records_is_gone() {
        let mut table = StateTable::default();
        let all = changes();
        for change in &all {
            apply(
                &mut table,
                change.key("a/b").as_str(),
                change.value().map(|value| value.to_string()).as_deref(),
            );
        }

        for change in &all {
            apply(&mut table, change.key("a/b").as_str(), None);
        }

        assert_eq!(table.iter().count(), 0);
    }

    #[test]
    fn unknown_and_unreadable_records_change_nothing() {
        let mut table = StateTable::default();

        for (key, value) in [
            ("offset/0/x", Some("{}")),
            ("cursor", Some("{}")),
            ("subscription/h/zz", Some("{}")),
            ("subscription/h/0000000000000007", Some("{")),
            ("gap/h/spool/5", Some("[]")),
            ("%zz", Some("{}")),
            ("run/h/schedule/5", Some("{}")),
            ("progress/h/3/r", Some("{}")),
            ("progress/3/h/r", Some("{}")),
            ("progress/3/h", Some("{}")),
            ("snapshot/h/r", Some("{}")),
            ("snapshot/h/", Some("{}")),
            ("order/h/r", Some(r#"{"wanted":"else","at":1}"#)),
        ] {
            apply(&mut table, key, value);
        }

        assert_eq!((table.iter().count(), table.iter_runs().count()), (0, 0), "{table:?}");
    }
}
