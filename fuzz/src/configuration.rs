//! Configurations: the properties of a worker, or the JSON of a connector.

use std::{ffi::OsString, io::Write as _, sync::LazyLock};

use serde_json::Value;
use tributary::config::connector::{Class, ConnectorDocument};
use tributary::config::{Connector, Problems, Providers, Worker, validate};

/// Environment variable that the seeds refer to.
const VARIABLE: &str = "FUZZ_CANARY";
/// Its value, which no message may contain.
const CANARY: &str = "canary-7f3a91d0c4e85b26a1d94c07e2b85f13";
/// Last in every worker's file, where the last value counts: references reach the canary and never a file of this machine.
const ONLY_THE_ENVIRONMENT: &str = "\n\nconfig.providers=env\nconfig.providers.env.class=EnvVarConfigProvider\n\
                                    config.providers.env.param.allowlist.pattern=FUZZ_CANARY\n";

/// Providers of a worker whose connectors may refer to the canary and to nothing else.
static PROVIDERS: LazyLock<Providers> = LazyLock::new(|| {
    let settings = [
        ("CONNECT_VALUE_CONVERTER_SCHEMA_REGISTRY_URL", "http://localhost:8081"),
        ("CONNECT_CONFIG_PROVIDERS", "env"),
        ("CONNECT_CONFIG_PROVIDERS_ENV_PARAM_ALLOWLIST_PATTERN", VARIABLE),
        (VARIABLE, CANARY),
    ];
    let settings = settings.map(|(name, value)| (OsString::from(name), OsString::from(value)));
    Worker::load(None, settings).expect("a worker's settings").config.providers
});

/// A connector's JSON if it begins with a brace, else a worker's properties. Returns whether it was accepted.
///
/// # Panics
/// A check of the configuration contradicts itself, or a message shows the value behind a reference.
pub fn configuration(input: &[u8]) -> bool {
    // Messages may repeat the input, so a canary in there would prove nothing.
    if input.windows(CANARY.len()).any(|part| part == CANARY.as_bytes()) {
        return false;
    }
    match input.trim_ascii_start().first() {
        Some(b'{') => connector(input),
        _ => worker(input),
    }
}

fn worker(properties: &[u8]) -> bool {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(properties).expect("written");
    file.write_all(ONLY_THE_ENVIRONMENT.as_bytes()).expect("written");

    match Worker::load(Some(file.path()), [(VARIABLE.into(), CANARY.into())]) {
        Ok(loaded) => {
            loaded.warnings.iter().for_each(|warning| hides(&warning.to_string()));
            true
        }
        Err(rejected) => refused(&rejected.problems),
    }
}

fn connector(json: &[u8]) -> bool {
    let Ok(value) = serde_json::from_slice::<Value>(json) else { return false };
    let document = match ConnectorDocument::from_json(value, "fuzzed") {
        Ok(document) => document.named(),
        Err(problems) => return refused(&problems),
    };
    assert!(!document.name.is_empty());
    assert_eq!(document.hash(), document.clone().named().hash());

    let answers = Class::ALL.map(|class| validate(class.name(), &document.config, &PROVIDERS));
    for answer in &answers {
        let errors = answer.configs.iter().map(|entry| entry.value.errors.len()).sum::<usize>();
        assert_eq!(answer.error_count, errors);
        hides(&serde_json::to_string(answer).expect("an answer"));
    }
    let sound = answers.iter().any(|answer| answer.error_count == 0);
    // Validation takes the class from its address where the configuration names none.
    let is_named = document.config.contains_key("connector.class");
    match Connector::parse("", &document.config, &PROVIDERS) {
        Ok((connector, warnings)) => {
            assert!(sound, "accepted, but validation names a problem");
            hides(&format!("{connector:?}"));
            warnings.iter().for_each(|warning| hides(&warning.to_string()));
            true
        }
        Err(problems) => {
            assert!(!sound || !is_named, "refused, but validation names no problem");
            refused(&problems)
        }
    }
}

/// Always false, for an input that was not accepted.
fn refused(problems: &Problems) -> bool {
    assert!(!problems.is_empty(), "refused without a problem");
    hides(&problems.to_string());
    false
}

fn hides(message: &str) {
    assert!(!message.contains(CANARY), "a message shows the value behind a reference");
}
