//! What REST needs to show and plan subscriptions, made of this worker's ledgers and its access to the provider.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::time::Instant;

use base::retry::Chain;
use model::TopicPrefix;

use crate::{
    config,
    webhooks::subscriptions::{Change, Ledger},
    worker::{
        access::Access,
        herder::{self, Error, PlanInfo, StepInfo},
        ledger::{self, Handle, Ledgers},
        plugins::Failure,
        reconciler::{Desk, Look, Planned, look},
        snapshots::refused,
        state::configs::Properties,
    },
};

/// How long it may take to learn what other workers have written.
const FRESH: Duration = Duration::from_secs(3);

/// See the module's head.
pub(super) struct Door {
    pub(super) worker: Arc<config::Worker>,
    pub(super) worker_id: Arc<str>,
    pub(super) access: Access,
    pub(super) ledgers: Ledgers,
}

#[async_trait]
impl herder::Ledgers for Door {
    fn glance(&self, prefix: &TopicPrefix, connector: &str, show: &mut dyn FnMut(&Ledger)) -> bool {
        let known = self.ledgers.known(prefix.as_str()).filter(Handle::is_caught_up);
        let Some(handle) = known else { return false };
        handle.read(connector, show);
        true
    }

    async fn read(&self, prefix: &TopicPrefix, connector: &str) -> Result<Ledger, Error> {
        Ok(self.handle(prefix).await?.map(|handle| handle.ledger(connector)).unwrap_or_default())
    }

    async fn newest(&self, prefix: &TopicPrefix, connector: &str) -> Result<Ledger, Error> {
        let Some(handle) = self.handle(prefix).await? else { return Ok(Ledger::default()) };
        handle.read_to_end(FRESH).await.map_err(|error| refused(READING, error))?;
        Ok(handle.ledger(connector))
    }

    async fn plan(
        &self,
        connector: &str,
        config: &Arc<Properties>,
        removed: bool,
        end: Instant,
    ) -> Result<PlanInfo, Error> {
        let Self { worker, worker_id, access, ledgers } = self;
        let desk = Desk { worker, worker_id, access, ledgers };
        let found = look(desk, connector, config, removed, end).await;
        let Look { steps, converged, problems } = found.map_err(|failure| unplanned(&failure))?;
        let step = |Planned { call, target, id, why }| StepInfo { call, target, id, why };
        Ok(PlanInfo { steps: steps.into_iter().map(step).collect(), converged, problems })
    }

    async fn write(&self, prefix: &TopicPrefix, connector: &str, change: Change) -> Result<(), Error> {
        let Some(handle) = self.handle(prefix).await? else {
            let told =
                format!("the state topic of prefix {prefix} is not there yet: the connector's task makes it");
            return Err(Error::NotFound(told));
        };
        let written = handle.put(&change.key(connector), change.value().as_ref()).await;
        written.map_err(|error| refused("write to the state topic", error))
    }
}

const READING: &str = "read the state topic";

impl Door {
    async fn handle(&self, prefix: &TopicPrefix) -> Result<Option<Handle>, Error> {
        self.ledgers.of(prefix).await.map_err(|error| refused(READING, error))
    }
}

impl fmt::Debug for Door {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Door").field("ledgers", &self.ledgers).finish_non_exhaustive()
    }
}

/// Why there is no plan: what Kafka or the configuration has to do with it is told as such.
fn unplanned(failure: &Failure) -> Error {
    let told = Chain(failure).to_string();
    let source = failure.source.as_ref();
    let source = source.and_then(|source| match source.downcast_ref::<ledger::Error>() {
        Some(ledger::Error::Kafka { source, .. }) => Some(source),
        _ => source.downcast_ref::<kafka::Error>(),
    });
    match (source, failure.kind) {
        (Some(source), _) => Error::Kafka { doing: READING, source: Box::new(source.clone()) },
        (None, "InvalidConfiguration") => Error::BadRequest(told),
        (None, _) => Error::Provider(told),
    }
}
