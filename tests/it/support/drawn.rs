//! The providers that a test meets one after the other: the strict one, the lenient one, and drawn ones.
//!
//! The gate draws one by the day. `TRIBUTARY_TEST_CYCLES` says how many are drawn, and `TRIBUTARY_TEST_SEED` which is the first: a
//! failure names it.

use std::time::{SystemTime, UNIX_EPOCH};

use tributary::simulator::knobs::Knobs;
use tributary::simulator::settings::Settings;

use super::{Error, Result, cycles};

/// Drawn ones, unless told otherwise.
const DRAWN: u32 = 1;

pub(crate) struct Drawn {
    pub(crate) name: String,
    knobs: Knobs,
}

/// How many [`all`] gives.
pub(crate) fn count() -> u32 {
    2 + cycles(DRAWN)
}

pub(crate) fn all() -> Vec<Drawn> {
    let named = |name: &str, knobs| Drawn { name: name.to_owned(), knobs };
    let mut all = vec![named("strict", Knobs::default()), named("lenient", Knobs::lenient())];
    let first = seed();
    let seeds = first..first + u64::from(cycles(DRAWN));
    all.extend(seeds.map(|seed| named(&seed.to_string(), Knobs::drawn(seed))));
    all
}

/// `TRIBUTARY_TEST_SEED`, or the day.
pub(crate) fn seed() -> u64 {
    let set = std::env::var("TRIBUTARY_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let day = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / 86_400);
    set.unwrap_or_else(day)
}

impl Drawn {
    /// Its answers, with what a scene set about deliveries: how they reach the worker, and how long it may be away.
    pub(crate) fn turn(&self, settings: &mut Settings) {
        let kept = std::mem::replace(&mut settings.knobs, self.knobs.clone());
        settings.knobs.delivery = kept.delivery;
        settings.knobs.accounting.retries = kept.accounting.retries;
    }

    /// The result, with how to meet this provider again.
    pub(crate) fn judge(&self, held: Result<()>) -> Result<()> {
        held.map_err(|error| Error(format!("TRIBUTARY_TEST_SEED={} or that profile: {error}", self.name)))
    }
}
