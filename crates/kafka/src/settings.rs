//! How to reach Kafka: addresses and the settings that pass through to librdkafka.

use std::collections::BTreeMap;

use base::secret::Secret;

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

    /// The user's settings for one role: what all clients share, then what is set for the role, which wins.
    pub fn layers(&self, role: ClientRole) -> impl Iterator<Item = (&str, &Secret)> {
        self.common.iter().chain(self.own(role).1).map(|(key, value)| (key.as_str(), value))
    }

    /// The key under which a setting of a role stands in the worker's file.
    #[must_use]
    pub fn key_of(&self, role: ClientRole, setting: &str) -> String {
        let (prefix, own) = self.own(role);
        if own.contains_key(setting) { format!("{prefix}.{setting}") } else { setting.to_owned() }
    }

    fn own(&self, role: ClientRole) -> (&'static str, &BTreeMap<String, Secret>) {
        match role {
            ClientRole::Producer => ("producer", &self.producer),
            ClientRole::Consumer => ("consumer", &self.consumer),
            ClientRole::Admin => ("admin", &self.admin),
        }
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

        let producer: BTreeMap<_, _> = kafka.layers(ClientRole::Producer).collect();
        let consumer: BTreeMap<_, _> = kafka.layers(ClientRole::Consumer).collect();

        assert_eq!(producer["security.protocol"].reveal(), "SASL_SSL");
        assert_eq!(consumer["security.protocol"].reveal(), "SSL");
        assert_eq!(kafka.key_of(ClientRole::Producer, "security.protocol"), "producer.security.protocol");
        assert_eq!(kafka.key_of(ClientRole::Consumer, "security.protocol"), "security.protocol");
    }
}
