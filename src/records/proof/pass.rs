//! A pass over a list: how it is read, and how it is counted.
//!
//! A pass requests the pages of a list from the first on, until no rows follow. Its count proves that a reading has shown the whole
//! list, although the list changes meanwhile and has no order.
//!
//! # What is assumed
//!
//! - **Cut.** Each page has a moment, its cut, between the sending of its request and the last byte of its answer, at which page *m* of
//!   size *P* had the places *P(m − 1) + 1* to *Pm* of the list, as far as they existed.
//! - **Ids.** Every listed record has a unique id and one place. A record that has left the list does not come back during the run.
//!   Records may be added, removed, changed and moved at any place and at any time.
//! - **Times.** A record enters the list with a change, and is listed no later than a margin after the time of its version.
//! - **Order.** A page is sent after the answer to the previous page; the first page of a pass, after the end of the previous pass.
//!
//! # The theorem
//!
//! Pages 1, 2, … of size *P* are read up to page *m*, the first that has fewer than *P* rows. Let *e* be the cut of page *m*, and
//!
//! - *L* the ids listed at *e*,
//! - *n* = *P(m − 1)* + the rows of page *m*,
//! - *R* the distinct ids of the pages that were read before *e*, and of page *m*,
//! - *G* ⊆ *R* a set with all ids of *R* that were no longer listed at *e*, and perhaps others, and *D* = *|G|*,
//! - *F* a set of ids outside *R*, each shown by a page that was sent after *e*, and each known to have been listed at *e*.
//!
//! **At most *n − |R| + D* of the ids listed at *e* are missing from *R*. If *F* has exactly that number of ids, every id listed at *e*
//! has been shown.**
//!
//! # The proof
//!
//! 1. *|L| ≤ n*. Page *m* did not fill its places at *e*, so no rows followed it. If it has rows, all places before it had rows too, and
//!    *|L| = n*. If it is empty, the list may have shrunk, and *|L|* may be smaller.
//! 2. *|L ∩ R| ≥ |R| − D*, because every id of *R* that had left is in *G*.
//! 3. *|L \ R| = |L| − |L ∩ R| ≤ n − |R| + D*: the first half.
//! 4. *F ⊆ L \ R*, by the definition of *F*. A subset with as many elements as its finite superset equals it. So if *F* has
//!    *n − |R| + D* elements, *F = L \ R*: every id listed at *e* is in *R* or in *F*, and both have been shown. ∎
//!
//! The proof does not use any relation between the pages before *e*: rows need no order, and may move between pages. *R* may have any
//! number of holes, because holes are counted.
//!
//! # Where *G* and *F* come from
//!
//! An id of *R* was **still listed** at *e* if page *m* has it, or if a page sent after the answer of *e* shows it (it was listed before
//! and after, and does not come back). *G* has the others. A read by id does not help: an existing record may have left its list.
//!
//! A delete event does not help either, although it would remove many ids from *G*. A record was still listed at *e* only if it **left
//! later** than *e*, and no field of the event is a lower bound for that. Its arrival and its `Timestamp` are times of the event, which
//! is created an unknown time after the record left. Its `Version` is that of the last change, and a record that left its list when it
//! was disabled changes once more when it is deleted. So a list that loses more than a few records during each pass stays
//! uncertified, and its certificate bounds the number of missing ones.
//!
//! An id outside *R* that is shown after *e* **was listed** at *e* if its version is older than *e* by the margin (listed since then), or
//! if an earlier pass showed it before *e* with the same version (listed before and after). *F* is the set of these ids.
//!
//! The provider's clock is not ours. The answer's `Date` was written between request and answer and truncated to a second. So on the
//! provider's clock, *e* lies between `Date` minus a round trip and `Date` plus a round trip and a second. A version is older if it is
//! from before that interval, by the margin.
//!
//! Without `Date`, *e* is known up to `clock.skew.max.ms` (default 300 s), which has to cover the real difference of the clocks.
//!
//! *|F| > n − |R| + D* and *|R| > n + D* are impossible, by 1 to 4. If they occur, an assumption does not hold, and nothing is proved.
//!
//! # Why the order of requests matters
//!
//! If a page of *R* was cut after *e*, it may show a record that was added after *e*: later pages show it
//! too, so it is not in *G*, and it fills the hole of another record. If a page of a later pass was cut before *e*, it may show a
//! record of *R* that was deleted before *e*, which is then missing from *G*. Both make the bound too small. So pages that were sent
//! too early are rejected.
//!
//! # Lagging replicas
//!
//! A provider may answer from a replica that lacks the latest changes. Then the cut of a page is before its request, and the first
//! assumption does not hold. A record that the replica shows after *e* may have left before *e*, and is missing from *G*. A record
//! that was added after the replica's state may by its version be older than *e*, and is wrongly in *F*. If several replicas with
//! different lags answer, pages go back in time, and an added record alone is enough for an error. The only sign of this in an answer
//! is `Age`, which voids a pass. Tests show each case, and that neither occurs without lag.
//!
//! # Four traps
//!
//! Each of these rules looks right, but certifies a list with a record that was never shown. Tests show each.
//!
//! - **Records shown before *e* are not found.** A record that an earlier pass showed and that is not in *R* may have been deleted
//!   before *e*. Counting it in *F* would fill the hole of another record. It must be shown again after *e*.
//! - **The union of passes proves nothing.** Two passes that together show *n* ids, or a pass that adds nothing to the previous one,
//!   show ids that were listed at different times. Only ids of one moment can be counted against that moment.
//! - **A page size may be clamped silently.** If 100 rows are requested and the provider returns at most 50, page 1 is short, and page 2
//!   of size 100 begins after place 100: places 51 to 100 are on no page. So a short page 1 of *r* rows is believed only after page 2
//!   **of size *r*** was empty and the list did not shrink to *r* rows just then; the parent module says how that is known.
//! - **A last page may be exactly full.** At its cut nothing shows that it is the last: a record may follow it, and before the next page
//!   is requested, a deletion may move that record onto the page just read and leave the next page empty. At the cut of the full page
//!   the list was longer than it seems. So *e* is the cut of the empty page, which is the first to show the end.

