//! The seal of a file in memory: parameters and root of its hash tree, and blocks of trees that were
//! found to be right.
//!
//! # Invariants
//!
//! - H1. A block of a tree is in the cache of blocks only if its hash was compared with the block
//!   above it, up to the root; and its key has the number of the seal, which no other seal ever
//!   gets.
//! - H2. The cache of blocks has a fixed number of entries for the whole mount.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use extant_verity::{Descriptor, Hash, Hasher, Shape};

use crate::cache::{Cache, Evict};

/// What a file is checked against.
#[derive(Debug)]
pub(crate) struct Seal {
    pub(crate) descriptor: Descriptor,
    pub(crate) digest: Hash,
    pub(crate) shape: Shape,
    pub(crate) hasher: Hasher,
    /// First byte of the tree in the file.
    pub(crate) start: u64,
    number: u64,
}

/// The place in an inode for its seal, which never changes.
pub(crate) type SealSlot = OnceLock<Arc<Seal>>;

/// A block of a hash tree that was compared with those above it.
#[derive(Clone, Debug)]
pub(crate) struct TreeBlock(Arc<[u8]>);

impl Evict for TreeBlock {
    type Trace = ();
}

/// Blocks of hash trees of a mount that were found to be right.
pub(crate) struct TreeBlocks {
    blocks: Cache<(u64, u64), TreeBlock>,
    next: AtomicU64,
}

impl TreeBlocks {
    /// Creates an empty cache for so many blocks.
    pub(crate) fn new(entries: usize) -> TreeBlocks {
        TreeBlocks { blocks: Cache::new(entries), next: AtomicU64::new(0) }
    }

    /// Creates the seal that a descriptor describes.
    pub(crate) fn seal(&self, descriptor: Descriptor, shape: Shape, start: u64) -> Seal {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (digest, hasher) = (descriptor.digest(), descriptor.hasher());
        Seal { descriptor, digest, shape, hasher, start, number }
    }

    /// Returns block `index` of the tree, if it is known to be right.
    pub(crate) fn get(&self, seal: &Seal, index: u64) -> Option<TreeBlock> {
        self.blocks.get(&(seal.number, index))
    }

    /// Keeps block `index` of the tree, which was found to be right (H1).
    pub(crate) fn keep(&self, seal: &Seal, index: u64, bytes: Vec<u8>) -> TreeBlock {
        self.blocks.get_or_insert_with((seal.number, index), || TreeBlock(bytes.into()))
    }
}

impl TreeBlock {
    /// Returns whether the block has `hash` at byte `at`.
    pub(crate) fn has(&self, at: usize, hash: &Hash) -> bool {
        let hash = hash.as_bytes();
        self.0.get(at..at + hash.len()) == Some(hash)
    }
}
