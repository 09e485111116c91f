//! Decoding one node, looking things up in it, and its checksum.

use super::{
    DEPTH_MAX, Extent, ExtentFault, Index, MAGIC, RECORD_BYTES, ROOT_BYTES, ROOT_RECORDS,
    RawExtent, RawHeader, RawIndex,
};
use crate::checksum::crc32c;
use crate::error::ChecksumError;
use crate::le;
use extant_base::{BlockCount, BlockSize, FileBlock};
use zerocopy::FromBytes;

/// A node's header, decoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeHeader {
    /// Records in use.
    pub entries: u16,
    /// Records that fit; at least 1.
    pub max: u16,
    /// 0 for leaves.
    pub depth: u16,
    /// `eh_generation`.
    pub generation: u32,
}

/// The claims of a parent about a child: pass them on when decoding the child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expect {
    /// Depth of the child.
    pub depth: u16,
    /// First file block of its first record.
    pub file_start: FileBlock,
    /// First file block that is not the child's any more; 2^32 - 1 for the last child of all.
    pub file_limit: FileBlock,
}

/// The records of a node, by kind.
#[derive(Clone, Copy, Debug)]
pub enum Entries<'a> {
    /// Depth 0.
    Extents(&'a [RawExtent]),
    /// Depth 1 and more.
    Indexes(&'a [RawIndex]),
}

/// A node that obeys X1 to X4, borrowed from its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    header: NodeHeader,
    entries: Entries<'a>,
    file_limit: FileBlock,
}

impl<'a> Node<'a> {
    /// Decodes the root: the 60 bytes of `i_block`.
    pub fn decode_root(i_block: &'a [u8; ROOT_BYTES]) -> Result<Node<'a>, ExtentFault> {
        Self::decode(i_block, ROOT_RECORDS, None)
    }

    /// Decodes a node that has a whole block, found through a parent's index record.
    ///
    /// `expect` comes from [`Node::child`]. Does not look at the checksum: see [`verify`].
    pub fn decode_block(block: &'a [u8], expect: Expect) -> Result<Node<'a>, ExtentFault> {
        Self::decode(block, capacity(block.len()), Some(expect))
    }

    fn decode(
        bytes: &'a [u8],
        capacity: u16,
        expect: Option<Expect>,
    ) -> Result<Node<'a>, ExtentFault> {
        let short = ExtentFault::Short { found: bytes.len() };
        let (raw, records) = RawHeader::ref_from_prefix(bytes).map_err(|_| short)?;
        let header = NodeHeader {
            entries: raw.eh_entries.get(),
            max: raw.eh_max.get(),
            depth: raw.eh_depth.get(),
            generation: raw.eh_generation.get(),
        };
        let NodeHeader { entries: count, max, depth, .. } = header;
        if raw.eh_magic.get() != MAGIC {
            return Err(ExtentFault::Magic { found: raw.eh_magic.get() });
        }
        if max == 0 || max > capacity {
            return Err(ExtentFault::Max { max, capacity });
        }
        if count > max {
            return Err(ExtentFault::Entries { entries: count, max });
        }
        match expect {
            None if depth > DEPTH_MAX => {
                return Err(ExtentFault::Depth { found: depth, wanted: DEPTH_MAX });
            }
            Some(expect) if depth != expect.depth => {
                return Err(ExtentFault::Depth { found: depth, wanted: expect.depth });
            }
            _ => {}
        }
        if depth > 0 && count == 0 {
            return Err(ExtentFault::EmptyIndex { depth });
        }
        let count = usize::from(count);
        let entries = if depth == 0 {
            let (list, _) =
                <[RawExtent]>::ref_from_prefix_with_elems(records, count).map_err(|_| short)?;
            Entries::Extents(list)
        } else {
            let (list, _) =
                <[RawIndex]>::ref_from_prefix_with_elems(records, count).map_err(|_| short)?;
            Entries::Indexes(list)
        };
        let file_limit = expect.map_or(FileBlock(u32::MAX), |expect| expect.file_limit);
        let node = Node { header, entries, file_limit };
        node.check_order(expect)?;
        Ok(node)
    }

    /// X1 and X2; and X4 of each leaf record.
    fn check_order(&self, expect: Option<Expect>) -> Result<(), ExtentFault> {
        let mut first = None;
        let mut limit = FileBlock(0);
        let mut step = |record: usize, start: FileBlock, end: FileBlock| {
            if start < limit {
                let record = le::narrow(record);
                return Err(ExtentFault::Order { record, found: start, limit });
            }
            first.get_or_insert(start);
            limit = end;
            Ok(())
        };
        match self.entries {
            Entries::Extents(list) => {
                for (record, raw) in list.iter().enumerate() {
                    let extent = raw.decode()?;
                    step(record, extent.file_start, extent.file_end())?;
                }
            }
            Entries::Indexes(list) => {
                for (record, raw) in list.iter().enumerate() {
                    let index = raw.decode();
                    // A child holds at least one block, so the next starts at least one later.
                    let (file_start, len) = (index.file_start, BlockCount(1));
                    let end = file_start
                        .checked_add(len)
                        .ok_or(ExtentFault::PastLastFileBlock { file_start, len })?;
                    step(record, file_start, end)?;
                }
            }
        }
        if let (Some(found), Some(expect)) = (first, expect) {
            if found != expect.file_start {
                return Err(ExtentFault::IndexStart { found, wanted: expect.file_start });
            }
            if limit > expect.file_limit {
                let (end, limit) = (u64::from(limit.0), u64::from(expect.file_limit.0));
                return Err(ExtentFault::PastParent { end, limit });
            }
        }
        Ok(())
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> NodeHeader {
        self.header
    }

    /// Levels below this node; 0 for a leaf node.
    #[must_use]
    pub fn depth(&self) -> u16 {
        self.header.depth
    }

    /// The records as stored, by kind.
    #[must_use]
    pub fn entries(&self) -> Entries<'a> {
        self.entries
    }

    /// The extents in order; none when this is an index node.
    pub fn extents(&self) -> impl DoubleEndedIterator<Item = Extent> + Clone + 'a {
        let list: &'a [RawExtent] = match self.entries {
            Entries::Extents(list) => list,
            Entries::Indexes(_) => &[],
        };
        // Every record was decoded once by `decode`, so nothing is dropped here.
        list.iter().filter_map(|raw| raw.decode().ok())
    }

    /// The children in order, each with what to expect of it; none when this is a leaf node.
    pub fn children(&self) -> impl Iterator<Item = (Index, Expect)> + Clone + use<'a> {
        let count = match self.entries {
            Entries::Extents(_) => 0,
            Entries::Indexes(list) => list.len(),
        };
        let node = *self;
        (0..count).filter_map(move |record| node.child(record))
    }

    /// Child number `record` and what to expect of it.
    #[must_use]
    pub fn child(&self, record: usize) -> Option<(Index, Expect)> {
        let Entries::Indexes(list) = self.entries else { return None };
        let index = list.get(record)?.decode();
        let next = record.checked_add(1).and_then(|next| list.get(next));
        let expect = Expect {
            depth: self.header.depth.saturating_sub(1),
            file_start: index.file_start,
            file_limit: next.map_or(self.file_limit, |next| next.decode().file_start),
        };
        Some((index, expect))
    }

    /// The extent of a leaf node that covers `block`; `None` in a hole. O(log n).
    #[must_use]
    pub fn find(&self, block: FileBlock) -> Option<Extent> {
        let extent = self.at_or_before(block)?;
        (block < extent.file_end()).then_some(extent)
    }

    /// The last extent of a leaf node that starts at or before `block`.
    #[must_use]
    pub fn at_or_before(&self, block: FileBlock) -> Option<Extent> {
        let Entries::Extents(list) = self.entries else { return None };
        let after = list.partition_point(|raw| raw.ee_block.get() <= block.0);
        list.get(after.checked_sub(1)?)?.decode().ok()
    }

    /// The position of the only child that may cover `block`, for [`Node::child`]; `None` when
    /// `block` lies before the first child. O(log n).
    #[must_use]
    pub fn find_child(&self, block: FileBlock) -> Option<usize> {
        let Entries::Indexes(list) = self.entries else { return None };
        list.partition_point(|raw| raw.ei_block.get() <= block.0).checked_sub(1)
    }
}

