//! The thread that reads ahead: what it fetches, and that nobody waits for it, fails by it or loses
//! anything to it.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use extant::{Fallocate, Fs, Inode, MappingKind, MountOptions, NewInode};
use extant_base::Prng;
use extant_block::{
    BlockDevice, DeviceError, DeviceFault, MemoryDevice, Operation, OperationKind, Pending,
    SharedDevice,
};
use extant_sync::{Clock, SystemClock, threads};
use extant_testkit::oracle::{e2fsck, mke2fs};
use extant_testkit::{Ends, image, require, tempdir};

const LEN: usize = 8 << 20;

/// What a reader of [`World::hanging`] reads, in bytes.
const BEGINNING: usize = 256 << 10;

/// Memory in which reads of the thread can be stopped or fail.
struct Device {
    memory: MemoryDevice,
    /// Reads of the thread wait.
    is_shut: AtomicBool,
    /// Where on the device the beginning of the file is: reads there do not wait, whoever makes
    /// them, because the reader needs what they bring.
    beginning: AtomicU64,
    /// How many wait.
    waiting: AtomicU64,
    fails: AtomicBool,
    failed: AtomicU64,
}

impl BlockDevice for Device {
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
        if std::thread::current().name() == Some("extant-ahead") {
            let beginning = self.beginning.load(Ordering::SeqCst);
            if !(beginning..beginning + BEGINNING as u64).contains(&offset) {
                let _waits = Waits::begin(&self.waiting);
                until("the device goes on", || !self.is_shut.load(Ordering::SeqCst));
            }
            if self.fails.load(Ordering::SeqCst) {
                self.failed.fetch_add(1, Ordering::SeqCst);
                out.fill(0xEE);
                let fault = DeviceFault::Io(std::io::Error::other("injected"));
                let (kind, len) = (OperationKind::Read, out.len() as u64);
                return Err(DeviceError::new("test".into(), kind, offset, len, fault));
            }
        }
        self.memory.read_at(offset, out)
    }
}

/// Counts a read that waits, until it ends or gives up.
struct Waits<'a>(&'a AtomicU64);

impl Waits<'_> {
    fn begin(waiting: &AtomicU64) -> Waits<'_> {
        waiting.fetch_add(1, Ordering::SeqCst);
        Waits(waiting)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..300_000 {
        if is_so() {
            return;
        }
        SystemClock.sleep(Duration::from_micros(200));
    }
    panic!("{what}: that does not come to pass");
}

struct World {
    device: Arc<Device>,
    bytes: Vec<u8>,
}

impl World {
    /// An image with a file `f`.
    fn new() -> Result<World, String> {
        let dir = tempdir().map_err(|error| error.to_string())?;
        let path = dir.path().join("image");
        mke2fs(&path, "48M", &["-t", "ext4", "-b", "4096"])?;
        let device = Device {
            memory: image::load(&path),
            is_shut: AtomicBool::new(false),
            beginning: AtomicU64::new(u64::MAX - BEGINNING as u64),
            waiting: AtomicU64::new(0),
            fails: AtomicBool::new(false),
            failed: AtomicU64::new(0),
        };
        let mut bytes = vec![0; LEN];
        Prng::new(5).fill(&mut bytes);
        let world = World { device: Arc::new(device), bytes };
        let fs = world.mount(true);
        let file = fs.root().unwrap().create("f", &NewInode::root(0o644)).unwrap();
        file.append(&world.bytes).unwrap();
        fs.unmount().unwrap();
        Ok(world)
    }

    fn mount(&self, background: bool) -> Fs {
        let device = Arc::clone(&self.device) as SharedDevice;
        MountOptions::new().read_only(false).background(background).open_shared(device).unwrap()
    }

    #[track_caller]
    fn read(&self, file: &Inode, range: Range<usize>) {
        let mut out = vec![0; 4096];
        for at in range.step_by(out.len()) {
            assert_eq!(file.read_at(&mut out, at as u64).unwrap(), out.len());
            assert!(out == self.bytes[at..at + out.len()], "at {at}");
        }
    }

    /// A reader has begun, and the thread hangs in the device.
    fn hanging(&self, fs: &Fs) -> Inode {
        let file = fs.resolve("/f").unwrap();
        let run = file.map(0..BEGINNING as u64 / 4096).next().unwrap().unwrap();
        let MappingKind::Mapped(start) = run.kind else { panic!("{run:?}") };
        assert!(run.len * 4096 >= BEGINNING as u64, "one piece: {run:?}");
        self.device.beginning.store(start.0 * 4096, Ordering::SeqCst);
        self.device.is_shut.store(true, Ordering::SeqCst);
        self.read(&file, 0..BEGINNING);
        until("the thread reads", || self.device.waiting.load(Ordering::SeqCst) == 1);
        file
    }

