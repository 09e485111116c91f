//! The device below the test file system: memory full of garbage, with faults and an owner for
//! each block.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering};

use extant_block::{
    BlockDevice, DeviceError, DeviceFault, MemoryDevice, Operation, OperationKind, Pending, ReadRun,
};
use extant_sync::{Mutex, Rank};

/// What every byte of the device is before somebody writes it, and after its block was freed.
/// Contents of test files never have it.
pub(crate) const GARBAGE: u8 = 0xA5;

/// Lets something fail.
#[derive(Default)]
pub(crate) struct Fault {
    /// Calls until it fails; 0 for never.
    left: AtomicI64,
    failed: AtomicU64,
}

impl Fault {
    /// The `nth` call from now fails, once.
    pub(crate) fn after(&self, nth: i64) {
        self.left.store(nth, Ordering::SeqCst);
    }

    /// How often it has failed.
    pub(crate) fn failed(&self) -> u64 {
        self.failed.load(Ordering::SeqCst)
    }

    pub(crate) fn fails(&self) -> bool {
        if self.left.load(Ordering::SeqCst) <= 0 || self.left.fetch_sub(1, Ordering::SeqCst) != 1 {
            return false;
        }
        self.failed.fetch_add(1, Ordering::SeqCst);
        true
    }
}

/// A place where a test may want something to happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Point {
    /// A mapping was looked up, and its answer not yet used.
    Mapped,
    /// A place was chosen, nothing written there yet.
    Placed,
    /// The device has the data.
    Written,
    /// Before the map is changed.
    Publish,
    /// After it was; the blocks are still under writeback.
    Published,
    /// Before a read of the device.
    Read,
    /// After one.
    WasRead,
}

type Hook = Box<dyn FnOnce() + Send>;

/// What happens at points, each once.
pub(crate) struct Hooks(Mutex<HashMap<Point, Hook>>);

impl Hooks {
    pub(crate) fn new() -> Hooks {
        Hooks(Mutex::new(Rank::Leaf, HashMap::new()))
    }

    /// The next time somebody comes to that point, it calls `hook`.
    pub(crate) fn once(&self, point: Point, hook: impl FnOnce() + Send + 'static) {
        self.0.lock().insert(point, Box::new(hook));
    }

    /// Whether a hook is waiting.
    pub(crate) fn is_set(&self, point: Point) -> bool {
        self.0.lock().contains_key(&point)
    }

    pub(crate) fn run(&self, point: Point) {
        let hook = self.0.lock().remove(&point);
        if let Some(hook) = hook {
            hook();
        }
    }
}

/// Who has a block of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Owner {
    Nobody,
    /// In the map of a file, or about to be.
    File,
}

/// The free space: an owner for each block.
pub(crate) struct Space {
    owners: Vec<Owner>,
    free: u64,
    next: usize,
}

impl Space {
    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    /// Takes up to `most` blocks in a row; `None` when nothing is free.
    pub(crate) fn take(&mut self, most: u64) -> Option<(u64, u64)> {
        let count = self.owners.len();
        let start = (0..count)
            .map(|step| (self.next + step) % count)
            .find(|at| self.owners[*at] == Owner::Nobody)?;
        let mut len = 0;
        while len < most && self.owners.get(start + len as usize) == Some(&Owner::Nobody) {
            self.owners[start + len as usize] = Owner::File;
            len += 1;
        }
        self.next = start + len as usize;
        self.free -= len;
        Some((start as u64, len))
    }

    fn give(&mut self, block: u64) {
        let slot = &mut self.owners[block as usize];
        assert_eq!(*slot, Owner::File, "block {block} is freed twice");
        *slot = Owner::Nobody;
        self.free += 1;
    }
}

