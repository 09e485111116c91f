//! Which process a mount belongs to.

use pyo3::PyResult;

use crate::error::refused;

const EBADF: i32 = 9;

/// The process that a mount for writing belongs to. A fork has neither the threads of the mount nor what it will write
/// later: whatever it stored would destroy what the other one stores.
#[derive(Clone, Copy)]
pub(crate) struct Home(Option<u32>);

impl Home {
    pub(crate) fn of(writable: bool) -> Home {
        Home(writable.then(std::process::id))
    }

    pub(crate) fn is_here(self) -> bool {
        self.0.is_none_or(|process| process == std::process::id())
    }

    pub(crate) fn check(self) -> PyResult<()> {
        match self.0 {
            Some(process) if !self.is_here() => {
                let text = format!(
                    "the file system was mounted for writing by process {process}, of which this one is a fork"
                );
                Err(refused(EBADF, &text))
            }
            _ => Ok(()),
        }
    }
}
