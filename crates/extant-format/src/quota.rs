//! Quota files: usage and limits of each user, group or project, format 2 revision 1.
//!
//! # Shape
//!
//! The hidden quota inodes hold a file of 1 KiB blocks, whatever the block size of the file system:
//!
//! ```text
//! block 0: header (8 bytes), info (24 bytes)
//! block 1: root of a tree over the four bytes of the id, most significant first
//!
//! root[a] -> block[b] -> block[c] -> block[d] -> leaf: header (16 bytes), 14 records of 72 bytes
//! ```
//!
//! A tree block is 256 block numbers, 0 meaning none. Leaves are shared: several ids lead to the
//! same one, which is searched for the id. A record of all zeroes is free; the record of id 0 with
//! nothing in it is stored with an inode grace time of 1 to tell it apart.
//!
//! # Bounds
//!
//! Decoding looks at each tree block at most once, so that a loop ends as an error, and returns at
//! most 256 records per block of the file.
//!
//! # Source
//!
//! Linux `fs/quota/quotaio_v2.h`, `fs/quota/quota_tree.h` (the formats);
//! `Documentation/filesystems/ext4/super.rst`, `s_usr_quota_inum`.

mod decode;
mod encode;
mod place;

pub use place::{
    HEADER_BYTES, LEAF_RECORDS, LEVELS, QuotaHeader, QuotaLeaf, RECORD_BYTES, ROOT_BLOCK,
    record_offset, tree_slot,
};

use core::mem::{offset_of, size_of};

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a block of a quota file.
pub const QUOTA_BLOCK_BYTES: usize = 1024;
/// Seconds of grace that mke2fs sets: one week.
pub const DEFAULT_GRACE: u32 = 7 * 24 * 3600;
/// Unit of block limits in bytes.
pub const LIMIT_UNIT_BYTES: u64 = 1024;
/// Block of the tree's root.
const ROOT: u32 = 1;
/// Levels of tree blocks.
const DEPTH: usize = 4;
/// Records of a leaf.
const RECORDS: usize = (QUOTA_BLOCK_BYTES - size_of::<RawLeafHeader>()) / size_of::<RawQuota>();
const _: () = assert!(RECORDS == 14);

/// Header and info, as stored: 32 bytes, little-endian.
///
/// | offset | bytes | field | meaning |
/// |-------:|------:|-------|---------|
/// | `0x00` | 4 | `dqh_magic` | [`QuotaKind`] |
/// | `0x04` | 4 | `dqh_version` | 1 |
/// | `0x08` | 4 | `dqi_bgrace` | seconds above the soft block limit |
/// | `0x0c` | 4 | `dqi_igrace` | seconds above the soft inode limit |
/// | `0x10` | 4 | `dqi_flags` | flags |
/// | `0x14` | 4 | `dqi_blocks` | blocks of the file |
/// | `0x18` | 4 | `dqi_free_blk` | head of the list of free blocks |
/// | `0x1c` | 4 | `dqi_free_entry` | head of the list of leaves with a free record |
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
struct RawHeader {
    dqh_magic: U32,
    dqh_version: U32,
    dqi_bgrace: U32,
    dqi_igrace: U32,
    dqi_flags: U32,
    dqi_blocks: U32,
    dqi_free_blk: U32,
    dqi_free_entry: U32,
}

const _: () = assert!(size_of::<RawHeader>() == 32);

/// Start of a leaf, as stored: 16 bytes.
///
/// | offset | bytes | field | meaning |
/// |-------:|------:|-------|---------|
/// | `0x0` | 4 | `dqdh_next_free` | next leaf with a free record |
/// | `0x4` | 4 | `dqdh_prev_free` | the one before |
/// | `0x8` | 2 | `dqdh_entries` | records in use |
/// | `0xa` | 6 | `dqdh_pad` | zero |
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug, Default)]
#[repr(C)]
struct RawLeafHeader {
    dqdh_next_free: U32,
    dqdh_prev_free: U32,
    dqdh_entries: U16,
    dqdh_pad1: U16,
    dqdh_pad2: U32,
}

const _: () = assert!(size_of::<RawLeafHeader>() == 16);

/// One record, as stored: 72 bytes.
///
/// | offset | bytes | field | meaning |
/// |-------:|------:|-------|---------|
/// | `0x00` | 4 | `dqb_id` | user, group or project |
/// | `0x04` | 4 | `dqb_pad` | zero |
/// | `0x08` | 8 | `dqb_ihardlimit` | inodes at most |
/// | `0x10` | 8 | `dqb_isoftlimit` | inodes that start the grace time |
/// | `0x18` | 8 | `dqb_curinodes` | inodes in use |
/// | `0x20` | 8 | `dqb_bhardlimit` | KiB at most |
/// | `0x28` | 8 | `dqb_bsoftlimit` | KiB that start the grace time |
/// | `0x30` | 8 | `dqb_curspace` | bytes in use |
/// | `0x38` | 8 | `dqb_btime` | end of the grace time for blocks |
/// | `0x40` | 8 | `dqb_itime` | end of the grace time for inodes |
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
struct RawQuota {
    dqb_id: U32,
    dqb_pad: U32,
    dqb_ihardlimit: U64,
    dqb_isoftlimit: U64,
    dqb_curinodes: U64,
    dqb_bhardlimit: U64,
    dqb_bsoftlimit: U64,
    dqb_curspace: U64,
    dqb_btime: U64,
    dqb_itime: U64,
}

