//! Data, holes and extents of a file.
//!
//! On a writable mount these queries ask the page cache and the delayed ranges as well as the map,
//! under the content lock, shared. On a read-only mount they ask only the map.

use std::ops::Range;

use extant_format::inode::FileKind;

use crate::error::{FsError, Result};
use crate::inode::Inode;
use crate::map::{self, FILE_BLOCKS_END, MappingKind};
use crate::view::View;

/// Offset in an inode of its map, or of the first part of inline data.
const BLOCK_AREA_AT: u64 = 40;
/// Offset in an inode of its extra fields.
const EXTRA_AT: u64 = 128;
/// The first word of an attribute space in use.
const XATTR_MAGIC: [u8; 4] = 0xea02_0000_u32.to_le_bytes();

/// One run of [`Inode::fiemap`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FiemapExtent {
    /// Offset of the first byte in the file.
    pub logical: u64,
    /// Address of the first byte on the device; 0 when there is none.
    pub physical: u64,
    /// Length in bytes.
    pub len: u64,
    /// Whether the run is allocated and reads as zeros.
    pub is_unwritten: bool,
    /// Whether the run is in memory only and has no address yet.
    pub is_delayed: bool,
    /// Whether the run is in the inode itself: `physical` is the address in the inode table.
    pub is_inline: bool,
    /// Whether no extent comes after this one.
    pub is_last: bool,
}

impl FiemapExtent {
    fn new(logical: u64, physical: u64, len: u64) -> FiemapExtent {
        FiemapExtent {
            logical,
            physical,
            len,
            is_unwritten: false,
            is_delayed: false,
            is_inline: false,
            is_last: false,
        }
    }
}

impl Inode {
    /// Returns the first byte from `offset` on that is not in a hole; `None` when there is no data
    /// up to the end, or `offset` is at or behind the end.
    ///
    /// Unwritten blocks count as holes, unless the cache has dirty data for them.
    ///
    /// # Errors
    ///
    /// Damage of the map, device errors; for inodes without contents as [`read_at`](Self::read_at).
    pub fn seek_data(&self, offset: u64) -> Result<Option<u64>> {
        self.check_contents()?;
        if !self.volume().is_writable() {
            return self.seek_stored(offset, true);
        }
        let _content = self.node().content.read();
        self.fs().with_mapper(self.node(), |mapper| mapper.file.cache.seek_data(mapper, offset))
    }

    /// Returns the first byte from `offset` on that is in a hole; the size when there is none.
    /// `None` when `offset` is at or behind the end.
    ///
    /// # Errors
    ///
    /// As [`seek_data`](Self::seek_data).
    pub fn seek_hole(&self, offset: u64) -> Result<Option<u64>> {
        self.check_contents()?;
        if !self.volume().is_writable() {
            return self.seek_stored(offset, false);
        }
        let _content = self.node().content.read();
        self.fs().with_mapper(self.node(), |mapper| {
            if offset >= mapper.file.size() {
                return Ok(None);
            }
            mapper.file.cache.seek_hole(mapper, offset).map(Some)
        })
    }

    fn seek_stored(&self, offset: u64, data: bool) -> Result<Option<u64>> {
        let (size, bits) = (self.size(), self.volume().block_size().log2());
        if offset >= size {
            return Ok(None);
        }
        for run in self.map(offset >> bits..self.volume().block_size().blocks_for(size)) {
            let run = run?;
            let is_data = matches!(run.kind, MappingKind::Mapped(_) | MappingKind::Inline);
            if is_data == data {
                let at = (u64::from(run.file_start.0) << bits).max(offset);
                return Ok(Some(at));
            }
        }
        Ok((!data).then_some(size))
    }

    /// Returns how the bytes of `range` are stored, at most `most` runs, in whole blocks; also
    /// behind the end of the file. Holes are left out. `sync` writes the file back first, so that
    /// nothing is delayed.
    ///
    /// # Errors
    ///
    /// Damage of the map, device errors; [`FsError::NotARegularFile`] for inodes that are neither a
    /// file nor a directory.
    ///
    /// # Cost
    ///
    /// Proportional to the number of runs; one run behind those returned is looked up, to tell
    /// whether they are the last.
    pub fn fiemap(&self, range: Range<u64>, most: usize, sync: bool) -> Result<Vec<FiemapExtent>> {
        if !matches!(self.kind(), FileKind::Regular | FileKind::Directory) {
            return Err(FsError::NotARegularFile { ino: self.ino() });
        }
        if !self.volume().is_writable() {
            return self.list_runs(&self.fs().view(self.node()), &range, most);
        }
        let node = self.node();
        if sync && node.file_in_use().is_some() {
            self.fs().with_mapper(node, |mapper| {
                mapper.file.cache.write_back(mapper, 0..u64::MAX >> 1)
            })?;
        }
        let _content = node.content.read();
        self.list_runs(&self.fs().view(node), &range, most)
    }

