//! Which fields the records of each resource have, in which order and of which kind.
//!
//! Companies, customers and accounts have exactly the document's fields in its order. The fields of the other resources
//! are not shown; theirs are this simulator's, so that records of each resource look like something of their own.

use crate::catalog::Resource;

/// The fields of a record, or of an object within one.
pub(super) type Fields = &'static [(&'static str, Value)];

/// What a field holds. Those said to be fixed stay the same for the life of a record; the others are drawn anew with
/// every state.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value {
    /// `correlationId`.
    Id,
    /// `state`.
    State,
    /// `version`.
    Version,
    /// `sequenceVersion`.
    Sequence,
    /// Name of a business.
    Trade,
    /// Name of a business; empty for records without a tax number.
    TradeOrEmpty,
    /// Name of a person.
    Person,
    /// What something is for.
    Concept,
    /// What something is for, or null.
    ConceptOrNull,
    /// A tax number. Fixed.
    VatNumber,
    /// A tax number; empty for records without one. Fixed.
    VatNumberOrEmpty,
    /// Id of another record. Fixed.
    Related,
    /// Id of another record; empty for records without a tax number. Fixed.
    RelatedOrEmpty,
    /// Text of eight digits that begins with these. Fixed.
    Code(&'static str),
    /// A whole number from the first up to and with the second. Fixed.
    Integer(u64, u64),
    /// One of these. Fixed.
    Choice(&'static [&'static str]),
    /// An amount of money, which may be negative.
    Amount,
    /// 0.00 to 100.00.
    Percentage,
    /// 0.00 to 100.00, or null.
    PercentageOrNull,
    /// True or false.
    Boolean,
    /// `YYYY-MM-DD`.
    Date,
    /// `YYYY-MM-DD`, or null.
    DateOrNull,
    /// An object.
    Object(Fields),
    /// None to four objects.
    Objects(Fields),
    /// None to three of these.
    Choices(&'static [&'static str]),
}

impl Value {
    /// Whether a thin row keeps it.
    pub(super) const fn identifies(self) -> bool {
        matches!(self, Self::Id | Self::State | Self::Version | Self::Sequence)
    }
}

/// The fields of a resource.
pub(super) const fn fields(resource: Resource) -> Fields {
    match resource {
        Resource::Accounts => ACCOUNT,
        Resource::Charges => CHARGE,
        Resource::Payments => PAYMENT,
        Resource::Customers => CUSTOMER,
        Resource::Suppliers => SUPPLIER,
        Resource::InputInvoices => INPUT_INVOICE,
        Resource::IssuedInvoices => ISSUED_INVOICE,
        Resource::Journals => JOURNAL,
        Resource::Companies => COMPANY,
        Resource::AccountingYears => ACCOUNTING_YEAR,
        Resource::Persons => PERSON,
        Resource::CorporateLegalEntities => CORPORATE_LEGAL_ENTITY,
        Resource::IndividualLegalEntities => INDIVIDUAL_LEGAL_ENTITY,
        Resource::Activities => ACTIVITY,
        Resource::Estimations => ESTIMATION,
        Resource::LegalEntityLicences => LEGAL_ENTITY_LICENCE,
        Resource::Prorates => PRORATE,
        Resource::IncomeAllocationLegalEntities => INCOME_ALLOCATION_LEGAL_ENTITY,
        Resource::IntegrationFiles => INTEGRATION_FILE,
    }
}

const COMPANY: Fields = &[
    ("vatName", Value::Trade),
    ("vatNumber", Value::VatNumber),
    ("state", Value::State),
    ("chartOfAccountId", Value::Integer(1, 40)),
    ("accountLength", Value::Integer(5, 12)),
    ("correlationId", Value::Id),
    ("version", Value::Version),
    ("sequenceVersion", Value::Sequence),
];

const CUSTOMER: Fields = &[
    ("tradeName", Value::Trade),
    ("state", Value::State),
    ("vatNumber", Value::VatNumberOrEmpty),
    ("vatName", Value::TradeOrEmpty),
    ("accountCode", Value::Code("430")),
    ("correlationId", Value::Id),
    ("vatNumberCorrelationId", Value::RelatedOrEmpty),
    ("accountCodeCorrelationId", Value::Related),
    ("version", Value::Version),
    ("sequenceVersion", Value::Sequence),
];

const ACCOUNT: Fields = &[
    ("correlationId", Value::Id),
    ("code", Value::Code("4")),
    ("description", Value::Concept),
    ("state", Value::State),
    ("version", Value::Version),
    ("sequenceVersion", Value::Sequence),
];

