//! A device that records its operations, so that tests can rebuild its contents after a crash.
//!
//! # Invariants
//!
//! - R1. The records are in the order in which the operations took effect: the log is locked over
//!   the operation itself.
//! - R2. Applying all records to the base gives the device's present contents.
//! - R3. An operation is complete when its completion was received: for a batch, when the caller
//!   has waited for it. A flush protects only writes that were complete when the flush was
//!   submitted; a write in the same batch as the flush, or in a batch that was not awaited, stays
//!   unprotected.
//!
//! The possible contents after a crash are defined in `docs/crash-model.md`.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use extant_sync::{Mutex, Rank};

use crate::buffer::AlignedBuffer;
use crate::device::BlockDevice;
use crate::error::{DeviceError, OperationKind};
use crate::memory::MemoryDevice;
use crate::operation::{Completion, Operation, Pending};
use crate::runs::WriteRun;

/// Unit that is written as a whole or not at all, in bytes.
const SECTOR_BYTES: u64 = 512;
/// The moment of events that have not happened.
const NEVER: u64 = u64::MAX;

/// An event of a [`RecordingDevice`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// Bytes were written.
    Write {
        /// First byte written.
        offset: u64,
        /// The bytes written.
        data: Arc<[u8]>,
        /// Whether the bytes were on stable storage at completion.
        fua: bool,
    },
    /// A flush: all operations complete when it was submitted are on stable storage.
    Flush,
    /// A flush failed: the writes that it should have protected stay in doubt.
    FlushFailed,
    /// A range was discarded.
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
    /// A mark set by the test, such as a promise made to the user.
    Mark(String),
}

impl Record {
    /// Returns the offset and length of the bytes that the record changes; empty for records that
    /// change none.
    pub fn range(&self) -> (u64, u64) {
        match self {
            Record::Write { offset, data, .. } => (*offset, data.len() as u64),
            Record::Discard { offset, len } | Record::WriteZeroes { offset, len } => {
                (*offset, *len)
            }
            Record::Flush | Record::FlushFailed | Record::Mark(_) => (0, 0),
        }
    }

    /// Repeats a part of this record on `image`: `len` bytes from byte `from` of the record's range
    /// on. Does nothing for records that change no bytes.
    ///
    /// # Errors
    ///
    /// The range does not fit `image`.
    pub fn apply(&self, image: &MemoryDevice, from: u64, len: u64) -> Result<(), DeviceError> {
        let (offset, whole) = self.range();
        let from = from.min(whole);
        let len = len.min(whole - from);
        match self {
            Record::Write { data, .. } => {
                image.write_at(offset + from, &data[from as usize..(from + len) as usize])
            }
            Record::Discard { .. } => image.discard(offset + from, len),
            Record::WriteZeroes { .. } => image.write_zeroes(offset + from, len),
            Record::Flush | Record::FlushFailed | Record::Mark(_) => Ok(()),
        }
    }
}

/// A record with the moments at which it happened. Moments are numbers that increase by one with
/// every event of any device that shares the history.
#[derive(Clone, Debug)]
pub struct Event {
    /// Number of the device: 0 for the one that began the history.
    pub device: usize,
    /// The event.
    pub record: Record,
    /// Moment at which its batch was submitted.
    pub submitted: u64,
    /// Moment at which it took effect.
    pub performed: u64,
    /// Moment at which its completion was received; `u64::MAX` if it never was.
    pub completed: u64,
}

/// Returns the moment from which on each event is on stable storage: `u64::MAX` for events that
/// never are. Only records that change bytes have such a moment.
///
/// A flush counts from its own completion. After a failed flush, writes that were not protected yet
/// stay unprotected by every later flush.
pub fn protected_from(events: &[Event]) -> Vec<u64> {
    let devices = events.iter().map(|event| event.device + 1).max().unwrap_or(0);
    let mut flushes: Vec<Vec<(u64, u64)>> = vec![Vec::new(); devices];
    let mut failed: Vec<Vec<u64>> = vec![Vec::new(); devices];
    for event in events {
        match event.record {
            Record::Flush => flushes[event.device].push((event.submitted, event.completed)),
            Record::FlushFailed => failed[event.device].push(event.performed),
            _ => {}
        }
    }
    for of_device in &mut flushes {
        of_device.sort_unstable();
    }
    let moment = |event: &Event| {
        let fua = matches!(event.record, Record::Write { fua: true, .. });
        let fua = if fua { event.completed } else { NEVER };
        let doubt = failed[event.device].iter().copied().find(|at| *at > event.performed);
        let of_device = &flushes[event.device];
        let first = of_device.partition_point(|(submitted, _)| *submitted < event.completed);
        let flushed = of_device[first..]
            .iter()
            .take_while(|(submitted, _)| doubt.is_none_or(|doubt| *submitted < doubt))
            .map(|(_, completed)| *completed)
            .min();
        flushed.unwrap_or(NEVER).min(fua)
    };
    events.iter().map(|event| if event.record.range().1 == 0 { 0 } else { moment(event) }).collect()
}

