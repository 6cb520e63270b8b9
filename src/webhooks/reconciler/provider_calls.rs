//! Calls to the provider, and what their answers mean for a plan.
//!
//! Every call has a [`CallOutcome`]. A failure that concerns other calls too is also a [`CallStop`]: the whole loop waits, or the task
//! fails until an operator acts.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use base::{
    metrics, random,
    retry::{ErrorChain, Retry},
    secret::Secret,
};
use model::{InvoicingHook, Target, WebhookId};
use provider::{
    api::{
        Accounting, Acted, AnsweredBy, CallOptions, Cause, Error, Invoicing, Operation, Priority, Reach,
        SubscribeRequest, UrlChange, Webhook, invoicing,
    },
    auth::Area,
};

use crate::{
    config::WebhookSource,
    logins::access::{ApiAccess, ApiUser},
    plugin::{Failure, no_access},
    webhooks::subscriptions::{CallOutcome, ListedHook, ProviderCall, WebhookSnapshot, owner, secret_of},
};

/// Why no other call should be made now.
#[derive(Debug)]
pub(super) enum CallStop {
    /// It passes.
    Wait(Retry),
    /// The task fails: an operator has to act, or the next instance may succeed.
    Fail(Failure),
}

/// The provider, as one configuration reaches it. Cheap to clone.
#[derive(Clone)]
pub(super) struct ProviderCalls {
    source: Arc<WebhookSource>,
    accounting: Option<Accounting>,
    invoicing: Option<Invoicing>,
}

impl ProviderCalls {
    /// The APIs that the configuration names; none if the connector does not manage subscriptions.
    ///
    /// # Errors
    /// A setting that is needed to reach the provider cannot be used on this worker.
    pub(super) fn new(access: &ApiAccess, connector: &str, source: &WebhookSource) -> Result<Self, Failure> {
        let mut calls = Self { source: Arc::new(source.clone()), accounting: None, invoicing: None };
        let Some(provider) = source.provider.as_ref().filter(|_| source.manage_subscriptions) else {
            return Ok(calls);
        };
        let invoicing = source.invoicing.as_ref();
        let egress_proxy = invoicing.and_then(|invoicing| invoicing.egress_proxy.as_ref());
        let api_version = invoicing.and_then(|invoicing| invoicing.api_version.as_deref());
        let party = ApiUser { api_version, egress_proxy, ..ApiUser::new(connector, provider) };
        let unusable = |cause: Cause| refused(&ErrorChain(&cause).to_string());
        // Also where no resource is declared any more: there may be some to delete.
        calls.accounting = Some(access.accounting(&party).map_err(unusable)?);
        calls.invoicing = match invoicing.and_then(|invoicing| invoicing.login.as_ref()) {
            Some(login) => Some(access.invoicing(&party, login).map_err(unusable)?),
            None if Area::Invoicing.is_used(&provider.oauth) => {
                Some(access.invoicing_by_grant(&party).map_err(unusable)?)
            }
            None => None,
        };
        Ok(calls)
    }

    /// Without a provider.
    #[cfg(test)]
    pub(super) fn without_provider(source: &WebhookSource) -> Self {
        Self { source: Arc::new(source.clone()), accounting: None, invoicing: None }
    }

    /// Makes a call, which ends by then.
    pub(super) async fn make(&self, call: &ProviderCall, end: Instant) -> (CallOutcome, Option<CallStop>) {
        let ask = CallOptions { priority: Priority::Webhook, deadline: end, trace: None };
        let made = match is_invoicing(call) {
            true => self.invoicing(call, &ask).await,
            false => self.accounting(call, &ask).await,
        };
        let (outcome, stop) = match made {
            Ok(outcome) => (outcome, None),
            Err(CallError::Unable(words)) => {
                (CallOutcome::Failed { words, acted: false, refused: false }, None)
            }
            Err(CallError::Api(error)) => {
                let outcome = outcome(call, &error);
                match self.waits_alone(call) {
                    true => (waiting(outcome, &error), None),
                    false => (outcome, stop(*error)),
                }
            }
        };
        metrics::subscription_called(call.name(), label(&outcome));
        (outcome, stop)
    }

    /// Whether a failure is about invoicing alone: beside accounting, its targets wait by themselves.
    fn waits_alone(&self, call: &ProviderCall) -> bool {
        is_invoicing(call) && self.source.accounting.is_some()
    }

