//! The form of a dead letter that was a delivery: its headers, how it is cut, joined and read again.
//!
//! A delivery that cannot be published ─▶ one record with its bytes, or several with a piece each ─▶ [`LetterJoin`] ─▶
//! [`delivery`] ─▶ read by the current version. Once a letter has been replayed, a mark follows: a record of the same topic that
//! says so. On top of Kafka Connect's `__connect.errors.*` headers, which say what failed:
//!
//! | header | content |
//! |---|---|
//! | `tributary.delivery` | all of the delivery but its body, as JSON; of several pieces only the first has it |
//! | `tributary.received.at` | when it was received, microseconds since 1970 |
//! | `tributary.id` | the id of the record that failed; without it, all records of the delivery |
//! | `tributary.letter` | of a piece: the same for all pieces of a letter, different for every other letter |
//! | `tributary.piece` | of a piece: its number and how many there are, `2/3` |
//! | `tributary.letter.size`, `tributary.letter.sha256` | of a piece: bytes of the whole, and their digest |
//! | `tributary.topic.prefix` | `topic.prefix` of the connector that wrote it |
//! | `tributary.mac` | the worker's signature of key, value and all headers here and of Kafka Connect ([`LetterSigner`]) |
//! | `tributary.replayed` | of a mark: the letter at this `partition@offset` of the same topic has been replayed |
//! | `tributary.replayed.topic` | of a mark: that topic, so that a signed mark counts nowhere else |
//!
//! [`LetterSigner`]: crate::publish::LetterSigner
//!
//! - No header of the HTTP request is among them: its trace is in `tributary.delivery`, its type and encoding are not trusted, and its
//!   signature is not kept.
//! - All pieces have one key, hence one partition. `tributary.letter` follows from the content: pieces that were written twice are the
//!   same pieces, and pieces of two letters never mix, in whatever order they are.
//! - A mark is in the partition of its letter, after it.

use std::{
    collections::BTreeMap,
    fmt,
    str::{self, FromStr},
    sync::Arc,
};

use bytes::{Bytes, BytesMut};
use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

use base::retry::Retry;
use model::EncodedRecord;

use super::delivery::{Delivery, DeliveryContext, content_id};
use crate::publish::{DeadLetters, Original, PublishFailure};

/// All of a delivery but its body.
pub const DELIVERY: &str = "tributary.delivery";
/// Microseconds since 1970.
pub const RECEIVED_AT: &str = "tributary.received.at";
/// Id of the record that failed.
pub const RECORD: &str = "tributary.id";
/// Which letter a piece is of.
pub const LETTER: &str = "tributary.letter";
/// Which piece it is.
pub const PIECE: &str = "tributary.piece";
/// Bytes of the whole.
pub const SIZE: &str = "tributary.letter.size";
/// Digest of the whole.
pub const DIGEST: &str = "tributary.letter.sha256";
/// Which letter has been replayed.
pub const REPLAYED: &str = "tributary.replayed";
/// In which topic.
pub const REPLAYED_TOPIC: &str = "tributary.replayed.topic";

/// Dead letters that not even their own topic takes whole are cut into pieces of this size: less than any limit in use.
const PIECE_BYTES: usize = 512 << 10;
/// More pieces than the largest delivery has; a header with more is not ours.
const MOST_PIECES: u32 = 1024;

/// Position of a letter in its topic: that of its first piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LetterPosition {
    /// Partition.
    pub partition: i32,
    /// Offset.
    pub offset: i64,
}

impl fmt::Display for LetterPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.partition, self.offset)
    }
}

impl FromStr for LetterPosition {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let numbers = text.split_once('@').and_then(|(partition, offset)| {
            // Checked here because `parse` would take a sign.
            let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
            let sound = digits(partition) && digits(offset);
            sound.then_some(Self { partition: partition.parse().ok()?, offset: offset.parse().ok()? })
        });
        numbers.ok_or("must be a partition and an offset, such as 0@42")
    }
}

/// Which piece of which letter a record is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LetterPiece {
    /// The same for all pieces of a letter.
    pub letter: String,
    /// From 1.
    pub number: u32,
    /// How many there are.
    pub of: u32,
    /// Bytes of the whole.
    pub size: u64,
    digest: String,
}

