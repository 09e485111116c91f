//! Adiantum: a wide-block cipher of a hash and a stream cipher, for processors without AES instructions.
//!
//! # Shape
//!
//! A message of at least 16 bytes is a left part and a last block `R`; the tweak has 32 bytes.
//!
//! ```text
//! encrypt   M = AES(R + hash(tweak, left))      left ^= XChaCha12(nonce M)     R = M - hash(tweak, left)
//! decrypt   M = R + hash(tweak, left)           left ^= XChaCha12(nonce M)     R = AES'(M) - hash(tweak, left)
//! hash      Poly1305(key T; length of the left part, tweak) + Poly1305(key M; NH of each 1 KiB of the left part)
//! ```
//!
//! Sums and differences are those of numbers of 128 bits, little-endian. Each byte of what comes out depends on each
//! byte of what goes in.
//!
//! # Keys
//!
//! The 32 bytes of a key are the key of the stream cipher; under the empty nonce its first 1136 bytes are, in this
//! order, the key of AES-256 (32), those of the two Poly1305 (16 each) and the one of NH (1072). A nonce of any length
//! up to 23 bytes is followed by a byte 1 and zeros, so that none is the beginning of another.
//!
//! # Source
//!
//! Crowley and Biggers, "Adiantum: length-preserving encryption for entry-level processors", 2018.

use aes::Aes256;
use aes::cipher::{
    Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit, KeyIvInit, StreamCipher,
};
use chacha20::XChaCha12;
use poly1305::Poly1305;
use poly1305::universal_hash::UniversalHash;
use zeroize::Zeroizing;

use crate::nh::{self, MESSAGE_BYTES_MAX, Nh};

/// Size of a tweak, in bytes.
pub(crate) const TWEAK_BYTES: usize = 32;

/// Size of a block of AES, in bytes.
const BLOCK: usize = 16;
/// Number of messages of NH whose hashes go to Poly1305 together.
const TOGETHER: usize = 8;

/// A key for Adiantum.
pub(crate) struct Adiantum {
    stream: Zeroizing<[u8; 32]>,
    block: Aes256,
    /// The hashes with their keys, that have seen nothing yet.
    tweak_hash: Poly1305,
    left_hash: Poly1305,
    nh: Nh,
}

impl Adiantum {
    pub(crate) fn new(key: &[u8; 32]) -> Adiantum {
        let mut keys = Zeroizing::new([0; 32 + 16 + 16 + nh::KEY_BYTES]);
        XChaCha12::new(key.into(), &nonce(&[])).apply_keystream(&mut *keys);
        let mut block = Zeroizing::new([0; 32]);
        block.copy_from_slice(&keys[..32]);
        let poly1305 = |from: usize| {
            // The second half is what is added to the hash at the end: nothing.
            let mut key = Zeroizing::new([0; 32]);
            key[..16].copy_from_slice(&keys[from..from + 16]);
            Poly1305::new((&*key).into())
        };
        let mut nh = Zeroizing::new([0; nh::KEY_BYTES]);
        nh.copy_from_slice(&keys[64..]);
        Adiantum {
            stream: Zeroizing::new(*key),
            block: Aes256::new((&*block).into()),
            tweak_hash: poly1305(32),
            left_hash: poly1305(48),
            nh: Nh::new(&nh),
        }
    }

    /// Encrypts a message of 16 bytes or more with its tweak.
    pub(crate) fn encrypt(&self, tweak: &[u8; TWEAK_BYTES], message: &mut [u8]) {
        self.apply(tweak, message, true);
    }

    /// Decrypts a message like [`encrypt`](Self::encrypt).
    pub(crate) fn decrypt(&self, tweak: &[u8; TWEAK_BYTES], message: &mut [u8]) {
        self.apply(tweak, message, false);
    }

    fn apply(&self, tweak: &[u8; TWEAK_BYTES], message: &mut [u8], encrypts: bool) {
        let Some((left, right)) = message.split_last_chunk_mut::<BLOCK>() else {
            debug_assert!(false, "the caller has checked the length");
            return;
        };
        let tweak = self.hash_tweak(tweak, left.len());
        let hash = tweak.wrapping_add(self.hash_left(left));
        let summed = u128::from_le_bytes(*right).wrapping_add(hash).to_le_bytes();
        let mut middle = Array(summed);
        match encrypts {
            true => self.block.encrypt_block(&mut middle),
            false => self.block.decrypt_block(&mut middle),
        }
        // The nonce is the block of the encrypted side, whichever way it goes.
        let of_nonce = if encrypts { middle.0 } else { summed };
        XChaCha12::new((&*self.stream).into(), &nonce(&of_nonce)).apply_keystream(left);
        let hash = tweak.wrapping_add(self.hash_left(left));
        *right = u128::from_le_bytes(middle.0).wrapping_sub(hash).to_le_bytes();
    }

