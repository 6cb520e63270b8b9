//! Shared tools. Depends on no other crate of Tributary.
//!
//! | module | what it holds |
//! |---|---|
//! | [`retry`] | the verdict on a failure, and the backoff that obeys it |
//! | [`circuit`] | a host that fails gets no requests for a while |
//! | [`secret`] | a value that cannot be printed |
//! | [`metrics`] | the name, help and labels of every metric |
//! | [`durable`] | small files that survive a crash |
//! | [`boot_clock`] | a clock for durations that also counts time asleep |
//! | [`random`] | random bytes, ids and secrets |
//! | [`failpoint`] | the places where a test kills the process |

pub mod boot_clock;
pub mod circuit;
pub mod durable;
pub mod failpoint;

pub mod metrics;
pub mod random;
pub mod retry;
pub mod secret;
