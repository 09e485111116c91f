//! Direct I/O by the rules of Linux: requests must be aligned, and nothing stays in memory.

use std::fmt;
use std::sync::atomic::Ordering;

use extant_format::inode::InodeFlags;
use extant_iomap::DirectOptions;

use super::io::WriteAsk;
use super::{FileMapper, WriteBy};
use crate::error::{FsError, Result};
use crate::inode::Inode;
use crate::node::FileState;

/// Alignment that direct I/O requires, in bytes: powers of two, which `statx` reports as
/// `stx_dio_mem_align` and `stx_dio_offset_align`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DirectAlignment {
    /// Alignment of the buffer's address.
    pub memory: u32,
    /// Alignment of offsets in the file and of lengths.
    pub offset: u32,
}

/// A regular file for direct I/O, from [`Inode::direct`]: the counterpart of a file opened with
/// `O_DIRECT` on Linux.
///
/// # Rules
///
/// - Offset, length and memory are aligned as [`alignment`](Self::alignment) says; otherwise the
///   call fails with [`FsError::Misaligned`] (`EINVAL`) and has no effect. Nothing is buffered
///   silently.
/// - When a write returns, its bytes are on the device. They are durable after
///   [`sync_data`](Inode::sync_data), or at once with [`write_synced_at`](Self::write_synced_at).
/// - Direct I/O is coherent with the page cache: dirty pages of the range are written back first,
///   and cached pages of a written range are dropped afterwards. Pages that programs have mapped
///   stay cached, so a write to them goes through the cache and to the device before it returns.
///
/// # Concurrency
///
/// Writes to what is not cached run concurrently with each other and with readers, which may see a
/// part of one. Overwrites of data need no journal handle; writes that fill holes, extend the file
/// or give preallocated blocks their first data need one, and take turns with those that do so to
/// the same blocks. [`Inode::truncate`] and [`Inode::fallocate`] wait for those in their part of the
/// file. Every other write is exclusive, such as one to a file with large clusters
/// (`bigalloc`), with parts mapped, or whose data lies in the inode. `CacheStats` counts the kinds
/// (`direct_overwrites`, `direct_conversions`, `direct_fills`, `direct_alone_…`).
///
/// # Example
///
/// ```
/// use extant::{FsError, MountOptions, NewInode};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("image");
/// # let made = std::process::Command::new("mke2fs")
/// #     .args(["-q", "-t", "ext4"]).arg(&path).arg("16M").status();
/// # if !made.is_ok_and(|status| status.success()) { return Ok(()); }
/// let fs = MountOptions::new().read_only(false).open_path(&path)?;
/// let file = fs.root()?.create("disk", &NewInode::root(0o644))?.direct()?;
/// let unit = file.alignment().offset as usize;
/// let mut block = extant::AlignedBuffer::zeroed(8 * unit);
/// block.fill(7);
/// file.write_at(&block, 0)?;
/// assert!(matches!(file.write_at(&block, 1), Err(FsError::Misaligned { .. })));
/// assert_eq!(file.read_at(&mut block, unit as u64)?, 7 * unit);
/// drop(file);
/// fs.unmount()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct DirectFile {
    inode: Inode,
    alignment: DirectAlignment,
}

impl Inode {
    /// Returns the alignment that direct I/O on this file requires. `None` where Linux reports 0:
    /// the file is not regular, or its data lies in the inode at the moment, is encrypted, goes
    /// through the journal or is sealed by fs-verity.
    pub fn direct_alignment(&self) -> Option<DirectAlignment> {
        let flags = self.node().gist().flags;
        let without = InodeFlags::INLINE_DATA | InodeFlags::VERITY;
        let is_plain = !self.is_logged() && !flags.intersects(without);
        let has_any = self.check_contents().is_ok() && is_plain;
        has_any.then(|| self.alignment_of_device())
    }

    pub(super) fn alignment_of_device(&self) -> DirectAlignment {
        let sector = self.volume().device().logical_sector_bytes();
        DirectAlignment { memory: sector, offset: sector }
    }

    /// Opens this regular file for direct I/O, by the rules of [`DirectFile`].
    ///
    /// # Errors
    ///
    /// [`FsError::IsADirectory`], [`FsError::NotARegularFile`], [`FsError::Encrypted`].
    pub fn direct(&self) -> Result<DirectFile> {
        self.check_contents()?;
        Ok(DirectFile { inode: self.clone(), alignment: self.alignment_of_device() })
    }
}

impl DirectFile {
    /// The file.
    pub fn inode(&self) -> &Inode {
        &self.inode
    }

    /// Returns the alignment that offsets, lengths and buffers must have.
    pub fn alignment(&self) -> DirectAlignment {
        self.alignment
    }

    /// Fills `out` from byte `offset`, and returns the number of bytes read: fewer than asked for
    /// only at the end of the file, 0 at or past it. There is no read-ahead, and nothing is cached.
    ///
    /// # Errors
    ///
    /// [`FsError::Misaligned`]; otherwise as [`Inode::read_at`].
    ///
    /// # Cost
    ///
    /// One device read for each contiguous run, and a copy of bytes that are cached.
    pub fn read_at(&self, out: &mut [u8], offset: u64) -> Result<usize> {
        self.check(offset, out)?;
        self.inode.read_direct_at(out, offset)
    }

