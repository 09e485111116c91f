//! Reading and writing regular files.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use extant_base::{Ino, sabotage};
use extant_format::features::Incompat;
use extant_format::inode::{FileKind, InodeFlags};

use super::{FileMapper, WriteBy};
use crate::error::{FsError, Result};
use crate::fs::Fs;
use crate::inline;
use crate::inode::Inode;
use crate::node::{FileState, Gist, Node};
use crate::txn::Txn;

/// The path that the bytes of a write take.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Cache,
    /// Whole blocks bypass the cache, unless the range is cached or mapped.
    Direct,
    /// Through the cache, which what was not there before leaves when it is on the device.
    Once,
}

/// The position of a write.
#[derive(Clone, Copy)]
pub(super) enum Place {
    At(u64),
    End,
}

/// The parameters of a write besides its bytes. The defaults are those of a program that writes
/// through the cache.
#[derive(Clone, Copy)]
pub(super) struct WriteAsk {
    place: Place,
    by: WriteBy,
    way: Way,
}

impl WriteAsk {
    pub(super) fn at(offset: u64) -> WriteAsk {
        WriteAsk { place: Place::At(offset), by: WriteBy::Program, way: Way::Cache }
    }

    fn at_end() -> WriteAsk {
        WriteAsk { place: Place::End, ..WriteAsk::at(0) }
    }

    pub(super) fn by(self, by: WriteBy) -> WriteAsk {
        WriteAsk { by, ..self }
    }

    pub(super) fn direct(self) -> WriteAsk {
        WriteAsk { way: Way::Direct, ..self }
    }

    pub(super) fn once(self) -> WriteAsk {
        WriteAsk { way: Way::Once, ..self }
    }
}

impl Fs {
    /// Calls `run` with the mapper of a file.
    pub(crate) fn with_mapper<R>(
        &self,
        node: &Arc<Node>,
        run: impl FnOnce(&FileMapper<'_>) -> Result<R>,
    ) -> Result<R> {
        let file = self.file(node)?;
        run(&FileMapper { fs: self, node, file })
    }
}

/// Checks that the inode flags allow the contents to change.
///
/// # Errors
///
/// [`FsError::NotPermitted`]: immutable files, and those whose contents are sealed by fs-verity.
pub(crate) fn check_changeable(ino: Ino, flags: InodeFlags) -> Result<()> {
    if flags.contains(InodeFlags::IMMUTABLE) {
        return Err(FsError::NotPermitted { ino, what: "it is immutable" });
    }
    if flags.contains(InodeFlags::VERITY) {
        return Err(FsError::NotPermitted { ino, what: "its contents are sealed by fs-verity" });
    }
    Ok(())
}

impl Inode {
    /// Fills `out` from byte `offset` of a regular file, and returns the number of bytes read:
    /// fewer than asked for only at the end of the file, 0 at or past it.
    ///
    /// Holes and unwritten blocks read as zeros.
    ///
    /// # Errors
    ///
    /// - [`FsError::IsADirectory`], [`FsError::NotARegularFile`], [`FsError::Encrypted`].
    /// - Damage of the file's map, and device errors. `out` may be partly filled then; a read of
    ///   another part of the file may succeed.
    ///
    /// # Cost
    ///
    /// One device read for each contiguous run, and at most one for each level of the map, whose
    /// blocks are cached.
    pub fn read_at(&self, out: &mut [u8], offset: u64) -> Result<usize> {
        self.check_contents()?;
        if self.volume().is_writable() {
            let content = self.node().content.read();
            let read = self.read_cached(offset, out);
            drop(content);
            self.was_read();
            return read;
        }
        self.fs().view(self.node()).read_range(offset, out)
    }

    /// Reads the whole contents of a regular file.
    ///
    /// # Errors
    ///
    /// Those of [`read_at`](Self::read_at); [`FsError::TooLarge`] above the mount's
    /// [`read_limit`](crate::MountOptions::read_limit).
    pub fn read_all(&self) -> Result<Vec<u8>> {
        self.check_contents()?;
        let limit = self.volume().read_limit();
        let bytes = self.node().size();
        let too_large = FsError::TooLarge { ino: self.ino(), bytes, limit };
        let len = match usize::try_from(bytes) {
            Ok(len) if bytes <= limit => len,
            _ => return Err(too_large),
        };
        let mut out = Vec::new();
        if out.try_reserve_exact(len).is_err() {
            return Err(too_large);
        }
        out.resize(len, 0);
        let read = self.read_at(&mut out, 0)?;
        out.truncate(read);
        Ok(out)
    }

