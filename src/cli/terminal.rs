//! Lines that stay in place on a terminal while their text changes, and colors.

use std::io::{self, Write};

/// Lines that are written over again and again.
#[derive(Debug, Default)]
pub(super) struct LiveLines {
    drawn: usize,
}

impl LiveLines {
    pub(super) fn redraw(&mut self, lines: &[String], out: &mut dyn Write) -> io::Result<()> {
        self.clear(out)?;
        // A line that wraps would be two, and the next block would begin too low: it is cut at the edge instead.
        write!(out, "\u{1b}[?7l")?;
        for line in lines {
            writeln!(out, "{line}")?;
        }
        write!(out, "\u{1b}[?7h")?;
        self.drawn = lines.len();
        Ok(())
    }

    /// Removes the lines; the next line takes their place, and stays.
    pub(super) fn clear(&mut self, out: &mut dyn Write) -> io::Result<()> {
        if self.drawn > 0 {
            write!(out, "\u{1b}[{}A\u{1b}[J", self.drawn)?;
        }
        self.drawn = 0;
        Ok(())
    }
}

#[cfg(any(test, feature = "simulator"))]
#[derive(Debug, Clone, Copy)]
pub(super) struct Colors {
    pub(super) is_on: bool,
}

#[cfg(any(test, feature = "simulator"))]
impl Colors {
    pub(super) fn good(self, text: &str) -> String {
        self.put("32", text)
    }

    pub(super) fn bad(self, text: &str) -> String {
        self.put("1;31", text)
    }

    pub(super) fn faint(self, text: &str) -> String {
        self.put("2", text)
    }

    fn put(self, colour: &str, text: &str) -> String {
        if self.is_on { format!("\u{1b}[{colour}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_drawn_in_place_of_the_one_before_and_cut_at_the_edge() {
        let (mut out, mut block) = (Vec::new(), LiveLines::default());

        block.redraw(&["a".to_owned(), "b".to_owned()], &mut out).unwrap();
        block.redraw(&["c".to_owned()], &mut out).unwrap();
        block.clear(&mut out).unwrap();
        block.clear(&mut out).unwrap();

        let expected = "\u{1b}[?7la\nb\n\u{1b}[?7h\u{1b}[2A\u{1b}[J\u{1b}[?7lc\n\u{1b}[?7h\u{1b}[1A\u{1b}[J";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn without_colours_text_is_as_it_is() {
        assert_eq!(Colors { is_on: false }.bad("no"), "no");
        assert_eq!(Colors { is_on: true }.good("yes"), "\u{1b}[32myes\u{1b}[0m");
    }
}
