//! How to reach Kafka: addresses and the settings that pass through to librdkafka.

use std::collections::BTreeMap;

use base::secret::Secret;

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

    /// The user's settings for one client: what all clients share, then what is set for its kind, which wins.
    pub(super) fn layers(&self, client: &str) -> impl Iterator<Item = (&str, &Secret)> {
        self.common.iter().chain(self.own(client).1).map(|(key, value)| (key.as_str(), value))
    }

    /// The key of a client's setting in the worker's file. Errors name the client.
    #[must_use]
    pub fn key_of(&self, client: &str, setting: &str) -> String {
        let (prefix, own) = self.own(client);
        if own.contains_key(setting) { format!("{prefix}.{setting}") } else { setting.to_owned() }
    }

    fn own(&self, client: &str) -> (&'static str, &BTreeMap<String, Secret>) {
        match client {
            "consumer" => ("consumer", &self.consumer),
            "admin" => ("admin", &self.admin),
            // Transactional producers too.
            _ => ("producer", &self.producer),
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

        let producer: BTreeMap<_, _> = kafka.layers("producer").collect();
        let consumer: BTreeMap<_, _> = kafka.layers("consumer").collect();

        assert_eq!(producer["security.protocol"].reveal(), "SASL_SSL");
        assert_eq!(consumer["security.protocol"].reveal(), "SSL");
        assert_eq!(kafka.key_of("producer", "security.protocol"), "producer.security.protocol");
        assert_eq!(kafka.key_of("consumer", "security.protocol"), "security.protocol");
    }
}
