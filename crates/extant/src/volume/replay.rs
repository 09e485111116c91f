//! What a journal added.

use extant_jbd2::Replay;

/// What the journal added to the image as it lies on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReplaySummary {
    /// Complete transactions in the log.
    pub transactions: u32,
    /// Blocks that are read from the log instead of from their place.
    pub blocks: usize,
    /// Valid fast commits on top of them.
    pub fast_commits: u32,
    /// The error that the journal was aborted with, negative as Linux stores it; 0 for none.
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
