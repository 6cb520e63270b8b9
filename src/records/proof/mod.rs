//! The reading of one list in one run: which page to ask for, and what is proved in the end.
//!
//! ```text
//!             ┌──────────────────── void: the next pass ◀────────────────────┐
//!             ▼                                                              │
//! page 1 ─ full ─▶ pages 2, 3, … until there is nothing behind ─▶ counted ───┴─▶ proved by a later pass: counting
//!    │
//!    └─ short, r rows ─▶ page 2 of size r: empty ─▶ page 1 again, unless longer pages are known: the same ─▶ proved: single
//!                                        └─ rows, twice ─▶ the provider gives r rows at once: this pass with size r
//!
//! what changed: page 1 without the filter ─▶ the same with it ─▶ counted, and the filter has proved itself: read, not certified
//!                        └─ short ─┐           └─ it has not, or a pass is void
//!                                  └───────────┴─▶ the whole list, without it
//! ```
//!
//! - **single**: page 1 shows *r* rows, fewer than asked for, and page 2 of size *r* is empty (for *r* = 0, page 1 is empty once
//!   more). If a list of the same path has shown a longer page, the provider gives more than *r* rows at once, and page 1 was the whole
//!   list at its cut. If not, page 1 is read once more. If it shows the same rows, all of them were listed when page 2 was
//!   empty, and there were no more than *r*: they were the list at that cut.
//! - **counting**: see `counting`, where the theorem is.
//!
//! **Filters.** No document says what the provider makes of a filter, and an answer to one proves nothing by itself. A filter for rows
//! that changed after a moment has proved itself in this run if
//!
//! - the plain page 1 tells of every row when it changed, and shows rows that changed later,
//! - the filter lets all of these through, and more that are not on the plain page 1: it is not applied to each page alone,
//! - and none that changed earlier.
//!
//! Otherwise the whole list is read. A filter that agrees with one page may still leave out rows of others, so that a list which was
//! read with it is never certified. A filter that an operator has configured cannot be checked: what it lets through is read and
//! proved, unless that is nothing.
//!
//! **Page size.** A short page 1 with rows behind it may be a page size that the provider limits, or a row that was added just
//! then. It is believed once the same number has come twice, for one pass: each pass asks for full pages first.
//!
//! A reading is told pages, and nothing else; the same pages lead to the same verdict. So what is kept of each page ([`Seen`]) is
//! the whole of its state, and [`Reading::restore`] replays it.
//!
//! A page is of use only if it was sent after the answer to the one before ([`ReadingStep::Page`]'s `sent_after`); the head of
//! `counting` says why. This compares times of one clock. Whoever takes over a reading from another machine must not give it pages
//! that were asked for before that.
//!
//! It ends. A pass reads at most `MOST_PAGES` pages, those included that are read again, and a list that is longer ends its
//! reading. There are at most [`Settings::most_passes`] passes, and `MOST_RESTARTS` more for sizes that turned out to be clamped
//! and keys that did not ascend. A list whose pages repeat themselves is void at once, and one whose pages show nothing new after
//! `MOST_FRUITLESS` of them.
//!
//! What it keeps of each row is small, since every shard of a task reads the lists that span companies: rows of a page belong to all
//! who are shown it, and of a record that was shown there are its id, a hash of its version, and a bit in each pass and
//! count.
//!
//! On failure: a page that cannot be used voids the pass, never a row of it alone. What its earlier pages showed stays shown.

mod counting;
mod page;
mod pass;
mod settings;
#[cfg(test)]
mod tests;
mod verdict;

use std::collections::HashSet;

use roaring::RoaringBitmap;

use model::CertificateMethod;
use provider::api::NextPage;

use self::{
    counting::{PassCount, PassPage, ShownRecords, remember},
    pass::{Pass, PassStep},
    verdict::ProofVerdict,
};
pub use self::{
    page::{Row, Seen},
    settings::{Filter, ReadingStep, Settings},
};

