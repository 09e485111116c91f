//! The state of one block group: bitmaps and counters; the copy in memory is authoritative.
//!
//! # Invariants
//!
//! - G1. `taken` is the stored bitmap together with what was freed by transactions that are not
//!   committed, and with what is pinned: clusters with a clear bit may be given away, others may
//!   not.
//! - G2. The descriptor's counts are those of the stored bitmaps.
//! - G3. A bitmap is used only if its checksum, its counts and the group's own structures agree.
//! - G4. Clusters in a window are clear in `taken`; searches that avoid windows look at the union
//!   of both.

use std::ops::Range;
use std::sync::Arc;

use extant_base::{FsBlock, GroupIndex, sabotage};
use extant_format::bitmap::{Bitmap, BitmapRef};
use extant_format::group::{GroupChecksum, GroupDescriptor, GroupFlags};
use extant_jbd2::Tid;

use super::Half;
use super::criteria::Stripes;
use super::window::{Look, Windows};
use crate::error::{Fault, FsError, Result};
use crate::slot::{BlockKind, Slot};
use crate::volume::Volume;

/// Number of free runs a search looks at before it takes the longest so far.
const RUNS_MAX: usize = 200;

/// Length of the longest clear run that can exist without a clear word of 64 bits.
const WORDLESS_MAX: u32 = 126;

/// The state of one group.
pub(super) struct GroupState {
    pub(super) index: GroupIndex,
    pub(super) descriptor: GroupDescriptor,
    /// The block bitmap, loaded when first needed.
    pub(super) blocks: Option<Blocks>,
    pub(super) inodes: Option<Inodes>,
    /// The blocks that the running transaction will encode.
    pub(super) dirty: Dirty,
    /// Blocks that the thread with the lock may claim.
    pub(super) ready: Dirty,
    /// The last transaction that freed something here.
    pub(super) waits_for: Option<Tid>,
}

/// The clusters of a group.
pub(super) struct Blocks {
    /// The bitmap as stored on the device.
    stored: Bitmap,
    /// The bitmap that searches use (G1).
    pub(super) taken: Bitmap,
    /// Freed clusters, each run with the transaction that must commit before it is given away.
    freed: Vec<(Range<u32>, Tid)>,
    /// The group's own structures, sorted: never freed.
    own: Vec<Range<u32>>,
    /// The first clear bit of `taken`; `len` if there is none.
    first_free: u32,
    /// Number of clear bits of `taken`.
    room: u32,
    /// Number of clusters taken in memory only (N2).
    pub(super) pinned: u32,
    /// Number of clusters that are being discarded (D1).
    pub(super) held: u32,
    /// Windows left to growing files; `None` while there are none.
    pub(super) windows: Option<Box<Windows>>,
    len: u32,
}

/// The inodes of a group.
pub(super) struct Inodes {
    stored: Bitmap,
    /// The first clear bit; `len` if there is none.
    first_free: u32,
    len: u32,
}

/// Metadata blocks of a group: those that the running transaction has claimed, or may claim.
#[derive(Default)]
pub(super) struct Dirty {
    pub(super) descriptor: Option<Arc<Slot>>,
    pub(super) blocks: Option<Arc<Slot>>,
    pub(super) inodes: Option<Arc<Slot>>,
}

impl GroupState {
    pub(super) fn load(volume: &Volume, index: GroupIndex) -> Result<GroupState> {
        Ok(GroupState::of(index, volume.believed_group(index)?))
    }

    /// The state of a group without bitmaps.
    pub(super) fn of(index: GroupIndex, descriptor: GroupDescriptor) -> GroupState {
        let (blocks, inodes, waits_for) = (None, None, None);
        let (dirty, ready) = (Dirty::default(), Dirty::default());
        GroupState { index, descriptor, blocks, inodes, dirty, ready, waits_for }
    }

    /// Returns the clusters of a group that was entered for them.
    pub(super) fn blocks_mut(&mut self) -> Result<&mut Blocks> {
        let index = self.index;
        self.blocks.as_mut().ok_or_else(|| damaged(index, "the block bitmap is not loaded"))
    }

