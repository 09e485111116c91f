//! Extent trees: the nodes that map file blocks to device blocks in runs.
//!
//! # Shape
//!
//! ```text
//! inode.i_block, 60 bytes            block 9012                          data
//! +---------+---------+---------+    +---------+------+------+----+
//! | depth 1 | index 0 | index 1 | -> | depth 0 | leaf | leaf |tail| --> 8 blocks at 77120
//! +---------+---------+---------+    +---------+------+------+----+
//! ```
//!
//! A node is a 12-byte header, then up to `eh_max` records of 12 bytes; in a block of its own, a
//! 4-byte checksum follows the place of the last possible record.
//!
//! # Invariants
//!
//! A decoded [`Node`] obeys:
//!
//! - X1. Its records are in order of their first file block and do not overlap.
//! - X2. Below the root, the first record starts where the parent's index record says, and every
//!   record lies before the parent's next index record.
//! - X3. Its depth is one less than its parent's; the root's is at most 5. A walk that passes each
//!   child's [`Expect`] on therefore ends after at most six nodes, whatever the image says.
//! - X4. Every extent has a length of at least one block and ends at or before file block 2^32 - 1.
//!
//! That device blocks exist, are allocated and belong to one file is for the crates above.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/ext4/ifork.rst`, "Extent Tree". X2 is what the kernel checks
//! when it reads a node, and e2fsck calls `PR_1_EXTENT_INDEX_START_INVALID`.

mod build;
mod edit;
mod node;
mod tree;

pub use build::{BuiltTree, build, empty_root, encode_block, encode_root, tree_blocks};
pub use edit::{RecordBytes, init_node, last_child, last_extent, lengthen_last, set_first, splice};
pub use node::{Entries, Expect, Node, NodeHeader, checksum, max_in_block, seal, verify};
pub use tree::{
    Converted, NODE_MAX_MIN, Packed, Remapped, Removed, Shifted, TreeStore, convert_step, insert,
    pack_step, remap_step, remove_step, shift_down_step, shift_up_step, split_at,
};

use core::mem::{offset_of, size_of};
use extant_base::{BlockCount, FileBlock, FsBlock};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// `eh_magic` of every node.
pub const MAGIC: u16 = 0xf30a;
/// Bytes of the root node: the inode's `i_block`.
pub const ROOT_BYTES: usize = 60;
/// Records that fit in the root.
pub const ROOT_RECORDS: u16 = 4;
/// Bytes of a header, of a leaf record and of an index record.
pub const RECORD_BYTES: usize = 12;
/// Deepest root: five levels of index nodes above the leaves.
pub const DEPTH_MAX: u16 = 5;
/// Longest `Written` extent, in blocks. One more than the longest `Unwritten` one, because the
/// stored value 0x8000 means "written, 32768" and not "unwritten, 0".
pub const WRITTEN_LEN_MAX: u32 = 0x8000;
/// Longest `Unwritten` extent, in blocks.
pub const UNWRITTEN_LEN_MAX: u32 = 0x7fff;
/// First device block that 48 bits cannot name.
pub const DEVICE_BLOCK_END: u64 = 1 << 48;

/// Header of a node, as stored: 12 bytes, little-endian.
///
/// | offset | bytes | field           | meaning                                         |
/// |-------:|------:|-----------------|-------------------------------------------------|
/// |  `0x0` |     2 | `eh_magic`      | 0xF30A                                          |
/// |  `0x2` |     2 | `eh_entries`    | records in use                                  |
/// |  `0x4` |     2 | `eh_max`        | records that fit                                |
/// |  `0x6` |     2 | `eh_depth`      | 0: leaf records follow; else index records      |
/// |  `0x8` |     4 | `eh_generation` | free for use by Lustre; 0                       |
///
/// Source: Linux `Documentation/filesystems/ext4/ifork.rst`, table `struct ext4_extent_header`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct RawHeader {
    eh_magic: U16,
    eh_entries: U16,
    eh_max: U16,
    eh_depth: U16,
    eh_generation: U32,
}

