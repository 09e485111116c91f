//! Roots and inner nodes: decode, search, encode, checksum.

use super::{
    HtreeFault, LEVELS_MAX, LEVELS_MAX_LARGE_DIR, NODE_RECORDS_AT, RECORD_BYTES, ROOT_RECORDS_AT,
    TAIL_BYTES,
};
use crate::checksum::{crc32c, crc32c_zeros};
use crate::dir::{DirLayout, decode_rec_len, encode_rec_len};
use crate::error::ChecksumError;
use crate::hash::HashVersion;
use crate::le;
use extant_base::{FileBlock, Ino};

/// Bits of a record's block number that are one; the upper four are reserved.
pub(super) const BLOCK_MASK: u32 = 0x0fff_ffff;
/// Where the info of a root starts: behind two entries of 12 bytes.
pub(super) const INFO_AT: usize = 24;
const INFO_BYTES: u8 = 8;

/// The layout of the index blocks of one directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexLayout {
    /// The layout of the directory's linear blocks.
    pub dir: DirLayout,
    /// Feature `large_dir`: one more level of inner nodes.
    pub large_dir: bool,
    /// The superblock says that names hash as unsigned bytes.
    pub unsigned_hash: bool,
}

/// The place of a block in an index: the root or an inner node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodePlace {
    /// Block 0.
    Root,
    /// Any other block of the index.
    Inner,
}

impl NodePlace {
    pub(super) fn records_at(self) -> usize {
        match self {
            NodePlace::Root => ROOT_RECORDS_AT,
            NodePlace::Inner => NODE_RECORDS_AT,
        }
    }
}

impl IndexLayout {
    /// Records that a node has room for: 507 and 510 for 4 KiB with checksums.
    #[must_use]
    pub fn limit(&self, place: NodePlace) -> u16 {
        let tail = if self.dir.checksum { TAIL_BYTES } else { 0 };
        let room =
            self.dir.block_size.len().saturating_sub(place.records_at()).saturating_sub(tail);
        u16::try_from(room / RECORD_BYTES).unwrap_or(u16::MAX)
    }

    /// Levels of inner nodes that the features allow.
    #[must_use]
    pub fn levels_max(&self) -> u8 {
        if self.large_dir { LEVELS_MAX_LARGE_DIR } else { LEVELS_MAX }
    }
}

/// One record: where hashes from some value on are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Record {
    /// Smallest hash in the block, even; 0 for the first record of a node.
    pub hash: u32,
    /// The block before ends with names of this hash.
    pub continued: bool,
    /// The leaf or inner node, as a block of the directory.
    pub block: FileBlock,
}

impl Record {
    pub(super) fn raw_hash(self) -> u32 {
        (self.hash & !1) | u32::from(self.continued)
    }
}

/// The records of a node, checked (H1 to H3), borrowed from its block.
#[derive(Clone, Copy, Debug)]
pub struct Index<'a> {
    /// `count` records; the hash of the first one is limit and count.
    records: &'a [[u8; RECORD_BYTES]],
    limit: u16,
}

/// A root.
#[derive(Clone, Copy, Debug)]
pub struct Root<'a> {
    /// How names are hashed, signedness included.
    pub hash: HashVersion,
    /// Levels of inner nodes; 0 when the root's records point to leaves.
    pub levels: u8,
    /// What `..` says.
    pub parent: Ino,
    /// The records.
    pub index: Index<'a>,
}

