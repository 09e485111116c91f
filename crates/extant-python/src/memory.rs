//! Memory of Python while the interpreter's lock is released.
//!
//! A buffer that is held is neither freed nor moved nor resized by Python. Its bytes may be written
//! by other threads of the program meanwhile, as when `readinto` of a file of the host waits in
//! read(2): such bytes may be torn.
#![expect(unsafe_code, reason = "registered in docs/unsafe.md")]

use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyBufferError, PyValueError};
use pyo3::prelude::*;

/// A buffer of bytes in one piece, held.
struct Held {
    buffer: PyBuffer<u8>,
}

impl Held {
    fn of(object: &Bound<'_, PyAny>, writable: bool) -> PyResult<Held> {
        // Memory of any type of items is bytes here, as for files of the host.
        let bytes = object.py().import("builtins")?.getattr("memoryview")?.call1((object,))?;
        let bytes = match bytes.getattr("contiguous")?.extract::<bool>()? {
            true => bytes.call_method1("cast", ("B",))?,
            false => return Err(PyBufferError::new_err("the buffer is not contiguous")),
        };
        let buffer = PyBuffer::<u8>::get(&bytes)?;
        if writable && buffer.readonly() {
            return Err(PyValueError::new_err("the buffer is read-only"));
        }
        Ok(Held { buffer })
    }
}

/// Memory of Python, used without the interpreter's lock.
struct Pointer(*mut u8, usize);

// SAFETY: an address and a length; their uses state their own conditions.
unsafe impl Send for Pointer {}

impl Pointer {
    fn of(held: &Held) -> Pointer {
        Pointer(held.buffer.buf_ptr().cast(), held.buffer.len_bytes())
    }

    /// # Safety
    ///
    /// The buffer is writable, and held for as long as the bytes are used.
    unsafe fn bytes<'b>(self) -> &'b mut [u8] {
        if self.1 == 0 {
            return &mut [];
        }
        // SAFETY: contiguous, so long, and held, which the caller says; bytes have no invalid values.
        unsafe { std::slice::from_raw_parts_mut(self.0, self.1) }
    }

    /// # Safety
    ///
    /// The buffer is held for as long as the bytes are used.
    unsafe fn shared<'b>(self) -> &'b [u8] {
        if self.1 == 0 {
            return &[];
        }
        // SAFETY: as for `bytes`.
        unsafe { std::slice::from_raw_parts(self.0, self.1) }
    }
}

/// Runs `fill` on the bytes of a buffer, with the interpreter's lock released.
pub(crate) fn fill<R: Send>(
    object: &Bound<'_, PyAny>,
    fill: impl FnOnce(&mut [u8]) -> R + Send,
) -> PyResult<R> {
    let held = Held::of(object, true)?;
    let pointer = Pointer::of(&held);
    // SAFETY: `held` outlives the call. Nothing is looked at, so bytes that others write meanwhile are only lost.
    Ok(object.py().detach(move || fill(unsafe { pointer.bytes() })))
}

/// Runs `look` on the bytes of a buffer, with the interpreter's lock released.
pub(crate) fn look<R: Send>(
    object: &Bound<'_, PyAny>,
    look: impl FnOnce(&[u8]) -> R + Send,
) -> PyResult<R> {
    let held = Held::of(object, false)?;
    let pointer = Pointer::of(&held);
    // SAFETY: `held` outlives the call. Bytes are copied to the page cache or the device, and nothing depends on their
    // values, so that others who write them meanwhile get them torn.
    Ok(object.py().detach(move || look(unsafe { pointer.shared() })))
}
