//! Counting: the proof that a list was seen in full although it changed while it was read, and has no order.
//!
//! # What is assumed
//!
//! - **Cut.** For each page there is a moment, its cut, between the sending of its request and the last byte of its answer, at which
//!   page *m* of size *P* was the places *P(m − 1) + 1* to *Pm* of the list, as many of them as there were.
//! - **Ids.** Every listed record has an id of its own, and one place. A record that has left the list does not come back while the
//!   run lasts. Records may be added, removed, changed and moved at any place and at any time.
//! - **Times.** A record enters the list with a change, and is listed no later than a margin after the time its version tells.
//! - **Order.** A page is sent after the answer to the page before it; the first of a pass, after the end of the pass before.
//!
//! # The theorem
//!
//! Pages 1, 2, … of size *P* are read up to page *m*, the first that has fewer than *P* rows. Let *e* be the cut of page *m*, and
//!
//! - *L* the ids listed at *e*,
//! - *n* = *P(m − 1)* + the rows of page *m*,
//! - *R* the distinct ids of the pages that were read before *e*, and of page *m*,
//! - *D* a number of ids of *R*, at least as many as were no longer listed at *e*,
//! - *F* a set of ids outside *R*, each shown by a page that was sent after *e*, and each known to have been listed at *e*.
//!
//! **Not more than *n − |R| + D* of the ids listed at *e* are missing from *R*. If *F* has so many, every id listed at *e* has been
//! shown.**
//!
//! # The proof
//!
//! 1. *|L| ≤ n*. Page *m* did not fill its places at *e*, so there was nothing behind them. If it has rows, there were rows on all
//!    places before its own, and *|L| = n*. If it is empty, there may have been fewer: the list may have shrunk.
//! 2. *|L ∩ R| ≥ |R| − D*, because at most *D* ids of *R* had left.
//! 3. *|L \ R| = |L| − |L ∩ R| ≤ n − |R| + D*: the first half.
//! 4. *F ⊆ L \ R*, by what *F* is. A finite set that has as many elements as a set around it is that set. So if *F* has
//!    *n − |R| + D* elements, *F = L \ R*: what was listed at *e* is in *R* or in *F*, and both have been shown. ∎
//!
//! What the pages before *e* had to do with each other was not used: neither an order of rows nor that nothing moved between pages.
//! *R* may have as many holes as it likes, since holes are counted.
//!
//! # Where *D* and *F* come from
//!
//! An id of *R* was **still listed** at *e* if page *m* has it, or if a page that was sent after the answer of *e* shows it (it was
//! there before and after, and does not come back). *D* counts the others. What a read by id says is no matter: a record that
//! exists may have left its list.
//!
//! Nor is it that an event tells of a deletion, though that would take many an id off *D*. To be still listed at *e*, a record must
//! have **left later** than *e*; and whatever an event tells is no earlier bound of that. When it came, and its `Timestamp`, are of
//! the event, which is made after the record has left, nobody says how long after. Its `Version` is of the last change; and a record
//! that was disabled before, and left its list by that, is changed once more when it is deleted. A list that loses more than a few
//! records during each pass therefore stays uncertified, and says how many may be missing at most.
//!
//! An id outside *R* that is shown after *e* **was listed** at *e* if its version is older than *e* by the margin (it was there
//! since, and listed), or if an earlier pass showed it before *e* with the same version (it was there before and after). *F* is
//! those.
//!
//! The provider's clock is not ours. `Date` of the answer was written between request and answer, cut to a second; so on the
//! provider's clock *e* lies within a round trip before it and a round trip and a second behind it. Without it, *e* lies within the
//! skew that is allowed. An older version is one from before that interval, by the margin.
//!
//! *|F| > n − |R| + D*, or *|R| > n + D*, cannot be, by 1 to 4. Where it is, an assumption does not hold, and nothing is proved.
//!
//! # Why the order of requests matters
//!
//! Pages may come out of a memo that shards share. If a page of *R* was cut after *e*, it may show a record that was added after
//! *e*: later pages show it too, so it is not in *D*, and it fills a hole that is another's. If a page of a later pass was cut
//! before *e*, it may show a record of *R* that was deleted before *e*, which is taken off *D* though it had left. Both make the
//! bound too small. So a page that was sent too early is refused.
//!
//! # Copies that are behind
//!
//! A provider may answer from a copy of the list that has not heard of the last changes. Then the cut of a page is before its request,
//! and the first assumption does not hold. What a page of the copy shows after *e* may have left before *e*, and is taken off *D*; what
//! came after its cut may have come before *e* by its version, and is taken for found. Where several copies answer, each behind by
//! another time, pages go back in time, and it takes no record that leaves: one that comes is enough. Nothing in an answer tells of
//! it but `Age`, which voids a pass. A test shows each, and that neither happens without.
//!
//! # Four traps
//!
//! Each looks right, and each certifies a list with a record that nobody has seen; a test shows it.
//!
//! - **What was seen before *e* is not found.** A record that an earlier pass showed, and that is not in *R*, may have been deleted
//!   before *e*. To take it for found fills the hole of another one. It must be shown again after *e*.
//! - **The union of passes proves nothing.** Two passes that together show *n* ids, or a pass that adds nothing to the one before,
//!   show ids that were there at different times. Only what is known of one moment can be counted against that moment.
//! - **A page size may be clamped silently.** Where 100 rows are asked for and 50 come at most, page 1 is short, and page 2 of size
//!   100 begins behind place 100: places 51 to 100 are on no page. So a short page 1 of *r* rows is believed only after page 2 **of
//!   size *r*** was empty, and the list did not shrink to *r* rows just then: the module around this says how that is known.
//! - **A last page may be exactly full.** Nothing tells at its cut that it is the last: a record may be behind it, and by the time
//!   the next page is asked for, a deletion may have moved that record onto the page just read, and left the next page empty. At
//!   the cut of the full page the list was longer than it seems. So *e* is the cut of the empty page, the first that tells.

