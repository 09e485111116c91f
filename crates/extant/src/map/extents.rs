//! Files mapped by an extent tree.

use std::sync::Arc;

use extant_base::{FileBlock, FsBlock, Ino};
use extant_format::checksum::inode_seed;
use extant_format::extent::{self, Expect, ExtentState};

use super::extent_edit::{node_in_memory, read_node};
use super::{FILE_BLOCKS_END, Mapping, MappingKind};
use crate::error::{Fault, FsError, Result};
use crate::extent_node::{ExtentNode, Records};
use crate::fs::Mount;
use crate::view::View;

/// Looks up extents, and remembers the leaf of the last one.
#[derive(Debug, Default)]
pub(super) struct ExtentCursor {
    leaf: Option<Leaf>,
}

#[derive(Debug)]
struct Leaf {
    node: Arc<ExtentNode>,
    /// File blocks that only this leaf can map.
    start: u64,
    end: u64,
}

impl ExtentCursor {
    /// Returns the extent or hole at `at`, from `at` on.
    pub(super) fn piece(&mut self, inode: &View<'_>, at: FileBlock) -> Result<Mapping> {
        let block = u64::from(at.0);
        let reuse = self.leaf.as_ref().is_some_and(|leaf| (leaf.start..leaf.end).contains(&block));
        if !reuse && let Some(hole) = self.descend(inode, at)? {
            return Ok(hole);
        }
        let hole = |end: u64| Mapping { file_start: at, len: end - block, kind: MappingKind::Hole };
        let Some(leaf) = &self.leaf else { return Ok(hole(FILE_BLOCKS_END)) };
        let Records::Leaf(extents) = &leaf.node.records else { return Ok(hole(leaf.end)) };
        let after = extents.partition_point(|extent| extent.file_start <= at);
        if let Some(extent) = after.checked_sub(1).and_then(|last| extents.get(last))
            && let Some(device) = extent.device_block(at)
        {
            let kind = match extent.state {
                ExtentState::Written => MappingKind::Mapped(device),
                ExtentState::Unwritten => MappingKind::Unwritten(device),
            };
            let end = u64::from(extent.file_end().0).min(leaf.end);
            return Ok(Mapping { file_start: at, len: end - block, kind });
        }
        let next = extents.get(after).map_or(leaf.end, |next| u64::from(next.file_start.0));
        Ok(hole(next.min(leaf.end)))
    }

    /// Descends from the root to the leaf for `at` and remembers it; or returns the hole before the
    /// first leaf. At most six nodes: each child's depth is one less than its parent's, which the
    /// decoder checks.
    fn descend(&mut self, inode: &View<'_>, at: FileBlock) -> Result<Option<Mapping>> {
        let block = u64::from(at.0);
        let mut node = inode.extent_root()?;
        let (mut start, mut end) = (0, FILE_BLOCKS_END);
        loop {
            let children = match &node.records {
                Records::Leaf(_) => break,
                Records::Index(children) => children,
            };
            let after = children.partition_point(|(index, _)| index.file_start <= at);
            let Some((index, expect)) = after.checked_sub(1).and_then(|i| children.get(i)) else {
                let first = children.first().map_or(end, |(i, _)| u64::from(i.file_start.0));
                let len = first.min(end) - block;
                return Ok(Some(Mapping { file_start: at, len, kind: MappingKind::Hole }));
            };
            start = u64::from(index.file_start.0);
            // The last child of a node extends to the node's own limit.
            if after < children.len() {
                end = end.min(u64::from(expect.file_limit.0));
            }
            let generation = inode.record().generation;
            node = load(inode.volume(), inode.ino(), generation, index.child, *expect)?;
        }
        self.leaf = Some(Leaf { node, start, end });
        Ok(None)
    }
}

/// Returns the node at `block` of the tree of an inode, from the cache or the device.
pub(super) fn load(
    volume: &Mount,
    ino: Ino,
    generation: u32,
    block: FsBlock,
    expect: Expect,
) -> Result<Arc<ExtentNode>> {
    let key = (ino, block);
    let trace = match volume.extent_nodes().get_or_trace(&key) {
        Ok(node) if node.expect == Some(expect) => return Ok(node),
        Ok(_) => None,
        Err(trace) => Some(trace),
    };
    let seed = inode_seed(volume.checksum_seed(), ino, generation);
    let fail = |fault| FsError::corrupt("extent node", ino, block, fault);
    let node = if volume.is_writable() {
        // The newest version may be in memory only.
        let bytes = read_node(volume, ino, seed, block)?;
        ExtentNode::decode_block(bytes.bytes(), expect)
    } else {
        volume.check_file_blocks("extent index", ino, None, block, 1)?;
        // Decoded nodes have a cache of their own, so the bytes are not cached.
        let bytes = volume.read_block_uncached(block)?;
        if volume.verifies_metadata() {
            extent::verify(seed, &bytes).map_err(|e| fail(Fault::from(e)))?;
        }
        ExtentNode::decode_block(&bytes, expect)
    };
    let node = Arc::new(node.map_err(|fault| fail(Fault::Decode(Box::new(fault))))?);
    // The node is not cached if the block has changed meanwhile.
    if let Some(trace) = trace {
        volume.extent_nodes().insert_since(key, &trace, Arc::clone(&node));
    }
    Ok(node)
}

/// Returns a node like [`load`] if it is in memory, decoded or not, on a writable mount. `None` if
/// it is not, if another thread is changing it, or if it is damaged. The caller holds the lock of
/// the map.
pub(super) fn load_in_memory(
    volume: &Mount,
    ino: Ino,
    generation: u32,
    block: FsBlock,
    expect: Expect,
) -> Option<Arc<ExtentNode>> {
    let key = (ino, block);
    let trace = match volume.extent_nodes().get_or_trace(&key) {
        Ok(node) => return (node.expect == Some(expect)).then_some(node),
        Err(trace) => trace,
    };
    let seed = inode_seed(volume.checksum_seed(), ino, generation);
    let bytes = node_in_memory(volume, ino, seed, block)?;
    let node = Arc::new(ExtentNode::decode_block(bytes.bytes(), expect).ok()?);
    volume.extent_nodes().insert_since(key, &trace, Arc::clone(&node));
    Some(node)
}
