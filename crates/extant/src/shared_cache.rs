//! A page cache shared by several mounts.
//!
//! # Place
//!
//! Below: `extant-iomap`, whose cache may hold files of several mounts. Above: `volume`, which uses
//! a shared cache if the options have one, and code that needs room while other mounts have the
//! dirty data.
//!
//! # Rules
//!
//! - S1. A thread that waits for room writes back dirty data of its own mount first, then of
//!   others: no operation fails because other mounts fill the cache. Errors of such writeback are
//!   reported to those who sync the files.
//! - S2. No thread waits here for a frozen mount.

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use extant_base::BlockSize;
use extant_iomap::{Cache, CacheOptions, CacheStats};
use extant_sync::{Mutex, Rank};

use crate::error::{FsError, Result};

/// A mount that shares a cache.
pub(crate) trait Sharer: Send + Sync {
    /// Writes back some dirty data to make room. Returns false when there is none, or it cannot be
    /// written now.
    fn relieve_others(&self) -> bool;
}

/// A cache of file contents for any number of writable mounts, with one budget and one set of dirty
/// limits: [`MountOptions::cache`](crate::MountOptions::cache). Clones are the same cache.
///
/// A mount without dirty data makes room by writing back data of other mounts, so when everything
/// is dirty, one slow device slows all mounts down. [`Fs::io_stats`](crate::Fs::io_stats) and
/// [`Fs::drop_cached`](crate::Fs::drop_cached) of each mount concern the whole cache.
///
/// # Example
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use extant::{MountOptions, SharedCache};
/// let cache = SharedCache::new(512 << 20);
/// let options = MountOptions::new().read_only(false).cache(&cache);
/// let (one, two) = (options.open_path("one.img")?, options.open_path("two.img")?);
/// # let _ = (one, two);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SharedCache {
    shared: Arc<Shared>,
}

struct Shared {
    bytes: u64,
    dirty_background: u64,
    dirty_max: u64,
    /// The cache, made for the first mount, with the size of its blocks.
    cache: OnceLock<(BlockSize, Arc<Cache>)>,
    sharers: Mutex<Vec<Weak<dyn Sharer>>>,
}

impl SharedCache {
    /// Creates a cache of `bytes`, at least 2 MiB. Memory is taken from the system as it fills.
    pub fn new(bytes: u64) -> SharedCache {
        SharedCache::with_limits(bytes, 0, 0)
    }

    /// Creates a cache with dirty limits of its own, in bytes, 0 for the default of
    /// [`new`](Self::new): above `background` the background thread of each mount writes back,
    /// above `most` writers do
    /// ([`MountOptions::dirty_background_bytes`](crate::MountOptions::dirty_background_bytes),
    /// [`dirty_bytes`](crate::MountOptions::dirty_bytes)).
    pub fn with_limits(bytes: u64, background: u64, most: u64) -> SharedCache {
        let shared = Shared {
            bytes,
            dirty_background: background,
            dirty_max: most,
            cache: OnceLock::new(),
            sharers: Mutex::new(Rank::Leaf, Vec::new()),
        };
        SharedCache { shared: Arc::new(shared) }
    }

    /// Returns the counters of the cache; zeros before the first mount.
    pub fn stats(&self) -> CacheStats {
        self.shared.cache.get().map_or_else(CacheStats::default, |(_, cache)| cache.stats())
    }

    /// Returns the number of mounts that share the cache now.
    pub fn mounts(&self) -> usize {
        self.shared.sharers.lock().iter().filter(|sharer| sharer.strong_count() > 0).count()
    }

    /// Returns the cache, for blocks of this size.
    ///
    /// # Errors
    ///
    /// [`FsError::InvalidArgument`] when it was made for blocks of another size; no memory.
    pub(crate) fn cache(&self, block_size: BlockSize) -> Result<Arc<Cache>> {
        let shared = &*self.shared;
        let (of, cache) = match shared.cache.get() {
            Some(made) => made,
            None => {
                let mut options = CacheOptions::new(shared.bytes, block_size.log2());
                options.dirty_background = shared.dirty_background;
                options.dirty_max = shared.dirty_max;
                let made = (block_size, Cache::new(options)?);
                shared.cache.get_or_init(|| made)
            }
        };
        match *of == block_size {
            true => Ok(Arc::clone(cache)),
            false => Err(FsError::InvalidArgument {
                what: "cache: it is shared by file systems with blocks of another size; give this one a cache of its own",
            }),
        }
    }

    /// Adds a mount to the users of the cache.
    pub(crate) fn join(&self, sharer: Weak<dyn Sharer>) {
        let mut sharers = self.shared.sharers.lock();
        sharers.retain(|sharer| sharer.strong_count() > 0);
        sharers.push(sharer);
    }

    /// Makes a mount other than `own` write something back (S1). Returns false when none could.
    pub(crate) fn relieve(&self, own: &Weak<dyn Sharer>) -> bool {
        // The lock is not held over writeback, which may take long.
        let others: Vec<_> = self.shared.sharers.lock().clone();
        let mut others = others.iter().filter(|other| !other.ptr_eq(own));
        others.any(|other| other.upgrade().is_some_and(|other| other.relieve_others()))
    }
}

impl fmt::Debug for SharedCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedCache({} bytes, {} mounts)", self.shared.bytes, self.mounts())
    }
}
