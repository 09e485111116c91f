//! The map from file blocks to device blocks.
//!
//! # Place
//!
//! Below: `extant-format` decodes extent nodes and pointer blocks; the volume reads and caches
//! them. Above: [`Inode::read_at`](crate::Inode::read_at), directories and everything that shows or
//! copies a file's layout. This module never reads file data.
//!
//! # Shape
//!
//! ```text
//! lookup          mappings for the I/O path         MapIter   merges neighbours, clips to a range
//!   Cursor        remembers the leaf it is in
//!     extents     extent tree          (flag EXTENTS)
//!     indirect    block pointers       (ext2, ext3, and ext4 without the flag)
//!     inline      data in the inode    (flag INLINE_DATA)
//!   overlay       ranges that a fast commit added or removed, over all of them
//! ```
//!
//! # Invariants
//!
//! - M1. A piece covers at least the requested block, so every loop over pieces moves forward.
//! - M2. Device blocks of a piece lie inside the file system, and not in its own structures
//!   ([`zones`](crate::zones)). Readers need not check again.

mod edit;
mod extent_edit;
mod extents;
mod indirect;
mod indirect_edit;
mod lookup;
mod publish;
mod remap;
mod restore;
mod shift;
mod tail;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::Arc;

use extant_base::{FileBlock, FsBlock};
use extant_format::extent::ExtentState;
use extant_jbd2::FcMapping;

use crate::error::{FsError, Result};
use crate::inode::Inode;
use crate::node::InodeData;
use crate::view::View;
pub(crate) use edit::{
    REMOVE_STEP_CREDITS, append_block, has_blocks, implied_block, insert, insert_first, is_small,
    remove,
};
pub(crate) use lookup::{lookup, lookup_in_memory};
pub(crate) use publish::{CONVERT_STEP_CREDITS, convert_range, insert_run, publish_credits};
pub(crate) use remap::{PACK_STEP_CREDITS, Packed, Relocation, pack, remap, remap_credits};
pub(crate) use restore::unmap;
pub(crate) use shift::{SHIFT_STEP_CREDITS, shift_down, shift_up, split_at};
pub(crate) use tail::{lengthen, tail};

/// Exclusive limit of file block numbers, which have 32 bits.
pub(crate) const FILE_BLOCKS_END: u64 = 1 << 32;

/// Limit of the pieces joined into one mapping, which bounds one step of a [`MapIter`].
const MERGE_MAX: usize = 4096;

/// How a run of blocks of a file is stored.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MappingKind {
    /// There are no device blocks; reads return zeros.
    Hole,
    /// Device blocks from this one on are allocated and unwritten; reads return zeros.
    Unwritten(FsBlock),
    /// Device blocks from here on hold the data.
    Mapped(FsBlock),
    /// The data is in the inode itself.
    Inline,
}

/// A run of blocks of a file that are stored alike.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Mapping {
    /// First block of the run.
    pub file_start: FileBlock,
    /// Number of blocks, at least 1. The run ends at or before file block 2^32.
    pub len: u64,
    /// How the run is stored.
    pub kind: MappingKind,
}

impl Mapping {
    /// Returns the first file block after the run, which may be 2^32.
    pub fn file_end(&self) -> u64 {
        u64::from(self.file_start.0).saturating_add(self.len)
    }

    /// Returns whether `next` continues this run in the file and on the device.
    fn continues_with(&self, next: &Mapping) -> bool {
        let device_end = |start: FsBlock| start.checked_add(self.len);
        u64::from(next.file_start.0) == self.file_end()
            && match (self.kind, next.kind) {
                (MappingKind::Hole, MappingKind::Hole) => true,
                (MappingKind::Mapped(a), MappingKind::Mapped(b))
                | (MappingKind::Unwritten(a), MappingKind::Unwritten(b)) => {
                    device_end(a) == Some(b)
                }
                _ => false,
            }
    }
}

/// Looks up pieces, and remembers the place of the last one.
#[derive(Debug)]
pub(crate) struct Cursor {
    source: Source,
}

#[derive(Debug)]
enum Source {
    Extents(extents::ExtentCursor),
    Indirect(indirect::IndirectCursor),
    Inline,
    /// An inode without blocks: a device, pipe, socket, or short symlink.
    Nothing,
}

impl Cursor {
    pub(crate) fn new(inode: &View<'_>) -> Cursor {
        let source = if !inode.has_block_map() {
            Source::Nothing
        } else if inode.is_inline() {
            Source::Inline
        } else if inode.uses_extents() {
            Source::Extents(extents::ExtentCursor::default())
        } else {
            Source::Indirect(indirect::IndirectCursor::default())
        };
        Cursor { source }
    }

