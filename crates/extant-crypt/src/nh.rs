//! NH, the fast one of the two hashes that Adiantum puts one behind the other.
//!
//! # Shape
//!
//! A message of up to 1 KiB is a sequence of units of four words of 32 bits. Each of the four passes adds the words of
//! the key to those of the unit, multiplies the first with the third and the second with the fourth, and sums the
//! products, of 64 bits, over all units. A pass begins one unit further on in the key than the one before, which is why
//! the key has three units more than a message.
//!
//! ```text
//! key      k0 k1 k2 k3 ... k63 k64 k65 k66       one unit each
//! pass 0   m0 m1 m2 m3 ... m63
//! pass 1      m0 m1 m2 ... m62 m63
//! ```
//!
//! # Source
//!
//! Crowley and Biggers, "Adiantum: length-preserving encryption for entry-level processors", 2018, section 2 and
//! appendix A; there is no crate for it.

use zeroize::{Zeroize, ZeroizeOnDrop};

/// Size of the longest message, in bytes.
pub(crate) const MESSAGE_BYTES_MAX: usize = 1024;
/// Size of a key, in bytes.
pub(crate) const KEY_BYTES: usize = MESSAGE_BYTES_MAX + (PASSES - 1) * UNIT;

const PASSES: usize = 4;
/// Size of a unit, in bytes.
const UNIT: usize = 16;
const MESSAGE_UNITS: usize = MESSAGE_BYTES_MAX / UNIT;
const KEY_UNITS: usize = KEY_BYTES / UNIT;

/// Two words, of each unit the first or the last ones: what is multiplied lies in two arrays side by side, so that the
/// compiler makes it several at a time.
type Pair = [u32; 2];

/// A key for NH.
#[derive(Zeroize, ZeroizeOnDrop)]
pub(crate) struct Nh {
    first: [Pair; KEY_UNITS],
    last: [Pair; KEY_UNITS],
}

impl Nh {
    pub(crate) fn new(key: &[u8; KEY_BYTES]) -> Nh {
        let mut nh = Nh { first: [[0; 2]; KEY_UNITS], last: [[0; 2]; KEY_UNITS] };
        split(key, &mut nh.first, &mut nh.last);
        nh
    }

    /// Returns the hash of a message of at most [`MESSAGE_BYTES_MAX`] bytes, which is padded with zeros to a whole unit.
    /// What is behind them does not count.
    pub(crate) fn hash(&self, message: &[u8]) -> [[u8; 16]; 2] {
        debug_assert!(message.len() <= MESSAGE_BYTES_MAX, "the caller cuts messages");
        let mut first = [[0; 2]; MESSAGE_UNITS];
        let mut last = [[0; 2]; MESSAGE_UNITS];
        let (whole, rest) = message.as_chunks::<UNIT>();
        let mut count = whole.len().min(MESSAGE_UNITS);
        split(message, &mut first, &mut last);
        if !rest.is_empty() && count < MESSAGE_UNITS {
            let mut unit = [0; UNIT];
            unit[..rest.len()].copy_from_slice(rest);
            split(&unit, &mut first[count..], &mut last[count..]);
            count += 1;
        }
        let mut sums = [0; PASSES];
        for (pass, sum) in sums.iter_mut().enumerate() {
            let keys = (&self.first[pass..pass + count], &self.last[pass..pass + count]);
            *sum = products(&first[..count], &last[..count], keys);
        }
        let pair = |at: usize| u128::from(sums[at]) | u128::from(sums[at + 1]) << 64;
        [pair(0).to_le_bytes(), pair(2).to_le_bytes()]
    }
}

/// Takes the words of whole units apart, as many as there are and have a place.
fn split(units: &[u8], first: &mut [Pair], last: &mut [Pair]) {
    let word = |bytes: &[u8; UNIT], at: usize| {
        u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    };
    for ((unit, first), last) in units.as_chunks::<UNIT>().0.iter().zip(first).zip(last) {
        *first = [word(unit, 0), word(unit, 4)];
        *last = [word(unit, 8), word(unit, 12)];
    }
}

/// The sum of one pass.
fn products(first: &[Pair], last: &[Pair], keys: (&[Pair], &[Pair])) -> u64 {
    let words = first.as_flattened().iter().zip(last.as_flattened());
    let keys = keys.0.as_flattened().iter().zip(keys.1.as_flattened());
    let mut sum = 0u64;
    for ((first, last), (first_key, last_key)) in words.zip(keys) {
        let first = u64::from(first.wrapping_add(*first_key));
        let last = u64::from(last.wrapping_add(*last_key));
        sum = sum.wrapping_add(first * last);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> [u8; KEY_BYTES] {
        std::array::from_fn(|at| (at * 197 + at / 256 * 31 + 7) as u8)
    }

    /// The sum of a pass as the paper writes it, word by word.
    fn pass(number: usize, message: &[u8]) -> u64 {
        let word = |bytes: &[u8], at: usize| {
            let byte = |n| u32::from(bytes.get(4 * at + n).copied().unwrap_or(0));
            byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24
        };
        let key = key();
        let sum = |at| u64::from(word(message, at).wrapping_add(word(&key, at + 4 * number)));
        (0..message.len().div_ceil(UNIT))
            .flat_map(|unit| [4 * unit, 4 * unit + 1])
            .fold(0, |all: u64, at| all.wrapping_add(sum(at).wrapping_mul(sum(at + 2))))
    }

    #[test]
    fn every_length_has_the_sums_of_the_definition() {
        let nh = Nh::new(&key());
        let message: Vec<u8> = (0..MESSAGE_BYTES_MAX).map(|at| (at * 89 + at / 7) as u8).collect();
        for len in 0..=MESSAGE_BYTES_MAX {
            let sums: Vec<u8> = (0..PASSES)
                .flat_map(|number| pass(number, &message[..len]).to_le_bytes())
                .collect();
            assert_eq!(nh.hash(&message[..len]).concat(), sums, "{len}");
        }
    }

    #[test]
    fn sums_go_round() {
        // Every product is the largest there is, so the sums pass 2^64 with the second one.
        let nh = Nh::new(&[0xff; KEY_BYTES]);
        let product = u64::from(u32::MAX).wrapping_mul(u64::from(u32::MAX));
        let sum = (0..2 * 64).fold(0, |all: u64, _| all.wrapping_add(product));
        assert_eq!(nh.hash(&[0; MESSAGE_BYTES_MAX]).concat(), [sum.to_le_bytes(); 4].concat());
    }
}
