//! Imports go down only: who may name whom, held by reading the source.
//!
//! Every `crate::module` counts, in `use` lines and elsewhere, however it is written (`super::super`,
//! groups), and in tests too: a unit test that needs the layer above belongs into this binary. Comments and
//! text do not count. A module the table does not know is an error, so that a new one gets its place.

mod source;

use std::fs;
use std::path::{Path, PathBuf};

use source::{Mention, Source};

crate::tests! {
    plain imports_go_down_only;
    plain an_import_upwards_is_found_however_it_is_written;
    plain an_import_sideways_is_found_unless_the_table_allows_it;
    plain what_is_only_text_is_no_import;
    plain a_crate_outside_its_home_is_found;
    plain a_module_without_a_place_is_found;
}

/// This directory, for messages.
const HERE: &str = "tests/it/repository/layering";
/// A module may name those of lower levels, never one of its own.
const LEVELS: [(&str, u8); 30] = [
    ("main", 7),
    ("lib", 7),
    ("cli", 6),
    ("worker", 5),
    ("simulator", 5),
    ("webhooks", 4),
    ("enrich", 4),
    ("snapshot", 4),
    ("pipeline", 3),
    ("api", 2),
    ("auth", 2),
    ("avro", 2),
    ("fence", 2),
    ("kafka", 2),
    ("server", 2),
    ("spool", 2),
    ("telemetry", 2),
    ("circuit", 1),
    ("config", 1),
    ("store", 1),
    ("allocator", 0),
    ("cycles", 0),
    ("durable", 0),
    ("failpoint", 0),
    ("lapse", 0),
    ("metrics", 0),
    ("model", 0),
    ("random", 0),
    ("retry", 0),
    ("secret", 0),
];
/// Neighbours that may be named all the same: every API request needs a token, and fences are read back from Kafka.
const NEIGHBOURS: [(&str, &str); 2] = [("api", "auth"), ("fence", "kafka")];
/// Shares no code with the product, so that one misreading of the provider cannot hide in both.
const ALONE: &str = "simulator";
/// The one thing it may use: how bytes get in and out is no reading of the provider.
const LISTENER: &str = "server";
/// Crates with a home: who else would name them goes through that module.
const HOMES: [(&str, &[&str]); 4] = [
    ("fjall", &["store"]),
    ("rdkafka", &["kafka"]),
    ("rdkafka_sys", &["kafka"]),
    // In the Kafka module it fetches the token for SASL, in the simulator it delivers webhooks; the listener's tests need
    // a client.
    (
        "reqwest",
        &[
            "api",
            "auth",
            "avro",
            "cli/auth/button",
            "cli/client",
            "cli/connectors",
            "cli/demo",
            "cli/webhooks",
            "kafka/oauth",
            "server/tests",
            "simulator",
        ],
    ),
];
/// What makes a metric; only functions of `metrics/mod.rs` may.
const METRIC_MACROS: [&str; 6] =
    ["counter", "gauge", "histogram", "describe_counter", "describe_gauge", "describe_histogram"];

async fn imports_go_down_only() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = rust_files(&root);
    assert!(files.len() > 5, "only {} files under {}", files.len(), root.display());

    let mut faults = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).unwrap();
        let path = file.strip_prefix(&root).unwrap().to_string_lossy().replace('\\', "/");
        faults.extend(check(&path, &text));
    }

    assert!(faults.is_empty(), "\n{}", faults.join("\n"));
}

async fn an_import_upwards_is_found_however_it_is_written() {
    let breaches = [
        ("model/ids.rs", "use crate::config::Kafka;"),
        ("model/ids.rs", "use crate::{\n    model::Record,\n    kafka::{Client, Error},\n};"),
        ("model/ids.rs", "use super::super::kafka;"),
        ("model/ids.rs", "use super::{Record, super::kafka::Client};"),
        ("retry.rs", "use super::kafka;"),
        ("retry.rs", "fn wait() { let error = crate :: kafka :: Error; }"),
        ("retry.rs", "#[cfg(test)]\nmod tests {\n    use super::super::kafka;\n}"),
        ("kafka/mod.rs", "pub(crate) use crate::pipeline::Publisher;"),
        ("kafka/mod.rs", "use crate::r#pipeline;"),
        ("kafka/mod.rs", "fn all() { for name in crate::pipeline::names() {} }"),
        ("config/mod.rs", "type Text<'a> = &'a str; use crate::avro;"),
    ];

    for (path, text) in breaches {
        assert_eq!(check(path, text).len(), 1, "{path}: {text}");
    }
}

