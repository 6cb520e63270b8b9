//! The reading of one list in one run: which page to request next, and what is proved at the end. No I/O.
//!
//! ```text
//! page 1 ─ full ─▶ pages 2, 3, … until no rows follow ─▶ counted ─▶ next pass ─▶ its pages complete the count ─▶ proved: counting
//!    │
//!    └─ short, r rows ─▶ page 2 of size r ─┬─ empty ─┬─ a longer page is known ──────────────────▶ proved: single
//!                                          │         └─ page 1 again ─┬─ same ids ───────────────▶ proved: single
//!                                          │                          └─ other ids ──────────────▶ void
//!                                          └─ rows ──┬─ the first time ──────────────────────────▶ void
//!                                                    └─ again: r rows is the limit ──────────────▶ this pass with size r
//!
//! void, also after an unusable page: the pass is not counted, and the next pass begins
//!
//! incremental run:
//! page 1 without the filter ─┬─ full ─▶ page 1 with it, … ─▶ counted ─┬─ the filter passed its check ─▶ read, not certified
//!                            │                                        └─ it failed, or void ──────────▶ the whole list
//!                            └─ short, or it cannot check the filter ─────────────────────────────────▶ the whole list
//! ```
//!
//! - **single**: page 1 has *r* rows, fewer than requested, and page 2 of size *r* is empty (for *r* = 0: page 1 is empty twice). If a
//!   list of the same path has shown a longer page, the provider returns more than *r* rows per page, so page 1 was the whole list at
//!   its cut. Otherwise page 1 is read again. If its rows are the same, all of them were listed when page 2 was empty, and no more
//!   than *r*: they were the list at that cut.
//! - **counting**: see the theorem in `pass`.
//!
//! **Filters** exist only for the payroll list. The provider's filters are undocumented, and an answer to one proves nothing. A filter
//! for rows that changed after a moment passes its check in this run if
//!
//! - page 1 without the filter has a time of change for each row, and rows that changed later than the moment,
//! - the filter returns all of these, and also rows that are not on that page: it is not applied to each page separately,
//! - and the filter returns no row that changed earlier.
//!
//! Otherwise the whole list is read. A filter that is right about one page may still omit rows of others, so a list read with it is
//! never certified. A filter that an operator configured cannot be checked: the rows that it returns are read and certified, unless
//! there are none.
//!
//! **Page size.** A short page 1 followed by rows means that the provider limits the page size, or that a row was added just then.
//! The limit is believed after the same size has appeared twice, and for one pass: each pass requests full pages first.
//!
//! A reading depends on its settings and pages only: the same of both lead to the same verdict. So the stored pages ([`Seen`]) are its
//! whole state, and [`Reading::restore`] replays them.
//!
//! A page counts only if it was sent after the answer to the previous page ([`ReadingStep::Page`]'s `sent_after`); `pass` explains
//! why. Both times must come from one clock: a worker that resumes a reading of another machine must not use pages that were
//! requested before it took over.
//!
//! A reading ends. A pass reads at most `MOST_PAGES` pages, repeated ones included; a longer list ends its reading without a proof.
//! There are at most [`Settings::most_passes`] passes, plus `MOST_RESTARTS` for clamped page sizes and rejected filters. Pages that
//! repeat void the pass at once, pages without new records after `MOST_FRUITLESS` of them.
//!
//! Memory per row is small: each shown record takes its id, a hash of its version, and one bit per pass and count.
//!
//! On failure: an unusable page voids its pass as a whole, never a single row. Rows of the pass's earlier pages count as shown.

mod page;
mod pass;
#[cfg(test)]
mod tests;
mod verdict;

use std::collections::HashSet;

use roaring::RoaringBitmap;

use model::CertificateMethod;
use provider::api::NextPage;

pub use self::{
    page::{PageAnswer, Row, Seen},
    pass::{Filter, ReadingStep, Settings},
};
use self::{
    pass::{Pass, PassCount, PassPage, PassStep, ShownRecords, remember},
    verdict::ProofVerdict,
};

/// Pages per pass; a longer list counts as endless.
const MOST_PAGES: u64 = 1_000_000;
/// Rows per pass; a longer list counts as endless. Each row is remembered.
const MOST_ROWS: u64 = 10_000_000;
/// Anomalies that a certificate names.
const MAX_ANOMALIES: usize = 10;
/// Restarts that do not count as passes: for a page size that the provider limits, and for a filter.
const MOST_RESTARTS: u32 = 3;
/// Why a reading of changed rows is not certified.
const ONLY_CHANGES: &str = "only changed records were read, and the provider's filter may omit some; start a run that is not \
                            incremental to certify the list";
