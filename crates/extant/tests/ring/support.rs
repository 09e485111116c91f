//! Images, a device that stalls, and short ways to submit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use extant::ring::{Completion, Op, Ring};
use extant::{Fs, Inode, MountOptions, NewInode};
use extant_block::{MemoryDevice, SharedDevice};
use extant_sync::{Clock, FixedClock, SystemClock};
use extant_testkit::oracle::{e2fsck, mke2fs};
use extant_testkit::{Hooked, image, tempdir};

pub(crate) const NEW: NewInode = NewInode { permissions: 0o644, uid: 0, gid: 0 };
pub(crate) const BLOCK: usize = 4096;
/// Longest that a test waits for what must come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A device that stops while it is told to.
pub(crate) type Stalling = Hooked<Arc<MemoryDevice>, Stalls>;

#[derive(Default)]
pub(crate) struct Stalls {
    stalls: AtomicBool,
    /// Operations that have had to wait.
    pub(crate) stalled: AtomicU64,
    /// The next operation panics.
    pub(crate) panics: AtomicBool,
}

impl Stalls {
    fn pass(&self) {
        assert!(!self.panics.swap(false, Ordering::AcqRel), "the driver is broken");
        if !self.stalls.load(Ordering::Acquire) {
            return;
        }
        self.stalled.fetch_add(1, Ordering::AcqRel);
        until("the device goes on", || !self.stalls.load(Ordering::Acquire));
    }
}

pub(crate) fn stalling(below: &Arc<MemoryDevice>) -> Arc<Stalling> {
    Hooked::over(Arc::clone(below), Stalls::default(), |stalls, _| stalls.pass())
}

/// Until what is returned is dropped, also by a test that fails: rings wait for what they accepted.
pub(crate) fn stall(device: &Arc<Stalling>) -> Stall {
    device.state.stalls.store(true, Ordering::Release);
    Stall(Arc::clone(device))
}

#[must_use]
pub(crate) struct Stall(Arc<Stalling>);

impl Drop for Stall {
    fn drop(&mut self) {
        self.0.state.stalls.store(false, Ordering::Release);
    }
}

pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
    let start = SystemClock.monotonic();
    while !is_so() {
        assert!(SystemClock.monotonic() - start < PATIENCE, "not in time: {what}");
        SystemClock.sleep(Duration::from_millis(1));
    }
}

pub(crate) fn made(size: &str) -> Result<Arc<MemoryDevice>, String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    mke2fs(&path, size, &["-t", "ext4", "-b", "4096"])?;
    Ok(Arc::new(image::load(&path)))
}

pub(crate) fn mount(device: SharedDevice) -> Fs {
    let clock = Arc::new(FixedClock::at(1_700_000_000, 0));
    let options = MountOptions::new().read_only(false).background(false).seed(1).clock(clock);
    options.open_shared(device).unwrap()
}

pub(crate) fn file(fs: &Fs, name: &str) -> Inode {
    fs.root().unwrap().create(name, &NEW).unwrap()
}

/// A file that is stored, and nothing of which is in memory.
pub(crate) fn cold(fs: &Fs, name: &str, bytes: &[u8]) -> Inode {
    let file = file(fs, name);
    file.write_at(bytes, 0).unwrap();
    fs.sync().unwrap();
    fs.drop_cached();
    file
}

pub(crate) fn finish(fs: Fs, device: &MemoryDevice) {
    fs.unmount().unwrap();
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    image::save(device, &path);
    e2fsck(&path).unwrap().assert_clean();
}

pub(crate) fn write(offset: u64, bytes: impl Into<Vec<u8>>) -> Op {
    Op::Write { offset, bytes: bytes.into() }
}

pub(crate) fn read(offset: u64, len: usize) -> Op {
    Op::Read { offset, buffer: vec![0; len] }
}

/// Submits what must be accepted.
pub(crate) fn submit(ring: &Ring, tag: u64, inode: &Inode, op: Op) -> Option<Completion> {
    ring.submit(tag, inode, op).unwrap_or_else(|busy| panic!("{tag}: {busy}"))
}

/// All that is with the workers, in the order in which it was done.
pub(crate) fn drain(ring: &Ring) -> Vec<(u64, u64)> {
    std::iter::from_fn(|| ring.wait()).map(|done| (done.tag, done.result.unwrap())).collect()
}
