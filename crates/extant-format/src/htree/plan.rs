//! Building a whole directory at once: first how many blocks, then the blocks in order.

use super::{HtreeFault, Index, IndexLayout, NodePlace, Record};
use crate::dir::{BlockWriter, DirFault, DirLayout, FileType, NewEntry};
use crate::hash::{HashVersion, NameHash};
use crate::le;
use alloc::vec;
use alloc::vec::Vec;
use extant_base::{FileBlock, Ino};

/// The properties of an entry that planning needs to know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlannedEntry {
    /// Bytes of the name, 1 to 255.
    pub name_len: u8,
    /// The hash of the name; not looked at when the directory gets no index.
    pub hash: NameHash,
}

/// Options for the index of a directory that is to be built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexOptions {
    /// The layout of its blocks, and what the features allow.
    pub layout: IndexLayout,
    /// Give a directory of more than one block an index, with this hash; `None` for a linear one.
    pub hash: Option<HashVersion>,
    /// How full leaves get, in percent of their bytes, 1 to 100. Less than 100 leaves room for
    /// entries added later. Linear directories are always packed.
    pub fill_percent: u8,
}

/// One leaf: where its entries start in the list.
#[derive(Clone, Copy, Debug)]
struct Leaf {
    /// Entries before this leaf.
    first_entry: u64,
    /// Major hash of its first entry, with bit 0 set when the leaf before ends with the same.
    raw_hash: u32,
}

/// A directory of known shape: how many blocks it needs, before any is written.
///
/// A directory whose entries fit in one block becomes linear, whatever the options say; so does
/// any directory without a hash. Others get an index: block 0 is the root, then come the inner
/// nodes from the top down, then the leaves in order of hash. Memory: 16 bytes for each leaf.
///
/// The same entries and options give the same bytes.
#[derive(Clone, Debug)]
pub struct HtreePlan {
    options: IndexOptions,
    entries: u64,
    leaves: Vec<Leaf>,
    /// Number of inner nodes of each level, from the top down. Empty for one level and for linear.
    inner: Vec<u32>,
    /// `None` when linear.
    hash: Option<HashVersion>,
}

impl HtreePlan {
    /// Plans a directory of `entries`, without `.` and `..`.
    ///
    /// With `options.hash`, the entries are sorted by hash, major then minor (the order of
    /// [`NameHash`]); sort names of equal hash by name to get the same bytes every time. Without,
    /// any order will do.
    ///
    /// # Errors
    ///
    /// `Order` when not sorted, `TooLarge` when the index would need more levels than the features
    /// allow, `Entry` for a name of length 0.
    pub fn new(
        options: IndexOptions,
        entries: impl IntoIterator<Item = PlannedEntry>,
    ) -> Result<HtreePlan, HtreeFault> {
        let dir = options.layout.dir;
        let room = dir.entry_bytes();
        let fill = room.saturating_mul(usize::from(options.fill_percent.clamp(1, 100))) / 100;
        let dots = DirLayout::dots_need(1).saturating_add(DirLayout::dots_need(2));
        // Until the first block overflows, nobody knows whether there will be an index. Both
        // shapes are followed: one block with the dots, and leaves without them.
        let mut linear = Packer::new(room, room, dots);
        let mut indexed = Packer::new(room, fill, 0);
        let mut before = NameHash::default();
        let mut count = 0u64;
        for entry in entries {
            if entry.name_len == 0 {
                return Err(HtreeFault::Entry(DirFault::Name));
            }
            let hash = if options.hash.is_some() { entry.hash } else { NameHash::default() };
            if hash < before {
                let record = u32::try_from(count).unwrap_or(u32::MAX);
                let (found, before) = (hash.major, before.major);
                return Err(HtreeFault::Order { record, found, before });
            }
            before = hash;
            let needs = dir.needs(usize::from(entry.name_len));
            if options.hash.is_none() || linear.leaves.len() == 1 {
                linear.add(count, needs, 0);
            }
            if options.hash.is_some() {
                indexed.add(count, needs, hash.major);
            }
            count = count.saturating_add(1);
        }
        let Some(hash) = options.hash.filter(|_| linear.leaves.len() > 1) else {
            let leaves = linear.leaves;
            return Ok(HtreePlan {
                options,
                entries: count,
                leaves,
                inner: Vec::new(),
                hash: None,
            });
        };
        let leaves = indexed.leaves;
        let inner = inner_levels(&options.layout, le::narrow(leaves.len()))?;
        Ok(HtreePlan { options, entries: count, leaves, inner, hash: Some(hash) })
    }

    /// Blocks of the directory, at least 1.
    #[must_use]
    pub fn block_count(&self) -> u32 {
        let root = u32::from(self.hash.is_some());
        let inner = self.inner.iter().fold(0u32, |sum, nodes| sum.saturating_add(*nodes));
        le::narrow(self.leaves.len()).saturating_add(inner).saturating_add(root)
    }

    /// Returns whether the directory gets an index; then its inode needs the index flag.
    #[must_use]
    pub fn is_indexed(&self) -> bool {
        self.hash.is_some()
    }

    /// Entries planned, without `.` and `..`.
    #[must_use]
    pub fn entry_count(&self) -> u64 {
        self.entries
    }

