//! Copying between the host and images.
//!
//! # Place
//!
//! Below: `extant` for images, the kernel for the host. Above: the commands `cp` and `extract`.
//!
//! # Shape
//!
//! ```text
//! node     what is copied: a file of the host or of an image
//! content  its bytes, and which of them are stored
//! dest     where it goes: a directory of the host or of an image
//! host     the host's side of that, by open directories and without following links
//! tree     one command's copies: what becomes of each source, whatever is there already
//! ```
//!
//! # Trust
//!
//! Names and links may come from an image that somebody else made. Only the destination that the
//! user named is followed through links; below it nothing is.

pub(crate) mod content;
pub(crate) mod dest;
pub(crate) mod host;
pub(crate) mod node;
pub(crate) mod tree;

use extant::FsError;
use rustix::io::Errno;

use crate::exit::{Exit, Failure};
use crate::fault::io_exit;
use crate::image;
use crate::text::escape;

/// Why one file was not copied. The others go on.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The image.
    Fs(FsError),
    /// The host: what was tried.
    Host(&'static str, Errno),
    /// It is not to be done, and what to do about it.
    Refused(Exit, String, Option<&'static str>),
}

impl From<FsError> for Trouble {
    fn from(error: FsError) -> Trouble {
        Trouble::Fs(error)
    }
}

/// Turns an error of the host into trouble.
pub(crate) fn host(doing: &'static str) -> impl Fn(Errno) -> Trouble {
    move |errno| Trouble::Host(doing, errno)
}

/// Converts an error of the standard library, met while `doing` something, into a [`Trouble`].
pub(crate) fn io(doing: &'static str) -> impl Fn(std::io::Error) -> Trouble {
    move |error| Trouble::Host(doing, Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Something that is refused, with what to do about it.
pub(crate) fn refused(message: impl Into<String>, hint: Option<&'static str>) -> Trouble {
    Trouble::Refused(Exit::Refused, message.into(), hint)
}

/// `path` as messages name it: in the image of that name, or on the host.
pub(crate) fn label(image: Option<&str>, path: &[u8]) -> String {
    match image {
        Some(name) => image::label(name, path),
        None => escape(path),
    }
}

impl Trouble {
    /// The failure, with the path it is about.
    pub(crate) fn about(self, image: Option<&str>, path: &[u8]) -> Failure {
        match self {
            Trouble::Fs(error) => image::failure(image.unwrap_or_default(), path, error),
            Trouble::Host(doing, errno) => {
                let error = std::io::Error::from(errno);
                let label = label(image, path);
                let what = format!("{label}: cannot {doing}");
                Failure::caused(host_exit(doing, &error), &what, &error).on(label)
            }
            Trouble::Refused(exit, message, hint) => {
                let label = label(image, path);
                let failure = Failure::new(exit, format!("{label}: {message}")).on(label);
                match hint {
                    Some(hint) => failure.hint(hint),
                    None => failure,
                }
            }
        }
    }
}

fn host_exit(doing: &str, error: &std::io::Error) -> Exit {
    match error.kind() {
        std::io::ErrorKind::NotFound if doing == FIND => Exit::NotFound,
        _ => io_exit(error),
    }
}

/// What is tried when a file of the host is looked up.
pub(crate) const FIND: &str = "find it";