    /// Returns the inodes of a group that was entered for them.
    pub(super) fn inodes_mut(&mut self) -> Result<&mut Inodes> {
        let index = self.index;
        self.inodes.as_mut().ok_or_else(|| damaged(index, "the inode bitmap is not loaded"))
    }

    /// Returns whether the running transaction has claimed what a change of `half` changes.
    pub(super) fn is_claimed(&self, half: Half) -> bool {
        self.dirty.has(half)
    }

    /// Returns whether the state may leave memory: loading the group again would give the same
    /// state.
    pub(super) fn is_clean(&self) -> bool {
        self.dirty.descriptor.is_none()
            && self.blocks.as_ref().is_none_or(|blocks| {
                blocks.freed.is_empty() && blocks.pinned == 0 && blocks.held == 0
            })
    }

    /// Number of clusters that could be given away now; the descriptor's count while the bitmap is
    /// not loaded.
    pub(super) fn room(&self) -> u32 {
        self.blocks.as_ref().map_or(self.descriptor.free_clusters, |blocks| blocks.room)
    }

    /// Clusters in windows.
    pub(super) fn in_windows(&self) -> u32 {
        self.blocks.as_ref().map_or(0, Blocks::in_windows)
    }

    /// Returns whether the descriptor has `flag` set and the file system has the feature that gives
    /// it a meaning.
    fn has(&self, volume: &Volume, flag: GroupFlags) -> bool {
        volume.has_uninit_groups() && self.descriptor.flags.contains(flag)
    }

    /// Loads and checks the block bitmap of this group (G3). `own` are the clusters of
    /// [`Blocks::own`]. Without `waits`, returns `None` if another thread reads or changes the
    /// bitmap's block.
    pub(super) fn load_blocks(
        &self,
        volume: &Volume,
        own: Vec<Range<u32>>,
        waits: bool,
    ) -> Result<Option<Blocks>> {
        let superblock = volume.superblock();
        let len = superblock.group_clusters(self.index);
        let bytes = volume.block_size().len();
        let at = self.descriptor.block_bitmap;
        let fail = |fault| FsError::corrupt("block bitmap", None, at, fault);
        let stored = if self.has(volume, GroupFlags::BLOCK_UNINIT) {
            Bitmap::of_uninit_group(bytes, len, own.iter().cloned())
        } else {
            let block = match waits {
                true => Some(volume.read_block(at)?),
                false => volume.try_read_block(at)?,
            };
            let Some(block) = block else { return Ok(None) };
            if volume.verifies_metadata() {
                let (seed, bits) = (volume.checksum_seed(), superblock.clusters_per_group);
                let stored = self.descriptor.block_bitmap_checksum;
                verify(block.bytes(), seed, bits, stored, superblock.desc_size).map_err(fail)?;
            }
            let mut bitmap = Bitmap::decode(block.bytes(), bytes)
                .map_err(|error| fail(Fault::Decode(Box::new(error))))?;
            bitmap.pad(len);
            bitmap
        };
        for range in &own {
            if stored.view().count_clear(range.clone()) > 0 {
                return Err(fail(Fault::Rule("the file system's own structures are marked free")));
            }
        }
        check_count(stored.view(), len, self.descriptor.free_clusters).map_err(fail)?;
        Ok(Some(Blocks::new(stored, own, len)))
    }

    /// Loads and checks the inode bitmap of this group (G3).
    pub(super) fn load_inodes(&self, volume: &Volume) -> Result<Inodes> {
        let superblock = volume.superblock();
        let len = superblock.inodes_per_group;
        let bytes = volume.block_size().len();
        let at = self.descriptor.inode_bitmap;
        let fail = |fault| FsError::corrupt("inode bitmap", None, at, fault);
        let stored = if self.has(volume, GroupFlags::INODE_UNINIT) {
            Bitmap::of_uninit_group(bytes, len, [])
        } else {
            let block = volume.read_block(at)?;
            if volume.verifies_metadata() {
                let stored = self.descriptor.inode_bitmap_checksum;
                verify(block.bytes(), volume.checksum_seed(), len, stored, superblock.desc_size)
                    .map_err(fail)?;
            }
            let mut bitmap = Bitmap::decode(block.bytes(), bytes)
                .map_err(|error| fail(Fault::Decode(Box::new(error))))?;
            bitmap.pad(len);
            bitmap
        };
        check_count(stored.view(), len, self.descriptor.free_inodes).map_err(fail)?;
        let first_free = first_clear(&stored, 0, len);
        Ok(Inodes { stored, first_free, len })
    }

