//! A device that remembers what was done to it, to rebuild what a crash would leave.
//!
//! # Invariants
//!
//! - R1. The records are in the order in which the operations took effect: the log is locked
//!   over the operation itself.
//! - R2. Applying all records to the base gives the device's present contents.
//!
//! What may survive a crash is defined in `docs/crash-model.md`.

use std::fmt;
use std::sync::Arc;

use extant_sync::{Mutex, Rank};

use crate::device::{BlockDevice, Completion, Operation, Pending};
use crate::error::DeviceError;
use crate::memory::MemoryDevice;

/// Something that happened to a [`RecordingDevice`], successfully.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// Bytes were written.
    Write {
        /// First byte written.
        offset: u64,
        /// The bytes.
        data: Arc<[u8]>,
        /// Whether they were on stable storage at completion.
        fua: bool,
    },
    /// Everything before this is on stable storage.
    Flush,
    /// A range was given up.
    Discard {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// A range was made to read as zeros.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The test said something: a promise made to the user at this point.
    Mark(String),
}

/// What a crash did to one record that no flush had made durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Survival {
    /// It is on the device.
    Kept,
    /// It never happened.
    Lost,
    /// Only its first bytes are on the device, rounded down to whole sectors of 512 bytes.
    Torn {
        /// Bytes from the start of the record's range.
        bytes: u64,
    },
}

/// A memory device that keeps its history.
///
/// ```
/// use extant_block::{BlockDevice, RecordingDevice, Survival};
/// let device = RecordingDevice::new(8192);
/// device.write_at(0, b"old")?;
/// device.flush()?;
/// device.write_at(0, b"new")?;
/// let crashed = device.image_at(device.len(), |_, _| Survival::Lost);
/// let mut bytes = [0; 3];
/// crashed.read_at(0, &mut bytes)?;
/// assert_eq!(&bytes, b"old");
/// # Ok::<(), extant_block::DeviceError>(())
/// ```
pub struct RecordingDevice {
    base: MemoryDevice,
    inner: MemoryDevice,
    log: Mutex<Vec<Record>>,
}

impl RecordingDevice {
    /// A device of `size_bytes` zeros with an empty history.
    pub fn new(size_bytes: u64) -> RecordingDevice {
        RecordingDevice::over(MemoryDevice::new(size_bytes))
    }

    /// Starts the history at the present contents of `base`.
    pub fn over(base: MemoryDevice) -> RecordingDevice {
        let inner = base.snapshot();
        RecordingDevice { base, inner, log: Mutex::new(Rank::Device, Vec::new()) }
    }

    /// Adds a mark.
    pub fn mark(&self, text: &str) {
        self.log.lock().push(Record::Mark(text.to_owned()));
    }

    /// Number of records so far.
    pub fn len(&self) -> usize {
        self.log.lock().len()
    }

    /// True before the first record.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A copy of the history. Written bytes are shared, not copied.
    pub fn records(&self) -> Vec<Record> {
        self.log.lock().clone()
    }

    /// The last mark among the first `position` records.
    pub fn mark_before(&self, position: usize) -> Option<String> {
        self.log.lock().iter().take(position).rev().find_map(|record| match record {
            Record::Mark(text) => Some(text.clone()),
            _ => None,
        })
    }

    /// Contents after power failed when the first `position` records had happened.
    ///
    /// Records before the last flush among them, and FUA writes, are on the device. For each
    /// other one `survives` decides; it gets the record's index. Survivors keep their order,
    /// since what overlaps was ordered by the caller.
    #[must_use]
    pub fn image_at(
        &self,
        position: usize,
        mut survives: impl FnMut(usize, &Record) -> Survival,
    ) -> MemoryDevice {
        let records: Vec<Record> = self.log.lock().iter().take(position).cloned().collect();
        let durable = records.iter().rposition(|r| matches!(r, Record::Flush)).unwrap_or(0);
        let image = self.base.snapshot();
        for (index, record) in records.iter().enumerate() {
            let fua = matches!(record, Record::Write { fua: true, .. });
            let keep =
                if index < durable || fua { Survival::Kept } else { survives(index, record) };
            // Every record succeeded on a device of this size, so it succeeds again.
            apply(&image, record, keep).expect("a recorded operation fits the device");
        }
        image
    }

    /// Contents after the first `position` records, all of them kept.
    #[must_use]
    pub fn image_with_all(&self, position: usize) -> MemoryDevice {
        self.image_at(position, |_, _| Survival::Kept)
    }

    /// Does and records; the lock makes both one step (R1).
    fn recorded(
        &self,
        run: impl FnOnce(&MemoryDevice) -> Result<(), DeviceError>,
        record: impl FnOnce() -> Record,
    ) -> Result<(), DeviceError> {
        let mut log = self.log.lock();
        run(&self.inner)?;
        log.push(record());
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8], fua: bool) -> Result<(), DeviceError> {
        let record = || Record::Write { offset, data: bytes.into(), fua };
        self.recorded(|inner| inner.write_at(offset, bytes), record)
    }
}

/// Repeats the surviving part of one record.
fn apply(image: &MemoryDevice, record: &Record, keep: Survival) -> Result<(), DeviceError> {
    let limit = match keep {
        Survival::Kept => u64::MAX,
        Survival::Lost => 0,
        Survival::Torn { bytes } => bytes / 512 * 512,
    };
    match record {
        Record::Write { offset, data, .. } => {
            let kept = (data.len() as u64).min(limit) as usize;
            image.write_at(*offset, &data[..kept])
        }
        Record::Discard { offset, len } => image.discard(*offset, (*len).min(limit)),
        Record::WriteZeroes { offset, len } => image.write_zeroes(*offset, (*len).min(limit)),
        Record::Flush | Record::Mark(_) => Ok(()),
    }
}

impl BlockDevice for RecordingDevice {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        let run = |mut operation: Operation| {
            let result = match &mut operation {
                Operation::Read { offset, buffer } => self.read_at(*offset, buffer),
                Operation::Write { offset, buffer, fua } => self.write(*offset, buffer, *fua),
                Operation::Flush => self.flush(),
                Operation::Discard { offset, len } => self.discard(*offset, *len),
                Operation::WriteZeroes { offset, len } => self.write_zeroes(*offset, *len),
            };
            Completion { operation, result }
        };
        Pending::done(batch.into_iter().map(run).collect())
    }

    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn describe(&self) -> Arc<str> {
        self.inner.describe()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read_at(offset, out)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.write(offset, bytes, false)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.recorded(|inner| inner.flush(), || Record::Flush)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let record = || Record::Discard { offset, len };
        self.recorded(|inner| inner.discard(offset, len), record)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let record = || Record::WriteZeroes { offset, len };
        self.recorded(|inner| inner.write_zeroes(offset, len), record)
    }
}

impl fmt::Debug for RecordingDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordingDevice({:?}, {} records)", self.inner, self.len())
    }
}