    /// Checks that the inode is a regular file whose contents can be read.
    pub(crate) fn check_contents(&self) -> Result<()> {
        match self.kind() {
            FileKind::Regular => {}
            FileKind::Directory => return Err(FsError::IsADirectory { ino: self.ino() }),
            _ => return Err(FsError::NotARegularFile { ino: self.ino() }),
        }
        self.check_key()
    }

    /// Checks that the inode flags allow opening for writing; `appends` says that every write will
    /// append.
    ///
    /// # Errors
    ///
    /// [`FsError::NotPermitted`]: immutable, sealed by fs-verity, or append-only without `appends`.
    pub fn check_open_for_writing(&self, appends: bool) -> Result<()> {
        let flags = self.node().gist().flags;
        let ino = self.ino();
        check_changeable(ino, flags)?;
        if flags.contains(InodeFlags::APPEND) && !appends {
            return Err(FsError::NotPermitted { ino, what: "it can only be appended to" });
        }
        Ok(())
    }

    /// Returns the number of passes of writeback of this file that failed since the inode came into
    /// use. A program that compares it with an earlier value learns whether data was lost or
    /// delayed meanwhile.
    pub fn writeback_failures(&self) -> u64 {
        self.node().file_state().get().map_or(0, |file| file.cache.error_count())
    }

    /// Writes `bytes` at byte `offset`, growing the file if needed, and returns the number of bytes
    /// written: fewer only before an error, which the next call returns.
    ///
    /// A concurrent read sees all of one call's bytes or none. When the call returns, the bytes are
    /// in memory; they become durable by [`sync`](Self::sync) or [`sync_data`](Self::sync_data), or
    /// in time by [`Fs::tick`]. A hole in front of `offset` reads as zeros. Set-id bits and
    /// capabilities are removed from the file.
    ///
    /// # Errors
    ///
    /// - [`FsError::NoSpace`], [`FsError::QuotaExceeded`] for the first byte: space is promised
    ///   now, so that writeback cannot fail for want of space.
    /// - [`FsError::TooLarge`] at the largest offset that the map reaches.
    /// - [`FsError::NotPermitted`] by the inode's flags; [`FsError::ReadOnly`],
    ///   [`FsError::Aborted`].
    /// - [`FsError::IsADirectory`], [`FsError::NotARegularFile`], [`FsError::Encrypted`].
    /// - Damage and device errors, when a block that is not cached is changed in part.
    ///
    /// # Cost
    ///
    /// A copy into the cache. Waits for the device when too much is dirty.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let device = extant_block::FileDevice::open_read_write("disk.img")?;
    /// let fs = extant::MountOptions::new().read_only(false).open(device)?;
    /// let inode = fs.resolve("/etc/motd")?;
    /// inode.write_at(b"hello", 0)?;
    /// inode.sync()?;
    /// fs.unmount()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        self.write_to(WriteAsk::at(offset), bytes).map(|(_, written)| written)
    }

    /// Writes like [`write_at`](Self::write_at), for front ends that say with `by` on whose behalf.
    ///
    /// # Errors
    ///
    /// As [`write_at`](Self::write_at).
    pub fn write_by(&self, by: WriteBy, bytes: &[u8], offset: u64) -> Result<usize> {
        let parts = std::iter::once(bytes);
        self.write_parts(WriteAsk::at(offset).by(by), parts).map(|(_, written)| written)
    }