    /// Number of inodes, from the start of the table, that were ever used; the rest of the table
    /// has no valid contents.
    pub(super) fn inodes_ever_used(&self, volume: &Volume, per_group: u32) -> u32 {
        if self.has(volume, GroupFlags::INODE_UNINIT) {
            return 0;
        }
        match volume.has_uninit_groups() {
            true => per_group.saturating_sub(self.descriptor.itable_unused),
            false => per_group,
        }
    }

    /// Encodes the state for the blocks that were claimed for it; they stay claimed.
    pub(super) fn encode(&mut self, volume: &Volume) -> Result<Encoded> {
        let seed = volume.has_metadata_csum().then(|| volume.checksum_seed());
        let superblock = volume.superblock();
        let mut encoded = Encoded { index: self.index, bitmaps: Vec::new(), descriptor: None };
        if let (Some(slot), Some(blocks)) = (&self.dirty.blocks, &self.blocks) {
            if let Some(seed) = seed {
                let bits = superblock.clusters_per_group;
                self.descriptor.block_bitmap_checksum = blocks.stored.view().checksum(seed, bits);
            }
            encoded.bitmaps.push((Arc::clone(slot), blocks.stored.clone()));
        }
        if let (Some(slot), Some(inodes)) = (&self.dirty.inodes, &self.inodes) {
            if let Some(seed) = seed {
                let bits = superblock.inodes_per_group;
                self.descriptor.inode_bitmap_checksum = inodes.stored.view().checksum(seed, bits);
            }
            encoded.bitmaps.push((Arc::clone(slot), inodes.stored.clone()));
        }
        let slot = self.dirty.descriptor.as_ref();
        encoded.descriptor = slot.map(|slot| (Arc::clone(slot), self.descriptor));
        Ok(encoded)
    }
}

/// What the blocks of a group will hold.
pub(super) struct Encoded {
    index: GroupIndex,
    bitmaps: Vec<(Arc<Slot>, Bitmap)>,
    descriptor: Option<(Arc<Slot>, GroupDescriptor)>,
}

impl Encoded {
    /// Fills the blocks.
    pub(super) fn store(self, volume: &Volume) -> Result<()> {
        for (slot, bitmap) in &self.bitmaps {
            slot.replace(BlockKind::Plain, volume.block_size().len(), |block| {
                block.copy_from_slice(bitmap.as_bytes());
            });
        }
        let Some((slot, descriptor)) = &self.descriptor else { return Ok(()) };
        let superblock = volume.superblock();
        let desc_bytes = usize::from(superblock.desc_size);
        let at = (self.index.0 % superblock.descriptors_per_block()) as usize * desc_bytes;
        let checksum = GroupChecksum::of(superblock);
        let load = || volume.load_block(slot.number());
        slot.change(BlockKind::Plain, load, |block| {
            let place = block.get_mut(at..at + desc_bytes)?;
            descriptor.encode(self.index, &checksum, place).ok()
        })?
        .ok_or_else(|| damaged(self.index, "the descriptor ends after its block"))
    }
}

impl Dirty {
    /// Returns whether the blocks that a change of `half` changes are here.
    pub(super) fn has(&self, half: Half) -> bool {
        let bitmap = match half {
            Half::Blocks => &self.blocks,
            Half::Inodes => &self.inodes,
        };
        self.descriptor.is_some() && bitmap.is_some()
    }
}