const _: () = assert!(size_of::<RawHeader>() == RECORD_BYTES);
const _: () = assert!(offset_of!(RawHeader, eh_depth) == 0x6);
const _: () = assert!(offset_of!(RawHeader, eh_generation) == 0x8);

/// Leaf record, as stored: 12 bytes, little-endian.
///
/// | offset | bytes | field         | meaning                                         |
/// |-------:|------:|---------------|-------------------------------------------------|
/// |  `0x0` |     4 | `ee_block`    | first file block covered                        |
/// |  `0x4` |     2 | `ee_len`      | length *and* state; decode before use           |
/// |  `0x6` |     2 | `ee_start_hi` | bits 32..48 of the first device block           |
/// |  `0x8` |     4 | `ee_start_lo` | bits 0..32 of the first device block            |
///
/// Source: Linux `Documentation/filesystems/ext4/ifork.rst`, table `struct ext4_extent`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct RawExtent {
    ee_block: U32,
    ee_len: U16,
    ee_start_hi: U16,
    ee_start_lo: U32,
}

const _: () = assert!(size_of::<RawExtent>() == RECORD_BYTES);
const _: () = assert!(offset_of!(RawExtent, ee_len) == 0x4);
const _: () = assert!(offset_of!(RawExtent, ee_start_lo) == 0x8);

/// Index record, as stored: 12 bytes, little-endian.
///
/// | offset | bytes | field        | meaning                                          |
/// |-------:|------:|--------------|--------------------------------------------------|
/// |  `0x0` |     4 | `ei_block`   | first file block that the child covers           |
/// |  `0x4` |     4 | `ei_leaf_lo` | bits 0..32 of the child's device block           |
/// |  `0x8` |     2 | `ei_leaf_hi` | bits 32..48 of the child's device block          |
/// |  `0xA` |     2 | `ei_unused`  | not looked at; 0 when encoded                    |
///
/// Source: Linux `Documentation/filesystems/ext4/ifork.rst`, table `struct ext4_extent_idx`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
pub struct RawIndex {
    ei_block: U32,
    ei_leaf_lo: U32,
    ei_leaf_hi: U16,
    ei_unused: U16,
}

const _: () = assert!(size_of::<RawIndex>() == RECORD_BYTES);
const _: () = assert!(offset_of!(RawIndex, ei_leaf_lo) == 0x4);
const _: () = assert!(offset_of!(RawIndex, ei_leaf_hi) == 0x8);

/// The state of blocks: whether they hold this file's data.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ExtentState {
    /// Reads return what is stored.
    Written,
    /// Space is reserved; reads return zeroes and must not look at the device.
    Unwritten,
}

/// A run of file blocks stored on a run of device blocks of the same length.
///
/// One that was decoded has a `len` of 1..=32768 (1..=32767 when unwritten), ends at or before
/// file block 2^32 - 1, and its device blocks are below 2^48. Encoding checks the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Extent {
    /// First file block of the run.
    pub file_start: FileBlock,
    /// First device block of the run.
    pub device_start: FsBlock,
    /// Blocks in the run.
    pub len: BlockCount,
    /// Whether the blocks hold data.
    pub state: ExtentState,
}

/// A pointer to a child node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Index {
    /// First file block that the child covers.
    pub file_start: FileBlock,
    /// Device block of the child, below 2^48.
    pub child: FsBlock,
}

