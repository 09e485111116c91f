//! The end of inodes beside what others do with them at that moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use extant::{Fs, Inode, InodeFlags, MountOptions, NewInode, SetAttributes};
use extant_block::{
    BlockDevice, DeviceError, DeviceFault, FaultDevice, FaultPlan, MemoryDevice, Operation,
    OperationKind, Pending, SharedDevice,
};
use extant_check::CheckOptions;
use extant_format::features::{RoCompat, State};
use extant_format::superblock::Superblock;
use extant_sync::threads::scope;
use extant_sync::{Clock, SystemClock};
use extant_testkit::oracle::{e2fsck, e2fsck_as, mke2fs};
use extant_testkit::{image, require};

const NEW: NewInode = NewInode { permissions: 0o644, uid: 0, gid: 0 };
/// Longest that a write waits for what another thread does meanwhile.
const PATIENCE: Duration = Duration::from_millis(300);

/// Time since a moment.
fn waited(since: Duration) -> Duration {
    SystemClock.monotonic().saturating_sub(since)
}

/// A device on which one write of contents, or one read, waits until another thread has got something
/// done, or shows that it will not before that is over.
struct Gate {
    below: Arc<MemoryDevice>,
    armed: AtomicBool,
    reads_armed: AtomicBool,
    /// The next vectored write fails.
    fails: AtomicBool,
    waits: AtomicBool,
    open: AtomicBool,
}

impl Gate {
    fn over(below: &Arc<MemoryDevice>) -> Arc<Gate> {
        let flag = || AtomicBool::new(false);
        Arc::new(Gate {
            below: Arc::clone(below),
            armed: flag(),
            reads_armed: flag(),
            fails: flag(),
            waits: flag(),
            open: flag(),
        })
    }

    /// The next vectored write waits.
    fn arm(&self) {
        self.open.store(false, Ordering::Release);
        self.waits.store(false, Ordering::Release);
        self.armed.store(true, Ordering::Release);
    }

    /// The next read waits.
    fn arm_reads(&self) {
        self.open.store(false, Ordering::Release);
        self.waits.store(false, Ordering::Release);
        self.reads_armed.store(true, Ordering::Release);
    }

    fn hold_up(&self) {
        self.waits.store(true, Ordering::Release);
        let start = SystemClock.monotonic();
        while !self.open.load(Ordering::Acquire) && waited(start) < PATIENCE {
            SystemClock.sleep(Duration::from_millis(1));
        }
    }

    /// Until one waits.
    fn wait(&self) {
        let start = SystemClock.monotonic();
        while !self.waits.load(Ordering::Acquire) {
            assert!(waited(start) < Duration::from_secs(30), "the device is not asked");
            SystemClock.sleep(Duration::from_millis(1));
        }
    }

    fn open(&self) {
        self.open.store(true, Ordering::Release);
    }
}

impl BlockDevice for Gate {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        let is_read = |operation: &Operation| matches!(operation, Operation::Read { .. });
        if batch.iter().any(is_read) && self.reads_armed.swap(false, Ordering::AcqRel) {
            self.hold_up();
        }
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
            self.hold_up();
        }
        if self.fails.swap(false, Ordering::AcqRel) {
            let error = std::io::Error::other("no luck");
            let fault = DeviceFault::Io(error);
            return Err(DeviceError::new(
                self.describe(),
                OperationKind::Write,
                offset,
                4096,
                fault,
            ));
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
        check(&device)
    }
}

/// Both checkers find nothing.
fn check(device: &MemoryDevice) -> Result<(), String> {
    let report = extant_check::check(device, &CheckOptions::default()).expect("checks");
    assert!(report.is_clean(), "{:#?}", report.problems);
    let dir = extant_testkit::tempdir().expect("a temporary directory");
    let path = dir.path().join("image");
    image::save(device, &path);
    e2fsck(&path)?.assert_clean();
    Ok(())
}

