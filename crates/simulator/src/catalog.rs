//! What the provider's document enumerates: resources, event kinds, invoicing entities.
//!
//! Written from the document on its own, not from the product's table, so that a misreading there shows here.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A resource of the accounting family.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Resource {
    /// ACC/accounts.
    Accounts,
    /// ACC/charges.
    Charges,
    /// ACC/payments.
    Payments,
    /// ACC/customers.
    Customers,
    /// ACC/suppliers.
    Suppliers,
    /// ACC/inputInvoices.
    InputInvoices,
    /// ACC/issuedInvoices.
    IssuedInvoices,
    /// ACC/journals.
    Journals,
    /// ACC/companies.
    Companies,
    /// ACC/accountingYears.
    AccountingYears,
    /// CORE/persons.
    Persons,
    /// CORE/corporateLegalEntities.
    CorporateLegalEntities,
    /// CORE/individualLegalEntities.
    IndividualLegalEntities,
    /// CORE/activities.
    Activities,
    /// CORE/activities/estimations.
    Estimations,
    /// CORE/legalEntityLicences.
    LegalEntityLicences,
    /// CORE/activities/prorates.
    Prorates,
    /// CORE/incomeAllocationLegalEntities.
    IncomeAllocationLegalEntities,
    /// IMPORT/integrationFiles.
    IntegrationFiles,
}

/// A part of the gateway, with its own path prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Area {
    /// ACC.
    Accounting,
    /// CORE.
    Core,
    /// IMPORT.
    Import,
    /// PAY.
    Payroll,
    /// INV.
    Invoicing,
}

impl Area {
    /// Path below the base address, with its leading slash.
    pub const fn path(self) -> &'static str {
        match self {
            Self::Accounting => "/accounting/api",
            Self::Core => "/accounting-core/api",
            Self::Import => "/accounting-import/api",
            Self::Payroll => "/payroll/api",
            Self::Invoicing => "/invoicing/api",
        }
    }
}

/// Every resource with its part of the gateway, its path there, and the noun of its event kinds; in the order of the enum.
const TABLE: [(Resource, Area, &str, &str); 19] = {
    use Area::{Accounting, Core, Import};
    [
        (Resource::Accounts, Accounting, "accounts", "Account"),
        (Resource::Charges, Accounting, "charges", "Charge"),
        (Resource::Payments, Accounting, "payments", "Payment"),
        (Resource::Customers, Accounting, "customers", "Customer"),
        (Resource::Suppliers, Accounting, "suppliers", "Supplier"),
        (Resource::InputInvoices, Accounting, "inputInvoices", "InputInvoice"),
        (Resource::IssuedInvoices, Accounting, "issuedInvoices", "IssuedInvoice"),
        (Resource::Journals, Accounting, "journals", "Journal"),
        (Resource::Companies, Accounting, "companies", "Company"),
        (Resource::AccountingYears, Accounting, "accountingYears", "AccountingYear"),
        (Resource::Persons, Core, "persons", "Person"),
        (Resource::CorporateLegalEntities, Core, "corporateLegalEntities", "CorporateLegalEntity"),
        (Resource::IndividualLegalEntities, Core, "individualLegalEntities", "IndividualLegalEntity"),
        (Resource::Activities, Core, "activities", "Activity"),
        (Resource::Estimations, Core, "activities/estimations", "Estimation"),
        (Resource::LegalEntityLicences, Core, "legalEntityLicences", "LegalEntityLicence"),
        (Resource::Prorates, Core, "activities/prorates", "Prorate"),
        (
            Resource::IncomeAllocationLegalEntities,
            Core,
            "incomeAllocationLegalEntities",
            "IncomeAllocationLegalEntity",
        ),
        (Resource::IntegrationFiles, Import, "integrationFiles", "IntegrationFile"),
    ]
};

impl Resource {
    /// All of them, in the document's order.
    pub const ALL: [Self; 19] = {
        let mut all = [Self::Accounts; 19];
        let mut at = 0;
        while at < all.len() {
            all[at] = TABLE[at].0;
            at += 1;
        }
        all
    };

