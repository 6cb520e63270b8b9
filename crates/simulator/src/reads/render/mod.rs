//! Renders states of records as the provider's JSON.
//!
//! ```text
//! place, row ──▶ naming: id and seeds ──▶ layout: which fields ──▶ content ──▶ bytes
//! ```
//!
//! - Rendering is pure and needs no lock: the same seed, place and row give the same bytes.
//! - A field's value does not depend on the other fields, so a thin row agrees with the full record.
//! - `version` has seven digits of a second and payroll's `lastUpdate` three; `sequenceVersion` is a string.
//! - It cannot fail.

mod content;
mod layout;
mod payroll;

pub use payroll::{payroll_code, payroll_identifier, payroll_json, payroll_name, write_payroll};

use std::{fmt, io::Write as _};

use content::ValueSource;
use layout::{FieldKind, Fields, fields};

use crate::{
    catalog::Resource,
    clock::Ticks,
    knobs::{LeftOut, ReadKnobs, RecordKnobs},
    random::mix,
    world::{CompanyNumber, Naming, Place, RecordState, WorldRow},
};

/// Which fields to render.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shape {
    /// Only id, state, both versions and the first other field.
    pub thin: bool,
    /// Adds fields of several kinds that the document does not show.
    pub extra: bool,
    /// Omits `sequenceVersion`.
    pub without_sequence: bool,
    /// Omits `correlationId`.
    pub without_id: bool,
    /// Omits payroll's `lastUpdate`.
    pub without_last_update: bool,
    /// What replaces omitted members.
    pub left_out: LeftOut,
}

impl Shape {
    /// For a row of a list.
    pub fn row(reads: &ReadKnobs) -> Self {
        let RecordKnobs { without_last_update, left_out, .. } = reads.records;
        let (thin, extra) = (reads.thin_rows, reads.extra_fields);
        Self { thin, extra, without_last_update, left_out, ..Self::default() }
    }

    /// For a read by id.
    pub fn record(reads: &ReadKnobs, resource: Resource) -> Self {
        let without_sequence = reads.records.without_sequence.contains(&resource);
        let without_id = reads.records.without_id.contains(&resource);
        Self { thin: false, without_sequence, without_id, ..Self::row(reads) }
    }
}

/// A record alone.
pub fn record_json(naming: &Naming, place: Place, row: &WorldRow, shape: Shape) -> Vec<u8> {
    let mut out = Vec::with_capacity(1_024);
    write_record(&mut out, naming, place, row, shape);
    out
}

/// Appends a record.
pub fn write_record(out: &mut Vec<u8>, naming: &Naming, place: Place, row: &WorldRow, shape: Shape) {
    let written = RecordWriter {
        naming,
        place: Some(place),
        state: state(row.state),
        version: row.changed,
        sequence: row.sequence,
        source: ValueSource::new(naming.fixed(place), naming.content(place, row)),
    };
    written.write(out, fields(place.resource), shape);
}

/// Appends an account with the state `Template`, an offer to copy from. It has no `correlationId`, is numbered from 0 within its
/// company, and never changes.
pub(super) fn write_template_account(
    out: &mut Vec<u8>,
    naming: &Naming,
    company: CompanyNumber,
    number: u64,
    shape: Shape,
) {
    const TEMPLATE: u64 = 0x0074_656D_706C_6174;
    const SINCE: Ticks = Ticks(1_577_836_800 * crate::clock::SECOND);
    let fixed = mix(mix(naming.seed() ^ TEMPLATE) ^ u64::from(company) << 32 ^ number);
    let written = RecordWriter {
        naming,
        place: None,
        state: "Template",
        version: SINCE,
        sequence: 1,
        source: ValueSource::new(fixed, fixed),
    };
    written.write(out, fields(Resource::Accounts), shape);
}

/// A record to write.
struct RecordWriter<'a> {
    naming: &'a Naming,
    /// `None` for a template, which has no id.
    place: Option<Place>,
    state: &'static str,
    version: Ticks,
    sequence: u64,
    source: ValueSource,
}

