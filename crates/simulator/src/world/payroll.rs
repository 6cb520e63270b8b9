//! Payroll companies: one list, no webhooks, dates in whole milliseconds.

use super::{
    Kind, PayrollRow, RecordState, World, WorldRow,
    draws::{draw, pick},
    history::History,
    table::{Arrangement, RowTable},
};
use crate::{
    clock::{Clock, SECOND, Ticks},
    knobs::{Churn, DisabledShows, ListOrder},
    random::mix,
    settings::WorldSettings,
};

const MILLISECOND: i64 = SECOND / 1_000;
const DAY: i64 = 86_400 * SECOND;
/// The random stream of payroll.
const PAYROLL: u64 = 0x7061_7972_6F6C_6C21;

/// All payroll companies, deleted ones included.
#[derive(Debug)]
pub(super) struct PayrollTable {
    table: RowTable,
    history: History<u32>,
}

impl PayrollTable {
    /// The initial payroll companies, updated within the last two years.
    pub(super) fn new(settings: &WorldSettings, now: Ticks) -> Self {
        let first = |index: u32| {
            let noise = (mix(settings.seed ^ mix(PAYROLL ^ u64::from(index))) >> 1).cast_signed();
            row(Ticks(now.0.saturating_sub(DAY + noise % (729 * DAY))))
        };
        Self {
            table: RowTable::new((0..settings.payroll_companies).map(first)),
            history: History::new(settings.history),
        }
    }

    /// Payroll companies that are not deleted.
    pub(super) fn living(&self) -> u32 {
        self.table.living()
    }
}

impl World {
    /// All payroll companies that are not deleted.
    pub fn payroll(&self, order: ListOrder) -> Vec<PayrollRow> {
        self.payroll_slice(0, usize::MAX, order, None).0
    }

    /// Rows `offset..offset + limit` of that list as of a moment (`None` for now), and its length.
    pub fn payroll_slice(
        &self,
        offset: u64,
        limit: usize,
        order: ListOrder,
        as_of: Option<Ticks>,
    ) -> (Vec<PayrollRow>, u64) {
        let PayrollTable { table, history } = &self.payroll;
        let salt = mix(self.seed() ^ PAYROLL);
        let arrangement = Arrangement { order, disabled: DisabledShows::Everywhere, salt };
        let then = as_of.map(|moment| move |index, row| history.at_moment(index, row, moment).0);
        let (rows, total) = table.slice(offset, limit, arrangement, then);
        (rows.into_iter().map(|(index, row)| PayrollRow::new(index, &row)).collect(), total)
    }

    /// Creates a payroll company, or changes or deletes the given one or a random one. `None` if there is none, it is deleted, or
    /// the kind is another.
    pub fn act_payroll(&mut self, index: Option<u32>, kind: Kind, clock: &Clock) -> Option<PayrollRow> {
        let PayrollTable { table, history } = &mut self.payroll;
        let lives =
            |table: &RowTable, index| table.get(index).filter(|row| row.state != RecordState::Deleted);
        let (index, new) = match (kind, index) {
            (Kind::Created, None) => {
                let new = row(clock.change());
                table.push(new);
                (table.len() - 1, new)
            }
            (Kind::Updated | Kind::Deleted, index) => {
                let all = if table.living() == 0 { 0 } else { table.len() };
                let some = || pick(&mut self.random, all, |index| lives(table, index).is_some());
                let index = index.or_else(some)?;
                let old = lives(table, index)?;
                history.push(index, old);
                let state = if kind == Kind::Deleted { RecordState::Deleted } else { RecordState::Enabled };
                let new = WorldRow { revision: old.revision.saturating_add(1), state, ..row(clock.change()) };
                table.set(index, Some(new));
                (index, new)
            }
            _ => return None,
        };
        self.number();
        Some(PayrollRow::new(index, &new))
    }

    /// Changes between two pages of the payroll list.
    pub fn churn_payroll(&mut self, churn: &Churn, clock: &Clock) {
        for (average, kind) in
            [(churn.deletes, Kind::Deleted), (churn.updates, Kind::Updated), (churn.inserts, Kind::Created)]
        {
            for _ in 0..draw(&mut self.random, average) {
                self.act_payroll(None, kind, clock);
            }
        }
    }
}

impl PayrollRow {
    const fn new(index: u32, row: &WorldRow) -> Self {
        Self { index, updated: row.changed, revision: row.revision }
    }
}

/// The first state of a payroll company; its date has whole milliseconds.
fn row(changed: Ticks) -> WorldRow {
    let changed = Ticks(changed.0 - changed.0.rem_euclid(MILLISECOND));
    WorldRow { sequence: 0, changed, revision: 0, lineage: 0, state: RecordState::Enabled }
}