    fn list_runs(
        &self,
        view: &View<'_>,
        range: &Range<u64>,
        most: usize,
    ) -> Result<Vec<FiemapExtent>> {
        let mut found = Vec::new();
        if range.start >= range.end || most == 0 {
            return Ok(found);
        }
        if view.is_inline() {
            let size = self.node().size();
            if range.start < size {
                let at = place_in_inode(view, BLOCK_AREA_AT)?;
                let inline = FiemapExtent::new(0, at, size);
                found.push(FiemapExtent { is_inline: true, is_last: true, ..inline });
            }
            return Ok(found);
        }
        let bits = self.volume().block_size().log2();
        let end = range.end.div_ceil(1 << bits).min(FILE_BLOCKS_END);
        let mut at = range.start >> bits;
        while at < end && found.len() < most {
            let (run, next) = self.run_at(at, end)?;
            found.extend(run);
            at = next;
        }
        if found.is_empty() {
            return Ok(found);
        }
        let mut is_last = true;
        while at < FILE_BLOCKS_END && is_last {
            let (run, next) = self.run_at(at, FILE_BLOCKS_END)?;
            is_last = run.is_none();
            at = next;
        }
        if let Some(last) = found.last_mut() {
            last.is_last = is_last;
        }
        Ok(found)
    }

    /// Returns the run that starts at a block and ends at `end` or before, `None` for a hole, and
    /// the block where it ends.
    fn run_at(&self, at: u64, end: u64) -> Result<(Option<FiemapExtent>, u64)> {
        let block_size = self.volume().block_size();
        let bits = block_size.log2();
        let run = |end: u64, physical| FiemapExtent::new(at << bits, physical, (end - at) << bits);
        let address = |block| {
            let what = "block past the largest device";
            block_size.offset_of(block).ok_or(FsError::InvalidArgument { what })
        };
        let file = self.fs().file_of(self.node())?;
        // The lock is held over the lookup, because writeback may publish at the same time.
        let delayed = file.map(|file| file.map.read());
        let mut end = end;
        if let Some(delayed) = &delayed {
            if let Some(found) = delayed.at(at) {
                let end = found.end.min(end);
                return Ok((Some(FiemapExtent { is_delayed: true, ..run(end, 0) }), end));
            }
            end = delayed.next(at).map_or(end, |next| next.min(end));
        }
        let piece = map::lookup(self.fs(), self.node(), at, end)?;
        let end = piece.file_end().min(end).max(at + 1);
        let found = match piece.kind {
            MappingKind::Hole | MappingKind::Inline => None,
            MappingKind::Mapped(block) => Some(run(end, address(block)?)),
            MappingKind::Unwritten(block) => {
                Some(FiemapExtent { is_unwritten: true, ..run(end, address(block)?) })
            }
        };
        Ok((found, end))
    }

    /// Returns where the extended attributes are: in the inode, in a block, or both. The `logical`
    /// offsets of the block continue those of the inode.
    ///
    /// # Errors
    ///
    /// Damage of the inode table's place.
    pub fn fiemap_xattrs(&self) -> Result<Vec<FiemapExtent>> {
        self.locked(|inode| {
            let mut found = Vec::new();
            let space = inode.xattr_space();
            let mut logical = 0;
            if space.starts_with(&XATTR_MAGIC) {
                let at = EXTRA_AT + u64::from(inode.record().extra_isize);
                logical = space.len() as u64;
                let run = FiemapExtent::new(0, place_in_inode(inode, at)?, logical);
                found.push(FiemapExtent { is_inline: true, ..run });
            }
            let block_size = inode.volume().block_size();
            if let Some(block) = inode.xattr_block() {
                let (volume, ino) = (inode.volume(), inode.ino());
                volume.check_file_blocks("attribute block", ino, None, block, 1)?;
                let at = block_size.offset_of(block).unwrap_or(0);
                found.push(FiemapExtent::new(logical, at, u64::from(block_size.bytes())));
            }
            if let Some(last) = found.last_mut() {
                last.is_last = true;
            }
            Ok(found)
        })
    }
}

/// Returns the device address of byte `at` of the inode.
fn place_in_inode(view: &View<'_>, at: u64) -> Result<u64> {
    let (block, offset) = view.volume().inode_place(view.ino())?;
    let start = view.volume().block_size().offset_of(block);
    let place = start.and_then(|start| start.checked_add(offset as u64 + at));
    place.ok_or(FsError::InvalidArgument { what: "block past the largest device" })
}
