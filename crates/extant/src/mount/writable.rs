//! Opening for writing: multi-mount protection, replay of the journal onto the device, deletion of
//! orphans.
//!
//! # Order
//!
//! 1. Refuse images with features that writing would break.
//! 2. Multi-mount protection: wait and see whether another host is active.
//! 3. Replay the journal onto the device, apply its fast commits, mark it clean.
//! 4. The superblock again: the journal may have held a later one.
//! 5. Mark the file system as mounted and as needing recovery, durably (J11), before the first
//!    transaction.
//! 6. Orphans.

use std::ops::ControlFlow;
use std::sync::Arc;

use extant_base::{Ino, Prng};
use extant_block::{BlockDevice, SharedDevice};
use extant_format::features::{Compat, Incompat, JournalMode};
use extant_format::jbd2::JournalIncompat;
use extant_format::superblock::Superblock;
use extant_jbd2::{
    ExternalJournal, FastCommitOverlay, Journal, JournalOptions, LogStore, RecoveryError,
    RecoveryOptions, Replay, recover_to_device,
};

use super::recovered::Writing;
use super::{
    MountOptions, Recovered, check_features, check_size, check_writable, internal_journal,
    journal_error, own,
};
use crate::alloc::Allocator;
use crate::error::{Fault, FsError, Result};
use crate::fs::{Fs, MountClient};
use crate::logged::{Logged, Which};
use crate::mmp::{MmpGuard, MmpNames, Wait};
use crate::progress::{MountStage, Observer};
use crate::supers::SuperState;
use crate::volume::ReplaySummary;
use crate::writer::{Writer, WriterParts, fast_commits_are_possible};

/// Smallest number of blocks that the journal may pin in memory, whatever the cache: a quarter of
/// them is the limit of one change, and a rename in deep directories claims nearly 200.
const PINNED_BLOCKS_MIN: usize = 1024;

/// Returns a random seed from the operating system.
fn os_seed() -> Result<u64> {
    let mut bytes = [0; 8];
    let what = "the operating system gives no random numbers: set a seed";
    extant_sync::os_random(&mut bytes).map_err(|_| FsError::InvalidArgument { what })?;
    Ok(u64::from_le_bytes(bytes))
}

/// Reason why a journal was not replayed.
enum Refused {
    Recovery(RecoveryError),
    Check(FsError),
}

impl From<RecoveryError> for Refused {
    fn from(error: RecoveryError) -> Refused {
        Refused::Recovery(error)
    }
}

impl From<FsError> for Refused {
    fn from(error: FsError) -> Refused {
        Refused::Check(error)
    }
}

/// The journal after its replay.
struct RecoveredJournal {
    store: LogStore,
    /// Summary of the replay, if there was one.
    summary: Option<ReplaySummary>,
    /// Fast commits that are still to be applied.
    fast_commits: Option<FastCommitOverlay>,
}

impl MountOptions {
    pub(super) fn recover_for_writing(&self, device: SharedDevice) -> Result<Recovered> {
        if device.is_read_only() {
            return Err(FsError::ReadOnly);
        }
        if self.superblock.is_some() {
            let what = "superblock: a backup is for reading; repair the image to write it";
            return Err(FsError::InvalidArgument { what });
        }
        if self.ignore_journal {
            let what = "ignore_journal: only for reading; writing would make both states wrong";
            return Err(FsError::InvalidArgument { what });
        }
        let superblock = self.read_superblock(&device)?;
        self.check_for_writing(&device, &superblock)?;
        if let Some(cache) = &self.data_cache.shared {
            cache.cache(superblock.block_size)?;
        }
        let seed = match self.seed {
            Some(seed) => seed,
            None => os_seed()?,
        };
        let names = MmpNames {
            node: extant_sync::host_name(),
            device: device.describe().as_bytes().to_vec(),
        };
        let random = &mut Prng::new(seed);
        let wait = Wait { clock: &self.clock, observer: &self.observer };
        let mmp = MmpGuard::acquire(&device, &superblock, &wait, random, &names)?;
        // An earlier holder may have changed the superblock during the wait.
        let superblock = if mmp.is_some() { self.read_superblock(&device)? } else { superblock };
        let journal = self.recover_journal(&device, &superblock)?;
        let (log, replay, fast_commits) = match journal {
            Some(journal) => (Some(journal.store), journal.summary, journal.fast_commits),
            None => (None, None, None),
        };
        let superblock = self.read_superblock(&device)?;
        self.check_for_writing(&device, &superblock)?;
        let mut recovered = Recovered::new(self.clone(), device, superblock, fast_commits);
        recovered.replay = replay;
        recovered.writing = Some(Writing { log, seed, mmp });
        Ok(recovered)
    }

