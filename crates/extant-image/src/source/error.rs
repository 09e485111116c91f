//! Why a source cannot be read.

use std::fmt;
use std::io;

use extant_oci::OciError;
use extant_sync::threads::ThreadError;

use crate::signature::Found;
use crate::tree::TreeError;

/// Why a source cannot be turned into a tree, or its contents not be read.
#[derive(Debug)]
pub enum SourceError {
    /// The system refused a call on a file of the source.
    Io {
        /// The action that failed: "open", "read", "list the attributes of".
        doing: &'static str,
        /// Path in the source.
        path: String,
        /// The system's answer.
        cause: io::Error,
    },
    /// A file is not what it was when it was scanned.
    Changed {
        /// Path in the source.
        path: String,
        /// The difference, with numbers.
        what: String,
    },
    /// The archive is damaged, cut short or asks for something dangerous.
    Archive {
        /// Name of the archive.
        archive: String,
        /// Byte offset in the (uncompressed) archive of the member in question.
        offset: u64,
        /// Description, naming the member.
        what: String,
    },
    /// The file given as an archive is not one.
    NotTar {
        /// Name of the file.
        archive: String,
        /// Its actual kind, where that is known.
        found: Option<Found>,
        /// How the whole is packed, if it had to be unpacked to be looked at: "gzip", "zstd".
        packed: Option<&'static str>,
        /// Why it cannot be an archive, with numbers.
        why: String,
    },
    /// A file or directory of the host cannot be added where it is wanted.
    Addition {
        /// The file or directory of the host.
        host: String,
        /// Path in the image.
        path: String,
        /// What is in the way.
        what: String,
    },
    /// What fakeroot saved cannot be used.
    Fakeroot {
        /// The file that it saved, or the file of the source that it does not fit.
        path: String,
        /// The fault.
        what: String,
    },
    /// The container image cannot be had.
    Image(OciError),
    /// The names collected do not make a tree.
    Tree(TreeError),
    /// Whoever started the scan cancelled it.
    Interrupted,
    /// The threads that should have read the source could not be had, or failed.
    Threads(ThreadError),
}

impl SourceError {
    /// The file or directory of the host that it is about, where that is one of the sources.
    pub fn archive(&self) -> Option<&str> {
        match self {
            SourceError::Io { path, .. } | SourceError::Addition { host: path, .. } => Some(path),
            SourceError::Archive { archive, .. } | SourceError::NotTar { archive, .. } => {
                Some(archive)
            }
            SourceError::Image(error) => Some(&error.place),
            _ => None,
        }
    }

    pub(crate) fn io(doing: &'static str, path: &[u8], cause: impl Into<io::Error>) -> SourceError {
        SourceError::Io { doing, path: path.escape_ascii().to_string(), cause: cause.into() }
    }
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SourceError::Io { doing, path, .. } => write!(f, "cannot {doing} \"{path}\""),
            SourceError::Changed { path, what } => {
                write!(f, "\"{path}\" changed while the image was being built: {what}")
            }
            SourceError::Addition { host, path, what } => {
                write!(f, "cannot add \"{host}\" as \"{path}\": {what}")
            }
            SourceError::Fakeroot { path, what } => write!(f, "{path}: {what}"),
            SourceError::Archive { archive, offset, what } => {
                write!(f, "{archive}: at byte {offset}: {what}")
            }
            SourceError::NotTar { archive, found, packed, why } => {
                write!(f, "{archive}: this is ")?;
                match (found, packed) {
                    (Some(found), None) => write!(f, "{}, not a tar archive", found.name),
                    (Some(found), Some(packed)) => {
                        write!(f, "{}, packed with {packed}, not a tar archive", found.name)
                    }
                    (None, None) => write!(f, "not a tar archive: {why}"),
                    (None, Some(packed)) => {
                        write!(f, "packed with {packed}, and not a tar archive: {why}")
                    }
                }
            }
            SourceError::Image(e) => e.fmt(f),
            SourceError::Tree(e) => e.fmt(f),
            SourceError::Interrupted => f.write_str("interrupted"),
            SourceError::Threads(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for SourceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SourceError::Io { cause, .. } => Some(cause),
            SourceError::Changed { .. }
            | SourceError::Addition { .. }
            | SourceError::Fakeroot { .. }
            | SourceError::Archive { .. }
            | SourceError::NotTar { .. } => None,
            SourceError::Image(e) => e.source(),
            SourceError::Tree(_) | SourceError::Interrupted => None,
            // Display already says all of it but the cause.
            SourceError::Threads(e) => e.source(),
        }
    }
}

impl From<TreeError> for SourceError {
    fn from(e: TreeError) -> SourceError {
        SourceError::Tree(e)
    }
}

impl From<ThreadError> for SourceError {
    fn from(e: ThreadError) -> SourceError {
        SourceError::Threads(e)
    }
}

impl From<OciError> for SourceError {
    fn from(e: OciError) -> SourceError {
        SourceError::Image(e)
    }
}
