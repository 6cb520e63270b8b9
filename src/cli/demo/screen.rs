//! The demo's output: one permanent line per event and, on a terminal, a status block below that is redrawn in place.

use std::{io::Write, time::Instant};

use serde_json::Value;

use super::{Terminal, deliveries::DeliveryFigures};
use crate::cli::{
    Result, outside, snapshot,
    terminal::{Colors, LiveLines},
};

/// Lists shown with a bar.
const MAX_BARS: usize = 3;

pub(super) struct Screen<'a> {
    out: &'a mut dyn Write,
    pub(super) terminal: Terminal,
    start: Instant,
    block: LiveLines,
    /// The current block.
    shown: Vec<String>,
}

/// The content of the status block.
pub(super) struct StatusBoard {
    /// The current step.
    pub(super) doing: &'static str,
    pub(super) is_reachable: bool,
    pub(super) figures: DeliveryFigures,
    /// The newest run that reads lists.
    pub(super) run: Value,
    /// Number of token refreshes.
    pub(super) refreshes: u64,
}

impl<'a> Screen<'a> {
    /// Starts counting seconds.
    pub(super) fn new(out: &'a mut dyn Write, terminal: Terminal) -> Self {
        Self { out, terminal, start: Instant::now(), block: LiveLines::default(), shown: Vec::new() }
    }

    pub(super) fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    pub(super) fn event(&mut self, text: &str) -> Result {
        let at = self.terminal.colors.faint(&format!("{:>6.2} s", self.seconds()));
        self.print(&format!("{at}  {text}"))
    }

    /// Prints permanent lines.
    pub(super) fn print(&mut self, text: &str) -> Result {
        self.block.clear(self.out)?;
        writeln!(self.out, "{text}")?;
        self.redraw()
    }

    /// Redraws the block; does nothing without a live terminal.
    pub(super) fn show(&mut self, board: &StatusBoard) -> Result {
        if !self.terminal.is_live {
            return Ok(());
        }
        self.shown = board.lines(self.terminal.colors);
        self.redraw()
    }

    /// Prints the figures as one line.
    pub(super) fn line(&mut self, is_reachable: bool, figures: &DeliveryFigures) -> Result {
        let kafka = if is_reachable { "there" } else { "cut off" };
        let seconds = self.seconds();
        self.print(&format!("{seconds:>6.0} s  {kafka:<10} {figures}"))
    }

    /// Removes the block; printed lines stay.
    pub(super) fn close(&mut self) -> Result {
        self.shown.clear();
        self.block.clear(self.out).and_then(|()| self.out.flush()).map_err(outside)
    }

    fn redraw(&mut self) -> Result {
        if self.terminal.is_live {
            self.block.redraw(&self.shown, self.out)?;
        }
        self.out.flush().map_err(outside)
    }
}

impl StatusBoard {
    fn lines(&self, colors: Colors) -> Vec<String> {
        let DeliveryFigures { accepted, failed, slowest, published, spooled, records } = &self.figures;
        let kafka = if self.is_reachable { colors.good("there") } else { colors.bad("cut off") };
        let mut lines = vec![
            String::new(),
            format!("  now         {}", self.doing),
            format!("  Kafka       {kafka}"),
            format!("  deliveries  {accepted} answered 200, {failed} otherwise, slowest {slowest} ms"),
            format!("  events      {published} published, {spooled} in the spool"),
            format!("  records     {records} published behind events"),
            format!("  login       access token renewed {} times", self.refreshes),
        ];
        if !self.run.is_null() {
            let progress = snapshot::progress(&self.run);
            let begins = ["  lists       ", "            "];
            let shown = progress.iter().take(1 + MAX_BARS).enumerate();
            lines.extend(shown.map(|(place, line)| format!("{}{line}", begins[place.min(1)])));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn board() -> StatusBoard {
        StatusBoard {
            doing: "waiting",
            is_reachable: false,
            figures: DeliveryFigures { accepted: 7, spooled: 3, ..DeliveryFigures::default() },
            run: json!({ "id": "initial", "state": "running", "rows": 4,
                "collections": { "total": 2, "ended": 1, "certified": 1 } }),
            refreshes: 1,
        }
    }

    fn shown(is_live: bool) -> String {
        let mut out = Vec::new();
        let mut screen = Screen::new(&mut out, Terminal { is_live, colors: Colors { is_on: false } });
        let done = screen.show(&board()).and_then(|()| screen.event("started")).and_then(|()| screen.close());
        assert!(done.is_ok());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn on_a_terminal_the_block_stays_below_the_events() {
        let said = shown(true);

        assert!(said.contains("  deliveries  7 answered 200, 0 otherwise, slowest 0 ms\n"), "{said:?}");
        assert!(said.contains("  lists       initial: running  [############------------]  50%"), "{said:?}");
        let (before, after) = said.split_once(" s  started\n").unwrap();
        assert!(before.contains("\u{1b}[8A\u{1b}[J"), "the block was not removed: {said:?}");
        assert!(after.contains("cut off") && after.ends_with("\u{1b}[8A\u{1b}[J"), "{said:?}");
    }

    #[test]
    fn without_a_terminal_there_are_only_lines() {
        let said = shown(false);

        assert!(!said.contains('\u{1b}') && said.ends_with(" s  started\n"), "{said:?}");
        assert_eq!(said.lines().count(), 1);
    }
}
