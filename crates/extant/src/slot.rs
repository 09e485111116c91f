//! A metadata block in memory: its current version, and older ones in use.
//!
//! # Place
//!
//! Below: the device. Above: everything reads metadata through [`Volume::read_block`], and changes
//! it through `Txn::edit`. The journal takes images through [`JournalBlock`].
//!
//! # Invariants
//!
//! - S1. A version that is referenced elsewhere is never changed: a change copies it first.
//! - S2. A block has one slot, while it is referenced.
//! - S3. A block that the journal still needs (changed in the running transaction, or committed and
//!   not yet written home) is held by the journal, and so stays in the cache.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use extant_base::{FsBlock, Ino};
use extant_format::htree::NodePlace;
use extant_format::{dir, extent, htree, orphan, xattr};
use extant_jbd2::{Image, JournalBlock};
use extant_sync::{Mutex, MutexGuard, Rank};

use crate::error::{Fault, Result};

/// A version of a metadata block, shared by its readers.
#[derive(Debug)]
pub(crate) struct MetaBlock {
    number: FsBlock,
    bytes: Box<[u8]>,
    /// The inode for which the block's checksum was verified; 0 for none. The checksum depends on
    /// the owner, so a block that two inodes claim is verified for each.
    verified_for: AtomicU32,
    /// Whether the block was decoded as a whole and is a valid index of a directory. Changes of
    /// this crate keep it valid.
    index_checked: AtomicBool,
}

impl MetaBlock {
    pub(crate) fn new(number: FsBlock, bytes: Box<[u8]>) -> MetaBlock {
        let index_checked = AtomicBool::new(false);
        MetaBlock { number, bytes, verified_for: AtomicU32::new(0), index_checked }
    }

