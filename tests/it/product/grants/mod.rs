//! Grants on real Kafka.
//!
//! [`topic`] and [`schedules`] run workers that only keep grants, in this process, against a provider in memory. The others run our
//! binary against the simulated provider; [`verdict`] judges them by the tokens that the provider was shown and the grants in the
//! topic.

mod cluster;
#[cfg(feature = "simulator")]
mod failed;
#[cfg(feature = "simulator")]
mod failpoints;
#[cfg(feature = "simulator")]
mod hidden;
mod issuer;
#[cfg(feature = "simulator")]
mod kill;
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

pub(crate) fn tests() -> Vec<Test> {
    let parts = [
        topic::tests(),
        schedules::tests(),
        #[cfg(feature = "simulator")]
        verdict::tests::tests(),
        #[cfg(feature = "simulator")]
        kill::tests(),
        #[cfg(feature = "simulator")]
        failpoints::tests(),
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
