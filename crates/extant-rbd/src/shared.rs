//! An open image, and what is known of its loss.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use extant_base::sabotage;
use extant_block::{AlignedBuffer, DeviceError, DeviceFault, OperationKind};
use extant_sync::{Mutex, Rank};

use crate::board::{Board, Flights};
use crate::ffi::{Call, Image, errno};

// Numbers of Linux.
const EINVAL: i32 = 22;
const EROFS: i32 = 30;
const ESHUTDOWN: i32 = 108;
const ETIMEDOUT: i32 = 110;

/// Why nothing more is changed (R4).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Lost {
    /// The cluster takes nothing more from this client.
    Blocklisted,
    /// The exclusive lock is another client's.
    LockTaken,
    /// A change may still be made.
    Unanswered,
    /// What was acknowledged is not there, because of this error.
    NotFlushed(i32),
}

impl Lost {
    fn error(self) -> io::Error {
        let (kind, text) = match self {
            Lost::Blocklisted => (
                io::ErrorKind::Other,
                "the cluster has shut this client out (blocklisted), because another one took the image over: what was not flushed is lost; end this one, and open the image again".to_owned(),
            ),
            Lost::LockTaken => (
                io::ErrorKind::Other,
                "the exclusive lock of the image is another client's now: nothing more is changed; end this one, and open the image again".to_owned(),
            ),
            Lost::Unanswered => (
                io::ErrorKind::TimedOut,
                "the cluster did not answer in time, and may still make the change: nothing more is changed until the image is opened again".to_owned(),
            ),
            Lost::NotFlushed(errno) => {
                let cause = io::Error::from_raw_os_error(errno);
                (
                    cause.kind(),
                    format!("the cluster could not make everything durable ({cause}): nothing more is changed until the image is opened again"),
                )
            }
        };
        io::Error::new(kind, text)
    }
}

pub(crate) struct Shared {
    image: Image,
    name: Arc<str>,
    is_read_only: bool,
    is_locked: bool,
    /// The size that callers know: it never becomes less.
    size: AtomicU64,
    limit: Option<Duration>,
    pub(crate) flights: Arc<Flights>,
    lost: Mutex<Option<Lost>>,
}

impl Shared {
    pub(crate) fn new(
        image: Image,
        name: Arc<str>,
        is_read_only: bool,
        is_locked: bool,
        limit: Option<Duration>,
    ) -> Result<Shared, i32> {
        let size = AtomicU64::new(image.size()?);
        let flights = Arc::new(Flights::new());
        let lost = Mutex::new(Rank::Leaf, None);
        Ok(Shared { image, name, is_read_only, is_locked, size, limit, flights, lost })
    }

