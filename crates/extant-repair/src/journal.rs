//! The journal: brought in before anything else is looked at, and made anew when it is no journal.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use extant::{Family, MountOptions};
use extant_base::Ino;
use extant_block::SharedDevice;
use extant_check::Problem;
use extant_format::extent::ExtentState;
use extant_format::features::{Compat, Feature, State as FsState};
use extant_format::inode::{FileKind, InodeFlags};
use extant_format::jbd2::JournalSuperblock;
use extant_format::superblock::Superblock;
use extant_jbd2::{
    DamagedBlocks, FastCommitOverlay, JournalReader, JournalRun, LogStore, MappedJournal,
    RecoveryError, RecoveryOptions, Replay, ReplayedDevice, newer_at_home, recover_damaged,
    recover_to_device,
};

use extant_layout::{JOURNAL_BLOCKS_MIN, default_fast_commit_blocks, default_journal_blocks};

use crate::draft::Draft;
use crate::elsewhere::{self, is_elsewhere};
use crate::empty_log::new_superblock;
use crate::error::{Fixed, Trouble};
use crate::log_head;
use crate::state::State;
use crate::twice;
use extant_change::is_extent_node;
use extant_format::record::{self, Record};

/// Result of the replay.
#[derive(Debug, Default)]
pub(crate) struct Replayed {
    pub(crate) transactions: u32,
    /// Number of copies that were left out because of a wrong checksum.
    pub(crate) damaged: usize,
    /// Number of copies with a wrong checksum of which home has what they were.
    pub(crate) at_home: usize,
    /// By its superblock the file system had nothing in its log.
    pub(crate) is_unasked: bool,
    /// Damage that ended the log before its end.
    pub(crate) broken: Option<String>,
    pub(crate) fast_commits: u32,
    /// Fast commits that wait until the rest of the image is in order.
    pub(crate) waiting: Option<Waiting>,
    /// Number of entries among the orphans that were none, and are not there any more.
    pub(crate) no_orphans: u64,
    /// Why nothing, or not all, was brought in.
    pub(crate) trouble: Option<String>,
    /// Whoever wrote it last had to stop it, which the log says until it is empty.
    pub(crate) is_aborted: bool,
    /// What was wrong with the journal's superblock, which was set right before.
    pub(crate) mended: Option<String>,
    /// By its superblock the file system was in order, so that the mark that it needs a check is of the replay.
    pub(crate) was_valid: bool,
}

/// Fast commits that cannot be brought in before the image is repaired. They stay in the log, which has nothing
/// else left.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) commits: u32,
    /// Why they could not be brought in at first.
    pub(crate) why: String,
    /// Runs of blocks that their files have, each once and in order: nothing else may be written there meanwhile.
    pub(crate) blocks: Vec<(u64, u64)>,
    /// Inodes that they make or change: nothing else may be made in their place.
    pub(crate) inodes: BTreeSet<Ino>,
}

impl Waiting {
    fn of(state: &State, overlay: &FastCommitOverlay, why: String) -> Waiting {
        let files = overlay.inodes().flat_map(|(_, inode)| inode.mapped());
        let runs = files.map(|extent| (extent.device_start.0, u64::from(extent.len.0)));
        // Runs that lie nowhere cannot be brought in, and must not take others with them.
        let blocks = runs.filter(|(start, len)| state.in_range(*start, *len)).collect();
        let named = overlay.directories().map(|(ino, _)| ino);
        let inodes = overlay.inodes().map(|(ino, _)| ino).chain(named).collect();
        Waiting { commits: overlay.commits(), why, blocks: merged(blocks), inodes }
    }
}

/// Runs of blocks in order, without what several of them have: records may name one run as often as they like.
fn merged(mut runs: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    runs.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (start, len) in runs {
        let end = start.saturating_add(len);
        match merged.last_mut() {
            Some((first, len)) if start <= first.saturating_add(*len) => {
                *len = end.max(first.saturating_add(*len)) - *first;
            }
            _ => merged.push((start, len)),
        }
    }
    merged
}