/// A list that goes on beyond this does not end.
const MOST_PAGES: u64 = 1_000_000;
/// The same in rows, of which each is remembered.
const MOST_ROWS: u64 = 10_000_000;
/// Anomalies that a verdict names.
const MAX_ANOMALIES: usize = 10;
/// Restarts that do not count as passes: for a page size that the provider limits, and for a filter.
const MOST_RESTARTS: u32 = 3;
/// Why a list is not certified of which only changes were read.
const ONLY_CHANGES: &str = "only what has changed was read, and nothing proves what the provider's filter leaves out; a run that is \
                            not incremental proves the list";
/// So many pages in a row that show nothing new: their numbers are not heeded.
const MOST_FRUITLESS: u32 = 8;

/// The reading of one list.
#[derive(Debug, Clone)]
pub struct Reading {
    settings: Settings,
    most_pages: u64,
    /// Rows to ask for in this pass: fewer than wished for where the provider limits them.
    size: u32,
    /// A limit that was seen once, and one that was seen again.
    suspected: Option<u32>,
    limit: Option<u32>,
    /// Whether pages are asked for with the filter.
    is_filtered: bool,
    filter: FilterEvidence,
    /// The provider's number of the first page.
    base: Option<u32>,
    /// From 1.
    pass: u32,
    restarts: u32,
    current: Pass,
    /// Pages and rows of all passes.
    pages: u64,
    rows: u64,
    sent_after: i64,
    memory: ShownRecords,
    counts: Vec<PassCount>,
    /// Why, and at which page, the last pass was void.
    void: Option<(u32, String)>,
    /// What voided passes, the first of it.
    anomalies: Vec<String>,
    verdict: Option<ProofVerdict>,
}

/// What the filter lets through.
#[derive(Debug, Clone, Default)]
struct FilterEvidence {
    /// Records that it has to let through, by their places: the plain page 1 shows that they changed later.
    expected: Vec<u32>,
    through: RoaringBitmap,
    /// Records of the plain page 1, which have the first places.
    plain: u32,
    /// Whether one that it lets through is not on the plain page 1.
    has_more: bool,
    /// Whether one that it lets through changed earlier.
    has_earlier: bool,
}

