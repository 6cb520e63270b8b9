//! Configurations for tests of the classes.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::config;

type Properties = BTreeMap<String, String>;

pub(crate) fn properties(pairs: &[(&str, &str)]) -> Properties {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// The configuration with these changes; an empty value removes the key.
pub(crate) fn changed(mut config: Properties, changes: &[(&str, &str)]) -> Properties {
    for (key, value) in changes {
        match *value {
            "" => config.remove(*key),
            value => config.insert((*key).to_owned(), value.to_owned()),
        };
    }
    config
}

pub(crate) fn object(members: &[(&str, Value)]) -> Map<String, Value> {
    members.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
}

pub(crate) fn webhook_config() -> Properties {
    let own = [
        ("connector.class", "WebhookSource"),
        ("accounting.resources", "customers"),
        ("accounting.secret", "0123456789abcdef0123456789abcdef"),
    ];
    provider().into_iter().chain(properties(&own)).collect()
}

pub(crate) fn record_config() -> Properties {
    provider().into_iter().chain(properties(&[("connector.class", "RecordSource")])).collect()
}

/// A worker without any settings of its own.
pub(crate) fn worker() -> config::Worker {
    let registry = ("CONNECT_VALUE_CONVERTER_SCHEMA_REGISTRY_URL".into(), "http://localhost:8081".into());
    config::Worker::load(None, [registry]).unwrap().config
}

fn provider() -> Properties {
    properties(&[
        ("topic.prefix", "acme"),
        ("provider.base.url", "https://api.example.com"),
        ("provider.auth.url", "https://login.example.com"),
        ("provider.subscription.key", "0123456789abcdef"),
        ("oauth.client.id", "client"),
        ("oauth.client.secret", "0123456789abcdef"),
    ])
}
