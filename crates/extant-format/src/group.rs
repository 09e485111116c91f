//! Group descriptors: where a group's bitmaps and inode table are, and what is free in it.
//!
//! # Shape
//!
//! 32 bytes, or with `64bit` 64 bytes, or more of which the rest is unused. The table of all
//! descriptors follows the superblock and its copies; with `meta_bg` each block of the table lies
//! in the groups that it describes.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/ext4/group_descr.rst`, table `struct ext4_group_desc`;
//! `blockgroup.rst`, "Meta Block Groups"; `super.rst` for the groups with backups.

use core::mem::{offset_of, size_of};

use extant_base::{FsBlock, GroupIndex};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::{CRC16_INIT, crc16, crc32c, crc32c_u32, crc32c_zeros};
use crate::error::{ChecksumError, LengthError};
use crate::features::RoCompat;
use crate::le::{put, u16_at};
use crate::superblock::{Superblock, join32, split32};

/// First half of a group descriptor, all there is without `64bit`: 32 bytes.
///
/// | offset | bytes | field | meaning |
/// |-------:|------:|-------|---------|
/// | `0x00` | 4 | `bg_block_bitmap_lo` | block bitmap, low half |
/// | `0x04` | 4 | `bg_inode_bitmap_lo` | inode bitmap, low half |
/// | `0x08` | 4 | `bg_inode_table_lo` | first block of the inode table, low half |
/// | `0x0c` | 2 | `bg_free_blocks_count_lo` | free clusters, low half |
/// | `0x0e` | 2 | `bg_free_inodes_count_lo` | free inodes, low half |
/// | `0x10` | 2 | `bg_used_dirs_count_lo` | directories, low half |
/// | `0x12` | 2 | `bg_flags` | [`GroupFlags`] |
/// | `0x14` | 4 | `bg_exclude_bitmap_lo` | snapshots, unused |
/// | `0x18` | 2 | `bg_block_bitmap_csum_lo` | crc32c of the block bitmap, low half |
/// | `0x1a` | 2 | `bg_inode_bitmap_csum_lo` | crc32c of the inode bitmap, low half |
/// | `0x1c` | 2 | `bg_itable_unused_lo` | inodes never used at the table's end, low half |
/// | `0x1e` | 2 | `bg_checksum` | crc16, or the low half of the crc32c |
///
/// Source: Linux `Documentation/filesystems/ext4/group_descr.rst`.
#[derive(
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Debug,
    Default,
)]
#[repr(C)]
#[expect(missing_docs, reason = "the table above describes the fields")]
pub struct RawGroupDescriptor {
    pub bg_block_bitmap_lo: U32,
    pub bg_inode_bitmap_lo: U32,
    pub bg_inode_table_lo: U32,
    pub bg_free_blocks_count_lo: U16,
    pub bg_free_inodes_count_lo: U16,
    pub bg_used_dirs_count_lo: U16,
    pub bg_flags: U16,
    pub bg_exclude_bitmap_lo: U32,
    pub bg_block_bitmap_csum_lo: U16,
    pub bg_inode_bitmap_csum_lo: U16,
    pub bg_itable_unused_lo: U16,
    pub bg_checksum: U16,
}

const _: () = assert!(size_of::<RawGroupDescriptor>() == 32);
const _: () = assert!(offset_of!(RawGroupDescriptor, bg_free_blocks_count_lo) == 0xc);
const _: () = assert!(offset_of!(RawGroupDescriptor, bg_flags) == 0x12);
const _: () = assert!(offset_of!(RawGroupDescriptor, bg_block_bitmap_csum_lo) == 0x18);
const _: () = assert!(offset_of!(RawGroupDescriptor, bg_checksum) == 0x1e);

