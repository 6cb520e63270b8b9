//! The worker in question, and what a check must know about it that no answer tells.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use super::shape::Strictness;

/// A connector's settings, without its name.
pub(crate) type Config = BTreeMap<String, String>;

/// One worker and a connector it can run.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Subject {
    /// Where its REST API is, without a slash at the end; from outside the file.
    #[serde(skip)]
    pub(crate) url: String,
    /// Every connector made begins with this and a text of the run's own.
    #[serde(default = "default_prefix")]
    pub(crate) prefix: String,
    /// A source connector that is valid, runs one task, and publishes at least one record soon after it
    /// begins without offsets. `connector.class` is the full name.
    pub(crate) config: Config,
    /// The topic that connector writes.
    pub(crate) topic: String,
    /// A key `config` does not have, and a value that is valid and keeps the connector running.
    pub(crate) change: (String, String),
    /// Settings that, put over `config`, make the task fail after it started.
    pub(crate) failure: Config,
    /// A key of type PASSWORD that validation knows.
    pub(crate) password_key: String,
    /// Whether it is Kafka Connect itself, whose 500s for bad input are then expected.
    #[serde(default)]
    pub(crate) strict: bool,
    /// Whether it is new and has no connectors.
    #[serde(default)]
    pub(crate) fresh: bool,
    /// With which it asks for basic authentication.
    #[serde(default)]
    pub(crate) credentials: Option<Credentials>,
    /// With which it resolves references to secrets.
    #[serde(default)]
    pub(crate) provider: Option<Provider>,
    /// How long what is asked for may take to become visible.
    #[serde(skip, default = "default_patience")]
    pub(crate) patience: Duration,
}

/// Who may ask.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Credentials {
    pub(crate) user: String,
    pub(crate) password: String,
}

/// A secret outside the configuration, put where the task shows that it got it: in the topic's name.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Provider {
    /// The key of `config` that names the topic.
    pub(crate) key: String,
    /// What stands there instead, for example `${file:/etc/secrets:topic}`.
    pub(crate) reference: String,
    /// What the worker finds behind the reference.
    pub(crate) secret: String,
}

impl Subject {
    /// Reads the facts; the address comes apart, since it changes with every start.
    pub(crate) fn parse(url: &str, facts: &str) -> Result<Self, String> {
        let mut subject: Self =
            serde_json::from_str(facts).map_err(|error| format!("parse the subject's facts: {error}"))?;
        subject.url = url.trim_end_matches('/').to_owned();
        if !subject.config.contains_key("connector.class") {
            return Err("parse the subject's facts: config has no connector.class".to_owned());
        }
        if subject.config.contains_key(&subject.change.0) {
            return Err(format!(
                "parse the subject's facts: config has {}, the key to add",
                subject.change.0
            ));
        }
        Ok(subject)
    }

    /// Full name of the connector's class.
    pub(crate) fn class(&self) -> &str {
        self.config.get("connector.class").map_or("", String::as_str)
    }

    /// The class without its package.
    pub(crate) fn simple_class(&self) -> &str {
        self.class().rsplit('.').next().unwrap_or_default()
    }

    /// The class without its package and the suffix that may be left out.
    pub(crate) fn short_class(&self) -> &str {
        let simple = self.simple_class();
        simple.strip_suffix("Connector").unwrap_or(simple)
    }

    pub(crate) fn strictness(&self) -> Strictness {
        if self.strict { Strictness::Upstream } else { Strictness::Compatible }
    }
}

fn default_prefix() -> String {
    "conformance".to_owned()
}

/// What the contract allows a connector to start in; a loaded machine comes near it.
fn default_patience() -> Duration {
    Duration::from_secs(30)
}
