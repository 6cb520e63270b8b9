//! What the unit tests of this room share, and the test of released schemas.

pub(super) mod examples;
mod history;
pub(super) mod strategies;
pub(super) mod stub;
