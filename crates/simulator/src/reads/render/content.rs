//! Content of records: names, concepts and numbers from a seed.
//!
//! One name in sixteen is odd on purpose: quotes, backslashes, line breaks, other scripts, emoji.

use crate::random::{Random, mix};

/// One day in 100 ns.
pub(super) const DAY: i64 = 86_400 * crate::clock::SECOND;

/// Random numbers for one field: some fixed for the life of a record, some for each of its states. Every field has its own, so
/// that omitting one does not change others.
#[derive(Debug, Clone, Copy)]
pub(super) struct ValueSource {
    fixed: u64,
    current: u64,
}

impl ValueSource {
    /// From a seed for the life of a record and one for its state.
    pub(super) const fn new(fixed: u64, current: u64) -> Self {
        Self { fixed, current }
    }

    /// For the field, or element, at a position.
    pub(super) const fn at(self, position: usize) -> Self {
        let position = position as u64 + 1;
        Self { fixed: mix(self.fixed ^ position), current: mix(self.current ^ position) }
    }

    /// Fixed for the life of a record.
    pub(super) const fn fixed(self) -> Random {
        Random::new(self.fixed, 1)
    }

    /// Of the current state.
    pub(super) const fn current(self) -> Random {
        Random::new(self.current, 2)
    }

    /// Whether the record is one of those (one in eight) without a tax number.
    pub(super) const fn without_vat(self) -> bool {
        self.fixed & 7 == 0
    }
}

/// The name of a business, with a number that makes states differ.
pub(super) fn trade(mut random: Random) -> String {
    let name = if random.below(16) == 0 {
        pick(&mut random, &ODD).to_owned()
    } else {
        format!("{} {}", pick(&mut random, &TRADES), pick(&mut random, &SURNAMES))
    };
    format!("{name} {:09}{}", random.below(1_000_000_000), pick(&mut random, &FORMS))
}

/// A description with such a number.
pub(super) fn concept(mut random: Random) -> String {
    let concept = if random.below(16) == 0 { pick(&mut random, &ODD) } else { pick(&mut random, &CONCEPTS) };
    format!("{concept} {:09}", random.below(1_000_000_000))
}

/// A tax number: a letter and eight digits.
pub(super) fn vat_number(mut random: Random) -> String {
    let letter = pick(&mut random, &["A", "B", "C", "D", "E", "F", "G", "H"]);
    format!("{letter}{:08}", random.below(100_000_000))
}

fn pick<'a>(random: &mut Random, words: &[&'a str]) -> &'a str {
    words[random.below(words.len() as u64) as usize]
}

const TRADES: [&str; 6] = ["Talleres", "Panadería", "Transportes", "Asesoría", "Librería", "Café"];

const SURNAMES: [&str; 6] = ["García", "Muñoz", "Ibáñez", "Puig i Cadafalch", "O'Connor", "Núñez"];

const FORMS: [&str; 5] = [" S.L.", " S.A.", " S.L.U.", " & Cía.", ""];

const CONCEPTS: [&str; 5] =
    ["Clientes nacionales", "Alquiler", "Suministro eléctrico", "Hacienda Pública, IVA", "Dietas"];

const ODD: [&str; 10] = [
    "Bar \"La Espiga\"",
    "Datos\\Ficheros\\Copias",
    "línea 1\nlínea 2\tcon tabulador",
    "東京商事",
    "Кофейня «Уют»",
    "Flores 🌸🚀 👩‍👩‍👧",
    "مطعم السلام",
    "<b>Tom & Jerry's</b>",
    "e\u{301}te\u{301} \u{200b}\u{2028}",
    "{\"clientId\":null}",
];
