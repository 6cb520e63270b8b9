//! Resource usage of a process, from `/proc`.

use std::fs;
use std::time::Duration;

/// Clock ticks a second in `/proc`; the same on every common Linux.
const TICKS: u64 = 100;

/// A running process.
#[derive(Debug, Clone)]
pub(crate) struct Usage(String);

impl Usage {
    pub(crate) fn own() -> Self {
        Self("self".to_owned())
    }

    pub(crate) fn of(id: u32) -> Self {
        Self(id.to_string())
    }

    /// Processor time so far.
    pub(crate) fn processor_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap();
        // The process name before it may contain spaces.
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
        Duration::from_millis(ticks * 1000 / TICKS)
    }

    /// Resets the peak of [`Usage::peak`].
    pub(crate) fn reset_peak(&self) {
        fs::write(format!("/proc/{}/clear_refs", self.0), "5").unwrap();
    }

    /// Peak memory in megabytes since [`Usage::reset_peak`].
    pub(crate) fn peak(&self) -> f64 {
        self.status("VmHWM:") / 1024.0
    }

    /// Current memory in megabytes.
    pub(crate) fn resident(&self) -> f64 {
        self.status("VmRSS:") / 1024.0
    }

    pub(crate) fn threads(&self) -> f64 {
        self.status("Threads:")
    }

    fn status(&self, name: &str) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.0)).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    }
}
