//! Where in a path something went wrong.

use std::fmt;

use super::FsError;

/// A path that was given, and the one name in it that an error is about.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PathPart {
    path: Box<[u8]>,
    component: Box<[u8]>,
}

impl PathPart {
    /// Returns the path as it was given.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// Returns the name that the error is about. It is a part of the path, or of the target of a symbolic link on
    /// the way; it is empty when the path is.
    pub fn component(&self) -> &[u8] {
        &self.component
    }
}

impl fmt::Display for PathPart {
    /// Shows the path, and the name if it is not the last one; what is not UTF-8 as escapes.
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
    /// The same error with the path that was given and the name in it where it came up, for the errors that have
    /// room for that and do not say it already.
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
