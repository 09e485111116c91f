//! Why an image cannot be had.

use std::fmt;
use std::io;

/// Which sort of thing is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Something is not what the image or the format says.
    Damaged,
    /// A file that the image names is not there.
    Missing,
    /// The choice matches several images, or none.
    Choice,
    /// The image is well-formed, and of a kind that is not understood.
    Unsupported,
    /// The system refused a call.
    Io,
}

/// The reason why an image cannot be had: where, what, and where known what to do.
#[derive(Debug)]
pub struct OciError {
    /// Which sort of thing is wrong.
    pub kind: Kind,
    /// The layout or archive.
    pub place: String,
    /// Description, naming the file or digest, with numbers.
    pub what: String,
    /// Advice for the user.
    pub advice: Option<String>,
    /// The system's answer, for [`Kind::Io`].
    pub cause: Option<io::Error>,
}

impl OciError {
    pub(crate) fn new(kind: Kind, place: &str, what: impl Into<String>) -> OciError {
        OciError { kind, place: place.into(), what: what.into(), advice: None, cause: None }
    }

    pub(crate) fn damaged(place: &str, what: impl Into<String>) -> OciError {
        OciError::new(Kind::Damaged, place, what).advise(OciError::fetch_again(place))
    }

    /// What to do about the damaged image in `place`.
    pub fn fetch_again(place: &str) -> &'static str {
        match place.starts_with("docker://") {
            true => "try again; if it stays so, the registry does not have what it says it has",
            false => "fetch the image again: skopeo copy docker://NAME oci:DIR",
        }
    }

    /// Takes the error of a store, which may be one of these already.
    pub(crate) fn io(place: &str, doing: &str, path: &str, cause: io::Error) -> OciError {
        let cause = match OciError::inside(cause) {
            Ok(error) => return error,
            Err(cause) => cause,
        };
        let mut error = OciError::new(Kind::Io, place, format!("cannot {doing} \"{path}\""));
        error.cause = Some(cause);
        error
    }

    /// The error that a reader carries in one of the system, if there is one.
    ///
    /// # Errors
    ///
    /// The error as it was.
    pub fn inside(cause: io::Error) -> Result<OciError, io::Error> {
        cause.downcast::<OciError>()
    }

    pub(crate) fn advise(mut self, advice: impl Into<String>) -> OciError {
        self.advice = Some(advice.into());
        self
    }
}

impl fmt::Display for OciError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.what)
    }
}

impl std::error::Error for OciError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.cause.as_ref().map(|cause| cause as _)
    }
}
