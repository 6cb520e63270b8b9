//! One pass over a list, as far as it has come.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use roaring::RoaringBitmap;

use provider::api::{Page, PageWalk, Pagination, ReadTimes, Total, WalkStep};

use super::{
    counting::{PassPage, ShownRecords},
    page::{Row, Seen},
};

/// The pass that goes on.
#[derive(Debug, Clone)]
pub(super) struct Pass {
    pub(super) walk: PageWalk,
    /// The distinct records it has shown.
    pub(super) shown: RoaringBitmap,
    pub(super) pages: Vec<PassPage>,
    pub(super) step: PassStep,
    pub(super) fruitless: u32,
    pub(super) rows: u64,
    pub(super) total: Option<u64>,
}

/// What its next page is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PassStep {
    /// It is read by page.
    Page(u32),
    /// Page 1 was short: is there anything behind so many rows?
    Behind(u32),
    /// Nothing was behind it: is it still the same?
    Repeat,
    /// What a filter has to let through.
    Plain,
}

impl Pass {
    /// Before its first page.
    pub(super) fn new() -> Self {
        Self {
            walk: PageWalk::default(),
            shown: RoaringBitmap::new(),
            pages: Vec::new(),
            step: PassStep::Page(1),
            fruitless: 0,
            rows: 0,
            total: None,
        }
    }

    /// Walks on with a page whose rows are remembered.
    pub(super) fn look(&mut self, seen: &Seen, memory: &ShownRecords) -> WalkStep {
        let Self { walk, shown, .. } = self;
        walk.observe(&as_page(seen), |row| is_new(shown, row, memory))
    }
}

fn is_new(shown: &mut RoaringBitmap, row: &Row, memory: &ShownRecords) -> bool {
    memory.get(&row.id).is_none_or(|known| shown.insert(known.place))
}

/// A page as a [`PageWalk`] looks at it.
fn as_page(seen: &Seen) -> Page<Row> {
    let at = |micros: i64| {
        UNIX_EPOCH
            .checked_add(Duration::from_micros(u64::try_from(micros).unwrap_or_default()))
            .unwrap_or(SystemTime::UNIX_EPOCH)
    };
    let content = Bytes::copy_from_slice(&seen.content.to_be_bytes());
    Page {
        number: seen.number,
        asked: seen.asked,
        rows: seen.rows.to_vec(),
        // One for all of them: a walk compares pages, and an empty one has none.
        raw: if seen.rows.is_empty() { Vec::new() } else { vec![content] },
        total: seen.total.map_or(Total::Absent, |total_count| {
            Total::Reported(Pagination { current_page: u64::from(seen.number), total_pages: 0, total_count })
        }),
        times: ReadTimes {
            sent: at(seen.sent),
            answered: at(seen.answered),
            date: seen.date.map(at),
            age: None,
        },
        base: seen.base,
        widest: seen.widest,
    }
}
