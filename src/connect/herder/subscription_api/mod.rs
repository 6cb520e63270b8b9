//! Subscriptions and gaps of a connector: their state in the state topic, and the requests that people may make.
//!
//! ```text
//! GET  subscriptions, gaps ──▶ configuration (what is wanted) + state topic (what exists) ──▶ view
//! GET  subscriptions/plan  ──▶ the provider is asked, nothing is changed ──▶ view
//! POST apply, remove       ──▶ a command in the state topic; the connector's task carries it out
//! POST gaps/accept         ──▶ the gap in the state topic, accepted
//! GET  status              ──▶ two sentences, if this worker has read the state topic
//! ```
//!
//! - Any worker answers: all of them read the same topic.
//! - Nothing here changes anything at the provider.
//! - A status never waits: it shows what is known, or leaves it out.

mod summary;
mod view;

use std::{collections::BTreeSet, sync::Arc};

use async_trait::async_trait;
use tokio::time::Instant;
use url::Url;

use model::{GapAccepted, Moment, Nonce, SubscriptionCommand, Target, TopicPrefix};

pub use self::view::{
    ContactInfo, GapInfo, NoteInfo, PlanInfo, RepairInfo, StartInfo, StartedInfo, StepInfo, SubscribedInfo,
    SubscriptionCommandInfo, SubscriptionInfo, SubscriptionsInfo,
};
use super::{Error, Herder, TimeBudget, shapes::ConnectorStatus};
use crate::{
    config::connector::{Class, RecordSource, SubscriptionTargets, TargetState, WebhookSource},
    state::{
        configs::Properties,
        subscriptions::{SubscriptionChange, SubscriptionState},
    },
};

/// Access to the state topic of subscriptions and, through the provider's API, to a plan.
#[async_trait]
pub trait SubscriptionStore: Send + Sync {
    /// Calls `show` with the connector's known state, without waiting. Returns `false` if its state topic is not followed here,
    /// or has not been read to its end yet.
    fn glance(&self, prefix: &TopicPrefix, connector: &str, show: &mut dyn FnMut(&SubscriptionState))
    -> bool;

    /// The connector's state in the state topic, as far as this worker has read it: works while Kafka is unreachable.
    ///
    /// # Errors
    /// The topic was never read to its end.
    async fn read(&self, prefix: &TopicPrefix, connector: &str) -> Result<SubscriptionState, Error>;

    /// The same, including everything that was written before this call.
    ///
    /// # Errors
    /// The topic cannot be read.
    async fn newest(&self, prefix: &TopicPrefix, connector: &str) -> Result<SubscriptionState, Error>;

    /// What the connector's task would do after an apply or, with `removed`, after a remove. Asks the provider until `end`, and
    /// changes nothing.
    ///
    /// # Errors
    /// The provider or the topic cannot be asked.
    async fn plan(
        &self,
        connector: &str,
        config: &Arc<Properties>,
        removed: bool,
        end: Instant,
    ) -> Result<PlanInfo, Error>;

    /// Those of `state` that are as the configuration wants them; `None` if this worker does not know the public address of
    /// receivers. Reads no topic.
    fn fitting(&self, source: &WebhookSource, state: &SubscriptionState) -> Option<BTreeSet<Nonce>>;

    /// Why this worker does not know the receiver address of a connector, and the remedy; `None` if it knows it. Reads no topic.
    fn address_problem(&self, source: &WebhookSource) -> Option<String>;

    /// Writes a requested change; the next read here sees it.
    ///
    /// # Errors
    /// The topic did not take it.
    async fn write(
        &self,
        prefix: &TopicPrefix,
        connector: &str,
        change: SubscriptionChange,
    ) -> Result<(), Error>;
}

/// Sources of the views of subscriptions.
#[derive(Clone)]
pub struct SubscriptionParts {
    /// Access to the state topics and, for plans, to the provider.
    pub store: Arc<dyn SubscriptionStore>,
    /// `webhook.advertised.url`.
    pub advertised_url: Option<Url>,
}

/// The connector of a request.
struct SubscriptionSubject<'a> {
    name: &'a str,
    target: TargetState,
    config: Arc<Properties>,
    source: WebhookSource,
    parts: &'a SubscriptionParts,
}

