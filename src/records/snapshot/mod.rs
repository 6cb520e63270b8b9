//! Snapshots: lists read in full, and what is proved of them. Decides, and does nothing.
//!
//! ```text
//! Reading ◀─ Seen: what is kept of a page; replayed after a crash it gives the same verdict
//!    ├─▶ Want
//!    └─▶ certificate
//! ```
//!
//! Nothing here asks the provider, writes a record or looks at a clock. What a [`Reading`] is shown is the whole of what it knows.
//!
//! On failure: a page that cannot be used voids its pass, and the next one begins; a list that stays unproved is uncertified, and
//! says how many records may be missing at most. Nothing here panics, and no reading goes on for ever.

mod reading;

pub use self::reading::{Filter, Reading, Row, Seen, Settings, Unfit, Want};
