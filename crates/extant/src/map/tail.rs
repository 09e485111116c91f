//! The end of an extent tree, for appends.
//!
//! # Place
//!
//! Beside `edit` and `publish`, for one case of theirs: blocks directly behind the last ones, in
//! the file and on the device. Then one record changes its length, and finding it needs no search.

use std::sync::Arc;

use extant_base::{BlockCount, FsBlock};
use extant_format::checksum::inode_seed;
use extant_format::extent::{self, Extent};

use super::extent_edit::read_node;
use crate::error::{Fault, FsError, Result};
use crate::node::{InodeData, Node};
use crate::slot::BlockKind;
use crate::txn::Txn;
use crate::volume::Volume;

/// The last extent of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tail {
    pub(crate) extent: Extent,
    /// The block of the leaf with the extent; `None` for the inode.
    leaf: Option<FsBlock>,
}

/// The root of an inode's tree.
enum Root {
    Leaf(Extent),
    Index { child: FsBlock, depth: u16, generation: u32 },
}

/// Returns the last extent of a file that is mapped by extents, if no whole block has to be decoded
/// for that: the nodes on the way were decoded, and changed, before. `None` otherwise, and for a
/// file without extents.
pub(crate) fn tail(volume: &Volume, node: &Node) -> Option<Tail> {
    let root = node.with(|data| {
        let root = extent::Node::decode_root(&data.record.block).ok()?;
        if root.depth() == 0 {
            return extent::last_extent(&data.record.block).map(Root::Leaf);
        }
        let child = extent::last_child(&data.record.block)?;
        Some(Root::Index { child, depth: root.depth(), generation: data.record.generation })
    });
    let (mut child, depth, generation) = match root? {
        Root::Leaf(extent) => return Some(Tail { extent, leaf: None }),
        Root::Index { child, depth, generation } => (child, depth, generation),
    };
    let seed = inode_seed(volume.checksum_seed(), node.ino(), generation);
    for _ in 1..depth {
        let bytes = read_node(volume, node.ino(), seed, child).ok()?;
        child = extent::last_child(bytes.bytes()).filter(|_| bytes.is_ours())?;
    }
    let bytes = read_node(volume, node.ino(), seed, child).ok()?;
    let extent = extent::last_extent(bytes.bytes()).filter(|_| bytes.is_ours())?;
    Some(Tail { extent, leaf: Some(child) })
}

/// Makes the last extent longer by allocated blocks, and changes the inode with `also`, in one
/// update. The map has not changed since [`tail`].
///
/// Credits: the inode, and the leaf.
///
/// # Errors
///
/// Damage, device errors: the journal is aborted.
pub(crate) fn lengthen(
    txn: &mut Txn<'_>,
    node: &Arc<Node>,
    tail: &Tail,
    by: BlockCount,
    also: impl FnOnce(&mut InodeData),
) -> Result<()> {
    let broken = |block: Option<FsBlock>, fault| {
        FsError::corrupt("extent node", node.ino(), block, Fault::Decode(Box::new(fault)))
    };
    let Some(leaf) = tail.leaf else {
        let done = txn.update(node, |data| {
            also(data);
            data.lengthen_root(by)
        });
        let done = done.and_then(|done| done.map_err(|fault| broken(None, fault)));
        return done.map_err(|error| txn.fail(error));
    };
    let volume = txn.volume();
    let kind = match volume.has_metadata_csum() {
        true => {
            let generation = node.with(|data| data.record.generation);
            let seed = inode_seed(volume.checksum_seed(), node.ino(), generation);
            BlockKind::ExtentNode { seed }
        }
        false => BlockKind::Plain,
    };
    let done = txn.edit_block(leaf, kind, |bytes| extent::lengthen_last(bytes, by));
    volume.extent_nodes().outdate(&(node.ino(), leaf));
    let done = done.and_then(|done| done.map_err(|fault| broken(Some(leaf), fault)));
    done.and_then(|()| txn.update(node, also)).map_err(|error| txn.fail(error))
}
