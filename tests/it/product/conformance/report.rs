//! The result of a run: every check with its result, all failures at once.

use std::fmt;
use std::time::Duration;

/// How a check ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CheckResult {
    Held,
    /// The expected and the found value.
    Failed(String),
    /// Why it does not apply to this worker.
    LeftOut(&'static str),
}

/// The line of a check.
#[derive(Debug)]
pub(crate) struct CheckRow {
    pub(crate) number: u8,
    pub(crate) sentence: &'static str,
    pub(crate) result: CheckResult,
}

/// The result of a run.
#[derive(Debug)]
pub(crate) struct ConformanceReport {
    /// The worker's address.
    pub(crate) worker: String,
    pub(crate) rows: Vec<CheckRow>,
    /// The connectors that could not be removed afterwards.
    pub(crate) left_behind: Option<String>,
    pub(crate) took: Duration,
}

impl ConformanceReport {
    /// The number of checks that hold.
    pub(crate) fn held(&self) -> usize {
        self.rows.iter().filter(|row| row.result == CheckResult::Held).count()
    }

    /// The number of checks that apply to this worker.
    pub(crate) fn asked(&self) -> usize {
        self.rows.iter().filter(|row| !matches!(row.result, CheckResult::LeftOut(_))).count()
    }

    /// Whether every check that applies holds and nothing was left behind.
    pub(crate) fn is_clean(&self) -> bool {
        self.held() == self.asked() && self.left_behind.is_none()
    }

    /// An error with the whole report, unless it is clean.
    pub(crate) fn into_result(self) -> Result<(), String> {
        if self.is_clean() { Ok(()) } else { Err(format!("\n{self}")) }
    }
}

impl fmt::Display for ConformanceReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for CheckRow { number, sentence, result } in &self.rows {
            match result {
                CheckResult::Held => writeln!(formatter, "{number:>3} ok        {sentence}")?,
                CheckResult::LeftOut(reason) => {
                    writeln!(formatter, "{number:>3} left out  {sentence}: {reason}")?
                }
                CheckResult::Failed(text) => {
                    writeln!(formatter, "{number:>3} FAILED    {sentence}")?;
                    for line in text.lines() {
                        writeln!(formatter, "              {line}")?;
                    }
                }
            }
        }
        if let Some(text) = &self.left_behind {
            writeln!(formatter, "left behind: {text}")?;
        }
        let left_out = self.rows.len() - self.asked();
        let seconds = self.took.as_secs_f32();
        write!(formatter, "{} of {} checks hold on {}", self.held(), self.asked(), self.worker)?;
        if left_out > 0 {
            write!(formatter, ", {left_out} left out")?;
        }
        writeln!(formatter, ", in {seconds:.1} s")
    }
}
