//! Summary of a journal's contents.

use extant_jbd2::Replay;

/// The changes that the journal made to the image on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplaySummary {
    /// Number of complete transactions in the log.
    pub transactions: u32,
    /// Number of blocks that are read from the log instead of from their place.
    pub blocks: usize,
    /// Number of valid fast commits on top of them.
    pub fast_commits: u32,
    /// Error with which the journal was aborted, negative as Linux stores it; 0 for none.
    pub errno: i32,
}

impl ReplaySummary {
    pub(crate) fn of(replay: &Replay) -> ReplaySummary {
        ReplaySummary {
            transactions: replay.transactions,
            blocks: replay.blocks.len(),
            fast_commits: replay.fast_commits.as_ref().map_or(0, |overlay| overlay.commits()),
            errno: replay.errno,
        }
    }
}
