//! The checksums of all inodes of a block by one walk over it.
//!
//! crc32c is linear: that of a whole block follows from those of its inodes, by moving each on over the bytes behind it.
//! One long walk takes a fifth of the time of many short ones. Where the two do not agree, an inode is wrong,
//! and each is to be looked at alone.

use core::mem::offset_of;

use extant_base::Ino;

use super::{BASE_BYTES, CHECKSUM_HI, CHECKSUM_LO, InodeLayout, RawInode, has_checksum_hi};
use crate::checksum::{crc32c, crc32c_zeros, inode_seed};
use crate::le::{u16_at, u32_at};

/// Checksums that are held at once: those of a block of 4 KiB with inodes of 128 bytes.
const HELD: usize = 32;

/// Verifies the checksums of inodes that lie side by side.
///
/// ```
/// use extant_base::Ino;
/// use extant_format::inode::{InodeLayout, InodesVerifier};
/// # let layout = InodeLayout {
/// #     inode_size: 256, block_size: extant_base::BlockSize::new(4096).unwrap(), large_dir: false,
/// #     huge_file: true, wide: true, checksum_seed: Some(7),
/// # };
/// let verifier = InodesVerifier::new(&layout).unwrap();
/// assert!(verifier.are_sound(Ino(17), &mut [0; 4096]), "records that were never used");
/// assert!(!verifier.are_sound(Ino(17), &mut [1; 4096]));
/// ```
#[derive(Clone, Debug)]
pub struct InodesVerifier {
    layout: InodeLayout,
    seed: u32,
    /// A checksum's value behind the zero bytes of one inode, by each of its bytes.
    moved: [[u32; 256]; 4],
}

impl InodesVerifier {
    /// For inodes of 256 bytes and more with checksums; `None` for others. Takes 4 KiB and a few short checksums.
    #[must_use]
    pub fn new(layout: &InodeLayout) -> Option<InodesVerifier> {
        let seed = layout.checksum_seed?;
        let size = usize::from(layout.inode_size);
        if size < 256 {
            return None;
        }
        let mut moved = [[0; 256]; 4];
        for (table, shift) in moved.iter_mut().zip([0, 8, 16, 24]) {
            // That of a value is the sum of those of its bits.
            let mut bits = [0; 8];
            for (bit, slot) in (0u32..).zip(&mut bits) {
                *slot = crc32c_zeros(1u32.checked_shl(bit.checked_add(shift)?)?, size);
            }
            for (value, slot) in (0u32..).zip(table) {
                let set = bits.iter().enumerate().filter(|(bit, _)| value >> bit & 1 == 1);
                *slot = set.fold(0, |sum, (_, of)| sum ^ of);
            }
        }
        Some(InodesVerifier { layout: *layout, seed, moved })
    }

    /// Moves a checksum on over as many zero bytes as an inode has.
    fn move_on(&self, crc: u32) -> u32 {
        let bytes = crc.to_le_bytes();
        let of = |(table, byte): (&[u32; 256], u8)| table.get(usize::from(byte)).copied();
        self.moved.iter().zip(bytes).filter_map(of).fold(0, |sum, part| sum ^ part)
    }

    /// Returns whether every inode of `records`, of which the first is `first`, has the right checksum or is all
    /// zero. `false` also where it is not known: with more than 32 inodes, or one whose checksum has 16 bits.
    ///
    /// `records` are changed meanwhile, and are in the end what they were.
    #[must_use]
    pub fn are_sound(&self, first: Ino, records: &mut [u8]) -> bool {
        let size = usize::from(self.layout.inode_size);
        let mut stored = [[0u16; 2]; HELD];
        if records.len().checked_rem(size) != Some(0) || records.len() > HELD.saturating_mul(size) {
            return false;
        }
        let mut wanted = 0;
        let mut is_known = true;
        for ((number, record), stored) in
            (first.0..).zip(records.chunks_exact_mut(size)).zip(&mut stored)
        {
            let extra = u16_at(record, BASE_BYTES).unwrap_or(0);
            let low = u16_at(record, CHECKSUM_LO).unwrap_or(0);
            let high = u16_at(record, CHECKSUM_HI).unwrap_or(0);
            let is_unused = extra == 0 && record.iter().all(|byte| *byte == 0);
            let mut before = wanted;
            if !is_unused {
                is_known &= has_checksum_hi(&self.layout, extra);
                let at = offset_of!(RawInode, i_generation);
                let generation = u32_at(record, at).unwrap_or(0);
                before ^= inode_seed(self.seed, Ino(number), generation);
            }
            wanted = self.move_on(before) ^ (u32::from(low) | (u32::from(high) << 16));
            *stored = [low, high];
            put_checksum(record, [0; 2]);
        }
        let found = crc32c(0, records);
        for (record, stored) in records.chunks_exact_mut(size).zip(stored) {
            put_checksum(record, stored);
        }
        is_known && found == wanted
    }
}

