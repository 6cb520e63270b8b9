//! The provider's ids: opaque text.
//!
//! Correlation ids are not always GUIDs (`<prefix>:<number>:CM:<guid>` has been seen), so nothing is assumed about them except
//! that they are not empty. One type per kind of id prevents mix-ups.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, de};

use super::Error;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident, $what:literal;)+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Wraps the text unchanged.
            ///
            /// # Errors
            /// The text is empty.
            pub fn new(text: impl Into<String>) -> Result<Self, Error> {
                let text = text.into();
                if text.is_empty() { Err(Error::EmptyId { what: $what }) } else { Ok(Self(text)) }
            }

            /// The text as the provider sent it.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                Self::new(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Self::new(String::deserialize(deserializer)?).map_err(de::Error::custom)
            }
        }
    )+};
}

ids! {
    /// An accounting company's correlation id: what decides the partition of everything about it.
    CompanyId, "company id";
    /// A record's correlation id, unique within its company and resource.
    RecordId, "record id";
    /// The provider's tenant: one login, one set of companies.
    TenantId, "tenant id";
    /// A subscription of the accounting family.
    WebhookId, "webhook id";
    /// A payroll company's code, as decimal text.
    PayrollCompanyCode, "payroll company code";
    /// A snapshot run.
    RunId, "run id";
}

impl From<i64> for PayrollCompanyCode {
    fn from(code: i64) -> Self {
        Self(code.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_id_is_refused_by_name() {
        let error = CompanyId::new("").unwrap_err();

        assert_eq!(error.to_string(), "company id is empty; it must have at least one character");
    }

    #[test]
    fn id_is_serialized_as_plain_text() {
        let id: CompanyId = serde_json::from_str(r#""abc:1:CM:0f""#).unwrap();

        assert_eq!(id.as_str(), "abc:1:CM:0f");
        assert_eq!(serde_json::to_string(&id).unwrap(), r#""abc:1:CM:0f""#);
        assert!(serde_json::from_str::<CompanyId>(r#""""#).is_err());
    }
}
