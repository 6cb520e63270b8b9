//! Checks that are retried, because a machine may stall during any of them.
//!
//! Such a check would pass with a fault that shows only now and then. The run therefore counts how often the first try failed,
//! prints it at its end, and fails if more than a third of the first tries failed.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// At most one in this many first tries may fail.
const MOST_FAILED_ONE_IN: usize = 3;
/// Checks from which on the share is judged: with fewer, a single stall would be too many.
const LEAST_CHECKS: usize = 6;

static FIRST_TRIES: Mutex<FirstTries> = Mutex::new(FirstTries { checks: 0, failed: Vec::new() });

/// First tries of a run.
#[derive(Debug)]
struct FirstTries {
    checks: usize,
    /// Names of the checks whose first try failed.
    failed: Vec<String>,
}

/// The tries of one check.
pub(crate) struct Tries {
    check: String,
    is_first: bool,
}

impl Tries {
    /// Tries of the check with this name.
    pub(crate) fn of(check: impl Into<String>) -> Self {
        Self { check: check.into(), is_first: true }
    }

    /// Counts a try that has ended; returns whether it held, as given.
    pub(crate) fn held(&mut self, held: bool) -> bool {
        if std::mem::take(&mut self.is_first) {
            let mut counts = counts();
            counts.checks += 1;
            if !held {
                println!("{}: the first try failed", self.check);
                counts.failed.push(self.check.clone());
            }
        }
        held
    }
}

fn counts() -> MutexGuard<'static, FirstTries> {
    FIRST_TRIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The report at the end of a run, empty if no check was counted, and whether too many first tries failed.
pub(crate) fn closing() -> (String, bool) {
    let counts = counts();
    report(counts.checks, &counts.failed)
}

/// Separate from [`closing`] so that a test of it does not fail the run.
pub(crate) fn report(checks: usize, failed: &[String]) -> (String, bool) {
    if checks == 0 {
        return (String::new(), false);
    }
    let is_too_many = checks >= LEAST_CHECKS && failed.len() * MOST_FAILED_ONE_IN > checks;
    let mut text = format!("{} of {checks} checks with several tries failed on the first", failed.len());
    if !failed.is_empty() {
        text += &format!(": {}", failed.join(", "));
    }
    if is_too_many {
        text += &format!("\nFAILED: more than one first try in {MOST_FAILED_ONE_IN} failed");
    }
    text.push('\n');
    (text, is_too_many)
}
