//! What administrators ask of an open file system: settings, limits, and who may have the last blocks.

use extant_format::superblock::Superblock;

use crate::access::Credentials;
use crate::alloc::{Right, SpaceFor};
use crate::error::Result;
use crate::mount::Fs;
use crate::supers::Tune;
use crate::txn::Txn;

/// # Settings and space
impl Fs {
    /// Changes settings, all of them in one transaction.
    ///
    /// Backup superblocks keep the old ones, until e2fsck writes them anew.
    ///
    /// # Errors
    ///
    /// [`FsError::InvalidArgument`] says which setting cannot be had and why: then nothing has
    /// changed. [`FsError::ReadOnly`], [`FsError::Aborted`], device errors.
    pub fn tune(&self, tune: &Tune) -> Result<()> {
        let supers = self.volume().writer()?.supers();
        // Tried on a copy first: what is refused must not open a transaction.
        tune.apply(&mut supers.with(Superblock::clone))?;
        let mut txn = Txn::begin(self.volume(), 1)?;
        let reserved = supers.change(&mut txn, |superblock| {
            tune.apply(superblock).map(|()| superblock.reserved_blocks_count)
        })??;
        txn.writer().alloc().set_reserve(self.volume(), reserved);
        Ok(())
    }

    /// Bytes that can be written into holes or behind the end of files now, by whoever may use reserved
    /// blocks or not: so much is promised without waiting for anything. What was removed lately counts when
    /// a commit has released it. 0 on a mount for reading.
    ///
    /// # Cost
    ///
    /// A few loads; the answer may be out of date when it arrives.
    pub fn room(&self, may_use_reserve: bool) -> u64 {
        let Ok(writer) = self.volume().writer() else { return 0 };
        let right = if may_use_reserve { Right::Privileged } else { Right::Ordinary };
        let superblock = self.superblock();
        let bits = superblock.cluster_bits() + superblock.block_size.log2();
        let clusters = writer.alloc().promisable(right);
        clusters.checked_shl(bits).unwrap_or(u64::MAX)
    }

    /// Whether `who` may take blocks that the superblock reserves: root, its user and its group may.
    pub fn may_use_reserve(&self, who: &Credentials) -> bool {
        let superblock = self.superblock();
        who.is_root() || who.uid == superblock.reserved_uid || who.is_in(superblock.reserved_gid)
    }

    /// What this thread does from now on, until the guard is dropped, takes space for somebody who may
    /// use reserved blocks or not, in whichever file system. Without it a program counts as the owner of
    /// the device, who may.
    pub fn take_space_for(&self, may_use_reserve: bool) -> SpaceFor {
        SpaceFor::begin(may_use_reserve)
    }
}
