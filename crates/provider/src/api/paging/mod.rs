//! Lists, page by page: from the first until there is certainly nothing behind.
//!
//! The provider promises neither an order nor that pages are full, and rows move between pages while a list is read. So
//! nothing but emptiness ends a list: a page that is short or empty, and an empty one behind it. What is odd on the way is
//! counted and told ([`Oddities`]), and never a reason to stop early or to leave a row out. `X-Pagination` is handed on as
//! it is told; a wrong one changes nothing.
//!
//! Reading is the caller's, and so is remembering which rows came: a [`Walk`] looks at one page after the other and says which to
//! read next. It asks for nothing, and can be kept and gone on with elsewhere.
//!
//! On failure: a page that could not be read is not shown to the walk, and is the next one again.

pub(super) mod first_page;

use bytes::Bytes;
use reqwest::header::HeaderMap;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use base::metrics::{self, PageAnomaly};

use super::{Cut, address, body, call::Answer, error::Cause};

/// A list that goes on beyond this does not end.
const MOST_PAGES: u32 = 1_000_000;
const HEADER: &str = "x-pagination";

/// Which page, and of how many rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageAsk {
    /// From 1, whatever the provider's own numbers begin with.
    pub number: u32,
    /// Rows asked for; the provider may give fewer.
    pub size: u32,
}

/// One page of a list.
#[derive(Debug, Clone)]
pub struct Page<T> {
    /// From 1.
    pub number: u32,
    /// Rows asked for.
    pub asked: u32,
    /// Rows that came.
    pub rows: Vec<T>,
    /// The same rows as they were written, to the byte.
    pub raw: Vec<Bytes>,
    /// What the provider tells about the whole list.
    pub total: Total,
    /// When it was read.
    pub cut: Cut,
    /// The number that the provider gives the first page of the list; `None` while that is not known, because the list is empty.
    pub base: Option<u32>,
    /// Rows of the longest page that a list of this path has shown: the provider gives at least so many at once.
    pub widest: u32,
}

/// What `X-Pagination` tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Total {
    /// It was not sent.
    Absent,
    /// It cannot be read.
    Unreadable,
    /// This.
    Told(Pagination),
}

/// `X-Pagination`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pagination {
    /// The page's own number.
    pub current_page: u64,
    /// Pages of the list.
    pub total_pages: u64,
    /// Rows of the list.
    pub total_count: u64,
}

/// What was odd about a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Oddities {
    /// Pages with fewer rows than asked for and rows behind them.
    pub short: u64,
    /// Those of them that were short again when they were read again: the provider leaves rows out, or gives smaller pages.
    pub clamped: u64,
    /// Rows that an earlier page had.
    pub duplicate: u64,
    /// Pages with exactly the rows of the page before.
    pub repeated: u64,
    /// Totals that changed between pages, or are another page's.
    pub total: u64,
    /// Headers that cannot be read.
    pub header: u64,
    /// Answers that lay in a cache on the way.
    pub cached: u64,
}

/// How far the reading of a list is, and what was odd about it. It is data alone: kept and read back, it goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Walk {
    /// The page after the last that was looked at.
    pub number: u32,
    /// The last page, if it had fewer rows than asked for, or none.
    short: Option<u32>,
    /// A short page with rows behind it, which should be read again.
    again: Option<u32>,
    /// What the last page said, all of it.
    content: Option<u128>,
    total: Option<u64>,
    /// What was odd so far.
    pub oddities: Oddities,
}

/// What a page says about the reading of its list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Judged {
    /// What to read next.
    pub next: Next,
    /// What was odd about this page.
    pub oddities: Oddities,
}

/// What to read next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// This page.
    Page(u32),
    /// This page once more: it was short, and there are rows behind it. Whoever does not care reads on with
    /// [`Walk::number`].
    Again(u32),
    /// Nothing: there is nothing behind.
    End,
    /// Nothing: no list is so long.
    Endless,
}

impl PageAsk {
    /// As a query, with more behind it.
    pub(super) fn query(self, more: &[(&str, Option<&str>)]) -> String {
        let (number, size) = (self.number.to_string(), self.size.to_string());
        let page = [("pageNumber", Some(&*number)), ("pageSize", Some(&*size))];
        address::query(page.iter().chain(more).filter_map(|(name, value)| Some((*name, (*value)?))))
    }
}

impl Default for Walk {
    /// From the first page.
    fn default() -> Self {
        Self {
            number: 1,
            short: None,
            again: None,
            content: None,
            total: None,
            oddities: Oddities::default(),
        }
    }
}