/// Second half of a group descriptor, with `64bit`: bytes 32 to 64.
///
/// | offset | bytes | field | meaning |
/// |-------:|------:|-------|---------|
/// | `0x20` | 4 | `bg_block_bitmap_hi` | high half |
/// | `0x24` | 4 | `bg_inode_bitmap_hi` | high half |
/// | `0x28` | 4 | `bg_inode_table_hi` | high half |
/// | `0x2c` | 2 | `bg_free_blocks_count_hi` | high half |
/// | `0x2e` | 2 | `bg_free_inodes_count_hi` | high half |
/// | `0x30` | 2 | `bg_used_dirs_count_hi` | high half |
/// | `0x32` | 2 | `bg_itable_unused_hi` | high half |
/// | `0x34` | 4 | `bg_exclude_bitmap_hi` | unused |
/// | `0x38` | 2 | `bg_block_bitmap_csum_hi` | high half |
/// | `0x3a` | 2 | `bg_inode_bitmap_csum_hi` | high half |
/// | `0x3c` | 4 | `bg_reserved` | zero |
///
/// Source: Linux `Documentation/filesystems/ext4/group_descr.rst`.
#[derive(
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
    Unaligned,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Debug,
    Default,
)]
#[repr(C)]
#[expect(missing_docs, reason = "the table above describes the fields")]
pub struct RawGroupDescriptorHigh {
    pub bg_block_bitmap_hi: U32,
    pub bg_inode_bitmap_hi: U32,
    pub bg_inode_table_hi: U32,
    pub bg_free_blocks_count_hi: U16,
    pub bg_free_inodes_count_hi: U16,
    pub bg_used_dirs_count_hi: U16,
    pub bg_itable_unused_hi: U16,
    pub bg_exclude_bitmap_hi: U32,
    pub bg_block_bitmap_csum_hi: U16,
    pub bg_inode_bitmap_csum_hi: U16,
    pub bg_reserved: U32,
}

const _: () = assert!(size_of::<RawGroupDescriptorHigh>() == 32);
const _: () = assert!(offset_of!(RawGroupDescriptorHigh, bg_itable_unused_hi) == 0x12);
const _: () = assert!(offset_of!(RawGroupDescriptorHigh, bg_block_bitmap_csum_hi) == 0x18);

bitflags::bitflags! {
    /// `bg_flags`. Only meaningful with a descriptor checksum of either kind.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct GroupFlags: u16 {
        /// No inode is in use; neither table nor bitmap were ever written.
        const INODE_UNINIT = 0x1;
        /// Only metadata is in use; the block bitmap was never written and is computed.
        const BLOCK_UNINIT = 0x2;
        /// The inode table was written with zeroes.
        const INODE_ZEROED = 0x4;
        const _ = !0;
    }
}

/// A group descriptor with its halves put together.
///
/// A record of one group alone cannot be wrong in a way that shows; whether the blocks exist is
/// for the caller ([`GroupDescriptor::check`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GroupDescriptor {
    /// The block of the block bitmap.
    pub block_bitmap: FsBlock,
    /// The block of the inode bitmap.
    pub inode_bitmap: FsBlock,
    /// The first block of the inode table.
    pub inode_table: FsBlock,
    /// Free clusters.
    pub free_clusters: u32,
    /// Free inodes.
    pub free_inodes: u32,
    /// Inodes that are directories.
    pub directories: u32,
    /// Inodes at the end of the table that were never used: nothing past them needs reading.
    pub itable_unused: u32,
    /// What was never written.
    pub flags: GroupFlags,
    /// Snapshot bitmap; unused, kept.
    pub exclude_bitmap: u64,
    /// crc32c of the block bitmap; with 32-byte descriptors its low half.
    pub block_bitmap_checksum: u32,
    /// crc32c of the inode bitmap; with 32-byte descriptors its low half.
    pub inode_bitmap_checksum: u32,
    /// `bg_checksum` as found; encoding computes it.
    pub stored_checksum: u16,
    /// Last word of 64-byte descriptors; zero, kept.
    pub reserved: u32,
}

