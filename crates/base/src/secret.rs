//! A value that cannot be printed: `Debug` shows `[hidden]`, there is no `Display` and no `Serialize`, and the memory is wiped
//! on drop. [`Secret::reveal`] returns the value; reviews search for its calls.

use std::fmt;

use secrecy::{ExposeSecret, SecretString};

/// Shown instead of a secret, as in Kafka Connect.
pub const HIDDEN: &str = "[hidden]";

/// A password, key or token. See the module's head.
#[derive(Clone)]
pub struct Secret(SecretString);

impl Secret {
    /// Wraps a value. Does not wipe other copies.
    pub fn new(value: impl Into<String>) -> Self {
        Self(SecretString::from(value.into()))
    }

    /// The value itself.
    #[must_use]
    pub fn reveal(&self) -> &str {
        self.0.expose_secret()
    }

    /// Whether the value is empty, which is a configuration error.
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
    fn debug_output_hides_the_secret() {
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
}
