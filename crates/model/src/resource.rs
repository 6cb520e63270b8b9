//! The accounting resources: one table with their names, paths, topics and schemas.

use super::{
    SchemaKind,
    names::{named, shown_as_name},
    text::{read_as_name, written_as_text},
};

named! {
    /// A resource of the accounting family that accepts webhooks.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub enum AccountingResource {
        /// Accounts.
        Accounts = "accounts",
        /// Charges.
        Charges = "charges",
        /// Payments.
        Payments = "payments",
        /// Customers.
        Customers = "customers",
        /// Suppliers.
        Suppliers = "suppliers",
        /// Input invoices.
        InputInvoices = "input-invoices",
        /// Issued invoices.
        IssuedInvoices = "issued-invoices",
        /// Journals.
        Journals = "journals",
        /// Companies.
        Companies = "companies",
        /// Accounting years.
        AccountingYears = "accounting-years",
        /// Persons.
        Persons = "persons",
        /// Corporate legal entities.
        CorporateLegalEntities = "corporate-legal-entities",
        /// Individual legal entities.
        IndividualLegalEntities = "individual-legal-entities",
        /// Activities.
        Activities = "activities",
        /// Estimations.
        Estimations = "estimations",
        /// Legal entity licences.
        LegalEntityLicences = "legal-entity-licences",
        /// Prorates.
        Prorates = "prorates",
        /// Income allocation legal entities.
        IncomeAllocationLegalEntities = "income-allocation-legal-entities",
        /// Integration files.
        IntegrationFiles = "integration-files",
    }
}

/// The part of the provider's API a resource belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResourceArea {
    /// ACC.
    Accounting,
    /// CORE.
    Core,
    /// IMPORT.
    Import,
}

impl ResourceArea {
    /// Path below the provider's base address.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Self::Accounting => "accounting/api",
            Self::Core => "accounting-core/api",
            Self::Import => "accounting-import/api",
        }
    }
}

/// How records of a resource are removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RemovalKind {
    /// They can be deleted.
    Deleted,
    /// They are only disabled: no tombstone may be written for them.
    Disabled,
}

impl AccountingResource {
    /// Every resource, in the provider's order.
    pub fn all() -> impl Iterator<Item = Self> + Clone {
        Self::ALL.into_iter()
    }

    /// The resource of an event's `Resource`, if known. The provider documents only `Accounts` and `Customers`; the others are
    /// matched by our names, ignoring case and dashes.
    #[must_use]
    pub fn from_provider(name: &str) -> Option<Self> {
        let letters = |text: &'static str| text.bytes().filter(|letter| *letter != b'-');
        Self::all().find(|resource| {
            let ours = letters(resource.name());
            name.len() == ours.clone().count()
                && ours.eq(name.bytes().map(|letter| letter.to_ascii_lowercase()))
        })
    }

    /// Part of the API it belongs to.
    #[must_use]
    pub const fn area(self) -> ResourceArea {
        self.row().0
    }

    /// Path below the provider's base address: `accounting/api/inputInvoices`.
    #[must_use]
    pub fn path(self) -> String {
        let (area, path, ..) = self.row();
        format!("{}/{path}", area.path())
    }

    /// Schema of its records; its events are [`SchemaKind::AccountingEvent`].
    #[must_use]
    pub const fn schema(self) -> SchemaKind {
        self.row().2
    }

    /// Whether its records can be deleted or only disabled.
    #[must_use]
    pub const fn ending(self) -> RemovalKind {
        self.row().3
    }

    /// The table: area, path below that of the area, schema, ending.
    const fn row(self) -> (ResourceArea, &'static str, SchemaKind, RemovalKind) {
        use {RemovalKind as E, ResourceArea as A, SchemaKind as S};
        match self {
            Self::Accounts => (A::Accounting, "accounts", S::Account, E::Disabled),
            Self::Charges => (A::Accounting, "charges", S::Record, E::Deleted),
            Self::Payments => (A::Accounting, "payments", S::Record, E::Deleted),
            Self::Customers => (A::Accounting, "customers", S::Customer, E::Disabled),
            Self::Suppliers => (A::Accounting, "suppliers", S::Record, E::Disabled),
            Self::InputInvoices => (A::Accounting, "inputInvoices", S::Record, E::Deleted),
            Self::IssuedInvoices => (A::Accounting, "issuedInvoices", S::Record, E::Deleted),
            Self::Journals => (A::Accounting, "journals", S::Record, E::Deleted),
            Self::Companies => (A::Accounting, "companies", S::Company, E::Deleted),
            Self::AccountingYears => (A::Accounting, "accountingYears", S::Record, E::Deleted),
            Self::Persons => (A::Core, "persons", S::Record, E::Deleted),
            Self::CorporateLegalEntities => (A::Core, "corporateLegalEntities", S::Record, E::Deleted),
            Self::IndividualLegalEntities => (A::Core, "individualLegalEntities", S::Record, E::Deleted),
            Self::Activities => (A::Core, "activities", S::Record, E::Deleted),
            Self::Estimations => (A::Core, "activities/estimations", S::Record, E::Deleted),
            Self::LegalEntityLicences => (A::Core, "legalEntityLicences", S::Record, E::Deleted),
            Self::Prorates => (A::Core, "activities/prorates", S::Record, E::Deleted),
            Self::IncomeAllocationLegalEntities => {
                (A::Core, "incomeAllocationLegalEntities", S::Record, E::Deleted)
            }
            Self::IntegrationFiles => (A::Import, "integrationFiles", S::Record, E::Deleted),
        }
    }
}

shown_as_name!(AccountingResource);
read_as_name!(AccountingResource: "accounting resource");
written_as_text!(AccountingResource);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_names_match_the_provider() {
        let shown: Vec<_> = AccountingResource::all().map(|r| format!("{r} {}", r.path())).collect();

        insta::assert_snapshot!(shown.join("\n"), @r"
        accounts accounting/api/accounts
        charges accounting/api/charges
        payments accounting/api/payments
        customers accounting/api/customers
        suppliers accounting/api/suppliers
        input-invoices accounting/api/inputInvoices
        issued-invoices accounting/api/issuedInvoices
        journals accounting/api/journals
        companies accounting/api/companies
        accounting-years accounting/api/accountingYears
        persons accounting-core/api/persons
        corporate-legal-entities accounting-core/api/corporateLegalEntities
        individual-legal-entities accounting-core/api/individualLegalEntities
        activities accounting-core/api/activities
        estimations accounting-core/api/activities/estimations
        legal-entity-licences accounting-core/api/legalEntityLicences
        prorates accounting-core/api/activities/prorates
        income-allocation-legal-entities accounting-core/api/incomeAllocationLegalEntities
        integration-files accounting-import/api/integrationFiles
        ");
    }

    #[test]
    fn only_accounts_customers_and_suppliers_are_never_deleted() {
        let disabled: Vec<_> = AccountingResource::all()
            .filter(|r| r.ending() == RemovalKind::Disabled)
            .map(|r| r.name())
            .collect();

        assert_eq!(disabled, ["accounts", "customers", "suppliers"]);
    }

    #[test]
    fn every_name_parses_and_an_error_lists_the_valid_ones() {
        for resource in AccountingResource::all() {
            assert_eq!(resource.name().parse(), Ok(resource));
        }

        let error = "inputInvoices".parse::<AccountingResource>().unwrap_err().to_string();

        assert!(
            error.starts_with("unknown accounting resource `inputInvoices`; use one of: accounts, "),
            "{error}"
        );
        assert!(error.contains("input-invoices") && error.ends_with("integration-files"), "{error}");
    }
}
