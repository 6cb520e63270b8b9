//! Which fields the records of each resource have, in which order and of which kind.
//!
//! Companies, customers and accounts have exactly the document's fields in its order. The fields of the other resources
//! are not shown; they share three layouts of this simulator.

use crate::catalog::Resource;

/// The fields of a record, or of an object within one.
pub(super) type Fields = &'static [(&'static str, Value)];

/// What a field holds. Those said to be fixed stay the same for the life of a record; the others are drawn for
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
}

impl Value {
    /// Whether a thin row keeps it.
    pub(super) const fn identifies(self) -> bool {
        matches!(self, Self::Id | Self::State | Self::Version | Self::Sequence)
    }
}

pub(super) const fn fields(resource: Resource) -> Fields {
    match resource {
        Resource::Companies => COMPANY,
        Resource::Customers => CUSTOMER,
        Resource::Accounts => ACCOUNT,
        Resource::Suppliers
        | Resource::Persons
        | Resource::CorporateLegalEntities
        | Resource::IndividualLegalEntities
        | Resource::LegalEntityLicences
        | Resource::IncomeAllocationLegalEntities => PARTY,
        Resource::Charges
        | Resource::Payments
        | Resource::InputInvoices
        | Resource::IssuedInvoices
        | Resource::Journals
        | Resource::IntegrationFiles => DOCUMENT,
        Resource::AccountingYears | Resource::Activities | Resource::Estimations | Resource::Prorates => {
            PERIOD
        }
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

/// Those the companies deal with.
const PARTY: Fields = &[
    ("tradeName", Value::Trade),
    ("state", Value::State),
    ("vatNumber", Value::VatNumberOrEmpty),
    ("vatName", Value::TradeOrEmpty),
    ("accountCode", Value::Code("400")),
    ("paymentDays", Value::Integer(0, 90)),
    ("address", Value::Object(ADDRESS)),
    ("resident", Value::Boolean),
    ("since", Value::DateOrNull),
    ("accountCodeCorrelationId", Value::Related),
    ("correlationId", Value::Id),
    ("version", Value::Version),
    ("sequenceVersion", Value::Sequence),
];

const ADDRESS: Fields = &[
    ("street", Value::Concept),
    ("number", Value::Integer(1, 250)),
    ("postalCode", Value::Code("280")),
    ("country", Value::Choice(&["ES", "PT", "FR", "AD"])),
];

/// What is booked.
const DOCUMENT: Fields = &[
    ("concept", Value::Concept),
    ("state", Value::State),
    ("documentNumber", Value::Code("F")),
    ("date", Value::Date),
    ("dueOn", Value::DateOrNull),
    ("lines", Value::Objects(LINE)),
    ("total", Value::Amount),
    ("currency", Value::Choice(&["EUR", "EUR", "EUR", "USD", "GBP"])),
    ("reconciled", Value::Boolean),
    ("remark", Value::ConceptOrNull),
    ("partnerCorrelationId", Value::Related),
    ("correlationId", Value::Id),
    ("version", Value::Version),
    ("sequenceVersion", Value::Sequence),
];

const LINE: Fields = &[
    ("description", Value::Concept),
    ("quantity", Value::Integer(1, 500)),
    ("unitPrice", Value::Amount),
    ("taxPercentage", Value::Percentage),
    ("accountCode", Value::Code("7")),
];

/// What applies for a time.
const PERIOD: Fields = &[
    ("description", Value::Concept),
    ("state", Value::State),
    ("year", Value::Integer(2000, 2030)),
    ("startsOn", Value::Date),
    ("endsOn", Value::DateOrNull),
    ("method", Value::Choice(&["Direct", "SimplifiedDirect", "Objective"])),
    ("percentage", Value::PercentageOrNull),
    ("main", Value::Boolean),
    ("correlationId", Value::Id),
    ("version", Value::Version),
    ("sequenceVersion", Value::Sequence),
];