/// Runs of a file that are written, as the journal's reader wants them.
fn runs(state: &State, record: &Record) -> Fixed<Vec<JournalRun>> {
    let map = state.read_map(record)?;
    let written = map.extents.iter().filter(|extent| extent.state == ExtentState::Written);
    Ok(written
        .map(|extent| JournalRun {
            journal_start: extent.file_start.0,
            device_start: extent.device_start,
            len: extent.len.0,
        })
        .collect())
}

/// Returns whether a superblock says that its file system is in order.
pub(crate) fn is_valid(sb: &Superblock) -> bool {
    sb.state.contains(FsState::VALID) && !sb.state.intersects(FsState::ERROR | FsState::ORPHAN)
}

/// Brings in what the log holds. The file system is marked as in need of a check.
pub(crate) fn replay(
    draft: &Arc<Draft>,
    state: &mut State,
    toll: Toll<'_>,
) -> Fixed<Option<Replayed>> {
    let has_journal = state.sb.features.has_compat(Compat::HAS_JOURNAL);
    let is_given = is_elsewhere(&state.sb) && draft.journal().is_some();
    if !has_journal || (state.sb.journal_inode.0 == 0 && !is_given) {
        return Ok(None);
    }
    let needs = state.sb.features.has(Feature::RECOVER);
    let mended = if needs { mend_head(draft, state)? } else { None };
    let mut done = Replayed::default();
    match replay_log(draft, state, toll) {
        Ok(Some(replayed)) => done = replayed,
        Ok(None) if !needs => return Ok(None),
        Ok(None) => {}
        Err(Trouble::Cannot(_)) if !needs => return Ok(None),
        Err(Trouble::Cannot(why)) => {
            done.trouble = Some(why);
            empty_log(state)?;
        }
        Err(trouble) => return Err(trouble),
    }
    // The log may have held a later superblock.
    if let Ok(sb) = crate::supers::reread(draft) {
        state.sb = sb;
    }
    done.mended = mended;
    done.was_valid = is_valid(&state.sb);
    done.is_unasked = !needs;
    match done.waiting {
        // Whoever goes on after a cut finds them by it.
        Some(_) => state.sb.features.insert(Feature::RECOVER),
        None => state.sb.features.remove(Feature::RECOVER),
    }
    state.sb.state.remove(FsState::VALID);
    state.sb.state.insert(FsState::ERROR);
    state.write_superblock()?;
    Ok(Some(done))
}

/// Sets fields of the journal's superblock right that follow from others; what was wrong with it.
fn mend_head(draft: &Arc<Draft>, state: &mut State) -> Fixed<Option<String>> {
    if is_elsewhere(&state.sb) {
        return Ok(None);
    }
    let runs = journal_record(state).and_then(|record| runs(state, &record));
    let runs = match runs {
        Ok(runs) => runs,
        Err(Trouble::Cannot(_)) => return Ok(None),
        Err(trouble) => return Err(trouble),
    };
    let Some(first) = runs.first().filter(|first| first.journal_start == 0) else {
        return Ok(None);
    };
    let device = first.device_start.0;
    let blocks = runs.iter().map(|run| run.journal_start.saturating_add(run.len)).max();
    let bytes = state.read_block(device)?;
    let mended = log_head::mended(&bytes, state.sb.block_size.bytes(), blocks.unwrap_or(0));
    let Some(mended) = mended else { return Ok(None) };
    let why = match JournalSuperblock::decode(&bytes) {
        Ok(sb) => sb.verify_checksum(&bytes).err().map(|error| error.to_string()),
        Err(error) => Some(error.to_string()),
    };
    state.write_block(device, &mended)?;
    // Before anything of the log is home.
    draft.seal();
    Ok(Some(why.unwrap_or_else(|| "it is not of this file system".into())))
}

