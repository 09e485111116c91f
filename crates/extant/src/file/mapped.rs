//! Files mapped into the memory of the embedding process.
//!
//! The pages of a map are those of the page cache, pinned. The program's stores are not observed,
//! so every page mapped for writing counts as changed whenever it matters: before an operation that
//! depends on the cache's state, and before writeback (`extant-iomap`, `mmap`).

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use extant_format::inode::InodeFlags;
use extant_iomap::MappedPages;

use super::FileMapper;
use crate::error::{FsError, Result};
use crate::fs::Fs;
use crate::inode::Inode;
use crate::node::Node;

/// Offsets of maps are multiples of this.
const PAGE_BYTES: u64 = 4096;

impl FileMapper<'_> {
    /// Marks pages dirty that programs may have stored to through maps. The caller holds the
    /// content lock exclusively and no handle.
    pub(crate) fn absorb(&self) -> Result<()> {
        for pages in self.file.mapped() {
            self.file.cache.absorb(self, &pages, pages.range())?;
        }
        Ok(())
    }

    /// Makes maps show the file's contents after a change that removed pages from the cache.
    pub(crate) fn refresh(&self) -> Result<()> {
        for pages in self.file.mapped() {
            self.file.cache.refresh(self, &pages)?;
        }
        Ok(())
    }
}

impl Fs {
    /// Marks pages dirty like [`FileMapper::absorb`], for a caller without locks.
    pub(crate) fn absorb_maps(&self, node: &Arc<Node>) -> Result<()> {
        let Some(file) = node.file_in_use().filter(|file| file.is_mapped_writable()) else {
            return Ok(());
        };
        let _content = node.content.write();
        FileMapper { fs: self, node, file }.absorb()
    }
}

impl Inode {
    /// Maps bytes `range` of a regular file, rounded up to whole pages, into memory and keeps them
    /// there. Reads and writes of the file and the map are coherent.
    ///
    /// With `writable`, space is promised now for every hole of the range up to the end of the
    /// file, so that stores below the end cannot be lost for want of space; where a hole is punched
    /// later under the map, space is promised again when stores are collected. Stores are collected
    /// by [`MappedFile::sync`], [`sync`](Self::sync) of the file, [`Fs::sync`], [`Fs::tick`] and
    /// when the map is dropped. There is no record of which bytes were stored to: each of these
    /// writes the whole mapped range.
    ///
    /// Bytes behind the end of the file read as zeros; bytes stored there never become part of the
    /// file, and are zeroed again when the file is written back or grows. No access to the map
    /// raises a signal: a file that is truncated leaves zeros. The map always shows the file's
    /// current contents at its offsets, also after ranges were collapsed or inserted.
    ///
    /// # Errors
    ///
    /// - [`FsError::InvalidArgument`]: an offset that is not a multiple of 4096, or an empty range.
    /// - [`FsError::PageCache`] when more than half of the cache would be mapped, or there is no
    ///   shared memory to map from.
    /// - [`FsError::NotPermitted`] for writable maps, by the inode's flags; [`FsError::ReadOnly`]
    ///   on a read-only mount, which has no page cache.
    /// - [`FsError::NoSpace`], [`FsError::QuotaExceeded`]; as [`read_at`](Self::read_at).
    ///
    /// # Cost
    ///
    /// A read of the part of the range that is not cached.
    pub fn map_shared(&self, range: Range<u64>, writable: bool) -> Result<MappedFile> {
        self.check_contents()?;
        let is_good = range.start.is_multiple_of(PAGE_BYTES) && range.start < range.end;
        if !is_good || range.end > u64::MAX >> 1 {
            let what = "range: not empty, from a multiple of 4096 on, and below byte 2^63";
            return Err(FsError::InvalidArgument { what });
        }
        let (fs, node) = (self.fs(), self.node());
        let file = fs.file(node)?;
        let _turn = fs.balance_dirty(self.ino(), 0)?;
        let pages = fs.change(|| {
            let _content = node.content.write();
            let flags = node.with(|data| data.record.flags);
            if writable {
                super::check_changeable(node.ino(), flags)?;
            }
            if writable && flags.contains(InodeFlags::APPEND) {
                let what = "it can only be appended to";
                return Err(FsError::NotPermitted { ino: node.ino(), what });
            }
            let mapper = FileMapper { fs, node, file };
            mapper.move_out()?;
            // Bytes that others stored behind the end must not show through this map.
            mapper.absorb()?;
            let pages = Arc::new(file.cache.map_pages(&mapper, range.clone(), writable)?);
            file.add_map(&pages);
            Ok(pages)
        })?;
        if writable {
            fs.note_dirty(node, file);
        }
        Ok(MappedFile { inode: self.clone(), pages })
    }
}

