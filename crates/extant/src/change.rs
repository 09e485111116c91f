//! The frame of every change: retries when space can be freed, deletion of inodes without names,
//! and the record of damage.
//!
//! # Place
//!
//! Below: `txn`, the allocator, `delete`. Above: every operation that changes something runs inside
//! [`Fs::change`].

use extant_base::sabotage;

use crate::alloc::BLOCKS;
use crate::delete::REMOVALS_MAX;
use crate::error::{FsError, Result};
use crate::fs::Fs;
use crate::quota::NO_CREDITS;
use crate::writer::Writer;

/// Number of times an operation without space commits, to release recently freed blocks, and is
/// repeated.
const COMMITS_MAX: usize = 3;

/// Number of repetitions when other threads took the space that was free or freed: each repetition
/// means that another thread made progress, and giving up would refuse space that the operation
/// alone would have got.
const ROUNDS_MAX: usize = 64;

impl Fs {
    /// Runs a change while the mount is not frozen, again after a commit if it found no space while
    /// freed blocks were waiting for one, and again if it found none, or no quota, while inodes that
    /// lost their last handle waited for their deletion; then deletes such inodes.
    pub(crate) fn change<R>(&self, mut run: impl FnMut() -> Result<R>) -> Result<R> {
        let writer = self.volume().writer()?;
        let _inside = writer.enter();
        // What goes into the cache alone needs no transaction that would be refused.
        if !sabotage("extant.unmount.cache-takes-more") {
            writer.check_open()?;
        }
        writer.supers().check_writable()?;
        let mut result = writer.with_commits(&mut run);
        // Recently removed files may be waiting for deletion.
        for _ in 0..REMOVALS_MAX {
            let is_full =
                matches!(result, Err(FsError::NoSpace { .. } | FsError::QuotaExceeded { .. }));
            if !is_full || sabotage("extant.change.removals-wait") || !self.reclaim() {
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
    /// Runs an operation that may find no space, and again after a commit while freed blocks wait
    /// for one, or when another thread's commit released some meanwhile (P54). The caller holds no
    /// handle, and `run` has an effect as a whole or not at all.
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