impl Herder {
    /// A connector's subscriptions; with `all` also those that have ended.
    ///
    /// # Errors
    /// There is no such connector, it has no subscriptions, or the state topic cannot be read.
    pub async fn subscriptions(&self, name: &str, all: bool) -> Result<SubscriptionsInfo, Error> {
        let budget = TimeBudget::start();
        let subject = self.subject(name, budget).await?;
        let state = budget.within("reading the state topic", subject.read()).await?;
        Ok(subject.view(&state, all))
    }

    /// The plan of an apply or, with `removed`, of a remove; changes nothing.
    ///
    /// # Errors
    /// As [`Herder::subscriptions`], the connector manages none, or the provider cannot be asked.
    pub async fn subscription_plan(&self, name: &str, removed: bool) -> Result<PlanInfo, Error> {
        let budget = TimeBudget::start();
        let subject = self.subject(name, budget).await?;
        subject.managed()?;
        let planning = subject.parts.store.plan(name, &subject.config, removed, budget.0);
        budget.within("asking the provider how its subscriptions stand", planning).await
    }

    /// Requests that all subscriptions be made as declared or, with `removed`, be deleted.
    ///
    /// # Errors
    /// As [`Herder::subscriptions`], or no task runs that would do it.
    pub async fn request_subscription_change(
        &self,
        name: &str,
        removed: bool,
    ) -> Result<SubscriptionCommandInfo, Error> {
        let budget = TimeBudget::start();
        let subject = self.subject(name, budget).await?;
        subject.managed()?;
        subject.runs()?;
        let now = Moment::now().micros();
        let requesting = request_command(&*subject.parts.store, subject.prefix(), name, removed, now);
        budget.within("writing the request to the state topic", requesting).await
    }

    /// A connector's gaps, oldest first; with `all` also those that are over. A `WebhookSource` has gaps of deliveries, a
    /// `RecordSource` gaps of events that it could not read or follow.
    ///
    /// # Errors
    /// There is no such connector, it is of another class, or the state topic cannot be read.
    pub async fn gaps(&self, name: &str, all: bool) -> Result<Vec<GapInfo>, Error> {
        let budget = TimeBudget::start();
        let (parts, prefix) = self.gap_subject(name, budget).await?;
        let state = budget.within("reading the state topic", parts.store.read(&prefix, name)).await?;
        Ok(view::gaps(&state, all))
    }

    /// Accepts a gap that will not be repaired.
    ///
    /// # Errors
    /// As [`Herder::gaps`], there is no such gap, or it has not ended.
    pub async fn accept_gap(&self, name: &str, id: &str) -> Result<GapInfo, Error> {
        let budget = TimeBudget::start();
        let (parts, prefix) = self.gap_subject(name, budget).await?;
        let accepting = accept(&*parts.store, &prefix, name, id);
        budget.within("writing the gap to the state topic", accepting).await
    }

    /// Adds what is known of a connector's subscriptions to its status.
    pub(super) fn add_subscriptions(&self, status: &mut ConnectorStatus, config: &Properties) {
        let Some(parts) = &self.parts.subscriptions else { return };
        let Some(declared) = SubscriptionTargets::of(config, &self.parts.providers) else { return };
        let connector = &mut status.connector;
        parts.store.glance(&declared.topic_prefix, &status.name, &mut |state| {
            connector.subscriptions = Some(summary::subscriptions(&declared, state));
            connector.gaps = Some(summary::gaps(state));
        });
    }

    fn subscribing(&self) -> Result<&SubscriptionParts, Error> {
        let parts = self.parts.subscriptions.as_ref();
        parts.ok_or_else(|| Error::NotFound("this worker follows no subscriptions".to_owned()))
    }

    /// The state topic that has the gaps of a connector.
    async fn gap_subject(
        &self,
        name: &str,
        budget: TimeBudget,
    ) -> Result<(&SubscriptionParts, TopicPrefix), Error> {
        let connector = self.connector(name).await?;
        let parts = self.subscribing()?;
        let (class, what) = (self.class_of(&connector.config)?.class(), "and a RecordSource have gaps");
        let prefix = if class == Class::RecordSource.name() {
            let parse = RecordSource::parse;
            self.parsed(name, connector, Class::RecordSource, what, parse, budget).await?.common.topic_prefix
        } else {
            let parse = WebhookSource::parse;
            self.parsed(name, connector, Class::WebhookSource, what, parse, budget).await?.common.topic_prefix
        };
        Ok((parts, prefix))
    }

