//! The reading of one list in one run: which page to ask for, and what is proved in the end.
//!
//! ```text
//!             ┌──────────────────── void: the next pass ◀────────────────────┐
//!             ▼                                                              │
//! page 1 ─ full ─▶ pages 2, 3, … until there is nothing behind ─▶ counted ───┴─▶ proved by a later pass: counting
//!    │
//!    └─ short, r rows ─▶ page 2 of size r: empty ─▶ proved: single
//!                                        └─ rows ─▶ the size is clamped: again, with size r
//!
//! by key: page 1 behind the last key, until one is empty ─▶ proved: keyset
//!                 └─ not ascending ─▶ read by page from now on
//! ```
//!
//! - **single**: page 1 shows *r* rows, fewer than asked for, and page 2 of size *r* is empty (for *r* = 0, page 1 is empty once
//!   more). What was listed at the cut of page 1 is on it. A clamped size goes unnoticed only if the list shrinks to *r* rows
//!   between the two.
//! - **keyset**: each page begins behind the last key of the one before, ascends strictly, and the last is empty. What was listed
//!   during the whole pass was behind every key below its own when that was read, so it has been shown.
//! - **counting**: see [`counting`], where the theorem is.
//!
//! A reading is told pages, and nothing else; the same pages lead to the same verdict. So what is kept of each page ([`Seen`]) is
//! the whole of its state, and [`Reading::restore`] replays it.
//!
//! A page is of use only if it was sent after the answer to the one before ([`Want::Page`]'s `sent_after`); the head of
//! [`counting`] says why. This compares times of one clock. Whoever takes over a reading from another machine must not give it pages
//! that were asked for before that.
//!
//! It ends. A pass reads at most [`MOST_PAGES`] pages, those included that are read again, and a list that is longer ends its
//! reading. There are at most [`Settings::most_passes`] passes, and [`MOST_RESTARTS`] more for sizes that turned out to be clamped
//! and keys that did not ascend. A list whose pages repeat themselves is void at once, and one whose pages show nothing new after
//! [`MOST_FRUITLESS`] of them.
//!
//! What it keeps of each row is small, since every shard of a task reads the lists that span companies: rows of a page belong to all
//! who are shown it, and of a record that was shown there are its id, a hash of its version, and a bit in each pass and
//! count.
//!
//! On failure: a page that cannot be used voids the pass, never a row of it alone. What its earlier pages showed stays shown.

mod asking;
mod counting;
mod page;
mod pass;
mod places;
#[cfg(test)]
mod tests;
mod verdict;

use std::collections::HashSet;

pub use self::{
    asking::{Settings, Unfit, Want, Wish},
    page::{Keys, Row, Seen},
    verdict::Verdict,
};
use self::{
    counting::{Count, Looked, Memory, interval, remember},
    pass::{Pass, Step},
    verdict::count,
};
use crate::{api::Next, model::Method};

/// A list that goes on beyond this does not end.
const MOST_PAGES: u64 = 1_000_000;
/// The same in rows, of which each is remembered.
const MOST_ROWS: u64 = 10_000_000;
/// Anomalies that a verdict names.
const NAMED: usize = 10;
/// Restarts that do not count as passes.
const MOST_RESTARTS: u32 = 3;
/// So many pages in a row that show nothing new: their numbers are not heeded.
const MOST_FRUITLESS: u32 = 8;

/// The reading of one list.
#[derive(Debug, Clone)]
pub struct Reading {
    settings: Settings,
    most_pages: u64,
    /// Rows to ask for: fewer than wished for where the provider clamps.
    size: u32,
    by_key: bool,
    /// From 1.
    pass: u32,
    restarts: u32,
    current: Pass,
    /// Pages and rows of all passes.
    pages: u64,
    rows: u64,
    sent_after: i64,
    memory: Memory,
    counts: Vec<Count>,
    /// Why, and at which page, the last pass was void.
    void: Option<(u32, String)>,
    /// What was odd, though it voids nothing that came later.
    anomaly: Option<String>,
    /// What voided passes, the first of it.
    anomalies: Vec<String>,
    verdict: Option<Verdict>,
}

