//! The provider's data: records that are made, changed, disabled and deleted, and what they once were.
//!
//! ```text
//! genesis ──▶ tables of rows, by company ──▶ reading: records, slices of lists, the truth
//!                  ▲              │ states that end
//!   step, churn ──▶ changing      ▼
//!                  └── restore ── history ──▶ reading as of a moment
//! ```
//!
//! - A row is 24 bytes; ids and contents follow from the seed, the place and the row ([`Naming`]) and are kept nowhere.
//! - An index is never used again: a deleted record keeps its row, one undone by a restore its empty place.
//! - Every change is dated later than all before it and raises the counter of its company (records of no company share
//!   another). Only a restore goes back; the counter then continues from what was restored.
//! - The records of a deleted company are out of reach: no read shows them, nothing happens to them.
//! - Everything drawn comes from one stream of the seed: the same calls under the same dates give the same world.
//! - What was asked for and cannot be is `None`; nothing fails.

use std::fmt;

use serde::Serialize;

use super::{
    catalog::{Action, Entity, Kind, Resource},
    clock::{Clock, Ticks},
    knobs::{DisabledShows, ListOrder},
    random::Random,
    settings::WorldSettings,
};

mod changes;
mod draws;
mod history;
mod initial;
mod invoicing;
mod naming;
mod payroll;
mod restore;
mod simulation;
mod table;
mod views;

pub use naming::Naming;

use self::{
    history::History, initial::InitialWorld, invoicing::InvoicingEntities, payroll::PayrollTable,
    table::RowTable,
};

/// Purpose of the stream of numbers that decides what happens.
const CHANGE_STREAM: u64 = 0x776F_726C_6420_676F;

/// Number of a company, from 0. Never used again after a delete.
pub type CompanyNumber = u32;

/// Where a record is kept. Its correlation id follows from this and the seed, and leads back to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Its resource.
    pub resource: Resource,
    /// Its company; `None` for tenant-wide resources and for companies themselves.
    pub company: Option<CompanyNumber>,
    /// Number within the resource of the company, from 0; for companies the company's number.
    pub index: u32,
}

/// One state of one record. Its other fields follow from the seed, the place, the revision and the lineage: see
/// [`Naming::content`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// `sequenceVersion`.
    pub sequence: u64,
    /// `version`: when this state began.
    pub changed: Ticks,
    /// States before this one.
    pub revision: u32,
    /// How often its company had been set back when this state began. After a restore revisions and sequences come a second
    /// time, with another lineage and therefore with other content.
    pub lineage: u16,
    /// Enabled, disabled or deleted.
    pub state: RecordState,
}

/// Whether a record is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum RecordState {
    /// In use.
    Enabled,
    /// No longer in use, still there.
    Disabled,
    /// Gone; the row remembers when and at which sequence.
    Deleted,
}

/// One state of one payroll company.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PayrollRow {
    /// Number from 0; its code and the fixed fields follow from it and the seed.
    pub index: u32,
    /// `lastUpdate`, whole milliseconds.
    pub updated: Ticks,
    /// States before this one.
    pub revision: u32,
}

/// One change, as webhooks tell it.
#[derive(Debug, Clone)]
pub enum Change {
    /// Of an accounting record.
    Record(RecordChange),
    /// Of a payroll company, which nobody is told.
    Payroll,
    /// Of an invoicing entity.
    Invoicing(InvoicingChange),
}

/// One change of an accounting record.
#[derive(Debug, Clone)]
pub struct RecordChange {
    /// Changes of the world are numbered from 0.
    pub number: u64,
    /// Which record.
    pub place: Place,
    /// What happened.
    pub kind: Kind,
    /// Its state since; for `ErrorOccurred` the state it still has.
    pub row: Row,
}

/// One change of an invoicing entity.
#[derive(Debug, Clone)]
pub struct InvoicingChange {
    /// Changes of the world are numbered from 0.
    pub number: u64,
    /// Number of the invoicing company, from 0.
    pub company: u32,
    /// Kind of entity.
    pub entity: Entity,
    /// `EntityId`.
    pub id: String,
    /// What happened.
    pub action: Action,
    /// When.
    pub at: Ticks,
}

/// Which list is read: a resource, and the company whose records it has.
pub type List = (Resource, Option<CompanyNumber>);

/// How the world is looked at.
#[derive(Debug, Clone, Copy)]
pub struct View {
    /// The world as it was then; `None` for now.
    pub as_of: Option<Ticks>,
    /// Where disabled records show.
    pub disabled: DisabledShows,
    /// Order of lists.
    pub order: ListOrder,
}

