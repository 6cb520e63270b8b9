//! The provider's lists that can be read completely.

use super::{
    AccountingResource, Topic,
    names::{named, shown_as_name},
    text::{read_as_name, written_as_text},
};

named! {
    /// A list of the provider that can be read completely.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum List {
        /// Accounting companies.
        Companies = "companies",
        /// Customers of a company.
        Customers = "customers",
        /// Accounts of a company.
        Accounts = "accounts",
        /// Payroll companies.
        Payroll = "payroll",
    }
}

impl List {
    /// The topic its rows are published to.
    #[must_use]
    pub const fn topic(self) -> Topic {
        match self.resource() {
            Some(resource) => Topic::AccountingRecords(resource),
            None => Topic::PayrollCompanies,
        }
    }

    /// The resource of its rows, if they can be read by id.
    #[must_use]
    pub const fn resource(self) -> Option<AccountingResource> {
        match self {
            Self::Companies => Some(AccountingResource::Companies),
            Self::Customers => Some(AccountingResource::Customers),
            Self::Accounts => Some(AccountingResource::Accounts),
            Self::Payroll => None,
        }
    }

    /// Whether one list covers all companies, instead of one per company.
    #[must_use]
    pub const fn spans_companies(self) -> bool {
        matches!(self, Self::Companies | Self::Payroll)
    }

    /// The list with the records of a resource, if there is one.
    #[must_use]
    pub fn of(resource: AccountingResource) -> Option<Self> {
        Self::ALL.into_iter().find(|list| list.resource() == Some(resource))
    }
}

shown_as_name!(List);
read_as_name!(List: "list");
written_as_text!(List);
