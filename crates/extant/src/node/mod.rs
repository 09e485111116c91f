//! An inode in memory: its single copy, its locks, and its references.
//!
//! # Place
//!
//! Below: `extent_node`. Above: the volume keeps nodes by their numbers, changes go through
//! `Txn::update`; handles ([`Inode`](crate::Inode)) keep them in existence.
//!
//! # Shape
//!
//! ```text
//! data      one version of an inode, decoded
//! file      a regular file in use: both sizes, times to store, cached contents
//! delayed   its blocks without an address yet
//! life      named, without links, dying, dead; handles; who may delete
//! end       holding writeback off, and the right to delete that follows
//! leave     leaving the cache while names are looked up
//! unsynced  what a sync waits for, also after the node left memory
//! model     life and leave under a model checker
//! memory    counts and sizes
//! content   the content lock, and direct operations under way without it
//! flights   counting those, and waiting for them
//! spans     their ranges
//! ```
//!
//! # Invariants
//!
//! - D1. An inode in use has one node, while it is referenced. A reused number gets a new node;
//!   holders of the dead one keep it.
//! - D2. `data` is authoritative. It is encoded when the transaction that changed it locks. A dead
//!   node comes before its successor in the list of that transaction.
//! - D3. An inode is freed only by the holder of its [`Dying`]: without links, without handles,
//!   with nothing under writeback, and by one thread (`life`, Z2).

mod atomic {
    pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
}
mod locks {
    pub(super) use extant_sync::{Condvar, Mutex};

    pub(super) const fn leaf<T>(value: T) -> Mutex<T> {
        Mutex::new(extant_sync::Rank::Leaf, value)
    }
}
mod content;
mod data;
mod delayed;
mod end;
mod file;
mod flights;
mod leave;
mod life;
mod memory;
#[cfg(all(test, not(miri)))]
mod model;
mod spans;
#[cfg(test)]
mod tests;
mod unsynced;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use extant_base::Ino;
use extant_format::inode::{FileKind, InodeFlags};
use extant_sync::{Rank, RwLock};

use crate::keyring::CipherSlot;
use crate::seal::SealSlot;

pub(crate) use content::{Airspace, Content, Drive, Spans, UnderWay};
pub(crate) use data::InodeData;
pub use data::Metadata;
pub(crate) use delayed::Delayed;
pub(crate) use end::{Dying, Settled};
pub(crate) use file::{FileSlot, FileState};
pub(crate) use flights::Flights;
use leave::Leave;
pub(crate) use life::{Life, Stage};
pub use memory::NodeStats;
pub(crate) use spans::Span;
pub(crate) use unsynced::{Departed, Unsynced};

/// The part of an inode that each write reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gist {
    pub(crate) flags: InodeFlags,
    pub(crate) mode: u16,
    /// Whether the file may have the attribute `security.capability`: false only after a check that
    /// it has none.
    pub(crate) may_have_capability: bool,
}

/// The bit of [`Gist::may_have_capability`].
const MAY_HAVE_CAPABILITY: u64 = 1 << 48;

impl Gist {
    fn pack(data: &InodeData) -> u64 {
        u64::from(data.record.flags.bits()) << 16 | u64::from(data.record.mode)
    }

    /// Packs the gist of an inode whose attributes were not checked.
    fn pack_new(data: &InodeData) -> u64 {
        let may = if data.may_have_xattrs() { MAY_HAVE_CAPABILITY } else { 0 };
        Gist::pack(data) | may
    }

    fn unpack(word: u64) -> Gist {
        Gist {
            // Both values were put in by `pack`.
            flags: InodeFlags::from_bits_retain((word >> 16) as u32),
            mode: word as u16,
            may_have_capability: word & MAY_HAVE_CAPABILITY != 0,
        }
    }
}

/// An inode in memory.
pub(crate) struct Node {
    ino: Ino,
    /// Lock of entries, size, data and attributes. Rank `InodeContent`, by number.
    pub(crate) content: Content,
    /// The current version. Rank `InodeMap`; held for a moment, never over I/O.
    data: RwLock<Arc<InodeData>>,
    life: Life,
    /// Whether the inode is being truncated in several transactions: it is an orphan until that is
    /// done.
    pub(crate) is_shortened: AtomicBool,
    /// The last transaction whose dirty list has this node; 0 for none.
    pub(crate) dirty_tid: AtomicU32,
    /// The last round in which a handle said that a fast commit can describe its changes; 0 for
    /// none.
    pub(crate) described_in: AtomicU32,
    /// Place of this node on the list of what that transaction changed.
    pub(crate) dirty_at: AtomicU32,
    unsynced: Unsynced,
    leave: Leave,
    /// The [`Gist`], readable without a lock.
    gist: AtomicU64,
    /// The state of a regular file in use: sizes, delayed blocks, cached contents.
    file: FileSlot,
    /// The cipher of an encrypted inode.
    ciphers: CipherSlot,
    /// The seal of a sealed file.
    seal: SealSlot,
}

