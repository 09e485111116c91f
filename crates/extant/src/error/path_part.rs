//! The part of a path that an error concerns.

use std::fmt;

use super::FsError;

/// A path passed by the caller, and the name in it that an error concerns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathPart {
    path: Box<[u8]>,
    component: Box<[u8]>,
}

impl PathPart {
    /// Returns the path as the caller passed it.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// Returns the name that the error concerns: a part of the path, or of the target of a symbolic
    /// link on the way. It is empty when the path is empty.
    pub fn component(&self) -> &[u8] {
        &self.component
    }
}

impl fmt::Display for PathPart {
    /// Prints the path, and the name unless it is the last one; bytes that are not printable ASCII
    /// are escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.escape_ascii())?;
        let end = self.path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let is_last =
            self.path[..end].rsplit(|byte| *byte == b'/').next() == Some(&*self.component);
        if !is_last && !self.component.is_empty() {
            write!(f, " (at {})", self.component.escape_ascii())?;
        }
        Ok(())
    }
}

impl FsError {
    /// Returns the error with the path and the name that it concerns, for errors that have a field
    /// for them that is not filled yet.
    pub(crate) fn in_path(mut self, path: &[u8], component: &[u8]) -> FsError {
        if let Self::NotFound { at, .. }
        | Self::NotADirectory { at, .. }
        | Self::SymlinkLoop { at, .. } = &mut self
            && at.is_none()
        {
            *at = Some(Box::new(PathPart { path: path.into(), component: component.into() }));
        }
        self
    }
}
