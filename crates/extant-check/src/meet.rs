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