    /// Its part of the gateway.
    pub const fn area(self) -> Area {
        TABLE[self as usize].1
    }

    /// Path below the area: `inputInvoices`, `activities/prorates`.
    pub const fn path(self) -> &'static str {
        TABLE[self as usize].2
    }

    /// The full path below the base address: `/accounting/api/customers`.
    pub fn prefix(self) -> String {
        format!("{}/{}", self.area().path(), self.path())
    }

    /// `AppName` of its events.
    pub const fn app_name(self) -> &'static str {
        "Svc"
    }

    /// `Domain` of its events. Shown for ACC; the other two are this simulator's, and told by the events endpoint.
    pub const fn domain(self) -> &'static str {
        match self.area() {
            Area::Core => "COR",
            Area::Import => "IMP",
            Area::Accounting | Area::Payroll | Area::Invoicing => "ACC",
        }
    }

    /// `Resource` of its events: `Customers`.
    pub fn plural(self) -> String {
        format!("{self:?}")
    }

    /// What its event kinds begin with: `Customer`.
    pub const fn singular(self) -> &'static str {
        TABLE[self as usize].3
    }

    /// Whether a record can be deleted; accounts, customers and suppliers are only ever disabled.
    pub const fn deletable(self) -> bool {
        !matches!(self, Self::Accounts | Self::Customers | Self::Suppliers)
    }

    /// The kinds of event it has, in the order the events endpoint lists them.
    pub const fn kinds(self) -> [Kind; 4] {
        let end = if self.deletable() { Kind::Deleted } else { Kind::Disabled };
        [Kind::Created, Kind::Updated, end, Kind::ErrorOccurred]
    }

    /// `EventType` of an event: `CustomerCreated`, `ErrorOccurred`.
    pub fn event_type(self, kind: Kind) -> String {
        match kind {
            Kind::ErrorOccurred => "ErrorOccurred".to_owned(),
            kind => format!("{}{kind:?}", self.singular()),
        }
    }

    /// `SemanticName` of an event: `Svc.ACC.Customers.CustomerCreated`.
    pub fn semantic_name(self, kind: Kind) -> String {
        format!("{}.{}.{}.{}", self.app_name(), self.domain(), self.plural(), self.event_type(kind))
    }
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.path())
    }
}

/// What happened to a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    /// It is new.
    Created,
    /// It has changed.
    Updated,
    /// It is gone.
    Deleted,
    /// It is no longer in use.
    Disabled,
    /// A write did not work; the record is as it was.
    ErrorOccurred,
}

/// An entity of the invoicing API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are the provider's and say all there is")]
pub enum Entity {
    Customer,
    Product,
    Supplier,
    Representative,
    Contact,
    Due,
    SaleInvoice,
    PurchaseInvoice,
    SaleOffer,
    SaleOrder,
    PurchaseOrder,
    SaleDeliveryNote,
    PurchaseDeliveryNote,
    Bank,
    IncomeType,
    ExpenseType,
    CompanyData,
    CompanySettings,
}

impl Entity {
    /// All of them, in the document's order.
    pub const ALL: [Self; 18] = [
        Self::Customer,
        Self::Product,
        Self::Supplier,
        Self::Representative,
        Self::Contact,
        Self::Due,
        Self::SaleInvoice,
        Self::PurchaseInvoice,
        Self::SaleOffer,
        Self::SaleOrder,
        Self::PurchaseOrder,
        Self::SaleDeliveryNote,
        Self::PurchaseDeliveryNote,
        Self::Bank,
        Self::IncomeType,
        Self::ExpenseType,
        Self::CompanyData,
        Self::CompanySettings,
    ];

    /// By its exact name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|entity| format!("{entity:?}") == name)
    }

    /// Whether the action may be subscribed to: company data and settings are only ever updated.
    pub const fn offers(self, action: Action) -> bool {
        !matches!(self, Self::CompanyData | Self::CompanySettings) || matches!(action, Action::Updated)
    }
}

/// What happened to an invoicing entity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names are the provider's and say all there is")]
pub enum Action {
    Created,
    Updated,
    Deleted,
}

impl Action {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Created, Self::Updated, Self::Deleted];
}