/// Writes both halves of a checksum.
fn put_checksum(record: &mut [u8], [low, high]: [u16; 2]) {
    for (at, half) in [(CHECKSUM_LO, low), (CHECKSUM_HI, high)] {
        let field = record.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<2>());
        if let Some(field) = field {
            *field = half.to_le_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inode::Inode;
    use extant_base::{BlockSize, Prng};

    fn layout(inode_size: u16) -> InodeLayout {
        InodeLayout {
            inode_size,
            block_size: BlockSize::new(4096).unwrap(),
            large_dir: false,
            huge_file: true,
            wide: true,
            checksum_seed: Some(0x1234_5678),
        }
    }

    /// Random inodes of 4 KiB, one in four of them never used.
    fn block(layout: &InodeLayout, random: &mut Prng) -> [u8; 4096] {
        let mut block = [0; 4096];
        for (ino, record) in (1..).zip(block.chunks_exact_mut(usize::from(layout.inode_size))) {
            if random.one_in(4) {
                continue;
            }
            random.fill(record);
            record[..2].copy_from_slice(&0o100_644u16.to_le_bytes());
            record[0x6c..0x70].fill(0);
            record[BASE_BYTES..BASE_BYTES + 2].copy_from_slice(&32u16.to_le_bytes());
            let inode = Inode::decode(layout, record).unwrap();
            inode.encode(layout, Ino(ino), record).unwrap();
        }
        block
    }

    #[test]
    fn a_block_is_sound_exactly_when_each_inode_is() {
        let mut random = Prng::new(3);
        for size in [256, 512, 1024] {
            let layout = layout(size);
            let verifier = InodesVerifier::new(&layout).unwrap();
            for _ in 0..200 {
                let mut block = block(&layout, &mut random);
                let before = block;
                assert!(verifier.are_sound(Ino(1), &mut block));
                let is_used = block != [0; 4096];
                assert_eq!(verifier.are_sound(Ino(2), &mut block), !is_used, "numbers are covered");
                // The same bit of one or two inodes: what is wrong with one does not hide the other.
                let bit = random.below(u64::from(size) * 8) as usize;
                for _ in 0..=random.below(2) {
                    let at = random.below(4096 / u64::from(size)) as usize * usize::from(size);
                    block[at + bit / 8] ^= 1 << (bit % 8);
                }
                let damaged = block;
                if damaged != before {
                    assert!(!verifier.are_sound(Ino(1), &mut block), "bit {bit} of {size}");
                }
                assert_eq!(block, damaged, "is left as it was");
            }
        }
    }

    #[test]
    fn what_it_cannot_know_is_not_sound() {
        assert!(InodesVerifier::new(&layout(128)).is_none());
        assert!(InodesVerifier::new(&InodeLayout { checksum_seed: None, ..layout(256) }).is_none());
        let verifier = InodesVerifier::new(&layout(256)).unwrap();
        assert!(!verifier.are_sound(Ino(1), &mut [0; 33 * 256]));
        assert!(verifier.are_sound(Ino(1), &mut [0; 32 * 256]));
        assert!(!verifier.are_sound(Ino(1), &mut [0; 100]));
        assert!(verifier.are_sound(Ino(1), &mut []));
        // A record with a checksum of 16 bits.
        let mut short = [0; 256];
        short[0] = 1;
        assert!(!verifier.are_sound(Ino(1), &mut short));
    }
}