impl Walk {
    /// Looks at a page that was read. The caller remembers rows: `is_new` is asked once for each, whether no page before had it. A row
    /// without an id is always new.
    pub fn look<T>(&mut self, page: &Page<T>, mut is_new: impl FnMut(&T) -> bool) -> Judged {
        let once_more = self.again.take() == Some(page.number);
        let mut odd = Oddities::default();
        for row in &page.rows {
            // A page that is read again has rows that were there before, and that is not odd; those that were not are remembered too.
            let is_new = is_new(row);
            odd.duplicate += u64::from(!is_new && !once_more);
        }
        odd.cached += u64::from(page.cut.age.is_some());
        let short = page.rows.len() < page.asked as usize;
        let next = if once_more {
            odd.clamped += u64::from(short);
            Next::Page(self.number)
        } else {
            self.step(page, short, &mut odd)
        };
        self.oddities.add(odd);
        let endless = matches!(next, Next::Page(number) if number > MOST_PAGES);
        Judged { next: if endless { Next::Endless } else { next }, oddities: odd }
    }

    /// A page that was not seen before.
    fn step<T>(&mut self, page: &Page<T>, short: bool, odd: &mut Oddities) -> Next {
        let content = (!page.raw.is_empty()).then(|| page_hash(&page.raw));
        odd.repeated += u64::from(content.is_some() && content == self.content);
        match page.total {
            Total::Absent => {}
            Total::Unreadable => odd.header += 1,
            Total::Told(told) => {
                let changed = self.total.is_some_and(|before| before != told.total_count);
                let number = u64::from(page.number);
                let foreign = ![Some(number), page.base.map(|base| number - 1 + u64::from(base))]
                    .contains(&Some(told.current_page));
                odd.total += u64::from(changed || foreign);
                self.total = Some(told.total_count);
            }
        }
        let before = self.short;
        self.number = page.number.saturating_add(1);
        self.short = short.then_some(page.number);
        self.content = content;
        match before {
            Some(_) if page.rows.is_empty() => Next::End,
            Some(before) => {
                odd.short += 1;
                self.again = Some(before);
                Next::Again(before)
            }
            None => Next::Page(self.number),
        }
    }
}

/// What a row is known by: the same for the same id, on every machine and for good.
pub fn row_hash(id: &str) -> u128 {
    first_half(Sha256::digest(id).into())
}

/// What a page is known by: the same for the same rows in the same order.
pub fn page_hash(rows: &[Bytes]) -> u128 {
    let mut hasher = Sha256::new();
    for row in rows {
        // With its length, so that rows do not run into each other.
        hasher.update((row.len() as u64).to_le_bytes());
        hasher.update(row);
    }
    first_half(hasher.finalize().into())
}

fn first_half(digest: [u8; 32]) -> u128 {
    let mut half = [0; 16];
    half.copy_from_slice(&digest[..16]);
    u128::from_be_bytes(half)
}

impl Oddities {
    /// Adds those of a page, and counts them in the metric.
    fn add(&mut self, page: Self) {
        for (kind, sum, count) in [
            (PageAnomaly::Short, &mut self.short, page.short),
            (PageAnomaly::Clamped, &mut self.clamped, page.clamped),
            (PageAnomaly::Duplicate, &mut self.duplicate, page.duplicate),
            (PageAnomaly::Repeated, &mut self.repeated, page.repeated),
            (PageAnomaly::Total, &mut self.total, page.total),
            (PageAnomaly::Header, &mut self.header, page.header),
            (PageAnomaly::Cached, &mut self.cached, page.cached),
        ] {
            *sum += count;
            if count > 0 {
                metrics::page_drifted(kind, count);
            }
        }
    }
}

/// What an answer's header tells about its list.
fn total(headers: &HeaderMap) -> Total {
    let Some(value) = headers.get(HEADER) else { return Total::Absent };
    serde_json::from_slice(value.as_bytes()).map_or(Total::Unreadable, Total::Told)
}

/// A page out of its answer.
pub(super) fn read_page<T>(
    answer: &Answer,
    page: PageAsk,
    row: impl Fn(&[u8]) -> Result<T, model::Error>,
) -> Result<Page<T>, Cause> {
    let found: Vec<&RawValue> = body::rows(answer.documented()?)?;
    let raw = found.iter().map(|raw| answer.body.slice_ref(raw.get().as_bytes())).collect();
    let rows = found.into_iter().enumerate().map(|(place, raw)| {
        row(raw.get().as_bytes())
            .map_err(|_| Cause::Malformed { what: format!("row {} is no JSON object", place + 1) })
    });
    Ok(Page {
        number: page.number,
        asked: page.size,
        rows: rows.collect::<Result<_, _>>()?,
        raw,
        total: total(&answer.headers),
        cut: answer.cut,
        base: None,
        widest: 0,
    })
}

#[cfg(test)]
mod tests;
