//! Implements the REST API's access to subscriptions with this worker's state topics and its access to the provider.

use std::{collections::BTreeSet, sync::Arc};

use async_trait::async_trait;
use tokio::time::Instant;

use base::retry::ErrorChain;
use model::{Nonce, TopicPrefix};

use crate::{
    config,
    connect::herder::{self, Error, PlanInfo, StepInfo},
    logins::access::ApiAccess,
    plugin::Failure,
    state::{
        configs::Properties,
        state_topic::{self, StateTopic, StateTopics},
        subscriptions::{SubscriptionChange, SubscriptionState},
    },
    webhooks::{
        reconciler::{DryRun, DryRunContext, DryRunStep, dry_run},
        subscriptions::{AdvertisedPath, fitting, wanted},
    },
    worker::snapshots::{READING, handle, newest, refused},
};

/// Reads, plans and changes subscriptions for the REST API.
pub(super) struct WorkerSubscriptions {
    pub(super) worker: Arc<config::Worker>,
    pub(super) worker_id: Arc<str>,
    pub(super) access: ApiAccess,
    pub(super) state_topics: StateTopics,
}

#[async_trait]
impl herder::SubscriptionStore for WorkerSubscriptions {
    fn glance(
        &self,
        prefix: &TopicPrefix,
        connector: &str,
        show: &mut dyn FnMut(&SubscriptionState),
    ) -> bool {
        let known = self.state_topics.known(prefix.as_str()).filter(StateTopic::is_caught_up);
        let Some(handle) = known else { return false };
        handle.read(connector, show);
        true
    }

    async fn read(&self, prefix: &TopicPrefix, connector: &str) -> Result<SubscriptionState, Error> {
        let handle = handle(&self.state_topics, prefix).await?;
        Ok(handle.map(|handle| handle.subscriptions(connector)).unwrap_or_default())
    }

    async fn newest(&self, prefix: &TopicPrefix, connector: &str) -> Result<SubscriptionState, Error> {
        let handle = newest(&self.state_topics, prefix).await?;
        Ok(handle.map(|handle| handle.subscriptions(connector)).unwrap_or_default())
    }

    async fn plan(
        &self,
        connector: &str,
        config: &Arc<Properties>,
        removed: bool,
        end: Instant,
    ) -> Result<PlanInfo, Error> {
        let Self { worker, worker_id, access, state_topics } = self;
        let desk = DryRunContext { worker, worker_id, access, state_topics };
        let found = dry_run(desk, connector, config, removed, end).await;
        let DryRun { steps, converged, problems } = found.map_err(|failure| unplanned(&failure))?;
        let step = |DryRunStep { call, target, id, why }| StepInfo { call, target, id, why };
        Ok(PlanInfo { steps: steps.into_iter().map(step).collect(), converged, problems })
    }

    fn fitting(&self, source: &config::WebhookSource, state: &SubscriptionState) -> Option<BTreeSet<Nonce>> {
        let wanted = wanted(source, self.worker.webhook.advertised_url.as_ref()?).ok()?;
        Some(fitting(&wanted, state))
    }

    fn address_problem(&self, source: &config::WebhookSource) -> Option<String> {
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

    async fn write(
        &self,
        prefix: &TopicPrefix,
        connector: &str,
        change: SubscriptionChange,
    ) -> Result<(), Error> {
        let Some(handle) = handle(&self.state_topics, prefix).await? else {
            let message = format!(
                "the state topic of prefix {prefix} does not exist yet; the connector's task creates it"
            );
            return Err(Error::NotFound(message));
        };
        let written = handle.put(&change.key(connector), change.value().as_ref()).await;
        written.map_err(|error| refused("write to the state topic", error))
    }
}

/// The error of a failed plan: failures of Kafka and of the configuration keep their kind.
fn unplanned(failure: &Failure) -> Error {
    let message = ErrorChain(failure).to_string();
    let source = failure.source.as_ref();
    let source = source.and_then(|source| match source.downcast_ref::<state_topic::Error>() {
        Some(state_topic::Error::Kafka { source, .. }) => Some(source),
        _ => source.downcast_ref::<kafka::Error>(),
    });
    match (source, failure.kind) {
        (Some(source), _) => Error::Kafka { doing: READING, source: Box::new(source.clone()) },
        (None, "InvalidConfiguration") => Error::BadRequest(message),
        (None, _) => Error::Provider(message),
    }
}
