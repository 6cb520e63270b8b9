//! Records as the provider writes them: a state of a record in, JSON out.
//!
//! ```text
//! place, row ──▶ naming: id, what stays, what changes ──▶ layout: which fields ──▶ content ──▶ json: bytes
//! ```
//!
//! - Pure: the same seed, place and row give the same bytes, and nothing of the world is held meanwhile.
//! - A field's value does not depend on which other fields are written, so a thin row agrees with the full record.
//! - `version` has seven digits of a second and payroll's `lastUpdate` three; `sequenceVersion` is text.
//! - Nothing here can fail.

mod content;
mod layout;
mod payroll;

pub use payroll::{payroll_code, payroll_identifier, payroll_json, payroll_name, write_payroll};

use content::Source;
use layout::{Fields, Value, fields};

use crate::{
    catalog::Resource,
    clock::Ticks,
    json,
    knobs::{LeftOut, ReadKnobs, RecordKnobs},
    random::mix,
    world::{CompanyNumber, Naming, Place, RecordState, Row},
};

/// How much of a record is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shape {
    /// Only what every list must carry: id, state, both versions and the first other field.
    pub thin: bool,
    /// Fields of several kinds that the document does not show, after all others.
    pub extra: bool,
    /// `sequenceVersion` is left out.
    pub without_sequence: bool,
    /// `correlationId` is left out.
    pub without_id: bool,
    /// Payroll's `lastUpdate` is left out.
    pub without_last_update: bool,
    /// What stands in the place of what is left out.
    pub left_out: LeftOut,
}

impl Shape {
    /// Of a row of a list.
    #[must_use]
    pub fn row(reads: &ReadKnobs) -> Self {
        let RecordKnobs { without_last_update, left_out, .. } = reads.records;
        let (thin, extra) = (reads.thin_rows, reads.extra_fields);
        Self { thin, extra, without_last_update, left_out, ..Self::default() }
    }

    /// Of a record that is read by its id.
    #[must_use]
    pub fn record(reads: &ReadKnobs, resource: Resource) -> Self {
        let without_sequence = reads.records.without_sequence.contains(&resource);
        let without_id = reads.records.without_id.contains(&resource);
        Self { thin: false, without_sequence, without_id, ..Self::row(reads) }
    }
}

/// A record alone; the default shape is a read by id, without fields that only a knob adds.
#[must_use]
pub fn record_json(naming: &Naming, place: Place, row: &Row, shape: Shape) -> Vec<u8> {
    let mut out = Vec::with_capacity(1_024);
    write_record(&mut out, naming, place, row, shape);
    out
}

/// Appends a record.
pub fn write_record(out: &mut Vec<u8>, naming: &Naming, place: Place, row: &Row, shape: Shape) {
    let written = Written {
        naming,
        place: Some(place),
        state: state(row.state),
        version: row.changed,
        sequence: row.sequence,
        source: Source::new(naming.fixed(place), naming.content(place, row)),
    };
    written.write(out, fields(place.resource), shape);
}

/// Appends an account with the state `Template`: an offer to copy from, without `correlationId`. Those of one company
/// are numbered from 0 and never change.
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
    let written = Written {
        naming,
        place: None,
        state: "Template",
        version: SINCE,
        sequence: 1,
        source: Source::new(fixed, fixed),
    };
    written.write(out, fields(Resource::Accounts), shape);
}

/// One record on its way to the buffer.
struct Written<'a> {
    naming: &'a Naming,
    /// None for a template, which has no id.
    place: Option<Place>,
    state: &'static str,
    version: Ticks,
    sequence: u64,
    source: Source,
}

