//! Numbers that follow from a seed and a call: the same on every rank.

/// A stream of them (SplitMix64).
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    /// Those of one call.
    pub(super) fn of(seed: u64, call: u64) -> Random {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ call);
        random.next();
        random
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// One below `end`, which is not 0.
    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// A length: as often some elements as some thousands.
    pub(super) fn length(&mut self) -> usize {
        let bits = self.below(15);
        self.below(1 << bits) + self.below(3)
    }
}

/// What a rank of the world has at a place of its input to a call: small, so that sums are exact in
/// every type.
pub(super) fn value(call: u64, rank: usize, at: usize) -> u8 {
    let mut random = Random((call << 20) ^ ((rank as u64) << 44) ^ at as u64);
    (random.next() % 7) as u8
}
