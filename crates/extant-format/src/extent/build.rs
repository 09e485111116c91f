//! Encoding nodes, and building whole trees from the leaves up.

use super::{
    DEPTH_MAX, Extent, ExtentFault, Index, MAGIC, RECORD_BYTES, ROOT_BYTES, ROOT_RECORDS,
    RawHeader, max_in_block, seal,
};
use crate::le;
use alloc::vec;
use alloc::vec::Vec;
use extant_base::{BlockSize, FileBlock, FsBlock};
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

/// A whole extent tree, ready to be stored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BuiltTree {
    /// For `i_block`.
    pub root: [u8; ROOT_BYTES],
    /// The other nodes: where, and the whole block with its checksum.
    pub blocks: Vec<(FsBlock, Vec<u8>)>,
}

/// Returns how many blocks outside the inode the tree of `extents` extents needs; `None` when even
/// the deepest tree is too small (far more extents than a file has blocks).
///
/// ```
/// # use extant_base::BlockSize;
/// # use extant_format::extent::tree_blocks;
/// let size = BlockSize::new(4096).unwrap();
/// assert_eq!(tree_blocks(4, size), Some(0)); // in the inode
/// assert_eq!(tree_blocks(5, size), Some(1)); // one leaf node
/// assert_eq!(tree_blocks(341, size), Some(2));
/// assert_eq!(tree_blocks(340 * 4 + 1, size), Some(5 + 1)); // five leaf nodes under one index
/// ```
#[must_use]
pub fn tree_blocks(extents: u64, size: BlockSize) -> Option<u64> {
    let per_block = u64::from(max_in_block(size));
    let mut records = extents;
    let mut total = 0u64;
    for _depth in 0..=DEPTH_MAX {
        if records <= u64::from(ROOT_RECORDS) {
            return Some(total);
        }
        records = records.div_ceil(per_block);
        total = total.saturating_add(records);
    }
    None
}

/// Builds the tree of `extents`, with full nodes.
///
/// `extents` are in file order and do not overlap. `seed` is the inode's checksum seed when the
/// file system has `metadata_csum`. `next_block` is called [`tree_blocks`] times: leaf nodes
/// first, in file order, then each level above.
///
/// # Errors
///
/// Those of `next_block`, and `Order` or a fault of [`Extent::encode`] for a list that no tree can
/// hold.
pub fn build<E: From<ExtentFault>>(
    extents: &[Extent],
    size: BlockSize,
    seed: Option<u32>,
    mut next_block: impl FnMut() -> Result<FsBlock, E>,
) -> Result<BuiltTree, E> {
    let mut root = [0; ROOT_BYTES];
    let mut blocks = Vec::new();
    if extents.len() <= usize::from(ROOT_RECORDS) {
        encode_node(&mut root, ROOT_RECORDS, 0, extents)?;
        return Ok(BuiltTree { root, blocks });
    }
    check_order(extents)?;
    let mut level = encode_level(extents, 0, size, seed, &mut next_block, &mut blocks)?;
    for depth in 1..=DEPTH_MAX {
        if level.len() <= usize::from(ROOT_RECORDS) {
            encode_node(&mut root, ROOT_RECORDS, depth, &level)?;
            return Ok(BuiltTree { root, blocks });
        }
        level = encode_level(&level, depth, size, seed, &mut next_block, &mut blocks)?;
    }
    let records = u64::from(le::narrow(extents.len()));
    Err(E::from(ExtentFault::TooMany { records, capacity: u64::from(ROOT_RECORDS) }))
}

/// One level of nodes, and the index records that point to them.
fn encode_level<R: Record, E: From<ExtentFault>>(
    records: &[R],
    depth: u16,
    size: BlockSize,
    seed: Option<u32>,
    next_block: &mut impl FnMut() -> Result<FsBlock, E>,
    blocks: &mut Vec<(FsBlock, Vec<u8>)>,
) -> Result<Vec<Index>, E> {
    let max = max_in_block(size);
    let mut above = Vec::with_capacity(records.len().div_ceil(usize::from(max)));
    for part in records.chunks(usize::from(max)) {
        let mut bytes = vec![0; size.len()];
        encode_node(&mut bytes, max, depth, part)?;
        if let Some(seed) = seed {
            seal(seed, &mut bytes);
        }
        let child = next_block()?;
        let file_start = part.first().map_or(FileBlock(0), Record::file_start);
        above.push(Index { file_start, child });
        blocks.push((child, bytes));
    }
    Ok(above)
}

