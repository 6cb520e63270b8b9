//! Samples: a few pages spread over a list instead of the whole list.
//!
//! ```text
//! page 1 ─▶ full? ─▶ length of the list: its total, else the known records and one page ─▶ pages at even distances
//! ```
//!
//! Pages are short, so that there are several of them. Their positions are derived from the run and the list: other runs read other
//! pages. A sample never has more rows than requested.

use std::collections::{HashSet, VecDeque};

use model::{CompanyId, Key};
use provider::api::row_hash;

use super::super::state::Collection;
use crate::records::proof::Seen;

/// Pages of a sample; more if they would exceed the page size.
const PAGES: u32 = 10;

/// The sample of one list: the pages to read, and the rows that they have shown.
#[derive(Debug)]
pub(super) struct Sample {
    size: u32,
    /// Most pages.
    most: u32,
    /// Shift of the pages, as a fraction of their distance in units of 2^-32.
    offset: u32,
    /// Remaining pages; `None` until the length of the list is known.
    left: Option<VecDeque<u32>>,
    has_begun: bool,
    /// Keys of its rows.
    pub(super) shown: HashSet<Key>,
    /// Number of pages that could not be read.
    pub(super) unread: u64,
}

impl Sample {
    pub(super) fn new(rows: u32, page_size: u32, seed: u32) -> Self {
        let size = (rows / PAGES).clamp(1, page_size.max(1));
        Self {
            size,
            most: (rows / size).max(1),
            offset: seed,
            left: None,
            has_begun: false,
            shown: HashSet::new(),
            unread: 0,
        }
    }

    /// The sample of a list in a run.
    pub(super) fn of(rows: u32, page_size: u32, list: &Collection) -> Self {
        let Collection { run, list, company, .. } = list;
        let company = company.as_ref().map_or("", CompanyId::as_str);
        Self::new(rows, page_size, row_hash(&format!("{run}/{list}/{company}")) as u32)
    }

    /// Number and size of the page to read next.
    pub(super) fn want(&self) -> Option<(u32, u32)> {
        let number = match &self.left {
            None if !self.has_begun => 1,
            None => return None,
            Some(left) => *left.front()?,
        };
        Some((number, self.size))
    }

    /// Whether it needs the number of known records, by [`counted`](Self::counted).
    pub(super) fn needs_count(&self) -> bool {
        self.has_begun && self.left.is_none()
    }

    pub(super) fn is_over(&self) -> bool {
        self.left.as_ref().is_some_and(VecDeque::is_empty)
    }

    /// Takes a page that was read.
    pub(super) fn look(&mut self, page: &Seen) {
        if self.has_begun {
            self.next();
            return;
        }
        self.has_begun = true;
        let rows = u32::try_from(page.rows.len()).unwrap_or(u32::MAX);
        let has_more = page.total.is_some_and(|total| total > rows.into());
        if rows < self.size {
            if rows == 0 || !has_more {
                self.left = Some(VecDeque::new());
                return;
            }
            // The provider limits the page size: use its size.
            let most = u64::from(self.most) * u64::from(self.size) / u64::from(rows);
            (self.size, self.most) = (rows, u32::try_from(most).unwrap_or(u32::MAX));
        }
        if let Some(total) = page.total {
            self.spread(total);
        }
    }

    /// Takes the number of known records of the list. One page more is assumed for unknown ones.
    pub(super) fn counted(&mut self, known: u64) {
        self.spread(known.saturating_add(self.size.into()));
    }

    /// Skips a page that cannot be read.
    pub(super) fn fails(&mut self) {
        self.unread += 1;
        if self.has_begun {
            self.next();
        } else {
            (self.has_begun, self.left) = (true, Some(VecDeque::new()));
        }
    }

    fn next(&mut self) {
        if let Some(left) = &mut self.left {
            left.pop_front();
        }
    }

