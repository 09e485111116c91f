//! The journal: its superblock, the blocks of its log, and the records of fast commits.
//!
//! # Place
//!
//! Bytes only. Which block of a log to look at next, and whether a transaction counts, is decided
//! by `extant-jbd2`. Everything of jbd2 is big-endian, except fast-commit records, which belong to
//! ext4 and are little-endian.
//!
//! # Shape
//!
//! ```text
//! journal block 0       first ..                          last      fast-commit area .. len
//! +------------+--------+------------+------+------+--------+-- ~ --+-----------------------+
//! | superblock | unused | descriptor | data | data | commit |       | head, records, tail   |
//! +------------+--------+------------+------+------+--------+-- ~ --+-----------------------+
//!                       \_________ one transaction ________/
//! ```
//!
//! A transaction may have many descriptor blocks, each followed by the data blocks it names, and
//! revoke blocks in any place. [`LogFormat`] holds what the superblock says about the form of the
//! log's blocks; every decoder below takes it.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/ext4/journal.rst`, and for the sizes it does not give (tags
//! with checksum v2) the structures in `include/linux/jbd2.h`.

mod commit;
mod descriptor;
mod fast_commit;
mod features;
mod header;
mod revoke;
mod superblock;

pub use commit::{CommitBlock, TransactionChecksum};
pub use descriptor::{DescriptorWriter, NewTag, Tag, TagFlags, Tags};
pub use fast_commit::{
    FcDentry, FcFault, FcRecord, FcRecords, FcRunningChecksum, FcTag, FcTail, FcWriter,
};
pub use features::{JournalChecksum, JournalCompat, JournalIncompat, JournalRoCompat};
pub use header::{BlockHeader, BlockType, HEADER_BYTES, HeaderFault, JBD2_MAGIC, Tid};
pub use revoke::{RevokeFault, RevokeRecords, RevokeWriter};
pub use superblock::{JournalFault, JournalSuperblock, JournalVersion, LogFormat, USERS_MAX};

use crate::checksum::{crc32c, crc32c_zeros};
use crate::error::ChecksumError;

/// Bytes of the checksum that ends descriptor and revoke blocks of checksum versions 2 and 3.
pub const TAIL_BYTES: usize = 4;

/// Checks the checksum in the last four bytes of a descriptor or revoke block.
///
/// Without checksums of version 2 or 3 there is nothing to check, and the answer is `Ok`.
///
/// Source: Linux `Documentation/filesystems/ext4/journal.rst`, "Descriptor Block",
/// `struct jbd2_journal_block_tail`.
///
/// # Errors
///
/// Both values, when they differ; a block shorter than a tail counts as different.
pub fn verify_tail(format: &LogFormat, block: &[u8]) -> Result<(), ChecksumError> {
    if !format.checksum.covers_blocks() {
        return Ok(());
    }
    let (stored, computed) = match block.split_last_chunk::<TAIL_BYTES>() {
        Some((covered, tail)) => {
            let seed = crc32c(format.seed, covered);
            (u32::from_be_bytes(*tail), crc32c_zeros(seed, TAIL_BYTES))
        }
        None => (0, !0),
    };
    ChecksumError::check("journal block tail", stored, computed)
}

/// Writes the tail checksum of a descriptor or revoke block, where the format has one.
fn seal_tail(format: &LogFormat, block: &mut [u8]) {
    if !format.checksum.covers_blocks() {
        return;
    }
    if let Some((covered, tail)) = block.split_last_chunk_mut::<TAIL_BYTES>() {
        *tail = crc32c_zeros(crc32c(format.seed, covered), TAIL_BYTES).to_be_bytes();
    }
}

/// The big-endian number at `offset`; `None` past the end of `bytes`.
fn be32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    let field = bytes.get(offset..)?.first_chunk::<4>()?;
    Some(u32::from_be_bytes(*field))
}

/// Stores a big-endian number at `offset`; `None` past the end of `bytes`.
fn put_be32(bytes: &mut [u8], offset: usize, value: u32) -> Option<()> {
    *bytes.get_mut(offset..)?.first_chunk_mut::<4>()? = value.to_be_bytes();
    Some(())
}
