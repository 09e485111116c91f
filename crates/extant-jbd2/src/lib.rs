//! The journal (jbd2): what a crash left in the log, and what the file system looks like with it.
//!
//! # Place
//!
//! Below: `extant-format` decodes the journal's blocks, `extant-block` reads devices. Above:
//! `extant` finds the journal (an inode's blocks or a device that the caller passed) and reads the
//! file system through [`ReplayedDevice`]. This crate knows blocks. It knows no inodes, except
//! that [`FastCommitOverlay`] folds the records of fast commits, which are about inodes, and looks
//! at four fields of a raw one to merge it.
//!
//! # Shape
//!
//! ```text
//! JournalReader      reads block n of the journal, wherever that is: MappedJournal
//!   load_superblock  block n decoded and its checksum verified
//!   recover          scan -> revoke -> replay, into
//! Replay             which file-system block has its latest copy where in the log
//!   Overlay            looked up by block
//!   FastCommitOverlay  looked up by inode and directory
//! ReplayedDevice     a read-only BlockDevice that shows the overlay over the device below
//! ```
//!
//! Nothing is ever written: a dirty image is read as if it had been replayed. Memory grows with
//! the number of blocks in the log (some 32 bytes each), never with their contents.
//!
//! # Invariants
//!
//! - J4. A block that was revoked in transaction r is not replayed from transactions up to r.
//! - J9. Only transactions up to the first one without a valid commit block count; replaying twice
//!   gives the same result, because the latest copy of each block wins.
//! - J13. Recovery looks at each block of the log's ring at most once per pass and at no more than
//!   [`LOG_BLOCKS_MAX`] in all, whatever the log says.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/ext4/journal.rst`; the order of the checks is that of jbd2's
//! recovery, so that both accept and refuse the same logs.
#![forbid(unsafe_code)]
#![warn(clippy::arithmetic_side_effects, clippy::as_conversions, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::arithmetic_side_effects, clippy::as_conversions, clippy::indexing_slicing)
)]

mod checkpoint;
mod client;
mod commit;
mod device;
mod error;
mod external;
mod fast_commit;
mod gate;
mod handle;
mod journal;
mod log;
mod overlay;
mod recovery;
mod replay;
mod scan;
mod set;
mod store;
#[cfg(test)]
mod test_log;
#[cfg(test)]
mod tests;
mod write;

pub use client::{
    AbortReason, Client, EncodeError, EncodeSink, Image, JournalBlock, JournalError,
    JournalOpenError, JournalOptions, JournalStats, Mutations, Tid, tid_geq, tid_next,
};
pub use device::ReplayedDevice;
pub use error::{JournalReadError, RecoveryError};
pub use external::{ExternalJournal, ExternalJournalError};
pub use fast_commit::{
    FastCommitOverlay, FastCommitStop, FcDirectory, FcEntry, FcInode, FcMapping,
};
pub use handle::Handle;
pub use journal::Journal;
pub use log::{JournalReader, JournalRun, MappedJournal, load_superblock};
pub use overlay::{LogLocation, Overlay};
pub use recovery::{DamagedBlock, DamagedBlocks, RecoveryOptions, Replay, recover};
pub use replay::{RecoveredLog, recover_to_device};
pub use scan::{LOG_BLOCKS_MAX, ScanStop};
pub use store::LogStore;