impl Reading {
    /// Before its first page.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let is_changed = matches!(settings.filter, Some(Filter::Changed { .. }));
        let mut current = Pass::new();
        if is_changed {
            current.step = PassStep::Plain;
        }
        Self {
            most_pages: MOST_PAGES,
            size: full(&settings),
            suspected: None,
            limit: None,
            is_filtered: settings.filter.is_some() && !is_changed,
            filter: FilterEvidence::default(),
            base: None,
            pass: 1,
            restarts: 0,
            current,
            pages: 0,
            rows: 0,
            sent_after: i64::MIN,
            memory: ShownRecords::new(),
            counts: Vec::new(),
            void: None,
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
    pub fn want(&self) -> ReadingStep {
        if self.verdict.is_some() {
            return ReadingStep::Over;
        }
        let (number, size) = self.wanted();
        ReadingStep::Page { number, size, filtered: self.is_filtered, sent_after: self.sent_after }
    }

    /// Whether it is about what the filter lets through, and not about the whole list.
    #[must_use]
    pub fn is_filtered(&self) -> bool {
        self.is_filtered
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
        self.counts.is_empty() && !matches!(self.current.step, PassStep::Behind(_))
    }

    /// The pass, its pages and rows so far, and the rows of the list, where they are known.
    #[must_use]
    pub fn progress(&self) -> (u32, u64, u64, Option<u64>) {
        let listed = self.counts.last().map(|count| count.listed).or(self.current.total);
        (self.pass, self.current.pages.len() as u64, self.current.rows, listed)
    }

    /// Looks at a page that was read.
    ///
    /// # Errors
    /// It is not the page that is wanted, or was sent too early. Nothing has changed then.
    pub fn look(&mut self, seen: &Seen) -> Result<(), String> {
        if seen.ends {
            self.end(seen.problem.as_deref().unwrap_or_default());
            return Ok(());
        }
        if self.verdict.is_some() {
            return Err("the list has its verdict".to_owned());
        }
        let (number, size) = self.wanted();
        if (seen.number, seen.asked) != (number, size) {
            let Seen { number: given, asked, .. } = seen;
            return Err(format!(
                "page {number} of size {size} is wanted, and this is page {given} of size {asked}"
            ));
        }
        if seen.sent < self.sent_after {
            let (sent, sent_after) = (seen.sent, self.sent_after);
            return Err(format!("page {number} was sent too early: at {sent}, and not after {sent_after}"));
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
    fn wanted(&self) -> (u32, u32) {
        match self.current.step {
            PassStep::Page(number) => (number, self.size),
            PassStep::Plain | PassStep::Repeat | PassStep::Behind(0) => (1, self.size),
            PassStep::Behind(rows) => (2, rows),
        }
    }

    fn take(&mut self, seen: &Seen) {
        // There are far fewer: passes are, and the pages of each.
        let turn = u32::try_from(self.pages).unwrap_or(u32::MAX);
        self.pages += 1;
        self.rows += seen.rows.len() as u64;
        self.current.rows += seen.rows.len() as u64;
        self.current.total = seen.total.or(self.current.total);
        let problem = self.page_problem(seen);
        self.base = self.base.or(seen.base);
        for row in &*seen.rows {
            let (place, before) = remember(&mut self.memory, row, turn);
            if self.is_filtered {
                self.filter.through.insert(place);
                self.filter.has_more |= place >= self.filter.plain;
                self.filter.has_earlier |= self.is_earlier(row);
            }
            if problem.is_none() {
                for count in &mut self.counts {
                    count.show(row, place, before);
                }
            }
        }
        self.current.pages.push(PassPage { turn, seen: seen.clone() });
        if let Some(problem) = problem {
            return self.void_pass(seen.number, problem);
        }
        let pass = self.pass;
        self.prove();
        if self.verdict.is_some() || self.pass != pass {
            return;
        }
        match self.current.step {
            PassStep::Plain => self.take_plain(seen),
            PassStep::Page(_) => self.take_page(seen),
            PassStep::Behind(rows) => self.take_behind(rows, seen),
            PassStep::Repeat => self.take_repeat(seen),
        }
        let too_many = if self.current.pages.len() as u64 > self.most_pages {
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
    fn page_problem(&self, seen: &Seen) -> Option<String> {
        if let Some(problem) = &seen.problem {
            return Some(problem.clone());
        }
        if seen.cached {
            return Some("it lay in a cache on the way".to_owned());
        }
        if seen.answered < seen.sent {
            return Some("our clock went back while it was read".to_owned());
        }
        if let (Some(base), Some(before)) = (seen.base, self.base.filter(|before| Some(*before) != seen.base))
        {
            return Some(format!("the first page has the number {base}, and had {before} before"));
        }
        let (rows, asked) = (seen.rows.len(), seen.asked);
        if rows > asked as usize {
            return Some(format!("it has {rows} rows, and {asked} were asked for"));
        }
        let mut ids = HashSet::with_capacity(rows);
        let twice = seen.rows.iter().position(|row| !ids.insert(row.id));
        twice.map(|row| format!("row {} has the id of an earlier one", row + 1))
    }

    /// A page of a pass by page.
    fn take_page(&mut self, seen: &Seen) {
        let before = self.current.shown.len();
        let judged = self.current.look(seen, &self.memory);
        if seen.number == 1 && seen.rows.len() < self.size as usize && self.current.pages.len() == 1 {
            // Fits into 32 bits, as the size does that it is below.
            let rows = u32::try_from(seen.rows.len()).unwrap_or(0);
            if self.limit == Some(rows) && self.size > rows {
                return self.restart_pass(rows);
            }
            self.current.step = PassStep::Behind(rows);
            return;
        }
        if judged.oddities.repeated > 0 {
            return self.void_pass(seen.number, "it repeats the page before it".to_owned());
        }
        if judged.oddities.clamped > 0 {
            let why = "it is short twice, and there are rows behind it";
            return self.void_pass(seen.number, why.to_owned());
        }
        let fruitless = self.current.shown.len() == before && !seen.rows.is_empty();
        self.current.fruitless = if fruitless { self.current.fruitless + 1 } else { 0 };
        if self.current.fruitless >= MOST_FRUITLESS {
            let why = format!("it and the {} before it show nothing new", MOST_FRUITLESS - 1);
            return self.void_pass(seen.number, why);
        }
        match judged.next {
            NextPage::Page(number) | NextPage::Again(number) => self.current.step = PassStep::Page(number),
            NextPage::End => self.finish_pass(),
            NextPage::TooLong => {
                self.void = Some((seen.number, "it does not end".to_owned()));
                self.conclude(None);
            }
        }
    }

    /// Page 1 without the filter: what the filter has to let through.
    fn take_plain(&mut self, seen: &Seen) {
        let later = seen.rows.iter().filter(|row| self.is_later(row));
        let expected: Vec<u32> =
            later.filter_map(|row| self.memory.get(&row.id)).map(|known| known.place).collect();
        let tells_all = seen.rows.iter().all(|row| row.changed_at.is_some());
        if seen.rows.len() < self.size as usize || expected.is_empty() || !tells_all {
            // It is the whole list, or as much as the provider gives at once, or there is nothing to hold the filter against.
            self.current.step = PassStep::Page(1);
            return self.take_page(seen);
        }
        let plain = u32::try_from(self.memory.len()).unwrap_or(u32::MAX);
        self.filter = FilterEvidence { expected, plain, ..FilterEvidence::default() };
        self.is_filtered = true;
        self.current = Pass::new();
    }

    /// Whether the filter has to let a row through.
    fn is_later(&self, row: &Row) -> bool {
        let Some(Filter::Changed { after, margin }) = self.settings.filter else { return false };
        row.changed_at.is_some_and(|at| at > after.saturating_add(margin))
    }

    /// Whether the filter must not let a row through.
    fn is_earlier(&self, row: &Row) -> bool {
        let Some(Filter::Changed { after, margin }) = self.settings.filter else { return false };
        row.changed_at.is_some_and(|at| at < after.saturating_sub(margin))
    }

    /// What is behind a short page 1.
    fn take_behind(&mut self, rows: u32, seen: &Seen) {
        if seen.rows.is_empty() {
            if rows == 0 || seen.widest > rows {
                return self.prove_single(false);
            }
            self.current.step = PassStep::Repeat;
            return;
        }
        if rows == 0 {
            // It was empty and is not any more: this is its page 1.
            let last = self.current.pages.pop();
            self.current = Pass { pages: last.into_iter().collect(), ..Pass::new() };
            self.current.rows = seen.rows.len() as u64;
            self.current.total = seen.total;
            return self.take_page(seen);
        }
        if self.suspected == Some(rows) {
            self.limit = Some(rows);
            return self.restart_pass(rows);
        }
        let why = format!("the provider gives {rows} rows where {} are asked for", self.size);
        self.suspected = Some(rows);
        // The reason is known now, and does not count against the passes of the list.
        self.restarts += 1;
        self.void_pass(2, why);
    }

    /// Goes on with this pass, from its first page, with pages of so many rows.
    fn restart_pass(&mut self, rows: u32) {
        self.size = rows;
        self.current = Pass::new();
    }

    /// A short page 1 once more, after nothing was behind it.
    fn take_repeat(&mut self, seen: &Seen) {
        let ids = |rows: &[Row]| rows.iter().map(|row| row.id).collect::<HashSet<u128>>();
        let is_same =
            self.current.pages.first().is_some_and(|first| ids(&first.seen.rows) == ids(&seen.rows));
        if is_same {
            return self.prove_single(true);
        }
        self.void_pass(1, "it has changed while it was looked for rows behind it".to_owned());
    }

    /// Page 1 was all of it: at its own cut, or at that of the empty page behind it.
    fn prove_single(&mut self, is_behind: bool) {
        let (pass, skew) = (&self.current.pages, self.settings.clock_skew);
        let counted = if is_behind {
            PassCount::of_single(pass, skew, &self.memory)
        } else {
            PassCount::of(pass, self.size, skew, &self.memory)
        };
        match counted {
            Ok(count) => {
                self.counts.push(count);
                self.certify(CertificateMethod::Single, self.counts.len() - 1);
            }
            Err((page, why)) => self.void_pass(page, why),
        }
    }

    /// The count at this place proves the list, and the filter has to be proved as well.
    fn certify(&mut self, method: CertificateMethod, place: usize) {
        let doubt = self.settings.filter.as_ref().and_then(|filter| self.filter_doubt(filter));
        match (doubt, self.settings.filter) {
            (None, Some(Filter::Changed { .. })) if self.is_filtered => {
                self.verdict = Some(ProofVerdict::Changes(place));
            }
            (None, _) => self.verdict = Some(ProofVerdict::Proved(method, place)),
            (Some(why), Some(Filter::Configured)) => self.conclude(Some(why)),
            (Some(why), _) => self.void_pass(1, why),
        }
    }

    /// Why the filter has not proved itself.
    fn filter_doubt(&self, filter: &Filter) -> Option<String> {
        let FilterEvidence { expected, through, has_more, has_earlier, .. } = &self.filter;
        if !self.is_filtered {
            return None;
        }
        if through.is_empty() {
            return Some(
                "it lets nothing through: whether the provider understands it is not known".to_owned(),
            );
        }
        if *filter == Filter::Configured {
            return None;
        }
        if *has_earlier {
            return Some("it lets rows through that changed earlier".to_owned());
        }
        let missing = expected.iter().filter(|place| !through.contains(**place)).count();
        if missing > 0 {
            return Some(format!("it leaves out {missing} rows of page 1 that changed later"));
        }
        (!has_more).then(|| {
            "it lets nothing through but rows of page 1: it may be applied to each page alone".to_owned()
        })
    }

    /// The pass has come to its end.
    fn finish_pass(&mut self) {
        let counted = PassCount::of(&self.current.pages, self.size, self.settings.clock_skew, &self.memory);
        match counted {
            Ok(count) => {
                self.counts.push(count);
                self.void = None;
                let pass = self.pass;
                self.prove();
                if self.pass == pass {
                    self.next_pass();
                }
            }
            Err((page, why)) => self.void_pass(page, why),
        }
    }

    /// Whether a pass is proved by now; the latest is the best.
    fn prove(&mut self) {
        if self.verdict.is_some() {
            return;
        }
        if let Some(place) = self.counts.iter().rposition(|count| count.missing() == Some(0)) {
            self.certify(CertificateMethod::Counting, place);
        }
    }

    fn void_pass(&mut self, page: u32, mut why: String) {
        let is_plain = self.current.step == PassStep::Plain;
        if (self.is_filtered || is_plain) && self.settings.filter != Some(Filter::Configured) {
            // What was counted with the filter says nothing about the whole list.
            self.counts.clear();
            if !is_plain {
                why = format!("with the filter: {why}");
            }
            self.is_filtered = false;
            self.restarts += 1;
        }
        if self.anomalies.len() < MAX_ANOMALIES {
            self.anomalies.push(format!("pass {}, page {page}: {why}", self.pass));
        }
        self.void = Some((page, why));
        self.next_pass();
    }

    fn next_pass(&mut self) {
        if self.verdict.is_some() {
            return;
        }
        if self.pass >= self.settings.most_passes.saturating_add(self.restarts.min(MOST_RESTARTS)) {
            return self.conclude(None);
        }
        self.pass += 1;
        self.size = full(&self.settings);
        self.current = Pass::new();
    }
}

/// Rows to ask for. Pages of no rows would all be full.
fn full(settings: &Settings) -> u32 {
    settings.page_size.max(1)
}
