//! How to reach Kafka: addresses and the settings that pass through to librdkafka.

use std::collections::BTreeMap;

use crate::secret::Secret;

/// Which of the worker's clients a setting is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientRole {
    /// Gets what stands behind `producer.`.
    Producer,
    /// Gets what stands behind `consumer.`.
    Consumer,
    /// Gets what stands behind `admin.`.
    Admin,
}

/// The Kafka section of the worker's configuration.
///
/// Values are held as secrets throughout: passwords pass through here, and nothing is lost by hiding the rest.
#[derive(Debug, Clone, Default)]
pub struct Kafka {
    /// `host:port`, comma-separated; at least one.
    pub bootstrap_servers: String,
    /// Security and connection settings that every client shares (`security.protocol`, `sasl.*`, `ssl.*` …).
    pub common: BTreeMap<String, Secret>,
    /// What stood behind `producer.`, without the prefix.
    pub producer: BTreeMap<String, Secret>,
    /// What stood behind `consumer.`, without the prefix.
    pub consumer: BTreeMap<String, Secret>,
    /// What stood behind `admin.`, without the prefix.
    pub admin: BTreeMap<String, Secret>,
}

impl Kafka {
    /// A cluster that needs no credentials.
    pub fn plaintext(bootstrap_servers: impl Into<String>) -> Self {
        Self { bootstrap_servers: bootstrap_servers.into(), ..Self::default() }
    }

    /// The user's settings for one role: what all clients share, overridden by what is set for the role.
    #[must_use]
    pub fn settings(&self, role: ClientRole) -> BTreeMap<&str, &Secret> {
        let own = match role {
            ClientRole::Producer => &self.producer,
            ClientRole::Consumer => &self.consumer,
            ClientRole::Admin => &self.admin,
        };
        self.common.iter().chain(own).map(|(key, value)| (key.as_str(), value)).collect()
    }

    /// The key under which a setting of a role stands in the worker's file.
    #[must_use]
    pub fn key_of(&self, role: ClientRole, setting: &str) -> String {
        let (prefix, own) = match role {
            ClientRole::Producer => ("producer", &self.producer),
            ClientRole::Consumer => ("consumer", &self.consumer),
            ClientRole::Admin => ("admin", &self.admin),
        };
        if own.contains_key(setting) { format!("{prefix}.{setting}") } else { setting.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_overrides_what_all_clients_share() {
        let mut kafka = Kafka::plaintext("localhost:9092");
        kafka.common.insert("security.protocol".into(), "SSL".into());
        kafka.producer.insert("security.protocol".into(), "SASL_SSL".into());

        let producer = kafka.settings(ClientRole::Producer);
        let consumer = kafka.settings(ClientRole::Consumer);

        assert_eq!(producer["security.protocol"].reveal(), "SASL_SSL");
        assert_eq!(consumer["security.protocol"].reveal(), "SSL");
        assert_eq!(kafka.key_of(ClientRole::Producer, "security.protocol"), "producer.security.protocol");
        assert_eq!(kafka.key_of(ClientRole::Consumer, "security.protocol"), "security.protocol");
    }
}
