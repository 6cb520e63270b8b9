//! The kinds of values we publish, each with an Avro schema.

use super::names::{named, shown_as_name};

named! {
    /// An Avro schema of `schemas/`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum SchemaKind {
        /// A notification of the accounting family.
        AccountingEvent = "AccountingEvent",
        /// A notification of the invoicing API.
        InvoicingEvent = "InvoicingEvent",
        /// An accounting company.
        Company = "Company",
        /// A customer of an accounting company.
        Customer = "Customer",
        /// An account of an accounting company.
        Account = "Account",
        /// A record of any other accounting resource.
        Record = "Record",
        /// A payroll company.
        PayrollCompany = "PayrollCompany",
        /// A snapshot's certificate for a list.
        Certificate = "Certificate",
    }
}

shown_as_name!(SchemaKind);
