//! The fields of each resource's records.
//!
//! Companies, customers and accounts have the document's fields in its order. It shows none of the other resources, which
//! share a made-up layout.

use crate::catalog::Resource;

/// The fields of a record, or of an object within one.
pub(super) type Fields = &'static [(&'static str, FieldKind)];

/// Content of a field. Fixed values stay the same for the life of a record, others change with every state.
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
    /// A description.
    Concept,
    /// A description, or null.
    ConceptOrNull,
    /// A tax number. Fixed.
    VatNumber,
    /// A tax number; empty for records without one. Fixed.
    VatNumberOrEmpty,
    /// Id of another record. Fixed.
    Related,
    /// Id of another record; empty for records without a tax number. Fixed.
    RelatedOrEmpty,
    /// Eight characters: these, then digits. Fixed.
    Code(&'static str),
    /// An integer within these bounds. Fixed.
    Integer(u64, u64),
    /// An amount of money, which may be negative.
    Amount,
    /// True or false.
    Boolean,
    /// `YYYY-MM-DD`, or null.
    DateOrNull,
    /// Up to four objects.
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

/// All other resources.
const OTHER: Fields = &[
    ("concept", FieldKind::Concept),
    ("state", FieldKind::State),
    ("documentNumber", FieldKind::Code("F")),
    ("dueOn", FieldKind::DateOrNull),
    ("lines", FieldKind::Objects(LINE)),
    ("total", FieldKind::Amount),
    ("reconciled", FieldKind::Boolean),
    ("remark", FieldKind::ConceptOrNull),
    ("partnerCorrelationId", FieldKind::Related),
    ("correlationId", FieldKind::Id),
    ("version", FieldKind::Version),
    ("sequenceVersion", FieldKind::Sequence),
];

const LINE: Fields = &[
    ("description", FieldKind::Concept),
    ("quantity", FieldKind::Integer(1, 500)),
    ("unitPrice", FieldKind::Amount),
    ("accountCode", FieldKind::Code("7")),
];
