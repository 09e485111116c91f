//! The superblock of a journal with a field that cannot be, where it follows from others what it was.
//!
//! Linux and e2fsck give up a log whose superblock has a wrong checksum, and with it what programs were promised.

use extant_format::jbd2::{JBD2_MAGIC, JournalSuperblock};
use extant_layout::JOURNAL_BLOCKS_MIN;

/// Places of fields, and what they are in every journal of `blocks` blocks of a file system.
fn known(bytes: &[u8], block_bytes: u32, blocks: u32) -> [(usize, u32); 6] {
    let kind = match word(bytes, 4) {
        kind @ 3..=4 => kind,
        _ => 4,
    };
    // Magic, kind of block, s_blocksize, s_maxlen, s_first, s_nr_users.
    [(0, JBD2_MAGIC), (4, kind), (12, block_bytes), (16, blocks), (20, 1), (64, 1)]
}

fn word(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
    u32::from_be_bytes(word.unwrap_or_default())
}

fn set(bytes: &mut [u8], at: usize, value: u32) {
    if let Some(word) = bytes.get_mut(at..at + 4) {
        word.copy_from_slice(&value.to_be_bytes());
    }
}

/// Returns a block that begins with the superblock of a journal inside its file system, with the fields that follow
/// from others as they are to be. `None` where nothing is wrong with it, and where something else is: with checksums,
/// that of what is there, or that of what is to be there, must be right; without, one field may be wrong, and a log
/// must wait. Zeros become no journal that way.
pub(crate) fn mended(bytes: &[u8], block_bytes: u32, blocks: u32) -> Option<Vec<u8>> {
    let is_right = |bytes: &[u8]| {
        JournalSuperblock::decode(bytes).is_ok_and(|sb| {
            (JOURNAL_BLOCKS_MIN.min(blocks)..=blocks).contains(&sb.len)
                && sb.block_size.bytes() == block_bytes
                && sb.verify_checksum(bytes).is_ok()
        })
    };
    if is_right(bytes) {
        return None;
    }
    let known = known(bytes, block_bytes, blocks);
    // One field is more likely to be wrong than several.
    let each = known.iter().map(std::slice::from_ref);
    for fields in each.chain(std::iter::once(&known[..])) {
        let mut new = bytes.to_vec();
        for (at, value) in fields {
            set(&mut new, *at, *value);
        }
        let is_told = JournalSuperblock::decode(&new)
            .is_ok_and(|sb| sb.is_dirty() && (fields.len() == 1 || sb.checksum().covers_blocks()));
        if !is_told {
            continue;
        }
        if is_right(&new) {
            return Some(new);
        }
        // Whoever computed the checksum had it wrong already.
        if let Ok(sb) = JournalSuperblock::decode(&new)
            && sb.verify_checksum(bytes).is_ok()
            && sb.encode(&mut new).is_ok()
            && is_right(&new)
        {
            return Some(new);
        }
    }
    None
}
