//! What records say: names, concepts, numbers that follow from a seed.
//!
//! One name in sixteen is odd on purpose: quotes, backslashes, line breaks, other scripts, emoji.

use crate::random::{Random, mix};

/// One day in 100 ns.
pub(super) const DAY: i64 = 86_400 * crate::clock::SECOND;

/// Where the values of one field come from: numbers that stay for the life of a record, and numbers of one state of it.
/// Every field has its own, so that leaving some out changes none of the others.
#[derive(Debug, Clone, Copy)]
pub(super) struct Source {
    fixed: u64,
    current: u64,
}

impl Source {
    /// From what a record keeps all its life, and from what changes with each of its states.
    pub(super) const fn new(fixed: u64, current: u64) -> Self {
        Self { fixed, current }
    }

    /// Of the field, or element, at a position.
    pub(super) const fn at(self, position: usize) -> Self {
        let position = position as u64 + 1;
        Self { fixed: mix(self.fixed ^ position), current: mix(self.current ^ position) }
    }

    /// Numbers that stay.
    pub(super) const fn fixed(self) -> Random {
        Random::new(self.fixed, 1)
    }

    /// Numbers of this state.
    pub(super) const fn current(self) -> Random {
        Random::new(self.current, 2)
    }

    /// Whether the record is one of those (one in eight) without a tax number.
    pub(super) const fn without_vat(self) -> bool {
        self.fixed & 7 == 0
    }
}

/// The pieces of a business name. The number makes two states differ.
pub(super) fn trade(mut random: Random, piece: &mut dyn FnMut(&str)) {
    if random.below(16) == 0 {
        piece(pick(&mut random, &ODD));
    } else {
        piece(pick(&mut random, &TRADES));
        piece(" ");
        piece(pick(&mut random, &SURNAMES));
    }
    piece(" ");
    serial(&mut random, piece);
    piece(pick(&mut random, &FORMS));
}

/// The pieces of a person's name.
pub(super) fn person(mut random: Random, piece: &mut dyn FnMut(&str)) {
    if random.below(16) == 0 {
        piece(pick(&mut random, &ODD));
    } else {
        piece(pick(&mut random, &FIRST_NAMES));
    }
    for _ in 0..2 {
        piece(" ");
        piece(pick(&mut random, &SURNAMES));
    }
    piece(" ");
    serial(&mut random, piece);
}

/// The pieces of what something is for.
pub(super) fn concept(mut random: Random, piece: &mut dyn FnMut(&str)) {
    piece(if random.below(16) == 0 { pick(&mut random, &ODD) } else { pick(&mut random, &CONCEPTS) });
    piece(" ");
    serial(&mut random, piece);
}

/// A tax number: a letter and eight digits.
pub(super) fn vat_number(mut random: Random) -> [u8; 9] {
    const LETTERS: &[u8; 8] = b"ABCDEFGH";
    let mut text = [LETTERS[random.below(8) as usize]; 9];
    let mut value = random.below(100_000_000);
    for digit in text[1..].iter_mut().rev() {
        *digit = b'0' + (value % 10) as u8;
        value /= 10;
    }
    text
}

/// Nine digits: short, and yet two states of a record hardly ever share one.
fn serial(random: &mut Random, piece: &mut dyn FnMut(&str)) {
    let mut digits = [0_u8; 9];
    let mut value = random.below(1_000_000_000);
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (value % 10) as u8;
        value /= 10;
    }
    piece(str::from_utf8(&digits).unwrap_or_default());
}

/// One of some words.
pub(super) fn pick<'a>(random: &mut Random, words: &[&'a str]) -> &'a str {
    words[random.below(words.len() as u64) as usize]
}

const TRADES: [&str; 12] = [
    "Talleres",
    "Panadería",
    "Transportes",
    "Asesoría",
    "Bodegas",
    "Construcciones",
    "Farmacia",
    "Librería",
    "Electricidad",
    "Hermanos",
    "Suministros",
    "Café",
];

const SURNAMES: [&str; 12] = [
    "García",
    "Muñoz",
    "Ibáñez",
    "Peña",
    "Rodríguez",
    "Puig i Cadafalch",
    "O'Connor",
    "Etxeberria",
    "Núñez",
    "Vidal",
    "Soto",
    "López",
];

const FIRST_NAMES: [&str; 10] =
    ["Ana", "José", "María", "Íñigo", "Núria", "Xoán", "Begoña", "Joaquín", "Zoë", "Luis"];

const FORMS: [&str; 5] = [" S.L.", " S.A.", " S.L.U.", " & Cía.", ""];

const CONCEPTS: [&str; 12] = [
    "Clientes nacionales",
    "Material de oficina",
    "Alquiler",
    "Servicios profesionales",
    "Reparación y conservación",
    "Suministro eléctrico",
    "Hacienda Pública, IVA",
    "Amortización",
    "Préstamo a corto plazo",
    "Ventas de mercaderías",
    "Dietas",
    "Regularización",
];

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
