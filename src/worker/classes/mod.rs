//! The classes of connectors: `WebhookSource`, `RecordSource` and, on request, `TestSource`.
//!
//! Each is a [`Plugin`] over another module: [`reconciler`](crate::webhooks::reconciler) manages subscriptions,
//! [`records`](crate::records::task) writes records. Those modules use the interface in [`plugins`](crate::plugin) and do not know
//! the classes.

mod test_source;

use std::sync::Arc;

use self::test_source::TestSource;
use crate::{
    config,
    plugin::{Plugin, Plugins},
    records::{fence::Fences, plugin::RecordPlugin},
    webhooks::plugin::WebhookPlugin,
};

/// Directory of the fences in `state.dir`.
const FENCE_DIRECTORY: &str = "fence";

impl Plugins {
    /// The classes of a worker. `TestSource`, which counts and fails on request, is for tests of the lifecycle; builds without
    /// the simulator do not have it.
    pub fn of(worker: &config::Worker, with_test_source: bool) -> Self {
        let mut classes: Vec<Arc<dyn Plugin>> = vec![
            Arc::new(WebhookPlugin { providers: worker.providers.clone() }),
            Arc::new(RecordPlugin {
                providers: worker.providers.clone(),
                fences: Fences::new(worker.state_dir.join(FENCE_DIRECTORY)),
            }),
        ];
        if with_test_source && cfg!(feature = "simulator") {
            let (providers, group) = (worker.providers.clone(), worker.group.id.clone());
            classes.push(Arc::new(TestSource { providers, group }));
        }
        Self::new(classes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::{Depth, samples};

    #[test]
    fn class_is_found_with_and_without_package_and_suffix() {
        let worker = samples::worker();

        for name in ["WebhookSource", "io.tributary.RecordSource", "RecordSourceConnector"] {
            assert!(Plugins::of(&worker, false).find(name).is_some(), "{name}");
        }
        assert!(Plugins::of(&worker, false).find("TestSource").is_none());
        assert_eq!(Plugins::of(&worker, true).find("TestSource").is_some(), cfg!(feature = "simulator"));
    }

    #[test]
    fn validation_answers_are_complete_and_without_secrets() {
        let inputs: [&[(&str, &str)]; 4] = [
            &[],
            &[("connector.class", "TestSource"), ("topics", "none")],
            &[("", ""), ("x", "${"), ("tasks.max", "zero"), ("name", "\u{7}")],
            &[("secret", "hunter2"), ("accounting.secret", "hunter2"), ("sercet", "hunter2")],
        ];

        for plugin in Plugins::of(&samples::worker(), true).iter() {
            for input in inputs {
                let answer = plugin.validate(&samples::properties(input), Depth::Full);

                let shown = serde_json::to_string(&answer).unwrap();
                assert!(answer.error_count > 0, "{}: {input:?}", plugin.class());
                assert!(!shown.contains("hunter2"), "{shown}");
            }
            let defined: Vec<String> = plugin.definitions().into_iter().map(|key| key.name).collect();
            for name in ["name", "connector.class", "tasks.max"] {
                assert!(defined.iter().any(|key| key == name), "{} has no {name}", plugin.class());
            }
        }
    }
}