/// A group descriptor that cannot belong to this file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GroupError {
    /// A block lies outside the file system.
    #[error("group {group}: {what} at block {block}, the file system has blocks {first}..{end}")]
    OutOfRange {
        /// The group.
        group: GroupIndex,
        /// Which block.
        what: &'static str,
        /// Its number.
        block: FsBlock,
        /// First block that may be used.
        first: u32,
        /// The block behind the last one.
        end: u64,
    },
    /// A count is larger than the group.
    #[error("group {group}: {what} is {found}, more than {limit}")]
    TooMany {
        /// The group.
        group: GroupIndex,
        /// Which count.
        what: &'static str,
        /// The count.
        found: u32,
        /// Largest value.
        limit: u32,
    },
    /// The checksum does not match.
    #[error("group {group}: {source}")]
    Checksum {
        /// The group.
        group: GroupIndex,
        /// Both values.
        source: ChecksumError,
    },
}

/// The things that the checksum of descriptors depends on. Taken from the superblock once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GroupChecksum {
    /// No checksum, and the flags mean nothing.
    None,
    /// crc16 over UUID, group and descriptor (`uninit_bg`).
    Crc16 {
        /// `s_uuid`.
        uuid: [u8; 16],
    },
    /// crc32c, of which the low 16 bits are stored (`metadata_csum`).
    Crc32c {
        /// [`Superblock::checksum_seed`].
        seed: u32,
    },
}

impl GroupChecksum {
    /// The kind this file system uses.
    pub fn of(superblock: &Superblock) -> GroupChecksum {
        if superblock.features.metadata_csum() {
            GroupChecksum::Crc32c { seed: superblock.checksum_seed() }
        } else if superblock.features.has_ro_compat(RoCompat::GDT_CSUM) {
            GroupChecksum::Crc16 { uuid: superblock.uuid }
        } else {
            GroupChecksum::None
        }
    }

    /// The checksum of a stored descriptor, `bytes` being exactly `s_desc_size` long. 0 without
    /// checksums.
    pub fn compute(&self, group: GroupIndex, bytes: &[u8]) -> u16 {
        const AT: usize = offset_of!(RawGroupDescriptor, bg_checksum);
        let before = bytes.get(..AT).unwrap_or(bytes);
        let after = bytes.get(AT.saturating_add(2)..).unwrap_or(&[]);
        match self {
            GroupChecksum::None => 0,
            GroupChecksum::Crc16 { uuid } => {
                // The field itself is left out here, while crc32c takes it as zeroes.
                let crc = crc16(CRC16_INIT, uuid);
                crc16(crc16(crc16(crc, &group.0.to_le_bytes()), before), after)
            }
            GroupChecksum::Crc32c { seed } => {
                let crc = crc32c(crc32c_u32(*seed, group.0), before);
                split32(crc32c(crc32c_zeros(crc, 2), after)).0.get()
            }
        }
    }
}

impl GroupDescriptor {
    /// Decodes one descriptor; `bytes` is exactly `s_desc_size` long, 32 or at least 64.
    ///
    /// # Errors
    ///
    /// [`LengthError`] below 32 bytes.
    pub fn decode(bytes: &[u8]) -> Result<GroupDescriptor, LengthError> {
        let short = LengthError { structure: "group descriptor", wanted: 32, found: bytes.len() };
        let (low, rest) = RawGroupDescriptor::read_from_prefix(bytes).map_err(|_| short)?;
        let high = RawGroupDescriptorHigh::read_from_prefix(rest)
            .map_or(RawGroupDescriptorHigh::default(), |(high, _)| high);
        let block = |low: U32, high: U32| u64::from(low.get()) | (u64::from(high.get()) << 32);
        Ok(GroupDescriptor {
            block_bitmap: FsBlock(block(low.bg_block_bitmap_lo, high.bg_block_bitmap_hi)),
            inode_bitmap: FsBlock(block(low.bg_inode_bitmap_lo, high.bg_inode_bitmap_hi)),
            inode_table: FsBlock(block(low.bg_inode_table_lo, high.bg_inode_table_hi)),
            free_clusters: join32(low.bg_free_blocks_count_lo, high.bg_free_blocks_count_hi),
            free_inodes: join32(low.bg_free_inodes_count_lo, high.bg_free_inodes_count_hi),
            directories: join32(low.bg_used_dirs_count_lo, high.bg_used_dirs_count_hi),
            itable_unused: join32(low.bg_itable_unused_lo, high.bg_itable_unused_hi),
            flags: GroupFlags::from_bits_retain(low.bg_flags.get()),
            exclude_bitmap: block(low.bg_exclude_bitmap_lo, high.bg_exclude_bitmap_hi),
            block_bitmap_checksum: join32(
                low.bg_block_bitmap_csum_lo,
                high.bg_block_bitmap_csum_hi,
            ),
            inode_bitmap_checksum: join32(
                low.bg_inode_bitmap_csum_lo,
                high.bg_inode_bitmap_csum_hi,
            ),
            stored_checksum: low.bg_checksum.get(),
            reserved: high.bg_reserved.get(),
        })
    }