    pub(crate) fn name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.is_locked
    }

    pub(crate) fn limit(&self) -> Option<Duration> {
        self.limit
    }

    pub(crate) fn can_zero(&self) -> bool {
        self.image.can_zero()
    }

    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Relaxed)
    }

    /// Measures the image again, and returns the size it has now.
    pub(crate) fn measure(&self) -> Result<u64, DeviceFault> {
        let now = self.image.size().map_err(|errno| self.fault(OperationKind::Read, errno))?;
        self.size.fetch_max(now, Ordering::Relaxed);
        Ok(now)
    }

    pub(crate) fn error(
        &self,
        kind: OperationKind,
        offset: u64,
        len: u64,
        fault: DeviceFault,
    ) -> DeviceError {
        DeviceError::new(self.name(), kind, offset, len, fault)
    }

    /// The fault of a range that is not on the image as it is now.
    fn check_end(&self, end: u64) -> Result<(), DeviceFault> {
        let device_bytes = self.image.size().unwrap_or(u64::MAX);
        if end > device_bytes && !sabotage("rbd.shared.size-not-looked-at") {
            return Err(DeviceFault::PastEnd { device_bytes });
        }
        Ok(())
    }

    /// Checks what comes before each operation.
    pub(crate) fn check(
        &self,
        kind: OperationKind,
        offset: u64,
        len: u64,
    ) -> Result<(), DeviceFault> {
        let only_looks = matches!(kind, OperationKind::Read | OperationKind::Flush);
        if !only_looks && self.is_read_only {
            return Err(DeviceFault::ReadOnly);
        }
        let device_bytes = self.size();
        match offset.checked_add(len) {
            Some(end) if end <= device_bytes => self.check_end(end)?,
            _ => return Err(DeviceFault::PastEnd { device_bytes }),
        }
        if kind != OperationKind::Read
            && let Some(lost) = *self.lost.lock()
        {
            return Err(DeviceFault::Io(lost.error()));
        }
        Ok(())
    }

    /// Starts a request, for which there is room.
    pub(crate) fn start(
        &self,
        call: Call,
        offset: u64,
        cookie: u64,
        memory: AlignedBuffer,
        board: &Arc<Board>,
    ) -> Result<(), DeviceFault> {
        let bytes = memory.len() as u64;
        let landing = Arc::clone(board);
        self.image.start(call, offset, cookie, memory, landing).map_err(|errno| {
            self.flights.leave(bytes);
            self.fault(kind_of(call), errno)
        })
    }

    fn lose(&self, lost: Lost) -> DeviceFault {
        if lost == Lost::Unanswered && sabotage("rbd.shared.unanswered-forgotten") {
            return DeviceFault::Io(lost.error());
        }
        let mut first = self.lost.lock();
        // Out of the cluster is out for good; of the others the first counts.
        if first.is_none() || lost == Lost::Blocklisted {
            *first = Some(lost);
        }
        DeviceFault::Io(first.unwrap_or(lost).error())
    }

    /// What an errno of the library means, for the request and for those that follow.
    fn fault(&self, kind: OperationKind, errno: i32) -> DeviceFault {
        let is_read = kind == OperationKind::Read;
        match errno {
            ESHUTDOWN => self.lose(Lost::Blocklisted),
            EROFS if !is_read && self.is_locked => self.lose(Lost::LockTaken),
            ETIMEDOUT if !is_read => self.lose(Lost::Unanswered),
            ETIMEDOUT => self.silence(kind),
            errno if kind == OperationKind::Flush && !sabotage("rbd.shared.flush-failed-once") => {
                // The error itself this once: whoever asks afterwards hears what it means.
                self.lose(Lost::NotFlushed(errno));
                DeviceFault::Io(io::Error::from_raw_os_error(errno))
            }
            errno => DeviceFault::Io(io::Error::from_raw_os_error(errno)),
        }
    }

    /// The fault of a request that nobody answered.
    pub(crate) fn silence(&self, kind: OperationKind) -> DeviceFault {
        if kind != OperationKind::Read {
            return self.lose(Lost::Unanswered);
        }
        let text = "the cluster did not answer in time (rados_osd_op_timeout)";
        DeviceFault::Io(io::Error::new(io::ErrorKind::TimedOut, text))
    }

    /// Judges the result of a request.
    pub(crate) fn judge(
        &self,
        call: Call,
        offset: u64,
        len: u64,
        result: i64,
    ) -> Result<(), DeviceFault> {
        let kind = kind_of(call);
        let end = offset.saturating_add(len);
        if result < 0 {
            let errno = errno(result);
            if errno == EINVAL && kind != OperationKind::Flush {
                self.check_end(end)?;
            }
            return Err(self.fault(kind, errno));
        }
        let moved = result.unsigned_abs();
        match kind {
            OperationKind::Read if moved == len => Ok(()),
            OperationKind::Read if moved < len => {
                self.check_end(end)?;
                Err(DeviceFault::ShortRead { got_bytes: moved })
            }
            OperationKind::Flush => Ok(()),
            // The library cuts a change at the end of the image and says nothing.
            OperationKind::Write | OperationKind::WriteZeroes | OperationKind::Discard
                if moved == 0 || moved == len =>
            {
                self.check_end(end)
            }
            _ => {
                let what = format!("the library says that it moved {moved} bytes");
                Err(DeviceFault::Io(io::Error::other(what)))
            }
        }
    }
}

/// The operation that a request belongs to.
pub(crate) fn kind_of(call: Call) -> OperationKind {
    match call {
        Call::Read => OperationKind::Read,
        Call::Write => OperationKind::Write,
        Call::Flush => OperationKind::Flush,
        Call::Discard(_) => OperationKind::Discard,
        Call::Zero(_) => OperationKind::WriteZeroes,
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Requests that nobody waits for: closing would wait for them.
        if self.flights.count() > 0 && !self.flights.wait_none(self.limit) {
            self.image.abandon();
        }
    }
}
