//! A connector class for these tests: validated as a RecordSource, with test writers and offsets.

use async_trait::async_trait;
use serde_json::{Map, Value};
use tributary::{
    config::{
        self, KeyDef, Providers, Validation,
        connector::{Class, definitions},
    },
    plugin::{Depth, Failure, Past, Plugin, Task},
    state::configs::Properties,
};

#[derive(Debug)]
pub(crate) struct Records;

#[async_trait]
impl Plugin for Records {
    fn class(&self) -> &'static str {
        Class::RecordSource.name()
    }

    fn definitions(&self) -> Vec<KeyDef> {
        definitions(Class::RecordSource)
    }

    fn validate(&self, config: &Properties, _: Depth) -> Validation {
        config::validate(self.class(), config, &Providers::new([]))
    }

    fn task_configs(&self, _: &str, config: &Properties) -> Result<Vec<Properties>, Failure> {
        let count = config.get("tasks.max").map_or(1, |text| text.parse().unwrap());
        Ok(vec![config.clone(); count])
    }

    async fn run(&self, _: Task) -> Result<(), Failure> {
        Ok(())
    }

    fn transactional_ids(&self, name: &str, _: &Properties, _: &Past) -> Vec<String> {
        vec![writer(name)]
    }

    fn check_offsets(
        &self,
        offsets: &[(Map<String, Value>, Option<Map<String, Value>>)],
    ) -> Result<(), String> {
        match offsets.iter().all(|(partition, _)| partition.contains_key("topic")) {
            true => Ok(()),
            false => Err("a partition has to name its topic".to_owned()),
        }
    }
}

/// The transactional id of a connector's task.
pub(crate) fn writer(name: &str) -> String {
    format!("writer-of-{name}")
}