use std::{
    collections::{HashMap, hash_map::Entry},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use roaring::RoaringBitmap;

use provider::api::{Page, PageWalk, Pagination, ReadTimes, Total, WalkStep};

use super::page::{Row, Seen};

/// Longest time from a version to the listing of its record, plus the difference between the provider's own clocks; microseconds.
/// Subtracted from the start of the cut, whether the answer has a `Date` or not.
const MARGIN: i64 = 5_000_000;
/// `Date` has no fractions of a second; microseconds.
const DATE_RESOLUTION: i64 = 1_000_000;

/// How a list is read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Rows per page.
    pub page_size: u32,
    /// Passes after which the reading ends without a proof.
    pub most_passes: u32,
    /// Part of the list to read; `None` means all of it.
    pub filter: Option<Filter>,
    /// Allowed difference between the provider's clock and ours, in microseconds. Used if an answer has no `Date`.
    pub clock_skew: i64,
}

/// A filter that the provider applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filter {
    /// A filter from the configuration, opaque to us.
    Configured,
    /// Rows that changed after a moment. The filter must return rows that changed later than `after + margin`, and none that changed
    /// earlier than `after - margin`. Microseconds on the provider's clock.
    Changed {
        /// The moment.
        after: i64,
        /// Tolerance, because the provider does not document whether it compares days or moments, and in which time zone.
        margin: i64,
    },
}

/// The next step of a reading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadingStep {
    /// Read this page.
    Page {
        /// From 1.
        number: u32,
        /// Rows to request.
        size: u32,
        /// Whether to request it with the filter.
        filtered: bool,
        /// The page must be requested at or after this time.
        sent_after: i64,
    },
    /// Nothing to read: there is a verdict.
    Over,
}

/// The current pass.
#[derive(Debug, Clone)]
pub(super) struct Pass {
    pub(super) walk: PageWalk,
    /// Distinct records that it has shown, by index.
    pub(super) shown: RoaringBitmap,
    pub(super) pages: Vec<PassPage>,
    pub(super) step: PassStep,
    pub(super) fruitless: u32,
    pub(super) rows: u64,
    pub(super) total: Option<u64>,
}

/// Purpose of the next page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PassStep {
    /// Read this page of the list.
    Page(u32),
    /// Page 1 was short, with this many rows: check whether rows follow.
    AfterShort(u32),
    /// No rows follow page 1: check whether it is unchanged.
    Repeat,
    /// Read page 1 without the filter, to determine what the filter must return.
    Plain,
}

impl Pass {
    /// Starts a pass.
    pub(super) fn new() -> Self {
        Self {
            walk: PageWalk::default(),
            shown: RoaringBitmap::new(),
            pages: Vec::new(),
            step: PassStep::Page(1),
            fruitless: 0,
            rows: 0,
            total: None,
        }
    }

