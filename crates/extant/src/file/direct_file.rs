//! Direct I/O by the rules of Linux: aligned, or refused, and never left in memory.

use std::fmt;
use std::sync::atomic::Ordering;

use extant_format::inode::InodeFlags;
use extant_iomap::{Overwrite, Overwritten};

use super::io::WriteAsk;
use super::{FileMapper, WriteBy};
use crate::error::{FsError, Result};
use crate::inode::Inode;
use crate::node::FileState;

/// What direct I/O has to be aligned to, in bytes: powers of two. What `statx` calls `stx_dio_mem_align` and
/// `stx_dio_offset_align`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DirectAlignment {
    /// The first byte of the caller's memory.
    pub memory: u32,
    /// Offsets in the file, and lengths.
    pub offset: u32,
}

/// A regular file past the page cache, from [`Inode::direct`]. What Linux gives to programs that open with
/// `O_DIRECT`.
///
/// # Rules
///
/// - Offset, length and memory are aligned as [`alignment`](Self::alignment) says; else the call fails with
///   [`FsError::Misaligned`] (`EINVAL`) before anything is done. Nothing is buffered silently.
/// - When a write returns, its bytes are on the device. They are durable after
///   [`sync_data`](Inode::sync_data), or at once with [`write_synced_at`](Self::write_synced_at).
/// - Reads, writes and maps through the page cache see them, and are seen: what is dirty in the range goes to the
///   device first, and what is cached of it is dropped afterwards. What programs have mapped stays
///   where it is, so there a write goes through it, and to the device before it returns.
///
/// # Who waits for whom
///
/// Writes to blocks that the file has, none of it cached, run beside each other and beside readers, who may see
/// a part of one; over data they cost no handle of the journal. Every other write is alone with its
/// file: one that makes it longer, fills a hole, or covers a part of a block that has no data yet. `CacheStats`
/// counts each (`direct_overwrites`, `direct_conversions`, `direct_alone_…`).
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
/// file.write_at(0, &block)?;
/// assert!(matches!(file.write_at(1, &block), Err(FsError::Misaligned { .. })));
/// assert_eq!(file.read_at(unit as u64, &mut block)?, 7 * unit);
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
    /// What direct I/O on this file has to be aligned to. `None` where Linux says 0: the file is not
    /// regular, or its data lies in the inode at the moment, is encrypted or is sealed by fs-verity.
    pub fn direct_alignment(&self) -> Option<DirectAlignment> {
        let flags = self.node().gist().flags;
        let without = InodeFlags::INLINE_DATA | InodeFlags::VERITY;
        let has_any = self.check_contents().is_ok() && !flags.intersects(without);
        has_any.then(|| self.alignment_of_device())
    }

    fn alignment_of_device(&self) -> DirectAlignment {
        let sector = self.volume().device().logical_sector_bytes();
        DirectAlignment { memory: sector, offset: sector }
    }

    /// This regular file past the page cache, by the rules of [`DirectFile`].
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

    /// What offsets, lengths and memory have to be multiples of.
    pub fn alignment(&self) -> DirectAlignment {
        self.alignment
    }

    /// Fills `out` from byte `offset`, and returns how many bytes there were: fewer only at the end of
    /// the file, 0 at or past it. Nothing is read ahead, and nothing is kept in memory.
    ///
    /// # Errors
    ///
    /// [`FsError::Misaligned`]; as [`Inode::read_at`].
    ///
    /// # Cost
    ///
    /// One device read for each contiguous run, a copy of what is cached.
    pub fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.check(offset, out)?;
        self.inode.read_direct_at(offset, out)
    }

    /// Writes `bytes` at byte `offset`, growing the file if need be, and returns how many were written: fewer
    /// only when an error came in the way, which the next call meets again.
    ///
    /// # Errors
    ///
    /// [`FsError::Misaligned`]; as [`Inode::write_at`], and those of the device. Blocks that a device error was
    /// about may hold anything.
    ///
    /// # Cost
    ///
    /// One device write for each contiguous run; one handle of the journal when blocks are added or get their
    /// first data.
    pub fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<usize> {
        self.write_by(WriteBy::Program, false, offset, bytes)
    }

    /// [`write_at`](Self::write_at) that returns when the bytes are durable, and what is needed to read them
    /// back (`O_DSYNC`).
    ///
    /// # Errors
    ///
    /// As there, and of [`Inode::sync_data`].
    ///
    /// # Cost
    ///
    /// Over data: the device writes through its cache (FUA), and nothing is flushed or committed, unless
    /// the map of the file has changed lately. Else [`write_at`](Self::write_at) and [`Inode::sync_data`].
    pub fn write_synced_at(&self, offset: u64, bytes: &[u8]) -> Result<usize> {
        self.write_by(WriteBy::Program, true, offset, bytes)
    }

    /// Both for a front end that knows on whose behalf; `synced` as
    /// [`write_synced_at`](Self::write_synced_at).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn write_by(&self, by: WriteBy, synced: bool, offset: u64, bytes: &[u8]) -> Result<usize> {
        self.check(offset, bytes)?;
        if bytes.is_empty() {
            return self.inode.write_direct_by(by, offset, bytes);
        }
        let how = self.overwrites(synced);
        let (written, durable) = match self.inode.overwrite(by, offset, bytes, how)? {
            Overwritten::Done { durable } => (bytes.len(), durable),
            Overwritten::Alone(_) => (self.inode.write_direct_alone(by, offset, bytes)?, false),
        };
        if synced {
            match durable {
                true => self.inode.commit_map_for(offset + bytes.len() as u64)?,
                false => self.inode.sync_data()?,
            }
        }
        Ok(written)
    }

    /// How it writes over blocks.
    pub(super) fn overwrites(&self, synced: bool) -> Overwrite {
        Overwrite { unit: self.alignment.offset.into(), durable: synced }
    }

    /// Refuses offsets, lengths and memory that are not aligned, by name.
    pub(super) fn check(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let DirectAlignment { memory, offset: unit } = self.alignment;
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
    /// A direct write with the content lock held exclusively: what of it took the way through the cache is on
    /// the device as well when it returns, and not in the cache any more.
    pub(super) fn write_direct_alone(
        &self,
        by: WriteBy,
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize> {
        let (fs, node) = (self.fs(), self.node());
        let file = fs.file(node)?;
        fs.balance_dirty()?;
        fs.change(|| {
            let _content = node.content.write();
            let (ask, parts) = (WriteAsk::at(offset).by(by).direct(), std::iter::once(bytes));
            let (_, written) = self.write_locked(file, ask, parts)?;
            self.bring_to_device(file, offset, written as u64)?;
            Ok(written)
        })
    }

    /// What is dirty of these bytes goes to the device, and what is cached of them is forgotten, unless programs
    /// have it mapped. The content lock is held exclusively.
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

    /// Bytes that are durable up to `end` can be found again: whatever changed the map or the stored size is
    /// committed, which mostly it has been for long.
    pub(super) fn commit_map_for(&self, end: u64) -> Result<()> {
        if self.node().with(|data| data.record.size) < end {
            return self.sync_data();
        }
        let tid = self.node().unsynced().changed_by.load(Ordering::Acquire);
        if tid != 0 {
            let journal = self.volume().writer()?.journal();
            journal.commit(tid).map_err(FsError::from_journal)?;
        }
        Ok(())
    }
}

impl fmt::Debug for DirectFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DirectFile(inode {}, {:?})", self.inode.ino(), self.alignment)
    }
}
