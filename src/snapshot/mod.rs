//! Snapshots: lists read in full, and what is proved of them. Decides, and does nothing.
//!
//! ```text
//! cron ─▶ when a run begins          Reading ◀─ Seen: what is kept of a page
//!                                       │  ▲
//!                                 Want ─┘  └─ replayed after a crash: the same pages, the same verdict
//!                                       └─▶ Verdict ─▶ certificate
//! ```
//!
//! Nothing here asks the provider, writes a record or looks at a clock. What a [`Reading`] is shown is the whole of what it knows.
//!
//! On failure: a page that cannot be used voids its pass, and the next one begins; a list that stays unproved is uncertified, and
//! says how many records may be missing at most. Nothing here panics, and no reading goes on for ever.

mod cron;
mod reading;
mod runs;

pub use self::{
    cron::next,
    reading::{Filter, Reading, Row, Seen, Settings, Unfit, Verdict, Want},
    runs::{Runs, Standing, State},
};