    /// Advances the walk with a page whose rows are remembered.
    pub(super) fn look(&mut self, seen: &Seen, memory: &ShownRecords) -> WalkStep {
        let Self { walk, shown, .. } = self;
        walk.observe(&as_page(seen), |row| is_new(shown, row, memory))
    }
}

fn is_new(shown: &mut RoaringBitmap, row: &Row, memory: &ShownRecords) -> bool {
    memory.get(&row.id).is_none_or(|known| shown.insert(known.index))
}

/// Converts a page for [`PageWalk`].
fn as_page(seen: &Seen) -> Page<Row> {
    let at = |micros: i64| {
        UNIX_EPOCH
            .checked_add(Duration::from_micros(u64::try_from(micros).unwrap_or_default()))
            .unwrap_or(SystemTime::UNIX_EPOCH)
    };
    let content = Bytes::copy_from_slice(&seen.content.to_be_bytes());
    Page {
        number: seen.number,
        asked: seen.asked,
        rows: seen.rows.to_vec(),
        // The walk only compares pages, so one hash represents all rows; empty pages have none.
        raw: if seen.rows.is_empty() { Vec::new() } else { vec![content] },
        total: seen.total.map_or(Total::Absent, |total_count| {
            Total::Reported(Pagination { current_page: u64::from(seen.number), total_pages: 0, total_count })
        }),
        times: ReadTimes {
            sent: at(seen.answer.sent),
            answered: at(seen.answer.answered),
            date: seen.answer.date.map(at),
            age: None,
        },
        base: seen.base,
        widest: seen.widest,
    }
}

/// A page of the current pass.
#[derive(Debug, Clone)]
pub(super) struct PassPage {
    /// Number of pages before it, in all passes.
    pub(super) turn: u32,
    pub(super) seen: Seen,
}

/// The last shown version of a record.
#[derive(Debug, Clone, Copy)]
pub(super) struct KnownVersion {
    version: u64,
    /// The first page that showed this version, by its turn. [`PassCount::show`] depends on it: a version is unchanged if a page showed
    /// it before *e*.
    turn: u32,
    /// Number of other records shown before it first was. It identifies the record in bitmaps.
    pub(super) index: u32,
}

/// All records shown in any pass.
pub(super) type ShownRecords = HashMap<u128, KnownVersion>;

/// Remembers a row. Returns its index, and the version known before.
pub(super) fn remember(memory: &mut ShownRecords, row: &Row, turn: u32) -> (u32, Option<KnownVersion>) {
    // The limits on passes and rows keep it below the maximum.
    let next = u32::try_from(memory.len()).unwrap_or(u32::MAX);
    let shown = KnownVersion { version: row.version, turn, index: next };
    match memory.entry(row.id) {
        Entry::Vacant(vacant) => {
            vacant.insert(shown);
            (next, None)
        }
        Entry::Occupied(mut known) => {
            let before = *known.get();
            if before.version != row.version {
                known.insert(KnownVersion { index: before.index, ..shown });
            }
            (before.index, Some(before))
        }
    }
}

/// Bounds of the cut of a page, on the provider's clock.
pub(super) fn interval(seen: &Seen, skew: i64) -> (i64, i64) {
    let trip = seen.answer.answered.saturating_sub(seen.answer.sent);
    match seen.answer.date {
        Some(date) => (date.saturating_sub(trip), date.saturating_add(trip).saturating_add(DATE_RESOLUTION)),
        None => (seen.answer.sent.saturating_sub(skew), seen.answer.answered.saturating_add(skew)),
    }
}

/// The count of a finished pass at its cut, in the terms of the theorem.
#[derive(Debug, Clone)]
pub(super) struct PassCount {
    /// `turn` of page *m*.
    turn: u32,
    /// *n*.
    pub(super) listed: u64,
    /// Total reported with that page.
    pub(super) total: Option<u64>,
    /// Bounds of *e*.
    pub(super) cut: (i64, i64),
    /// Records that changed before this time were listed at *e*.
    sure: i64,
    /// *R*.
    read: RoaringBitmap,
    /// *G*: records of *R* that no page has shown to be listed at *e*. *D* is their number.
    gone: RoaringBitmap,
    /// *F*.
    found: RoaringBitmap,
}

