//! A second thread that writes a file back while a commit is half done.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use extant::Fs;
use extant_block::{
    BlockDevice, DeviceError, MemoryDevice, Operation, OperationKind, Pending, SharedDevice,
};
use extant_sync::{FixedClock, Mutex, Rank, threads};
use extant_testkit::model::{Op, Outcome, Path, Rules, Tree};
use extant_testkit::proof::Target;

use crate::target::{Extant, Held};

/// What one flush does.
struct Meeting {
    /// Told when the flush begins.
    begun: threads::Sender<()>,
    /// Tells that something was written since, or that nothing will be.
    written: threads::Receiver<()>,
}

/// A device at whose next flush somebody else goes first.
pub(crate) struct Door {
    below: SharedDevice,
    meeting: Mutex<Option<Meeting>>,
    written: Mutex<Option<threads::Sender<()>>>,
    is_watched: AtomicBool,
}

impl Door {
    fn wrote(&self) {
        if self.is_watched.swap(false, Ordering::AcqRel) {
            self.written.lock().take();
        }
    }
}

impl BlockDevice for Door {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        if batch.iter().any(|operation| operation.kind() == OperationKind::Flush) {
            let meeting = self.meeting.lock().take();
            if let Some(Meeting { begun, written }) = meeting {
                self.is_watched.store(true, Ordering::Release);
                // The other thread is there as long as this can come.
                let _ = begun.send(());
                let _ = written.recv();
            }
        }
        let writes = batch.iter().any(|operation| operation.kind() == OperationKind::Write);
        let pending = self.below.submit(batch);
        if writes {
            self.wrote();
        }
        pending
    }

    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }

    fn is_read_only(&self) -> bool {
        self.below.is_read_only()
    }

    fn describe(&self) -> Arc<str> {
        self.below.describe()
    }

    fn write_vectored_at(
        &self,
        offset: u64,
        parts: &[std::io::IoSlice<'_>],
    ) -> Result<(), DeviceError> {
        let done = self.below.write_vectored_at(offset, parts);
        self.wrote();
        done
    }
}

/// The file system, in which an fsync of the root meets the writeback of [`Racing::file`] between the
/// blocks of its transaction and the commit block.
pub(crate) struct Racing {
    pub(crate) inner: Extant,
    pub(crate) file: Path,
}

impl Target for Racing {
    type Fs = (Fs, Arc<Door>);
    type Handle = Held;

    fn mount(&self, devices: &[SharedDevice], clock: Arc<FixedClock>) -> Result<Self::Fs, String> {
        let door = Arc::new(Door {
            below: Arc::clone(&devices[0]),
            meeting: Mutex::new(Rank::Leaf, None),
            written: Mutex::new(Rank::Leaf, None),
            is_watched: AtomicBool::new(false),
        });
        let mut devices = devices.to_vec();
        devices[0] = Arc::clone(&door) as SharedDevice;
        Ok((self.inner.mount(&devices, clock)?, door))
    }

    fn apply(&self, (fs, door): &Self::Fs, slots: &mut HashMap<usize, Held>, op: &Op) -> Outcome {
        if !matches!(op, Op::Fsync { path } if path.0.is_empty()) {
            return self.inner.apply(fs, slots, op);
        }
        let (begun, waits) = threads::channel(1);
        let (wrote, written) = threads::channel(1);
        *door.meeting.lock() = Some(Meeting { begun, written });
        *door.written.lock() = Some(wrote);
        threads::scope(|scope| {
            let other = || {
                if waits.recv().is_ok() {
                    let mut none = HashMap::new();
                    let op = Op::Fdatasync { path: self.file.clone() };
                    let done = self.inner.apply(fs, &mut none, &op);
                    done.unwrap_or_else(|errno| panic!("{op}: error {errno}"));
                }
            };
            scope.spawn("other", other).expect("a thread");
            let done = self.inner.apply(fs, slots, op);
            // Without a flush nobody meets.
            door.meeting.lock().take();
            done
        })
        .unwrap_or_else(|panic| panic!("{panic}"))
    }

    fn snapshot(&self, fs: &Self::Fs, rules: &Rules) -> Result<Tree, String> {
        self.inner.snapshot(&fs.0, rules)
    }

    fn unmount(&self, fs: Self::Fs) -> Result<(), String> {
        self.inner.unmount(fs.0)
    }

    fn check(&self, devices: &[MemoryDevice]) -> Result<bool, String> {
        self.inner.check(devices)
    }
}
