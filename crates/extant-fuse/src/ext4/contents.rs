//! Contents of files.

use std::cell::RefCell;
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use std::time::Duration;

use extant::{Credentials, Fallocate, FileKind, Inode, InodeFlags, SpaceFor, WriteBy};
use extant_base::sabotage;
use extant_format::features::{Incompat, RoCompat};

use super::nodes::{Heard, Refusal, Rights};
use super::room::{Lease, Turn};
use super::{Ext4, node_of};
use crate::operations::{
    Bytes, Caller, Errno, Handle, NodeId, Opened, Position, ReadAnswer, Reply, Sought, WriteHow,
};

const O_ACCMODE: u32 = 0o3;
const O_APPEND: u32 = 0o2000;
const O_TRUNC: u32 = 0o1000;
/// How long the kernel of another machine may keep attributes: it cannot be told that they changed.
const KEPT_FOR: Duration = Duration::from_secs(1);

bitflags::bitflags! {
    /// Modes of `fallocate`.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    struct Mode: u32 {
        const KEEP_SIZE = 0x01;
        const PUNCH_HOLE = 0x02;
        const COLLAPSE_RANGE = 0x08;
        const ZERO_RANGE = 0x10;
        const INSERT_RANGE = 0x20;
        const UNSHARE_RANGE = 0x40;
        const WRITE_ZEROES = 0x80;
    }
}

/// Returns what a mode asks for; `None` for what cannot be combined or is not known.
fn mode_of(bits: u32) -> Option<Fallocate> {
    let mode = Mode::from_bits(bits)?;
    let keep_size = mode.contains(Mode::KEEP_SIZE);
    Some(match mode.difference(Mode::KEEP_SIZE) {
        rest if rest.is_empty() => Fallocate::Allocate { keep_size },
        Mode::PUNCH_HOLE if keep_size || sabotage("fuse.contents.punch-of-any-size") => {
            Fallocate::PunchHole
        }
        Mode::ZERO_RANGE => Fallocate::ZeroRange { keep_size },
        Mode::COLLAPSE_RANGE if !keep_size => Fallocate::CollapseRange,
        Mode::INSERT_RANGE if !keep_size => Fallocate::InsertRange,
        Mode::UNSHARE_RANGE => Fallocate::Unshare,
        Mode::WRITE_ZEROES if !keep_size => Fallocate::WriteZeroes,
        _ => return None,
    })
}

/// Length in bytes from which a write bypasses the library's cache.
const DIRECT_MIN: usize = 128 << 10;

/// How long after a write was refused for want of room others are refused at once while there is none.
const REFUSED_FOR: Duration = Duration::from_millis(200);
/// Bytes that are room again.
const ROOM_AGAIN: u64 = 1 << 20;

/// From this length on, in bytes, moving pages is cheaper than copying them.
const MOVE_MIN: usize = 64 << 10;

