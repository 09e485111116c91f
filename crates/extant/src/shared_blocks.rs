//! Attribute blocks shared by several inodes.
//!
//! # Invariants
//!
//! - X1. Reference counts are read and changed under one lock: a block that another inode is about
//!   to share is not rewritten.
//! - X2. Every block in the table is an attribute block in use: it is added when it is written, and
//!   removed before it is freed or rewritten.

use std::sync::Arc;

use extant_base::{FsBlock, Ino, sabotage};
use extant_format::xattr::{BLOCK_HEADER_BYTES, BlockHeader, decode_block, verify_block};
use extant_sync::{Mutex, Rank};

use crate::editor::Editor;
use crate::error::{Fault, FsError, Result};
use crate::slot::{BlockKind, MetaBlock};

use crate::volume::Volume;

/// Limit of the inodes that share a block, as in Linux.
const REFERENCES_MAX: u32 = 1024;

/// Number of blocks remembered by their hash.
const KNOWN: usize = 1024;

/// Stands for "any inode" as the owner of a verified block.
const SHARED: Ino = Ino(u32::MAX);

/// The attribute blocks of a writable mount.
pub(crate) struct SharedBlocks {
    /// The last block written for each hash modulo [`KNOWN`]. Rank `Group`: blocks are claimed and
    /// changed under this lock, and nothing is allocated.
    known: Mutex<Vec<Option<(u32, FsBlock)>>>,
}

impl SharedBlocks {
    pub(crate) fn new() -> SharedBlocks {
        SharedBlocks { known: Mutex::new(Rank::Group, vec![None; KNOWN]) }
    }

    /// Adds a block that was just written for one inode.
    pub(crate) fn note(&self, block: FsBlock, bytes: &[u8]) {
        put(&mut self.known.lock(), block, bytes);
    }

    /// Finds a block with the contents of `bytes` (apart from the header) and adds a reference to
    /// it. One credit.
    pub(crate) fn join(&self, txn: &mut Editor<'_>, bytes: &[u8]) -> Result<Option<FsBlock>> {
        let Some(hash) = hash_of(bytes) else { return Ok(None) };
        let known = self.known.lock();
        let Some((_, block)) = known.get(place(hash)).copied().flatten().filter(|k| k.0 == hash)
        else {
            return Ok(None);
        };
        // Blocks written here are valid; if this one cannot be read, another block will do.
        let Ok(found) = read_block(txn.volume(), None, block) else { return Ok(None) };
        let Ok((header, _)) = decode_block(found.bytes()) else { return Ok(None) };
        let same = found.bytes().get(BLOCK_HEADER_BYTES..) == bytes.get(BLOCK_HEADER_BYTES..);
        let same = same || sabotage("extant.xattr.equal-hash-is-equal");
        if !same || header.hash != hash || !(1..REFERENCES_MAX).contains(&header.references) {
            return Ok(None);
        }
        drop(found);
        set_references(txn, block, header.references + 1)?;
        Ok(Some(block))
    }

    /// Gives a block new contents, if only one inode uses it. One credit.
    pub(crate) fn rewrite(
        &self,
        txn: &mut Editor<'_>,
        block: FsBlock,
        bytes: &[u8],
    ) -> Result<bool> {
        let mut known = self.known.lock();
        let old = read_block(txn.volume(), None, block)?;
        if references(old.bytes()) > 1 && !sabotage("extant.xattr.shared-block-changed") {
            return Ok(false);
        }
        forget(&mut known, block, old.bytes());
        drop(old);
        txn.edit_block(block, kind(txn.volume()), |to| to.copy_from_slice(bytes))?;
        put(&mut known, block, bytes);
        Ok(true)
    }

    /// Removes a reference; returns true when it was the last one and the caller must free the
    /// block. One credit.
    pub(crate) fn leave(&self, txn: &mut Editor<'_>, block: FsBlock) -> Result<bool> {
        let mut known = self.known.lock();
        let old = read_block(txn.volume(), None, block)?;
        let references = references(old.bytes());
        if references <= 1 {
            forget(&mut known, block, old.bytes());
            return Ok(true);
        }
        drop(old);
        set_references(txn, block, references - u32::from(!sabotage("extant.xattr.user-kept")))?;
        Ok(false)
    }
}

/// Returns how an attribute block is sealed.
pub(crate) fn kind(volume: &Volume) -> BlockKind {
    match volume.has_metadata_csum() {
        true => BlockKind::Xattr { seed: volume.checksum_seed() },
        false => BlockKind::Plain,
    }
}

fn set_references(txn: &mut Editor<'_>, block: FsBlock, references: u32) -> Result<()> {
    let kind = kind(txn.volume());
    txn.edit_block(block, kind, |bytes| BlockHeader::set_references(bytes, references))
}

fn references(bytes: &[u8]) -> u32 {
    decode_block(bytes).map_or(1, |(header, _)| header.references)
}

/// Returns the hash of a block that may be shared.
fn hash_of(bytes: &[u8]) -> Option<u32> {
    decode_block(bytes).ok().map(|(header, _)| header.hash).filter(|hash| *hash != 0)
}

fn place(hash: u32) -> usize {
    hash as usize % KNOWN
}

fn put(known: &mut [Option<(u32, FsBlock)>], block: FsBlock, bytes: &[u8]) {
    if let Some(hash) = hash_of(bytes)
        && let Some(slot) = known.get_mut(place(hash))
    {
        *slot = Some((hash, block));
    }
}

fn forget(known: &mut [Option<(u32, FsBlock)>], block: FsBlock, bytes: &[u8]) {
    if let Some(hash) = hash_of(bytes)
        && let Some(slot) = known.get_mut(place(hash))
        && *slot == Some((hash, block))
    {
        *slot = None;
    }
}

/// Returns the current version of an attribute block, with its checksum verified. `ino` is the
/// inode that points to it.
pub(crate) fn read_block(volume: &Volume, ino: Option<Ino>, at: FsBlock) -> Result<Arc<MetaBlock>> {
    volume.check_file_blocks("extended attribute block pointer", ino, None, at, 1)?;
    let block = volume.read_block(at)?;
    if volume.verifies_metadata() {
        // Blocks are shared: the checksum does not depend on the inode.
        block
            .verify_once(SHARED, |bytes| {
                verify_block(volume.checksum_seed(), at, bytes).map_err(Fault::from)
            })
            .map_err(|fault| FsError::corrupt("extended attributes", ino, at, fault))?;
    }
    Ok(block)
}