/// The reason why clusters are not freed, with the rule that was broken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NotFreed {
    /// The request is wrong, and the clusters are not freed.
    Refused(&'static str),
    /// The bitmap is wrong: it is not used any more, and the caller continues.
    Lost(&'static str),
}

impl NotFreed {
    /// Returns the rule if the clusters are lost with their bitmap, and fails if the request is
    /// wrong.
    pub(super) fn lost(self) -> Result<&'static str, &'static str> {
        match self {
            NotFreed::Lost(rule) => Ok(rule),
            NotFreed::Refused(rule) => Err(rule),
        }
    }

    /// Fails in both cases, for callers that never free a cluster twice.
    #[cfg(test)]
    pub(super) fn refused(self) -> Result<&'static str, &'static str> {
        let (NotFreed::Lost(rule) | NotFreed::Refused(rule)) = self;
        Err(rule)
    }
}

impl Blocks {
    pub(super) fn new(stored: Bitmap, own: Vec<Range<u32>>, len: u32) -> Blocks {
        let first_free = first_clear(&stored, 0, len);
        let room = stored.view().count_clear(0..len);
        let taken = stored.clone();
        let (freed, pinned, held, windows) = (Vec::new(), 0, 0, None);
        Blocks { taken, stored, freed, own, first_free, room, pinned, held, windows, len }
    }

    /// Makes the group `len` clusters long, if it is shorter. Those that are added are free; their
    /// number is returned.
    pub(super) fn lengthen(&mut self, len: u32) -> u32 {
        let new = self.len..len.max(self.len);
        let added = new.end - new.start;
        self.stored.clear_range(new.clone());
        self.taken.clear_range(new.clone());
        if let Some(windows) = &mut self.windows {
            windows.lengthen(new.clone());
        }
        // Without a clear bit, the first is where the group ended.
        self.first_free = self.first_free.min(new.start);
        self.room += added;
        self.len = new.end;
        added
    }

    /// Forgets that a cluster belongs to the group's own structures.
    pub(super) fn disown(&mut self, cluster: u32) {
        let mut parts = Vec::with_capacity(self.own.len() + 1);
        for own in self.own.drain(..) {
            let (start, end) = (own.start, own.end);
            parts.extend([start..end.min(cluster), start.max(cluster + 1)..end]);
        }
        parts.retain(|part| part.start < part.end);
        self.own = parts;
    }

    /// Upper bound of the length of the longest free run, found by looking at whole words.
    pub(super) fn longest_bound(&self, look: Look) -> u32 {
        let room = self.room_for(look);
        if self.view(look).has_clear_word() { room } else { room.min(WORDLESS_MAX) }
    }

    /// Number of clusters that `look` could be given now.
    pub(super) fn room_for(&self, look: Look) -> u32 {
        match look {
            Look::Open => self.room.saturating_sub(self.in_windows()),
            Look::All => self.room,
        }
    }

    /// Finds a free run of `len` clusters from `start` on, or else before it, or else the longest
    /// run found of at least `min` clusters.
    pub(super) fn find(&self, look: Look, start: u32, len: u32, min: u32) -> Found {
        let start = start.min(self.len).max(self.first_free);
        let behind = self.find_in(look, start..self.len, len, min);
        if behind.is_whole(len) {
            return behind;
        }
        // The second search starts a little further back, so that it finds a run that `start` cuts
        // in two as a whole.
        let cut = self.view(look).first_set(start..self.len).unwrap_or(self.len);
        let before = self.find_in(look, self.first_free..cut, len, min);
        let is_complete = behind.is_complete && before.is_complete;
        // The longer run wins; of equal ones, the run behind the goal.
        let best = if before.size() > behind.size() { before.run } else { behind.run };
        Found { run: best, is_complete }
    }

    fn find_in(&self, look: Look, bits: Range<u32>, len: u32, min: u32) -> Found {
        let taken = self.view(look);
        if len == 1 {
            let run = taken.first_clear(bits).map(|bit| bit..bit + 1);
            return Found { run, is_complete: true };
        }
        let mut best: Option<Range<u32>> = None;
        let mut left = bits;
        for looked in 0.. {
            let Some(start) = taken.first_clear(left.clone()) else { break };
            // The run is measured no further than the wanted length.
            let most = start.saturating_add(len).min(left.end);
            let end = taken.first_set(start..most).unwrap_or(most);
            let (run, run_len) = (start..end, end - start);
            left.start = end;
            if run_len >= len {
                return Found { run: Some(run), is_complete: true };
            }
            if run_len >= min && best.as_ref().is_none_or(|best| run_len > best.end - best.start) {
                best = Some(run);
            }
            // A search that wants the full length only must not miss the one run that has it.
            if looked >= RUNS_MAX && (best.is_some() || min == len) {
                return Found { run: best, is_complete: false };
            }
        }
        Found { run: best, is_complete: true }
    }

    /// Finds a free run of `len` clusters that begins on a stripe, from `start` on, or else before
    /// it. Looks at each beginning of a stripe in the group once at most.
    pub(super) fn find_on_stripe(
        &self,
        look: Look,
        start: u32,
        len: u32,
        stripes: Stripes,
    ) -> Option<Range<u32>> {
        let taken = self.view(look);
        let start = start.min(self.len);
        let within = |part: Range<u32>| {
            let mut at = part.start;
            loop {
                let first = stripes.next(at).filter(|first| *first < part.end)?;
                let end = first.checked_add(len).filter(|end| *end <= self.len)?;
                let Some(set) = taken.first_set(first..end) else { return Some(first..end) };
                // The next cluster that is free is behind the one that is not.
                at = taken.first_clear(set..self.len)?;
            }
        };
        within(start.max(self.first_free)..self.len).or_else(|| within(self.first_free..start))
    }

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Number of clusters of the range that could be given away now and are in no window.
    pub(super) fn count_open(&self, range: Range<u32>) -> u32 {
        self.view(Look::Open).count_clear(range)
    }

    /// Iterates over runs of clusters that could be given away now.
    pub(super) fn clear_runs(&self, range: Range<u32>) -> impl Iterator<Item = Range<u32>> {
        self.taken.view().clear_runs(range.start..range.end.min(self.len))
    }

    /// Iterates over runs of clusters that are free in the stored bitmap.
    pub(super) fn stored_runs(&self) -> impl Iterator<Item = Range<u32>> {
        self.stored.view().clear_runs(0..self.len)
    }

    pub(super) fn is_open(&self, bit: u32) -> bool {
        !self.view(Look::Open).get(bit)
    }

    /// Returns the open clusters from `bit` on, `len` at most.
    pub(super) fn open_run(&self, bit: u32, len: u32) -> Range<u32> {
        let bit = bit.min(self.len);
        let end = bit.saturating_add(len).min(self.len);
        bit..self.view(Look::Open).first_set(bit..end).unwrap_or(end)
    }

    /// Takes clusters that [`find`](Self::find) found, here and on the device.
    pub(super) fn take(&mut self, range: Range<u32>) {
        self.stored.set_range(range.clone());
        self.hide(range);
    }

    /// Takes clusters in memory, whether they are free or not.
    pub(super) fn hide(&mut self, range: Range<u32>) {
        self.room -= self.taken.view().count_clear(range.clone());
        self.taken.set_range(range.clone());
        if range.contains(&self.first_free) {
            self.first_free = first_clear(&self.taken, range.end, self.len);
        }
        self.hide_from_windows(range);
    }

    /// Returns clusters that were taken in memory.
    pub(super) fn show(&mut self, range: Range<u32>) {
        self.room += range.end - range.start;
        self.first_free = self.first_free.min(range.start);
        self.taken.clear_range(range.clone());
        self.show_to_windows(range);
    }

    /// Marks clusters that are taken in memory as taken in the stored bitmap too.
    pub(super) fn store(&mut self, range: Range<u32>) {
        self.stored.set_range(range);
    }

    /// Number of clusters of the range that are pinned: set in `taken`, clear in `stored`, and not
    /// freed.
    pub(super) fn count_pinned(&self, range: Range<u32>) -> u32 {
        let stored = self.stored.view().count_clear(range.clone());
        let free = self.taken.view().count_clear(range.clone());
        stored.saturating_sub(free).saturating_sub(self.count_freed(range))
    }

    /// Number of clusters of the range that were freed by transactions that are not committed.
    fn count_freed(&self, range: Range<u32>) -> u32 {
        let overlap = |(freed, _): &(Range<u32>, Tid)| {
            freed.end.min(range.end).saturating_sub(freed.start.max(range.start))
        };
        self.freed.iter().map(overlap).sum()
    }

    /// Removes the clusters of the range from the list of freed clusters. Returns how many were on
    /// it.
    pub(super) fn unfree(&mut self, range: &Range<u32>) -> u32 {
        let count = self.count_freed(range.clone());
        if count > 0 {
            let freed = std::mem::take(&mut self.freed);
            self.freed = freed
                .into_iter()
                .flat_map(|(freed, tid)| {
                    let before = freed.start..freed.end.min(range.start);
                    let after = freed.start.max(range.end)..freed.end;
                    [(before, tid), (after, tid)]
                })
                .filter(|(left, _)| !left.is_empty())
                .collect();
        }
        count
    }

    /// Returns whether some of these clusters hold the file system's own structures.
    pub(super) fn holds_own(&self, range: Range<u32>) -> bool {
        let next = self.own.partition_point(|own| own.end <= range.start);
        self.own.get(next).is_some_and(|own| own.start < range.end)
    }

    /// Number of clusters of the range that are free in the stored bitmap.
    pub(super) fn count_free(&self, range: Range<u32>) -> u32 {
        self.stored.view().count_clear(range)
    }

    /// Checks that these clusters may be freed.
    pub(super) fn check_free(&self, range: Range<u32>) -> Result<(), NotFreed> {
        if range.end > self.len {
            let rule = "blocks are freed that lie behind the group (first and end bit follow)";
            return Err(NotFreed::Refused(rule));
        }
        if self.holds_own(range.clone()) && !sabotage("extant.alloc.own-blocks-freed") {
            let rule = "blocks are freed that hold the file system's own structures";
            return Err(NotFreed::Refused(rule));
        }
        if self.stored.view().count_clear(range) > 0 {
            let rule = "blocks are freed that are free (first and end bit follow)";
            return Err(NotFreed::Lost(rule));
        }
        Ok(())
    }

    /// Frees clusters; they are given away once transaction `tid` is committed.
    pub(super) fn free(&mut self, range: Range<u32>, tid: Tid) {
        self.stored.clear_range(range.clone());
        match self.freed.last_mut() {
            // Runs are joined within one transaction only (P58).
            Some((last, of))
                if (*of == tid || sabotage("extant.alloc.freed-runs-mixed"))
                    && last.end == range.start =>
            {
                last.end = range.end;
            }
            Some((last, of)) if *of == tid && last.start == range.end => last.start = range.start,
            _ => self.freed.push((range, tid)),
        }
    }

    /// Releases the clusters freed by transactions for which `due` is true. Returns their runs.
    pub(super) fn release(&mut self, due: impl Fn(Tid) -> bool) -> Vec<Range<u32>> {
        let (due, kept) = std::mem::take(&mut self.freed).into_iter().partition(|(_, at)| due(*at));
        self.freed = kept;
        let due: Vec<(Range<u32>, Tid)> = due;
        let due: Vec<Range<u32>> = due.into_iter().map(|(range, _)| range).collect();
        due.iter().for_each(|range| self.show(range.clone()));
        due
    }

    #[cfg(test)]
    pub(super) fn parts(&self) -> (BitmapRef<'_>, BitmapRef<'_>, u32) {
        assert_eq!(self.room, self.taken.view().count_clear(0..self.len), "clear bits");
        self.check_windows();
        (self.stored.view(), self.taken.view(), self.len)
    }
}

/// The result of a search of a group's bitmap.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Found {
    pub(super) run: Option<Range<u32>>,
    /// Whether the search looked at all runs, so that no longer one exists, or `run` has the full
    /// length.
    pub(super) is_complete: bool,
}