    pub(super) fn check_for_writing(
        &self,
        device: &SharedDevice,
        superblock: &Superblock,
    ) -> Result<()> {
        check_features(&superblock.features)?;
        check_writable(&superblock.features)?;
        check_size(device, superblock)?;
        let features = &superblock.features;
        let contradiction = if features.has_compat(Compat::HAS_JOURNAL)
            && superblock.journal_inode != Ino(0)
            && superblock.journal_device != 0
        {
            Some("it names a journal inode and a journal device")
        } else if superblock.bigalloc() && !features.has_incompat(Incompat::EXTENTS) {
            Some("it has the feature bigalloc without extent")
        } else {
            None
        };
        if let Some(rule) = contradiction {
            return Err(FsError::corrupt("superblock", None, None, Fault::Rule(rule)));
        }
        let block_size = superblock.block_size;
        let end = block_size.offset_of(extant_base::FsBlock(superblock.blocks_count));
        let (file_system_bytes, device_bytes) = (end.unwrap_or(u64::MAX), device.size_bytes());
        if device_bytes < file_system_bytes {
            return Err(FsError::CutShort { file_system_bytes, device_bytes });
        }
        Ok(())
    }

    /// Replays the log onto the device and marks it clean, except for fast commits; `None` when
    /// there is none.
    fn recover_journal(
        &self,
        device: &SharedDevice,
        superblock: &Superblock,
    ) -> Result<Option<RecoveredJournal>> {
        if !superblock.features.has_compat(Compat::HAS_JOURNAL) {
            return Ok(None);
        }
        let plain = Fs::build(self, Arc::clone(device), superblock.clone(), None, None);
        let store = if superblock.journal_inode == Ino(0) {
            let wanted = superblock.journal_uuid;
            let Some(device) = &self.journal_device else {
                return Err(FsError::JournalDeviceMissing { uuid: wanted });
            };
            if device.is_read_only() {
                return Err(FsError::ReadOnly);
            }
            let journal =
                ExternalJournal::open(Arc::clone(device)).map_err(FsError::journal_device)?;
            if journal.uuid != wanted {
                return Err(FsError::WrongJournalDevice { wanted, found: journal.uuid });
            }
            LogStore::external(journal)
        } else {
            let log = Arc::new(internal_journal(&plain)?);
            LogStore::internal(log).map_err(|error| journal_error(&plain, error))?
        };
        // The log's blocks are allocated before anything is written, so that commits cannot run out
        // of space.
        store.allocate().map_err(FsError::from)?;
        let options = RecoveryOptions::new(superblock.blocks_count);
        let check = |replayed, replay: &Replay| self.check_replayed(replayed, replay);
        let watch = |done, total| match self.observer.tell(MountStage::Replaying, done, total) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        };
        let recovered = recover_to_device(store, device, &options, check, &watch);
        let recovered = recovered.map_err(|refused| match refused {
            Refused::Recovery(RecoveryError::Stopped) => Observer::stopped(),
            Refused::Recovery(error) => journal_error(&plain, error),
            Refused::Check(error) => error,
        })?;
        let replay = recovered.replay();
        let summary = (!replay.changes_nothing()).then(|| ReplaySummary::of(replay));
        if replay.errno != 0 {
            self.record_journal_error(device)?;
        }
        let fast_commits = recovered.replay().fast_commits.clone();
        let store = if fast_commits.is_some() { recovered.resume() } else { recovered.finish() };
        let store = store.map_err(FsError::journal)?;
        Ok(Some(RecoveredJournal { store, summary, fast_commits }))
    }

    /// Checks that the file system can be opened for writing as the replay will leave it. This
    /// happens before anything is written, so that a damaged log does not make an image worse.
    fn check_replayed(&self, replayed: SharedDevice, replay: &Replay) -> Result<(), Refused> {
        let superblock = self.read_superblock(&replayed)?;
        self.check_for_writing(&replayed, &superblock)?;
        let fast_commits = replay.fast_commits.clone();
        let fs = Fs::build(self, replayed, superblock, fast_commits, None);
        fs.find_zones(true)?;
        fs.check_root()?;
        own::orphans(&fs)?;
        own::quotas(&fs, self.quota_limits)?;
        Ok(())
    }

    /// Records in the superblock that the journal aborted for an error during an earlier mount.
    fn record_journal_error(&self, device: &SharedDevice) -> Result<()> {
        let superblock = self.read_superblock(device)?;
        let supers = SuperState::new(Arc::clone(device), superblock, self.errors);
        supers.stopped(self.clock.now().0)
    }

    pub(super) fn start_writing(
        &self,
        fs: &Fs,
        device: &SharedDevice,
        log: Option<LogStore>,
        seed: u64,
        mmp: Option<MmpGuard>,
        is_clean: bool,
    ) -> Result<()> {
        let volume = fs.volume();
        let client = Arc::new(MountClient::default());
        client.connect(volume);
        let block_size = volume.block_size();
        let mut features = JournalIncompat::empty();
        if fs.features().has_incompat(Incompat::SIXTY_FOUR_BIT) {
            features |= JournalIncompat::BLOCKS_64BIT;
        }
        if volume.has_metadata_csum() {
            features |= JournalIncompat::CSUM_V3;
        }
        if self.fast_commits && fast_commits_are_possible(volume) {
            features |= JournalIncompat::FAST_COMMIT;
        }
        let options = JournalOptions {
            commit_interval: self.commit_interval,
            // The journal pins at most as much memory as the cache may use.
            pinned_blocks_max: (self.cache_bytes / 2 / block_size.len()).max(PINNED_BLOCKS_MIN),
            clock: Arc::clone(&self.clock),
            features,
            mutations: self.mutations,
            ..JournalOptions::default()
        };
        let home = Arc::clone(device);
        let which = match (&log, self.data_journal) {
            (None, Some(true)) => {
                let what = "data_journal: the file system has no journal";
                return Err(FsError::InvalidArgument { what });
            }
            (None, _) => Which::None,
            (Some(_), Some(true)) => Which::All,
            (Some(_), Some(false)) => Which::Flagged,
            (Some(_), None) => match fs.superblock().default_mount_opts.journal_mode() {
                Some(JournalMode::Data) => Which::All,
                _ => Which::Flagged,
            },
        };
        let logged = Logged::new(block_size, which);
        let journal = match log {
            Some(log) => {
                Journal::open(log, home, client, options).map_err(FsError::journal_open)?
            }
            None => Journal::without_log(home, block_size, client, options),
        };
        let supers = SuperState::new(Arc::clone(device), fs.superblock().clone(), self.errors);
        let orphans = own::orphans(fs)?;
        let quotas = own::quotas(fs, self.quota_limits)?;
        let mut alloc = Allocator::open(volume, is_clean)?;
        alloc.discard(self.discard);
        alloc.set_optimized(self.optimize_scan);
        let clock = Arc::clone(&self.clock);
        let dentries = self.cache_bytes / 8 / crate::dentry::ENTRY_COST;
        let expire = self.write_back_after;
        let times = self.times;
        let parts = WriterParts {
            expire,
            times,
            journal,
            logged,
            alloc,
            clock,
            seed,
            dentries,
            supers,
            orphans,
            quotas,
            mmp,
        };
        volume.set_writer(Writer::new(parts));
        Ok(())
    }
}
