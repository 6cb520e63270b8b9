//! What `/health` says of ingest: who is received, what waits in the spool, and whether anybody is turned away.

use serde_json::{Value, json};
use tokio::sync::watch;

use super::{Faults, openings::Prefixes};
use crate::{
    retry::Chain,
    spool::Spool,
    webhooks::receivers::{Receivers, Taking},
};

/// Looks at ingest. Cheap to clone.
#[derive(Clone)]
pub(in crate::worker) struct Watch {
    receivers: Receivers,
    spool: Spool,
    prefixes: Prefixes,
    faults: watch::Receiver<Faults>,
}

impl Watch {
    pub(super) fn new(
        receivers: Receivers,
        spool: Spool,
        prefixes: Prefixes,
        faults: watch::Receiver<Faults>,
    ) -> Self {
        Self { receivers, spool, prefixes, faults }
    }

    /// What keeps connectors from being received as they are configured.
    pub(in crate::worker) fn faults(&self) -> watch::Receiver<Faults> {
        self.faults.clone()
    }

    /// Why deliveries are refused; `None` while none is. Without room in the spool that is so as soon as something waits in it:
    /// what comes after has to wait behind it.
    pub(in crate::worker) fn refuses(&self) -> Option<String> {
        let refusal = self.spool.refuses()?;
        let entries = self.spool.totals().entries;
        (entries > 0)
            .then(|| format!("Deliveries are answered 503: {}, {entries} wait in it", Chain(&refusal)))
    }

    /// All there is to say.
    pub(in crate::worker) fn report(&self) -> Value {
        let receivers: serde_json::Map<String, Value> = self
            .receivers
            .all()
            .iter()
            .map(|receiver| {
                let state = match receiver.state {
                    Taking::All => "RUNNING",
                    Taking::SpoolOnly => "PAUSED",
                    Taking::Nothing => "STOPPED",
                };
                (receiver.connector.to_string(), state.into())
            })
            .collect();
        let totals = self.spool.totals();
        let mut faults: serde_json::Map<String, Value> =
            self.prefixes.faults().into_iter().map(|(name, fault)| (name, fault.into())).collect();
        faults.extend(self.faults.borrow().iter().map(|(name, fault)| (name.clone(), fault.clone().into())));
        json!({
            "receivers": receivers,
            "faults": faults,
            "spool": {
                "entries": totals.entries,
                "bytes": totals.bytes,
                "oldest_seconds": totals.oldest_age.map(|age| age.as_secs()),
                "refuses": self.spool.refuses().map(|error| Chain(&error).to_string()),
            },
        })
    }
}
