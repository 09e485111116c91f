//! What a sync that returned may be believed: flushes that fail, flushes that several wait for, and an
//! abort amid a truncation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use extant::{Fallocate, Fs, FsError, Inode, InodeFlags, MountOptions, SetAttributes};
use extant_block::{
    BlockDevice, FaultDevice, FaultPlan, MemoryDevice, Operation, OperationKind, Pending,
    RecordingDevice, SharedDevice, Survival,
};
use extant_sync::{Clock as _, FixedClock, Mutex, Rank, SystemClock, threads};
use extant_testkit::oracle::{self, LoopMount, mke2fs};
use extant_testkit::{image, require, tempdir};

const LAYOUTS: &[&[&str]] = &[&["-t", "ext4", "-b", "1024"], &["-t", "ext2", "-b", "1024"]];

fn make(arguments: &[&str]) -> Result<MemoryDevice, String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    mke2fs(&path, "16M", arguments)?;
    Ok(image::load(&path))
}

fn mount(device: SharedDevice) -> Fs {
    let clock = Arc::new(FixedClock::at(1_700_000_000, 0));
    let options = MountOptions::new().read_only(false).background(false).seed(1).clock(clock);
    options.open_shared(device).unwrap()
}

/// Whether the file system has given up.
fn has_stopped(error: &FsError) -> bool {
    matches!(error, FsError::Aborted { .. })
}

#[test]
fn after_a_flush_of_data_failed_no_sync_succeeds() {
    for layout in LAYOUTS {
        for sync in [|fs: &Fs| fs.resolve("/file")?.sync_data(), |fs: &Fs| fs.sync()] {
            let memory = Arc::new(require!(make(layout)));
            let plan = FaultPlan { flush_one_in: 1, ..FaultPlan::default() };
            let device = Arc::new(FaultDevice::new(Arc::clone(&memory), plan));
            device.set_enabled(false);
            let fs = mount(Arc::clone(&device) as SharedDevice);
            fs.write("/file", "first").unwrap();
            fs.write("/other", "first").unwrap();
            fs.sync().unwrap();
            // Over what is there, at the same second: no transaction has to follow.
            for name in ["/file", "/other"] {
                let file = fs.open_options().write(true).open(name).unwrap();
                file.write_at(b"later", 0).unwrap();
            }
            fs.resolve("/file").unwrap().sync_data().unwrap();
            let file = fs.resolve("/file").unwrap();
            file.write_at(b"again", 0).unwrap();
            device.set_enabled(true);
            let error = sync(&fs).unwrap_err();
            assert!(device.failed() > 0, "{layout:?}: {error}");
            device.set_enabled(false);
            // The next flush succeeds, and says nothing about what was written before.
            for _ in 0..2 {
                assert!(has_stopped(&sync(&fs).unwrap_err()), "{layout:?}");
                assert!(has_stopped(&fs.sync().unwrap_err()), "{layout:?}");
                assert!(has_stopped(&fs.resolve("/other").unwrap().sync().unwrap_err()));
            }
            assert_eq!(fs.write("/new", "more").unwrap_err().errno(), 30);
            assert_eq!(fs.read("/file").unwrap(), b"again");
            fs.unmount().unwrap_err();
        }
    }
}

/// A device at which flushes wait to be let through.
struct Door {
    below: MemoryDevice,
    is_shut: AtomicBool,
    /// Told of each flush that waits.
    waits: Mutex<threads::Sender<()>>,
    open: Mutex<threads::Receiver<()>>,
    flushed: AtomicU64,
}

impl BlockDevice for Door {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        let flushes = batch.iter().any(|operation| operation.kind() == OperationKind::Flush);
        if flushes && self.is_shut.load(Ordering::Acquire) {
            let waits = self.waits.lock().clone();
            waits.send(()).unwrap();
            self.open.lock().recv().unwrap();
        }
        let pending = self.below.submit(batch);
        self.flushed.fetch_add(u64::from(flushes), Ordering::AcqRel);
        pending
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
}

