//! Each write of a run fails, one after the other, by its kind: who hears of it, what goes on, and that
//! nothing is lost that was said to be durable. `docs/semantics.md` has the same as a table.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use extant::{Fallocate, Family, Fs, FsError, MountOptions, NewInode};
use extant_block::{
    BlockDevice, Completion, DeviceError, DeviceFault, MemoryDevice, Operation, OperationKind,
    Pending, SharedDevice,
};
use extant_check::CheckOptions;
use extant_sync::{FixedClock, Mutex, Rank};
use extant_testkit::oracle::{e2fsck, mke2fs};
use extant_testkit::{image, require, tempdir};

/// What an operation of the device is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Class {
    /// Descriptors, revokes and copies in the log.
    Log,
    /// The block that makes a transaction count.
    Commit,
    /// Where the log begins.
    LogSuperblock,
    /// Metadata on its way home.
    Home,
    /// Contents of files.
    Data,
    /// The superblock, when a mount begins and ends.
    Superblock,
    Flush,
    Discard,
    /// Room for metadata, set aside before it is needed.
    Room,
}

const CLASSES: [Class; 9] = [
    Class::Log,
    Class::Commit,
    Class::LogSuperblock,
    Class::Home,
    Class::Data,
    Class::Superblock,
    Class::Flush,
    Class::Discard,
    Class::Room,
];

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
/// Contents have bytes from here on, in runs; metadata has none of 64.
const DATA: u8 = 0xc0;

#[derive(Default)]
struct Watch {
    seen: BTreeMap<Class, usize>,
    /// Which fail, and with which errno.
    fails: Option<(Class, Range<usize>, i32)>,
    failed: usize,
}

/// Memory whose operations fail by class.
struct Watched {
    inner: MemoryDevice,
    log: Range<u64>,
    watch: Mutex<Watch>,
}

impl Watched {
    fn class(&self, operation: &Operation) -> Option<Class> {
        Some(match operation {
            Operation::Read { .. } => return None,
            Operation::Flush => Class::Flush,
            Operation::Discard { .. } | Operation::WriteZeroes { .. } => Class::Discard,
            Operation::Write { offset, buffer, fua } if self.log.contains(offset) => match fua {
                true if *offset == self.log.start => Class::LogSuperblock,
                true => Class::Commit,
                false => Class::Log,
            },
            Operation::Write { offset: 1024, buffer, .. } if buffer.len() == 1024 => {
                Class::Superblock
            }
            Operation::Write { buffer, .. } => {
                let start = &buffer[..buffer.len().min(64)];
                match start[0] >= DATA && start.iter().all(|byte| *byte == start[0]) {
                    true => Class::Data,
                    false => Class::Home,
                }
            }
        })
    }

    /// The errno of the next operation of a class, if it fails.
    fn next(&self, class: Class) -> Option<i32> {
        let mut watch = self.watch.lock();
        let number = watch.seen.entry(class).or_default();
        let this = *number;
        *number += 1;
        let (of, which, errno) = watch.fails.clone()?;
        let fails = of == class && which.contains(&this);
        watch.failed += usize::from(fails);
        fails.then_some(errno)
    }

    fn error(&self, kind: OperationKind, offset: u64, len: u64, errno: i32) -> DeviceError {
        let fault = DeviceFault::Io(io::Error::from_raw_os_error(errno));
        DeviceError::new(self.describe(), kind, offset, len, fault)
    }
}

impl BlockDevice for Watched {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        let run = |operation: Operation| {
            let class = self.class(&operation);
            if let Some(errno) = class.and_then(|class| self.next(class)) {
                let whole = matches!(class, Some(Class::Superblock | Class::LogSuperblock));
                if let Operation::Write { offset, buffer, .. } = &operation
                    && !whole
                {
                    // A part may be there.
                    let part = buffer.len() / 1024 * 512;
                    self.inner.write_at(*offset, &buffer[..part]).unwrap();
                }
                let (offset, len) = (operation.offset(), operation.length());
                let result = Err(self.error(operation.kind(), offset, len, errno));
                return Completion { operation, result };
            }
            self.inner.submit(vec![operation]).wait().pop().unwrap()
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

