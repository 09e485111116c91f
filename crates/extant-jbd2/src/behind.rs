//! What lies in the log behind the end that a scan found.
//!
//! # Place
//!
//! For repairs only, which go on where a mount refuses: recovery asks whether a log that seems to
//! end goes on, and a repair asks whether the part before a damaged transaction is older than what
//! is home.
//!
//! # Rules
//!
//! - A block of the journal's own counts if its number is that of the transaction that is missing,
//!   or one that the ring has room for behind it: older blocks have smaller numbers. Its checksum is
//!   right, in logs that have one in each block: what an older journal left in the place has others.
//! - Whatever lies between the end and the last of those blocks was written after the part before
//!   the end: the log is written in order.

use std::hash::{DefaultHasher, Hash, Hasher};

use extant_format::jbd2::{
    BlockHeader, BlockType, CommitBlock, FcRecord, FcRecords, JournalSuperblock, LogFormat, Tid,
    verify_tail,
};

use crate::error::RecoveryError;
use crate::log::JournalReader;
use crate::scan::LOG_BLOCKS_MAX;

/// The blocks behind the end of a log that belong to transactions behind it.
pub(crate) struct Behind {
    /// In the order of the log.
    pub(crate) blocks: Vec<u32>,
    /// A transaction behind the one that is missing.
    found: Option<Tid>,
}

/// Returns whether a number is `end`, or one that a log of `len` blocks has room for behind it.
fn follows(tid: Tid, end: Tid, len: u32) -> bool {
    tid.0.wrapping_sub(end.0) <= len
}

/// Returns whether the checksum of a block of the journal's own is right, if it has one.
fn is_whole(format: &LogFormat, header: BlockHeader, bytes: &[u8]) -> bool {
    match header.block_type {
        BlockType::Commit => CommitBlock::verify(format, bytes).is_ok(),
        _ => verify_tail(format, bytes).is_ok(),
    }
}

pub(crate) fn behind(
    log: &dyn JournalReader,
    superblock: &JournalSuperblock,
    (head, end): (u32, Tid),
) -> Result<Behind, RecoveryError> {
    let ring = superblock.log();
    let len = u32::try_from(ring.len()).unwrap_or(u32::MAX);
    let (mut blocks, mut certain, mut found) = (Vec::new(), 0, None);
    let mut bytes = vec![0; superblock.block_size.len()];
    let format = superblock.log_format();
    let mut next = head;
    for _ in 0..u64::from(len).min(LOG_BLOCKS_MAX) {
        if !ring.contains(&next) {
            next = ring.start;
        }
        // The part before the end begins here.
        if next == superblock.start && !blocks.is_empty() {
            break;
        }
        log.read_block(next, &mut bytes)?;
        blocks.push(next);
        next = next.saturating_add(1);
        let Ok(header) = BlockHeader::decode(&bytes) else { continue };
        let is_own = matches!(
            header.block_type,
            BlockType::Descriptor | BlockType::Revoke | BlockType::Commit
        );
        // Each transaction has a block at least, and what an earlier pass of the log left there has any number.
        let room = u32::try_from(blocks.len()).unwrap_or(len);
        if is_own && follows(header.tid, end, room) && is_whole(&format, header, &bytes) {
            certain = blocks.len();
            found = found.or(Some(header.tid).filter(|tid| *tid != end));
        }
    }
    blocks.truncate(certain);
    Ok(Behind { blocks, found })
}

/// Returns the number of a later transaction, or of fast commits on one, if a log that ended before
/// transaction `end`, at block `head`, has any: then `end` was committed, and is damaged.
pub(crate) fn goes_on(
    log: &dyn JournalReader,
    superblock: &JournalSuperblock,
    (head, end): (u32, Tid),
) -> Result<Option<Tid>, RecoveryError> {
    if let Some(found) = behind(log, superblock, (head, end))?.found {
        return Ok(Some(found));
    }
    let area = superblock.fast_commit_area();
    if area.is_empty() {
        return Ok(None);
    }
    let mut bytes = vec![0; superblock.block_size.len()];
    log.read_block(area.start, &mut bytes)?;
    let Some(Ok((FcRecord::Head { tid, .. }, _))) = FcRecords::new(&bytes).next() else {
        return Ok(None);
    };
    let len = u32::try_from(superblock.log().len()).unwrap_or(u32::MAX);
    Ok(Some(tid).filter(|tid| *tid != end && follows(*tid, end, len)))
}

/// Returns the blocks of the log before its end, in order.
pub(crate) fn before(superblock: &JournalSuperblock, head: u32) -> impl Iterator<Item = u32> {
    let (ring, start) = (superblock.log(), superblock.start);
    let (first, second) = match start <= head {
        true => (start..head, 0..0),
        false => (start..ring.end, ring.start..head),
    };
    first.chain(second)
}

/// What tells the contents of a block from others; `None` where all of its bytes are the same, as in
/// blocks that are new. The first four bytes may be others in the log.
pub(crate) fn mark(bytes: &[u8]) -> Option<u64> {
    let (_, rest) = bytes.split_first_chunk::<4>()?;
    let first = rest.first()?;
    if rest.iter().all(|byte| byte == first) {
        return None;
    }
    let mut hasher = DefaultHasher::new();
    rest.hash(&mut hasher);
    Some(hasher.finish())
}
