//! A damaged log beside what is home.
//!
//! # Place
//!
//! For repairs only: what recovery finds with damage skipped is compared with the device, so that
//! nothing that is home already is taken back.

use std::collections::HashSet;

use extant_base::FsBlock;
use extant_block::BlockDevice;
use extant_format::jbd2::JournalSuperblock;

use crate::behind::{before, behind, mark};
use crate::error::RecoveryError;
use crate::log::JournalReader;
use crate::overlay::read_copy;
use crate::recovery::{DamagedBlocks, RecoveryOptions, Replay, recover};

/// Determines the result of replaying a damaged journal, as [`recover`] does with
/// [`DamagedBlocks::Skip`], onto `home`: a damaged copy of which home has the contents takes nothing
/// with it, and no earlier copy of its block comes back.
///
/// # Errors
///
/// As [`recover`].
pub fn recover_damaged(
    log: &dyn JournalReader,
    superblock: &JournalSuperblock,
    fs_blocks: u64,
    home: &dyn BlockDevice,
) -> Result<Replay, RecoveryError> {
    let options = RecoveryOptions { fs_blocks, damaged: DamagedBlocks::Skip };
    let mut replay = recover(log, superblock, &options)?;
    keep_home(superblock, &mut replay, home);
    Ok(replay)
}

/// Returns the blocks that a replay would set back: what is home is not its copy, but one of those
/// behind the damage that ended the log. Empty where nothing did: all of it is later than what is
/// home then.
///
/// # Errors
///
/// [`RecoveryError::Read`]. What cannot be read at home is not compared.
pub fn newer_at_home(
    log: &dyn JournalReader,
    superblock: &JournalSuperblock,
    replay: &Replay,
    home: &dyn BlockDevice,
) -> Result<Vec<FsBlock>, RecoveryError> {
    let mut newer = Vec::new();
    if replay.broken.is_none() {
        return Ok(newer);
    }
    let lies = behind(log, superblock, (replay.head, replay.end_tid))?;
    let mut bytes = vec![0; superblock.block_size.len()];
    let mut later = HashSet::new();
    for block in lies.blocks {
        log.read_block(block, &mut bytes)?;
        later.extend(mark(&bytes));
    }
    // What a change and its opposite leave is older than the part where the part has it as well.
    for block in before(superblock, replay.head) {
        log.read_block(block, &mut bytes)?;
        if let Some(mark) = mark(&bytes) {
            later.remove(&mark);
        }
    }
    let mut copy = bytes.clone();
    for (block, location) in replay.blocks.iter() {
        let Some(offset) = superblock.block_size.offset_of(block) else { continue };
        if home.read_at(offset, &mut bytes).is_err() {
            continue;
        }
        read_copy(log, location, &mut copy)?;
        if bytes != copy && mark(&bytes).is_some_and(|mark| later.contains(&mark)) {
            newer.push(block);
        }
    }
    Ok(newer)
}

/// Leaves out of a replay the earlier copies of blocks whose latest one is damaged, where home has
/// what that one was: its checksum is that of the tag. Nothing of such a block is lost.
fn keep_home(superblock: &JournalSuperblock, replay: &mut Replay, home: &dyn BlockDevice) {
    if replay.damaged.is_empty() {
        return;
    }
    let format = superblock.log_format();
    let len = u32::try_from(superblock.log().len()).unwrap_or(u32::MAX).max(1);
    let place = |block: u32| match block.checked_sub(superblock.start) {
        Some(place) => place,
        None => block.saturating_add(len).saturating_sub(superblock.start),
    };
    let mut bytes = vec![0; superblock.block_size.len()];
    let (mut gone, blocks) = (Vec::new(), &replay.blocks);
    let found = replay.damaged.len();
    replay.damaged.retain(|damaged| {
        let at_home = superblock.block_size.offset_of(damaged.fs_block);
        let is_read = at_home.is_some_and(|offset| home.read_at(offset, &mut bytes).is_ok());
        if !is_read || !damaged.is_copy_of(&format, &mut bytes) {
            return true;
        }
        if let Some(location) = blocks.get(damaged.fs_block)
            && place(location.block) < place(damaged.block)
        {
            gone.push(damaged.fs_block);
        }
        false
    });
    replay.at_home = found.saturating_sub(replay.damaged.len());
    replay.blocks.remove(gone);
}