/// Records that fit in a node of `bytes` bytes.
fn capacity(bytes: usize) -> u16 {
    let records = (bytes / RECORD_BYTES).saturating_sub(1);
    u16::try_from(records).unwrap_or(u16::MAX)
}

/// Records that fit in a node that has a block to itself: 84 for 1 KiB, 340 for 4 KiB, 5460 for
/// 64 KiB. The rest of the block, 4 or 8 bytes for every block size, holds the checksum.
#[must_use]
pub fn max_in_block(size: BlockSize) -> u16 {
    capacity(size.len())
}

/// Returns where the checksum of a node block is: just after the place of its last possible record.
fn tail_at(block: &[u8]) -> Option<usize> {
    let max = usize::from(le::u16_at(block, 4)?);
    max.checked_add(1)?.checked_mul(RECORD_BYTES)
}

/// The checksum of a node block, and what is stored; `None` when `eh_max` leaves no room for it.
///
/// `seed` is the inode's seed ([`crate::checksum::inode_seed`]). The root in the inode has no
/// checksum of its own.
#[must_use]
pub fn checksum(seed: u32, block: &[u8]) -> Option<(u32, u32)> {
    let at = tail_at(block)?;
    Some((le::u32_at(block, at)?, crc32c(seed, block.get(..at)?)))
}

/// Checks the checksum of a node block.
pub fn verify(seed: u32, block: &[u8]) -> Result<(), ChecksumError> {
    // An eh_max that leaves no room for the checksum cannot have a right one.
    let (stored, computed) = checksum(seed, block).unwrap_or((0, u32::MAX));
    ChecksumError::check("extent block", stored, computed)
}

/// Writes the checksum of a node block. Nothing happens when `eh_max` leaves no room for it, which
/// no node of [`super::encode_block`] does.
pub fn seal(seed: u32, block: &mut [u8]) {
    if let (Some(at), Some((_, computed))) = (tail_at(block), checksum(seed, block)) {
        let _fits_by_checksum = le::put(block, at, &computed.to_le_bytes());
    }
}
