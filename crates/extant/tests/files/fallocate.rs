//! Space for ranges of files: every mode against a model, against the kernel, and where it went wrong
//! elsewhere.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use extant::{Fallocate, FiemapExtent, Fs, Inode, MountOptions, NewInode};
use extant_base::Prng;
use extant_block::{BlockDevice, MemoryDevice, RecordingDevice, SharedDevice};
use extant_testkit::crash::{self, Fate, History, Sampling};
use extant_testkit::oracle::{LoopMount, e2fsck, mke2fs};
use extant_testkit::{image, require, tempdir};
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::mount::MountFlags;

/// Name, block (cluster) bytes, whether files have extent trees, options of mke2fs.
pub(crate) type Layout = (&'static str, u64, bool, &'static [&'static str]);

pub(crate) const LAYOUTS: &[Layout] = &[
    ("1K", 1024, true, &["-t", "ext4", "-b", "1024", "-J", "size=1"]),
    ("4K", 4096, true, &["-t", "ext4", "-b", "4096"]),
    ("64K", 65536, true, &["-t", "ext4", "-b", "65536"]),
    ("bigalloc", 8192, true, &["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "8192"]),
    ("inline", 1024, true, &["-t", "ext4", "-b", "1024", "-O", "inline_data"]),
    ("no log", 1024, true, &["-t", "ext4", "-b", "1024", "-O", "^has_journal"]),
    ("ext3", 1024, false, &["-t", "ext3", "-b", "1024"]),
];

const SIZE_MAX: u64 = 2 << 20;

/// An image full of bytes that must never show.
pub(crate) fn make(layout: &Layout, mib: usize) -> Result<Arc<MemoryDevice>, String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    fs::write(&path, vec![0xa5; mib << 20]).map_err(|error| error.to_string())?;
    mke2fs(&path, &format!("{mib}M"), layout.3)?;
    Ok(Arc::new(image::load(&path)))
}

fn mount_with(device: &Arc<MemoryDevice>, cache: u64) -> Fs {
    let device: SharedDevice = Arc::clone(device) as SharedDevice;
    let options = MountOptions::new().read_only(false).seed(3).data_cache_bytes(cache);
    options.open_shared(device).unwrap()
}

pub(crate) fn mount(device: &Arc<MemoryDevice>) -> Fs {
    mount_with(device, 16 << 20)
}

#[track_caller]
pub(crate) fn check(device: &MemoryDevice, what: &str) {
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    image::save(device, &path);
    let report = e2fsck(&path).unwrap();
    assert!(report.is_clean(), "{what}: {}", report.text);
}

pub(crate) fn create(fs: &Fs, name: &str) -> Inode {
    fs.root().unwrap().create(name, &NewInode::root(0o644)).unwrap()
}

pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Prng::new(seed).fill(&mut bytes);
    // No zeros: a lost byte shows.
    bytes.iter_mut().for_each(|byte| *byte |= 1);
    bytes
}

/// What a mode does to contents, and whether the kernel's rules allow it.
fn model(bytes: &mut Vec<u8>, mode: Fallocate, range: std::ops::Range<u64>, unit: u64) -> bool {
    let (start, end) = (range.start as usize, range.end as usize);
    let size = bytes.len();
    match mode {
        Fallocate::Allocate { keep_size } => {
            if !keep_size && end > size {
                bytes.resize(end, 0);
            }
        }
        Fallocate::PunchHole | Fallocate::ZeroRange { .. } | Fallocate::WriteZeroes => {
            let keeps =
                matches!(mode, Fallocate::PunchHole | Fallocate::ZeroRange { keep_size: true });
            if !keeps && end > size {
                bytes.resize(end, 0);
            }
            let size = bytes.len();
            bytes[start.min(size)..end.min(size)].fill(0);
        }
        Fallocate::CollapseRange | Fallocate::InsertRange => {
            if !range.start.is_multiple_of(unit) || !range.end.is_multiple_of(unit) {
                return false;
            }
            if mode == Fallocate::CollapseRange {
                if end >= size {
                    return false;
                }
                bytes.drain(start..end);
            } else {
                if start >= size {
                    return false;
                }
                bytes.splice(start..start, std::iter::repeat_n(0, end - start));
            }
        }
        Fallocate::Unshare => {}
    }
    true
}

const MODES: [Fallocate; 8] = [
    Fallocate::Allocate { keep_size: false },
    Fallocate::Allocate { keep_size: true },
    Fallocate::PunchHole,
    Fallocate::ZeroRange { keep_size: false },
    Fallocate::ZeroRange { keep_size: true },
    Fallocate::WriteZeroes,
    Fallocate::CollapseRange,
    Fallocate::InsertRange,
];

#[track_caller]
fn same(read: &[u8], wanted: &[u8], what: &str) {
    assert_eq!(read.len(), wanted.len(), "{what}: size");
    if let Some(bad) = (0..read.len()).find(|at| read[*at] != wanted[*at]) {
        panic!("{what}: byte {bad} is {:#x}, not {:#x}", read[bad], wanted[bad]);
    }
}

/// What the handle says about data and holes agrees with the contents, and is made of whole runs.
fn check_seek(inode: &Inode, bytes: &[u8], what: &str) {
    let size = bytes.len() as u64;
    let mut at = 0;
    while at < size {
        let data = inode.seek_data(at).unwrap();
        let hole_end = data.unwrap_or(size);
        assert!(hole_end >= at && hole_end <= size, "{what}: data at {data:?} from {at}");
        let zero = bytes[at as usize..hole_end as usize].iter().all(|byte| *byte == 0);
        assert!(zero, "{what}: data in the hole {at}..{hole_end}");
        let Some(data) = data else { break };
        let hole = inode.seek_hole(data).unwrap().unwrap();
        assert!(hole > data && hole <= size, "{what}: hole at {hole} from {data}");
        at = hole;
    }
    assert_eq!(inode.seek_data(size).unwrap(), None, "{what}");
    assert_eq!(inode.seek_hole(size).unwrap(), None, "{what}");
}

/// Runs are apart, in order, and the last one is said to be.
fn check_fiemap(inode: &Inode, what: &str) {
    let all = inode.fiemap(0..u64::MAX, 100_000, false).unwrap();
    for pair in all.windows(2) {
        assert!(pair[0].logical + pair[0].len <= pair[1].logical, "{what}: {pair:?}");
        assert!(!pair[0].is_last, "{what}: {pair:?}");
    }
    if let Some(last) = all.last() {
        assert!(last.is_last, "{what}: {last:?}");
        let some = inode.fiemap(0..u64::MAX, 1, false).unwrap();
        assert_eq!(some[0].is_last, all.len() == 1, "{what}");
        let behind = last.logical + last.len;
        assert!(inode.fiemap(behind..u64::MAX, 9, false).unwrap().is_empty(), "{what}");
    }
}

struct World {
    device: Arc<MemoryDevice>,
    fs: Option<Fs>,
    files: [Vec<u8>; 2],
    cache: u64,
    layout: &'static Layout,
}

impl World {
    fn new(layout: &'static Layout, cache: u64) -> Result<World, String> {
        let device = make(layout, 48)?;
        let fs = mount_with(&device, cache);
        create(&fs, "f0");
        create(&fs, "f1");
        Ok(World { device, fs: Some(fs), files: Default::default(), cache, layout })
    }

    fn inode(&self, file: usize) -> Inode {
        self.fs.as_ref().unwrap().resolve(format!("/f{file}")).unwrap()
    }

    fn step(&mut self, random: &mut Prng) {
        let (file, unit) = (random.below(2) as usize, self.layout.1);
        let inode = self.inode(file);
        let bytes = &mut self.files[file];
        let size = bytes.len() as u64;
        let any = |random: &mut Prng| match random.below(3) {
            0 => random.below(size + 1),
            1 => random.below(SIZE_MAX),
            _ => random.below(size.div_ceil(unit) + 2) * unit,
        };
        match random.below(20) {
            0..=5 => {
                let at = any(random);
                let most = if random.one_in(3) { 100 } else { 90_000 };
                let len = 1 + random.below(most);
                let data = pattern(len as usize, random.below(1 << 40));
                assert_eq!(inode.write_at(&data, at).unwrap(), data.len());
                let end = (at + len) as usize;
                if bytes.len() < end {
                    bytes.resize(end, 0);
                }
                bytes[at as usize..end].copy_from_slice(&data);
            }
            6..=13 => {
                let mode = MODES[random.below(MODES.len() as u64) as usize];
                let (a, mut len) = (any(random), 1 + random.below(200_000));
                let mut start = a;
                if matches!(mode, Fallocate::CollapseRange | Fallocate::InsertRange) {
                    start = start / unit * unit;
                    len = (len / unit).max(1) * unit;
                    if mode == Fallocate::InsertRange && size + len > SIZE_MAX {
                        return;
                    }
                } else if random.one_in(2) {
                    start = start / unit * unit;
                }
                let range = start..start + len;
                let before = bytes.clone();
                let allowed = model(bytes, mode, range.clone(), unit);
                let done = inode.fallocate(mode, range.clone());
                if !self.layout.2 && mode != Fallocate::PunchHole {
                    assert_eq!(done.unwrap_err().errno(), 95, "{mode:?}");
                    *bytes = before;
                } else if allowed {
                    done.unwrap_or_else(|error| panic!("{mode:?} of {range:?}: {error}"));
                } else {
                    assert_eq!(done.unwrap_err().errno(), 22, "{mode:?} of {range:?}");
                    *bytes = before;
                }
                let size = bytes.len() as u64;
                assert_eq!(inode.metadata().size, size, "{mode:?} of {range:?}");
                if random.one_in(3) {
                    let read = inode.read_all().unwrap();
                    same(&read, bytes, &format!("{mode:?} of {range:?}"));
                }
            }
            14 => {
                let size = if random.one_in(2) { any(random).min(SIZE_MAX) } else { size / 2 };
                inode.truncate(size).unwrap();
                bytes.resize(size as usize, 0);
            }
            15 => inode.sync().unwrap(),
            16 => {
                check_seek(&inode, bytes, self.layout.0);
                check_fiemap(&inode, self.layout.0);
            }
            17 => {
                let other = 1 - file;
                let (at, len, to) = (any(random), 1 + random.below(300_000), any(random));
                let copied = inode.copy_range(at, &self.inode(other), to, len).unwrap();
                let from = self.files[file].get(at as usize..).unwrap_or(&[]);
                let part = from[..from.len().min(len as usize)].to_vec();
                assert_eq!(copied, part.len() as u64);
                let target = &mut self.files[other];
                let end = to as usize + part.len();
                if !part.is_empty() {
                    if target.len() < end {
                        target.resize(end, 0);
                    }
                    target[to as usize..end].copy_from_slice(&part);
                }
                let read = self.inode(other).read_all().unwrap();
                same(&read, &self.files[other], &format!("copy of {at}+{len} to {to}"));
            }
            18 => {
                let read = inode.read_all().unwrap();
                same(&read, bytes, "read");
            }
            _ if random.one_in(4) => {
                drop(inode);
                self.fs.take().unwrap().unmount().unwrap();
                check(&self.device, self.layout.0);
                self.fs = Some(mount_with(&self.device, self.cache));
                self.check();
            }
            _ => {}
        }
    }

    fn check(&self) {
        for (file, bytes) in self.files.iter().enumerate() {
            let inode = self.inode(file);
            same(&inode.read_all().unwrap(), bytes, &format!("{}: f{file}", self.layout.0));
            check_seek(&inode, bytes, self.layout.0);
        }
    }
}

fn history(layout: &'static Layout, seed: u64, steps: u64, cache: u64) -> Result<(), String> {
    let mut world = World::new(layout, cache)?;
    let mut random = Prng::new(seed);
    for _ in 0..steps {
        world.step(&mut random);
    }
    world.check();
    world.fs.take().unwrap().unmount().unwrap();
    check(&world.device, layout.0);
    // A mount for reading answers from the map alone.
    let options = MountOptions::new();
    let fs = options.open_shared(Arc::clone(&world.device) as SharedDevice).unwrap();
    for (file, bytes) in world.files.iter().enumerate() {
        let inode = fs.resolve(format!("/f{file}")).unwrap();
        same(&inode.read_all().unwrap(), bytes, layout.0);
        check_seek(&inode, bytes, layout.0);
        check_fiemap(&inode, layout.0);
    }
    Ok(())
}

fn histories(seeds: std::ops::Range<u64>, steps: u64) {
    for layout in LAYOUTS {
        for seed in seeds.clone() {
            for cache in [2 << 20, 32 << 20] {
                println!("{}, seed {seed}, cache {cache}", layout.0);
                require!(history(layout, seed, steps, cache));
            }
        }
    }
}

#[test]
fn random_histories_match_a_model_on_every_layout() {
    histories(1..3, 150);
}

#[test]
#[ignore = "takes minutes"]
fn random_histories_match_a_model_over_many_seeds() {
    histories(10..40, 600);
}

fn flags(mode: Fallocate) -> FallocateFlags {
    match mode {
        Fallocate::Allocate { keep_size: false } => FallocateFlags::empty(),
        Fallocate::Allocate { keep_size: true } => FallocateFlags::KEEP_SIZE,
        Fallocate::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        Fallocate::ZeroRange { keep_size: false } => FallocateFlags::ZERO_RANGE,
        Fallocate::ZeroRange { keep_size: true } => {
            FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE
        }
        Fallocate::CollapseRange => FallocateFlags::COLLAPSE_RANGE,
        Fallocate::InsertRange => FallocateFlags::INSERT_RANGE,
        // What the kernel has only for some devices, and not for ext4, is left out.
        Fallocate::WriteZeroes | Fallocate::Unshare => unreachable!(),
    }
}

/// Data and holes of a file of the kernel.
fn kernel_runs(file: &fs::File, size: u64) -> Vec<(u64, u64)> {
    let mut runs = Vec::new();
    let mut at = 0;
    while let Ok(data) = rustix::fs::seek(file, SeekFrom::Data(at)) {
        at = rustix::fs::seek(file, SeekFrom::Hole(data)).unwrap();
        runs.push((data, at));
        if at >= size {
            break;
        }
    }
    runs
}

fn our_runs(inode: &Inode) -> Vec<(u64, u64)> {
    let mut runs = Vec::new();
    let mut at = 0;
    while let Some(data) = inode.seek_data(at).unwrap() {
        at = inode.seek_hole(data).unwrap().unwrap();
        runs.push((data, at));
    }
    runs
}

/// Stops the kernel from writing zeros where it could split an unwritten extent.
fn exact(mount: &LoopMount) {
    let name = Path::new(mount.device()).file_name().unwrap().to_owned();
    let knob = Path::new("/sys/fs/ext4").join(name).join("extent_max_zeroout_kb");
    fs::write(knob, "0").unwrap();
}

fn beside_the_kernel(layout: &'static Layout, seed: u64) -> Result<(), String> {
    let unit = layout.1;
    let ours = make(layout, 32)?;
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    image::save(&ours, &path);
    let kernel = LoopMount::read_write(&path)?;
    exact(&kernel);
    let theirs = fs::File::options()
        .create_new(true)
        .read(true)
        .write(true)
        .open(kernel.path().join("file"))
        .unwrap();
    let fs = mount(&ours);
    let inode = create(&fs, "file");
    let mut random = Prng::new(seed);
    let mut log = Vec::new();
    for _ in 0..60 {
        let size = inode.metadata().size;
        let start = match random.below(3) {
            0 => random.below(size + 1),
            1 => random.below(1 << 20),
            _ => random.below(size.div_ceil(unit) + 2) * unit,
        };
        let len = 1 + random.below(150_000);
        if random.one_in(3) {
            let data = pattern(len as usize, random.below(1 << 40));
            log.push(format!("write {start}+{len}"));
            theirs.write_all_at(&data, start).unwrap();
            assert_eq!(inode.write_at(&data, start).unwrap(), data.len());
            continue;
        }
        if random.one_in(6) {
            log.push(format!("truncate {start}"));
            theirs.set_len(start).unwrap();
            inode.truncate(start).unwrap();
            continue;
        }
        let modes = MODES.map(|mode| (mode != Fallocate::WriteZeroes).then_some(mode));
        let Some(mode) = modes[random.below(8) as usize] else { continue };
        let mut range = start..start + len;
        let moves = matches!(mode, Fallocate::CollapseRange | Fallocate::InsertRange);
        if moves && !random.one_in(5) {
            let start = start / unit * unit;
            range = start..start + (len / unit).max(1) * unit;
        }
        log.push(format!("{mode:?} {range:?}"));
        let len = range.end - range.start;
        let kernel = rustix::fs::fallocate(&theirs, flags(mode), range.start, len);
        let kernel = kernel.map_err(|errno| errno.raw_os_error());
        let own = inode.fallocate(mode, range.clone()).map_err(|error| error.errno());
        assert_eq!(own, kernel, "{}, seed {seed}: {log:#?}", layout.0);
        assert_eq!(inode.metadata().size, theirs.metadata().unwrap().len(), "{log:#?}");
    }
    let size = inode.metadata().size;
    inode.sync().unwrap();
    theirs.sync_all().unwrap();
    drop(theirs);
    drop(kernel);
    // Mounted again, so that pages of either side do not count.
    let kernel = LoopMount::new(&path, MountFlags::RDONLY, "")?;
    let theirs = fs::File::open(kernel.path().join("file")).unwrap();
    assert_eq!(theirs.metadata().unwrap().len(), size, "{log:#?}");
    // Before anything is read: cached pages over unwritten blocks would count as data.
    let runs = kernel_runs(&theirs, size);
    let what = format!("{}, seed {seed}: {log:#?}", layout.0);
    same(&inode.read_all().unwrap(), &fs::read(kernel.path().join("file")).unwrap(), &what);
    drop(inode);
    fs.unmount().unwrap();
    check(&ours, &what);
    let fs = mount(&ours);
    let inode = fs.resolve("/file").unwrap();
    assert_eq!(our_runs(&inode), runs, "{what}");
    // The kernel reads what was made here.
    drop(inode);
    fs.unmount().unwrap();
    let result = dir.path().join("result");
    image::save(&ours, &result);
    let again = LoopMount::new(&result, MountFlags::RDONLY, "")?;
    let read = fs::read(again.path().join("file")).unwrap();
    same(&read, &fs::read(kernel.path().join("file")).unwrap(), &what);
    Ok(())
}

#[test]
fn the_kernel_does_the_same_to_contents_sizes_and_data() {
    for layout in LAYOUTS.iter().filter(|layout| layout.0 != "64K") {
        for seed in 0..4 {
            require!(beside_the_kernel(layout, seed));
        }
    }
}

#[test]
fn ranges_that_linux_refuses_are_refused_with_its_errno() {
    for layout in LAYOUTS.iter().filter(|layout| layout.0 != "64K") {
        let ours = require!(make(layout, 32));
        let dir = tempdir().unwrap();
        let path = dir.path().join("image");
        image::save(&ours, &path);
        let kernel = require!(LoopMount::read_write(&path));
        let theirs = fs::File::create_new(kernel.path().join("file")).unwrap();
        let fs = mount(&ours);
        let inode = create(&fs, "file");
        let unit = layout.1;
        theirs.write_all_at(&vec![7; 100_000], 0).unwrap();
        inode.write_at(&vec![7; 100_000], 0).unwrap();
        let end = 100_000 / unit * unit;
        let far = 1 << 45;
        let ranges = [
            (0, 0),
            (0, unit),
            (unit, unit),
            (1, unit),
            (unit, unit + 1),
            (0, end),
            (end, unit),
            (end + unit, unit),
            (0, end + unit),
            (far, unit),
            (unit, far),
        ];
        for (start, len) in ranges {
            for mode in MODES.into_iter().filter(|mode| *mode != Fallocate::WriteZeroes) {
                let theirs = rustix::fs::fallocate(&theirs, flags(mode), start, len);
                let theirs = theirs.map_err(|errno| errno.raw_os_error());
                let own = inode.fallocate(mode, start..start + len);
                let own = own.map_err(|error| error.errno());
                // A hole far out is nothing to us, an error for the kernel's common code.
                if (mode, start) != (Fallocate::PunchHole, far)
                    && (mode, len) != (Fallocate::PunchHole, far)
                {
                    assert_eq!(own, theirs, "{}: {mode:?} {start}+{len}", layout.0);
                }
            }
        }
        drop(inode);
        fs.unmount().unwrap();
        check(&ours, layout.0);
    }
}

#[test]
fn p18_a_hole_at_a_delayed_end_leaves_the_size() {
    for layout in LAYOUTS {
        let device = require!(make(layout, 32));
        let fs = mount(&device);
        let inode = create(&fs, "file");
        inode.write_at(&pattern(20_000, 1), 0).unwrap();
        inode.sync().unwrap();
        inode.write_at(&pattern(100_000, 2), 300_000).unwrap();
        inode.fallocate(Fallocate::PunchHole, 200_000..500_000).unwrap();
        // Whatever is durable now is a whole file system.
        fs.sync().unwrap();
        let image = Arc::new(device.snapshot());
        let crashed = mount(&image);
        let file = crashed.resolve("/file").unwrap();
        assert_eq!(file.metadata().size, 400_000, "{}", layout.0);
        let mut wanted = pattern(20_000, 1);
        wanted.resize(400_000, 0);
        same(&file.read_all().unwrap(), &wanted, layout.0);
        drop(file);
        crashed.unmount().unwrap();
        check(&image, layout.0);
        drop(inode);
        fs.unmount().unwrap();
        check(&device, layout.0);
    }
}

#[test]
fn p19_a_hole_behind_the_largest_offset_is_nothing() {
    for layout in LAYOUTS {
        let device = require!(make(layout, 32));
        let fs = mount(&device);
        let inode = create(&fs, "file");
        let bytes = pattern(50_000, 4);
        inode.write_at(&bytes, 0).unwrap();
        for start in [50_000, 1 << 42, (1 << 63) - 2] {
            inode.fallocate(Fallocate::PunchHole, start..(1 << 63) - 1).unwrap();
        }
        same(&inode.read_all().unwrap(), &bytes, layout.0);
        inode.fallocate(Fallocate::PunchHole, 10..(1 << 63) - 1).unwrap();
        let mut wanted = vec![0; 50_000];
        wanted[..10].copy_from_slice(&bytes[..10]);
        same(&inode.read_all().unwrap(), &wanted, layout.0);
        drop(inode);
        fs.unmount().unwrap();
        check(&device, layout.0);
    }
}

#[test]
fn p20_written_blocks_are_never_behind_the_stored_size() {
    for layout in LAYOUTS.iter().filter(|layout| layout.2) {
        let device = require!(make(layout, 32));
        let fs = mount(&device);
        let inode = create(&fs, "file");
        // A size that is in memory only, and zeros on the device before it.
        inode.write_at(b"the end", 900_000).unwrap();
        inode.fallocate(Fallocate::WriteZeroes, 100_000..500_000).unwrap();
        inode.fallocate(Fallocate::WriteZeroes, 800_000..1_500_000).unwrap();
        assert_eq!(inode.metadata().size, 1_500_000);
        fs.root().unwrap().sync().unwrap();
        let image = Arc::new(device.snapshot());
        drop(mount(&image));
        let crashed = mount(&image);
        crashed.unmount().unwrap();
        check(&image, layout.0);
        assert!(inode.read_all().unwrap().iter().all(|byte| *byte == 0));
        let written = inode.fiemap(0..u64::MAX, 99, true).unwrap();
        let covers = |run: &&FiemapExtent| !run.is_unwritten && run.logical <= 1_000_000;
        assert!(written.iter().any(|run| covers(&run)), "{}: {written:?}", layout.0);
        drop(inode);
        fs.unmount().unwrap();
        check(&device, layout.0);
    }
}

#[test]
fn p24_pages_behind_a_moved_range_move_too() {
    for layout in LAYOUTS.iter().filter(|layout| layout.2) {
        let device = require!(make(layout, 32));
        let fs = mount(&device);
        let inode = create(&fs, "file");
        let unit = layout.1;
        let mut bytes = pattern(700_001.max(24 * unit as usize), 9);
        inode.write_at(&bytes, 0).unwrap();
        // Dirty, clean and partly dirty, and in large folios from before the range.
        for round in 0..6u64 {
            let start = (3 + round) * unit;
            let len = (1 + round) * unit;
            let mode =
                if round % 2 == 0 { Fallocate::CollapseRange } else { Fallocate::InsertRange };
            assert!(model(&mut bytes, mode, start..start + len, unit));
            inode.fallocate(mode, start..start + len).unwrap();
            same(&inode.read_all().unwrap(), &bytes, layout.0);
            let data = pattern(3000, round);
            inode.write_at(&data, start + 100).unwrap();
            bytes[start as usize + 100..start as usize + 3100].copy_from_slice(&data);
            if round == 3 {
                inode.sync().unwrap();
            }
        }
        same(&inode.read_all().unwrap(), &bytes, layout.0);
        drop(inode);
        fs.unmount().unwrap();
        check(&device, layout.0);
        let fs = mount(&device);
        same(&fs.resolve("/file").unwrap().read_all().unwrap(), &bytes, layout.0);
    }
}

#[test]
fn p13_growing_by_space_alone_shows_zeros() {
    for layout in LAYOUTS.iter().filter(|layout| layout.2) {
        let device = require!(make(layout, 32));
        let fs = mount(&device);
        let inode = create(&fs, "file");
        inode.write_at(&pattern(3000, 1), 0).unwrap();
        inode.sync().unwrap();
        inode.truncate(1500).unwrap();
        inode.fallocate(Fallocate::Allocate { keep_size: false }, 2000..9000).unwrap();
        let mut wanted = pattern(3000, 1);
        wanted.truncate(1500);
        wanted.resize(9000, 0);
        same(&inode.read_all().unwrap(), &wanted, layout.0);
        drop(inode);
        fs.unmount().unwrap();
        let fs = mount(&device);
        same(&fs.resolve("/file").unwrap().read_all().unwrap(), &wanted, layout.0);
    }
}

#[test]
fn without_space_the_size_covers_what_was_allocated_and_nothing_is_lost() {
    for layout in LAYOUTS.iter().filter(|layout| layout.2) {
        let device = require!(make(layout, 32));
        let fs = mount(&device);
        let inode = create(&fs, "file");
        let bytes = pattern(100_000, 5);
        inode.write_at(&bytes, 0).unwrap();
        let mode = Fallocate::Allocate { keep_size: false };
        let error = inode.fallocate(mode, 0..200 << 20).unwrap_err();
        assert_eq!(error.errno(), 28, "{}", layout.0);
        let size = inode.metadata().size;
        assert!((1 << 20..200 << 20).contains(&size), "{}: {size}", layout.0);
        let runs = inode.fiemap(0..u64::MAX, 100_000, true).unwrap();
        let mut at = 0;
        for run in &runs {
            assert_eq!(run.logical, at, "{}: a hole", layout.0);
            at += run.len;
        }
        assert!(at >= size, "{}: size {size}, space to {at}", layout.0);
        let mut read = vec![0; 100_000];
        inode.read_at(&mut read, 0).unwrap();
        same(&read, &bytes, layout.0);
        // Promised data still gets to the device, and a punch gives everything back.
        inode.write_at(&bytes[..1000], 50_000).unwrap();
        inode.sync().unwrap();
        inode.fallocate(Fallocate::PunchHole, 0..u64::MAX >> 1).unwrap();
        assert_eq!(inode.metadata().size, size);
        assert!(inode.fiemap(0..size, 9, true).unwrap().is_empty());
        drop(inode);
        fs.unmount().unwrap();
        check(&device, layout.0);
    }
}

#[test]
fn zeroing_writes_nothing_back() {
    let device = require!(make(&LAYOUTS[1], 32));
    let fs = mount(&device);
    let inode = create(&fs, "file");
    inode.write_at(&pattern(1 << 20, 5), 0).unwrap();
    let before = fs.io_stats().unwrap().device_writes;
    inode.fallocate(Fallocate::ZeroRange { keep_size: true }, 5_000..900_001).unwrap();
    inode.fallocate(Fallocate::PunchHole, 7_000..30_000).unwrap();
    inode.fallocate(Fallocate::Allocate { keep_size: false }, 0..2 << 20).unwrap();
    assert_eq!(fs.io_stats().unwrap().device_writes, before);
    let mut wanted = pattern(1 << 20, 5);
    wanted[5_000..900_001].fill(0);
    wanted.resize(2 << 20, 0);
    same(&inode.read_all().unwrap(), &wanted, "file");
}

#[test]
fn thousands_of_extents_move_through_a_small_log() {
    for layout in [&LAYOUTS[0], &LAYOUTS[3]] {
        let device = require!(make(layout, 48));
        let fs = mount(&device);
        let inode = create(&fs, "file");
        let unit = layout.1;
        let count = 1500;
        for at in 0..count {
            inode.write_at(&pattern(unit as usize, at), 2 * at * unit).unwrap();
        }
        let mut bytes = inode.read_all().unwrap();
        inode.sync().unwrap();
        for (mode, range) in [
            (Fallocate::InsertRange, 2..9),
            (Fallocate::CollapseRange, 1..3),
            (Fallocate::ZeroRange { keep_size: false }, 700..1400),
            (Fallocate::WriteZeroes, 1500..2000),
            (Fallocate::CollapseRange, 5..1000),
            (Fallocate::PunchHole, 100..900),
        ] {
            let range = range.start * unit..range.end * unit;
            assert!(model(&mut bytes, mode, range.clone(), unit));
            inode.fallocate(mode, range).unwrap();
            same(&inode.read_all().unwrap(), &bytes, &format!("{}: {mode:?}", layout.0));
            fs.sync().unwrap();
            check(&device.snapshot(), layout.0);
        }
    }
}

#[test]
fn set_id_bits_go_and_flags_are_respected() {
    let device = require!(make(&LAYOUTS[1], 32));
    let fs = mount(&device);
    let inode = fs.root().unwrap().create("file", &NewInode::root(0o6755)).unwrap();
    inode.fallocate(Fallocate::Allocate { keep_size: false }, 0..5000).unwrap();
    assert_eq!(inode.metadata().permissions, 0o755);
    let dir = fs.root().unwrap();
    assert_eq!(dir.fallocate(Fallocate::PunchHole, 0..1).unwrap_err().errno(), 21);
    assert_eq!(inode.fallocate(Fallocate::PunchHole, 5..5).unwrap_err().errno(), 22);
    let flags = inode.flags();
    let set = |flags| extant::SetAttributes::new().flags(flags);
    inode.set_attributes(&set(flags | extant::InodeFlags::APPEND)).unwrap();
    assert_eq!(inode.fallocate(Fallocate::PunchHole, 0..10).unwrap_err().errno(), 1);
    inode.fallocate(Fallocate::Allocate { keep_size: false }, 0..9000).unwrap();
    inode.set_attributes(&set(flags | extant::InodeFlags::IMMUTABLE)).unwrap();
    let mode = Fallocate::Allocate { keep_size: true };
    assert_eq!(inode.fallocate(mode, 0..10).unwrap_err().errno(), 1);
}

#[test]
fn what_can_only_be_appended_to_can_be_touched_and_no_more() {
    use extant::{InodeFlags, SetAttributes, TimeChange, Timestamp};
    let device = require!(make(&LAYOUTS[1], 32));
    let fs = mount(&device);
    let inode = create(&fs, "file");
    let set = |flags| SetAttributes::new().flags(inode.flags() | flags);
    let at = TimeChange::To(Timestamp { seconds: 7, nanos: 0 });
    let touch = SetAttributes::new().times(Some(TimeChange::Now), Some(TimeChange::Now));
    let mut cached = SetAttributes::new().times(Some(TimeChange::Now), Some(at));
    cached.ctime = Some(Timestamp { seconds: 7, nanos: 0 });
    inode.set_attributes(&set(InodeFlags::APPEND)).unwrap();
    inode.set_attributes(&touch).unwrap();
    inode.set_attributes(&cached).unwrap();
    assert_eq!(inode.metadata().mtime.seconds, 7);
    for refused in [
        SetAttributes::new().times(Some(TimeChange::Now), Some(at)),
        SetAttributes::new().times(None, Some(TimeChange::Now)),
        touch.permissions(0o600),
        touch.size(0),
    ] {
        assert_eq!(inode.set_attributes(&refused).unwrap_err().errno(), 1, "{refused:?}");
    }
    inode.set_attributes(&set(InodeFlags::IMMUTABLE)).unwrap();
    assert_eq!(inode.set_attributes(&touch).unwrap_err().errno(), 1);
}

#[test]
fn the_same_size_again_frees_what_is_kept_behind_it() {
    for layout in LAYOUTS.iter().filter(|layout| layout.2) {
        let device = require!(make(layout, 32));
        let fs = mount(&device);
        let (inode, plain) = (create(&fs, "file"), create(&fs, "plain"));
        for inode in [&inode, &plain] {
            inode.write_at(&pattern(300, 1), 0).unwrap();
        }
        inode.fallocate(Fallocate::Allocate { keep_size: true }, 0..600_000).unwrap();
        fs.sync().unwrap();
        assert!(inode.metadata().blocks > 1000, "{}", layout.0);
        inode.truncate(300).unwrap();
        fs.sync().unwrap();
        // A file that was inline once takes blocks when space is kept for it.
        let most = plain.metadata().blocks.max(layout.1 / 512);
        assert!(inode.metadata().blocks <= most, "{}", layout.0);
        same(&inode.read_all().unwrap(), &pattern(300, 1), layout.0);
        drop((inode, plain));
        fs.unmount().unwrap();
        check(&device, layout.0);
    }
}

#[test]
fn copies_keep_holes_and_overlaps_are_refused() {
    let device = require!(make(&LAYOUTS[1], 32));
    let fs = mount(&device);
    let from = create(&fs, "from");
    let to = create(&fs, "to");
    from.write_at(&pattern(5000, 1), 100_000).unwrap();
    from.write_at(&pattern(5000, 2), 4 << 20).unwrap();
    from.truncate(6 << 20).unwrap();
    assert_eq!(from.copy_range(0, &to, 0, u64::MAX).unwrap(), 6 << 20);
    same(&to.read_all().unwrap(), &from.read_all().unwrap(), "copy");
    assert_eq!(our_runs(&to), our_runs(&from));
    // Into data: zeros are copied as well.
    to.write_at(&vec![9; 50_000], 0).unwrap();
    assert_eq!(from.copy_range(1000, &to, 2000, 30_000).unwrap(), 30_000);
    let read = to.read_all().unwrap();
    assert!(read[..2000].iter().all(|byte| *byte == 9));
    assert!(read[2000..32_000].iter().all(|byte| *byte == 0));
    assert!(read[32_000..50_000].iter().all(|byte| *byte == 9));
    assert_eq!(to.copy_range(0, &to, 49_999, 50_000).unwrap_err().errno(), 22);
    assert_eq!(to.copy_range(0, &to, 7 << 20, 50_000).unwrap(), 50_000);
    assert_eq!(to.metadata().size, (7 << 20) + 50_000);
    assert_eq!(from.copy_range(6 << 20, &to, 0, 10).unwrap(), 0);
    // Another mount.
    let other_device = require!(make(&LAYOUTS[0], 32));
    let other = mount(&other_device);
    let there = create(&other, "there");
    assert_eq!(from.copy_range(0, &there, 0, u64::MAX).unwrap(), 6 << 20);
    same(&there.read_all().unwrap(), &from.read_all().unwrap(), "copy");
    drop((from, to, there));
    fs.unmount().unwrap();
    other.unmount().unwrap();
    check(&device, "4K");
    check(&other_device, "1K");
}

#[test]
fn fiemap_tells_delayed_unwritten_inline_and_attributes() {
    let device = require!(make(&LAYOUTS[4], 32));
    let fs = mount(&device);
    let tiny = create(&fs, "tiny");
    tiny.write_at(b"in the inode", 0).unwrap();
    let runs = tiny.fiemap(0..u64::MAX, 9, true).unwrap();
    assert!(runs[0].is_inline && runs[0].is_last && runs[0].len == 12, "{runs:?}");
    drop(tiny);
    fs.unmount().unwrap();
    let mut stored = vec![0; 12];
    device.read_at(runs[0].physical, &mut stored).unwrap();
    assert_eq!(stored, b"in the inode");
    let fs = mount(&device);
    let inode = create(&fs, "file");
    inode.write_at(&pattern(4096, 1), 0).unwrap();
    inode.fallocate(Fallocate::Allocate { keep_size: true }, 8192..16384).unwrap();
    let runs = inode.fiemap(0..u64::MAX, 9, false).unwrap();
    assert_eq!(runs.len(), 2, "{runs:?}");
    assert!(runs[0].is_delayed && runs[0].physical == 0 && !runs[0].is_last, "{runs:?}");
    assert!(runs[1].is_unwritten && runs[1].is_last, "{runs:?}");
    assert_eq!((runs[1].logical, runs[1].len), (8192, 8192));
    let runs = inode.fiemap(1000..5000, 9, true).unwrap();
    assert_eq!((runs[0].logical, runs[0].len), (0, 4096), "{runs:?}");
    assert!(!runs[0].is_delayed && runs[0].physical > 0 && !runs[0].is_last);
    let mut stored = vec![0; 4096];
    fs.device().read_at(runs[0].physical, &mut stored).unwrap();
    same(&stored, &pattern(4096, 1), "stored");
    assert!(inode.fiemap_xattrs().unwrap().is_empty());
    inode.set_xattr("user.a", b"some value", extant::XattrMode::Any).unwrap();
    inode.set_xattr("user.b", [7; 700], extant::XattrMode::Any).unwrap();
    let runs = inode.fiemap_xattrs().unwrap();
    assert_eq!(runs.len(), 2, "{runs:?}");
    assert!(runs[0].is_inline && runs[1].is_last, "{runs:?}");
    drop(inode);
    fs.unmount().unwrap();
    for run in &runs {
        let mut bytes = vec![0; 4];
        device.read_at(run.physical, &mut bytes).unwrap();
        assert_eq!(bytes, 0xea02_0000_u32.to_le_bytes(), "{run:?}");
    }
}

/// What a crash may leave between two contents: everything moved or nothing; otherwise, byte by byte, the
/// one or the other.
fn between(found: &[u8], old: &[u8], new: &[u8], mode: Fallocate) -> Result<(), String> {
    if found == old || found == new {
        return Ok(());
    }
    if matches!(mode, Fallocate::CollapseRange | Fallocate::InsertRange) {
        return Err(format!("{mode:?}: neither old nor new, {} bytes", found.len()));
    }
    if found.len() < old.len().min(new.len()) || found.len() > old.len().max(new.len()) {
        return Err(format!("{mode:?}: {} bytes", found.len()));
    }
    let at = |bytes: &[u8], at: usize| bytes.get(at).copied().unwrap_or(0);
    match (0..found.len()).find(|i| found[*i] != at(old, *i) && found[*i] != at(new, *i)) {
        None => Ok(()),
        Some(bad) => Err(format!("{mode:?}: byte {bad} is {:#x}", found[bad])),
    }
}

#[test]
fn a_crash_leaves_old_or_new_bytes_and_a_whole_file_system() {
    // With blocks of 64 KiB so small an image has no log either.
    let has_log = |layout: &&Layout| layout.2 && layout.0 != "no log" && layout.0 != "64K";
    for layout in LAYOUTS.iter().filter(has_log) {
        let base = require!(make(layout, 32));
        let device = Arc::new(RecordingDevice::over(base.snapshot()));
        let options = MountOptions::new().read_only(false).seed(3).background(false);
        let fs = options.open_shared(Arc::clone(&device) as SharedDevice).unwrap();
        let unit = layout.1;
        let inode = create(&fs, "file");
        let mut bytes = pattern(5 * unit as usize + 777, 1);
        // No byte of it is what the device was filled with.
        bytes.iter_mut().for_each(|byte| *byte &= 0x7f);
        inode.write_at(&bytes, 0).unwrap();
        fs.sync().unwrap();
        device.mark("written");
        let mut turns = vec![(Fallocate::Unshare, bytes.clone())];
        for (mode, start, len) in [
            (Fallocate::Allocate { keep_size: false }, unit, 8 * unit),
            (Fallocate::InsertRange, 2 * unit, 3 * unit),
            (Fallocate::ZeroRange { keep_size: false }, unit + 100, 7 * unit),
            (Fallocate::WriteZeroes, 7 * unit, 5 * unit + 9),
            (Fallocate::CollapseRange, unit, 4 * unit),
            (Fallocate::PunchHole, unit / 2, 3 * unit),
        ] {
            // Dirty data in and behind the range.
            let data: Vec<u8> = pattern(unit as usize, len).iter().map(|b| b & 0x7f).collect();
            let at = (start + unit / 2) as usize;
            inode.write_at(&data, at as u64).unwrap();
            bytes.resize(bytes.len().max(at + data.len()), 0);
            bytes[at..at + data.len()].copy_from_slice(&data);
            fs.sync().unwrap();
            device.mark("dirtied");
            turns.push((Fallocate::ZeroRange { keep_size: true }, bytes.clone()));
            assert!(model(&mut bytes, mode, start..start + len, unit));
            inode.fallocate(mode, start..start + len).unwrap();
            fs.sync().unwrap();
            device.mark("done");
            turns.push((mode, bytes.clone()));
        }
        drop(inode);
        fs.unmount().unwrap();
        let history = History::of(&[&device]);
        let sampling =
            Sampling { samples: 6, whole: 1024..2048, one_cut_in: 2, ..Sampling::default() };
        // Nor is a larger write torn that the superblock is part of: see `Sampling::whole`.
        let tears_superblock = |(place, fate): &(usize, Fate)| {
            let Some(event) = history.events().get(*place) else { return false };
            let (offset, len) = event.record.range();
            offset < 2048 && offset + len > 1024 && !matches!(fate, Fate::Kept | Fate::Lost)
        };
        let checked = AtomicU32::new(0);
        let dir = tempdir().unwrap();
        let report = crash::run(&history, &sampling, 2, None, |state| {
            if state.marks == 0 || state.fates.iter().any(tears_superblock) {
                return Ok(());
            }
            let device = Arc::new(state.devices[0].snapshot());
            let options = MountOptions::new().read_only(false).seed(3).background(false);
            let shared: SharedDevice = Arc::clone(&device) as SharedDevice;
            let fs = options.open_shared(shared).map_err(|error| error.to_string())?;
            let file = fs.resolve("/file").map_err(|error| error.to_string())?;
            let found = file.read_all().map_err(|error| error.to_string())?;
            let old = &turns[state.marks - 1].1;
            let (mode, new) = turns.get(state.marks).unwrap_or(&turns[state.marks - 1]);
            between(&found, old, new, *mode)?;
            drop(file);
            fs.unmount().map_err(|error| error.to_string())?;
            if checked.fetch_add(1, Ordering::Relaxed).is_multiple_of(40) {
                let path = dir.path().join(state.name());
                image::save(&device, &path);
                let report = e2fsck(&path).unwrap();
                fs::remove_file(&path).unwrap();
                if !report.is_clean() {
                    return Err(report.text);
                }
            }
            Ok(())
        });
        assert!(report.failures.is_empty(), "{}: {}", layout.0, report.failures[0]);
        let states = checked.into_inner();
        println!("{}: {states} states", layout.0);
        assert!(states > 50, "{}: only {states} states", layout.0);
    }
}
