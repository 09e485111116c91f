//! Opening an image: superblock, features, journal.
//!
//! # Order
//!
//! 1. The superblock, or the backup that the caller names, decoded and checked.
//! 2. Features: an unknown incompatible feature is an error that names it. Unknown
//!    read-only-compatible features do not prevent reading.
//! 3. The journal. If it holds transactions, every later read goes through a device with their
//!    blocks in place; nothing is written. Fast commits on top of them are applied to each inode as
//!    it is loaded.
//! 4. The superblock again, through that device: the journal may hold a later one.
//!
//! Orphans (files deleted while open, interrupted truncations) are left alone: they occupy space
//! but have no name, so reading does not meet them. The next writable mount cleans them up.

mod orphans;
mod own;
mod probe;
mod recovered;
mod session;
mod writable;
mod zones;

use std::fmt;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use extant_base::{BlockSize, FsBlock, GroupIndex, Ino};
use extant_block::{BlockDevice, DeviceEngine, FileDevice, SharedDevice};
use extant_crypt::{KEYS_MAX, KeyRing, KeySpec, MasterKey};
use extant_format::features::{Compat, Feature, Features, Incompat};
use extant_format::superblock::{
    MAGIC, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock, SuperblockError,
};
use extant_jbd2::{
    ExternalJournal, JournalReadError, JournalReader, JournalRun, MappedJournal, Mutations,
    RecoveryError, RecoveryOptions, Replay, ReplayedDevice, load_superblock, recover,
};
use extant_layout::support::{READABLE, WRITABLE};

use extant_sync::{Clock, SystemClock, threads};

use crate::error::{Fault, FsError, MountError, Result};
use crate::fs::{Fs, Mount};
use crate::map::MappingKind;
use crate::progress::{MountProgress, Observer};
use crate::shared_cache::SharedCache;
use crate::supers::MountErrors;
use crate::times::{AccessRule, TimeRules};
use crate::volume::{DataCache, ReplaySummary, Volume, VolumeOptions};
use crate::writer::EXPIRE;
use crate::zones::GROUPS_MAX;