    async fn subject<'a>(
        &'a self,
        name: &'a str,
        budget: TimeBudget,
    ) -> Result<SubscriptionSubject<'a>, Error> {
        let connector = self.connector(name).await?;
        let parts = self.subscribing()?;
        let (target, config) = (connector.target, Arc::clone(&connector.config));
        let what = "has subscriptions";
        let source =
            self.parsed(name, connector, Class::WebhookSource, what, WebhookSource::parse, budget).await?;
        Ok(SubscriptionSubject { name, target, config, source, parts })
    }
}

impl SubscriptionSubject<'_> {
    fn prefix(&self) -> &TopicPrefix {
        &self.source.common.topic_prefix
    }

    async fn read(&self) -> Result<SubscriptionState, Error> {
        self.parts.store.read(self.prefix(), self.name).await
    }

    fn view(&self, state: &SubscriptionState, all: bool) -> SubscriptionsInfo {
        let WebhookSource { accounting, invoicing, manage_subscriptions, .. } = &self.source;
        let resources = accounting.iter().flat_map(|it| &it.resources).copied().map(Target::Accounting);
        let hooks = invoicing.iter().flat_map(|it| &it.hooks).copied().map(Target::Invoicing);
        let targets: BTreeSet<Target> = resources.chain(hooks).collect();
        let advertised = self.parts.advertised_url.as_ref();
        let fitting = self.parts.store.fitting(&self.source, state);
        let declaration = view::DeclaredSubscriptions {
            connector: self.name,
            manage: *manage_subscriptions,
            advertised_url: advertised.map(ToString::to_string),
            targets: &targets,
            fitting: fitting.as_ref(),
        };
        view::subscriptions(&declaration, state, all)
    }

    /// Checks that the connector manages subscriptions, and that this worker knows their receiver address.
    fn managed(&self) -> Result<(), Error> {
        if !self.source.manage_subscriptions {
            return Err(Error::BadRequest(format!(
                "subscriptions.manage of connector {} is false: it does not manage its subscriptions; set it to \
                 true to have them managed",
                self.name
            )));
        }
        self.parts.store.address_problem(&self.source).map_or(Ok(()), |why| Err(Error::BadRequest(why)))
    }

    /// Checks that a task runs that would carry out the request.
    fn runs(&self) -> Result<(), Error> {
        match self.target {
            TargetState::Running => Ok(()),
            TargetState::Paused | TargetState::Stopped => Err(Error::BadRequest(format!(
                "Connector {} is {}, so its task does not run; resume it first",
                self.name,
                self.target.name()
            ))),
        }
    }
}

/// Writes a command with the next number.
async fn request_command(
    store: &dyn SubscriptionStore,
    prefix: &TopicPrefix,
    connector: &str,
    removed: bool,
    now: i64,
) -> Result<SubscriptionCommandInfo, Error> {
    let before = store.newest(prefix, connector).await?.requests;
    // A command that was lost with its topic may have been carried out already.
    let last = before.command.as_ref().map(|command| command.number).max(before.done.map(|done| done.number));
    let command = SubscriptionCommand { number: last.unwrap_or(0).saturating_add(1), removed, at: now };
    store.write(prefix, connector, SubscriptionChange::Command(command.clone())).await?;
    Ok(SubscriptionCommandInfo::of(&command, before.done))
}

/// Accepts a gap that has ended. Until then its loss is not known.
async fn accept(
    store: &dyn SubscriptionStore,
    prefix: &TopicPrefix,
    connector: &str,
    id: &str,
) -> Result<GapInfo, Error> {
    let mut state = store.newest(prefix, connector).await?;
    let Some(gap) = state.gaps.get(id) else {
        return Err(Error::NotFound(format!("Connector {connector} has no gap {id}")));
    };
    if gap.state.is_over() {
        return Ok(view::gap(gap, &state));
    }
    if gap.to.is_none() {
        return Err(Error::BadRequest(format!(
            "gap {id} has not ended ({}); fix its cause first: a gap can be accepted once it has ended",
            gap.detail
        )));
    }
    let change = SubscriptionChange::Accept(id.to_owned(), GapAccepted { at: Moment::now().micros() });
    store.write(prefix, connector, change.clone()).await?;
    state.apply(&change);
    state.gaps.get(id).map(|gap| view::gap(gap, &state)).ok_or(Error::Internal { doing: "accept the gap" })
}

#[cfg(test)]
mod tests;
