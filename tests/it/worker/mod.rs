//! Whole workers, as `tributary run` starts them: whose topics they take, how they start, answer and stop.

mod descriptors;
mod foreign;
mod process;
mod rolling;
mod secure;
mod starting;

use crate::support::harness::Test;

pub(crate) fn tests() -> Vec<Test> {
    [descriptors::tests(), foreign::tests(), rolling::tests(), secure::tests(), starting::tests()]
        .into_iter()
        .flatten()
        .collect()
}
