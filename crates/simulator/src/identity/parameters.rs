//! Parameters of a query or form by the rules of OAuth 2.0: one without a value counts as missing, and none may be repeated.

use url::form_urlencoded;

/// More parameters are ignored; no request needs as many.
const MAX_PARAMETERS: usize = 64;

/// Names and values in their order.
#[derive(Debug, Default)]
pub(super) struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// Parses `application/x-www-form-urlencoded`. Invalid UTF-8 becomes replacement characters, which match nothing that was
    /// issued.
    pub(super) fn parse(text: &[u8]) -> Self {
        Self(
            form_urlencoded::parse(text)
                .take(MAX_PARAMETERS)
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        )
    }

    /// The value of a parameter, if it has one.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(sent, value)| sent == name && !value.is_empty()).map(|(_, value)| value.as_str())
    }

    pub(super) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Whether the parameter was sent, with or without a value.
    pub(super) fn contains(&self, name: &str) -> bool {
        self.0.iter().any(|(sent, _)| sent == name)
    }

    /// Whether one of these parameters (separated by spaces) was sent more than once.
    pub(super) fn repeats(&self, names: &str) -> bool {
        names.split(' ').any(|name| self.0.iter().filter(|(sent, _)| sent == name).count() > 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_without_a_value_counts_as_not_sent() {
        let parameters = Parameters::parse(b"a=&b=1+2%203&c&b=4");

        assert_eq!(parameters.get("a"), None);
        assert_eq!(parameters.get("b"), Some("1 2 3"));
        assert!(parameters.contains("c") && !parameters.contains("d"));
        assert!(parameters.repeats("a b") && !parameters.repeats("a c"));
    }
}
