//! Moving the data of a small file out of its inode, to a block.
//!
//! The bytes go through the page cache like any others: they become delayed and dirty, and
//! writeback places and writes them before a handle publishes the block (`mapper`). That handle
//! also removes the inline data from the inode, so after a crash the data is in one of the two
//! places.

use extant_base::sabotage;

use super::FileMapper;
use crate::error::Result;
use crate::inline;
use crate::txn::Txn;

impl FileMapper<'_> {
    /// Moves the data of a regular file from its inode to a block, whatever its size; does nothing
    /// for files without inline data. The caller holds the content lock exclusively and no
    /// transaction.
    ///
    /// # Errors
    ///
    /// Damage, device errors, no space or quota for the block: the data stays in the inode.
    pub(crate) fn move_out(&self) -> Result<()> {
        if !inline::is_inline(self.node) {
            return Ok(());
        }
        let bytes = inline::stored(self.node)?;
        if bytes.iter().all(|byte| *byte == 0) {
            // Zeros need no block.
            let mut txn = Txn::begin(self.volume(), inline::LEAVE_CREDITS)?;
            let left = inline::leave(&mut txn, self.fs, self.node);
            self.file.mapping_changed();
            return left.map_err(|error| txn.fail(error));
        }
        self.delay(0..1)?;
        let moved = self.bring_out(&bytes);
        if inline::is_inline(self.node) && !sabotage("extant.inline.block-kept-on-error") {
            // Nothing points to the block, so the data in the inode stays valid.
            let kept_out = self.file.cache.keep_writeback_out();
            self.file.cache.forget(0..1 << self.bits(), &kept_out);
            self.file.drop_delayed(self.volume(), self.node, 0..1);
        }
        moved
    }

    fn bring_out(&self, bytes: &[u8]) -> Result<()> {
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            done += self.file.cache.write(self, done as u64, rest)?.max(1);
        }
        self.file.cache.write_back(self, 0..1 << self.bits()).map(drop)
    }
}