    async fn accounting(&self, call: &ProviderCall, ask: &CallOptions) -> Result<CallOutcome, CallError> {
        let Some(api) = &self.accounting else {
            return Err(unable("the connector names no provider to ask"));
        };
        Ok(match call {
            ProviderCall::Names(resource) => {
                CallOutcome::Names(api.event_names(*resource, ask).await?.into_iter().collect())
            }
            ProviderCall::Identify { resource, id } => {
                seen(api.webhook(*resource, &webhook_id(id)?, ask).await?)
            }
            ProviderCall::Subscribe(one) => {
                let resource = resource(one)?;
                let subscription = SubscribeRequest {
                    application: one.registered_name(),
                    url: one.registration.url.clone(),
                    secret: self.secret(one)?,
                    events: one.registration.events.iter().cloned().collect(),
                };
                done(api.subscribe(resource, &subscription, ask).await?)
            }
            ProviderCall::Read(one) => seen(api.webhook(resource(one)?, &id_of(one)?, ask).await?),
            ProviderCall::Enable(one) => {
                done(api.set_enabled(resource(one)?, &id_of(one)?, true, ask).await?)
            }
            ProviderCall::Move(one) => {
                match api.change_url(resource(one)?, &id_of(one)?, &one.registration.url, ask).await? {
                    UrlChange::Operation(operation) => done(operation),
                    UrlChange::Webhook(webhook) => seen(*webhook),
                    UrlChange::Nothing => CallOutcome::Done { state: None, id: None, errors: Vec::new() },
                }
            }
            ProviderCall::Delete(one) => done(api.delete_webhook(resource(one)?, &id_of(one)?, ask).await?),
            ProviderCall::List { .. } => return Err(unable("accounting webhooks cannot be listed")),
        })
    }

    async fn invoicing(&self, call: &ProviderCall, ask: &CallOptions) -> Result<CallOutcome, CallError> {
        let Some(api) = &self.invoicing else {
            return Err(unable(
                "the invoicing API cannot be asked: name a hook in invoicing.hooks and set invoicing.login.mail and \
                 invoicing.login.password, invoicing.login.token or invoicing.oauth.scopes, or delete the hook by other means",
            ));
        };
        Ok(match call {
            ProviderCall::List { .. } => {
                CallOutcome::Listed(api.hooks(ask).await?.into_iter().map(listed).collect())
            }
            ProviderCall::Subscribe(one) => {
                let Target::Invoicing(hook) = one.target else { return Err(unable("it is no hook")) };
                let new = invoicing::NewHook {
                    uri: one.registration.url.clone(),
                    hook,
                    secret: self.secret(one)?,
                    is_paused: false,
                    application_name: one.registered_name(),
                    description: format!("{}{}", owner(&one.connector), one.registered_name()),
                };
                let made = api.create_hook(&new, ask).await?;
                CallOutcome::Done { state: None, id: made.and_then(|hook| hook.id), errors: Vec::new() }
            }
            ProviderCall::Delete(one) => {
                let id = one.id.as_deref().ok_or_else(|| unable(NO_ID))?;
                api.delete_hook(id, ask).await?;
                CallOutcome::Done { state: None, id: None, errors: Vec::new() }
            }
            _ => return Err(unable("the invoicing API has no such call")),
        })
    }

    /// The secret that signs the deliveries of a subscription; a random one if they are not verified.
    fn secret(&self, one: &model::Subscription) -> Result<Secret, CallError> {
        if let Some(secret) = secret_of(&self.source, one.target, &one.registration.fingerprint) {
            return Ok(secret);
        }
        if matches!(one.target, Target::Invoicing(_))
            && one.registration.fingerprint == model::Fingerprint::of("")
        {
            return random::hex::<24>().map(Secret::from).map_err(|error| unable(&error.to_string()));
        }
        Err(unable("its secret is not configured any more"))
    }
}

const NO_ID: &str = "the provider has not given its id";

/// Why a call has no answer.
enum CallError {
    /// The call was not made.
    Unable(String),
    Api(Box<Error>),
}

impl From<Error> for CallError {
    fn from(error: Error) -> Self {
        Self::Api(Box::new(error))
    }
}

fn unable(words: &str) -> CallError {
    CallError::Unable(words.to_owned())
}

fn resource(one: &model::Subscription) -> Result<model::AccountingResource, CallError> {
    one.target.resource().ok_or_else(|| unable("it is no accounting resource"))
}

fn id_of(one: &model::Subscription) -> Result<WebhookId, CallError> {
    webhook_id(one.id.as_deref().ok_or_else(|| unable(NO_ID))?)
}

