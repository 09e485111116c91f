//! Files as memory of the embedding process.
//!
//! The pages of a map are those of the page cache, pinned. Nobody sees the program's stores, so
//! all that is mapped for writing counts as stored to whenever it matters: before the file changes
//! in ways that look at the cache's state, and before it is brought to the device (`extant-iomap`,
//! `mmap`).

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
use crate::size;

/// Offsets of maps are multiples of it.
const PAGE_BYTES: u64 = 4096;

impl FileMapper<'_> {
    /// Takes what programs may have stored through maps. The caller holds the content lock exclusively
    /// and no handle.
    pub(crate) fn absorb(&self) -> Result<()> {
        for pages in self.file.mapped() {
            self.file.cache.absorb(self, &pages, pages.range())?;
        }
        Ok(())
    }

    /// Shows programs what a change made of the file, as far as it took blocks out of the cache.
    pub(crate) fn refresh(&self) -> Result<()> {
        for pages in self.file.mapped() {
            self.file.cache.refresh(self, &pages)?;
        }
        Ok(())
    }
}

impl Fs {
    /// [`FileMapper::absorb`] for a caller without locks.
    pub(crate) fn absorb_maps(&self, node: &Arc<Node>) -> Result<()> {
        let Some(file) = node.file_in_use().filter(|file| file.is_mapped_writable()) else {
            return Ok(());
        };
        let _content = node.content.write();
        FileMapper { fs: self, node, file }.absorb()
    }
}

impl Inode {
    /// Shows bytes `range` of a regular file, rounded up to whole pages, at addresses of their own, and
    /// keeps them in memory. Reads and writes of the file and the map see each other at once.
    ///
    /// With `writable`, space is promised now for every hole of the range up to the end of the file, so that
    /// stores below the end cannot be lost for want of it; space that is taken away later under the
    /// map (a hole is punched) is promised again when stores are looked for. Stores are found by
    /// [`MappedFile::sync`], [`sync`](Self::sync) of the file, [`Fs::sync`], [`Fs::tick`] and when the map is
    /// dropped. Nothing tells which bytes were stored to: each of these writes all of the mapped
    /// range.
    ///
    /// Bytes behind the end of the file read as zeros; what is stored there is never part of the file, and
    /// is zeroed again when the file is written back or grows. No access to the map raises a signal: a
    /// file that is truncated leaves zeros. The map always shows what the file has at its place, also
    /// after ranges were taken out of the file or put in.
    ///
    /// # Errors
    ///
    /// - [`FsError::InvalidArgument`]: an offset that is not a multiple of 4096, or an empty range.
    /// - [`FsError::PageCache`] when more than half of the cache would be mapped, or there is
    ///   no shared memory to map from.
    /// - [`FsError::NotPermitted`] for writable maps, by the inode's flags; [`FsError::ReadOnly`] on a
    ///   mount for reading, which has no page cache.
    /// - [`FsError::NoSpace`], [`FsError::QuotaExceeded`]; as [`read_at`](Self::read_at).
    ///
    /// # Cost
    ///
    /// Reads what of the range is not cached.
    pub fn map_shared(&self, range: Range<u64>, writable: bool) -> Result<MappedFile> {
        self.check_contents()?;
        let is_good = range.start.is_multiple_of(PAGE_BYTES) && range.start < range.end;
        if !is_good || range.end > u64::MAX >> 1 {
            let what = "range: not empty, from a multiple of 4096 on, and below byte 2^63";
            return Err(FsError::InvalidArgument { what });
        }
        let (fs, node) = (self.fs(), self.node());
        let file = fs.file(node)?;
        fs.balance_dirty()?;
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
            if flags.contains(InodeFlags::INLINE_DATA) {
                size::uninline(fs, node)?;
                file.mapping_changed();
            }
            let mapper = FileMapper { fs, node, file };
            // What others stored behind the end is not to be seen through this map.
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

/// Bytes of a file as memory, from [`Inode::map_shared`]. Dropping it takes what was stored, and needs the
/// file's lock: not inside of [`Inode::with_cached`] of the same file.
pub struct MappedFile {
    inode: Inode,
    pages: Arc<MappedPages>,
}

impl MappedFile {
    /// Bytes of the map: whole pages, at least one.
    #[expect(clippy::len_without_is_empty, reason = "it never is")]
    pub fn len(&self) -> u64 {
        let range = self.pages.range();
        range.end - range.start
    }

    /// The bytes of the file that it shows.
    pub fn range(&self) -> Range<u64> {
        self.pages.range()
    }

    /// The first byte, for programs that look at memory themselves. Valid as long as the map; others
    /// change what is there at any time. To be stored to only in a writable map: in another one stores
    /// show to readers and do not last.
    pub fn as_ptr(&self) -> *mut u8 {
        self.pages.as_ptr()
    }

    /// Copies bytes out of the map, from its byte `at` on. A write at the same time may show in part.
    ///
    /// # Errors
    ///
    /// [`FsError::InvalidArgument`] when the range is not inside.
    pub fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        self.check(at, out.len() as u64)?;
        self.pages.read(at, out);
        Ok(())
    }

    /// Copies bytes into the map, at its byte `at`, as any store: readers of the file may see a part.
    ///
    /// # Errors
    ///
    /// [`FsError::InvalidArgument`] when the range is not inside; [`FsError::ReadOnly`] when the map is not
    /// writable.
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

    /// Makes the stores to bytes `range` of the map durable, with all that was written to the file.
    ///
    /// # Errors
    ///
    /// [`FsError::InvalidArgument`] when the range is not inside; those of [`Inode::sync_data`]; no
    /// space where a hole was made under the map.
    pub fn sync(&self, range: Range<u64>) -> Result<()> {
        self.check(range.start, range.end.saturating_sub(range.start))?;
        let start = self.pages.range().start;
        self.take_stores(start + range.start..start + range.end.max(range.start))?;
        self.inode.sync_stored(true)
    }

    /// What may have been stored to is dirty now.
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
        // Without space for a hole that was made under the map, its stores end here.
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
