//! Block and inode bitmaps: one bit per cluster or inode of a group, set when in use.
//!
//! # Shape
//!
//! Bit `n` is bit `n % 8` of byte `n / 8`. A bitmap fills one block; bits past the group's end are
//! set ([`Bitmap::pad`]), so that no search ever finds them free. The checksum covers
//! `clusters_per_group / 8` bytes of a block bitmap and `inodes_per_group / 8` of an inode bitmap,
//! in every group, also in a last group that is shorter.
//!
//! The bitmap of an uninitialised group was never written: [`Bitmap::of_uninit_group`] computes it.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/ext4/bitmaps.rst`; checksums: `checksums.rst`; uninitialised
//! groups: `blockgroup.rst`, "Lazy Block Group Initialization".

use alloc::vec::Vec;
use core::ops::Range;

use crate::checksum::crc32c;
use crate::error::{ChecksumError, LengthError};
use crate::le::index;

/// The bits of one byte below bit `bit`, 0..=8.
fn low_mask(bit: u32) -> u8 {
    match 1u8.checked_shl(bit) {
        Some(mask) if bit < 8 => mask.wrapping_sub(1),
        _ => 0xff,
    }
}

/// A bitmap to be read. Bits outside the slice read as set.
#[derive(Clone, Copy, Debug)]
pub struct BitmapRef<'a> {
    bytes: &'a [u8],
}

impl<'a> BitmapRef<'a> {
    /// Views `bytes` as a bitmap.
    pub fn new(bytes: &'a [u8]) -> BitmapRef<'a> {
        BitmapRef { bytes }
    }

    /// The byte with bit `bit`; all ones past the end.
    fn byte(&self, bit: u32) -> u8 {
        self.bytes.get(index(bit >> 3)).copied().unwrap_or(0xff)
    }

    /// Returns whether bit `bit` is set.
    pub fn get(&self, bit: u32) -> bool {
        (self.byte(bit) >> (bit & 7)) & 1 == 1
    }

    /// The first bit of `bits` that is set (`value`) or clear (`!value`), 64 at a time.
    fn find(&self, bits: Range<u32>, value: bool) -> Option<u32> {
        let mut at = bits.start;
        let stored = self.stored_bits().min(bits.end);
        while at < stored {
            let word = self.word(at);
            let wanted = (if value { word } else { !word }) >> (at & 7);
            if wanted != 0 {
                let found = at.saturating_add(wanted.trailing_zeros());
                if found >= stored {
                    break;
                }
                return Some(found);
            }
            at = (at | 7).saturating_add(57);
        }
        at = at.max(stored);
        // Bits past the end are all set.
        (value && at < bits.end).then_some(at)
    }

    /// The 64 bits from the byte with bit `bit` on.
    fn word(&self, bit: u32) -> u64 {
        let rest = self.bytes.get(index(bit >> 3)..).unwrap_or_default();
        match rest.first_chunk() {
            Some(word) => u64::from_le_bytes(*word),
            None => {
                let mut word = [0xff; 8];
                for (to, from) in word.iter_mut().zip(rest) {
                    *to = *from;
                }
                u64::from_le_bytes(word)
            }
        }
    }

    /// Returns how many bits the slice holds.
    fn stored_bits(&self) -> u32 {
        u32::try_from(self.bytes.len().saturating_mul(8)).unwrap_or(u32::MAX)
    }

    /// The first clear bit of `bits`.
    pub fn first_clear(&self, bits: Range<u32>) -> Option<u32> {
        self.find(bits, false)
    }

    /// The first set bit of `bits`.
    pub fn first_set(&self, bits: Range<u32>) -> Option<u32> {
        self.find(bits, true)
    }

    /// Returns whether there are 64 clear bits side by side, of which the first one's number is a
    /// multiple of 64. If not, no run of clear bits is longer than 126. Looks at words only.
    pub fn has_clear_word(&self) -> bool {
        self.bytes.chunks_exact(8).any(|word| word == [0; 8])
    }

    /// Returns how many bits of `bits` are set.
    pub fn count_set(&self, bits: Range<u32>) -> u32 {
        let mut at = bits.start;
        let end = self.stored_bits().min(bits.end);
        // Bits past the end are all set.
        let mut count = bits.end.saturating_sub(end.max(bits.start));
        while at < end {
            let left = end.saturating_sub(at);
            if at & 7 == 0 && left >= 64 {
                let word = self.bytes.get(index(at >> 3)..).and_then(|rest| rest.first_chunk());
                if let Some(word) = word {
                    count = count.saturating_add(u64::from_le_bytes(*word).count_ones());
                    at = at.saturating_add(64);
                    continue;
                }
            }
            let end_in_byte = (at & 7).saturating_add(left).min(8);
            let mask = low_mask(end_in_byte) & !low_mask(at & 7);
            count = count.saturating_add((self.byte(at) & mask).count_ones());
            at = at.saturating_add(end_in_byte.saturating_sub(at & 7));
        }
        count
    }

    /// Returns how many bits of `bits` are clear.
    pub fn count_clear(&self, bits: Range<u32>) -> u32 {
        bits.end.saturating_sub(bits.start).saturating_sub(self.count_set(bits))
    }

    /// The runs of clear bits within `bits`, in order.
    pub fn clear_runs(&self, bits: Range<u32>) -> Runs<'a> {
        Runs { bitmap: *self, left: bits, value: false }
    }

