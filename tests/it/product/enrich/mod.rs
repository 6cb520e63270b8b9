//! Enrichment: worker processes fetch the record behind every event from the simulated provider, on real Kafka.
//!
//! ```text
//! world changes ─▶ webhooks ─▶ workers ─▶ events ─▶ workers ─▶ records, fences, state, dead letters
//!       └─ truth ──────────────────────▶ checker ◀── read from outside ──────────┘
//! ```
//!
//! A [`scene`] has both connectors and waits until all work is done; [`evidence`] collects the topics and offsets, and [`checker`]
//! judges them. [`histories`] tests the checker; every other module has it judge a run.

mod chaos;
mod checker;
mod crowd;
mod deleting;
mod evidence;
mod failpoints;
mod histories;
mod input;
mod lists;
mod load;
mod offsets;
mod quiet;
mod refusals;
mod restored;
mod scene;
mod state;
mod unversioned;

use crate::support::harness::Test;

pub(crate) fn tests() -> Vec<Test> {
    let parts = [
        histories::tests(),
        quiet::tests(),
        deleting::tests(),
        refusals::tests(),
        restored::tests(),
        state::tests(),
        unversioned::tests(),
        offsets::tests(),
        input::tests(),
        lists::tests(),
        crowd::tests(),
        failpoints::tests(),
        chaos::tests(),
    ];
    parts.into_iter().flatten().collect()
}
