//! Terminal output that is redrawn in place, and colors.

use std::io::{self, Write};

/// A block of lines that each redraw replaces.
#[derive(Debug, Default)]
pub(super) struct LiveLines {
    drawn: usize,
}

impl LiveLines {
    pub(super) fn redraw(&mut self, lines: &[String], out: &mut dyn Write) -> io::Result<()> {
        self.clear(out)?;
        // Disable wrapping: a wrapped line takes two rows, and the next redraw would start too low.
        write!(out, "\u{1b}[?7l")?;
        for line in lines {
            writeln!(out, "{line}")?;
        }
        write!(out, "\u{1b}[?7h")?;
        self.drawn = lines.len();
        Ok(())
    }

    /// Removes the block.
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

    fn put(self, color: &str, text: &str) -> String {
        if self.is_on { format!("\u{1b}[{color}m{text}\u{1b}[0m") } else { text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redraw_replaces_the_block_without_wrapping() {
        let (mut out, mut block) = (Vec::new(), LiveLines::default());

        block.redraw(&["a".to_owned(), "b".to_owned()], &mut out).unwrap();
        block.redraw(&["c".to_owned()], &mut out).unwrap();
        block.clear(&mut out).unwrap();
        block.clear(&mut out).unwrap();

        let expected = "\u{1b}[?7la\nb\n\u{1b}[?7h\u{1b}[2A\u{1b}[J\u{1b}[?7lc\n\u{1b}[?7h\u{1b}[1A\u{1b}[J";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }

    #[test]
    fn without_colors_text_is_unchanged() {
        assert_eq!(Colors { is_on: false }.bad("no"), "no");
        assert_eq!(Colors { is_on: true }.good("yes"), "\u{1b}[32myes\u{1b}[0m");
    }
}
