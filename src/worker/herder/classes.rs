//! Classes: what there is, which keys they have, and what they say about a configuration.

use std::{sync::Arc, time::Duration};

use tokio::{task::spawn_blocking, time::timeout};

use super::{Budget, CLASS, Error, Herder, LARGEST_RECORD, PluginInfo, limits::Turn};
use crate::{
    config::{KeyDef, Validation},
    worker::{
        plugins::{Depth, Plugin},
        state::configs::{self, Properties},
    },
};

/// The longest a validation request may take.
const VALIDATION_LIMIT: Duration = Duration::from_secs(5);
const VALIDATING: &str = "validating the configuration";

/// What configurations may name beside connectors, with Kafka Connect's word for its kind. They have no keys of their own
/// here: those of the schema registry are the worker's.
const CONVERTERS: [(&str, &str); 3] = [
    ("io.confluent.connect.avro.AvroConverter", "converter"),
    ("org.apache.kafka.connect.storage.StringConverter", "converter"),
    ("org.apache.kafka.connect.storage.SimpleHeaderConverter", "header_converter"),
];

impl Herder {
    /// The classes of connectors, and with `false` those of converters too.
    pub fn plugins(&self, connectors_only: bool) -> Vec<PluginInfo> {
        let version = env!("CARGO_PKG_VERSION");
        let connectors = self.parts.plugins.iter().map(|plugin| (plugin.class(), "source"));
        let converters = CONVERTERS.into_iter().filter(|_| !connectors_only);
        connectors.chain(converters).map(|(class, kind)| PluginInfo { class, kind, version }).collect()
    }

    /// Keys of a class, by its full or simple name.
    ///
    /// # Errors
    /// There is no such class.
    pub fn plugin_config(&self, name: &str) -> Result<Vec<KeyDef>, Error> {
        if let Some(plugin) = self.parts.plugins.find(name) {
            return Ok(plugin.definitions());
        }
        match CONVERTERS.iter().any(|(class, _)| simple(class) == simple(name)) {
            true => Ok(Vec::new()),
            false => Err(Error::NotFound(format!("Unknown plugin {name}."))),
        }
    }

    /// What the class `name` says about a configuration, good or bad.
    ///
    /// # Errors
    /// The configuration names no class, another one, or one that does not exist.
    pub async fn validate(&self, name: &str, config: Properties, depth: Depth) -> Result<Validation, Error> {
        if let Some(included) = config.get(CLASS) {
            let (included_end, name_end) = (without_suffix(included.trim()), without_suffix(name));
            if name_end.is_empty() || !included_end.ends_with(name_end) {
                return Err(Error::BadRequest(format!(
                    "Included connector type {included} does not match request type {name}"
                )));
            }
        }
        let plugin = self.class_of(&config)?;
        let budget = Budget::start().at_most(VALIDATION_LIMIT);
        let turn = self.limits.validation(budget, VALIDATING).await?;
        validation(plugin, Arc::new(config), depth, turn, budget).await
    }

    /// Takes a configuration only if its class finds nothing wrong with it.
    pub(super) async fn accept(&self, config: &Arc<Properties>, budget: Budget) -> Result<(), Error> {
        let plugin = self.class_of(config)?;
        let class = plugin.class().to_owned();
        let size = configs::connector("", Some(config)).1.map_or(0, |record| record.to_string().len());
        if size > LARGEST_RECORD {
            let told =
                format!("the configuration has {size} bytes where {LARGEST_RECORD} are the most that fit");
            return Err(Error::Invalid { class, errors: vec![told] });
        }
        let turn = self.limits.thread(budget, VALIDATING).await?;
        let answer = validation(plugin, Arc::clone(config), Depth::Full, turn, budget).await?;
        let errors: Vec<String> = answer.configs.into_iter().flat_map(|entry| entry.value.errors).collect();
        if errors.is_empty() { Ok(()) } else { Err(Error::Invalid { class, errors }) }
    }

    /// The class a configuration names. The texts are Kafka Connect's, less the configuration it repeats.
    pub(super) fn class_of(&self, config: &Properties) -> Result<Arc<dyn Plugin>, Error> {
        let classes =
            || self.parts.plugins.iter().map(|plugin| plugin.class()).collect::<Vec<_>>().join(", ");
        let Some(class) = config.get(CLASS) else {
            let told =
                format!("Connector config contains no connector type: set {CLASS} to one of {}", classes());
            return Err(Error::BadRequest(told));
        };
        self.parts.plugins.find(class).cloned().ok_or_else(|| {
            Error::BadRequest(format!(
                "Failed to find any class that implements Connector and which name matches {class}, available \
                 connectors are: {}",
                classes()
            ))
        })
    }
}

/// Validates on a thread that may block: references are read from files, which may be slow.
async fn validation(
    plugin: Arc<dyn Plugin>,
    config: Arc<Properties>,
    depth: Depth,
    turn: Turn,
    budget: Budget,
) -> Result<Validation, Error> {
    let class = plugin.class();
    let validate = move || {
        // Held by the thread: one that hangs on a file after its request was answered still counts.
        let _turn = turn;
        plugin.validate(&config, depth)
    };
    match timeout(budget.left(), spawn_blocking(validate)).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => {
            // The text of a panic may hold a value of the configuration.
            tracing::error!(class, panicked = error.is_panic(), "validate a configuration");
            Err(Error::Internal { doing: "validate the configuration" })
        }
        Err(_) => Err(Error::TimedOut { doing: VALIDATING }),
    }
}

fn simple(class: &str) -> &str {
    class.trim().rsplit('.').next().unwrap_or_default()
}

fn without_suffix(class: &str) -> &str {
    class.strip_suffix("Connector").unwrap_or(class)
}