impl LetterPiece {
    /// Reads the headers of a record; `None`: it is a whole letter.
    ///
    /// # Errors
    /// They say that it is a piece, and not of which letter.
    pub fn from_headers(headers: &[(String, Bytes)]) -> Result<Option<Self>, UnusableLetter> {
        let Some(numbers) = text(headers, PIECE) else { return Ok(None) };
        let piece = numbers.split_once('/').and_then(|(number, of)| {
            Some(Self {
                letter: text(headers, LETTER)?.to_owned(),
                number: number.parse().ok()?,
                of: of.parse().ok()?,
                size: text(headers, SIZE)?.parse().ok()?,
                digest: text(headers, DIGEST)?.to_owned(),
            })
        });
        let sound = |piece: &Self| (1..=piece.of).contains(&piece.number) && piece.of <= MOST_PIECES;
        piece.filter(sound).map(Some).ok_or(UnusableLetter::Piece)
    }

    /// The headers of each piece of a letter with `of` pieces.
    fn headers(letter: &str, body: &[u8], of: usize) -> impl Fn(usize) -> [(&'static str, Bytes); 4] + use<> {
        let letter = Bytes::from(letter.to_owned());
        let (size, digest) =
            (Bytes::from(body.len().to_string()), Bytes::from(HEXLOWER.encode(&Sha256::digest(body))));
        move |number| {
            [
                (LETTER, letter.clone()),
                (PIECE, Bytes::from(format!("{number}/{of}"))),
                (SIZE, size.clone()),
                (DIGEST, digest.clone()),
            ]
        }
    }
}

/// The records of a dead letter, cut into `pieces`. `meant`: id and topic of the record that failed, if only one did. All letters of a
/// connector have one key, hence one partition: pieces are together, in the order they were cut.
///
/// Logs the letter: one that has to be sent again is logged again. Pieces are not logged, because they were tried whole before.
pub(super) fn records(
    dead_letters: &DeadLetters,
    delivery: &Delivery,
    meant: Option<(&str, &str)>,
    failure: &PublishFailure,
    pieces: usize,
) -> Vec<EncodedRecord> {
    let (context, body) = (&delivery.context, &delivery.body);
    let (id, topic) = meant.unzip();
    if pieces == 1 {
        dead_letters.log(topic, failure);
    }
    let pieces = pieces.clamp(1, body.len().max(1));
    // Texts and numbers alone, which are always writable.
    let head = Bytes::from(serde_json::to_vec(&*delivery.to_keep()).unwrap_or_default());
    let of_piece =
        (pieces > 1).then(|| LetterPiece::headers(&letter_id(&head, id, failure, body), body, pieces));
    let piece = |number: usize| {
        let mut headers = vec![(RECEIVED_AT, Bytes::from(context.received_at.to_string()))];
        if number == 1 {
            // Once: it may be large, with a company for every tenant, and a piece has to stay small.
            headers.push((DELIVERY, head.clone()));
        }
        headers.extend(id.map(|id| (RECORD, Bytes::from(id.to_owned()))));
        headers.extend(of_piece.iter().flat_map(|of_piece| of_piece(number)));
        let edge = |number: usize| body.len() * number / pieces;
        let value = body.slice(edge(number - 1)..edge(number));
        let original =
            Original { key: Bytes::copy_from_slice(context.connector.as_bytes()), value, place: None };
        dead_letters.record(&original, topic, failure, &headers)
    };
    (1..=pieces).map(piece).collect()
}

/// Number of pieces of a body that is refused whole.
pub(super) fn pieces(body: &[u8]) -> usize {
    body.len().div_ceil(PIECE_BYTES).max(1)
}

/// Identifies a letter: by the delivery, the record that failed, and the failure.
fn letter_id(context: &[u8], record: Option<&str>, failure: &PublishFailure, body: &[u8]) -> String {
    let record = record.unwrap_or_default();
    let parts = [context, record.as_bytes(), failure.class.as_bytes(), failure.message.as_bytes()];
    content_id(&parts, body)
}

/// Pieces of one letter, in whatever order and however often they come.
#[derive(Debug)]
pub struct LetterJoin {
    piece: LetterPiece,
    parts: BTreeMap<u32, Bytes>,
}

impl LetterJoin {
    /// Begins with any piece of a letter.
    #[must_use]
    pub fn new(piece: LetterPiece) -> Self {
        Self { piece, parts: BTreeMap::new() }
    }