    /// Writes several buffers, one after the other, as one [`write_at`](Self::write_at).
    ///
    /// # Errors
    ///
    /// As [`write_at`](Self::write_at).
    pub fn write_vectored_at(&self, parts: &[IoSlice<'_>], offset: u64) -> Result<usize> {
        if let [one] = parts {
            return self.write_at(one, offset);
        }
        let parts = parts.iter().map(|part| &**part);
        self.write_parts(WriteAsk::at(offset), parts).map(|(_, written)| written)
    }

    /// Writes at the end of the file, atomically with respect to other writers; returns the offset.
    ///
    /// # Errors
    ///
    /// As [`write_at`](Self::write_at). A part may be written then. [`FsError::NoSpace`] also when
    /// space for the rest became free only after others had appended behind the first part.
    pub fn append(&self, bytes: &[u8]) -> Result<u64> {
        let (at, mut written) = self.write_to(WriteAsk::at_end(), bytes)?;
        while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
            // The next call returns the error, or writes more because space became free meanwhile.
            written += self.append_rest(at + written as u64, rest)?;
        }
        Ok(at)
    }

    /// Continues an append that was written in part, up to `at`, if that is still the end of the
    /// file: bytes that others appended behind it stay.
    fn append_rest(&self, at: u64, rest: &[u8]) -> Result<usize> {
        let (fs, node) = (self.fs(), self.node());
        let file = fs.file(node)?;
        let _turn = fs.balance_dirty(self.ino(), rest.len() as u64)?;
        let written = fs.change(|| {
            let _content = node.content.write();
            if file.size() != at && !sabotage("extant.file.append-goes-over-others") {
                return Ok(None);
            }
            let written = self.write_locked(file, WriteAsk::at(at), std::iter::once(rest));
            written.map(|(_, written)| Some(written))
        })?;
        // This error is made outside of the change, which would otherwise commit to make room and
        // try again.
        let what = "the rest of an append, with others behind its first part";
        written.ok_or(FsError::NoSpace { what, wanted: rest.len() as u64, free: 0 })
    }

    fn write_to(&self, ask: WriteAsk, bytes: &[u8]) -> Result<(u64, usize)> {
        self.write_parts(ask, std::iter::once(bytes))
    }

