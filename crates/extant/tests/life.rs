//! The end of inodes beside what others do with them at that moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use extant::{Fs, Inode, MountOptions, NewInode};
use extant_block::{BlockDevice, DeviceError, MemoryDevice, Operation, Pending};
use extant_check::CheckOptions;
use extant_sync::threads::scope;
use extant_sync::{Clock, SystemClock};
use extant_testkit::oracle::{e2fsck, mke2fs};
use extant_testkit::{image, require};

const NEW: NewInode = NewInode { permissions: 0o644, uid: 0, gid: 0 };
/// Longest that a write waits for what another thread does meanwhile.
const PATIENCE: Duration = Duration::from_millis(300);

/// Time since a moment.
fn waited(since: Duration) -> Duration {
    SystemClock.monotonic().saturating_sub(since)
}

/// A device on which one write of contents waits until another thread has got something done, or
/// shows that it will not before the write is over.
struct Gate {
    below: Arc<MemoryDevice>,
    armed: AtomicBool,
    waits: AtomicBool,
    open: AtomicBool,
}

impl Gate {
    fn over(below: &Arc<MemoryDevice>) -> Arc<Gate> {
        let flag = || AtomicBool::new(false);
        Arc::new(Gate { below: Arc::clone(below), armed: flag(), waits: flag(), open: flag() })
    }

    /// The next vectored write waits.
    fn arm(&self) {
        self.open.store(false, Ordering::Release);
        self.waits.store(false, Ordering::Release);
        self.armed.store(true, Ordering::Release);
    }

    /// Until a write waits.
    fn wait(&self) {
        let start = SystemClock.monotonic();
        while !self.waits.load(Ordering::Acquire) {
            assert!(waited(start) < Duration::from_secs(30), "nothing is written back");
            SystemClock.sleep(Duration::from_millis(1));
        }
    }

    fn open(&self) {
        self.open.store(true, Ordering::Release);
    }
}

impl BlockDevice for Gate {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        self.below.submit(batch)
    }

    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn describe(&self) -> Arc<str> {
        self.below.describe()
    }

    fn write_vectored_at(
        &self,
        offset: u64,
        parts: &[std::io::IoSlice<'_>],
    ) -> Result<(), DeviceError> {
        if self.armed.swap(false, Ordering::AcqRel) {
            self.waits.store(true, Ordering::Release);
            let start = SystemClock.monotonic();
            while !self.open.load(Ordering::Acquire) && waited(start) < PATIENCE {
                SystemClock.sleep(Duration::from_millis(1));
            }
        }
        self.below.write_vectored_at(offset, parts)
    }
}

struct Bench {
    device: Arc<MemoryDevice>,
    gate: Arc<Gate>,
    fs: Fs,
    root: Inode,
}

fn bench(options: &[&str]) -> Result<Bench, String> {
    let dir = extant_testkit::tempdir().expect("a temporary directory");
    let path = dir.path().join("image");
    mke2fs(&path, "64M", options)?;
    let device = Arc::new(image::load(&path));
    let gate = Gate::over(&device);
    let fs = MountOptions::new()
        .read_only(false)
        .seed(1)
        .background(false)
        .open_shared(Arc::clone(&gate) as _)
        .expect("mounts");
    let root = fs.root().expect("a root");
    Ok(Bench { device, gate, fs, root })
}

impl Bench {
    /// Ends the mount; what is left is clean for both checkers.
    fn finish(self) -> Result<(), String> {
        let Bench { device, fs, root, .. } = self;
        drop(root);
        fs.unmount().expect("unmounts");
        let report = extant_check::check(&*device, &CheckOptions::default()).expect("checks");
        assert!(report.is_clean(), "{:#?}", report.problems);
        let dir = extant_testkit::tempdir().expect("a temporary directory");
        let path = dir.path().join("image");
        image::save(&device, &path);
        e2fsck(&path)?.assert_clean();
        Ok(())
    }
}

/// One thread has the contents of a file under writeback while another removes its last name and
/// lets its last handle go: the inode is deleted after the writeback or before, never beside it.
#[test]
fn a_file_is_not_deleted_while_another_thread_writes_it_back() {
    for options in
        [&["-t", "ext4"][..], &["-t", "ext3", "-b", "1024"], &["-t", "ext4", "-O", "bigalloc"]]
    {
        let bench = require!(bench(options));
        let file = bench.root.create("f", &NEW).expect("creates");
        file.write_at(0, &vec![7; 4 << 20]).expect("writes");
        bench.gate.arm();
        scope(|threads| {
            let fs = bench.fs.clone();
            let writes = threads.spawn("writeback", move || fs.sync()).expect("a thread");
            bench.gate.wait();
            bench.root.unlink("f").expect("unlinks");
            drop(file);
            // Deletes what was let go.
            bench.root.mkdir("d", &NEW).expect("makes");
            bench.gate.open();
            writes.join().expect("ends").expect("syncs");
        })
        .expect("threads");
        require!(bench.finish());
    }
}
