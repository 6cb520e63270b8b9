//! Which copy of the world a read sees: the world as it is, or a replica that lags.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use crate::{
    Provider,
    clock::Ticks,
    knobs::ReadKnobs,
    random::{Random, mix},
    world::View,
};

/// Purpose of the numbers that send reads to the replica.
const REPLICA: u64 = 0x7265_706C_6963_6121;

/// What reads remember: how many there were.
#[derive(Debug, Default)]
pub struct Reads {
    /// Reads while there was a replica. Each draws by its number, so the same calls in the same order see the same.
    count: AtomicU64,
}

impl Reads {
    /// The view of the next read.
    pub(super) fn view(&self, provider: &Provider, knobs: &ReadKnobs) -> View {
        View { as_of: self.moment(provider, knobs), disabled: knobs.disabled, order: knobs.order }
    }

    fn moment(&self, provider: &Provider, knobs: &ReadKnobs) -> Option<Ticks> {
        if knobs.replica_lag == 0 {
            return None;
        }
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let lags =
            Random::new(provider.settings.world.seed ^ mix(number), REPLICA).chance(knobs.replica_share);
        lags.then(|| provider.clock.latest().minus(Duration::from_millis(knobs.replica_lag)))
    }
}