impl Written<'_> {
    fn write(&self, out: &mut Vec<u8>, fields: Fields, shape: Shape) {
        let mut named = false;
        let mut separator = b'{';
        for (position, &(name, value)) in fields.iter().enumerate() {
            if shape.thin && !value.identifies() && std::mem::replace(&mut named, true) {
                continue;
            }
            let is_left_out = match value {
                Value::Id => self.place.is_none() || shape.without_id,
                Value::Sequence => shape.without_sequence,
                _ => false,
            };
            let stands = match (is_left_out, shape.left_out, value) {
                (false, ..) => None,
                (true, LeftOut::Absent, _) => continue,
                (true, LeftOut::Unreadable, Value::Id) => Some(LeftOut::Empty),
                (true, form, _) => Some(form),
            };
            out.push(separator);
            separator = b',';
            match stands {
                Some(form) => left_out(out, name, form),
                None => self.field(out, name, value, self.source.at(position)),
            }
        }
        if shape.extra {
            extra_fields(out, self.source);
        }
        out.push(b'}');
    }

    fn field(&self, out: &mut Vec<u8>, name: &str, value: Value, source: Source) {
        out.push(b'"');
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(b"\":");
        self.value(out, value, source);
    }

    fn value(&self, out: &mut Vec<u8>, value: Value, source: Source) {
        match value {
            Value::Id => self.id(out),
            Value::State => json::text(out, self.state),
            Value::Version => quoted(out, &self.version.iso_bytes()),
            Value::Sequence => {
                out.push(b'"');
                json::number(out, self.sequence);
                out.push(b'"');
            }
            Value::TradeOrEmpty | Value::VatNumberOrEmpty | Value::RelatedOrEmpty
                if self.source.without_vat() =>
            {
                out.extend_from_slice(b"\"\"");
            }
            Value::Trade | Value::TradeOrEmpty => {
                pieces(out, |piece| content::trade(source.current(), piece));
            }
            Value::Person => pieces(out, |piece| content::person(source.current(), piece)),
            Value::ConceptOrNull if source.current().below(3) == 0 => out.extend_from_slice(b"null"),
            Value::Concept | Value::ConceptOrNull => {
                pieces(out, |piece| content::concept(source.current(), piece));
            }
            Value::VatNumber | Value::VatNumberOrEmpty => quoted(out, &content::vat_number(source.fixed())),
            Value::Related | Value::RelatedOrEmpty => quoted(out, &source.fixed().guid().bytes()),
            Value::Code(prefix) => {
                out.push(b'"');
                out.extend_from_slice(prefix.as_bytes());
                let width = 8_usize.saturating_sub(prefix.len());
                json::digits(out, source.fixed().below(10_u64.saturating_pow(width as u32)), width);
                out.push(b'"');
            }
            Value::Integer(from, to) => json::number(out, from + source.fixed().below(to - from + 1)),
            Value::Choice(words) => json::text(out, content::pick(&mut source.fixed(), words)),
            Value::Amount => json::hundredths(out, source.current().below(20_000_000) as i64 - 2_000_000),
            Value::PercentageOrNull | Value::DateOrNull if source.current().below(3) == 0 => {
                out.extend_from_slice(b"null");
            }
            Value::Percentage | Value::PercentageOrNull => {
                json::hundredths(out, source.current().below(10_001) as i64);
            }
            Value::Boolean => {
                let literal: &[u8] = if source.current().below(2) == 0 { b"true" } else { b"false" };
                out.extend_from_slice(literal);
            }
            Value::Date | Value::DateOrNull => {
                // 2010 to 2030.
                let day = 14_610 + source.current().below(7_305) as i64;
                quoted(out, &Ticks(day * content::DAY).iso_bytes()[..10]);
            }
            Value::Object(fields) => self.object(out, fields, source),
            Value::Objects(fields) => {
                let count = source.current().below(5) as usize;
                list(out, count, |out, position| self.object(out, fields, source.at(position)));
            }
            Value::Choices(words) => {
                let count = source.current().below(4) as usize;
                list(out, count, |out, position| {
                    json::text(out, content::pick(&mut source.at(position).current(), words));
                });
            }
        }
    }

    fn object(&self, out: &mut Vec<u8>, fields: Fields, source: Source) {
        let mut separator = b'{';
        for (position, &(name, value)) in fields.iter().enumerate() {
            out.push(separator);
            separator = b',';
            self.field(out, name, value, source.at(position));
        }
        out.push(b'}');
    }

    fn id(&self, out: &mut Vec<u8>) {
        match self.place {
            Some(place) if place.resource == Resource::Companies => json::text(out, &self.naming.id(place)),
            // Most ids are bare GUIDs, which need neither an allocation nor escapes.
            Some(place) => quoted(out, &self.naming.guid(place).bytes()),
            None => out.extend_from_slice(b"null"),
        }
    }
}

const fn state(state: RecordState) -> &'static str {
    match state {
        RecordState::Enabled => "Enabled",
        RecordState::Disabled => "Disabled",
        // Never read through the API; the truth about a deleted record has it.
        RecordState::Deleted => "Deleted",
    }
}

/// Appends a member that says nothing.
fn left_out(out: &mut Vec<u8>, name: &str, form: LeftOut) {
    json::text(out, name);
    out.push(b':');
    match form {
        LeftOut::Absent | LeftOut::Null => out.extend_from_slice(b"null"),
        LeftOut::Empty => json::text(out, ""),
        LeftOut::Unreadable => json::text(out, "unknown"),
    }
}

/// Fields nobody was told of: numbers no double holds, deep nesting, names and texts in other scripts, null.
fn extra_fields(out: &mut Vec<u8>, source: Source) {
    let mut random = source.at(usize::MAX - 1).current();
    out.extend_from_slice(b",\"riskScore\":1234567890123456789012345678901234.");
    json::digits(out, random.below(1_000_000_000), 9);
    out.extend_from_slice(b"5000000000000000001,\"counter\":");
    json::number(out, (1 << 53) + 1 + random.below(1 << 60));
    out.extend_from_slice(b",\"growth\":-1.5E-7,\"blocked\":");
    out.extend_from_slice(if random.below(2) == 0 { b"true" } else { b"false" });
    out.extend_from_slice(
        ",\"externalReference\":null,\"tags\":[\"ñandú\",\"日本\",\"🚀\",\"\\u00e9\\ud83d\\ude80\"],\"mixed\":[1,\"1\",null,[],{}],\
         \"geo\":{\"point\":{\"lat\":40.416775399999999999,\"lon\":-3.70379},\"história\":[[1.0,2.00],[]]},\
         \"ключ\":\"значение «"
            .as_bytes(),
    );
    json::number(out, random.below(1_000));
    out.extend_from_slice("»\"".as_bytes());
}

/// Appends text that needs no escapes.
fn quoted(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    out.extend_from_slice(text);
    out.push(b'"');
}

/// Appends one text of several pieces.
fn pieces(out: &mut Vec<u8>, say: impl FnOnce(&mut dyn FnMut(&str))) {
    out.push(b'"');
    say(&mut |piece| json::escaped(out, piece));
    out.push(b'"');
}

fn list(out: &mut Vec<u8>, count: usize, mut element: impl FnMut(&mut Vec<u8>, usize)) {
    out.push(b'[');
    for position in 0..count {
        if position > 0 {
            out.push(b',');
        }
        element(out, position);
    }
    out.push(b']');
}

#[cfg(test)]
mod tests;
