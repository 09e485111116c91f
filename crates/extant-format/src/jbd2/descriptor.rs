//! Descriptor blocks: where the data blocks that follow them belong.

use extant_base::FsBlock;

use super::features::JournalChecksum;
use super::header::{BlockHeader, BlockType, HEADER_BYTES, Tid};
use super::superblock::LogFormat;
use super::{be32_at, put_be32, seal_tail};
use crate::error::LengthError;

bitflags::bitflags! {
    /// Flags of one tag.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct TagFlags: u32 {
        /// The block began with the journal's magic number; its first four bytes are zero in the
        /// log and must be put back.
        const ESCAPE = 0x1;
        /// No UUID follows the tag.
        const SAME_UUID = 0x2;
        /// The block was freed by this transaction. Never written by Linux, and ignored by it.
        const DELETED = 0x4;
        /// No tag follows.
        const LAST = 0x8;
    }
}

/// One tag of a descriptor block, as a checked value.
///
/// Three forms are stored, by checksum version and block-number width; big-endian:
///
/// | field             | none, v1, v2  | v3     | meaning                                      |
/// |-------------------|---------------|--------|----------------------------------------------|
/// | `t_blocknr`       | `0x0`, 4      | `0x0`  | bits 0..32 of the block's place              |
/// | `t_checksum`      | `0x4`, **2**  | `0xC`  | v2: lower half; v3: all of the data checksum |
/// | `t_flags`         | `0x6`, **2**  | `0x4`  | [`TagFlags`]                                 |
/// | `t_blocknr_high`  | `0x8`, 4      | `0x8`  | bits 32..64, when block numbers have 64 bits |
/// | UUID              | after the tag | same   | 16 bytes, unless `SAME_UUID`                 |
///
/// Any block number is allowed: whether it lies in the file system is the caller's check.
///
/// Source: Linux `Documentation/filesystems/ext4/journal.rst`, "Descriptor Block".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tag {
    /// Where the data block belongs.
    pub fs_block: FsBlock,
    /// The flags of the tag; unknown bits are kept.
    pub flags: TagFlags,
    /// The stored data checksum: 32 bits with version 3, 16 with version 2, else unused.
    pub checksum: u32,
    /// The UUID that follows, unless `SAME_UUID` or the block ends first.
    pub uuid: Option<[u8; 16]>,
}

impl Tag {
    /// Checks a data block, as it is in the log, against the tag. True without checksums.
    pub fn matches(&self, format: &LogFormat, tid: Tid, logged: &[u8]) -> bool {
        match format.checksum {
            JournalChecksum::None | JournalChecksum::V1 => true,
            JournalChecksum::V2 => {
                format.data_checksum(tid, logged) & 0xffff == self.checksum & 0xffff
            }
            JournalChecksum::V3 => format.data_checksum(tid, logged) == self.checksum,
        }
    }

    /// True when the first four bytes of the data block must be put back.
    pub fn is_escaped(&self) -> bool {
        self.flags.contains(TagFlags::ESCAPE)
    }
}

/// The tags of a descriptor block, in order.
///
/// Ends after the tag with `LAST`, or where no further tag fits; a block never gives more tags than
/// its bytes have room for.
#[derive(Clone, Debug)]
pub struct Tags<'a> {
    format: LogFormat,
    /// The block up to its tail.
    block: &'a [u8],
    offset: usize,
    done: bool,
}

impl<'a> Tags<'a> {
    /// The tags of `block`, whose header and tail the caller has checked.
    pub fn new(format: &LogFormat, block: &'a [u8]) -> Tags<'a> {
        let end = block.len().min(format.block_size.len()).saturating_sub(format.tail_bytes());
        let block = block.get(..end).unwrap_or(&[]);
        Tags { format: *format, block, offset: HEADER_BYTES, done: false }
    }

    fn decode_next(&mut self) -> Option<Tag> {
        let start = self.offset;
        let end = start.checked_add(self.format.tag_bytes())?;
        let bytes = self.block.get(start..end)?;
        let low = be32_at(bytes, 0)?;
        let second = be32_at(bytes, 4)?;
        let high = if self.format.blocks_64bit { be32_at(bytes, 8)? } else { 0 };
        let (flags, checksum) = match self.format.checksum {
            JournalChecksum::V3 => (second, be32_at(bytes, 12)?),
            _ => (second & 0xffff, second >> 16),
        };
        let flags = TagFlags::from_bits_retain(flags);
        self.offset = end;
        let mut uuid = None;
        if !flags.contains(TagFlags::SAME_UUID) {
            self.offset = end.checked_add(16)?;
            uuid = self.block.get(end..self.offset).and_then(|bytes| bytes.try_into().ok());
        }
        self.done = flags.contains(TagFlags::LAST);
        let fs_block = FsBlock((u64::from(high) << 32) | u64::from(low));
        Some(Tag { fs_block, flags, checksum, uuid })
    }
}

impl Iterator for Tags<'_> {
    type Item = Tag;

