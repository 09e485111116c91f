//! Why a file behind a server could not be read.

use std::io;

/// Why a file behind a server could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpError {
    /// The address makes no sense.
    #[error("{address}: {what}")]
    Address {
        /// The address.
        address: String,
        /// The rule that it breaks.
        what: &'static str,
    },
    /// There is no answer, or not all of it, after all attempts.
    #[error("{address}: no answer in {attempts} attempts")]
    Connect {
        /// The address.
        address: String,
        /// How often it was tried.
        attempts: u32,
        /// What happened the last time.
        #[source]
        source: io::Error,
    },
    /// The server does not prove who it is.
    #[error("{address}: its certificate is not believed: {what}")]
    Untrusted {
        /// The address.
        address: String,
        /// What is wrong with it.
        what: String,
    },
    /// The server has no such file, does not give it, or cannot now.
    #[error("{address}: the server answers {status}: {what}")]
    Refused {
        /// The address.
        address: String,
        /// Status of the answer.
        status: u16,
        /// What that means.
        what: &'static str,
    },
    /// It is not known where objects are asked for, or with whose keys.
    #[error("object store: {what}")]
    Account {
        /// What is missing or wrong.
        what: String,
    },
    /// The store has no such object, or does not give it.
    #[error("{address}: the store answers {status}{}{code}: {what}", if code.is_empty() { "" } else { " " })]
    Store {
        /// The address.
        address: String,
        /// Status of the answer.
        status: u16,
        /// The store's word for it, such as `NoSuchKey`; may be empty.
        code: String,
        /// What that means.
        what: String,
    },
    /// The directory of the cache cannot be used.
    #[error("{}: it cannot be a cache", dir.display())]
    Cache {
        /// The directory.
        dir: std::path::PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The server gives whole files only.
    #[error("{address}: {what}, so it cannot be read in place")]
    NoRanges {
        /// The address.
        address: String,
        /// How that shows.
        what: &'static str,
    },
    /// The file was replaced or changed while it was open.
    #[error("{address}: it was changed while it was being read: {what}")]
    Changed {
        /// The address.
        address: String,
        /// What is different.
        what: String,
    },
    /// The answer is none to what was asked.
    #[error("{address}: the answer is no part of a file: {what}")]
    Protocol {
        /// The address.
        address: String,
        /// The rule that it breaks.
        what: String,
    },
}

impl HttpError {
    /// Returns the error of the system that comes closest.
    pub(crate) fn into_io(self) -> io::Error {
        let kind = match &self {
            HttpError::Connect { source, .. } | HttpError::Cache { source, .. } => source.kind(),
            HttpError::Untrusted { .. }
            | HttpError::Account { .. }
            | HttpError::Refused { status: 401 | 403, .. }
            | HttpError::Store { status: 401 | 403, .. } => io::ErrorKind::PermissionDenied,
            HttpError::Refused { status: 404 | 410, .. } | HttpError::Store { status: 404, .. } => {
                io::ErrorKind::NotFound
            }
            HttpError::Changed { .. } => io::ErrorKind::StaleNetworkFileHandle,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, self)
    }
}