thread_local! {
    /// For reads that cannot be answered where the bytes lie.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

impl Ext4<'_> {
    pub(super) fn open_file(&self, node: NodeId, flags: u32) -> Reply<Opened> {
        if self.opens_for_nothing() {
            return Err(Errno::ENOSYS);
        }
        let inode = self.inode(node)?;
        if inode.kind() == FileKind::Regular {
            self.reply(inode.check_key())?;
        }
        if writes(flags) {
            self.check_change()?;
            if self.fs().stopped_because().is_some() {
                return Err(Errno::EROFS);
            }
            self.reply(
                inode.check_open_for_writing(flags & O_APPEND != 0 && flags & O_TRUNC == 0),
            )?;
        }
        self.reply(inode.check_seal())?;
        let opened = self.opened(&inode, node, flags);
        if writes(flags) && self.may_hide_data(&inode) {
            // What it keeps says that there are no blocks, and would say so until the file is closed.
            let _ = self.kernel.drop_attributes(node);
        }
        Ok(opened)
    }

    /// Returns whether opening a file can never fail or change anything: no file can be written to,
    /// and every file can be read.
    fn opens_for_nothing(&self) -> bool {
        let features = self.fs().features();
        let refuses =
            features.has_incompat(Incompat::ENCRYPT) || features.has_ro_compat(RoCompat::VERITY);
        !self.current.is_writable() && !self.current.may_change() && !refuses
    }

    /// An open file of an inode that may be opened.
    pub(super) fn opened(&self, inode: &Inode, node: NodeId, flags: u32) -> Opened {
        let writes = writes(flags);
        // Without its key, or damaged, it can be opened by whoever made it just now only.
        let key = match inode.kind() {
            FileKind::Regular => inode.use_key().ok().flatten(),
            _ => None,
        };
        let handle = if writes || key.is_some() {
            if writes {
                let writers = self.nodes.add_writer(node, inode);
                if self.lease() != Lease::ForEver && writers == 1 {
                    // Attributes that the kernel keeps have no time limit. At worst it learns late
                    // that there is no room.
                    let _ = self.kernel.drop_attributes(node);
                }
            }
            if key.is_some() {
                self.nodes.add_key_user(node);
            }
            let refusals = self.nodes.refused(node).count;
            let rights = Rights {
                may_use_reserve: SpaceFor::may_use_reserve(),
                is_beyond_limits: SpaceFor::is_beyond_limits(),
            };
            let failures = inode.writeback_failures();
            self.opens.add(Heard { writes, key, failures, refusals, rights })
        } else {
            Handle::NONE
        };
        // The kernel does not know the flag and lets programs take O_APPEND back: each write is looked at.
        let direct = writes && inode.metadata().flags.contains(InodeFlags::APPEND);
        Opened { handle, keep_cache: true, direct }
    }

    pub(super) fn release_file(&self, node: NodeId, handle: Handle) {
        let Some(heard) = self.opens.remove(handle) else { return };
        if heard.writes {
            let inode = self.inode(node).ok().filter(|inode| self.may_hide_data(inode));
            self.nodes.remove_writer(node);
            if inode.is_some_and(|inode| !self.may_hide_data(&inode)) {
                let _ = self.kernel.drop_attributes(node);
            }
        }
        if heard.key.is_some() {
            self.nodes.remove_key_user(node);
        }
    }

    pub(super) fn read_file(&self, bytes: Bytes, answer: &mut dyn ReadAnswer) -> Reply<()> {
        let inode = self.inode(bytes.node)?;
        let wanted = usize::try_from(bytes.len()).map_err(|_| Errno::EINVAL)?;
        let (range, offset) = (bytes.range.clone(), bytes.range.start);
        // This precedes the answer: its receiver may ask for the times at once, and the kernel
        // keeps them.
        self.accessed(&inode);
        // Ours has what was written not long ago. The rest the kernel keeps, unless it was asked not to.
        let mut sent = None;
        if self.current.is_writable() {
            // Nobody waits any more if this fails.
            let range = range.clone();
            sent = self.reply(inode.with_resident(range, |parts| drop(answer.send(parts))))?;
        }
        if sent.is_some() {
            return Ok(());
        }
        if let Some(buffer) = answer.buffer(wanted) {
            let read = self.reply(inode.read_direct_at(buffer, offset))?;
            if read > 0 {
                let _ = answer.send_filled(read);
            }
            return Ok(());
        }
        let may_move = self.current.is_writable() && wanted >= MOVE_MIN;
        let move_it = |file: BorrowedFd<'_>, parts: &[_]| answer.send_parts_of(file, parts);
        if may_move && self.reply(inode.with_stored(range, move_it))? {
            return Ok(());
        }
        BUFFER.with_borrow_mut(|buffer| {
            buffer.resize(buffer.len().max(wanted), 0);
            let buffer = &mut buffer[..wanted];
            let read = self.reply(inode.read_direct_at(buffer, offset))?;
            if read > 0 {
                let _ = answer.send(&[IoSlice::new(&buffer[..read])]);
            }
            Ok(())
        })
    }

    pub(super) fn write_file(
        &self,
        caller: Caller,
        to: Position,
        bytes: &[u8],
        how: WriteHow,
    ) -> Reply<u32> {
        let node = to.node;
        let inode = self.inode(node)?;
        let by = match how.from_cache && !how.take_set_id {
            true => WriteBy::Cache,
            false => self.on_behalf_of(caller, how.take_set_id, &inode),
        };
        // Through a map, which goes around appending.
        if how.from_cache
            && !self.holds_writes_back
            && inode.metadata().flags.contains(InodeFlags::APPEND)
        {
            return Err(Errno::EPERM);
        }
        self.without_privileges(node, &inode, by, || self.write_by(by, to, bytes, how))
    }

    fn write_by(&self, by: WriteBy, to: Position, bytes: &[u8], how: WriteHow) -> Reply<u32> {
        let Position { node, offset } = to;
        let inode = self.inode(node)?;
        // The kernel has collected the data it sends in large pieces, so caching it again gains
        // nothing.
        let direct = how.direct && !how.from_cache || bytes.len() >= DIRECT_MIN;
        let mut done = 0;
        while done < bytes.len() {
            let (at, rest) = (offset.saturating_add(done as u64), &bytes[done..]);
            let written = self.with_room_of_removed(|| match direct {
                true => inode.write_direct_by(by, rest, at),
                false => inode.write_by(by, rest, at),
            });
            match written {
                Ok(0) => break,
                Ok(written) => done += written,
                // The kernel takes any answer to a write out of its cache for all of it.
                Err(error) if done == 0 || how.from_cache => {
                    let errno = self.errno(&error);
                    if how.from_cache {
                        self.refuse(node, errno);
                    }
                    return Err(errno);
                }
                Err(_) => break,
            }
        }
        if self.room.used(done as u64) {
            let _ = self.lease();
        }
        Ok(done as u32)
    }

    /// For whom a file is changed: `takes` when the caller may not keep set-id bits. Of the caller's groups
    /// only one is known here; for a member by another the set-gid bit of what no group executes goes as well.
    pub(super) fn on_behalf_of(&self, caller: Caller, takes: bool, inode: &Inode) -> WriteBy {
        if !takes {
            return WriteBy::Privileged;
        }
        let of = inode.metadata();
        let is_open = of.permissions & 0o2010 == 0o2000;
        match is_open && self.settings.ids.group_inside(caller.gid) != Some(of.gid) {
            true => WriteBy::Outsider,
            false => WriteBy::Program,
        }
    }

    /// Changes contents on behalf of `by`. If that removes mode bits, the kernel is made to ask for
    /// the mode again before any program can use it: it expects no other mode in the answer, and
    /// keeps what it knows without a time limit.
    pub(super) fn without_privileges<R>(
        &self,
        node: NodeId,
        inode: &Inode,
        by: WriteBy,
        change: impl FnOnce() -> Reply<R>,
    ) -> Reply<R> {
        let may_lose = inode.may_lose_privileges(by);
        let changed = change();
        if may_lose && !sabotage("fuse.contents.lost-rights-not-told") {
            // This precedes the answer, which lets the writing program continue. It never waits.
            let _ = self.kernel.drop_attributes(node);
        }
        changed
    }

    /// Records that data which a program was told it had written has no place. `fsync` and `close`
    /// report it; a program that only writes would not learn of it, and fill the cache for ever. So
    /// its next write must ask here.
    fn refuse(&self, node: NodeId, why: Errno) {
        let (at, freed) = (self.clock.monotonic(), self.room.freed());
        self.nodes.refuse(node, Refusal { why, at, freed });
        // There is no caller to report a failure to.
        let _ = self.kernel.drop_attributes(node);
    }

    /// Before a write through an open file: each hears once of what was refused, and as long as there is no room
    /// for as much, again. After a while a write is let through all the same, for it may need no room.
    fn tell_refusal(&self, node: NodeId, handle: Handle) -> Reply<()> {
        let refused = self.nodes.refused(node);
        let Some(last) = refused.last.filter(|_| handle != Handle::NONE) else { return Ok(()) };
        if self.opens.has_new_refusals(handle, refused.count) {
            return Err(last.why);
        }
        let since = self.clock.monotonic().saturating_sub(last.at);
        // Of any other reason the next write may know nothing.
        let goes_on = match last.why {
            Errno::ENOSPC => self.fs().room(false) < ROOM_AGAIN,
            Errno::EDQUOT => true,
            _ => false,
        } && since < REFUSED_FOR
            && last.freed == self.room.freed();
        if goes_on { Err(last.why) } else { Ok(()) }
    }

    /// Before a write through an open file that goes into the kernel's cache.
    pub(super) fn admit(&self, node: NodeId, handle: Handle) -> Reply<()> {
        self.tell_refusal(node, handle)?;
        if self.lease() != (Lease::Never { scarce: true }) {
            self.room.note_plenty();
            return Ok(());
        }
        if self.gate.is_frozen() {
            return Ok(());
        }
        if self.make_room(node) == Err(Errno::EAGAIN) {
            return Err(Errno::LATER);
        }
        self.tell_refusal(node, handle)
    }

    /// Takes what the kernel has of all files that are written, when little has just become left, and
    /// otherwise of this one, whose writer gets the error himself.
    ///
    /// # Errors
    ///
    /// `EAGAIN` while this is for others to do, or while too many wait already.
    fn make_room(&self, node: NodeId) -> Reply<()> {
        match self.room.note_scarce() {
            Turn::Collects(collecting) => {
                let taken = self.hand_over();
                if taken != Err(Errno::EAGAIN) {
                    collecting.done();
                    self.gate.try_again();
                }
                taken
            }
            Turn::Waits => Err(Errno::EAGAIN),
            Turn::GoesOn => self.bring_back(node),
        }
    }

    /// Returns whether one more thread may wait for the kernel to write, and whether there is a reason to.
    pub(super) fn may_wait_more(&self) -> bool {
        !self.room.is_collecting() && self.drops.load(Ordering::Acquire) < self.may_wait
    }

    /// Returns how long the kernel may collect writes without asking.
    fn lease(&self) -> Lease {
        if !self.holds_writes_back || !self.current.is_writable() {
            return Lease::ForEver;
        }
        let room = || self.fs().room(false);
        let (lease, is_news) = self.room.lease(room(), self.clock.monotonic());
        if is_news {
            for node in self.nodes.written() {
                let _ = self.kernel.drop_attributes(node);
            }
        }
        lease
    }

    /// Returns how long the kernel may keep attributes: the time for which it may collect writes.
    pub(super) fn valid_for(&self, inode: &Inode) -> Option<Duration> {
        if self.is_far {
            // It cannot be told when a write takes set-id bits.
            let is_set_id = inode.metadata().permissions & 0o6000 != 0;
            return Some(if is_set_id { Duration::ZERO } else { KEPT_FOR });
        }
        let is_lent = self.room.is_lent()
            && inode.kind() == FileKind::Regular
            && self.nodes.has_writers(node_of(inode.ino()));
        if is_lent { self.lease().time() } else { None }
    }

    pub(super) fn sync_file(&self, node: NodeId, handle: Handle, data_only: bool) -> Reply<()> {
        let inode = self.inode(node)?;
        let failures = inode.writeback_failures();
        let synced = match data_only && inode.kind() == FileKind::Regular {
            true => inode.sync_data(),
            false => inode.sync(),
        };
        let failed_before = handle != Handle::NONE && self.opens.has_new_failures(handle, failures);
        self.reply(synced)?;
        // The kernel asks only if no refusal of this file is unreported.
        self.nodes.settle_refusals(node);
        // Data that failed once was written again, but the caller must learn that it was late.
        if failed_before { Err(Errno::EIO) } else { Ok(()) }
    }

    pub(super) fn fallocate_file(&self, caller: Caller, bytes: Bytes, bits: u32) -> Reply<()> {
        let mode = mode_of(bits).ok_or(Errno::EOPNOTSUPP)?;
        let (node, length) = (bytes.node, bytes.len());
        let inode = self.inode(node)?;
        // The request does not say whether the caller may keep set-id bits, but root may.
        let by = self.on_behalf_of(caller, caller.uid != 0, &inode);
        self.without_privileges(node, &inode, by, || {
            let range = &bytes.range;
            self.reply(self.with_room_of_removed(|| inode.fallocate_by(by, mode, range.clone())))
        })?;
        match mode {
            Fallocate::PunchHole | Fallocate::ZeroRange { .. } => self.room.note_freed(),
            _ if self.room.used(length) => _ = self.lease(),
            _ => {}
        }
        Ok(())
    }

    pub(super) fn seek_file(&self, from: Position, sought: Sought) -> Reply<u64> {
        let Position { node, offset } = from;
        let inode = self.inode(node)?;
        // Whatever becomes of writes, the kernel keeps what is stored through maps.
        let may_be_dirty = self.nodes.has_writers(node);
        if may_be_dirty && !self.is_far {
            self.bring_back_in_time(node_of(inode.ino()))?;
        }
        let size = inode.metadata().size;
        if offset >= size {
            return Err(Errno::ENXIO);
        }
        if may_be_dirty && self.is_far {
            // The kernel of another machine cannot be asked for it: what may be data counts as data.
            return Ok(match sought {
                Sought::Data => offset,
                Sought::Hole => size,
            });
        }
        let found = match sought {
            Sought::Data => inode.seek_data(offset),
            Sought::Hole => inode.seek_hole(offset),
        };
        self.reply(found)?.ok_or(Errno::ENXIO)
    }

    /// Returns whether a file has no blocks here, and the kernel may have data of it. Programs such as
    /// GNU tar take a file for one hole if it has no blocks, and do not read it.
    pub(super) fn may_hide_data(&self, inode: &Inode) -> bool {
        inode.kind() == FileKind::Regular
            && inode.metadata().blocks == 0
            && self.nodes.has_writers(node_of(inode.ino()))
    }

    /// Returns whether a caller may take blocks that the superblock reserves. Of his groups only one is known.
    pub(super) fn may_use_reserve(&self, caller: Caller) -> bool {
        let ids = &self.settings.ids;
        let Some(uid) = ids.user_inside(caller.uid) else { return false };
        // Nobody's group is the largest number.
        let gid = ids.group_inside(caller.gid).unwrap_or(u32::MAX);
        self.fs().may_use_reserve(&Credentials::new(uid, gid))
    }

    /// Makes the kernel write the dirty data of a file, so that this server sees its holes. Other
    /// threads take these writes, so not all threads may wait here.
    fn bring_back(&self, node: NodeId) -> Reply<()> {
        // Asked to do without, the kernel takes everything for data, which is never wrong.
        self.while_others_write(|| self.kernel.drop_cached(node, 0).map_err(|_| Errno::EIO))
    }

    /// Makes the kernel write the dirty data of a file for a request that cannot do without: while
    /// others wait it is put off, and answered behind them.
    fn bring_back_in_time(&self, node: NodeId) -> Reply<()> {
        match self.bring_back(node) {
            Err(Errno::EAGAIN) => Err(Errno::LATER),
            brought => brought,
        }
    }

    /// Waits for what the kernel writes, if enough other threads are left to take it; else `EAGAIN`.
    pub(super) fn while_others_write(&self, wait: impl FnOnce() -> Reply<()>) -> Reply<()> {
        let waiting = self.drops.fetch_add(1, Ordering::AcqRel);
        let result = match waiting < self.may_wait && self.kernel.may_wait_here() {
            true => wait(),
            false => Err(Errno::EAGAIN),
        };
        self.drops.fetch_sub(1, Ordering::AcqRel);
        if result != Err(Errno::EAGAIN) {
            self.gate.try_again();
        }
        result
    }

    /// Makes the kernel send all dirty data of programs, and waits until all of it was answered.
    /// The kernel has dirty data of a file only while it is open for writing: its last close sends
    /// the rest before this server learns of it.
    ///
    /// # Errors
    ///
    /// `EAGAIN` when too many threads wait for the kernel already; the reason why a write was
    /// refused meanwhile.
    pub(super) fn hand_over(&self) -> Reply<()> {
        let nodes = self.nodes.written();
        // Writes to a frozen file system wait until it is thawed.
        if nodes.is_empty() || self.gate.is_frozen() {
            return Ok(());
        }
        let before = self.nodes.all_refused().count;
        self.while_others_write(|| {
            // Most of it comes in large pieces. It may still be under way when this returns;
            // dropping the cache of a file waits for its own pages, so it comes after this.
            if self.events.hand_over_writes() {
                return Ok(());
            }
            for node in nodes {
                self.kernel.drop_cached(node, 0).map_err(|_| Errno::EIO)?;
            }
            Ok(())
        })?;
        let refused = self.nodes.all_refused();
        match refused.last {
            Some(last) if refused.count != before => Err(last.why),
            _ => Ok(()),
        }
    }
}

fn writes(flags: u32) -> bool {
    flags & O_ACCMODE != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_those_of_linux_and_their_combinations() {
        assert_eq!(mode_of(0), Some(Fallocate::Allocate { keep_size: false }));
        assert_eq!(mode_of(1), Some(Fallocate::Allocate { keep_size: true }));
        assert_eq!(mode_of(2), None, "a hole does not change the size");
        assert_eq!(mode_of(3), Some(Fallocate::PunchHole));
        assert_eq!(mode_of(0x10), Some(Fallocate::ZeroRange { keep_size: false }));
        assert_eq!(mode_of(0x11), Some(Fallocate::ZeroRange { keep_size: true }));
        assert_eq!(mode_of(0x8), Some(Fallocate::CollapseRange));
        assert_eq!(mode_of(0x20), Some(Fallocate::InsertRange));
        for bits in [0x4, 0x9, 0x12, 0x18, 0x100] {
            assert_eq!(mode_of(bits), None, "{bits:#x}");
        }
    }
}
