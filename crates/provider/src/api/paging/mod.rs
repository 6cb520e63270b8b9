//! Paged lists, read from the first page to a certain end.
//!
//! The provider guarantees neither an order nor full pages, and rows move between pages while a list is read. So only emptiness
//! ends a list: a short or empty page, followed by an empty one. Anomalies are counted ([`Oddities`]), and never end the list
//! early or drop a row. `X-Pagination` is passed on, but not relied on.
//!
//! The caller reads the pages and remembers the rows. A [`PageWalk`] observes one page after the other and says which one to read
//! next. It sends nothing, and can be stored and continued elsewhere.
//!
//! On failure: a page that could not be read is not observed, and is read again.

pub(super) mod first_page;

use bytes::Bytes;
use reqwest::header::HeaderMap;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use base::metrics::{self, PageAnomaly};

use super::{ReadTimes, address, body, call::ApiResponse, error::Cause};

/// A longer list counts as endless.
const MAX_PAGES: u32 = 1_000_000;
const PAGINATION_HEADER: &str = "x-pagination";

/// Page and page size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageRequest {
    /// From 1, whatever the provider's own numbers start with.
    pub number: u32,
    /// Rows to request; the provider may return fewer.
    pub size: u32,
}

/// A page of a list.
#[derive(Debug, Clone)]
pub struct Page<T> {
    /// From 1.
    pub number: u32,
    /// Requested rows.
    pub asked: u32,
    /// Returned rows.
    pub rows: Vec<T>,
    /// The same rows, byte for byte.
    pub raw: Vec<Bytes>,
    /// The header `X-Pagination`.
    pub total: Total,
    /// When it was read.
    pub times: ReadTimes,
    /// The provider's number of the first page; `None` while it is unknown because the list is empty.
    pub base: Option<u32>,
    /// Rows of the longest page that this path has returned, a lower bound of the provider's page limit.
    pub widest: u32,
}

/// What `X-Pagination` reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Total {
    /// Not sent.
    Absent,
    /// Not readable.
    Unreadable,
    /// These numbers.
    Reported(Pagination),
}

/// `X-Pagination`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pagination {
    /// Number of this page.
    pub current_page: u64,
    /// Pages of the list.
    pub total_pages: u64,
    /// Rows of the list.
    pub total_count: u64,
}

/// Counts of anomalies in a list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Oddities {
    /// Pages with fewer rows than requested, although rows follow.
    pub short: u64,
    /// Short pages that were short again on the second read: the provider leaves out rows, or limits the page size.
    pub clamped: u64,
    /// Rows that an earlier page had.
    pub duplicate: u64,
    /// Pages with exactly the rows of the page before.
    pub repeated: u64,
    /// Totals that change between pages, or belong to another page.
    pub total: u64,
    /// Unreadable headers.
    pub header: u64,
    /// Responses from a cache.
    pub cached: u64,
}

/// Progress in a list. Plain data, which can be stored and continued.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageWalk {
    /// The page after the last new one.
    pub number: u32,
    /// The last page, if it was short or empty.
    short: Option<u32>,
    /// A short page with rows after it, to be read again.
    again: Option<u32>,
    /// Hash of the last page's content.
    content: Option<u128>,
    total: Option<u64>,
    /// Anomalies so far.
    pub oddities: Oddities,
}

/// What a page means for the walk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WalkStep {
    /// What to read next.
    pub next: NextPage,
    /// Anomalies of this page.
    pub oddities: Oddities,
}

/// What to read next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextPage {
    /// This page.
    Page(u32),
    /// This page again: it was short, and rows follow. Optional: reading on with [`PageWalk::number`] is correct too.
    Again(u32),
    /// Nothing: the list has ended.
    End,
    /// Nothing: the list exceeds any plausible length.
    TooLong,
}

impl PageRequest {
    /// The query, with more parameters.
    pub(super) fn query(self, more: &[(&str, Option<&str>)]) -> String {
        let (number, size) = (self.number.to_string(), self.size.to_string());
        let page = [("pageNumber", Some(&*number)), ("pageSize", Some(&*size))];
        address::query(page.iter().chain(more).filter_map(|(name, value)| Some((*name, (*value)?))))
    }
}

