//! Why an image could not be opened or made.

use std::io;
use std::path::PathBuf;

use extant_block::{DeviceError, OpenError};

/// Why a qcow2 image could not be opened, made or changed as a whole.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Qcow2Error {
    /// A file cannot be opened as a device.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Reading or writing a device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Reading or writing a file failed.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// The action that failed, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The file has no qcow2 header.
    #[error("{name}: no qcow2 image: it begins with {found:#010x}")]
    NotQcow2 {
        /// The image.
        name: String,
        /// Its first four bytes.
        found: u32,
    },
    /// The image breaks a rule of its format.
    #[error("{name}: damaged qcow2 image: {what}")]
    Damaged {
        /// The image.
        name: String,
        /// The rule, with numbers.
        what: String,
    },
    /// The image needs something that is not done here.
    #[error("{name}: {what}")]
    Unsupported {
        /// The image.
        name: String,
        /// The missing feature.
        what: String,
    },
    /// The image says that it may be inconsistent, and was to be written.
    #[error("{name}: marked as {what}: it can be read, and is not written")]
    NotWritable {
        /// The image.
        name: String,
        /// `dirty` or `corrupt`.
        what: &'static str,
    },
    /// The image names a backing image that it may not have opened.
    #[error("{name}: its backing image {backing}: {what}")]
    Backing {
        /// The image.
        name: String,
        /// The name that the image has for it.
        backing: String,
        /// Why it is not opened.
        what: String,
    },
    /// The base is not any more what the overlay was made over.
    #[error("{overlay}: {base} has changed since: it was {was}, and is {is}")]
    BaseChanged {
        /// The overlay.
        overlay: String,
        /// The base, as the overlay names it.
        base: String,
        /// The version that it had: bytes, and what else tells versions apart.
        was: String,
        /// The version that it has.
        is: String,
    },
    /// The image that an overlay lies over is at an address that was not named by whoever opens it.
    #[error("{overlay} lies over {base}, which is not opened because a file says so")]
    Elsewhere {
        /// The overlay.
        overlay: String,
        /// The address.
        base: String,
    },
    /// The base of an overlay is to be written and can only be read.
    #[error("{overlay} lies over {base}, which is only read")]
    ReadOnlyBase {
        /// The overlay.
        overlay: String,
        /// The base.
        base: String,
    },
    /// The contents indicate another format than the name, and a guest may have written them.
    #[error(
        "{name} has the header of a {format} image, but its name does not say so: whoever could write to a raw image could have put it there"
    )]
    Doubtful {
        /// The image.
        name: String,
        /// Format indicated by the contents.
        format: &'static str,
    },
    /// An overlay has another base than the given one.
    #[error("{overlay} lies over {found}, not over {wanted}")]
    OtherBase {
        /// The overlay.
        overlay: String,
        /// The base in the overlay.
        found: String,
        /// The given base.
        wanted: String,
    },
    /// There is no snapshot of that name.
    #[error("{name} has no snapshot {wanted}; it has {}", if known.is_empty() { "none" } else { known })]
    NoSnapshot {
        /// The image.
        name: String,
        /// The requested value.
        wanted: String,
        /// Names of those that there are.
        known: String,
    },
}

/// A broken rule, found while the image is in use.
pub(crate) fn damage(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("damaged qcow2 image: {}", what.into()))
}
