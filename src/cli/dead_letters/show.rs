//! One letter with all headers and its body.

use std::{
    io::{self, Write},
    ops::ControlFlow,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde_json::json;

use kafka::{ConsumerRecord, StartOffset};

use super::{
    DeadLetterTopic,
    entry::{DeadLetterRecord, ReplayMark},
};
use crate::{
    cli::{Result, failure, outside, table::harmless},
    publish::LetterSignature,
    webhooks::dead_letter::{LetterJoin, LetterPiece, LetterPosition, UnusableLetter},
};

pub(super) fn missing(topic: &str, place: LetterPosition) -> String {
    format!("{topic} has no letter at {place}: `tributary dead-letters list` shows the existing ones")
}

pub(super) async fn run(
    letters: &DeadLetterTopic,
    place: LetterPosition,
    raw: bool,
    json: bool,
    out: &mut dyn Write,
) -> Result {
    let record = letters.record(place).await?.ok_or_else(|| failure(missing(&letters.topic, place)))?;
    let (signature, first, body) = match DeadLetterRecord::of(&record, &letters.signer) {
        DeadLetterRecord::Mark(ReplayMark { place: of, signature }) => {
            writeln!(out, "{place} is the mark ({signature}) of the replay of {of}")?;
            return Ok(());
        }
        DeadLetterRecord::Whole(entry) => {
            let body = record.value.clone().unwrap_or_default();
            (entry.signature, record, Ok(body))
        }
        DeadLetterRecord::Piece(piece, entry) => {
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

/// The first piece and the whole body of the letter that `record` belongs to.
async fn joined(
    letters: &DeadLetterTopic,
    piece: LetterPiece,
    record: ConsumerRecord,
) -> Result<(ConsumerRecord, Result<Bytes, UnusableLetter>)> {
    let letter = piece.letter.clone();
    let (mut first, mut joining) = (record, LetterJoin::new(piece));
    letters
        .scan_from([(first.partition, StartOffset::Earliest)], async |record| {
            if let DeadLetterRecord::Piece(piece, _) = DeadLetterRecord::of(&record, &letters.signer)
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

/// Prints a letter as text: `first` is its first piece, `body` the whole body if complete.
fn as_text(
    first: &ConsumerRecord,
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
            writeln!(out, "\n{size} bytes that are not text; --raw prints them unchanged")
        }
    }
}

/// Prints a letter as JSON.
fn as_json(
    first: &ConsumerRecord,
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

/// A header's value, with further lines indented.
fn indented(bytes: &[u8]) -> String {
    harmless(&String::from_utf8_lossy(bytes)).replace('\n', "\n    ")
}