use std::collections::{HashMap, hash_map::Entry};

use roaring::RoaringBitmap;

use super::page::{Row, Seen};

/// Between the time of a version and the moment its record is listed, and between two clocks of the provider: at most this long.
const MARGIN: i64 = 5_000_000;
/// `Date` has no fractions.
const DATE_RESOLUTION: i64 = 1_000_000;

/// A page of the pass that goes on.
#[derive(Debug, Clone)]
pub(super) struct PassPage {
    /// How many pages were looked at before it, in all passes.
    pub(super) turn: u32,
    pub(super) seen: Seen,
}

/// Since when a version of a record is known.
#[derive(Debug, Clone, Copy)]
pub(super) struct KnownVersion {
    version: u64,
    turn: u32,
    /// How many other records were shown before it first was: what stands for it in sets of records.
    pub(super) place: u32,
}

/// Everything that was shown, in any pass.
pub(super) type ShownRecords = HashMap<u128, KnownVersion>;

/// Remembers a row. Its place, and what was known of its record before.
pub(super) fn remember(memory: &mut ShownRecords, row: &Row, turn: u32) -> (u32, Option<KnownVersion>) {
    // A list has at most as many rows as pages of them can be asked for, and ends long before that.
    let next = u32::try_from(memory.len()).unwrap_or(u32::MAX);
    let shown = KnownVersion { version: row.version, turn, place: next };
    match memory.entry(row.id) {
        Entry::Vacant(place) => {
            place.insert(shown);
            (next, None)
        }
        Entry::Occupied(mut known) => {
            let before = *known.get();
            if before.version != row.version {
                known.insert(KnownVersion { place: before.place, ..shown });
            }
            (before.place, Some(before))
        }
    }
}

/// When a page was cut, on the provider's clock: not before the first, not after the second.
pub(super) fn interval(seen: &Seen, skew: i64) -> (i64, i64) {
    let trip = seen.answered.saturating_sub(seen.sent);
    match seen.date {
        Some(date) => (date.saturating_sub(trip), date.saturating_add(trip).saturating_add(DATE_RESOLUTION)),
        None => (seen.sent.saturating_sub(skew), seen.answered.saturating_add(skew)),
    }
}

/// A pass that came to an end, counted at its cut; names are those of the theorem.
#[derive(Debug, Clone)]
pub(super) struct PassCount {
    /// Turn of the page at *e*.
    turn: u32,
    /// *n*.
    pub(super) listed: u64,
    /// What the provider told on that page.
    pub(super) total: Option<u64>,
    /// Between these moments *e* was.
    pub(super) cut: (i64, i64),
    /// What changed before was listed at *e*.
    sure: i64,
    /// *R*.
    read: RoaringBitmap,
    /// *D*: those of *R* that nothing has shown to be listed at *e*.
    gone: RoaringBitmap,
    /// *F*.
    found: RoaringBitmap,
}

