//! Summary of the orphans recovered by a mount.

use crate::error::{Family, FsError, Result};

/// Limit of the errors kept; further ones are only counted.
const ERRORS_MAX: usize = 16;

/// The result of recovering the orphans of an unclean file system.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct OrphanSummary {
    /// Number of inodes without names that were deleted.
    pub deleted: u64,
    /// Number of inodes truncated to their size.
    pub shortened: u64,
    /// Number of damaged orphans, which stay for e2fsck.
    pub damaged: u64,
    /// Errors of the first of them.
    pub errors: Vec<FsError>,
    /// Whether the list was discarded unread, because the file system is marked as having errors
    /// and its members may be in use.
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
