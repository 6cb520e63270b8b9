//! The pasted code: the person copies the code, or the address at which the browser ended, into the terminal.

use std::io::{self, BufRead as _, Write};

use tokio::task::spawn_blocking;

use base::secret::Secret;

const MAX_LINE_BYTES: u64 = 64 << 10;
const MAX_ATTEMPTS: usize = 3;

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("read the code from the terminal")]
    Terminal(#[source] io::Error),
    /// The input ended, or every line was empty.
    #[error("no code was given")]
    Nothing,
}

/// Asks until a line is not empty.
pub(super) async fn ask(out: &mut dyn Write) -> Result<Secret, Error> {
    for _ in 0..MAX_ATTEMPTS {
        write!(out, "Paste the code, or the whole address at which the browser ended: ")
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

/// A line without quotes, brackets and blanks around it; `None` at the end of the input.
fn read_line(input: impl io::BufRead) -> io::Result<Option<String>> {
    let mut line = String::new();
    let count = input.take(MAX_LINE_BYTES).read_line(&mut line)?;
    // Mail programs and terminals add brackets, people add quotes.
    let text = line.trim().trim_matches(['"', '\'', '<', '>']).trim();
    Ok((count > 0).then(|| text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_without_quotes_up_to_its_limit() {
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
