//! What one piece of the step through the inodes found.

use std::collections::BTreeMap;
use std::ops::Range;

use extant_base::Ino;

use crate::tables::{Detail, Run, Whole};

/// An attribute block and its users.
#[derive(Default, Clone)]
pub(crate) struct SharedBlock {
    /// `encryption.c`.
    pub(crate) context: Option<Vec<u8>>,
    pub(crate) stored: u32,
    pub(crate) counted: u32,
    /// Values in inodes: bytes charged and how many.
    pub(crate) value_bytes: u64,
    pub(crate) value_inodes: u32,
    /// What was found in it, among the problems and values of its piece.
    pub(crate) problems: Range<usize>,
    pub(crate) values: Range<usize>,
}

/// A reference to a value in an inode.
pub(crate) struct ValueRef {
    pub(crate) owner: Ino,
    pub(crate) value: Ino,
    pub(crate) len: u32,
    pub(crate) offset: u32,
    pub(crate) stored_hash: u32,
    /// The hash of the name; that of the value is still to be mixed in.
    pub(crate) name_hash: u32,
    /// The same, with bytes of the name taken as signed.
    pub(crate) signed_hash: u32,
}

/// What is stored in the inode of a value.
#[derive(Clone, Copy)]
pub(crate) struct ValueState {
    pub(crate) references: u64,
    pub(crate) hash: u32,
    pub(crate) size: u64,
}

/// Usage by id: bytes and inodes.
pub(crate) type Usage = BTreeMap<u32, (u64, u64)>;

/// What was found in some groups.
#[derive(Default)]
pub(crate) struct Part {
    pub(crate) all: Vec<Whole>,
    pub(crate) details: Vec<Detail>,
    pub(crate) runs: Vec<Run>,
    pub(crate) links: Vec<(u32, u16)>,
    pub(crate) unlinked: Vec<u32>,
    pub(crate) blocks: BTreeMap<u64, SharedBlock>,
    pub(crate) values: Vec<ValueRef>,
    pub(crate) value_states: BTreeMap<u32, ValueState>,
    /// Times of deletion of inodes in use.
    pub(crate) dtimes: BTreeMap<u32, u32>,
    /// Inodes without links whose time of deletion is a possible inode number: they may be orphans.
    pub(crate) low_dtimes: Vec<(Ino, u32, u16)>,
    pub(crate) short_sizes: Vec<(Ino, u64)>,
    pub(crate) policies: BTreeMap<u32, Vec<u8>>,
    pub(crate) usage: [Usage; 3],
    pub(crate) directories: u32,
    pub(crate) value_inodes: u32,
    /// Whether the missing `large_file` was told.
    pub(crate) lacks_large_file: bool,
    /// Blocks of kept runs that something else has, too.
    pub(crate) twice: u64,
    /// Bytes gone through.
    pub(crate) bytes: u64,
}
