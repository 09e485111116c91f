//! The journal (jbd2): recovering a log, and writing one.
//!
//! # Place
//!
//! Below: `extant-format` encodes and decodes the journal's blocks, `extant-block` reaches devices.
//! Above: `extant` finds the journal (an inode's blocks or a device that the caller passed), reads
//! through [`ReplayedDevice`], and changes metadata inside a [`Handle`]. This crate knows blocks,
//! not inodes, except that [`FastCommitOverlay`] combines the records of fast commits, which
//! describe inodes, and reads four fields of a raw inode to merge it.
//!
//! # Shape
//!
//! ```text
//! JournalReader      reads block n of the journal, wherever that is: MappedJournal
//!   load_superblock  block n decoded and its checksum verified
//!   recover          scan -> revoke -> replay, into
//! Replay             the place of each block's latest copy in the log
//!   Overlay            looked up by block
//!   FastCommitOverlay  looked up by inode and directory
//! ReplayedDevice     a read-only BlockDevice that shows the overlay over the device below
//! recover_to_device  the same written home; RecoveredLog::finish marks the log clean
//! LogStore           a log that can be written, inside the file system or on its own device
//! Journal            one log in use
//!   Handle             a change in progress: claims and revokes blocks of the running transaction
//!   Client             the file system's side: encode, committed, aborted
//! ```
//!
//! Inside: a gate counts handles, `set` holds the running transaction, `write` gives it the form of
//! the log, `commit` and `checkpoint` are run by one thread at a time.
//!
//! Reading alone writes nothing: a dirty image is read as if it had been replayed. Memory of
//! recovery grows with the number of blocks in the log (some 32 bytes each), never with their
//! contents; that of a journal in use is bounded by [`JournalOptions::pinned_blocks_max`] images.
//!
//! # A mount for writing
//!
//! [`recover_to_device`]; apply its fast commits; record its `errno`; [`RecoveredLog::finish`]; set
//! the "needs recovery" flag of the file system durably (J11); [`Journal::open`]. At the end:
//! [`Journal::close`], then clear the flag.
//!
//! # Invariants
//!
//! - J1. A block is written home only when a transaction with these contents is durable.
//! - J2. Log space is used again only when the home writes are flushed, and then the tail is
//!   durable.
//! - J3. [`Client::committed`] comes after the commit block is durable.
//! - J4. A block that was revoked in transaction r is not replayed from transactions up to r. A
//!   freed block with a copy in the live log is revoked; a claim cancels the revoke of its
//!   transaction.
//! - J5. Revoke records are in the transaction that freed the block.
//! - J6. The commit block is written, with FUA, after a flush of all it commits, and before success
//!   is reported.
//! - J7. A file system on another device is flushed before the commit block.
//! - J8. A failed write or flush aborts the journal, with the errno in the journal superblock if
//!   that can be written.
//! - J9. Only transactions before the first one without a valid commit block are valid; replaying
//!   twice gives the same result, because the latest copy of each block wins. A clean log continues
//!   with a number beyond all that were ever in it.
//! - J11. Nothing is written before the first commit, and nothing after `close`.
//! - J12. Images are taken once per transaction, after encoding and before any later change.
//! - J13. Recovery looks at each block of the log's ring at most once per pass and at no more than
//!   [`LOG_BLOCKS_MAX`] in all, for every log.
//!
//! - J14. A fast commit counts when its tail is durable, after everything that its records refer to.
//! - J15. The fast-commit area holds fast commits of the running transaction only, and a full commit
//!   of it replaces them.
//! - J16. A cut leaves a whole first fast commit in the area, or none that Linux looks at.
//! - J17. While the log is in use, no head of an earlier transaction is in the area.
//! - J18. While the area holds fast commits, the log holds no full ones.
//! - J19. With the feature of fast commits the log does not go round: each checkpoint begins it again
//!   at its first block, and none of it is used behind its end.
//!
//! J10, orphans, is the client's.
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

mod behind;
mod block;
mod checkpoint;
mod client;
mod commit;
mod device;
mod error;
mod external;
mod fast_area;
mod fast_commit;
mod fast_write;
mod handle;
mod home;
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
mod waiting;
mod work;
mod write;

pub use client::{
    AbortReason, Client, Description, EncodeError, EncodeSink, FastSink, Image, JournalBlock,
    JournalError, JournalOpenError, JournalOptions, JournalStats, Mutations, Tid, tid_geq,
    tid_next,
};
pub use device::ReplayedDevice;
pub use error::{JournalReadError, RecoveryError};
pub use external::{ExternalJournal, ExternalJournalError, JournalDevice};
pub use fast_commit::{
    FastCommitOverlay, FastCommitStop, FcDirectory, FcEntry, FcInode, FcMapping,
};
pub use handle::Handle;
pub use home::{newer_at_home, recover_damaged};
pub use journal::Journal;
pub use log::{JournalReader, JournalRun, MappedJournal, load_superblock};
pub use overlay::{LogLocation, Overlay};
pub use recovery::{DamagedBlock, DamagedBlocks, RecoveryOptions, Replay, recover};
pub use replay::{RecoveredLog, recover_to_device};
pub use scan::{LOG_BLOCKS_MAX, ScanStop};
pub use store::LogStore;
pub use waiting::Round;