    fn allocate(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let mut bytes = vec![0; len as usize];
        self.inner.read_at(offset, &mut bytes)?;
        if bytes.iter().any(|byte| *byte != 0) {
            return Ok(()); // No hole: it has its room.
        }
        match self.next(Class::Room) {
            Some(errno) => Err(self.error(OperationKind::Allocate, offset, len, errno)),
            None => Ok(()),
        }
    }
}

fn make() -> Result<(MemoryDevice, Range<u64>), String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    mke2fs(&path, "24M", &["-t", "ext4", "-b", "1024", "-J", "size=1"])?;
    let device = image::load(&path);
    let fs = MountOptions::new().open(device.snapshot()).unwrap();
    let journal = fs.inode(fs.superblock().journal_inode).unwrap();
    let runs: Vec<_> = journal.map(0..1024).map(|run| run.unwrap().kind).collect();
    let extant::MappingKind::Mapped(start) = runs[0] else { panic!("{runs:?}") };
    assert_eq!(runs.len(), 1, "the journal is in one piece");
    Ok((device, start.0 * 1024..(start.0 + 1024) * 1024))
}

fn mount(device: SharedDevice) -> Result<Fs, FsError> {
    let clock = Arc::new(FixedClock::at(1_700_000_000, 0));
    let options = MountOptions::new().read_only(false).background(false).seed(1).clock(clock);
    Ok(options.discard(true).open_shared(device)?)
}

/// A file as programs know it.
#[derive(Clone, Default)]
struct Known {
    /// What it had when a sync of it returned; `None` for not there.
    durable: Option<Vec<u8>>,
    /// What it has now.
    now: Option<Vec<u8>>,
}

#[derive(Default)]
struct Run {
    files: BTreeMap<String, Known>,
    /// What was heard, in order.
    heard: Vec<FsError>,
}

impl Run {
    /// Notes what became of a change: `Err` may have happened or not.
    fn note(&mut self, done: Result<(), FsError>) -> bool {
        done.map_err(|error| self.heard.push(error)).is_ok()
    }

    fn write(&mut self, fs: &Fs, path: &str, at: usize, bytes: &[u8]) {
        let done = (|| {
            let inode = match fs.resolve(path) {
                Err(FsError::NotFound { .. }) => fs.create(path, &NewInode::root(0o644))?,
                found => found?,
            };
            let written = inode.write_at(bytes, at as u64)?;
            assert_eq!(written, bytes.len(), "{path}");
            Ok(())
        })();
        if self.note(done) {
            let file = self.files.entry(path.to_owned()).or_default();
            let now = file.now.get_or_insert_default();
            now.resize(now.len().max(at + bytes.len()), 0);
            now[at..at + bytes.len()].copy_from_slice(bytes);
        }
    }

    fn sync_all(&mut self, fs: &Fs) {
        if self.note(fs.sync()) {
            self.files.values_mut().for_each(|file| file.durable.clone_from(&file.now));
        }
    }

    fn sync(&mut self, fs: &Fs, path: &str) {
        let done = fs.resolve(path).and_then(|inode| inode.sync());
        if self.note(done)
            && let Some(file) = self.files.get_mut(path)
        {
            file.durable.clone_from(&file.now);
        }
    }

    /// Everything that programs do, whatever fails.
    fn all(&mut self, fs: &Fs) {
        self.write(fs, "/a", 0, &[DATA + 1; 20_000]);
        self.write(fs, "/b", 0, &[DATA + 2; 100_000]);
        self.sync_all(fs);
        self.write(fs, "/a", 0, &[DATA + 3; 20_000]);
        self.sync(fs, "/a");
        let made = fs.create_dir("/d", &NewInode::root(0o755)).map(drop);
        self.note(made);
        self.write(fs, "/d/c", 0, &[DATA + 4; 3000]);
        let allocated = fs
            .create("/e", &NewInode::root(0o644))
            .and_then(|inode| inode.fallocate(Fallocate::Allocate { keep_size: true }, 0..65_536));
        self.note(allocated);
        self.write(fs, "/e", 0, &[DATA + 5; 30_000]);
        self.sync(fs, "/e");
        if self.note(fs.remove_file("/b")) {
            self.files.get_mut("/b").unwrap().now = None;
        }
        self.sync_all(fs);
        for round in 0..6u8 {
            for number in 0..5 {
                self.write(fs, &format!("/d/x{round}-{number}"), 0, &[DATA + 6 + round; 2500]);
            }
            let length =
                self.files.get("/d/c").and_then(|file| file.now.as_ref()).map_or(0, Vec::len);
            self.write(fs, "/d/c", length, &[DATA + 12 + round; 2000]);
            self.sync_all(fs);
        }
        let ticked = fs.tick();
        self.note(ticked);
        self.write(fs, "/last", 0, &[DATA + 20; 5000]);
    }

