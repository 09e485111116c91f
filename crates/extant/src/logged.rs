//! Contents of files in the journal: of files whose data is logged, until it is home.
//!
//! # Place
//!
//! Below: `extant-jbd2`, for which each block here is one of its blocks. Above: `editor` puts
//! contents into the running transaction, `file` reads them over the device, and `alloc` asks whether
//! freed blocks need a revoke.
//!
//! # Invariants
//!
//! - L1. A block is here from the moment it is claimed until its last version is home, or a revoke is
//!   durable: the journal holds it for just as long, and here is only a weak reference.
//! - L2. Where there is one, it has the newest contents of its block, and the device has older ones.
//!   So a reader asks here first, and then reads the device: what is not here any more is there.
//! - L3. Its memory is that of the journal, which bounds it (`JournalOptions::pinned_blocks_max`).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use extant_base::{BlockSize, FsBlock};
use extant_format::inode::InodeFlags;
use extant_iomap::Newer;
use extant_jbd2::{Image, JournalBlock};
use extant_sync::{Mutex, Rank};

/// Shards; a power of two.
const SHARDS: usize = 16;

type Shard = Mutex<HashMap<FsBlock, Weak<LoggedBlock>>>;

struct Blocks {
    shards: Vec<Shard>,
    /// Number of blocks, in all shards.
    count: AtomicU64,
}

impl Blocks {
    fn shard(&self, number: FsBlock) -> &Shard {
        &self.shards[(number.0 >> 3) as usize % SHARDS]
    }

    fn find(&self, number: FsBlock) -> Option<Arc<LoggedBlock>> {
        // Dropped outside of the lock, which the drop of the last reference takes.
        self.shard(number).lock().get(&number).and_then(Weak::upgrade)
    }
}

/// The contents of one block, as the journal knows it.
pub(crate) struct LoggedBlock {
    number: FsBlock,
    claimed: AtomicU32,
    /// The newest contents; versions of earlier transactions are kept by the journal.
    bytes: Mutex<Arc<Vec<u8>>>,
    all: Arc<Blocks>,
}

impl LoggedBlock {
    /// Gives the block new contents, for a caller whose handle has claimed it.
    pub(crate) fn set(&self, bytes: Vec<u8>) {
        *self.bytes.lock() = Arc::new(bytes);
    }
}

impl JournalBlock for LoggedBlock {
    fn number(&self) -> FsBlock {
        self.number
    }

    fn image(&self) -> Image {
        Arc::clone(&*self.bytes.lock()) as Image
    }

    fn claimed(&self) -> &AtomicU32 {
        &self.claimed
    }
}

impl Drop for LoggedBlock {
    fn drop(&mut self) {
        let mut shard = self.all.shard(self.number).lock();
        // Another one may have come in its place.
        let is_this = |other: &Weak<LoggedBlock>| std::ptr::eq(other.as_ptr(), self);
        if shard.get(&self.number).is_some_and(is_this) {
            shard.remove(&self.number);
        }
        drop(shard);
        self.all.count.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The files whose contents go through the journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Which {
    /// None: there is no journal.
    None,
    /// Those with the flag.
    Flagged,
    /// All: the mount has `data=journal`.
    All,
}

/// The blocks of contents that are in the journal and not home.
pub(crate) struct Logged {
    blocks: Arc<Blocks>,
    block_size: BlockSize,
    which: Which,
    /// Number of blocks that were put into transactions.
    put: AtomicU64,
}

impl Logged {
    pub(crate) fn new(block_size: BlockSize, which: Which) -> Logged {
        let shard = || Mutex::new(Rank::Leaf, HashMap::new());
        let shards = (0..SHARDS).map(|_| shard()).collect();
        let blocks = Arc::new(Blocks { shards, count: AtomicU64::new(0) });
        Logged { blocks, block_size, which, put: AtomicU64::new(0) }
    }

    /// Returns whether the contents of a regular file with these flags go through the journal.
    /// Encrypted contents do not, as in Linux, nor sealed ones, which nobody changes.
    pub(crate) fn takes(&self, flags: InodeFlags) -> bool {
        let never = InodeFlags::ENCRYPT | InodeFlags::VERITY | InodeFlags::EA_INODE;
        let asked = match self.which {
            Which::None => false,
            Which::Flagged => flags.contains(InodeFlags::JOURNAL_DATA),
            Which::All => true,
        };
        asked && !flags.intersects(never)
    }

    /// Returns whether the log may have contents of any file. Costs one load.
    pub(crate) fn has_any(&self) -> bool {
        self.blocks.count.load(Ordering::Acquire) > 0
    }

    /// Returns the number of blocks that were put into transactions.
    pub(crate) fn put(&self) -> u64 {
        self.put.load(Ordering::Relaxed)
    }

    /// Returns the block with this number. The caller claims it, and then
    /// [sets](LoggedBlock::set) its contents; nobody reads it before, because they are cached.
    pub(crate) fn block(&self, number: FsBlock) -> Arc<LoggedBlock> {
        self.put.fetch_add(1, Ordering::Relaxed);
        if let Some(known) = self.blocks.find(number) {
            return known;
        }
        self.blocks.count.fetch_add(1, Ordering::AcqRel);
        let new = Arc::new(LoggedBlock {
            number,
            claimed: AtomicU32::new(0),
            bytes: Mutex::new(Rank::Leaf, Arc::new(Vec::new())),
            all: Arc::clone(&self.blocks),
        });
        // A block has one file, and that one thread that writes it back.
        self.blocks.shard(number).lock().insert(number, Arc::downgrade(&new));
        new
    }
}

impl Newer for Logged {
    fn newer(&self, address: u64, len: u64) -> Vec<(u64, Arc<Vec<u8>>)> {
        if !self.has_any() || len == 0 {
            return Vec::new();
        }
        let bits = self.block_size.log2();
        let (first, last) = (address >> bits, address.saturating_add(len - 1) >> bits);
        let find = |number| {
            let block = self.blocks.find(FsBlock(number))?;
            let bytes = Arc::clone(&*block.bytes.lock());
            Some((number << bits, bytes))
        };
        (first..=last).filter_map(find).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_journal_lets_go_is_not_there_any_more() {
        let logged = Logged::new(BlockSize::new(1024).unwrap(), Which::Flagged);
        let first = logged.block(FsBlock(7));
        first.set(vec![2; 1024]);
        assert!(Arc::ptr_eq(&first, &logged.block(FsBlock(7))));
        let other = logged.block(FsBlock(9));
        other.set(vec![4; 1024]);
        let found = |from, len| {
            let found = logged.newer(from, len);
            found.into_iter().map(|(at, bytes)| (at, bytes[0])).collect::<Vec<_>>()
        };
        assert_eq!(found(7 * 1024 + 512, 3 * 1024), [(7 * 1024, 2), (9 * 1024, 4)]);
        assert_eq!(found(8 * 1024, 1024), []);
        drop(first);
        assert_eq!(found(0, 1 << 20), [(9 * 1024, 4)]);
        assert!(logged.has_any());
        drop(other);
        assert!(!logged.has_any());
        assert_eq!(logged.put(), 3);
    }
}
