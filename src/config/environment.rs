//! Worker properties from the environment, spelt as the Connect images spell them.

/// What every such variable begins with.
const PREFIX: &str = "CONNECT_";

/// The properties that `CONNECT_*` variables set: lower case, `_` is a dot, `__` an underscore, `___` a dash.
pub(crate) fn overrides(environment: &[(String, String)]) -> impl Iterator<Item = (String, String)> {
    let ours = environment.iter().filter_map(|(name, value)| Some((name.strip_prefix(PREFIX)?, value)));
    ours.filter(|(name, _)| !name.is_empty()).map(|(name, value)| (property(name), value.clone()))
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
            let properties: Vec<_> = overrides(&environment).map(|(name, _)| name).collect();
            assert_eq!(properties.first().map(String::as_str), expected, "{variable}");
        }
    }
}
