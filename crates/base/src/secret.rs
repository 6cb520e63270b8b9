//! A value that cannot be printed: `Debug` shows `[hidden]`, there is no `Display` and no `Serialize`, and the memory is
//! wiped on drop. Reading it takes the deliberate word [`Secret::reveal`], which is what a review looks for.

use std::fmt;

use secrecy::{ExposeSecret, SecretString};

/// What stands wherever a secret would be shown, as Kafka Connect shows it.
pub const HIDDEN: &str = "[hidden]";

/// A password, key or token. See the module's head.
#[derive(Clone)]
pub struct Secret(SecretString);

impl Secret {
    /// Wraps a value; the caller's own copy is the caller's to forget.
    pub fn new(value: impl Into<String>) -> Self {
        Self(SecretString::from(value.into()))
    }

    /// The value itself, for the one place that needs it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        self.0.expose_secret()
    }

    /// Whether there is nothing to hide: an empty password is a configuration mistake, not a secret.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.reveal().is_empty()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl From<String> for Secret {
    fn from(value: String) -> Self {
        Self::new(value)
    }
}

impl From<&str> for Secret {
    fn from(value: &str) -> Self {
        Self::new(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_inside_any_debug_output_stays_hidden() {
        #[derive(Debug)]
        #[allow(dead_code, reason = "only its Debug output matters")]
        struct Login {
            user: &'static str,
            password: Secret,
        }
        let login = Login { user: "reader", password: Secret::new("hunter2") };

        let shown = format!("{login:?} {login:#?} {:?}", Some(&login.password));

        assert!(!shown.contains("hunter2"), "{shown}");
        assert!(shown.contains("reader") && shown.contains(HIDDEN), "{shown}");
    }

    #[test]
    fn the_value_is_there_for_whoever_asks_by_name() {
        assert_eq!(Secret::from("hunter2").reveal(), "hunter2");
    }
}
