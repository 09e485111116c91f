//! The requests of the kernel, answered by ext4.
//!
//! # Shape
//!
//! ```text
//! nodes     inodes that the kernel knows      attributes  getting and setting attributes
//! names     lookup, creation, renames, removal  contents    reads, writes, allocation
//! listing   directories                        xattrs      attributes with names, ACLs
//! room      space for dirty data in the kernel
//! control   ioctl, orders to the server, statistics    brake   ended by the server itself
//! sealed    ioctl of fs-verity
//! ending    the end, once                              current the file system that is served
//! ```
//!
//! # Invariants
//!
//! - E1. A node that the kernel knows and that lost its last name has a handle here, so its inode
//!   is not deleted and its number is not used again until it is forgotten. For other nodes only a
//!   few words are kept (`nodes`): their inodes are in memory or are read again, and one of another
//!   generation is stale.
//! - E2. Nothing is changed after a shutdown, or while it was made read-only; requests of other
//!   kinds fail after a shutdown as well.

mod attributes;
mod brake;
#[cfg(test)]
mod calls;
mod complaints;
mod contents;
mod control;
mod current;
mod ending;
mod growth;
mod keys;
mod listing;
mod names;
mod naming;
mod nodes;
mod partings;
mod room;
mod sealed;
mod xattrs;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use extant::{AccessRule, Family, FileKind, Fs, FsError, Ino, Inode, InodeFlags, SpaceFor};
use extant_base::sabotage;
use extant_sync::{Clock, Mutex, Rank, RwLockReadGuard};

use crate::events::{Brake, Events, Level};
use crate::gate::Gate;
use crate::kernel::Kernel;
use crate::operations::{
    Attributes, Bytes, Caller, DirAnswer, DurableWrite, Entry, Errno, Handle, Ioctl, New, NodeId,
    Opened, Operations, Position, ReadAnswer, Reply, SetAttr, Sought, Totals, WriteHow,
};
use crate::orders::{CONTROL, DEFRAG, GROW, TUNE};
use crate::settings::{AccessTimes, Durable, Settings};
use crate::stats::RequestStats;
use complaints::{Complaints, Kind};
use current::Current;
use ending::Ending;
use keys::Claims;
use listing::Damaged;
use names::known_to_be;
use nodes::{Found, Nodes, Opens};
use partings::Partings;
use room::Room;

/// How many removed inodes one change waits for, one after the other: others may take their room.
const REMOVED_MAX: usize = 64;

/// Writes everything and marks the image clean, unless it was stopped on request.
fn end(fs: &Fs) -> extant::Result<()> {
    if fs.is_shut_down() { Ok(()) } else { fs.clone().unmount() }
}

/// The terms agreed on with the kernel, as far as answers depend on them.
pub(crate) struct Terms {
    /// The kernel keeps what programs write, sizes and times included, until it writes back.
    pub(crate) holds_writes_back: bool,
    /// How many threads may wait for the kernel to write back.
    pub(crate) may_wait: u32,
    /// Requests come over the kernel's rings.
    pub(crate) over_rings: bool,
    /// The kernel is that of another machine, and hears nothing but answers.
    pub(crate) is_far: bool,
}

/// A file system that is served, from before its mount until it has ended.
pub(crate) struct Served {
    current: Arc<Current>,
    nodes: Arc<Nodes>,
    ending: Arc<Ending>,
}

impl Served {
    pub(crate) fn new(fs: Fs, settings: &Settings) -> Served {
        Served {
            current: Arc::new(Current::new(fs, settings.may_become_writable)),
            nodes: Arc::new(Nodes::new()),
            ending: Arc::new(Ending::new()),
        }
    }