    /// Writes `bytes` at byte `offset`, growing the file if needed, and returns the number of bytes
    /// written: fewer only before an error, which the next call returns.
    ///
    /// # Errors
    ///
    /// [`FsError::Misaligned`]; otherwise as [`Inode::write_at`], and those of the device. After a
    /// device error the contents of the blocks concerned are undefined.
    ///
    /// # Cost
    ///
    /// One device write for each contiguous run; one journal handle when blocks are added or get
    /// their first data.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        self.write_by(WriteBy::Program, false, bytes, offset)
    }

    /// Writes like [`write_at`](Self::write_at), and returns when the bytes, and the metadata
    /// needed to read them back, are durable (`O_DSYNC`).
    ///
    /// # Errors
    ///
    /// Those of [`write_at`](Self::write_at) and [`Inode::sync_data`].
    ///
    /// # Cost
    ///
    /// An overwrite of data is one device write with FUA, without a flush or a commit, unless the
    /// map of the file has changed since the last commit. Otherwise [`write_at`](Self::write_at)
    /// and [`Inode::sync_data`].
    pub fn write_synced_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        self.write_by(WriteBy::Program, true, bytes, offset)
    }

    /// Writes for front ends that say with `by` on whose behalf: like
    /// [`write_synced_at`](Self::write_synced_at) if `synced`, else like
    /// [`write_at`](Self::write_at).
    ///
    /// # Errors
    ///
    /// As [`write_synced_at`](Self::write_synced_at) and [`write_at`](Self::write_at).
    pub fn write_by(&self, by: WriteBy, synced: bool, bytes: &[u8], offset: u64) -> Result<usize> {
        self.check(offset, bytes)?;
        if bytes.is_empty() {
            return self.inode.write_direct_by(by, bytes, offset);
        }
        let how = self.options(synced);
        let (written, durable) = match self.inode.write_direct_shared(by, offset, bytes, how)? {
            Some(done) => done,
            None => (self.inode.write_direct_alone(by, offset, bytes)?, false),
        };
        if synced {
            match durable {
                true => self.inode.commit_map_for(offset + written as u64)?,
                false => self.inode.sync_data()?,
            }
        }
        Ok(written)
    }

    /// Returns the options of this file's writes.
    pub(super) fn options(&self, synced: bool) -> DirectOptions {
        DirectOptions { unit: self.alignment.offset.into(), durable: synced }
    }

    /// Fails with [`FsError::Misaligned`] if the offset, the length or the memory is not aligned.
    pub(super) fn check(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.alignment.check(offset, bytes)
    }
}

impl DirectAlignment {
    /// Fails with [`FsError::Misaligned`] if the offset, the length or the memory is not aligned.
    pub(super) fn check(self, offset: u64, bytes: &[u8]) -> Result<()> {
        let DirectAlignment { memory, offset: unit } = self;
        let ask = |what, value: u64, unit: u32| match value.is_multiple_of(u64::from(unit.max(1))) {
            true => Ok(()),
            false => Err(FsError::Misaligned { what, value, unit }),
        };
        ask("offset", offset, unit)?;
        ask("length", bytes.len() as u64, unit)?;
        if bytes.is_empty() {
            return Ok(()); // Nowhere in memory.
        }
        ask("address of the memory", bytes.as_ptr().addr() as u64, memory)
    }
}

impl Inode {
    /// Does a direct write with the content lock held exclusively. Parts that took the way through
    /// the cache are on the device, and dropped from the cache, when the call returns.
    pub(super) fn write_direct_alone(
        &self,
        by: WriteBy,
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize> {
        let (fs, node) = (self.fs(), self.node());
        let file = fs.file(node)?;
        let _turn = fs.balance_dirty(self.ino(), 0)?;
        fs.change(|| {
            let _content = node.content.write();
            let (ask, parts) = (WriteAsk::at(offset).by(by).direct(), std::iter::once(bytes));
            let (_, written) = self.write_locked(file, ask, parts)?;
            self.bring_to_device(file, offset, written as u64)?;
            Ok(written)
        })
    }

    /// Writes back the dirty pages of a range and drops its cached pages, unless programs have them
    /// mapped. The caller holds the content lock exclusively.
    fn bring_to_device(&self, file: &FileState, offset: u64, len: u64) -> Result<()> {
        let block = u64::from(self.volume().block_size().bytes());
        let end = (offset + len).div_ceil(block).saturating_mul(block);
        let range = offset / block * block..end;
        let mapper = FileMapper { fs: self.fs(), node: self.node(), file };
        let kept_out = file.cache.keep_writeback_out();
        file.cache.write_back_kept_out(&mapper, range.clone(), &kept_out)?;
        if !file.is_mapped() {
            file.cache.forget(range, &kept_out);
        }
        Ok(())
    }

    /// Makes sure that durable bytes up to `end` can be found after a crash: commits the last
    /// change of the map or of the stored size, if that has not happened yet.
    pub(super) fn commit_map_for(&self, end: u64) -> Result<()> {
        if self.node().with(|data| data.record.size) < end {
            return self.sync_data();
        }
        let round = self.node().unsynced().changed_by.load(Ordering::Acquire);
        if round != 0 {
            let journal = self.volume().writer()?.journal();
            journal.sync(round).map_err(FsError::from_journal)?;
        }
        Ok(())
    }
}

impl fmt::Debug for DirectFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DirectFile(inode {}, {:?})", self.inode.ino(), self.alignment)
    }
}