    /// What is there can be what was durable, or newer.
    fn check(&self, what: &str, fs: &Fs) {
        for (path, file) in &self.files {
            let found = match fs.read(path) {
                Ok(found) => Some(found),
                Err(FsError::NotFound { .. }) => None,
                Err(error) => panic!("{what}: {path}: {error}"),
            };
            let Some(durable) = &file.durable else { continue };
            let Some(found) = found else {
                assert!(file.now.is_none(), "{what}: {path} was durable");
                continue;
            };
            let now = file.now.as_deref().unwrap_or_default();
            assert!(found.len() >= durable.len(), "{what}: {path} is cut short");
            for (at, byte) in found.iter().enumerate().take(durable.len()) {
                let is_known = *byte == durable[at] || now.get(at) == Some(byte);
                assert!(is_known, "{what}: byte {at} of {path} is {byte:#x}");
            }
        }
    }

    /// All that was accepted is there.
    fn check_all(&self, what: &str, fs: &Fs) {
        for (path, file) in &self.files {
            match &file.now {
                Some(now) => assert!(fs.read(path).unwrap() == *now, "{what}: {path}"),
                None => assert!(fs.resolve(path).is_err(), "{what}: {path}"),
            }
        }
    }
}

fn check_image(what: &str, device: &MemoryDevice, also_e2fsck: bool) {
    let options = CheckOptions { require_clean_state: false, ..CheckOptions::default() };
    let report = extant_check::check(device, &options).expect("checks");
    assert!(report.is_clean(), "{what}: {:#?}", report.problems);
    if also_e2fsck {
        let dir = tempdir().unwrap();
        let path = dir.path().join("image");
        image::save(device, &path);
        let report = e2fsck(&path).unwrap();
        // An error was noted in the superblock of a journal that stopped.
        assert!(report.is_clean() || report.text.contains("with errors"), "{what}: {report:?}");
    }
}

