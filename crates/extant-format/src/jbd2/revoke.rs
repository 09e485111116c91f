//! Revoke blocks: copies of these blocks in older transactions must not be replayed.

use extant_base::FsBlock;

use super::header::{BlockHeader, BlockType, HEADER_BYTES, Tid};
use super::superblock::LogFormat;
use super::{be32_at, put_be32, seal_tail};
use crate::error::LengthError;

/// Bytes before the first block number: the common header and `r_count`.
const REVOKE_HEADER_BYTES: usize = 16;

/// The reason why a revoke block cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RevokeFault {
    /// Too short for its own header.
    #[error(transparent)]
    Length(#[from] LengthError),
    /// `r_count` says more than the block has.
    #[error("revoke block claims {claimed} used bytes, its block has room for {room}")]
    Count {
        /// `r_count` as found, in bytes from the start of the block.
        claimed: u32,
        /// Bytes of the block without its tail.
        room: usize,
    },
}

/// The block numbers of a revoke block, in order.
///
/// | offset | bytes  | field     | meaning                                                 |
/// |-------:|-------:|-----------|---------------------------------------------------------|
/// |  `0x0` |     12 | header    | magic, type 5, transaction                              |
/// |  `0xC` |      4 | `r_count` | bytes used, counted from the start of the block         |
/// | `0x10` | 4 or 8 | numbers   | big-endian; 8 bytes when block numbers have 64 bits     |
///
/// A trailing piece of a number is ignored, as is an `r_count` below 16 (no numbers).
///
/// Source: Linux `Documentation/filesystems/ext4/journal.rst`, "Revocation Block".
#[derive(Clone, Debug)]
pub struct RevokeRecords<'a> {
    numbers: &'a [u8],
    width: usize,
}

impl<'a> RevokeRecords<'a> {
    /// The records of `block`, whose header and tail the caller has checked.
    ///
    /// # Errors
    ///
    /// [`RevokeFault`] when `r_count` does not fit the block.
    pub fn new(format: &LogFormat, block: &'a [u8]) -> Result<RevokeRecords<'a>, RevokeFault> {
        let short = LengthError {
            structure: "revoke block",
            wanted: REVOKE_HEADER_BYTES,
            found: block.len(),
        };
        let claimed = be32_at(block, HEADER_BYTES).ok_or(short)?;
        let room = block.len().min(format.block_size.len()).saturating_sub(format.tail_bytes());
        let end = usize::try_from(claimed)
            .ok()
            .filter(|end| *end <= room)
            .ok_or(RevokeFault::Count { claimed, room })?;
        let numbers = block.get(REVOKE_HEADER_BYTES..end).unwrap_or(&[]);
        Ok(RevokeRecords { numbers, width: format.revoke_bytes() })
    }
}

impl Iterator for RevokeRecords<'_> {
    type Item = FsBlock;

    fn next(&mut self) -> Option<FsBlock> {
        let (number, rest) = self.numbers.split_at_checked(self.width)?;
        self.numbers = rest;
        let wide = number.iter().fold(0u64, |wide, byte| (wide << 8) | u64::from(*byte));
        Some(FsBlock(wide))
    }
}

/// Fills one revoke block, number by number.
#[derive(Debug)]
pub struct RevokeWriter<'a> {
    format: LogFormat,
    block: &'a mut [u8],
    end: usize,
    offset: usize,
}

impl<'a> RevokeWriter<'a> {
    /// Starts a revoke block of transaction `tid` in `block`, which is one journal block.
    ///
    /// # Errors
    ///
    /// When `block` is shorter than a journal block.
    pub fn new(
        format: &LogFormat,
        tid: Tid,
        block: &'a mut [u8],
    ) -> Result<RevokeWriter<'a>, LengthError> {
        let block = LengthError::prefix_mut("revoke block", block, format.block_size.len())?;
        block.fill(0);
        // A journal block is longer than a header.
        let _ = BlockHeader { block_type: BlockType::Revoke, tid }.encode(block);
        let end = block.len().saturating_sub(format.tail_bytes());
        Ok(RevokeWriter { format: *format, block, end, offset: REVOKE_HEADER_BYTES })
    }

    /// Adds a block. False, and nothing changed, when the block is full or the number does not
    /// fit the journal's width.
    #[must_use]
    pub fn push(&mut self, fs_block: FsBlock) -> bool {
        let width = self.format.revoke_bytes();
        let Some(end) = self.offset.checked_add(width).filter(|end| *end <= self.end) else {
            return false;
        };
        let number = fs_block.0.to_be_bytes();
        let (unstored, stored) = number.split_at(number.len().saturating_sub(width));
        if unstored.iter().any(|byte| *byte != 0) {
            return false;
        }
        if let Some(place) = self.block.get_mut(self.offset..end) {
            place.copy_from_slice(stored);
        }
        self.offset = end;
        true
    }

    /// Writes the count and the tail checksum.
    pub fn finish(self) {
        // At most 65536, a block's size.
        let used = u32::try_from(self.offset).unwrap_or(0);
        let _ = put_be32(self.block, HEADER_BYTES, used);
        seal_tail(&self.format, self.block);
    }
}