    /// The part of the hash that both halves of the work have in common.
    fn hash_tweak(&self, tweak: &[u8; TWEAK_BYTES], left_bytes: usize) -> u128 {
        let bits = (left_bytes as u128 * 8).to_le_bytes();
        let mut blocks = [Array([0; BLOCK]); 3];
        blocks[0] = Array(bits);
        for (block, part) in blocks[1..].iter_mut().zip(tweak.as_chunks().0) {
            *block = Array(*part);
        }
        let mut hash = self.tweak_hash.clone();
        hash.update(&blocks);
        u128::from_le_bytes(hash.finalize().0)
    }

    fn hash_left(&self, left: &[u8]) -> u128 {
        let mut hash = self.left_hash.clone();
        let mut blocks = [Array([0; BLOCK]); 2 * TOGETHER];
        for messages in left.chunks(TOGETHER * MESSAGE_BYTES_MAX) {
            let mut count = 0;
            for message in messages.chunks(MESSAGE_BYTES_MAX) {
                for half in self.nh.hash(message) {
                    blocks[count] = Array(half);
                    count += 1;
                }
            }
            hash.update(&blocks[..count]);
        }
        u128::from_le_bytes(hash.finalize().0)
    }
}

/// A nonce of the stream cipher from at most 23 bytes.
fn nonce(bytes: &[u8]) -> chacha20::XNonce {
    let mut nonce = [0; 24];
    nonce[..bytes.len()].copy_from_slice(bytes);
    nonce[bytes.len()] = 1;
    Array(nonce)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors;

    #[test]
    fn published_vectors() {
        let vectors = vectors::read(include_str!("vectors/adiantum.txt"));
        let lens: Vec<usize> = vectors.iter().map(|vector| vector.plain.len()).collect();
        assert_eq!(lens, [16, 31, 128, 512, 1536, 4096]);
        for vector in vectors {
            let cipher = Adiantum::new(&vector.key);
            let mut message = vector.plain.clone();
            cipher.encrypt(&vector.tweak, &mut message);
            assert_eq!(message, vector.cipher, "{} bytes", message.len());
            cipher.decrypt(&vector.tweak, &mut message);
            assert_eq!(message, vector.plain, "{} bytes", message.len());
        }
    }

    #[test]
    fn what_goes_to_poly1305_together_is_of_no_account() {
        let cipher = Adiantum::new(&[5; 32]);
        let left: Vec<u8> = (0..65_520).map(|n| (n * 11 + n / 256) as u8).collect();
        for len in [0, 1, 1024, 8 * 1024, 8 * 1024 + 1, 16 * 1024, 20_000, 65_520] {
            let halves =
                left[..len].chunks(MESSAGE_BYTES_MAX).flat_map(|part| cipher.nh.hash(part));
            let hash =
                cipher.left_hash.clone().compute_unpadded(&halves.collect::<Vec<_>>().concat());
            assert_eq!(cipher.hash_left(&left[..len]), u128::from_le_bytes(hash.0), "{len}");
        }
    }

    #[test]
    fn every_length_comes_back_and_every_bit_counts() {
        let cipher = Adiantum::new(&std::array::from_fn(|n| n as u8));
        let plain: Vec<u8> = (0..20_000).map(|n| (n * 7 + n / 256) as u8).collect();
        let lens = (16..=2200).chain([4096, 8192 + 16, 9216, 16_384, 20_000]);
        for len in lens {
            let mut message = plain[..len].to_vec();
            cipher.encrypt(&[3; 32], &mut message);
            vectors::assert_scattered(&message, &plain[..len]);
            cipher.decrypt(&[3; 32], &mut message);
            assert_eq!(message, plain[..len], "{len}");
        }
        vectors::assert_wide(|tweak, message| cipher.encrypt(tweak, message));
    }
}
