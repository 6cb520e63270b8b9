//! The records of one resource in one company, and the order in which they are listed.
//!
//! Rows stay where they were put: an index is never used again. A list that shows every row in the order of its making needs
//! nothing else. Any other list keeps the indexes it shows, sorted, and each change moves one of them, so that a page costs
//! what it shows, however many rows there are or are gone.

use super::{RecordState, Row};
use crate::simulator::{
    knobs::{DisabledShows, ListOrder},
    random::mix,
};

/// Rows by index; `None` is a row that a restore has undone.
#[derive(Debug, Default)]
pub(super) struct Table {
    rows: Vec<Option<Row>>,
    /// Rows that are deleted or undone.
    absent: u32,
    disabled: u32,
    /// The order last asked for, where it is not simply that of the rows.
    listing: Option<Box<Listing>>,
}

/// The indexes a list shows, sorted.
#[derive(Debug)]
struct Listing {
    sorting: Sorting,
    hides_disabled: bool,
    indexes: Vec<u32>,
}

/// What a list is sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sorting {
    Index,
    /// By a hash of the index and this.
    Scattered(u64),
    Changed,
}

/// Which rows a list shows, and how.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrangement {
    /// Order of the list.
    pub(super) order: ListOrder,
    /// Where disabled records show.
    pub(super) disabled: DisabledShows,
    /// What tells the scattered order of this list from those of others.
    pub(super) salt: u64,
}

impl Table {
    /// With these rows, all of them enabled.
    pub(super) fn new(rows: Vec<Option<Row>>) -> Self {
        Self { rows, absent: 0, disabled: 0, listing: None }
    }

    /// How many rows there ever were.
    pub(super) fn len(&self) -> u32 {
        u32::try_from(self.rows.len()).unwrap_or(u32::MAX)
    }

    /// Rows that are neither deleted nor undone.
    pub(super) fn living(&self) -> u32 {
        self.len() - self.absent
    }

    /// Rows in use.
    pub(super) fn enabled(&self) -> u32 {
        self.living() - self.disabled
    }

    /// A row, deleted or not; `None` where there never was one or a restore has undone it.
    pub(super) fn get(&self, index: u32) -> Option<Row> {
        self.rows.get(index as usize).copied().flatten()
    }

    /// Every row that was not undone.
    pub(super) fn rows(&self) -> impl Iterator<Item = (u32, Row)> + '_ {
        (0..).zip(&self.rows).filter_map(|(index, row)| row.map(|row| (index, row)))
    }

    /// Adds a row; its index. `None` when indexes have run out.
    pub(super) fn push(&mut self, row: Row) -> Option<u32> {
        let index = u32::try_from(self.rows.len()).ok().filter(|&index| index < u32::MAX)?;
        self.rows.push(None);
        self.absent += 1;
        self.set(index, Some(row));
        Some(index)
    }

    /// Puts a row in place of another and moves it in the list.
    pub(super) fn set(&mut self, index: u32, row: Option<Row>) {
        let Some(place) = self.rows.get(index as usize).copied() else { return };
        if let Some(listing) = &mut self.listing {
            listing.replace(&self.rows, index, place.as_ref(), row.as_ref());
        }
        self.absent = self.absent + u32::from(is_absent(row.as_ref())) - u32::from(is_absent(place.as_ref()));
        self.disabled =
            self.disabled + u32::from(is_disabled(row.as_ref())) - u32::from(is_disabled(place.as_ref()));
        self.rows[index as usize] = row;
    }

    /// Sorts anew when the list is next asked for.
    pub(super) fn forget_order(&mut self) {
        self.listing = None;
    }

    /// Rows `offset..offset + limit` of the list, and how many there are in all. Only the first call after the arrangement
    /// was switched sorts.
    pub(super) fn slice(
        &mut self,
        offset: u64,
        limit: usize,
        arrangement: Arrangement,
    ) -> (Vec<(u32, Row)>, u64) {
        let hides_disabled = arrangement.disabled != DisabledShows::Everywhere;
        let sorting = Sorting::of(arrangement);
        let plain = sorting == Sorting::Index && self.absent == 0 && (self.disabled == 0 || !hides_disabled);
        if !plain && !self.listing.as_ref().is_some_and(|listing| listing.fits(sorting, hides_disabled)) {
            self.listing = Some(Box::new(Listing::new(&self.rows, sorting, hides_disabled)));
        }
        let listing = self.listing.as_ref().filter(|_| !plain);
        let total = listing.map_or(self.rows.len(), |listing| listing.indexes.len());
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(total);
        let end = start.saturating_add(limit).min(total);
        let rows = (start..end)
            .filter_map(|at| {
                let at = if arrangement.order == ListOrder::Newest { total - 1 - at } else { at };
                let index = match listing {
                    Some(listing) => listing.indexes[at],
                    None => at as u32,
                };
                self.get(index).map(|row| (index, row))
            })
            .collect();
        (rows, total as u64)
    }
}

