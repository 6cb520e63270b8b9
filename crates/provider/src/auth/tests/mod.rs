//! Helpers of all tests below `auth`.

pub(super) mod stub;