/// The world.
pub struct World {
    settings: WorldSettings,
    naming: Naming,
    /// Companies by number.
    companies: RowTable,
    /// The records of each company, by number.
    partitions: Vec<RecordPartition>,
    /// The records of no company.
    tenant: RecordPartition,
    history: History<Place>,
    payroll: PayrollTable,
    invoicing: InvoicingEntities,
    random: Random,
    changes: u64,
    /// Records that can be reached: neither deleted nor of a deleted company.
    living: u64,
    /// The same of the first world.
    first_living: u64,
    /// Companies of the first world.
    first_companies: u32,
}

/// The records of one company, or of none.
#[derive(Debug, Default)]
struct RecordPartition {
    /// Only of resources that ever had a record; sorted.
    tables: Vec<(Resource, RowTable)>,
    /// The last `sequenceVersion` given.
    counter: u64,
    /// How often it was set back.
    lineage: u16,
}

impl World {
    /// The first world of these settings: every record at revision 0, dated before `clock`'s now.
    pub fn new(settings: &WorldSettings, clock: &Clock) -> Self {
        let now = clock.now();
        let InitialWorld { companies, partitions, tenant } = InitialWorld::new(settings, now);
        let first_companies = companies.living();
        let living = partitions.iter().map(RecordPartition::living).sum::<u64>()
            + tenant.living()
            + u64::from(first_companies);
        Self {
            naming: Naming::new(settings.seed),
            companies,
            partitions,
            tenant,
            history: History::new(settings.history),
            payroll: PayrollTable::new(settings, now),
            invoicing: InvoicingEntities::new(settings),
            random: Random::new(settings.seed, CHANGE_STREAM),
            changes: 0,
            living,
            first_living: living,
            first_companies,
            settings: settings.clone(),
        }
    }

    /// What turns places into ids and rows into contents, to be used without holding the world.
    pub const fn naming(&self) -> Naming {
        self.naming
    }

    /// Correlation id of a record (for companies: `<prefix>:<number>:CM:<guid>`, otherwise a GUID).
    pub fn id(&self, place: Place) -> String {
        self.naming.id(place)
    }

    /// Correlation id of a company.
    pub fn company_id(&self, company: CompanyNumber) -> String {
        self.id(Place { resource: Resource::Companies, company: None, index: company })
    }

    /// Whether records of a resource belong to no company: companies, and the tenant-wide resources of the settings
    /// (customers and accounts are always a company's, because their lists are).
    pub fn is_tenant_wide(&self, resource: Resource) -> bool {
        initial::is_tenant_wide(&self.settings, resource)
    }

    /// Changes so far.
    pub const fn changes(&self) -> u64 {
        self.changes
    }

    /// The seed.
    pub const fn seed(&self) -> u64 {
        self.naming.seed()
    }

    fn table(&self, resource: Resource, company: Option<CompanyNumber>) -> Option<&RowTable> {
        match company {
            None if resource == Resource::Companies => Some(&self.companies),
            None => self.tenant.table(resource),
            Some(company) => self.partitions.get(company as usize)?.table(resource),
        }
    }

    const fn number(&mut self) -> u64 {
        let number = self.changes;
        self.changes += 1;
        number
    }
}

impl fmt::Debug for World {
    /// Not the rows, of which there may be millions.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World")
            .field("seed", &self.seed())
            .field("living", &self.living)
            .field("changes", &self.changes)
            .finish_non_exhaustive()
    }
}

impl RecordPartition {
    fn table(&self, resource: Resource) -> Option<&RowTable> {
        self.tables.iter().find(|(of, _)| *of == resource).map(|(_, table)| table)
    }

    /// The table of a resource, made if it is not there yet.
    fn table_mut(&mut self, resource: Resource) -> &mut RowTable {
        let at = self.tables.binary_search_by_key(&resource, |(of, _)| *of).unwrap_or_else(|at| {
            self.tables.insert(at, (resource, RowTable::default()));
            at
        });
        &mut self.tables[at].1
    }

    /// Of its records, the company's own not counted.
    fn highest_sequence(&self) -> u64 {
        let rows = self.tables.iter().flat_map(|(_, table)| table.rows());
        rows.map(|(_, row)| row.sequence).max().unwrap_or(0)
    }

    fn living(&self) -> u64 {
        self.tables.iter().map(|(_, table)| u64::from(table.living())).sum()
    }
}

#[cfg(test)]
mod tests;
