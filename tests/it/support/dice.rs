//! Numbers for tests that draw: the same ones for the same seed.

/// `TRIBUTARY_TEST_SEED`, or 7.
pub(crate) fn seed() -> u64 {
    std::env::var("TRIBUTARY_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7)
}

/// SplitMix64.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut drawn = self.0;
        drawn = (drawn ^ (drawn >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        drawn = (drawn ^ (drawn >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (drawn ^ (drawn >> 31)) % bound
    }
}
