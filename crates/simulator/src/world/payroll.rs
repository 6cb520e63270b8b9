//! Payroll companies: one list, no webhooks, dates in whole milliseconds.

use super::{
    Kind, PayrollRow, World,
    chance::{draw, pick},
    history::{self, History, State},
    table::within,
};
use crate::{
    clock::{Clock, SECOND, Ticks},
    knobs::{Churn, ListOrder},
    random::mix,
    settings::WorldSettings,
};

const MILLISECOND: i64 = SECOND / 1_000;
const DAY: i64 = 86_400 * SECOND;
/// Tells the order and the dates of payroll from everything else.
const PAYROLL: u64 = 0x7061_7972_6F6C_6C21;

/// All payroll companies that ever were.
#[derive(Debug)]
pub(super) struct Payroll {
    /// By index.
    rows: Vec<PayrollRow>,
    living: u32,
    /// The latest change of any.
    changed: Ticks,
    history: History<u32, PayrollRow>,
}

impl Payroll {
    /// Those of the first world, last updated within the two years before.
    pub(super) fn new(settings: &WorldSettings, now: Ticks) -> Self {
        let row = |index: u32| {
            let noise = (mix(settings.seed ^ mix(PAYROLL ^ u64::from(index))) >> 1).cast_signed();
            let updated = Ticks(now.0.saturating_sub(DAY + noise % (729 * DAY)));
            PayrollRow { index, updated: whole_milliseconds(updated), revision: 0, gone: false }
        };
        Self {
            rows: (0..settings.payroll_companies).map(row).collect(),
            living: settings.payroll_companies,
            changed: whole_milliseconds(Ticks(now.0.saturating_sub(DAY))),
            history: History::new(settings.history, history::LIMIT),
        }
    }
}

impl World {
    /// Every payroll company that has not left, in the order of the view.
    #[must_use]
    pub fn payroll(&self, order: ListOrder) -> Vec<PayrollRow> {
        self.payroll_at(order, None)
    }

    /// The same as it was at a moment; `None` for now.
    #[must_use]
    pub fn payroll_at(&self, order: ListOrder, as_of: Option<Ticks>) -> Vec<PayrollRow> {
        let mut rows: Vec<PayrollRow> = self.payroll_rows(as_of).collect();
        match order {
            ListOrder::Created => {}
            ListOrder::Newest => rows.reverse(),
            ListOrder::Scattered => {
                let salt = mix(self.seed() ^ PAYROLL);
                rows.sort_unstable_by_key(|row| mix(salt ^ u64::from(row.index)));
            }
            ListOrder::Changed => rows.sort_unstable_by_key(|row| (row.updated, row.index)),
        }
        rows
    }

    /// Rows `offset..offset + limit` of that list, and how many it has. In the order of their making only the rows of the
    /// slice are copied, and looked at if none has left; if some have, those before it are passed over. Under the other
    /// orders the whole list is copied and sorted.
    #[must_use]
    pub fn payroll_slice(
        &self,
        offset: u64,
        limit: usize,
        order: ListOrder,
        as_of: Option<Ticks>,
    ) -> (Vec<PayrollRow>, u64) {
        let as_of = as_of.filter(|&moment| self.payroll.changed > moment);
        let sorted = matches!(order, ListOrder::Scattered | ListOrder::Changed);
        if sorted || as_of.is_some() {
            let rows = self.payroll_at(order, as_of);
            let part = within(rows.len(), offset, limit);
            return (rows[part].to_vec(), rows.len() as u64);
        }
        let total = self.payroll.living as usize;
        let part = within(total, offset, limit);
        // Newest first is the same list from its other end.
        let newest = order == ListOrder::Newest;
        let part = if newest { total - part.end..total - part.start } else { part };
        let mut rows: Vec<PayrollRow> = if total == self.payroll.rows.len() {
            self.payroll.rows[part].to_vec()
        } else {
            self.payroll_rows(None).skip(part.start).take(part.len()).collect()
        };
        if newest {
            rows.reverse();
        }
        (rows, total as u64)
    }

    /// Adds a payroll company (without an index), or changes or removes one: that with this index, or one picked by the
    /// seed. `None` where there is none, it has left, or the kind is none of the three.
    pub fn act_payroll(&mut self, index: Option<u32>, kind: Kind, clock: &Clock) -> Option<PayrollRow> {
        let row = match (kind, index) {
            (Kind::Created, None) => self.add_payroll(clock)?,
            (Kind::Updated | Kind::Deleted, index) => {
                let index = index.or_else(|| self.pick_payroll())?;
                let row = self.payroll.rows.get_mut(index as usize).filter(|row| !row.gone)?;
                self.payroll.history.push(index, *row);
                row.updated = whole_milliseconds(clock.change());
                row.revision = row.revision.saturating_add(1);
                row.gone = kind == Kind::Deleted;
                self.payroll.living -= u32::from(row.gone);
                self.payroll.changed = row.updated;
                *row
            }
            _ => return None,
        };
        self.number();
        Some(row)
    }

    /// What happens between two pages of the payroll list; average counts, drawn by the seed.
    pub fn churn_payroll(&mut self, churn: &Churn, clock: &Clock) {
        for (average, kind) in
            [(churn.deletes, Kind::Deleted), (churn.updates, Kind::Updated), (churn.inserts, Kind::Created)]
        {
            for _ in 0..draw(&mut self.random, average) {
                self.act_payroll(None, kind, clock);
            }
        }
    }

    /// Payroll companies that have not left.
    pub(super) const fn payroll_living(&self) -> u32 {
        self.payroll.living
    }

    /// Those that had not left at a moment, in the order of their making.
    fn payroll_rows(&self, as_of: Option<Ticks>) -> impl Iterator<Item = PayrollRow> + '_ {
        let history = &self.payroll.history;
        let state = move |row: &PayrollRow| match as_of {
            Some(moment) if moment < row.updated => history.at_moment(row.index, *row, moment).0,
            _ => Some(*row),
        };
        self.payroll.rows.iter().filter_map(state).filter(|row| !row.gone)
    }

    fn add_payroll(&mut self, clock: &Clock) -> Option<PayrollRow> {
        let index = u32::try_from(self.payroll.rows.len()).ok()?;
        self.room = self.room.checked_sub(1)?;
        let row = PayrollRow { index, updated: whole_milliseconds(clock.change()), revision: 0, gone: false };
        self.payroll.rows.push(row);
        self.payroll.living += 1;
        self.payroll.changed = row.updated;
        Some(row)
    }

    fn pick_payroll(&mut self) -> Option<u32> {
        let rows = &self.payroll.rows;
        let all = u32::try_from(rows.len()).unwrap_or(u32::MAX);
        if self.payroll.living == 0 {
            return None;
        }
        pick(&mut self.random, all, |index| !rows[index as usize].gone)
    }
}

impl State for PayrollRow {
    fn since(&self) -> Ticks {
        self.updated
    }

    fn is_first(&self) -> bool {
        self.revision == 0
    }
}

fn whole_milliseconds(moment: Ticks) -> Ticks {
    Ticks(moment.0 - moment.0.rem_euclid(MILLISECOND))
}
