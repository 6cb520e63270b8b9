//! Records of a dead-letter topic, parsed from their headers, without the body.

use std::{
    collections::{BTreeSet, HashSet, VecDeque},
    sync::Arc,
};

use serde_json::json;

use crate::{
    cli::table::moment,
    publish::{LetterSignature, LetterSigner},
    webhooks::dead_letter::{self, LetterPiece, LetterPosition},
};
use kafka::ConsumerRecord;

pub(super) enum DeadLetterRecord {
    Whole(LetterEntry),
    Piece(LetterPiece, LetterEntry),
    /// Marks a letter as replayed.
    Mark(ReplayMark),
}

/// The mark of a replay, written behind its letter.
#[derive(Debug, Clone)]
pub(super) struct ReplayMark {
    pub(super) place: LetterPosition,
    pub(super) signature: LetterSignature,
}

/// A letter without its body.
#[derive(Debug, Clone)]
pub(super) struct LetterEntry {
    pub(super) place: LetterPosition,
    /// Milliseconds since 1970.
    pub(super) written_at: i64,
    error: LetterError,
    /// Bytes of the whole letter.
    pub(super) size: u64,
    pub(super) pieces: Option<PieceSet>,
    pub(super) replayed: bool,
    /// The same for all pieces of a letter.
    pub(super) signature: LetterSignature,
}

/// Why a letter was written.
#[derive(Debug, Clone)]
struct LetterError {
    connector: String,
    stage: String,
    reason: String,
    message: String,
    /// Topic that the record was meant for.
    topic: Option<String>,
}

#[derive(Debug, Clone)]
pub(super) struct PieceSet {
    /// Id of the letter, prefixed with the result of the signature check.
    pub(super) letter: Arc<str>,
    pub(super) seen: BTreeSet<u32>,
    pub(super) of: u32,
}

/// Heads of the columns of [`LetterEntry::row`].
pub(super) const COLUMNS: [&str; 10] =
    ["LETTER", "WRITTEN", "CONNECTOR", "STAGE", "REASON", "TOPIC", "BYTES", "SIGNATURE", "PIECES", "STATE"];

#[derive(Debug, Clone, Default)]
pub(super) struct LetterFilter {
    pub(super) reason: Option<String>,
    /// Milliseconds since 1970.
    pub(super) since: Option<i64>,
}

impl DeadLetterRecord {
    pub(super) fn of(record: &ConsumerRecord, signer: &LetterSigner) -> Self {
        if let Some(mark) = ReplayMark::of(record, signer) {
            return Self::Mark(mark);
        }
        let headers = record.headers.as_slice();
        let signature = signer.verify(record);
        let text = |name: &str| dead_letter::text(headers, name);
        let own = |name: &str| text(name).unwrap_or("-").to_owned();
        let mut entry = LetterEntry {
            place: LetterPosition { partition: record.partition, offset: record.offset },
            written_at: record.timestamp_ms.unwrap_or_default(),
            error: LetterError {
                connector: own("__connect.errors.connector.name"),
                stage: own("__connect.errors.stage"),
                reason: own("__connect.errors.exception.class.name"),
                message: own("__connect.errors.exception.message"),
                topic: text("__connect.errors.topic").map(str::to_owned),
            },
            size: record.value.as_ref().map_or(0, |value| value.len() as u64),
            pieces: None,
            replayed: false,
            signature,
        };
        match LetterPiece::from_headers(headers) {
            Ok(None) => Self::Whole(entry),
            Ok(Some(mut piece)) => {
                entry.size = piece.size;
                // Forged or unsigned pieces must not mix with signed ones.
                piece.letter = format!("{}/{}", entry.signature, piece.letter);
                let (letter, seen) = (piece.letter.as_str().into(), BTreeSet::from([piece.number]));
                entry.pieces = Some(PieceSet { letter, seen, of: piece.of });
                Self::Piece(piece, entry)
            }
            // Unreadable piece headers of another program: show it as a plain record.
            Err(_) => Self::Whole(entry),
        }
    }
}

