//! One pass over a list.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use roaring::RoaringBitmap;

use provider::api::{Page, PageWalk, Pagination, ReadTimes, Total, WalkStep};

use super::{
    counting::{PassPage, ShownRecords},
    page::{Row, Seen},
};

/// The current pass.
#[derive(Debug, Clone)]
pub(super) struct Pass {
    pub(super) walk: PageWalk,
    /// Distinct records that it has shown, by place.
    pub(super) shown: RoaringBitmap,
    pub(super) pages: Vec<PassPage>,
    pub(super) step: PassStep,
    pub(super) fruitless: u32,
    pub(super) rows: u64,
    pub(super) total: Option<u64>,
}

/// Purpose of the next page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PassStep {
    /// Read this page of the list.
    Page(u32),
    /// Page 1 was short, with this many rows: check whether rows follow.
    Behind(u32),
    /// No rows follow page 1: check whether it is unchanged.
    Repeat,
    /// Read page 1 without the filter, to determine what the filter must return.
    Plain,
}

impl Pass {
    /// Starts a pass.
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

    /// Advances the walk with a page whose rows are remembered.
    pub(super) fn look(&mut self, seen: &Seen, memory: &ShownRecords) -> WalkStep {
        let Self { walk, shown, .. } = self;
        walk.observe(&as_page(seen), |row| is_new(shown, row, memory))
    }
}

fn is_new(shown: &mut RoaringBitmap, row: &Row, memory: &ShownRecords) -> bool {
    memory.get(&row.id).is_none_or(|known| shown.insert(known.place))
}

/// Converts a page for [`PageWalk`].
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
        // The walk only compares pages, so one hash represents all rows; empty pages have none.
        raw: if seen.rows.is_empty() { Vec::new() } else { vec![content] },
        total: seen.total.map_or(Total::Absent, |total_count| {
            Total::Reported(Pagination { current_page: u64::from(seen.number), total_pages: 0, total_count })
        }),
        times: ReadTimes {
            sent: at(seen.answer.sent),
            answered: at(seen.answer.answered),
            date: seen.answer.date.map(at),
            age: None,
        },
        base: seen.base,
        widest: seen.widest,
    }
}
