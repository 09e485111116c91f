//! Changes reach the device: as one transaction of the image's own journal, or in an order that a check
//! sets right.
//!
//! # Invariants
//!
//! - C1. What nothing refers to yet is durable before the changes that refer to it.
//! - C2. With a journal, either all changes of a step are on the device after recovery, or none.
//! - C3. Without a journal, or with changes that do not fit into it, the superblock says that a check is
//!   needed from before the first change until after the last; its numbers change last when the file
//!   system grows, and first when it becomes smaller.
//! - C4. A step that [`Step::hides`] the superblock is done with the second write to it: in between, no
//!   program takes the superblock for one, and its copies are those of before the step.
//! - C5. The log is empty after each step: no copy in it is ever older than its block.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use extant_base::{FsBlock, Ino, sabotage};
use extant_block::{BlockDevice, DeviceError, SharedDevice};
use extant_format::extent::ExtentState;
use extant_format::features::{Compat, Feature, Incompat, State};
use extant_format::jbd2::{JournalIncompat, JournalSuperblock};
use extant_format::superblock::{SUPERBLOCK_OFFSET, Superblock};
use extant_jbd2::{
    AbortReason, Client, EncodeError, EncodeSink, Image as BlockImage, Journal, JournalBlock,
    JournalOptions, JournalRun, LogStore, MappedJournal, Tid,
};

use crate::blocks::Blocks;
use crate::draft::Draft;
use crate::error::{ChangeError, Result};
use crate::image::Image;

/// The client of the journal: blocks are complete when they are claimed.
struct Quiet;

impl Client for Quiet {
    fn encode(
        &self,
        _tid: Tid,
        _sink: &mut EncodeSink<'_>,
    ) -> std::result::Result<(), EncodeError> {
        Ok(())
    }

    fn committed(&self, _tid: Tid) {}

    fn aborted(&self, _why: &AbortReason) {}
}

struct Bytes(Box<[u8]>);

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// A block of a transaction.
struct Changed {
    number: FsBlock,
    image: BlockImage,
    claimed: AtomicU32,
}

impl JournalBlock for Changed {
    fn number(&self) -> FsBlock {
        self.number
    }

    fn image(&self) -> BlockImage {
        Arc::clone(&self.image)
    }

    fn claimed(&self) -> &AtomicU32 {
        &self.claimed
    }
}

/// Keeps the causes of an error of the journal, which say what the device met.
fn journal_error(error: impl std::error::Error + 'static) -> ChangeError {
    let mut text = error.to_string();
    let mut is_full = false;
    let mut cause = error.source();
    while let Some(next) = cause {
        let said = next.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        is_full |= next.downcast_ref::<DeviceError>().is_some_and(DeviceError::is_full)
            || next
                .downcast_ref::<std::io::Error>()
                .is_some_and(|error| error.kind() == std::io::ErrorKind::StorageFull);
        cause = next.source();
    }
    if is_full { ChangeError::JournalFull(text) } else { ChangeError::Journal(text) }
}

/// Bytes of one write at most, or one block.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// A change that leads from a file system in order to one in order.
#[derive(Debug)]
pub struct Step {
    /// Blocks that the file system before the step does not look at, or in which it sees nothing new
    /// whichever sectors of them are written; durable before anything else is written.
    pub quiet: Blocks,
    /// Blocks that switch over.
    pub switch: Blocks,
    /// The superblock afterwards.
    pub sb: Superblock,
    /// Copies of superblock and descriptors, written last.
    pub backups: Vec<(u64, Vec<u8>)>,
    /// The journal of the file system before the step may carry it.
    pub may_journal: bool,
    /// Without a journal: the new superblock is written before the other blocks, and not after them.
    pub new_first: bool,
    /// Superblock and descriptors have no meaning without each other, so that nobody may look at the one of
    /// before with the others of after: the superblock is hidden meanwhile. These are its copies, and those
    /// of descriptors, of before the step, which are written first. None at all: the only group keeps a
    /// copy of its descriptor behind it.
    pub hides: Option<Vec<(u64, Vec<u8>)>>,
}

/// Where changes go.
pub struct Committer {
    device: SharedDevice,
    /// Where the log lies; `None`: no journal in the image.
    log: Option<Vec<JournalRun>>,
    /// The superblock as it is on the device, without marks.
    stored: Superblock,
}

impl Committer {
    /// For the image, whose log is looked for.
    ///
    /// # Errors
    ///
    /// [`ChangeError`].
    pub fn of(image: &Image) -> Result<Committer> {
        let mut committer =
            Committer { device: Arc::clone(&image.device), log: None, stored: image.sb.clone() };
        committer.find_log(image)?;
        Ok(committer)
    }

