//! Random numbers and GUIDs that follow from a seed, the same on every machine.

use std::fmt;

use uuid::Uuid;

/// The finalizer of SplitMix64: similar inputs give unrelated outputs.
pub const fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The stream of a seed and a purpose; two purposes never share numbers.
    pub const fn new(seed: u64, purpose: u64) -> Self {
        Self(mix(seed ^ mix(purpose)))
    }

    /// The next 64 bits.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A number below `limit`; 0 if the limit is 0.
    pub const fn below(&mut self, limit: u64) -> u64 {
        // The high half of the product: no division, and a negligible bias.
        ((self.next() as u128 * limit as u128) >> 64) as u64
    }

    /// A number from 0 up to but not including 1.
    #[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
    pub const fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// True with this probability.
    pub const fn chance(&mut self, share: f64) -> bool {
        self.unit() < share
    }

    /// A random GUID.
    pub const fn guid(&mut self) -> Guid {
        Guid((self.next() as u128) << 64 | self.next() as u128)
    }
}

/// 128 bits, displayed as a GUID.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Guid(pub u128);

impl Guid {
    /// GUID number `number` of a purpose under a seed.
    pub const fn nth(seed: u64, purpose: u64, number: u64) -> Self {
        Random::new(seed ^ mix(number), purpose).guid()
    }

    /// Parses one, with or without dashes.
    pub fn parse(text: &str) -> Option<Self> {
        // Longer texts have braces or are URNs.
        let uuid = Uuid::try_parse(text).ok().filter(|_| text.len() <= 36)?;
        Some(Self(uuid.as_u128()))
    }

    /// 32 lower-case characters without dashes.
    pub fn simple(self) -> String {
        format!("{:032x}", self.0)
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&Uuid::from_u128(self.0), f)
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl serde::Serialize for Guid {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guid_reads_back_from_both_ways_of_writing_it() {
        let guid = Random::new(1, 2).guid();

        assert_eq!(Guid::parse(&guid.to_string()), Some(guid));
        assert_eq!(Guid::parse(&guid.simple()), Some(guid));
        assert_eq!(guid.to_string().replace('-', ""), guid.simple());
    }

    #[test]
    fn text_that_is_not_a_guid_is_refused() {
        for text in
            ["", "0", "zz000000000000000000000000000000", "00000000-0000-0000-0000-0000000000000", "é"]
        {
            assert_eq!(Guid::parse(text), None, "{text}");
        }
        assert_eq!(Guid::parse("000000000000000000000000-0000-000000"), None);
        assert_eq!(Guid::parse("{00000000-0000-0000-0000-000000000000}"), None);
    }

    #[test]
    fn seed_and_purpose_determine_the_stream() {
        let take = |seed, purpose| {
            let mut random = Random::new(seed, purpose);
            [random.next(), random.below(10), random.next()]
        };

        assert_eq!(take(7, 1), take(7, 1));
        assert_ne!(take(7, 1), take(7, 2));
        assert_ne!(take(7, 1), take(8, 1));
    }
}
