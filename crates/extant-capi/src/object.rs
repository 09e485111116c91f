//! The objects of handles.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use extant::ring::Ring;
use extant::{DirectFile, File, Frozen, Fs, Inode, ReadDir, SyncMode};
use extant_sync::{Condvar, Mutex, Rank};

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
    /// A panic has happened in it.
    poisoned: AtomicBool,
    /// Open files, directories and rings, and [`ENDED`] once unmounting has begun: what is open is of no use then. They are
    /// one number so that an unmount that is refused was never seen by anybody.
    open: AtomicUsize,
    /// What a freeze and its thaw share.
    freeze: Mutex<Freeze>,
    /// Told when a freeze that was under way is not any more.
    freeze_done: Condvar,
    /// Of a mount for writing, the process that it belongs to.
    home: Option<u32>,
}

/// Of the number of what is open: the mount has ended.
const ENDED: usize = 1 << (usize::BITS - 1);

#[derive(Default)]
struct Freeze {
    /// A thread is about to freeze the mount.
    is_under_way: bool,
    /// Held while the mount is frozen.
    frozen: Option<Frozen>,
}

/// A freeze that is under way, until this is dropped; also by a panic.
struct Freezing<'f>(&'f FsObject);

impl Drop for Freezing<'_> {
    fn drop(&mut self) {
        self.0.freeze.lock().is_under_way = false;
        self.0.freeze_done.notify_all();
    }
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
        Arc::new(FsObject {
            fs,
            poisoned: AtomicBool::new(false),
            open: AtomicUsize::new(0),
            freeze: Mutex::new(Rank::Leaf, Freeze::default()),
            freeze_done: Condvar::new(),
            home: writes.then(fork::generation),
        })
    }

    /// Freezes the mount until [`thaw`](Self::thaw).
    pub(crate) fn freeze(&self) -> Result<()> {
        let mut freeze = self.freeze.lock();
        while freeze.is_under_way {
            self.freeze_done.wait(&mut freeze);
        }
        freeze.is_under_way = true;
        drop(freeze);
        let _under_way = Freezing(self);
        // An unmount that has begun is seen here, or waits for this one and thaws what it froze.
        self.check()?;
        let frozen = self.fs.freeze()?;
        // A read-only mount can be frozen as often as one likes.
        let _before = self.freeze.lock().frozen.replace(frozen);
        Ok(())
    }

    /// Thaws the mount. Returns whether it was frozen.
    pub(crate) fn thaw(&self) -> bool {
        let frozen = self.freeze.lock().frozen.take();
        // Dropped without the lock: it wakes what waits.
        frozen.is_some()
    }

    /// Thaws a mount that has [ended](Self::end), once nobody is about to freeze it: it stays thawed.
    pub(crate) fn thaw_for_good(&self) {
        let mut freeze = self.freeze.lock();
        while freeze.is_under_way {
            self.freeze_done.wait(&mut freeze);
        }
        drop(freeze);
        self.thaw();
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
        if self.open.load(Ordering::SeqCst) & ENDED != 0 {
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
    /// the number of open handles, and nothing has happened.
    pub(crate) fn end(&self, force: bool) -> std::result::Result<(), usize> {
        if force {
            self.open.fetch_or(ENDED, Ordering::SeqCst);
            return Ok(());
        }
        let ended = self.open.compare_exchange(0, ENDED, Ordering::SeqCst, Ordering::SeqCst);
        match ended {
            Err(open) if open != ENDED => Err(open & !ENDED),
            _ => Ok(()),
        }
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
    /// Of a write to a file that was opened for appending: its length, which is the result. That of an append is a place.
    pub(crate) appended: Option<u64>,
}

/// A ring, and what is under way on it. The ring ends first: what is under way holds files.
pub(crate) struct RingObject {
    pub(crate) ring: Ring,
    pub(crate) waiting: Mutex<HashMap<u64, Waiting>>,
    pub(crate) next: AtomicU64,
    pub(crate) opened: Opened,
    /// The last to be dropped.
    end: Ending,
}

impl RingObject {
    pub(crate) fn new(ring: Ring, opened: Opened) -> RingObject {
        let waiting = Mutex::new(Rank::Leaf, HashMap::new());
        let end = Ending(Arc::new((Mutex::new(Rank::Leaf, false), Condvar::new())));
        RingObject { ring, waiting, next: AtomicU64::new(0), opened, end }
    }

    /// Waits until nobody has the ring any more: all accepted operations are done, and no thread brings results to memory
    /// of the program. It must not be found by its handle any more.
    pub(crate) fn wait_for_end(self: Arc<RingObject>) {
        let end = Arc::clone(&self.end.0);
        // In a fork the threads that had it are not there.
        let is_at_home = self.opened.fs().is_at_home();
        drop(self);
        if is_at_home {
            let (ended, told) = &*end;
            let mut ended = ended.lock();
            while !*ended {
                told.wait(&mut ended);
            }
        }
    }
}

/// Tells that a ring has ended, in whichever thread had it last.
struct Ending(Arc<(Mutex<bool>, Condvar)>);

impl Drop for Ending {
    fn drop(&mut self) {
        *self.0.0.lock() = true;
        self.0.1.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use extant_sync::threads;

    use super::*;

    #[test]
    fn an_end_that_is_refused_is_seen_by_nobody() {
        let device = extant_block::MemoryDevice::new(8 << 20);
        extant_image::Build::empty().size(8 << 20).write_to_device(&device, true).unwrap();
        let fs = FsObject::new(extant::MountOptions::new().open(device).unwrap(), false);
        let opened = Opened::new(&fs).unwrap();
        let done = AtomicBool::new(false);
        let found = threads::workers("end", 2, |number| match number {
            0 => {
                while !done.load(Ordering::Relaxed) {
                    fs.check()?;
                }
                Ok(())
            }
            _ => {
                for _ in 0..2_000_000 {
                    assert_eq!(fs.end(false), Err(1));
                }
                done.store(true, Ordering::Relaxed);
                Ok::<(), Error>(())
            }
        });
        assert!(found.unwrap().iter().all(std::result::Result::is_ok));
        drop(opened);
        assert_eq!(fs.end(false), Ok(()));
        assert!(fs.check().is_err());
        assert!(Opened::new(&fs).is_err());
        assert_eq!(fs.end(true), Ok(()));
    }
}
