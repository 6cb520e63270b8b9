//! A company set back to an older state, as from a backup.
//!
//! What is undone never happened, not even for reads as of a moment in between. What happens next goes on from the restored
//! counters, so that versions come a second time; their content is another, because the company's lineage is.

use super::{CompanyNumber, History, Place, RecordPartition, RowTable, World};
use crate::{catalog::Resource, clock::Ticks};

impl World {
    /// Sets a company and all its records back to how they were at a moment, versions and all: what came later is gone,
    /// what was deleted since is back. Nobody is told. How many records changed; history that was not kept ends at the
    /// oldest state known.
    pub fn restore(&mut self, company: CompanyNumber, to: Ticks) -> u64 {
        let before = self.reachable(company);
        let Some(partition) = self.partitions.get_mut(company as usize) else { return 0 };
        let own = Place { resource: Resource::Companies, company: None, index: company };
        let mut count = u64::from(set_back(&mut self.companies, own, &mut self.history, to));
        for (resource, table) in &mut partition.tables {
            for index in 0..table.len() {
                let place = Place { resource: *resource, company: Some(company), index };
                count += u64::from(set_back(table, place, &mut self.history, to));
            }
        }
        let own = self.companies.get(company).map_or(0, |row| row.sequence);
        partition.counter = partition.highest_sequence().max(own);
        partition.lineage = partition.lineage.wrapping_add(1);
        self.living = self.living - before + self.reachable(company);
        count
    }

    /// Records that can be reached of a company, itself included.
    fn reachable(&self, company: CompanyNumber) -> u64 {
        if !self.company_lives(company) {
            return 0;
        }
        1 + self.partitions.get(company as usize).map_or(0, RecordPartition::living)
    }
}

/// Sets one record back; whether it changed.
fn set_back(table: &mut RowTable, place: Place, history: &mut History<Place>, to: Ticks) -> bool {
    let Some(row) = table.get(place.index).filter(|row| row.changed > to) else { return false };
    let (state, passed) = history.at_moment(place, row, to);
    // Where the history ends too late, what is beyond its depth must not come up as if it had been kept.
    let complete = state.is_some_and(|state| state.changed <= to);
    history.forget(place, if complete { passed } else { usize::MAX });
    table.set(place.index, state);
    state != Some(row)
}
