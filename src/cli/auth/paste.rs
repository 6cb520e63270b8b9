//! The way back by hand: the person copies the code, or the whole address that the browser ended at, into the terminal.

use std::io::{self, BufRead as _, Write};

use tokio::task::spawn_blocking;

use base::secret::Secret;

/// The longest line that is read.
const MAX_LINE_BYTES: u64 = 64 << 10;
/// How often an empty line is asked for again.
const MAX_ATTEMPTS: usize = 3;

/// Why nothing was pasted.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The terminal cannot be used.
    #[error("read the code from the terminal")]
    Terminal(#[source] io::Error),
    /// The input ended, or every line was empty.
    #[error("no code was given")]
    Nothing,
}

/// Asks until there is something.
pub(super) async fn ask(out: &mut dyn Write) -> Result<Secret, Error> {
    for _ in 0..MAX_ATTEMPTS {
        write!(out, "Paste the code, or the whole address that the browser ended at: ")
            .and_then(|()| out.flush())
            .map_err(Error::Terminal)?;
        let line = spawn_blocking(|| read_line(io::stdin().lock())).await;
        match line.map_err(io::Error::other).flatten().map_err(Error::Terminal)? {
            None => break,
            Some(line) if line.is_empty() => {}
            Some(line) => return Ok(line.into()),
        }
    }
    Err(Error::Nothing)
}

/// A line without what surrounds it; `None` at the end of the input.
fn read_line(input: impl io::BufRead) -> io::Result<Option<String>> {
    let mut line = String::new();
    let count = input.take(MAX_LINE_BYTES).read_line(&mut line)?;
    // Mail programs and terminals put addresses in brackets, and people in quotes.
    let text = line.trim().trim_matches(['"', '\'', '<', '>']).trim();
    Ok((count > 0).then(|| text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_without_what_surrounds_it_and_never_beyond_its_limit() {
        let long = "x".repeat(1 << 20);
        for (input, expected) in [
            ("", None),
            ("\n", Some("")),
            (" \"\" \r\n", Some("")),
            ("0af7651916cd43dd\nnext", Some("0af7651916cd43dd")),
            (
                "<http://localhost:8910/back?code=1&state=2>",
                Some("http://localhost:8910/back?code=1&state=2"),
            ),
            (&long, Some(&long[..64 << 10])),
        ] {
            assert_eq!(read_line(input.as_bytes()).unwrap().as_deref(), expected);
        }
        assert!(read_line(&b"\xff\n"[..]).is_err());
    }
}
