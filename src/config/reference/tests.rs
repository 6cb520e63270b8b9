use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use model::List;

use super::*;
use crate::config::{
    Connector, Problems, Providers, Worker,
    connector::{Class, ConnectorDocument},
    definition,
};

fn shipped(file: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config").join(file)
}

/// The variables that the examples refer to.
fn environment() -> Vec<(String, String)> {
    let text = "${env:";
    let files = ["worker.properties", "connectors/webhooks.json", "connectors/records.json"];
    let mut variables = Vec::new();
    for file in files {
        let content = std::fs::read_to_string(shipped(file)).unwrap();
        for reference in content.split(text).skip(1) {
            let name = reference.split('}').next().unwrap().to_owned();
            variables.push((name, "a-secret-of-more-than-thirty-two-bytes".to_owned()));
        }
    }
    variables
}

fn every_section() -> [&'static [ConfigKey]; 4] {
    [worker_keys::KEYS, connector::keys::KEYS, webhook::keys::KEYS, record::keys::KEYS]
}

#[test]
fn the_shipped_worker_properties_load_without_a_warning() {
    let environment = environment().into_iter().map(|(name, value)| (name.into(), value.into()));

    let loaded = Worker::load(Some(&shipped("worker.properties")), environment);

    let loaded = loaded.map_err(|rejected| rejected.to_string()).unwrap();
    assert_eq!(loaded.warnings, []);
}

#[test]
fn the_shipped_connectors_parse_with_the_shipped_worker() {
    let environment = environment().into_iter().map(|(name, value)| (name.into(), value.into()));
    let worker = Worker::load(Some(&shipped("worker.properties")), environment).unwrap().config;
    for (file, class) in
        [("connectors/webhooks.json", Class::WebhookSource), ("connectors/records.json", Class::RecordSource)]
    {
        let (document, repeated) = ConnectorDocument::load(&shipped(file)).unwrap();

        let parsed = Connector::parse(&document.name, &document.config, &worker.providers);

        let (connector, warnings) = parsed.map_err(|problems| format!("{file}: {problems}")).unwrap();
        assert_eq!(connector.class(), class);
        assert_covers_every_area(&connector);
        assert_eq!((repeated, warnings), (vec![], vec![]), "{file}");
    }
}

/// The files that containers mount, in a directory of the test; every secret is long enough.
struct Mounted(tempfile::TempDir);

impl Mounted {
    const PLACES: [&str; 3] = ["/etc/tributary", "/run/tributary", "/var/lib/tributary"];

    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for part in ["", "secrets", "worker-secrets", "tls", "rest-tls", "connectors"] {
            let part = directory.path().join(part);
            std::fs::create_dir_all(&part).unwrap();
            for file in ["tls.crt", "tls.key", "provider.crt"] {
                std::fs::write(part.join(file), "a certificate is only parsed when it is served").unwrap();
            }
        }
        Self(directory)
    }

    /// The text with paths moved to this directory; creates the files that it refers to.
    fn moved(&self, text: &str) -> String {
        let here = self.0.path().to_str().unwrap();
        let text = Self::PLACES.iter().fold(text.to_owned(), |text, place| text.replace(place, here));
        for reference in text.split("${dir:").skip(1) {
            let (directory, file) = reference.split('}').next().unwrap().rsplit_once(':').unwrap();
            std::fs::write(Path::new(directory).join(file), "a-secret-of-more-than-thirty-two-bytes")
                .unwrap();
        }
        text
    }

    fn file(&self, from: &str) -> std::path::PathBuf {
        let path = self.0.path().join(Path::new(from).file_name().unwrap());
        std::fs::write(&path, self.moved(&std::fs::read_to_string(shipped(from)).unwrap())).unwrap();
        path
    }
}

