//! Records and lists as a view shows them, and the truth behind them.

use super::{
    CompanyNumber, List, Place, RecordState, Row, Slice, View, World, history::State, table::Arrangement,
};
use crate::{catalog::Resource, clock::Ticks, knobs::DisabledShows, random::mix};

/// Tells the scattered orders of lists from contents.
const SCATTER: u64 = 0x7363_6174_7465_7265;

impl World {
    /// The company with this correlation id, deleted ones included.
    #[must_use]
    pub fn company(&self, id: &str) -> Option<CompanyNumber> {
        self.find(Resource::Companies, id).map(|(place, _)| place.index)
    }

    /// Whether the company exists and has not been deleted.
    #[must_use]
    pub fn company_lives(&self, company: CompanyNumber) -> bool {
        self.company_lived(company, None)
    }

    /// Whether the company existed at a moment (`None` for now) and had not been deleted by then.
    #[must_use]
    pub fn company_lived(&self, company: CompanyNumber, as_of: Option<Ticks>) -> bool {
        let place = Place { resource: Resource::Companies, company: None, index: company };
        self.companies
            .get(company)
            .and_then(|row| self.state(place, row, as_of))
            .is_some_and(|row| row.state != RecordState::Deleted)
    }

    /// The record with this id in this resource of this company, in the state the view shows; deleted ones, hidden ones
    /// and those the view's moment does not have yet are `None`.
    #[must_use]
    pub fn record(
        &self,
        resource: Resource,
        company: Option<CompanyNumber>,
        id: &str,
        view: &View,
    ) -> Option<(Place, Row)> {
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

    /// Rows `offset..offset + limit` of a list as the view shows it. Cheap: no work for rows outside the slice when the
    /// view looks at now, except after the order was switched.
    #[must_use]
    pub fn slice(&mut self, list: List, offset: u64, limit: usize, view: &View) -> Slice {
        let (resource, company) = list.contents();
        let nothing = Slice { rows: Vec::new(), total: 0 };
        if company.is_some_and(|company| !self.company_lived(company, view.as_of)) {
            return nothing;
        }
        let arrangement =
            Arrangement { order: view.order, disabled: view.disabled, salt: self.salt(resource, company) };
        let (rows, total) = match view.as_of.filter(|&moment| self.list_changed(list) > moment) {
            Some(moment) => self.slice_then(resource, company, offset, limit, arrangement, moment),
            None => match self.table_mut(resource, company) {
                Some(table) => table.slice(offset, limit, arrangement),
                None => return nothing,
            },
        };
        let rows = rows.into_iter().map(|(index, row)| (Place { resource, company, index }, row)).collect();
        Slice { rows, total }
    }

    /// Every record of a resource, with its company, deleted ones included: the truth. Records of a deleted company show
    /// as deleted, in their last version.
    pub fn records(&self, resource: Resource) -> impl Iterator<Item = (Place, Row)> + '_ {
        let companies = (0..).zip(&self.partitions).map(|(number, _)| Some(number));
        std::iter::once(None).chain(companies).flat_map(move |company| {
            let gone = company.is_some_and(|company| !self.company_lives(company));
            self.table(resource, company).into_iter().flat_map(move |table| {
                table.rows().map(move |(index, row)| (Place { resource, company, index }, bury(row, gone)))
            })
        })
    }

    /// The record with this id, in whatever state, deleted included; see [`World::records`].
    #[must_use]
    pub fn find(&self, resource: Resource, id: &str) -> Option<(Place, Row)> {
        let place = self.naming.place(resource, id)?;
        let gone = place.company.is_some_and(|company| !self.company_lives(company));
        self.row(place).map(|row| (place, bury(row, gone)))
    }

    pub(super) fn row(&self, place: Place) -> Option<Row> {
        self.table(place.resource, place.company)?.get(place.index)
    }

    /// The state a record had at a moment.
    fn state(&self, place: Place, row: Row, as_of: Option<Ticks>) -> Option<Row> {
        match as_of {
            Some(moment) if moment < row.changed => self.history.at_moment(place, row, moment).0,
            _ => Some(row),
        }
    }

    /// A slice of a list as it was: all of it is looked through.
    fn slice_then(
        &self,
        resource: Resource,
        company: Option<CompanyNumber>,
        offset: u64,
        limit: usize,
        arrangement: Arrangement,
        moment: Ticks,
    ) -> (Vec<(u32, Row)>, u64) {
        let Some(table) = self.table(resource, company) else { return (Vec::new(), 0) };
        let rows = table
            .rows()
            .filter_map(|(index, row)| {
                self.state(Place { resource, company, index }, row, Some(moment)).map(|row| (index, row))
            })
            .collect();
        arrangement.slice(rows, offset, limit)
    }

    /// The latest change of anything in a list, or later.
    fn list_changed(&self, list: List) -> Ticks {
        match list.contents().1 {
            None => self.companies_changed,
            Some(company) => {
                self.partitions.get(company as usize).map_or(Ticks(i64::MIN), |partition| partition.changed)
            }
        }
    }

    fn salt(&self, resource: Resource, company: Option<CompanyNumber>) -> u64 {
        let list = (resource as u64) << 32 | company.map_or(0, u64::from);
        mix(self.seed() ^ mix(SCATTER ^ list))
    }
}

impl List {
    /// The resource in it, and whose.
    pub(super) const fn contents(self) -> (Resource, Option<CompanyNumber>) {
        match self {
            Self::Companies => (Resource::Companies, None),
            Self::Customers(company) => (Resource::Customers, Some(company)),
            Self::Accounts(company) => (Resource::Accounts, Some(company)),
        }
    }
}

impl State for Row {
    fn since(&self) -> Ticks {
        self.changed
    }

    fn is_first(&self) -> bool {
        self.revision == 0
    }
}

fn bury(row: Row, gone: bool) -> Row {
    if gone { Row { state: RecordState::Deleted, ..row } } else { row }
}
