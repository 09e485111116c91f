//! AES-256-XTS over whole data units.
//!
//! The crate `xts-mode` encrypts one block after the other; here as many as the processor works on
//! at once go to the cipher together, which is what makes AES instructions fast.

use aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aes::{Aes256, Block};

/// Size of a block of the cipher, in bytes.
const BLOCK: usize = 16;
/// Number of blocks that go to the cipher together: those of the usual data unit. Each call prepares the keys for the
/// processor's widest instructions, which costs as much as some of the blocks.
const TOGETHER: usize = 256;

/// A key for XTS.
pub(crate) struct Xts {
    data: Aes256,
    tweak: Aes256,
}

impl Xts {
    pub(crate) fn new(key: &[u8; 64]) -> Xts {
        let half = |from: usize| {
            let mut half = zeroize::Zeroizing::new([0; 32]);
            half.copy_from_slice(&key[from..from + 32]);
            Aes256::new(&Array(*half))
        };
        Xts { data: half(0), tweak: half(32) }
    }

    /// Encrypts a data unit, whose length is a multiple of 16, with its vector.
    pub(crate) fn encrypt(&self, vector: [u8; BLOCK], unit: &mut [u8]) {
        self.each(vector, unit, |blocks| self.data.encrypt_blocks(blocks));
    }

    /// Decrypts a data unit like [`encrypt`](Self::encrypt).
    pub(crate) fn decrypt(&self, vector: [u8; BLOCK], unit: &mut [u8]) {
        self.each(vector, unit, |blocks| self.data.decrypt_blocks(blocks));
    }

    #[inline]
    fn each(&self, vector: [u8; BLOCK], unit: &mut [u8], work: impl Fn(&mut [Block])) {
        let mut first = Array(vector);
        self.tweak.encrypt_block(&mut first);
        let mut tweak = u128::from_le_bytes(first.0);
        let (blocks, rest) = unit.as_chunks_mut::<BLOCK>();
        debug_assert!(rest.is_empty(), "data units are multiples of 16 bytes");
        let mut tweaks = [0u128; TOGETHER];
        for blocks in blocks.chunks_mut(TOGETHER) {
            for (block, own) in blocks.iter_mut().zip(&mut tweaks) {
                *own = tweak;
                mask(block, tweak);
                tweak = (tweak << 1) ^ ((tweak >> 127) * 0x87);
            }
            work(Array::cast_slice_from_core_mut(blocks));
            for (block, own) in blocks.iter_mut().zip(&tweaks) {
                mask(block, *own);
            }
        }
    }
}

#[inline]
fn mask(block: &mut [u8; BLOCK], tweak: u128) {
    *block = (u128::from_le_bytes(*block) ^ tweak).to_le_bytes();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digit = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(digit).collect()
    }

    #[test]
    fn vector_10_of_ieee_1619() {
        let mut key = [0; 64];
        key[..32].copy_from_slice(&bytes(
            "2718281828459045235360287471352662497757247093699959574966967627",
        ));
        key[32..].copy_from_slice(&bytes(
            "3141592653589793238462643383279502884197169399375105820974944592",
        ));
        let mut vector = [0; 16];
        vector[0] = 0xff;
        let plain: Vec<u8> = (0..512).map(|n| n as u8).collect();
        let mut unit = plain.clone();
        let xts = Xts::new(&key);
        xts.encrypt(vector, &mut unit);
        let start = "1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b";
        assert_eq!(unit[..32], bytes(start));
        let end = "773dad38014bd2092fa755c824bb5e54c4f36ffda9fcea70b9c6e693e148c151";
        assert_eq!(unit[480..], bytes(end));
        xts.decrypt(vector, &mut unit);
        assert_eq!(unit, plain);
    }

    #[test]
    fn every_length_of_whole_blocks_comes_back() {
        let key: [u8; 64] = std::array::from_fn(|n| n as u8);
        let xts = Xts::new(&key);
        let plain: Vec<u8> = (0..4096).map(|n| (n * 7) as u8).collect();
        for len in (0..=4096).step_by(BLOCK) {
            let mut unit = plain[..len].to_vec();
            xts.encrypt([3; 16], &mut unit);
            assert!(len == 0 || unit != plain[..len]);
            xts.decrypt([3; 16], &mut unit);
            assert_eq!(unit, plain[..len], "{len}");
        }
    }
}
