//! A secret behind a reference, set as every key alone and in pairs of keys, is in nothing that configuration returns.
//!
//! A run tries every key and one of [`SHARES`] shares of the pairs, by day. `TRIBUTARY_TEST_CYCLES_REFERENCES` says how many shares, and
//! `TRIBUTARY_TEST_SEED` which comes first.

use std::{collections::BTreeMap, ffi::OsString, fmt::Write as _, path::Path};

use super::{
    Connector, Providers, Worker,
    connector::{Class, validate},
    key::ConfigKey,
    worker_keys,
};
use crate::cycles::{cycles, seed};

/// Long enough to be any secret of ours, and in parts of it a host, a number and a list.
const CANARY: &str = "canary-7f3a,canary-7f3a=1,https://canary-7f3a:443,canary-7f3a";
const SHORT: &str = "canary-7f3a";
const MARK: &str = "canary";

/// Ways to write a value around a reference, among them those that once came back in an answer.
fn values(directory: &Path) -> [String; 5] {
    let directory = directory.display();
    [
        "${env:LONG}".to_owned(),
        "${env:SHORT}".to_owned(),
        format!("${{dir:{directory}:secret}}=a,${{dir:{directory}:secret}}=b"),
        "${env:SHORT}.state".to_owned(),
        "https://user:${env:SHORT}@host".to_owned(),
    ]
}

fn environment() -> [(&'static str, &'static str); 2] {
    [("LONG", CANARY), ("SHORT", SHORT)]
}

pub(super) fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn sound(class: Class) -> BTreeMap<String, String> {
    let mut config = map(&[
        ("name", "one"),
        ("connector.class", class.name()),
        ("topic.prefix", "acme"),
        ("provider.base.url", "https://api.example.com"),
        ("provider.auth.url", "https://login.example.com"),
        ("provider.subscription.key", "0123456789abcdef"),
        ("oauth.client.id", "client"),
        ("oauth.client.secret", "0123456789abcdef"),
    ]);
    if class == Class::WebhookSource {
        config.extend(map(&[
            ("accounting.resources", "all"),
            ("accounting.secret", "0123456789abcdef"),
            ("invoicing.hooks", "all"),
            ("invoicing.secret", "0123456789abcdef0123456789abcdef"),
            ("invoicing.login.mail", "a@example.com"),
            ("invoicing.login.password", "0123456789abcdef"),
        ]));
    }
    config
}

/// Shares that the pairs are divided into.
const SHARES: u64 = 8;

/// Each key alone, and some pairs; the value rotates so that all kinds of neighbors meet.
fn combinations(keys: &[&ConfigKey]) -> Vec<Vec<(String, usize)>> {
    let seed = seed();
    let tried = u64::from(cycles("REFERENCES", 1));
    let mut pairs = seed..;
    let mut all = Vec::new();
    for (index, key) in keys.iter().enumerate() {
        for value in 0..5 {
            all.push(vec![(key.name.to_owned(), value)]);
        }
        for (offset, other) in keys[index + 1..].iter().enumerate() {
            if pairs.next().is_some_and(|pair| pair % SHARES >= tried) {
                continue;
            }
            // Half of the pairs have one value, as rules across keys compare them, half have two.
            let (value, step) = ((index + offset) % 5, (index + offset / 5) % 2);
            all.push(vec![(key.name.to_owned(), value), (other.name.to_owned(), (value + step) % 5)]);
        }
    }
    all
}

fn assert_hidden(shown: &str, combination: &[(String, usize)]) {
    assert!(!shown.contains(MARK), "{combination:?}: {shown}");
}

#[test]
fn no_reference_of_a_connector_comes_back() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("secret"), CANARY).unwrap();
    let values = values(directory.path());
    let open = Providers::new(environment().map(|(name, value)| (name.to_owned(), value.to_owned())));
    for class in Class::ALL {
        let base = sound(class);
        assert!(Connector::parse("one", &base, &open).is_ok(), "the base must be sound");
        let keys: Vec<&ConfigKey> = class.keys().filter(|key| key.name != "connector.class").collect();
        for combination in combinations(&keys) {
            let mut config = base.clone();
            config.extend(combination.iter().map(|(key, value)| (key.clone(), values[*value].clone())));
            let mut shown = serde_json::to_string(&validate(class.name(), &config, &open)).unwrap();
            match Connector::parse("one", &config, &open) {
                Ok((connector, warnings)) => write!(shown, "{connector:?} {warnings:?}").unwrap(),
                Err(problems) => write!(shown, "{problems} {problems:?}").unwrap(),
            }
            assert_hidden(&shown, &combination);
        }
    }
}

#[test]
fn no_reference_of_the_worker_comes_back() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("secret"), CANARY).unwrap();
    let values = values(directory.path());
    let file = directory.path().join("worker.properties");
    std::fs::write(&file, "").unwrap();
    let keys: Vec<&ConfigKey> = worker_keys::KEYS.iter().collect();
    let base = [
        ("CONNECT_BOOTSTRAP_SERVERS", "localhost:9092"),
        ("CONNECT_VALUE_CONVERTER_SCHEMA_REGISTRY_URL", "http://localhost:8081"),
    ];
    for combination in combinations(&keys) {
        let text: String =
            combination.iter().map(|(key, value)| format!("{key}={}\n", values[*value])).collect();
        std::fs::write(&file, text).unwrap();
        let variables = base.iter().copied().chain(environment());
        let variables = variables.filter(|(name, _)| {
            // The combination wins over the base.
            !combination
                .iter()
                .any(|(key, _)| format!("CONNECT_{}", key.to_uppercase().replace('.', "_")) == **name)
        });
        let variables = variables.map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let shown = match Worker::load(Some(&file), variables) {
            Ok(loaded) => format!("{:?} {:?}", loaded.config, loaded.warnings),
            Err(rejected) => format!("{rejected} {rejected:?}"),
        };
        assert_hidden(&shown, &combination);
    }
}
