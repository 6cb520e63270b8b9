//! The names in the provider's document: resources, event kinds, invoicing entities.
//!
//! Written from the document and not from the product's table, so that a misreading in one of them shows.

use std::fmt;

choices! { "camelCase";
    /// A resource of the accounting family.
    #[allow(missing_docs, reason = "the names are the provider's, and `row` has their paths")]
    pub enum Resource {
        Accounts,
        Charges,
        Payments,
        Customers,
        Suppliers,
        InputInvoices,
        IssuedInvoices,
        Journals,
        Companies,
        AccountingYears,
        Persons,
        CorporateLegalEntities,
        IndividualLegalEntities,
        Activities,
        Estimations,
        LegalEntityLicences,
        Prorates,
        IncomeAllocationLegalEntities,
        IntegrationFiles,
    }

    /// A part of the gateway, with its own path prefix.
    pub enum GatewayArea {
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

    /// A kind of event.
    pub enum Kind {
        /// A record was created.
        Created,
        /// It was changed.
        Updated,
        /// It was deleted.
        Deleted,
        /// It was disabled.
        Disabled,
        /// A write failed; the record is unchanged.
        ErrorOccurred,
    }
}

choices! { "PascalCase";
    /// An entity of the invoicing API.
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

    /// An action on an invoicing entity.
    #[allow(missing_docs, reason = "the names are the provider's and say all there is")]
    pub enum Action {
        Created,
        Updated,
        Deleted,
    }
}

impl GatewayArea {
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

impl Resource {
    /// Area, path below it, and the singular that its event types begin with.
    const fn row(self) -> (GatewayArea, &'static str, &'static str) {
        use GatewayArea::{Accounting, Core, Import};
        match self {
            Self::Accounts => (Accounting, "accounts", "Account"),
            Self::Charges => (Accounting, "charges", "Charge"),
            Self::Payments => (Accounting, "payments", "Payment"),
            Self::Customers => (Accounting, "customers", "Customer"),
            Self::Suppliers => (Accounting, "suppliers", "Supplier"),
            Self::InputInvoices => (Accounting, "inputInvoices", "InputInvoice"),
            Self::IssuedInvoices => (Accounting, "issuedInvoices", "IssuedInvoice"),
            Self::Journals => (Accounting, "journals", "Journal"),
            Self::Companies => (Accounting, "companies", "Company"),
            Self::AccountingYears => (Accounting, "accountingYears", "AccountingYear"),
            Self::Persons => (Core, "persons", "Person"),
            Self::CorporateLegalEntities => (Core, "corporateLegalEntities", "CorporateLegalEntity"),
            Self::IndividualLegalEntities => (Core, "individualLegalEntities", "IndividualLegalEntity"),
            Self::Activities => (Core, "activities", "Activity"),
            Self::Estimations => (Core, "activities/estimations", "Estimation"),
            Self::LegalEntityLicences => (Core, "legalEntityLicences", "LegalEntityLicence"),
            Self::Prorates => (Core, "activities/prorates", "Prorate"),
            Self::IncomeAllocationLegalEntities => {
                (Core, "incomeAllocationLegalEntities", "IncomeAllocationLegalEntity")
            }
            Self::IntegrationFiles => (Import, "integrationFiles", "IntegrationFile"),
        }
    }

    /// Its area.
    pub const fn area(self) -> GatewayArea {
        self.row().0
    }

    /// Path below the area: `inputInvoices`, `activities/prorates`.
    pub const fn path(self) -> &'static str {
        self.row().1
    }

    /// The full path below the base address: `/accounting/api/customers`.
    pub fn prefix(self) -> String {
        format!("{}/{}", self.area().path(), self.path())
    }

    /// `AppName` of its events.
    pub const fn app_name(self) -> &'static str {
        "Svc"
    }

    /// `Domain` of its events. The document shows only ACC; the other two are made up, and the events endpoint lists them.
    pub const fn domain(self) -> &'static str {
        match self.area() {
            GatewayArea::Core => "COR",
            GatewayArea::Import => "IMP",
            GatewayArea::Accounting | GatewayArea::Payroll | GatewayArea::Invoicing => "ACC",
        }
    }

    /// `Resource` of its events: `Customers`.
    pub fn plural(self) -> String {
        format!("{self:?}")
    }

    /// What its event types begin with: `Customer`.
    pub const fn singular(self) -> &'static str {
        self.row().2
    }

    /// The kinds of its events, in the order of the events endpoint.
    pub const fn kinds(self) -> [Kind; 4] {
        let only_disabled = matches!(self, Self::Accounts | Self::Customers | Self::Suppliers);
        let end = if only_disabled { Kind::Disabled } else { Kind::Deleted };
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

impl Entity {
    /// Whether the entity has this action: company data and settings are only updated.
    pub const fn offers(self, action: Action) -> bool {
        !matches!(self, Self::CompanyData | Self::CompanySettings) || matches!(action, Action::Updated)
    }
}
