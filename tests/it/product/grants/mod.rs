//! Grants on real Kafka.
//!
//! [`topic`] and [`schedules`] run workers that only keep grants, in this process, against a provider in memory. The others run our
//! binary against the simulated provider; [`verdict`] judges them by the tokens that the provider was shown and the grants in the
//! topic.

pub(super) mod cluster;
mod failed;
mod failpoints;
mod hidden;
mod issuer;
mod kill;
mod scene;
mod schedules;
mod spread;
mod stranger;
mod tenant;
mod topic;
mod verdict;
mod warning;

use crate::support::harness::Test;

pub(crate) fn tests() -> Vec<Test> {
    let parts = [
        topic::tests(),
        schedules::tests(),
        verdict::tests::tests(),
        kill::tests(),
        failpoints::tests(),
        failed::tests(),
        hidden::tests(),
        spread::tests(),
        stranger::tests(),
        tenant::tests(),
        warning::tests(),
    ];
    parts.into_iter().flatten().collect()
}