    /// The runs of set bits within `bits`, in order.
    pub fn set_runs(&self, bits: Range<u32>) -> Runs<'a> {
        Runs { bitmap: *self, left: bits, value: true }
    }

    /// The first run of at least `len` clear bits within `bits`, cut to exactly `len`.
    pub fn find_clear_run(&self, bits: Range<u32>, len: u32) -> Option<Range<u32>> {
        self.clear_runs(bits).find_map(|run| {
            let end = run.start.checked_add(len)?;
            (end <= run.end).then_some(run.start..end)
        })
    }

    /// crc32c of the first `bits / 8` bytes (a bitmap's whole bytes; see the module for which).
    pub fn checksum(&self, seed: u32, bits: u32) -> u32 {
        let covered = self.bytes.get(..index(bits >> 3)).unwrap_or(self.bytes);
        crc32c(seed, covered)
    }

    /// Compares with the checksum from the group's descriptor. With descriptors of 32 bytes only
    /// the low half is stored: pass `wide` false.
    ///
    /// # Errors
    ///
    /// [`ChecksumError`] with both values, as far as stored.
    pub fn verify_checksum(
        &self,
        structure: &'static str,
        seed: u32,
        bits: u32,
        stored: u32,
        wide: bool,
    ) -> Result<(), ChecksumError> {
        let mask = if wide { u32::MAX } else { 0xffff };
        ChecksumError::check(structure, stored & mask, self.checksum(seed, bits) & mask)
    }

    /// Returns whether all bits from `used` to the end are set: the padding rule.
    pub fn is_padded(&self, used: u32) -> bool {
        self.first_clear(used..self.stored_bits()).is_none()
    }
}

/// Iterator over runs of equal bits; see [`BitmapRef::clear_runs`].
#[derive(Clone, Debug)]
pub struct Runs<'a> {
    bitmap: BitmapRef<'a>,
    left: Range<u32>,
    value: bool,
}

impl Iterator for Runs<'_> {
    type Item = Range<u32>;

    fn next(&mut self) -> Option<Range<u32>> {
        let start = self.bitmap.find(self.left.clone(), self.value)?;
        let rest = start..self.left.end;
        let end = self.bitmap.find(rest, !self.value).unwrap_or(self.left.end);
        self.left.start = end;
        Some(start..end)
    }
}

/// A bitmap of one block, to be changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bitmap {
    bytes: Vec<u8>,
}

impl Bitmap {
    /// All clear, `block_bytes` long.
    pub fn zeroed(block_bytes: usize) -> Bitmap {
        Bitmap { bytes: alloc::vec![0; block_bytes] }
    }