impl Arrangement {
    /// The same for rows that are not a table's: keeps those that the list shows and sorts them.
    pub(super) fn arrange(self, rows: &mut Vec<(u32, Row)>) {
        let hides_disabled = self.disabled != DisabledShows::Everywhere;
        let sorting = Sorting::of(self);
        rows.retain(|(_, row)| shows(Some(row), hides_disabled));
        // Rows come in the order of their index, which needs no sorting.
        if sorting != Sorting::Index {
            rows.sort_unstable_by_key(|(index, row)| sorting.key(*index, row));
        }
        if self.order == ListOrder::Newest {
            rows.reverse();
        }
    }
}

impl Listing {
    fn new(rows: &[Option<Row>], sorting: Sorting, hides_disabled: bool) -> Self {
        let mut keyed: Vec<((u64, u32), u32)> = (0..)
            .zip(rows)
            .filter(|(_, row)| shows(row.as_ref(), hides_disabled))
            .filter_map(|(index, row)| row.as_ref().map(|row| (sorting.key(index, row), index)))
            .collect();
        if sorting != Sorting::Index {
            keyed.sort_unstable();
        }
        Self { sorting, hides_disabled, indexes: keyed.into_iter().map(|(_, index)| index).collect() }
    }

    fn fits(&self, sorting: Sorting, hides_disabled: bool) -> bool {
        self.sorting == sorting && self.hides_disabled == hides_disabled
    }

    /// Moves an index from where its old row belongs to where its new one does. `rows` still has the old one.
    fn replace(&mut self, rows: &[Option<Row>], index: u32, old: Option<&Row>, new: Option<&Row>) {
        let key = |row: Option<&Row>| {
            row.filter(|row| shows(Some(row), self.hides_disabled)).map(|row| self.sorting.key(index, row))
        };
        let (old, new) = (key(old), key(new));
        if old == new {
            return;
        }
        if let Some(at) = old.and_then(|old| self.position(rows, old).ok()) {
            self.indexes.remove(at);
        }
        if let Some(at) = new.and_then(|new| self.position(rows, new).err()) {
            self.indexes.insert(at, index);
        }
    }

    fn position(&self, rows: &[Option<Row>], wanted: (u64, u32)) -> Result<usize, usize> {
        self.indexes.binary_search_by_key(&wanted, |&index| {
            rows[index as usize].as_ref().map_or((0, index), |row| self.sorting.key(index, row))
        })
    }
}

impl Sorting {
    fn of(arrangement: Arrangement) -> Self {
        match arrangement.order {
            ListOrder::Created | ListOrder::Newest => Self::Index,
            ListOrder::Scattered => Self::Scattered(arrangement.salt),
            ListOrder::Changed => Self::Changed,
        }
    }

    fn key(self, index: u32, row: &Row) -> (u64, u32) {
        let first = match self {
            Self::Index => 0,
            Self::Scattered(salt) => mix(salt ^ u64::from(index)),
            // Flipping the sign bit sorts dates before 1970 first.
            Self::Changed => row.changed.0.cast_unsigned() ^ 1 << 63,
        };
        (first, index)
    }
}

fn shows(row: Option<&Row>, hides_disabled: bool) -> bool {
    !is_absent(row) && !(hides_disabled && is_disabled(row))
}

fn is_absent(row: Option<&Row>) -> bool {
    row.is_none_or(|row| row.state == RecordState::Deleted)
}

fn is_disabled(row: Option<&Row>) -> bool {
    row.is_some_and(|row| row.state == RecordState::Disabled)
}
