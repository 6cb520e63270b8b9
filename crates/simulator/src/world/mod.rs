//! The provider's data: records, their changes, and their earlier states.
//!
//! ```text
//! initial ──▶ tables of rows, by company ──▶ views: records, slices of lists, the truth
//!                  ▲              │ states that end
//!   step, churn ──▶ changes       ▼
//!                  └── restore ── history ──▶ views as of a moment
//! ```
//!
//! - A row has 24 bytes; ids and contents are computed from the seed, the place and the row ([`Naming`]).
//! - An index is never reused: a deleted record keeps its row, one undone by a restore leaves its index empty.
//! - Every change is dated later than all before it and increments the counter of its company; tenant-wide records share
//!   one. Only a restore goes back; the counter then continues from the restored value.
//! - Records of a deleted company are neither shown nor changed.
//! - One random stream decides everything: the same calls at the same times give the same world.
//! - An impossible request returns `None`.

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
    history::History, initial::AccountingTables, invoicing::InvoicingEntities, payroll::PayrollTable,
    table::RowTable,
};

/// The random stream of changes.
const CHANGE_STREAM: u64 = 0x776F_726C_6420_676F;

/// Number of a company, from 0; never reused.
pub type CompanyNumber = u32;

/// Where a record is stored. Its correlation id encodes this.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Its resource.
    pub resource: Resource,
    /// Its company; `None` for tenant-wide resources and for companies themselves.
    pub company: Option<CompanyNumber>,
    /// Number within its list, from 0; for companies the company's number.
    pub index: u32,
}

/// A state of a record. Its other fields follow from the seed, the place, the revision and the lineage: see
/// [`Naming::content`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WorldRow {
    /// `sequenceVersion`.
    pub sequence: u64,
    /// `version`: when this state started.
    pub changed: Ticks,
    /// Number of earlier states.
    pub revision: u32,
    /// How often its company had been restored when this state started. After a restore revisions and sequences repeat with
    /// another lineage, and so with other content.
    pub lineage: u16,
    /// Enabled, disabled or deleted.
    pub state: RecordState,
}

/// The state of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum RecordState {
    /// In use.
    Enabled,
    /// No longer in use, but readable.
    Disabled,
    /// Deleted; the row keeps when and at which sequence.
    Deleted,
}

/// A state of a payroll company.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PayrollRow {
    /// Number from 0; its code and fixed fields follow from it and the seed.
    pub index: u32,
    /// `lastUpdate`, whole milliseconds.
    pub updated: Ticks,
    /// Number of earlier states.
    pub revision: u32,
}

/// A change of the world.
#[derive(Debug, Clone)]
pub enum WorldChange {
    /// Of an accounting record.
    Record(RecordChange),
    /// Of a payroll company, which has no webhooks.
    Payroll,
    /// Of an invoicing entity.
    Invoicing(EntityChange),
}

/// A change of an accounting record.
#[derive(Debug, Clone)]
pub struct RecordChange {
    /// Number of the change, from 0.
    pub number: u64,
    /// Which record.
    pub place: Place,
    /// Kind of the change.
    pub kind: Kind,
    /// Its state after the change; unchanged for `ErrorOccurred`.
    pub row: WorldRow,
}

/// A change of an invoicing entity.
#[derive(Debug, Clone)]
pub struct EntityChange {
    /// Number of the change, from 0.
    pub number: u64,
    /// Number of the invoicing company, from 0.
    pub company: u32,
    /// Kind of entity.
    pub entity: Entity,
    /// `EntityId`.
    pub id: String,
    /// What happened to it.
    pub action: Action,
    /// When.
    pub at: Ticks,
}

/// A list: a resource and the company whose records it has.
pub type List = (Resource, Option<CompanyNumber>);

/// How the world is read.
#[derive(Debug, Clone, Copy)]
pub struct WorldView {
    /// The moment to show; `None` for now.
    pub as_of: Option<Ticks>,
    /// Where disabled records appear.
    pub disabled: DisabledShows,
    /// Order of lists.
    pub order: ListOrder,
}

/// The world.
pub struct World {
    settings: WorldSettings,
    naming: Naming,
    records: AccountingTables,
    history: History<Place>,
    payroll: PayrollTable,
    invoicing: InvoicingEntities,
    random: Random,
    changes: u64,
    /// Records that are neither deleted nor of a deleted company.
    living: u64,
    /// The same in the initial world.
    first_living: u64,
}

/// The records of one company, or of none.
#[derive(Debug, Default)]
struct RecordPartition {
    /// Sorted; without resources that never had a record.
    tables: Vec<(Resource, RowTable)>,
    /// The last `sequenceVersion`.
    counter: u64,
    /// How often it was restored.
    lineage: u16,
}

impl World {
    /// Creates the initial world; every record is dated before `clock`'s now.
    pub fn new(settings: &WorldSettings, clock: &Clock) -> Self {
        let now = clock.now();
        let records = AccountingTables::new(settings, now);
        let living = records.living();
        Self {
            naming: Naming::new(settings.seed),
            records,
            history: History::new(settings.history),
            payroll: PayrollTable::new(settings, now),
            invoicing: InvoicingEntities::new(settings),
            random: Random::new(settings.seed, CHANGE_STREAM),
            changes: 0,
            living,
            first_living: living,
            settings: settings.clone(),
        }
    }

    /// Computes ids and contents without the world's lock.
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

    /// Whether records of a resource belong to no company: companies and the tenant-wide resources of the settings, but never
    /// customers and accounts.
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
            None if resource == Resource::Companies => Some(&self.records.companies),
            None => self.records.tenant.table(resource),
            Some(company) => self.records.partitions.get(company as usize)?.table(resource),
        }
    }

    const fn number(&mut self) -> u64 {
        let number = self.changes;
        self.changes += 1;
        number
    }
}

impl fmt::Debug for World {
    /// Without the rows, of which there may be millions.
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

    /// The table of a resource, created if missing.
    fn table_mut(&mut self, resource: Resource) -> &mut RowTable {
        let at = self.tables.binary_search_by_key(&resource, |(of, _)| *of).unwrap_or_else(|at| {
            self.tables.insert(at, (resource, RowTable::default()));
            at
        });
        &mut self.tables[at].1
    }

    /// Without the company's own record.
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
