//! What a mount is asked for.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use extant_base::BlockSize;
use extant_block::{BlockDevice, DeviceEngine, SharedDevice};
use extant_crypt::{KeySpec, MasterKey};
use extant_jbd2::Mutations;
use extant_sync::{Clock, SystemClock};

use crate::progress::{MountProgress, Observer};
use crate::shared_cache::SharedCache;
use crate::supers::MountErrors;
use crate::times::{AccessRule, TimeRules};
use crate::volume::DataCache;
use crate::writer::EXPIRE;

/// Options for opening an image.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = extant_block::FileDevice::open_read_only("disk.img")?;
/// let fs = extant::MountOptions::new().read_only(true).open(device)?;
/// for entry in fs.read_dir("/etc")? {
///     println!("{}", String::from_utf8_lossy(entry?.name()));
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MountOptions {
    pub(super) read_only: bool,
    pub(super) superblock: Option<(u64, BlockSize)>,
    pub(super) ignore_journal: bool,
    pub(super) journal_device: Option<SharedDevice>,
    pub(super) cache_bytes: usize,
    pub(super) inodes_max: Option<usize>,
    pub(super) data_cache: DataCache,
    pub(super) verify_checksums: bool,
    pub(super) read_limit: u64,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) seed: Option<u64>,
    pub(super) commit_interval: Duration,
    pub(super) fast_commits: bool,
    pub(super) passes_damage: bool,
    pub(super) data_journal: Option<bool>,
    pub(super) write_back_after: Duration,
    pub(super) times: TimeRules,
    pub(super) mutations: Mutations,
    pub(super) errors: Option<MountErrors>,
    pub(super) quota_limits: bool,
    pub(super) background: bool,
    pub(super) device_engine: Option<DeviceEngine>,
    pub(super) discard: bool,
    pub(super) optimize_scan: bool,
    pub(super) minix_df: bool,
    pub(super) observer: Observer,
    pub(super) keys: Vec<(KeySpec, MasterKey)>,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            read_only: true,
            superblock: None,
            ignore_journal: false,
            journal_device: None,
            cache_bytes: 64 << 20,
            inodes_max: None,
            data_cache: DataCache {
                shared: None,
                bytes: 256 << 20,
                folio_max_log2: 21,
                dirty_background: 0,
                dirty_max: 0,
                flush_before_zero: false,
                publish_before_data: false,
                stage_threads: 1,
            },
            verify_checksums: true,
            read_limit: 1 << 30,
            clock: Arc::new(SystemClock),
            seed: None,
            commit_interval: Duration::from_secs(5),
            fast_commits: true,
            passes_damage: false,
            data_journal: None,
            write_back_after: EXPIRE,
            times: TimeRules { access: AccessRule::Never, lazy: false },
            mutations: Mutations::default(),
            errors: None,
            quota_limits: true,
            background: true,
            device_engine: None,
            discard: false,
            optimize_scan: true,
            minix_df: false,
            observer: Observer::default(),
            keys: Vec::new(),
        }
    }
}

impl MountOptions {
    /// Returns the defaults: read-only, primary superblock, journal applied, checksums verified, 64
    /// MiB of metadata cache.
    pub fn new() -> MountOptions {
        MountOptions::default()
    }

