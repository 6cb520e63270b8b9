//! The records of one resource in one company, and the order in which they are listed.
//!
//! Rows stay where they were put: an index is never used again. A list that shows every row in the order of its making needs
//! nothing else, and a short one is sorted when asked for. Any other list keeps the indexes it shows, sorted, and each change
//! moves one of them, so that a page costs what it shows, however many rows there are or are gone.

use super::{RecordState, Row};
use crate::{
    knobs::{DisabledShows, ListOrder},
    random::mix,
};

/// Up to so many rows are sorted for each page: most companies have no more, and keeping their orders would cost more
/// memory than their rows.
const FEW: usize = 16;

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
        let hides_disabled = arrangement.hides_disabled();
        let sorting = Sorting::of(arrangement);
        let plain = sorting == Sorting::Index && self.absent == 0 && (self.disabled == 0 || !hides_disabled);
        if !plain && self.rows.len() <= FEW {
            return arrangement.slice(self.rows().collect(), offset, limit);
        }
        if !plain && !self.listing.as_ref().is_some_and(|listing| listing.fits(sorting, hides_disabled)) {
            self.listing = Some(Box::new(Listing::new(&self.rows, sorting, hides_disabled)));
        }
        let listing = self.listing.as_ref().filter(|_| !plain);
        let total = listing.map_or(self.rows.len(), |listing| listing.indexes.len());
        let rows = within(total, offset, limit)
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
    /// The same of any rows, which come in the order of their index: keeps those that the list shows and sorts them.
    pub(super) fn slice(
        self,
        mut rows: Vec<(u32, Row)>,
        offset: u64,
        limit: usize,
    ) -> (Vec<(u32, Row)>, u64) {
        let sorting = Sorting::of(self);
        rows.retain(|(_, row)| shows(Some(row), self.hides_disabled()));
        if sorting != Sorting::Index {
            rows.sort_unstable_by_key(|(index, row)| sorting.key(*index, row));
        }
        if self.order == ListOrder::Newest {
            rows.reverse();
        }
        let total = rows.len();
        (rows[within(total, offset, limit)].to_vec(), total as u64)
    }

    fn hides_disabled(self) -> bool {
        self.disabled != DisabledShows::Everywhere
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

/// The part of so many that `offset..offset + limit` covers.
pub(super) fn within(total: usize, offset: u64, limit: usize) -> std::ops::Range<usize> {
    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(total);
    start..start.saturating_add(limit).min(total)
}

fn shows(row: Option<&Row>, hides_disabled: bool) -> bool {
    let hidden = hides_disabled && is_disabled(row);
    !hidden && !is_absent(row)
}

fn is_absent(row: Option<&Row>) -> bool {
    row.is_none_or(|row| row.state == RecordState::Deleted)
}

fn is_disabled(row: Option<&Row>) -> bool {
    row.is_some_and(|row| row.state == RecordState::Disabled)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use crate::{clock::Ticks, random::Random};

    fn row(changed: i64, state: RecordState) -> Row {
        Row { sequence: 1, changed: Ticks(changed), revision: 0, lineage: 0, state }
    }

    #[test]
    fn a_kept_order_stays_what_sorting_afresh_would_give() {
        use DisabledShows::{ById, Everywhere};
        use ListOrder::{Changed, Created, Newest, Scattered};
        use RecordState::{Deleted, Disabled, Enabled};

        for (order, disabled) in [Created, Newest, Scattered, Changed]
            .into_iter()
            .flat_map(|order| [(order, Everywhere), (order, ById)])
        {
            let arrangement = Arrangement { order, disabled, salt: 9 };
            let mut random = Random::new(1, 1);
            let mut table = Table::new((0..100).map(|at| Some(row(at - 50, Enabled))).collect());
            for moment in 1_000..1_500 {
                let index = random.below(u64::from(table.len()) + 5) as u32;
                let state = [Enabled, Disabled, Deleted][random.below(3) as usize];
                match random.below(10) {
                    0 => assert_eq!(table.push(row(moment, Enabled)), Some(table.len() - 1)),
                    1 => table.set(index, None),
                    _ => table.set(index, Some(row(moment, state))),
                }

                let (rows, total) = table.slice(3, 40, arrangement);

                let (expected, expected_total) = arrangement.slice(table.rows().collect(), 3, 40);
                assert_eq!((rows, total), (expected, expected_total), "{order:?} {disabled:?} {moment}");
                let count = |state| table.rows().filter(|(_, row)| row.state == state).count();
                assert_eq!(table.enabled() as usize, count(Enabled));
                assert_eq!(table.living() as usize, count(Enabled) + count(Disabled));
            }
            assert!(table.listing.is_some());
        }
    }

    #[test]
    fn a_change_moves_one_index_and_does_not_sort_again() {
        let arrangement =
            Arrangement { order: ListOrder::Changed, disabled: DisabledShows::Everywhere, salt: 0 };
        let mut table = Table::new((0..100).map(|at| Some(row(at, RecordState::Enabled))).collect());
        table.slice(0, 1, arrangement);
        let kept = std::ptr::from_ref(table.listing.as_deref().unwrap());

        table.set(5, Some(row(500, RecordState::Enabled)));
        let (rows, _) = table.slice(98, 10, arrangement);

        assert_eq!(rows.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [99, 5]);
        assert_eq!(std::ptr::from_ref(table.listing.as_deref().unwrap()), kept);
    }

    #[test]
    fn a_list_of_all_rows_in_the_order_of_their_making_keeps_nothing() {
        let arrangement = Arrangement { order: ListOrder::Newest, disabled: DisabledShows::ById, salt: 0 };
        let mut table = Table::new((0..100).map(|at| Some(row(at, RecordState::Enabled))).collect());

        let (rows, total) = table.slice(98, 10, arrangement);

        assert_eq!(rows.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [1, 0]);
        assert_eq!((total, table.listing.is_none()), (100, true));
        assert_eq!(table.slice(u64::MAX, usize::MAX, arrangement), (Vec::new(), 100));
    }
}
