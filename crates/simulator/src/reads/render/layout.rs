//! Which fields the records of each resource have, in which order and of which kind.
//!
//! Companies, customers and accounts have exactly the document's fields in its order. The fields of the other resources
//! are not shown; they share one layout of this simulator.

use crate::catalog::Resource;

/// The fields of a record, or of an object within one.
pub(super) type Fields = &'static [(&'static str, FieldKind)];

/// What a field holds. Those said to be fixed stay the same for the life of a record; the others are drawn for
/// every state.
#[derive(Debug, Clone, Copy)]
pub(super) enum FieldKind {
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

impl FieldKind {
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
        _ => OTHER,
    }
}

const COMPANY: Fields = &[
    ("vatName", FieldKind::Trade),
    ("vatNumber", FieldKind::VatNumber),
    ("state", FieldKind::State),
    ("chartOfAccountId", FieldKind::Integer(1, 40)),
    ("accountLength", FieldKind::Integer(5, 12)),
    ("correlationId", FieldKind::Id),
    ("version", FieldKind::Version),
    ("sequenceVersion", FieldKind::Sequence),
];

const CUSTOMER: Fields = &[
    ("tradeName", FieldKind::Trade),
    ("state", FieldKind::State),
    ("vatNumber", FieldKind::VatNumberOrEmpty),
    ("vatName", FieldKind::TradeOrEmpty),
    ("accountCode", FieldKind::Code("430")),
    ("correlationId", FieldKind::Id),
    ("vatNumberCorrelationId", FieldKind::RelatedOrEmpty),
    ("accountCodeCorrelationId", FieldKind::Related),
    ("version", FieldKind::Version),
    ("sequenceVersion", FieldKind::Sequence),
];

const ACCOUNT: Fields = &[
    ("correlationId", FieldKind::Id),
    ("code", FieldKind::Code("4")),
    ("description", FieldKind::Concept),
    ("state", FieldKind::State),
    ("version", FieldKind::Version),
    ("sequenceVersion", FieldKind::Sequence),
];

/// Every other resource; the document shows none of their fields.
const OTHER: Fields = &[
    ("concept", FieldKind::Concept),
    ("state", FieldKind::State),
    ("documentNumber", FieldKind::Code("F")),
    ("date", FieldKind::Date),
    ("dueOn", FieldKind::DateOrNull),
    ("lines", FieldKind::Objects(LINE)),
    ("total", FieldKind::Amount),
    ("currency", FieldKind::Choice(&["EUR", "EUR", "EUR", "USD", "GBP"])),
    ("address", FieldKind::Object(ADDRESS)),
    ("reconciled", FieldKind::Boolean),
    ("remark", FieldKind::ConceptOrNull),
    ("partnerCorrelationId", FieldKind::Related),
    ("correlationId", FieldKind::Id),
    ("version", FieldKind::Version),
    ("sequenceVersion", FieldKind::Sequence),
];

const ADDRESS: Fields = &[("street", FieldKind::Concept), ("number", FieldKind::Integer(1, 250))];

const LINE: Fields = &[
    ("description", FieldKind::Concept),
    ("quantity", FieldKind::Integer(1, 500)),
    ("unitPrice", FieldKind::Amount),
    ("taxPercentage", FieldKind::Percentage),
    ("accountCode", FieldKind::Code("7")),
];
