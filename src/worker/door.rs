//! What REST needs to show and plan subscriptions, made of this worker's ledgers and its access to the provider.

use std::{collections::BTreeSet, sync::Arc};

use async_trait::async_trait;
use tokio::time::Instant;

use base::retry::Chain;
use model::{Nonce, TopicPrefix};

use crate::{
    config,
    connect::herder::{self, Error, PlanInfo, StepInfo},
    logins::access::Access,
    plugin::Failure,
    state::{
        configs::Properties,
        ledger::{self, Handle, Ledgers},
        subscriptions::{Change, Ledger},
    },
    webhooks::{
        reconciler::{DryRun, DryRunContext, DryRunStep, dry_run},
        subscriptions::{AdvertisedPath, fitting, wanted},
    },
    worker::snapshots::{READING, handle, newest, refused},
};

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
        let handle = handle(&self.ledgers, prefix).await?;
        Ok(handle.map(|handle| handle.ledger(connector)).unwrap_or_default())
    }

    async fn newest(&self, prefix: &TopicPrefix, connector: &str) -> Result<Ledger, Error> {
        let handle = newest(&self.ledgers, prefix).await?;
        Ok(handle.map(|handle| handle.ledger(connector)).unwrap_or_default())
    }

    async fn plan(
        &self,
        connector: &str,
        config: &Arc<Properties>,
        removed: bool,
        end: Instant,
    ) -> Result<PlanInfo, Error> {
        let Self { worker, worker_id, access, ledgers } = self;
        let desk = DryRunContext { worker, worker_id, access, ledgers };
        let found = dry_run(desk, connector, config, removed, end).await;
        let DryRun { steps, converged, problems } = found.map_err(|failure| unplanned(&failure))?;
        let step = |DryRunStep { call, target, id, why }| StepInfo { call, target, id, why };
        Ok(PlanInfo { steps: steps.into_iter().map(step).collect(), converged, problems })
    }

    fn fitting(&self, source: &config::WebhookSource, ledger: &Ledger) -> Option<BTreeSet<Nonce>> {
        let wanted = wanted(source, self.worker.webhook.advertised_url.as_ref()?).ok()?;
        Some(fitting(&wanted, ledger))
    }

    fn unreachable(&self, source: &config::WebhookSource) -> Option<String> {
        let Some(advertised) = &self.worker.webhook.advertised_url else {
            return Some(
                "webhook.advertised.url of this worker is not set, so deliveries cannot be addressed; set it in the worker's \
                 properties"
                    .to_owned(),
            );
        };
        let path = wanted(source, advertised).err()?;
        Some(format!("webhook.advertised.url of this worker {path}; {}", AdvertisedPath::REMEDY))
    }

    async fn write(&self, prefix: &TopicPrefix, connector: &str, change: Change) -> Result<(), Error> {
        let Some(handle) = handle(&self.ledgers, prefix).await? else {
            let told =
                format!("the state topic of prefix {prefix} is not there yet: the connector's task makes it");
            return Err(Error::NotFound(told));
        };
        let written = handle.put(&change.key(connector), change.value().as_ref()).await;
        written.map_err(|error| refused("write to the state topic", error))
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