async fn an_import_sideways_is_found_unless_the_table_allows_it() {
    for (path, text) in [
        ("webhooks/receiver.rs", "use crate::enrich::Fetch;"),
        ("auth/token.rs", "use crate::api::Client;"),
        ("spool/mod.rs", "use crate::kafka::Client;"),
        ("model/record.rs", "use crate::retry::Retry;"),
        ("simulator/mod.rs", "use crate::model::ids;"),
        ("cli/mod.rs", "use crate::*;"),
        ("cli/mod.rs", "use crate::{model, *};"),
        ("worker/mod.rs", "use crate::simulator::Provider;"),
    ] {
        assert_eq!(check(path, text).len(), 1, "{path}: {text}");
    }
    for (path, text) in [
        ("api/mod.rs", "use crate::auth::Token;"),
        ("fence/mod.rs", "use crate::{kafka, store::Database};"),
        ("simulator/mod.rs", "use crate::simulator::clock;"),
        ("kafka/mod.rs", "use crate::{config::Kafka, kafka::client, metrics, model, retry::Retry};"),
        ("retry.rs", "mod tests {\n    use super::*;\n}"),
        ("kafka/client.rs", "use super::Error;"),
        ("cli/demo.rs", "use crate::simulator::Provider;"),
        ("main.rs", "use tributary::cli;"),
    ] {
        assert_eq!(check(path, text), Vec::<String>::new(), "{path}: {text}");
    }
}

async fn what_is_only_text_is_no_import() {
    let text = r##"
        //! See [`crate::worker`].
        /* use crate::worker; /* nested */ use crate::worker; */
        const ONE: &str = "use crate::worker; \" crate::worker";
        const TWO: &str = r#"crate::worker " rdkafka::Message"#;
        const THREE: (char, char, u8) = ('"', '\'', b'"');
        pub(in crate::model) fn four<'a>() {}
    "##;

    assert_eq!(check("model/ids.rs", text), Vec::<String>::new());
}

async fn a_crate_outside_its_home_is_found() {
    for (path, text) in [
        ("pipeline/publisher.rs", "use rdkafka::Message;"),
        ("spool/writer.rs", "use fjall::Database;"),
        ("worker/mod.rs", "fn send(client: &reqwest::Client) {}"),
        ("kafka/producer.rs", "use reqwest::Client;"),
        ("kafka/producer.rs", "metrics::counter!(\"a\").increment(1);"),
        ("kafka/producer.rs", "use metrics::{Unit, gauge};"),
    ] {
        assert_eq!(check(path, text).len(), 1, "{path}: {text}");
    }
    for (path, text) in [
        ("kafka/producer.rs", "use rdkafka::Message;"),
        ("kafka/oauth.rs", "use reqwest::Client;"),
        ("kafka/oauth/mod.rs", "use reqwest::Client;"),
        ("metrics/mod.rs", "use metrics::{Unit, counter, gauge};"),
        (
            "kafka/producer.rs",
            "use crate::metrics; fn sent() { metrics::record_published(); let counter = 1; }",
        ),
    ] {
        assert_eq!(check(path, text), Vec::<String>::new(), "{path}: {text}");
    }
}

async fn a_module_without_a_place_is_found() {
    assert_eq!(check("utils/mod.rs", "fn one() {}").len(), 1);
    assert_eq!(check("worker/mod.rs", "use crate::utils::one;").len(), 1);
}

/// What is wrong with the imports of one file; `path` is relative to `src`.
fn check(path: &str, text: &str) -> Vec<String> {
    let stem = path.trim_end_matches(".rs");
    let module = stem.split('/').next().unwrap_or(stem);
    let Some(level) = level(module) else {
        return vec![format!("src/{path}: module {module} has no level: give it one in {HERE}")];
    };
    let source = Source::read(stem, text);
    let mut faults = Vec::new();
    for Mention { line, name } in source.modules() {
        let allowed = match self::level(&name) {
            _ if name == module => true,
            None if name == "*" => {
                faults.push(format!("src/{path}:{line}: crate::* hides which modules are meant: name them"));
                continue;
            }
            None => {
                faults.push(format!("src/{path}:{line}: crate::{name} has no level: give it one in {HERE}"));
                continue;
            }
            Some(_) if module == ALONE => name == LISTENER,
            Some(other) => other < level || NEIGHBOURS.contains(&(module, name.as_str())),
        };
        if !allowed {
            faults.push(format!(
                "src/{path}:{line}: {module} must not name crate::{name}: imports go down only"
            ));
        }
    }
    for (package, homes) in HOMES {
        let at_home = homes.iter().any(|home| stem == *home || stem.starts_with(&format!("{home}/")));
        for line in source.lines_naming(package).filter(|_| !at_home) {
            faults.push(format!("src/{path}:{line}: {package} may be named in {} only", homes.join(", ")));
        }
    }
    if module != "metrics" {
        for line in source.lines_naming_any_of("metrics", &METRIC_MACROS) {
            faults.push(format!(
                "src/{path}:{line}: a metric is made here: add a function to src/metrics/mod.rs"
            ));
        }
    }
    faults
}

fn level(module: &str) -> Option<u8> {
    LEVELS.iter().find(|(name, _)| *name == module).map(|(_, level)| *level)
}

fn rust_files(directory: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files
}
