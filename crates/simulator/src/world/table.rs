//! The rows of a list: records of one resource in one company, or payroll companies.
//!
//! Rows are never moved and an index is never reused. A list in creation order is read in place; other orders are sorted for
//! each page.

use super::{RecordState, WorldRow};
use crate::{
    knobs::{DisabledShows, ListOrder},
    random::mix,
};

/// Rows by index; `None` for a row that a restore has undone.
#[derive(Debug, Default)]
pub(super) struct RowTable {
    rows: Vec<Option<WorldRow>>,
    /// Rows that are deleted or undone.
    absent: u32,
    disabled: u32,
}

/// Which rows a list shows, and how.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrangement {
    pub(super) order: ListOrder,
    pub(super) disabled: DisabledShows,
    /// Gives each list its own scattered order.
    pub(super) salt: u64,
}

impl RowTable {
    /// With these rows, all enabled.
    pub(super) fn new(rows: impl Iterator<Item = WorldRow>) -> Self {
        Self { rows: rows.map(Some).collect(), absent: 0, disabled: 0 }
    }

    /// Rows so far, deleted and undone ones included.
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.rows.len()).unwrap_or(u32::MAX)
    }

    /// Rows that are neither deleted nor undone.
    pub(super) fn living(&self) -> u32 {
        self.len() - self.absent
    }

    /// Enabled rows.
    pub(super) fn enabled(&self) -> u32 {
        self.living() - self.disabled
    }

    /// A row, deleted or not; `None` if there never was one or a restore has undone it.
    pub(super) fn get(&self, index: u32) -> Option<WorldRow> {
        self.rows.get(index as usize).copied().flatten()
    }

    /// Every row that is not undone.
    pub(super) fn rows(&self) -> impl Iterator<Item = (u32, WorldRow)> + '_ {
        self.rows_from(0)
    }

    fn rows_from(&self, start: usize) -> impl Iterator<Item = (u32, WorldRow)> + '_ {
        (start as u32..).zip(&self.rows[start..]).filter_map(|(index, row)| row.map(|row| (index, row)))
    }

    pub(super) fn push(&mut self, row: WorldRow) {
        let index = self.len();
        self.rows.push(None);
        self.absent += 1;
        self.set(index, Some(row));
    }

    pub(super) fn set(&mut self, index: u32, row: Option<WorldRow>) {
        let Some(place) = self.rows.get_mut(index as usize) else { return };
        let old = std::mem::replace(place, row);
        self.absent = self.absent + u32::from(is_absent(row)) - u32::from(is_absent(old));
        self.disabled = self.disabled + u32::from(is_disabled(row)) - u32::from(is_disabled(old));
    }

    /// Rows `offset..offset + limit` of the list, and its length. With `then`, of the rows that it returns.
    pub(super) fn slice(
        &self,
        offset: u64,
        limit: usize,
        arrangement: Arrangement,
        then: Option<impl Fn(u32, WorldRow) -> Option<WorldRow>>,
    ) -> (Vec<(u32, WorldRow)>, u64) {
        if let Some(then) = then {
            let rows = self.rows().filter_map(|(index, row)| Some((index, then(index, row)?)));
            return arrangement.slice(rows.collect(), offset, limit);
        }
        let is_newest = arrangement.order == ListOrder::Newest;
        if !is_newest && arrangement.order != ListOrder::Created {
            return arrangement.slice(self.rows().collect(), offset, limit);
        }
        let total = if arrangement.hides_disabled() { self.enabled() } else { self.living() } as usize;
        let part = within(total, offset, limit);
        // Newest first is the same list in reverse.
        let part = if is_newest { total - part.end..total - part.start } else { part };
        // If every row is shown, rows before the slice can be skipped.
        let start = if total == self.rows.len() { part.start } else { 0 };
        let shown = self.rows_from(start).filter(|(_, row)| arrangement.shows(*row));
        let mut rows: Vec<_> = shown.skip(part.start - start).take(part.len()).collect();
        if is_newest {
            rows.reverse();
        }
        (rows, total as u64)
    }
}

impl Arrangement {
    /// Filters, sorts and slices rows that are in index order.
    fn slice(self, mut rows: Vec<(u32, WorldRow)>, offset: u64, limit: usize) -> (Vec<(u32, WorldRow)>, u64) {
        rows.retain(|(_, row)| self.shows(*row));
        match self.order {
            ListOrder::Created => {}
            ListOrder::Newest => rows.reverse(),
            ListOrder::Scattered => {
                rows.sort_unstable_by_key(|(index, _)| mix(self.salt ^ u64::from(*index)));
            }
            ListOrder::Changed => rows.sort_unstable_by_key(|(index, row)| (row.changed, *index)),
        }
        let total = rows.len();
        (rows[within(total, offset, limit)].to_vec(), total as u64)
    }

    fn hides_disabled(self) -> bool {
        self.disabled != DisabledShows::Everywhere
    }

    fn shows(self, row: WorldRow) -> bool {
        !(is_absent(Some(row)) || self.hides_disabled() && is_disabled(Some(row)))
    }
}

/// The range that `offset..offset + limit` covers.
fn within(total: usize, offset: u64, limit: usize) -> std::ops::Range<usize> {
    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(total);
    start..start.saturating_add(limit).min(total)
}

fn is_absent(row: Option<WorldRow>) -> bool {
    row.is_none_or(|row| row.state == RecordState::Deleted)
}

fn is_disabled(row: Option<WorldRow>) -> bool {
    row.is_some_and(|row| row.state == RecordState::Disabled)
}
