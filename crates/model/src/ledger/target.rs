//! Targets of subscriptions, and fingerprints of secrets.

use std::{fmt, str::FromStr};

use data_encoding::HEXLOWER;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{
    AccountingResource, Error, InvoicingAction, InvoicingEntity, InvoicingHook, error::excerpt,
    text::written_as_text,
};

/// The target of a subscription, written `accounting/customers` or `invoicing/Customer:Created`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// A resource of the accounting family.
    Accounting(AccountingResource),
    /// An entity and an action of the invoicing API.
    Invoicing(InvoicingHook),
}

impl Target {
    /// `accounting` or `invoicing`.
    #[must_use]
    pub const fn family(self) -> &'static str {
        match self {
            Self::Accounting(_) => "accounting",
            Self::Invoicing(_) => "invoicing",
        }
    }

    /// The resource, for the accounting family.
    #[must_use]
    pub const fn resource(self) -> Option<AccountingResource> {
        match self {
            Self::Accounting(resource) => Some(resource),
            Self::Invoicing(_) => None,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Accounting(resource) => write!(f, "accounting/{}", resource.name()),
            Self::Invoicing(InvoicingHook { entity, action }) => {
                write!(f, "invoicing/{}:{}", entity.provider_name(), action.provider_name())
            }
        }
    }
}

impl FromStr for Target {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let unknown = || Error::UnknownName {
            what: "target of a subscription",
            given: excerpt(text),
            valid: "accounting/{resource}, invoicing/{Entity}:{Action}".to_owned(),
        };
        match text.split_once('/').ok_or_else(unknown)? {
            ("accounting", resource) => Ok(Self::Accounting(resource.parse()?)),
            ("invoicing", hook) => {
                let (entity, action) = hook.split_once(':').ok_or_else(unknown)?;
                let (entity, action): (InvoicingEntity, InvoicingAction) = (entity.parse()?, action.parse()?);
                Ok(Self::Invoicing(InvoicingHook { entity, action }))
            }
            _ => Err(unknown()),
        }
    }
}

written_as_text!(Target);

/// Distinguishes secrets without showing them: 16 hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Fingerprint(String);

impl Fingerprint {
    /// The fingerprint of a secret.
    #[must_use]
    pub fn of(secret: &str) -> Self {
        let digest =
            Sha256::new().chain_update(b"tributary subscription secret\0").chain_update(secret).finalize();
        Self(HEXLOWER.encode(&digest[..8]))
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_parse_back() {
        let hooks = InvoicingEntity::all()
            .flat_map(|entity| {
                entity.actions().iter().map(move |action| InvoicingHook { entity, action: *action })
            })
            .map(Target::Invoicing);
        let all: Vec<Target> = AccountingResource::all().map(Target::Accounting).chain(hooks).collect();

        assert_eq!(all.len(), 19 + 16 * 3 + 2);
        for target in all {
            assert_eq!(target.to_string().parse::<Target>().unwrap(), target);
        }
        for text in ["", "customers", "accounting", "accounting/x", "invoicing/Customer", "payroll/companies"]
        {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }

    #[test]
    fn fingerprint_identifies_a_secret_without_containing_it() {
        let (one, other) = (Fingerprint::of("0123456789abcdef"), Fingerprint::of("0123456789abcdeg"));

        assert_ne!(one, other);
        assert_eq!(one, Fingerprint::of("0123456789abcdef"));
        assert_eq!(one.0.len(), 16);
        assert!(!one.0.contains("0123456789"));
    }
}
