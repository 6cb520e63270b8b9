//! Random providers, which differ in page numbers, totals, limits and filters, and whose lists change meanwhile: no certified list
//! misses a record that was always listed.
//!
//! A failure prints its seed. `TRIBUTARY_TEST_CYCLES_PROVIDERS` sets the number of providers.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashSet},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use futures::FutureExt as _;

use provider::api::{
    Acted, Cause, Endpoint, Error, Page, PageRequest, Pagination, Quirks, ReadTimes, Total, page_hash,
    read_numbered,
};

use super::Random;
use crate::records::proof::{Filter, PageAnswer, Reading, ReadingStep, Row, Seen, Settings};

const PROVIDERS: u32 = 4_000;
/// A seed that once failed: a shorter page 1 began with the same row as a longer one, although an unreadable page preceded it.
const REGRESSION_SEED: u64 = 9_302;
/// Time of the filter.
const AFTER: i64 = 1_500;

/// How the provider treats a filter for rows that changed after [`AFTER`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filtering {
    Works,
    Ignored,
    Empty,
    /// It compares numbers as text.
    Textual,
    /// Applied to each page separately.
    AfterPaging,
    Refused,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Totals {
    Absent,
    Right,
    /// Counts the rows of the page.
    OfPage,
    TooFew,
    TooMany,
}

/// The answer to page 0 if pages are numbered from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PageZero {
    Refused,
    Fails,
    Empty,
    First,
    /// All rows, regardless of the size.
    All,
    Forbidden,
}

#[derive(Debug, Clone)]
struct Provider {
    random: Random,
    /// Id and time of the last change.
    list: Vec<(u32, i64)>,
    next_id: u32,
    now: i64,
    first_page: u32,
    page_zero: PageZero,
    /// The first page fails if pages are numbered from 0.
    breaks_first: bool,
    /// Least rows per page, regardless of the requested size.
    least_rows: usize,
    most_rows: usize,
    /// Whether every row has a time of change.
    has_times: bool,
    filtering: Filtering,
    totals: Totals,
    /// Rate of changes between two requests.
    drift: f64,
    /// Records that were listed before the first request and have not left.
    throughout: BTreeMap<u32, i64>,
    requests: u32,
}

impl Provider {
    fn random(seed: u64) -> Self {
        let mut random = Random(seed);
        // Lists of one page, of exactly full pages, and longer lists.
        let rows = random.one_of(&[0, 1, 2, 5, 6, 10, 11, 23, 40]);
        let least_rows = random.one_of(&[0, 0, 0, 10]);
        // In most lists some rows pass the filter; in some, text and numbers compare alike.
        let spread = random.one_of(&[1_400, 1_900, 20_000]);
        let mut list: Vec<(u32, i64)> = Vec::new();
        for id in 1..=rows {
            let place = random.below(list.len() + 1);
            list.insert(place, (id, 100 + random.below(spread) as i64));
        }
        Self {
            next_id: rows + 1,
            now: 30_000,
            first_page: random.one_of(&[0, 1]),
            page_zero: random.one_of(&[
                PageZero::Refused,
                PageZero::Fails,
                PageZero::Empty,
                PageZero::First,
                PageZero::All,
                PageZero::Forbidden,
            ]),
            breaks_first: random.one_of(&[false, false, false, true]),
            least_rows,
            has_times: random.one_of(&[true, true, false]),
            most_rows: random.one_of(&[usize::MAX, usize::MAX, 1, 2, 3, 4]).max(least_rows),
            filtering: random.one_of(&[
                Filtering::Works,
                Filtering::Ignored,
                Filtering::Empty,
                Filtering::Textual,
                Filtering::AfterPaging,
                Filtering::Refused,
            ]),
            totals: random.one_of(&[
                Totals::Absent,
                Totals::Absent,
                Totals::Right,
                Totals::OfPage,
                Totals::TooFew,
                Totals::TooMany,
            ]),
            drift: random.one_of(&[0.0, 0.0, 0.1, 0.5, 1.0]),
            throughout: list.iter().copied().collect(),
            requests: 0,
            list,
            random,
        }
    }