    /// Creates the operations that answer requests; `events` learns when they end the mount
    /// themselves.
    pub(crate) fn operations<'a>(
        &self,
        kernel: Arc<dyn Kernel>,
        terms: &Terms,
        requests: Arc<RequestStats>,
        clock: Arc<dyn Clock>,
        settings: &'a Settings,
        events: &'a dyn Events,
    ) -> Ext4<'a> {
        let current = Arc::clone(&self.current);
        let salt = current.get().superblock().encrypt_pw_salt;
        let server = Ext4 {
            nodes: Arc::clone(&self.nodes),
            opens: Opens::new(),
            settings,
            holds_writes_back: terms.holds_writes_back,
            read_only: AtomicBool::new(!current.is_writable()),
            gate: Arc::new(Gate::default()),
            kernel,
            requests,
            over_rings: terms.over_rings,
            is_far: terms.is_far,
            may_wait: terms.may_wait,
            clock,
            events,
            complaints: Complaints::new(),
            label: Mutex::new(Rank::Leaf, current.get().superblock().label().to_vec()),
            drops: AtomicU32::new(0),
            ending: Arc::clone(&self.ending),
            damaged: Damaged::new(),
            not_writable: Mutex::new(Rank::Leaf, None),
            claims: Claims::new(),
            salt: Mutex::new(Rank::Leaf, (salt, salt != [0; 16])),
            room: Room::new(terms.holds_writes_back),
            partings: Partings::new(),
            current,
        };
        events.connected(Brake::new(brake::Stop {
            nodes: Arc::clone(&server.nodes),
            gate: Arc::clone(&server.gate),
            kernel: Arc::clone(&server.kernel),
            ending: Arc::clone(&server.ending),
            current: Arc::clone(&server.current),
        }));
        server
    }

    /// Ends the file system, unless another thread did. Returns the result to the first caller.
    pub(crate) fn end(&self) -> extant::Result<()> {
        self.ending.reach(|| {
            self.nodes.forget_all();
            end(self.current.get())
        });
        self.ending.take().unwrap_or(Ok(()))
    }
}

/// One mounted file system.
pub(crate) struct Ext4<'a> {
    current: Arc<Current>,
    nodes: Arc<Nodes>,
    opens: Opens,
    settings: &'a Settings,
    /// The kernel keeps what programs write, sizes and times included, until it writes back.
    holds_writes_back: bool,
    /// Changes are refused: mounted so, or made so.
    read_only: AtomicBool,
    gate: Arc<Gate>,
    kernel: Arc<dyn Kernel>,
    requests: Arc<RequestStats>,
    clock: Arc<dyn Clock>,
    events: &'a dyn Events,
    complaints: Complaints,
    /// The label as it is now; the superblock of the mount is the one from its start.
    label: Mutex<Vec<u8>>,
    damaged: Damaged,
    /// Why it did not become writable when that was asked for last.
    not_writable: Mutex<Option<String>>,
    room: Room,
    partings: Partings,
    /// Who added which key.
    claims: Claims,
    /// The salt for passphrases, and whether the file system has it.
    salt: Mutex<([u8; 16], bool)>,
    /// Threads that wait for the kernel to write back, which needs other threads.
    drops: AtomicU32,
    /// How many threads may wait: one less than may be asked to do the writing.
    may_wait: u32,
    /// Requests come over the kernel's rings.
    over_rings: bool,
    /// The kernel is that of another machine.
    is_far: bool,
    ending: Arc<Ending>,
}