/// Memory that knows which blocks may be touched.
pub(crate) struct TestDevice {
    memory: MemoryDevice,
    block_log2: u32,
    pub(crate) space: Mutex<Space>,
    pub(crate) hooks: Arc<Hooks>,
    pub(crate) reads: Fault,
    pub(crate) writes: Fault,
    /// A write that fails has stored the first half of its bytes, as on a real device.
    pub(crate) tears: AtomicBool,
    /// How many reads the device says it has under way at once; 0 for one.
    pub(crate) at_once: AtomicUsize,
    /// Reads of each call that asked for several.
    pub(crate) together: Mutex<Vec<usize>>,
}

impl TestDevice {
    pub(crate) fn new(bytes: u64, block_log2: u32, hooks: Arc<Hooks>) -> TestDevice {
        let blocks = bytes >> block_log2;
        let space = Space { owners: vec![Owner::Nobody; blocks as usize], free: blocks, next: 0 };
        TestDevice {
            memory: MemoryDevice::filled_with(GARBAGE, bytes),
            block_log2,
            space: Mutex::new(Rank::Group, space),
            hooks,
            reads: Fault::default(),
            writes: Fault::default(),
            tears: AtomicBool::new(false),
            at_once: AtomicUsize::new(0),
            together: Mutex::new(Rank::Leaf, Vec::new()),
        }
    }

    /// Frees a block, and makes sure that whoever still reads it sees that.
    pub(crate) fn free(&self, block: u64) {
        let bytes = vec![GARBAGE; 1 << self.block_log2];
        self.memory.write_at(block << self.block_log2, &bytes).unwrap();
        self.space.lock().give(block);
    }

    /// Bytes as they are stored, without faults.
    pub(crate) fn peek(&self, at: u64, out: &mut [u8]) {
        self.memory.read_at(at, out).unwrap();
    }

    /// Stores bytes, as another system would have left them.
    pub(crate) fn poke(&self, at: u64, bytes: &[u8]) {
        self.memory.write_at(at, bytes).unwrap();
    }

    fn error(&self, kind: OperationKind, offset: u64, len: usize) -> DeviceError {
        let fault = DeviceFault::Io(io::Error::other("injected"));
        DeviceError::new("test".into(), kind, offset, len as u64, fault)
    }

    /// Nobody reads or writes what belongs to nobody.
    fn check(&self, what: &str, offset: u64, len: usize) {
        let space = self.space.lock();
        let blocks =
            offset >> self.block_log2..(offset + len as u64).div_ceil(1 << self.block_log2);
        for block in blocks {
            assert_ne!(space.owners[block as usize], Owner::Nobody, "{what} of free block {block}");
        }
    }
}

impl BlockDevice for TestDevice {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        self.memory.submit(batch)
    }

    fn size_bytes(&self) -> u64 {
        self.memory.size_bytes()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn describe(&self) -> Arc<str> {
        "test".into()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.hooks.run(Point::Read);
        self.check("read", offset, out.len());
        if self.reads.fails() {
            // As a real one: what is in the buffer then is anything.
            out.fill(GARBAGE);
            return Err(self.error(OperationKind::Read, offset, out.len()));
        }
        self.memory.read_at(offset, out)?;
        self.hooks.run(Point::WasRead);
        Ok(())
    }

    fn runs_at_once(&self, kind: OperationKind) -> usize {
        match kind {
            OperationKind::Read => self.at_once.load(Ordering::SeqCst).max(1),
            _ => 1,
        }
    }

    fn read_runs(&self, runs: &mut [ReadRun<'_>]) -> Vec<Result<(), DeviceError>> {
        self.together.lock().push(runs.len());
        runs.iter_mut().map(|run| self.read_at(run.offset, run.out)).collect()
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.check("write", offset, bytes.len());
        if self.writes.fails() {
            if self.tears.load(Ordering::SeqCst) {
                self.memory.write_at(offset, &bytes[..bytes.len() / 2])?;
            }
            return Err(self.error(OperationKind::Write, offset, bytes.len()));
        }
        self.memory.write_at(offset, bytes)?;
        self.hooks.run(Point::Written);
        Ok(())
    }
}
