//! Reads and writes that never wait: they complete at once or are refused.
//!
//! # Order
//!
//! That of writes that may wait (`io`), with all checks in front: freeze → dirty limits → content
//! lock → permission to change → privileges → inline data, the tail → then for each folio its lock,
//! its state, its mapping and space (`extant-iomap`'s `nowait`). In debug builds the whole attempt
//! runs in a scope of [`no_waiting`]: code that waits panics.

use std::ops::Range;

use extant_format::features::Incompat;
use extant_format::inode::InodeFlags;
use extant_iomap::{Intent, Kind, Mapping, Obstacle};
use extant_sync::no_waiting;

use super::io::{Place, check_changeable};
use super::{FileMapper, WriteBy};
use crate::attempt::{Attempt, AttemptStats, WaitReason};
use crate::error::{FsError, Result};
use crate::fs::Fs;
use crate::inline;
use crate::inode::Inode;
use crate::map::{self, FILE_BLOCKS_END, MappingKind};
use crate::node::Gist;
use crate::writer::Load;

/// Smallest number of blocks for which a mapping is looked up.
const LOOK_AHEAD: u64 = 16384;
/// Size and alignment of the smallest folio, in bytes.
const PAGE_BYTES: u64 = 4096;

impl Fs {
    /// Returns counts of the attempts ([`Inode::try_read_at`], [`Inode::try_write_at`],
    /// [`Inode::try_append`]) since the mount, those of rings included.
    pub fn attempt_stats(&self) -> AttemptStats {
        self.volume().attempts().read()
    }
}

/// Returns the operation's error as the attempt's answer, if there is one.
macro_rules! answer {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(error) => return Ok(Err(error)),
        }
    };
}

impl Inode {
    /// Reads like [`read_at`](Self::read_at), but never waits: answers from memory, or refuses.
    ///
    /// A result of fewer bytes than asked for, before the end of the file, means that the bytes
    /// behind them are not in memory.
    ///
    /// # Errors
    ///
    /// [`WouldWait`](crate::WouldWait) when the first byte is not in memory, or another thread
    /// changes the file; always on a read-only mount, which has no page cache. The inner result has
    /// those errors of `read_at` that are known without the device.
    ///
    /// # Cost
    ///
    /// A copy. No wait for the device, the journal, or a lock that is held for longer than a few
    /// instructions.
    pub fn try_read_at(&self, out: &mut [u8], offset: u64) -> Attempt<usize> {
        self.volume().attempts().count(self.read_now(offset, out))
    }

    /// Writes like [`write_at`](Self::write_at), but never waits: writes into memory, or refuses
    /// and changes nothing.
    ///
    /// A result of fewer bytes than asked for means that the rest would have to wait or meets an
    /// error; the bytes written stay, and readers may see them before the rest.
    ///
    /// # Errors
    ///
    /// [`WouldWait`](crate::WouldWait) before the first byte. The inner result has those errors of
    /// `write_at` that are known at once; where only the device or a commit can tell, the attempt
    /// is refused.
    ///
    /// # Cost
    ///
    /// A copy. No wait for the device, the journal, or a lock that is held for longer than a few
    /// instructions.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let device = extant_block::FileDevice::open_read_write("disk.img")?;
    /// # let fs = extant::MountOptions::new().read_only(false).open(device)?;
    /// let inode = fs.resolve("/etc/motd")?;
    /// let written = match inode.try_write_at(b"hello", 0) {
    ///     Ok(answer) => answer?,
    ///     // Where waiting is allowed.
    ///     Err(_would_wait) => inode.write_at(b"hello", 0)?,
    /// };
    /// # let _ = written;
    /// # Ok(())
    /// # }
    /// ```
    pub fn try_write_at(&self, bytes: &[u8], offset: u64) -> Attempt<usize> {
        let tried = self.write_now(Place::At(offset), bytes);
        let tried = self.volume().attempts().count(tried)?;
        Ok(tried.map(|(_, written)| written))
    }

    /// Appends like [`append`](Self::append), but never waits. Returns the offset and the number of
    /// bytes written there: fewer than all only when another thread changes the map of the file, or
    /// takes the last space, at that moment. The rest belongs directly behind the bytes written,
    /// not at the current end of the file.
    ///
    /// # Errors
    ///
    /// As [`try_write_at`](Self::try_write_at).
    pub fn try_append(&self, bytes: &[u8]) -> Attempt<(u64, usize)> {
        self.volume().attempts().count(self.write_now(Place::End, bytes))
    }

    /// Checks that no cipher has to be made first, which reads the context, and no seal be read.
    fn check_cipher(&self) -> std::result::Result<(), WaitReason> {
        let needs_cipher = self.is_encrypted() && !self.has_cipher();
        match needs_cipher || (self.is_verity() && !self.has_seal()) {
            true => Err(WaitReason::Inode),
            false => Ok(()),
        }
    }

