//! The objects of handles.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use extant::ring::Ring;
use extant::{DirectFile, File, Frozen, Fs, Inode, ReadDir, SyncMode};
use extant_sync::{Mutex, Rank};

use crate::error::{EXTANT_E_BAD_HANDLE, EXTANT_E_POISONED, Error, Result};
use crate::fork;

/// What is said in a child.
pub(crate) const IN_FORK: &str =
    "its file system was mounted for writing by the process of which this one is a fork";

/// The object of a handle.
#[derive(Clone)]
pub(crate) enum Object {
    Fs(Arc<FsObject>),
    File(Arc<FileObject>),
    Dir(Arc<DirObject>),
    Ring(Arc<RingObject>),
    #[cfg(test)]
    Nothing,
}

/// A mounted file system.
pub(crate) struct FsObject {
    pub(crate) fs: Fs,
    /// Unmounting has begun: what is open is of no use any more.
    ended: AtomicBool,
    /// A panic has happened in it.
    poisoned: AtomicBool,
    /// Open files, directories and rings.
    open: AtomicUsize,
    /// Held while the mount is frozen.
    frozen: Mutex<Option<Frozen>>,
    /// Of a mount for writing, the process that it belongs to.
    home: Option<u32>,
}

impl Object {
    /// Keeps what it stands for from ending, if it belongs to the process of which this one is a fork: threads that are not
    /// here may hold its locks, and nothing may be stored.
    pub(crate) fn leave_to_parent(&self) {
        let fs = match self {
            Object::Fs(fs) => fs,
            Object::File(file) => file.opened.fs(),
            Object::Dir(dir) => dir.opened.fs(),
            Object::Ring(ring) => ring.opened.fs(),
            #[cfg(test)]
            Object::Nothing => return,
        };
        if !fs.is_at_home() {
            std::mem::forget(self.clone());
        }
    }
}

impl FsObject {
    pub(crate) fn new(fs: Fs, writes: bool) -> Arc<FsObject> {
        let (ended, poisoned) = (AtomicBool::new(false), AtomicBool::new(false));
        let frozen = Mutex::new(Rank::Leaf, None);
        let home = writes.then(fork::generation);
        Arc::new(FsObject { fs, ended, poisoned, open: AtomicUsize::new(0), frozen, home })
    }

    /// Freezes the mount until [`thaw`](Self::thaw).
    pub(crate) fn freeze(&self) -> Result<()> {
        let frozen = self.fs.freeze()?;
        // A read-only mount can be frozen as often as one likes.
        let _before = self.frozen.lock().replace(frozen);
        Ok(())
    }

    /// Thaws the mount. Returns whether it was frozen.
    pub(crate) fn thaw(&self) -> bool {
        let frozen = self.frozen.lock().take();
        // Dropped without the lock: it wakes what waits.
        frozen.is_some()
    }

    /// Returns false in a fork of the process that mounted it for writing.
    pub(crate) fn is_at_home(&self) -> bool {
        self.home.is_none_or(|home| home == fork::generation())
    }

    pub(crate) fn check(&self) -> Result<()> {
        if !self.is_at_home() {
            return Err(Error::new(EXTANT_E_BAD_HANDLE, IN_FORK));
        }
        if self.poisoned.load(Ordering::Acquire) {
            let message =
                "a fault in extant happened to this file system; unmount it, and mount it again";
            return Err(Error::new(EXTANT_E_POISONED, message));
        }
        if self.ended.load(Ordering::Acquire) {
            return Err(Error::new(EXTANT_E_BAD_HANDLE, "its file system was unmounted"));
        }
        Ok(())
    }

    pub(crate) fn poison(&self) {
        self.poisoned.store(true, Ordering::Release);
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Acquire)
    }

    /// Ends the mount for all handles, unless `force` is false and something is open: then returns
    /// the number of open handles.
    pub(crate) fn end(&self, force: bool) -> std::result::Result<(), usize> {
        self.ended.store(true, Ordering::SeqCst);
        let open = self.open.load(Ordering::SeqCst);
        if open > 0 && !force {
            self.ended.store(false, Ordering::SeqCst);
            return Err(open);
        }
        Ok(())
    }
}

/// One of what is open in a file system.
pub(crate) struct Opened(Arc<FsObject>);

impl Opened {
    pub(crate) fn new(fs: &Arc<FsObject>) -> Result<Opened> {
        fs.open.fetch_add(1, Ordering::SeqCst);
        let opened = Opened(Arc::clone(fs));
        // Whoever unmounts has seen the count, or is seen here.
        opened.0.check().map(|()| opened)
    }

    pub(crate) fn fs(&self) -> &Arc<FsObject> {
        &self.0
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::SeqCst);
    }
}

/// An open file.
pub(crate) struct FileObject {
    pub(crate) file: File,
    pub(crate) direct: Option<DirectFile>,
    pub(crate) reads: bool,
    pub(crate) writes: bool,
    pub(crate) appends: bool,
    pub(crate) sync: SyncMode,
    pub(crate) position: AtomicU64,
    pub(crate) opened: Opened,
}

/// An open directory, and the listing that may continue.
pub(crate) struct DirObject {
    pub(crate) inode: Inode,
    /// The position of the last listing, and the listing itself.
    pub(crate) listing: Mutex<Option<(u64, ReadDir)>>,
    pub(crate) opened: Opened,
}

/// The buffer of a read done by a worker. The address is the caller's, who promised that the memory
/// stays valid.
#[derive(Clone, Copy)]
pub(crate) struct Destination {
    pub(crate) address: usize,
    pub(crate) len: usize,
}

/// A submitted operation: what the caller calls it, and where what is read goes.
#[derive(Clone, Copy)]
pub(crate) struct Waiting {
    pub(crate) tag: u64,
    pub(crate) to: Option<Destination>,
}

/// A ring, and what is under way on it. The ring ends first: what is under way holds files.
pub(crate) struct RingObject {
    pub(crate) ring: Ring,
    pub(crate) waiting: Mutex<HashMap<u64, Waiting>>,
    pub(crate) next: AtomicU64,
    pub(crate) opened: Opened,
}

impl RingObject {
    pub(crate) fn new(ring: Ring, opened: Opened) -> RingObject {
        let waiting = Mutex::new(Rank::Leaf, HashMap::new());
        RingObject { ring, waiting, next: AtomicU64::new(0), opened }
    }
}
