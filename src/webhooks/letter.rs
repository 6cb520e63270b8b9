//! The form of a dead letter that was a delivery: what its headers say, how it is cut, joined and read again.
//!
//! A delivery that cannot be published ─▶ one record with its bytes, or several with a piece each ─▶ [`Joining`] ─▶
//! [`delivery`] ─▶ read by the code of the day. Kafka Connect's `__connect.errors.*` headers say what failed; these come on top:
//!
//! | header | says |
//! |---|---|
//! | `tributary.delivery` | all of the delivery but its body, as JSON; of several pieces only the first has it |
//! | `tributary.received.at` | when it was received, microseconds since 1970 |
//! | `tributary.id` | the one record of the delivery that it stands for; without it, for all of them |
//! | `tributary.letter` | of a piece: the same for all pieces of a letter, another for every other letter |
//! | `tributary.piece` | of a piece: its number and how many there are, `2/3` |
//! | `tributary.letter.size`, `tributary.letter.sha256` | of a piece: bytes of the whole, and their digest |
//! | `tributary.topic.prefix` | `topic.prefix` of the connector that wrote it |
//! | `tributary.mac` | the worker's signature of key, value and all headers here and of Kafka Connect ([`LetterSigner`]) |
//! | `tributary.replayed` | of a mark: the letter at this `partition@offset` of the same topic has been replayed |
//! | `tributary.replayed.topic` | of a mark: that topic, so that a signed mark counts nowhere else |
//!
//! [`LetterSigner`]: crate::publish::LetterSigner
//!
//! - No header of the HTTP request is among them: its trace is in `tributary.delivery`, what it says of type and encoding is
//!   not believed, and its signature is nobody's business.
//! - All pieces have one key, hence one partition. What `tributary.letter` says follows from the content: pieces that were
//!   written twice are the same pieces, and those of two letters never mix, in whatever order they stand.
//! - A mark stands in the partition of its letter, behind it.

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

use super::delivery::{Context, Delivery, content_id};
use crate::publish::Failure;

/// All of a delivery but its body.
pub const DELIVERY: &str = "tributary.delivery";
/// Microseconds since 1970.
pub const RECEIVED_AT: &str = "tributary.received.at";
/// The record it stands for.
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

/// More pieces than the largest delivery has; what says so is none of ours.
const MOST_PIECES: u32 = 1024;

/// Where a letter stands in its topic: that of its first piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// Partition.
    pub partition: i32,
    /// Offset.
    pub offset: i64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.partition, self.offset)
    }
}

impl FromStr for Place {
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
pub struct Piece {
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

impl Piece {
    /// What a record's headers say; `None` where it is a letter of its own.
    ///
    /// # Errors
    /// They say that it is a piece, and not of what.
    pub fn from_headers(headers: &[(String, Bytes)]) -> Result<Option<Self>, Unusable> {
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
        piece.filter(sound).map(Some).ok_or(Unusable::Piece)
    }

