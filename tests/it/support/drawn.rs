//! The providers that a test runs against: the strict one, the lenient one, and drawn ones.
//!
//! The gate draws one and adds the strict or the lenient one, by the seed of the day. `TRIBUTARY_TEST_CYCLES_DRAWN` is the number of
//! drawn ones, and `TRIBUTARY_TEST_SEED` the seed of the first. Each prints the command that repeats it.

use std::panic::AssertUnwindSafe;

use futures::{FutureExt as _, StreamExt as _, stream};
use simulator::{knobs::Knobs, settings::Settings};

use super::dice::{repeat, seed};
use super::{Error, Result, cycles};

/// Drawn providers of the gate.
const DRAWN: u32 = 1;
/// Providers that are tried at the same time: most of a trial is waiting.
const AT_ONCE: usize = 2;

pub(crate) struct DrawnProvider {
    pub(crate) name: String,
    /// The seed that draws this provider.
    seed: u64,
    knobs: Knobs,
}

/// How many there are at most.
pub(crate) fn count() -> u32 {
    2 + cycles("DRAWN", DRAWN)
}

fn all() -> Vec<DrawnProvider> {
    let (first, drawn) = (seed(), cycles("DRAWN", DRAWN));
    let named = |name: &str, seed, knobs| DrawnProvider { name: name.to_owned(), seed, knobs };
    let mut all = vec![named("strict", 0, Knobs::default()), named("lenient", 1, Knobs::lenient())];
    if drawn == DRAWN {
        all.retain(|profile| profile.seed == first % 2);
    }
    let seeds = first..first + u64::from(drawn);
    all.extend(seeds.map(|seed| named(&seed.to_string(), seed, Knobs::drawn(seed))));
    all
}

/// Tries every provider; an error names the provider and the command that repeats it.
pub(crate) async fn try_all<Trial: Future<Output = Result<()>>>(
    trial: impl Fn(DrawnProvider) -> Trial,
) -> Result<()> {
    let trials = all().into_iter().map(|provider| {
        let (name, command) = (provider.name.clone(), repeat(provider.seed));
        println!("provider {name}; repeat with: {command}");
        let trial = AssertUnwindSafe(Box::pin(trial(provider)));
        async move {
            let failed = |what: &str| Error(format!("provider {name}, repeat with `{command}`: {what}"));
            match trial.catch_unwind().await {
                Ok(held) => held.map_err(|error| failed(&error.to_string())),
                Err(_) => Err(failed("it panicked, and the message is above")),
            }
        }
    });
    let mut trials = stream::iter(trials).buffer_unordered(AT_ONCE);
    while let Some(held) = trials.next().await {
        held?;
    }
    Ok(())
}

impl DrawnProvider {
    /// Replaces the knobs by those of this provider, but for deliveries: how they reach the worker, and how often they are retried.
    pub(crate) fn apply(&self, settings: &mut Settings) {
        let kept = std::mem::replace(&mut settings.knobs, self.knobs.clone());
        settings.knobs.delivery = kept.delivery;
        settings.knobs.accounting.retries = kept.accounting.retries;
    }
}
