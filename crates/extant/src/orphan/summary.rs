//! What became of orphans when a file system was mounted.

use crate::error::{Family, FsError, Result};

/// Orphans whose damage is told one by one; more are counted.
const ERRORS_MAX: usize = 16;

/// What recovering the orphans of an unclean file system did.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct OrphanSummary {
    /// Inodes without names, deleted.
    pub deleted: u64,
    /// Inodes cut to their size.
    pub shortened: u64,
    /// Orphans that are damaged and stay for e2fsck.
    pub damaged: u64,
    /// What is wrong with the first of them.
    pub errors: Vec<FsError>,
    /// The list was thrown away unread: the file system is marked as having errors, and what it
    /// names may be in use.
    pub list_ignored: bool,
}

impl OrphanSummary {
    pub(crate) fn damage(&mut self, error: FsError) -> Result<()> {
        if error.family() != Family::Damage && !matches!(error, FsError::NoSuchInode { .. }) {
            return Err(error);
        }
        self.damaged += 1;
        if self.errors.len() < ERRORS_MAX {
            self.errors.push(error);
        }
        Ok(())
    }
}
