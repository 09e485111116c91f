//! An open file. Position, buffering and text are implemented by the Python package.

use std::sync::Arc;

use extant::{File, FsError};
use extant_sync::{Mutex, Rank};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::{failed, refused};
use crate::home::Home;
use crate::memory;

const EBADF: i32 = 9;
const ENOMEM: i32 = 12;
const ENXIO: i32 = 6;

/// An open regular file of an image.
#[pyclass(frozen, module = "extant._extant")]
pub(crate) struct NativeFile {
    /// None when it is closed.
    file: Mutex<Option<Arc<File>>>,
    path: Vec<u8>,
    home: Home,
}

impl NativeFile {
    pub(crate) fn new(file: File, path: &[u8], home: Home) -> NativeFile {
        NativeFile { file: Mutex::new(Rank::Leaf, Some(Arc::new(file))), path: path.to_vec(), home }
    }

    fn file(&self) -> PyResult<Arc<File>> {
        self.home.check()?;
        self.file.lock().clone().ok_or_else(|| refused(EBADF, "the file is closed"))
    }

    fn run<R: Send>(
        &self,
        py: Python<'_>,
        run: impl FnOnce(&File) -> Result<R, FsError> + Send,
    ) -> PyResult<R> {
        let file = self.file()?;
        // The last handle may have something to store: it goes without the interpreter's lock as well.
        let done = py.detach(move || run(&file));
        done.map_err(|error| failed(&error, Some(&self.path)))
    }
}

#[pymethods]
impl NativeFile {
    /// Closes the file; a second time does nothing.
    fn close(&self, py: Python<'_>) {
        if !self.home.is_here() {
            return;
        }
        let file = self.file.lock().take();
        py.detach(move || drop(file));
    }

    /// Size in bytes.
    fn size(&self) -> PyResult<u64> {
        Ok(self.file()?.len())
    }

    /// Fills a buffer from byte `offset`; returns how many bytes there were.
    fn readinto(&self, offset: u64, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let file = self.file()?;
        let read = memory::fill(buffer, move |out| file.read_at(out, offset))?;
        read.map_err(|error| failed(&error, Some(&self.path)))
    }

    /// Up to `length` bytes from byte `offset`.
    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        length: u64,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let file = self.file()?;
        let length = length.min(file.len().saturating_sub(offset));
        let length = usize::try_from(length)
            .map_err(|_| refused(ENOMEM, "more bytes than memory can have"))?;
        let mut read = Ok(0);
        let bytes = PyBytes::new_with(py, length, |out| {
            read = py.detach(|| file.read_at(out, offset));
            Ok(())
        })?;
        match read.map_err(|error| failed(&error, Some(&self.path)))? {
            read if read == length => Ok(bytes),
            // Somebody made it shorter meanwhile.
            read => Ok(PyBytes::new(py, &bytes.as_bytes()[..read])),
        }
    }

    /// Writes a buffer at byte `offset` (an appending file: at the end); returns how many bytes were written.
    fn write(&self, offset: u64, buffer: &Bound<'_, PyAny>) -> PyResult<usize> {
        let file = self.file()?;
        let written = memory::look(buffer, move |bytes| file.write_at(bytes, offset))?;
        written.map_err(|error| failed(&error, Some(&self.path)))
    }

    /// Makes `size` bytes the size.
    fn truncate(&self, py: Python<'_>, size: u64) -> PyResult<()> {
        self.run(py, |file| file.set_len(size))
    }

    /// Makes contents and attributes durable, or with `data` the contents.
    fn sync(&self, py: Python<'_>, data: bool) -> PyResult<()> {
        self.run(py, |file| if data { file.sync_data() } else { file.sync() })
    }

    /// The next data, or hole, from byte `offset` on.
    fn seek_data(&self, py: Python<'_>, offset: u64, hole: bool) -> PyResult<u64> {
        let found = self.run(py, |file| {
            if hole { file.inode().seek_hole(offset) } else { file.inode().seek_data(offset) }
        })?;
        found.ok_or_else(|| refused(ENXIO, "past the end of the file"))
    }
}

impl Drop for NativeFile {
    fn drop(&mut self) {
        // In a fork nothing may happen to it, whatever locks it died with.
        if !self.home.is_here() {
            std::mem::forget(self.file.get_mut().take());
        }
    }
}
