//! Replay: reads the deliveries of letters with the current code and publishes their records.
//!
//! Letters are replayed in offset order, partition by partition: original bytes and context ─▶ [`Delivery::read`]
//! ─▶ records with the ids they always had ─▶ [`Republisher`] ─▶ Kafka ─▶ a mark behind the letter.
//!
//! - The topic is read twice: first for the marks of earlier replays, then for the letters. Memory holds only one bit per mark and the
//!   pieces of incomplete letters.
//! - A letter is marked only after Kafka has acknowledged all of its records. A replay that is interrupted before that publishes some
//!   records again, with the same ids.
//! - A letter is replayed only if a worker signed it, and only for the given prefix and connector ([`trust`]). A mark has to be signed
//!   as well to prevent the replay of a signed letter.
//! - A letter that Kafka, the schema or the reader still refuses stays and is reported. A failure that affects all letters (no broker,
//!   no registry) ends the command.
//!
//! [`Delivery::read`]: crate::webhooks::delivery::Delivery::read

mod marks;
mod republish;
mod trust;

use std::{
    collections::{BTreeSet, HashMap},
    io::Write,
    ops::ControlFlow,
    sync::Arc,
};

use bytes::Bytes;

use kafka::ConsumerRecord;

use self::{
    marks::Marks,
    republish::{ReplayOutcome, Republisher},
};
use super::{
    DeadLetterTopic, ReplayScope,
    entry::{DeadLetterRecord, LetterEntry, LetterFilter, RecentLetters, ReplayMark},
    show::missing,
};
use crate::{
    cli::{CommandError, Result, failure, outside, table::harmless},
    publish::LetterSignature,
    webhooks::dead_letter::{LetterJoin, LetterPiece, LetterPosition, UnusableLetter},
};

/// Bytes of incomplete letters in memory. The pieces of a letter are adjacent except for those of a few other workers, and no letter
/// is larger than a quarter of this.
pub(super) const MAX_PIECE_BYTES: usize = 128 << 20;
/// Finished letters in pieces that are remembered, in case the topic contains them twice.
const MAX_REMEMBERED: usize = 65_536;

pub(super) struct ReplayRequest {
    /// Selects among all letters.
    pub(super) filter: LetterFilter,
    /// If not empty, only these letters.
    pub(super) places: BTreeSet<LetterPosition>,
    pub(super) dry_run: bool,
    /// Also letters that were replayed before.
    pub(super) again: bool,
    pub(super) owner: ReplayScope,
    /// Also letters without a signature.
    pub(super) trust_unsigned: bool,
}

pub(super) async fn run(letters: &DeadLetterTopic, request: ReplayRequest, out: &mut dyn Write) -> Result {
    let only = || (!request.places.is_empty()).then(|| request.places.clone());
    let mut marks = EarlierReplays { signed: Marks::of(only()), unsigned: Marks::of(only()) };
    let note = async |record: ConsumerRecord| {
        if let Some(mark) = ReplayMark::of(&record, &letters.signer) {
            match mark.signature {
                LetterSignature::Signed => marks.signed.insert(mark.place).map_err(failure)?,
                LetterSignature::Unsigned => {
                    let noted = marks.unsigned.insert(mark.place).map_err(failure);
                    // Without trust no unsigned letter is replayed, so too many unsigned marks are no error.
                    if request.trust_unsigned {
                        noted?;
                    }
                }
                LetterSignature::Forged | LetterSignature::UnknownKey { .. } => {}
            }
        }
        Ok(ControlFlow::Continue(()))
    };
    // `--again` ignores marks.
    if !request.again {
        letters.scan(note).await?;
    }
    let mut replay = Replay {
        named: !request.places.is_empty(),
        again: Republisher::new(letters, request.owner.clone(), request.dry_run),
        letters,
        request,
        marks,
        partial: HashMap::new(),
        held: 0,
        done: RecentLetters::new(MAX_REMEMBERED),
        counts: ReplayCounts::default(),
        out,
    };
    letters.scan(async |record| replay.take(record).await).await?;
    replay.end()
}

/// An incomplete letter.
struct PartialLetter {
    place: LetterPosition,
    first: ConsumerRecord,
    joining: LetterJoin,
}

/// Letters that were replayed before.
struct EarlierReplays {
    signed: Marks,
    /// By unsigned marks, which count only for unsigned letters.
    unsigned: Marks,
}

impl EarlierReplays {
    fn contain(&self, entry: &LetterEntry) -> bool {
        let is_unsigned = entry.signature == LetterSignature::Unsigned;
        self.signed.contains(entry.place) || (is_unsigned && self.unsigned.contains(entry.place))
    }
}

#[derive(Default)]
struct ReplayCounts {
    replayed: u64,
    failed: u64,
    /// Replayed before.
    before: u64,
}

struct Replay<'a> {
    letters: &'a DeadLetterTopic,
    request: ReplayRequest,
    /// Whether the command names single letters.
    named: bool,
    marks: EarlierReplays,
    partial: HashMap<String, PartialLetter>,
    /// Bytes in `partial`.
    held: usize,
    /// Finished letters in pieces.
    done: RecentLetters,
    again: Republisher<'a>,
    counts: ReplayCounts,
    out: &'a mut dyn Write,
}