const _: () = assert!(size_of::<RawQuota>() == 72);
const _: () = assert!(offset_of!(RawQuota, dqb_curspace) == 0x30);

/// The kind of owner whose usage a quota file counts. The kinds differ by the magic alone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum QuotaKind {
    /// Users: 0xd9c01f11.
    User,
    /// Groups: 0xd9c01927.
    Group,
    /// Projects: 0xd9c03f14.
    Project,
}

impl QuotaKind {
    /// The magic of a file of this kind.
    pub fn magic(self) -> u32 {
        match self {
            QuotaKind::User => 0xd9c0_1f11,
            QuotaKind::Group => 0xd9c0_1927,
            QuotaKind::Project => 0xd9c0_3f14,
        }
    }

    /// The kind with this magic.
    pub fn from_magic(magic: u32) -> Option<QuotaKind> {
        [QuotaKind::User, QuotaKind::Group, QuotaKind::Project]
            .into_iter()
            .find(|kind| kind.magic() == magic)
    }
}

/// Usage and limits of one id.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct QuotaEntry {
    /// User, group or project.
    pub id: u32,
    /// Bytes in use.
    pub space_bytes: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Space at most, in units of [`LIMIT_UNIT_BYTES`]; 0: no limit.
    pub space_hard_limit: u64,
    /// Space that starts the grace time, in units of [`LIMIT_UNIT_BYTES`]; 0: no limit.
    pub space_soft_limit: u64,
    /// Inodes at most; 0: no limit.
    pub inode_hard_limit: u64,
    /// Inodes that start the grace time; 0: no limit.
    pub inode_soft_limit: u64,
    /// When the grace time for space ends, seconds since 1970; 0: it did not start.
    pub space_grace_end: u64,
    /// When the grace time for inodes ends, seconds since 1970; 0: it did not start.
    pub inode_grace_end: u64,
}

/// A whole quota file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QuotaFile {
    /// Whose usage this is.
    pub kind: QuotaKind,
    /// Seconds an id may stay above its soft space limit.
    pub space_grace: u32,
    /// Seconds an id may stay above its soft inode limit.
    pub inode_grace: u32,
    /// `dqi_flags`.
    pub flags: u32,
    /// One entry per id, in order of id.
    pub entries: alloc::vec::Vec<QuotaEntry>,
}

/// The reason why bytes are not a quota file, or entries cannot be one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QuotaError {
    /// Shorter than header and root.
    #[error("quota file: {found} bytes, at least {wanted} needed")]
    Short {
        /// Bytes needed.
        wanted: u64,
        /// Bytes given.
        found: u64,
    },
    /// The magic number is none of the three.
    #[error("quota file: magic {found:#010x} is of no known kind")]
    Magic {
        /// The value found.
        found: u32,
    },
    /// Another revision than 1.
    #[error("quota file: revision {found}, only 1 is known")]
    Version {
        /// The value found.
        found: u32,
    },
    /// A block number points outside the file.
    #[error("quota file: block {block} points to block {to}, the file has {blocks}")]
    OutOfRange {
        /// The tree block.
        block: u32,
        /// Where it points.
        to: u32,
        /// Blocks of the file.
        blocks: u32,
    },
    /// A list of free blocks or leaves begins outside the file.
    #[error("quota file: the list of free {what} begins at block {head}, the file has {blocks}")]
    FreeList {
        /// Blocks or leaves.
        what: &'static str,
        /// Where the list begins.
        head: u32,
        /// Blocks of the file.
        blocks: u32,
    },
    /// A tree block is reached twice.
    #[error("quota file: tree block {block} is reached twice")]
    Loop {
        /// The tree block.
        block: u32,
    },
    /// The tree leads to a leaf that has no record of the id.
    #[error("quota file: leaf {block} has no record of id {id}")]
    Missing {
        /// The leaf.
        block: u32,
        /// The id.
        id: u32,
    },
    /// A leaf has a record to which nothing leads: a second one of its id, or one that the tree does not know.
    #[error("quota file: leaf {block} has a record of id {id} to which nothing leads")]
    Stray {
        /// The leaf.
        block: u32,
        /// The id.
        id: u32,
    },
    /// Entries to encode are not in strictly ascending order of id.
    #[error("quota file: id {id} follows id {after}, ids must ascend")]
    Order {
        /// The id out of order.
        id: u32,
        /// The one before.
        after: u32,
    },
    /// There are more entries than block numbers of 32 bits reach.
    #[error("quota file: too many entries")]
    TooMany,
}

#[cfg(test)]
mod tests;
