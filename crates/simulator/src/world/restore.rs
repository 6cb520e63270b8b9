//! Restores a company to an earlier state, as from a backup.
//!
//! Undone changes never happened, not even for reads as of a moment in between. Counters continue from their restored values,
//! so versions repeat; their content differs, because the company's lineage does.

use super::{CompanyNumber, History, Place, RecordPartition, RowTable, World};
use crate::{catalog::Resource, clock::Ticks};

impl World {
    /// Restores a company and all its records to a moment, versions included: later records are gone, later deletes undone. No
    /// event is sent. Returns how many records changed. Where history was dropped, the oldest known state is restored.
    pub fn restore(&mut self, company: CompanyNumber, to: Ticks) -> u64 {
        let before = self.reachable(company);
        let Some(partition) = self.records.partitions.get_mut(company as usize) else { return 0 };
        let own = Place { resource: Resource::Companies, company: None, index: company };
        let mut count = u64::from(set_back(&mut self.records.companies, own, &mut self.history, to));
        for (resource, table) in &mut partition.tables {
            for index in 0..table.len() {
                let place = Place { resource: *resource, company: Some(company), index };
                count += u64::from(set_back(table, place, &mut self.history, to));
            }
        }
        let own = self.records.companies.get(company).map_or(0, |row| row.sequence);
        partition.counter = partition.highest_sequence().max(own);
        partition.lineage = partition.lineage.wrapping_add(1);
        self.living = self.living - before + self.reachable(company);
        count
    }

    /// Readable records of a company, including itself.
    fn reachable(&self, company: CompanyNumber) -> u64 {
        if !self.company_lives(company) {
            return 0;
        }
        1 + self.records.partitions.get(company as usize).map_or(0, RecordPartition::living)
    }
}

/// Restores one record; whether it changed.
fn set_back(table: &mut RowTable, place: Place, history: &mut History<Place>, to: Ticks) -> bool {
    let Some(row) = table.get(place.index).filter(|row| row.changed > to) else { return false };
    let (state, passed) = history.at_moment(place, row, to);
    // Where the history is too short, what is left of it must not look complete.
    let complete = state.is_some_and(|state| state.changed <= to);
    history.forget(place, if complete { passed } else { usize::MAX });
    table.set(place.index, state);
    state != Some(row)
}