/// Encodes a root of depth 0 from `extents`, or of depth 1 and more from `indexes`.
///
/// Depth 0 when `depth` is 0; then `indexes` is not looked at, and otherwise `extents` is not.
pub fn encode_root(
    depth: u16,
    extents: &[Extent],
    indexes: &[Index],
) -> Result<[u8; ROOT_BYTES], ExtentFault> {
    let mut root = [0; ROOT_BYTES];
    if depth > DEPTH_MAX {
        return Err(ExtentFault::Depth { found: depth, wanted: DEPTH_MAX });
    }
    if depth == 0 {
        encode_node(&mut root, ROOT_RECORDS, 0, extents)?;
    } else {
        encode_node(&mut root, ROOT_RECORDS, depth, indexes)?;
    }
    Ok(root)
}

/// The root of a tree that maps nothing.
pub fn empty_root() -> [u8; ROOT_BYTES] {
    let mut root = [0; ROOT_BYTES];
    // The header alone: magic, no entries, room for four, depth 0, generation 0.
    for (to, from) in root.iter_mut().zip([0x0a, 0xf3, 0, 0, 4]) {
        *to = from;
    }
    root
}

/// Encodes a node into a whole block, with its checksum when there is a `seed`.
///
/// Leaf records from `extents` when `depth` is 0, else index records from `indexes`. Bytes that
/// no record uses become zero.
pub fn encode_block(
    block: &mut [u8],
    size: BlockSize,
    seed: Option<u32>,
    depth: u16,
    extents: &[Extent],
    indexes: &[Index],
) -> Result<(), ExtentFault> {
    let found = block.len();
    let block = block.get_mut(..size.len()).ok_or(ExtentFault::Short { found })?;
    block.fill(0);
    if depth == 0 {
        encode_node(block, max_in_block(size), 0, extents)?;
    } else {
        encode_node(block, max_in_block(size), depth, indexes)?;
    }
    if let Some(seed) = seed {
        seal(seed, block);
    }
    Ok(())
}

/// A leaf or index record.
trait Record {
    fn file_start(&self) -> FileBlock;
    /// The first file block at which the next record may start.
    fn file_end(&self) -> FileBlock;
    fn put(&self, to: &mut [u8]) -> Result<(), ExtentFault>;
}

impl Record for Extent {
    fn file_start(&self) -> FileBlock {
        self.file_start
    }
    fn file_end(&self) -> FileBlock {
        Extent::file_end(self)
    }
    fn put(&self, to: &mut [u8]) -> Result<(), ExtentFault> {
        to.copy_from_slice(self.encode()?.as_bytes());
        Ok(())
    }
}

impl Record for Index {
    fn file_start(&self) -> FileBlock {
        self.file_start
    }
    fn file_end(&self) -> FileBlock {
        FileBlock(self.file_start.0.saturating_add(1))
    }
    fn put(&self, to: &mut [u8]) -> Result<(), ExtentFault> {
        to.copy_from_slice(self.encode()?.as_bytes());
        Ok(())
    }
}

/// X1 of a list.
fn check_order<R: Record>(records: &[R]) -> Result<(), ExtentFault> {
    let mut limit = FileBlock(0);
    for (record, entry) in records.iter().enumerate() {
        let found = entry.file_start();
        if found < limit {
            return Err(ExtentFault::Order { record: le::narrow(record), found, limit });
        }
        limit = entry.file_end();
    }
    Ok(())
}

/// Header and records into `bytes`, which is zeroed.
fn encode_node<R: Record>(
    bytes: &mut [u8],
    max: u16,
    depth: u16,
    records: &[R],
) -> Result<(), ExtentFault> {
    let found = bytes.len();
    let entries = u16::try_from(records.len()).ok().filter(|entries| *entries <= max);
    let entries = entries.ok_or(ExtentFault::TooMany {
        records: u64::from(le::narrow(records.len())),
        capacity: u64::from(max),
    })?;
    if depth > 0 && entries == 0 {
        return Err(ExtentFault::EmptyIndex { depth });
    }
    check_order(records)?;
    let header = RawHeader {
        eh_magic: U16::new(MAGIC),
        eh_entries: U16::new(entries),
        eh_max: U16::new(max),
        eh_depth: U16::new(depth),
        eh_generation: U32::new(0),
    };
    let mut places = bytes.chunks_exact_mut(RECORD_BYTES);
    places.next().ok_or(ExtentFault::Short { found })?.copy_from_slice(header.as_bytes());
    for record in records {
        record.put(places.next().ok_or(ExtentFault::Short { found })?)?;
    }
    Ok(())
}
