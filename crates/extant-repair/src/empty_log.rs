//! The superblock of a journal whose log is empty.

use extant_format::features::Feature;
use extant_format::jbd2::{JournalIncompat, JournalSuperblock, Tid};
use extant_layout::{JOURNAL_BLOCKS_MIN, default_fast_commit_blocks, default_journal_blocks};

use crate::state::State;

/// A journal superblock with an empty log. Sequence and features are those of `old` where it decodes.
pub(crate) fn new_superblock(state: &State, len: u32, old: &[u8]) -> JournalSuperblock {
    let old = JournalSuperblock::decode(old).ok();
    let known = JournalIncompat::REVOKE | JournalIncompat::BLOCKS_64BIT;
    let checksums = old.as_ref().map_or(JournalIncompat::empty(), |old| old.incompat);
    let csum = JournalIncompat::CSUM_V2 | JournalIncompat::CSUM_V3;
    let mut incompat = checksums & (known | csum);
    if state.sb.features.metadata_csum() && (incompat & csum).is_empty() {
        incompat |= JournalIncompat::CSUM_V3;
    }
    if state.is_wide() {
        incompat |= JournalIncompat::BLOCKS_64BIT;
    }
    // Where no number is known, one that no old transaction in these blocks has: they count from 1.
    let unknown = Tid(state.now.max(1));
    JournalSuperblock {
        sequence: old.as_ref().map_or(unknown, |old| Tid(old.sequence.0.wrapping_add(1000))),
        incompat,
        uuid: old.as_ref().map_or([0; 16], |old| old.uuid),
        checksum_type: if incompat.intersects(csum) { 4 } else { 0 },
        fast_commit_blocks: fast_commit_blocks(state, len, old.as_ref()),
        ..JournalSuperblock::empty(state.sb.block_size, len)
    }
}

/// Blocks for fast commits of a journal of `len` blocks that is made anew: those that it had, or as many as
/// mke2fs gives it, as far as a log stays that the kernel takes.
fn fast_commit_blocks(state: &State, len: u32, old: Option<&JournalSuperblock>) -> u32 {
    if let Some(old) = old {
        return old.fast_commit_blocks;
    }
    if !state.sb.features.has(Feature::FAST_COMMIT) {
        return 0;
    }
    let default = default_journal_blocks(state.sb.blocks_count).unwrap_or(len);
    default_fast_commit_blocks(default).min(len.saturating_sub(JOURNAL_BLOCKS_MIN))
}
