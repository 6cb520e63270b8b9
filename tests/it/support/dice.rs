//! Drawn tests: the seed, which changes every day, and the numbers that follow from it.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

const VARIABLE: &str = "TRIBUTARY_TEST_SEED";
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
    let seed = match std::env::var(VARIABLE) {
        Ok(text) => parse_seed(&text).unwrap_or_else(|error| panic!("{error}")),
        Err(_) => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() / 86_400),
    };
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
    format!("{VARIABLE}={seed} cargo test --test it -- {}", thread.name().unwrap_or_default())
}

/// Separate from [`seed`] so that a test need not change the environment.
pub(crate) fn parse_seed(text: &str) -> Result<u64, String> {
    text.trim().parse().map_err(|_| format!("{VARIABLE} is {text:?}: set it to a whole number, or unset it"))
}

/// Cycles that are set now: other ones would draw more or less.
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