/// Consecutive pages without a new record after which the provider seems to ignore page numbers.
const MOST_FRUITLESS: u32 = 8;

/// The reading of one list.
#[derive(Debug, Clone)]
pub struct Reading {
    settings: Settings,
    paging: Paging,
    filter: FilterEvidence,
    passes: Passes,
    current: Pass,
    read: PagesRead,
    memory: ShownRecords,
    counts: Vec<PassCount>,
    verdict: Option<ProofVerdict>,
}

/// How the provider pages the list.
#[derive(Debug, Clone)]
struct Paging {
    most_pages: u64,
    /// Rows per page in this pass: fewer than configured if the provider limits them.
    size: u32,
    /// A page size limit that was seen once.
    suspected: Option<u32>,
    /// A page size limit that was seen twice.
    limit: Option<u32>,
    /// The provider's number of the first page.
    base: Option<u32>,
}

/// The passes so far.
#[derive(Debug, Clone)]
struct Passes {
    /// The current one, from 1.
    number: u32,
    restarts: u32,
    /// Page and reason of the last void pass.
    void: Option<(u32, String)>,
    /// The first [`MAX_ANOMALIES`] reasons of void passes.
    anomalies: Vec<String>,
}

/// Pages and rows of all passes.
#[derive(Debug, Clone)]
struct PagesRead {
    pages: u64,
    rows: u64,
    /// When the last page was answered.
    sent_after: i64,
}

/// Rows that the filter returns, for its check.
#[derive(Debug, Clone, Default)]
struct FilterEvidence {
    /// Whether pages are requested with the filter.
    is_used: bool,
    /// Indexes of the records that it must return, because page 1 without the filter shows that they changed later.
    expected: Vec<u32>,
    /// Indexes of the records that it returned.
    through: RoaringBitmap,
    /// Number of records on page 1 without the filter. They have the first indexes.
    plain: u32,
    /// It returned a record that is not on page 1 without the filter.
    has_more: bool,
    /// It returned a record that changed earlier.
    has_earlier: bool,
}

