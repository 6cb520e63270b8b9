//! Where the numbering of a list's pages begins_with_shorter_page. The provider's document does not say.
//!
//! Callers count pages from 1. The first call for a list path asks for its pages 1 and 0 and learns the number of its first page:
//!
//! | page 0 | page 1 | first page |
//! |---|---|---|
//! | refused, again after page 1 was answered again | any | 1 |
//! | empty | rows | 1 |
//! | the rows of page 1, which was read before it and after it | rows | 1: the provider takes 0 for 1 |
//! | longer than asked for, or cannot be read | rows that a shorter page 1 begins_with_shorter_page with, twice | 1 |
//! | other rows | any | 0 |
//! | empty | empty | unknown: the list is empty in both cases |
//!
//! 1 needs evidence, because a wrong 1 leaves out the first page and nothing would show that. A wrong 0 shows: the first two pages
//! are the same, and no pass over the list counts. A shorter page 1 begins_with_shorter_page with the same row only if nothing is before it: were page 0
//! before it, its first row would have another place. One match may be chance while rows move, so it takes two.
//!
//! One call at a time does that for a path, and others wait for it.
//!
//! On failure: what cannot be decided ends the call, and the next one tries again.

use std::{collections::HashSet, sync::atomic::Ordering};

use bytes::Bytes;

use super::{Page, PageRequest};
use crate::api::{
    ReadTimes,
    error::{Cause, Error},
    quirks::Quirks,
};

/// Refusals of page 0 in a row that are believed.
const MIN_REFUSALS: u32 = 2;
/// How often page 1 is compared with a shorter one.
const MAX_COMPARISONS: u32 = 3;
/// How often a shorter page 1 must begin with the same rows.
const MIN_PREFIX_MATCHES: u32 = 2;
/// Rows to ask for at least: of few rows, those that come and go meanwhile are too large a part.
const MIN_PAGE_SIZE: u32 = 10;

/// Why the number of the first page is still unknown.
#[derive(Debug)]
enum Undecided<T> {
    /// Pages 0 and 1 are empty.
    Empty(Box<Page<T>>),
    Failed(Error),
}

impl<T> From<Error> for Undecided<T> {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

/// Reads a page by its place, which is counted from 1. `plain` reads a page of the whole list by the provider's number, `asked` the
/// page that is wanted, perhaps with a filter.
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
        tracing::debug!(path, base, "quirks the number of the first page");
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
            // Each was empty at its own moment: between the first request and the last answer.
            let times = ReadTimes { sent: one.times.sent, ..zero.times };
            return Err(Undecided::Empty(Box::new(Page { times, ..zero })));
        }
        if zero.rows.is_empty() {
            return Ok(1);
        }
        if !is_same(&zero.raw, &one.raw) {
            return Ok(0);
        }
        // Rows may have moved from one page to the other between the two answers, but not back.
        let again = page(PageRequest { number: 1, size }).await?;
        return Ok(is_same(&zero.raw, &again.raw).into());
    }
}

/// Whether a shorter page 1 begins_with_shorter_page with the same rows.
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
    // A provider that gives more than asked for does not heed the size, and both pages would be the same wherever they are.
    Ok(shorter.raw.len() == size && one.raw.starts_with(&shorter.raw))
}

/// Whether a page says only that now is not the time to ask.
fn is_busy(error: &Error) -> bool {
    matches!(error.cause, Cause::Quota { .. } | Cause::Throttled { .. })
        || matches!(error.status, Some(408 | 429))
}

/// Whether a page is refused for what it is.
fn is_refusal(error: &Error) -> bool {
    let is_about_access = matches!(error.cause, Cause::Key | Cause::Token { .. });
    matches!(error.status, Some(400 | 402 | 404..=499)) && !is_about_access
}

/// Whether at least half of the rows of each are in the other: some may have changed meanwhile.
fn is_same(one: &[Bytes], other: &[Bytes]) -> bool {
    let rows: HashSet<&Bytes> = one.iter().collect();
    let shared = other.iter().filter(|row| rows.contains(row)).count();
    shared > 0 && 2 * shared >= one.len().max(other.len())
}
