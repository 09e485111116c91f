//! Fast commits, combined into the state that they describe.
//!
//! # Place
//!
//! A full commit replaces blocks; a fast commit describes inodes and names. Applying it to blocks
//! would need allocation and writes, so a reader consults it instead: for an inode,
//! [`FastCommitOverlay::inode`] before it uses the raw inode and the mapping below; for a
//! directory, [`FastCommitOverlay::directory`] before it relies on an entry or its absence.
//!
//! # Rules
//!
//! - The area is valid only if its head names the transaction after the last full commit, and up to
//!   the last tail with that transaction and a correct checksum.
//! - Records describe final states. Of two records of the same name or file block, the later one is
//!   valid.
//! - A directory made by a fast commit has no blocks yet: `.`, `..` and the names recorded for it
//!   are all there is.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/ext4/journal.rst`, "Fast commits"; which parts of an inode come
//! from the record is as in ext4's own replay.

use std::collections::BTreeMap;
use std::ops::Range;

use extant_base::{BlockCount, FileBlock, FsBlock, Ino, sabotage};
use extant_format::extent::{Extent, ExtentState};
use extant_format::jbd2::{
    FcDentry, FcRecord, FcRecords, FcRunningChecksum, JournalSuperblock, Tid,
};

use crate::error::RecoveryError;
use crate::log::JournalReader;

/// Limit of the bytes of the area that are read. The default area is 256 blocks: 16 MiB at most.
const AREA_BYTES_MAX: u64 = 64 << 20;

/// First file block that does not exist.
const FILE_BLOCKS_END: u64 = 1 << 32;

/// Reason why reading the area ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FastCommitStop {
    /// The area is full.
    AreaEnd,
    /// Bytes that are no record, such as the zeros of an unused area.
    NotARecord,
    /// A head or tail of another transaction, left over from earlier.
    OtherTransaction {
        /// The transaction found.
        found: Tid,
    },
    /// A tail with a wrong checksum: the fast commit is incomplete.
    Checksum,
}

/// The changes described by all valid fast commits together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FastCommitOverlay {
    tid: Tid,
    commits: u32,
    stop: FastCommitStop,
    inodes: BTreeMap<Ino, FcInode>,
    directories: BTreeMap<Ino, FcDirectory>,
}

/// The changes of one inode in fast commits.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FcInode {
    image: Option<Vec<u8>>,
    /// First block to (end, target); pieces do not overlap.
    pieces: BTreeMap<u64, (u64, Target)>,
}

/// The contents of a piece of a file: blocks, or nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Target {
    Hole,
    /// The device block of the piece's first block.
    Mapped(FsBlock, ExtentState),
}

/// Mapping of a run of file blocks in fast commits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FcMapping {
    /// The blocks are not in fast commits: the inode's own tree is valid.
    Unchanged {
        /// Length of the run in blocks.
        len: BlockCount,
    },
    /// The blocks are a hole, whatever the inode's own tree says.
    Hole {
        /// Length of the run in blocks.
        len: BlockCount,
    },
    /// The blocks are mapped here, whatever the inode's own tree says. The extent begins at the
    /// requested block; it may be longer than one record of a tree can be.
    Mapped(Extent),
}

/// The changes of the names in one directory in fast commits.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FcDirectory {
    parent: Option<Ino>,
    entries: BTreeMap<Vec<u8>, FcEntry>,
}

/// The state of one name after the fast commits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FcEntry {
    /// The name belongs to this inode.
    Present(Ino),
    /// The name does not belong to this inode any more. An entry of the same name for another inode
    /// is not affected.
    Removed(Ino),
}

impl FastCommitOverlay {
    fn new(tid: Tid) -> FastCommitOverlay {
        FastCommitOverlay {
            tid,
            commits: 0,
            stop: FastCommitStop::AreaEnd,
            inodes: BTreeMap::new(),
            directories: BTreeMap::new(),
        }
    }

    /// Returns the transaction of these fast commits.
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// Returns the number of valid fast commits, at least 1.
    pub fn commits(&self) -> u32 {
        self.commits
    }

    /// Returns the reason why there were no more.
    pub fn stop(&self) -> FastCommitStop {
        self.stop
    }

    /// Returns the changes of an inode; `None` without any.
    pub fn inode(&self, ino: Ino) -> Option<&FcInode> {
        self.inodes.get(&ino)
    }

    /// Returns the changes of the names in a directory; `None` without any.
    pub fn directory(&self, ino: Ino) -> Option<&FcDirectory> {
        self.directories.get(&ino)
    }

