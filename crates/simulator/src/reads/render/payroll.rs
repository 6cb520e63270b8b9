//! Renders payroll companies.
//!
//! Code and identifier are fixed; the name changes with each state.

use super::{Shape, content, content::ValueSource, extra_fields, left_out, put, text};
use crate::{random::mix, world::PayrollRow};

/// A payroll company alone.
pub fn payroll_json(seed: u64, row: &PayrollRow, shape: Shape) -> Vec<u8> {
    let mut out = Vec::with_capacity(160);
    write_payroll(&mut out, seed, row, shape);
    out
}

/// Appends a payroll company.
pub fn write_payroll(out: &mut Vec<u8>, seed: u64, row: &PayrollRow, shape: Shape) {
    put(out, format_args!("{{\"companyCode\":{},\"companyName\":", payroll_code(seed, row.index)));
    text(out, &payroll_name(seed, row));
    put(out, format_args!(",\"identifierNumber\":\"{}\"", payroll_identifier(seed, row.index)));
    if shape.without_last_update {
        left_out(out, "lastUpdate", shape.left_out);
    } else {
        put(out, format_args!(",\"lastUpdate\":\"{}\"", row.updated.iso_milliseconds()));
    }
    if shape.extra {
        extra_fields(out, source(seed, row.index, row.revision));
    }
    out.push(b'}');
}

/// `companyCode`: unique, from 1 to 2^30, in no order.
pub const fn payroll_code(seed: u64, index: u32) -> u32 {
    const MASK: u64 = (1 << 30) - 1;
    // An odd factor and a sum permute the 30-bit numbers, so no two companies share a code.
    let scattered = (index as u64).wrapping_mul(0x2545_F491).wrapping_add(mix(seed ^ PAYROLL));
    ((scattered & MASK) as u32) + 1
}

/// `companyName`.
pub fn payroll_name(seed: u64, row: &PayrollRow) -> String {
    content::trade(source(seed, row.index, row.revision).at(0).current())
}

/// `identifierNumber`.
pub fn payroll_identifier(seed: u64, index: u32) -> String {
    content::vat_number(source(seed, index, 0).at(1).fixed())
}

const PAYROLL: u64 = 0x7061_7972_6F6C_6C00;

const fn source(seed: u64, index: u32, revision: u32) -> ValueSource {
    let fixed = mix(mix(seed ^ PAYROLL) ^ index as u64);
    ValueSource::new(fixed, mix(fixed ^ mix(revision as u64)))
}
