//! Enrichment: workers as processes of their own fetch the record behind every event, on real Kafka, from the simulated provider.
//!
//! ```text
//! world changes ─▶ webhooks ─▶ workers ─▶ events ─▶ workers ─▶ records, fences, state, dead letters
//!       └─ truth ──────────────────────▶ checker ◀── read from outside ──────────┘
//! ```
//!
//! A [`scene`] has both connectors and says when all is quiet; [`evidence`] is what can be seen then, and [`checker`] judges it.
//! [`histories`] tries the checker; everything else has it judge something.

mod chaos;
mod checker;
mod crowd;
mod deleting;
mod evidence;
mod histories;
mod input;
mod lists;
mod load;
mod offsets;
mod places;
mod quiet;
mod refusals;
mod restored;
mod scene;
mod state;
mod untold;

use crate::support::harness::Test;

/// All tests of this module's parts.
pub(crate) fn tests() -> Vec<Test> {
    let parts = [
        histories::tests(),
        quiet::tests(),
        deleting::tests(),
        refusals::tests(),
        restored::tests(),
        state::tests(),
        untold::tests(),
        offsets::tests(),
        input::tests(),
        lists::tests(),
        crowd::tests(),
        places::tests(),
        chaos::tests(),
    ];
    parts.into_iter().flatten().collect()
}
