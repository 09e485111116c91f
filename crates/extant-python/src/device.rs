//! A device that is a file of Python: `seek` and `read`.

use std::io;
use std::sync::Arc;

use extant_block::{
    BlockDevice, Completion, DeviceError, DeviceFault, Operation, OperationKind, Pending,
};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// A Python file as a device, for reading. Its position is shared, so one thread reads at a time.
pub(crate) struct PythonDevice {
    file: Py<PyAny>,
    /// A lock of Python: the file may be one of another image, and a lock of this crate would have
    /// a rank.
    turn: Py<PyAny>,
    name: Arc<str>,
    bytes: u64,
}

impl PythonDevice {
    /// A file that can seek.
    pub(crate) fn new(file: &Bound<'_, PyAny>) -> PyResult<PythonDevice> {
        let bytes = file.call_method1("seek", (0, 2))?.extract::<u64>()?;
        let turn = file.py().import("threading")?.call_method0("Lock")?.unbind();
        Ok(PythonDevice { file: file.clone().unbind(), turn, name: "file object".into(), bytes })
    }

    /// Reads as much as there is; it is this thread's turn.
    fn read(&self, py: Python<'_>, offset: u64, out: &mut [u8]) -> PyResult<usize> {
        let file = self.file.bind(py);
        file.call_method1("seek", (offset,))?;
        let mut done = 0;
        while done < out.len() {
            let bytes = file.call_method1("read", (out.len() - done,))?;
            let bytes = bytes.cast_into::<PyBytes>()?;
            let bytes = bytes.as_bytes();
            // More than was asked for is not believed.
            let place = out.get_mut(done..done + bytes.len()).filter(|place| !place.is_empty());
            let Some(place) = place else { break };
            place.copy_from_slice(bytes);
            done += bytes.len();
        }
        Ok(done)
    }

    fn fault(&self, kind: OperationKind, offset: u64, len: u64, fault: DeviceFault) -> DeviceError {
        DeviceError::new(Arc::clone(&self.name), kind, offset, len, fault)
    }
}

impl BlockDevice for PythonDevice {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        let run = |mut operation: Operation| {
            let (kind, at, len) = (operation.kind(), operation.offset(), operation.length());
            let result = match &mut operation {
                Operation::Read { offset, buffer } => self.read_at(*offset, buffer),
                Operation::Flush => Ok(()),
                _ => Err(self.fault(kind, at, len, DeviceFault::ReadOnly)),
            };
            Completion { operation, result }
        };
        Pending::done(batch.into_iter().map(run).collect())
    }

    fn size_bytes(&self) -> u64 {
        self.bytes
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn describe(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let (kind, len) = (OperationKind::Read, out.len() as u64);
        if offset.checked_add(len).is_none_or(|end| end > self.bytes) {
            let device_bytes = self.bytes;
            return Err(self.fault(kind, offset, len, DeviceFault::PastEnd { device_bytes }));
        }
        let read = Python::attach(|py| -> PyResult<usize> {
            let turn = self.turn.bind(py);
            turn.call_method0("acquire")?;
            let read = self.read(py, offset, out);
            turn.call_method0("release")?;
            read
        });
        match read {
            Ok(read) if read == out.len() => Ok(()),
            Ok(read) => Err(self.fault(
                kind,
                offset,
                len,
                DeviceFault::ShortRead { got_bytes: read as u64 },
            )),
            // As it is: what is no fault of the file goes on to whoever asked.
            Err(error) => {
                Err(self.fault(kind, offset, len, DeviceFault::Io(io::Error::other(error))))
            }
        }
    }
}
