//! The newest letters of a topic, with their pieces counted and replays noted.
//!
//! As many letters are kept as are asked for, whatever the topic holds: a newer one takes the place of the oldest. Pieces
//! and marks change the letter they are of, if that is kept.

use std::{
    collections::{BTreeMap, HashMap},
    io::Write,
    ops::ControlFlow,
    sync::Arc,
};

use kafka::Received;

use super::{
    Letters,
    entry::{self, Entry, Kind, Recent, Wanted},
};
use crate::{
    cli::{Result, outside, table},
    publish::LetterSigner,
    webhooks::dead_letter::LetterPosition,
};

/// Letters in pieces that are not kept are remembered, so that their later pieces are not taken for letters; this many.
const FORGOTTEN: usize = 4096;

pub(super) async fn run(
    letters: &Letters,
    wanted: Wanted,
    limit: usize,
    json: bool,
    out: &mut dyn Write,
) -> Result {
    let mut catalogue = Catalogue::new(wanted, limit, letters.signer.clone());
    letters
        .scan(async |record| {
            catalogue.take(&record);
            Ok(ControlFlow::Continue(()))
        })
        .await?;
    catalogue.tell(json, out).map_err(outside)
}

/// By time, then place.
type Rank = (i64, LetterPosition);

/// The newest letters that are asked for.
pub(super) struct Catalogue {
    wanted: Wanted,
    limit: usize,
    signer: LetterSigner,
    entries: BTreeMap<Rank, Entry>,
    by_place: HashMap<LetterPosition, Rank>,
    by_letter: HashMap<Arc<str>, Rank>,
    forgotten: Recent,
    /// Letters that would have fitted, were there no limit.
    older: u64,
}

impl Catalogue {
    pub(super) fn new(wanted: Wanted, limit: usize, signer: LetterSigner) -> Self {
        Self {
            wanted,
            limit,
            signer,
            entries: BTreeMap::new(),
            by_place: HashMap::new(),
            by_letter: HashMap::new(),
            forgotten: Recent::new(FORGOTTEN),
            older: 0,
        }
    }

    /// Takes the next record of the topic; those of a partition come in their order.
    pub(super) fn take(&mut self, record: &Received) {
        match Kind::of(record, &self.signer) {
            Kind::Mark(mark) => {
                let rank = self.by_place.get(&mark.place);
                if let Some(entry) = rank.and_then(|rank| self.entries.get_mut(rank)) {
                    entry.replayed |= mark.counts_for(&entry.signature);
                }
            }
            Kind::Piece(piece, entry) => {
                let rank = self.by_letter.get(piece.letter.as_str());
                match rank.and_then(|rank| self.entries.get_mut(rank)).and_then(|known| known.pieces.as_mut())
                {
                    Some(pieces) => drop(pieces.seen.insert(piece.number)),
                    None if self.forgotten.contains(piece.letter.as_str()) => {}
                    None => self.add(entry),
                }
            }
            Kind::Whole(entry) => self.add(entry),
        }
    }

    fn add(&mut self, entry: Entry) {
        if !entry.fits(&self.wanted) {
            return self.forget(&entry);
        }
        let rank = (entry.written_at, entry.place);
        self.by_place.insert(entry.place, rank);
        if let Some(pieces) = &entry.pieces {
            self.by_letter.insert(Arc::clone(&pieces.letter), rank);
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

    fn forget(&mut self, entry: &Entry) {
        let Some(pieces) = &entry.pieces else { return };
        self.by_letter.remove(&pieces.letter);
        self.forgotten.insert(Arc::clone(&pieces.letter));
    }

    fn tell(&self, json: bool, out: &mut dyn Write) -> std::io::Result<()> {
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
                "\n{older} older ones are not shown; raise --limit, or narrow by --reason or --since"
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

    fn record(offset: i64, at: i64, headers: &[(&str, &str)]) -> Received {
        let headers =
            headers.iter().map(|(name, value)| ((*name).to_owned(), Bytes::from((*value).to_owned())));
        Received {
            topic: "t".into(),
            partition: 0,
            offset,
            key: None,
            value: Some(Bytes::from_static(b"12345")),
            headers: headers.collect(),
            timestamp_ms: Some(at),
        }
    }

    fn whole(offset: i64, at: i64, reason: &str) -> Received {
        record(offset, at, &[("__connect.errors.exception.class.name", reason)])
    }

    fn piece(offset: i64, at: i64, letter: &str, numbers: &str) -> Received {
        let headers = [
            (dead_letter::LETTER, letter),
            (dead_letter::PIECE, numbers),
            (dead_letter::SIZE, "9"),
            (dead_letter::DIGEST, "x"),
        ];
        record(offset, at, &headers)
    }

    /// Offset, bytes, complete, replayed of what is kept.
    fn kept(wanted: Wanted, limit: usize, records: &[Received]) -> Vec<(i64, u64, bool, bool)> {
        let mut catalogue = Catalogue::new(wanted, limit, LetterSigner::default());
        records.iter().for_each(|record| catalogue.take(record));
        let told = |entry: &Entry| (entry.place.offset, entry.size, entry.is_complete(), entry.replayed);
        catalogue.entries.values().map(told).collect()
    }

    #[test]
    fn pieces_are_one_letter_however_they_are_mixed_and_repeated() {
        let records = [
            piece(0, 1, "a", "1/2"),
            piece(1, 2, "b", "1/2"),
            piece(2, 3, "a", "2/2"),
            piece(3, 4, "a", "1/2"),
            piece(4, 5, "a", "2/2"),
        ];

        assert_eq!(kept(Wanted::default(), 10, &records), [(0, 9, true, false), (1, 9, false, false)]);
    }

    #[test]
    fn the_newest_are_kept_and_pieces_of_others_do_not_come_back() {
        let records = [
            piece(0, 1, "a", "1/2"),
            whole(1, 2, "x"),
            piece(2, 3, "a", "2/2"),
            record(3, 4, &[(dead_letter::REPLAYED, "0@1")]),
            record(4, 4, &[(dead_letter::REPLAYED, "0@0")]),
        ];

        assert_eq!(kept(Wanted::default(), 1, &records), [(1, 5, true, true)]);
    }

    #[test]
    fn reasons_and_times_are_sieved_before_anything_is_dropped_for_space() {
        let records =
            [whole(0, 1, "avro::Error"), whole(1, 2, "model::Error::Malformed"), whole(2, 3, "avro::Error")];
        let by = |reason: Option<&str>, since| Wanted { reason: reason.map(str::to_owned), since };

        assert_eq!(kept(by(Some("malformed"), None), 1, &records), [(1, 5, true, false)]);
        assert_eq!(kept(by(Some("avro"), None), 5, &records).len(), 2);
        assert_eq!(kept(by(None, Some(2)), 5, &records).len(), 2);
        let late = [piece(0, 1, "a", "1/2"), piece(1, 3, "a", "2/2")];
        assert_eq!(kept(by(None, Some(2)), 5, &late), [], "its second piece is no letter");
    }
}
