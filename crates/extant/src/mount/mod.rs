//! Opening an image: find the superblock, refuse what cannot be read, look through the journal.
//!
//! # Order
//!
//! 1. The superblock, or the backup that the caller names, decoded and checked.
//! 2. Features: an unknown incompatible one refuses by name. Unknown read-only-compatible ones do
//!    not matter to a reader.
//! 3. The journal. If it holds transactions, every later read goes through a device that shows
//!    them; nothing is written. Fast commits on top of them are consulted inode by inode.
//! 4. The superblock again, through that device: the journal may hold a later one.
//!
//! Orphans (files deleted while open, truncations cut short) are left as they are: they cost space,
//! have no name, and reading does not meet them. Linux cleans them up on the first writable mount.

mod orphans;
mod own;
mod probe;
mod session;
mod writable;
mod zones;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use extant_base::{BlockSize, FsBlock, GroupIndex, Ino};
use extant_block::{BlockDevice, FileDevice, SharedDevice};
use extant_format::features::{Compat, Features, Incompat};
use extant_format::superblock::{
    MAGIC, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock, SuperblockError,
};
use extant_jbd2::{
    ExternalJournal, JournalReadError, JournalReader, JournalRun, MappedJournal, Mutations,
    RecoveryError, RecoveryOptions, Replay, ReplayedDevice, load_superblock, recover,
};
use extant_layout::support::READABLE;

use extant_sync::{Clock, SystemClock};

use crate::error::{Fault, FsError, Result};
use crate::fs::{Fs, Mount};
use crate::map::MappingKind;
use crate::shared_cache::SharedCache;
use crate::supers::MountErrors;
use crate::volume::{DataCache, ReplaySummary, Volume, VolumeOptions};
use crate::writer::EXPIRE;
use crate::zones::GROUPS_MAX;

pub use probe::Probe;

/// How to open an image.
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
    write_back_after: Duration,
    mutations: Mutations,
    errors: Option<MountErrors>,
    quota_limits: bool,
    background: bool,
    discard: bool,
    optimize_scan: bool,
    minix_df: bool,
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
            },
            verify_checksums: true,
            read_limit: 1 << 30,
            clock: Arc::new(SystemClock),
            seed: None,
            commit_interval: Duration::from_secs(5),
            write_back_after: EXPIRE,
            mutations: Mutations::default(),
            errors: None,
            quota_limits: true,
            background: true,
            discard: false,
            optimize_scan: true,
            minix_df: false,
        }
    }
}

impl MountOptions {
    /// The defaults: read-only, primary superblock, journal looked through, checksums verified,
    /// 64 MiB of cache.
    pub fn new() -> MountOptions {
        MountOptions::default()
    }

    /// Whether the image is opened for reading only, the default. A writable mount replays the
    /// journal, deletes what a crash left without names, and must be ended with
    /// [`Fs::unmount`]; without it the next mount finds what the journal kept.
    #[must_use]
    pub fn read_only(mut self, read_only: bool) -> MountOptions {
        self.read_only = read_only;
        self
    }

    /// Uses the backup superblock in block `block`, counted in blocks of `block_size`, and the
    /// group descriptors behind it, instead of the primary ones. `mke2fs -n` lists where backups
    /// are: usually 32768 for blocks of 4 KiB, 8193 for 1 KiB.
    #[must_use]
    pub fn superblock(mut self, block: u64, block_size: BlockSize) -> MountOptions {
        self.superblock = Some((block, block_size));
        self
    }

    /// Reads the image as if it had no journal (`noload` of mount). After a crash that shows a
    /// state between two consistent ones: names without inodes, old contents, wrong counts.
    #[must_use]
    pub fn ignore_journal(mut self, ignore_journal: bool) -> MountOptions {
        self.ignore_journal = ignore_journal;
        self
    }

    /// The device that holds the journal, for an image whose journal is not inside it. No device is
    /// ever opened because an image names it.
    #[must_use]
    pub fn journal_device(mut self, device: impl BlockDevice + 'static) -> MountOptions {
        self.journal_device = Some(Arc::new(device));
        self
    }

