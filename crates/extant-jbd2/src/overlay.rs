//! The latest copies of blocks in the log.

use extant_base::FsBlock;
use extant_format::jbd2::JBD2_MAGIC;

use crate::error::JournalReadError;
use crate::log::JournalReader;

/// The place of the latest copy of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogLocation {
    /// Block of the journal.
    pub block: u32,
    /// Whether the first four bytes of the block, zero in the log, must be replaced by the
    /// journal's magic number.
    pub escaped: bool,
}

/// The blocks that a replay would write, each with its latest copy.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Overlay {
    /// Entries in order of their block, each block once.
    entries: Vec<(FsBlock, LogLocation)>,
}

impl Overlay {
    /// Creates the overlay from copies in the order of the log: of several copies of a block, the
    /// last one is kept.
    pub(crate) fn from_log_order(mut copies: Vec<(FsBlock, LogLocation)>) -> Overlay {
        // Reversed, the last copy comes first; the stable sort keeps it so, and dedup keeps it.
        copies.reverse();
        copies.sort_by_key(|(block, _)| *block);
        copies.dedup_by_key(|(block, _)| *block);
        copies.shrink_to_fit();
        Overlay { entries: copies }
    }

    /// Takes the copies of some blocks out.
    pub(crate) fn remove(&mut self, mut blocks: Vec<FsBlock>) {
        blocks.sort_unstable();
        self.entries.retain(|(block, _)| blocks.binary_search(block).is_err());
    }

    /// Returns the place of the latest copy of `block`; `None` when the log has none.
    pub fn get(&self, block: FsBlock) -> Option<LogLocation> {
        let at = self.entries.binary_search_by_key(&block, |(block, _)| *block).ok()?;
        self.entries.get(at).map(|(_, location)| *location)
    }

    /// Returns the first block at or after `block` with a copy in the log.
    pub fn next_from(&self, block: FsBlock) -> Option<(FsBlock, LogLocation)> {
        let at = self.entries.partition_point(|(entry, _)| *entry < block);
        self.entries.get(at).copied()
    }

    /// Returns all blocks, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (FsBlock, LogLocation)> + '_ {
        self.entries.iter().copied()
    }

    /// Returns the number of blocks with a copy in the log.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True when there is nothing to replay.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// Reads a copy from the log and undoes its escaping; `out` has the size of a block.
pub(crate) fn read_copy(
    log: &dyn JournalReader,
    location: LogLocation,
    out: &mut [u8],
) -> Result<(), JournalReadError> {
    log.read_block(location.block, out)?;
    if location.escaped
        && let Some(start) = out.first_chunk_mut::<4>()
    {
        *start = JBD2_MAGIC.to_be_bytes();
    }
    Ok(())
}