    fn read_now(
        &self,
        offset: u64,
        out: &mut [u8],
    ) -> std::result::Result<Result<usize>, WaitReason> {
        self.check_cipher()?;
        answer!(self.check_contents());
        let (fs, node) = (self.fs(), self.node());
        let _scope = no_waiting();
        let (true, Some(cache)) = (fs.volume().is_writable(), fs.volume().page_cache_made()) else {
            return Err(WaitReason::Device);
        };
        let _content = node.content.try_read().ok_or(WaitReason::Contents)?;
        if node.gist().flags.contains(InodeFlags::INLINE_DATA) {
            return Err(WaitReason::InlineData);
        }
        let file = node.try_file(fs.superblock(), cache).ok_or(WaitReason::Inode)?;
        let reading = self.try_reading(file).ok_or(WaitReason::Inode)?;
        let mapper = FileMapper { fs, node, file };
        let read = file.cache.try_read(&mapper, offset, out)?;
        reading.done(file);
        Ok(Ok(read))
    }

    fn write_now(
        &self,
        place: Place,
        bytes: &[u8],
    ) -> std::result::Result<Result<(u64, usize)>, WaitReason> {
        self.check_cipher()?;
        answer!(self.check_contents());
        let (fs, node) = (self.fs(), self.node());
        let volume = fs.volume();
        let writer = answer!(volume.writer());
        answer!(writer.check_open());
        answer!(writer.supers().check_writable());
        let _scope = no_waiting();
        let _inside = writer.try_enter().ok_or(WaitReason::Frozen)?;
        let cache = volume.page_cache_made().ok_or(WaitReason::Memory)?;
        let load = fs.load(cache);
        if load != Load::Light || cache.wants_writeback() {
            writer.wake_background();
            let now = || writer.clock().monotonic();
            let is_ahead = || writer.pace().is_ahead(node.ino(), cache.options(), now());
            if cache.is_over_limit() || (load == Load::Paced && is_ahead()) {
                return Err(WaitReason::Throttle);
            }
        }
        let _content = node.content.try_write().ok_or(WaitReason::Contents)?;
        let file = node.try_file(fs.superblock(), cache).ok_or(WaitReason::Inode)?;
        let offset = match place {
            Place::At(offset) => offset,
            Place::End => file.size(),
        };
        let (Gist { flags, .. }, ino) = (node.gist(), node.ino());
        answer!(check_changeable(ino, flags));
        if flags.contains(InodeFlags::APPEND) && offset != file.size() {
            return Ok(Err(FsError::NotPermitted { ino, what: "it can only be appended to" }));
        }
        if bytes.is_empty() {
            return Ok(Ok((offset, 0)));
        }
        let mut room = bytes.len() as u64;
        let end = offset.saturating_add(room);
        if end > file.size() {
            let check = |data: &_| crate::volume::check_size(volume, data, end);
            match node.try_with(check).ok_or(WaitReason::Inode)? {
                Err(FsError::TooLarge { limit, .. }) if offset < limit => room = limit - offset,
                other => answer!(other),
            }
        }
        if self.may_lose_privileges(WriteBy::Program) {
            return Err(WaitReason::Privileges);
        }
        let becomes_inline = file.size() == 0
            && volume.features().has_incompat(Incompat::INLINE_DATA)
            && !file.cache.is_dirty()
            && !file.is_mapped()
            && node
                .try_with(|data| inline::may_be_inline(volume, data))
                .ok_or(WaitReason::Inode)?;
        if flags.contains(InodeFlags::INLINE_DATA) || becomes_inline {
            return Err(WaitReason::InlineData);
        }
        let block = u64::from(volume.block_size().bytes());
        if offset > file.size() && (file.size() % block != 0 || file.is_mapped()) {
            return Err(WaitReason::Tail);
        }
        let mapper = FileMapper { fs, node, file };
        // An append must be whole, because another one may follow it: all that could end it early
        // is checked here.
        let spans = offset % PAGE_BYTES + room > PAGE_BYTES || block < PAGE_BYTES;
        let kept = match place {
            Place::End if spans && !mapper.can_delay_now() => return Err(WaitReason::Space),
            Place::End if spans => Some(file.cache.prepare_whole(&mapper, offset, room)?),
            _ => None,
        };
        let now = writer.now();
        // The value is at most the length of `bytes`.
        let written = file.cache.try_write(&mapper, offset, &bytes[..room as usize])?;
        drop(kept);
        if load != Load::Light {
            let now = writer.clock().monotonic();
            writer.pace().count(node.ino(), written as u64, cache.options(), now);
        }
        file.touch(now);
        fs.note_dirty(node, file);
        Ok(Ok((offset, written)))
    }
}

