//! A clock for how long something lasts: it never goes back, and goes on while the process is frozen and, where the system
//! offers that, while the machine sleeps. A lease or a token that ran out in either must be found to have.

use std::time::Duration;

/// Time since some moment before this process started.
#[cfg(target_os = "linux")]
pub fn now() -> Duration {
    use rustix::time::{ClockId, clock_gettime};

    // The standard library's clock stands still while the machine sleeps.
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Time since the first call.
#[cfg(not(target_os = "linux"))]
pub fn now() -> Duration {
    use std::{sync::OnceLock, time::Instant};

    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_goes_on_and_never_back() {
        let first = now();
        let end = std::time::Instant::now() + Duration::from_secs(60);

        let mut last = first;
        while last < first + Duration::from_millis(2) {
            let next = now();
            assert!(next >= last, "{next:?} after {last:?}");
            assert!(std::time::Instant::now() < end, "the clock stands still at {next:?}");
            last = next;
        }
    }
}