impl Default for PageWalk {
    /// Starts at the first page.
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

impl PageWalk {
    /// Observes a page. Calls `is_new` once per row, which says whether no earlier page had it; a row without an id is always
    /// new.
    pub fn observe<T>(&mut self, page: &Page<T>, mut is_new: impl FnMut(&T) -> bool) -> WalkStep {
        let once_more = self.again.take() == Some(page.number);
        let mut odd = Oddities::default();
        for row in &page.rows {
            // Known rows are expected on a second read. `is_new` is called anyway, so that the caller remembers the others.
            let is_new = is_new(row);
            odd.duplicate += u64::from(!is_new && !once_more);
        }
        odd.cached += u64::from(page.times.age.is_some());
        let short = page.rows.len() < page.asked as usize;
        let next = if once_more {
            odd.clamped += u64::from(short);
            NextPage::Page(self.number)
        } else {
            self.step(page, short, &mut odd)
        };
        self.oddities.add(odd);
        let endless = matches!(next, NextPage::Page(number) if number > MAX_PAGES);
        WalkStep { next: if endless { NextPage::TooLong } else { next }, oddities: odd }
    }

    /// A page that was not read before.
    fn step<T>(&mut self, page: &Page<T>, short: bool, odd: &mut Oddities) -> NextPage {
        let content = (!page.raw.is_empty()).then(|| page_hash(&page.raw));
        odd.repeated += u64::from(content.is_some() && content == self.content);
        match page.total {
            Total::Absent => {}
            Total::Unreadable => odd.header += 1,
            Total::Reported(pagination) => {
                let changed = self.total.is_some_and(|before| before != pagination.total_count);
                let number = u64::from(page.number);
                let foreign = ![Some(number), page.base.map(|base| number - 1 + u64::from(base))]
                    .contains(&Some(pagination.current_page));
                odd.total += u64::from(changed || foreign);
                self.total = Some(pagination.total_count);
            }
        }
        let before = self.short;
        self.number = page.number.saturating_add(1);
        self.short = short.then_some(page.number);
        self.content = content;
        match before {
            Some(_) if page.rows.is_empty() => NextPage::End,
            Some(before) => {
                odd.short += 1;
                self.again = Some(before);
                NextPage::Again(before)
            }
            None => NextPage::Page(self.number),
        }
    }
}

/// Hash of a row id, the same on every machine and in every version.
pub fn row_hash(id: &str) -> u128 {
    first_half(Sha256::digest(id).into())
}

/// Hash of a page, the same for the same rows in the same order.
pub fn page_hash(rows: &[Bytes]) -> u128 {
    let mut hasher = Sha256::new();
    for row in rows {
        // With its length, so that row boundaries count.
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
    /// Adds the anomalies of a page, and counts them in the metrics.
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

/// Reads `X-Pagination`.
fn total(headers: &HeaderMap) -> Total {
    let Some(value) = headers.get(PAGINATION_HEADER) else { return Total::Absent };
    serde_json::from_slice(value.as_bytes()).map_or(Total::Unreadable, Total::Reported)
}

/// Reads a page from its response.
pub(super) fn read_page<T>(
    answer: &ApiResponse,
    page: PageRequest,
    row: impl Fn(&[u8]) -> Result<T, model::Error>,
) -> Result<Page<T>, Cause> {
    let found: Vec<&RawValue> = body::rows(answer.documented()?)?;
    let raw = found.iter().map(|raw| answer.body.slice_ref(raw.get().as_bytes())).collect();
    let rows = found.into_iter().enumerate().map(|(place, raw)| {
        row(raw.get().as_bytes())
            .map_err(|_| Cause::Malformed { what: format!("row {} is not a JSON object", place + 1) })
    });
    Ok(Page {
        number: page.number,
        asked: page.size,
        rows: rows.collect::<Result<_, _>>()?,
        raw,
        total: total(&answer.headers),
        times: answer.times,
        base: None,
        widest: 0,
    })
}

#[cfg(test)]
mod tests;