impl Node {
    pub(crate) fn new(data: InodeData) -> Node {
        let ino = data.ino;
        let order = u64::from(ino.0);
        let gist = AtomicU64::new(Gist::pack_new(&data));
        let has_links = data.record.links > 0;
        Node {
            gist,
            ino,
            content: Content::new(order),
            data: RwLock::with_order(Rank::InodeMap, order, Arc::new(data)),
            life: Life::new(if has_links { Stage::Named } else { Stage::Orphan }),
            is_shortened: AtomicBool::new(false),
            dirty_tid: AtomicU32::new(0),
            described_in: AtomicU32::new(0),
            dirty_at: AtomicU32::new(0),
            unsynced: Unsynced::default(),
            leave: Leave::new(),
            file: FileSlot::new(),
            ciphers: CipherSlot::new(),
            seal: SealSlot::new(),
        }
    }

    /// Creates a node from data that was read, in a shard of the cache with the trace `departed`.
    pub(crate) fn after(departed: &Departed, data: InodeData) -> Node {
        Node { unsynced: Unsynced::after(departed), ..Node::new(data) }
    }

    /// Returns the node, unless it has left the cache of nodes or is about to: then that cache has
    /// the current one.
    pub(crate) fn upgrade(node: &Weak<Node>) -> Option<Arc<Node>> {
        node.upgrade().filter(|node| node.leave.is_here())
    }

    /// Lets the node leave the cache if there are no more than `references`. Returns whether it
    /// does.
    pub(crate) fn try_leave(node: &Arc<Node>, references: usize) -> bool {
        node.leave.try_leave(|| Arc::strong_count(node) == references)
    }

    /// Records that the node leaves the cache.
    pub(crate) fn depart(&self, departed: &mut Departed) {
        self.leave.leave();
        let is_changed = self.dirty_tid.load(Ordering::Acquire) != 0;
        self.unsynced.depart(is_changed, departed);
    }

    /// Returns the changes that a sync of the inode waits for.
    pub(crate) fn unsynced(&self) -> &Unsynced {
        &self.unsynced
    }

    pub(crate) fn file_state(&self) -> &FileSlot {
        &self.file
    }

    pub(crate) fn ciphers(&self) -> &CipherSlot {
        &self.ciphers
    }

    pub(crate) fn seal(&self) -> &SealSlot {
        &self.seal
    }

    pub(crate) fn life(&self) -> &Life {
        &self.life
    }

    pub(crate) fn ino(&self) -> Ino {
        self.ino
    }

    /// Returns the current version. Later changes do not show in it.
    pub(crate) fn data(&self) -> Arc<InodeData> {
        Arc::clone(&self.data.read())
    }

    /// Calls `look` with the current version without keeping it, so that the next change need not
    /// copy.
    pub(crate) fn with<R>(&self, look: impl FnOnce(&InodeData) -> R) -> R {
        look(&self.data.read())
    }

    /// Calls `look` like [`with`](Self::with), unless another thread is changing the inode.
    pub(crate) fn try_with<R>(&self, look: impl FnOnce(&InodeData) -> R) -> Option<R> {
        self.data.try_read().map(|data| look(&data))
    }

    /// Changes the inode. Only `Txn::update` calls this, after putting the node on the dirty list.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut InodeData) -> R) -> R {
        let mut data = self.data.write();
        let data = Arc::make_mut(&mut data);
        let result = change(data);
        // No other thread stores here while `data` is locked.
        let kept = self.gist.load(Ordering::Relaxed) & MAY_HAVE_CAPABILITY;
        self.gist.store(Gist::pack(data) | kept, Ordering::Release);
        result
    }

    /// Sets whether the file may have capabilities. The caller holds the content lock exclusively,
    /// and has checked or sets the attribute.
    pub(crate) fn set_may_have_capability(&self, may: bool) {
        let _data = self.data.read();
        match may {
            true => self.gist.fetch_or(MAY_HAVE_CAPABILITY, Ordering::AcqRel),
            false => self.gist.fetch_and(!MAY_HAVE_CAPABILITY, Ordering::AcqRel),
        };
    }

    /// Returns the gist of the current version.
    pub(crate) fn gist(&self) -> Gist {
        Gist::unpack(self.gist.load(Ordering::Acquire))
    }

    /// Returns the kind of the inode, which never changes.
    pub(crate) fn kind(&self) -> FileKind {
        FileKind::from_mode(self.gist().mode).unwrap_or_else(|| self.with(|data| data.kind))
    }

    /// Returns whether the node is a regular file.
    pub(crate) fn is_regular(&self) -> bool {
        FileKind::from_mode(self.gist().mode) == Some(FileKind::Regular)
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.ino)
    }
}
