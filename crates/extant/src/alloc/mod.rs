//! Which blocks and inodes are free, and who gets them.
//!
//! # Place
//!
//! Below: `txn` and `slot`. Above: `map`, `dir` and `xattr` ask for blocks through
//! [`Txn::allocate`], `namei` for inodes.

use std::sync::Arc;

use extant_base::{FsBlock, GroupIndex, Ino};
use extant_format::group::GroupDescriptor;
use extant_format::inode::FileKind;
use extant_jbd2::{EncodeSink, Tid};

use crate::error::{FsError, Result};
use crate::inode::InodeData;
use crate::node::Node;
use crate::txn::Txn;
use crate::volume::Volume;

/// What blocks are for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Blocks that go through the journal: freeing them revokes their copies in the log.
    Metadata,
    /// Contents of files.
    Data,
}

/// A wish for contiguous blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockAsk {
    /// Where the blocks would best be.
    pub(crate) goal: FsBlock,
    /// How many are wanted.
    pub(crate) len: u32,
    /// The fewest that are of use.
    pub(crate) min: u32,
    /// What for.
    pub(crate) purpose: Purpose,
}

/// Contiguous blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    /// The first one.
    pub(crate) start: FsBlock,
    /// How many.
    pub(crate) len: u32,
}

/// The free space and the free inodes of one writable mount.
pub(crate) struct Allocator {}

impl Allocator {
    pub(crate) fn open(_volume: &Volume) -> Result<Allocator> {
        Ok(Allocator {})
    }

    pub(crate) fn allocate(
        &self,
        _txn: &mut Txn<'_>,
        ask: &BlockAsk,
        _may_use_reserved: bool,
    ) -> Result<Run> {
        Err(FsError::NoSpace { what: "blocks", wanted: u64::from(ask.len), free: 0 })
    }

    pub(crate) fn free(&self, _txn: &mut Txn<'_>, _run: Run, _was: Purpose) -> Result<()> {
        Ok(())
    }

    /// Takes a free inode number for a new inode in `parent`.
    pub(crate) fn allocate_inode(
        &self,
        _txn: &mut Txn<'_>,
        _parent: &InodeData,
        _kind: FileKind,
        _name: &[u8],
    ) -> Result<Ino> {
        Err(FsError::NoSpace { what: "inodes", wanted: 1, free: 0 })
    }

    pub(crate) fn free_inode(&self, _txn: &mut Txn<'_>, _ino: Ino, _is_dir: bool) -> Result<()> {
        Ok(())
    }

    /// Clusters that were freed by transactions not yet committed.
    pub(crate) fn free_pending(&self) -> u64 {
        0
    }

    pub(crate) fn encode(
        &self,
        _volume: &Volume,
        _tid: Tid,
        _sink: &mut EncodeSink<'_>,
    ) -> Result<()> {
        Ok(())
    }

    pub(crate) fn committed(&self, _tid: Tid) {}

    pub(crate) fn aborted(&self) {}

    pub(crate) fn group(&self, volume: &Volume, group: GroupIndex) -> Result<GroupDescriptor> {
        volume.group(group)
    }
}

impl Txn<'_> {
    /// Allocates blocks for an inode: its quotas are charged and its block count raised.
    pub(crate) fn allocate(&mut self, node: &Arc<Node>, ask: &BlockAsk) -> Result<Run> {
        let _ = node;
        let alloc = self.writer().alloc();
        alloc.allocate(self, ask, true)
    }

    /// Gives blocks of an inode back.
    pub(crate) fn release(&mut self, node: &Arc<Node>, run: Run, was: Purpose) -> Result<()> {
        let _ = node;
        let alloc = self.writer().alloc();
        alloc.free(self, run, was)
    }
}
