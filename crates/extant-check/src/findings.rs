//! Where problems go: to the caller at once, or into a list until it is known that the order in
//! which threads found them does not matter.

use crate::meet::{Answer, Meet};
use crate::{Problem, Report};

/// Problems that one step holds back, at most: 8 MiB or so. A step that finds more begins again
/// on one thread, which tells each at once.
pub(crate) const HELD_MAX: usize = 1 << 16;

/// The report so far, and the caller.
pub(crate) struct Findings<'a> {
    pub(crate) report: Report,
    pub(crate) meet: &'a mut dyn Meet,
    /// Problems that are to be fixed.
    pub(crate) wanted: Vec<Problem>,
    /// Nothing more is to be looked at.
    pub(crate) is_stopped: bool,
    pub(crate) max_problems: usize,
}

impl Findings<'_> {
    /// Notes a broken rule, and asks what is to be done about it.
    pub(crate) fn problem(&mut self, problem: Problem) {
        if self.is_stopped {
            return;
        }
        match self.meet.meet(&problem) {
            Answer::Report => {}
            Answer::Fix => self.wanted.push(problem.clone()),
            Answer::Stop => self.is_stopped = true,
        }
        if self.report.problems.len() < self.max_problems {
            self.report.problems.push(problem);
        } else {
            self.report.dropped = self.report.dropped.saturating_add(1);
        }
    }

    /// Tells how many bytes were gone through, and hears whether to go on.
    pub(crate) fn did(&mut self, bytes: u64) {
        self.meet.did(bytes);
        self.is_stopped |= self.meet.is_cancelled();
    }
}

/// What a piece of a step does with its problems.
pub(crate) enum Sink<'s, 'a> {
    /// Keeps them.
    Hold(Vec<Problem>),
    /// Tells them at once.
    Tell(&'s mut Findings<'a>),
}

impl Sink<'_, '_> {
    pub(crate) fn problem(&mut self, problem: Problem) {
        match self {
            // One more than the limit shows that it was passed.
            Sink::Hold(list) if list.len() <= HELD_MAX => list.push(problem),
            Sink::Hold(_) => {}
            Sink::Tell(findings) => findings.problem(problem),
        }
    }

    pub(crate) fn held(&self) -> usize {
        match self {
            Sink::Hold(list) => list.len(),
            Sink::Tell(_) => 0,
        }
    }

    pub(crate) fn into_held(self) -> Vec<Problem> {
        match self {
            Sink::Hold(list) => list,
            Sink::Tell(_) => Vec::new(),
        }
    }

    /// Returns whether the caller wants no more.
    pub(crate) fn is_stopped(&self) -> bool {
        matches!(self, Sink::Tell(findings) if findings.is_stopped)
    }
}