/// The fate of a record that was not durable when the power failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Survival {
    /// The record is on the device.
    Kept,
    /// The record never happened.
    Lost,
    /// Only its first bytes are on the device, rounded down to whole sectors of 512 bytes.
    Torn {
        /// Number of bytes from the start of the record's range.
        bytes: u64,
    },
}

/// The history that several devices may share.
#[derive(Default)]
struct Log {
    events: Vec<Event>,
    /// The next moment.
    now: u64,
    devices: usize,
    /// Named parts of devices: the device, its bytes, the name.
    labels: Vec<(usize, Range<u64>, Arc<str>)>,
}

/// A part of a record that changed bytes of a named part of a device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Touch {
    /// Name of the part.
    pub label: Arc<str>,
    /// Index of the record.
    pub record: usize,
    /// Range of the device's bytes that it changed there.
    pub bytes: Range<u64>,
    /// Bytes written; empty for discards and writes of zeros.
    pub data: Vec<u8>,
}

impl Log {
    fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// Adds a record that took effect, and returns its index.
    fn push(&mut self, device: usize, record: Record, submitted: u64) -> usize {
        let performed = self.tick();
        self.events.push(Event { device, record, submitted, performed, completed: NEVER });
        self.events.len() - 1
    }

    fn complete(&mut self, places: impl IntoIterator<Item = usize>) {
        let now = self.tick();
        for place in places {
            if let Some(event) = self.events.get_mut(place) {
                event.completed = now;
            }
        }
    }
}

/// A memory device that records its history.
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
    log: Arc<Mutex<Log>>,
    /// Number of the device in the history.
    number: usize,
}

impl RecordingDevice {
    /// Creates a device of `size_bytes` zeros with an empty history.
    pub fn new(size_bytes: u64) -> RecordingDevice {
        RecordingDevice::over(MemoryDevice::new(size_bytes))
    }

    /// Creates a device whose history starts at the present contents of `base`.
    pub fn over(base: MemoryDevice) -> RecordingDevice {
        // Below every device that is stacked over it.
        let log = Arc::new(Mutex::with_order(Rank::Device, u64::MAX, Log::default()));
        RecordingDevice::in_log(base, log)
    }

    /// Creates a further device that records into the history of `first`, in one order with it. A
    /// flush of one does not protect writes of the other.
    pub fn beside(base: MemoryDevice, first: &RecordingDevice) -> RecordingDevice {
        RecordingDevice::in_log(base, Arc::clone(&first.log))
    }

    fn in_log(base: MemoryDevice, log: Arc<Mutex<Log>>) -> RecordingDevice {
        let inner = base.snapshot();
        let number = {
            let mut log = log.lock();
            log.devices += 1;
            log.devices - 1
        };
        RecordingDevice { base, inner, log, number }
    }

    /// Adds a mark.
    pub fn mark(&self, text: &str) {
        let mut log = self.log.lock();
        let now = log.now;
        let place = log.push(self.number, Record::Mark(text.to_owned()), now);
        log.complete([place]);
    }

    /// Names a part of the device, for [`touches`](Self::touches). Parts may overlap.
    pub fn label(&self, bytes: Range<u64>, name: &str) {
        self.log.lock().labels.push((self.number, bytes, Arc::from(name)));
    }