impl<'a> Root<'a> {
    /// Decodes block 0 of a directory whose inode has the index flag; `blocks` is the number of
    /// blocks of the directory. Does not look at the checksum: see [`verify`].
    ///
    /// An index is only a help: when this fails, the directory may still be read as a list.
    pub fn decode(
        block: &'a [u8],
        layout: &IndexLayout,
        blocks: u32,
    ) -> Result<Root<'a>, HtreeFault> {
        let root = Self::peek(block, layout)?;
        root.index.check(blocks)?;
        Ok(root)
    }

    /// Like [`Root::decode`], for a block that was decoded before: the records are not looked at
    /// one by one, so that this takes no longer for many than for few. H2 and H3 are the caller's.
    pub fn peek(block: &'a [u8], layout: &IndexLayout) -> Result<Root<'a>, HtreeFault> {
        let size = layout.dir.block_size;
        check_length(block, layout)?;
        let disguise = HtreeFault::Disguise { wanted: "a root" };
        let rec_len = |at| le::u16_at(block, at).map(|raw| decode_rec_len(raw, size));
        let dots_fit = rec_len(4) == Some(12)
            && rec_len(16) == size.bytes().checked_sub(12)
            && block.get(6) == Some(&1)
            && block.get(8) == Some(&b'.')
            && block.get(18) == Some(&2)
            && block.get(20..22) == Some(b"..".as_slice());
        let info = block.get(INFO_AT..).and_then(|rest| rest.first_chunk::<8>());
        let (true, Some(info)) = (dots_fit, info) else { return Err(disguise) };
        let [z0, z1, z2, z3, version, info_length, levels, flags] = *info;
        let reserved = u32::from_le_bytes([z0, z1, z2, z3]);
        if reserved != 0 || info_length != INFO_BYTES || flags & 1 != 0 {
            return Err(HtreeFault::Info { reserved, info_length, flags });
        }
        let hash = HashVersion::from_disk(version, layout.unsigned_hash)
            .filter(|hash| (*hash == HashVersion::SipHash) == layout.dir.stored_hash)
            .ok_or(HtreeFault::HashVersion { version })?;
        let allowed = layout.levels_max();
        if levels > allowed {
            return Err(HtreeFault::Levels { levels, allowed });
        }
        let parent = Ino(le::u32_at(block, 12).ok_or(disguise)?);
        let index = Index::peek(block, layout, NodePlace::Root)?;
        Ok(Root { hash, levels, parent, index })
    }
}

