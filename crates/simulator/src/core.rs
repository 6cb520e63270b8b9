//! What all parts of one simulated provider share: settings, clock, knobs and world. It imports none of those parts.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard, RwLock};

use super::{
    clock::Clock,
    knobs::{IdentityKnobs, Knobs},
    settings::Settings,
    world::World,
};

/// Settings, clock, knobs and world of one provider. Each of its parts holds it.
#[derive(Debug)]
pub struct Core {
    /// As started.
    pub settings: Settings,
    /// Its time.
    pub clock: Clock,
    knobs: RwLock<Arc<Knobs>>,
    world: Mutex<World>,
}

impl Core {
    /// The first knobs and the first world of valid settings.
    pub(super) fn new(settings: Settings) -> Arc<Self> {
        let clock = Clock::new(settings.frozen_at);
        Arc::new(Self {
            knobs: RwLock::new(Arc::new(settings.knobs.clone())),
            world: Mutex::new(World::new(&settings.world, &clock)),
            clock,
            settings,
        })
    }

    /// What everything that is drawn follows from.
    pub(super) const fn seed(&self) -> u64 {
        self.settings.world.seed
    }

    /// The knobs as they stand.
    pub fn knobs(&self) -> Arc<Knobs> {
        Arc::clone(&self.knobs.read())
    }

    /// Turns knobs: a reader sees all of the change or none. `then` runs under the same lock, with the knobs before and after
    /// the change and with its result. Do not ask for the knobs again inside either.
    pub(super) fn turn<T>(&self, change: impl FnOnce(&mut Knobs) -> T, then: impl FnOnce(&Knobs, &Knobs, T)) {
        let mut knobs = self.knobs.write();
        let before = Arc::clone(&knobs);
        let now = Arc::make_mut(&mut knobs);
        let changed = change(now);
        then(&before, now, changed);
    }

    /// Takes down a count among the knobs of the identity provider. Unlike [`Self::turn`], this has no `then`: the gateway
    /// counts nothing under these knobs, and no delivery waits for them.
    pub(super) fn use_up<T>(&self, take: impl FnOnce(&mut IdentityKnobs) -> T) -> T {
        take(&mut Arc::make_mut(&mut self.knobs.write()).identity)
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
}