    /// Writes the descriptor of `group` with its checksum into `bytes`, which is exactly
    /// `s_desc_size` long. High halves are dropped at 32 bytes; bytes past 64 keep what they hold.
    ///
    /// # Errors
    ///
    /// [`LengthError`] below 32 bytes.
    pub fn encode(
        &self,
        group: GroupIndex,
        checksum: &GroupChecksum,
        bytes: &mut [u8],
    ) -> Result<(), LengthError> {
        let halves = |value: u64| {
            let [a, b, c, d, e, f, g, h] = value.to_le_bytes();
            (U32::from_bytes([a, b, c, d]), U32::from_bytes([e, f, g, h]))
        };
        let mut low = RawGroupDescriptor::default();
        let mut high = RawGroupDescriptorHigh::default();
        (low.bg_block_bitmap_lo, high.bg_block_bitmap_hi) = halves(self.block_bitmap.0);
        (low.bg_inode_bitmap_lo, high.bg_inode_bitmap_hi) = halves(self.inode_bitmap.0);
        (low.bg_inode_table_lo, high.bg_inode_table_hi) = halves(self.inode_table.0);
        (low.bg_free_blocks_count_lo, high.bg_free_blocks_count_hi) = split32(self.free_clusters);
        (low.bg_free_inodes_count_lo, high.bg_free_inodes_count_hi) = split32(self.free_inodes);
        (low.bg_used_dirs_count_lo, high.bg_used_dirs_count_hi) = split32(self.directories);
        (low.bg_itable_unused_lo, high.bg_itable_unused_hi) = split32(self.itable_unused);
        (low.bg_exclude_bitmap_lo, high.bg_exclude_bitmap_hi) = halves(self.exclude_bitmap);
        (low.bg_block_bitmap_csum_lo, high.bg_block_bitmap_csum_hi) =
            split32(self.block_bitmap_checksum);
        (low.bg_inode_bitmap_csum_lo, high.bg_inode_bitmap_csum_hi) =
            split32(self.inode_bitmap_checksum);
        low.bg_flags = U16::new(self.flags.bits());
        low.bg_checksum = U16::new(self.stored_checksum);
        high.bg_reserved = U32::new(self.reserved);

        let found = bytes.len();
        let short = LengthError { structure: "group descriptor", wanted: 32, found };
        let (first, rest) = bytes.split_at_mut_checked(32).ok_or(short)?;
        first.copy_from_slice(low.as_bytes());
        if let Some(second) = rest.first_chunk_mut::<32>() {
            second.copy_from_slice(high.as_bytes());
        }
        if *checksum != GroupChecksum::None {
            let sum = checksum.compute(group, bytes).to_le_bytes();
            put(bytes, offset_of!(RawGroupDescriptor, bg_checksum), &sum).ok_or(short)?;
        }
        Ok(())
    }

    /// Checks the stored checksum of one descriptor.
    ///
    /// # Errors
    ///
    /// [`GroupError::Checksum`] with both values.
    pub fn verify_checksum(
        group: GroupIndex,
        checksum: &GroupChecksum,
        bytes: &[u8],
    ) -> Result<(), GroupError> {
        if *checksum == GroupChecksum::None {
            return Ok(());
        }
        let stored = u16_at(bytes, offset_of!(RawGroupDescriptor, bg_checksum));
        let computed = checksum.compute(group, bytes);
        ChecksumError::check(
            "group descriptor",
            u32::from(stored.unwrap_or(0)),
            u32::from(computed),
        )
        .map_err(|source| GroupError::Checksum { group, source })
    }

