//! Changes of single records.

use super::{
    CompanyNumber, Kind, Place, RecordChange, RecordPartition, RecordState, RowTable, World, WorldRow,
    initial,
};
use crate::{catalog::Resource, clock::Clock};

impl World {
    /// Creates a record. `None` if the company is unknown or deleted, or if records of the resource belong to a company and none is
    /// given (or the reverse).
    pub fn create(
        &mut self,
        resource: Resource,
        company: Option<CompanyNumber>,
        clock: &Clock,
    ) -> Option<RecordChange> {
        let unfit = company.is_none() != self.is_tenant_wide(resource);
        if unfit || company.is_some_and(|company| !self.company_lives(company)) {
            return None;
        }
        Some(self.append(resource, company, clock))
    }

    /// Changes, disables or deletes a record, or fails a write. `None` if the record is deleted, the resource has no such events,
    /// or it is already disabled. An update enables a disabled record.
    pub fn act(&mut self, place: Place, kind: Kind, clock: &Clock) -> Option<RecordChange> {
        if kind == Kind::Created || !place.resource.kinds().contains(&kind) {
            return None;
        }
        if place.company.is_some_and(|company| !self.company_lives(company)) {
            return None;
        }
        let row = self.row(place)?;
        let state = match (kind, row.state) {
            (_, RecordState::Deleted) | (Kind::Disabled, RecordState::Disabled) => return None,
            (Kind::Disabled, RecordState::Enabled) => RecordState::Disabled,
            (Kind::Deleted, _) => RecordState::Deleted,
            (Kind::ErrorOccurred, _) => {
                return Some(RecordChange { number: self.number(), place, kind, row });
            }
            (Kind::Created | Kind::Updated, _) => RecordState::Enabled,
        };
        let next = WorldRow {
            sequence: self.next_sequence(place),
            changed: clock.change(),
            revision: row.revision.saturating_add(1),
            lineage: self.partition(place).map_or(0, |partition| partition.lineage),
            state,
        };
        self.history.push(place, row);
        self.put(place, next);
        if state == RecordState::Deleted {
            self.living -= 1;
            // The records of a company are deleted with it.
            if place.resource == Resource::Companies {
                self.living -= self.partition(place).map_or(0, |members| members.living());
            }
        }
        Some(RecordChange { number: self.number(), place, kind, row: next })
    }

    /// Appends a record without checks.
    pub(super) fn append(
        &mut self,
        resource: Resource,
        company: Option<CompanyNumber>,
        clock: &Clock,
    ) -> RecordChange {
        let index = self.table(resource, company).map_or(0, RowTable::len);
        let place = Place { resource, company, index };
        if resource == Resource::Companies {
            let counter = initial::company_start(self.seed(), u64::from(index) + 1);
            self.records.partitions.push(RecordPartition { counter, ..RecordPartition::default() });
        }
        let row = WorldRow {
            sequence: self.next_sequence(place),
            changed: clock.change(),
            revision: 0,
            lineage: self.partition(place).map_or(0, |partition| partition.lineage),
            state: RecordState::Enabled,
        };
        self.put(place, row);
        self.living += 1;
        RecordChange { number: self.number(), place, kind: Kind::Created, row }
    }

    /// The next sequence of the counter that covers a place.
    fn next_sequence(&mut self, place: Place) -> u64 {
        let Some(partition) = self.partition(place) else { return 1 };
        partition.counter += 1;
        partition.counter
    }

    /// Writes a row at an existing or the next index.
    fn put(&mut self, place: Place, row: WorldRow) {
        let table = if place.resource == Resource::Companies {
            &mut self.records.companies
        } else {
            let Some(partition) = self.partition(place) else { return };
            partition.table_mut(place.resource)
        };
        if place.index < table.len() {
            table.set(place.index, Some(row));
        } else {
            table.push(row);
        }
    }

    /// The partition with a record's counter and lineage; for a company its own.
    fn partition(&mut self, place: Place) -> Option<&mut RecordPartition> {
        match (place.resource, place.company) {
            (Resource::Companies, _) => self.records.partitions.get_mut(place.index as usize),
            (_, Some(company)) => self.records.partitions.get_mut(company as usize),
            (_, None) => Some(&mut self.records.tenant),
        }
    }
}
