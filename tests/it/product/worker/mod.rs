//! Whole workers as processes of `tributary run`: topic ownership, start, answers and stop.

#[cfg(feature = "jemalloc")]
mod allocator;
mod descriptors;
mod foreign;
mod process;
mod rolling;
mod secure;
mod starting;

use crate::support::harness::Test;

pub(crate) fn tests() -> Vec<Test> {
    [
        #[cfg(feature = "jemalloc")]
        allocator::tests(),
        descriptors::tests(),
        foreign::tests(),
        rolling::tests(),
        secure::tests(),
        starting::tests(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