impl Replay<'_> {
    async fn take(&mut self, record: ConsumerRecord) -> Result<ControlFlow<()>> {
        match DeadLetterRecord::of(&record, &self.letters.signer) {
            DeadLetterRecord::Mark(_) => {}
            DeadLetterRecord::Whole(entry) => {
                if self.chooses(&entry)? && self.trusts(&entry)? {
                    let body = record.value.clone().unwrap_or_default();
                    self.settle(entry.place, &record, Ok(body)).await?;
                }
            }
            DeadLetterRecord::Piece(piece, entry) => self.take_piece(piece, &entry, record).await?,
        }
        let over = self.named && self.request.places.is_empty() && self.partial.is_empty();
        Ok(if over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    async fn take_piece(
        &mut self,
        piece: LetterPiece,
        entry: &LetterEntry,
        record: ConsumerRecord,
    ) -> Result {
        let (letter, number) = (piece.letter.clone(), piece.number);
        if !self.partial.contains_key(&letter) {
            if number != 1 {
                // The place of a letter is that of its first piece.
                return if self.request.places.remove(&entry.place) {
                    let of = piece.of;
                    self.fail(
                        entry.place,
                        &format!("it is piece {number} of {of}; name the first piece, as `list` does"),
                    )
                } else {
                    Ok(())
                };
            }
            if self.done.contains(&letter) || !self.chooses(entry)? {
                return Ok(());
            }
            if !self.trusts(entry)? {
                self.done.insert(letter.into());
                return Ok(());
            }
            let partial =
                PartialLetter { place: entry.place, first: record.clone(), joining: LetterJoin::new(piece) };
            self.partial.insert(letter.clone(), partial);
        }
        let Some(partial) = self.partial.get_mut(&letter) else { return Ok(()) };
        self.held += partial.joining.add(number, record.value.unwrap_or_default());
        if partial.joining.missing().is_empty() {
            self.close(&letter).await?;
        }
        while self.held > MAX_PIECE_BYTES
            && let Some(oldest) =
                self.partial.iter().min_by_key(|(_, partial)| partial.place).map(|(letter, _)| letter.clone())
        {
            self.close(&oldest).await?;
        }
        Ok(())
    }

    /// Finishes a letter with the pieces found.
    async fn close(&mut self, letter: &str) -> Result {
        let Some(PartialLetter { place, first, joining }) = self.partial.remove(letter) else {
            return Ok(());
        };
        self.held -= joining.held();
        self.done.insert(Arc::from(letter));
        self.settle(place, &first, joining.join()).await
    }

    fn chooses(&mut self, entry: &LetterEntry) -> Result<bool> {
        let meant = if self.named {
            self.request.places.remove(&entry.place)
        } else {
            entry.fits(&self.request.filter)
        };
        if !meant {
            return Ok(false);
        }
        if self.request.again || !self.marks.contain(entry) {
            return Ok(true);
        }
        self.counts.before += 1;
        if let Some(pieces) = &entry.pieces {
            self.done.insert(Arc::clone(&pieces.letter));
        }
        if self.named {
            writeln!(self.out, "{}: replayed before; --again repeats it", entry.place)?;
        }
        Ok(false)
    }

    /// Whether the letter is trusted; if not, reports it as failed.
    fn trusts(&mut self, entry: &LetterEntry) -> Result<bool> {
        match trust::distrust(&entry.signature, self.request.trust_unsigned) {
            None => Ok(true),
            Some(reason) => {
                let reason = trust::named(&self.letters.topic, entry.place, &reason);
                self.fail(entry.place, &reason).map(|()| false)
            }
        }
    }

    async fn settle(
        &mut self,
        place: LetterPosition,
        first: &ConsumerRecord,
        body: Result<Bytes, UnusableLetter>,
    ) -> Result {
        let became = match body {
            Ok(body) => self.again.publish(place, first, body).await?,
            Err(unusable) => ReplayOutcome::Refused(unusable.to_string()),
        };
        match became {
            ReplayOutcome::Published(records) => {
                self.counts.replayed += 1;
                let done = if self.request.dry_run { "would be published" } else { "published" };
                for record in &records {
                    writeln!(self.out, "{place}: {done}: {}", harmless(record))?;
                }
                if records.is_empty() {
                    writeln!(
                        self.out,
                        "{place}: nothing to publish: the delivery was an acknowledgement request"
                    )?;
                }
                Ok(())
            }
            ReplayOutcome::Refused(reason) => self.fail(place, &reason),
        }
    }

    fn fail(&mut self, place: LetterPosition, reason: &str) -> Result {
        self.counts.failed += 1;
        writeln!(self.out, "{place}: stays: {}", harmless(reason)).map_err(outside)
    }

    fn end(mut self) -> Result {
        let mut partial: Vec<PartialLetter> = self.partial.drain().map(|(_, partial)| partial).collect();
        partial.sort_by_key(|partial| partial.place);
        for PartialLetter { place, joining, .. } in partial {
            if let Err(unusable) = joining.join() {
                self.fail(place, &unusable.to_string())?;
            }
        }
        for place in std::mem::take(&mut self.request.places) {
            self.fail(place, &missing(&self.letters.topic, place))?;
        }
        let ReplayCounts { replayed, failed, before } = self.counts;
        let done = if self.request.dry_run { "would be replayed" } else { "replayed" };
        writeln!(self.out, "{replayed} {done}, {failed} stay, {before} were replayed before")?;
        if failed == 0 { Ok(()) } else { Err(CommandError::Reported) }
    }
}