/// One thread has the contents of a file under writeback while another removes its last name and
/// lets its last handle go: the inode is deleted after the writeback or before, never beside it.
#[test]
fn a_file_is_not_deleted_while_another_thread_writes_it_back() {
    for options in [
        &["-t", "ext4", "-b", "4096"][..],
        &["-t", "ext3", "-b", "1024"],
        &["-t", "ext4", "-b", "4096", "-O", "bigalloc"],
    ] {
        let bench = require!(bench(options));
        let file = bench.root.create("f", &NEW).expect("creates");
        file.write_at(&vec![7; 4 << 20], 0).expect("writes");
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

/// What a power cut leaves: a copy of the device.
fn cut(bench: &Bench) -> Arc<MemoryDevice> {
    Arc::new(bench.device.snapshot())
}

/// Mounts what a cut left, and says how many orphans were deleted. Clean afterwards.
fn recover(device: Arc<MemoryDevice>) -> Result<u64, String> {
    let fs = MountOptions::new()
        .read_only(false)
        .background(false)
        .open_shared(Arc::clone(&device) as _)
        .expect("mounts");
    let summary = fs.recovered_orphans().expect("a mount for writing");
    assert_eq!(summary.damaged, 0, "{summary:?}");
    let deleted = summary.deleted;
    fs.unmount().expect("unmounts");
    check(&device)?;
    Ok(deleted)
}

/// The last handle is let go while the last name goes, just before the inode is written down as an orphan:
/// whoever deletes it then takes it off the list, and its number is free for another.
#[test]
fn what_is_let_go_while_it_becomes_an_orphan_is_no_orphan_when_it_is_dead() {
    let bench = require!(bench(ORPHANS[1]));
    let file = bench.root.create("f", &NEW).expect("creates");
    bench.root.create("g", &NEW).expect("creates");
    bench.fs.sync().expect("syncs");
    bench.fs.drop_cached_metadata();
    // From here on all that an unlink needs is in memory but the orphan file.
    bench.root.unlink("g").expect("unlinks");
    file.set_attributes(&SetAttributes::new().permissions(0o600)).expect("changes");
    bench.gate.arm_reads();
    let ino = file.ino();
    scope(|threads| {
        let root = bench.root.clone();
        let unlinks = threads.spawn("unlink", move || root.unlink("f")).expect("a thread");
        bench.gate.wait();
        drop(file);
        bench.fs.finish_removals();
        bench.gate.open();
        unlinks.join().expect("ends").expect("unlinks");
    })
    .expect("threads");
    bench.fs.finish_removals();
    let next = bench.root.create("next", &NEW).expect("creates");
    assert_eq!(next.ino(), ino, "the number is free");
    drop(next);
    require!(bench.finish());
}

/// A file that could not be shortened to the end is an orphan with a name. When the name goes as well,
/// the file leaves the list of orphans with it; when it is shortened after all, before.
#[test]
fn a_file_that_could_not_be_shortened_is_on_no_list_when_it_is_gone() {
    for (options, goes) in ORPHANS.into_iter().flat_map(|o| [true, false].map(|goes| (o, goes))) {
        let bench = require!(bench(options));
        let file = bench.root.create("f", &NEW).expect("creates");
        file.write_at(&vec![7; 100_000], 0).expect("writes");
        bench.fs.sync().expect("syncs");
        bench.gate.fails.store(true, Ordering::Release);
        file.truncate(50_000).expect_err("zeros behind the end are not written");
        assert!(!bench.gate.fails.load(Ordering::Acquire), "nothing was written");
        if goes {
            drop(file);
            bench.root.unlink("f").expect("unlinks");
            bench.root.create("next", &NEW).expect("takes its number");
        } else {
            file.truncate(0).expect("truncates");
            drop(file);
        }
        let Bench { device, fs, root, .. } = bench;
        drop(root);
        fs.unmount().expect("unmounts");
        // Nothing else is wrong but that the device failed.
        let mut bytes = [0; 1024];
        device.read_at(1024, &mut bytes).expect("reads");
        let mut stored = Superblock::decode(&bytes).expect("a superblock");
        assert!(stored.state.contains(State::ERROR), "nobody was told");
        stored.state -= State::ERROR;
        stored.error_count = 0;
        device.write_at(1024, &stored.encode()).expect("writes");
        require!(check(&device));
    }
}

const ORPHANS: [&[&str]; 2] = [
    &["-t", "ext4", "-b", "4096", "-O", "^orphan_file"],
    &["-t", "ext4", "-b", "4096", "-O", "orphan_file"],
];

/// A file that is open and has no name any more is shortened, and the power goes: it is an orphan all
/// the same, and the next mount deletes it.
#[test]
fn a_file_without_a_name_that_was_truncated_is_gone_after_a_cut() {
    // In its last block, to the start of a block, longer than before; and to nothing.
    for (options, size) in
        ORPHANS.into_iter().flat_map(|o| [5000, 8192, 1 << 20, 0].map(|s| (o, s)))
    {
        let bench = require!(bench(options));
        let file = bench.root.create("f", &NEW).expect("creates");
        // Too many extents for the inode.
        for at in 0..20 {
            file.write_at(&[7; 6000], at * 16384).expect("writes");
        }
        bench.fs.sync().expect("syncs");
        bench.root.unlink("f").expect("unlinks");
        bench.fs.sync().expect("syncs");
        file.truncate(size).expect("truncates");
        bench.fs.sync().expect("syncs");
        assert_eq!(require!(recover(cut(&bench))), 1, "{options:?}, to {size}");
        drop(file);
        require!(bench.finish());
    }
}

/// The same, when the name goes while the file is being shortened: it is an orphan for two reasons, and
/// stays one when the first is over.
#[test]
fn a_name_that_goes_during_a_truncation_leaves_an_orphan() {
    for options in ORPHANS {
        let bench = require!(bench(options));
        let file = bench.root.create("f", &NEW).expect("creates");
        file.write_at(&vec![7; 100_000], 0).expect("writes");
        bench.fs.sync().expect("syncs");
        bench.gate.arm();
        scope(|threads| {
            // Its last step writes zeros behind the end.
            let truncates = threads.spawn("truncate", || file.truncate(50_000)).expect("a thread");
            bench.gate.wait();
            bench.root.unlink("f").expect("unlinks");
            bench.gate.open();
            truncates.join().expect("ends").expect("truncates");
        })
        .expect("threads");
        bench.fs.sync().expect("syncs");
        assert_eq!(require!(recover(cut(&bench))), 1, "{options:?}");
        drop(file);
        require!(bench.finish());
    }
}

/// A file with a tree of extents, on an image that nobody has mounted; and the block of its leaf.
fn with_tree(options: &[&str]) -> Result<(Arc<MemoryDevice>, u64), String> {
    let bench = bench(options)?;
    let file = bench.root.create("f", &NEW).expect("creates");
    for at in 0..20 {
        file.write_at(&[7; 6000], at * 16384).expect("writes");
    }
    bench.fs.sync().expect("syncs");
    let block = file.record().block;
    assert_eq!(block[6], 1, "a tree of one level");
    let leaf = u32::from_le_bytes([block[16], block[17], block[18], block[19]]);
    let device = Arc::clone(&bench.device);
    drop(file);
    bench.finish()?;
    Ok((device, u64::from(leaf)))
}

/// The map of a file that is removed cannot be read. The name goes, the damage is told to whoever asks
/// the superblock, and the inode stays where e2fsck finds it.
#[test]
fn a_file_that_cannot_be_deleted_stays_an_orphan_and_its_damage_is_told() {
    for options in ORPHANS {
        let (device, leaf) = require!(with_tree(options));
        device.write_at(leaf * 4096, &[0x5a; 4096]).expect("writes");
        let shared: SharedDevice = Arc::clone(&device) as _;
        let fs = MountOptions::new().read_only(false).background(false).open_shared(shared);
        let fs = fs.expect("mounts");
        let root = fs.root().expect("a root");
        let ino = root.lookup_ino("f").expect("a file");
        root.unlink("f").expect("the name goes");
        assert!(fs.inode(ino).is_err(), "half of an inode is of no use to anybody");
        drop(root);
        fs.unmount().expect("unmounts");
        let mut bytes = [0; 1024];
        device.read_at(1024, &mut bytes).expect("reads");
        let found = Superblock::decode(&bytes).expect("a superblock");
        assert!(found.state.contains(State::ERROR), "{options:?}: nobody was told");
        assert!(found.error_count > 0, "{options:?}");
        let in_file = found.features.has_ro_compat(RoCompat::ORPHAN_PRESENT);
        assert!(found.last_orphan == ino.0 || in_file, "{options:?}: on no list");
        let dir = extant_testkit::tempdir().expect("a temporary directory");
        let path = dir.path().join("image");
        image::save(&device, &path);
        let repaired = require!(e2fsck_as(&path, "-fy", &[]));
        assert!(repaired.text.contains(&format!("node {ino} ")), "{}", repaired.text);
        require!(e2fsck(&path)).assert_clean();
    }
}

/// The device fails while a file is being deleted: the next mount goes on, and nothing is lost or
/// freed twice.
#[test]
fn a_deletion_that_the_device_stops_is_ended_by_the_next_mount() {
    for options in ORPHANS {
        let (device, _) = require!(with_tree(options));
        let plan = FaultPlan { read_one_in: 1, ..FaultPlan::default() };
        let failing = Arc::new(FaultDevice::new(Arc::clone(&device), plan));
        failing.set_enabled(false);
        let shared: SharedDevice = Arc::clone(&failing) as _;
        let fs = MountOptions::new().read_only(false).background(false).open_shared(shared);
        let fs = fs.expect("mounts");
        let root = fs.root().expect("a root");
        let file = root.lookup("f").expect("a file");
        root.unlink("f").expect("unlinks");
        failing.set_enabled(true);
        drop(file);
        let _ = fs.tick();
        assert!(failing.failed() > 0, "nothing was read");
        failing.set_enabled(false);
        drop(root);
        fs.unmount().expect("unmounts");
        assert_eq!(require!(recover(device)), 1, "{options:?}");
    }
}

/// What one handle changes, the other shows: also what comes from the record and the flags.
#[test]
fn handles_show_the_inode_as_it_is_and_records_as_it_was() {
    let bench = require!(bench(ORPHANS[0]));
    let file = bench.root.create("f", &NEW).expect("creates");
    let (other, before) = (bench.root.lookup("f").expect("finds"), file.record());
    file.write_at(&[7; 6000], 0).expect("writes");
    assert_eq!((file.size(), other.size(), other.record().size), (6000, 6000, 6000));
    let flags = other.flags() | InodeFlags::NOATIME;
    let mut set = SetAttributes::new();
    set.flags = Some(flags);
    file.set_attributes(&set).expect("sets flags");
    assert!(other.flags().contains(InodeFlags::NOATIME));
    assert!(other.record().flags.contains(InodeFlags::NOATIME));
    assert_eq!((before.size, before.flags), (0, flags - InodeFlags::NOATIME), "a copy stays");
    drop((file, other));
    require!(bench.finish());
}