impl<'a> Index<'a> {
    /// Decodes an inner node; `blocks` is the number of blocks of the directory.
    pub fn decode_inner(
        block: &'a [u8],
        layout: &IndexLayout,
        blocks: u32,
    ) -> Result<Index<'a>, HtreeFault> {
        let index = Self::peek_inner(block, layout)?;
        index.check(blocks)?;
        Ok(index)
    }

    /// Like [`Index::decode_inner`], for a block that was decoded before: see [`Root::peek`].
    pub fn peek_inner(block: &'a [u8], layout: &IndexLayout) -> Result<Index<'a>, HtreeFault> {
        check_length(block, layout)?;
        let size = layout.dir.block_size;
        let free = le::u32_at(block, 0) == Some(0);
        let whole = le::u16_at(block, 4).map(|raw| decode_rec_len(raw, size));
        if !free || whole != Some(size.bytes()) {
            return Err(HtreeFault::Disguise { wanted: "an inner node" });
        }
        Self::peek(block, layout, NodePlace::Inner)
    }

    fn peek(
        block: &'a [u8],
        layout: &IndexLayout,
        place: NodePlace,
    ) -> Result<Index<'a>, HtreeFault> {
        let wanted = layout.limit(place);
        let at = place.records_at();
        let limit = le::u16_at(block, at).unwrap_or(0);
        if limit != wanted {
            return Err(HtreeFault::Limit { found: limit, wanted });
        }
        let count = le::u16_at(block, at.saturating_add(2)).unwrap_or(0);
        let records = block.get(at..).unwrap_or(&[]).as_chunks::<RECORD_BYTES>().0;
        let records = match records.get(..usize::from(count)) {
            Some(records) if count >= 1 && count <= limit => records,
            _ => return Err(HtreeFault::Count { count, limit }),
        };
        Ok(Index { records, limit })
    }

    /// H2 and H3, for a directory of `blocks` blocks.
    fn check(&self, blocks: u32) -> Result<(), HtreeFault> {
        let mut before = 0;
        for (position, record) in self.iter().enumerate() {
            let number = le::narrow(position);
            let found = record.raw_hash();
            let ascends = found > before || (found == before && record.continued);
            if position > 0 && !ascends {
                return Err(HtreeFault::Order { record: number, found, before });
            }
            if record.block.0 == 0 || record.block.0 >= blocks {
                return Err(HtreeFault::Block { record: number, block: record.block, blocks });
            }
            before = found;
        }
        Ok(())
    }

    /// Number of records, at least 1.
    #[must_use]
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Always false; here because `len` is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Returns whether no record can be added.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.records.len() >= usize::from(self.limit)
    }

    /// Record number `position`.
    #[must_use]
    pub fn get(&self, position: usize) -> Option<Record> {
        let [h0, h1, h2, h3, b0, b1, b2, b3] = *self.records.get(position)?;
        let raw = if position == 0 { 0 } else { u32::from_le_bytes([h0, h1, h2, h3]) };
        let block = FileBlock(u32::from_le_bytes([b0, b1, b2, b3]) & BLOCK_MASK);
        Some(Record { hash: raw & !1, continued: raw & 1 == 1, block })
    }

    /// The records in order.
    pub fn iter(&self) -> impl Iterator<Item = Record> + use<'a> {
        let index = *self;
        (0..index.records.len()).filter_map(move |position| index.get(position))
    }

    /// The position of the first block that may hold names of major hash `hash`. O(log n).
    ///
    /// Names of this hash may go on in the next block: whether they do, says [`Index::goes_on`].
    #[must_use]
    pub fn find(&self, hash: u32) -> usize {
        let rest = self.records.get(1..).unwrap_or(&[]);
        // The raw value: `hash` is even, so a continued record of the same hash lies after it.
        rest.partition_point(|[h0, h1, h2, h3, ..]| {
            u32::from_le_bytes([*h0, *h1, *h2, *h3]) <= hash & !1
        })
    }

    /// Returns whether names of major hash `hash`, not found in the block at `position`, may be in
    /// the next one of this node. At the last position the answer is the parent's next record:
    /// `None`.
    #[must_use]
    pub fn goes_on(&self, position: usize, hash: u32) -> Option<bool> {
        let next = self.get(position.checked_add(1)?)?;
        Some(next.continued && next.hash == hash & !1)
    }

    /// Encodes a root over a whole block. The first record's hash is not stored.
    ///
    /// `seed` is the directory inode's seed, looked at only when the layout has checksums.
    pub fn encode_root(
        block: &mut [u8],
        layout: &IndexLayout,
        (dir, parent): (Ino, Ino),
        hash: HashVersion,
        levels: u8,
        records: impl ExactSizeIterator<Item = Record>,
        seed: Option<u32>,
    ) -> Result<(), HtreeFault> {
        check_length(block, layout)?;
        let allowed = layout.levels_max();
        if levels > allowed {
            return Err(HtreeFault::Levels { levels, allowed });
        }
        if (hash == HashVersion::SipHash) != layout.dir.stored_hash {
            return Err(HtreeFault::HashVersion { version: hash.on_disk() });
        }
        block.fill(0);
        let kind = if layout.dir.filetype { 2 } else { 0 };
        let [d0, d1, d2, d3] = dir.0.to_le_bytes();
        let [p0, p1, p2, p3] = parent.0.to_le_bytes();
        let rest = layout.dir.block_size.bytes().saturating_sub(12);
        let [r0, r1] = encode_rec_len(rest, layout.dir.block_size).unwrap_or(0).to_le_bytes();
        let head = [
            [d0, d1, d2, d3, 12, 0, 1, kind],
            [b'.', 0, 0, 0, p0, p1, p2, p3],
            [r0, r1, 2, kind, b'.', b'.', 0, 0],
            [0, 0, 0, 0, hash.on_disk(), INFO_BYTES, levels, 0],
        ];
        let _block_is_at_least_1_kib = le::put(block, 0, head.as_flattened());
        encode_records(block, layout, NodePlace::Root, records, seed)
    }

    /// Encodes an inner node over a whole block, as [`Index::encode_root`] does.
    pub fn encode_inner(
        block: &mut [u8],
        layout: &IndexLayout,
        records: impl ExactSizeIterator<Item = Record>,
        seed: Option<u32>,
    ) -> Result<(), HtreeFault> {
        check_length(block, layout)?;
        block.fill(0);
        let size = layout.dir.block_size;
        let raw = encode_rec_len(size.bytes(), size).unwrap_or(0);
        let _block_is_at_least_1_kib = le::put(block, 4, &raw.to_le_bytes());
        encode_records(block, layout, NodePlace::Inner, records, seed)
    }
}

