//! What a run found: every check with its verdict, all failures at once.

use std::fmt;
use std::time::Duration;

/// How a check ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    Held,
    /// What was expected and what came.
    Failed(String),
    /// Why it was not asked of this worker.
    LeftOut(&'static str),
}

/// One check's line.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) number: u8,
    pub(crate) sentence: &'static str,
    pub(crate) verdict: Verdict,
}

/// A whole run.
#[derive(Debug)]
pub(crate) struct Report {
    /// The worker's address.
    pub(crate) worker: String,
    pub(crate) rows: Vec<Row>,
    /// What could not be removed afterwards.
    pub(crate) left_behind: Option<String>,
    pub(crate) took: Duration,
}

impl Report {
    /// How many checks hold.
    pub(crate) fn held(&self) -> usize {
        self.rows.iter().filter(|row| row.verdict == Verdict::Held).count()
    }

    /// How many checks were asked of this worker.
    pub(crate) fn asked(&self) -> usize {
        self.rows.iter().filter(|row| !matches!(row.verdict, Verdict::LeftOut(_))).count()
    }

    /// Whether every check asked holds and nothing stayed behind.
    pub(crate) fn is_clean(&self) -> bool {
        self.held() == self.asked() && self.left_behind.is_none()
    }

    /// An error with the whole report, unless it is clean.
    pub(crate) fn into_result(self) -> Result<(), String> {
        if self.is_clean() { Ok(()) } else { Err(format!("\n{self}")) }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Row { number, sentence, verdict } in &self.rows {
            match verdict {
                Verdict::Held => writeln!(formatter, "{number:>3} ok        {sentence}")?,
                Verdict::LeftOut(reason) => {
                    writeln!(formatter, "{number:>3} left out  {sentence}: {reason}")?
                }
                Verdict::Failed(text) => {
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
