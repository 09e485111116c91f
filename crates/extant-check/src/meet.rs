//! Reactions to broken rules: the checker asks, and its caller answers.

use crate::Problem;

/// Reaction to a problem.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Answer {
    /// Add it to the report.
    Report,
    /// Add it to the report and to [`Examination::wanted`](crate::Examination::wanted), for a
    /// repair.
    Fix,
    /// Add it to the report and end the check.
    Stop,
}

/// The caller's side of a check, which answers for each problem.
pub trait Meet {
    /// Called once for each broken rule, in the order found.
    fn meet(&mut self, problem: &Problem) -> Answer;

    /// Called once, when the descriptors were read: how many bytes there are to go through, of
    /// inode tables, directories and bitmaps as far as they are known.
    fn begins(&mut self, bytes: u64) {
        let _ = bytes;
    }

    /// Called now and then, with how many more of these bytes were gone through.
    fn did(&mut self, bytes: u64) {
        let _ = bytes;
    }

    /// Asked now and then. Once true, the check ends, as after [`Answer::Stop`].
    fn is_cancelled(&self) -> bool {
        false
    }
}

/// Wants everything in the report.
#[derive(Clone, Copy, Debug)]
pub struct ReportAll;

impl Meet for ReportAll {
    fn meet(&mut self, _problem: &Problem) -> Answer {
        Answer::Report
    }
}

impl<F: FnMut(&Problem) -> Answer> Meet for F {
    fn meet(&mut self, problem: &Problem) -> Answer {
        self(problem)
    }
}
