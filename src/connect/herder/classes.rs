//! Connector classes: which exist, their keys, their verdict on a configuration, and parsed configurations.

use std::{sync::Arc, time::Duration};

use super::{CLASS, Error, Herder, MAX_RECORD_BYTES, PluginInfo, TimeBudget};
use crate::{
    config::{
        KeyDef, Problems, Providers, Validation, Warning,
        connector::{Class, ExclusiveSetting},
    },
    plugin::{Depth, Plugin, lines},
    state::configs::{self, Configs, Properties, StoredConnector},
};

/// How long a validation request may take.
const VALIDATION_LIMIT: Duration = Duration::from_secs(5);
/// What the worker is busy with while a request waits, and what failed if the class panics.
const VALIDATING: (&str, &str) = ("validating the configuration", "validate the configuration");
const READING: (&str, &str) = ("reading the configuration", "read the configuration");

/// Converters that configurations may name, with Kafka Connect's word for their kind. They have no keys here: those of the
/// schema registry are in the worker's configuration.
const CONVERTERS: [(&str, &str); 3] = [
    ("io.confluent.connect.avro.AvroConverter", "converter"),
    ("org.apache.kafka.connect.storage.StringConverter", "converter"),
    ("org.apache.kafka.connect.storage.SimpleHeaderConverter", "header_converter"),
];

impl Herder {
    /// The connector classes and, unless `connectors_only`, the converters.
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

    /// The verdict of class `name` on a configuration.
    ///
    /// # Errors
    /// The configuration names no class, another class, or an unknown one.
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
        let budget = TimeBudget::start().at_most(VALIDATION_LIMIT);
        let permit = self.limits.validations.permit(budget, VALIDATING.0).await?;
        budget.blocking(VALIDATING, plugin.class(), permit, move || plugin.validate(&config, depth)).await
    }

    /// Refuses a configuration in which its class finds an error.
    pub(super) async fn check_config(
        &self,
        config: &Arc<Properties>,
        budget: TimeBudget,
    ) -> Result<(), Error> {
        let plugin = self.class_of(config)?;
        let class = plugin.class();
        let size = configs::connector("", Some(config)).1.map_or(0, |record| record.to_string().len());
        if size > MAX_RECORD_BYTES {
            let message = format!("the configuration has {size} bytes; the limit is {MAX_RECORD_BYTES}");
            return Err(Error::Invalid { class: class.to_owned(), errors: vec![message] });
        }
        let permit = self.limits.threads.permit(budget, VALIDATING.0).await?;
        let config = Arc::clone(config);
        let validate = move || plugin.validate(&config, Depth::Full);
        let answer = budget.blocking(VALIDATING, class, permit, validate).await?;
        let errors: Vec<String> = answer.configs.into_iter().flat_map(|entry| entry.value.errors).collect();
        if errors.is_empty() { Ok(()) } else { Err(Error::Invalid { class: class.to_owned(), errors }) }
    }

    /// The class a configuration names. The texts are Kafka Connect's, without the configuration that it repeats.
    pub(super) fn class_of(&self, config: &Properties) -> Result<Arc<dyn Plugin>, Error> {
        let classes =
            || self.parts.plugins.iter().map(|plugin| plugin.class()).collect::<Vec<_>>().join(", ");
        let Some(class) = config.get(CLASS) else {
            let message =
                format!("Connector config contains no connector type: set {CLASS} to one of {}", classes());
            return Err(Error::BadRequest(message));
        };
        self.parts.plugins.find(class).cloned().ok_or_else(|| {
            Error::BadRequest(format!(
                "Failed to find any class that implements Connector and which name matches {class}, available \
                 connectors are: {}",
                classes()
            ))
        })
    }

    /// The parsed configuration of a connector of class `wanted`, with its secrets. `what` completes the error for another class:
    /// "only a `wanted` …".
    pub(super) async fn parsed<T: Send + 'static>(
        &self,
        name: &str,
        connector: StoredConnector,
        wanted: Class,
        what: &str,
        parse: Parse<T>,
        budget: TimeBudget,
    ) -> Result<T, Error> {
        let class = self.class_of(&connector.config)?.class();
        if class != wanted.name() {
            let message = format!("Connector {name} is a {class}: only a {} {what}", wanted.name());
            return Err(Error::BadRequest(message));
        }
        let permit = self.limits.threads.permit(budget, READING.0).await?;
        let (name, providers) = (name.to_owned(), self.parts.providers.clone());
        let parsed = move || parse(&name, &connector.config, &providers);
        match budget.blocking(READING, class, permit, parsed).await? {
            Ok((source, _)) => Ok(source),
            Err(problems) => Err(Error::Invalid { class: class.to_owned(), errors: lines(&problems) }),
        }
    }

    /// Refuses a configuration that shares an exclusive setting with another connector, and may not. Runs under the config table's lock.
    pub(super) fn check_exclusive_settings(
        &self,
        name: &str,
        config: &Properties,
        configs: &Configs,
    ) -> Result<(), Error> {
        let providers = &self.parts.providers;
        let Some(own) = ExclusiveSetting::of(config, providers) else { return Ok(()) };
        let others = configs.connectors().iter().filter(|(other, _)| *other != name);
        let others: Vec<(&str, ExclusiveSetting)> = others
            .filter_map(|(other, connector)| {
                Some((other.as_str(), ExclusiveSetting::of(&connector.config, providers)?))
            })
            .collect();
        match own.conflict(others.iter().map(|(other, theirs)| (*other, theirs))) {
            Some(problem) => {
                let errors = lines(&problem.into());
                Err(Error::Invalid { class: own.class().name().to_owned(), errors })
            }
            None => Ok(()),
        }
    }
}

/// Reads a flat configuration.
type Parse<T> = fn(&str, &Properties, &Providers) -> Result<(T, Vec<Warning>), Problems>;

fn simple(class: &str) -> &str {
    class.trim().rsplit('.').next().unwrap_or_default()
}

fn without_suffix(class: &str) -> &str {
    class.strip_suffix("Connector").unwrap_or(class)
}
