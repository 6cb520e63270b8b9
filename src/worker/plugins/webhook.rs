//! `WebhookSource`: receives deliveries and keeps the provider's subscriptions alive.
//!
//! Deliveries are received by every worker, whoever runs the task ([`ingest`](crate::worker::ingest)). The task says whether the
//! worker it runs on receives them as the connector is configured; keeping subscriptions alive is not there yet.

use async_trait::async_trait;
use tokio::sync::watch;

use super::{Edit, Failure, Past, Plugin, Properties, Task};
use crate::{
    config::{
        self, KeyDef, Providers, Validation,
        connector::{Class, definitions},
    },
    worker::ingest::Faults,
};

/// See the module's head.
#[derive(Debug)]
pub struct WebhookSource {
    providers: Providers,
}

impl WebhookSource {
    /// Whose references are resolved by these.
    #[must_use]
    pub fn new(providers: Providers) -> Self {
        Self { providers }
    }
}

#[async_trait]
impl Plugin for WebhookSource {
    fn class(&self) -> &'static str {
        Class::WebhookSource.name()
    }

    fn definitions(&self) -> Vec<KeyDef> {
        definitions(Class::WebhookSource)
    }

    fn validate(&self, config: &Properties) -> Validation {
        config::validate(self.class(), config, &self.providers)
    }

    /// Always one: whatever `tasks.max` allows, two would subscribe twice.
    fn task_configs(&self, name: &str, config: &Properties) -> Result<Vec<Properties>, Failure> {
        config::WebhookSource::parse(name, config, &self.providers).map_err(super::unusable)?;
        Ok(vec![config.clone()])
    }

    async fn run(&self, task: Task) -> Result<(), Failure> {
        let (mut paused, mut faults) = (task.paused.clone(), task.tools.faults.clone());
        loop {
            if let Some(fault) = faults.borrow_and_update().get(&*task.connector) {
                return Err(not_received(fault));
            }
            if *paused.borrow_and_update() {
                task.rests();
            } else {
                task.started();
            }
            tokio::select! {
                () = task.cancel.cancelled() => return Ok(()),
                // The sender is the supervisor, which outlives its tasks; without it nobody resumes.
                changed = paused.changed() => if changed.is_err() { return Ok(()) },
                () = changed(&mut faults) => {}
            }
        }
    }

    /// It stores no offsets.
    fn writers(&self, _name: &str, _config: &Properties, _past: &Past) -> Vec<String> {
        Vec::new()
    }

    fn check_offsets(&self, offsets: &[Edit]) -> Result<(), String> {
        // Offsets that are there all the same, left by another class of this name, may be removed.
        match offsets.iter().find(|(_, offset)| offset.is_some()) {
            Some(_) => {
                Err("a WebhookSource has no source offsets: deliveries come when the provider sends them"
                    .into())
            }
            None => Ok(()),
        }
    }
}

/// Another configuration, or what its references name, mends it by itself.
fn not_received(fault: &str) -> Failure {
    let message = format!("deliveries are not received as the connector is configured: {fault}");
    let remedy = "correct the configuration, or what it refers to on this worker; until then a receiver that was there \
                  before goes on";
    Failure { remedy: Some(remedy.to_owned()), ..Failure::passing("NotReceived", message) }
}

/// Returns when there are other faults; never on a worker that receives nothing.
async fn changed(faults: &mut watch::Receiver<Faults>) {
    if faults.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::plugins::samples::{object, webhook_config};

    fn plugin() -> WebhookSource {
        WebhookSource::new(Providers::new([]))
    }

    #[test]
    fn there_is_one_task_whatever_tasks_max_says_and_its_references_stay_references() {
        let mut config = webhook_config();
        config.insert("tasks.max".into(), "7".into());
        let providers = Providers::new([("SECRET".to_owned(), "0123456789abcdef".into())]);
        config.insert("oauth.client.secret".into(), "${env:SECRET}".into());

        let tasks = WebhookSource::new(providers).task_configs("hooks", &config).unwrap();

        assert_eq!(tasks, [config]);
    }

    #[test]
    fn a_configuration_that_cannot_be_used_gives_no_tasks_and_shows_no_value() {
        let mut config = webhook_config();
        config.insert("accounting.secret".into(), "${env:NOT_SET}hunter2".into());

        let failure = plugin().task_configs("hooks", &config).unwrap_err();

        assert_eq!(failure.kind, "InvalidConfiguration");
        let told = format!("{failure} {:?}", failure.source);
        assert!(told.contains("accounting.secret") && !told.contains("hunter2"), "{told}");
    }

    #[test]
    fn offsets_may_be_removed_and_not_set() {
        let partition = object(&[("topic", "a".into())]);
        let offset = object(&[("offset", 1.into())]);

        assert!(plugin().check_offsets(&[(partition.clone(), None)]).is_ok());
        assert!(plugin().check_offsets(&[(partition, Some(offset))]).is_err());
    }
}
