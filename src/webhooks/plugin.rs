//! `WebhookSource`: receives deliveries and manages the provider's subscriptions.
//!
//! Every worker with `webhook.listeners` receives deliveries, whichever runs the task ([`ingest`](crate::webhooks::ingest)). The task fails
//! if its worker cannot receive as the connector is configured, or if a login is missing; otherwise it keeps the subscriptions as
//! declared ([`reconciler`](crate::webhooks::reconciler)). While it is paused they stay as they are.
//!
//! On failure deliveries are still received: a lost login fails the task, with the command that repairs it. Beside accounting, invoicing
//! waits for its login without failing the task: its subscriptions show the problem.

use async_trait::async_trait;
use futures::{StreamExt as _, stream::FuturesUnordered};
use tokio::{sync::watch, time::Instant};

use provider::auth::Area;

use crate::{
    config::{
        self, KeyDef, Providers, Validation,
        connector::{Class, definitions},
    },
    logins::GrantWatch,
    plugin::{Depth, Failure, Past, Plugin, ReceiverFaults, Task, no_access, unusable},
    state::{configs::Properties, offsets::OffsetEdit},
    webhooks::reconciler::Reconciler,
};

/// See the module's head.
#[derive(Debug)]
pub struct WebhookPlugin {
    /// How references are resolved.
    pub providers: Providers,
}

#[async_trait]
impl Plugin for WebhookPlugin {
    fn class(&self) -> &'static str {
        Class::WebhookSource.name()
    }

    fn definitions(&self) -> Vec<KeyDef> {
        definitions(Class::WebhookSource)
    }

    fn validate(&self, config: &Properties, depth: Depth) -> Validation {
        config::validate(self.class(), config, &depth.apply(&self.providers))
    }

    /// Always one: whatever `tasks.max` allows, two would subscribe twice.
    fn task_configs(&self, name: &str, config: &Properties) -> Result<Vec<Properties>, Failure> {
        config::WebhookSource::parse(name, config, &self.providers).map_err(unusable)?;
        Ok(vec![config.clone()])
    }

    async fn run(&self, task: Task) -> Result<(), Failure> {
        let (mut paused, mut faults) = (task.paused.clone(), task.tools.faults.clone());
        let Logins { mut needed, mut invoicing } = self.logins(&task)?;
        for login in &mut needed {
            if login.problem().is_some() && task.cancel.run_until_cancelled(login.catch_up()).await.is_none()
            {
                return Ok(());
            }
        }
        // Started once it is needed: a task that only fails or is paused does not fence the instance before it.
        let mut reconciler = None;
        loop {
            if let Some(fault) = faults.borrow_and_update().get(&*task.connector) {
                return Err(not_received(fault));
            }
            let mut works = false;
            if *paused.borrow_and_update() {
                task.report_paused();
            } else if let Some(error) = needed.iter_mut().find_map(GrantWatch::problem) {
                return Err(no_access(&error));
            } else {
                works = needed.iter().chain(&invoicing).all(GrantWatch::is_known);
            }
            let mut wake = None;
            if works {
                let reconciler = match &mut reconciler {
                    Some(reconciler) => reconciler,
                    none => match task.cancel.run_until_cancelled(Reconciler::start(&task)).await {
                        Some(started) => none.insert(started?),
                        None => return Ok(()),
                    },
                };
                task.started();
                let is_over = || task.cancel.is_cancelled() || *task.paused.borrow();
                wake = Some(reconciler.round(is_over).await?);
            }
            tokio::select! {
                () = task.cancel.cancelled() => return Ok(()),
                // The sender is the supervisor, which outlives its tasks.
                changed = paused.changed() => if changed.is_err() { return Ok(()) },
                () = changed(&mut faults) => {}
                () = logged_in(&mut needed) => {}
                () = logged_in(invoicing.as_mut_slice()) => {
                    reconciler.iter_mut().for_each(Reconciler::retry_invoicing);
                }
                () = idle(&mut reconciler, wake) => {}
            }
        }
    }

    /// It stores no offsets.
    fn transactional_ids(&self, _name: &str, _config: &Properties, _past: &Past) -> Vec<String> {
        Vec::new()
    }

    fn check_offsets(&self, offsets: &[OffsetEdit]) -> Result<(), String> {
        // Offsets that another class of this name left may be removed.
        match offsets.iter().find(|(_, offset)| offset.is_some()) {
            Some(_) => {
                Err("a WebhookSource has no source offsets: deliveries come when the provider sends them"
                    .into())
            }
            None => Ok(()),
        }
    }
}