    /// Writes the blocks, in order from 0, each once, through `write`.
    ///
    /// `entries` are those planned, in the same order; each hash is looked at only where the
    /// directory stores hashes. `seed` is the directory inode's seed, needed when the layout has
    /// checksums.
    ///
    /// # Errors
    ///
    /// Those of `write`; `NotAsPlanned`, and `Entry` for a name that may not be stored.
    pub fn emit<'n, E: From<HtreeFault>>(
        &self,
        (dir, parent): (Ino, Ino),
        seed: Option<u32>,
        entries: impl IntoIterator<Item = NewEntry<'n>>,
        mut write: impl FnMut(FileBlock, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let layout = &self.options.layout;
        let mut block = vec![0; layout.dir.block_size.len()];
        let mut next = FileBlock(0);
        if let Some(hash) = self.hash {
            self.emit_index((dir, parent), seed, hash, &mut block, &mut next, &mut write)?;
        }
        let mut entries = entries.into_iter();
        let mut entry_number = 0u64;
        for (position, leaf) in self.leaves.iter().enumerate() {
            let end = position
                .checked_add(1)
                .and_then(|next| self.leaves.get(next))
                .map_or(self.entries, |next| next.first_entry);
            let mut writer = BlockWriter::new(&mut block, layout.dir).map_err(HtreeFault::Entry)?;
            if self.hash.is_none() && position == 0 {
                for (ino, name) in [(dir, b".".as_slice()), (parent, b"..".as_slice())] {
                    let file_type = FileType::Directory;
                    let dots = NewEntry { ino, name, file_type, hash: None };
                    writer.push(&dots).map_err(HtreeFault::Entry)?;
                }
            }
            for _ in leaf.first_entry..end {
                let not_as_planned = HtreeFault::NotAsPlanned { entry: entry_number };
                let entry = entries.next().ok_or(not_as_planned)?;
                if !writer.push(&entry).map_err(HtreeFault::Entry)? {
                    return Err(E::from(not_as_planned));
                }
                entry_number = entry_number.saturating_add(1);
            }
            writer.finish(seed);
            write(next, &block)?;
            next = FileBlock(next.0.saturating_add(1));
        }
        match entries.next() {
            None => Ok(()),
            Some(_) => Err(E::from(HtreeFault::NotAsPlanned { entry: entry_number })),
        }
    }

    /// The root and the inner nodes.
    fn emit_index<E: From<HtreeFault>>(
        &self,
        dots: (Ino, Ino),
        seed: Option<u32>,
        hash: HashVersion,
        block: &mut [u8],
        next: &mut FileBlock,
        write: &mut impl FnMut(FileBlock, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let layout = &self.options.layout;
        let fan_out = usize::from(layout.limit(NodePlace::Inner));
        let levels = u8::try_from(self.inner.len()).unwrap_or(u8::MAX);
        // Children of the nodes of one level: how many, the first one's block, and how many leaves
        // lie under each.
        let mut child_block = 1u32;
        for depth in 0..=self.inner.len() {
            let below = self.inner.len().saturating_sub(depth);
            let leaves_per_child = (0..below).fold(1usize, |n, _| n.saturating_mul(fan_out));
            let children = self.leaves.len().div_ceil(leaves_per_child);
            let record = |child: usize| {
                let leaf = self.leaves.get(child.saturating_mul(leaves_per_child));
                let raw_hash = leaf.map_or(0, |leaf| leaf.raw_hash);
                let block = FileBlock(child_block.saturating_add(le::narrow(child)));
                Record { hash: raw_hash & !1, continued: raw_hash & 1 == 1, block }
            };
            if depth == 0 {
                let records = (0..children).map(record);
                Index::encode_root(block, layout, dots, hash, levels, records, seed)?;
                write(*next, block)?;
                *next = FileBlock(next.0.saturating_add(1));
            } else {
                for first in (0..children).step_by(fan_out) {
                    let end = children.min(first.saturating_add(fan_out));
                    Index::encode_inner(block, layout, (first..end).map(record), seed)?;
                    write(*next, block)?;
                    *next = FileBlock(next.0.saturating_add(1));
                }
            }
            child_block = child_block.saturating_add(le::narrow(children));
        }
        Ok(())
    }
}

/// Number of inner nodes of each level that `leaves` leaves need, from the top down.
fn inner_levels(layout: &IndexLayout, leaves: u32) -> Result<Vec<u32>, HtreeFault> {
    let root = u32::from(layout.limit(NodePlace::Root));
    let fan_out = u32::from(layout.limit(NodePlace::Inner));
    let allowed = layout.levels_max();
    let mut levels = Vec::new();
    let mut nodes = leaves;
    while nodes > root {
        if levels.len() >= usize::from(allowed) {
            return Err(HtreeFault::TooLarge { leaves: u64::from(leaves), allowed });
        }
        nodes = nodes.div_ceil(fan_out);
        levels.push(nodes);
    }
    levels.reverse();
    Ok(levels)
}

/// Cuts a list of entries into leaves.
struct Packer {
    /// Bytes of a block that entries may use.
    room: usize,
    /// Bytes that are used before a new block is started.
    fill: usize,
    used: usize,
    last_hash: u32,
    leaves: Vec<Leaf>,
}

impl Packer {
    fn new(room: usize, fill: usize, used: usize) -> Packer {
        let leaves = vec![Leaf { first_entry: 0, raw_hash: 0 }];
        Packer { room, fill, used, last_hash: 0, leaves }
    }

    fn add(&mut self, entry: u64, needs: usize, hash: u32) {
        let end = self.used.saturating_add(needs);
        // Any entry fits an empty block: 275 bytes at most, in 1012 at least.
        if self.used > 0 && end > self.fill.min(self.room) {
            let continued = u32::from(hash == self.last_hash);
            self.leaves.push(Leaf { first_entry: entry, raw_hash: hash | continued });
            self.used = needs;
        } else {
            self.used = end;
        }
        self.last_hash = hash;
    }
}

#[cfg(test)]
mod tests;
