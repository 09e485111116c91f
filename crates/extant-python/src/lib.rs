//! extant for Python: the module `extant._extant`, on which the package `extant` (in `python/`) is
//! built.
//!
//! # Place
//!
//! Above `extant`, `extant-image` and `extant-check`: it only translates. No other crate of the
//! workspace uses it.
//!
//! # Floors
//!
//! ```text
//! fs image       a mounted file system; building and checking
//! file device    an open file; a device that is a file of Python
//! home           the process that a mount for writing belongs to
//! memory         memory of Python while its lock is released
//! error          every error as an OSError
//! ```
//!
//! # Rules
//!
//! - P1. The interpreter's lock is released around every call of `extant`: a thread that waits in
//!   one holds nothing that Python, or a device in Python, may need.
//! - P2. A device in Python is read-only: a mount of it has no threads that would wait for the
//!   interpreter while it ends.
//! - P3. In a fork of the process that mounted for writing nothing of the mount is called, stored or
//!   dropped.
#![deny(unsafe_code)]

mod device;
mod error;
mod file;
mod fs;
mod home;
mod image;
mod memory;

use pyo3::prelude::*;

/// The native half of the package `extant`.
#[pymodule]
fn _extant(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<fs::NativeFs>()?;
    module.add_class::<file::NativeFile>()?;
    module.add_function(wrap_pyfunction!(image::build, module)?)?;
    module.add_function(wrap_pyfunction!(image::check, module)?)?;
    Ok(())
}