    fn let_go(&self) {
        self.device.is_shut.store(false, Ordering::SeqCst);
    }

    /// What e2fsck says at the end.
    fn check(self) {
        let dir = tempdir().unwrap();
        let path = dir.path().join("image");
        image::save(&self.device.memory, &path);
        e2fsck(&path).unwrap().assert_clean();
    }
}

#[test]
fn a_reader_finds_what_the_thread_has_fetched() {
    let world = require!(World::new());
    let fs = world.mount(true);
    let file = fs.resolve("/f").unwrap();
    world.read(&file, 0..64 << 10);
    assert_eq!(fs.io_stats().unwrap().ahead_fetched, 0, "nobody goes on yet");
    world.read(&file, 64 << 10..256 << 10);
    let ahead = || fs.io_stats().unwrap().ahead_fetched;
    until("the thread fetches", || ahead() > 0);
    world.read(&file, 256 << 10..LEN);
    let stats = fs.io_stats().unwrap();
    assert_eq!(stats.bytes_filled, LEN as u64, "each byte once: {stats:?}");
    drop(file);
    fs.unmount().unwrap();
    world.check();
}

#[test]
fn without_background_there_is_no_thread() {
    let world = require!(World::new());
    let fs = world.mount(false);
    world.device.is_shut.store(true, Ordering::SeqCst);
    world.read(&fs.resolve("/f").unwrap(), 0..LEN);
    let stats = fs.io_stats().unwrap();
    assert_eq!((stats.ahead_fetched, stats.bytes_filled), (0, LEN as u64));
    assert_eq!(world.device.waiting.load(Ordering::SeqCst), 0);
    fs.unmount().unwrap();
}

#[test]
fn readers_of_other_files_and_parts_do_not_wait_for_a_hanging_device() {
    let world = require!(World::new());
    let fs = world.mount(true);
    let root = fs.root().unwrap();
    let other = root.create("other", &NewInode::root(0o644)).unwrap();
    other.append(&world.bytes).unwrap();
    other.sync().unwrap();
    fs.drop_cached();
    let file = world.hanging(&fs);
    world.read(&other, 0..LEN);
    world.read(&file, 4 << 20..LEN);
    assert_eq!(world.device.waiting.load(Ordering::SeqCst), 1);
    world.let_go();
    world.read(&file, 0..LEN);
    drop((file, other, root));
    fs.unmount().unwrap();
    world.check();
}

#[test]
fn what_fails_ahead_the_reader_reads_itself() {
    let world = require!(World::new());
    let fs = world.mount(true);
    let file = fs.resolve("/f").unwrap();
    world.device.fails.store(true, Ordering::SeqCst);
    world.read(&file, 0..256 << 10);
    until("the thread fails", || world.device.failed.load(Ordering::SeqCst) > 0);
    world.read(&file, 256 << 10..LEN);
    world.device.fails.store(false, Ordering::SeqCst);
    world.read(&file, 0..LEN);
    drop(file);
    fs.unmount().unwrap();
    world.check();
}

#[test]
fn an_unmount_waits_for_the_thread_and_leaves_none() {
    let world = require!(World::new());
    let fs = world.mount(true);
    let file = world.hanging(&fs);
    let ended = AtomicBool::new(false);
    threads::scope(|s| {
        s.spawn("unmount", || {
            fs.unmount().unwrap();
            ended.store(true, Ordering::SeqCst);
        })
        .unwrap();
        s.spawn("device", || {
            SystemClock.sleep(Duration::from_millis(20));
            assert!(!ended.load(Ordering::SeqCst), "the thread uses the device");
            world.let_go();
        })
        .unwrap();
    })
    .unwrap();
    // Reading goes on, without it.
    world.read(&file, 0..LEN);
    drop(file);
    until("nobody has the device", || Arc::strong_count(&world.device) == 1);
    world.check();
}

#[test]
fn the_thread_keeps_no_file_system_in_memory() {
    let world = require!(World::new());
    let fs = world.mount(true);
    let file = world.hanging(&fs);
    let device: Weak<Device> = Arc::downgrade(&world.device);
    drop((fs, file));
    world.let_go();
    until("the volume is gone", || device.strong_count() == 1);
}