impl Found {
    /// Length of the run in clusters, 0 without one.
    pub(super) fn size(&self) -> u32 {
        self.run.as_ref().map_or(0, |run| run.end - run.start)
    }

    fn is_whole(&self, len: u32) -> bool {
        self.size() == len
    }
}

impl Inodes {
    /// Returns the first free inode from bit `from` on.
    pub(super) fn find(&self, from: u32) -> Option<u32> {
        self.stored.view().first_clear(from.max(self.first_free)..self.len)
    }

    pub(super) fn is_used(&self, bit: u32) -> bool {
        self.stored.view().get(bit)
    }

    pub(super) fn take(&mut self, bit: u32) {
        self.stored.set(bit);
        if bit == self.first_free {
            self.first_free = first_clear(&self.stored, bit + 1, self.len);
        }
    }

    pub(super) fn free(&mut self, bit: u32) {
        self.stored.clear(bit);
        self.first_free = self.first_free.min(bit);
    }

    #[cfg(test)]
    pub(super) fn parts(&self) -> (BitmapRef<'_>, u32) {
        (self.stored.view(), self.len)
    }
}

/// Returns the first clear bit from `from` on, or `len`.
fn first_clear(bitmap: &Bitmap, from: u32, len: u32) -> u32 {
    bitmap.view().first_clear(from..len).unwrap_or(len)
}

