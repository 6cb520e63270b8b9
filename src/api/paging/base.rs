//! Where the numbering of a list's pages begins. The provider's document does not say.
//!
//! Callers count pages from 1. The first call for a list path asks for its pages 1 and 0 and learns the number of its first page:
//!
//! | page 0 | page 1 | first page |
//! |---|---|---|
//! | refused, again after page 1 was answered again | any | 1 |
//! | empty, or longer than asked for | rows | 1 |
//! | the rows of page 1, which was read before it and after it | rows | 1: the provider takes 0 for 1 |
//! | other rows | any | 0 |
//! | empty | empty | unknown: the list is empty in both cases |
//!
//! 1 needs evidence, because a wrong 1 leaves out the first page and nothing would show that. A wrong 0 shows: the first two pages
//! are the same, and no pass over the list counts.
//!
//! On failure: a page that cannot be read for another reason ends the call, and the next one tries again.

use std::collections::HashSet;

use bytes::Bytes;

use super::{Page, PageAsk};
use crate::api::{
    Cut,
    error::{Cause, Error},
    learnt::Learnt,
};

/// Refusals of page 0 in a row that are believed.
const REFUSALS: u32 = 2;
/// The same for answers that may be a failure of the moment.
const FAILURES: u32 = 3;

/// What pages 0 and 1 tell.
#[derive(Debug)]
enum Numbering<T> {
    /// The number of the first page.
    From(u32),
    /// Nothing: both are empty.
    Empty(Page<T>),
}

/// Reads a page by its place, which is counted from 1. `plain` reads a page of the whole list by the provider's number, `asked` the
/// page that is wanted, perhaps with a filter.
pub(crate) async fn read<T, P, A>(
    learnt: &Learnt,
    path: &str,
    wanted: PageAsk,
    plain: impl Fn(PageAsk) -> P,
    asked: impl Fn(PageAsk) -> A,
) -> Result<Page<T>, Error>
where
    P: Future<Output = Result<Page<T>, Error>>,
    A: Future<Output = Result<Page<T>, Error>>,
{
    let base = match learnt.first_page(path) {
        Some(base) => base,
        None => match learn(|number| plain(PageAsk { number, ..wanted })).await? {
            Numbering::From(base) => {
                tracing::debug!(path, base, "learnt the number of the first page");
                learnt.pages_begin_at(path, base);
                base
            }
            Numbering::Empty(page) => return Ok(Page { number: wanted.number, ..page }),
        },
    };
    let number = wanted.number.saturating_sub(1).saturating_add(base);
    let page = asked(PageAsk { number, ..wanted }).await?;
    let rows = u32::try_from(page.rows.len()).unwrap_or(u32::MAX).min(wanted.size);
    let widest = learnt.widest(path, rows);
    Ok(Page { number: wanted.number, base: Some(base), widest, ..page })
}

async fn learn<T, F>(page: impl Fn(u32) -> F) -> Result<Numbering<T>, Error>
where
    F: Future<Output = Result<Page<T>, Error>>,
{
    let mut refusals = 0;
    loop {
        let one = page(1).await?;
        let zero = match page(0).await {
            Ok(zero) => zero,
            Err(error) => {
                let believed = believed_after(&error).ok_or(error)?;
                refusals += 1;
                if refusals >= believed {
                    return Ok(Numbering::From(1));
                }
                continue;
            }
        };
        if zero.rows.is_empty() && one.rows.is_empty() {
            // Each was empty at its own moment: between the first request and the last answer.
            let cut = Cut { sent: one.cut.sent, ..zero.cut };
            return Ok(Numbering::Empty(Page { cut, ..zero }));
        }
        if zero.rows.is_empty() || zero.rows.len() > zero.asked as usize {
            return Ok(Numbering::From(1));
        }
        if !is_same(&zero.raw, &one.raw) {
            return Ok(Numbering::From(0));
        }
        // Rows may have moved from one page to the other between the two answers, but not back.
        let again = page(1).await?;
        return Ok(Numbering::From(u32::from(is_same(&zero.raw, &again.raw))));
    }
}

/// How often page 0 has to fail like this until it is believed that there is none; `None` if it says nothing about page 0.
fn believed_after(error: &Error) -> Option<u32> {
    let elsewhere = matches!(
        error.cause,
        Cause::Key | Cause::Token { .. } | Cause::Quota { .. } | Cause::Throttled { .. }
    );
    match error.status {
        None | Some(401 | 403 | 408 | 429) => None,
        Some(_) if elsewhere => None,
        Some(400..=499) => Some(REFUSALS),
        Some(_) => Some(FAILURES),
    }
}

/// Whether at least half of the rows of each are in the other: some may have changed meanwhile.
fn is_same(one: &[Bytes], other: &[Bytes]) -> bool {
    let rows: HashSet<&Bytes> = one.iter().collect();
    let shared = other.iter().filter(|row| rows.contains(row)).count();
    shared > 0 && 2 * shared >= one.len().max(other.len())
}