    /// Sets whether the image is opened read-only, the default. A writable mount replays the
    /// journal, deletes orphans, and must be ended with [`Fs::unmount`](crate::Fs::unmount);
    /// without that, the next mount replays the journal.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> MountOptions {
        self.read_only = read_only;
        self
    }

    /// Uses the backup superblock in block `block`, counted in blocks of `block_size`, and the
    /// group descriptors behind it, instead of the primary ones. `mke2fs -n` lists the places of
    /// backups: usually 32768 for blocks of 4 KiB, 8193 for 1 KiB.
    #[must_use]
    pub fn superblock(mut self, block: u64, block_size: BlockSize) -> MountOptions {
        self.superblock = Some((block, block_size));
        self
    }

    /// Sets whether the image is read as if it had no journal (`noload` of mount). After a crash
    /// that shows a state between two consistent ones: names without inodes, old contents, wrong
    /// counts.
    #[must_use]
    pub fn ignore_journal(mut self, ignore_journal: bool) -> MountOptions {
        self.ignore_journal = ignore_journal;
        self
    }

    /// Sets the device that holds the journal, for an image with an external journal. extant never
    /// opens a device because an image names it.
    #[must_use]
    pub fn journal_device(mut self, device: impl BlockDevice + 'static) -> MountOptions {
        self.journal_device = Some(Arc::new(device));
        self
    }

    /// Adds a master key for encrypted files and directories, as
    /// [`Fs::add_key`](crate::Fs::add_key) does. Without it their names are shown encrypted, and
    /// their contents cannot be read.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let key = extant::MasterKey::from_file(&std::fs::read("key")?)?;
    /// let fs = extant::MountOptions::new().key(key).open_path("disk.img")?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn key(self, key: MasterKey) -> MountOptions {
        let named = self.key_named(key.usual_descriptor(), key.clone());
        named.key_named(key.identifier(), key)
    }

    /// Adds a master key under a name that the caller chooses, for policies of version 1.
    #[must_use]
    pub fn key_named(mut self, name: KeySpec, key: MasterKey) -> MountOptions {
        self.keys.push((name, key));
        self
    }

    /// Sets how many unused inodes stay in memory, 256 or more. Default: a quarter of
    /// [`cache_bytes`](Self::cache_bytes), at 1 KiB per inode. Inodes that have handles, or changes
    /// to be stored or committed, are not limited. [`Fs::node_stats`](crate::Fs::node_stats)
    /// reports the size of one.
    #[must_use]
    pub fn inodes_max(mut self, count: usize) -> MountOptions {
        self.inodes_max = Some(count);
        self
    }

    /// Sets the memory for cached file contents on a writable mount, in bytes, at least 2 MiB.
    /// Default: 256 MiB. It is taken from the system as the cache fills; writers slow down when
    /// four fifths of it are dirty ([`dirty_bytes`](Self::dirty_bytes)).
    #[must_use]
    pub fn data_cache_bytes(mut self, bytes: u64) -> MountOptions {
        self.data_cache.bytes = bytes;
        self
    }

    /// Caches file contents in a cache shared with other mounts, instead of one of its own. Only
    /// writable mounts cache contents. The size and the dirty limits are those of the shared cache.
    #[must_use]
    pub fn cache(mut self, cache: &SharedCache) -> MountOptions {
        self.data_cache.shared = Some(cache.clone());
        self
    }

    /// Sets the largest folio of the data cache, in bytes: a power of two from 4 KiB to 2 MiB, the
    /// default. Smaller folios are slower; the option is for tests and comparisons.
    #[must_use]
    pub fn folio_bytes_max(mut self, bytes: u64) -> MountOptions {
        self.data_cache.folio_max_log2 = bytes.clamp(1 << 12, 1 << 21).ilog2();
        self
    }

    /// Sets the number of dirty bytes above which background writeback starts, whatever their age.
    /// Default: five eighths of the [data cache](Self::data_cache_bytes), or of
    /// [`dirty_bytes`](Self::dirty_bytes) if that is set.
    #[must_use]
    pub fn dirty_background_bytes(mut self, bytes: u64) -> MountOptions {
        self.data_cache.dirty_background = bytes.max(1);
        self
    }

    /// Sets the number of dirty bytes above which writers must write back some data before they
    /// continue. Default and maximum: four fifths of the [data cache](Self::data_cache_bytes).
    #[must_use]
    pub fn dirty_bytes(mut self, bytes: u64) -> MountOptions {
        self.data_cache.dirty_max = bytes.max(1);
        self
    }

    /// Sets whether background threads run: one that calls [`Fs::tick`](crate::Fs::tick) every
    /// second and whenever much is dirty, and one that reads ahead for sequential readers. Default:
    /// true. Without them the embedding program calls `tick`, or data is written only by syncs. The
    /// threads end with [`Fs::unmount`](crate::Fs::unmount) or with the last `Fs` and handle.
    ///
    /// With them, up to four threads also encrypt and write the batches of writeback of encrypted
    /// files, for as long as one batch takes.
    #[must_use]
    pub fn background(mut self, background: bool) -> MountOptions {
        self.background = background;
        self
    }

    /// Sets how [`open_path`](Self::open_path) reads and writes the file or disk. Default:
    /// [`DeviceEngine::Auto`], io_uring where that pays and the system gives it. For a device that
    /// is passed to [`open`](Self::open) it is set there
    /// ([`FileDevice::with_engine`](crate::FileDevice::with_engine)).
    #[must_use]
    pub fn device_engine(mut self, engine: DeviceEngine) -> MountOptions {
        self.device_engine = Some(engine);
        self
    }

    /// Sets whether freed blocks are discarded on the device, so that a sparse image shrinks and an
    /// SSD can reuse them. This happens after the commit that frees them, in batches, by
    /// [`Fs::tick`](crate::Fs::tick), [`Fs::sync`](crate::Fs::sync) and
    /// [`Fs::unmount`](crate::Fs::unmount), for blocks that are still free then. A device without
    /// discards is asked once. [`Fs::trim`](crate::Fs::trim) discards all free blocks.
    #[must_use]
    pub fn discard(mut self, discard: bool) -> MountOptions {
        self.discard = discard;
        self
    }

    /// Sets whether a search for blocks uses an index of the groups that may have enough; otherwise
    /// it looks at one group after the other. Default: true. See
    /// [`Fs::set_optimize_scan`](crate::Fs::set_optimize_scan).
    #[must_use]
    pub fn optimize_scan(mut self, optimize: bool) -> MountOptions {
        self.optimize_scan = optimize;
        self
    }

    /// Sets a function that observes the progress of opening for writing; the thread that opens
    /// calls it before and after the steps of each stage. When it returns [`ControlFlow::Break`],
    /// opening ends with [`FsError::OperationCancelled`](crate::FsError::OperationCancelled); the
    /// image is as a crash at that moment would leave it, and the next mount continues.
    ///
    /// ```no_run
    /// use std::ops::ControlFlow;
    /// let options = extant::MountOptions::new().read_only(false).progress(|at| {
    ///     eprintln!("{:?}: {} of {}", at.stage, at.done, at.total);
    ///     ControlFlow::Continue(())
    /// });
    /// # let _ = options;
    /// ```
    #[must_use]
    pub fn progress(
        mut self,
        observe: impl Fn(MountProgress) -> ControlFlow<()> + Send + Sync + 'static,
    ) -> MountOptions {
        self.observer = Observer::new(observe);
        self
    }

    /// Sets whether [`Statfs::blocks`](crate::Statfs::blocks) counts the file system's own metadata
    /// as well (`minixdf` of mount). Default: false.
    #[must_use]
    pub fn minix_df(mut self, minix_df: bool) -> MountOptions {
        self.minix_df = minix_df;
        self
    }

    /// Makes zeroing a range write back the whole file first, for tests: in Linux 6.12 this made a
    /// workload a hundred times slower.
    #[doc(hidden)]
    #[must_use]
    pub fn flush_before_zero(mut self, flush: bool) -> MountOptions {
        self.data_cache.flush_before_zero = flush;
        self
    }

    /// Makes writeback publish blocks, and commit that, before their data is on the device, for
    /// tests: this breaks crash safety.
    #[doc(hidden)]
    #[must_use]
    pub fn publish_before_data(mut self, publish: bool) -> MountOptions {
        self.data_cache.publish_before_data = publish;
        self
    }

    /// Sets the memory for cached metadata, in bytes. Default: 64 MiB. The cache keeps about 256
    /// blocks at least.
    #[must_use]
    pub fn cache_bytes(mut self, cache_bytes: usize) -> MountOptions {
        self.cache_bytes = cache_bytes;
        self
    }

    /// Sets whether checksums of metadata are verified, once for each load from the device.
    /// Default: true. Without verification, an image with wrong checksums can be read as far as its
    /// structures are consistent.
    #[must_use]
    pub fn verify_checksums(mut self, verify_checksums: bool) -> MountOptions {
        self.verify_checksums = verify_checksums;
        self
    }

    /// Sets the size in bytes of the largest file that [`Fs::read`](crate::Fs::read) and
    /// [`Inode::read_all`](crate::Inode::read_all) take into memory. Default: 1 GiB.
    #[must_use]
    pub fn read_limit(mut self, bytes: u64) -> MountOptions {
        self.read_limit = bytes;
        self
    }

    /// Sets the clock for time stamps and for the age of transactions. Default: the system's.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> MountOptions {
        self.clock = clock;
        self
    }

    /// Sets the seed of all random choices: generation numbers, where directories spread. Two
    /// mounts with the same seed, clock and operations write the same image. Default: from the
    /// operating system.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> MountOptions {
        self.seed = Some(seed);
        self
    }

    /// Sets the longest time that a change stays in memory before [`Fs::tick`](crate::Fs::tick)
    /// commits it. Default: 5 seconds.
    #[must_use]
    pub fn commit_interval(mut self, interval: Duration) -> MountOptions {
        self.commit_interval = interval;
        self
    }

    /// Sets whether syncs make fast commits on a file system with the feature `fast_commit`: a few
    /// records instead of whole blocks of metadata. Default: yes, as in Linux. Fast commits in the
    /// journal are applied in any case.
    #[must_use]
    pub fn fast_commits(mut self, fast_commits: bool) -> MountOptions {
        self.fast_commits = fast_commits;
        self
    }

    /// Sets whether a writable mount leaves out what it cannot apply of the fast commits in the
    /// journal, because it or the file that it is about is damaged, instead of refusing the image.
    /// [`Fs::fast_commit_damage`](crate::Fs::fast_commit_damage) says what was left out. Default:
    /// no. Links and blocks may be wrong then: this is for repairs, which check everything
    /// afterwards.
    #[must_use]
    pub fn pass_fast_commit_damage(mut self, pass: bool) -> MountOptions {
        self.passes_damage = pass;
        self
    }

    /// Sets whether the contents of all regular files go through the journal with the metadata
    /// (`data=journal`), as those of files with the flag `j` (`chattr +j`) do in any case. Then
    /// each block that is written over is old or new after a crash, as part of a transaction.
    /// Default: as the superblock says (`tune2fs -o journal_data`), which is mostly no.
    ///
    /// Contents are written twice: into the log, and to their place. Direct I/O goes through the
    /// page cache. Contents that are encrypted or sealed do not go through the journal. A mount for
    /// writing fails with [`FsError::InvalidArgument`](crate::FsError::InvalidArgument) if the file
    /// system has no journal.
    #[must_use]
    pub fn data_journal(mut self, data_journal: bool) -> MountOptions {
        self.data_journal = Some(data_journal);
        self
    }

    /// Sets the longest time that written contents stay in memory before
    /// [`Fs::tick`](crate::Fs::tick) writes them and allocates their blocks. Default: 30 seconds. A
    /// sync, or much dirty data, writes them earlier.
    #[must_use]
    pub fn write_back_after(mut self, time: Duration) -> MountOptions {
        self.write_back_after = time;
        self
    }

    /// Sets whether times alone are no reason to store an inode: `lazytime`. Default: false.
    ///
    /// Times of the last write and the last read of regular files, and the counter of changes, are
    /// in memory, where [`metadata`](crate::Inode::metadata) finds them, and are stored with the
    /// next other change of the inode, by [`sync`](crate::Inode::sync) of the file or the mount, at
    /// the end of the mount, after a day, and those of the oldest files when more than 16,384 wait.
    /// A crash may lose them, and nothing else.
    #[must_use]
    pub fn lazytime(mut self, lazy: bool) -> MountOptions {
        self.times.lazy = lazy;
        self
    }

    /// Sets the rule by which reading through the library updates access times: of files by every
    /// call that copies contents out of them, of directories by
    /// [`Fs::read_dir`](crate::Fs::read_dir), of symbolic links by
    /// [`Fs::read_link`](crate::Fs::read_link). Looking up names does not. Default:
    /// [`AccessRule::Never`]. Front ends that have rules of their own leave it so and call
    /// [`note_access`](crate::Inode::note_access).
    #[must_use]
    pub fn access_times(mut self, rule: AccessRule) -> MountOptions {
        self.times.access = rule;
        self
    }

    /// Sets the reaction to damage. Default: that of the superblock.
    #[must_use]
    pub fn errors(mut self, errors: MountErrors) -> MountOptions {
        self.errors = Some(errors);
        self
    }

    /// Sets whether limits of quotas are enforced, if the file system has quotas. Usage is counted
    /// in any case. Default: true.
    #[must_use]
    pub fn quota_limits(mut self, enforced: bool) -> MountOptions {
        self.quota_limits = enforced;
        self
    }

    /// Leaves out a step that crash safety needs, to find out whether the tests notice.
    #[doc(hidden)]
    #[must_use]
    pub fn mutations(mut self, mutations: Mutations) -> MountOptions {
        self.mutations = mutations;
        self
    }
}

impl fmt::Debug for MountOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MountOptions")
            .field("read_only", &self.read_only)
            .field("superblock", &self.superblock)
            .field("ignore_journal", &self.ignore_journal)
            .field("journal_device", &self.journal_device.as_ref().map(|d| d.describe()))
            .field("cache_bytes", &self.cache_bytes)
            .field("verify_checksums", &self.verify_checksums)
            .field("read_limit", &self.read_limit)
            .finish()
    }
}