impl Ext4<'_> {
    /// Forgets all nodes and open files: the kernel that knew them is gone.
    pub(crate) fn begin_anew(&self) {
        self.nodes.forget_all();
        self.opens.forget_all();
    }

    fn fs(&self) -> &Fs {
        self.current.get()
    }

    /// Refuses everything after a shutdown.
    fn check(&self) -> Reply<()> {
        if self.fs().is_shut_down() { Err(Errno::EIO) } else { Ok(()) }
    }

    /// Refuses changes where there are to be none.
    fn check_change(&self) -> Reply<()> {
        self.check()?;
        if self.read_only.load(Ordering::Acquire) { Err(Errno::EROFS) } else { Ok(()) }
    }

    /// The inode of a node that the kernel knows.
    fn inode(&self, node: NodeId) -> Reply<Inode> {
        match self.nodes.get(node) {
            Some(Found::Held(inode)) => Ok(inode),
            Some(Found::Stored { generation, kind }) => self.stored_inode(node, generation, kind),
            None if node == NodeId::ROOT => self.reply(self.fs().root()),
            None => Err(Errno::ESTALE),
        }
    }

    /// The inode of a node that is not held here, if it is still the same.
    fn stored_inode(&self, node: NodeId, generation: u32, kind: FileKind) -> Reply<Inode> {
        let found = match ino_of(node).map(|ino| self.fs().inode(ino)) {
            None | Some(Err(FsError::NoSuchInode { .. })) => return Err(Errno::ESTALE),
            Some(found) => self.reply(found)?,
        };
        let is_same = found.record().generation == generation && found.kind() == kind;
        match is_same || sabotage("fuse.nodes.any-generation") {
            true => Ok(found),
            false => Err(Errno::ESTALE),
        }
    }

    /// Turns a result into an answer; damage and failures of devices are logged, and noted in the file
    /// system.
    fn reply<T>(&self, result: extant::Result<T>) -> Reply<T> {
        result.map_err(|error| self.errno(&error))
    }

    fn errno(&self, error: &FsError) -> Errno {
        if self.fs().is_shut_down() {
            return Errno::EIO;
        }
        match error.family() {
            Family::Refusal => {}
            Family::Damage => {
                let refuses = self.fs().report_damage(error);
                let more = match refuses && !self.read_only.load(Ordering::Acquire) {
                    true => "; changes are refused from now on (errors=remount-ro)",
                    false => "",
                };
                self.complain(Kind::Damage, &format!("{}{more}", in_full(error)));
            }
            Family::Device => self.complain(Kind::Device, &in_full(error)),
        }
        Errno::from(error)
    }

    /// Makes a change that needs room. If there is none, but something was removed a moment ago that
    /// the kernel has not forgotten yet, waits until it has, and tries again.
    fn with_room_of_removed<R>(
        &self,
        mut change: impl FnMut() -> extant::Result<R>,
    ) -> extant::Result<R> {
        for _ in 0..REMOVED_MAX {
            let count = self.partings.count();
            let changed = change();
            let is_full =
                matches!(changed, Err(FsError::NoSpace { .. } | FsError::QuotaExceeded { .. }));
            let wait = || match self.partings.wait(count, &*self.clock) {
                true => Ok(()),
                false => Err(Errno::ENOSPC),
            };
            if !is_full || self.while_others_write(wait).is_err() {
                return changed;
            }
        }
        change()
    }

    /// Names in `dir` have changed: durable now, if the mount or the directory is to be so.
    fn renamed_in(&self, dir: &Inode) -> Reply<()> {
        let flags = || dir.metadata().flags;
        match self.settings.durable >= Durable::Names
            || flags().intersects(InodeFlags::DIRSYNC | InodeFlags::SYNC)
        {
            true => self.reply(dir.sync()),
            false => Ok(()),
        }
    }

    /// A node has changed otherwise.
    fn changed(&self, node: NodeId) -> Reply<()> {
        match self.settings.durable {
            Durable::Everything => {
                let inode = self.inode(node)?;
                self.reply(inode.sync())
            }
            Durable::AsAsked | Durable::Names => Ok(()),
        }
    }

    /// Logs what a hostile image, or the disk below, could make us say very often.
    fn complain(&self, kind: Kind, text: &str) {
        if let Some(line) = self.complaints.line(kind, text, self.clock.monotonic()) {
            self.events.log(Level::Error, &line);
        }
    }

    /// Updates the access time of an inode that was read, if the mount keeps access times. Never
    /// fails a read.
    fn accessed(&self, inode: &Inode) {
        let rule = match self.settings.access_times {
            AccessTimes::Never => return,
            AccessTimes::Relative => AccessRule::Relative,
            AccessTimes::Strict => AccessRule::Strict,
        };
        if self.read_only.load(Ordering::Relaxed)
            || self.gate.is_frozen()
            || (inode.is_dir() && !self.settings.directory_access_times)
        {
            return;
        }
        if let Err(error) = inode.note_access(rule) {
            // The journal is full or aborted; programs that change something get the error.
            let _ = self.errno(&error);
        }
    }
}