/// The journal's inode, or the copy of its map in the superblock where that inode is none.
fn journal_record(state: &State) -> Fixed<Record> {
    let ino = state.sb.journal_inode;
    match state.load(ino) {
        Ok(record) => {
            let is_file = record.kind() == Some(FileKind::Regular) && record.links() != 0;
            if is_file && !state.read_map(&record)?.extents.is_empty() {
                let copy = copied_record(state);
                let is_other = !begins(state, &record)? && begins(state, &copy)?;
                return Ok(if is_other { copy } else { record });
            }
        }
        // Its table has no place.
        Err(Trouble::Cannot(_)) => {}
        Err(trouble) => return Err(trouble),
    }
    Ok(copied_record(state))
}

/// Returns whether the first block of a file is a journal's superblock.
fn begins(state: &State, record: &Record) -> Fixed<bool> {
    let map = state.read_map(record)?;
    let Some(first) = map.extents.first().filter(|first| first.file_start.0 == 0) else {
        return Ok(false);
    };
    let bytes = state.read_block(first.device_start.0)?;
    Ok(JournalSuperblock::decode(&bytes).is_ok())
}

/// The journal's inode with the copy of its map in the superblock.
fn copied_record(state: &State) -> Record {
    let ino = state.sb.journal_inode;
    let words = state.sb.journal_backup;
    let mut copy = Record { ino, bytes: vec![0; state.record_bytes()] };
    copy.put16(record::MODE, 0o100_600);
    copy.put16(record::LINKS, 1);
    let mut area = [0; 60];
    for (slot, word) in words.iter().take(15).enumerate() {
        record::put(&mut area, slot * 4, &word.to_le_bytes());
    }
    copy.set_block_area(&area);
    copy.set_flag(InodeFlags::EXTENTS, is_extent_node(&area));
    let [.., high, low] = words;
    copy.set_size(u64::from(low) | (u64::from(high) << 32));
    copy
}

/// Tells how many findings, other than what can be computed, a repair of an image has when nothing is in its log.
pub(crate) type Toll<'a> = &'a dyn Fn(SharedDevice) -> u64;

/// Returns whether less is to be repaired with the part of the log before damage, which is older than `newer` blocks
/// of what is home: where everything was home already, as on a system that had nothing to do, that part takes back
/// what came later. Each block that is taken back counts as a finding: what is damaged for another reason must not
/// cost all that is home. Broken rules say little: those of one descriptor are as many as its group has files, and
/// right again with it. Of two that are as good, the later one is better.
fn is_better(
    draft: &Arc<Draft>,
    store: &LogStore,
    seen: &Replay,
    newer: usize,
    toll: Toll<'_>,
) -> bool {
    let log = Arc::clone(store.reader()) as Arc<dyn JournalReader>;
    let home: SharedDevice = Arc::clone(draft) as SharedDevice;
    let blocks = Arc::new(seen.blocks.clone());
    let shown = Arc::new(ReplayedDevice::new(Arc::clone(&home), log, blocks));
    toll(shown).saturating_add(newer as u64) < toll(home)
}

fn replay_log(draft: &Arc<Draft>, state: &State, toll: Toll<'_>) -> Fixed<Option<Replayed>> {
    let home: SharedDevice = Arc::clone(draft) as SharedDevice;
    let not = |error: RecoveryError| Trouble::cannot(error.to_string());
    let given = if is_elsewhere(&state.sb) { elsewhere::log(draft)? } else { None };
    let store = match given {
        Some(store) => store,
        None => {
            let record = journal_record(state)?;
            let runs = runs(state, &record)?;
            if runs.is_empty() {
                return Err(Trouble::cannot("the journal has no blocks"));
            }
            let log = MappedJournal::new(Arc::clone(&home), state.sb.block_size, runs);
            LogStore::internal(Arc::new(log)).map_err(not)?
        }
    };
    if !store.superblock().is_dirty() {
        return Ok(None);
    }
    let fs_blocks = state.sb.blocks_count;
    let options = RecoveryOptions { fs_blocks, damaged: DamagedBlocks::Skip };
    let seen = recover_damaged(store.reader(), store.superblock(), fs_blocks, &**draft);
    let seen = seen.map_err(not)?;
    if let Some(broken) = &seen.broken {
        let newer = newer_at_home(&**store.reader(), store.superblock(), &seen, &**draft);
        let newer = newer.map_err(not)?.len();
        if newer > 0 && !is_better(draft, &store, &seen, newer, toll) {
            return Err(Trouble::cannot(broken.to_string()));
        }
    }
    let mut done = Replayed {
        transactions: seen.transactions,
        damaged: seen.damaged.len(),
        at_home: seen.at_home,
        is_aborted: store.superblock().errno != 0,
        broken: seen.broken.as_ref().map(ToString::to_string),
        ..Replayed::default()
    };
    if let Some(fast) = &seen.fast_commits {
        done.fast_commits = fast.commits();
        match bring_in(draft, false) {
            Ok(brought) => return Ok(Some(Replayed { no_orphans: brought.no_orphans, ..done })),
            Err(why) => done.waiting = Some(Waiting::of(state, fast, why)),
        }
    }
    let log = recover_to_device::<RecoveryError>(store, &home, &options, |_, _| Ok(()), &|_, _| {
        ControlFlow::Continue(())
    })
    .map_err(not)?;
    match done.waiting {
        Some(_) => log.resume().map(drop).map_err(not)?,
        None => log.finish().map(drop).map_err(not)?,
    }
    Ok(Some(done))
}

