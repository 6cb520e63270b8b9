//! The kinds of value we publish, one Avro schema each.

use std::fmt;

/// An Avro schema of `schemas/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SchemaKind {
    /// A notification of the accounting family.
    AccountingEvent,
    /// A notification of the invoicing API.
    InvoicingEvent,
    /// An accounting company.
    Company,
    /// A customer of an accounting company.
    Customer,
    /// An account of an accounting company.
    Account,
    /// A record of any other accounting resource.
    Record,
    /// A payroll company.
    PayrollCompany,
    /// What a snapshot proved about a list.
    Certificate,
}

impl SchemaKind {
    /// Every kind.
    pub const ALL: [Self; 8] = [
        Self::AccountingEvent,
        Self::InvoicingEvent,
        Self::Company,
        Self::Customer,
        Self::Account,
        Self::Record,
        Self::PayrollCompany,
        Self::Certificate,
    ];

    /// Name of the Avro record, without its namespace.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::AccountingEvent => "AccountingEvent",
            Self::InvoicingEvent => "InvoicingEvent",
            Self::Company => "Company",
            Self::Customer => "Customer",
            Self::Account => "Account",
            Self::Record => "Record",
            Self::PayrollCompany => "PayrollCompany",
            Self::Certificate => "Certificate",
        }
    }
}

impl fmt::Display for SchemaKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
