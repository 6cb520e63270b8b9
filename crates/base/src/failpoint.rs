//! Fail points: tests kill the process between two steps that must tolerate a crash.
//!
//! `TRIBUTARY_FAIL_AT=name` kills the process when it first reaches `name`, `name:3` the third time. The signal is SIGKILL:
//! nothing is flushed and no handler runs. Builds without debug assertions ignore it.
//!
//! A name is `area.step`, or `area.which.step` if a process has several of a kind, such as transactions.

use std::{
    env, fmt,
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    },
};

/// The environment variable with the name.
pub const VARIABLE: &str = "TRIBUTARY_FAIL_AT";

/// Kills the process if the test chose this point. The name is formatted only if a test chose any, so hot paths pass
/// `format_args!`.
pub fn reach(name: impl fmt::Display) {
    static PLACE: OnceLock<Option<FailPoint>> = OnceLock::new();

    if !cfg!(debug_assertions) {
        return;
    }
    let place = PLACE.get_or_init(|| FailPoint::parse(&env::var(VARIABLE).ok()?));
    if place.as_ref().is_some_and(|place| place.is_reached(&name.to_string())) {
        die();
    }
}

/// Where to kill the process.
#[derive(Debug)]
struct FailPoint {
    name: String,
    /// How many more times it is passed before that.
    left: AtomicU32,
}

impl FailPoint {
    /// `None` if the text is not a name.
    fn parse(text: &str) -> Option<Self> {
        let (name, times) = text.rsplit_once(':').unwrap_or((text, "1"));
        let times: u32 = times.parse().ok()?;
        let left = AtomicU32::new(times.checked_sub(1)?);
        (!name.is_empty()).then(|| Self { name: name.to_owned(), left })
    }

    fn is_reached(&self, name: &str) -> bool {
        let pass = |left: u32| left.checked_sub(1);
        self.name == name && self.left.fetch_update(Ordering::AcqRel, Ordering::Acquire, pass).is_err()
    }
}

#[cfg(target_os = "linux")]
fn die() -> ! {
    use rustix::process::{Signal, getpid, kill_process};

    // Does not return, unless the signal is not permitted.
    kill_process(getpid(), Signal::KILL).ok();
    std::process::abort()
}

#[cfg(not(target_os = "linux"))]
fn die() -> ! {
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fail_point_is_reached_the_nth_time_it_is_passed() {
        let place = FailPoint::parse("a.b.settled:3").unwrap();

        let reached: Vec<bool> = ["a.b.settled", "a.b.before", "a.b.settled", "a.b.settled"]
            .map(|name| place.is_reached(name))
            .into();

        assert_eq!(reached, [false, false, false, true]);
        assert!(FailPoint::parse("a.b").unwrap().is_reached("a.b"));
    }

    #[test]
    fn malformed_name_is_ignored() {
        for text in ["", ":1", "a:0", "a:b"] {
            assert!(FailPoint::parse(text).is_none(), "{text}");
        }
    }
}
