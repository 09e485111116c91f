//! Hashes of entries and blocks (for sharing blocks), of values in inodes, and the block checksum.

use super::area::CHECKSUM_AT;
use crate::checksum::{crc32c, crc32c_zeros};
use extant_base::FsBlock;

/// The hash of an entry with its value in the area, for `e_hash` in a block. In an inode, `e_hash`
/// is 0.
#[must_use]
pub fn entry_hash(name: &[u8], value: &[u8]) -> u32 {
    mix_value(mix_name(name, u32::from), value)
}

/// [`entry_hash`] with the bytes of the name taken as signed, which kernels before 6.2 on most
/// processors did. Differs only for names with bytes of 0x80 and more; never to be written.
#[must_use]
pub fn entry_hash_signed(name: &[u8], value: &[u8]) -> u32 {
    let widen = |byte: u8| i32::from(i8::from_ne_bytes([byte])).cast_unsigned();
    mix_value(mix_name(name, widen), value)
}

/// The hash of an entry with its value in an inode: the value's own hash stands for the value.
/// Stored both in inodes and in blocks.
#[must_use]
pub fn entry_hash_for_inode(name: &[u8], value_hash: u32) -> u32 {
    mix_word(mix_name(name, u32::from), value_hash)
}

/// [`entry_hash_for_inode`] with the bytes of the name taken as signed; see [`entry_hash_signed`].
#[must_use]
pub fn entry_hash_for_inode_signed(name: &[u8], value_hash: u32) -> u32 {
    let widen = |byte: u8| i32::from(i8::from_ne_bytes([byte])).cast_unsigned();
    mix_word(mix_name(name, widen), value_hash)
}

/// Returns whether `stored` is the hash of an entry in either form.
#[must_use]
pub fn entry_hash_matches(stored: u32, name: &[u8], value: &[u8]) -> bool {
    stored == entry_hash(name, value) || stored == entry_hash_signed(name, value)
}

/// `h_hash` of a block from the `e_hash` of its entries in order; 0, "do not share", when one of
/// them is 0.
#[must_use]
pub fn block_hash(entry_hashes: impl IntoIterator<Item = u32>) -> u32 {
    let mut hash = 0;
    for entry in entry_hashes {
        if entry == 0 {
            return 0;
        }
        hash = mix_word(hash, entry);
    }
    hash
}

/// The hash of a value in an inode of its own, for its `i_atime`: crc32c with the file system's
/// seed.
#[must_use]
pub fn value_hash(fs_seed: u32, value: &[u8]) -> u32 {
    crc32c(fs_seed, value)
}

/// `h_checksum` of the block `block` at `at`: its number as le64, then its bytes with the checksum
/// as zero. `fs_seed` is the file system's seed, because inodes share blocks.
#[must_use]
pub fn checksum(fs_seed: u32, at: FsBlock, block: &[u8]) -> u32 {
    let crc = crc32c(fs_seed, &at.0.to_le_bytes());
    let (head, rest) = block.split_at(block.len().min(CHECKSUM_AT));
    let crc = crc32c_zeros(crc32c(crc, head), rest.len().min(4));
    crc32c(crc, rest.get(4..).unwrap_or(&[]))
}

/// Stores the checksum of the block `block` at `at`. A block too short for one is left as it is.
pub fn seal(fs_seed: u32, at: FsBlock, block: &mut [u8]) {
    let sum = checksum(fs_seed, at, block);
    if let Some(field) = block.get_mut(CHECKSUM_AT..).and_then(|rest| rest.first_chunk_mut::<4>()) {
        *field = sum.to_le_bytes();
    }
}

fn mix_name(name: &[u8], widen: impl Fn(u8) -> u32) -> u32 {
    name.iter().fold(0u32, |hash, byte| hash.rotate_left(5) ^ widen(*byte))
}

/// Words of the value, the last one filled up with zeros.
fn mix_value(hash: u32, value: &[u8]) -> u32 {
    let (words, rest) = value.as_chunks::<4>();
    let hash = words.iter().fold(hash, |hash, word| mix_word(hash, u32::from_le_bytes(*word)));
    if rest.is_empty() {
        return hash;
    }
    let mut last = [0; 4];
    for (to, from) in last.iter_mut().zip(rest) {
        *to = *from;
    }
    mix_word(hash, u32::from_le_bytes(last))
}

fn mix_word(hash: u32, word: u32) -> u32 {
    hash.rotate_left(16) ^ word
}