fn webhook_id(id: &str) -> Result<WebhookId, CallError> {
    WebhookId::new(id).map_err(|error| unable(&error.to_string()))
}

fn done(operation: Operation) -> CallOutcome {
    let Operation { state, webhook, errors } = operation;
    CallOutcome::Done { state, id: webhook.map(|id| id.as_str().to_owned()), errors }
}

fn seen(webhook: Webhook) -> CallOutcome {
    CallOutcome::Seen(WebhookSnapshot {
        name: webhook.application,
        url: webhook.url,
        active: webhook.active,
        deleted: webhook.deleted.unwrap_or(false),
        events: webhook.events.into_iter().filter_map(|event| event.semantic_name).collect(),
    })
}

fn listed(hook: invoicing::Hook) -> ListedHook {
    let entity = hook.entity.as_deref().and_then(|entity| entity.parse().ok());
    let action = hook.action.as_deref().and_then(|action| action.parse().ok());
    let target =
        entity.zip(action).map(|(entity, action)| Target::Invoicing(InvoicingHook { entity, action }));
    ListedHook {
        id: hook.id,
        target,
        url: hook.uri,
        paused: hook.is_paused,
        name: hook.application_name,
        description: hook.description,
    }
}

/// The outcome of a failed call.
fn outcome(call: &ProviderCall, error: &Error) -> CallOutcome {
    if let Cause::NotFound { by: AnsweredBy::Api } | Cause::Gone { by: AnsweredBy::Api } = error.cause {
        return CallOutcome::Gone;
    }
    let is_refused = matches!(error.cause, Cause::Refused) && error.acted == Acted::No;
    let mut words = ErrorChain(error).to_string();
    if let (ProviderCall::Subscribe(one), true) = (call, is_refused)
        && matches!(one.target, Target::Invoicing(_))
    {
        words += "; the provider wants the request to come from the receiver's own host: set invoicing.egress.proxy to a \
                  proxy there, and see that webhook.advertised.url names that host. Where it refuses the hook's own address, \
                  the connector registers the shared one next; invoicing.hook.address=shared skips the attempt";
    }
    CallOutcome::Failed { words, acted: error.acted != Acted::No, refused: is_refused }
}

/// Whether a call goes to the invoicing API.
fn is_invoicing(call: &ProviderCall) -> bool {
    matches!(call, ProviderCall::List { .. }) || matches!(call.target(), Some(Target::Invoicing(_)))
}

/// Adds the remedy to a failure of the invoicing login.
fn waiting(outcome: CallOutcome, error: &Error) -> CallOutcome {
    match outcome {
        CallOutcome::Failed { words, acted, refused } if error.reach() == Reach::Grant => {
            let words = format!(
                "invoicing waits for its login ({words}); accounting continues without it; run the login that is named, or \
                 correct invoicing.login.mail and invoicing.login.password or invoicing.login.token and restart the task; if \
                 invoicing is not wanted, leave invoicing.hooks empty"
            );
            CallOutcome::Failed { words, acted, refused }
        }
        other => other,
    }
}

/// What a failed call means for other calls.
fn stop(error: Error) -> Option<CallStop> {
    if error.reach() < Reach::Grant {
        return None;
    }
    let (verdict, words) = (error.retry(), ErrorChain(&error).to_string());
    if verdict != Retry::Never {
        return Some(CallStop::Wait(verdict));
    }
    Some(CallStop::Fail(match error.cause {
        Cause::Access(error) => no_access(&error),
        // It was good a moment ago, and its successor may be.
        Cause::Token { .. } => Failure::retryable("AccessRefused", unmanaged(&words)),
        _ => refused(&words),
    }))
}

fn unmanaged(words: &str) -> String {
    format!("subscriptions cannot be kept: {words}")
}

fn refused(words: &str) -> Failure {
    let remedy = "deliveries are received all the same; correct the setting, or what the provider has on record, then restart the \
                  task";
    Failure::permanent("AccessRefused", unmanaged(words), remedy)
}

/// The outcome in the metric.
const fn label(outcome: &CallOutcome) -> &'static str {
    match outcome {
        CallOutcome::Gone => "gone",
        CallOutcome::Failed { refused: true, .. } => "refused",
        CallOutcome::Failed { .. } => "failed",
        CallOutcome::Done { errors, .. } if !errors.is_empty() => "refused",
        CallOutcome::Names(_) | CallOutcome::Done { .. } | CallOutcome::Seen(_) | CallOutcome::Listed(_) => {
            "done"
        }
    }
}