const SUPPLIER: Fields = &[
    ("tradeName", Value::Trade),
    ("state", Value::State),
    ("vatNumber", Value::VatNumberOrEmpty),
    ("vatName", Value::TradeOrEmpty),
    ("accountCode", Value::Code("400")),
    ("paymentDays", Value::Integer(0, 90)),
    ("correlationId", Value::Id),
    ("accountCodeCorrelationId", Value::Related),
    ("version", Value::Version),
    ("sequenceVersion", Value::Sequence),
];

const CHARGE: Fields = &[
    ("concept", Value::Concept),
    ("state", Value::State),
    ("chargeDate", Value::Date),
    ("amount", Value::Amount),
    ("currency", Value::Choice(CURRENCIES)),
    ("reconciled", Value::Boolean),
    ("invoiceCorrelationId", Value::Related),
    ("remark", Value::ConceptOrNull),
    ("correlationId", Value::Id),
    ("version", Value::Version),
    ("sequenceVersion", Value::Sequence),
];

const PAYMENT: Fields = &[
    ("concept", Value::Concept),
    ("state", Value::State),
    ("paymentDate", Value::Date),
    ("amount", Value::Amount),
    ("currency", Value::Choice(CURRENCIES)),
    ("method", Value::Choice(&["Transfer", "Cash", "Card", "DirectDebit"])),
    ("bankedOn", Value::DateOrNull),
    ("supplierCorrelationId", Value::Related),
    ("correlationId", Value::Id),
    ("version", Value::Version),
    ("sequenceVersion", Value::Sequence),
];

const INPUT_INVOICE: Fields = &[
    ("documentNumber", Value::Code("R")),
    ("state", Value::State),
    ("supplierCorrelationId", Value::Related),
    ("receivedOn", Value::Date),
    ("dueOn", Value::DateOrNull),
    ("deductible", Value::Boolean),
    ("lines", Value::Objects(INVOICE_LINE)),
    ("total", Value::Amount),
    ("withholdingPercentage", Value::PercentageOrNull),
    ("correlationId", Value::Id),
    ("version", Value::Version),
    ("sequenceVersion", Value::Sequence),
];

const ISSUED_INVOICE: Fields = &[
    ("invoiceNumber", Value::Code("F")),
    ("series", Value::Choice(&["A", "B", "RECT", ""])),
    ("state", Value::State),
    ("customerCorrelationId", Value::Related),
    ("issuedOn", Value::Date),
    ("lines", Value::Objects(INVOICE_LINE)),
    ("total", Value::Amount),
    ("collected", Value::Boolean),
    ("remark", Value::ConceptOrNull),
    ("correlationId", Value::Id),
    ("version", Value::Version),
    ("sequenceVersion", Value::Sequence),
];

const INVOICE_LINE: Fields = &[
    ("description", Value::Concept),
    ("quantity", Value::Integer(1, 500)),
    ("unitPrice", Value::Amount),
    ("taxPercentage", Value::Percentage),
    ("accountCode", Value::Code("7")),
];

const JOURNAL: Fields = &[
    ("concept", Value::Concept),
    ("state", Value::State),
    ("entryNumber", Value::Integer(1, 99_999)),
    ("entryDate", Value::Date),
    ("entries", Value::Objects(JOURNAL_ENTRY)),
    ("closing", Value::Boolean),
    ("correlationId", Value::Id),
    ("version", Value::Version),
    ("sequenceVersion", Value::Sequence),
];

const JOURNAL_ENTRY: Fields = &[
    ("accountCode", Value::Code("5")),
    ("debit", Value::Amount),
    ("credit", Value::Amount),
    ("counterpart", Value::ConceptOrNull),
];

const ACCOUNTING_YEAR: Fields = &[
    ("description", Value::Concept),
    ("state", Value::State),
    ("year", Value::Integer(2000, 2030)),
    ("startsOn", Value::Date),
    ("closedOn", Value::DateOrNull),
    ("openingEntry", Value::Boolean),
    ("correlationId", Value::Id),
    ("version", Value::Version),
    ("sequenceVersion", Value::Sequence),
];

const PERSON: Fields = &[
    ("fullName", Value::Person),
    ("state", Value::State),
    ("identityNumber", Value::VatNumber),
    ("bornOn", Value::DateOrNull),
    ("address", Value::Object(ADDRESS)),
    ("resident", Value::Boolean),
    ("correlationId", Value::Id),
    ("version", Value::Version),
    ("sequenceVersion", Value::Sequence),
];