    /// Returns all changed inodes, by number.
    pub fn inodes(&self) -> impl ExactSizeIterator<Item = (Ino, &FcInode)> {
        self.inodes.iter().map(|(ino, inode)| (*ino, inode))
    }

    /// Returns all changed directories, by number.
    pub fn directories(&self) -> impl ExactSizeIterator<Item = (Ino, &FcDirectory)> {
        self.directories.iter().map(|(ino, directory)| (*ino, directory))
    }

    /// Adds one record to the state.
    fn fold(&mut self, record: &FcRecord<'_>) {
        match record {
            FcRecord::AddRange { ino, extent } => {
                let start = u64::from(extent.file_start.0);
                let end = start.saturating_add(u64::from(extent.len.0));
                let target = Target::Mapped(extent.device_start, extent.state);
                self.inodes.entry(*ino).or_default().set(start..end, target);
            }
            FcRecord::DelRange { ino, start, len } => {
                let start = u64::from(start.0);
                let end = start.saturating_add(u64::from(len.0)).min(FILE_BLOCKS_END);
                self.inodes.entry(*ino).or_default().set(start..end, Target::Hole);
            }
            FcRecord::Inode { ino, raw } => {
                let inode = self.inodes.entry(*ino).or_default();
                if inode.image.as_deref().is_some_and(|old| !same_inode(old, raw))
                    && !sabotage("jbd2.fast-commit.former-life-kept")
                {
                    // The number was freed and used again: ranges of its former life are void.
                    inode.pieces.clear();
                }
                inode.image = Some(raw.to_vec());
            }
            FcRecord::Create(dentry) => {
                let image = self.inodes.get(&dentry.ino).and_then(FcInode::image);
                if image.is_some_and(is_directory) {
                    let parent = Some(dentry.parent);
                    let made = FcDirectory { parent, entries: BTreeMap::new() };
                    self.directories.insert(dentry.ino, made);
                } else {
                    self.directories.remove(&dentry.ino);
                }
                self.enter(dentry, FcEntry::Present(dentry.ino));
            }
            FcRecord::Link(dentry) => self.enter(dentry, FcEntry::Present(dentry.ino)),
            FcRecord::Unlink(dentry) => {
                let entries = self.directories.get(&dentry.parent);
                let now = entries.and_then(|directory| directory.get(dentry.name));
                let other = matches!(now, Some(FcEntry::Present(ino)) if ino != dentry.ino);
                if !other {
                    self.enter(dentry, FcEntry::Removed(dentry.ino));
                }
            }
            FcRecord::Pad | FcRecord::Tail(_) | FcRecord::Head { .. } => {}
        }
    }

    fn enter(&mut self, dentry: &FcDentry<'_>, entry: FcEntry) {
        let directory = self.directories.entry(dentry.parent).or_default();
        directory.entries.insert(dentry.name.to_vec(), entry);
    }
}

/// Raw inode: `i_mode`, 2 bytes.
const MODE_OFFSET: usize = 0x0;
/// Raw inode: `i_flags`, 4 bytes.
const FLAGS_OFFSET: usize = 0x20;
/// Raw inode: `i_block`.
const I_BLOCK: Range<usize> = 0x28..0x64;
/// Raw inode: `i_generation`, 4 bytes.
const GENERATION_OFFSET: usize = 0x64;
/// `i_flags`: `i_block` is the root of an extent tree.
const FLAG_EXTENTS: u32 = 0x8_0000;
/// `i_flags`: `i_block` is the start of the file's contents.
const FLAG_INLINE_DATA: u32 = 0x1000_0000;
/// The file type in `i_mode`, and the value for directories.
const MODE_TYPE: u32 = 0xf000;
const MODE_DIRECTORY: u32 = 0x4000;
/// Root of an empty extent tree: magic 0xF30A, 0 records, room for 4, depth 0.
const EMPTY_TREE: [u8; 8] = [0x0a, 0xf3, 0, 0, 4, 0, 0, 0];

fn le32(raw: &[u8], offset: usize) -> u32 {
    let field = raw.get(offset..).and_then(|rest| rest.first_chunk::<4>());
    u32::from_le_bytes(field.copied().unwrap_or_default())
}

fn is_directory(raw: &[u8]) -> bool {
    le32(raw, MODE_OFFSET) & MODE_TYPE == MODE_DIRECTORY
}

