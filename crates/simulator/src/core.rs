//! What all parts of a simulated provider share: settings, clock, knobs and world. It imports none of those parts.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard, RwLock};

use super::{
    clock::Clock,
    knobs::{IdentityKnobs, Knobs},
    settings::Settings,
    world::World,
};

/// Settings, clock, knobs and world of one provider.
#[derive(Debug)]
pub struct Core {
    /// The settings it was started with.
    pub settings: Settings,
    /// The provider's clock.
    pub clock: Clock,
    knobs: RwLock<Arc<Knobs>>,
    world: Mutex<World>,
}

impl Core {
    /// Creates the initial knobs and world; the settings must be valid.
    pub(super) fn new(settings: Settings) -> Arc<Self> {
        let clock = Clock::new(settings.frozen_at);
        Arc::new(Self {
            knobs: RwLock::new(Arc::new(settings.knobs.clone())),
            world: Mutex::new(World::new(&settings.world, &clock)),
            clock,
            settings,
        })
    }

    /// The seed of everything random.
    pub(super) const fn seed(&self) -> u64 {
        self.settings.world.seed
    }

    /// The current knobs.
    pub fn knobs(&self) -> Arc<Knobs> {
        Arc::clone(&self.knobs.read())
    }

    /// Changes knobs atomically. `then` runs under the same lock, with the knobs before and after the change and its result.
    /// Neither closure may read the knobs again.
    pub(super) fn turn<T>(&self, change: impl FnOnce(&mut Knobs) -> T, then: impl FnOnce(&Knobs, &Knobs, T)) {
        let mut knobs = self.knobs.write();
        let before = Arc::clone(&knobs);
        let now = Arc::make_mut(&mut knobs);
        let changed = change(now);
        then(&before, now, changed);
    }

    /// Decrements a counter among the knobs of the identity provider. Unlike [`Self::turn`] it has no `then`, because the gateway
    /// counts nothing under these knobs and no delivery waits for them.
    pub(super) fn use_up<T>(&self, take: impl FnOnce(&mut IdentityKnobs) -> T) -> T {
        take(&mut Arc::make_mut(&mut self.knobs.write()).identity)
    }

    /// Counts something under the current knobs. They cannot change meanwhile, so a request that read earlier knobs is never
    /// counted under these. `act` must not read the knobs again.
    pub(super) fn count<T>(&self, act: impl FnOnce(&Knobs) -> T) -> T {
        act(&self.knobs.read())
    }

    /// The world. Do not hold the guard across an await or while rendering.
    pub fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock()
    }
}