impl RecordWriter<'_> {
    fn write(&self, out: &mut Vec<u8>, fields: Fields, shape: Shape) {
        let mut named = false;
        out.push(b'{');
        for (position, &(name, kind)) in fields.iter().enumerate() {
            if shape.thin && !kind.identifies() && std::mem::replace(&mut named, true) {
                continue;
            }
            let is_left_out = match kind {
                FieldKind::Id => self.place.is_none() || shape.without_id,
                FieldKind::Sequence => shape.without_sequence,
                _ => false,
            };
            match (is_left_out, shape.left_out) {
                (false, _) => self.field(out, name, kind, self.source.at(position)),
                (true, LeftOut::Unreadable) if matches!(kind, FieldKind::Id) => {
                    left_out(out, name, LeftOut::Empty);
                }
                (true, form) => left_out(out, name, form),
            }
        }
        if shape.extra {
            extra_fields(out, self.source);
        }
        out.push(b'}');
    }

    fn field(&self, out: &mut Vec<u8>, name: &str, kind: FieldKind, source: ValueSource) {
        member(out, name);
        self.value(out, kind, source);
    }

    fn value(&self, out: &mut Vec<u8>, value: FieldKind, source: ValueSource) {
        match value {
            FieldKind::Id => match self.place {
                Some(place) => text(out, &self.naming.id(place)),
                None => put(out, format_args!("null")),
            },
            FieldKind::State => text(out, self.state),
            FieldKind::Version => text(out, &self.version.iso()),
            FieldKind::Sequence => put(out, format_args!("\"{}\"", self.sequence)),
            FieldKind::TradeOrEmpty | FieldKind::VatNumberOrEmpty | FieldKind::RelatedOrEmpty
                if self.source.without_vat() =>
            {
                text(out, "");
            }
            FieldKind::ConceptOrNull | FieldKind::DateOrNull if source.current().below(3) == 0 => {
                put(out, format_args!("null"));
            }
            FieldKind::Trade | FieldKind::TradeOrEmpty => text(out, &content::trade(source.current())),
            FieldKind::Concept | FieldKind::ConceptOrNull => text(out, &content::concept(source.current())),
            FieldKind::VatNumber | FieldKind::VatNumberOrEmpty => {
                text(out, &content::vat_number(source.fixed()))
            }
            FieldKind::Related | FieldKind::RelatedOrEmpty => {
                put(out, format_args!("\"{}\"", source.fixed().guid()))
            }
            FieldKind::Code(prefix) => {
                let width = 8_usize.saturating_sub(prefix.len());
                let number = source.fixed().below(10_u64.saturating_pow(width as u32));
                put(out, format_args!("\"{prefix}{number:0width$}\""));
            }
            FieldKind::Integer(from, to) => {
                put(out, format_args!("{}", from + source.fixed().below(to - from + 1)))
            }
            FieldKind::Amount => hundredths(out, source.current().below(20_000_000) as i64 - 2_000_000),
            FieldKind::Boolean => put(out, format_args!("{}", source.current().below(2) == 0)),
            FieldKind::DateOrNull => {
                // 2010 to 2030.
                let day = 14_610 + source.current().below(7_305) as i64;
                text(out, &Ticks(day * content::DAY).iso()[..10]);
            }
            FieldKind::Objects(fields) => {
                out.push(b'[');
                for position in 0..source.current().below(5) as usize {
                    if position > 0 {
                        out.push(b',');
                    }
                    self.object(out, fields, source.at(position));
                }
                out.push(b']');
            }
        }
    }

    fn object(&self, out: &mut Vec<u8>, fields: Fields, source: ValueSource) {
        out.push(b'{');
        for (position, &(name, kind)) in fields.iter().enumerate() {
            self.field(out, name, kind, source.at(position));
        }
        out.push(b'}');
    }
}

const fn state(state: RecordState) -> &'static str {
    match state {
        RecordState::Enabled => "Enabled",
        RecordState::Disabled => "Disabled",
        // Only the truth shows it.
        RecordState::Deleted => "Deleted",
    }
}

/// Appends a member without content, if it is there at all.
fn left_out(out: &mut Vec<u8>, name: &str, form: LeftOut) {
    let value = match form {
        LeftOut::Absent => return,
        LeftOut::Null => "null",
        LeftOut::Empty => "\"\"",
        LeftOut::Unreadable => "\"unknown\"",
    };
    member(out, name);
    put(out, format_args!("{value}"));
}

/// Appends the name of a member, and a comma unless it is the first of its object.
fn member(out: &mut Vec<u8>, name: &str) {
    let comma = if out.last() == Some(&b'{') { "" } else { "," };
    put(out, format_args!("{comma}\"{name}\":"));
}

/// Undocumented fields: numbers that no double holds, deep nesting, other scripts, null.
fn extra_fields(out: &mut Vec<u8>, source: ValueSource) {
    let mut random = source.at(usize::MAX - 1).current();
    let (score, counter) = (random.below(1_000_000_000), (1 << 53) + 1 + random.below(1 << 60));
    let (blocked, number) = (random.below(2) == 0, random.below(1_000));
    put(
        out,
        format_args!(
            ",\"riskScore\":1234567890123456789012345678901234.{score:09}5000000000000000001,\"counter\":{counter},\
             \"growth\":-1.5E-7,\"blocked\":{blocked},\"externalReference\":null,\
             \"tags\":[\"ñandú\",\"日本\",\"🚀\",\"\\u00e9\\ud83d\\ude80\"],\"mixed\":[1,\"1\",null,[],{{}}],\
             \"geo\":{{\"point\":{{\"lat\":40.416775399999999999,\"lon\":-3.70379}},\"história\":[[1.0,2.00],[]]}},\
             \"ключ\":\"значение «{number}»\""
        ),
    );
}

/// Appends text as a JSON string.
fn text(out: &mut Vec<u8>, text: &str) {
    // Writing to memory does not fail.
    serde_json::to_writer(out, text).ok();
}

/// Appends hundredths as a decimal with two digits: `-1200.50`.
fn hundredths(out: &mut Vec<u8>, value: i64) {
    let (sign, value) = (if value < 0 { "-" } else { "" }, value.unsigned_abs());
    put(out, format_args!("{sign}{}.{:02}", value / 100, value % 100));
}

/// Appends JSON.
fn put(out: &mut Vec<u8>, json: fmt::Arguments<'_>) {
    // Writing to memory does not fail.
    out.write_fmt(json).ok();
}

#[cfg(test)]
mod tests;