/// Longest pause, whatever time the provider names.
pub(super) const MAX_PAUSE: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use provider::{api::Endpoint, auth};

    use super::*;

    fn error(cause: Cause, acted: Acted) -> Error {
        let endpoint = Endpoint { method: "POST", path: "x".into() };
        Error { endpoint, status: None, cause, excerpt: None, acted, in_company: false }
    }

    #[test]
    fn only_the_api_itself_can_say_that_something_is_gone() {
        let meant = |cause| outcome(&ProviderCall::List { planned: 0 }, &error(cause, Acted::No));

        assert_eq!(meant(Cause::Gone { by: AnsweredBy::Api }), CallOutcome::Gone);
        assert_eq!(meant(Cause::NotFound { by: AnsweredBy::Api }), CallOutcome::Gone);
        for by in [AnsweredBy::Gateway, AnsweredBy::Unknown] {
            assert!(
                matches!(meant(Cause::NotFound { by }), CallOutcome::Failed { refused: false, .. }),
                "{by:?}"
            );
        }
    }

    #[test]
    fn a_refusal_counts_only_if_the_provider_did_not_act() {
        let meant = |acted| outcome(&ProviderCall::List { planned: 0 }, &error(Cause::Refused, acted));

        assert!(matches!(meant(Acted::No), CallOutcome::Failed { acted: false, refused: true, .. }));
        assert!(matches!(meant(Acted::Unknown), CallOutcome::Failed { acted: true, refused: false, .. }));
    }

    #[test]
    fn invoicing_waits_alone_only_beside_accounting() {
        use crate::{config::Providers, plugin::samples::webhook_config};
        let mut config = webhook_config();
        config.extend(
            [
                ("invoicing.hooks", "Customer:Created"),
                ("invoicing.secret", "0123456789abcdef0123456789abcdef"),
                ("invoicing.login.mail", "me@example.com"),
                ("invoicing.login.password", "a password"),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned())),
        );
        let calls = |config: &std::collections::BTreeMap<String, String>| {
            let (source, _) = WebhookSource::parse("hooks", config, &Providers::new([])).unwrap();
            ProviderCalls::without_provider(&source)
        };
        let (list, names) =
            (ProviderCall::List { planned: 0 }, ProviderCall::Names(model::AccountingResource::Customers));

        let both = calls(&config);
        config.insert("accounting.resources".into(), String::new());
        let invoicing = calls(&config);

        assert!(both.waits_alone(&list) && !both.waits_alone(&names));
        assert!(!invoicing.waits_alone(&list));
    }

    #[test]
    fn a_refused_invoicing_login_names_the_remedy() {
        let list = ProviderCall::List { planned: 0 };
        let refused = auth::Error::Login { area: "invoicing", source: "no".into(), retry: Retry::Never };
        let supplied = auth::Error::Supplied { setting: "invoicing.login.token" };
        for (cause, names_it) in
            [(refused.into(), true), (supplied.into(), true), (Cause::Server { again: None }, false)]
        {
            let error = error(cause, Acted::No);
            let CallOutcome::Failed { words, .. } = waiting(outcome(&list, &error), &error) else { panic!() };
            assert_eq!(words.contains("accounting continues without it"), names_it, "{words}");
        }
    }

    #[test]
    fn a_lost_login_stops_all_calls_and_a_refusal_only_one() {
        assert!(stop(error(Cause::Refused, Acted::No)).is_none());
        let throttled = stop(error(Cause::Throttled { again: None }, Acted::No));
        assert!(matches!(throttled, Some(CallStop::Wait(Retry::Later))), "{throttled:?}");
        let lost = auth::Error::Absent { grant: "a".into(), command: "tributary auth login a".into() };
        let Some(CallStop::Fail(failure)) = stop(error(lost.into(), Acted::No)) else {
            panic!("calls continue")
        };
        assert_eq!((failure.kind, failure.retry), ("LoginNeeded", Retry::Never));
        let supplied = auth::Error::Supplied { setting: "invoicing.login.token" };
        let Some(CallStop::Fail(failure)) = stop(error(supplied.into(), Acted::No)) else {
            panic!("calls continue")
        };
        assert_eq!((failure.kind, failure.retry), ("AccessRefused", Retry::Never));
        assert!(failure.message.contains("invoicing.login.token: set a new one"), "{}", failure.message);
        let Some(CallStop::Fail(failure)) = stop(error(Cause::Key, Acted::No)) else {
            panic!("calls continue")
        };
        assert_eq!((failure.kind, failure.retry), ("AccessRefused", Retry::Never));
    }
}