    /// A copy of a stored bitmap: the first `block_bytes` of `bytes`.
    ///
    /// # Errors
    ///
    /// [`LengthError`] when there are fewer.
    pub fn decode(bytes: &[u8], block_bytes: usize) -> Result<Bitmap, LengthError> {
        Ok(Bitmap { bytes: LengthError::prefix("bitmap", bytes, block_bytes)?.to_vec() })
    }

    /// The bitmap of a group whose flags say it was never written.
    ///
    /// `bits` is how many clusters or inodes the group has; `used` are the ranges its own metadata
    /// takes (superblock, descriptors, bitmaps, tables: those inside this group), in bits. For an
    /// uninitialised inode bitmap `used` is empty. Ranges are cut at `bits`.
    pub fn of_uninit_group(
        block_bytes: usize,
        bits: u32,
        used: impl IntoIterator<Item = Range<u32>>,
    ) -> Bitmap {
        let mut bitmap = Bitmap::zeroed(block_bytes);
        for range in used {
            bitmap.set_range(range.start..range.end.min(bits));
        }
        bitmap.pad(bits);
        bitmap
    }

    /// For reading.
    pub fn view(&self) -> BitmapRef<'_> {
        BitmapRef::new(&self.bytes)
    }

    /// The block to store.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The block to store, given away.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Returns how many bits there are, padding included.
    pub fn bit_count(&self) -> u32 {
        self.view().stored_bits()
    }

    /// Sets one bit; nothing happens past the end. Returns whether it was set before.
    pub fn set(&mut self, bit: u32) -> bool {
        let before = self.view().get(bit);
        if let Some(byte) = self.bytes.get_mut(index(bit >> 3)) {
            *byte |= 1 << (bit & 7);
        }
        before
    }

    /// Clears one bit; nothing happens past the end. Returns whether it was set before.
    pub fn clear(&mut self, bit: u32) -> bool {
        let before = self.view().get(bit);
        if let Some(byte) = self.bytes.get_mut(index(bit >> 3)) {
            *byte &= !(1 << (bit & 7));
        }
        before
    }

    /// Sets all bits of `bits`; those past the end do not exist.
    pub fn set_range(&mut self, bits: Range<u32>) {
        self.fill(bits, true);
    }

    /// Clears all bits of `bits`; those past the end do not exist.
    pub fn clear_range(&mut self, bits: Range<u32>) {
        self.fill(bits, false);
    }

    /// Whole bytes at once, the two ends by masks.
    fn fill(&mut self, bits: Range<u32>, value: bool) {
        if bits.start >= bits.end {
            return;
        }
        let (first, last) = (index(bits.start >> 3), index(bits.end >> 3));
        let head = !low_mask(bits.start & 7);
        let tail = low_mask(bits.end & 7);
        let mut put = |at: usize, mask: u8| {
            if let Some(byte) = self.bytes.get_mut(at) {
                *byte = if value { *byte | mask } else { *byte & !mask };
            }
        };
        if first == last {
            put(first, head & tail);
            return;
        }
        put(first, head);
        put(last, tail);
        let end = last.min(self.bytes.len());
        if let Some(middle) = self.bytes.get_mut(first.saturating_add(1)..end) {
            middle.fill(if value { 0xff } else { 0 });
        }
    }

    /// Sets every bit from `used` on: they stand for nothing.
    pub fn pad(&mut self, used: u32) {
        self.set_range(used..self.bit_count());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_base::Prng;
    use std::{vec, vec::Vec};

    fn model(bits: &[bool]) -> Vec<u8> {
        let mut bytes = vec![0u8; bits.len() / 8];
        for (at, _) in bits.iter().enumerate().filter(|(_, bit)| **bit) {
            bytes[at / 8] |= 1 << (at % 8);
        }
        bytes
    }

    fn runs_of(bits: &[bool], within: Range<u32>, value: bool) -> Vec<Range<u32>> {
        let mut runs: Vec<Range<u32>> = Vec::new();
        for at in within {
            if bits[at as usize] != value {
                continue;
            }
            match runs.last_mut() {
                Some(run) if run.end == at => run.end += 1,
                _ => runs.push(at..at + 1),
            }
        }
        runs
    }

    #[test]
    fn every_operation_agrees_with_a_vector_of_booleans() {
        let mut random = Prng::new(3);
        let mut bitmap = Bitmap::zeroed(64);
        let mut bits = [false; 512];
        for step in 0..4000 {
            let start = random.below(513) as u32;
            let len = if random.one_in(2) { random.below(513) } else { random.below(20) } as u32;
            let range = start..(start + len).min(512);
            let value = random.one_in(2);
            if value {
                bitmap.set_range(range.clone())
            } else {
                bitmap.clear_range(range.clone())
            }
            for at in range.clone() {
                bits[at as usize] = value;
            }
            let one = random.below(512) as u32;
            assert_eq!(bitmap.set(one), bits[one as usize]);
            bits[one as usize] = true;
            assert_eq!(bitmap.as_bytes(), model(&bits), "step {step}: {range:?} {value}");

            let a = random.below(513) as u32;
            let within = a..(a + random.below(513 - u64::from(a) + 1) as u32).min(512);
            let set = bits[within.start as usize..within.end as usize].iter().filter(|b| **b);
            assert_eq!(bitmap.view().count_set(within.clone()), set.count() as u32);
            for value in [false, true] {
                let expected = runs_of(&bits, within.clone(), value);
                let view = bitmap.view();
                let got: Vec<_> = if value {
                    view.set_runs(within.clone()).collect()
                } else {
                    view.clear_runs(within.clone()).collect()
                };
                assert_eq!(got, expected, "step {step}: runs of {value} in {within:?}");
            }
            let longest = runs_of(&bits, 0..512, false).iter().map(|run| run.end - run.start).max();
            assert!(bitmap.view().has_clear_word() || longest.unwrap_or(0) <= 126);
            let word_is_clear = |word: &[bool]| word.iter().all(|bit| !bit);
            assert_eq!(bitmap.view().has_clear_word(), bits.chunks(64).any(word_is_clear));
            let want = random.below(40) as u32 + 1;
            let fits = runs_of(&bits, within.clone(), false)
                .into_iter()
                .find(|run| run.end - run.start >= want)
                .map(|run| run.start..run.start + want);
            assert_eq!(bitmap.view().find_clear_run(within, want), fits);
        }
    }

    #[test]
    fn bits_past_the_end_are_in_use_and_cannot_be_changed() {
        let mut bitmap = Bitmap::zeroed(8);
        bitmap.set_range(60..1000);
        bitmap.clear_range(63..u32::MAX);
        let runs: Vec<_> = bitmap.view().set_runs(0..64).collect();
        assert_eq!((runs.len(), runs.first()), (1, Some(&(60..63))));
        assert!(bitmap.view().get(64));
        assert!(bitmap.clear(64));
        assert_eq!(bitmap.view().first_clear(64..u32::MAX), None);
        assert_eq!(bitmap.view().count_set(0..u32::MAX), u32::MAX - 61);
    }

    #[test]
    fn every_padding_start_sets_exactly_the_rest() {
        for used in 0..=256 {
            let bitmap = Bitmap::of_uninit_group(32, used, [0..3, 10..11, 200..9999]);
            assert!(bitmap.view().is_padded(used));
            for bit in 0..256 {
                let expected = bit >= used || bit < 3 || bit == 10 || bit >= 200;
                assert_eq!(bitmap.view().get(bit), expected, "bit {bit} of {used}");
            }
        }
    }

    #[test]
    fn short_descriptors_compare_half_a_checksum() {
        let bitmap = Bitmap::of_uninit_group(1024, 100, []);
        let sum = bitmap.view().checksum(5, 8192);
        let check =
            |stored, wide| bitmap.view().verify_checksum("block bitmap", 5, 8192, stored, wide);
        assert!(check(sum, true).is_ok());
        assert!(check(sum ^ 0x1_0000, true).is_err());
        assert!(check(sum ^ 0x1_0000, false).is_ok());
        assert!(check(sum ^ 1, false).is_err());
        assert_eq!(bitmap.view().checksum(5, 80), crc32c(5, &bitmap.as_bytes()[..10]));
    }
}
