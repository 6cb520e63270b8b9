//! Kafka Connect's validation answer: every key with its value and errors.

use std::collections::BTreeMap;

use base::secret::HIDDEN;

use super::{Class, Connector, Problems, Providers, keys, unknown_class};
use crate::config::{
    definition::{self, KeyDef, KeyValue, ValidatedKey, Validation},
    key::{ConfigKey, Type},
    problem::Problem,
    reader::shown,
};

/// The definitions of a class's keys, as `GET /connector-plugins/{plugin}/config` answers them.
#[must_use]
pub fn definitions(class: Class) -> Vec<KeyDef> {
    definition::definitions(class.keys())
}

/// The answer to a validation request for the plugin `class`. Any input gets one.
#[must_use]
pub fn validate(class: &str, config: &BTreeMap<String, String>, providers: &Providers) -> Validation {
    let known = Class::parse(class);
    let mut config = config.clone();
    let submitted =
        config.entry(keys::CONNECTOR_CLASS.name.to_owned()).or_insert_with(|| class.to_owned()).clone();
    let problems = problems(known, class, &config, providers);
    let declared: Vec<&ConfigKey> =
        known.map_or_else(|| keys::KEYS.iter().collect(), |class| class.keys().collect());
    answer(submitted, &declared, &config, &problems)
}

/// The answer for a configuration whose class declares these keys and that has these problems.
pub(crate) fn answer(
    submitted: String,
    declared: &[&ConfigKey],
    config: &BTreeMap<String, String>,
    problems: &Problems,
) -> Validation {
    let entry = |definition: KeyDef, value, recommended_values| {
        let name = definition.name.clone();
        let errors = errors(problems, &name);
        ValidatedKey {
            definition,
            value: KeyValue { name, value, recommended_values, errors, visible: true },
        }
    };
    let definitions = definition::definitions(declared.iter().copied());
    let mut configs: Vec<ValidatedKey> = definitions
        .into_iter()
        .zip(declared)
        .map(|(definition, key)| {
            let value = value(key, config.get(key.name));
            entry(definition, value, key.recommended_values())
        })
        .collect();
    // An error about an undeclared key needs an entry to appear in.
    for problem in problems.iter() {
        if configs.iter().any(|entry| entry.definition.name == problem.key) {
            continue;
        }
        let place = u32::try_from(configs.len() - declared.len() + 1).unwrap_or(u32::MAX);
        // It may be a misspelled secret.
        let value = config.contains_key(&problem.key).then(|| HIDDEN.to_owned());
        configs.push(entry(KeyDef::undeclared(&problem.key, place), value, &[]));
    }
    let mut groups = Vec::new();
    for entry in &configs {
        if !groups.contains(&entry.definition.group) {
            groups.push(entry.definition.group);
        }
    }
    let error_count = configs.iter().map(|entry| entry.value.errors.len()).sum();
    Validation { name: submitted, error_count, groups, configs }
}

fn problems(
    known: Option<Class>,
    class: &str,
    config: &BTreeMap<String, String>,
    providers: &Providers,
) -> Problems {
    let named = config.get(keys::CONNECTOR_CLASS.name).map_or("", String::as_str);
    if known.is_none() {
        return unknown_class(class);
    }
    if Class::parse(named) != known {
        let rule = format!("does not match the plugin {class}");
        return Problem::new(keys::CONNECTOR_CLASS.name, rule, "name one class in both places").into();
    }
    Connector::parse("", config, providers).err().unwrap_or_default()
}

/// The value to show: as submitted, or the default. A password is hidden, even if it is a reference.
fn value(key: &ConfigKey, submitted: Option<&String>) -> Option<String> {
    match submitted {
        Some(_) if key.kind == Type::Password => Some(HIDDEN.to_owned()),
        Some(text) => Some(shown(key.kind, text)),
        None => key.default_value().map(str::to_owned),
    }
}

fn errors(problems: &Problems, name: &str) -> Vec<String> {
    let about = problems.iter().filter(|problem| problem.key == name);
    about.map(|problem| format!("{} {}; {}", problem.key, problem.rule, problem.remedy)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::samples::properties;

    fn answer_to(class: &str, pairs: &[(&str, &str)]) -> Validation {
        validate(class, &properties(pairs), &Providers::new([]))
    }

    fn errors_of<'a>(answer: &'a Validation, key: &str) -> &'a [String] {
        &answer.configs.iter().find(|entry| entry.definition.name == key).unwrap().value.errors
    }

    #[test]
    fn answer_to_the_probe_of_akhq_has_complete_entries() {
        for class in Class::ALL {
            let answer = answer_to(class.name(), &[("connector.class", class.name()), ("topics", "none")]);

            assert_eq!(answer.name, class.name());
            assert!(!errors_of(&answer, "name").is_empty() && !errors_of(&answer, "topic.prefix").is_empty());
            let json = serde_json::to_value(&answer).unwrap();
            for entry in json["configs"].as_array().unwrap() {
                assert!(entry["definition"].is_object() && entry["value"].is_object(), "{entry}");
                assert!(entry["definition"]["group"].is_string(), "{entry}");
            }
        }
    }

    #[test]
    fn any_class_and_any_map_get_an_answer() {
        for class in ["", "Nope", "WebhookSource", "RecordSourceConnector"] {
            for pairs in
                [&[][..], &[("connector.class", "Other")], &[("", ""), ("x", "${"), ("tasks.max", "${a:b}")]]
            {
                let answer = answer_to(class, pairs);

                assert!(answer.error_count > 0, "{class} {pairs:?}");
            }
        }
    }

    #[test]
    fn a_password_is_hidden_and_a_misspelt_one_too() {
        let answer = answer_to(
            "WebhookSource",
            &[
                ("accounting.secret", "hunter2"),
                ("acounting.secret", "hunter2"),
                ("invoicing.egress.proxy", "http://user:hunter2@proxy"),
            ],
        );

        let json = serde_json::to_string(&answer).unwrap();
        assert!(!json.contains("hunter2"), "{json}");
        assert!(json.contains("[hidden]") && json.contains("did you mean accounting.secret?"));
    }

    #[test]
    fn a_password_is_hidden_even_where_it_is_a_reference() {
        let answer = answer_to("WebhookSource", &[("accounting.secret", "${env:NOT_SET}")]);

        let entry = answer.configs.iter().find(|entry| entry.definition.name == "accounting.secret").unwrap();
        assert_eq!(entry.value.value.as_deref(), Some(HIDDEN));
        assert!(entry.value.errors[0].contains("NOT_SET is not set"), "{:?}", entry.value.errors);
    }

    #[test]
    fn the_error_count_is_the_sum_over_all_entries() {
        let answer = answer_to("RecordSource", &[("tasks.max", "zero"), ("page.sise", "1")]);

        let sum: usize = answer.configs.iter().map(|entry| entry.value.errors.len()).sum();
        assert_eq!(answer.error_count, sum);
        assert!(errors_of(&answer, "tasks.max")[0].starts_with("tasks.max must be"));
        assert_eq!(errors_of(&answer, "page.sise").len(), 1);
        assert_eq!(answer.groups.last().copied(), Some("Others"));
    }
}