fn check_count(bitmap: BitmapRef<'_>, len: u32, told: u32) -> Result<(), Fault> {
    let free = bitmap.count_clear(0..len);
    let rule = "the free count of the descriptor is not the bitmap's";
    let (value, limit) = (u64::from(told), u64::from(free));
    if value == limit { Ok(()) } else { Err(Fault::Field { rule, value, limit }) }
}

fn verify(bytes: &[u8], seed: u32, bits: u32, stored: u32, desc_size: u16) -> Result<(), Fault> {
    // Both halves of the checksum are stored in descriptors of 64 bytes.
    let wide = desc_size >= 64;
    BitmapRef::new(bytes).verify_checksum("bitmap", seed, bits, stored, wide).map_err(Fault::from)
}

pub(super) fn damaged(group: GroupIndex, rule: &'static str) -> FsError {
    let fault = Fault::Field { rule, value: u64::from(group.0), limit: u64::from(u32::MAX) };
    FsError::corrupt("block group", None, None::<FsBlock>, fault)
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_base::Prng;

    fn blocks(len: u32, own: Vec<Range<u32>>) -> Blocks {
        let stored = Bitmap::of_uninit_group(128, len, own.iter().cloned());
        Blocks::new(stored, own, len)
    }

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "a list of one range is meant")]
    fn the_goal_is_tried_first_then_what_is_before_it() {
        let mut group = blocks(1000, vec![0..10]);
        assert_eq!(group.find(Look::All, 500, 8, 1).run, Some(500..508));
        group.take(500..1000);
        assert_eq!(group.find(Look::All, 500, 8, 1).run, Some(10..18));
        assert_eq!(group.find(Look::All, 999, 1, 1).run, Some(10..11));
        assert_eq!(group.find(Look::All, 5000, 600, 1).run, Some(10..500), "fewer than wanted");
        assert_eq!(group.find(Look::All, 0, 600, 491).run, None, "not fewer than the minimum");
        group.take(10..500);
        assert_eq!(group.find(Look::All, 0, 1, 1).run, None);
    }

    #[test]
    fn the_only_run_that_will_do_is_found_behind_many_short_ones() {
        let mut group = blocks(1000, vec![]);
        for bit in (0..900).step_by(2) {
            group.take(bit..bit + 1);
        }
        group.take(900..940);
        group.take(943..1000);
        assert_eq!(group.find(Look::All, 0, 10, 2).run, Some(940..943));
    }

    #[test]
    fn a_run_on_a_stripe_is_found_wherever_there_is_one() {
        let mut random = Prng::new(12);
        for round in 0..2000 {
            let len = random.below(600) as u32 + 1;
            let mut group = blocks(len, vec![]);
            for _ in 0..random.below(12) {
                let start = random.below(u64::from(len)) as u32;
                let end = (start + random.below(40) as u32 + 1).min(len);
                group.hide(start..end);
            }
            let stripe = random.below(30) as u32 + 1;
            let stripes = Stripes { first: random.below(u64::from(stripe)) as u32, stripe };
            let (start, wanted) =
                (random.below(700) as u32, random.below(u64::from(len)) as u32 + 1);
            let found = group.find_on_stripe(Look::All, start, wanted, stripes);
            let is_free = |first: u32| {
                first + wanted <= len
                    && group.taken.view().count_clear(first..first + wanted) == wanted
            };
            let there: Vec<u32> =
                (0..len).filter(|at| at % stripe == stripes.first && is_free(*at)).collect();
            let behind = there.iter().find(|at| **at >= start);
            let expected = behind.or(there.first()).map(|first| *first..*first + wanted);
            assert_eq!(found, expected, "round {round}");
        }
    }

    #[test]
    fn p58_freed_clusters_wait_for_their_own_transaction() {
        let mut group = blocks(64, vec![]);
        group.take(0..64);
        group.free(0..4, 7);
        group.free(4..8, 8);
        assert_eq!(group.find(Look::All, 0, 1, 1).run, None);
        assert_eq!(group.release(|tid| tid <= 7), std::slice::from_ref(&(0..4)));
        assert_eq!(
            group.find(Look::All, 0, 64, 1).run,
            Some(0..4),
            "not joined across transactions"
        );
        assert_eq!(group.release(|tid| tid <= 8), std::slice::from_ref(&(4..8)));
        assert_eq!(group.find(Look::All, 0, 64, 1).run, Some(0..8));
    }

    #[test]
    fn what_is_free_or_the_file_systems_own_is_not_freed() {
        let mut group = blocks(100, vec![0..10, 50..60]);
        group.take(10..50);
        assert_eq!(group.check_free(10..50), Ok(()));
        for range in [9..11, 49..51, 59..60, 60..61, 10..100, 99..101, 0..1] {
            assert!(group.check_free(range.clone()).is_err(), "{range:?}");
        }
        group.free(20..21, 1);
        assert!(group.check_free(20..21).is_err(), "free once, although not released");
    }

    #[test]
    fn a_random_history_matches_a_set() {
        let mut random = Prng::new(3);
        let mut group = blocks(777, vec![0..5, 300..310]);
        let mut held: Vec<Range<u32>> = Vec::new();
        let mut waiting: Vec<(Range<u32>, Tid)> = Vec::new();
        let mut used = std::collections::BTreeSet::new();
        let mut tid = 1;
        for _ in 0..20_000 {
            match random.next_u64() % 8 {
                0..=3 => {
                    let (start, len) = (random.next_u64() % 800, random.next_u64() % 30 + 1);
                    let min = random.next_u64() % len + 1;
                    let found = group.find(Look::All, start as u32, len as u32, min as u32);
                    let Some(run) = found.run else { continue };
                    assert!(run.len() as u64 >= min && run.len() as u64 <= len);
                    group.take(run.clone());
                    for bit in run.clone() {
                        assert!(used.insert(bit), "bit {bit} given away twice");
                        assert!(!(0..5).contains(&bit) && !(300..310).contains(&bit));
                    }
                    held.push(run);
                }
                4..=6 if !held.is_empty() => {
                    let at = random.next_u64() as usize % held.len();
                    let run = held.swap_remove(at);
                    group.check_free(run.clone()).unwrap();
                    group.free(run.clone(), tid);
                    waiting.push((run, tid));
                }
                _ => {
                    let due = tid.saturating_sub((random.next_u64() % 3) as u32);
                    group.release(|tid| tid <= due);
                    waiting.retain(|(run, at)| {
                        if *at <= due {
                            run.clone().for_each(|bit| assert!(used.remove(&bit)));
                        }
                        *at > due
                    });
                    tid += 1;
                }
            }
            let (stored, taken, len) = group.parts();
            assert_eq!(group.room, len - taken.count_set(0..len));
            assert_eq!(taken.first_clear(0..len).unwrap_or(len), group.first_free);
            assert_eq!(taken.count_set(0..len) as usize, used.len() + 15);
            let waits: usize = waiting.iter().map(|(run, _)| run.len()).sum();
            assert_eq!(stored.count_set(0..len) as usize, used.len() + 15 - waits);
        }
    }
}
