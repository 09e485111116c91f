//! The index of a large directory: which block holds the names of which hashes.
//!
//! # Shape
//!
//! ```text
//! block 0: "." | ".." (rest of the block) | info | limit count | -> 1 | 3fa0 -> 4 | 9c21 -> 2 |
//! inner node:   free entry (whole block)         | limit count | -> 5 | ...
//! leaves:       linear blocks, entries in any order
//! ```
//!
//! Block 0 is the root and every block of the index looks like free space to whoever knows only
//! linear directories. An index record says "hashes from here on are in that block"; the hash of a
//! node's first record is not stored (its bytes are limit and count) and counts as 0.
//!
//! Bit 0 of a record's hash is a mark, *continued*: the block before ends with names of this very
//! hash, so a search for it must look at both.
//!
//! # Invariants
//!
//! A decoded [`Index`] obeys:
//!
//! - H1. `limit` is exactly what the block has room for; `1 <= count <= limit`.
//! - H2. Hashes ascend; two may be equal only when the second is *continued*.
//! - H3. Block numbers are not 0 and lie in the directory.
//! - H4. The root has a known hash and at most one level of inner nodes; two with `large_dir`.
//!
//! H4 bounds every walk, whatever the records point to.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/ext4/directory.rst`, "Hash Tree Directories".

mod edit;
mod leaf;
mod node;
mod plan;

pub use edit::{grow_root, insert_record, set_root_parent, split_node};
pub use leaf::{LeafSplit, compact, split_leaf};
pub use node::{Index, IndexLayout, NodePlace, Record, Root, checksum, seal, verify};
pub use plan::{HtreePlan, IndexOptions, PlannedEntry};

use crate::dir::DirFault;
use extant_base::FileBlock;

/// Bytes before the records of a root: `.`, `..` and the info.
pub const ROOT_RECORDS_AT: usize = 32;
/// Bytes before the records of an inner node: one free entry.
pub const NODE_RECORDS_AT: usize = 8;
/// Bytes of a record.
pub const RECORD_BYTES: usize = 8;
/// Bytes of the checksum behind the last possible record.
pub const TAIL_BYTES: usize = 8;
/// Levels of inner nodes under the root, at most.
pub const LEVELS_MAX: u8 = 1;
/// Levels of inner nodes under the root with the `large_dir` feature, at most.
pub const LEVELS_MAX_LARGE_DIR: u8 = 2;

/// A fault in a block of an index, or in the entries of a directory to be built.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HtreeFault {
    /// The slice is not a whole block.
    #[error("directory index block of {found} bytes, the block size is {wanted}")]
    Length {
        /// Bytes given.
        found: usize,
        /// The block size.
        wanted: usize,
    },
    /// The entries that disguise the block are not those of a root, or of an inner node.
    #[error("directory index block does not begin like {wanted}")]
    Disguise {
        /// "a root" or "an inner node".
        wanted: &'static str,
    },
    /// Fields of the root's info that must be 0, or a length that is not 8.
    #[error("directory index root: reserved {reserved}, info length {info_length}, flags {flags}")]
    Info {
        /// `reserved_zero`, must be 0.
        reserved: u32,
        /// `info_length`, must be 8.
        info_length: u8,
        /// `unused_flags`; bit 0 must be 0.
        flags: u8,
    },
    /// The hash is not one that may be on disk, or does not fit a directory of this kind.
    #[error("directory index root has hash version {version}")]
    HashVersion {
        /// `hash_version`.
        version: u8,
    },
    /// The index has more inner levels than the features allow.
    #[error("directory index has {levels} inner levels, at most {allowed} allowed")]
    Levels {
        /// `indirect_levels`.
        levels: u8,
        /// What the features allow.
        allowed: u8,
    },
    /// `limit` is not what the block has room for.
    #[error("directory index block says room for {found} records, it has room for {wanted}")]
    Limit {
        /// `limit`.
        found: u16,
        /// The right value.
        wanted: u16,
    },
    /// `count` is 0 or above `limit`.
    #[error("directory index block claims {count} records in room for {limit}")]
    Count {
        /// `count`.
        count: u16,
        /// `limit`.
        limit: u16,
    },
    /// Hashes do not ascend.
    #[error("directory index record {record} has hash {found:#010x}, after {before:#010x}")]
    Order {
        /// Which record, or entry of the list to be built, from 0.
        record: u32,
        /// The hash of the record.
        found: u32,
        /// The hash before.
        before: u32,
    },
    /// A block number of 0, or past the end of the directory.
    #[error("directory index record {record} points to block {block} of {blocks}")]
    Block {
        /// Which record.
        record: u32,
        /// Where it points.
        block: FileBlock,
        /// Blocks of the directory.
        blocks: u32,
    },
    /// There are more entries than the index can be made to hold.
    #[error("{leaves} directory blocks need an index deeper than {allowed} inner levels")]
    TooLarge {
        /// Leaf blocks needed.
        leaves: u64,
        /// Inner levels that the features allow.
        allowed: u8,
    },
    /// The entries given are not those that were planned.
    #[error("entry {entry} of the directory is not the one that was planned")]
    NotAsPlanned {
        /// Which entry, from 0.
        entry: u64,
    },
    /// An entry that may not be stored, or a fault of a leaf.
    #[error(transparent)]
    Entry(#[from] DirFault),
}
