//! The worker under test, and the facts about it that its answers do not show.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use super::shape::Strictness;

/// A connector's settings, without its name.
pub(crate) type Config = BTreeMap<String, String>;

/// A worker and a connector that it can run.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Subject {
    /// The address of its REST API, without a trailing slash; not in the file.
    #[serde(skip)]
    pub(crate) url: String,
    /// The names of all connectors start with this and a unique text.
    #[serde(default = "default_prefix")]
    pub(crate) prefix: String,
    /// A valid source connector that runs one task and publishes a record soon after it starts without offsets. `connector.class` is
    /// the full name.
    pub(crate) config: Config,
    /// The topic that the connector writes.
    pub(crate) topic: String,
    /// A key that `config` does not have, and a valid value with which the connector still runs.
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
    /// The credentials of a worker with basic authentication.
    #[serde(default)]
    pub(crate) credentials: Option<Credentials>,
    /// The secret of a worker with a config provider.
    #[serde(default)]
    pub(crate) provider: Option<SecretProvider>,
    /// Limit for a change to become visible.
    #[serde(skip, default = "default_patience")]
    pub(crate) patience: Duration,
}

/// A user with access.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Credentials {
    pub(crate) user: String,
    pub(crate) password: String,
}

/// A secret outside the configuration. It is the topic's name, so that the task shows that it got it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SecretProvider {
    /// The key of `config` that names the topic.
    pub(crate) key: String,
    /// The reference to set instead, for example `${file:/etc/secrets:topic}`.
    pub(crate) reference: String,
    /// The value that the reference resolves to.
    pub(crate) secret: String,
}

impl Subject {
    /// Parses the facts. The address is separate, since it changes with every start.
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

    /// The full name of the connector's class.
    pub(crate) fn class(&self) -> &str {
        self.config.get("connector.class").map_or("", String::as_str)
    }

    /// The class without its package.
    pub(crate) fn simple_class(&self) -> &str {
        self.class().rsplit('.').next().unwrap_or_default()
    }

    /// The class without its package and the optional suffix.
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

/// The time that the contract allows for the start of a connector; a busy machine comes close to it.
fn default_patience() -> Duration {
    Duration::from_secs(30)
}
