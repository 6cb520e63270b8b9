//! Random changes: single ones, and those between two pages of a list.
//!
//! Most changes are updates, mostly of customers and accounts, and the first few companies get most of them. Below half its
//! initial size the world grows; above twice that size it stops growing.

use super::{
    Action, CompanyNumber, Entity, Kind, List, Place, RecordChange, RecordState, World, WorldChange,
    draws::{draw, pick},
};
use crate::{catalog::Resource, clock::Clock, knobs::Churn, settings::MAX_COMPANIES};

/// A smaller world may grow as if it had this many records.
const MIN_GROWTH_BASE: u64 = 100;

impl World {
    /// Makes one random change: mostly an update, sometimes a create, disable or delete, of any resource, payroll or invoicing.
    pub fn step(&mut self, clock: &Clock) -> WorldChange {
        let other = match self.random.below(100) {
            0..6 => self.step_payroll(clock),
            6..14 => self.step_invoicing(clock),
            _ => None,
        };
        other.unwrap_or_else(|| WorldChange::Record(self.step_record(clock)))
    }

    /// Changes between two pages of a list, with these averages. Records that can only be disabled leave lists that hide disabled
    /// records; updates do not enable them again.
    pub fn churn(&mut self, (resource, company): List, churn: &Churn, clock: &Clock) -> Vec<RecordChange> {
        let [_, _, end, _] = resource.kinds();
        let mut changes = Vec::new();
        for (average, kind) in [(churn.deletes, end), (churn.updates, Kind::Updated)] {
            for _ in 0..draw(&mut self.random, average) {
                changes.extend(self.act_on_some(resource, company, kind, false, clock));
            }
        }
        for _ in 0..draw(&mut self.random, churn.inserts) {
            changes.extend(self.create(resource, company, clock));
        }
        changes
    }

    fn step_record(&mut self, clock: &Clock) -> RecordChange {
        let resource = self.some_resource();
        let kind = self.some_kind(resource);
        // A world without companies starts with one.
        let Some(living) = self.some_company() else { return self.first_company(clock) };
        let company = (!self.is_tenant_wide(resource)).then_some(living);
        let change = match kind {
            Kind::Created => self.create(resource, company, clock),
            kind => self
                .act_on_some(resource, company, kind, true, clock)
                .or_else(|| self.act_on_some(resource, company, Kind::Updated, true, clock))
                .or_else(|| if self.may_grow() { self.create(resource, company, clock) } else { None }),
        };
        // The world may not grow, and the resource has no record here: change the company itself.
        let own = Place { resource: Resource::Companies, company: None, index: living };
        change.or_else(|| self.act(own, Kind::Updated, clock)).unwrap_or_else(|| self.first_company(clock))
    }

    fn some_resource(&mut self) -> Resource {
        match self.random.below(100) {
            0..40 => Resource::Customers,
            40..66 => Resource::Accounts,
            66..70 => Resource::Companies,
            _ => Resource::ALL[self.random.below(Resource::ALL.len() as u64) as usize],
        }
    }

    fn some_kind(&mut self, resource: Resource) -> Kind {
        let [_, _, end, _] = resource.kinds();
        // Deleting a company deletes its records, so it is less likely.
        let (updates, creates) = if resource == Resource::Companies { (85, 13) } else { (70, 20) };
        let drawn = self.random.below(100);
        let kind = if drawn < updates {
            Kind::Updated
        } else if drawn < updates + creates {
            Kind::Created
        } else {
            end
        };
        let first = u64::from(self.settings.companies.min(MAX_COMPANIES));
        let few_companies = u64::from(self.records.companies.living()) * 2 <= first;
        let kind = match kind {
            _ if self.living * 2 < self.first_living => Kind::Created,
            Kind::Deleted if resource == Resource::Companies && few_companies => Kind::Created,
            kind => kind,
        };
        if kind == Kind::Created && !self.may_grow() { Kind::Updated } else { kind }
    }

    fn may_grow(&self) -> bool {
        self.living < 2 * self.first_living.max(MIN_GROWTH_BASE)
    }

    /// A random company that is not deleted; the first ones are far more likely.
    fn some_company(&mut self) -> Option<CompanyNumber> {
        let all = self.records.companies.len();
        if self.records.companies.living() == 0 {
            return None;
        }
        let skewed = self.random.unit().powi(4) * f64::from(all);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below a u32")]
        let start = (skewed as u32).min(all - 1);
        (start..all).chain(0..start).find(|&company| self.company_lives(company))
    }

    /// Changes a random record of a list to which the change applies.
    fn act_on_some(
        &mut self,
        resource: Resource,
        company: Option<CompanyNumber>,
        kind: Kind,
        disabled_too: bool,
        clock: &Clock,
    ) -> Option<RecordChange> {
        if company.is_some_and(|company| !self.company_lives(company)) {
            return None;
        }
        // Copied, because the table borrows the same world; written back below.
        let mut random = self.random.clone();
        let table = self.table(resource, company)?;
        let disabled_too = disabled_too && kind != Kind::Disabled;
        let candidates = if disabled_too { table.living() } else { table.enabled() };
        if candidates == 0 {
            return None;
        }
        let index = pick(&mut random, table.len(), |index| {
            table.get(index).is_some_and(|row| match row.state {
                RecordState::Enabled => true,
                RecordState::Disabled => disabled_too,
                RecordState::Deleted => false,
            })
        });
        self.random = random;
        self.act(Place { resource, company, index: index? }, kind, clock)
    }

    /// Creates a company, where a change must happen.
    fn first_company(&mut self, clock: &Clock) -> RecordChange {
        self.append(Resource::Companies, None, clock)
    }

    /// `None` in a world that started without payroll.
    fn step_payroll(&mut self, clock: &Clock) -> Option<WorldChange> {
        let first = u64::from(self.settings.payroll_companies);
        if first == 0 {
            return None;
        }
        let living = u64::from(self.payroll.living());
        let kind = match self.random.below(100) {
            _ if living * 2 < first => Kind::Created,
            75..90 if living < 2 * first.max(MIN_GROWTH_BASE) => Kind::Created,
            90.. => Kind::Deleted,
            _ => Kind::Updated,
        };
        self.act_payroll(None, kind, clock).map(|_| WorldChange::Payroll)
    }

    /// `None` in a world that started without invoicing, or where nothing there can change.
    fn step_invoicing(&mut self, clock: &Clock) -> Option<WorldChange> {
        let company = self.random.below(u64::from(self.settings.invoicing_companies));
        let company = u32::try_from(company).ok()?;
        let entity = Entity::ALL[self.random.below(Entity::ALL.len() as u64) as usize];
        let first = u64::from(self.settings.invoicing_entities);
        let living = u64::from(self.invoicing_living(company, entity));
        let action = match self.random.below(100) {
            _ if living * 2 < first => Action::Created,
            60..85 if living < 2 * first.max(MIN_GROWTH_BASE) => Action::Created,
            85.. => Action::Deleted,
            _ => Action::Updated,
        };
        let action = if entity.offers(action) { action } else { Action::Updated };
        self.act_invoicing(company, entity, action, clock).map(WorldChange::Invoicing)
    }
}
