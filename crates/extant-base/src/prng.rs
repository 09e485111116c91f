//! A small seeded random source for tests, simulation and anything that must replay.

/// SplitMix64: one 64-bit word of state, every seed usable, the same numbers on every machine.
///
/// Not for secrets. Random UUIDs and hash seeds of real images come from the operating system
/// through `extant-sync`.
///
/// ```
/// use extant_base::Prng;
/// let mut a = Prng::new(7);
/// let mut b = Prng::new(7);
/// assert_eq!(a.next_u64(), b.next_u64());
/// assert!(a.below(10) < 10);
/// ```
#[derive(Clone, Debug)]
pub struct Prng {
    state: u64,
}

impl Prng {
    /// Starts the sequence of `seed`.
    pub fn new(seed: u64) -> Prng {
        Prng { state: seed }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..limit`; 0 when `limit` is 0. The bias is below 2^-32 for limits under 2^32.
    pub fn below(&mut self, limit: u64) -> u64 {
        if limit == 0 {
            return 0;
        }
        ((u128::from(self.next_u64()) * u128::from(limit)) >> 64) as u64
    }

    /// True once in `n` on average; never when `n` is 0.
    pub fn one_in(&mut self, n: u64) -> bool {
        n != 0 && self.below(n) == 0
    }

    /// Fills `out` with the sequence.
    pub fn fill(&mut self, out: &mut [u8]) {
        for chunk in out.chunks_mut(8) {
            let word = self.next_u64().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }
}
