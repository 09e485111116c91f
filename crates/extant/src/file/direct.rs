//! Reading and writing regular files past the page cache.

use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::BorrowedFd;

use extant_format::features::Incompat;
use extant_format::inode::InodeFlags;
use extant_iomap::{Alone, DirectOptions, DirectOutcome, RangeLock};

use super::io::{WriteAsk, check_changeable};
use super::{FileMapper, WriteBy};
use crate::error::Result;
use crate::inode::Inode;
use crate::node::{Content, FileState};

/// Limit of the pieces of a range that [`with_stored`](Inode::with_stored) passes on.
const PIECES_MOST: usize = 16;

impl Inode {
    /// Reads like [`read_at`](Self::read_at), but bypasses the page cache: data that is not cached
    /// goes from the device into `out`, at any offset and length. For callers with a cache of their
    /// own, and for data that is read once.
    ///
    /// # Errors
    ///
    /// As [`read_at`](Self::read_at).
    ///
    /// # Cost
    ///
    /// One device read for each contiguous run. There is no read-ahead.
    pub fn read_direct_at(&self, out: &mut [u8], offset: u64) -> Result<usize> {
        self.check_contents()?;
        if !self.volume().is_writable() {
            return self.fs().view(self.node()).read_range(offset, out);
        }
        let (node, spans) = (self.node(), self.volume().writer()?.spans());
        let mut content = Some(node.content.read());
        let mut under_way = None;
        let range = offset..offset.saturating_add(out.len() as u64);
        let depart = || {
            let operation = node.content.under_way(spans, &range);
            under_way = content.take().map(|guard| (operation, Content::stand_in(guard)));
        };
        let read = self
            .fs()
            .with_mapper(node, |mapper| mapper.file.cache.read_direct(mapper, offset, out, depart));
        drop((content, under_way));
        self.was_read();
        read
    }

    /// Calls `look` like [`with_cached`](Self::with_cached) if all of `range` is in the page cache.
    /// Otherwise returns `None` without calling `look`; nothing is read.
    ///
    /// # Errors
    ///
    /// As [`with_cached`](Self::with_cached).
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