impl Reading {
    /// Before its first page.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let by_key = settings.method == Wish::Keyset;
        Self {
            most_pages: MOST_PAGES,
            // Pages of no rows would all be full.
            size: settings.page_size.max(1),
            by_key,
            pass: 1,
            restarts: 0,
            current: Pass::new(by_key),
            pages: 0,
            rows: 0,
            sent_after: i64::MIN,
            memory: Memory::new(),
            counts: Vec::new(),
            void: None,
            anomaly: None,
            anomalies: Vec::new(),
            verdict: None,
            settings,
        }
    }

    /// A reading that was shown these pages, in their order.
    ///
    /// # Errors
    /// They are not the pages of one reading with these settings; says which is not.
    pub fn restore(settings: Settings, marks: impl IntoIterator<Item = Seen>) -> Result<Self, String> {
        let mut reading = Self::new(settings);
        for (place, seen) in marks.into_iter().enumerate() {
            reading.look(&seen).map_err(|unfit| format!("mark {}: {unfit}", place + 1))?;
        }
        Ok(reading)
    }

    /// What to read next.
    #[must_use]
    pub fn want(&self) -> Want {
        if self.verdict.is_some() {
            return Want::Over;
        }
        let (number, size) = self.asked();
        let after = if let Step::Key(after, _) = &self.current.step { after.clone() } else { None };
        Want::Page { number, size, after, sent_after: self.sent_after }
    }

    /// What is proved, once nothing more is wanted.
    #[must_use]
    pub fn verdict(&self) -> Option<&Verdict> {
        self.verdict.as_ref()
    }

    /// Whether a page of any pass had this record.
    #[must_use]
    pub fn has_shown(&self, id: u128) -> bool {
        self.memory.contains_key(&id)
    }

    /// Records that any pass has shown: what it costs to hold it.
    #[must_use]
    pub fn remembered(&self) -> u64 {
        self.memory.len() as u64
    }

    /// Whether its next pages may well show records that none has shown: those of later passes show few.
    #[must_use]
    pub fn grows(&self) -> bool {
        self.counts.is_empty() && !matches!(self.current.step, Step::Behind(_))
    }

    /// The pass, its pages and rows so far, and the rows of the list, where they are known.
    #[must_use]
    pub fn progress(&self) -> (u32, u64, u64, Option<u64>) {
        let listed = self.counts.last().map(|count| count.listed).or(self.current.total);
        (self.pass, self.current.looked.len() as u64, self.current.rows, listed)
    }

    /// Looks at a page that was read.
    ///
    /// # Errors
    /// It is not the page that is wanted, or was sent too early. Nothing has changed then.
    pub fn look(&mut self, seen: &Seen) -> Result<(), Unfit> {
        if seen.ends {
            self.end(seen.problem.as_deref().unwrap_or_default());
            return Ok(());
        }
        if self.verdict.is_some() {
            return Err(Unfit::Over);
        }
        let (number, size) = self.asked();
        if (seen.number, seen.asked) != (number, size) {
            return Err(Unfit::Other { number, size, given: seen.number, asked: seen.asked });
        }
        if seen.sent < self.sent_after {
            let (sent, sent_after) = (seen.sent, self.sent_after);
            return Err(Unfit::Early { number, sent, sent_after });
        }
        self.sent_after = seen.answered.max(seen.sent);
        self.take(seen);
        Ok(())
    }

    /// It is over, for a reason that is not the list's.
    pub fn end(&mut self, reason: &str) {
        if self.verdict.is_none() {
            self.conclude(Some(reason.to_owned()));
        }
    }

    /// Number and size of the page that is wanted.
    fn asked(&self) -> (u32, u32) {
        match self.current.step {
            Step::Page(number) => (number, self.size),
            Step::Behind(0) | Step::Key(..) => (1, self.size),
            Step::Behind(rows) => (2, rows),
        }
    }

    fn take(&mut self, seen: &Seen) {
        // There are far fewer: passes are, and the pages of each.
        let turn = u32::try_from(self.pages).unwrap_or(u32::MAX);
        self.pages += 1;
        self.rows += seen.rows.len() as u64;
        self.current.rows += seen.rows.len() as u64;
        self.current.total = seen.total.or(self.current.total);
        let problem = self.problem(seen);
        for row in &*seen.rows {
            let (place, before) = remember(&mut self.memory, row, turn);
            if problem.is_none() {
                for count in &mut self.counts {
                    count.show(row, place, before);
                }
            }
        }
        self.current.looked.push(Looked { turn, seen: seen.clone() });
        if let Some(problem) = problem {
            // A filter by key may be one that the provider does not take: without it there are pages.
            if let Step::Key(Some(_), _) = self.current.step {
                return self.by_page(self.current.looked.len(), &problem);
            }
            return self.give_up_pass(seen.number, problem);
        }
        self.prove();
        if self.verdict.is_some() {
            return;
        }
        match self.current.step.clone() {
            Step::Page(_) => self.page(seen),
            Step::Behind(rows) => self.behind(rows, seen),
            Step::Key(after, empty) => self.key(after.as_deref(), empty, seen),
        }
        let too_many = if self.current.looked.len() as u64 > self.most_pages {
            Some(format!("{} pages", self.most_pages))
        } else {
            (self.current.rows > MOST_ROWS).then(|| format!("{MOST_ROWS} rows"))
        };
        if let Some(most) = too_many.filter(|_| self.verdict.is_none()) {
            self.void = Some((seen.number, format!("it does not end within {most}")));
            self.conclude(None);
        }
    }

    /// Why a page cannot be used, whatever it is for.
    fn problem(&self, seen: &Seen) -> Option<String> {
        if let Some(problem) = &seen.problem {
            return Some(problem.clone());
        }
        if seen.cached {
            return Some("it lay in a cache on the way".to_owned());
        }
        if seen.answered < seen.sent {
            return Some("our clock went back while it was read".to_owned());
        }
        let (rows, asked) = (seen.rows.len(), seen.asked);
        if rows > asked as usize && !self.by_key {
            return Some(format!("it has {rows} rows, and {asked} were asked for"));
        }
        let mut ids = HashSet::with_capacity(rows);
        let twice = seen.rows.iter().position(|row| !ids.insert(row.id));
        twice.map(|row| format!("row {} has the id of an earlier one", row + 1))
    }

    /// A page of a pass by page.
    fn page(&mut self, seen: &Seen) {
        let before = self.current.shown.count();
        let judged = self.current.look(seen, &self.memory);
        if seen.number == 1 && seen.rows.len() < self.size as usize && self.current.looked.len() == 1 {
            // Fits into 32 bits, as the size does that it is below.
            self.current.step = Step::Behind(u32::try_from(seen.rows.len()).unwrap_or(0));
            return;
        }
        if judged.oddities.repeated > 0 {
            return self.give_up_pass(seen.number, "it repeats the page before it".to_owned());
        }
        if judged.oddities.clamped > 0 {
            let why = "it is short twice, and there are rows behind it";
            return self.give_up_pass(seen.number, why.to_owned());
        }
        let fruitless = self.current.shown.count() == before && !seen.rows.is_empty();
        self.current.fruitless = if fruitless { self.current.fruitless + 1 } else { 0 };
        if self.current.fruitless >= MOST_FRUITLESS {
            let why = format!("it and the {} before it show nothing new", MOST_FRUITLESS - 1);
            return self.give_up_pass(seen.number, why);
        }
        match judged.next {
            Next::Page(number) | Next::Again(number) => self.current.step = Step::Page(number),
            Next::End => self.close(),
            Next::Endless => {
                self.void = Some((seen.number, "it does not end".to_owned()));
                self.conclude(None);
            }
        }
    }

    /// What is behind a short page 1.
    fn behind(&mut self, rows: u32, seen: &Seen) {
        if seen.rows.is_empty() {
            return self.single();
        }
        if rows == 0 {
            // It was empty and is not any more: this is its page 1.
            let last = self.current.looked.pop();
            self.current = Pass { looked: last.into_iter().collect(), ..Pass::new(false) };
            self.current.rows = seen.rows.len() as u64;
            self.current.total = seen.total;
            return self.page(seen);
        }
        let why = format!("the provider gives {rows} rows where {} are asked for", self.size);
        self.size = rows;
        self.restart(2, why);
    }

    /// Page 1 was all of it.
    fn single(&mut self) {
        let counted = Count::of(&self.current.looked, self.size, self.settings.clock_skew, &self.memory);
        match counted {
            Ok(count) => {
                self.counts.push(count);
                self.verdict = Some(self.proved(self.counts.len() - 1, Method::Single));
            }
            Err((page, why)) => self.give_up_pass(page, why),
        }
    }

    /// A page of a pass by key.
    fn key(&mut self, after: Option<&str>, empty: bool, seen: &Seen) {
        let read = self.current.looked.len();
        let Some(keys) = seen.keys.as_ref().filter(|_| !seen.rows.is_empty()) else {
            if !seen.rows.is_empty() {
                return self.by_page(read, "its rows have no keys");
            }
            // A list that seems to have nothing at all is asked once more.
            if after.is_none() && !empty {
                self.current.step = Step::Key(None, true);
                return;
            }
            return self.keyset();
        };
        self.current.show(seen, &self.memory);
        if !keys.ascending {
            return self.by_page(read, "its keys do not ascend");
        }
        if after.is_some_and(|after| !is_above(&keys.first, after)) {
            return self.by_page(read, "it begins before the end of the page before it");
        }
        self.current.step = Step::Key(Some(keys.last.clone()), false);
    }

    /// Keys are not what they should be.
    fn by_page(&mut self, page: usize, why: &str) {
        self.by_key = false;
        let why = format!("by key, page {page}: {why}");
        self.anomaly = Some(why.clone());
        self.restart(u32::try_from(page).unwrap_or(u32::MAX), why);
    }

    /// Every key up to the end has been asked for.
    fn keyset(&mut self) {
        let skew = self.settings.clock_skew;
        let cut = |looked: &Looked| interval(&looked.seen, skew);
        // Of all rows only the first page tells how many there are; the others are filtered.
        let (read, told) =
            (self.current.shown.count(), self.current.looked.first().and_then(|one| one.seen.total));
        if let Some(total) = told.filter(|total| *total > read) {
            return self.give_up_pass(1, format!("the provider counts {total} rows, its pages have {read}"));
        }
        let verdict = Verdict {
            certified: true,
            method: Method::Keyset,
            distinct: Some(count(self.current.shown.count())),
            missing_at_most: Some(0),
            cut_after: self.current.looked.first().map(|looked| cut(looked).0),
            cut_before: self.current.looked.last().map(|looked| cut(looked).1),
            ..self.unproved(None)
        };
        self.verdict = Some(verdict);
    }

    /// The pass has come to its end.
    fn close(&mut self) {
        let counted = Count::of(&self.current.looked, self.size, self.settings.clock_skew, &self.memory);
        match counted {
            Ok(count) => {
                self.counts.push(count);
                self.void = None;
                self.prove();
                self.next_pass();
            }
            Err((page, why)) => self.give_up_pass(page, why),
        }
    }

    /// Whether a pass is proved by now; the latest is the best.
    fn prove(&mut self) {
        if self.verdict.is_some() {
            return;
        }
        if let Some(place) = self.counts.iter().rposition(|count| count.missing() == Some(0)) {
            self.verdict = Some(self.proved(place, Method::Counting));
        }
    }

    fn give_up_pass(&mut self, page: u32, why: String) {
        if self.anomalies.len() < NAMED {
            self.anomalies.push(format!("pass {}, page {page}: {why}", self.pass));
        }
        self.void = Some((page, why));
        self.next_pass();
    }

    /// Begins again for a reason that is known now, and should not be held against the list.
    fn restart(&mut self, page: u32, why: String) {
        self.restarts += 1;
        self.give_up_pass(page, why);
    }

    fn next_pass(&mut self) {
        if self.verdict.is_some() {
            return;
        }
        if self.pass >= self.settings.most_passes.saturating_add(self.restarts.min(MOST_RESTARTS)) {
            return self.conclude(None);
        }
        self.pass += 1;
        self.current = Pass::new(self.by_key);
    }
}

/// Whether a key comes after another: as numbers where both are, of which 10 comes after 9.
fn is_above(key: &str, other: &str) -> bool {
    match (key.parse::<i128>(), other.parse::<i128>()) {
        (Ok(key), Ok(other)) => key > other,
        _ => key > other,
    }
}