    /// Checks that bitmaps and table lie inside the file system and no count exceeds the group.
    ///
    /// # Errors
    ///
    /// [`GroupError::OutOfRange`], [`GroupError::TooMany`].
    pub fn check(&self, group: GroupIndex, superblock: &Superblock) -> Result<(), GroupError> {
        let first = superblock.first_data_block;
        let end = superblock.blocks_count;
        let places = [
            ("block bitmap", self.block_bitmap, 1),
            ("inode bitmap", self.inode_bitmap, 1),
            ("inode table", self.inode_table, superblock.inode_table_blocks()),
        ];
        for (what, block, len) in places {
            let fits = block.checked_add(u64::from(len)).is_some_and(|last| last.0 <= end);
            if block.0 <= u64::from(first) || !fits {
                return Err(GroupError::OutOfRange { group, what, block, first, end });
            }
        }
        let inodes = superblock.inodes_per_group;
        let counts = [
            ("free cluster count", self.free_clusters, superblock.group_clusters(group)),
            ("free inode count", self.free_inodes, inodes),
            ("directory count", self.directories, inodes),
            ("count of unused inodes", self.itable_unused, inodes),
        ];
        for (what, found, limit) in counts {
            if found > limit {
                return Err(GroupError::TooMany { group, what, found, limit });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    #[test]
    fn both_sizes_keep_what_they_can() {
        let descriptor = GroupDescriptor {
            block_bitmap: FsBlock(0x1234_5678_9abc),
            inode_bitmap: FsBlock(0x2234_5678_9abc),
            inode_table: FsBlock(0x3234_5678_9abc),
            free_clusters: 0x1_0002,
            free_inodes: 0x3_0004,
            directories: 0x5_0006,
            itable_unused: 0x7_0008,
            flags: GroupFlags::INODE_UNINIT | GroupFlags::from_bits_retain(0x8000),
            exclude_bitmap: 0x9_0000_000a,
            block_bitmap_checksum: 0x0bad_cafe,
            inode_bitmap_checksum: 0xfeed_beef,
            stored_checksum: 0x4242,
            reserved: 77,
        };
        let mut wide = [0xffu8; 128];
        descriptor.encode(GroupIndex(3), &GroupChecksum::None, &mut wide).unwrap();
        assert_eq!(GroupDescriptor::decode(&wide), Ok(descriptor));
        assert!(wide[64..].iter().all(|byte| *byte == 0xff));

        let mut small = [0u8; 32];
        descriptor.encode(GroupIndex(3), &GroupChecksum::None, &mut small).unwrap();
        let back = GroupDescriptor::decode(&small).unwrap();
        assert_eq!((back.free_clusters, back.inode_table), (2, FsBlock(0x5678_9abc)));
        assert!(GroupDescriptor::decode(&small[..31]).is_err());
        assert!(descriptor.encode(GroupIndex(0), &GroupChecksum::None, &mut [0; 31]).is_err());
    }

    #[test]
    fn every_checksum_kind_notices_every_flipped_bit() {
        let kinds = [GroupChecksum::Crc16 { uuid: [7; 16] }, GroupChecksum::Crc32c { seed: 99 }];
        for kind in kinds {
            for size in [32usize, 64, 128] {
                let mut bytes = vec![0x5a; size];
                let descriptor = GroupDescriptor::decode(&bytes).unwrap();
                descriptor.encode(GroupIndex(9), &kind, &mut bytes).unwrap();
                GroupDescriptor::verify_checksum(GroupIndex(9), &kind, &bytes).unwrap();
                assert!(
                    GroupDescriptor::verify_checksum(GroupIndex(8), &kind, &bytes).is_err(),
                    "the group number is part of the checksum"
                );
                for bit in 0..size * 8 {
                    bytes[bit / 8] ^= 1 << (bit % 8);
                    assert!(
                        GroupDescriptor::verify_checksum(GroupIndex(9), &kind, &bytes).is_err(),
                        "bit {bit} of {size} bytes, {kind:?}"
                    );
                    bytes[bit / 8] ^= 1 << (bit % 8);
                }
            }
        }
    }
}
