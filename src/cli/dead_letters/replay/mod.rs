//! Another try: deliveries are read by the code of today and published like any other.
//!
//! Letters are replayed in offset order, partition by partition: original bytes and context ─▶ [`Delivery::read`]
//! ─▶ records with the ids they always had ─▶ [`Again`] ─▶ Kafka ─▶ a mark behind the letter.
//!
//! - The topic is read twice: first for the marks, which say what was replayed before, then for the letters. Of both no more
//!   is kept than a bit a letter, and the pieces of letters that are not complete yet.
//! - A letter is marked only once Kafka has all of its records. Whoever is stopped in between repeats some, with their ids.
//! - A letter is replayed only if a worker signed it, and for the prefix and connector that the command was given ([`trust`]). A
//!   mark has to be signed as well to keep a signed letter from being replayed.
//! - A letter that Kafka, the schema or the reader still refuses stays as it is and is reported; what keeps all from being published
//!   (no broker, no registry) ends the command.
//!
//! [`Delivery::read`]: crate::webhooks::delivery::Delivery::read

mod again;
mod marks;
mod trust;

use std::{
    collections::{BTreeSet, HashMap},
    io::Write,
    ops::ControlFlow,
    sync::Arc,
};

use bytes::Bytes;

use kafka::Received;

use self::{
    again::{Again, Became},
    marks::Marks,
};
use super::{
    Letters, Owner,
    entry::{Entry, Kind, Mark, Recent, Wanted},
    show::missing,
};
use crate::{
    cli::{Failure, Result, failure, outside, table::harmless},
    publish::LetterSignature,
    webhooks::dead_letter::{LetterJoin, LetterPiece, LetterPosition, UnusableLetter},
};

/// Bytes of letters in pieces that wait for the rest of theirs. Pieces of a letter stand together but for those of a few
/// workers in between, and no letter is larger than a quarter of this.
pub(super) const PIECES_LIMIT: usize = 128 << 20;
/// Letters in pieces that are remembered as done, in case the topic has them twice.
const REMEMBERED: usize = 65_536;

pub(super) struct Order {
    /// Of all letters, those that fit.
    pub(super) wanted: Wanted,
    /// These alone, where any are named.
    pub(super) places: BTreeSet<LetterPosition>,
    pub(super) dry_run: bool,
    /// Also what was replayed before.
    pub(super) again: bool,
    pub(super) owner: Owner,
    /// Also letters without a signature.
    pub(super) trust_unsigned: bool,
}

pub(super) async fn run(letters: &Letters, order: Order, out: &mut dyn Write) -> Result {
    let only = || (!order.places.is_empty()).then(|| order.places.clone());
    let (mut marks, mut unsigned_marks) = (Marks::of(only()), Marks::of(only()));
    let note = async |record: Received| {
        if let Some(mark) = Mark::of(&record, &letters.signer) {
            match mark.signature {
                LetterSignature::Signed => marks.insert(mark.place).map_err(failure)?,
                LetterSignature::Unsigned => {
                    let noted = unsigned_marks.insert(mark.place).map_err(failure);
                    // Without trust no unsigned letter is replayed, so that too many marks of strangers hold up nothing.
                    if order.trust_unsigned {
                        noted?;
                    }
                }
                LetterSignature::Forged | LetterSignature::UnknownKey { .. } => {}
            }
        }
        Ok(ControlFlow::Continue(()))
    };
    // Whoever repeats what was replayed before need not know it.
    if !order.again {
        letters.scan(note).await?;
    }
    let mut replay = Replay {
        named: !order.places.is_empty(),
        again: Again::new(letters, order.owner.clone(), order.dry_run),
        letters,
        order,
        marks,
        unsigned_marks,
        open: HashMap::new(),
        held: 0,
        done: Recent::new(REMEMBERED),
        replayed: 0,
        failed: 0,
        before: 0,
        out,
    };
    letters.scan(async |record| replay.take(record).await).await?;
    replay.end()
}

/// A letter of which pieces are missing yet.
struct Open {
    place: LetterPosition,
    first: Received,
    joining: LetterJoin,
}

struct Replay<'a> {
    letters: &'a Letters,
    order: Order,
    /// Whether letters are named one by one.
    named: bool,
    /// What was replayed before.
    marks: Marks,
    /// The same by marks without a signature, which count only for letters without one.
    unsigned_marks: Marks,
    open: HashMap<String, Open>,
    /// Bytes in `open`.
    held: usize,
    /// Letters in pieces that are settled.
    done: Recent,
    again: Again<'a>,
    replayed: u64,
    failed: u64,
    /// Replayed before.
    before: u64,
    out: &'a mut dyn Write,
}