    /// Looks where the journal is.
    pub fn find_log(&mut self, image: &Image) -> Result {
        let sb = &image.sb;
        self.log = None;
        if !sb.features.has_compat(Compat::HAS_JOURNAL) || sb.journal_inode == Ino(0) {
            return Ok(());
        }
        let map = image.read_map(&image.load(sb.journal_inode)?)?;
        let written = map.extents.iter().filter(|extent| extent.state == ExtentState::Written);
        let runs = written.map(|extent| JournalRun {
            journal_start: extent.file_start.0,
            device_start: extent.device_start,
            len: extent.len.0,
        });
        self.log = Some(runs.collect());
        Ok(())
    }

    fn store(&self, device: &SharedDevice, runs: Vec<JournalRun>) -> Result<LogStore> {
        let log = MappedJournal::new(Arc::clone(device), self.stored.block_size, runs);
        LogStore::internal(Arc::new(log)).map_err(journal_error)
    }

    fn journal(&self, home: &SharedDevice, store: LogStore) -> Result<Arc<Journal>> {
        let mut features = JournalIncompat::empty();
        if self.stored.features.has_incompat(Incompat::SIXTY_FOUR_BIT) {
            features |= JournalIncompat::BLOCKS_64BIT;
        }
        if self.stored.features.metadata_csum() {
            features |= JournalIncompat::CSUM_V3;
        }
        let options =
            JournalOptions { pinned_blocks_max: 1 << 20, features, ..JournalOptions::default() };
        Journal::open(store, Arc::clone(home), Arc::new(Quiet), options).map_err(journal_error)
    }

    /// Returns whether there is a journal for the changes.
    pub fn is_journaled(&self) -> bool {
        self.log.is_some()
    }

    /// How many blocks one transaction takes; `None` without a journal. Nothing is written: a log that is
    /// still to be replayed takes what an empty one takes.
    ///
    /// # Errors
    ///
    /// [`ChangeError`].
    pub fn limit(&self) -> Result<Option<u32>> {
        let Some(runs) = self.log.clone() else { return Ok(None) };
        let store = self.store(&self.device, runs.clone())?;
        if !store.superblock().is_dirty() {
            return Ok(Some(self.journal(&self.device, store)?.credits_max()));
        }
        let size = self.stored.block_size.len();
        let mut block = vec![0; size];
        JournalSuperblock { start: 0, ..store.superblock().clone() }
            .encode(&mut block)
            .map_err(journal_error)?;
        let draft = Draft::over(Arc::clone(&self.device), self.device.size_bytes(), size);
        if let Some(first) = runs.iter().find(|run| run.journal_start == 0) {
            draft.write_at(first.device_start.0 * size as u64, &block)?;
        }
        let draft: SharedDevice = Arc::new(draft);
        let store = self.store(&draft, runs)?;
        Ok(Some(self.journal(&draft, store)?.credits_max()))
    }

    /// Makes the draft of `image` true on the device.
    ///
    /// # Errors
    ///
    /// [`ChangeError`]; what was written then, C1 to C5 say.
    pub fn commit(&mut self, image: &Image) -> Result {
        let mut switch = image.draft.take()?;
        // What lies behind the end so far is referred to by the new superblock only.
        let quiet = switch.split_off(self.stored.blocks_count)?;
        // What is behind a new end is never believed again; what is in front of one is not believed yet.
        let new_first = image.sb.blocks_count < self.stored.blocks_count;
        let (sb, backups) = (image.sb.clone(), image.backups()?);
        self.apply(Step { quiet, switch, sb, backups, may_journal: true, new_first, hides: None })
    }

    /// Makes a step true on the device.
    ///
    /// # Errors
    ///
    /// [`ChangeError`]; what was written then, C1 to C5 say.
    pub fn apply(&mut self, step: Step) -> Result {
        self.write(&step.quiet)?;
        self.device.flush()?;
        if let Some(copies) = step.hides {
            self.switch_hidden(&step.sb, step.switch, copies)?;
        } else if !step.switch.is_empty() {
            self.switch(&step.sb, step.switch, step.may_journal, step.new_first)?;
        }
        self.stored = step.sb;
        self.write_copies(step.backups)?;
        Ok(self.device.flush()?)
    }

    /// Writes copies that are not as they should be, as far as the device goes.
    fn write_copies(&self, copies: Vec<(u64, Vec<u8>)>) -> Result {
        for (offset, bytes) in copies {
            let mut old = vec![0; bytes.len()];
            if offset + bytes.len() as u64 <= self.device.size_bytes() {
                self.device.read_at(offset, &mut old)?;
                if old != bytes {
                    self.device.write_at(offset, &bytes)?;
                }
            }
        }
        Ok(())
    }

