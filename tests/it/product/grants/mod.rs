//! Grants on real Kafka.
//!
//! [`topic`] has workers that do nothing else, in this process, and a provider in memory. The others run the product's binary
//! against the simulated provider, and are judged by what that provider was shown and what stands in the topic ([`scene`]).

mod bank;
#[cfg(feature = "simulator")]
mod failed;
mod ground;
#[cfg(feature = "simulator")]
mod hidden;
#[cfg(feature = "simulator")]
mod kill;
#[cfg(feature = "simulator")]
mod places;
#[cfg(feature = "simulator")]
mod scene;
mod schedules;
#[cfg(feature = "simulator")]
mod spread;
#[cfg(feature = "simulator")]
mod stranger;
mod topic;
#[cfg(feature = "simulator")]
mod verdict;
#[cfg(feature = "simulator")]
mod warning;

use crate::support::harness::Test;

/// All tests of this module's parts.
pub(crate) fn tests() -> Vec<Test> {
    let parts = [
        topic::tests(),
        schedules::tests(),
        #[cfg(feature = "simulator")]
        verdict::tests::tests(),
        #[cfg(feature = "simulator")]
        kill::tests(),
        #[cfg(feature = "simulator")]
        places::tests(),
        #[cfg(feature = "simulator")]
        failed::tests(),
        #[cfg(feature = "simulator")]
        hidden::tests(),
        #[cfg(feature = "simulator")]
        spread::tests(),
        #[cfg(feature = "simulator")]
        stranger::tests(),
        #[cfg(feature = "simulator")]
        warning::tests(),
    ];
    parts.into_iter().flatten().collect()
}