/// Bytes of a file in memory, from [`Inode::map_shared`]. Dropping it collects the stores, which
/// needs the file's content lock: do not drop it inside [`Inode::with_cached`] of the same file.
pub struct MappedFile {
    inode: Inode,
    pages: Arc<MappedPages>,
}

impl MappedFile {
    /// Returns the length of the map in bytes: whole pages, at least one.
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> u64 {
        let range = self.pages.range();
        range.end - range.start
    }

    /// Returns the bytes of the file that the map shows.
    pub fn range(&self) -> Range<u64> {
        self.pages.range()
    }

    /// Returns the address of the first byte, valid for the life of the map. Other threads change
    /// the bytes at any time. Store to it only if the map is writable: stores through a read-only
    /// map are visible to readers but are not written back.
    pub fn as_ptr(&self) -> *mut u8 {
        self.pages.as_ptr()
    }

    /// Copies bytes out of the map, from byte `at` of the map on. A concurrent write may show in
    /// part.
    ///
    /// # Errors
    ///
    /// [`FsError::InvalidArgument`] when the range is not inside the map.
    pub fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        self.check(at, out.len() as u64)?;
        self.pages.read(at, out);
        Ok(())
    }

    /// Copies bytes into the map, to byte `at` of the map, like any store: readers of the file may
    /// see a part.
    ///
    /// # Errors
    ///
    /// [`FsError::InvalidArgument`] when the range is not inside the map; [`FsError::ReadOnly`]
    /// when the map is not writable.
    pub fn write(&self, at: u64, bytes: &[u8]) -> Result<()> {
        self.check(at, bytes.len() as u64)?;
        if !self.pages.is_writable() {
            return Err(FsError::ReadOnly);
        }
        self.pages.write(at, bytes);
        Ok(())
    }

    fn check(&self, at: u64, len: u64) -> Result<()> {
        match at.checked_add(len) {
            Some(end) if end <= self.len() => Ok(()),
            _ => Err(FsError::InvalidArgument { what: "range: inside the map" }),
        }
    }

    /// Makes the stores to bytes `range` of the map durable, together with all earlier writes to
    /// the file.
    ///
    /// # Errors
    ///
    /// [`FsError::InvalidArgument`] when the range is not inside the map; those of
    /// [`Inode::sync_data`]; [`FsError::NoSpace`] where a hole was made under the map.
    pub fn sync(&self, range: Range<u64>) -> Result<()> {
        self.check(range.start, range.end.saturating_sub(range.start))?;
        let start = self.pages.range().start;
        self.take_stores(start + range.start..start + range.end.max(range.start))?;
        self.inode.sync_stored(true)
    }

    /// Marks pages dirty that may have been stored to.
    fn take_stores(&self, range: Range<u64>) -> Result<()> {
        let (fs, node) = (self.inode.fs(), self.inode.node());
        let file = fs.file(node)?;
        if self.pages.is_writable() {
            let _content = node.content.write();
            let mapper = FileMapper { fs, node, file };
            file.cache.absorb(&mapper, &self.pages, range)?;
            file.touch(fs.volume().writer()?.now());
        }
        fs.note_dirty(node, file);
        Ok(())
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // Stores to a hole that was made under the map are lost here if there is no space.
        let _ = self.take_stores(self.pages.range());
        if let Some(file) = self.inode.node().file_in_use() {
            file.remove_map(&self.pages);
        }
    }
}

impl fmt::Debug for MappedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedFile(inode {}, {:?})", self.inode.ino(), self.pages)
    }
}
