//! Reading and writing regular files past the page cache.

use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use extant_format::inode::InodeFlags;
use extant_iomap::{Alone, Overwrite, Overwritten};

use super::io::{WriteAsk, check_changeable};
use super::{FileMapper, WriteBy};
use crate::error::{FsError, Result};
use crate::inode::Inode;
use crate::node::FileState;

/// Pieces of a range that are worth handing over one by one.
const PIECES_MOST: usize = 16;

impl Inode {
    /// [`read_at`](Self::read_at) that leaves the page cache as it is: what is not cached goes from the
    /// device into `out`, at any offset and length. For callers with a cache of their own, and for what is
    /// read once.
    ///
    /// # Errors
    ///
    /// As [`read_at`](Self::read_at).
    ///
    /// # Cost
    ///
    /// One device read for each contiguous run, nothing else in proportion to the bytes. Nothing is read
    /// ahead.
    pub fn read_direct_at(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.check_contents()?;
        if !self.volume().is_writable() {
            return self.read_range(offset, out);
        }
        let node = self.node();
        let _content = node.content.read();
        self.fs().with_mapper(node, |mapper| mapper.file.cache.read_direct(mapper, offset, out))
    }

    /// [`with_cached`](Self::with_cached) when all of `range` is in the page cache and nothing has to be
    /// read; else `None`, and `look` is not called.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn with_resident<R>(
        &self,
        range: Range<u64>,
        look: impl FnOnce(&[IoSlice<'_>]) -> R,
    ) -> Result<Option<R>> {
        self.check_contents()?;
        self.volume().writer()?;
        let node = self.node();
        let _content = node.content.read();
        self.fs().with_mapper(node, |mapper| {
            let range = range.start..range.end.min(mapper.file.size());
            Ok(mapper.file.cache.with_resident(range, look))
        })
    }

    /// Calls `look` with the open file that the device is and with where in it the bytes of `range` are, as
    /// far as the file has them: their places and lengths, one behind the other. Nobody writes to the file
    /// through the cache meanwhile; `look` must not use it, and says whether it has read them. `false` also when
    /// they are elsewhere (cached, in holes, in the inode), in more than 16 pieces, or the device is no open file.
    ///
    /// # Errors
    ///
    /// As [`read_at`](Self::read_at).
    pub fn with_stored(
        &self,
        range: Range<u64>,
        look: impl FnOnce(BorrowedFd<'_>, &[(u64, u64)]) -> bool,
    ) -> Result<bool> {
        self.check_contents()?;
        self.volume().writer()?;
        let Some((file, start)) = self.volume().device().as_file() else { return Ok(false) };
        let node = self.node();
        let _content = node.content.read();
        self.fs().with_mapper(node, |mapper| {
            let range = range.start..range.end.min(mapper.file.size());
            if range.is_empty() {
                return Ok(false);
            }
            let Some(mut runs) = mapper.file.cache.stored_at(mapper, range, PIECES_MOST)? else {
                return Ok(false);
            };
            // The device is shorter than 2^63, and so are sums.
            runs.iter_mut().for_each(|(at, _)| *at = at.saturating_add(start));
            let is_read = look(file, &runs);
            if is_read {
                mapper.file.cache.count_read(&runs);
            }
            Ok(is_read)
        })
    }

    /// [`write_at`](Self::write_at) whose whole blocks are on the device when it returns, without having
    /// been in the page cache; the bytes of blocks that are written in part are in the cache as ever. They
    /// are durable, all of them, by [`sync_data`](Self::sync_data).
    ///
    /// Any offset and length will do; what Linux calls direct I/O, with its rules, is [`direct`](Self::direct).
    ///
    /// Writes over blocks that the file has, of its stored size, and that are not cached run beside each other and
    /// beside readers, who may see a part of one. Any other write is alone, as a write through the cache.
    ///
    /// # Errors
    ///
    /// As [`write_at`](Self::write_at), and those of the device. Blocks that a device error was about may
    /// hold anything.
    ///
    /// # Cost
    ///
    /// One device write for each contiguous run; one handle of the journal when blocks are added or get their
    /// first data. Through the cache, with one copy, while the file is mapped or its data lies in the
    /// inode.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let device = extant_block::FileDevice::open_read_write("disk.img")?;
    /// # let fs = extant::MountOptions::new().read_only(false).open(device)?;
    /// let inode = fs.resolve("/disk.qcow2")?;
    /// let mut block = vec![0; 64 << 10];
    /// inode.read_direct_at(1 << 20, &mut block)?;
    /// inode.write_direct_at(5 << 20, &block)?;
    /// inode.sync_data()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn write_direct_at(&self, offset: u64, bytes: &[u8]) -> Result<usize> {
        self.write_direct_by(WriteBy::Program, offset, bytes)
    }

    /// [`write_direct_at`](Self::write_direct_at) for a front end that knows on whose behalf.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn write_direct_by(&self, by: WriteBy, offset: u64, bytes: &[u8]) -> Result<usize> {
        let how = Overwrite { unit: self.volume().block_size().bytes().into(), durable: false };
        if let Overwritten::Done { .. } = self.overwrite(by, offset, bytes, how)? {
            return Ok(bytes.len());
        }
        let parts = std::iter::once(bytes);
        self.write_parts(WriteAsk::at(offset).by(by).direct(), parts).map(|(_, written)| written)
    }

    /// Writes over blocks that there are, with the content lock shared.
    pub(super) fn overwrite(
        &self,
        by: WriteBy,
        offset: u64,
        bytes: &[u8],
        how: Overwrite,
    ) -> Result<Overwritten> {
        self.check_contents()?;
        let (fs, node) = (self.fs(), self.node());
        let file = fs.file(node)?;
        let len = bytes.len() as u64;
        let outcome = match self.keeps_from_sharing(file, by, offset, len) {
            Some(alone) => Overwritten::Alone(alone),
            None => fs.change(|| {
                let _content = node.content.read();
                // Again, because it may have changed before the lock was had.
                if let Some(alone) = self.keeps_from_sharing(file, by, offset, len) {
                    return Ok(Overwritten::Alone(alone));
                }
                if by != WriteBy::Cache {
                    check_changeable(node.ino(), node.gist().flags)?;
                }
                let mapper = FileMapper { fs, node, file };
                let outcome = file.cache.overwrite_direct(&mapper, offset, bytes, how)?;
                if matches!(outcome, Overwritten::Done { .. }) && by != WriteBy::Cache {
                    file.touch(self.volume().writer()?.now());
                    fs.note_dirty(node, file);
                }
                Ok::<_, FsError>(outcome)
            })?,
        };
        if let Overwritten::Alone(alone) = outcome {
            file.cache.count_alone(alone);
        }
        Ok(outcome)
    }

    /// Why a write changes more than the bytes of blocks that there are, as far as the inode says.
    pub(super) fn keeps_from_sharing(
        &self,
        file: &FileState,
        by: WriteBy,
        offset: u64,
        len: u64,
    ) -> Option<Alone> {
        let flags = self.node().gist().flags;
        if flags.contains(InodeFlags::INLINE_DATA) {
            Some(Alone::Inline)
        } else if flags.contains(InodeFlags::APPEND) || self.may_lose_privileges(by) {
            Some(Alone::Rights)
        } else if file.is_mapped() {
            Some(Alone::Mapped)
        } else if offset.saturating_add(len) > file.size() {
            Some(Alone::Extends)
        } else {
            None
        }
    }
}
