//! What every step reads and none changes: the device, the superblock, the descriptors; and the
//! claims and the states of inodes, which all add to.

use std::sync::atomic::{AtomicBool, Ordering};

use extant_base::Ino;
use extant_block::BlockDevice;
use extant_format::dir::DirLayout;
use extant_format::group::{GroupChecksum, GroupDescriptor};
use extant_format::inode::{InodeLayout, InodesVerifier};
use extant_format::superblock::Superblock;

use crate::claims::Claims;
use crate::plain::Plain;
use crate::states::States;
use crate::{CheckError, CheckOptions, Problem};

/// What is read faster than threads are started.
const SMALL_BYTES: u64 = 1 << 18;
/// Threads, at most.
const THREADS_MAX: usize = 64;

pub(crate) struct Base<'a> {
    pub(crate) device: &'a dyn BlockDevice,
    pub(crate) options: CheckOptions,
    pub(crate) sb: Superblock,
    pub(crate) seed: u32,
    pub(crate) inode_layout: InodeLayout,
    /// Verifies the checksums of a block of inodes at once.
    pub(crate) verifier: Option<Box<InodesVerifier>>,
    pub(crate) dir_layout: DirLayout,
    pub(crate) group_checksum: GroupChecksum,
    pub(crate) groups: Vec<GroupDescriptor>,
    /// Clusters of fixed metadata in each group.
    pub(crate) fixed: Vec<u32>,
    pub(crate) claims: Claims,
    pub(crate) states: States,
    /// How plain files are recognised, where they are.
    pub(crate) plain: Option<Plain>,
    /// Whether the results are for a repair, which wants to know more of each inode.
    pub(crate) is_full: bool,
    /// Something could not be read, so that what is missing elsewhere may be there.
    pub(crate) is_partial: AtomicBool,
}

impl Base<'_> {
    /// Threads for a step that reads so many bytes. Unless the caller says how many, one where
    /// starting more takes longer than the step.
    pub(crate) fn threads(&self, bytes: u64) -> usize {
        let threads = match self.options.threads {
            Some(threads) => threads.get(),
            None if bytes < SMALL_BYTES => 1,
            None => extant_sync::threads::available(),
        };
        threads.min(THREADS_MAX)
    }

    /// Returns whether `len` blocks from `block` on belong to groups.
    pub(crate) fn in_range(&self, block: u64, len: u64) -> bool {
        block >= u64::from(self.sb.first_data_block)
            && block.checked_add(len).is_some_and(|end| end <= self.sb.blocks_count)
            && block != 0
    }

    /// The cluster of a block in range.
    pub(crate) fn cluster(&self, block: u64) -> u64 {
        block.saturating_sub(u64::from(self.sb.first_data_block)) >> self.sb.cluster_bits()
    }

    /// Reads one block, which must be in range.
    pub(crate) fn read_block(&self, block: u64, out: &mut Vec<u8>) -> Result<(), CheckError> {
        self.read_blocks(block, 1, out)
    }

    /// Reads blocks that must be in range.
    pub(crate) fn read_blocks(
        &self,
        block: u64,
        len: u32,
        out: &mut Vec<u8>,
    ) -> Result<(), CheckError> {
        let size = self.sb.block_size.len();
        out.resize(size.saturating_mul(len as usize), 0);
        self.device.read_at(block.saturating_mul(size as u64), out)?;
        Ok(())
    }

    pub(crate) fn is_reserved(&self, ino: Ino) -> bool {
        ino.0 < self.sb.first_inode.0 && ino != Ino::ROOT
    }

    /// Returns whether a field of the superblock names the inode, which has no name then, except
    /// for a journal among ordinary inodes.
    pub(crate) fn is_special(&self, ino: Ino) -> bool {
        let sb = &self.sb;
        self.is_reserved(ino)
            || ino == sb.user_quota_inode
            || ino == sb.group_quota_inode
            || ino == sb.project_quota_inode
            || ino == sb.orphan_file_inode
    }

    /// The problem that a block cannot be read, if the check is to go on without it.
    ///
    /// # Errors
    ///
    /// `error` itself, if not.
    pub(crate) fn unreadable(
        &self,
        error: CheckError,
        what: impl FnOnce() -> String,
    ) -> Result<Problem, CheckError> {
        match error {
            CheckError::Device(error) if self.options.skip_unreadable => {
                self.is_partial.store(true, Ordering::Relaxed);
                let block = error.offset() / u64::from(self.sb.block_size.bytes()).max(1);
                let why = match std::error::Error::source(&error) {
                    Some(source) => source.to_string(),
                    None => error.to_string(),
                };
                let block = extant_base::FsBlock(block);
                Ok(Problem::Unreadable { what: what(), block, why })
            }
            other => Err(other),
        }
    }

    /// Returns whether some part was not read.
    pub(crate) fn is_partial(&self) -> bool {
        self.is_partial.load(Ordering::Relaxed)
    }
}