/// Returns whether two images are of one inode, not of successive inodes with the same number.
fn same_inode(a: &[u8], b: &[u8]) -> bool {
    le32(a, GENERATION_OFFSET) == le32(b, GENERATION_OFFSET)
        && (le32(a, MODE_OFFSET) ^ le32(b, MODE_OFFSET)) & MODE_TYPE == 0
}

impl FcInode {
    /// Returns the recorded image: the first 128 bytes of the inode or more. `None` when only
    /// ranges are recorded.
    pub fn image(&self) -> Option<&[u8]> {
        self.image.as_deref()
    }

    /// Returns the raw inode to use instead of `home`, all bytes of the stored one.
    ///
    /// All recorded bytes are used, except that `i_block` stays as stored if it is the root of an
    /// extent tree: the record does not have the tree, only the ranges that changed; see
    /// [`map`](Self::map). For an inode that is new it is an empty tree. Bytes after the recorded
    /// ones stay, or are zero for a new inode. The checksum of the result is out of date, and so is
    /// its block count.
    pub fn merge(&self, home: &[u8]) -> Vec<u8> {
        let Some(image) = self.image() else {
            return home.to_vec();
        };
        let known = same_inode(home, image);
        let mut merged = if known { home.to_vec() } else { vec![0; home.len()] };
        for (to, from) in merged.iter_mut().zip(image) {
            *to = *from;
        }
        let flags = le32(image, FLAGS_OFFSET);
        if flags & FLAG_EXTENTS != 0
            && flags & FLAG_INLINE_DATA == 0
            && let Some(tree) = merged.get_mut(I_BLOCK)
        {
            let old = home.get(I_BLOCK).filter(|old| {
                let has_tree = le32(home, FLAGS_OFFSET) & FLAG_EXTENTS != 0;
                known && has_tree && old.first_chunk::<2>() == EMPTY_TREE.first_chunk::<2>()
            });
            match old {
                Some(old) => tree.copy_from_slice(old),
                None => {
                    tree.fill(0);
                    for (to, from) in tree.iter_mut().zip(EMPTY_TREE) {
                        *to = from;
                    }
                }
            }
        }
        merged
    }

    /// True when the mapping of some block changed.
    pub fn has_ranges(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// Returns the blocks that the fast commits give the file, by file block.
    pub fn mapped(&self) -> impl Iterator<Item = Extent> + '_ {
        self.pieces.iter().filter_map(|(start, (end, target))| {
            let Target::Mapped(device_start, state) = *target else { return None };
            let file_start = FileBlock(u32::try_from(*start).ok()?);
            let len = BlockCount(u32::try_from(end.saturating_sub(*start)).unwrap_or(u32::MAX));
            Some(Extent { file_start, device_start, len, state })
        })
    }

    /// Returns the mapping of the file's blocks from `block` on, for as many as have the same one.
    ///
    /// Lengths stop at file block 2^32 - 1, the last possible one.
    pub fn map(&self, block: FileBlock) -> FcMapping {
        let at = u64::from(block.0);
        let len_to =
            |end: u64| BlockCount(u32::try_from(end.saturating_sub(at)).unwrap_or(u32::MAX));
        match self.pieces.range(..=at).next_back() {
            Some((start, (end, target))) if at < *end => match target {
                Target::Hole => FcMapping::Hole { len: len_to(*end) },
                Target::Mapped(device, state) => FcMapping::Mapped(Extent {
                    file_start: block,
                    device_start: FsBlock(device.0.saturating_add(at.saturating_sub(*start))),
                    len: len_to(*end),
                    state: *state,
                }),
            },
            _ => {
                let next = self.pieces.range(at..).next().map(|(start, _)| *start);
                FcMapping::Unchanged { len: len_to(next.unwrap_or(FILE_BLOCKS_END)) }
            }
        }
    }

    /// Makes `range` one piece, cutting what it overlaps.
    fn set(&mut self, range: Range<u64>, target: Target) {
        if range.is_empty() {
            return;
        }
        // Only the piece before the range's start can reach into it from outside.
        let first = self
            .pieces
            .range(..range.start)
            .next_back()
            .filter(|(_, (end, _))| *end > range.start)
            .map_or(range.start, |(start, _)| *start);
        let cut: Vec<u64> = self.pieces.range(first..range.end).map(|(start, _)| *start).collect();
        for start in cut {
            let Some((end, old)) = self.pieces.remove(&start) else {
                continue;
            };
            if start < range.start {
                self.pieces.insert(start, (range.start, old));
            }
            if end > range.end {
                let moved = match old {
                    Target::Hole => Target::Hole,
                    Target::Mapped(device, state) => {
                        let skipped = range.end.saturating_sub(start);
                        Target::Mapped(FsBlock(device.0.saturating_add(skipped)), state)
                    }
                };
                self.pieces.insert(range.end, (end, moved));
            }
        }
        self.pieces.insert(range.start, (range.end, target));
    }
}

