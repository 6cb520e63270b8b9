//! One letter, with all that is known of it.

use std::{
    io::{self, Write},
    ops::ControlFlow,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde_json::json;

use kafka::{Received, Start};

use super::{
    Letters,
    entry::{Kind, Mark},
};
use crate::{
    cli::{Result, failure, outside, table::harmless},
    publish::LetterSignature,
    webhooks::dead_letter::{LetterJoin, LetterPiece, LetterPosition, UnusableLetter},
};

/// Why nothing is shown or replayed from a place without a letter.
pub(super) fn missing(topic: &str, place: LetterPosition) -> String {
    format!("{topic} has no letter at {place}: see `tributary dead-letters list` for those there are")
}

pub(super) async fn run(
    letters: &Letters,
    place: LetterPosition,
    raw: bool,
    json: bool,
    out: &mut dyn Write,
) -> Result {
    let record = letters.record(place).await?.ok_or_else(|| failure(missing(&letters.topic, place)))?;
    let (signature, first, body) = match Kind::of(&record, &letters.signer) {
        Kind::Mark(Mark { place: of, signature }) => {
            writeln!(out, "{place} is the mark ({signature}) that {of} has been replayed")?;
            return Ok(());
        }
        Kind::Whole(entry) => {
            let body = record.value.clone().unwrap_or_default();
            (entry.signature, record, Ok(body))
        }
        Kind::Piece(piece, entry) => {
            let (first, body) = joined(letters, piece, record).await?;
            (entry.signature, first, body)
        }
    };
    if raw {
        let body = body?;
        return out.write_all(&body).and_then(|()| out.flush()).map_err(outside);
    }
    let print = if json { as_json } else { as_text };
    print(&first, &signature, body.as_deref().ok(), out)?;
    body.map(drop).map_err(outside)
}

/// The first piece of the letter that `record` is a piece of, and the whole body.
async fn joined(
    letters: &Letters,
    piece: LetterPiece,
    record: Received,
) -> Result<(Received, Result<Bytes, UnusableLetter>)> {
    let letter = piece.letter.clone();
    let (mut first, mut joining) = (record, LetterJoin::new(piece));
    letters
        .scan_from([(first.partition, Start::Earliest)], async |record| {
            if let Kind::Piece(piece, _) = Kind::of(&record, &letters.signer)
                && piece.letter == letter
            {
                joining.add(piece.number, record.value.clone().unwrap_or_default());
                if piece.number == 1 {
                    first = record;
                }
            }
            let complete = joining.missing().is_empty();
            Ok(if complete { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })
        .await?;
    Ok((first, joining.join()))
}

/// Prints a letter for people: `first` is its first piece, `body` the whole if it is complete.
fn as_text(
    first: &Received,
    signature: &LetterSignature,
    body: Option<&[u8]>,
    out: &mut dyn Write,
) -> io::Result<()> {
    writeln!(out, "place: {}@{}", first.partition, first.offset)?;
    writeln!(out, "signature: {signature}")?;
    if let Some(key) = &first.key {
        writeln!(out, "key: {}", indented(key))?;
    }
    for (name, value) in &first.headers {
        writeln!(out, "{}: {}", harmless(name), indented(value))?;
    }
    match body.map(|body| (str::from_utf8(body), body.len())) {
        None => Ok(()),
        Some((Ok(text), _)) => writeln!(out, "\n{}", harmless(text)),
        Some((Err(_), size)) => {
            writeln!(out, "\n{size} bytes that are not text; --raw writes them as they are")
        }
    }
}

/// The same for programs.
fn as_json(
    first: &Received,
    signature: &LetterSignature,
    body: Option<&[u8]>,
    out: &mut dyn Write,
) -> io::Result<()> {
    let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
    let header = |(name, value): &(String, Bytes)| json!({ "name": name, "value": text(value) });
    let shown = json!({
        "place": format!("{}@{}", first.partition, first.offset),
        "signature": signature.name(),
        "key": first.key.as_ref().map(text),
        "headers": first.headers.iter().map(header).collect::<Vec<_>>(),
        "body": body.and_then(|body| str::from_utf8(body).ok()),
        "bodyBase64": body.map(|body| STANDARD.encode(body)),
    });
    writeln!(out, "{shown:#}")
}

/// A header's bytes; further lines stand under the first.
fn indented(bytes: &[u8]) -> String {
    harmless(&String::from_utf8_lossy(bytes)).replace('\n', "\n    ")
}
