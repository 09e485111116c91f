//! A device of callbacks.
//!
//! A callback may fail, return less than it was asked for, more, or nonsense: each of these is an
//! error of the device, and the bytes are not used.
#![expect(unsafe_code, reason = "registered in docs/unsafe.md")]

use std::ffi::c_int;
use std::io;
use std::sync::Arc;

use extant_block::{
    BlockDevice, Completion, DeviceError, DeviceFault, Operation, OperationKind, Pending,
};

use crate::caller::call_back;
use crate::error::{Error, Result};
use crate::types::{EXTANT_DEVICE_READ_ONLY, extant_device};

/// Linux's `EOPNOTSUPP`: what a callback says that cannot do it.
const EOPNOTSUPP: c_int = 95;

/// A device that the program implements.
pub(crate) struct CallbackDevice {
    table: extant_device,
    name: Arc<str>,
}

// SAFETY: the header says that `context` and the functions are used from any thread, and from several at once, until
// `release` was called; the structure is a copy, which nobody changes.
unsafe impl Send for CallbackDevice {}
// SAFETY: as for `Send`.
unsafe impl Sync for CallbackDevice {}

impl CallbackDevice {
    /// Checks that everything is there. On failure nothing was called; afterwards `release` is called when this ends.
    ///
    /// # Safety
    ///
    /// The functions are null or functions of these types, and may be called with the context until `release` was.
    pub(crate) unsafe fn new(table: extant_device, name: &str) -> Result<CallbackDevice> {
        let read_only = table.flags & EXTANT_DEVICE_READ_ONLY != 0;
        if table.flags & !EXTANT_DEVICE_READ_ONLY != 0 {
            return Err(Error::argument(format!("device: unknown flags {:#x}", table.flags)));
        }
        if table.read.is_none() {
            return Err(Error::null("device: read"));
        }
        if !read_only && (table.write.is_none() || table.flush.is_none()) {
            return Err(Error::null("device: write or flush of a device that can be written"));
        }
        if !matches!(table.sector_bytes, 0 | 512 | 1024 | 2048 | 4096) {
            let message = format!("device: sectors of {} bytes", table.sector_bytes);
            return Err(Error::argument(message));
        }
        Ok(CallbackDevice { table, name: name.into() })
    }

    fn fault(&self, kind: OperationKind, offset: u64, len: u64, fault: DeviceFault) -> DeviceError {
        DeviceError::new(Arc::clone(&self.name), kind, offset, len, fault)
    }

    fn check(
        &self,
        kind: OperationKind,
        offset: u64,
        len: u64,
    ) -> std::result::Result<(), DeviceError> {
        let changes = !matches!(kind, OperationKind::Read | OperationKind::Flush);
        if changes && self.is_read_only() {
            return Err(self.fault(kind, offset, len, DeviceFault::ReadOnly));
        }
        match offset.checked_add(len) {
            Some(end) if end <= self.table.bytes => Ok(()),
            _ => {
                let device_bytes = self.table.bytes;
                Err(self.fault(kind, offset, len, DeviceFault::PastEnd { device_bytes }))
            }
        }
    }

    /// Checks the result of a callback that transfers bytes.
    fn judge(
        &self,
        kind: OperationKind,
        offset: u64,
        len: usize,
        said: i64,
    ) -> std::result::Result<(), DeviceError> {
        let fault = match usize::try_from(said) {
            Ok(moved) if moved == len => return Ok(()),
            Ok(moved) if moved < len && kind == OperationKind::Read => {
                DeviceFault::ShortRead { got_bytes: moved as u64 }
            }
            Ok(moved) if moved < len => {
                let what = format!("the callback wrote {moved} bytes only");
                DeviceFault::Io(io::Error::new(io::ErrorKind::WriteZero, what))
            }
            Ok(moved) => {
                let what = format!("the callback says that it moved {moved} bytes");
                DeviceFault::Io(io::Error::other(what))
            }
            Err(_) => refusal(said),
        };
        Err(self.fault(kind, offset, len as u64, fault))
    }