    fn next(&mut self) -> Option<Tag> {
        if self.done {
            return None;
        }
        let tag = self.decode_next();
        self.done |= tag.is_none();
        tag
    }
}

/// The claims of a writer about one data block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewTag {
    /// Where the block belongs. Must fit 32 bits unless the journal has 64-bit block numbers.
    pub fs_block: FsBlock,
    /// The block is stored escaped.
    pub escaped: bool,
    /// [`LogFormat::data_checksum`] of the block as stored; ignored without checksums.
    pub checksum: u32,
}

/// Fills one descriptor block, tag by tag.
#[derive(Debug)]
pub struct DescriptorWriter<'a> {
    format: LogFormat,
    block: &'a mut [u8],
    end: usize,
    offset: usize,
    /// Where the flags of the latest tag are; 0 before the first.
    latest: usize,
}

impl<'a> DescriptorWriter<'a> {
    /// Starts a descriptor of transaction `tid` in `block`, which is one journal block.
    ///
    /// # Errors
    ///
    /// When `block` is shorter than a journal block.
    pub fn new(
        format: &LogFormat,
        tid: Tid,
        block: &'a mut [u8],
    ) -> Result<DescriptorWriter<'a>, LengthError> {
        let block = LengthError::prefix_mut("descriptor block", block, format.block_size.len())?;
        block.fill(0);
        // A journal block is longer than a header.
        let _ = BlockHeader { block_type: BlockType::Descriptor, tid }.encode(block);
        let end = block.len().saturating_sub(format.tail_bytes());
        Ok(DescriptorWriter { format: *format, block, end, offset: HEADER_BYTES, latest: 0 })
    }

    /// Adds a tag. False, and nothing changed, when the block is full or the block number does
    /// not fit the journal's width.
    #[must_use]
    pub fn push(&mut self, tag: NewTag) -> bool {
        let bytes = self.format.tag_bytes();
        let first = self.latest == 0;
        let needed = if first { bytes.saturating_add(16) } else { bytes };
        let Some(end) = self.offset.checked_add(needed).filter(|end| *end <= self.end) else {
            return false;
        };
        let high = u32::try_from(tag.fs_block.0 >> 32).unwrap_or(0);
        let low = u32::try_from(tag.fs_block.0 & u64::from(u32::MAX)).unwrap_or(0);
        if high != 0 && !self.format.blocks_64bit {
            return false;
        }
        let mut flags = TagFlags::empty();
        flags.set(TagFlags::ESCAPE, tag.escaped);
        flags.set(TagFlags::SAME_UUID, !first);
        let mut put = |at: usize, value: u32| {
            put_be32(self.block, self.offset.saturating_add(at), value);
        };
        put(0, low);
        if self.format.blocks_64bit {
            put(8, high);
        }
        match self.format.checksum {
            JournalChecksum::V3 => {
                put(4, flags.bits());
                put(12, tag.checksum);
            }
            JournalChecksum::V2 => put(4, (tag.checksum << 16) | flags.bits()),
            JournalChecksum::None | JournalChecksum::V1 => put(4, flags.bits()),
        }
        if first {
            let uuid = self.format.uuid;
            if let Some(place) = self.block.get_mut(end.saturating_sub(16)..end) {
                place.copy_from_slice(&uuid);
            }
        }
        // In every form the lowest byte of the flags is byte 7 of the tag.
        self.latest = self.offset.saturating_add(7);
        self.offset = end;
        true
    }

    /// Marks the latest tag as the last and writes the tail checksum.
    pub fn finish(self) {
        if self.latest != 0
            && let Some(flags) = self.block.get_mut(self.latest)
        {
            *flags |= 0x8;
        }
        seal_tail(&self.format, self.block);
    }
}

#[cfg(test)]
mod tests {
    use super::super::verify_tail;
    use super::*;
    use crate::checksum::crc32c;
    use extant_base::{BlockSize, Prng};
    use std::vec;
    use std::vec::Vec;

    pub(crate) fn formats() -> Vec<LogFormat> {
        let mut all = Vec::new();
        for checksum in
            [JournalChecksum::None, JournalChecksum::V1, JournalChecksum::V2, JournalChecksum::V3]
        {
            for blocks_64bit in [false, true] {
                all.push(LogFormat {
                    block_size: BlockSize::new(1024).unwrap(),
                    checksum,
                    blocks_64bit,
                    seed: 0x1234_5678,
                    uuid: [7; 16],
                });
            }
        }
        all
    }

