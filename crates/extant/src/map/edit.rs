//! Changes of maps.

use std::ops::Range;
use std::sync::Arc;

use extant_base::{FileBlock, FsBlock};

use crate::alloc::Purpose;
use crate::error::{FsError, Result};
use crate::inode::InodeData;
use crate::mount::Fs;
use crate::node::Node;
use crate::txn::Txn;
use crate::volume::Volume;

fn missing<T>() -> Result<T> {
    Err(FsError::InvalidArgument { what: "maps cannot be changed yet" })
}

/// Whether the inode has a map with anything in it.
pub(crate) fn has_blocks(data: &InodeData) -> bool {
    data.record.sectors != 0
}

/// Whether all blocks can be freed in one step of a few credits.
pub(crate) fn is_small(data: &InodeData) -> bool {
    data.record.sectors == 0
}

pub(crate) fn append_block(
    _: &mut Txn<'_>,
    _: &Fs,
    _node: &Arc<Node>,
) -> Result<(FileBlock, FsBlock)> {
    missing()
}

/// Maps file block 0 of an empty file to `block`.
pub(crate) fn insert_first(_: &mut Txn<'_>, _node: &Arc<Node>, _block: FsBlock) -> Result<()> {
    missing()
}

pub(crate) fn remove(
    _: &mut Txn<'_>,
    _: &Fs,
    _node: &Arc<Node>,
    _blocks: Range<u64>,
    _was: Purpose,
) -> Result<()> {
    missing()
}

/// Whether a file of this kind can have `size` bytes.
pub(crate) fn check_size(_: &Volume, _data: &InodeData, _size: u64) -> Result<()> {
    missing()
}

pub(crate) fn grow(_: &Fs, _node: &Arc<Node>, _size: u64) -> Result<()> {
    missing()
}

pub(crate) fn shrink(_: &Fs, _node: &Arc<Node>, _size: u64) -> Result<()> {
    missing()
}
