//! Bootstrap servers and the settings that are passed to librdkafka.

use std::collections::BTreeMap;

use base::secret::Secret;

/// The Kafka section of the worker's configuration.
///
/// All values are held as secrets, because some are passwords.
#[derive(Debug, Clone, Default)]
pub struct Kafka {
    /// `host:port`, comma-separated; at least one.
    pub bootstrap_servers: String,
    /// Security and connection settings that every client shares (`security.protocol`, `sasl.*`, `ssl.*` …).
    pub common: BTreeMap<String, Secret>,
    /// Settings with the prefix `producer.`, without it.
    pub producer: BTreeMap<String, Secret>,
    /// Settings with the prefix `consumer.`, without it.
    pub consumer: BTreeMap<String, Secret>,
    /// Settings with the prefix `admin.`, without it.
    pub admin: BTreeMap<String, Secret>,
}

impl Kafka {
    /// A cluster that needs no credentials.
    pub fn plaintext(bootstrap_servers: impl Into<String>) -> Self {
        Self { bootstrap_servers: bootstrap_servers.into(), ..Self::default() }
    }

    /// The user's settings for one client: shared ones first, then those of its kind, which win.
    pub(super) fn layers(&self, client: &str) -> impl Iterator<Item = (&str, &Secret)> {
        self.common.iter().chain(self.own(client).1).map(|(key, value)| (key.as_str(), value))
    }

    /// The key of a client's setting in the worker's file, for errors, which name the client.
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
    fn client_settings_override_common_ones() {
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