#[test]
fn a_sync_beside_another_one_waits_for_the_flush_that_has_its_data() {
    type Sync = fn(&Fs) -> extant::Result<()>;
    let one: Sync = |fs| fs.resolve("/file")?.sync_data();
    let all: Sync = |fs| fs.sync();
    for (first, second) in [(one, one), (one, all), (all, one), (all, all)] {
        let (waits, waiting) = threads::channel(4);
        let (opens, open) = threads::channel(4);
        let door = Arc::new(Door {
            below: require!(make(LAYOUTS[0])),
            is_shut: AtomicBool::new(false),
            waits: Mutex::new(Rank::Leaf, waits),
            open: Mutex::new(Rank::Leaf, open),
            flushed: AtomicU64::new(0),
        });
        let fs = mount(Arc::clone(&door) as SharedDevice);
        fs.write("/file", "first").unwrap();
        fs.sync().unwrap();
        let file = fs.resolve("/file").unwrap();
        file.write_at(b"later", 0).unwrap();
        file.sync().unwrap(); // The times are stored: only data is new from here on.
        file.write_at(b"again", 0).unwrap();
        let before = door.flushed.load(Ordering::Acquire);
        door.is_shut.store(true, Ordering::Release);
        threads::scope(|scope| {
            scope.spawn("first", || first(&fs).unwrap()).unwrap();
            waiting.recv().unwrap();
            let other = || {
                second(&fs).unwrap();
                assert!(door.flushed.load(Ordering::Acquire) > before, "returned without a flush");
            };
            scope.spawn("second", other).unwrap();
            // Time enough to return too early; a second flush of its own would wait as well.
            SystemClock.sleep(Duration::from_millis(100));
            door.is_shut.store(false, Ordering::Release);
            opens.send(()).unwrap();
            opens.send(()).unwrap();
        })
        .unwrap();
        drop(file);
        fs.unmount().unwrap();
    }
}

/// So many that the smallest cache of inodes has none left of those that nobody has looked at since.
const OTHERS: usize = 1500;

/// Mounted with the smallest cache there is, with a file and many others.
fn mount_small(device: SharedDevice) -> Fs {
    let clock = Arc::new(FixedClock::at(1_700_000_000, 0));
    let options = MountOptions::new().read_only(false).background(false).seed(1).clock(clock);
    let fs = options.cache_bytes(0).open_shared(device).unwrap();
    fs.write("/file", "first").unwrap();
    for other in 0..OTHERS {
        fs.write(format!("/{other}").as_str(), "").unwrap();
    }
    fs.sync().unwrap();
    fs
}

/// The file leaves memory: nobody holds it, and others come.
fn push_out(fs: &Fs) {
    for other in 0..OTHERS {
        fs.resolve(format!("/{other}").as_str()).unwrap();
    }
}

#[test]
fn a_sync_makes_durable_what_was_written_before_the_inode_left_memory() {
    for layout in LAYOUTS {
        let device = Arc::new(RecordingDevice::over(require!(make(layout))));
        let fs = mount_small(Arc::clone(&device) as SharedDevice);
        let file = fs.resolve("/file").unwrap();
        file.write_at(b"later", 0).unwrap();
        // The times are stored, and that is durable: nothing but data is left, and goes over what is
        // there. No transaction has to follow, so nobody flushes.
        file.set_attributes(&SetAttributes::new().permissions(0o600)).unwrap();
        fs.root().unwrap().sync().unwrap();
        file.write_back().unwrap();
        drop(file);
        push_out(&fs);
        fs.resolve("/file").unwrap().sync().unwrap();
        let left = device.image_at(device.len(), |_, _| Survival::Lost);
        let after = mount(Arc::new(left));
        assert_eq!(after.read("/file").unwrap(), b"later", "{layout:?}");
    }
}

#[test]
fn a_sync_waits_for_the_commit_that_an_inode_left_memory_during() {
    let (waits, waiting) = threads::channel(4);
    let (opens, open) = threads::channel(4);
    let door = Arc::new(Door {
        below: require!(make(LAYOUTS[0])),
        is_shut: AtomicBool::new(false),
        waits: Mutex::new(Rank::Leaf, waits),
        open: Mutex::new(Rank::Leaf, open),
        flushed: AtomicU64::new(0),
    });
    let fs = mount_small(Arc::clone(&door) as SharedDevice);
    let mode = SetAttributes::new().permissions(0o600);
    fs.resolve("/file").unwrap().set_attributes(&mode).unwrap();
    door.is_shut.store(true, Ordering::Release);
    let is_back = AtomicBool::new(false);
    threads::scope(|scope| {
        scope.spawn("commits", || fs.sync().unwrap()).unwrap();
        waiting.recv().unwrap();
        // The transaction is being written: its inodes may leave.
        push_out(&fs);
        let syncs = || {
            fs.resolve("/file").unwrap().sync().unwrap();
            is_back.store(true, Ordering::Release);
        };
        scope.spawn("syncs", syncs).unwrap();
        // Time enough to return too early.
        SystemClock.sleep(Duration::from_millis(100));
        let was_back = is_back.load(Ordering::Acquire);
        door.is_shut.store(false, Ordering::Release);
        opens.send(()).unwrap();
        opens.send(()).unwrap();
        assert!(!was_back, "returned while its change was not durable");
    })
    .unwrap();
    fs.unmount().unwrap();
}

