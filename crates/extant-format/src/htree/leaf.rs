//! Making room in leaves: closing gaps, and dividing the names of one leaf among two.

use crate::dir::{BlockWriter, DirEntry, DirFault, DirLayout, NewEntry, Records, entry_area};
use crate::hash::NameHash;
use alloc::vec;
use alloc::vec::Vec;

/// The contents of two leaves that take the place of one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeafSplit {
    /// The block with the smaller hashes; it stays where the old one was.
    pub lower: Vec<u8>,
    /// The block with the larger hashes.
    pub upper: Vec<u8>,
    /// Smallest hash in the upper block: its record's.
    pub hash: u32,
    /// Whether the lower block ends with names of the same hash.
    pub continued: bool,
}

fn stored<'a>(entry: &DirEntry<'a>) -> NewEntry<'a> {
    NewEntry { ino: entry.ino, name: entry.name, file_type: entry.file_type, hash: entry.hash }
}

fn used<'a>(
    block: &'a [u8],
    layout: DirLayout,
) -> Result<impl Iterator<Item = Result<DirEntry<'a>, DirFault>>, DirFault> {
    Ok(Records::of_area(entry_area(block, layout)?, layout).used())
}

fn pack<'a>(
    entries: impl IntoIterator<Item = NewEntry<'a>>,
    layout: DirLayout,
) -> Result<Vec<u8>, DirFault> {
    let mut block = vec![0; layout.block_size.len()];
    let mut writer = BlockWriter::new(&mut block, layout)?;
    for entry in entries {
        if !writer.push(&entry)? {
            // They came out of one block, so they fit one.
            return Err(DirFault::NoEntry { offset: 0 });
        }
    }
    writer.finish(None);
    Ok(block)
}

/// A linear block or leaf without gaps: every free byte is behind the last entry.
///
/// # Errors
///
/// A fault of the block, or an entry in it that may not be stored.
pub fn compact(block: &[u8], layout: DirLayout) -> Result<Vec<u8>, DirFault> {
    let entries = used(block, layout)?
        .map(|entry| entry.map(|entry| stored(&entry)))
        .collect::<Result<Vec<_>, _>>()?;
    pack(entries, layout)
}

/// Divides the names of a leaf, or of a whole linear directory of one block (then without `.` and
/// `..`), by hash into two of about the same size. `None` when there are fewer than two.
///
/// # Errors
///
/// A fault of the block, an entry in it that may not be stored, or what `hash` returns.
pub fn split_leaf<E: From<DirFault>>(
    block: &[u8],
    layout: DirLayout,
    mut hash: impl FnMut(&DirEntry<'_>) -> Result<NameHash, E>,
) -> Result<Option<LeafSplit>, E> {
    let mut entries = Vec::new();
    let mut total = 0usize;
    for entry in used(block, layout)? {
        let entry = entry?;
        if entry.is_dots() {
            continue;
        }
        total = total.saturating_add(stored(&entry).needs(layout));
        entries.push((hash(&entry)?, stored(&entry)));
    }
    entries.sort_by(|(a, one), (b, other)| a.cmp(b).then(one.name.cmp(other.name)));
    let mut lower_bytes = 0usize;
    let mut middle = 0usize;
    for (_, entry) in &entries {
        // The entry that lies across the middle goes where most of it is.
        let needs = entry.needs(layout);
        if lower_bytes.saturating_add(needs / 2) >= total / 2 {
            break;
        }
        lower_bytes = lower_bytes.saturating_add(needs);
        middle = middle.saturating_add(1);
    }
    let middle = middle.clamp(1, entries.len().saturating_sub(1).max(1));
    let Some((lower, upper)) = entries.split_at_checked(middle) else { return Ok(None) };
    let (Some((last, _)), Some((first, _))) = (lower.last(), upper.first()) else {
        return Ok(None);
    };
    let (hash, continued) = (first.major, first.major == last.major);
    let lower = pack(lower.iter().map(|(_, entry)| *entry), layout)?;
    let upper = pack(upper.iter().map(|(_, entry)| *entry), layout)?;
    Ok(Some(LeafSplit { lower, upper, hash, continued }))
}
