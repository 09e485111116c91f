//! One inode in memory: the only copy, its locks, and who holds it.
//!
//! # Place
//!
//! Below: `inode` decodes the stored record into an [`InodeData`]. Above: the name space changes
//! nodes through `Txn::update`; handles ([`Inode`](crate::Inode)) keep them in existence.
//!
//! # Invariants
//!
//! - D1. There is one node for an inode number, as long as anybody holds it.
//! - D2. `data` is the truth. Its stored form is made when the transaction that changed it locks.
//! - D3. A node is deleted (its inode freed) only without links and without handles, and by one
//!   thread: the one that moved `handles` from 0 to [`DEAD`].

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use extant_base::Ino;
use extant_format::inode::InodeFlags;
use extant_sync::{Rank, RwLock};

use crate::file::FileSlot;
use crate::inode::InodeData;

/// In `handles`: being deleted, or not in use. No handle can be made.
const DEAD: u32 = u32::MAX;

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
    /// Handles that callers hold, or [`DEAD`].
    handles: AtomicU32,
    /// The last transaction whose dirty list has this node; 0 for none.
    pub(crate) dirty_tid: AtomicU32,
    /// The last transaction that changed the inode or its entries: what a sync waits for.
    pub(crate) changed_tid: AtomicU32,
    /// In a directory: where the last entry went, so that the next is not searched from the start.
    pub(crate) insert_hint: AtomicU64,
    /// Made without a name: it may get its first one.
    pub(crate) nameless: AtomicBool,
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
        Node {
            gist,
            ino,
            content: RwLock::with_order(Rank::InodeContent, order, ()),
            data: RwLock::with_order(Rank::InodeMap, order, Arc::new(data)),
            handles: AtomicU32::new(0),
            dirty_tid: AtomicU32::new(0),
            changed_tid: AtomicU32::new(0),
            insert_hint: AtomicU64::new(0),
            nameless: AtomicBool::new(false),
            file: FileSlot::new(),
        }
    }

    pub(crate) fn file_state(&self) -> &FileSlot {
        &self.file
    }

    /// Whether the inode is deleted or being deleted.
    pub(crate) fn is_dead(&self) -> bool {
        self.handles.load(Ordering::Acquire) == DEAD
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

    /// The number came to a new inode: new contents, and alive again.
    pub(crate) fn revive(&self, data: InodeData) {
        if let Some(file) = self.file.get() {
            file.revive(data.record.size);
        }
        self.gist.store(Gist::pack_new(&data), Ordering::Release);
        *self.data.write() = Arc::new(data);
        self.insert_hint.store(0, Ordering::Relaxed);
        self.nameless.store(false, Ordering::Relaxed);
        self.handles.store(0, Ordering::Release);
    }

    /// One more handle; `false` when the inode is being deleted.
    pub(crate) fn hold(&self) -> bool {
        let more = |held| if held >= DEAD - 1 { None } else { Some(held + 1) };
        self.handles.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).is_ok()
    }

    /// One handle less; `true` when it was the last.
    pub(crate) fn let_go(&self) -> bool {
        self.handles.fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Takes the right to delete the inode (D3).
    pub(crate) fn take_for_deletion(&self) -> bool {
        self.handles.compare_exchange(0, DEAD, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Gives that right back, when deleting failed.
    pub(crate) fn keep(&self) {
        self.handles.store(0, Ordering::Release);
    }

    /// Whether no caller holds a handle.
    pub(crate) fn is_unheld(&self) -> bool {
        self.handles.load(Ordering::Acquire) == 0
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Node({})", self.ino)
    }
}