    /// Spreads the remaining pages over the list after page 1.
    fn spread(&mut self, rows: u64) {
        let after_first = rows.div_ceil(self.size.into()).saturating_sub(1).min(u32::MAX.into());
        let count = u64::from(self.most - 1).min(after_first);
        let place = |n: u64| {
            // Distances are at least one page, so no page repeats.
            let part = (u128::from(n) << 32) + u128::from(self.offset);
            let place = (part * u128::from(after_first) / u128::from(count.max(1))) >> 32;
            u32::try_from(place).unwrap_or(u32::MAX).saturating_add(2)
        };
        self.left = Some((0..count).map(place).collect());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::records::proof::Row;

    fn page(number: u32, rows: usize, total: Option<u64>) -> Seen {
        let row = |id: usize| Row { id: id as u128, version: 0, changed_at: None };
        let rows = (0..rows).map(row).collect();
        Seen { rows, total, ..Seen::unreadable(number, 1, "", 0) }
    }

    /// Page numbers of a sample of a list with `rows` rows.
    fn read(mut sample: Sample, rows: u64, has_total: bool, known: u64) -> Vec<u32> {
        let mut numbers = Vec::new();
        loop {
            if sample.needs_count() {
                sample.counted(known);
            }
            let Some((number, size)) = sample.want() else { break };
            numbers.push(number);
            let before = u64::from(size) * u64::from(number - 1);
            let on_it = rows.saturating_sub(before).min(size.into());
            sample.look(&page(number, on_it as usize, has_total.then_some(rows)));
        }
        assert!(sample.is_over());
        numbers
    }

    #[test]
    fn sample_pages_are_short_spread_and_within_the_limit() {
        let sample = || Sample::new(100, 1_000, u32::MAX / 2);
        assert_eq!(sample().want(), Some((1, 10)));

        let numbers = read(sample(), 10_000, true, 0);

        assert_eq!(numbers, [1, 57, 168, 279, 390, 501, 612, 723, 834, 945]);
    }

    #[test]
    fn sample_without_a_total_spans_known_records_and_a_page() {
        let numbers = read(Sample::new(30, 1_000, 0), 60, false, 57);

        assert_eq!(numbers.len(), 10);
        assert!(numbers.iter().all(|number| *number <= 20), "{numbers:?}");
        assert_eq!(read(Sample::new(1_000, 5, 0), 12, false, 0), [1], "nothing is known of it");
        assert_eq!(read(Sample::new(1_000, 5, 0), 12, false, 5), [1, 2]);
    }

    #[test]
    fn list_that_fits_is_read_in_full() {
        assert_eq!(read(Sample::new(100, 1_000, 9), 7, false, 0), [1]);
        assert_eq!(read(Sample::new(100, 1_000, 9), 25, true, 0), [1, 2, 3]);
        assert_eq!(read(Sample::new(3, 1_000, 9), 0, false, 0), [1]);
    }

    #[test]
    fn sample_pages_shrink_to_the_size_the_provider_returns() {
        let mut sample = Sample::new(100, 1_000, 0);
        sample.look(&page(1, 4, Some(1_000)));

        let left = sample.left.clone().unwrap();
        assert_eq!((sample.want(), left.len()), (Some((2, 4)), 24), "25 pages of 4 are 100 rows");
        assert!(left.iter().all(|number| *number <= 250), "{left:?}");
    }

    #[test]
    fn unreadable_sample_page_is_counted_and_skipped() {
        let mut first = Sample::new(100, 1_000, 0);
        first.fails();
        let mut later = Sample::new(100, 1_000, 0);
        later.look(&page(1, 10, Some(30)));
        later.fails();

        assert!(first.is_over() && first.unread == 1);
        assert_eq!((later.unread, later.want()), (1, Some((3, 10))));
    }

    proptest! {
        #[test]
        fn no_page_is_read_twice_or_beyond_the_list(rows in 1_u32..2_000, size in 1_u32..200,
            seed: u32, length in 0_u64..100_000)
        {
            let sample = Sample::new(rows, size, seed);
            let (most, page) = (sample.most, sample.size);
            let numbers = read(sample, length, true, 0);

            let distinct: HashSet<u32> = numbers.iter().copied().collect();
            prop_assert_eq!(distinct.len(), numbers.len());
            prop_assert!(numbers.len() as u32 <= most && most * page <= rows.max(page));
            let pages = length.div_ceil(page.into()).max(1);
            prop_assert!(numbers.iter().all(|number| u64::from(*number) <= pages));
        }
    }
}