    /// Returns the mapping of file block `at`, with its length. The piece starts at `at` (M1) and
    /// is not merged with its neighbours. `at` must be below [`FILE_BLOCKS_END`].
    pub(crate) fn piece(&mut self, inode: &View<'_>, at: u64) -> Result<Mapping> {
        let file_start = u32::try_from(at)
            .map(FileBlock)
            .map_err(|_| FsError::InvalidArgument { what: "a file has no block from 2^32 on" })?;
        let (overlaid, limit) = inode.overlay_at(file_start);
        let mut piece = match overlaid {
            Some(kind) => Mapping { file_start, len: limit - at, kind },
            None => {
                let mut piece = match &mut self.source {
                    Source::Extents(cursor) => cursor.piece(inode, file_start)?,
                    Source::Indirect(cursor) => {
                        let (volume, ino) = (inode.volume(), inode.ino());
                        cursor.piece(volume, ino, inode.i_block(), file_start)?
                    }
                    Source::Inline | Source::Nothing => {
                        let kind = match (&self.source, at) {
                            (Source::Inline, 0) => MappingKind::Inline,
                            _ => MappingKind::Hole,
                        };
                        let end = if kind == MappingKind::Inline { 1 } else { FILE_BLOCKS_END };
                        Mapping { file_start, len: end - at, kind }
                    }
                };
                piece.len = piece.len.min(limit - at);
                piece
            }
        };
        piece.len = piece.len.clamp(1, FILE_BLOCKS_END - at);
        if let MappingKind::Mapped(start) | MappingKind::Unwritten(start) = piece.kind {
            let (volume, ino) = (inode.volume(), inode.ino());
            volume.check_file_blocks("file mapping", ino, file_start, start, piece.len)?;
        }
        Ok(piece)
    }

    /// Like [`piece`](Self::piece), joined with the pieces that continue it, up to file block
    /// `end`.
    pub(crate) fn run(&mut self, inode: &View<'_>, at: u64, end: u64) -> Result<Mapping> {
        let mut run = self.piece(inode, at)?;
        for _ in 0..MERGE_MAX {
            let next_at = run.file_end();
            if next_at >= end.min(FILE_BLOCKS_END) {
                break;
            }
            // The next call reports damage further on.
            let Ok(next) = self.piece(inode, next_at) else { break };
            if !run.continues_with(&next) {
                break;
            }
            run.len += next.len;
        }
        run.len = run.len.min(end.saturating_sub(at)).max(1);
        Ok(run)
    }
}

/// Iterator over the mappings of a range of a file, in order and without gaps; see
/// [`Inode::map`](crate::Inode::map).
#[derive(Debug)]
pub struct MapIter {
    inode: Inode,
    /// The version of the inode on a read-only mount.
    data: Arc<InodeData>,
    cursor: Cursor,
    at: u64,
    end: u64,
}

impl MapIter {
    /// Creates an iterator over `blocks`, in file blocks, cut at 2^32.
    pub(crate) fn new(inode: Inode, blocks: Range<u64>) -> MapIter {
        let data = inode.node().data();
        let cursor = Cursor::new(&View::of(inode.fs(), inode.node(), Arc::clone(&data)));
        MapIter { inode, data, cursor, at: blocks.start, end: blocks.end.min(FILE_BLOCKS_END) }
    }
}

impl Iterator for MapIter {
    type Item = Result<Mapping>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.end {
            return None;
        }
        let (at, end) = (self.at, self.end);
        let run = match self.inode.volume().is_writable() {
            // The map may have changed since the last step.
            true => self.inode.locked(|view| {
                // Writeback changes the tree without the content lock, even for a file that comes
                // into use only now.
                let file = view.fs().file_of(view.node())?;
                let _map = file.map(|file| file.map.read());
                let now = view.fs().view(view.node());
                Cursor::new(&now).run(&now, at, end)
            }),
            false => {
                let (fs, node) = (self.inode.fs(), self.inode.node());
                self.cursor.run(&View::of(fs, node, Arc::clone(&self.data)), at, end)
            }
        };
        self.at = match &run {
            Ok(run) => run.file_end(),
            Err(_) => self.end, // Where the damage ends is not known.
        };
        Some(run)
    }
}

impl Inode {
    /// Returns an iterator over the mappings of the file's blocks, as runs in order and without
    /// gaps. `blocks` is a range of file blocks and may reach past the end of the file:
    /// preallocated blocks there are unwritten, the rest is a hole.
    ///
    /// Devices, pipes, sockets and links with their target in the inode have no blocks: the whole
    /// range is a hole.
    ///
    /// # Errors
    ///
    /// Damage of the map ends the iteration with an `Err` item; a later range may be intact.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use extant::MappingKind;
    /// let device = extant_block::FileDevice::open_read_only("disk.img")?;
    /// let fs = extant::MountOptions::new().open(device)?;
    /// let inode = fs.resolve("/var/lib/db")?;
    /// for run in inode.map(0..inode.block_len()) {
    ///     let run = run?;
    ///     if let MappingKind::Mapped(start) = run.kind {
    ///         println!("{} blocks at {start} for file block {}", run.len, run.file_start);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn map(&self, blocks: Range<u64>) -> MapIter {
        MapIter::new(self.clone(), blocks)
    }
}

impl View<'_> {
    /// Returns the mapping of file block `at` in fast commits, `None` if they have none, and the
    /// block up to which that holds.
    pub(crate) fn overlay_at(&self, at: FileBlock) -> (Option<MappingKind>, u64) {
        let Some(recorded) = self.recorded() else { return (None, FILE_BLOCKS_END) };
        let start = u64::from(at.0);
        match recorded.map(at) {
            FcMapping::Unchanged { len } => (None, start + u64::from(len.0)),
            FcMapping::Hole { len } => (Some(MappingKind::Hole), start + u64::from(len.0)),
            FcMapping::Mapped(extent) => {
                let kind = match extent.state {
                    ExtentState::Written => MappingKind::Mapped(extent.device_start),
                    ExtentState::Unwritten => MappingKind::Unwritten(extent.device_start),
                };
                (Some(kind), start + u64::from(extent.len.0))
            }
        }
    }
}
