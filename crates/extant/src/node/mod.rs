//! One inode in memory: the only copy, its locks, and who holds it.
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
//! file      of a regular file in use: both sizes, times to store, cached contents
//! delayed   its blocks without an address yet
//! life      named, without links, dying, dead; handles; who may delete
//! end       writeback kept out, and the right to delete that comes with it
//! leave     out of the cache, or found by a name: not both
//! unsynced  what a sync waits for, also when the node has left memory meanwhile
//! model     both, in every order of steps that the memory model allows
//! memory    how many there are, and what they take
//! ```
//!
//! # Invariants
//!
//! - D1. There is one node for an inode in use, as long as anybody holds it. A number that is given
//!   out again gets a new node; the dead one stays with those who still have it.
//! - D2. `data` is the truth. Its stored form is made when the transaction that changed it locks. A
//!   dead node is before its successor in the list of that transaction.
//! - D3. An inode is freed only by whoever has its [`Dying`]: without links, without handles, with
//!   nothing under writeback, and by one thread (`life`, Z2).

mod atomic {
    pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
}
mod data;
mod delayed;
mod end;
mod file;
mod leave;
mod life;
mod memory;
#[cfg(all(test, not(miri)))]
mod model;
#[cfg(test)]
mod tests;
mod unsynced;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use extant_base::Ino;
use extant_format::inode::{FileKind, InodeFlags};
use extant_sync::{Rank, RwLock};

pub(crate) use data::InodeData;
pub use data::Metadata;
pub(crate) use delayed::Delayed;
pub(crate) use end::{Dying, Settled};
pub(crate) use file::{FileSlot, FileState, Pinned};
use leave::Leave;
pub(crate) use life::{Life, Stage};
pub use memory::NodeStats;
pub(crate) use unsynced::{Departed, Unsynced};

/// The part of an inode that each write looks at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gist {
    pub(crate) flags: InodeFlags,
    pub(crate) mode: u16,
    /// It may have the attribute `security.capability`: nobody has looked, or it was set.
    pub(crate) may_have_capability: bool,
}

/// The bit of [`Gist::may_have_capability`].
const MAY_HAVE_CAPABILITY: u64 = 1 << 48;

impl Gist {
    fn pack(data: &InodeData) -> u64 {
        u64::from(data.record.flags.bits()) << 16 | u64::from(data.record.mode)
    }

    /// Of an inode whose attributes nobody has looked at.
    fn pack_new(data: &InodeData) -> u64 {
        let may = if data.may_have_xattrs() { MAY_HAVE_CAPABILITY } else { 0 };
        Gist::pack(data) | may
    }

    fn unpack(word: u64) -> Gist {
        Gist {
            // Both were put in by `pack`.
            flags: InodeFlags::from_bits_retain((word >> 16) as u32),
            mode: word as u16,
            may_have_capability: word & MAY_HAVE_CAPABILITY != 0,
        }
    }
}

/// An inode in memory.
pub(crate) struct Node {
    ino: Ino,
    /// Orders operations on entries, size, data and attributes. Rank `InodeContent`, by number.
    pub(crate) content: RwLock<()>,
    /// The current state. Rank `InodeMap`; held for a moment, never over I/O.
    data: RwLock<Arc<InodeData>>,
    life: Life,
    /// Being shortened, in several transactions: an orphan until that is done.
    pub(crate) is_shortened: AtomicBool,
    /// The last transaction whose dirty list has this node; 0 for none.
    pub(crate) dirty_tid: AtomicU32,
    unsynced: Unsynced,
    leave: Leave,
    /// What every write has to know, without a lock: see [`Gist`].
    gist: AtomicU64,
    /// Of a regular file in use: sizes, delayed blocks, cached contents.
    file: FileSlot,
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
            content: RwLock::with_order(Rank::InodeContent, order, ()),
            data: RwLock::with_order(Rank::InodeMap, order, Arc::new(data)),
            life: Life::new(if has_links { Stage::Named } else { Stage::Orphan }),
            is_shortened: AtomicBool::new(false),
            dirty_tid: AtomicU32::new(0),
            unsynced: Unsynced::default(),
            leave: Leave::new(),
            file: FileSlot::new(),
        }
    }

    /// A node of what was read of an inode whose shard of the cache others have left.
    pub(crate) fn after(departed: &Departed, data: InodeData) -> Node {
        Node { unsynced: Unsynced::after(departed), ..Node::new(data) }
    }

    /// The node, unless it has left memory or is about to: then the cache of nodes knows better.
    pub(crate) fn upgrade(node: &Weak<Node>) -> Option<Arc<Node>> {
        node.upgrade().filter(|node| node.leave.is_here())
    }

    /// Lets it leave the cache if there are no more than `references`. Whether it does.
    pub(crate) fn try_leave(node: &Arc<Node>, references: usize) -> bool {
        node.leave.try_leave(|| Arc::strong_count(node) == references)
    }

    /// It leaves the cache.
    pub(crate) fn depart(&self, departed: &mut Departed) {
        self.leave.leave();
        let is_changed = self.dirty_tid.load(Ordering::Acquire) != 0;
        self.unsynced.depart(is_changed, departed);
    }

    /// What a sync of the inode waits for.
    pub(crate) fn unsynced(&self) -> &Unsynced {
        &self.unsynced
    }

    pub(crate) fn file_state(&self) -> &FileSlot {
        &self.file
    }

    pub(crate) fn life(&self) -> &Life {
        &self.life
    }

    pub(crate) fn ino(&self) -> Ino {
        self.ino
    }

    /// The current version. Later changes do not show in it.
    pub(crate) fn data(&self) -> Arc<InodeData> {
        Arc::clone(&self.data.read())
    }

    /// Looks at the current version without keeping it, so that the next change need not copy.
    pub(crate) fn with<R>(&self, look: impl FnOnce(&InodeData) -> R) -> R {
        look(&self.data.read())
    }

    /// [`with`](Self::with), unless somebody changes it at this moment.
    pub(crate) fn try_with<R>(&self, look: impl FnOnce(&InodeData) -> R) -> Option<R> {
        self.data.try_read().map(|data| look(&data))
    }

    /// Changes the inode. Only `Txn::update` calls this, after putting the node on the dirty list.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut InodeData) -> R) -> R {
        let mut data = self.data.write();
        let data = Arc::make_mut(&mut data);
        let result = change(data);
        // Nobody else stores while `data` is locked.
        let kept = self.gist.load(Ordering::Relaxed) & MAY_HAVE_CAPABILITY;
        self.gist.store(Gist::pack(data) | kept, Ordering::Release);
        result
    }

    /// Somebody who holds the content lock exclusively has looked, or sets the attribute.
    pub(crate) fn set_may_have_capability(&self, may: bool) {
        let _data = self.data.read();
        match may {
            true => self.gist.fetch_or(MAY_HAVE_CAPABILITY, Ordering::AcqRel),
            false => self.gist.fetch_and(!MAY_HAVE_CAPABILITY, Ordering::AcqRel),
        };
    }

    /// What each write looks at, of the current version.
    pub(crate) fn gist(&self) -> Gist {
        Gist::unpack(self.gist.load(Ordering::Acquire))
    }

    /// Whether the node is a regular file.
    pub(crate) fn is_regular(&self) -> bool {
        FileKind::from_mode(self.gist().mode) == Some(FileKind::Regular)
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.ino)
    }
}
