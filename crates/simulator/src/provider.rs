//! What all parts of one simulated provider share.

use std::sync::{Arc, atomic::AtomicU64};

use parking_lot::{Mutex, MutexGuard, RwLock};

use super::{
    accounting::Accounting,
    clock::Clock,
    deliveries::Deliveries,
    gateway::Gateway,
    identity::Identity,
    invoicing::Invoicing,
    knobs::{Fault, Knobs},
    settings::Settings,
    world::{Change, World},
};

/// Steps between two looks at the other tasks.
const STRIDE: u64 = 256;

/// One provider. Handlers get it as `State<Arc<Provider>>`.
#[derive(Debug)]
pub struct Provider {
    /// As started.
    pub settings: Settings,
    /// Its time.
    pub clock: Clock,
    /// Login, codes, tokens, keys.
    pub identity: Identity,
    /// Limits, faults and the journal of requests.
    pub gateway: Gateway,
    /// Reads while there was a replica. Each draws by its number, so the same calls in the same order see the same.
    pub(super) replica_reads: AtomicU64,
    /// Webhooks of the accounting family.
    pub accounting: Accounting,
    /// Login and webhooks of the invoicing API.
    pub invoicing: Invoicing,
    /// Deliveries on their way, and the journal of all.
    pub deliveries: Deliveries,
    knobs: RwLock<Arc<Knobs>>,
    world: Mutex<World>,
}

impl Provider {
    /// A provider with the first world of its settings. It answers nobody and delivers nothing by itself.
    ///
    /// # Errors
    /// A key, certificate or setting cannot be used.
    pub fn new(settings: Settings) -> Result<Arc<Self>, super::Error> {
        settings.validate()?;
        let clock = Clock::new(settings.frozen_at);
        Ok(Arc::new(Self {
            identity: Identity::new(&settings)?,
            gateway: Gateway::new(&settings),
            replica_reads: AtomicU64::new(0),
            accounting: Accounting::new(&settings),
            invoicing: Invoicing::new(&settings),
            deliveries: Deliveries::new(&settings)?,
            knobs: RwLock::new(Arc::new(settings.knobs.clone())),
            world: Mutex::new(World::new(&settings.world, &clock)),
            clock,
            settings,
        }))
    }

    /// The knobs as they stand.
    pub fn knobs(&self) -> Arc<Knobs> {
        Arc::clone(&self.knobs.read())
    }

    /// Turns knobs; whoever reads them next sees all of the change or none. Fault rules begin to count again if their list
    /// has become another; to begin again with the same list, use [`Self::set_faults`].
    pub fn turn(&self, change: impl FnOnce(&mut Knobs)) {
        self.turn_and_arm(|knobs| {
            change(knobs);
            false
        });
    }

    /// Sets the fault rules, which all begin to count from nothing, even those that are as they were.
    pub fn set_faults(&self, faults: Vec<Fault>) {
        self.turn_and_arm(|knobs| {
            knobs.faults = faults;
            true
        });
    }

    /// Turns knobs by a change that says whether fault rules begin again whatever became of them.
    pub(super) fn turn_and_arm(&self, change: impl FnOnce(&mut Knobs) -> bool) {
        {
            let mut knobs = self.knobs.write();
            let before = Arc::clone(&knobs);
            let knobs = Arc::make_mut(&mut knobs);
            let arm = change(knobs);
            self.gateway.turned(&before, knobs, arm);
        }
        // Deliveries that a knob held back are due now, and nothing else would tell their loop.
        self.deliveries.wake();
    }

    /// Counts something under the knobs as they stand: they cannot be turned meanwhile, so that a request which has read
    /// former ones never counts in the place of the present ones. Do not ask for the knobs again inside.
    pub(super) fn count<T>(&self, act: impl FnOnce(&Knobs) -> T) -> T {
        act(&self.knobs.read())
    }

    /// The world, for reading. Do not hold it across an await, nor while rendering much.
    pub fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock()
    }

    /// Changes the world and hands what changed to the webhooks, in the order it happened: the deliveries of two changes
    /// are never numbered the other way round.
    pub fn change<T>(&self, act: impl FnOnce(&mut World, &Clock) -> (T, Vec<Change>)) -> T {
        let mut world = self.world();
        let (result, changes) = act(&mut world, &self.clock);
        for change in &changes {
            match change {
                Change::Record(change) => self.accounting.announce(self, &world, change),
                Change::Payroll => {}
                Change::Invoicing(change) => self.invoicing.announce(self, change),
            }
        }
        result
    }

    /// Lets the world take so many steps. Others get their turn in between: the world is free after each step, and so is
    /// the thread after some.
    pub async fn step(&self, count: u64) {
        for number in 1..=count {
            self.change(|world, clock| ((), vec![world.step(clock)]));
            if number % STRIDE == 0 {
                tokio::task::yield_now().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn others_get_their_turn_while_the_world_takes_many_steps() {
        let provider = Provider::new(Settings::default()).unwrap();
        let seen = {
            let provider = Arc::clone(&provider);
            tokio::spawn(async move { provider.world().changes() })
        };

        provider.step(4 * STRIDE).await;

        assert_eq!(provider.world().changes(), 4 * STRIDE);
        assert!(seen.await.unwrap() < 4 * STRIDE, "nobody else ran before the last step");
    }
}