impl FileMapper<'_> {
    /// Returns the mapping of the first bytes of `range`, as `map` does, from memory only; promises
    /// space for a hole where that changes counters only.
    pub(super) fn map_now(
        &self,
        range: Range<u64>,
        intent: Intent,
    ) -> std::result::Result<Mapping, Obstacle> {
        let bits = self.bits();
        let at = range.start >> bits;
        let end = (range.end.div_ceil(1 << bits)).clamp(at + 1, FILE_BLOCKS_END.max(at + 1));
        if at >= FILE_BLOCKS_END || self.node.gist().flags.contains(InodeFlags::INLINE_DATA) {
            return Err(Obstacle::Map);
        }
        let delayed = self.file.map.try_read().ok_or(Obstacle::Map)?;
        let cookie = self.file.cookie();
        if let Some(run) = delayed.at(at) {
            return Ok(self.answer(at..run.end, Kind::Delayed, cookie, false));
        }
        let next = delayed.next(at).unwrap_or(u64::MAX);
        let far = end.max(at.saturating_add(LOOK_AHEAD).min(FILE_BLOCKS_END)).min(next);
        let piece = map::lookup_in_memory(self.fs.volume(), self.node, at, far);
        let piece = piece.ok_or(Obstacle::Map)?;
        let address = |block| self.address(block).map_err(|_| Obstacle::Map);
        let kind = match piece.kind {
            MappingKind::Mapped(block) => Kind::Mapped(address(block)?),
            MappingKind::Unwritten(block) => Kind::Unwritten(address(block)?),
            MappingKind::Hole | MappingKind::Inline => Kind::Hole,
        };
        let fills = kind == Kind::Hole && intent == Intent::Write;
        let limit = if fills { end.min(next) } else { far };
        let blocks = at..piece.file_end().min(limit).max(at + 1);
        if !fills {
            return Ok(self.answer(blocks, kind, cookie, false));
        }
        // No other thread fills the hole: the content lock is held exclusively.
        drop(delayed);
        self.delay_now(blocks)
    }

    /// Returns whether a promise of space changes counters only: with quotas, or with clusters that
    /// the file may have already, it may have to read.
    fn can_delay_now(&self) -> bool {
        let volume = self.fs.volume();
        let has_quotas = volume.writer().is_ok_and(|writer| writer.quotas().is_on());
        !has_quotas && volume.superblock().cluster_ratio() <= 1
    }

    /// Makes all blocks of a hole delayed.
    fn delay_now(&self, blocks: Range<u64>) -> std::result::Result<Mapping, Obstacle> {
        let volume = self.fs.volume();
        let writer = volume.writer().map_err(|_| Obstacle::Space)?;
        if !self.can_delay_now() {
            return Err(Obstacle::Space);
        }
        let mut delayed = self.file.map.try_write().ok_or(Obstacle::Map)?;
        let new = delayed.new_clusters(&blocks);
        writer.alloc().promise(volume, new).map_err(|_| Obstacle::Space)?;
        delayed.insert(blocks.clone());
        self.file.mapping_changed();
        let cookie = self.file.cookie();
        Ok(self.answer(blocks, Kind::Delayed, cookie, true))
    }
}

#[cfg(test)]
mod tests {
    use extant_sync::threads;
    use extant_testkit::require;

    use super::*;
    use crate::test_images::Image;

    /// What another thread is told while this one is inside of something.
    fn beside<T: Send>(attempt: impl FnOnce() -> T + Send) -> T {
        threads::scope(|s| s.spawn("other", attempt).unwrap().join().unwrap()).unwrap()
    }

    fn refused<T>(attempt: Attempt<T>) -> Option<WaitReason> {
        attempt.err().map(|would_wait| would_wait.reason)
    }

    #[test]
    fn an_inode_or_a_map_that_somebody_changes_is_not_waited_for() {
        let image = require!(Image::make("8M", &["-t", "ext4"], ""));
        let fs = image.open();
        fs.write("/file", [1; 4096]).unwrap();
        let inode = fs.resolve("/file").unwrap();
        let node = inode.node();
        // More than the file has needs a look at the inode; what is there does not.
        let attempt = || (refused(inode.try_append(&[2])), refused(inode.try_write_at(&[3], 0)));
        let tried = node.change(|_| beside(attempt));
        assert_eq!(tried, (Some(WaitReason::Inode), None));
        let file = node.file_in_use().unwrap();
        let promised = file.map.read().blocks();
        {
            let _map = file.map.write();
            let tried = beside(|| refused(inode.try_append(&[2])));
            assert_eq!(tried, Some(WaitReason::Map));
        }
        // Nothing of what was refused shows, and no promise is left.
        assert_eq!((file.size(), file.map.read().blocks()), (4096, promised));
        assert_eq!(inode.try_append(&[2]).unwrap().unwrap(), (4096, 1));
        let stats = fs.attempt_stats();
        assert_eq!((stats.answered, stats.refused_in_all()), (2, 2), "{stats:?}");
        assert_eq!(fs.read("/file").unwrap(), [&[3][..], &[1; 4095], &[2]].concat());
        drop(inode);
        fs.unmount().unwrap();
        image.check().assert_clean();
    }
}