    /// How many inodes stay in memory that nobody uses, 256 or more; a quarter of
    /// [`cache_bytes`](Self::cache_bytes) in inodes of 1 KiB unless set. Those that have handles, or something to be
    /// stored or committed, come on top. [`Fs::node_stats`] says what one takes.
    #[must_use]
    pub fn inodes_max(mut self, count: usize) -> MountOptions {
        self.inodes_max = Some(count);
        self
    }

    /// Memory for cached contents of files on a writable mount, in bytes; 256 MiB unless set. At least
    /// 2 MiB. Taken from the system as it fills; writers slow down when four fifths of it wait to be
    /// written ([`dirty_bytes`](Self::dirty_bytes)).
    #[must_use]
    pub fn data_cache_bytes(mut self, bytes: u64) -> MountOptions {
        self.data_cache.bytes = bytes;
        self
    }

    /// Caches contents of files in a cache that other mounts use as well, instead of one of its own. For writable mounts;
    /// one for reading keeps no contents. The size and the dirty limits are those of the shared one.
    #[must_use]
    pub fn cache(mut self, cache: &SharedCache) -> MountOptions {
        self.data_cache.shared = Some(cache.clone());
        self
    }

    /// The largest folio of the data cache, in bytes: a power of two from 4 KiB to 2 MiB, which is
    /// what it is unless set. Smaller ones cost speed; for tests and comparisons.
    #[must_use]
    pub fn folio_bytes_max(mut self, bytes: u64) -> MountOptions {
        self.data_cache.folio_max_log2 = bytes.clamp(1 << 12, 1 << 21).ilog2();
        self
    }

    /// How many bytes may be changed in memory before the background writes some of them, whatever their
    /// age: five eighths of the [data cache](Self::data_cache_bytes), or of
    /// [`dirty_bytes`](Self::dirty_bytes) if that is set, unless set itself.
    #[must_use]
    pub fn dirty_background_bytes(mut self, bytes: u64) -> MountOptions {
        self.data_cache.dirty_background = bytes.max(1);
        self
    }

    /// How many bytes may be changed in memory before whoever changes more writes some of them first: four
    /// fifths of the [data cache](Self::data_cache_bytes), which is the most, unless set.
    #[must_use]
    pub fn dirty_bytes(mut self, bytes: u64) -> MountOptions {
        self.data_cache.dirty_max = bytes.max(1);
        self
    }

    /// Whether a thread calls [`Fs::tick`] every second and whenever much is dirty, as it does unless
    /// this is set to false: whoever embeds the file system calls it then, or everything waits for a
    /// sync. Another thread reads ahead for sequential readers then. They end with [`Fs::unmount`] or with the last `Fs` and handle.
    #[must_use]
    pub fn background(mut self, background: bool) -> MountOptions {
        self.background = background;
        self
    }

    /// Whether blocks that were freed are discarded on the device, so that a sparse image shrinks and an
    /// SSD knows: after the commit that frees them is durable, many together, by [`Fs::tick`],
    /// [`Fs::sync`] and [`Fs::unmount`], and only what nobody has taken again by then. A device that
    /// cannot discard is asked once. [`Fs::trim`] does it for all that is free.
    #[must_use]
    pub fn discard(mut self, discard: bool) -> MountOptions {
        self.discard = discard;
        self
    }

    /// Whether a search for blocks asks an index of the groups which of them may have enough, as it does unless this is
    /// set to false; then it looks at one group after the other. See [`Fs::set_optimize_scan`].
    #[must_use]
    pub fn optimize_scan(mut self, optimize: bool) -> MountOptions {
        self.optimize_scan = optimize;
        self
    }

    /// Whether [`Statfs::blocks`](crate::Statfs::blocks) counts the file system's own tables as well (`minixdf` of mount); not
    /// unless set.
    #[must_use]
    pub fn minix_df(mut self, minix_df: bool) -> MountOptions {
        self.minix_df = minix_df;
        self
    }

    /// For tests: zeroing a range first writes back the whole file, which is what made a workload
    /// of Linux 6.12 a hundred times slower.
    #[doc(hidden)]
    #[must_use]
    pub fn flush_before_zero(mut self, flush: bool) -> MountOptions {
        self.data_cache.flush_before_zero = flush;
        self
    }