#[cfg(test)]
mod tests {
    use super::super::{JournalChecksum, verify_tail};
    use super::*;
    use extant_base::BlockSize;
    use std::vec;
    use std::vec::Vec;

    fn format(checksum: JournalChecksum, blocks_64bit: bool) -> LogFormat {
        LogFormat {
            block_size: BlockSize::new(1024).unwrap(),
            checksum,
            blocks_64bit,
            seed: 77,
            uuid: [1; 16],
        }
    }

    #[test]
    fn both_widths_round_trip_until_full() {
        for checksum in [JournalChecksum::None, JournalChecksum::V3] {
            for wide in [false, true] {
                let format = format(checksum, wide);
                let mut block = vec![0xee; 1024];
                let mut writer = RevokeWriter::new(&format, Tid(4), &mut block).unwrap();
                assert_eq!(writer.push(FsBlock(1 << 32)), wide);
                let mut count = usize::from(wide);
                while writer.push(FsBlock(0x0102_0304)) {
                    count += 1;
                }
                writer.finish();
                verify_tail(&format, &block).unwrap();
                let read: Vec<FsBlock> = RevokeRecords::new(&format, &block).unwrap().collect();
                let room = 1024 - 16 - format.tail_bytes();
                assert_eq!((read.len(), count), (room / format.revoke_bytes(), count));
                assert_eq!(read[0], FsBlock(if wide { 1 << 32 } else { 0x0102_0304 }));
                assert_eq!(read.last(), Some(&FsBlock(0x0102_0304)));
            }
        }
    }

    #[test]
    fn a_revoke_block_is_zero_behind_its_numbers_whatever_was_there() {
        let format = format(JournalChecksum::V3, true);
        let (mut dirty, mut clean) = (vec![0xee; 1024], vec![0; 1024]);
        for block in [&mut dirty, &mut clean] {
            let mut writer = RevokeWriter::new(&format, Tid(4), block).unwrap();
            assert!(writer.push(FsBlock(7)));
            writer.finish();
        }
        assert_eq!(dirty, clean);
    }

    #[test]
    fn every_count_is_read_or_refused() {
        for checksum in [JournalChecksum::None, JournalChecksum::V2] {
            for wide in [false, true] {
                let format = format(checksum, wide);
                let room = 1024 - format.tail_bytes();
                for claimed in 0..1100usize {
                    let mut block = vec![0u8; 1024];
                    block[12..16].copy_from_slice(&(claimed as u32).to_be_bytes());
                    match RevokeRecords::new(&format, &block) {
                        Ok(records) => {
                            assert!(claimed <= room);
                            let wanted = claimed.saturating_sub(16) / format.revoke_bytes();
                            assert_eq!(records.count(), wanted, "{claimed}");
                        }
                        Err(fault) => {
                            assert!(claimed > room);
                            let claimed = claimed as u32;
                            assert_eq!(fault, RevokeFault::Count { claimed, room });
                        }
                    }
                }
                for claimed in [u32::MAX, 1 << 31] {
                    let mut block = vec![0u8; 1024];
                    block[12..16].copy_from_slice(&claimed.to_be_bytes());
                    assert!(RevokeRecords::new(&format, &block).is_err());
                }
                assert!(RevokeRecords::new(&format, &[0; 15]).is_err());
            }
        }
    }

    #[test]
    fn a_changed_tail_is_seen() {
        let format = format(JournalChecksum::V3, true);
        let mut block = vec![0; 1024];
        RevokeWriter::new(&format, Tid(4), &mut block).unwrap().finish();
        for byte in 0..1024 {
            block[byte] ^= 1;
            assert!(verify_tail(&format, &block).is_err(), "byte {byte}");
            block[byte] ^= 1;
        }
        assert!(verify_tail(&format, &[]).is_err());
    }
}
