//! Learns whether the provider numbers the pages of a list from 0 or 1. Its document does not say.
//!
//! Callers count pages from 1. The first call for a list path reads its pages 1 and 0 and learns the number of the first page:
//!
//! | page 0 | page 1 | first page |
//! |---|---|---|
//! | rejected, and again after another answer for page 1 | any | 1 |
//! | empty | rows | 1 |
//! | the rows of page 1, which was read before and after it | rows | 1: the provider takes 0 for 1 |
//! | longer than requested, or unreadable | begins with the rows of a shorter page 1, twice | 1 |
//! | other rows | any | 0 |
//! | empty | empty | unknown: the list is empty either way |
//!
//! 1 needs evidence, because a wrong 1 skips the first page unnoticed. A wrong 0 is noticed: the first two pages are the same,
//! and no pass over the list counts. A shorter page 1 begins with the same rows only if no page precedes it, because a preceding
//! page would shift its first row. One match may be chance while rows move, so it takes two.
//!
//! One call at a time learns the number of a path; others wait for it.
//!
//! On failure: the call fails, and the next one tries again.

use std::{collections::HashSet, sync::atomic::Ordering};

use bytes::Bytes;

use super::{Page, PageRequest};
use crate::api::{
    ReadTimes,
    error::{Cause, Error},
    quirks::Quirks,
};

/// Consecutive refusals of page 0 that are believed.
const MIN_REFUSALS: u32 = 2;
/// Comparisons of page 1 with a shorter one.
const MAX_COMPARISONS: u32 = 3;
/// Matching comparisons that are needed.
const MIN_PREFIX_MATCHES: u32 = 2;
/// Minimum page size: on a tiny page, rows that move are too large a part.
const MIN_PAGE_SIZE: u32 = 10;

/// Why the number of the first page is still unknown.
#[derive(Debug)]
enum Undecided<T> {
    /// Pages 0 and 1 are both empty.
    Empty(Box<Page<T>>),
    Failed(Error),
}

impl<T> From<Error> for Undecided<T> {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Reads a page that is counted from 1. `plain` reads a page of the whole list by the provider's number; `asked` reads the wanted
/// page, perhaps with a filter.
pub async fn read<T, P, A>(
    quirks: &Quirks,
    path: &str,
    wanted: PageRequest,
    plain: impl Fn(PageRequest) -> P,
    asked: impl Fn(PageRequest) -> A,
) -> Result<Page<T>, Error>
where
    P: Future<Output = Result<Page<T>, Error>>,
    A: Future<Output = Result<Page<T>, Error>>,
{
    let list = quirks.list(path);
    let learning = || async {
        let base = learn(wanted.size.max(MIN_PAGE_SIZE), plain).await?;
        tracing::debug!(path, base, "learned the number of the first page");
        Ok(base)
    };
    let base = match list.first_page.get_or_try_init(learning).await {
        Ok(base) => *base,
        Err(Undecided::Empty(page)) => {
            return Ok(Page { number: wanted.number, asked: wanted.size, ..*page });
        }
        Err(Undecided::Failed(error)) => return Err(error),
    };
    let number = wanted.number.saturating_sub(1).saturating_add(base);
    let page = asked(PageRequest { number, ..wanted }).await?;
    let rows = u32::try_from(page.rows.len()).unwrap_or(u32::MAX).min(wanted.size);
    let widest = list.widest.fetch_max(rows, Ordering::Relaxed).max(rows);
    Ok(Page { number: wanted.number, base: Some(base), widest, ..page })
}

async fn learn<T, F>(size: u32, page: impl Fn(PageRequest) -> F) -> Result<u32, Undecided<T>>
where
    F: Future<Output = Result<Page<T>, Error>>,
{
    let (mut refusals, mut comparisons, mut prefix_matches) = (0, 0, 0);
    loop {
        let one = page(PageRequest { number: 1, size }).await?;
        let zero = match page(PageRequest { number: 0, size }).await {
            Err(error) if is_busy(&error) => return Err(error.into()),
            Err(error) if is_refusal(&error) => {
                refusals += 1;
                if refusals >= MIN_REFUSALS {
                    return Ok(1);
                }
                continue;
            }
            Ok(zero) if zero.rows.len() <= size as usize => zero,
            odd => {
                if begins_with_shorter_page(&one, &page).await? {
                    prefix_matches += 1;
                    if prefix_matches >= MIN_PREFIX_MATCHES {
                        return Ok(1);
                    }
                    continue;
                }
                comparisons += 1;
                match odd {
                    Err(error) if comparisons >= MAX_COMPARISONS => return Err(error.into()),
                    Ok(_) if comparisons >= MAX_COMPARISONS => return Ok(0),
                    _ => continue,
                }
            }
        };
        if zero.rows.is_empty() && one.rows.is_empty() {
            // Both pages were empty between the first request and the last response.
            let times = ReadTimes { sent: one.times.sent, ..zero.times };
            return Err(Undecided::Empty(Box::new(Page { times, ..zero })));
        }
        if zero.rows.is_empty() {
            return Ok(1);
        }
        if !is_same(&zero.raw, &one.raw) {
            return Ok(0);
        }
        // Rows may move between the pages from one response to the next, but not back.
        let again = page(PageRequest { number: 1, size }).await?;
        return Ok(is_same(&zero.raw, &again.raw).into());
    }
}

/// Whether page 1 begins with the rows of a shorter page 1.
async fn begins_with_shorter_page<T, F>(
    one: &Page<T>,
    page: &impl Fn(PageRequest) -> F,
) -> Result<bool, Error>
where
    F: Future<Output = Result<Page<T>, Error>>,
{
    if one.raw.len() < 2 {
        return Ok(false);
    }
    let size = one.raw.len() / 2;
    let shorter = page(PageRequest { number: 1, size: u32::try_from(size).unwrap_or(u32::MAX) }).await?;
    // A provider that ignores the page size would return the same page for any offset.
    Ok(shorter.raw.len() == size && one.raw.starts_with(&shorter.raw))
}

/// Whether a page was rejected only for the rate limit.
fn is_busy(error: &Error) -> bool {
    matches!(error.cause, Cause::Quota { .. } | Cause::Throttled { .. })
        || matches!(error.status, Some(408 | 429))
}

/// Whether a page was rejected for its number.
fn is_refusal(error: &Error) -> bool {
    let is_about_access = matches!(error.cause, Cause::Key | Cause::Token { .. });
    matches!(error.status, Some(400 | 402 | 404..=499)) && !is_about_access
}

/// Whether the pages share at least half of their rows: some may have changed meanwhile.
fn is_same(one: &[Bytes], other: &[Bytes]) -> bool {
    let rows: HashSet<&Bytes> = one.iter().collect();
    let shared = other.iter().filter(|row| rows.contains(row)).count();
    shared > 0 && 2 * shared >= one.len().max(other.len())
}