    /// Headers of each piece of a letter of so many.
    pub(super) fn headers(
        letter: &str,
        body: &[u8],
        of: usize,
    ) -> impl Fn(usize) -> [(&'static str, Bytes); 4] + use<> {
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

/// What tells one letter from every other: the delivery, the record of it that is meant, and what failed.
pub(super) fn id(context: &[u8], record: Option<&str>, failure: &Failure, body: &[u8]) -> String {
    let record = record.unwrap_or_default();
    let parts = [context, record.as_bytes(), failure.class.as_bytes(), failure.message.as_bytes()];
    content_id(&parts, body)
}

/// Pieces of one letter, in whatever order and however often they come.
#[derive(Debug)]
pub struct Joining {
    piece: Piece,
    parts: BTreeMap<u32, Bytes>,
}

impl Joining {
    /// Begins with any piece of a letter.
    #[must_use]
    pub fn new(piece: Piece) -> Self {
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
    pub fn join(self) -> Result<Bytes, Unusable> {
        let missing = self.missing();
        if !missing.is_empty() {
            return Err(Unusable::Incomplete { missing, of: self.piece.of });
        }
        let mut whole = BytesMut::with_capacity(self.held());
        self.parts.values().for_each(|part| whole.extend_from_slice(part));
        let sound = whole.len() as u64 == self.piece.size
            && HEXLOWER.encode(&Sha256::digest(&whole)) == self.piece.digest;
        if sound { Ok(whole.freeze()) } else { Err(Unusable::Damaged) }
    }
}

/// Why a letter cannot be joined or read again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unusable {
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
    /// A later version has written it, or somebody else.
    #[error("its header {DELIVERY} is not readable")]
    Context,
}

impl Unusable {
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
pub fn delivery(headers: &[(String, Bytes)], body: Bytes) -> Result<Delivery, Unusable> {
    let (_, context) = headers.iter().find(|(name, _)| name == DELIVERY).ok_or(Unusable::NoDelivery)?;
    let context: Context = serde_json::from_slice(context).map_err(|_| Unusable::Context)?;
    Ok(Delivery { context: Arc::new(context), body })
}

/// The record that says that a letter has been replayed. `records` is what became of it.
#[must_use]
pub fn mark(topic: Arc<str>, place: Place, key: Bytes, records: usize) -> EncodedRecord {
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
mod tests {
    use super::*;

    const BODY: &[u8] = b"the whole of a delivery";

    fn cut(letter: &str, of: usize) -> Vec<(Piece, Bytes)> {
        let headers = Piece::headers(letter, BODY, of);
        let size = BODY.len().div_ceil(of);
        let piece = |(place, part): (usize, &'static [u8])| {
            let headers = headers(place + 1).map(|(name, value)| (name.to_owned(), value));
            (Piece::from_headers(&headers).unwrap().unwrap(), Bytes::from_static(part))
        };
        BODY.chunks(size).enumerate().map(piece).collect()
    }

    fn joined(pieces: &[(Piece, Bytes)]) -> Result<Bytes, Unusable> {
        let mut joining = Joining::new(pieces[0].0.clone());
        for (piece, bytes) in pieces {
            joining.add(piece.number, bytes.clone());
        }
        joining.join()
    }

    #[test]
    fn pieces_in_any_order_and_twice_are_the_whole() {
        let mut pieces = cut("a", 3);
        pieces.reverse();
        pieces.extend(cut("a", 3));

        assert_eq!(joined(&pieces).unwrap(), BODY);
    }

    #[test]
    fn a_missing_piece_is_named_and_a_changed_one_is_noticed() {
        let pieces = cut("a", 3);
        let mut changed = pieces.clone();
        changed[1].1 = Bytes::from_static(b"E of a d");
        let missing = joined(&[pieces[0].clone(), pieces[2].clone()]);

        assert_eq!(missing, Err(Unusable::Incomplete { missing: vec![2], of: 3 }));
        assert_eq!(joined(&changed), Err(Unusable::Damaged));
    }

    #[test]
    fn letters_that_differ_in_anything_have_different_ids() {
        let failure = |message: &str| Failure {
            stage: crate::publish::PublishStage::Produce,
            class: "kafka::Error",
            message: message.to_owned(),
            causes: Vec::new(),
        };
        let one = id(b"{}", None, &failure("a"), BODY);

        assert_eq!(one, id(b"{}", None, &failure("a"), BODY));
        for other in [
            id(b"{1}", None, &failure("a"), BODY),
            id(b"{}", Some("x"), &failure("a"), BODY),
            id(b"{}", None, &failure("b"), BODY),
            id(b"{}", None, &failure("a"), &BODY[1..]),
        ] {
            assert_ne!(one, other);
        }
    }

    #[test]
    fn headers_that_no_piece_of_ours_has_are_refused() {
        let headers = |numbers: &str| {
            let mut headers: Vec<_> =
                Piece::headers("a", BODY, 2)(1).map(|(name, value)| (name.to_owned(), value)).into();
            headers[1].1 = Bytes::from(numbers.to_owned());
            headers
        };

        for wrong in ["", "1", "0/2", "3/2", "1/2000000000", "a/b", "1/2/3"] {
            assert_eq!(Piece::from_headers(&headers(wrong)), Err(Unusable::Piece), "{wrong}");
        }
        assert_eq!(Piece::from_headers(&headers("1/2")[..3]), Err(Unusable::Piece), "without a digest");
        assert_eq!(Piece::from_headers(&[]), Ok(None));
    }

    #[test]
    fn a_place_is_read_as_it_is_written_and_nothing_else_is() {
        let place = Place { partition: 3, offset: 42 };

        assert_eq!(place.to_string().parse(), Ok(place));
        for wrong in ["", "3", "@", "3@", "@42", "-3@42", "3@-1", "3@4 2", "3@99999999999999999999", "3:42"] {
            assert!(wrong.parse::<Place>().is_err(), "{wrong}");
        }
    }
}
