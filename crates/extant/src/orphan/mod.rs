//! Orphans: inodes without names that are still open, or that are being truncated, so that recovery
//! must finish them.
//!
//! # Place
//!
//! Below: `supers` (head of the list), `editor`. Above: `namei` and `map` add an inode in the
//! transaction that makes it an orphan and remove it in the one that ends that; mounting recovers.
//!
//! # Shape
//!
//! ```text
//! orphan file   blocks of slots, an inode number each; threads use different blocks
//! list          superblock -> inode -> inode …, through the deletion time; when the file is full,
//!               or there is none
//! ```
//!
//! # Invariants
//!
//! - O1. An inode is in the file or in the list, once, or in neither. There are two reasons: it has
//!   no links, or it is being truncated. Both may begin and end independently; it leaves when
//!   neither holds any more (`end_shortening`).
//! - O2. Every free slot of the file is on the stack of its block, once.
//! - O3. The state in memory is the one that the running transaction will write.

mod summary;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use extant_base::{FsBlock, Ino, sabotage};
use extant_format::checksum::inode_seed;
use extant_format::features::Compat;
use extant_format::orphan::{OrphanBlock, orphans_per_block};
use extant_format::superblock::Superblock;
use extant_sync::{CachePadded, Mutex, Rank};
use rustc_hash::{FxHashMap, FxHashSet};

use crate::editor::Editor;
use crate::error::{Fault, FsError, Result};
use crate::fast::Refusal;
use crate::node::Node;
use crate::slot::BlockKind;
use crate::supers::SuperState;
use crate::volume::Volume;

pub use summary::OrphanSummary;

/// Limit of the size of an orphan file in bytes; mke2fs makes 2 MiB at most with blocks of 4 KiB.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Number of shards of the table of places; a power of two.
const SHARDS: usize = 16;

/// The orphan file as found: its generation and its blocks.
pub(crate) struct StoredFile {
    pub(crate) generation: u32,
    /// Runs of blocks, in order and without holes.
    pub(crate) runs: Vec<(FsBlock, u64)>,
}

/// Returns whether the file system has an orphan file in use. Without a journal, file and inodes
/// could not be kept consistent, and the kernel does not use it.
pub(crate) fn file_in_use(superblock: &Superblock) -> bool {
    let features = &superblock.features;
    features.has_compat(Compat::ORPHAN_FILE) && features.has_compat(Compat::HAS_JOURNAL)
}

/// Checks the size of an orphan file.
pub(crate) fn check_file_size(superblock: &Superblock, size: u64) -> Result<()> {
    if size == 0
        || size > FILE_BYTES_MAX
        || !size.is_multiple_of(u64::from(superblock.block_size.bytes()))
    {
        let rule = "its size is not a number of blocks up to 64 MiB";
        let fault = Fault::Field { rule, value: size, limit: FILE_BYTES_MAX };
        return Err(FsError::corrupt("orphan file", superblock.orphan_file_inode, None, fault));
    }
    Ok(())
}

/// All orphans of a writable mount.
pub(crate) struct Orphans {
    file: Option<OrphanFile>,
    /// The list. Rank `InodeMap` with key 0, before every inode: the lock is held while neighbours
    /// in the list are changed.
    list: Mutex<List>,
    /// Inodes that a thread is adding at this moment, so that two threads add an inode only once.
    adding: Vec<CachePadded<Mutex<FxHashSet<Ino>>>>,
    count: CachePadded<AtomicU64>,
}

/// The right to add one inode.
struct Adding<'a> {
    among: &'a Mutex<FxHashSet<Ino>>,
    ino: Ino,
}

impl Drop for Adding<'_> {
    fn drop(&mut self) {
        self.among.lock().remove(&self.ino);
    }
}

struct OrphanFile {
    kind: BlockKind,
    blocks: Vec<CachePadded<FileBlock>>,
    places: Vec<CachePadded<Mutex<FxHashMap<Ino, Place>>>>,
}

struct FileBlock {
    number: FsBlock,
    /// Length of `free`, to skip full blocks without a lock.
    free_count: AtomicU32,
    /// Free slots (O2).
    free: Mutex<Vec<u16>>,
}

