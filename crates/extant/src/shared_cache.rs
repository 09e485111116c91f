//! One page cache for several mounts.
//!
//! # Place
//!
//! Below: `extant-iomap`, whose cache does not care whose files it holds. Above: `volume`, which takes its cache from here
//! when it was told to, and whoever needs room and finds that others have what is dirty.
//!
//! # Rules
//!
//! - S1. Whoever has to wait for room writes back what is dirty of his own mount first, then of others: room that others
//!   hold is no reason to fail. What goes wrong there is said there, to who syncs those files.
//! - S2. Nobody waits here for a mount that is frozen.

use std::fmt;
use std::sync::{Arc, OnceLock, Weak};

use extant_base::BlockSize;
use extant_iomap::{Cache, CacheOptions, CacheStats};
use extant_sync::{Mutex, Rank};

use crate::error::{FsError, Result};

/// A mount that shares a cache.
pub(crate) trait Sharer: Send + Sync {
    /// Writes back something that is dirty, for room. `false` when there is nothing, or it cannot be written now.
    fn relieve_others(&self) -> bool;
}

/// A cache of file contents for any number of writable mounts, with one budget and one set of dirty limits:
/// [`MountOptions::cache`](crate::MountOptions::cache). Clones are the same cache.
///
/// A mount that has nothing of its own to write back makes room by writing what is dirty of others, so a slow device
/// slows all of them down when everything is dirty. [`Fs::io_stats`](crate::Fs::io_stats) and
/// [`Fs::drop_cached`](crate::Fs::drop_cached) of each are about all.
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
    /// Made for the first mount, with the size of its blocks.
    cache: OnceLock<(BlockSize, Arc<Cache>)>,
    sharers: Mutex<Vec<Weak<dyn Sharer>>>,
}

impl SharedCache {
    /// A cache of so many bytes, at least 2 MiB. Memory is taken from the system as it fills.
    pub fn new(bytes: u64) -> SharedCache {
        SharedCache::with_limits(bytes, 0, 0)
    }

    /// A cache with dirty limits of its own, in bytes, each 0 for what [`new`](Self::new) has: above
    /// `background` the background of each mount writes, above `most` whoever changes more does
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

    /// What it did and holds; zeros before the first mount.
    pub fn stats(&self) -> CacheStats {
        self.shared.cache.get().map_or_else(CacheStats::default, |(_, cache)| cache.stats())
    }

    /// How many mounts share it at the moment.
    pub fn mounts(&self) -> usize {
        self.shared.sharers.lock().iter().filter(|sharer| sharer.strong_count() > 0).count()
    }

    /// The cache, for blocks of this size.
    ///
    /// # Errors
    ///
    /// [`FsError::InvalidArgument`] when it has been made for blocks of another size; no memory.
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

    /// Another mount uses it.
    pub(crate) fn join(&self, sharer: Weak<dyn Sharer>) {
        let mut sharers = self.shared.sharers.lock();
        sharers.retain(|sharer| sharer.strong_count() > 0);
        sharers.push(sharer);
    }

    /// Has another mount than `own` write something back (S1). `false` when none could.
    pub(crate) fn relieve(&self, own: &Weak<dyn Sharer>) -> bool {
        // Asked without the lock: each may take long.
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