/// A fault in an extent record, a node or a list of extents to be encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExtentFault {
    /// The slice is not a whole block, or not the 60 bytes of a root.
    #[error("extent node of {found} bytes, shorter than its header and one record")]
    Short {
        /// Bytes given.
        found: usize,
    },
    /// `eh_magic` is not 0xF30A.
    #[error("extent node has magic {found:#06x}, not 0xf30a")]
    Magic {
        /// The value found.
        found: u16,
    },
    /// `eh_max` is 0 or more than the node has room for.
    #[error("extent node claims room for {max} records; it has room for 1 to {capacity}")]
    Max {
        /// `eh_max`.
        max: u16,
        /// Records that fit.
        capacity: u16,
    },
    /// `eh_entries` exceeds `eh_max`.
    #[error("extent node claims {entries} records in room for {max}")]
    Entries {
        /// `eh_entries`.
        entries: u16,
        /// `eh_max`.
        max: u16,
    },
    /// An index node without records.
    #[error("extent node of depth {depth} has no records")]
    EmptyIndex {
        /// `eh_depth`.
        depth: u16,
    },
    /// A root deeper than 5, or a child that is not one level below its parent.
    #[error("extent node has depth {found}, wanted {wanted}")]
    Depth {
        /// `eh_depth`.
        found: u16,
        /// What the parent implies; for a root, the greatest depth allowed.
        wanted: u16,
    },
    /// `ee_len` is 0.
    #[error("extent at file block {file_start} has length 0")]
    Empty {
        /// First file block.
        file_start: FileBlock,
    },
    /// A length that its state cannot have. Only when encoding.
    #[error("extent at file block {file_start}: {len} blocks do not fit one {state:?} record")]
    Long {
        /// First file block.
        file_start: FileBlock,
        /// Blocks in the run.
        len: BlockCount,
        /// The state of the extent.
        state: ExtentState,
    },
    /// The run would end after file block 2^32 - 1.
    #[error("extent of {len} blocks at file block {file_start} runs past file block 4294967295")]
    PastLastFileBlock {
        /// First file block.
        file_start: FileBlock,
        /// Blocks in the run.
        len: BlockCount,
    },
    /// A device block above 48 bits, or a run that ends above.
    #[error("device block {block} does not fit 48 bits")]
    DeviceBlock {
        /// First block of the run, or the child.
        block: FsBlock,
    },
    /// A record starts before the end of the one before it.
    #[error("record {record} starts at file block {found}, before {limit} where the last one ends")]
    Order {
        /// Which record of the node or list, from 0.
        record: u32,
        /// The first file block of the record.
        found: FileBlock,
        /// The first file block it could start at.
        limit: FileBlock,
    },
    /// The first record of a child does not start where the parent's index says.
    #[error("extent node starts at file block {found}, its parent says {wanted}")]
    IndexStart {
        /// First file block of the first record.
        found: FileBlock,
        /// `ei_block` of the parent's record.
        wanted: FileBlock,
    },
    /// A record of a child reaches into what the parent's next index covers.
    #[error("extent node reaches file block {end}, its parent gives it up to {limit}")]
    PastParent {
        /// End of the last record.
        end: u64,
        /// First file block of the parent's next record.
        limit: u64,
    },
    /// A new extent covers file blocks that are mapped already. Only when inserting.
    #[error("extent of {len} blocks at file block {file_start} overlaps what is mapped already")]
    Overlap {
        /// First file block.
        file_start: FileBlock,
        /// Blocks in the run.
        len: BlockCount,
    },
    /// There are more records than the node, or the deepest tree, can hold. Only when encoding.
    #[error("{records} extent records do not fit; room for {capacity}")]
    TooMany {
        /// Records given.
        records: u64,
        /// Records that fit.
        capacity: u64,
    },
}

impl RawExtent {
    /// Checks the record on its own (X4).
    pub fn decode(&self) -> Result<Extent, ExtentFault> {
        let file_start = FileBlock(self.ee_block.get());
        let raw = u32::from(self.ee_len.get());
        let (len, state) = match raw.checked_sub(WRITTEN_LEN_MAX) {
            _ if raw == 0 => return Err(ExtentFault::Empty { file_start }),
            None | Some(0) => (BlockCount(raw), ExtentState::Written),
            Some(len) => (BlockCount(len), ExtentState::Unwritten),
        };
        if file_start.checked_add(len).is_none() {
            return Err(ExtentFault::PastLastFileBlock { file_start, len });
        }
        let device_start =
            FsBlock((u64::from(self.ee_start_hi.get()) << 32) | u64::from(self.ee_start_lo.get()));
        check_device_run(device_start, len)?;
        Ok(Extent { file_start, device_start, len, state })
    }
}