/// A slot of the file.
#[derive(Clone, Copy)]
struct Place {
    /// Index into the file's blocks.
    block: u32,
    slot: u16,
}

#[derive(Default)]
struct List {
    head: Option<Ino>,
    members: FxHashMap<Ino, Member>,
}

struct Member {
    node: Arc<Node>,
    previous: Option<Ino>,
    next: Option<Ino>,
}

impl Orphans {
    /// Reads the orphan file, if there is [one in use](file_in_use). Recovery reads the list.
    pub(crate) fn open(volume: &Volume, file: Option<&StoredFile>) -> Result<Orphans> {
        let file = file.map(|file| OrphanFile::open(volume, file)).transpose()?;
        let count = file.as_ref().map_or(0, OrphanFile::len);
        Ok(Orphans {
            file,
            list: Mutex::with_order(Rank::InodeMap, 0, List::default()),
            adding: (0..SHARDS)
                .map(|_| CachePadded::new(Mutex::new(Rank::Leaf, FxHashSet::default())))
                .collect(),
            count: CachePadded::new(AtomicU64::new(count)),
        })
    }

    /// Returns the number of orphans.
    pub(crate) fn len(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Returns whether the inode is an orphan.
    pub(crate) fn contains(&self, ino: Ino) -> bool {
        self.file.as_ref().is_some_and(|file| file.place(ino).is_some())
            || self.list.lock().members.contains_key(&ino)
    }

    /// Begins to add an inode; `None` when another thread is adding it, in the same transaction,
    /// since both are open.
    fn begin_to_add(&self, ino: Ino) -> Option<Adding<'_>> {
        let among = &self.adding[ino.0 as usize % SHARDS];
        let is_first = among.lock().insert(ino);
        is_first.then_some(Adding { among, ino })
    }