    fn mutate(&mut self) {
        while (self.random.below(1_000) as f64) < 1_000.0 * self.drift / (1.0 + self.drift) {
            let (place, other) = (self.random.below(self.list.len() + 1), self.random.below(self.list.len()));
            match self.random.below(4) {
                0 => {
                    self.list.insert(place, (self.next_id, self.now));
                    self.next_id += 1;
                }
                _ if self.list.is_empty() => {}
                1 => {
                    let (id, _) = self.list.remove(other);
                    self.throughout.remove(&id);
                }
                2 => {
                    let row = self.list.remove(other);
                    self.list.insert(place.min(self.list.len()), row);
                }
                _ => self.list[other].1 = self.now,
            }
        }
    }

    /// Time of change of a row, if it has one.
    fn changed_at(&self, id: u32, at: i64) -> Option<i64> {
        (self.has_times || !id.is_multiple_of(5)).then_some(at)
    }

    fn passes_filter(&self, (id, at): (u32, i64)) -> bool {
        if self.changed_at(id, at).is_none() {
            return false;
        }
        match self.filtering {
            Filtering::Works | Filtering::AfterPaging => at > AFTER,
            Filtering::Textual => at.to_string() > AFTER.to_string(),
            Filtering::Ignored | Filtering::Empty | Filtering::Refused => true,
        }
    }

    fn page(&mut self, asked: PageRequest, filtered: bool) -> Result<Page<(u32, i64)>, Error> {
        self.requests += 1;
        let sent = self.now;
        self.now += 10;
        self.mutate();
        let refused = |status| {
            let endpoint = Endpoint { method: "GET", path: "list".into() };
            let (cause, excerpt) = (Cause::Refused, None);
            Error { endpoint, status: Some(status), cause, excerpt, acted: Acted::No, in_company: false }
        };
        if filtered && self.filtering == Filtering::Refused {
            return Err(refused(400));
        }
        let mut number = asked.number;
        let mut is_empty = filtered && self.filtering == Filtering::Empty;
        if number < self.first_page {
            match self.page_zero {
                PageZero::Refused => return Err(refused(400)),
                PageZero::Fails => return Err(refused(500)),
                PageZero::Forbidden => return Err(refused(403)),
                PageZero::Empty => is_empty = true,
                PageZero::First | PageZero::All => {}
            }
            number = self.first_page;
        } else if number == 0 && self.breaks_first {
            return Err(refused(500));
        }
        let is_cut_first = self.filtering == Filtering::AfterPaging;
        let lets = |row: &(u32, i64)| !filtered || self.passes_filter(*row);
        let list: Vec<_> = self.list.iter().copied().filter(|row| is_cut_first || lets(row)).collect();
        let size = (asked.size as usize).max(self.least_rows);
        let from = (number - self.first_page) as usize * size;
        let most = if is_empty { 0 } else { self.most_rows.min(size) };
        let most =
            if asked.number < self.first_page && self.page_zero == PageZero::All { list.len() } else { most };
        let rows: Vec<_> = list.iter().copied().skip(from).take(most).filter(lets).collect();
        let total_count = match self.totals {
            Totals::Absent => None,
            Totals::Right => Some(if is_empty { 0 } else { list.len() }),
            Totals::OfPage => Some(rows.len()),
            Totals::TooFew => Some(list.len() / 2),
            Totals::TooMany => Some(list.len() + 7),
        };
        let total = total_count.map_or(Total::Absent, |total| {
            Total::Reported(Pagination { current_page: 1, total_pages: 1, total_count: total as u64 })
        });
        let raw = rows.iter().map(|row| Bytes::from(format!("{row:?}"))).collect();
        self.now += 10;
        self.mutate();
        let times = ReadTimes { sent: moment(sent), answered: moment(self.now), date: None, age: None };
        self.now += 1;
        Ok(Page { number: asked.number, asked: asked.size, rows, raw, total, times, base: None, widest: 0 })
    }
}