    /// Switches over while no program takes the superblock for one (C4).
    fn switch_hidden(
        &self,
        new: &Superblock,
        mut changed: Blocks,
        copies: Vec<(u64, Vec<u8>)>,
    ) -> Result {
        let size = self.stored.block_size.len();
        let home = SUPERBLOCK_OFFSET / size as u64;
        let table = u64::from(self.stored.first_data_block) + 1;
        let spare = copies.is_empty().then(|| self.spare_descriptor(table)).transpose()?;
        if !sabotage("change.commit.copies-as-they-are") {
            self.write_copies(copies)?;
        }
        self.device.flush()?;
        if !sabotage("change.commit.not-hidden") {
            self.device.write_at(SUPERBLOCK_OFFSET, &self.stored.encode_in_change())?;
            self.device.flush()?;
        }
        changed.remove(home);
        let mut cleaned = None;
        if let (Some(spare), Some(block)) = (&spare, changed.get(table)?) {
            let mut kept = block.clone();
            kept[spare.len()..2 * spare.len()].copy_from_slice(spare);
            changed.insert(table, &kept)?;
            cleaned = Some(block);
        }
        self.write(&changed)?;
        self.device.flush()?;
        self.unmark(new)?;
        match cleaned {
            Some(block) => Ok(self.device.write_at(table * size as u64, &block)?),
            None => Ok(()),
        }
    }

    /// Puts a copy of the only descriptor behind it, and returns it.
    fn spare_descriptor(&self, table: u64) -> Result<Vec<u8>> {
        let size = usize::from(self.stored.desc_size).max(32);
        // Both within one sector, so that they change together.
        if self.stored.group_count != 1 || 2 * size > 512 {
            return Err(ChangeError::damaged("there is no copy of the descriptors"));
        }
        let at = table * u64::from(self.stored.block_size.bytes());
        let mut bytes = vec![0; 2 * size];
        self.device.read_at(at, &mut bytes[..size])?;
        bytes.copy_within(..size, size);
        self.device.write_at(at, &bytes)?;
        bytes.truncate(size);
        Ok(bytes)
    }

    fn switch(
        &self,
        new: &Superblock,
        mut changed: Blocks,
        may_journal: bool,
        new_first: bool,
    ) -> Result {
        let home = SUPERBLOCK_OFFSET / u64::from(self.stored.block_size.bytes());
        if changed.len() == 1 && changed.contains(home) {
            return self.unmark(new);
        }
        let journal = match self.log.clone() {
            Some(runs) if may_journal => {
                let store = self.store(&self.device, runs)?;
                Some(self.journal(&self.device, store)?)
            }
            _ => None,
        };
        let fits = journal.filter(|journal| changed.len() <= u64::from(journal.credits_max()));
        let Some(journal) = fits else {
            self.mark(if new_first { new } else { &self.stored })?;
            changed.remove(home);
            self.write(&changed)?;
            self.device.flush()?;
            return self.unmark(new);
        };
        // The copy in the log says that it must be replayed, as the one on the device does from here on.
        let mut sb = new.clone();
        sb.features.insert(Feature::RECOVER);
        let size = self.stored.block_size.len();
        let at = SUPERBLOCK_OFFSET as usize;
        let mut whole = vec![0; size];
        self.device.read_at(home * size as u64, &mut whole)?;
        whole[at % size..at % size + 1024].copy_from_slice(&sb.encode());
        changed.insert(home, &whole)?;
        // All of them are at hand before the first is claimed: half of a transaction must not be committed.
        let mut blocks = Vec::new();
        changed.each(size, |number, bytes| {
            let image: BlockImage = Arc::new(Bytes(bytes.into()));
            let claimed = AtomicU32::new(0);
            blocks.push(Arc::new(Changed { number: FsBlock(number), image, claimed }));
            Result::Ok(())
        })?;
        self.recover_flag(&self.stored, true)?;
        let count = u32::try_from(blocks.len()).unwrap_or(u32::MAX);
        let mut handle = journal.start(count).map_err(journal_error)?;
        for block in &blocks {
            handle.claim(block).map_err(journal_error)?;
        }
        drop(handle);
        journal.close().map_err(journal_error)?;
        self.recover_flag(new, false)
    }

    /// Writes the superblock with or without the mark that the journal must be replayed.
    fn recover_flag(&self, sb: &Superblock, on: bool) -> Result {
        let mut sb = sb.clone();
        sb.features.set(Feature::RECOVER, on);
        self.device.write_at(SUPERBLOCK_OFFSET, &sb.encode())?;
        Ok(self.device.flush()?)
    }

    /// Says that a check is needed.
    fn mark(&self, sb: &Superblock) -> Result {
        let mut sb = sb.clone();
        sb.state.remove(State::VALID);
        sb.state.insert(State::ERROR);
        if sabotage("change.commit.not-marked") {
            return Ok(());
        }
        self.device.write_at(SUPERBLOCK_OFFSET, &sb.encode())?;
        Ok(self.device.flush()?)
    }

    fn unmark(&self, sb: &Superblock) -> Result {
        self.device.write_at(SUPERBLOCK_OFFSET, &sb.encode())?;
        Ok(self.device.flush()?)
    }

    /// Writes blocks, neighbours together.
    fn write(&self, blocks: &Blocks) -> Result {
        let size = u64::from(self.stored.block_size.bytes());
        blocks
            .each(WRITE_BYTES_MAX, |start, bytes| Ok(self.device.write_at(start * size, bytes)?))
    }
}
