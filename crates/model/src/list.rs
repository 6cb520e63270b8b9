//! The lists that can be read in full.

use std::str::FromStr;

use super::{AccountingResource, Error, Topic, error::excerpt, text::written_as_name};

/// A list of the provider that can be read in full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum List {
    /// Accounting companies.
    Companies,
    /// Customers of a company.
    Customers,
    /// Accounts of a company.
    Accounts,
    /// Payroll companies.
    Payroll,
}

impl List {
    /// Every list.
    pub const ALL: [Self; 4] = [Self::Companies, Self::Customers, Self::Accounts, Self::Payroll];

    /// Its name, as in settings, requests and certificates.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Companies => "companies",
            Self::Customers => "customers",
            Self::Accounts => "accounts",
            Self::Payroll => "payroll",
        }
    }

    /// Where its rows are published.
    #[must_use]
    pub const fn topic(self) -> Topic {
        match self.resource() {
            Some(resource) => Topic::AccountingRecords(resource),
            None => Topic::PayrollCompanies,
        }
    }

    /// What its rows are, where they can be read by id.
    #[must_use]
    pub const fn resource(self) -> Option<AccountingResource> {
        match self {
            Self::Companies => Some(AccountingResource::Companies),
            Self::Customers => Some(AccountingResource::Customers),
            Self::Accounts => Some(AccountingResource::Accounts),
            Self::Payroll => None,
        }
    }

    /// Whether there is one for all companies, and not one for each.
    #[must_use]
    pub const fn spans_companies(self) -> bool {
        matches!(self, Self::Companies | Self::Payroll)
    }

    /// The list that has the records of a resource, if there is one.
    #[must_use]
    pub fn of(resource: AccountingResource) -> Option<Self> {
        Self::ALL.into_iter().find(|list| list.resource() == Some(resource))
    }
}

impl FromStr for List {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|list| list.name() == name).ok_or_else(|| Error::UnknownName {
            what: "list",
            given: excerpt(name),
            valid: Self::ALL.map(Self::name).join(", "),
        })
    }
}

written_as_name!(List);