#[test]
fn a_truncate_meanwhile_waits_and_nothing_of_the_old_contents_shows() {
    let world = require!(World::new());
    let fs = world.mount(true);
    let file = world.hanging(&fs);
    threads::scope(|s| {
        let (file, world) = (&file, &world);
        s.spawn("truncate", move || file.truncate(100_000).unwrap()).unwrap();
        s.spawn("device", move || {
            SystemClock.sleep(Duration::from_millis(5));
            world.let_go();
        })
        .unwrap();
    })
    .unwrap();
    file.truncate(LEN as u64).unwrap();
    let mut out = vec![1; LEN];
    assert_eq!(file.read_at(&mut out, 0).unwrap(), LEN);
    assert!(out[..100_000] == world.bytes[..100_000]);
    assert!(out[100_000..].iter().all(|byte| *byte == 0), "old contents");
    drop(file);
    fs.unmount().unwrap();
    world.check();
}

#[test]
fn a_file_that_is_deleted_meanwhile_is_deleted_all_the_same() {
    let world = require!(World::new());
    let fs = world.mount(true);
    let before = fs.statfs().unwrap().blocks_free;
    let file = world.hanging(&fs);
    fs.root().unwrap().unlink("f").unwrap();
    drop(file);
    fs.sync().unwrap();
    world.let_go();
    // The thread had the last handle.
    until("its blocks are free", || {
        fs.sync().unwrap();
        fs.statfs().unwrap().blocks_free >= before + LEN as u64 / 4096
    });
    fs.unmount().unwrap();
    world.check();
}

#[test]
fn readers_see_whole_writes_whatever_the_threads_fetch_and_flush() {
    const RECORD: usize = 64 << 10;
    let world = require!(World::new());
    let options = MountOptions::new().read_only(false).dirty_background_bytes(1 << 20);
    let device = Arc::clone(&world.device) as SharedDevice;
    let fs = options.data_cache_bytes(8 << 20).open_shared(device).unwrap();
    let file = fs.resolve("/f").unwrap();
    let records = (LEN / RECORD) as u64;
    for record in 0..records {
        file.write_at(&[record as u8; RECORD], record * RECORD as u64).unwrap();
    }
    let ended = AtomicBool::new(false);
    let passes = AtomicU64::new(0);
    threads::scope(|s| {
        let (fs, file, ended, passes) = (&fs, &file, &ended, &passes);
        s.spawn("writer", move || {
            let _ends = Ends(ended);
            let mut prng = Prng::new(1);
            let mut round = 0;
            while (round < 600 || passes.load(Ordering::SeqCst) < 12)
                && !ended.load(Ordering::SeqCst)
            {
                round += 1;
                let at = prng.below(records) * RECORD as u64;
                let part = at..at + RECORD as u64;
                match prng.below(16) {
                    0 => file.fallocate(Fallocate::PunchHole, part).unwrap(),
                    1 => file.fallocate(Fallocate::ZeroRange { keep_size: false }, part).unwrap(),
                    2 => {
                        file.truncate(at).unwrap();
                        file.truncate(LEN as u64).unwrap();
                    }
                    3 => file.sync_data().unwrap(),
                    _ => {
                        let bytes = [prng.below(256) as u8; RECORD];
                        assert_eq!(file.write_at(&bytes, at).unwrap(), RECORD);
                    }
                }
                // Readers get the lock as well.
                SystemClock.sleep(Duration::from_micros(200));
            }
        })
        .unwrap();
        for step in [RECORD, 4096] {
            s.spawn("reader", move || {
                let _ends = Ends(ended);
                let mut out = vec![0; step];
                while !ended.load(Ordering::SeqCst) {
                    for at in (0..LEN).step_by(step) {
                        let got = file.read_at(&mut out, at as u64).unwrap();
                        let mixed = out[..got].iter().position(|byte| *byte != out[0]);
                        assert_eq!(mixed, None, "half a write at {at}");
                        assert!(got == step || got == 0, "{got} bytes at {at}");
                    }
                    passes.fetch_add(1, Ordering::SeqCst);
                }
            })
            .unwrap();
        }
        s.spawn("forgetter", move || {
            let _ends = Ends(ended);
            while !ended.load(Ordering::SeqCst) {
                fs.drop_cached();
                SystemClock.sleep(Duration::from_millis(2));
            }
        })
        .unwrap();
    })
    .unwrap();
    let stats = fs.io_stats().unwrap();
    assert!(stats.ahead_fetched > 0, "{stats:?}");
    drop(file);
    fs.unmount().unwrap();
    world.check();
}