    fn run(&self, operation: &mut Operation) -> std::result::Result<(), DeviceError> {
        match operation {
            Operation::Read { offset, buffer } => self.read_at(*offset, buffer),
            Operation::Write { offset, buffer, fua } => {
                self.write_at(*offset, buffer)?;
                if *fua { self.flush() } else { Ok(()) }
            }
            Operation::Flush => self.flush(),
            Operation::Discard { offset, len } => self.discard(*offset, *len),
            Operation::WriteZeroes { offset, len } => self.write_zeroes(*offset, *len),
        }
    }
}

/// The error behind a negative number; what is no errno is `EIO`.
fn refusal(said: i64) -> DeviceFault {
    let errno = said.checked_neg().and_then(|errno| i32::try_from(errno).ok());
    let errno = errno.filter(|errno| (1..4096).contains(errno));
    DeviceFault::Io(match errno {
        Some(errno) => io::Error::from_raw_os_error(errno),
        None => io::Error::other(format!("the callback returned {said}")),
    })
}

impl BlockDevice for CallbackDevice {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        let run = |mut operation: Operation| {
            let result = self.run(&mut operation);
            Completion { operation, result }
        };
        Pending::done(batch.into_iter().map(run).collect())
    }

    fn size_bytes(&self) -> u64 {
        self.table.bytes
    }

    fn logical_sector_bytes(&self) -> u32 {
        if self.table.sector_bytes == 0 { 512 } else { self.table.sector_bytes }
    }

    fn is_read_only(&self) -> bool {
        self.table.flags & EXTANT_DEVICE_READ_ONLY != 0
    }

    fn describe(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> std::result::Result<(), DeviceError> {
        let kind = OperationKind::Read;
        self.check(kind, offset, out.len() as u64)?;
        let (Some(read), false) = (self.table.read, out.is_empty()) else { return Ok(()) };
        let (context, at, len) = (self.table.context, out.as_mut_ptr().cast(), out.len());
        // SAFETY: the caller of `new` promised that the function can be called; it may write `len` bytes, which `out` has.
        let said = call_back(|| unsafe { read(context, offset, at, len) });
        self.judge(kind, offset, len, said)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> std::result::Result<(), DeviceError> {
        let kind = OperationKind::Write;
        self.check(kind, offset, bytes.len() as u64)?;
        let (Some(write), false) = (self.table.write, bytes.is_empty()) else { return Ok(()) };
        let (context, at, len) = (self.table.context, bytes.as_ptr().cast(), bytes.len());
        // SAFETY: as in `read_at`; it reads `len` bytes, which `bytes` has.
        let said = call_back(|| unsafe { write(context, offset, at, len) });
        self.judge(kind, offset, len, said)
    }

    fn flush(&self) -> std::result::Result<(), DeviceError> {
        let Some(flush) = self.table.flush else { return Ok(()) };
        let context = self.table.context;
        // SAFETY: as in `read_at`.
        match call_back(|| unsafe { flush(context) }) {
            0 => Ok(()),
            said => Err(self.fault(OperationKind::Flush, 0, 0, refusal(said.into()))),
        }
    }

    fn discard(&self, offset: u64, len: u64) -> std::result::Result<(), DeviceError> {
        let kind = OperationKind::Discard;
        self.check(kind, offset, len)?;
        let Some(discard) = self.table.discard else {
            return Err(self.fault(kind, offset, len, DeviceFault::Unsupported));
        };
        let context = self.table.context;
        // SAFETY: as in `read_at`.
        let fault = match call_back(|| unsafe { discard(context, offset, len) }) {
            0 => return Ok(()),
            said if said == -EOPNOTSUPP => DeviceFault::Unsupported,
            said => refusal(said.into()),
        };
        Err(self.fault(kind, offset, len, fault))
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> std::result::Result<(), DeviceError> {
        static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
        self.check(OperationKind::WriteZeroes, offset, len)?;
        let mut done = 0;
        while done < len {
            let part = (len - done).min(ZEROS.len() as u64);
            self.write_at(offset + done, &ZEROS[..part as usize])?; // At most 64 KiB.
            done += part;
        }
        Ok(())
    }
}

impl Drop for CallbackDevice {
    fn drop(&mut self) {
        let Some(release) = self.table.release else { return };
        let context = self.table.context;
        // SAFETY: as in `read_at`; this is the end of the device, so it is called once and nothing is called after it.
        call_back(|| unsafe { release(context) });
    }
}