impl WebhookPlugin {
    /// The grants that subscriptions need, if this connector manages any.
    fn logins(&self, task: &Task) -> Result<Logins, Failure> {
        let parsed = config::WebhookSource::parse(&task.connector, &task.config, &self.providers);
        let (source, _) = parsed.map_err(unusable)?;
        let Some(provider) = source.provider.filter(|_| source.manage_subscriptions) else {
            return Ok(Logins { needed: Vec::new(), invoicing: None });
        };
        let grants = task.tools.access.grants();
        let watch = |area: Area, is_declared: bool| {
            let is_needed = is_declared && area.is_used(&provider.oauth);
            is_needed.then(|| grants.watch(&provider, area, &task.connector))
        };
        let accounting = watch(Area::Accounting, source.accounting.is_some());
        let invoicing = watch(Area::Invoicing, source.invoicing.is_some());
        Ok(match source.accounting {
            Some(_) => Logins { needed: accounting.into_iter().collect(), invoicing },
            None => Logins { needed: invoicing.into_iter().collect(), invoicing: None },
        })
    }
}

/// The grants that subscriptions need.
struct Logins {
    /// Without these the task fails.
    needed: Vec<GrantWatch>,
    /// Beside accounting, invoicing waits for its own.
    invoicing: Option<GrantWatch>,
}

/// Returns when the reconciler has to plan; never without one.
async fn idle(reconciler: &mut Option<Reconciler<'_>>, wake: Option<Instant>) {
    match (reconciler, wake) {
        (Some(reconciler), Some(wake)) => reconciler.idle(wake).await,
        _ => std::future::pending().await,
    }
}

/// Returns when a grant changes; never if none is needed.
async fn logged_in(logins: &mut [GrantWatch]) {
    let mut changes: FuturesUnordered<_> = logins.iter_mut().map(GrantWatch::changed).collect();
    if changes.next().await.is_none() {
        std::future::pending().await
    }
}

/// Passes by itself with another configuration, or other values of its references.
fn not_received(fault: &str) -> Failure {
    let message = format!("deliveries are not received as the connector is configured: {fault}");
    let remedy = "correct the configuration, or what it refers to on this worker; until then the worker \
                  uses the last valid configuration, or answers 503 if there is none";
    Failure { remedy: Some(remedy.to_owned()), ..Failure::retryable("NotReceived", message) }
}

/// Returns when the faults change; never on a worker without ingest, which has neither listeners nor a spool.
async fn changed(faults: &mut watch::Receiver<ReceiverFaults>) {
    if faults.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::samples::{object, webhook_config};

    fn plugin() -> WebhookPlugin {
        WebhookPlugin { providers: Providers::new([]) }
    }

    #[test]
    fn there_is_one_task_with_unresolved_references() {
        let mut config = webhook_config();
        config.insert("tasks.max".into(), "7".into());
        let providers = Providers::new([("SECRET".to_owned(), "0123456789abcdef".into())]);
        config.insert("oauth.client.secret".into(), "${env:SECRET}".into());

        let tasks = WebhookPlugin { providers }.task_configs("hooks", &config).unwrap();

        assert_eq!(tasks, [config]);
    }

    #[test]
    fn an_unusable_configuration_gives_no_tasks_and_shows_no_value() {
        let mut config = webhook_config();
        config.insert("accounting.secret".into(), "${env:NOT_SET}hunter2".into());

        let failure = plugin().task_configs("hooks", &config).unwrap_err();

        assert_eq!(failure.kind, "InvalidConfiguration");
        let reported = format!("{failure} {:?}", failure.source);
        assert!(reported.contains("accounting.secret") && !reported.contains("hunter2"), "{reported}");
    }

    #[test]
    fn offsets_may_be_removed_and_not_set() {
        let partition = object(&[("topic", "a".into())]);
        let offset = object(&[("offset", 1.into())]);

        assert!(plugin().check_offsets(&[(partition.clone(), None)]).is_ok());
        assert!(plugin().check_offsets(&[(partition, Some(offset))]).is_err());
    }
}
