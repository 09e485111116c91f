//! Reading and writing what is used once, without filling the page cache with it.

use super::flush::Store;
use super::io::WriteAsk;
use crate::error::Result;
use crate::inode::Inode;

/// Bytes written so to one file after which the writer writes them back.
const WRITE_BACK_BYTES: u64 = 4 << 20;

impl Inode {
    /// Reads like [`read_at`](Self::read_at), for contents that are not needed again, as backups and
    /// scans read them (`RWF_DONTCACHE` on Linux). They go through the page cache, with read-ahead;
    /// what was not in it before leaves it when the reader has passed, unless somebody else has
    /// used it meanwhile. What others have there stays.
    ///
    /// # Errors
    ///
    /// As [`read_at`](Self::read_at).
    ///
    /// # Cost
    ///
    /// That of [`read_at`](Self::read_at). The cache holds what is being read and what was fetched
    /// ahead, a few MiB for each reader.
    pub fn read_once_at(&self, out: &mut [u8], offset: u64) -> Result<usize> {
        self.check_contents()?;
        if !self.volume().is_writable() {
            return self.read_at(out, offset);
        }
        let _content = self.node().content.read();
        self.fs()
            .with_mapper(self.node(), |mapper| mapper.file.cache.read_once(mapper, offset, out))
    }

    /// Writes like [`write_at`](Self::write_at), for contents that are not needed again
    /// (`RWF_DONTCACHE`). What the page cache did not have before leaves it when it is on the
    /// device, which happens at the latest after 4 MiB of such writes to the file.
    ///
    /// # Errors
    ///
    /// As [`write_at`](Self::write_at). An error of that writeback is reported by the next
    /// [`sync`](Self::sync), and the data stays.
    ///
    /// # Cost
    ///
    /// That of [`write_at`](Self::write_at), and writeback after each 4 MiB.
    pub fn write_once_at(&self, bytes: &[u8], offset: u64) -> Result<usize> {
        let (_, written) = self.write_parts(WriteAsk::at(offset).once(), std::iter::once(bytes))?;
        if let Some(file) = self.node().file_in_use()
            && file.cache.take_once(WRITE_BACK_BYTES)
        {
            // Counted for the next sync, and tried again.
            let _ = self.fs().flush_file(self.node(), u64::MAX, Store::Contents);
        }
        Ok(written)
    }
}