impl PassCount {
    /// Counts a finished pass. An error has the page that contradicts it, and why.
    pub(super) fn of(
        pass: &[PassPage],
        size: u32,
        skew: i64,
        memory: &ShownRecords,
    ) -> Result<Self, (u32, String)> {
        // The last reading of each page counts.
        let last_readings: HashMap<u32, &PassPage> =
            pass.iter().map(|page| (page.seen.number, page)).collect();
        let short = |page: &&&PassPage| page.seen.rows.len() < size as usize;
        let last = last_readings.values().filter(short).min_by_key(|page| page.seen.number);
        let Some(&&PassPage { turn, ref seen }) = last else {
            return Err((1, "no page was short".to_owned()));
        };
        let before = u64::from(size) * u64::from(seen.number.saturating_sub(1));
        let listed = before + seen.rows.len() as u64;
        if let Some(total) = seen.total {
            // At an empty page the list may be shorter, but not longer.
            let fits = if seen.rows.is_empty() { total <= listed } else { total == listed };
            if !fits {
                return Err((
                    seen.number,
                    format!("the provider counts {total} rows, its pages have {listed}"),
                ));
            }
        }
        let cut = interval(seen, skew);
        let mut read = RoaringBitmap::new();
        let before = pass.iter().filter(|page| page.turn <= turn);
        for shown in before.flat_map(|page| &*page.seen.rows).filter_map(|row| memory.get(&row.id)) {
            read.insert(shown.index);
        }
        let mut gone = read.clone();
        for shown in seen.rows.iter().filter_map(|row| memory.get(&row.id)) {
            gone.remove(shown.index);
        }
        let sure = cut.0.saturating_sub(MARGIN);
        let found = RoaringBitmap::new();
        let mut count = Self { turn, listed, total: seen.total, cut, sure, read, gone, found };
        for row in pass.iter().filter(|page| page.turn > turn).flat_map(|page| &*page.seen.rows) {
            if let Some(shown) = memory.get(&row.id) {
                count.show(row, shown.index, Some(*shown));
            }
        }
        Ok(count)
    }

    /// Counts a pass of a short page 1, an empty page 2 and the same page 1 again, at the cut of page 2: the list had exactly the rows of
    /// page 1, which were listed before and after.
    pub(super) fn of_single(
        pass: &[PassPage],
        skew: i64,
        memory: &ShownRecords,
    ) -> Result<Self, (u32, String)> {
        let [first, second, ..] = pass else { return Err((1, "no page was short".to_owned())) };
        let listed = first.seen.rows.len() as u64;
        let PassPage { turn, seen } = second;
        if let Some(total) = seen.total.filter(|total| *total != listed) {
            return Err((1, format!("the provider counts {total} rows, its pages have {listed}")));
        }
        let mut read = RoaringBitmap::new();
        for known in first.seen.rows.iter().filter_map(|row| memory.get(&row.id)) {
            read.insert(known.index);
        }
        let (cut, (gone, found)) = (interval(seen, skew), Default::default());
        Ok(Self { turn: *turn, listed, total: seen.total, cut, sure: cut.0, read, gone, found })
    }

    /// Takes a row of a page sent after the answer of *e*, with its index and the version known before.
    pub(super) fn show(&mut self, row: &Row, index: u32, before: Option<KnownVersion>) {
        if self.read.contains(index) {
            self.gone.remove(index);
            return;
        }
        let older = row.changed_at.is_some_and(|changed_at| changed_at < self.sure);
        let unchanged = before.is_some_and(|shown| shown.version == row.version && shown.turn < self.turn);
        if older || unchanged {
            self.found.insert(index);
        }
    }

    /// *|R|*, *D* and *|F|*.
    pub(super) fn numbers(&self) -> (u64, u64, u64) {
        (self.read.len(), self.gone.len(), self.found.len())
    }

    /// Upper bound of the records listed at *e* that were not shown; `None` if the numbers contradict each other.
    pub(super) fn missing(&self) -> Option<u64> {
        let (read, gone, found) = self.numbers();
        (self.listed + gone).checked_sub(read)?.checked_sub(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_keeps_its_index_when_its_version_changes() {
        let (mut memory, row) = (ShownRecords::new(), Row { id: 7, version: 1, changed_at: None });
        remember(&mut memory, &Row { id: 9, ..row }, 0);

        assert!(matches!(remember(&mut memory, &row, 1), (1, None)));
        let (index, before) = remember(&mut memory, &Row { version: 2, ..row }, 2);
        assert_eq!((index, before.map(|shown| (shown.version, shown.turn))), (1, Some((1, 1))));
        let (index, before) = remember(&mut memory, &Row { version: 2, ..row }, 3);
        assert_eq!((index, before.map(|shown| (shown.version, shown.turn))), (1, Some((2, 2))));
    }
}
