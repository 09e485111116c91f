//! The caller's side of a repair: what was found, and what is decided about it.

use extant_check::{Objects, Problem, Severity};

/// A finding that needs a decision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fix {
    /// The name of the broken rule, for programs.
    pub code: &'static str,
    /// Description of the problem.
    pub message: String,
    /// Description of the repair.
    pub fix: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// Objects of the problem.
    pub objects: Objects,
    /// Whether a check finds it, too: not what Linux leaves when a machine stops, and what follows from that, and no
    /// order that is only better than the one there is.
    pub is_damage: bool,
    /// What the repair costs that another command may save before anything is written.
    pub hint: Option<String>,
    /// Why it was left as it is; `None`: it was set right.
    pub left: Option<String>,
}

impl Fix {
    pub(crate) fn of(problem: &Problem, is_damage: bool) -> Fix {
        Fix {
            code: problem.code(),
            message: problem.to_string(),
            fix: problem.fix(),
            severity: problem.severity(),
            objects: problem.objects(),
            is_damage,
            hint: None,
            left: None,
        }
    }
}

/// Decision about one finding.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Decision {
    /// Repair it.
    Fix,
    /// Leave it.
    Leave,
    /// The repair ends, and nothing is changed but what the journal holds.
    Stop,
}

/// The caller's side of a repair, which decides.
pub trait Ask {
    /// Called once for each finding, before anything is done about it.
    fn ask(&mut self, finding: &Fix) -> Decision;

    /// Called when a round begins.
    fn round(&mut self, _number: u32) {}
}

/// Decides to repair everything.
#[derive(Clone, Copy, Debug)]
pub struct Yes;

impl Ask for Yes {
    fn ask(&mut self, _finding: &Fix) -> Decision {
        Decision::Fix
    }
}

/// Sets right what can be computed, and stops at anything else.
#[derive(Clone, Copy, Debug)]
pub struct Preen;

impl Ask for Preen {
    fn ask(&mut self, finding: &Fix) -> Decision {
        match finding.severity {
            Severity::Count => Decision::Fix,
            _ => Decision::Stop,
        }
    }
}