impl RawIndex {
    /// The parts of the record; any 12 bytes have a meaning.
    #[must_use]
    pub fn decode(&self) -> Index {
        let child = (u64::from(self.ei_leaf_hi.get()) << 32) | u64::from(self.ei_leaf_lo.get());
        Index { file_start: FileBlock(self.ei_block.get()), child: FsBlock(child) }
    }
}

impl Extent {
    /// First file block after the run. Saturates for a value that encoding would refuse.
    #[must_use]
    pub fn file_end(&self) -> FileBlock {
        FileBlock(self.file_start.0.saturating_add(self.len.0))
    }

    /// The device block of `block`, or `None` when the run does not cover it.
    #[must_use]
    pub fn device_block(&self, block: FileBlock) -> Option<FsBlock> {
        let into = block.0.checked_sub(self.file_start.0)?;
        if into < self.len.0 { self.device_start.checked_add(u64::from(into)) } else { None }
    }

    /// The record as stored.
    ///
    /// # Errors
    ///
    /// `Empty`, `Long`, `PastLastFileBlock`, `DeviceBlock`: a value that no record can hold.
    pub fn encode(&self) -> Result<RawExtent, ExtentFault> {
        let Extent { file_start, device_start, len, state } = *self;
        let (longest, flag) = match state {
            ExtentState::Written => (WRITTEN_LEN_MAX, 0),
            ExtentState::Unwritten => (UNWRITTEN_LEN_MAX, WRITTEN_LEN_MAX),
        };
        if len.0 == 0 {
            return Err(ExtentFault::Empty { file_start });
        }
        if len.0 > longest {
            return Err(ExtentFault::Long { file_start, len, state });
        }
        if file_start.checked_add(len).is_none() {
            return Err(ExtentFault::PastLastFileBlock { file_start, len });
        }
        check_device_run(device_start, len)?;
        let (hi, lo) = split48(device_start)?;
        let ee_len = u16::try_from(len.0 | flag).map_err(|_| ExtentFault::Long {
            file_start,
            len,
            state,
        })?;
        Ok(RawExtent {
            ee_block: U32::new(file_start.0),
            ee_len: U16::new(ee_len),
            ee_start_hi: U16::new(hi),
            ee_start_lo: U32::new(lo),
        })
    }
}

impl Index {
    /// The record as stored. `DeviceBlock` when the child is above 48 bits, `PastLastFileBlock`
    /// when there is no block that the child could cover.
    pub fn encode(&self) -> Result<RawIndex, ExtentFault> {
        let (file_start, len) = (self.file_start, BlockCount(1));
        if file_start.checked_add(len).is_none() {
            return Err(ExtentFault::PastLastFileBlock { file_start, len });
        }
        let (hi, lo) = split48(self.child)?;
        Ok(RawIndex {
            ei_block: U32::new(self.file_start.0),
            ei_leaf_lo: U32::new(lo),
            ei_leaf_hi: U16::new(hi),
            ei_unused: U16::new(0),
        })
    }
}

/// A run must end within 48-bit block numbers: adding within it must not overflow later.
fn check_device_run(block: FsBlock, len: BlockCount) -> Result<(), ExtentFault> {
    match block.checked_add(u64::from(len.0)) {
        Some(end) if end.0 <= DEVICE_BLOCK_END => Ok(()),
        _ => Err(ExtentFault::DeviceBlock { block }),
    }
}

/// Bits 32..48 and bits 0..32.
fn split48(block: FsBlock) -> Result<(u16, u32), ExtentFault> {
    let fault = ExtentFault::DeviceBlock { block };
    let hi = u16::try_from(block.0 >> 32).map_err(|_| fault)?;
    let lo = u32::try_from(block.0 & u64::from(u32::MAX)).map_err(|_| fault)?;
    Ok((hi, lo))
}

#[cfg(test)]
mod tests;