impl PassCount {
    /// Counts a pass that came to its end, or tells which page speaks against it, and why.
    pub(super) fn of(
        pass: &[PassPage],
        size: u32,
        skew: i64,
        memory: &ShownRecords,
    ) -> Result<Self, (u32, String)> {
        // A page that was read again counts as it was last read.
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
            // At an empty page the list may have shrunk; but it cannot be longer.
            let fits = if seen.rows.is_empty() { total <= listed } else { total == listed };
            if !fits {
                return Err((
                    seen.number,
                    format!("the provider counts {total} rows, its pages have {listed}"),
                ));
            }
        }
        let cut = interval(seen, skew);
        let margin = if seen.date.is_some() { MARGIN } else { 0 };
        let mut read = RoaringBitmap::new();
        let before = pass.iter().filter(|page| page.turn <= turn);
        for shown in before.flat_map(|page| &*page.seen.rows).filter_map(|row| memory.get(&row.id)) {
            read.insert(shown.place);
        }
        let mut gone = read.clone();
        for shown in seen.rows.iter().filter_map(|row| memory.get(&row.id)) {
            gone.remove(shown.place);
        }
        let sure = cut.0.saturating_sub(margin);
        let found = RoaringBitmap::new();
        let mut count = Self { turn, listed, total: seen.total, cut, sure, read, gone, found };
        for row in pass.iter().filter(|page| page.turn > turn).flat_map(|page| &*page.seen.rows) {
            if let Some(shown) = memory.get(&row.id) {
                count.show(row, shown.place, Some(*shown));
            }
        }
        Ok(count)
    }

    /// Counts a pass of a short page 1, an empty page behind it and the same page 1 again, at the cut of the empty page: there were no
    /// more rows than page 1 has, and all of these, which were listed before and after.
    pub(super) fn of_single(
        pass: &[PassPage],
        skew: i64,
        memory: &ShownRecords,
    ) -> Result<Self, (u32, String)> {
        let [first, behind, ..] = pass else { return Err((1, "no page was short".to_owned())) };
        let listed = first.seen.rows.len() as u64;
        let PassPage { turn, seen } = behind;
        if let Some(total) = seen.total.filter(|total| *total != listed) {
            return Err((1, format!("the provider counts {total} rows, its pages have {listed}")));
        }
        let mut read = RoaringBitmap::new();
        for known in first.seen.rows.iter().filter_map(|row| memory.get(&row.id)) {
            read.insert(known.place);
        }
        let (cut, (gone, found)) = (interval(seen, skew), Default::default());
        Ok(Self { turn: *turn, listed, total: seen.total, cut, sure: cut.0, read, gone, found })
    }

    /// A row of a page that was sent after the answer of *e*, its place, and what was known of it before.
    pub(super) fn show(&mut self, row: &Row, place: u32, before: Option<KnownVersion>) {
        if self.read.contains(place) {
            self.gone.remove(place);
            return;
        }
        let older = row.changed_at.is_some_and(|changed_at| changed_at < self.sure);
        let unchanged = before.is_some_and(|shown| shown.version == row.version && shown.turn < self.turn);
        if older || unchanged {
            self.found.insert(place);
        }
    }

    /// *|R|*, *D* and *|F|*.
    pub(super) fn numbers(&self) -> (u64, u64, u64) {
        (self.read.len(), self.gone.len(), self.found.len())
    }

    /// At most so many records that were listed at *e* have not been shown; `None` where the numbers contradict each other.
    pub(super) fn missing(&self) -> Option<u64> {
        let (read, gone, found) = self.numbers();
        (self.listed + gone).checked_sub(read)?.checked_sub(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_keeps_its_place_when_its_version_changes() {
        let (mut memory, row) = (ShownRecords::new(), Row { id: 7, version: 1, changed_at: None });
        remember(&mut memory, &Row { id: 9, ..row }, 0);

        assert!(matches!(remember(&mut memory, &row, 1), (1, None)));
        let (place, before) = remember(&mut memory, &Row { version: 2, ..row }, 2);
        assert_eq!((place, before.map(|shown| (shown.version, shown.turn))), (1, Some((1, 1))));
        let (place, before) = remember(&mut memory, &Row { version: 2, ..row }, 3);
        assert_eq!((place, before.map(|shown| (shown.version, shown.turn))), (1, Some((2, 2))));
    }
}