    /// Adds a piece of the same letter; one that is there already changes nothing. Answers by how many bytes this grew.
    pub fn add(&mut self, number: u32, bytes: Bytes) -> usize {
        if self.parts.contains_key(&number) {
            return 0;
        }
        let size = bytes.len();
        self.parts.insert(number, bytes);
        size
    }

    /// Bytes that are there.
    #[must_use]
    pub fn held(&self) -> usize {
        self.parts.values().map(Bytes::len).sum()
    }

    /// Numbers of the pieces that are not there.
    #[must_use]
    pub fn missing(&self) -> Vec<u32> {
        (1..=self.piece.of).filter(|number| !self.parts.contains_key(number)).collect()
    }

    /// The whole.
    ///
    /// # Errors
    /// Pieces are missing, or the whole is not what they say it is.
    pub fn join(self) -> Result<Bytes, UnusableLetter> {
        let missing = self.missing();
        if !missing.is_empty() {
            return Err(UnusableLetter::Incomplete { missing, of: self.piece.of });
        }
        let mut whole = BytesMut::with_capacity(self.held());
        self.parts.values().for_each(|part| whole.extend_from_slice(part));
        let sound = whole.len() as u64 == self.piece.size
            && HEXLOWER.encode(&Sha256::digest(&whole)) == self.piece.digest;
        if sound { Ok(whole.freeze()) } else { Err(UnusableLetter::Damaged) }
    }
}

/// Why a letter cannot be joined or read again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UnusableLetter {
    /// Not all of it is there.
    #[error("piece {} of {of} missing: not written yet, or gone by the topic's retention", numbers(.missing))]
    Incomplete {
        /// Which pieces.
        missing: Vec<u32>,
        /// Of how many.
        of: u32,
    },
    /// The joined pieces are not the bytes that were cut.
    #[error("the joined pieces are not what was cut: their size or digest differs")]
    Damaged,
    /// The headers of a piece do not say of what.
    #[error("a record that says it is a piece does not say of what")]
    Piece,
    /// It was no delivery.
    #[error("it was not received as a webhook, and only deliveries can be read again")]
    NoDelivery,
    /// A later version or another program wrote it.
    #[error("its header {DELIVERY} is not readable")]
    Context,
}

impl UnusableLetter {
    /// The letter stays what it is.
    #[must_use]
    pub fn retry(&self) -> Retry {
        Retry::Never
    }
}

/// The delivery a letter was, by the headers of its first piece and its whole body.
///
/// # Errors
/// It was none, or one that this version cannot read.
pub fn delivery(headers: &[(String, Bytes)], body: Bytes) -> Result<Delivery, UnusableLetter> {
    let (_, context) = headers.iter().find(|(name, _)| name == DELIVERY).ok_or(UnusableLetter::NoDelivery)?;
    let context: DeliveryContext = serde_json::from_slice(context).map_err(|_| UnusableLetter::Context)?;
    Ok(Delivery { context: Arc::new(context), body })
}

/// The record that says that a letter has been replayed. `records` is what became of it.
#[must_use]
pub fn mark(topic: Arc<str>, place: LetterPosition, key: Bytes, records: usize) -> EncodedRecord {
    let value = serde_json::json!({ "replayed": place.to_string(), "records": records });
    let headers = vec![
        (REPLAYED, Bytes::from(place.to_string())),
        (REPLAYED_TOPIC, Bytes::copy_from_slice(topic.as_bytes())),
    ];
    EncodedRecord {
        topic,
        partition: place.partition,
        key,
        value: Some(Bytes::from(value.to_string())),
        headers,
        timestamp_ms: None,
    }
}

/// A header as text, the first of its name.
#[must_use]
pub fn text<'a>(headers: &'a [(String, Bytes)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(known, _)| known == name).and_then(|(_, value)| str::from_utf8(value).ok())
}

fn numbers(missing: &[u32]) -> String {
    missing.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests;