    /// Returns the changes that records of this device made to named parts, in the order of the
    /// records.
    pub fn touches(&self) -> Vec<Touch> {
        let log = self.log.lock();
        let mut found = Vec::new();
        for (record, event) in log.events.iter().enumerate() {
            let (offset, len) = event.record.range();
            if event.device != self.number || len == 0 {
                continue;
            }
            for (number, part, label) in &log.labels {
                let bytes = offset.max(part.start)..(offset + len).min(part.end);
                if *number != self.number || bytes.is_empty() {
                    continue;
                }
                let data = match &event.record {
                    Record::Write { data, .. } => data
                        [(bytes.start - offset) as usize..(bytes.end - offset) as usize]
                        .to_vec(),
                    _ => Vec::new(),
                };
                found.push(Touch { label: Arc::clone(label), record, bytes, data });
            }
        }
        found
    }

    /// Records that a flush failed above this device.
    pub fn note_failed_flush(&self) {
        let mut log = self.log.lock();
        let now = log.now;
        let place = log.push(self.number, Record::FlushFailed, now);
        log.complete([place]);
    }

    /// Returns the number of records so far, of all devices that share the history.
    pub fn len(&self) -> usize {
        self.log.lock().events.len()
    }

    /// Returns true before the first record.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns a copy of the history. Written bytes are shared, not copied.
    pub fn records(&self) -> Vec<Record> {
        self.log.lock().events.iter().map(|event| event.record.clone()).collect()
    }

    /// Returns the history with its moments.
    pub fn events(&self) -> Vec<Event> {
        self.log.lock().events.clone()
    }

    /// Returns the number of this device in the history: [`Event::device`].
    pub fn number(&self) -> usize {
        self.number
    }

    /// Returns the contents before the first record, as a copy that shares pages.
    #[must_use]
    pub fn base(&self) -> MemoryDevice {
        self.base.snapshot()
    }

    /// Returns the present contents, as a copy that shares pages.
    #[must_use]
    pub fn contents(&self) -> MemoryDevice {
        self.inner.snapshot()
    }

    /// Returns the indexes of each two records that changed the same bytes and were in flight
    /// together, so that the device could have done either last. Each pair is a bug of the caller.
    pub fn races(&self) -> Vec<(usize, usize)> {
        let log = self.log.lock();
        let mut found = Vec::new();
        let mut open: Vec<usize> = Vec::new();
        for (place, event) in log.events.iter().enumerate() {
            let (offset, len) = event.record.range();
            if len == 0 {
                continue;
            }
            open.retain(|at| log.events[*at].completed >= event.submitted);
            for at in &open {
                let before = &log.events[*at];
                let (other, other_len) = before.record.range();
                if before.device == event.device
                    && other < offset + len
                    && offset < other + other_len
                {
                    found.push((*at, place));
                }
            }
            open.push(place);
        }
        found
    }

    /// Returns the last mark among the first `position` records.
    pub fn mark_before(&self, position: usize) -> Option<String> {
        self.log.lock().events.iter().take(position).rev().find_map(|event| match &event.record {
            Record::Mark(text) => Some(text.clone()),
            _ => None,
        })
    }

    /// Returns the contents after a power failure that followed the first `position` records.
    ///
    /// Records on stable storage by then ([`protected_from`]) are on the device. For each other
    /// record `survives` decides, which gets the record's index. Survivors keep their order,
    /// because overlapping writes were ordered by the caller.
    #[must_use]
    pub fn image_at(
        &self,
        position: usize,
        mut survives: impl FnMut(usize, &Record) -> Survival,
    ) -> MemoryDevice {
        let events = self.events();
        // The last moment before the next record took effect.
        let now = events.get(position).map_or(NEVER - 1, |next| next.performed - 1);
        let protected = protected_from(&events);
        let image = self.base.snapshot();
        for (index, event) in events.iter().enumerate().take(position) {
            if event.device != self.number {
                continue;
            }
            let record = &event.record;
            let keep =
                if protected[index] <= now { Survival::Kept } else { survives(index, record) };
            let len = match keep {
                Survival::Kept => NEVER,
                Survival::Lost => 0,
                Survival::Torn { bytes } => bytes / SECTOR_BYTES * SECTOR_BYTES,
            };
            // Every record succeeded on a device of this size, so it succeeds again.
            record.apply(&image, 0, len).expect("a recorded operation fits the device");
        }
        image
    }