    /// Runs `check`, which decodes an index of a directory with all its records, unless it
    /// succeeded before.
    pub(crate) fn check_index_once<E>(
        &self,
        check: impl FnOnce(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        if !self.index_checked.load(Ordering::Relaxed) {
            check(&self.bytes)?;
            self.index_checked.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns whether this mount has changed the block since it was read, so that it was verified
    /// before.
    pub(crate) fn is_ours(&self) -> bool {
        self.verified_for.load(Ordering::Relaxed) == OURS
    }

    pub(crate) fn number(&self) -> FsBlock {
        self.number
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Runs `verify` unless it succeeded before for the same owner, or this mount has changed the
    /// block since.
    pub(crate) fn verify_once(
        &self,
        owner: Ino,
        verify: impl FnOnce(&[u8]) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        // Losing a race costs one more verification.
        let verified = self.verified_for.load(Ordering::Relaxed);
        if verified != owner.0 && verified != OURS {
            verify(&self.bytes)?;
            self.verified_for.store(owner.0, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Value of `verified_for` for a block changed by this mount, whose checksum is computed when the
/// transaction locks.
const OURS: u32 = u32::MAX;

impl Clone for MetaBlock {
    fn clone(&self) -> MetaBlock {
        let verified_for = AtomicU32::new(self.verified_for.load(Ordering::Relaxed));
        let index_checked = AtomicBool::new(self.index_checked.load(Ordering::Relaxed));
        MetaBlock { number: self.number, bytes: self.bytes.clone(), verified_for, index_checked }
    }
}

impl AsRef<[u8]> for MetaBlock {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

/// The checksum that a changed block gets when its transaction locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BlockKind {
    /// No checksum of its own: block pointers, values, link targets; tables of inodes, bitmaps and
    /// descriptors, whose checksums are computed where they are encoded.
    Plain,
    /// A block of directory entries with a tail.
    DirLeaf { seed: u32 },
    /// The root or an inner node of a directory's index.
    DirIndex { seed: u32, place: NodePlace },
    /// A node of an extent tree.
    ExtentNode { seed: u32 },
    /// A block of extended attributes; `seed` is that of the file system.
    Xattr { seed: u32 },
    /// A block of the orphan file.
    Orphan { seed: u32 },
}

impl BlockKind {
    fn seal(self, number: FsBlock, bytes: &mut [u8]) {
        match self {
            BlockKind::Plain => {}
            BlockKind::DirLeaf { seed } => dir::seal(seed, bytes),
            BlockKind::DirIndex { seed, place } => htree::seal(seed, bytes, place),
            BlockKind::ExtentNode { seed } => extent::seal(seed, bytes),
            BlockKind::Xattr { seed } => xattr::seal(seed, number, bytes),
            BlockKind::Orphan { seed } => orphan::seal(seed, number, bytes),
        }
    }
}

/// The place of one metadata block in the cache.
pub(crate) struct Slot {
    number: FsBlock,
    state: Mutex<State>,
    /// The last transaction that claimed the block, for the journal.
    claimed: AtomicU32,
    /// Whether device space was allocated for the block.
    has_room: AtomicBool,
}

struct State {
    /// The current version; `None` until loaded, and after a load that failed.
    current: Option<Arc<MetaBlock>>,
    kind: BlockKind,
    /// Whether it changed since its checksum was computed.
    unsealed: bool,
}

impl Slot {
    /// Creates a slot without contents.
    pub(crate) fn empty(number: FsBlock) -> Slot {
        let state = State { current: None, kind: BlockKind::Plain, unsealed: false };
        Slot {
            number,
            state: Mutex::with_order(Rank::MetadataBuffer, number.0, state),
            claimed: AtomicU32::new(0),
            has_room: AtomicBool::new(false),
        }
    }

    /// Calls `allocate` unless it has succeeded before: from then on the block can be written, even
    /// if the disk under the device is full.
    pub(crate) fn allocate_once(&self, allocate: impl FnOnce() -> Result<()>) -> Result<()> {
        if !self.has_room.load(Ordering::Relaxed) {
            allocate()?;
            self.has_room.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Records that device space was allocated for the block.
    pub(crate) fn note_room(&self) {
        self.has_room.store(true, Ordering::Relaxed);
    }

    pub(crate) fn number(&self) -> FsBlock {
        self.number
    }

    /// Returns the current version, loaded by `load` if there is none. Concurrent callers wait for
    /// one load.
    pub(crate) fn get(&self, load: impl FnOnce() -> Result<Box<[u8]>>) -> Result<Arc<MetaBlock>> {
        let mut state = self.state.lock();
        if let Some(current) = &state.current {
            return Ok(Arc::clone(current));
        }
        let loaded = Arc::new(MetaBlock::new(self.number, load()?));
        state.current = Some(Arc::clone(&loaded));
        Ok(loaded)
    }

    /// Returns the current version like [`get`](Self::get), or `None` if another thread is loading or
    /// changing it.
    pub(crate) fn try_get(
        &self,
        load: impl FnOnce() -> Result<Box<[u8]>>,
    ) -> Result<Option<Arc<MetaBlock>>> {
        let Some(mut state) = self.state.try_lock() else { return Ok(None) };
        if let Some(current) = &state.current {
            return Ok(Some(Arc::clone(current)));
        }
        let loaded = Arc::new(MetaBlock::new(self.number, load()?));
        state.current = Some(Arc::clone(&loaded));
        Ok(Some(loaded))
    }

    /// Returns whether the block has to be read, and no thread is reading it.
    pub(crate) fn is_unread(&self) -> bool {
        self.state.try_lock().is_some_and(|state| state.current.is_none())
    }

    /// Stores what was read of the block while the caller held the slot, unless it has a version
    /// since, or another thread is loading it.
    pub(crate) fn fill(&self, bytes: &[u8]) {
        if let Some(mut state) = self.state.try_lock()
            && state.current.is_none()
        {
            state.current = Some(Arc::new(MetaBlock::new(self.number, bytes.into())));
        }
    }

    /// Returns whether the block has been read and can be written, and no thread is loading or
    /// changing it.
    pub(crate) fn is_at_hand(&self) -> bool {
        self.has_room.load(Ordering::Relaxed)
            && self.state.try_lock().is_some_and(|state| state.current.is_some())
    }

    /// Returns the current version, if there is one and no thread is loading or changing it.
    pub(crate) fn get_now(&self) -> Option<Arc<MetaBlock>> {
        self.state.try_lock()?.current.clone()
    }

    /// Changes the block in place, or a copy of it if the version is referenced elsewhere (S1).
    /// `load` as in [`get`](Self::get). Only a `Txn` that has claimed the slot calls this.
    pub(crate) fn change<R>(
        &self,
        kind: BlockKind,
        load: impl FnOnce() -> Result<Box<[u8]>>,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        let mut state = self.state.lock();
        if state.current.is_none() {
            state.current = Some(Arc::new(MetaBlock::new(self.number, load()?)));
        }
        Ok(self.change_loaded(&mut state, kind, change))
    }

    fn change_loaded<R>(
        &self,
        state: &mut MutexGuard<'_, State>,
        kind: BlockKind,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        state.kind = kind;
        state.unsealed = kind != BlockKind::Plain;
        let empty = || Arc::new(MetaBlock::new(self.number, Box::default()));
        let block = Arc::make_mut(state.current.get_or_insert_with(empty));
        *block.verified_for.get_mut() = OURS;
        change(&mut block.bytes)
    }

    /// Gives the block new contents, whatever it held: `bytes` zeros, then `fill`.
    pub(crate) fn replace<R>(
        &self,
        kind: BlockKind,
        bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> R,
    ) -> R {
        let mut state = self.state.lock();
        state.current = Some(Arc::new(MetaBlock::new(self.number, vec![0; bytes].into())));
        self.change_loaded(&mut state, kind, fill)
    }

    /// Gives the block zeros like [`replace`](Self::replace), unless another thread is loading or
    /// changing it. Returns whether it did.
    pub(crate) fn try_blank(&self, kind: BlockKind, bytes: usize) -> bool {
        let Some(mut state) = self.state.try_lock() else { return false };
        state.current = Some(Arc::new(MetaBlock::new(self.number, vec![0; bytes].into())));
        self.change_loaded(&mut state, kind, |_| ());
        true
    }
}

impl JournalBlock for Slot {
    fn number(&self) -> FsBlock {
        self.number
    }

    fn image(&self) -> Image {
        let mut state = self.state.lock();
        let State { current, kind, unsealed } = &mut *state;
        let empty = || Arc::new(MetaBlock::new(self.number, Box::default()));
        let current = current.get_or_insert_with(empty);
        if std::mem::take(unsealed) {
            kind.seal(self.number, &mut Arc::make_mut(current).bytes);
        }
        Arc::clone(current) as Image
    }

    fn claimed(&self) -> &AtomicU32 {
        &self.claimed
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Slot({})", self.number)
    }
}