const ADDRESS: Fields = &[
    ("street", Value::Person),
    ("number", Value::Integer(1, 250)),
    ("postalCode", Value::Code("280")),
    ("country", Value::Choice(&["ES", "PT", "FR", "AD"])),
    ("note", Value::ConceptOrNull),
];

const CORPORATE_LEGAL_ENTITY: Fields = &[
    ("corporateName", Value::Trade),
    ("state", Value::State),
    ("vatNumber", Value::VatNumber),
    ("incorporatedOn", Value::Date),
    ("shareCapital", Value::Amount),
    ("address", Value::Object(ADDRESS)),
    ("correlationId", Value::Id),
    ("version", Value::Version),
    ("sequenceVersion", Value::Sequence),
];

const INDIVIDUAL_LEGAL_ENTITY: Fields = &[
    ("fullName", Value::Person),
    ("tradeName", Value::TradeOrEmpty),
    ("state", Value::State),
    ("vatNumber", Value::VatNumber),
    ("selfEmployed", Value::Boolean),
    ("personCorrelationId", Value::Related),
    ("correlationId", Value::Id),
    ("version", Value::Version),
    ("sequenceVersion", Value::Sequence),
];

const ACTIVITY: Fields = &[
    ("description", Value::Concept),
    ("state", Value::State),
    ("heading", Value::Code("6")),
    ("startsOn", Value::Date),
    ("endsOn", Value::DateOrNull),
    ("main", Value::Boolean),
    ("correlationId", Value::Id),
    ("version", Value::Version),
    ("sequenceVersion", Value::Sequence),
];

const ESTIMATION: Fields = &[
    ("description", Value::Concept),
    ("state", Value::State),
    ("method", Value::Choice(&["Direct", "SimplifiedDirect", "Objective"])),
    ("reductionPercentage", Value::PercentageOrNull),
    ("activityCorrelationId", Value::Related),
    ("modules", Value::Objects(&[("unit", Value::Concept), ("yield", Value::Amount)])),
    ("correlationId", Value::Id),
    ("version", Value::Version),
    ("sequenceVersion", Value::Sequence),
];

const LEGAL_ENTITY_LICENCE: Fields = &[
    ("licensee", Value::Trade),
    ("state", Value::State),
    ("seats", Value::Integer(1, 300)),
    ("modules", Value::Choices(&["ACC", "COR", "MNG", "PAY", "INV"])),
    ("validUntil", Value::DateOrNull),
    ("trial", Value::Boolean),
    ("correlationId", Value::Id),
    ("version", Value::Version),
    ("sequenceVersion", Value::Sequence),
];

const PRORATE: Fields = &[
    ("description", Value::Concept),
    ("state", Value::State),
    ("year", Value::Integer(2015, 2030)),
    ("kind", Value::Choice(&["General", "Special"])),
    ("provisionalPercentage", Value::Percentage),
    ("finalPercentage", Value::PercentageOrNull),
    ("correlationId", Value::Id),
    ("version", Value::Version),
    ("sequenceVersion", Value::Sequence),
];

const INCOME_ALLOCATION_LEGAL_ENTITY: Fields = &[
    ("entityName", Value::Trade),
    ("state", Value::State),
    ("vatNumber", Value::VatNumber),
    ("members", Value::Objects(ALLOCATION_MEMBER)),
    ("abroad", Value::Boolean),
    ("correlationId", Value::Id),
    ("version", Value::Version),
    ("sequenceVersion", Value::Sequence),
];

const ALLOCATION_MEMBER: Fields = &[
    ("fullName", Value::Person),
    ("identityNumber", Value::VatNumber),
    ("share", Value::Percentage),
    ("address", Value::Object(ADDRESS)),
];

const INTEGRATION_FILE: Fields = &[
    ("fileName", Value::Concept),
    ("state", Value::State),
    ("format", Value::Choice(&["csv", "xlsx", "xml"])),
    ("bytes", Value::Integer(0, 50_000_000)),
    ("result", Value::Choice(&["Imported", "Rejected", "Partial"])),
    ("problems", Value::Objects(&[("line", Value::Integer(1, 5_000)), ("reason", Value::Concept)])),
    ("importedOn", Value::DateOrNull),
    ("correlationId", Value::Id),
    ("version", Value::Version),
    ("sequenceVersion", Value::Sequence),
];

const CURRENCIES: &[&str] = &["EUR", "EUR", "EUR", "USD", "GBP"];
