//! What is shown of the demo: what has happened stays, a line each; below it, on a terminal, how everything stands.

use std::{io::Write, time::Instant};

use serde_json::Value;

use super::{Terminal, deliveries::DeliveryFigures};
use crate::cli::{
    Result, outside, snapshot,
    terminal::{Colors, LiveLines},
};

/// Lists that are being read and get a bar.
const MAX_BARS: usize = 3;

/// Where it is shown, and how.
pub(super) struct Screen<'a> {
    out: &'a mut dyn Write,
    pub(super) terminal: Terminal,
    begun: Instant,
    block: LiveLines,
    /// The block as it stands.
    shown: Vec<String>,
}

/// How everything stands.
pub(super) struct StatusBoard {
    /// What is being done or waited for.
    pub(super) doing: &'static str,
    pub(super) is_reachable: bool,
    pub(super) figures: DeliveryFigures,
    /// The newest run that reads lists.
    pub(super) run: Value,
    /// How often the access token was renewed.
    pub(super) refreshes: u64,
}

impl<'a> Screen<'a> {
    /// Seconds are counted from now.
    pub(super) fn new(out: &'a mut dyn Write, terminal: Terminal) -> Self {
        Self { out, terminal, begun: Instant::now(), block: LiveLines::default(), shown: Vec::new() }
    }

    pub(super) fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    pub(super) fn event(&mut self, text: &str) -> Result {
        let at = self.terminal.colors.faint(&format!("{:>6.2} s", self.seconds()));
        self.print(&format!("{at}  {text}"))
    }

    /// Lines that stay.
    pub(super) fn print(&mut self, text: &str) -> Result {
        self.block.clear(self.out)?;
        writeln!(self.out, "{text}")?;
        self.redraw()
    }

    /// How it stands now; nothing where nothing stays in place.
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
            let told = progress.iter().take(1 + MAX_BARS).enumerate();
            lines.extend(told.map(|(place, line)| format!("{}{line}", begins[place.min(1)])));
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
        let done = screen.show(&board()).and_then(|()| screen.event("begun")).and_then(|()| screen.close());
        assert!(done.is_ok());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn on_a_terminal_how_it_stands_stays_below_what_was_told() {
        let said = shown(true);

        assert!(said.contains("  deliveries  7 answered 200, 0 otherwise, slowest 0 ms\n"), "{said:?}");
        assert!(said.contains("  lists       initial: running  [############------------]  50%"), "{said:?}");
        let (before, after) = said.split_once(" s  begun\n").unwrap();
        assert!(before.contains("\u{1b}[8A\u{1b}[J"), "the block was not taken away: {said:?}");
        assert!(after.contains("cut off") && after.ends_with("\u{1b}[8A\u{1b}[J"), "{said:?}");
    }

    #[test]
    fn elsewhere_there_are_lines_and_nothing_else() {
        let said = shown(false);

        assert!(!said.contains('\u{1b}') && said.ends_with(" s  begun\n"), "{said:?}");
        assert_eq!(said.lines().count(), 1);
    }
}