    /// Makes an inode an orphan, if it is not one. Two credits.
    pub(crate) fn add(
        &self,
        supers: &SuperState,
        txn: &mut Editor<'_>,
        node: &Arc<Node>,
    ) -> Result<()> {
        txn.refuse(Refusal::Names);
        let Some(_adding) = self.begin_to_add(node.ino()) else { return Ok(()) };
        if self.contains(node.ino()) {
            return Ok(());
        }
        let in_file = match &self.file {
            Some(file) => file.add(txn, node.ino())?,
            None => false,
        };
        if !in_file {
            self.list.lock().add(supers, txn, node)?;
        }
        self.count.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Adds the members of the stored list, in its order, before any other orphan.
    pub(crate) fn adopt_list(&self, members: &[Arc<Node>]) {
        let mut list = self.list.lock();
        for node in members.iter().rev() {
            list.push(node);
        }
        let count = u64::try_from(members.len()).unwrap_or(u64::MAX);
        self.count.fetch_add(count, Ordering::AcqRel);
    }

    /// Returns the members of the list in order.
    pub(crate) fn listed(&self) -> Vec<Arc<Node>> {
        self.list.lock().nodes()
    }

    /// Returns the inodes in the orphan file, in order of number.
    pub(crate) fn filed(&self) -> Vec<Ino> {
        self.file.as_ref().map_or(Vec::new(), OrphanFile::inodes)
    }

    /// Frees the slot of an inode number that is no orphan. One credit.
    pub(crate) fn drop_from_file(&self, txn: &mut Editor<'_>, ino: Ino) -> Result<()> {
        if let Some(file) = &self.file
            && file.remove(txn, ino)?
        {
            self.count.fetch_sub(1, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Removes an inode from the orphans, if it is one. Three credits.
    pub(crate) fn remove(
        &self,
        supers: &SuperState,
        txn: &mut Editor<'_>,
        node: &Arc<Node>,
    ) -> Result<()> {
        txn.refuse(Refusal::Names);
        let in_file = match &self.file {
            Some(file) => file.remove(txn, node.ino())?,
            None => false,
        };
        if in_file || self.list.lock().remove(supers, txn, node)? {
            self.count.fetch_sub(1, Ordering::AcqRel);
        }
        Ok(())
    }
}

impl OrphanFile {
    fn open(volume: &Volume, stored: &StoredFile) -> Result<OrphanFile> {
        let superblock = volume.superblock();
        let ino = superblock.orphan_file_inode;
        let checked = superblock.features.metadata_csum();
        let wrong = sabotage("extant.orphan.seed-of-inode-2");
        let of = if wrong { Ino::ROOT } else { ino };
        let seed = checked.then(|| inode_seed(superblock.checksum_seed(), of, stored.generation));
        let shard = || CachePadded::new(Mutex::new(Rank::Leaf, FxHashMap::default()));
        let mut file = OrphanFile {
            kind: seed.map_or(BlockKind::Plain, |seed| BlockKind::Orphan { seed }),
            blocks: Vec::new(),
            places: (0..SHARDS).map(|_| shard()).collect(),
        };
        for (start, len) in &stored.runs {
            for index in 0..*len {
                file.load(volume, FsBlock(start.0.saturating_add(index)), seed)?;
            }
        }
        Ok(file)
    }

    /// Loads the next block.
    fn load(&mut self, volume: &Volume, number: FsBlock, seed: Option<u32>) -> Result<()> {
        let superblock = volume.superblock();
        let bytes = volume.read_block(number)?;
        let seed = seed.filter(|_| volume.verifies_checksums());
        let decoded = OrphanBlock::decode(superblock.block_size, number, seed, bytes.bytes());
        let decoded = decoded.map_err(|error| {
            let fault = Fault::Decode(Box::new(error));
            FsError::corrupt("orphan file", superblock.orphan_file_inode, number, fault)
        })?;
        let block = u32::try_from(self.blocks.len()).unwrap_or(u32::MAX);
        let mut free = Vec::with_capacity(orphans_per_block(superblock.block_size));
        // The last slot comes first, so that the first one is taken first. A block has at most
        // 16382 slots.
        for (slot, ino) in decoded.slots().iter().enumerate().rev() {
            let slot = slot as u16;
            if ino.0 == 0 {
                free.push(slot);
            } else if self.shard(*ino).lock().insert(*ino, Place { block, slot }).is_some() {
                let rule = "an inode stands in it twice";
                let fault = Fault::Field { rule, value: ino.0.into(), limit: 1 };
                let ino = superblock.orphan_file_inode;
                return Err(FsError::corrupt("orphan file", ino, number, fault));
            }
        }
        let free_count = AtomicU32::new(u32::try_from(free.len()).unwrap_or(0));
        let free = Mutex::new(Rank::Leaf, free);
        self.blocks.push(CachePadded::new(FileBlock { number, free_count, free }));
        Ok(())
    }

    fn shard(&self, ino: Ino) -> &Mutex<FxHashMap<Ino, Place>> {
        &self.places[ino.0 as usize % SHARDS]
    }

    fn place(&self, ino: Ino) -> Option<Place> {
        self.shard(ino).lock().get(&ino).copied()
    }

    fn len(&self) -> u64 {
        self.places.iter().map(|shard| shard.lock().len() as u64).sum()
    }

    /// Returns every inode in the file, in order of number.
    fn inodes(&self) -> Vec<Ino> {
        let mut all: Vec<Ino> = Vec::new();
        for shard in &self.places {
            all.extend(shard.lock().keys());
        }
        all.sort_unstable();
        all
    }

    /// Takes a free slot, beginning with the block that the inode's number chooses; returns false
    /// when all are taken. One credit.
    fn add(&self, txn: &mut Editor<'_>, ino: Ino) -> Result<bool> {
        let len = self.blocks.len();
        // Neighbouring inodes are often deleted by one thread; the multiplication spreads the
        // others.
        let first = (ino.0 >> 4).wrapping_mul(0x9e37_79b1) as usize % len.max(1);
        for step in 0..len {
            let index = (first + step) % len;
            let block = &self.blocks[index];
            if block.free_count.load(Ordering::Acquire) == 0 {
                continue;
            }
            let Some(slot) = block.free.lock().pop() else { continue };
            block.free_count.fetch_sub(1, Ordering::AcqRel);
            let place = Place { block: index as u32, slot };
            if let Err(error) = self.put(txn, place, ino) {
                self.free(place);
                return Err(error);
            }
            self.shard(ino).lock().insert(ino, place);
            return Ok(true);
        }
        Ok(false)
    }

    /// Frees the inode's slot; returns false when it has none. One credit.
    fn remove(&self, txn: &mut Editor<'_>, ino: Ino) -> Result<bool> {
        // Of two concurrent calls, one gets the place.
        let Some(place) = self.shard(ino).lock().remove(&ino) else { return Ok(false) };
        if let Err(error) = self.put(txn, place, Ino(0)) {
            self.shard(ino).lock().insert(ino, place);
            return Err(error);
        }
        self.free(place);
        Ok(true)
    }

    fn put(&self, txn: &mut Editor<'_>, place: Place, ino: Ino) -> Result<()> {
        let number = self.blocks[place.block as usize].number;
        let start = usize::from(place.slot) * 4;
        txn.edit_block(number, self.kind, |bytes| {
            if let Some(slot) = bytes.get_mut(start..start + 4) {
                slot.copy_from_slice(&ino.0.to_le_bytes());
            }
        })
    }

    fn free(&self, place: Place) {
        let block = &self.blocks[place.block as usize];
        block.free.lock().push(place.slot);
        block.free_count.fetch_add(1, Ordering::AcqRel);
    }
}

impl List {
    /// Returns all members in order.
    fn nodes(&self) -> Vec<Arc<Node>> {
        let mut nodes = Vec::with_capacity(self.members.len());
        let mut next = self.head;
        while let Some(member) = next.and_then(|next| self.members.get(&next)) {
            nodes.push(Arc::clone(&member.node));
            next = member.next;
        }
        nodes
    }

    /// Adds an inode to the list. Two credits.
    fn add(&mut self, supers: &SuperState, txn: &mut Editor<'_>, node: &Arc<Node>) -> Result<()> {
        let (ino, next) = (node.ino(), self.head);
        // Its own record comes first: alone it has no effect.
        txn.update(node, |data| data.record.dtime = number(next))?;
        supers.change(txn, |superblock| superblock.last_orphan = ino.0)?;
        self.push(node);
        Ok(())
    }

    /// Adds `node` at the head of the list in memory.
    fn push(&mut self, node: &Arc<Node>) {
        let ino = node.ino();
        let next = self.head.replace(ino);
        if let Some(next) = next.and_then(|next| self.members.get_mut(&next)) {
            next.previous = Some(ino);
        }
        self.members.insert(ino, Member { node: Arc::clone(node), previous: None, next });
    }

    /// Removes an inode from the list; returns false when it is not a member. Two or three credits.
    fn remove(
        &mut self,
        supers: &SuperState,
        txn: &mut Editor<'_>,
        node: &Arc<Node>,
    ) -> Result<bool> {
        let ino = node.ino();
        let Some(member) = self.members.get(&ino) else { return Ok(false) };
        let (previous, next) = (member.previous, member.next);
        match previous.and_then(|previous| self.members.get(&previous)) {
            Some(_) if sabotage("extant.orphan.chain-not-stored") => {}
            Some(before) => txn.update(&before.node, |data| data.record.dtime = number(next))?,
            None => supers.change(txn, |superblock| superblock.last_orphan = number(next))?,
        }
        self.members.remove(&ino);
        if let Some(before) = previous.and_then(|previous| self.members.get_mut(&previous)) {
            if !sabotage("extant.orphan.neighbour-not-told") {
                before.next = next;
            }
        } else {
            self.head = next;
        }
        if let Some(after) = next.and_then(|next| self.members.get_mut(&next)) {
            after.previous = previous;
        }
        txn.update(node, |data| data.record.dtime = 0)?;
        Ok(true)
    }
}

/// Returns the number stored in the superblock and in deletion times: 0 for none.
fn number(ino: Option<Ino>) -> u32 {
    ino.map_or(0, |ino| ino.0)
}

impl fmt::Debug for Orphans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Orphans").field("count", &self.len()).finish_non_exhaustive()
    }
}
