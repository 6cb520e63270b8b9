//! The provider's data: records that are made, changed, disabled and deleted, and what they once were.

use super::{
    catalog::{Action, Entity, Kind, Resource},
    clock::{Clock, Ticks},
    knobs::{Churn, DisabledShows, ListOrder},
    settings::WorldSettings,
};

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

/// One state of one record. Its other fields follow from the seed, the place and the revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// `sequenceVersion`.
    pub sequence: u64,
    /// `version`: when this state began.
    pub changed: Ticks,
    /// States before this one.
    pub revision: u32,
    /// Enabled, disabled or deleted.
    pub state: RecordState,
}

/// Whether a record is in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// Whether it has left the list.
    pub gone: bool,
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
    /// Revision of the entity since.
    pub revision: u32,
    /// When.
    pub at: Ticks,
}

/// Which list is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum List {
    /// ACC/companies.
    Companies,
    /// ACC/customers of a company.
    Customers(CompanyNumber),
    /// ACC/accounts of a company.
    Accounts(CompanyNumber),
}

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

/// A slice of a list.
#[derive(Debug, Clone)]
pub struct Slice {
    /// The rows.
    pub rows: Vec<(Place, Row)>,
    /// Rows of the whole list.
    pub total: u64,
}

/// The world.
#[derive(Debug)]
pub struct World {}

impl World {
    /// The first world of these settings: every record at revision 0, dated before `clock`'s now.
    #[must_use]
    pub fn new(settings: &WorldSettings, clock: &Clock) -> Self {
        Self {}
    }

    /// Correlation id of a record (for companies: `<prefix>:<number>:CM:<guid>`, otherwise a GUID).
    #[must_use]
    pub fn id(&self, place: Place) -> String {
        todo!()
    }

    /// The company with this correlation id, deleted ones included; with `as_of`, only if it existed then.
    #[must_use]
    pub fn company(&self, id: &str) -> Option<CompanyNumber> {
        todo!()
    }

    /// Whether the company exists and has not been deleted.
    #[must_use]
    pub fn company_lives(&self, company: CompanyNumber) -> bool {
        todo!()
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
        todo!()
    }

    /// Rows `offset..offset + limit` of a list as the view shows it. Cheap: no work for rows outside the slice when the
    /// view looks at now, except after the order was switched.
    #[must_use]
    pub fn slice(&mut self, list: List, offset: u64, limit: usize, view: &View) -> Slice {
        todo!()
    }

    /// Every payroll company that has not left, in the order of the view.
    #[must_use]
    pub fn payroll(&self, order: ListOrder) -> Vec<PayrollRow> {
        todo!()
    }

    /// What happens next by the seed: mostly updates, some creates, a few disables and deletes, over all resources,
    /// payroll and invoicing; a few companies get most of it. Always one change.
    pub fn step(&mut self, clock: &Clock) -> Change {
        todo!()
    }

    /// Adds a record. `None` where there is no such company, or it has been deleted.
    pub fn create(
        &mut self,
        resource: Resource,
        company: Option<CompanyNumber>,
        clock: &Clock,
    ) -> Option<RecordChange> {
        todo!()
    }

    /// Changes, disables, deletes or fails a write on a record. `None` where it is gone, or the resource does not offer
    /// that kind. An update of a disabled record enables it.
    pub fn act(&mut self, place: Place, kind: Kind, clock: &Clock) -> Option<RecordChange> {
        todo!()
    }

    /// Sets a company and all its records back to how they were at a moment, versions and all: what came later is gone,
    /// what was deleted since is back. Nobody is told. How many records changed; history that was not kept ends at the
    /// oldest state known.
    pub fn restore(&mut self, company: CompanyNumber, to: Ticks) -> u64 {
        todo!()
    }

    /// What happens to a list between two of its pages. Average counts, drawn by the seed; records that can only be
    /// disabled leave a list by that, when the view hides disabled ones.
    pub fn churn(&mut self, list: List, churn: &Churn, clock: &Clock) -> Vec<RecordChange> {
        todo!()
    }

    /// Adds, changes or removes a payroll company.
    pub fn act_payroll(&mut self, index: Option<u32>, kind: Kind, clock: &Clock) -> Option<PayrollRow> {
        todo!()
    }

    /// The same between two pages of the payroll list.
    pub fn churn_payroll(&mut self, churn: &Churn, clock: &Clock) {
        todo!()
    }

    /// Changes an entity of an invoicing company: a new one is created, or one is picked by the seed.
    pub fn act_invoicing(
        &mut self,
        company: u32,
        entity: Entity,
        action: Action,
        clock: &Clock,
    ) -> Option<InvoicingChange> {
        todo!()
    }

    /// Every record of a resource, with its company, deleted ones included: the truth.
    pub fn records(&self, resource: Resource) -> impl Iterator<Item = (Place, Row)> + '_ {
        std::iter::empty()
    }

    /// The record with this id, in whatever state, deleted included.
    #[must_use]
    pub fn find(&self, resource: Resource, id: &str) -> Option<(Place, Row)> {
        todo!()
    }

    /// Changes so far.
    #[must_use]
    pub fn changes(&self) -> u64 {
        todo!()
    }

    /// The seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        todo!()
    }
}