#[test]
fn a_truncation_that_an_abort_stops_zeroes_nothing() {
    let memory = Arc::new(require!(make(LAYOUTS[0])));
    let device = Arc::new(FaultDevice::new(
        Arc::clone(&memory),
        FaultPlan { flush_one_in: 1, ..FaultPlan::default() },
    ));
    device.set_enabled(false);
    let fs = mount(Arc::clone(&device) as SharedDevice);
    fs.write("/file", [7; 700]).unwrap();
    fs.sync().unwrap();
    let file = fs.resolve("/file").unwrap();
    file.write_at(&[8; 100], 0).unwrap();
    device.set_enabled(true);
    file.truncate(300).unwrap_err();
    device.set_enabled(false);
    // The new size will never be there, so the zeros behind it must not.
    assert!(has_stopped(&file.sync_data().unwrap_err()));
    assert!(has_stopped(&fs.sync().unwrap_err()));
    drop((file, fs));
    let fs = mount(Arc::new(memory.snapshot()));
    let bytes = fs.read("/file").unwrap();
    assert_eq!(bytes.len(), 700);
    assert!(bytes[100..].iter().all(|byte| *byte == 7), "{:?}", &bytes[290..310]);
}

#[test]
fn contents_are_written_when_they_have_waited_as_long_as_the_mount_lets_them() {
    let memory = Arc::new(require!(make(LAYOUTS[0])));
    let clock = Arc::new(FixedClock::at(1_700_000_000, 0));
    let time = Arc::clone(&clock);
    let options = MountOptions::new().read_only(false).background(false).clock(clock);
    let options = options.commit_interval(Duration::from_secs(2));
    let fs = options
        .write_back_after(Duration::from_secs(4))
        .open_shared(Arc::clone(&memory) as SharedDevice)
        .unwrap();
    fs.write("/file", vec![7; 3000]).unwrap();
    let there = || {
        let after_a_crash = MountOptions::new().open(memory.snapshot()).unwrap();
        after_a_crash.read("/file").ok()
    };
    assert_eq!(there(), None);
    time.advance(Duration::from_millis(2100));
    fs.tick().unwrap();
    assert_eq!(there().as_deref(), Some(&b""[..]), "the name is due, the contents are not");
    time.advance(Duration::from_secs(2));
    fs.tick().unwrap();
    time.advance(Duration::from_millis(2100));
    fs.tick().unwrap();
    assert_eq!(there(), Some(vec![7; 3000]));
}

/// What a mount for reading shows of a device that lost power now.
fn after_a_cut(memory: &MemoryDevice, path: &str) -> Vec<u8> {
    let options = MountOptions::new();
    options.open(memory.snapshot()).unwrap().read(path).unwrap()
}

fn set_journaled(file: &Inode, journaled: bool) {
    let mut flags = file.metadata().flags;
    flags.set(InodeFlags::JOURNAL_DATA, journaled);
    file.set_attributes(&SetAttributes::new().flags(flags)).unwrap();
}

/// Bytes that begin each block like one of the journal's own.
fn blocks_of(fill: u8, count: usize) -> Vec<u8> {
    let mut block = vec![fill; 1024];
    block[..4].copy_from_slice(&0xc03b_3998_u32.to_be_bytes());
    block.repeat(count)
}

#[test]
fn contents_of_a_journaled_file_are_old_until_a_commit_and_then_new() {
    let memory = Arc::new(require!(make(LAYOUTS[0])));
    let fs = mount(Arc::clone(&memory) as SharedDevice);
    let (old, new, last) = (blocks_of(1, 40), blocks_of(2, 40), blocks_of(3, 40));
    fs.write("/file", &old).unwrap();
    let file = fs.resolve("/file").unwrap();
    set_journaled(&file, true);
    assert!(file.is_logged());
    fs.sync().unwrap();
    // On its way to the device, but in no commit: not a byte of it is seen. Any other file would
    // have been written over.
    file.write_at(&new, 0).unwrap();
    file.write_back().unwrap();
    assert!(after_a_cut(&memory, "/file") == old);
    file.sync_data().unwrap();
    assert!(after_a_cut(&memory, "/file") == new);
    assert_eq!(fs.writer_stats().unwrap().data_blocks_logged, 40);
    // e2fsck and the kernel replay it.
    let dir = tempdir().unwrap();
    let path = dir.path().join("cut");
    image::save(&memory, &path);
    oracle::e2fsck_as(&path, "-fy", &["-E", "journal_only"]).unwrap();
    oracle::e2fsck(&path).unwrap().assert_clean();
    assert!(after_a_cut(&image::load(&path), "/file") == new);
    std::fs::remove_file(&path).unwrap();
    image::save(&memory, &path);
    if oracle::root("mounts images").is_ok() {
        let kernel = require!(LoopMount::read_write(&path));
        assert!(std::fs::read(kernel.path().join("file")).unwrap() == new);
    }
    // Off again: what is in the log does not come back over what is written in place.
    file.write_at(&old, 0).unwrap();
    set_journaled(&file, false);
    assert!(after_a_cut(&memory, "/file") == old);
    file.write_at(&last, 0).unwrap();
    file.sync_data().unwrap();
    assert!(after_a_cut(&memory, "/file") == last);
    // Zeroed on the device, and not written over by what the log has.
    set_journaled(&file, true);
    file.write_at(&new, 0).unwrap();
    file.sync_data().unwrap();
    file.fallocate(Fallocate::WriteZeroes, 1024..3072).unwrap();
    file.sync_data().unwrap();
    let mut zeroed = new.clone();
    zeroed[1024..3072].fill(0);
    assert!(after_a_cut(&memory, "/file") == zeroed);
    assert!(fs.read("/file").unwrap() == zeroed);
    fs.unmount().unwrap();
    assert!(after_a_cut(&memory, "/file") == zeroed);
}