pub use probe::Probe;
pub use recovered::Recovered;

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
    read_only: bool,
    superblock: Option<(u64, BlockSize)>,
    ignore_journal: bool,
    journal_device: Option<SharedDevice>,
    cache_bytes: usize,
    inodes_max: Option<usize>,
    data_cache: DataCache,
    verify_checksums: bool,
    read_limit: u64,
    clock: Arc<dyn Clock>,
    seed: Option<u64>,
    commit_interval: Duration,
    fast_commits: bool,
    passes_damage: bool,
    data_journal: Option<bool>,
    write_back_after: Duration,
    times: TimeRules,
    mutations: Mutations,
    errors: Option<MountErrors>,
    quota_limits: bool,
    background: bool,
    device_engine: Option<DeviceEngine>,
    discard: bool,
    optimize_scan: bool,
    minix_df: bool,
    observer: Observer,
    keys: Vec<(KeySpec, MasterKey)>,
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
    /// journal, deletes orphans, and must be ended with [`Fs::unmount`]; without that, the next
    /// mount replays the journal.
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

    /// Adds a master key for encrypted files and directories, as [`Fs::add_key`] does. Without it
    /// their names are shown encrypted, and their contents cannot be read.
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
    /// to be stored or committed, are not limited. [`Fs::node_stats`] reports the size of one.
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

    /// Sets whether background threads run: one that calls [`Fs::tick`] every second and whenever
    /// much is dirty, and one that reads ahead for sequential readers. Default: true. Without them
    /// the embedding program calls `tick`, or data is written only by syncs. The threads end with
    /// [`Fs::unmount`] or with the last `Fs` and handle.
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
    /// [`Fs::tick`], [`Fs::sync`] and [`Fs::unmount`], for blocks that are still free then. A
    /// device without discards is asked once. [`Fs::trim`] discards all free blocks.
    #[must_use]
    pub fn discard(mut self, discard: bool) -> MountOptions {
        self.discard = discard;
        self
    }

    /// Sets whether a search for blocks uses an index of the groups that may have enough; otherwise
    /// it looks at one group after the other. Default: true. See [`Fs::set_optimize_scan`].
    #[must_use]
    pub fn optimize_scan(mut self, optimize: bool) -> MountOptions {
        self.optimize_scan = optimize;
        self
    }

    /// Sets a function that observes the progress of opening for writing; the thread that opens
    /// calls it before and after the steps of each stage. When it returns [`ControlFlow::Break`],
    /// opening ends with [`FsError::OperationCancelled`]; the image is as a crash at that moment
    /// would leave it, and the next mount continues.
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

    /// Sets the size in bytes of the largest file that [`Fs::read`] and
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

    /// Sets the longest time that a change stays in memory before [`Fs::tick`] commits it. Default:
    /// 5 seconds.
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
    /// [`Fs::fast_commit_damage`] says what was left out. Default: no. Links and blocks may be
    /// wrong then: this is for repairs, which check everything afterwards.
    #[must_use]
    pub fn pass_fast_commit_damage(mut self, pass: bool) -> MountOptions {
        self.passes_damage = pass;
        self
    }

    /// Sets whether the contents of all regular files go through the journal with the metadata
    /// (`data=journal`), as those of files with the flag `j` (`chattr +j`) do in any case. Then each
    /// block that is written over is old or new after a crash, as part of a transaction. Default: as
    /// the superblock says (`tune2fs -o journal_data`), which is mostly no.
    ///
    /// Contents are written twice: into the log, and to their place. Direct I/O goes through the page
    /// cache. Contents that are encrypted or sealed do not go through the journal. A mount for writing
    /// fails with [`FsError::InvalidArgument`] if the file system has no journal.
    #[must_use]
    pub fn data_journal(mut self, data_journal: bool) -> MountOptions {
        self.data_journal = Some(data_journal);
        self
    }

    /// Sets the longest time that written contents stay in memory before [`Fs::tick`] writes them
    /// and allocates their blocks. Default: 30 seconds. A sync, or much dirty data, writes them
    /// earlier.
    #[must_use]
    pub fn write_back_after(mut self, time: Duration) -> MountOptions {
        self.write_back_after = time;
        self
    }

    /// Sets whether times alone are no reason to store an inode: `lazytime`. Default: false.
    ///
    /// Times of the last write and the last read of regular files, and the counter of changes, are
    /// in memory, where [`metadata`](crate::Inode::metadata) finds them, and are stored with the next other
    /// change of the inode, by [`sync`](crate::Inode::sync) of the file or the mount, at the end of the
    /// mount, after a day, and those of the oldest files when more than 16,384 wait. A crash may
    /// lose them, and nothing else.
    #[must_use]
    pub fn lazytime(mut self, lazy: bool) -> MountOptions {
        self.times.lazy = lazy;
        self
    }

    /// Sets the rule by which reading through the library updates access times: of files by every
    /// call that copies contents out of them, of directories by [`Fs::read_dir`], of symbolic links
    /// by [`Fs::read_link`]. Looking up names does not. Default: [`AccessRule::Never`]. Front ends
    /// that have rules of their own leave it so and call [`note_access`](crate::Inode::note_access).
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

    /// Opens the image in the file, or on the disk, at `path` of the host. A read-only mount opens
    /// it for reading; a writable one locks it against other writers.
    ///
    /// # Errors
    ///
    /// [`MountErrorKind::CannotOpen`](crate::MountErrorKind::CannotOpen) where the file is missing
    /// or may not be opened, `NotADevice` for a path to anything else, `InUse`; those of
    /// [`open`](Self::open).
    ///
    /// # Cost
    ///
    /// As [`open`](Self::open).
    ///
    /// ```no_run
    /// let fs = extant::MountOptions::new().read_only(false).open_path("disk.img")?;
    /// fs.write("/etc/hostname", "web1\n")?;
    /// fs.unmount()?;
    /// # Ok::<(), extant::FsError>(())
    /// ```
    pub fn open_path(&self, path: impl AsRef<Path>) -> Result<Fs, MountError> {
        let path = path.as_ref();
        let device = match self.read_only {
            true => FileDevice::open_read_only(path),
            false => FileDevice::open_read_write(path),
        };
        let device = device.and_then(|device| match self.device_engine {
            Some(engine) => device.with_engine(engine),
            None => Ok(device),
        });
        let device = device
            .map_err(|error| MountError::new(path.display().to_string(), FsError::from(error)))?;
        self.open(device)
    }

    /// Opens the image on `device`. A read-only mount never writes to it.
    ///
    /// # Errors
    ///
    /// A [`MountError`], by its [kind](crate::MountErrorKind):
    ///
    /// - `NotExt`, `ExternalJournal`, `Unsupported`, `JournalDevice`, `CutShort`, `ReadOnlyDevice`,
    ///   `InUse`.
    /// - `Damaged` (a backup of the superblock may help) and `DamagedJournal`
    ///   ([`ignore_journal`](Self::ignore_journal) may help).
    /// - `InvalidOption` for a [shared cache](Self::cache) with blocks of another size, or with a
    ///   size, folios or limits given besides it.
    /// - `DeviceFailed`.
    ///
    /// # Cost
    ///
    /// Reads of a few blocks, of all group descriptors (8 MiB on 16 TiB), and of the journal's
    /// transactions when it is dirty.
    pub fn open(&self, device: impl BlockDevice + 'static) -> Result<Fs, MountError> {
        self.open_shared(Arc::new(device))
    }

    /// Opens the image on a device that the caller shares; otherwise as [`open`](Self::open).
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open).
    pub fn open_shared(&self, device: SharedDevice) -> Result<Fs, MountError> {
        self.recover_shared(device)?.mount()
    }

    /// Does the first two steps of opening, for reading or for writing.
    fn recover_shared(&self, device: SharedDevice) -> Result<Recovered, MountError> {
        let image = device.describe();
        self.recover(device).map_err(|error| MountError::new(&*image, error))
    }

    fn recover(&self, device: SharedDevice) -> Result<Recovered> {
        if self.keys.len() > KEYS_MAX {
            return Err(FsError::InvalidArgument { what: "keys: there are too many" });
        }
        if !self.read_only {
            self.check_cache()?;
            return self.recover_for_writing(device);
        }
        self.recover_for_reading(device)
    }

    fn recover_for_reading(&self, device: SharedDevice) -> Result<Recovered> {
        let superblock = self.read_superblock(&device)?;
        check_features(&superblock.features)?;
        check_size(&device, &superblock)?;
        let options = self.clone();
        let plain = Fs::build(self, Arc::clone(&device), superblock.clone(), None, None);
        let found = self.look_through_journal(&plain)?;
        let replay = found.as_ref().map(|(_, replay)| ReplaySummary::of(replay));
        let (mut recovered, changes) = match found {
            Some((log, replay)) if !replay.changes_nothing() => {
                let Replay { blocks, fast_commits, .. } = replay;
                let device = Arc::new(ReplayedDevice::new(device, log, Arc::new(blocks)));
                (Recovered::new(options, device, superblock, fast_commits), true)
            }
            _ => (Recovered::new(options, device, superblock, None), false),
        };
        recovered.replay = replay;
        if changes {
            recovered.superblock = self.read_superblock(&recovered.device)?;
            check_features(&recovered.superblock.features)?;
            check_size(&recovered.device, &recovered.superblock)?;
        }
        Ok(recovered)
    }

    /// Fails if options of a cache of its own are combined with a shared cache.
    fn check_cache(&self) -> Result<()> {
        let DataCache { shared, bytes, folio_max_log2, dirty_background, dirty_max, .. } =
            &self.data_cache;
        let plain = MountOptions::default().data_cache;
        let is_plain = (bytes, folio_max_log2, dirty_background, dirty_max)
            == (&plain.bytes, &plain.folio_max_log2, &plain.dirty_background, &plain.dirty_max);
        match shared.is_none() || is_plain {
            true => Ok(()),
            false => Err(FsError::InvalidArgument {
                what: "cache: a shared one has its own size, folios and dirty limits; leave those of the mount unset",
            }),
        }
    }

    /// Returns the byte offset of the superblock in use.
    fn superblock_offset(&self) -> Result<u64> {
        match self.superblock {
            None | Some((0, _)) => Ok(SUPERBLOCK_OFFSET),
            Some((1, size)) if size.bytes() == 1024 => Ok(SUPERBLOCK_OFFSET),
            Some((block, size)) => size.offset_of(FsBlock(block)).ok_or(FsError::InvalidArgument {
                what: "superblock: the block lies past the end of every device",
            }),
        }
    }

    fn read_superblock(&self, device: &SharedDevice) -> Result<Superblock> {
        let offset = self.superblock_offset()?;
        let mut bytes = [0; SUPERBLOCK_BYTES];
        let end = offset.saturating_add(SUPERBLOCK_BYTES as u64);
        if end > device.size_bytes() {
            return Err(FsError::NotExt { offset, magic: None });
        }
        device.read_at(offset, &mut bytes)?;
        let decoded = if self.verify_checksums {
            Superblock::decode(&bytes)
        } else {
            Superblock::decode_unverified(&bytes)
        };
        let superblock = decoded.map_err(|error| match error {
            SuperblockError::Magic { found } => FsError::NotExt { offset, magic: Some(found) },
            SuperblockError::JournalDevice { uuid, .. } => FsError::ExternalJournal { uuid },
            SuperblockError::Checksum(error) => {
                FsError::corrupt("superblock", None, None, Fault::from(error))
            }
            other => FsError::corrupt("superblock", None, None, Fault::Decode(Box::new(other))),
        })?;
        match self.superblock {
            Some((_, size)) if size != superblock.block_size => Err(FsError::InvalidArgument {
                what: "superblock: the block size given is not the one the superblock has",
            }),
            _ => Ok(superblock),
        }
    }

    /// Reads the journal if there is one and it is dirty. Returns its contents with the reader of
    /// its blocks.
    fn look_through_journal(&self, fs: &Fs) -> Result<Option<(Arc<dyn JournalReader>, Replay)>> {
        let superblock = fs.superblock();
        if self.ignore_journal || !superblock.features.has_compat(Compat::HAS_JOURNAL) {
            return Ok(None);
        }
        let needs_recovery = superblock.features.has_incompat(Incompat::RECOVER);
        let options = RecoveryOptions::new(superblock.blocks_count);
        let external = superblock.journal_inode == Ino(0);
        // A clean image can be read without a readable journal.
        if !needs_recovery {
            return Ok(None);
        }
        if !external {
            let log: Arc<dyn JournalReader> = Arc::new(internal_journal(fs)?);
            let failed = |error| journal_error(fs, error);
            let journal = load_superblock(&log, 0).map_err(failed)?;
            let replay = recover(&log, &journal, &options).map_err(failed)?;
            return Ok(Some((log, replay)));
        }
        let wanted = superblock.journal_uuid;
        let Some(device) = &self.journal_device else {
            return Err(FsError::JournalDeviceMissing { uuid: wanted });
        };
        let journal = ExternalJournal::open(Arc::clone(device)).map_err(FsError::journal_device)?;
        if journal.uuid != wanted {
            return Err(FsError::WrongJournalDevice { wanted, found: journal.uuid });
        }
        let log: Arc<dyn JournalReader> = journal.log;
        let replay = recover(&log, &journal.superblock, &options).map_err(FsError::journal)?;
        Ok(Some((log, replay)))
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

/// Most threads that [`stage_threads`] returns.
const STAGE_THREADS_MAX: usize = 4;

/// Returns how many threads encrypt and write a batch of writeback: one for each processor, and few
/// enough that a mount is no burden to others.
fn stage_threads() -> usize {
    threads::available().min(STAGE_THREADS_MAX)
}

/// Fails, naming the features, if the image has features that reading would get wrong.
fn check_features(features: &Features) -> Result<()> {
    check_read_by(features, cfg!(feature = "casefold"))
}

/// Fails, naming the features, if the image has features that a build with or without case folding
/// would get wrong when it reads.
fn check_read_by(features: &Features, folds: bool) -> Result<()> {
    refuse("read", &features.unsupported_for_reading(&known(READABLE, folds)))
}

/// Fails, naming the features, if the image has features that writing would break.
fn check_writable(features: &Features) -> Result<()> {
    refuse("write", &features.unsupported_for_writing(&known(WRITABLE, cfg!(feature = "casefold"))))
}

/// Returns the features that this build supports, of those that extant can support.
fn known(mut all: Features, folds: bool) -> Features {
    if !folds {
        all.remove(Feature::CASEFOLD);
    }
    all
}

fn refuse(wanted: &'static str, unknown: &Features) -> Result<()> {
    match unknown.is_empty() {
        true => Ok(()),
        false => Err(FsError::Unsupported { wanted, features: unknown.names().join(", ").into() }),
    }
}

/// Checks the size of the file system against the device.
///
/// An image that is cut short is not refused for that alone: its part before the end can be read.
/// It is refused when not even the descriptors of the first group can exist.
fn check_size(device: &SharedDevice, superblock: &Superblock) -> Result<()> {
    if superblock.group_count > GROUPS_MAX {
        let features = format!("{} block groups, more than {GROUPS_MAX}", superblock.group_count);
        return Err(FsError::Unsupported { wanted: "read", features: features.into() });
    }
    let block_size = superblock.block_size;
    let first = u64::from(superblock.first_data_block);
    let needed = block_size.offset_of(FsBlock(first + 2)).unwrap_or(u64::MAX);
    if device.size_bytes() < needed {
        let rule = "the device ends before the group descriptors";
        let fault = Fault::Field { rule, value: device.size_bytes(), limit: needed };
        return Err(FsError::corrupt("superblock", None, None, fault));
    }
    Ok(())
}

/// Distinguishes a log on a truncated device from one that cannot be read.
fn journal_error(fs: &Fs, error: RecoveryError) -> FsError {
    match error {
        RecoveryError::Read(JournalReadError::Device { source, block }) => {
            match fs.volume().read_error(source) {
                FsError::Device(source) => {
                    FsError::journal(RecoveryError::Read(JournalReadError::Device {
                        source,
                        block,
                    }))
                }
                cut_short => cut_short,
            }
        }
        other => FsError::journal(other),
    }
}

/// Returns the blocks of the journal inode.
fn internal_journal(fs: &Fs) -> Result<MappedJournal> {
    let superblock = fs.superblock();
    let inode = fs.own_inode(superblock.journal_inode, "journal")?;
    let fail = |rule| FsError::corrupt("journal", inode.ino(), None, Fault::Rule(rule));
    if inode.kind() != crate::FileKind::Regular || inode.is_inline() {
        return Err(fail("its inode is not a regular file with blocks"));
    }
    let mut runs = Vec::new();
    // Each run has at least one block of the log, and the log fits the file system, so this is
    // bounded.
    let blocks = superblock.block_size.blocks_for(inode.size()).min(superblock.blocks_count);
    for run in inode.map(0..blocks) {
        let run = run?;
        let MappingKind::Mapped(device_start) = run.kind else { continue };
        let len = u32::try_from(run.len).unwrap_or(u32::MAX);
        runs.push(JournalRun { journal_start: run.file_start.0, device_start, len });
    }
    Ok(MappedJournal::new(Arc::clone(inode.volume().device()), superblock.block_size, runs))
}

/// # Opening
impl Fs {
    /// Opens the image in the file, or on the disk, at `path` of the host, for reading. [`MountOptions::open_path`]
    /// opens for writing as well.
    ///
    /// # Errors
    ///
    /// Those of [`MountOptions::open_path`].
    ///
    /// # Cost
    ///
    /// As [`MountOptions::open`].
    ///
    /// ```no_run
    /// let fs = extant::Fs::open_path("disk.img")?;
    /// println!("{}", fs.read_to_string("/etc/os-release")?);
    /// # Ok::<(), extant::FsError>(())
    /// ```
    pub fn open_path(path: impl AsRef<Path>) -> Result<Fs, MountError> {
        MountOptions::new().open_path(path)
    }
}

/// The volume is opened without its journal.
impl Fs {
    fn build(
        options: &MountOptions,
        device: SharedDevice,
        superblock: Superblock,
        fast_commit: Option<extant_jbd2::FastCommitOverlay>,
        replay: Option<ReplaySummary>,
    ) -> Fs {
        // Descriptors are taken from the same group as the superblock.
        let home_group = options
            .superblock
            .and_then(|(block, _)| superblock.group_of_block(FsBlock(block)))
            .map_or(GroupIndex(0), |(group, _)| group);
        let mut keys = KeyRing::default();
        for (name, key) in &options.keys {
            // There is room for all: `recover` has counted them.
            let _ = keys.add(*name, key.clone());
        }
        let volume_options = VolumeOptions {
            keys,
            home_group,
            verify_checksums: options.verify_checksums,
            reads_only: options.read_only,
            minix_df: options.minix_df,
            cache_bytes: options.cache_bytes,
            inodes_max: options.inodes_max,
            read_limit: options.read_limit,
            data_cache: DataCache {
                stage_threads: if options.background { stage_threads() } else { 1 },
                ..options.data_cache.clone()
            },
            fast_commit,
            replay,
        };
        Fs::of(Mount::new(Volume::new(device, superblock, volume_options)))
    }
}

const _: () = assert!(MAGIC == 0xef53, "the message of FsError::NotExt spells it out");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_the_tables_of_unicode_refuses_directories_that_fold_case() {
        let image = Features::NONE.with(Feature::EXTENTS).with(Feature::CASEFOLD);
        assert!(check_read_by(&image, true).is_ok());
        let error = check_read_by(&image, false).unwrap_err();
        assert!(
            matches!(&error, FsError::Unsupported { wanted: "read", features } if &**features == "casefold"),
            "{error}"
        );
        assert!(check_read_by(&Features::NONE.with(Feature::EXTENTS), false).is_ok());
    }
}
