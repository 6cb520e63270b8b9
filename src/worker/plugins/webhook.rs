//! `WebhookSource`: receives deliveries and keeps the provider's subscriptions alive.
//!
//! Described, checked and divided into its one task here; this version has nothing yet that runs it.

use async_trait::async_trait;

use super::{Edit, Failure, Past, Plugin, Properties, Task};
use crate::config::{
    self, KeyDef, Providers, Validation,
    connector::{Class, definitions},
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

    async fn run(&self, _task: Task) -> Result<(), Failure> {
        Err(super::not_available(self.class()))
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
