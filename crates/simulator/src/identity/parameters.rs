//! Parameters of a query or a form, read as OAuth 2.0 reads them: one without a value counts as not sent, and none may be
//! sent twice.

use url::form_urlencoded;

/// More than any request needs; what comes after is not read.
const MAX_PARAMETERS: usize = 64;

/// Names and values in the order they were sent.
#[derive(Debug, Default)]
pub(super) struct Parameters(Vec<(String, String)>);

impl Parameters {
    /// Reads `application/x-www-form-urlencoded`. Bytes that are no UTF-8 become replacement characters, which fit
    /// nothing that was ever issued.
    pub(super) fn parse(text: &[u8]) -> Self {
        Self(
            form_urlencoded::parse(text)
                .take(MAX_PARAMETERS)
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
        )
    }

    /// The value of a parameter that was sent with one.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(sent, value)| sent == name && !value.is_empty()).map(|(_, value)| value.as_str())
    }

    pub(super) fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Whether the name was sent, with or without a value.
    pub(super) fn contains(&self, name: &str) -> bool {
        self.0.iter().any(|(sent, _)| sent == name)
    }

    /// The first of these names that was sent more than once.
    pub(super) fn repeated<'a>(&self, names: &[&'a str]) -> Option<&'a str> {
        let times = |name: &str| self.0.iter().filter(|(sent, _)| sent == name).count();
        names.iter().copied().find(|name| times(name) > 1)
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
        assert_eq!(parameters.repeated(&["a", "b"]), Some("b"));
    }
}
