//! Records and lists as a view shows them, and the truth.

use super::{CompanyNumber, List, Place, RecordState, World, WorldRow, WorldView, table::Arrangement};
use crate::{catalog::Resource, clock::Ticks, knobs::DisabledShows, random::mix};

/// The random stream of scattered orders.
const SCATTER: u64 = 0x7363_6174_7465_7265;

impl World {
    /// The company with this correlation id, deleted ones included.
    pub fn company(&self, id: &str) -> Option<CompanyNumber> {
        self.find(Resource::Companies, id).map(|(place, _)| place.index)
    }

    /// Whether the company exists and has not been deleted.
    pub fn company_lives(&self, company: CompanyNumber) -> bool {
        self.company_lived(company, None)
    }

    /// Whether the company existed at a moment (`None` for now) and was not deleted.
    pub fn company_lived(&self, company: CompanyNumber, as_of: Option<Ticks>) -> bool {
        let place = Place { resource: Resource::Companies, company: None, index: company };
        self.records
            .companies
            .get(company)
            .and_then(|row| self.state(place, row, as_of))
            .is_some_and(|row| row.state != RecordState::Deleted)
    }

    /// The record with this id as the view shows it; `None` if it is deleted, hidden, or did not exist at the view's moment.
    pub fn record(
        &self,
        resource: Resource,
        company: Option<CompanyNumber>,
        id: &str,
        view: &WorldView,
    ) -> Option<(Place, WorldRow)> {
        let place = self.naming.place(resource, id).filter(|place| place.company == company)?;
        let row = self.state(place, self.row(place)?, view.as_of)?;
        let shows = match row.state {
            RecordState::Enabled => true,
            RecordState::Disabled => view.disabled != DisabledShows::Nowhere,
            RecordState::Deleted => false,
        };
        let reachable = company.is_none_or(|company| self.company_lived(company, view.as_of));
        (shows && reachable).then_some((place, row))
    }

    /// Rows `offset..offset + limit` of a list as the view shows it, and its length.
    pub fn slice(
        &self,
        (resource, company): List,
        offset: u64,
        limit: usize,
        view: &WorldView,
    ) -> (Vec<(Place, WorldRow)>, u64) {
        let nothing = (Vec::new(), 0);
        if company.is_some_and(|company| !self.company_lived(company, view.as_of)) {
            return nothing;
        }
        let arrangement =
            Arrangement { order: view.order, disabled: view.disabled, salt: self.salt(resource, company) };
        let Some(table) = self.table(resource, company) else { return nothing };
        let place = |index| Place { resource, company, index };
        let then =
            view.as_of.map(|moment| move |index, row| self.history.at_moment(place(index), row, moment).0);
        let (rows, total) = table.slice(offset, limit, arrangement, then);
        (rows.into_iter().map(|(index, row)| (place(index), row)).collect(), total)
    }

    /// Every record of a resource, deleted ones included. Records of a deleted company show as deleted, in their last version.
    pub fn records(&self, resource: Resource) -> impl Iterator<Item = (Place, WorldRow)> + '_ {
        let companies = (0..).zip(&self.records.partitions).map(|(number, _)| Some(number));
        std::iter::once(None).chain(companies).flat_map(move |company| {
            let gone = company.is_some_and(|company| !self.company_lives(company));
            self.table(resource, company).into_iter().flat_map(move |table| {
                table
                    .rows()
                    .map(move |(index, row)| (Place { resource, company, index }, mark_deleted(row, gone)))
            })
        })
    }

    /// The record with this id in any state; see [`World::records`].
    pub fn find(&self, resource: Resource, id: &str) -> Option<(Place, WorldRow)> {
        let place = self.naming.place(resource, id)?;
        let gone = place.company.is_some_and(|company| !self.company_lives(company));
        self.row(place).map(|row| (place, mark_deleted(row, gone)))
    }

    pub(super) fn row(&self, place: Place) -> Option<WorldRow> {
        self.table(place.resource, place.company)?.get(place.index)
    }

    /// The state a record had at a moment.
    fn state(&self, place: Place, row: WorldRow, as_of: Option<Ticks>) -> Option<WorldRow> {
        as_of.map_or(Some(row), |moment| self.history.at_moment(place, row, moment).0)
    }

    fn salt(&self, resource: Resource, company: Option<CompanyNumber>) -> u64 {
        let list = (resource as u64) << 32 | company.map_or(0, u64::from);
        mix(self.seed() ^ mix(SCATTER ^ list))
    }
}

fn mark_deleted(row: WorldRow, gone: bool) -> WorldRow {
    if gone { WorldRow { state: RecordState::Deleted, ..row } } else { row }
}
