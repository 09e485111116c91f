//! Changes of extent trees: the tree code of `extant-format` in a transaction.

use std::sync::Arc;

use extant_base::FsBlock;
use extant_format::checksum::inode_seed;
use extant_format::extent::{self, ExtentFault, ROOT_BYTES, TreeStore};
use extant_format::inode::InodeFlags;

use crate::alloc::{BlockAsk, Purpose, Run};
use crate::error::{Fault, FsError, Result};
use crate::node::Node;
use crate::slot::{BlockKind, MetaBlock};
use crate::txn::Txn;

/// A version of a block, for the code of the format.
pub(super) struct Held(pub(super) Arc<MetaBlock>);

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// The tree of one inode, in a transaction.
pub(super) struct Tree<'a, 'v> {
    txn: &'a mut Txn<'v>,
    node: &'a Arc<Node>,
    seed: u32,
    /// Goal for new nodes.
    goal: FsBlock,
    /// Whether something was written, so that an error leaves the change incomplete.
    pub(super) changed: bool,
}

impl<'a, 'v> Tree<'a, 'v> {
    pub(super) fn new(txn: &'a mut Txn<'v>, node: &'a Arc<Node>, goal: FsBlock) -> Tree<'a, 'v> {
        let generation = node.with(|data| data.record.generation);
        let seed = inode_seed(txn.volume().checksum_seed(), node.ino(), generation);
        Tree { txn, node, seed, goal, changed: false }
    }

    fn kind(&self) -> BlockKind {
        match self.txn.volume().has_metadata_csum() {
            true => BlockKind::ExtentNode { seed: self.seed },
            false => BlockKind::Plain,
        }
    }

    fn drop_decoded(&self, block: FsBlock) {
        self.txn.volume().extent_nodes().outdate(&(self.node.ino(), block));
    }
}

/// Allocates single blocks for a map, all or none. When the transaction publishes stored data, the
/// owner's quota does not limit them.
pub(super) fn reserve_blocks(
    txn: &mut Txn<'_>,
    node: &Arc<Node>,
    goal: FsBlock,
    count: usize,
) -> Result<Vec<FsBlock>> {
    if count > 0 {
        // Each block needs credits for its bitmap and descriptor, and the node that is split.
        // Operations reserve for the usual splits; deeper ones are refused before they start.
        let credits = 4 * u32::try_from(count).unwrap_or(u32::MAX).min(1 << 16);
        if !txn.has_room(credits) {
            let (what, wanted) = ("journal blocks for one change", u64::from(credits));
            return Err(FsError::NoSpace { what, wanted, free: 0 });
        }
    }
    let mut blocks = Vec::with_capacity(count.min(64));
    for _ in 0..count {
        let ask = BlockAsk { goal, len: 1, min: 1, purpose: Purpose::Metadata, continues: false };
        let taken = crate::volume::check_sectors(txn.volume(), node);
        match taken.and_then(|()| txn.allocate(node, &ask)) {
            Err(FsError::QuotaExceeded { .. }) if txn.is_publishing() => {
                blocks.push(allocate_over_quota(txn, node, &ask)?);
            }
            Ok(run) => blocks.push(run.start),
            Err(error) => {
                for block in blocks {
                    release_block(txn, node, block).map_err(|broken| txn.fail(broken))?;
                }
                return Err(error);
            }
        }
    }
    Ok(blocks)
}

/// Allocates a block that is charged to the inode's owner regardless of limits.
fn allocate_over_quota(txn: &mut Txn<'_>, node: &Arc<Node>, ask: &BlockAsk) -> Result<FsBlock> {
    let extents = node.with(|data| data.record.flags.contains(InodeFlags::EXTENTS));
    let end = if extents { u64::MAX } else { 1 << 32 };
    let right = txn.right();
    let run = txn.writer().alloc().allocate(txn, ask, right, end)?;
    let sectors = u64::from(run.len) * u64::from(txn.volume().block_size().bytes() / 512);
    let charged = txn.writer().quotas().charge_blocks_unchecked(txn, node, sectors);
    let counted = charged.and_then(|()| txn.update(node, |data| data.record.sectors += sectors));
    counted.map_err(|error| txn.fail(error))?;
    Ok(run.start)
}

/// Frees a block that [`reserve_blocks`] took; with `bigalloc`, its whole cluster.
pub(super) fn release_block(txn: &mut Txn<'_>, node: &Arc<Node>, block: FsBlock) -> Result<()> {
    let len = txn.volume().superblock().cluster_ratio().max(1);
    // A power of two.
    let start = FsBlock(block.0 & !(u64::from(len) - 1));
    txn.release(node, Run { start, len }, Purpose::Metadata)
}

impl TreeStore for Tree<'_, '_> {
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
        read_node(self.txn.volume(), self.node.ino(), self.seed, block).map(Held)
    }

    fn edit(
        &mut self,
        block: FsBlock,
        change: impl FnOnce(&mut [u8]) -> Result<(), ExtentFault>,
    ) -> Result<()> {
        self.changed = true;
        let kind = self.kind();
        let changed = self.txn.edit_block(block, kind, change)?;
        self.drop_decoded(block);
        changed.map_err(|fault| self.fault(Some(block), fault))
    }

    fn create(
        &mut self,
        block: FsBlock,
        fill: impl FnOnce(&mut [u8]) -> Result<(), ExtentFault>,
    ) -> Result<()> {
        self.changed = true;
        let kind = self.kind();
        let filled = self.txn.create_block(block, kind, fill)?;
        self.drop_decoded(block);
        filled.map_err(|fault| self.fault(Some(block), fault))
    }

    fn reserve(&mut self, count: usize) -> Result<Vec<FsBlock>> {
        reserve_blocks(self.txn, self.node, self.goal, count)
    }

    fn free(&mut self, block: FsBlock) -> Result<()> {
        self.changed = true;
        self.drop_decoded(block);
        release_block(self.txn, self.node, block)
    }

    fn node_max(&self) -> u16 {
        extent::max_in_block(self.txn.volume().block_size())
    }

    fn fault(&self, block: Option<FsBlock>, fault: ExtentFault) -> FsError {
        FsError::corrupt("extent node", self.node.ino(), block, Fault::Decode(Box::new(fault)))
    }
}

/// Returns the current version of a node block, with its number and its checksum verified.
pub(super) fn read_node(
    volume: &crate::volume::Volume,
    ino: extant_base::Ino,
    seed: u32,
    block: FsBlock,
) -> Result<Arc<MetaBlock>> {
    volume.check_file_blocks("extent index", ino, None, block, 1)?;
    verified(volume, ino, seed, volume.read_block(block)?)
}

/// Returns a node block like [`read_node`], if it is in memory, on a writable mount.
pub(super) fn node_in_memory(
    volume: &crate::volume::Volume,
    ino: extant_base::Ino,
    seed: u32,
    block: FsBlock,
) -> Option<Arc<MetaBlock>> {
    volume.check_file_blocks("extent index", ino, None, block, 1).ok()?;
    verified(volume, ino, seed, volume.block_in_memory(block)?).ok()
}

fn verified(
    volume: &crate::volume::Volume,
    ino: extant_base::Ino,
    seed: u32,
    bytes: Arc<MetaBlock>,
) -> Result<Arc<MetaBlock>> {
    if volume.verifies_metadata() {
        let verify = |bytes: &[u8]| extent::verify(seed, bytes).map_err(Fault::from);
        bytes
            .verify_once(ino, verify)
            .map_err(|fault| FsError::corrupt("extent node", ino, bytes.number(), fault))?;
    }
    Ok(bytes)
}
