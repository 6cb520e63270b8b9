//! Query parameters, pages, and the body of a list.

use std::borrow::Cow;

use axum::{
    http::{HeaderName, HeaderValue},
    response::Response,
};
use url::form_urlencoded;

use super::ApiError;
use crate::{
    answer,
    knobs::{EmptyList, FirstPage, OverMax, ReadKnobs},
};

/// Limits pages even beyond the knobs.
const MAX_PAGE_ROWS: u32 = 100_000;
/// Rows of a page without `pageSize`.
const DEFAULT_PAGE_ROWS: u32 = 100;
/// The provider's integers are signed 32-bit numbers.
const MAX_INTEGER: u32 = i32::MAX.unsigned_abs();

/// The query parameters of lists.
#[derive(Debug, Default)]
pub(super) struct ListQuery<'a> {
    page_number: Option<Cow<'a, str>>,
    page_size: Option<Cow<'a, str>>,
    /// `filter`, unless empty.
    pub(super) filter: Option<Cow<'a, str>>,
    /// `OrderBy`, unless empty.
    pub(super) order_by: Option<Cow<'a, str>>,
}

impl<'a> ListQuery<'a> {
    /// Parses them. Names are case-insensitive, and the first of several wins.
    pub(super) fn parse(query: Option<&'a str>) -> Self {
        let mut found = Self::default();
        for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            let place = match name {
                name if name.eq_ignore_ascii_case("pageNumber") => &mut found.page_number,
                name if name.eq_ignore_ascii_case("pageSize") => &mut found.page_size,
                name if name.eq_ignore_ascii_case("filter") => &mut found.filter,
                name if name.eq_ignore_ascii_case("OrderBy") => &mut found.order_by,
                _ => continue,
            };
            place.get_or_insert(value);
        }
        found.filter = found.filter.filter(|filter| !filter.trim().is_empty());
        found.order_by = found.order_by.filter(|order| !order.trim().is_empty());
        found
    }

    /// The requested page; with `required`, both parameters must be there.
    pub(super) fn page(&self, knobs: &ReadKnobs, required: bool) -> Result<ListPage, ApiError> {
        let largest = knobs.max_page_size.clamp(1, MAX_PAGE_ROWS);
        let base = u32::from(knobs.first_page != FirstPage::Zero);
        let lowest = u32::from(knobs.first_page == FirstPage::One);
        let shown = integer("pageNumber", self.page_number.as_deref(), lowest, required)?.unwrap_or(base);
        let number = match knobs.first_page {
            FirstPage::OneZeroEmpty if shown == 0 => MAX_INTEGER,
            FirstPage::OneZeroFails if shown == 0 => {
                return Err(ApiError::api(500, "the page has a negative offset".to_owned()));
            }
            _ => shown.saturating_sub(base) + 1,
        };
        let size = match integer("pageSize", self.page_size.as_deref(), 1, required)? {
            Some(size) if size > largest && knobs.over_max == OverMax::Refuse => {
                return Err(ApiError::api(400, format!("pageSize {size} is larger than {largest}")));
            }
            size => size.unwrap_or(DEFAULT_PAGE_ROWS).clamp(1, largest),
        };
        Ok(ListPage { number, size, shown })
    }
}

/// A page of a list; `number` counts from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ListPage {
    pub(super) number: u32,
    /// Rows of a full page.
    pub(super) size: u32,
    /// Its number as sent.
    shown: u32,
}

impl ListPage {
    pub(super) fn offset(self) -> u64 {
        u64::from(self.number - 1) * u64::from(self.size)
    }

    /// The part of `length` items on this page, if `before` rows precede them in the list.
    pub(super) fn part(self, before: u64, length: u64) -> std::ops::Range<u64> {
        let within = |position: u64| position.saturating_sub(before).min(length);
        within(self.offset())..within(self.offset() + u64::from(self.size))
    }

    /// Rows of a full page.
    pub(super) fn rows(self) -> usize {
        self.size as usize
    }

    /// `X-Pagination` for a list of `total` rows.
    fn header(self, total: u64) -> Option<HeaderValue> {
        let (page, pages) = (self.shown, total.div_ceil(u64::from(self.size)));
        let json = format!(r#"{{"currentPage":{page},"totalPages":{pages},"totalCount":{total}}}"#);
        HeaderValue::from_maybe_shared(bytes::Bytes::from(json)).ok()
    }
}

/// The body of a list.
#[derive(Debug)]
pub(super) struct ListBody(Vec<u8>);

impl ListBody {
    /// Reserves space for `rows` rows of `bytes` bytes.
    pub(super) fn new(rows: usize, bytes: usize) -> Self {
        Self(Vec::with_capacity(rows * bytes + 2))
    }

    pub(super) fn row(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        self.0.push(if self.0.is_empty() { b'[' } else { b',' });
        write(&mut self.0);
    }

    /// The answer; with `total` it has `X-Pagination`.
    pub(super) fn answer(mut self, empty: EmptyList, page: ListPage, total: Option<u64>) -> Response {
        if self.0.is_empty() {
            self.0.extend_from_slice(match empty {
                EmptyList::Array => b"[]",
                EmptyList::Nothing => b"",
                EmptyList::Null => b"null",
            });
        } else {
            self.0.push(b']');
        }
        let mut response = answer::bytes_answer(200, self.0);
        if let Some(value) = total.and_then(|total| page.header(total)) {
            response.headers_mut().insert(HeaderName::from_static("x-pagination"), value);
        }
        response
    }
}

fn integer(name: &str, text: Option<&str>, lowest: u32, required: bool) -> Result<Option<u32>, ApiError> {
    let Some(text) = text else {
        return if required { Err(ApiError::api(400, format!("{name} is missing"))) } else { Ok(None) };
    };
    // The parser would also accept a plus sign.
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(value) if digits && (lowest..=MAX_INTEGER).contains(&value) => Ok(Some(value)),
        _ => Err(ApiError::api(
            400,
            format!("{name} {text:?} is no whole number from {lowest} to {MAX_INTEGER}"),
        )),
    }
}
