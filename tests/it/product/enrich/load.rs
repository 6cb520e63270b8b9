//! Changes at the provider, single ones and many a second.

use std::sync::Arc;
use std::time::Duration;

use simulator::{
    SimulatedProvider,
    catalog::{Kind, Resource},
    world::{CompanyNumber, Place, RecordState, WorldChange},
};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use crate::support::dice::Dice;
use crate::support::stage::LIMIT;
use crate::support::{Error, Result, lost};

/// What a load consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mix {
    /// Creates, updates, disables, deletes and writes that fail.
    All,
    /// Updates alone: a later one makes up for a lost one.
    Updates,
}

impl Mix {
    /// Makes one change; whether there was a record to change.
    fn change(self, provider: &SimulatedProvider, resources: &[Resource], dice: &mut Dice) -> bool {
        let resource = resources[dice.below(resources.len() as u64) as usize];
        let [_, _, end, _] = resource.kinds();
        let kind = match dice.below(100) {
            _ if self == Self::Updates => Kind::Updated,
            0..15 => Kind::Created,
            // A deleted company deletes all its records, for which there are no events.
            15..22 if resource != Resource::Companies => end,
            22..25 => Kind::ErrorOccurred,
            _ => Kind::Updated,
        };
        if kind == Kind::Created {
            let company = {
                let world = provider.world();
                let companies = world.records(Resource::Companies).count() as u64;
                let company = dice.below(companies) as CompanyNumber;
                (!world.is_tenant_wide(resource)).then_some(company)
            };
            return create(provider, resource, company).is_some();
        }
        let places = living(provider, resource);
        if places.is_empty() {
            return false;
        }
        let place = places[dice.below(places.len() as u64) as usize];
        act(provider, place, kind).is_some()
    }
}

/// A task that changes records.
pub(super) struct ChangeLoad {
    count: watch::Receiver<u64>,
    task: JoinHandle<()>,
}

impl ChangeLoad {
    /// Starts `rate` changes a second, drawn from this seed.
    pub(super) fn begin(
        provider: Arc<SimulatedProvider>,
        resources: Vec<Resource>,
        rate: f64,
        mix: Mix,
        seed: u64,
    ) -> Self {
        let (counted, count) = watch::channel(0);
        let changing = async move {
            let mut dice = Dice(seed ^ provider.world().changes());
            let mut ticks = interval(Duration::from_secs_f64(1.0 / rate));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            loop {
                ticks.tick().await;
                if mix.change(&provider, &resources, &mut dice) {
                    counted.send_modify(|count| *count += 1);
                }
            }
        };
        Self { count, task: tokio::spawn(changing) }
    }

    /// Waits until this many changes were made.
    pub(super) async fn reaches(&mut self, count: u64) -> Result<()> {
        let reached = lost::timeout(LIMIT, self.count.wait_for(|made| *made >= count)).await;
        let is_reached = matches!(reached, Some(Ok(_)));
        drop(reached);
        let made = *self.count.borrow();
        if is_reached { Ok(()) } else { Err(Error(format!("{made} changes instead of {count}"))) }
    }

    /// Ends them; the number of changes.
    pub(super) fn stop(self) -> u64 {
        *self.count.borrow()
    }
}

impl Drop for ChangeLoad {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Records of a resource that are not deleted.
pub(super) fn living(provider: &SimulatedProvider, resource: Resource) -> Vec<Place> {
    let world = provider.world();
    let all = world.records(resource).filter(|(_, row)| row.state != RecordState::Deleted);
    all.map(|(place, _)| place).collect()
}

/// Adds a record and sends its event, if the company may have one.
pub(super) fn create(
    provider: &SimulatedProvider,
    resource: Resource,
    company: Option<CompanyNumber>,
) -> Option<Place> {
    provider.change(|world, clock| match world.create(resource, company, clock) {
        Some(change) => (Some(change.place), vec![WorldChange::Record(change)]),
        None => (None, Vec::new()),
    })
}

/// Changes a record and sends its event, if its state allows that; its new version.
pub(super) fn act(provider: &SimulatedProvider, place: Place, kind: Kind) -> Option<u64> {
    provider.change(|world, clock| match world.act(place, kind, clock) {
        Some(change) => (Some(change.row.sequence), vec![WorldChange::Record(change)]),
        None => (None, Vec::new()),
    })
}
