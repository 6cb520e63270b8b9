//! One letter, with all that is known of it.

use std::{io::Write, ops::ControlFlow};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use serde_json::json;

use kafka::{Received, Start};

use super::{
    Letters,
    entry::{Kind, Mark},
};
use crate::{
    cli::{Result, outside, table::harmless},
    pipeline::LetterSignature,
    webhooks::letter::{Joining, Piece, Place, Unusable},
};

/// There is no letter at that place.
#[derive(Debug, thiserror::Error)]
#[error("{topic} has no letter at {place}: see `tributary dead-letters list` for those there are")]
pub(super) struct NoLetter {
    pub(super) topic: String,
    pub(super) place: Place,
}

pub(super) async fn run(
    letters: &Letters,
    place: Place,
    raw: bool,
    json: bool,
    out: &mut dyn Write,
) -> Result {
    let missing = || outside(NoLetter { topic: letters.topic.to_string(), place });
    let record = letters.record(place).await?.ok_or_else(missing)?;
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
    let shown = Shown { record: &first, signature: &signature, body: &body };
    if json { shown.as_json(out) } else { shown.as_text(out) }?;
    body.map(drop).map_err(outside)
}

/// The first piece of the letter that `record` is a piece of, and the whole body.
async fn joined(
    letters: &Letters,
    piece: Piece,
    record: Received,
) -> Result<(Received, Result<Bytes, Unusable>)> {
    let letter = piece.letter.clone();
    let (mut first, mut joining) = (record, Joining::new(piece));
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

/// A letter as it is printed.
struct Shown<'a> {
    /// Its first piece.
    record: &'a Received,
    signature: &'a LetterSignature,
    body: &'a Result<Bytes, Unusable>,
}

impl Shown<'_> {
    fn as_text(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let Self { record, signature, body } = self;
        writeln!(out, "place: {}@{}", record.partition, record.offset)?;
        writeln!(out, "signature: {signature}")?;
        if let Some(key) = &record.key {
            writeln!(out, "key: {}", indented(key))?;
        }
        for (name, value) in &record.headers {
            writeln!(out, "{}: {}", harmless(name), indented(value))?;
        }
        let Ok(body) = body else { return Ok(()) };
        match std::str::from_utf8(body) {
            Ok(text) => writeln!(out, "\n{}", harmless(text)),
            Err(_) => {
                writeln!(out, "\n{} bytes that are not text; --raw writes them as they are", body.len())
            }
        }
    }

    fn as_json(&self, out: &mut dyn Write) -> std::io::Result<()> {
        let Self { record, signature, body } = self;
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        let headers: Vec<_> = record
            .headers
            .iter()
            .map(|(name, value)| json!({ "name": name, "value": text(value) }))
            .collect();
        let whole = body.as_ref().ok();
        let shown = json!({
            "place": format!("{}@{}", record.partition, record.offset),
            "signature": signature.name(),
            "key": record.key.as_ref().map(text),
            "headers": headers,
            "body": whole.and_then(|body| std::str::from_utf8(body).ok()),
            "bodyBase64": whole.map(|body| STANDARD.encode(body)),
        });
        writeln!(out, "{shown:#}")
    }
}

/// A header's bytes; further lines stand under the first.
fn indented(bytes: &[u8]) -> String {
    harmless(&String::from_utf8_lossy(bytes)).replace('\n', "\n    ")
}