#[test]
fn container_configurations_load_without_a_warning() {
    let mounted = Mounted::new();
    let compose = std::fs::read_to_string(shipped("../docker-compose.yml")).unwrap();
    // The lines with the worker's environment, as the container gets them.
    let variables: Vec<(String, String)> = compose
        .lines()
        .filter_map(|line| line.trim().split_once(": "))
        .filter(|(name, _)| {
            ["CONNECT_", "PROVIDER_", "OAUTH_", "INVOICING_"].iter().any(|start| name.starts_with(start))
        })
        .map(|(name, value)| (name.to_owned(), mounted.moved(&value.replace("$$", "$").replace('"', ""))))
        .collect();
    assert!(variables.len() > 15, "{variables:?}");
    let properties = mounted.file("kubernetes/worker.properties");
    // statefulset.yaml sets a different one for each pod.
    let advertised =
        ("CONNECT_REST_ADVERTISED_HOST_NAME".to_owned(), "tributary-0.tributary-workers".to_owned());

    for (packaged, file, environment) in
        [("compose", None, variables), ("kubernetes", Some(properties.as_path()), vec![advertised])]
    {
        let environment = environment.into_iter().map(|(name, value)| (name.into(), value.into()));
        let loaded = Worker::load(file, environment);
        let loaded = loaded.map_err(|rejected| format!("{packaged}: {rejected}")).unwrap();
        assert_eq!(loaded.warnings, [], "{packaged}");
        for name in ["webhooks", "records"] {
            let path = mounted.file(&format!("{packaged}/connectors/{name}.json"));
            let (document, repeated) = ConnectorDocument::load(&path).unwrap();
            let parsed = Connector::parse(&document.name, &document.config, &loaded.config.providers);
            let (connector, warnings) = parsed.map_err(|problems| format!("{packaged}: {problems}")).unwrap();
            assert_eq!((repeated, warnings), (vec![], vec![]), "{packaged}");
            assert_eq!(connector.common().name, name);
            assert_covers_every_area(&connector);
        }
    }
}

/// Shipped connectors also read payroll and receive invoicing.
fn assert_covers_every_area(connector: &Connector) {
    match connector {
        Connector::RecordSource(source) => assert_eq!(source.snapshot.lists, BTreeSet::from(List::ALL)),
        Connector::WebhookSource(source) => {
            assert!(source.accounting.is_some() && source.invoicing.is_some())
        }
    }
}

#[test]
fn compose_logs_in_for_every_area() {
    let compose = std::fs::read_to_string(shipped("../docker-compose.yml")).unwrap();

    for command in ["[auth, login, accounting, ", "[auth, login, payroll, "] {
        assert!(
            compose.contains(&format!("command: {command}--connector, records, --simulated]")),
            "{command}"
        );
    }
    let webhooks = std::fs::read_to_string(shipped("compose/connectors/webhooks.json")).unwrap();
    assert!(
        webhooks.contains("\"ana@example.com\"")
            && compose.contains("INVOICING_PASSWORD: simulated-password")
    );
}

#[test]
fn declarations_are_complete_and_defaults_are_valid() {
    for key in every_section().into_iter().flatten() {
        assert!(!key.documentation.is_empty() && !key.group.is_empty(), "{}", key.name);
        assert!(key.documentation.ends_with('.'), "{}: a sentence ends with a full stop", key.name);
        if let Some(default) = key.default_value() {
            assert_eq!(key.check(default), Ok(()), "{} = {default}", key.name);
        }
        for dependent in key.dependents {
            let known = every_section().into_iter().flatten().any(|other| other.name == *dependent);
            assert!(known, "{} names the unknown dependent {dependent}", key.name);
        }
    }
}

#[test]
fn no_key_is_declared_twice() {
    for class in Class::ALL {
        let names: BTreeSet<_> = class.keys().map(|key| key.name).collect();
        assert_eq!(names.len(), class.keys().count(), "{}", class.name());
        assert_eq!(definition::definitions(class.keys()).len(), names.len());
    }
    let worker: BTreeSet<_> = worker_keys::KEYS.iter().map(|key| key.name).collect();
    assert_eq!(worker.len(), worker_keys::KEYS.len());
}

#[test]
fn every_declared_key_is_read_by_the_place_it_is_declared_for() {
    let unresolvable = |name: &str| (name.to_owned(), "${env:NOT_SET}".to_owned());
    let assert_read = |problems: Option<Problems>, name: &str| {
        let problems = problems.unwrap_or_default();
        assert!(problems.iter().any(|problem| problem.key == name), "{name} is not read: {problems}");
    };

    for key in worker_keys::KEYS {
        let variable = format!("CONNECT_{}", key.name.replace('.', "_").to_uppercase());
        let loaded = Worker::load(None, [(variable.into(), unresolvable(key.name).1.into())]);
        assert_read(loaded.err().map(|rejected| rejected.problems), key.name);
    }
    for class in Class::ALL {
        for key in class.keys() {
            let named = ("connector.class".to_owned(), class.name().to_owned());
            let config = BTreeMap::from([named, unresolvable(key.name)]);
            assert_read(Connector::parse("a", &config, &Providers::new([])).err(), key.name);
        }
    }
}