impl ReplayMark {
    pub(super) fn of(record: &ConsumerRecord, signer: &LetterSigner) -> Option<Self> {
        let place = dead_letter::text(&record.headers, dead_letter::REPLAYED)?.parse().ok()?;
        let signature = match signer.verify(record) {
            // A copy from another topic.
            LetterSignature::Signed
                if dead_letter::text(&record.headers, dead_letter::REPLAYED_TOPIC)
                    != Some(&*record.topic) =>
            {
                LetterSignature::Forged
            }
            signature => signature,
        };
        Some(Self { place, signature })
    }

    /// Whether the mark applies to a letter. It has to be as trustworthy as the letter: otherwise any writer of the topic could
    /// prevent the replay of a signed letter.
    pub(super) fn counts_for(&self, letter: &LetterSignature) -> bool {
        match &self.signature {
            LetterSignature::Signed => true,
            LetterSignature::Forged => false,
            signature => signature == letter,
        }
    }
}

impl LetterEntry {
    pub(super) fn is_complete(&self) -> bool {
        self.pieces.as_ref().is_none_or(|pieces| pieces.seen.len() == pieces.of as usize)
    }

    pub(super) fn fits(&self, filter: &LetterFilter) -> bool {
        let reason = filter.reason.as_ref().is_none_or(|reason| {
            let reason = reason.to_lowercase();
            [&self.error.reason, &self.error.stage].iter().any(|text| text.to_lowercase().contains(&reason))
        });
        reason && filter.since.is_none_or(|since| self.written_at >= since)
    }

    pub(super) fn row(&self) -> [String; 10] {
        let error = &self.error;
        let pieces = match &self.pieces {
            None => "whole".to_owned(),
            Some(pieces) => format!("{} of {}", pieces.seen.len(), pieces.of),
        };
        let state = match (self.replayed, self.is_complete()) {
            (true, _) => "replayed",
            (false, true) => "",
            (false, false) => "incomplete",
        };
        [
            self.place.to_string(),
            moment(self.written_at),
            error.connector.clone(),
            error.stage.clone(),
            error.reason.clone(),
            error.topic.clone().unwrap_or_else(|| "-".to_owned()),
            self.size.to_string(),
            self.signature.to_string(),
            pieces,
            state.to_owned(),
        ]
    }

    pub(super) fn json(&self) -> serde_json::Value {
        let (error, pieces) = (&self.error, self.pieces.as_ref());
        json!({
            "place": self.place.to_string(),
            "partition": self.place.partition,
            "offset": self.place.offset,
            "writtenAt": moment(self.written_at),
            "connector": error.connector,
            "stage": error.stage,
            "reason": error.reason,
            "message": error.message,
            "topic": error.topic,
            "size": self.size,
            "pieces": pieces.map_or(1, |pieces| pieces.of),
            "piecesFound": pieces.map_or(1, |pieces| pieces.seen.len()),
            "complete": self.is_complete(),
            "replayed": self.replayed,
            "signature": self.signature.name(),
        })
    }
}

/// The most recent letters in pieces.
pub(super) struct RecentLetters {
    most: usize,
    known: HashSet<Arc<str>>,
    order: VecDeque<Arc<str>>,
}

impl RecentLetters {
    pub(super) fn new(most: usize) -> Self {
        Self { most, known: HashSet::new(), order: VecDeque::new() }
    }

    pub(super) fn contains(&self, letter: &str) -> bool {
        self.known.contains(letter)
    }

    /// Adds a letter, and drops the oldest beyond the limit.
    pub(super) fn insert(&mut self, letter: Arc<str>) {
        if self.known.insert(Arc::clone(&letter)) {
            self.order.push_back(letter);
        }
        if self.order.len() > self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}