impl FcDirectory {
    /// Returns the parent of a directory created by a fast commit, whose stored blocks are invalid:
    /// the recorded names are its only contents besides `.` and `..`.
    pub fn made_in(&self) -> Option<Ino> {
        self.parent
    }

    /// Returns the recorded state of a name; `None` without one.
    pub fn get(&self, name: &[u8]) -> Option<FcEntry> {
        self.entries.get(name).copied()
    }

    /// Returns all recorded names, in the order of their bytes.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = (&[u8], FcEntry)> {
        self.entries.iter().map(|(name, entry)| (name.as_slice(), *entry))
    }

    /// Returns whether a stored entry is still valid.
    pub fn keeps(&self, name: &[u8], ino: Ino) -> bool {
        match self.get(name) {
            _ if self.parent.is_some() => false,
            None => true,
            Some(FcEntry::Present(now)) => now == ino,
            Some(FcEntry::Removed(gone)) => gone != ino,
        }
    }
}

/// Reads the fast-commit area on top of the full commits before `tid`. `None` when it holds
/// nothing for that transaction.
pub(crate) fn load(
    log: &dyn JournalReader,
    superblock: &JournalSuperblock,
    tid: Tid,
) -> Result<Option<FastCommitOverlay>, RecoveryError> {
    let mut reader = AreaReader {
        overlay: FastCommitOverlay::new(tid),
        pending: Vec::new(),
        checksum: FcRunningChecksum::default(),
        headed: false,
    };
    let mut bytes = vec![0; superblock.block_size.len()];
    let mut seen_bytes = 0u64;
    for block in superblock.fast_commit_area() {
        seen_bytes = seen_bytes.saturating_add(u64::from(superblock.block_size.bytes()));
        if seen_bytes > AREA_BYTES_MAX {
            return Err(RecoveryError::FastCommitBytes { limit: AREA_BYTES_MAX });
        }
        log.read_block(block, &mut bytes)?;
        if let Some(stop) = reader.block(&bytes)? {
            reader.overlay.stop = stop;
            break;
        }
    }
    Ok(Some(reader.overlay).filter(|overlay| overlay.commits > 0))
}

/// Reads an area block by block.
struct AreaReader {
    overlay: FastCommitOverlay,
    /// Records of the fast commit that has no tail yet.
    pending: Vec<u8>,
    checksum: FcRunningChecksum,
    /// Whether the head was read.
    headed: bool,
}

impl AreaReader {
    fn block(&mut self, bytes: &[u8]) -> Result<Option<FastCommitStop>, RecoveryError> {
        let tid_of_area = self.overlay.tid;
        let is_ours =
            |tid: Tid| tid == tid_of_area || sabotage("jbd2.fast-commit.stale-area-taken");
        for record in FcRecords::new(bytes) {
            let Ok((record, covered)) = record else {
                return Ok(Some(FastCommitStop::NotARecord));
            };
            if !self.headed && !matches!(record, FcRecord::Head { .. }) {
                return Ok(Some(FastCommitStop::NotARecord));
            }
            self.checksum.update(covered);
            match record {
                FcRecord::Head { features, tid } => {
                    if !is_ours(tid) {
                        return Ok(Some(FastCommitStop::OtherTransaction { found: tid }));
                    }
                    if features != 0 {
                        return Err(RecoveryError::FastCommitFeatures { features });
                    }
                    self.headed = true;
                }
                FcRecord::Tail(tail) => {
                    let sum = self.checksum.take();
                    if !is_ours(tail.tid) {
                        return Ok(Some(FastCommitStop::OtherTransaction { found: tail.tid }));
                    }
                    if tail.checksum != sum && !sabotage("jbd2.fast-commit.tail-not-checked") {
                        return Ok(Some(FastCommitStop::Checksum));
                    }
                    let pending = std::mem::take(&mut self.pending);
                    for (record, _) in FcRecords::new(&pending).flatten() {
                        self.overlay.fold(&record);
                    }
                    self.overlay.commits = self.overlay.commits.saturating_add(1);
                }
                FcRecord::Pad => {}
                _ => self.pending.extend_from_slice(covered),
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests;