/// One run in which operation `which` of a class fails; the device stays so until the mount has ended, or
/// is well again before.
fn run(
    base: &MemoryDevice,
    log: &Range<u64>,
    (class, which, errno): (Class, Range<usize>, i32),
    to_the_end: bool,
) {
    let what = format!("{class:?} {which:?} fails with {errno}, to the end: {to_the_end}");
    let forever = which.end == usize::MAX;
    let also_e2fsck = which.start % 7 == 0 && !forever;
    let fails = Some((class, which, errno));
    let watch = Mutex::new(Rank::Leaf, Watch { fails, ..Watch::default() });
    let device = Arc::new(Watched { inner: base.snapshot(), log: log.clone(), watch });
    let mut run = Run::default();
    let heal = || device.watch.lock().fails = None;
    let fs = match mount(Arc::clone(&device) as SharedDevice) {
        Ok(fs) => fs,
        Err(error) => {
            let expected = matches!(
                class,
                Class::Superblock | Class::Flush | Class::Room | Class::LogSuperblock
            );
            assert!(expected && error.family() == Family::Device, "{what}: mounting: {error}");
            heal();
            let fs = mount(Arc::clone(&device) as SharedDevice)
                .unwrap_or_else(|error| panic!("{what}: with a good device: {error}"));
            fs.unmount().unwrap();
            return check_image(&what, &device.inner, true);
        }
    };
    run.all(&fs);
    if to_the_end {
        let ended = fs.unmount();
        let failed = device.watch.lock().failed;
        if failed > 0 && class != Class::Discard {
            assert!(ended.is_err() || !run.heard.is_empty(), "{what}: nobody heard of it");
        }
        if ended.is_ok() {
            run.files.values_mut().for_each(|file| file.durable.clone_from(&file.now));
        }
        let device = Arc::new(device.inner.snapshot());
        let after = mount(Arc::clone(&device) as SharedDevice).unwrap();
        run.check(&what, &after);
        after.unmount().unwrap();
        return check_image(&what, &device, also_e2fsck);
    }
    let stopped = fs.stopped_because();
    let failed = device.watch.lock().failed;
    // Who hears of it: an operation or a sync, or who unmounts.
    for error in &run.heard {
        let expected = match error {
            // After the journal stopped; or a name that could not be made before.
            FsError::Aborted { .. } | FsError::ReadOnly => stopped.is_some(),
            FsError::NotFound { .. } => true,
            error => error.family() == Family::Device,
        };
        assert!(expected, "{what}: {error}");
    }
    if let (Some(first), None) = (run.heard.first(), &stopped) {
        assert_eq!(first.errno(), errno, "{what}: {first}");
    }
    match class {
        Class::Data | Class::Room => assert_eq!(stopped, None, "{what}"),
        Class::Discard => {
            assert_eq!(stopped, None, "{what}");
            assert!(run.heard.is_empty(), "{what}: {:?}", run.heard);
            assert!(failed == 0 || fs.writer_stats().unwrap().discards_failed > 0, "{what}");
        }
        _ => {}
    }
    if class == Class::Data && failed > 0 {
        assert!(!run.heard.is_empty(), "{what}: nobody heard of it");
    }
    if let Some(why) = &stopped {
        // Named with its cause, by whatever is asked.
        let cause = io::Error::from_raw_os_error(errno).to_string();
        assert!(why.contains(&cause), "{what}: {why}");
        assert_eq!(why.contains("is full"), errno == ENOSPC, "{what}: {why}");
        for path in ["/", "/a"] {
            // It may have no name yet.
            let Ok(inode) = fs.resolve(path) else { continue };
            assert!(inode.sync().is_err(), "{what}: {path} is said to be durable");
        }
        assert!(fs.sync().is_err(), "{what}");
        assert_eq!(fs.create("/more", &NewInode::root(0o644)).unwrap_err().errno(), 30, "{what}");
    }
    // A cut, and a mount when the device is well again.
    heal();
    let cut = Arc::new(device.inner.snapshot());
    let after = mount(Arc::clone(&cut) as SharedDevice)
        .unwrap_or_else(|error| panic!("{what}: after a cut: {error}"));
    run.check(&format!("{what}, after a cut"), &after);
    after.unmount().unwrap();
    check_image(&what, &cut, also_e2fsck);
    if stopped.is_some() {
        let error = fs.unmount().expect_err("nothing is written any more");
        assert_eq!(error.family(), Family::Device, "{what}: {error}");
        let after = mount(Arc::new(device.inner.snapshot())).unwrap();
        return run.check(&what, &after);
    }
    // Nothing was thrown away: it is all there after all.
    fs.sync().unwrap_or_else(|error| panic!("{what}: with a good device: {error}"));
    run.check_all(&what, &fs);
    fs.unmount().unwrap_or_else(|error| panic!("{what}: unmounting: {error}"));
    let after = MountOptions::new().open(device.inner.snapshot()).unwrap();
    run.check_all(&what, &after);
    check_image(&what, &device.inner, also_e2fsck);
}

/// Every `every`-th operation of each class fails, once and from then on, for each errno.
fn each(every: usize) -> Result<(), String> {
    let (base, log) = make()?;
    let watch = Mutex::new(Rank::Leaf, Watch::default());
    let device = Arc::new(Watched { inner: base.snapshot(), log: log.clone(), watch });
    let fs = mount(Arc::clone(&device) as SharedDevice).unwrap();
    let mut first = Run::default();
    first.all(&fs);
    assert!(first.heard.is_empty(), "{:?}", first.heard);
    fs.unmount().unwrap();
    let seen = device.watch.lock().seen.clone();
    println!("{seen:?}");
    for class in CLASSES {
        let count = seen.get(&class).copied().unwrap_or(0);
        assert!(count > 0, "{class:?} never happens");
        for at in (0..count).filter(|at| count < 4 * every || at % every == 0) {
            for errno in [ENOSPC, EIO] {
                for to_the_end in [false, true] {
                    run(&base, &log, (class, at..at + 1, errno), to_the_end);
                    run(&base, &log, (class, at..usize::MAX, errno), to_the_end);
                }
            }
        }
    }
    Ok(())
}

#[test]
fn whichever_write_fails_somebody_hears_of_it_and_nothing_durable_is_lost() {
    require!(each(6));
}

#[test]
#[ignore = "takes minutes: each write of a run fails"]
fn every_write_that_fails_is_heard_of_and_nothing_durable_is_lost() {
    require!(each(1));
}