impl Replay<'_> {
    async fn take(&mut self, record: Received) -> Result<ControlFlow<()>> {
        match Kind::of(&record, &self.letters.signer) {
            Kind::Mark(_) => {}
            Kind::Whole(entry) => {
                if self.chooses(&entry)? && self.trusts(&entry)? {
                    let body = record.value.clone().unwrap_or_default();
                    self.settle(entry.place, &record, Ok(body)).await?;
                }
            }
            Kind::Piece(piece, entry) => self.take_piece(piece, &entry, record).await?,
        }
        let over = self.named && self.order.places.is_empty() && self.open.is_empty();
        Ok(if over { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    }

    async fn take_piece(&mut self, piece: LetterPiece, entry: &Entry, record: Received) -> Result {
        let (letter, number) = (piece.letter.clone(), piece.number);
        if !self.open.contains_key(&letter) {
            if number != 1 {
                // A letter is where its first piece is.
                return if self.order.places.remove(&entry.place) {
                    let of = piece.of;
                    self.fail(
                        entry.place,
                        &format!("it is piece {number} of {of}; name the first, as `list` does"),
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
            let open = Open { place: entry.place, first: record.clone(), joining: LetterJoin::new(piece) };
            self.open.insert(letter.clone(), open);
        }
        let Some(open) = self.open.get_mut(&letter) else { return Ok(()) };
        self.held += open.joining.add(number, record.value.unwrap_or_default());
        if open.joining.missing().is_empty() {
            self.close(&letter).await?;
        }
        while self.held > PIECES_LIMIT
            && let Some(oldest) =
                self.open.iter().min_by_key(|(_, open)| open.place).map(|(letter, _)| letter.clone())
        {
            self.close(&oldest).await?;
        }
        Ok(())
    }

    /// Settles a letter with the pieces that are there.
    async fn close(&mut self, letter: &str) -> Result {
        let Some(Open { place, first, joining }) = self.open.remove(letter) else { return Ok(()) };
        self.held -= joining.held();
        self.done.insert(Arc::from(letter));
        self.settle(place, &first, joining.join()).await
    }

    fn chooses(&mut self, entry: &Entry) -> Result<bool> {
        let meant =
            if self.named { self.order.places.remove(&entry.place) } else { entry.fits(&self.order.wanted) };
        if !meant {
            return Ok(false);
        }
        let unsigned = entry.signature == LetterSignature::Unsigned;
        let marked =
            self.marks.contains(entry.place) || (unsigned && self.unsigned_marks.contains(entry.place));
        if self.order.again || !marked {
            return Ok(true);
        }
        self.before += 1;
        if let Some(pieces) = &entry.pieces {
            self.done.insert(Arc::clone(&pieces.letter));
        }
        if self.named {
            writeln!(self.out, "{}: replayed before; --again repeats it", entry.place)?;
        }
        Ok(false)
    }

    /// Whether a worker wrote the letter, or the command trusts it all the same; if not, it stays.
    fn trusts(&mut self, entry: &Entry) -> Result<bool> {
        match trust::distrust(&entry.signature, self.order.trust_unsigned) {
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
        first: &Received,
        body: Result<Bytes, UnusableLetter>,
    ) -> Result {
        let became = match body {
            Ok(body) => self.again.publish(place, first, body).await?,
            Err(unusable) => Became::Refused(unusable.to_string()),
        };
        match became {
            Became::Published(records) => {
                self.replayed += 1;
                let done = if self.order.dry_run { "would be published" } else { "published" };
                for record in &records {
                    writeln!(self.out, "{place}: {done}: {}", harmless(record))?;
                }
                if records.is_empty() {
                    writeln!(
                        self.out,
                        "{place}: nothing to publish: the provider asked for an answer, and got it"
                    )?;
                }
                Ok(())
            }
            Became::Refused(reason) => self.fail(place, &reason),
        }
    }

    fn fail(&mut self, place: LetterPosition, reason: &str) -> Result {
        self.failed += 1;
        writeln!(self.out, "{place}: stays: {}", harmless(reason)).map_err(outside)
    }

    fn end(mut self) -> Result {
        let mut open: Vec<Open> = self.open.drain().map(|(_, open)| open).collect();
        open.sort_by_key(|open| open.place);
        for Open { place, joining, .. } in open {
            if let Err(unusable) = joining.join() {
                self.fail(place, &unusable.to_string())?;
            }
        }
        for place in std::mem::take(&mut self.order.places) {
            self.fail(place, &missing(&self.letters.topic, place))?;
        }
        let Self { replayed, failed, before, .. } = self;
        let done = if self.order.dry_run { "would be replayed" } else { "replayed" };
        writeln!(self.out, "{replayed} {done}, {failed} stay, {before} were replayed before")?;
        if failed == 0 { Ok(()) } else { Err(Failure::Reported) }
    }
}