impl Reading {
    /// Starts a reading.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let is_changed = matches!(settings.filter, Some(Filter::Changed { .. }));
        let mut current = Pass::new();
        if is_changed {
            current.step = PassStep::Plain;
        }
        Self {
            paging: Paging {
                most_pages: MOST_PAGES,
                size: full(&settings),
                suspected: None,
                limit: None,
                base: None,
            },
            filter: FilterEvidence {
                is_used: settings.filter.is_some() && !is_changed,
                ..FilterEvidence::default()
            },
            passes: Passes { number: 1, restarts: 0, void: None, anomalies: Vec::new() },
            current,
            read: PagesRead { pages: 0, rows: 0, sent_after: i64::MIN },
            memory: ShownRecords::new(),
            counts: Vec::new(),
            verdict: None,
            settings,
        }
    }

    /// Restores a reading from its pages, in order.
    ///
    /// # Errors
    /// A page, which the message names, does not belong to a reading with these settings.
    pub fn restore(settings: Settings, marks: impl IntoIterator<Item = Seen>) -> Result<Self, String> {
        let mut reading = Self::new(settings);
        for (index, seen) in marks.into_iter().enumerate() {
            reading.look(&seen).map_err(|unfit| format!("mark {}: {unfit}", index + 1))?;
        }
        Ok(reading)
    }

    /// Returns what to read next.
    #[must_use]
    pub fn want(&self) -> ReadingStep {
        if self.verdict.is_some() {
            return ReadingStep::Over;
        }
        let (number, size) = self.wanted();
        ReadingStep::Page { number, size, filtered: self.filter.is_used, sent_after: self.read.sent_after }
    }

    /// Whether pages are read with a filter instead of the whole list.
    #[must_use]
    pub fn is_filtered(&self) -> bool {
        self.filter.is_used
    }

    /// Whether a page of any pass has shown this record.
    #[must_use]
    pub fn has_shown(&self, id: u128) -> bool {
        self.memory.contains_key(&id)
    }

    /// Number of records that any pass has shown. It determines the memory of the reading.
    #[must_use]
    pub fn remembered(&self) -> u64 {
        self.memory.len() as u64
    }

    /// Whether its next pages may show many new records. Those of later passes show few.
    #[must_use]
    pub fn grows(&self) -> bool {
        self.counts.is_empty() && !matches!(self.current.step, PassStep::AfterShort(_))
    }

    /// The pass, its pages and rows so far, and the rows of the list, if known.
    #[must_use]
    pub fn progress(&self) -> (u32, u64, u64, Option<u64>) {
        let listed = self.counts.last().map(|count| count.listed).or(self.current.total);
        (self.passes.number, self.current.pages.len() as u64, self.current.rows, listed)
    }

    /// Takes a page that was read.
    ///
    /// # Errors
    /// The page is not the wanted one, or was sent too early. The reading is unchanged.
    pub fn look(&mut self, seen: &Seen) -> Result<(), String> {
        if seen.ends {
            self.end(seen.problem.as_deref().unwrap_or_default());
            return Ok(());
        }
        if self.verdict.is_some() {
            return Err("the list already has its verdict".to_owned());
        }
        let (number, size) = self.wanted();
        if (seen.number, seen.asked) != (number, size) {
            let Seen { number: given, asked, .. } = seen;
            return Err(format!("expected page {number} of size {size}, got page {given} of size {asked}"));
        }
        if seen.answer.sent < self.read.sent_after {
            let (sent, sent_after) = (seen.answer.sent, self.read.sent_after);
            return Err(format!("page {number} was sent too early: at {sent}, before {sent_after}"));
        }
        self.read.sent_after = seen.answer.answered.max(seen.answer.sent);
        self.take(seen);
        Ok(())
    }

    /// Ends the reading for a reason that its pages do not show.
    pub fn end(&mut self, reason: &str) {
        if self.verdict.is_none() {
            self.conclude(Some(reason.to_owned()));
        }
    }

    /// Number and size of the wanted page.
    fn wanted(&self) -> (u32, u32) {
        match self.current.step {
            PassStep::Page(number) => (number, self.paging.size),
            PassStep::Plain | PassStep::Repeat | PassStep::AfterShort(0) => (1, self.paging.size),
            PassStep::AfterShort(rows) => (2, rows),
        }
    }

    fn take(&mut self, seen: &Seen) {
        // The limits on passes and pages keep it far below the maximum.
        let turn = u32::try_from(self.read.pages).unwrap_or(u32::MAX);
        self.read.pages += 1;
        self.read.rows += seen.rows.len() as u64;
        self.current.rows += seen.rows.len() as u64;
        self.current.total = seen.total.or(self.current.total);
        let problem = self.page_problem(seen);
        self.paging.base = self.paging.base.or(seen.base);
        for row in &*seen.rows {
            let (index, before) = remember(&mut self.memory, row, turn);
            if self.filter.is_used {
                self.filter.through.insert(index);
                self.filter.has_more |= index >= self.filter.plain;
                self.filter.has_earlier |= self.is_earlier(row);
            }
            if problem.is_none() {
                for count in &mut self.counts {
                    count.show(row, index, before);
                }
            }
        }
        self.current.pages.push(PassPage { turn, seen: seen.clone() });
        if let Some(problem) = problem {
            return self.void_pass(seen.number, problem);
        }
        let pass = self.passes.number;
        self.prove();
        if self.verdict.is_some() || self.passes.number != pass {
            return;
        }
        match self.current.step {
            PassStep::Plain => self.take_plain(seen),
            PassStep::Page(_) => self.take_page(seen),
            PassStep::AfterShort(rows) => self.take_after_short(rows, seen),
            PassStep::Repeat => self.take_repeat(seen),
        }
        let too_many = if self.current.pages.len() as u64 > self.paging.most_pages {
            Some(format!("{} pages", self.paging.most_pages))
        } else {
            (self.current.rows > MOST_ROWS).then(|| format!("{MOST_ROWS} rows"))
        };
        if let Some(most) = too_many.filter(|_| self.verdict.is_none()) {
            self.passes.void = Some((seen.number, format!("it does not end within {most}")));
            self.conclude(None);
        }
    }

    /// Why a page is unusable in any step.
    fn page_problem(&self, seen: &Seen) -> Option<String> {
        if let Some(problem) = &seen.problem {
            return Some(problem.clone());
        }
        if seen.answer.cached {
            return Some("a cache answered it".to_owned());
        }
        if seen.answer.answered < seen.answer.sent {
            return Some("our clock went backward while it was read".to_owned());
        }
        if let (Some(base), Some(before)) =
            (seen.base, self.paging.base.filter(|before| Some(*before) != seen.base))
        {
            return Some(format!("the first page has the number {base}, but had {before} before"));
        }
        let (rows, asked) = (seen.rows.len(), seen.asked);
        if rows > asked as usize {
            return Some(format!("it has {rows} rows, but {asked} were requested"));
        }
        let mut ids = HashSet::with_capacity(rows);
        let twice = seen.rows.iter().position(|row| !ids.insert(row.id));
        twice.map(|row| format!("row {} has the id of an earlier one", row + 1))
    }

    /// Takes a page of a page-by-page pass.
    fn take_page(&mut self, seen: &Seen) {
        let before = self.current.shown.len();
        let judged = self.current.look(seen, &self.memory);
        if seen.number == 1 && seen.rows.len() < self.paging.size as usize && self.current.pages.len() == 1 {
            // Fits into 32 bits, because it is below the size.
            let rows = u32::try_from(seen.rows.len()).unwrap_or(0);
            if self.paging.limit == Some(rows) && self.paging.size > rows {
                return self.restart_pass(rows);
            }
            self.current.step = PassStep::AfterShort(rows);
            return;
        }
        if judged.oddities.repeated > 0 {
            return self.void_pass(seen.number, "it repeats the page before it".to_owned());
        }
        if judged.oddities.clamped > 0 {
            let why = "it was short twice, but rows follow it";
            return self.void_pass(seen.number, why.to_owned());
        }
        let fruitless = self.current.shown.len() == before && !seen.rows.is_empty();
        self.current.fruitless = if fruitless { self.current.fruitless + 1 } else { 0 };
        if self.current.fruitless >= MOST_FRUITLESS {
            let why = format!("it and the {} pages before it show no new record", MOST_FRUITLESS - 1);
            return self.void_pass(seen.number, why);
        }
        match judged.next {
            NextPage::Page(number) | NextPage::Again(number) => self.current.step = PassStep::Page(number),
            NextPage::End => self.finish_pass(),
            NextPage::TooLong => {
                self.passes.void = Some((seen.number, "it does not end".to_owned()));
                self.conclude(None);
            }
        }
    }

    /// Takes page 1 without the filter, which determines what the filter must return.
    fn take_plain(&mut self, seen: &Seen) {
        let later = seen.rows.iter().filter(|row| self.is_later(row));
        let expected: Vec<u32> =
            later.filter_map(|row| self.memory.get(&row.id)).map(|known| known.index).collect();
        let tells_all = seen.rows.iter().all(|row| row.changed_at.is_some());
        if seen.rows.len() < self.paging.size as usize || expected.is_empty() || !tells_all {
            // The page is short, or its rows cannot check the filter: read the whole list.
            self.current.step = PassStep::Page(1);
            return self.take_page(seen);
        }
        let plain = u32::try_from(self.memory.len()).unwrap_or(u32::MAX);
        self.filter = FilterEvidence { is_used: true, expected, plain, ..FilterEvidence::default() };
        self.current = Pass::new();
    }

    /// Whether the filter must return a row.
    fn is_later(&self, row: &Row) -> bool {
        let Some(Filter::Changed { after, margin }) = self.settings.filter else { return false };
        row.changed_at.is_some_and(|at| at > after.saturating_add(margin))
    }

    /// Whether the filter must not return a row.
    fn is_earlier(&self, row: &Row) -> bool {
        let Some(Filter::Changed { after, margin }) = self.settings.filter else { return false };
        row.changed_at.is_some_and(|at| at < after.saturating_sub(margin))
    }

    /// Takes the page after a short page 1.
    fn take_after_short(&mut self, rows: u32, seen: &Seen) {
        if seen.rows.is_empty() {
            if rows == 0 || seen.widest > rows {
                return self.prove_single(false);
            }
            self.current.step = PassStep::Repeat;
            return;
        }
        if rows == 0 {
            // The list is no longer empty: this is page 1 of the pass.
            let last = self.current.pages.pop();
            self.current = Pass { pages: last.into_iter().collect(), ..Pass::new() };
            self.current.rows = seen.rows.len() as u64;
            self.current.total = seen.total;
            return self.take_page(seen);
        }
        if self.paging.suspected == Some(rows) {
            self.paging.limit = Some(rows);
            return self.restart_pass(rows);
        }
        let why = format!("the provider returns {rows} rows although {} are requested", self.paging.size);
        self.paging.suspected = Some(rows);
        // A detected limit does not use up a pass of the list.
        self.passes.restarts += 1;
        self.void_pass(2, why);
    }

    /// Restarts the pass with `rows` rows per page.
    fn restart_pass(&mut self, rows: u32) {
        self.paging.size = rows;
        self.current = Pass::new();
    }

    /// Takes page 1 again, after an empty page 2.
    fn take_repeat(&mut self, seen: &Seen) {
        let ids = |rows: &[Row]| rows.iter().map(|row| row.id).collect::<HashSet<u128>>();
        let is_same =
            self.current.pages.first().is_some_and(|first| ids(&first.seen.rows) == ids(&seen.rows));
        if is_same {
            return self.prove_single(true);
        }
        self.void_pass(1, "it changed while page 2 was read to check that no rows follow".to_owned());
    }

    /// Page 1 was the whole list: at its own cut, or, with `uses_empty_page`, at that of the empty page after it.
    fn prove_single(&mut self, uses_empty_page: bool) {
        let (pass, skew) = (&self.current.pages, self.settings.clock_skew);
        let counted = if uses_empty_page {
            PassCount::of_single(pass, skew, &self.memory)
        } else {
            PassCount::of(pass, self.paging.size, skew, &self.memory)
        };
        match counted {
            Ok(count) => {
                self.counts.push(count);
                self.certify(CertificateMethod::Single, self.counts.len() - 1);
            }
            Err((page, why)) => self.void_pass(page, why),
        }
    }

    /// Concludes with the proof of the count at this index, if the filter passes its check.
    fn certify(&mut self, method: CertificateMethod, index: usize) {
        let doubt = self.settings.filter.as_ref().and_then(|filter| self.filter_doubt(filter));
        match (doubt, self.settings.filter) {
            (None, Some(Filter::Changed { .. })) if self.filter.is_used => {
                self.verdict = Some(ProofVerdict::Changes(index));
            }
            (None, _) => self.verdict = Some(ProofVerdict::Proved(method, index)),
            (Some(why), Some(Filter::Configured)) => self.conclude(Some(why)),
            (Some(why), _) => self.void_pass(1, why),
        }
    }

    /// Why the filter fails its check.
    fn filter_doubt(&self, filter: &Filter) -> Option<String> {
        let FilterEvidence { expected, through, has_more, has_earlier, .. } = &self.filter;
        if !self.filter.is_used {
            return None;
        }
        if through.is_empty() {
            return Some("the filter returns no rows; the provider may not understand it".to_owned());
        }
        if *filter == Filter::Configured {
            return None;
        }
        if *has_earlier {
            return Some("the filter returns rows that changed earlier".to_owned());
        }
        let missing = expected.iter().filter(|index| !through.contains(**index)).count();
        if missing > 0 {
            return Some(format!("the filter omits {missing} rows of page 1 that changed later"));
        }
        (!has_more).then(|| {
            "the filter returns only rows of page 1; it may be applied to each page separately".to_owned()
        })
    }

    /// Counts a pass that has reached the end of the list.
    fn finish_pass(&mut self) {
        let counted =
            PassCount::of(&self.current.pages, self.paging.size, self.settings.clock_skew, &self.memory);
        match counted {
            Ok(count) => {
                self.counts.push(count);
                self.passes.void = None;
                let pass = self.passes.number;
                self.prove();
                if self.passes.number == pass {
                    self.next_pass();
                }
            }
            Err((page, why)) => self.void_pass(page, why),
        }
    }

    /// Concludes if a pass is proved, preferably the latest.
    fn prove(&mut self) {
        if self.verdict.is_some() {
            return;
        }
        if let Some(index) = self.counts.iter().rposition(|count| count.missing() == Some(0)) {
            self.certify(CertificateMethod::Counting, index);
        }
    }

    fn void_pass(&mut self, page: u32, mut why: String) {
        let is_plain = self.current.step == PassStep::Plain;
        if (self.filter.is_used || is_plain) && self.settings.filter != Some(Filter::Configured) {
            // Counts with the filter say nothing about the whole list.
            self.counts.clear();
            if !is_plain {
                why = format!("with the filter: {why}");
            }
            self.filter.is_used = false;
            self.passes.restarts += 1;
        }
        if self.passes.anomalies.len() < MAX_ANOMALIES {
            self.passes.anomalies.push(format!("pass {}, page {page}: {why}", self.passes.number));
        }
        self.passes.void = Some((page, why));
        self.next_pass();
    }

    fn next_pass(&mut self) {
        if self.verdict.is_some() {
            return;
        }
        if self.passes.number
            >= self.settings.most_passes.saturating_add(self.passes.restarts.min(MOST_RESTARTS))
        {
            return self.conclude(None);
        }
        self.passes.number += 1;
        self.paging.size = full(&self.settings);
        self.current = Pass::new();
    }
}

/// Rows per page. Pages of size 0 would all be full.
fn full(settings: &Settings) -> u32 {
    settings.page_size.max(1)
}