    /// For tests: writeback puts blocks into the map, and commits that, before their data is on the
    /// device.
    #[doc(hidden)]
    #[must_use]
    pub fn publish_before_data(mut self, publish: bool) -> MountOptions {
        self.data_cache.publish_before_data = publish;
        self
    }

    /// Memory for cached metadata, in bytes. Below about 256 blocks
    /// the floor of the cache counts instead.
    #[must_use]
    pub fn cache_bytes(mut self, cache_bytes: usize) -> MountOptions {
        self.cache_bytes = cache_bytes;
        self
    }

    /// Whether checksums of metadata are verified, once for each load from the device. Without,
    /// an image with damaged checksums can be read as far as its structures make sense.
    #[must_use]
    pub fn verify_checksums(mut self, verify_checksums: bool) -> MountOptions {
        self.verify_checksums = verify_checksums;
        self
    }

    /// The largest file, in bytes, that [`Fs::read`] and [`Inode::read_all`](crate::Inode::read_all) take into memory;
    /// 1 GiB unless set.
    #[must_use]
    pub fn read_limit(mut self, bytes: u64) -> MountOptions {
        self.read_limit = bytes;
        self
    }

    /// The clock for time stamps and for the age of transactions; the system's unless set.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> MountOptions {
        self.clock = clock;
        self
    }

    /// The seed of everything random: generation numbers, where directories spread. Two mounts with
    /// the same seed, clock and operations write the same image. Unset: from the operating system.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> MountOptions {
        self.seed = Some(seed);
        self
    }

    /// The longest that a change stays in memory before [`Fs::tick`] commits it; 5 seconds unless
    /// set.
    #[must_use]
    pub fn commit_interval(mut self, interval: Duration) -> MountOptions {
        self.commit_interval = interval;
        self
    }

    /// The longest that written contents stay in memory alone before [`Fs::tick`] writes them and
    /// allocates their blocks; 30 seconds unless set. A sync does not wait for it, and when much is
    /// dirty they go earlier.
    #[must_use]
    pub fn write_back_after(mut self, time: Duration) -> MountOptions {
        self.write_back_after = time;
        self
    }

    /// What happens after damage; unless set, what the superblock says.
    #[must_use]
    pub fn errors(mut self, errors: MountErrors) -> MountOptions {
        self.errors = Some(errors);
        self
    }

    /// Whether limits of quotas are enforced, where the feature is on. Usage is counted anyway.
    /// They are unless set.
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

    /// Opens the image in the file, or on the disk, at `path` of the host. A mount for reading opens it for
    /// reading; one for writing locks it against other writers.
    ///
    /// # Errors
    ///
    /// [`FsError::Open`] where the file is missing, is no file or disk, or is in use; those of
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
    pub fn open_path(&self, path: impl AsRef<Path>) -> Result<Fs> {
        let path = path.as_ref();
        match self.read_only {
            true => self.open(FileDevice::open_read_only(path)?),
            false => self.open(FileDevice::open_read_write(path)?),
        }
    }

    /// Opens the image on `device`. A mount for reading only never writes to it.
    ///
    /// # Errors
    ///
    /// - [`FsError::NotExt`], [`FsError::ExternalJournal`], [`FsError::Unsupported`],
    ///   [`FsError::JournalDeviceMissing`], [`FsError::WrongJournalDevice`].
    /// - Damage of the superblock (a backup may help) or of the journal
    ///   ([`FsError::Journal`]; [`ignore_journal`](Self::ignore_journal) may help).
    /// - [`FsError::InvalidArgument`] for a [shared cache](Self::cache) with blocks of another size, or with a size,
    ///   folios or limits given besides it.
    /// - Device errors.
    ///
    /// # Cost
    ///
    /// A few blocks, one pass over the group descriptors (8 MiB on 16 TiB), and one over the
    /// journal's transactions when it is dirty.
    pub fn open(&self, device: impl BlockDevice + 'static) -> Result<Fs> {
        self.open_shared(Arc::new(device))
    }

    /// [`open`](Self::open) of a device that others use too.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_shared(&self, device: SharedDevice) -> Result<Fs> {
        if !self.read_only {
            self.check_cache()?;
            return self.open_writable(device).inspect(|fs| fs.log_mounted("writing"));
        }
        self.open_reading(device).inspect(|fs| fs.log_mounted("reading"))
    }

    fn open_reading(&self, device: SharedDevice) -> Result<Fs> {
        let superblock = self.read_superblock(&device)?;
        check_features(&superblock.features)?;
        check_size(&device, &superblock)?;
        let plain = Fs::build(self, Arc::clone(&device), superblock, None, None);
        let Some((log, replay)) = self.look_through_journal(&plain)? else {
            plain.find_zones(false)?;
            return Ok(plain);
        };
        let summary = ReplaySummary::of(&replay);
        if replay.changes_nothing() {
            let superblock = plain.superblock().clone();
            let fs = Fs::build(self, device, superblock, None, Some(summary));
            fs.find_zones(false)?;
            return Ok(fs);
        }
        let Replay { blocks, fast_commits, .. } = replay;
        let replayed: SharedDevice = Arc::new(ReplayedDevice::new(device, log, Arc::new(blocks)));
        let superblock = self.read_superblock(&replayed)?;
        check_features(&superblock.features)?;
        check_size(&replayed, &superblock)?;
        let fs = Fs::build(self, replayed, superblock, fast_commits, Some(summary));
        fs.find_zones(false)?;
        Ok(fs)
    }

    /// Refuses a shared cache beside what only one of its own can have.
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

    /// Byte offset of the superblock in use.
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

    /// What the journal adds, if there is one and it is dirty. The reader of its blocks comes along.
    fn look_through_journal(&self, fs: &Fs) -> Result<Option<(Arc<dyn JournalReader>, Replay)>> {
        let superblock = fs.superblock();
        if self.ignore_journal || !superblock.features.has_compat(Compat::HAS_JOURNAL) {
            return Ok(None);
        }
        let needs_recovery = superblock.features.has_incompat(Incompat::RECOVER);
        let options = RecoveryOptions::new(superblock.blocks_count);
        let external = superblock.journal_inode == Ino(0);
        // A clean image need not have a readable journal to be read.
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

/// Refuses by name what reading would get wrong.
fn check_features(features: &Features) -> Result<()> {
    let unknown = features.unsupported_for_reading(&READABLE);
    if unknown.is_empty() {
        return Ok(());
    }
    Err(FsError::Unsupported { wanted: "read", features: unknown.names().join(", ").into() })
}

/// The device holds all the blocks that the superblock counts, or the image is cut short.
///
/// That alone does not refuse: what lies before the end can be read. It is only refused when not
/// even the first group's descriptors can exist.
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

/// Tells a log on a device that is cut short from one that cannot be read.
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

/// The blocks of the journal inode.
fn internal_journal(fs: &Fs) -> Result<MappedJournal> {
    let superblock = fs.superblock();
    let inode = fs.own_inode(superblock.journal_inode, "journal")?;
    let fail = |rule| FsError::corrupt("journal", inode.ino(), None, Fault::Rule(rule));
    if inode.kind() != crate::FileKind::Regular || inode.is_inline() {
        return Err(fail("its inode is not a regular file with blocks"));
    }
    let mut runs = Vec::new();
    // Each run is at least a block of the log, and the log fits the file system: bounded.
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
    pub fn open_path(path: impl AsRef<Path>) -> Result<Fs> {
        MountOptions::new().open_path(path)
    }
}

/// Opens without looking at a journal.
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
        let volume_options = VolumeOptions {
            home_group,
            verify_checksums: options.verify_checksums,
            reads_only: options.read_only,
            minix_df: options.minix_df,
            cache_bytes: options.cache_bytes,
            inodes_max: options.inodes_max,
            read_limit: options.read_limit,
            data_cache: options.data_cache.clone(),
            fast_commit,
            replay,
        };
        Fs::of(Mount::new(Volume::new(device, superblock, volume_options)))
    }
}

const _: () = assert!(MAGIC == 0xef53, "the message of FsError::NotExt spells it out");
