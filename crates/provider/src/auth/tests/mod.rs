//! What the tests of this module and of those below it share.

pub(super) mod stub;
