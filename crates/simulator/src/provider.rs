//! One simulated provider: its parts, put together, and what concerns several of them.

use std::{
    ops::Deref,
    sync::{Arc, atomic::AtomicU64},
};

use super::{
    accounting::Accounting,
    clock::Clock,
    core::Core,
    deliveries::{Deliveries, DeliveryOrder, Family, WebhookFamilies},
    gateway::Gateway,
    identity::Identity,
    invoicing::Invoicing,
    knobs::{Fault, Knobs},
    settings::Settings,
    world::{Change, World},
};

/// Steps between two looks at the other tasks.
const STEPS_PER_YIELD: u64 = 256;

/// One provider. Handlers of reads and of `/_control` get it as `State<Arc<Provider>>`, handlers of a part get that part.
#[derive(Debug)]
pub struct Provider {
    pub(super) core: Arc<Core>,
    /// Login, codes, tokens, keys.
    pub identity: Arc<Identity>,
    /// Limits, faults and the journal of requests.
    pub gateway: Arc<Gateway>,
    /// Reads while there was a replica. Each draws by its number, so the same calls in the same order see the same.
    pub(super) replica_reads: AtomicU64,
    /// Webhooks of the accounting family.
    pub accounting: Arc<Accounting>,
    /// Login and webhooks of the invoicing API.
    pub invoicing: Arc<Invoicing>,
    /// Deliveries on their way, and the journal of all.
    pub deliveries: Arc<Deliveries>,
}

/// Settings, clock, knobs and world.
impl Deref for Provider {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl Provider {
    /// A provider with the first world of its settings. It answers nobody and delivers nothing by itself.
    ///
    /// # Errors
    /// A key, certificate or setting cannot be used.
    pub fn new(settings: Settings) -> Result<Arc<Self>, super::Error> {
        settings.validate()?;
        let core = Core::new(settings);
        let identity = Arc::new(Identity::new(&core)?);
        let deliveries = Arc::new(Deliveries::new(&core)?);
        let accounting = Arc::new(Accounting::new(&core, &deliveries));
        let invoicing = Arc::new(Invoicing::new(&core, &deliveries));
        let gateway = Arc::new(Gateway::new(&core, &identity, &invoicing));
        let replica_reads = AtomicU64::new(0);
        Ok(Arc::new(Self { core, identity, gateway, replica_reads, accounting, invoicing, deliveries }))
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
        self.core.turn(change, |before, now, arm| self.gateway.turned(before, now, arm));
        // Deliveries that a knob held back are due now, and nothing else would tell their loop.
        self.deliveries.wake();
    }

    /// Changes the world and hands what changed to the webhooks, in the order it happened: the deliveries of two changes
    /// are never numbered the other way round.
    pub fn change<T>(&self, act: impl FnOnce(&mut World, &Clock) -> (T, Vec<Change>)) -> T {
        let mut world = self.world();
        let (result, changes) = act(&mut world, &self.clock);
        for change in &changes {
            match change {
                Change::Record(change) => self.accounting.announce(&world, change),
                Change::Payroll => {}
                Change::Invoicing(change) => self.invoicing.announce(change),
            }
        }
        result
    }

    /// Lets the world take so many steps. Others get their turn in between: the world is free after each step, and so is
    /// the thread after some.
    pub async fn step(&self, count: u64) {
        for number in 1..=count {
            self.change(|world, clock| ((), vec![world.step(clock)]));
            if number % STEPS_PER_YIELD == 0 {
                tokio::task::yield_now().await;
            }
        }
    }
}

impl WebhookFamilies for Provider {
    fn wants(&self, order: &DeliveryOrder) -> bool {
        match order.family {
            Family::Accounting => self.accounting.wants(order.webhook, order.purpose, order.url.as_str()),
            Family::Invoicing => self.invoicing.wants(order.webhook),
        }
    }

    fn ended(&self, order: &DeliveryOrder, accepted: bool) {
        // A hook stays as it is, whatever becomes of a message.
        if order.family == Family::Accounting {
            self.accounting.ended(order.webhook, order.purpose, order.url.as_str(), accepted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn many_steps_yield_to_other_tasks() {
        let provider = Provider::new(Settings::default()).unwrap();
        let seen = {
            let provider = Arc::clone(&provider);
            tokio::spawn(async move { provider.world().changes() })
        };

        provider.step(4 * STEPS_PER_YIELD).await;

        assert_eq!(provider.world().changes(), 4 * STEPS_PER_YIELD);
        assert!(seen.await.unwrap() < 4 * STEPS_PER_YIELD, "nobody else ran before the last step");
    }
}
