//! Shared tools. Depends on no other crate of Tributary.
//!
//! | module | what it holds |
//! |---|---|
//! | [`retry`] | whether to retry an error, and the backoff |
//! | [`circuit`] | a circuit breaker for the provider's hosts |
//! | [`secret`] | a value that cannot be printed |
//! | [`metrics`] | the name, help and labels of every metric |
//! | [`durable`] | small files that survive a crash |
//! | [`boot_clock`] | a clock for durations that also counts suspended time |
//! | [`random`] | random bytes, ids and secrets |
//! | [`failpoint`] | points where a test kills the process |

pub mod boot_clock;
pub mod circuit;
pub mod durable;
pub mod failpoint;

pub mod metrics;
pub mod random;
pub mod retry;
pub mod secret;
