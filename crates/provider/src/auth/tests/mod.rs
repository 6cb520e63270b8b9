//! Helpers of tests.

pub(crate) mod stub;