fn encode_records(
    block: &mut [u8],
    layout: &IndexLayout,
    place: NodePlace,
    records: impl ExactSizeIterator<Item = Record>,
    seed: Option<u32>,
) -> Result<(), HtreeFault> {
    let limit = layout.limit(place);
    let count = u16::try_from(records.len()).unwrap_or(u16::MAX);
    if count == 0 || count > limit {
        return Err(HtreeFault::Count { count, limit });
    }
    let places = block.get_mut(place.records_at()..).unwrap_or(&mut []);
    let places = places.as_chunks_mut::<RECORD_BYTES>().0;
    for (position, (to, record)) in places.iter_mut().zip(records).enumerate() {
        let [b0, b1, b2, b3] = (record.block.0 & BLOCK_MASK).to_le_bytes();
        let [h0, h1, h2, h3] = if position == 0 {
            let ([l0, l1], [c0, c1]) = (limit.to_le_bytes(), count.to_le_bytes());
            [l0, l1, c0, c1]
        } else {
            record.raw_hash().to_le_bytes()
        };
        *to = [h0, h1, h2, h3, b0, b1, b2, b3];
    }
    if let (true, Some(seed)) = (layout.dir.checksum, seed) {
        seal(seed, block, place);
    }
    Ok(())
}

pub(super) fn check_length(block: &[u8], layout: &IndexLayout) -> Result<(), HtreeFault> {
    let wanted = layout.dir.block_size.len();
    if block.len() == wanted {
        Ok(())
    } else {
        Err(HtreeFault::Length { found: block.len(), wanted })
    }
}

/// The checksum of an index block: what is stored, and what it should be.
///
/// It covers the block up to the last record in use and the four reserved bytes before the
/// checksum itself, which counts as zero; not the unused records. `None` when limit or count
/// leave no room for it.
#[must_use]
pub fn checksum(seed: u32, block: &[u8], place: NodePlace) -> Option<(u32, u32)> {
    let (covered, tail) = checksum_parts(block, place)?;
    let crc = crc32c(seed, block.get(..covered)?);
    let reserved = block.get(tail..)?.first_chunk::<4>()?;
    let stored = le::u32_at(block, tail.checked_add(4)?)?;
    Some((stored, crc32c_zeros(crc32c(crc, reserved), 4)))
}

/// Bytes covered by the checksum, and where the tail is.
fn checksum_parts(block: &[u8], place: NodePlace) -> Option<(usize, usize)> {
    let at = place.records_at();
    let limit = usize::from(le::u16_at(block, at)?);
    let count = usize::from(le::u16_at(block, at.checked_add(2)?)?);
    let tail = limit.checked_mul(RECORD_BYTES)?.checked_add(at)?;
    let covered = count.checked_mul(RECORD_BYTES)?.checked_add(at)?;
    (covered <= tail).then_some((covered, tail))
}

/// Checks the checksum of an index block.
pub fn verify(seed: u32, block: &[u8], place: NodePlace) -> Result<(), ChecksumError> {
    // A limit that leaves no room for the checksum cannot have a right one.
    let (stored, computed) = checksum(seed, block, place).unwrap_or((0, u32::MAX));
    ChecksumError::check("directory index block", stored, computed)
}

/// Writes the checksum of an index block. Nothing happens when limit or count leave no room.
pub fn seal(seed: u32, block: &mut [u8], place: NodePlace) {
    if let (Some((_, tail)), Some((_, computed))) =
        (checksum_parts(block, place), checksum(seed, block, place))
    {
        let _fits_by_checksum = le::put(block, tail.saturating_add(4), &computed.to_le_bytes());
    }
}
