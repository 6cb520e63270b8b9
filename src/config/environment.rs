//! Worker properties from the environment, named as in the Kafka Connect images.

use std::ffi::OsString;

use super::problem::{Problems, Warning};

/// Prefix of every such variable.
const PREFIX: &str = "CONNECT_";

/// The variables whose value is UTF-8. A `CONNECT_*` variable that is not is a problem, reported without its value; others are
/// ignored.
pub(crate) fn readable(
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    problems: &mut Problems,
) -> Vec<(String, String)> {
    let mut readable = Vec::new();
    for (name, value) in environment {
        let Ok(name) = name.into_string() else { continue };
        match value.into_string() {
            Ok(value) => readable.push((name, value)),
            Err(_) if name.starts_with(PREFIX) => {
                problems.add(name, "must be UTF-8 text", "correct or unset the variable");
            }
            Err(_) => {}
        }
    }
    readable
}

/// The properties that `CONNECT_*` variables set: in lower case, `_` becomes a dot, `__` an underscore, `___` a dash. An empty
/// variable sets nothing: images and compose files pass on variables that are not set.
pub(crate) fn overrides(
    environment: &[(String, String)],
    warnings: &mut Vec<Warning>,
) -> Vec<(String, String)> {
    let mut overrides = Vec::new();
    for (variable, value) in environment {
        let Some(name) = variable.strip_prefix(PREFIX).filter(|name| !name.is_empty()) else { continue };
        if value.trim().is_empty() {
            let message = "is empty and was ignored; unset it, or give it a value".to_owned();
            warnings.push(Warning { key: variable.clone(), message });
        } else {
            overrides.push((property(name), value.clone()));
        }
    }
    overrides
}

fn property(name: &str) -> String {
    // Longest first, so that three underscores are not read as two and one.
    name.to_lowercase().replace("___", "-").replace("__", "\0").replace('_', ".").replace('\0', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_become_properties_as_in_the_connect_images() {
        let table = [
            ("CONNECT_BOOTSTRAP_SERVERS", Some("bootstrap.servers")),
            ("CONNECT_GROUP_ID", Some("group.id")),
            ("CONNECT_CONFIG_PROVIDERS_MY__ENV_CLASS", Some("config.providers.my_env.class")),
            ("CONNECT_CONFIG_PROVIDERS_MY___ENV_CLASS", Some("config.providers.my-env.class")),
            ("CONNECT_", None),
            ("CONNECTOR", None),
            ("PATH", None),
        ];

        for (variable, expected) in table {
            let environment = [(variable.to_owned(), "x".to_owned())];
            let properties = overrides(&environment, &mut Vec::new());
            assert_eq!(properties.first().map(|(name, _)| name.as_str()), expected, "{variable}");
        }
    }
}