    /// Returns the contents after the first `position` records, all of them kept.
    #[must_use]
    pub fn image_with_all(&self, position: usize) -> MemoryDevice {
        self.image_at(position, |_, _| Survival::Kept)
    }

    /// Does one operation and records it; the lock makes both one step (R1). The index is `None` if
    /// there is nothing to complete.
    fn perform(
        &self,
        operation: &mut Operation,
        submitted: u64,
    ) -> (Result<(), DeviceError>, Option<usize>) {
        if let Operation::Read { offset, buffer } = operation {
            return (self.inner.read_at(*offset, buffer), None);
        }
        let mut log = self.log.lock();
        let (result, record) = match operation {
            Operation::Read { .. } => return (Ok(()), None),
            Operation::Write { offset, buffer, fua } => (
                self.inner.write_at(*offset, buffer),
                Record::Write { offset: *offset, data: Arc::from(&**buffer), fua: *fua },
            ),
            Operation::Flush => (self.inner.flush(), Record::Flush),
            Operation::Discard { offset, len } => {
                (self.inner.discard(*offset, *len), Record::Discard { offset: *offset, len: *len })
            }
            Operation::WriteZeroes { offset, len } => (
                self.inner.write_zeroes(*offset, *len),
                Record::WriteZeroes { offset: *offset, len: *len },
            ),
        };
        let place = result.is_ok().then(|| log.push(self.number, record, submitted));
        (result, place)
    }

    /// Does one operation that is complete when the call returns.
    fn at_once(&self, record: Record) -> Result<(), DeviceError> {
        let mut log = self.log.lock();
        match &record {
            Record::Write { offset, data, .. } => self.inner.write_at(*offset, data)?,
            Record::Discard { offset, len } => self.inner.discard(*offset, *len)?,
            Record::WriteZeroes { offset, len } => self.inner.write_zeroes(*offset, *len)?,
            Record::Flush | Record::FlushFailed | Record::Mark(_) => {}
        }
        let now = log.now;
        let place = log.push(self.number, record, now);
        log.complete([place]);
        Ok(())
    }
}

impl BlockDevice for RecordingDevice {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        let submitted = self.log.lock().tick();
        let mut places = Vec::new();
        let run = |mut operation: Operation| {
            let (result, place) = self.perform(&mut operation, submitted);
            places.extend(place);
            Completion { operation, result }
        };
        let completions: Vec<Completion> = batch.into_iter().map(run).collect();
        if places.is_empty() {
            return Pending::done(completions);
        }
        let log = Arc::clone(&self.log);
        Pending::waiting(move || {
            log.lock().complete(places);
            completions
        })
    }

    /// Records each part as a write of its own, all of them in flight together.
    fn write_runs(&self, runs: &[WriteRun<'_>]) -> Vec<Result<(), DeviceError>> {
        let mut batch = Vec::new();
        let mut counts = Vec::with_capacity(runs.len());
        for run in runs {
            let mut offset = run.offset;
            for part in run.parts {
                let buffer = AlignedBuffer::copy_of(part);
                batch.push(Operation::Write { offset, buffer, fua: false });
                offset = offset.saturating_add(part.len() as u64);
            }
            counts.push(run.parts.len());
        }
        let mut done = self.submit(batch).wait().into_iter().map(|part| part.result);
        let of_run = |count| {
            // Each part is taken, also after one that failed.
            let parts: Vec<_> = done.by_ref().take(count).collect();
            parts.into_iter().collect()
        };
        counts.into_iter().map(of_run).collect()
    }

    fn runs_at_once(&self, _: OperationKind) -> usize {
        usize::MAX
    }

    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn extend(&self, size_bytes: u64) -> Result<u64, DeviceError> {
        self.inner.extend(size_bytes)
    }

    fn can_extend(&self) -> bool {
        self.inner.can_extend()
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
        self.at_once(Record::Write { offset, data: bytes.into(), fua: false })
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.at_once(Record::Flush)
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.at_once(Record::Discard { offset, len })
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.at_once(Record::WriteZeroes { offset, len })
    }

    /// Reserves space below; this changes no byte, so it is not recorded.
    fn allocate(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.inner.allocate(offset, len)
    }
}

impl fmt::Debug for RecordingDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordingDevice({:?}, {} records)", self.inner, self.len())
    }
}