    #[test]
    fn every_form_round_trips_until_the_block_is_full() {
        for format in formats() {
            let mut block = vec![0xee; 1024];
            let mut writer = DescriptorWriter::new(&format, Tid(9), &mut block).unwrap();
            let mut written = Vec::new();
            let mut random = Prng::new(3);
            loop {
                let mask = if format.blocks_64bit { u64::MAX } else { u64::from(u32::MAX) };
                let tag = NewTag {
                    fs_block: FsBlock(random.next_u64() & mask),
                    escaped: random.one_in(3),
                    checksum: random.next_u64() as u32,
                };
                if !writer.push(tag) {
                    break;
                }
                written.push(tag);
            }
            writer.finish();
            let room = 1024 - 12 - 16 - format.tail_bytes();
            assert_eq!(written.len(), room / format.tag_bytes(), "{format:?}");
            verify_tail(&format, &block).unwrap();
            let read: Vec<Tag> = Tags::new(&format, &block).collect();
            assert_eq!(read.len(), written.len());
            for (at, (tag, new)) in read.iter().zip(&written).enumerate() {
                assert_eq!(tag.fs_block, new.fs_block);
                assert_eq!(tag.is_escaped(), new.escaped);
                assert_eq!(tag.uuid, (at == 0).then_some(format.uuid));
                assert_eq!(tag.flags.contains(TagFlags::LAST), at + 1 == read.len());
                match format.checksum {
                    JournalChecksum::V3 => assert_eq!(tag.checksum, new.checksum),
                    JournalChecksum::V2 => assert_eq!(tag.checksum, new.checksum & 0xffff),
                    _ => assert_eq!(tag.checksum, 0),
                }
            }
        }
    }

    #[test]
    fn a_descriptor_is_zero_behind_its_tags_whatever_was_there() {
        for format in formats() {
            let (mut dirty, mut clean) = (vec![0xee; 1024], vec![0; 1024]);
            for block in [&mut dirty, &mut clean] {
                let mut writer = DescriptorWriter::new(&format, Tid(9), block).unwrap();
                let tag = NewTag { fs_block: FsBlock(5), escaped: false, checksum: 6 };
                assert!(writer.push(tag));
                writer.finish();
            }
            assert_eq!(dirty, clean, "{format:?}");
        }
    }

    #[test]
    fn sizes_of_all_forms() {
        let sizes: Vec<usize> = formats().iter().map(LogFormat::tag_bytes).collect();
        assert_eq!(sizes, [8, 12, 8, 12, 10, 14, 16, 16]);
    }

    #[test]
    fn iteration_ends_in_any_block() {
        let mut random = Prng::new(11);
        for format in formats() {
            for len in [0usize, 1, 11, 12, 13, 19, 20, 100, 1023, 1024, 4096] {
                for fill in [0u8, 0x02, 0xff] {
                    let count = Tags::new(&format, &vec![fill; len]).count();
                    assert!(count <= len.min(1024) / format.tag_bytes() + 1, "{format:?} {len}");
                }
                let mut block = vec![0; len];
                random.fill(&mut block);
                assert!(Tags::new(&format, &block).count() <= 1024 / format.tag_bytes());
            }
        }
    }

    #[test]
    fn a_uuid_cut_off_by_the_end_is_not_read() {
        // One tag of 8 bytes ends where the block does; its UUID would lie outside.
        let format = formats()[0];
        let mut block = vec![0u8; 20];
        block[15] = 5;
        let tags: Vec<Tag> = Tags::new(&format, &block).collect();
        assert_eq!(tags.len(), 1);
        assert_eq!((tags[0].fs_block, tags[0].uuid), (FsBlock(5), None));
    }

    #[test]
    fn flags_decode_each_on_its_own() {
        for format in formats() {
            for bits in 0..16u8 {
                let mut block = vec![0u8; 1024];
                block[19] = bits;
                let tag = Tags::new(&format, &block).next().unwrap();
                assert_eq!(tag.flags.bits(), u32::from(bits));
                assert_eq!(tag.is_escaped(), bits & 1 != 0);
                assert_eq!(tag.uuid.is_some(), bits & 2 == 0);
                let count = Tags::new(&format, &block).count();
                assert_eq!(count == 1, bits & 8 != 0, "{bits}");
            }
        }
    }

    #[test]
    fn a_wide_block_number_needs_wide_tags() {
        for format in formats() {
            let mut block = vec![0; 1024];
            let mut writer = DescriptorWriter::new(&format, Tid(1), &mut block).unwrap();
            let tag = NewTag { fs_block: FsBlock(1 << 32), escaped: false, checksum: 0 };
            assert_eq!(writer.push(tag), format.blocks_64bit);
        }
    }

    #[test]
    fn the_data_checksum_covers_uuid_number_and_block() {
        let logged = [0x42u8; 1024];
        for format in formats() {
            let mut bytes = vec![0, 0, 1, 2];
            bytes.extend_from_slice(&logged);
            let whole = crc32c(format.seed, &bytes);
            assert_eq!(format.data_checksum(Tid(0x102), &logged), whole);
            let tag = |checksum| Tag {
                fs_block: FsBlock(1),
                flags: TagFlags::empty(),
                checksum,
                uuid: None,
            };
            assert!(tag(whole).matches(&format, Tid(0x102), &logged));
            let checked = format.checksum.covers_blocks();
            assert_eq!(tag(whole ^ 1).matches(&format, Tid(0x102), &logged), !checked);
            assert_eq!(tag(whole).matches(&format, Tid(0x103), &logged), !checked);
            let upper = tag(whole ^ 0x10000).matches(&format, Tid(0x102), &logged);
            assert_eq!(upper, format.checksum != JournalChecksum::V3);
        }
    }
}
