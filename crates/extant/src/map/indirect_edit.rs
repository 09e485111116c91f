//! Changes of block pointers: the map code of `extant-format` in a transaction.

use std::sync::Arc;

use extant_base::{BlockSize, FsBlock};
use extant_format::indirect::{self, IndirectFault, PointerStore, ROOT_BYTES};

use super::extent_edit::{Held, release_block, reserve_blocks};
use crate::error::{Fault, FsError, Result};
use crate::node::Node;
use crate::slot::BlockKind;
use crate::txn::Txn;

/// The map of one inode, in a transaction.
pub(super) struct Pointers<'a, 'v> {
    txn: &'a mut Txn<'v>,
    node: &'a Arc<Node>,
    /// Goal for new pointer blocks.
    goal: FsBlock,
    /// Whether something was written, so that an error leaves the change incomplete.
    pub(super) changed: bool,
}

impl<'a, 'v> Pointers<'a, 'v> {
    pub(super) fn new(
        txn: &'a mut Txn<'v>,
        node: &'a Arc<Node>,
        goal: FsBlock,
    ) -> Pointers<'a, 'v> {
        Pointers { txn, node, goal, changed: false }
    }
}

impl PointerStore for Pointers<'_, '_> {
    type Error = FsError;
    type Bytes = Held;

    fn root(&mut self) -> Result<[u8; ROOT_BYTES]> {
        Ok(self.node.with(|data| data.record.block))
    }

    fn set_root(&mut self, root: &[u8; ROOT_BYTES]) -> Result<()> {
        self.changed = true;
        self.txn.update(self.node, |data| data.set_block_area(*root))
    }

    fn read(&mut self, block: FsBlock) -> Result<Held> {
        let volume = self.txn.volume();
        volume.check_file_blocks("indirect block pointer", self.node.ino(), None, block, 1)?;
        volume.read_block(block).map(Held)
    }

    fn edit(&mut self, block: FsBlock, change: impl FnOnce(&mut [u8])) -> Result<()> {
        self.changed = true;
        self.txn.edit_block(block, BlockKind::Plain, change)
    }

    fn create(&mut self, block: FsBlock) -> Result<()> {
        self.changed = true;
        self.txn.create_block(block, BlockKind::Plain, |_| ())
    }

    fn reserve(&mut self, count: usize) -> Result<Vec<FsBlock>> {
        let blocks = reserve_blocks(self.txn, self.node, self.goal, count)?;
        // The allocator keeps files without extents below 2^32; otherwise this is the last chance
        // to refuse.
        let Some(high) = blocks.iter().find(|block| u32::try_from(block.0).is_err()) else {
            return Ok(blocks);
        };
        let error = self.fault(IndirectFault::DeviceBlock { block: high.0 });
        for block in blocks {
            release_block(self.txn, self.node, block).map_err(|broken| self.txn.fail(broken))?;
        }
        Err(error)
    }

    fn free(&mut self, block: FsBlock) -> Result<()> {
        self.changed = true;
        release_block(self.txn, self.node, block)
    }

    fn size(&self) -> BlockSize {
        self.txn.volume().block_size()
    }

    fn fault(&self, fault: IndirectFault) -> FsError {
        if let IndirectFault::PastMap { .. } = fault {
            let size = self.size();
            let limit = indirect::max_file_blocks(size).saturating_mul(u64::from(size.bytes()));
            let bytes = limit.saturating_add(1);
            return FsError::TooLarge { ino: self.node.ino(), bytes, limit };
        }
        FsError::corrupt("block pointers", self.node.ino(), None, Fault::Decode(Box::new(fault)))
    }
}
