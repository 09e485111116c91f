//! Extended attributes: in the inode, in a block of their own, or with values in inodes.
//!
//! # Shape
//!
//! ```text
//! inode:  | 128 + extra_isize | magic | entry | entry | 0 |  ...free...  | value | value |
//! block:  | header, 32 bytes          | entry | entry | 0 |  ...free...  | value | value |
//! ```
//!
//! Entries grow from the front and values from the back; four zero bytes end the list of entries.
//! Offsets of values count from the first entry in an inode, and from the start of the block in a
//! block. Names are stored without their prefix, which a small number stands for ([`NameIndex`]).
//! Blocks are shared by files with equal attributes: the header has a reference count and a hash
//! for finding them.
//!
//! A value may be in an inode of its own (feature `ea_inode`): then `e_value_inum` is that inode
//! and `e_value_offs` is 0. Such an inode is a regular file of mode 0600 with the flag
//! `EXT4_EA_INODE_FL`; `i_atime` holds the value's hash ([`value_hash`]), and `i_ctime` and the
//! inode's version hold the upper and lower half of its reference count.
//!
//! # Invariants
//!
//! A decoded [`XattrArea`] obeys:
//!
//! - V1. Entries and end mark lie in the area; names hold no NUL.
//! - V2. Each value lies behind the end mark and within the area, and no two share a byte.
//! - V3. A value in the area is at most the area long; one in an inode at most 16 MiB.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/ext4/attributes.rst`.

mod area;
mod edit;
mod hash;
mod name;
mod place;

pub use area::{
    BLOCK_HEADER_BYTES, BlockHeader, INODE_HEADER_BYTES, Value, XattrArea, XattrEntry,
    decode_block, decode_inode, verify_block,
};
pub use edit::{Attribute, AttributeSet, Stored};
pub use hash::{
    block_hash, checksum, entry_hash, entry_hash_for_inode, entry_hash_for_inode_signed,
    entry_hash_matches, entry_hash_signed, seal, value_hash,
};
pub use name::{NameIndex, join, split};
pub use place::{Home, NewXattr, Placed, Placement, Space, encode_block, encode_inode, place};

/// `h_magic` and the magic of the inode's area.
pub const MAGIC: u32 = 0xea02_0000;
/// Bytes of an entry before its name.
pub const ENTRY_BYTES: usize = 16;
/// Longest name without its prefix, in bytes.
pub const NAME_MAX: usize = 255;
/// Largest value in an inode of its own, in bytes.
pub const VALUE_MAX: u32 = 1 << 24;

/// Bytes of an entry with a name of `name_len` bytes, a multiple of 4.
#[must_use]
pub fn entry_bytes(name_len: usize) -> usize {
    ENTRY_BYTES.saturating_add(name_len).saturating_add(3) & !3
}

/// Bytes that a value of `len` bytes takes in an area, a multiple of 4.
#[must_use]
pub fn value_bytes(len: usize) -> usize {
    len.saturating_add(3) & !3
}

/// A fault in stored attributes, or in those to be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum XattrFault {
    /// The slice is not a whole block, or too short for a header.
    #[error("attribute area of {found} bytes, at least {wanted} needed")]
    Length {
        /// Bytes given.
        found: usize,
        /// Bytes needed.
        wanted: usize,
    },
    /// The block's magic is wrong.
    #[error("attribute block has magic {found:#010x}, not 0xea020000")]
    Magic {
        /// The value found.
        found: u32,
    },
    /// `h_blocks` is not 1.
    #[error("attribute block says it has {found} blocks; only 1 is allowed")]
    Blocks {
        /// `h_blocks`.
        found: u32,
    },
    /// An entry or the end mark does not fit the area (V1).
    #[error("attribute entry at byte {offset} does not fit its area of {area} bytes")]
    PastArea {
        /// Where the entry starts.
        offset: u32,
        /// Bytes of the area.
        area: u32,
    },
    /// A name with a NUL in it (V1).
    #[error("attribute entry at byte {offset} has a NUL in its name")]
    Name {
        /// Where the entry starts; 0 when encoding.
        offset: u32,
    },
    /// A value outside the room behind the entries (V2).
    #[error(
        "attribute entry at byte {offset}: value of {len} bytes at byte {at} is not in the area"
    )]
    Value {
        /// Where the entry starts.
        offset: u32,
        /// `e_value_offs`.
        at: u32,
        /// `e_value_size`.
        len: u32,
    },
    /// Two values share bytes (V2).
    #[error("the attribute values at bytes {first} and {second} overlap")]
    Overlap {
        /// Where one starts.
        first: u32,
        /// Where the other starts.
        second: u32,
    },
    /// A value above 16 MiB (V3).
    #[error("attribute value of {len} bytes, at most {max} allowed", max = VALUE_MAX)]
    ValueLength {
        /// Its length.
        len: u64,
    },
    /// A name longer than 255 bytes. Only when encoding.
    #[error("attribute name of {found} bytes, at most 255 allowed")]
    NameLength {
        /// Its length.
        found: usize,
    },
    /// The same name is there twice. Only when encoding.
    #[error("two attributes have the same name")]
    Duplicate,
    /// There is more than inode and block can hold. Only when encoding.
    #[error("attributes of {wanted} bytes do not fit: {inode} in the inode, {block} in a block")]
    NoRoom {
        /// Bytes of all entries and values.
        wanted: u64,
        /// Bytes that the inode has for them.
        inode: u32,
        /// Bytes that a block has for them.
        block: u32,
    },
    /// An attribute whose value goes into an inode was encoded without that inode's number. Only
    /// when encoding.
    #[error("attribute number {xattr} needs the inode of its value")]
    NoValueInode {
        /// The position of the attribute in the list given to `place`.
        xattr: usize,
    },
}

#[cfg(test)]
mod tests;