#[test]
fn blocks_of_journaled_files_go_to_others_without_what_the_log_has_of_them() {
    let memory = Arc::new(require!(make(LAYOUTS[0])));
    let fs = mount(Arc::clone(&memory) as SharedDevice);
    let stale = blocks_of(7, 300);
    fs.write("/first", b"").unwrap();
    let file = fs.resolve("/first").unwrap();
    set_journaled(&file, true);
    file.write_at(&stale, 0).unwrap();
    file.sync_data().unwrap();
    drop(file);
    // All space once, so that the blocks have other owners.
    fs.remove_all("/first").unwrap();
    fs.sync().unwrap();
    let mut names = Vec::new();
    for number in 0..8 {
        let name = format!("/other{number}");
        let bytes = vec![number as u8 + 100; 1 << 20];
        fs.write(&name, &bytes).unwrap();
        names.push((name, bytes));
    }
    fs.sync().unwrap();
    for (name, bytes) in &names {
        assert!(after_a_cut(&memory, name) == *bytes, "{name}");
    }
    fs.unmount().unwrap();
    for (name, bytes) in &names {
        assert!(after_a_cut(&memory, name) == *bytes, "{name}");
    }
}

#[test]
fn a_mount_that_journals_data_reads_what_left_the_cache_and_is_not_home() {
    let memory = Arc::new(require!(make(LAYOUTS[0])));
    let options = || {
        let clock = Arc::new(FixedClock::at(1_700_000_000, 0));
        MountOptions::new().read_only(false).background(false).seed(1).clock(clock)
    };
    let journaled = options().data_journal(true).data_cache_bytes(2 << 20);
    let fs = journaled.open_shared(Arc::clone(&memory) as SharedDevice).unwrap();
    // More than the cache, and many transactions.
    let bytes = |round: u64| -> Vec<u8> {
        (0..6 << 10).flat_map(|block: u64| blocks_of((block * 7 + round) as u8, 1)).collect()
    };
    fs.write("/file", bytes(0)).unwrap();
    let file = fs.resolve("/file").unwrap();
    assert!(file.is_logged());
    let (mut all, new) = (bytes(0), bytes(1));
    for part in (0..6usize << 20).step_by(192 << 10) {
        let range = part..part + (100 << 10);
        file.write_at(&new[range.clone()], part as u64).unwrap();
        all[range].copy_from_slice(&new[part..part + (100 << 10)]);
        assert!(file.read_all().unwrap() == all, "at {part}");
    }
    // Past the cache is through it, here.
    assert_eq!(file.direct_alignment(), None);
    let direct = file.direct().unwrap();
    assert_eq!(direct.atomic_units(), None);
    let block = extant::AlignedBuffer::zeroed(4096);
    direct.write_synced_at(&block, 8192).unwrap();
    all[8192..8192 + 4096].fill(0);
    assert!(file.read_all().unwrap() == all);
    assert!(after_a_cut(&memory, "/file") == all);
    let moved = file.defragment(&mut |_| std::ops::ControlFlow::Continue(()));
    assert!(matches!(moved, Err(FsError::NotSupported { .. })), "{moved:?}");
    drop((direct, file));
    fs.unmount().unwrap();
    assert!(after_a_cut(&memory, "/file") == all);
    // Without a journal, or without the word.
    let plain = options().open_shared(Arc::clone(&memory) as SharedDevice).unwrap();
    assert!(!plain.resolve("/file").unwrap().is_logged());
    plain.unmount().unwrap();
    let without = Arc::new(require!(make(LAYOUTS[1])));
    let refused = options().data_journal(true).open_shared(without as SharedDevice).unwrap_err();
    let refused = refused.to_string();
    assert!(refused.contains("no journal"), "{refused}");
}