fn moment(micros: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(micros.unsigned_abs())
}

fn micros(at: SystemTime) -> i64 {
    i64::try_from(at.duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap()
}

fn seen(page: Page<(u32, i64)>, provider: &Provider) -> Seen {
    let rows: Arc<[Row]> = page
        .rows
        .iter()
        .map(|(id, at)| {
            let changed_at = provider.changed_at(*id, *at);
            Row { id: u128::from(*id), version: at.unsigned_abs(), changed_at }
        })
        .collect();
    let (sent, answered) = (micros(page.times.sent), micros(page.times.answered));
    let total =
        if let Total::Reported(pagination) = page.total { Some(pagination.total_count) } else { None };
    let empty = Seen::unreadable(page.number, page.asked, "", sent);
    let content = page_hash(&page.raw);
    let Page { base, widest, .. } = page;
    let answer = PageAnswer { sent, answered, ..PageAnswer::default() };
    Seen { rows, problem: None, total, content, answer, base, widest, ..empty }
}

/// Reads the list like the worker, to its verdict.
fn read(provider: &RefCell<Provider>, filter: Option<Filter>, size: u32) -> Reading {
    let learnt = Quirks::default();
    let settings = Settings { page_size: size, most_passes: 4, filter, clock_skew: 0 };
    let mut reading = Reading::new(settings);
    while let ReadingStep::Page { number, size, filtered, .. } = reading.want() {
        let at = provider.borrow().now;
        let wanted = PageRequest { number, size };
        let plain = |page| std::future::ready(provider.borrow_mut().page(page, false));
        let asked = |page| std::future::ready(provider.borrow_mut().page(page, filtered));
        let page = read_numbered(&learnt, "list", wanted, plain, asked).now_or_never().unwrap();
        let page = page.map_or_else(
            |_| Seen::unreadable(number, size, "refused", at),
            |page| seen(page, &provider.borrow()),
        );
        reading.look(&page).unwrap();
        assert!(provider.borrow().requests < 5_000, "it does not end");
    }
    reading
}

#[test]
fn certified_list_misses_no_record_that_was_always_listed() {
    let (mut certified, mut kinds) = (0_u32, HashSet::new());
    for seed in [REGRESSION_SEED].into_iter().chain(crate::cycles::seeds("PROVIDERS", PROVIDERS)) {
        let mut provider = Provider::random(seed);
        let size = provider.random.one_of(&[1, 5, 6, 100]);
        let filter = provider.random.one_of(&[None, Some(Filter::Changed { after: AFTER, margin: 100 })]);
        let what = format!("seed {seed}: size {size}, {filter:?}, {provider:?}");
        let provider = RefCell::new(provider);
        let reading = read(&provider, filter, size);

        let provider = provider.into_inner();
        let verdict = reading.verdict().unwrap();
        if !verdict.certified {
            continue;
        }
        certified += 1;
        kinds.insert((provider.filtering as u8, provider.totals as u8, provider.first_page));
        let missed: Vec<_> =
            provider.throughout.iter().filter(|(id, _)| !reading.has_shown(u128::from(**id))).collect();
        assert!(missed.is_empty(), "{missed:?} {verdict:?}\n{what}");
        // If rows change, page 0 may seem to differ from page 1. That may cost a certificate but hides no record.
        let base = i32::try_from(provider.first_page).unwrap();
        let is_right = verdict.reading.page_base.is_none_or(|found| found == base);
        assert!(is_right || provider.drift > 0.0, "{verdict:?}\n{what}");
    }
    // Otherwise the test would be vacuous: with wrong totals hardly more than empty lists are certified.
    println!("{certified} lists were certified, of {} kinds of provider", kinds.len());
    assert!(certified > 1_000 && kinds.len() > 30, "{certified}, {}", kinds.len());
}