/// An error with its causes: that the disk below is full, say.
fn in_full(error: &FsError) -> String {
    let mut text = error.to_string();
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    for cause in causes.take(8) {
        let cause = cause.to_string();
        // Some say theirs themselves.
        if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

/// The kernel's number for an inode.
fn node_of(ino: Ino) -> NodeId {
    if ino == Ino::ROOT { NodeId::ROOT } else { NodeId(u64::from(ino.0)) }
}

/// The inode of a kernel's number.
fn ino_of(node: NodeId) -> Option<Ino> {
    if node == NodeId::ROOT { Some(Ino::ROOT) } else { u32::try_from(node.0).ok().map(Ino) }
}

impl Operations for Ext4<'_> {
    fn lookup(&self, _: Caller, parent: NodeId, name: &[u8]) -> Reply<Entry> {
        self.check()?;
        self.lookup_in(parent, name)
    }

    fn takes_space_for(&self, caller: Caller) -> Option<SpaceFor> {
        self.current.is_writable().then(|| {
            // Of the right that lets Linux pass limits (CAP_SYS_RESOURCE) nothing is told: it is root's.
            let is_beyond = caller.uid == 0 && !sabotage("fuse.ext4.limits-bind-root");
            self.fs().take_space_for(self.may_use_reserve(caller)).beyond_limits(is_beyond)
        })
    }

    fn forget(&self, node: NodeId, count: u64) {
        if self.nodes.forget(node, count) {
            self.partings.ended();
        }
    }

    fn attributes(&self, node: NodeId, through: Option<Handle>) -> Reply<Attributes> {
        self.check()?;
        if let Some(handle) = through {
            self.admit(node, handle)?;
        }
        Ok(self.attributes_of(&self.inode(node)?))
    }

    fn set_attributes(&self, caller: Caller, node: NodeId, changes: &SetAttr) -> Reply<Attributes> {
        self.check_change()?;
        let attributes = self.set_attributes_of(caller, node, changes)?;
        self.changed(node)?;
        Ok(attributes)
    }

    fn read_link(&self, node: NodeId) -> Reply<Vec<u8>> {
        self.check()?;
        let inode = self.inode(node)?;
        let target = self.reply(inode.read_link())?;
        self.accessed(&inode);
        Ok(target)
    }

    fn symlink(&self, caller: Caller, parent: NodeId, name: &[u8], target: &[u8]) -> Reply<Entry> {
        self.check_change()?;
        self.symlink_in(caller, parent, name, target)
    }

    fn mknod(&self, caller: Caller, parent: NodeId, name: &[u8], new: &New) -> Reply<Entry> {
        self.check_change()?;
        self.mknod_in(caller, parent, name, new)
    }

    fn mkdir(&self, caller: Caller, parent: NodeId, name: &[u8], new: &New) -> Reply<Entry> {
        self.check_change()?;
        self.mkdir_in(caller, parent, name, new)
    }

    fn unlink(&self, _: Caller, parent: NodeId, name: &[u8]) -> Reply<()> {
        self.check_change()?;
        let dir = self.inode(parent)?;
        let victim = self.reply(known_to_be(&dir, name))?;
        let unlinked = self.reply(dir.unlink(name));
        self.keep_known(victim);
        unlinked?;
        self.room.note_freed();
        self.renamed_in(&dir)
    }

    fn rmdir(&self, _: Caller, parent: NodeId, name: &[u8]) -> Reply<()> {
        self.check_change()?;
        let dir = self.inode(parent)?;
        let victim = self.reply(known_to_be(&dir, name))?;
        let removed = self.reply(dir.rmdir(name));
        self.keep_known(victim);
        removed?;
        self.room.note_freed();
        self.renamed_in(&dir)
    }

    fn rename(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        flags: u32,
    ) -> Reply<()> {
        self.check_change()?;
        self.rename_between(caller, (parent, name), (new_parent, new_name), flags)
    }

    fn link(&self, _: Caller, node: NodeId, parent: NodeId, name: &[u8]) -> Reply<Entry> {
        self.check_change()?;
        let (dir, inode) = (self.inode(parent)?, self.inode(node)?);
        self.reply(self.with_room_of_removed(|| dir.link(name, &inode)))?;
        self.renamed_in(&dir)?;
        self.entry(&dir, inode)
    }

    fn open(&self, _: Caller, node: NodeId, flags: u32) -> Reply<Opened> {
        self.check()?;
        self.open_file(node, flags)
    }

    fn create(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        new: &New,
        flags: u32,
    ) -> Reply<(Entry, Opened)> {
        self.check_change()?;
        self.create_in(caller, parent, name, new, flags)
    }

    fn tmpfile(
        &self,
        caller: Caller,
        parent: NodeId,
        new: &New,
        flags: u32,
    ) -> Reply<(Entry, Opened)> {
        self.check_change()?;
        self.tmpfile_in(caller, parent, new, flags)
    }

    fn release(&self, node: NodeId, handle: Handle) {
        self.release_file(node, handle);
    }

    fn read(&self, wanted: Bytes, _: Handle, answer: &mut dyn ReadAnswer) -> Reply<()> {
        self.check()?;
        self.read_file(wanted, answer)
    }

    fn write(
        &self,
        caller: Caller,
        to: Position,
        handle: Handle,
        bytes: &[u8],
        how: WriteHow,
    ) -> Reply<u32> {
        self.check_change()?;
        // The kernel writes back at its own time and in its own name: the user who opened the file
        // counts.
        let by_opener = || {
            let rights = self.opens.rights(handle);
            self.fs().take_space_for(rights.may_use_reserve).beyond_limits(rights.is_beyond_limits)
        };
        let _space = how.from_cache.then(by_opener);
        let node = to.node;
        let written = self.write_file(caller, to, bytes, how)?;
        match how.durable {
            // Data stored through maps, or collected by the kernel.
            _ if how.from_cache => {}
            Some(DurableWrite::Data) if self.settings.durable < Durable::Everything => {
                self.reply(self.inode(node)?.sync_data())?;
            }
            Some(_) => self.reply(self.inode(node)?.sync())?,
            None => self.changed(node)?,
        }
        Ok(written)
    }

    fn sync(&self, node: NodeId, handle: Handle, data_only: bool) -> Reply<()> {
        self.check()?;
        self.sync_file(node, handle, data_only)
    }

    fn sync_all(&self) -> Reply<()> {
        self.check()?;
        self.reply(self.fs().sync())
    }

    fn end(&self) {
        self.ending.reach(|| {
            // Removed files are deleted first. Nodes that the kernel forgets later have no owner.
            self.nodes.forget_all();
            end(self.fs())
        });
    }

    fn totals(&self) -> Reply<Totals> {
        self.check()?;
        // A program that removed files and asks for the free space has dropped them already.
        if !self.gate.is_frozen() {
            self.fs().finish_removals();
        }
        let totals = self.reply(self.fs().statfs())?;
        Ok(Totals {
            block_bytes: totals.block_bytes,
            blocks: totals.blocks,
            blocks_free: totals.blocks_free,
            blocks_available: totals.blocks_available,
            files: totals.files,
            files_free: totals.files_free,
            name_max: totals.name_max,
        })
    }

    fn set_xattr(
        &self,
        caller: Caller,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        flags: u32,
        take_set_gid: bool,
    ) -> Reply<()> {
        if name == CONTROL {
            return self.control_command(caller, value);
        }
        self.check_change()?;
        self.set_xattr_of(node, name, value, flags, take_set_gid)?;
        self.changed(node)
    }

    fn xattr(&self, caller: Caller, node: NodeId, name: &[u8]) -> Reply<Vec<u8>> {
        // Orders never wait, but for those that move contents and add groups.
        if name != DEFRAG
            && !name.starts_with(GROW)
            && !name.starts_with(TUNE)
            && let Some(answer) = self.control_query(caller, name)
        {
            return answer;
        }
        let _same = self.current.use_it();
        self.check()?;
        if let Some(answer) = self.place_query(caller, node, name) {
            return answer;
        }
        if let Some(answer) = self.growth_query(caller, name) {
            return answer;
        }
        if let Some(answer) = self.naming_query(caller, name) {
            return answer;
        }
        self.xattr_of(node, name)
    }

    fn xattr_names(&self, caller: Caller, node: NodeId) -> Reply<Vec<u8>> {
        self.check()?;
        self.xattr_names_of(caller, node)
    }

    fn remove_xattr(&self, _: Caller, node: NodeId, name: &[u8]) -> Reply<()> {
        self.check_change()?;
        self.remove_xattr_of(node, name)?;
        self.changed(node)
    }

    fn open_dir(&self, _: Caller, node: NodeId) -> Reply<Opened> {
        self.check()?;
        self.open_dir_of(node)
    }

    fn read_dir(&self, node: NodeId, cookie: u64, answer: &mut dyn DirAnswer) -> Reply<()> {
        self.check()?;
        self.read_dir_of(node, cookie, answer)
    }

    fn fallocate(&self, caller: Caller, bytes: Bytes, mode: u32) -> Reply<()> {
        self.check_change()?;
        let node = bytes.node;
        self.fallocate_file(caller, bytes, mode)?;
        self.changed(node)
    }

    fn seek(&self, from: Position, sought: Sought) -> Reply<u64> {
        self.check()?;
        self.seek_file(from, sought)
    }

    fn copy_range(&self, caller: Caller, from: Bytes, to: Position) -> Reply<u64> {
        self.check_change()?;
        let (source_inode, into) = (self.inode(from.node)?, self.inode(to.node)?);
        let source = self.nodes.refused(from.node);
        if let Some(lost) = source.last.filter(|_| source.has_lost) {
            // The file has holes that no program made.
            return Err(lost.why);
        }
        let by = self.on_behalf_of(caller, caller.uid != 0, &into);
        let copied = self.without_privileges(to.node, &into, by, || {
            self.reply(source_inode.copy_range_by(
                by,
                from.range.start,
                &into,
                to.offset,
                from.len(),
            ))
        })?;
        self.changed(to.node)?;
        Ok(copied)
    }

    fn ioctl(&self, caller: Caller, node: NodeId, request: &Ioctl<'_>) -> Reply<Vec<u8>> {
        self.check()?;
        self.ioctl_of(caller, node, request)
    }

    fn some_file(&self) -> Option<NodeId> {
        self.nodes.some_file()
    }

    fn may_try_again(&self) -> bool {
        self.may_wait_more()
    }

    fn gate(&self) -> &Gate {
        &self.gate
    }

    fn stays(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.current.use_it()
    }
}
