//! The part of `/health` about ingest: which connectors are received, what waits in the spool, and whether deliveries are refused.

use std::{collections::BTreeSet, path::PathBuf};

use serde_json::{Value, json};
use tokio::sync::watch;

use base::retry::ErrorChain;
use model::Moment;

use super::topic_readiness::TopicReadiness;
use crate::plugin::ReceiverFaults;
use crate::{
    spool::{Outside, Spool},
    webhooks::{
        intake::{Intake, KafkaProducers, PublishError},
        receiver_table::{ReceiverState, Receivers},
    },
};

/// Looks at ingest. Cheap to clone.
#[derive(Clone)]
pub(crate) struct IngestStatus {
    pub(super) receivers: Receivers,
    pub(super) spool: Spool,
    pub(super) intake: Intake<KafkaProducers>,
    pub(super) readiness: TopicReadiness,
    pub(super) faults: watch::Receiver<ReceiverFaults>,
}

impl IngestStatus {
    /// What keeps connectors from being received as they are configured.
    pub(crate) fn faults(&self) -> watch::Receiver<ReceiverFaults> {
        self.faults.clone()
    }

    /// Why deliveries are refused; `None` while none is. Without room in the spool that is so as soon as something waits in it:
    /// what comes after has to wait behind it.
    pub(crate) fn refuses(&self) -> Option<String> {
        let refusal = self.spool.refuses()?;
        let entries = self.spool.totals().entries;
        (entries > 0)
            .then(|| format!("Deliveries are answered 503: {}, {entries} wait in it", ErrorChain(&refusal)))
    }

    /// Topics to which Kafka takes no records, by connector. Those of a deleted connector count only while the spool has entries.
    fn publish_errors(&self) -> impl Iterator<Item = (String, String)> {
        let known: BTreeSet<String> =
            self.receivers.all().iter().map(|receiver| receiver.connector.to_string()).collect();
        let waits = self.spool.totals().entries > 0;
        let errors = self.intake.publish_errors().into_iter();
        let errors = errors.filter(move |error| waits || known.contains(&error.connector));
        errors.map(|PublishError { connector, topic, since, cause }| {
            let since = Moment::from(since);
            (connector, format!("{topic} is not published to since {since} because: {cause}"))
        })
    }

    /// All there is to say.
    pub(crate) fn report(&self) -> Value {
        let receivers: serde_json::Map<String, Value> = self
            .receivers
            .all()
            .iter()
            .map(|receiver| {
                let state = match receiver.state {
                    ReceiverState::Running => "RUNNING",
                    ReceiverState::Paused => "PAUSED",
                    ReceiverState::Stopped => "STOPPED",
                };
                (receiver.connector.to_string(), state.into())
            })
            .collect();
        let totals = self.spool.totals();
        let Outside { unopened, aside } = self.spool.outside();
        let mut faults: serde_json::Map<String, Value> =
            self.readiness.faults().into_iter().map(|(name, fault)| (name, fault.into())).collect();
        for (name, reported) in self.publish_errors() {
            match faults.get_mut(&name) {
                Some(Value::String(fault)) => *fault = format!("{fault}; {reported}"),
                _ => drop(faults.insert(name, reported.into())),
            }
        }
        faults.extend(self.faults.borrow().iter().map(|(name, fault)| (name.clone(), fault.clone().into())));
        json!({
            "receivers": receivers,
            "faults": faults,
            "intake": { "lanes_behind": self.intake.behind(), "memory_bytes": self.intake.memory_used() },
            "spool": {
                "entries": totals.entries,
                "bytes": totals.bytes,
                "oldest_seconds": totals.oldest_age.map(|age| age.as_secs()),
                // The next start opens these; their entries are not counted above.
                "unopened": folders(&unopened),
                "moved_aside": folders(&aside),
                "of_other_versions": { "entries": totals.foreign.entries, "bytes": totals.foreign.bytes },
                "refuses": self.spool.refuses().map(|error| ErrorChain(&error).to_string()),
            },
        })
    }
}

fn folders(folders: &[PathBuf]) -> Vec<String> {
    folders.iter().map(|folder| folder.display().to_string()).collect()
}
