//! Entities of the invoicing companies; only webhooks show them.

use std::collections::HashMap;

use super::{Action, Entity, EntityChange, World, draws::pick};
use crate::{clock::Clock, settings::WorldSettings};

/// Range of the `EntityId`s of one invoicing company.
const IDS: u64 = 100_000_000;

/// All entities, deleted ones included.
#[derive(Debug)]
pub(super) struct InvoicingEntities {
    companies: u32,
    /// Initial entities of each kind per company.
    first: u32,
    /// By company and kind, created on first use: for each number, whether the entity is not deleted.
    changed: HashMap<(u32, Entity), Vec<bool>>,
}

impl InvoicingEntities {
    pub(super) fn new(settings: &WorldSettings) -> Self {
        Self {
            companies: settings.invoicing_companies,
            first: settings.invoicing_entities,
            changed: HashMap::new(),
        }
    }

    fn of(&mut self, company: u32, entity: Entity) -> Option<&mut Vec<bool>> {
        if company >= self.companies {
            return None;
        }
        // An entity that is only updated exists exactly once.
        let first = if entity.offers(Action::Created) { self.first } else { 1 };
        Some(self.changed.entry((company, entity)).or_insert_with(|| vec![true; first as usize]))
    }
}

impl World {
    /// Creates an entity, or changes or deletes a random one. `None` if the company is unknown, no entity is left, or the entity
    /// does not have the action.
    pub fn act_invoicing(
        &mut self,
        company: u32,
        entity: Entity,
        action: Action,
        clock: &Clock,
    ) -> Option<EntityChange> {
        if !entity.offers(action) {
            return None;
        }
        let lives = self.invoicing.of(company, entity)?;
        let all = u32::try_from(lives.len()).unwrap_or(u32::MAX);
        let index = match action {
            Action::Created => {
                lives.push(true);
                all
            }
            _ if !lives.contains(&true) => return None,
            Action::Updated | Action::Deleted => {
                let index = pick(&mut self.random, all, |index| lives[index as usize])?;
                lives[index as usize] = action != Action::Deleted;
                index
            }
        };
        let id = ((u64::from(company) + 1) * IDS + u64::from(index) + 1).to_string();
        Some(EntityChange { number: self.number(), company, entity, id, action, at: clock.change() })
    }

    /// Entities of a kind in a company.
    pub(super) fn invoicing_living(&mut self, company: u32, entity: Entity) -> u32 {
        let lives = self.invoicing.of(company, entity);
        lives.map_or(0, |lives| lives.iter().filter(|lives| **lives).count() as u32)
    }
}
