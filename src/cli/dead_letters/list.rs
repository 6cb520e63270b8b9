//! The newest letters of a topic, with counted pieces and replays.
//!
//! At most `--limit` letters are kept, whatever the size of the topic: a newer letter replaces the oldest. Pieces and marks update
//! their letter if it is kept.

use std::{
    collections::{BTreeMap, HashMap},
    io::Write,
    ops::ControlFlow,
    sync::Arc,
};

use kafka::ConsumerRecord;

use super::{
    DeadLetterTopic,
    entry::{self, DeadLetterRecord, LetterEntry, LetterFilter, RecentLetters},
};
use crate::{
    cli::{Result, outside, table},
    publish::LetterSigner,
    webhooks::dead_letter::LetterPosition,
};

/// Dropped letters in pieces that are remembered, so that their later pieces do not count as letters.
const MAX_FORGOTTEN: usize = 4096;

pub(super) async fn run(
    letters: &DeadLetterTopic,
    filter: LetterFilter,
    limit: usize,
    json: bool,
    out: &mut dyn Write,
) -> Result {
    let mut list = LetterList::new(filter, limit, letters.signer.clone());
    letters
        .scan(async |record| {
            list.take(&record);
            Ok(ControlFlow::Continue(()))
        })
        .await?;
    list.print(json, out).map_err(outside)
}

/// By time, then place.
type LetterOrder = (i64, LetterPosition);

/// The newest matching letters.
pub(super) struct LetterList {
    filter: LetterFilter,
    limit: usize,
    signer: LetterSigner,
    entries: BTreeMap<LetterOrder, LetterEntry>,
    by_place: HashMap<LetterPosition, LetterOrder>,
    by_pieces: HashMap<Arc<str>, LetterOrder>,
    forgotten: RecentLetters,
    /// Matching letters beyond the limit.
    older: u64,
}

impl LetterList {
    pub(super) fn new(filter: LetterFilter, limit: usize, signer: LetterSigner) -> Self {
        Self {
            filter,
            limit,
            signer,
            entries: BTreeMap::new(),
            by_place: HashMap::new(),
            by_pieces: HashMap::new(),
            forgotten: RecentLetters::new(MAX_FORGOTTEN),
            older: 0,
        }
    }

    /// Adds the next record; records of a partition arrive in order.
    pub(super) fn take(&mut self, record: &ConsumerRecord) {
        match DeadLetterRecord::of(record, &self.signer) {
            DeadLetterRecord::Mark(mark) => {
                let rank = self.by_place.get(&mark.place);
                if let Some(entry) = rank.and_then(|rank| self.entries.get_mut(rank)) {
                    entry.replayed |= mark.counts_for(&entry.signature);
                }
            }
            DeadLetterRecord::Piece(piece, entry) => {
                let rank = self.by_pieces.get(piece.letter.as_str());
                match rank.and_then(|rank| self.entries.get_mut(rank)).and_then(|known| known.pieces.as_mut())
                {
                    Some(pieces) => drop(pieces.seen.insert(piece.number)),
                    None if self.forgotten.contains(piece.letter.as_str()) => {}
                    None => self.add(entry),
                }
            }
            DeadLetterRecord::Whole(entry) => self.add(entry),
        }
    }

    fn add(&mut self, entry: LetterEntry) {
        if !entry.fits(&self.filter) {
            return self.forget(&entry);
        }
        let rank = (entry.written_at, entry.place);
        self.by_place.insert(entry.place, rank);
        if let Some(pieces) = &entry.pieces {
            self.by_pieces.insert(Arc::clone(&pieces.letter), rank);
        }
        self.entries.insert(rank, entry);
        if self.entries.len() > self.limit
            && let Some((_, oldest)) = self.entries.pop_first()
        {
            self.older += 1;
            self.by_place.remove(&oldest.place);
            self.forget(&oldest);
        }
    }

    fn forget(&mut self, entry: &LetterEntry) {
        let Some(pieces) = &entry.pieces else { return };
        self.by_pieces.remove(&pieces.letter);
        self.forgotten.insert(Arc::clone(&pieces.letter));
    }

