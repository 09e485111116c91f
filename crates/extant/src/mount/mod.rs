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

mod options;
mod orphans;
mod own;
mod probe;
mod recovered;
mod session;
mod writable;
mod zones;

use std::path::Path;
use std::sync::Arc;

use extant_base::{FsBlock, GroupIndex, Ino};
use extant_block::{BlockDevice, FileDevice, SharedDevice};
use extant_crypt::{KEYS_MAX, KeyRing};
use extant_format::features::{Compat, Feature, Features, Incompat};
use extant_format::superblock::{
    MAGIC, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock, SuperblockError,
};
use extant_jbd2::{
    ExternalJournal, JournalReadError, JournalReader, JournalRun, MappedJournal, RecoveryError,
    RecoveryOptions, Replay, ReplayedDevice, load_superblock, recover,
};
use extant_layout::support::{READABLE, WRITABLE};

use extant_sync::threads;

use crate::error::{Fault, FsError, MountError, Result};
use crate::fs::{Fs, Mount};
use crate::map::MappingKind;
use crate::volume::{DataCache, ReplaySummary, Volume, VolumeOptions};
use crate::zones::GROUPS_MAX;

pub use options::MountOptions;
pub use probe::Probe;
pub use recovered::Recovered;

impl MountOptions {
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
