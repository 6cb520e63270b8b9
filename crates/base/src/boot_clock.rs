//! A monotonic clock that also counts while the process is frozen and, on Linux, while the machine is suspended: leases and
//! tokens must expire during either.

use std::time::Duration;

/// Time since boot, suspended time included.
#[cfg(target_os = "linux")]
pub fn now() -> Duration {
    use rustix::time::{ClockId, clock_gettime};

    // The standard library's clock stops while the machine is suspended.
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
    fn clock_advances_and_never_goes_back() {
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
