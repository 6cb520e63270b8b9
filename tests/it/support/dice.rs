//! Drawn tests: the seed, which changes every day, and the numbers that follow from it.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use super::cycles::{self, SEED};

/// How the variables of [`cycles`](super::cycles) begin.
const CYCLES: &str = "TRIBUTARY_TEST_CYCLES";

/// The seed of the calling test: `TRIBUTARY_TEST_SEED`, or the number of days since 1970. The first call in a test prints the command
/// that repeats it.
///
/// # Panics
///
/// If the variable is set to anything but a whole number.
pub(crate) fn seed() -> u64 {
    static PRINTED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let seed = cycles::seed();
    let command = format!("{}{}", set_cycles(), repeat(seed));
    if PRINTED.lock().unwrap_or_else(PoisonError::into_inner).insert(command.clone()) {
        println!("seed {seed}; repeat with: {command}");
    }
    seed
}

/// The command that runs the calling test with this seed.
pub(crate) fn repeat(seed: u64) -> String {
    // The harness names every thread of a test after the test.
    let thread = std::thread::current();
    format!("{SEED}={seed} cargo test --test it -- {}", thread.name().unwrap_or_default())
}

/// The cycle variables that are set, since other numbers of cycles draw other numbers.
fn set_cycles() -> String {
    let set = std::env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok().filter(|name| name.starts_with(CYCLES))?;
        Some(format!("{name}={} ", value.to_string_lossy()))
    });
    set.collect::<BTreeSet<String>>().into_iter().collect()
}

/// SplitMix64: the same numbers for the same seed.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut drawn = self.0;
        drawn = (drawn ^ (drawn >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        drawn = (drawn ^ (drawn >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (drawn ^ (drawn >> 31)) % bound
    }

    /// An index into something of this length.
    pub(crate) fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }
}
