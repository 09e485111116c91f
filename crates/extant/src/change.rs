//! What surrounds every change: another try when room can be made, the end of what has no name any more,
//! and the record of damage.
//!
//! # Place
//!
//! Below: `txn`, the allocator, `delete`. Above: every operation that changes something runs inside
//! [`Fs::change`].

use crate::alloc::BLOCKS;
use crate::delete::REMOVALS_MAX;
use crate::error::{FsError, Result};
use crate::fs::Fs;
use crate::quota::NO_CREDITS;
use crate::writer::Writer;

/// How often an operation that found no room commits, to get back what was freed lately, and tries
/// again.
const COMMITS_MAX: usize = 3;

/// How often it does when what it wants is free or was freed, and others were faster: each time somebody got
/// something done, and it would have been refused what it alone would have had.
const ROUNDS_MAX: usize = 64;

impl Fs {
    /// Runs a change while the mount is not frozen, again after a commit if it found no room while freed blocks were waiting for
    /// one; then deletes inodes that lost their last handle.
    pub(crate) fn change<R>(&self, mut run: impl FnMut() -> Result<R>) -> Result<R> {
        let writer = self.volume().writer()?;
        let _inside = writer.enter();
        writer.supers().check_writable()?;
        let mut result = writer.with_commits(&mut run);
        // What was removed lately may wait to be deleted.
        for _ in 0..REMOVALS_MAX {
            if !matches!(result, Err(FsError::NoSpace { .. })) || !self.reclaim() {
                break;
            }
            result = writer.with_commits(&mut run);
        }
        self.reclaim();
        if let Err(error) = &result
            && writer.supers().report(error, writer.now().seconds)
        {
            writer.abort(error);
        }
        result
    }
}

impl Writer {
    /// Runs what may find no space, and again after a commit while blocks that were freed wait for
    /// one, or when somebody else's commit brought some back meanwhile (P54). The caller holds no
    /// handle, and what `run` does is whole or not at all.
    ///
    /// # Errors
    ///
    /// Those of `run`, and of a commit.
    pub(crate) fn with_commits<R>(&self, mut run: impl FnMut() -> Result<R>) -> Result<R> {
        let alloc = self.alloc();
        let journal = self.journal();
        for round in 0.. {
            let returned = alloc.returns();
            let result = run();
            let Err(FsError::NoSpace { what, wanted, .. }) = &result else { return result };
            let others = *what == BLOCKS && *wanted <= alloc.within_reach();
            if round >= if others { ROUNDS_MAX } else { COMMITS_MAX } {
                return result;
            }
            if *what == NO_CREDITS || alloc.worth_a_commit() {
                journal.commit(journal.running()).map_err(FsError::from_journal)?;
            } else if alloc.returns() == returned {
                return result;
            }
        }
        run()
    }
}
