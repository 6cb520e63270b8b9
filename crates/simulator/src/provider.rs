//! A simulated provider: its parts, and what concerns several of them.

use std::{
    ops::Deref,
    sync::{Arc, atomic::AtomicU64},
};

use super::{
    accounting::WebhookService,
    clock::Clock,
    core::Core,
    deliveries::{Deliveries, DeliveryOrder, Family, WebhookFamilies},
    gateway::Gateway,
    identity::IdentityProvider,
    invoicing::InvoicingService,
    knobs::{Fault, Knobs},
    settings::Settings,
    world::{World, WorldChange},
};

/// Changes of the world between two yields to other tasks.
const STEPS_PER_YIELD: u64 = 256;

/// A provider. Handlers of reads and `/_control` get it as `State<Arc<SimulatedProvider>>`; handlers of a part get that part.
#[derive(Debug)]
pub struct SimulatedProvider {
    pub(super) core: Arc<Core>,
    /// Login, codes, tokens, keys.
    pub identity: Arc<IdentityProvider>,
    /// Limits, faults and the journal of requests.
    pub gateway: Arc<Gateway>,
    /// Reads so far with a lagging replica. Each is drawn by its number, so the same calls in the same order give the same.
    pub(super) replica_reads: AtomicU64,
    /// Webhooks of the accounting family.
    pub accounting: Arc<WebhookService>,
    /// Login and webhooks of the invoicing API.
    pub invoicing: Arc<InvoicingService>,
    /// Queued deliveries and the journal of all.
    pub deliveries: Arc<Deliveries>,
}

/// Settings, clock, knobs and world.
impl Deref for SimulatedProvider {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl SimulatedProvider {
    /// Creates a provider with its initial world. It neither listens nor delivers by itself.
    ///
    /// # Errors
    /// A key, certificate or setting is invalid.
    pub fn new(settings: Settings) -> Result<Arc<Self>, super::Error> {
        settings.validate()?;
        let core = Core::new(settings);
        let identity = Arc::new(IdentityProvider::new(&core)?);
        let deliveries = Arc::new(Deliveries::new(&core)?);
        let accounting = Arc::new(WebhookService::new(&core, &deliveries));
        let invoicing = Arc::new(InvoicingService::new(&core, &deliveries));
        let gateway = Arc::new(Gateway::new(&core, &identity, &invoicing));
        let replica_reads = AtomicU64::new(0);
        Ok(Arc::new(Self { core, identity, gateway, replica_reads, accounting, invoicing, deliveries }))
    }

    /// Changes knobs atomically. Counts of fault rules restart if the list of rules changes; to restart them with the same list,
    /// use [`Self::set_faults`].
    pub fn turn(&self, change: impl FnOnce(&mut Knobs)) {
        self.turn_knobs(|knobs| {
            change(knobs);
            false
        });
    }

    /// Sets the fault rules and restarts all their counts.
    pub fn set_faults(&self, faults: Vec<Fault>) {
        self.turn_knobs(|knobs| {
            knobs.faults = faults;
            true
        });
    }

    /// Changes knobs; `change` returns whether the counts of fault rules restart in any case.
    pub(super) fn turn_knobs(&self, change: impl FnOnce(&mut Knobs) -> bool) {
        self.core.turn(change, |before, now, restart| self.gateway.turned(before, now, restart));
        // A knob may have held back deliveries that are due now.
        self.deliveries.wake();
    }

    /// Changes the world and announces the changes to webhooks, in the order they happened.
    pub fn change<T>(&self, act: impl FnOnce(&mut World, &Clock) -> (T, Vec<WorldChange>)) -> T {
        let mut world = self.world();
        let (result, changes) = act(&mut world, &self.clock);
        for change in &changes {
            match change {
                WorldChange::Record(change) => self.accounting.announce(&world, change),
                WorldChange::Payroll => {}
                WorldChange::Invoicing(change) => self.invoicing.announce(change),
            }
        }
        result
    }

    /// Makes `count` random changes. The world is unlocked after each, and the task yields after some.
    pub async fn step(&self, count: u64) {
        self.step_while(count, || true).await;
    }

    /// [`Self::step`] while `wanted`, which is asked with the world locked: who then waits for the world sees no later change.
    pub(super) async fn step_while(&self, count: u64, wanted: impl Fn() -> bool) {
        for number in 1..=count {
            self.change(|world, clock| ((), wanted().then(|| world.step(clock)).into_iter().collect()));
            if number % STEPS_PER_YIELD == 0 {
                tokio::task::yield_now().await;
            }
        }
    }
}

impl WebhookFamilies for SimulatedProvider {
    fn wants(&self, order: &DeliveryOrder) -> bool {
        match order.family {
            Family::Accounting => self.accounting.wants(order.webhook, order.purpose, order.url.as_str()),
            Family::Invoicing => self.invoicing.wants(order.webhook),
        }
    }

    fn ended(&self, order: &DeliveryOrder, accepted: bool) {
        // A failed message changes nothing about its hook.
        if order.family == Family::Accounting {
            self.accounting.ended(order.webhook, order.purpose, order.url.as_str(), accepted);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[tokio::test]
    async fn steps_end_once_none_is_wanted() {
        let provider = SimulatedProvider::new(Settings::default()).unwrap();
        let asked = AtomicU64::new(0);

        provider.step_while(4, || asked.fetch_add(1, Ordering::Relaxed) < 2).await;

        assert_eq!(provider.world().changes(), 2);
    }

    #[tokio::test]
    async fn many_steps_yield_to_other_tasks() {
        let provider = SimulatedProvider::new(Settings::default()).unwrap();
        let seen = {
            let provider = Arc::clone(&provider);
            tokio::spawn(async move { provider.world().changes() })
        };

        provider.step(4 * STEPS_PER_YIELD).await;

        assert_eq!(provider.world().changes(), 4 * STEPS_PER_YIELD);
        assert!(seen.await.unwrap() < 4 * STEPS_PER_YIELD, "no other task ran before the last step");
    }
}
