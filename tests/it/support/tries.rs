//! Checks that are tried several times, because a machine may stall during any of them.
//!
//! Such a check passes with a fault that shows only now and then. The run therefore counts how often the first try failed, prints it
//! at its end, and fails where more than a share of first tries did.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// At most one first try in so many may fail.
const MOST_FAILED_ONE_IN: usize = 3;
/// The share is judged from so many checks on: of fewer, a single stall would be too many.
const LEAST_CHECKS: usize = 6;

static FIRST_TRIES: Mutex<Counts> = Mutex::new(Counts { checks: 0, failed: Vec::new() });

/// First tries of a run.
#[derive(Debug)]
struct Counts {
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
    /// Of a check of this name.
    pub(crate) fn of(check: impl Into<String>) -> Self {
        Self { check: check.into(), is_first: true }
    }

    /// A try has ended; whether it held, as given.
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

fn counts() -> MutexGuard<'static, Counts> {
    FIRST_TRIES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The report at the end of a run, empty if no check was counted, and whether too many first tries failed.
pub(crate) fn closing() -> (String, bool) {
    let counts = counts();
    report(counts.checks, &counts.failed)
}

/// Apart from [`closing`] so that a test need not fail the run.
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
