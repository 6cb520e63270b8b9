//! Kafka Connect's answers about configuration, in the JSON form of its REST API.
//!
//! kafka-ui, AKHQ and Console render forms from these. Every entry of a [`Validation`] has both a definition and a value: those
//! tools fail if one is missing, so an undeclared key gets a definition too.

use serde::Serialize;

use super::key::{ConfigKey, Fallback, Importance, Type, Width};

/// What a key is: one element of `GET /connector-plugins/{plugin}/config`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeyDef {
    /// Full name.
    pub name: String,
    /// Type of the value.
    #[serde(rename = "type")]
    pub kind: Type,
    /// Whether it must be set.
    pub required: bool,
    /// The default as text; null if the key is required or has no default.
    pub default_value: Option<&'static str>,
    /// How likely a user has to set it.
    pub importance: Importance,
    /// What it does.
    pub documentation: &'static str,
    /// Heading in a form.
    pub group: &'static str,
    /// Hint for forms.
    pub width: Width,
    /// Name in a form.
    pub display_name: String,
    /// Keys whose meaning depends on this one.
    pub dependents: &'static [&'static str],
    /// Position under its heading, from 1.
    pub order_in_group: u32,
    /// The same number, under the name AKHQ sorts by.
    pub order: u32,
}

/// What a user set a key to, and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct KeyValue {
    /// Full name.
    pub name: String,
    /// The value as submitted, or the default; `[hidden]` for secrets.
    pub value: Option<String>,
    /// The closed set of values, where there is one.
    pub recommended_values: &'static [&'static str],
    /// One sentence per error; empty if there are none.
    pub errors: Vec<String>,
    /// Whether a form should show it.
    pub visible: bool,
}

/// One key of a [`Validation`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ValidatedKey {
    /// What the key is.
    pub definition: KeyDef,
    /// What it is set to.
    pub value: KeyValue,
}

/// The answer of `PUT /connector-plugins/{plugin}/config/validate`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Validation {
    /// The class as submitted.
    pub name: String,
    /// Errors over all entries.
    pub error_count: usize,
    /// Headings in the order a form should show them.
    pub groups: Vec<&'static str>,
    /// Every key: the plugin's own first, then those all connectors have, then any other with an error.
    pub configs: Vec<ValidatedKey>,
}

impl KeyDef {
    /// The definition of a declared key at this position under its heading.
    #[must_use]
    pub fn new(key: &ConfigKey, order: u32) -> Self {
        Self {
            name: key.name.to_owned(),
            kind: key.kind,
            required: key.fallback == Fallback::Required,
            default_value: key.default_value(),
            importance: key.importance,
            documentation: key.documentation,
            group: key.group,
            width: key.width,
            display_name: key.display_name(),
            dependents: key.dependents,
            order_in_group: order,
            order,
        }
    }

    /// A definition for a key that is not declared, so that an error about it can be shown.
    #[must_use]
    pub fn undeclared(name: &str, order: u32) -> Self {
        const OTHER: ConfigKey = ConfigKey::new(Type::String, "")
            .documentation(" Not a key of this connector.")
            .low()
            .group("Others");
        let (name, display_name) = (name.to_owned(), name.to_owned());
        Self { name, display_name, width: Width::None, ..Self::new(&OTHER, order) }
    }
}

/// The definitions of these keys, numbered within their headings.
pub(crate) fn definitions<'a>(keys: impl Iterator<Item = &'a ConfigKey>) -> Vec<KeyDef> {
    let mut placed: Vec<KeyDef> = Vec::new();
    for key in keys {
        let before = placed.iter().filter(|definition| definition.group == key.group).count();
        placed.push(KeyDef::new(key, u32::try_from(before).unwrap_or(u32::MAX).saturating_add(1)));
    }
    placed
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: ConfigKey =
        ConfigKey::new(Type::String, "name").documentation(" Its name.").required().group("Common");
    const SECRET: ConfigKey =
        ConfigKey::new(Type::Password, "a.secret").documentation(" Hush.").group("Common");
    const SIZE: ConfigKey =
        ConfigKey::new(Type::Int, "page.size").documentation(" Rows.").or("100").group("Paging");

    #[test]
    fn definition_has_the_members_of_connect_and_akhq() {
        let json = serde_json::to_value(KeyDef::new(&SIZE, 3)).unwrap();

        let mut members: Vec<_> = json.as_object().unwrap().keys().map(String::as_str).collect();
        members.sort_unstable();
        let expected = "default_value dependents display_name documentation group importance name order \
                        order_in_group required type width";
        assert_eq!(members.join(" "), expected);
        assert_eq!((json["type"].as_str(), json["width"].as_str()), (Some("INT"), Some("SHORT")));
        assert_eq!(json["default_value"], "100");
        assert_eq!(json["order"], json["order_in_group"]);
    }

    #[test]
    fn only_some_optional_keys_have_a_default() {
        let [name, secret, size] = [NAME, SECRET, SIZE].map(|key| KeyDef::new(&key, 1));

        assert_eq!((name.required, name.default_value), (true, None));
        assert_eq!((secret.required, secret.default_value), (false, None));
        assert_eq!((size.required, size.default_value), (false, Some("100")));
    }

    #[test]
    fn positions_are_counted_within_a_heading() {
        let placed = definitions([NAME, SIZE, SECRET].iter());

        let places: Vec<_> =
            placed.iter().map(|definition| (definition.name.as_str(), definition.order)).collect();
        assert_eq!(places, [("name", 1), ("page.size", 1), ("a.secret", 2)]);
    }
}