/// Result of bringing in fast commits.
#[derive(Debug, Default)]
pub(crate) struct BroughtIn {
    pub(crate) commits: u32,
    /// Why parts of them were left out.
    pub(crate) left_out: Vec<String>,
    /// Number of entries among the orphans that were none: whoever mounts takes them out.
    pub(crate) no_orphans: u64,
}

/// Lets the library apply a journal with fast commits, which describe files and not blocks. It
/// refuses a file system that is too damaged for that, or leaves out what it cannot apply with
/// `passes_damage`; where it refuses, nothing has changed.
pub(crate) fn bring_in(draft: &Arc<Draft>, passes_damage: bool) -> Result<BroughtIn, String> {
    let above = Arc::new(draft.above());
    let mut options = MountOptions::new()
        .read_only(false)
        .background(false)
        .pass_fast_commit_damage(passes_damage);
    if let Some(journal) = above.journal() {
        options = options.journal_device(journal);
    }
    let fs = options
        .open_shared(Arc::clone(&above) as SharedDevice)
        // Its advice is to repair the image.
        .map_err(|error| error.into_fs_error().to_string())?;
    let done = BroughtIn {
        commits: fs.replayed().map_or(0, |replayed| replayed.fast_commits),
        left_out: fs.fast_commit_damage().iter().map(ToString::to_string).collect(),
        no_orphans: fs.recovered_orphans().map_or(0, |orphans| orphans.damaged),
    };
    fs.unmount().map_err(|error| error.to_string())?;
    draft.absorb(above.take_stages());
    Ok(done)
}

/// Why nobody mounts the image as it is, so that the log is not brought in, if that is for damage.
pub(crate) fn not_mounted(device: &SharedDevice, journal: Option<SharedDevice>) -> Option<String> {
    let mut options = MountOptions::new();
    if let Some(journal) = journal {
        options = options.journal_device(journal);
    }
    let error = options.open_shared(Arc::clone(device)).err()?.into_fs_error();
    (error.family() == Family::Damage).then(|| error.to_string())
}

/// Empties the log, if the journal is where the superblock says.
pub(crate) fn empty_log(state: &mut State) -> Fixed {
    if is_elsewhere(&state.sb) {
        return elsewhere::empty_log(state);
    }
    match reset_own_log(state) {
        // Without a place in a table there is no log to empty. It is made anew later.
        Ok(()) | Err(Trouble::Cannot(_)) => Ok(()),
        Err(trouble) => Err(trouble),
    }
}

/// Makes the journal's superblock anew before anything is known of other files: where there is one, and nowhere else.
fn reset_own_log(state: &mut State) -> Fixed {
    let record = state.load(state.sb.journal_inode)?;
    if begins(state, &record)? { reset_log(state) } else { Ok(()) }
}

