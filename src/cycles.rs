//! How often the loops of tests repeat, and the seed of randomized tests. Unit tests and integration tests share this file.

/// Variable that multiplies the cycles of every loop.
const FACTOR: &str = "TRIBUTARY_TEST_CYCLES";
/// Variable with the seed of randomized tests.
pub(crate) const SEED: &str = "TRIBUTARY_TEST_SEED";

/// Cycles of the loop `name`: `TRIBUTARY_TEST_CYCLES_NAME`, or `default` if it is not set, times `TRIBUTARY_TEST_CYCLES`.
///
/// `tests/it/main.rs` lists every name.
///
/// # Panics
///
/// If one of the variables is set to anything but a whole number above zero.
pub(crate) fn cycles(name: &str, default: u32) -> u32 {
    let set = |variable: &str| {
        let text = std::env::var(variable).ok()?;
        Some(parse_cycles(variable, &text).unwrap_or_else(|error| panic!("{error}")))
    };
    let own = set(&format!("{FACTOR}_{name}")).unwrap_or(default);
    own.saturating_mul(set(FACTOR).unwrap_or(1))
}

/// The seeds of a randomized unit test, one per cycle, different every day. Prints the command that repeats them, which a failure
/// shows.
#[allow(dead_code, reason = "in the integration tests the harness prints the command")]
#[allow(clippy::print_stdout, reason = "shown with a failure")]
pub(crate) fn seeds(name: &str, default: u32) -> std::ops::Range<u64> {
    let (seed, count) = (seed(), u64::from(cycles(name, default)));
    let first = seed.wrapping_mul(count);
    let (thread, loops) = (std::thread::current(), format!("{FACTOR}=1 {FACTOR}_{name}={count}"));
    let test = thread.name().unwrap_or_default();
    println!("seeds from {first}; repeat with: {SEED}={seed} {loops} cargo test --lib {test}");
    first..first.saturating_add(count)
}

/// `TRIBUTARY_TEST_SEED`, or the number of days since 1970, so that randomized tests differ every day.
///
/// # Panics
///
/// If the variable is set to anything but a whole number.
pub(crate) fn seed() -> u64 {
    match std::env::var(SEED) {
        Ok(text) => parse_seed(&text).unwrap_or_else(|error| panic!("{error}")),
        Err(_) => std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs() / 86_400),
    }
}

/// Separate from [`seed`] so that a test need not change the environment.
pub(crate) fn parse_seed(text: &str) -> Result<u64, String> {
    text.trim().parse().map_err(|_| format!("{SEED} is {text:?}: set it to a whole number, or unset it"))
}

/// Separate from [`cycles`] so that a test need not change the environment.
pub(crate) fn parse_cycles(variable: &str, text: &str) -> Result<u32, String> {
    match text.trim().parse() {
        Ok(count) if count > 0 => Ok(count),
        _ => Err(format!("{variable} is {text:?}: set it to a whole number above 0, or unset it")),
    }
}