    pub(super) fn write_parts<'b>(
        &self,
        ask: WriteAsk,
        parts: impl Iterator<Item = &'b [u8]> + Clone,
    ) -> Result<(u64, usize)> {
        self.check_contents()?;
        let fs = self.fs();
        let node = self.node();
        let file = fs.file(node)?;
        let bytes: usize = parts.clone().map(<[u8]>::len).sum();
        let _turn = fs.balance_dirty(self.ino(), bytes as u64)?;
        fs.change(|| {
            let _content = node.content.write();
            self.write_locked(file, ask, parts.clone())
        })
    }

    /// Writes with the content lock held exclusively and no handle open.
    pub(super) fn write_locked<'b>(
        &self,
        file: &FileState,
        WriteAsk { place, by, way }: WriteAsk,
        parts: impl Iterator<Item = &'b [u8]> + Clone,
    ) -> Result<(u64, usize)> {
        let (fs, node) = (self.fs(), self.node());
        let wanted: u64 = parts.clone().map(|part| part.len() as u64).sum();
        let offset = match place {
            Place::At(offset) => offset,
            Place::End => file.size(),
        };
        let Gist { flags, .. } = node.gist();
        let ino = node.ino();
        // What a cache above took before the file was sealed was written before that.
        if by != WriteBy::Cache || flags.contains(InodeFlags::VERITY) {
            check_changeable(ino, flags)?;
            if flags.contains(InodeFlags::APPEND) && offset != file.size() {
                return Err(FsError::NotPermitted { ino, what: "it can only be appended to" });
            }
        }
        if wanted == 0 {
            return Ok((offset, 0));
        }
        // Bytes are written up to the largest size; the next call fails.
        let end = offset.saturating_add(wanted);
        let mut room = wanted;
        if end > file.size() {
            match node.with(|data| crate::volume::check_size(self.volume(), data, end)) {
                Err(FsError::TooLarge { limit, .. }) if offset < limit => room = limit - offset,
                other => other?,
            }
        }
        if self.may_lose_privileges(by) {
            self.take_privileges(by)?;
        }
        let now = self.volume().writer()?.now();
        let is_inline = flags.contains(InodeFlags::INLINE_DATA);
        // An empty file may become inline. Delayed data counts as contents: its stored size is
        // still 0.
        let becomes = file.size() == 0
            && self.volume().features().has_incompat(Incompat::INLINE_DATA)
            && !file.cache.is_dirty()
            && !file.is_mapped()
            && node.with(|data| inline::may_be_inline(self.volume(), data));
        if is_inline || becomes {
            let bytes: Vec<u8> = parts.clone().flatten().copied().collect();
            if self.write_inline(file, is_inline, offset, &bytes[..room.min(wanted) as usize])? {
                return Ok((offset, room as usize));
            }
        }
        let mapper = FileMapper { fs, node, file };
        if offset > file.size() {
            // Stores through a map behind the end are no contents (P13).
            mapper.absorb()?;
        }
        // Mapped pages stay in the cache.
        let is_direct = way == Way::Direct && !file.is_mapped();
        let mut done = 0;
        for part in parts {
            let part = &part[..part.len().min((room - done) as usize)];
            if part.is_empty() {
                continue;
            }
            let written = match way {
                _ if is_direct => file.cache.write_direct(&mapper, offset + done, part),
                Way::Once => file.cache.write_once(&mapper, offset + done, part),
                Way::Cache | Way::Direct => file.cache.write(&mapper, offset + done, part),
            };
            let written = match written {
                Ok(written) => written,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            };
            done += written as u64;
            if written < part.len() {
                break;
            }
        }
        if by != WriteBy::Cache {
            file.touch(now);
        }
        fs.note_dirty(node, file);
        Ok((offset, done as usize))
    }

    /// Writes into the inode, or moves the data out of it. Returns false when the data is in blocks
    /// afterwards.
    fn write_inline(
        &self,
        file: &FileState,
        is_inline: bool,
        offset: u64,
        bytes: &[u8],
    ) -> Result<bool> {
        let (fs, node) = (self.fs(), self.node());
        {
            let mut txn = Txn::begin(self.volume(), inline::INLINE_CREDITS)?;
            if inline::write_inline(&mut txn, node, offset, bytes)? {
                file.set_size(node.with(|data| data.record.size));
                file.drop_stamp();
                file.mapping_changed();
                return Ok(true);
            }
        }
        if is_inline {
            FileMapper { fs, node, file }.move_out()?;
        }
        Ok(false)
    }

    /// Reads through the page cache. The caller holds the content lock.
    pub(crate) fn read_cached(&self, offset: u64, out: &mut [u8]) -> Result<usize> {
        self.fs().with_mapper(self.node(), |mapper| mapper.file.cache.read(mapper, offset, out))
    }

    /// Calls `look` with the bytes of `range` in the cache, up to the end of the file, without a
    /// copy. No write changes the file meanwhile; `look` must not use the file.
    ///
    /// A call shows at most a quarter of the cache: the slices hold the first bytes of a longer
    /// range.
    ///
    /// # Errors
    ///
    /// As [`read_at`](Self::read_at); [`FsError::ReadOnly`] on a read-only mount, which has no page
    /// cache.
    pub fn with_cached<R>(
        &self,
        range: Range<u64>,
        look: impl FnOnce(&[IoSlice<'_>]) -> R,
    ) -> Result<R> {
        self.check_contents()?;
        self.volume().writer()?;
        let node = self.node();
        let _content = node.content.read();
        self.fs().with_mapper(node, |mapper| mapper.file.cache.with_cached(mapper, range, look))
    }
}

#[cfg(test)]
mod tests {
    use extant_testkit::require;

    use super::*;
    use crate::test_images::Image;

    #[test]
    fn the_rest_of_an_append_never_goes_over_what_others_appended() {
        let image = require!(Image::make("8M", &["-t", "ext4"], ""));
        let fs = image.open();
        fs.write("/log", "first ").unwrap();
        let log = fs.resolve("/log").unwrap();
        // As when space ran out behind "first ", and was there again for both of these.
        log.append(b"others' ").unwrap();
        let error = log.append_rest(6, b"the rest").unwrap_err();
        assert!(matches!(error, FsError::NoSpace { .. }), "{error}");
        assert_eq!(fs.read_to_string("/log").unwrap(), "first others' ");
        assert_eq!(log.append_rest(14, b"end").unwrap(), 3);
        assert_eq!(fs.read_to_string("/log").unwrap(), "first others' end");
        drop(log);
        fs.unmount().unwrap();
    }
}