    fn print(&self, json: bool, out: &mut dyn Write) -> std::io::Result<()> {
        if json {
            return self.entries.values().try_for_each(|entry| writeln!(out, "{}", entry.json()));
        }
        let head = entry::COLUMNS;
        let rows = self.entries.values().map(|entry| entry.row().map(|cell| table::harmless(&cell)));
        table::columns(head, rows.collect(), out)?;
        if self.older > 0 {
            let older = self.older;
            writeln!(
                out,
                "\n{older} older letters are not shown; raise --limit, or filter by --reason or --since"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::webhooks::dead_letter;

    fn record(offset: i64, at: i64, headers: &[(&str, &str)]) -> ConsumerRecord {
        let headers =
            headers.iter().map(|(name, value)| ((*name).to_owned(), Bytes::from((*value).to_owned())));
        ConsumerRecord {
            topic: "t".into(),
            partition: 0,
            offset,
            key: None,
            value: Some(Bytes::from_static(b"12345")),
            headers: headers.collect(),
            timestamp_ms: Some(at),
        }
    }

    fn whole(offset: i64, at: i64, reason: &str) -> ConsumerRecord {
        record(offset, at, &[("__connect.errors.exception.class.name", reason)])
    }

    fn piece(offset: i64, at: i64, letter: &str, numbers: &str) -> ConsumerRecord {
        let headers = [
            (dead_letter::LETTER, letter),
            (dead_letter::PIECE, numbers),
            (dead_letter::SIZE, "9"),
            (dead_letter::DIGEST, "x"),
        ];
        record(offset, at, &headers)
    }

    /// Offset, bytes, complete and replayed of each kept letter.
    fn kept(filter: LetterFilter, limit: usize, records: &[ConsumerRecord]) -> Vec<(i64, u64, bool, bool)> {
        let mut list = LetterList::new(filter, limit, LetterSigner::default());
        records.iter().for_each(|record| list.take(record));
        let summary =
            |entry: &LetterEntry| (entry.place.offset, entry.size, entry.is_complete(), entry.replayed);
        list.entries.values().map(summary).collect()
    }

    #[test]
    fn mixed_and_repeated_pieces_are_one_letter() {
        let records = [
            piece(0, 1, "a", "1/2"),
            piece(1, 2, "b", "1/2"),
            piece(2, 3, "a", "2/2"),
            piece(3, 4, "a", "1/2"),
            piece(4, 5, "a", "2/2"),
        ];

        assert_eq!(kept(LetterFilter::default(), 10, &records), [(0, 9, true, false), (1, 9, false, false)]);
    }

    #[test]
    fn pieces_of_dropped_letters_do_not_come_back() {
        let records = [
            piece(0, 1, "a", "1/2"),
            whole(1, 2, "x"),
            piece(2, 3, "a", "2/2"),
            record(3, 4, &[(dead_letter::REPLAYED, "0@1")]),
            record(4, 4, &[(dead_letter::REPLAYED, "0@0")]),
        ];

        assert_eq!(kept(LetterFilter::default(), 1, &records), [(1, 5, true, true)]);
    }

    #[test]
    fn filters_apply_before_the_limit() {
        let records =
            [whole(0, 1, "avro::Error"), whole(1, 2, "model::Error::Malformed"), whole(2, 3, "avro::Error")];
        let by = |reason: Option<&str>, since| LetterFilter { reason: reason.map(str::to_owned), since };

        assert_eq!(kept(by(Some("malformed"), None), 1, &records), [(1, 5, true, false)]);
        assert_eq!(kept(by(Some("avro"), None), 5, &records).len(), 2);
        assert_eq!(kept(by(None, Some(2)), 5, &records).len(), 2);
        let late = [piece(0, 1, "a", "1/2"), piece(1, 3, "a", "2/2")];
        assert_eq!(kept(by(None, Some(2)), 5, &late), [], "its second piece is no letter");
    }
}
