//! HCTR2 with AES-256: a wide-block cipher of a hash and a counter mode, for names.
//!
//! # Shape
//!
//! A message of at least 16 bytes is a first block `M` and the rest; the tweak has 32 bytes.
//!
//! ```text
//! encrypt   A = M ^ hash(tweak, rest)    B = AES(A)      rest ^= XCTR(A ^ B ^ L)    M = B ^ hash(tweak, rest)
//! decrypt   B = M ^ hash(tweak, rest)    A = AES'(B)     rest ^= XCTR(A ^ B ^ L)    M = A ^ hash(tweak, rest)
//! XCTR(S)   AES(S ^ 1), AES(S ^ 2), AES(S ^ 3), ...                   numbers of 128 bits, little-endian
//! hash      POLYVAL(twice the bits of the tweak, + 2 or 3; tweak; rest)
//! ```
//!
//! The key of POLYVAL is AES(0), and `L` is AES(1). A rest that is not whole blocks is followed by a byte 1 and zeros,
//! and the 3 says so.
//!
//! # Source
//!
//! Crowley, Huckleberry and Biggers, "Length-preserving encryption with HCTR2", 2021.

use aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aes::{Aes256, Block};
use polyval::Polyval;
use polyval::universal_hash::UniversalHash;
use zeroize::Zeroizing;

/// Size of a tweak, in bytes.
pub(crate) const TWEAK_BYTES: usize = 32;

/// Size of a block of AES, in bytes.
const BLOCK: usize = 16;
/// Number of blocks that go to the cipher together.
const TOGETHER: usize = 16;

/// A key for HCTR2.
pub(crate) struct Hctr2 {
    block: Aes256,
    /// The hash with its key, that has seen nothing yet.
    hash: Polyval,
    whitening: Zeroizing<[u8; BLOCK]>,
}

impl Hctr2 {
    pub(crate) fn new(key: &[u8; 32]) -> Hctr2 {
        let block = Aes256::new(key.into());
        let derived = |number: u128| {
            let mut bytes = Zeroizing::new(number.to_le_bytes());
            block.encrypt_block((&mut *bytes).into());
            bytes
        };
        let hash = Polyval::new((&*derived(0)).into());
        Hctr2 { hash, whitening: derived(1), block }
    }

    /// Encrypts a message of 16 bytes or more with its tweak.
    pub(crate) fn encrypt(&self, tweak: &[u8; TWEAK_BYTES], message: &mut [u8]) {
        self.apply(tweak, message, |block| self.block.encrypt_block(block));
    }

    /// Decrypts a message like [`encrypt`](Self::encrypt).
    pub(crate) fn decrypt(&self, tweak: &[u8; TWEAK_BYTES], message: &mut [u8]) {
        self.apply(tweak, message, |block| self.block.decrypt_block(block));
    }

    fn apply(&self, tweak: &[u8; TWEAK_BYTES], message: &mut [u8], work: impl Fn(&mut Block)) {
        let Some((first, rest)) = message.split_first_chunk_mut::<BLOCK>() else {
            debug_assert!(false, "the caller has checked the length");
            return;
        };
        let before = u128::from_le_bytes(*first) ^ self.hash(tweak, rest);
        let mut after = Array(before.to_le_bytes());
        work(&mut after);
        let after = u128::from_le_bytes(after.0);
        self.xctr(before ^ after ^ u128::from_le_bytes(*self.whitening), rest);
        *first = (after ^ self.hash(tweak, rest)).to_le_bytes();
    }

    fn xctr(&self, start: u128, bytes: &mut [u8]) {
        let mut counter = 0u128;
        for bytes in bytes.chunks_mut(TOGETHER * BLOCK) {
            let mut stream = [Array([0; BLOCK]); TOGETHER];
            let stream = &mut stream[..bytes.len().div_ceil(BLOCK)];
            for block in &mut *stream {
                counter += 1;
                *block = Array((start ^ counter).to_le_bytes());
            }
            self.block.encrypt_blocks(stream);
            for (byte, own) in bytes.iter_mut().zip(stream.iter().flatten()) {
                *byte ^= own;
            }
        }
    }

    fn hash(&self, tweak: &[u8; TWEAK_BYTES], rest: &[u8]) -> u128 {
        let (blocks, part) = Block::slice_as_chunks(rest);
        let kind = if part.is_empty() { 2 } else { 3 };
        let (low, high) = (&tweak[..BLOCK], &tweak[BLOCK..]);
        let mut start = [Array([0; BLOCK]); 3];
        start[0] = Array((TWEAK_BYTES as u128 * 8 * 2 + kind).to_le_bytes());
        start[1].copy_from_slice(low);
        start[2].copy_from_slice(high);
        let mut hash = self.hash.clone();
        hash.update(&start);
        hash.update(blocks);
        if !part.is_empty() {
            let mut last = Array([0; BLOCK]);
            last[..part.len()].copy_from_slice(part);
            last[part.len()] = 1;
            hash.update(&[last]);
        }
        u128::from_le_bytes(hash.finalize().0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors;

    #[test]
    fn published_vectors() {
        let vectors = vectors::read(include_str!("vectors/hctr2.txt"));
        let lens: Vec<usize> = vectors.iter().map(|vector| vector.plain.len()).collect();
        assert_eq!(lens, [16, 17, 31, 48, 128, 255, 512]);
        for vector in vectors {
            let cipher = Hctr2::new(&vector.key);
            let mut message = vector.plain.clone();
            cipher.encrypt(&vector.tweak, &mut message);
            assert_eq!(message, vector.cipher, "{} bytes", message.len());
            cipher.decrypt(&vector.tweak, &mut message);
            assert_eq!(message, vector.plain, "{} bytes", message.len());
        }
    }

    #[test]
    fn every_length_comes_back_and_every_bit_counts() {
        let cipher = Hctr2::new(&std::array::from_fn(|n| n as u8));
        let plain: Vec<u8> = (0..4096).map(|n| (n * 7 + n / 256) as u8).collect();
        for len in (16..=1100).chain([4093, 4096]) {
            let mut message = plain[..len].to_vec();
            cipher.encrypt(&[3; 32], &mut message);
            vectors::assert_scattered(&message, &plain[..len]);
            cipher.decrypt(&[3; 32], &mut message);
            assert_eq!(message, plain[..len], "{len}");
        }
        vectors::assert_wide(|tweak, message| cipher.encrypt(tweak, message));
    }
}