    /// Calls `look` with the device's file descriptor and the places of `range` on it, as offset
    /// and length in bytes, in order and up to the end of the file. No write through the cache
    /// changes the file meanwhile; `look` must not call into the file, and returns whether it has
    /// read the bytes. The result is false, too, if the bytes are elsewhere (cached, in holes, in
    /// the inode) or in more than 16 pieces, or if the device has no descriptor.
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
        let (node, spans) = (self.node(), self.volume().writer()?.spans());
        let content = node.content.read();
        self.fs().with_mapper(node, |mapper| {
            let range = range.start..range.end.min(mapper.file.size());
            if range.is_empty() {
                return Ok(false);
            }
            let Some(mut runs) = mapper.file.cache.stored_at(mapper, range.clone(), PIECES_MOST)?
            else {
                return Ok(false);
            };
            // The device is shorter than 2^63 bytes, and so are sums.
            runs.iter_mut().for_each(|(at, _)| *at = at.saturating_add(start));
            let _under_way = node.content.under_way(spans, &range);
            let _hold = Content::stand_in(content);
            let is_read = look(file, &runs);
            if is_read {
                mapper.file.cache.count_read(&runs);
            }
            Ok(is_read)
        })
    }

    /// Writes like [`write_at`](Self::write_at), but whole blocks bypass the page cache and are on
    /// the device when the call returns. Bytes of partly written blocks go through the cache. All
    /// bytes are durable after [`sync_data`](Self::sync_data).
    ///
    /// Any offset and length will do; [`direct`](Self::direct) gives direct I/O with the alignment
    /// rules of Linux.
    ///
    /// Writes of whole blocks that are not cached run concurrently with each other and with readers,
    /// which may see a part of one; those that add the same blocks take turns. Any other write is
    /// exclusive, like a write through the cache.
    ///
    /// # Errors
    ///
    /// As [`write_at`](Self::write_at), and those of the device. After a device error the contents
    /// of the blocks concerned are undefined.
    ///
    /// # Cost
    ///
    /// One device write for each contiguous run; one journal handle when blocks are added or get
    /// their first data. While the file is mapped or its data lies in the inode, the write goes
    /// through the cache, with one copy.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let device = extant_block::FileDevice::open_read_write("disk.img")?;
    /// # let fs = extant::MountOptions::new().read_only(false).open(device)?;
    /// let inode = fs.resolve("/disk.qcow2")?;
    /// let mut block = vec![0; 64 << 10];
    /// inode.read_direct_at(&mut block, 1 << 20)?;
    /// inode.write_direct_at(&block, 5 << 20)?;
    /// inode.sync_data()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn write_direct_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        self.write_direct_by(WriteBy::Program, bytes, offset)
    }

    /// Writes like [`write_direct_at`](Self::write_direct_at), for front ends that say with `by` on
    /// whose behalf.
    ///
    /// # Errors
    ///
    /// As [`write_direct_at`](Self::write_direct_at).
    pub fn write_direct_by(&self, by: WriteBy, bytes: &[u8], offset: u64) -> Result<usize> {
        let how = DirectOptions { unit: self.volume().block_size().bytes().into(), durable: false };
        if let Some((written, _)) = self.write_direct_shared(by, offset, bytes, how)? {
            return Ok(written);
        }
        let parts = std::iter::once(bytes);
        self.write_parts(WriteAsk::at(offset).by(by).direct(), parts).map(|(_, written)| written)
    }

    /// Writes with the content lock shared, if nothing speaks against that. Returns the number of
    /// bytes, and whether they are durable; `None` if it has to be done alone.
    pub(super) fn write_direct_shared(
        &self,
        by: WriteBy,
        offset: u64,
        bytes: &[u8],
        how: DirectOptions,
    ) -> Result<Option<(usize, bool)>> {
        self.check_contents()?;
        let (fs, node) = (self.fs(), self.node());
        let file = fs.file(node)?;
        let end = offset.saturating_add(bytes.len() as u64);
        let outcome = match self.keeps_from_sharing(file, by, end) {
            Some(alone) => DirectOutcome::Alone(alone),
            None => fs.change(|| {
                let outcome = self.write_direct_beside(file, by, offset, bytes, how, None)?;
                let DirectOutcome::Taken = outcome else { return Ok(outcome) };
                // The content lock is free meanwhile: whoever wants another part of the file, or the
                // writer that has the range, need not wait for this one.
                let own = file.cache.lock_range(offset..end);
                self.write_direct_beside(file, by, offset, bytes, how, Some(&own))
            })?,
        };
        match outcome {
            DirectOutcome::Done { written, durable } => Ok(Some((written, durable))),
            DirectOutcome::Alone(alone) => {
                file.cache.count_alone(alone);
                Ok(None)
            }
            // It has waited for the range; alone it is right as well.
            DirectOutcome::Taken => Ok(None),
        }
    }

    /// Writes once with the content lock shared, as far as nothing speaks against that. `own` is the
    /// range if the caller has waited for it.
    fn write_direct_beside(
        &self,
        file: &FileState,
        by: WriteBy,
        offset: u64,
        bytes: &[u8],
        how: DirectOptions,
        own: Option<&RangeLock<'_>>,
    ) -> Result<DirectOutcome> {
        let (fs, node) = (self.fs(), self.node());
        let end = offset.saturating_add(bytes.len() as u64);
        let spans = self.volume().writer()?.spans();
        let mut content = Some(node.content.read());
        let mut under_way = None;
        // This is asked again, because it may have changed before the lock was taken.
        if let Some(alone) = self.keeps_from_sharing(file, by, end) {
            return Ok(DirectOutcome::Alone(alone));
        }
        if by != WriteBy::Cache {
            check_changeable(node.ino(), node.gist().flags)?;
        }
        let mapper = FileMapper { fs, node, file };
        let depart = || {
            let operation = node.content.under_way(spans, &(offset..end));
            under_way = content.take().map(|guard| (operation, Content::stand_in(guard)));
        };
        let outcome = file.cache.write_direct_shared(&mapper, offset, bytes, how, own, depart)?;
        if matches!(outcome, DirectOutcome::Done { .. }) && by != WriteBy::Cache {
            file.touch(self.volume().writer()?.now());
            fs.note_dirty(node, file);
        }
        Ok(outcome)
    }

    /// Returns why a write up to `end` must be exclusive, as far as the inode tells.
    pub(super) fn keeps_from_sharing(
        &self,
        file: &FileState,
        by: WriteBy,
        end: u64,
    ) -> Option<Alone> {
        self.keeps_from_overwriting(file, by).or_else(|| {
            if end <= file.size() {
                return None;
            }
            let checked =
                self.node().with(|data| crate::volume::check_size(self.volume(), data, end));
            let has_inline = self.volume().features().has_incompat(Incompat::INLINE_DATA);
            match checked {
                Err(_) => Some(Alone::Extends),
                // An empty file may become inline.
                Ok(()) if file.size() == 0 && has_inline => Some(Alone::Inline),
                Ok(()) => None,
            }
        })
    }

    /// Returns why a write inside the size must be exclusive, as far as the inode tells.
    pub(super) fn keeps_from_overwriting(&self, file: &FileState, by: WriteBy) -> Option<Alone> {
        let flags = self.node().gist().flags;
        if flags.contains(InodeFlags::INLINE_DATA) {
            Some(Alone::Inline)
        } else if flags.contains(InodeFlags::APPEND) || self.may_lose_privileges(by) {
            Some(Alone::Rights)
        } else if file.is_mapped() {
            Some(Alone::Mapped)
        } else {
            None
        }
    }
}
