//! Nothing that configuration returns contains a secret behind a reference, whichever key or pair of keys refers to it.
//!
//! A run tries every key, and one of [`SHARES`] shares of the pairs, which changes daily. `TRIBUTARY_TEST_CYCLES_REFERENCES` sets the
//! number of shares, and `TRIBUTARY_TEST_SEED` the first one.

use std::{collections::BTreeMap, ffi::OsString, fmt::Write as _, path::Path};

use super::{
    Connector, Providers, Worker,
    connector::{Class, validate},
    key::ConfigKey,
    samples::{changed, record_config, webhook_config},
    worker_keys,
};
use crate::cycles::{cycles, seed};

/// Long enough for any secret, and shaped like a list of hosts, pairs and addresses.
const CANARY: &str = "canary-7f3a,canary-7f3a=1,https://canary-7f3a:443,canary-7f3a";
const SHORT: &str = "canary-7f3a";
const MARK: &str = "canary";

/// Values with references, including forms that an answer once revealed.
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

fn sound(class: Class) -> BTreeMap<String, String> {
    let name = ("name", "one");
    match class {
        Class::RecordSource => changed(record_config(), &[name]),
        Class::WebhookSource => changed(
            webhook_config(),
            &[
                name,
                ("accounting.resources", "all"),
                ("invoicing.hooks", "all"),
                ("invoicing.secret", "0123456789abcdef0123456789abcdef"),
                ("invoicing.login.mail", "a@example.com"),
                ("invoicing.login.password", "0123456789abcdef"),
            ],
        ),
    }
}

/// Number of shares that the pairs are divided into.
const SHARES: u64 = 8;

/// Each key alone with every value, and one share of the pairs, whose values rotate.
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
            // Half of the pairs have equal values, because rules across keys compare them; half have two.
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
        assert!(Connector::parse("one", &base, &open).is_ok(), "the base must be valid");
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
            // Keys of the combination replace those of the base.
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