/// Makes the journal's superblock anew, with an empty log, where the file has blocks for one; else there is
/// nothing to be done here.
pub(crate) fn reset_log(state: &mut State) -> Fixed {
    let record = state.load(state.sb.journal_inode)?;
    let Some(len) = whole_len(state, &record)? else { return Ok(()) };
    let map = state.read_map(&record)?;
    let Some(first) = map.extents.first() else { return Ok(()) };
    let old = state.read_block(first.device_start.0)?;
    let bytes = encoded(state, &new_superblock(state, len, &old))?;
    state.write_block(first.device_start.0, &bytes)
}

/// A block with a journal superblock.
fn encoded(state: &State, new: &JournalSuperblock) -> Fixed<Vec<u8>> {
    let mut bytes = vec![0; state.block_bytes()];
    new.encode(&mut bytes).map_err(|error| Trouble::cannot(error.to_string()))?;
    Ok(bytes)
}

/// Makes the journal anew. Without room for one, the feature is taken away.
pub(crate) fn make(state: &mut State) -> Fixed {
    let ino = Ino::JOURNAL;
    let mut record = state.load(ino)?;
    let has_fast_commits = state.sb.features.has(Feature::FAST_COMMIT);
    let blocks = default_journal_blocks(state.sb.blocks_count)
        .map(|log| log + if has_fast_commits { default_fast_commit_blocks(log) } else { 0 });
    state.fill_new(&mut record);
    let taken = match blocks {
        Some(blocks) => state.take_file(blocks),
        None => Err(Trouble::Full("block")),
    };
    let extents = match taken {
        Ok(extents) => extents,
        Err(Trouble::Full(_)) => {
            record.clear();
            state.store(&record)?;
            state.sb.features.remove(Feature::HAS_JOURNAL);
            state.sb.features.remove(Feature::RECOVER);
            state.sb.journal_inode = Ino(0);
            state.sb.journal_backup = [0; 17];
            return state.write_superblock();
        }
        Err(trouble) => return Err(trouble),
    };
    let len: u32 = extents.iter().map(|extent| extent.len.0).sum();
    let bytes = encoded(state, &new_superblock(state, len, &[]))?;
    if let Some(first) = extents.first() {
        state.write_block(first.device_start.0, &bytes)?;
    }
    // The contents of the blocks are never taken for a transaction: their numbers differ.
    record.put16(record::MODE, 0o100_600);
    record.put16(record::LINKS, 1);
    record.set_size(u64::from(len) * state.block_bytes() as u64);
    if !state.has_extents() {
        record.set_flag(InodeFlags::EXTENTS, false);
        record.set_block_area(&[0; 60]);
    }
    state.write_map(&mut record, &extents)?;
    state.store(&record)?;
    state.mark_inode(ino, true)?;
    state.sb.journal_inode = ino;
    keep_backup(state, &record);
    state.write_superblock()
}

/// The copy of the journal's map in the superblock.
pub(crate) fn keep_backup(state: &mut State, record: &Record) {
    let area = record.block_area();
    let mut words = [0; 17];
    for (slot, word) in words.iter_mut().take(15).enumerate() {
        *word = record::u32_at(&area, slot * 4);
    }
    words[15] = record.u32(record::SIZE_HIGH);
    words[16] = record.u32(record::SIZE_LO);
    state.sb.journal_backup = words;
}

