//! Blocks in the journal, and numbers of transactions.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use extant_base::FsBlock;

/// A transaction's number. Counts up and wraps, but is never 0: a field that holds the number of
/// "the last transaction that ..." may use 0 for none. Compare with [`tid_geq`].
pub type Tid = u32;

/// True when transaction `a` is `b` or younger, going round.
pub fn tid_geq(a: Tid, b: Tid) -> bool {
    a.wrapping_sub(b) < 1 << 31
}

/// Returns the transaction after `tid`: 1 follows the largest number.
pub fn tid_next(tid: Tid) -> Tid {
    tid.checked_add(1).unwrap_or(1)
}

/// One version of a block, as long as one block of the file system. Must never change.
pub type Image = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A metadata block of the client. The journal holds it from the claim until it is written to its
/// final place.
pub trait JournalBlock: Send + Sync {
    /// Returns the block's final place on the file system's device.
    fn number(&self) -> FsBlock;

    /// Returns the current version, immutable from then on. Called once per transaction that
    /// claimed the block, after [`Client::encode`](crate::Client::encode), while no handle is open.
    fn image(&self) -> Image;

    /// Returns the journal's mark: the last transaction that claimed the block, 0 for none. Starts
    /// as 0.
    fn claimed(&self) -> &AtomicU32;
}
