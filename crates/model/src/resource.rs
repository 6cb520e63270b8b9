//! The accounting resources: one table, from which names, paths, topics and schemas follow.

use std::str::FromStr;

use super::{
    Error, SchemaKind,
    text::{find, shown_as_name, written_as_text},
};

/// A resource of the accounting family that accepts webhooks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AccountingResource {
    /// Accounts.
    Accounts,
    /// Charges.
    Charges,
    /// Payments.
    Payments,
    /// Customers.
    Customers,
    /// Suppliers.
    Suppliers,
    /// Input invoices.
    InputInvoices,
    /// Issued invoices.
    IssuedInvoices,
    /// Journals.
    Journals,
    /// Companies.
    Companies,
    /// Accounting years.
    AccountingYears,
    /// Persons.
    Persons,
    /// Corporate legal entities.
    CorporateLegalEntities,
    /// Individual legal entities.
    IndividualLegalEntities,
    /// Activities.
    Activities,
    /// Estimations.
    Estimations,
    /// Legal entity licences.
    LegalEntityLicences,
    /// Prorates.
    Prorates,
    /// Income allocation legal entities.
    IncomeAllocationLegalEntities,
    /// Integration files.
    IntegrationFiles,
}

/// The part of the provider's API a resource belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Area {
    /// ACC.
    Accounting,
    /// CORE.
    Core,
    /// IMPORT.
    Import,
}

impl Area {
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

/// How a record of a resource ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Ending {
    /// It can be deleted.
    Deleted,
    /// It is only ever disabled: no tombstone may be written for it.
    Disabled,
}

struct Row {
    resource: AccountingResource,
    name: &'static str,
    area: Area,
    /// Below the area's path.
    path: &'static str,
    schema: SchemaKind,
    ending: Ending,
}

/// The table, in the order of the enum.
const TABLE: &[Row] = {
    use {AccountingResource as R, Area as A, Ending as E, SchemaKind as S};
    const fn row(resource: R, name: &'static str, area: A, path: &'static str, schema: S, ending: E) -> Row {
        Row { resource, name, area, path, schema, ending }
    }
    &[
        row(R::Accounts, "accounts", A::Accounting, "accounts", S::Account, E::Disabled),
        row(R::Charges, "charges", A::Accounting, "charges", S::Record, E::Deleted),
        row(R::Payments, "payments", A::Accounting, "payments", S::Record, E::Deleted),
        row(R::Customers, "customers", A::Accounting, "customers", S::Customer, E::Disabled),
        row(R::Suppliers, "suppliers", A::Accounting, "suppliers", S::Record, E::Disabled),
        row(R::InputInvoices, "input-invoices", A::Accounting, "inputInvoices", S::Record, E::Deleted),
        row(R::IssuedInvoices, "issued-invoices", A::Accounting, "issuedInvoices", S::Record, E::Deleted),
        row(R::Journals, "journals", A::Accounting, "journals", S::Record, E::Deleted),
        row(R::Companies, "companies", A::Accounting, "companies", S::Company, E::Deleted),
        row(R::AccountingYears, "accounting-years", A::Accounting, "accountingYears", S::Record, E::Deleted),
        row(R::Persons, "persons", A::Core, "persons", S::Record, E::Deleted),
        row(
            R::CorporateLegalEntities,
            "corporate-legal-entities",
            A::Core,
            "corporateLegalEntities",
            S::Record,
            E::Deleted,
        ),
        row(
            R::IndividualLegalEntities,
            "individual-legal-entities",
            A::Core,
            "individualLegalEntities",
            S::Record,
            E::Deleted,
        ),
        row(R::Activities, "activities", A::Core, "activities", S::Record, E::Deleted),
        row(R::Estimations, "estimations", A::Core, "activities/estimations", S::Record, E::Deleted),
        row(
            R::LegalEntityLicences,
            "legal-entity-licences",
            A::Core,
            "legalEntityLicences",
            S::Record,
            E::Deleted,
        ),
        row(R::Prorates, "prorates", A::Core, "activities/prorates", S::Record, E::Deleted),
        row(
            R::IncomeAllocationLegalEntities,
            "income-allocation-legal-entities",
            A::Core,
            "incomeAllocationLegalEntities",
            S::Record,
            E::Deleted,
        ),
        row(R::IntegrationFiles, "integration-files", A::Import, "integrationFiles", S::Record, E::Deleted),
    ]
};

impl AccountingResource {
    /// Every resource, in the provider's order.
    pub fn all() -> impl Iterator<Item = Self> + Clone {
        TABLE.iter().map(|row| row.resource)
    }

    /// Kebab-case name, as in topics and settings: `input-invoices`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.row().name
    }

    /// The resource an event's `Resource` names, if that is one of the words we know. The provider documents `Accounts`
    /// and `Customers`; whatever it calls the others, a name that is theirs but for case and dashes is taken for them.
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
    pub const fn area(self) -> Area {
        self.row().area
    }

    /// Path below the provider's base address: `accounting/api/inputInvoices`.
    #[must_use]
    pub fn path(self) -> String {
        format!("{}/{}", self.area().path(), self.row().path)
    }

    /// Schema of its records; its events are [`SchemaKind::AccountingEvent`].
    #[must_use]
    pub const fn schema(self) -> SchemaKind {
        self.row().schema
    }

    /// Whether its records can be deleted or only disabled.
    #[must_use]
    pub const fn ending(self) -> Ending {
        self.row().ending
    }

    const fn row(self) -> &'static Row {
        // The tests hold the table to the order of the enum.
        &TABLE[self as usize]
    }
}

impl FromStr for AccountingResource {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        find("accounting resource", name, Self::all(), Self::name)
    }
}

shown_as_name!(AccountingResource);
written_as_text!(AccountingResource);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_stands_in_the_order_of_the_enum_and_holds_all_nineteen() {
        assert_eq!(TABLE.len(), 19);
        for (place, row) in TABLE.iter().enumerate() {
            assert_eq!(row.resource as usize, place, "{}", row.name);
        }
    }

    #[test]
    fn paths_and_names_are_the_providers() {
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
        let disabled: Vec<_> =
            AccountingResource::all().filter(|r| r.ending() == Ending::Disabled).map(|r| r.name()).collect();

        assert_eq!(disabled, ["accounts", "customers", "suppliers"]);
    }

    #[test]
    fn every_name_parses_back_and_a_wrong_one_lists_the_right_ones() {
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
