//! Every error as an `OSError`, which Python makes a `FileNotFoundError` and so on by its errno.

use std::error::Error as StdError;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;

use extant::FsError;
use extant_block::OpenError;
use extant_check::CheckError;
use extant_image::BuildError;
use extant_image::output::OutputError;
use extant_image::plan::PlanError;
use extant_image::source::SourceError;
use extant_image::write::WriteError;
use pyo3::exceptions::{PyException, PyOSError, PyValueError};
use pyo3::{PyErr, Python};

/// The text of an error with those of its causes, as far as they say something new.
pub(crate) fn told(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

fn os_error(errno: i32, text: String, path: Option<&[u8]>) -> PyErr {
    match path {
        Some(path) => {
            let path = OsStr::from_bytes(path).to_owned();
            PyOSError::new_err((errno, text, path))
        }
        None => PyOSError::new_err((errno, text)),
    }
}

/// An error of the file system, about `path` if one was given. One that a file of Python raised is its cause, or, if it
/// asks the program to end, raised again.
pub(crate) fn failed(error: &FsError, path: Option<&[u8]>) -> PyErr {
    let told = || os_error(error.errno(), told(error), path);
    let Some(raised) = raised(error) else { return told() };
    Python::attach(|py| {
        let raised = raised.clone_ref(py);
        if !raised.is_instance_of::<PyException>(py) {
            return raised;
        }
        let failed = told();
        failed.set_cause(py, Some(raised));
        failed
    })
}

/// What Python raised in the middle.
fn raised(error: &FsError) -> Option<&PyErr> {
    let mut cause: Option<&(dyn StdError + 'static)> = Some(error);
    while let Some(error) = cause {
        let inside = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref);
        if let Some(raised) = inside.and_then(|inside| inside.downcast_ref()) {
            return Some(raised);
        }
        cause = error.source();
    }
    None
}

/// An error about an argument or an object, with an errno of its own.
pub(crate) fn refused(errno: i32, text: &str) -> PyErr {
    os_error(errno, text.to_owned(), None)
}

/// Why an image cannot be checked: a device that fails is not damage.
pub(crate) fn check_failed(error: CheckError, path: &[u8]) -> PyErr {
    const EIO: i32 = 5;
    const ENOMEM: i32 = 12;
    const EINVAL: i32 = 22;
    const EUCLEAN: i32 = 117;
    let errno = match error {
        CheckError::Device(error) => return failed(&FsError::from(error), Some(path)),
        CheckError::Superblock(_) => EUCLEAN,
        CheckError::Features { .. } => EINVAL,
        CheckError::Memory { .. } => ENOMEM,
        _ => EIO,
    };
    os_error(errno, told(&error), Some(path))
}

/// The errno of the first cause that has one.
fn system_errno(error: &(dyn StdError + 'static)) -> Option<i32> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let io = error.downcast_ref::<std::io::Error>();
        if let Some(number) = io.and_then(std::io::Error::raw_os_error) {
            return Some(number);
        }
        cause = error.source();
    }
    None
}

/// The file of the source that an error is about, if its text is the path as it is: bytes that are
/// not printable are escaped in it. Else the source.
fn at_fault(error: &SourceError, source: Option<&[u8]>) -> Option<Vec<u8>> {
    let named = error.archive().filter(|text| text.is_ascii() && !text.contains('\\'));
    named.map(|text| text.as_bytes().to_vec()).or_else(|| source.map(<[u8]>::to_vec))
}

/// An error of a build from `source` to `target`: what the options say wrong is a `ValueError`.
pub(crate) fn build_failed(error: &BuildError, source: Option<&[u8]>, target: &[u8]) -> PyErr {
    const EIO: i32 = 5;
    const EBUSY: i32 = 16;
    const EEXIST: i32 = 17;
    const ENOSPC: i32 = 28;
    const ECANCELED: i32 = 125;
    let errno = match error {
        BuildError::Transform(_) => return PyValueError::new_err(told(error)),
        BuildError::Plan(PlanError::DoesNotFit { .. })
        | BuildError::TooSmall { .. }
        | BuildError::Output(OutputError::TooSmall { .. }) => ENOSPC,
        BuildError::Plan(_) => return PyValueError::new_err(told(error)),
        BuildError::Output(OutputError::InUse { .. }) => EEXIST,
        BuildError::Output(OutputError::Open(
            OpenError::Locked { .. } | OpenError::Busy { .. },
        )) => EBUSY,
        BuildError::Write(WriteError::Interrupted) => ECANCELED,
        other => system_errno(other).unwrap_or(EIO),
    };
    let path = match error {
        BuildError::Source(error) | BuildError::Write(WriteError::Source(error)) => {
            at_fault(error, source)
        }
        BuildError::Container(_) => source.map(<[u8]>::to_vec),
        _ => Some(target.to_vec()),
    };
    os_error(errno, told(error), path.as_deref())
}