/// Fixes the journal's own file if it has all of its blocks, and they are its own; otherwise creates a new journal.
pub(crate) fn fix(state: &mut State, is_gone: bool) -> Fixed {
    if !state.sb.features.has_compat(Compat::HAS_JOURNAL) {
        return remove(state);
    }
    if !is_gone && state.sb.journal_inode.0 != 0 {
        let mut record = state.load(state.sb.journal_inode)?;
        let is_begun = begins(state, &record)?;
        if is_begun && (state.sb.journal_uuid != [0; 16] || state.sb.journal_device != 0) {
            // A superblock that came out of the log; that on the device was looked at before. What waits in the
            // journal is nothing to be given up for that.
            (state.sb.journal_uuid, state.sb.journal_device) = ([0; 16], 0);
            return state.write_superblock();
        }
        let is_named = record.ino == Ino::JOURNAL;
        let copy = copied_record(state);
        // The copy of its map in the superblock leads to it, and the inode does not.
        if is_named && !is_begun && begins(state, &copy)? && whole_len(state, &copy)?.is_some() {
            record.put16(record::MODE, 0o100_600);
            record.set_flag(InodeFlags::EXTENTS, copy.has(InodeFlags::EXTENTS));
            record.set_block_area(&copy.block_area());
            record.set_size(copy.size());
            return state.store(&record);
        }
        let is_own = is_begun || !twice::lies_in(state, &twice::shared(state)?, record.ino)?;
        if is_own && whole_len(state, &record)?.is_some() {
            return reset_log(state);
        }
    }
    state.sb.features.remove(Feature::RECOVER);
    make(state)
}

/// Lets the superblock name inode 8 again, if that is a journal, and what it names is none. Returns whether it does now.
pub(crate) fn claim(state: &mut State) -> Fixed<bool> {
    let (named, number) = (Ino::JOURNAL, state.sb.journal_inode);
    if !state.sb.features.has_compat(Compat::HAS_JOURNAL) || number.0 == 0 || number == named {
        return Ok(false);
    }
    let other = match number.0 <= state.sb.inodes_count {
        true => begins(state, &state.load(number)?)?,
        false => false,
    };
    if other || !begins(state, &state.load(named)?)? {
        return Ok(false);
    }
    state.sb.journal_inode = named;
    state.write_superblock()?;
    Ok(true)
}

/// Takes a journal away that no feature speaks of.
pub(crate) fn remove(state: &mut State) -> Fixed {
    state.sb.features.remove(Feature::HAS_JOURNAL);
    if state.sb.journal_inode == Ino::JOURNAL {
        let mut record = state.load(Ino::JOURNAL)?;
        record.clear();
        state.store(&record)?;
    }
    state.sb.journal_inode = Ino(0);
    state.sb.journal_backup = [0; 17];
    state.sb.features.remove(Feature::RECOVER);
    state.write_superblock()
}

/// Returns the number of blocks of a journal whose file has all of them; `None` otherwise.
fn whole_len(state: &State, record: &Record) -> Fixed<Option<u32>> {
    let map = state.read_map(record)?;
    let mut next = 0u64;
    for extent in &map.extents {
        if u64::from(extent.file_start.0) != next {
            return Ok(None);
        }
        next += u64::from(extent.len.0);
    }
    let wanted = record.size() / state.block_bytes() as u64;
    let is_whole = !map.is_damaged && next >= wanted && wanted >= u64::from(JOURNAL_BLOCKS_MIN);
    Ok(if is_whole { u32::try_from(wanted).ok() } else { None })
}

/// Returns whether a block that is claimed twice is one of the journal's.
pub(crate) fn is_part_of(state: &State, problems: &[Problem]) -> Fixed<bool> {
    let has_journal = state.sb.features.has_compat(Compat::HAS_JOURNAL);
    if !has_journal || state.sb.journal_inode.0 == 0 {
        return Ok(false);
    }
    let record = state.load(state.sb.journal_inode)?;
    let map = state.read_map(&record)?;
    let has = |block: u64| {
        map.extents.iter().any(|extent| {
            let start = extent.device_start.0;
            start <= block && block < start + u64::from(extent.len.0)
        })
    };
    let blocks = problems.iter().filter_map(|problem| problem.objects().block);
    Ok(blocks.into_iter().any(|block| has(block.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_are_named_often_are_there_once() {
        let mut runs = vec![(40, 2), (7, 3), (u64::MAX, 9), (10, 5), (8, 1), (20, 0)];
        runs.extend(std::iter::repeat_n((1000, 32_768), 37_000));
        let once = [(7, 8), (20, 0), (40, 2), (1000, 32_768), (u64::MAX, 9)];
        assert!(merged(runs) == once);
        assert_eq!(merged(Vec::new()), []);
    }
}
