//! Many file systems at once, each on a qcow2 overlay of its own over one base, with one cache for all of them.
//!
//! A program of its own: it looks at the memory of the process.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use extant::{Fs, MountOptions, SharedCache};
use extant_base::Prng;
use extant_block::{BlockDevice, FileDevice, SharedDevice};
use extant_qcow2::{FileStore, Format, How, Opened, Qcow2, Store, create, create_over, open};
use extant_sync::{Mutex, Rank, threads};
use extant_testkit::oracle::{e2fsck, mke2fs};
use extant_testkit::{require, tempdir};

/// Bytes of the cache that all share.
const CACHE: u64 = 64 << 20;
/// Memory that all of 200 may take, and so what each may beside the cache.
const ALL: u64 = 1 << 30;
const EACH: u64 = (ALL - CACHE) / 200;
const MIB: u64 = 1 << 20;
const SHARED_LEN: usize = 300_000;

/// The file of an overlay, until the power is cut: then it takes nothing any more.
struct Severed {
    file: FileStore,
    is_cut: Arc<AtomicBool>,
}

impl Severed {
    fn check(&self) -> io::Result<()> {
        match self.is_cut.load(Ordering::SeqCst) {
            true => Err(io::Error::from_raw_os_error(5)),
            false => Ok(()),
        }
    }
}

impl Store for Severed {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_at(offset, out)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.check()?;
        self.file.write_at(offset, bytes)
    }
    fn sync(&self) -> io::Result<()> {
        self.check()?;
        self.file.sync()
    }
    fn punch(&self, offset: u64, len: u64) {
        if self.check().is_ok() {
            self.file.punch(offset, len);
        }
    }
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check()?;
        self.file.allocate(offset, len)
    }
    fn grows_with_zeros(&self) -> bool {
        self.file.grows_with_zeros()
    }
}

/// Bytes that are the same each time and differ from number to number.
fn noise(number: usize, len: usize) -> Vec<u8> {
    let mut random = Prng::new(number as u64 + 1);
    (0..len).map(|_| random.next_u64() as u8).collect()
}

/// A base with a file that all change, raw or in a qcow2 image.
fn base(dir: &Path, format: Format) -> Result<PathBuf, String> {
    let (tree, raw) = (dir.join("tree"), dir.join("base.img"));
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("shared"), noise(9999, SHARED_LEN)).unwrap();
    let from = tree.display().to_string();
    mke2fs(&raw, "32M", &["-t", "ext4", "-b", "4096", "-J", "size=4", "-d", &from])?;
    if format == Format::Raw {
        return Ok(raw);
    }
    let path = dir.join("base.qcow2");
    let bytes = std::fs::read(&raw).unwrap();
    create(&path, bytes.len() as u64).unwrap();
    let how = How { write: true, ..How::default() };
    let disk = open(&path, &how).unwrap().into_device();
    for (number, piece) in bytes.chunks(1 << 16).enumerate() {
        if piece.iter().any(|byte| *byte != 0) {
            disk.write_at((number as u64) << 16, piece).unwrap();
        }
    }
    disk.flush().unwrap();
    Ok(path)
}

/// One of them, mounted.
struct One {
    path: PathBuf,
    is_cut: Arc<AtomicBool>,
    fs: Fs,
}

impl One {
    fn make(
        path: PathBuf,
        below: &SharedDevice,
        base: (&Path, Format),
        cache: &SharedCache,
    ) -> One {
        create_over(&path, below.size_bytes(), base.0, base.1).unwrap();
        let is_cut = Arc::new(AtomicBool::new(false));
        let file = FileStore::new(FileDevice::open_read_write(&path).unwrap());
        let store = Severed { file, is_cut: Arc::clone(&is_cut) };
        let image = Qcow2::open(Box::new(store), "overlay", Some(Arc::clone(below)), 1, false);
        let options = MountOptions::new().read_only(false).cache(cache);
        let fs = options.open_shared(Arc::new(image.unwrap())).unwrap();
        One { path, is_cut, fs }
    }

    /// Reads what all have, changes it, and makes that durable; what comes after is not.
    fn work(&self, number: usize) {
        let mut shared = noise(9999, SHARED_LEN);
        assert!(self.fs.read("/shared").unwrap() == shared, "{number} sees another's changes");
        shared[1000..201_000].copy_from_slice(&noise(number, 200_000));
        self.fs.write("/shared", &shared).unwrap();
        self.fs.write("/own", noise(number, 256 << 10)).unwrap();
        for name in ["/shared", "/own"] {
            self.fs.resolve(name).unwrap().sync().unwrap();
        }
        self.fs.write("/late", noise(number, 100_000)).unwrap();
    }
}

fn is_there(fs: &Fs, number: usize) {
    let shared = fs.read("/shared").unwrap();
    assert!(shared[1000..201_000] == noise(number, 200_000), "{number}: what was synced is lost");
    assert!(shared[..1000] == noise(9999, SHARED_LEN)[..1000], "{number}");
    assert!(fs.read("/own").unwrap() == noise(number, 256 << 10), "{number}: lost");
}

/// Bytes of memory that the process has.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

/// The disk in an overlay as e2fsck reads it.
fn flatten(disk: &dyn BlockDevice, to: &Path) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::create(to).unwrap();
    file.set_len(disk.size_bytes()).unwrap();
    let mut piece = vec![0; 1 << 16];
    for at in (0..disk.size_bytes()).step_by(piece.len()) {
        disk.read_at(at, &mut piece).unwrap();
        if piece.iter().any(|byte| *byte != 0) {
            file.write_all_at(&piece, at).unwrap();
        }
    }
}

/// They are measured one after the other.
static ALONE: Mutex<()> = Mutex::new(Rank::Current, ());

fn many(count: usize, format: Format) -> Result<(), String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let base = base(dir.path(), format)?;
    let before = std::fs::read(&base).unwrap();
    let below = open(&base, &How::default()).unwrap().into_device();
    let cache = SharedCache::new(CACHE);
    let start = resident();
    let name = base.file_name().unwrap();
    let make = |number: usize| {
        let path = dir.path().join(format!("o{number}.qcow2"));
        Some(One::make(path, &below, (Path::new(name), format), &cache))
    };
    let mut all: Vec<Option<One>> = (0..count).map(make).collect();
    assert_eq!(cache.mounts(), count);
    threads::workers("work", count, |number| all[number].as_ref().unwrap().work(number)).unwrap();
    let taken = resident().saturating_sub(start);
    println!("{count} overlays: {} MiB", taken / MIB);
    let most = CACHE + count as u64 * EACH;
    assert!(taken <= most, "{} MiB, more than {} MiB", taken / MIB, most / MIB);
    // The power goes for some of them, wherever they are.
    let mut random = Prng::new(count as u64);
    let cut: Vec<bool> = (0..count).map(|_| random.one_in(3)).collect();
    assert!(cut.contains(&true) && cut.contains(&false));
    threads::workers("cut", count, |number| {
        let one = all[number].as_ref().unwrap();
        match cut[number] {
            true => one.is_cut.store(true, Ordering::SeqCst),
            // The others go on, and notice nothing.
            false => {
                one.fs.write("/after", noise(number, 50_000)).unwrap();
                one.fs.sync().unwrap();
            }
        }
    })
    .unwrap();
    for (number, one) in all.iter_mut().enumerate() {
        let one = one.take().unwrap();
        match cut[number] {
            true => {
                one.fs.write("/more", "more").and_then(|()| one.fs.sync()).unwrap_err();
                drop(one.fs);
            }
            false => one.fs.unmount().unwrap(),
        }
        // Nothing of the cut one came after the cut.
        one.is_cut.store(true, Ordering::SeqCst);
        let how = How { write: true, ..How::default() };
        let Opened::Qcow2(disk) = open(&one.path, &how).unwrap() else {
            panic!("no overlay any more")
        };
        let disk: SharedDevice = disk;
        let options = MountOptions::new().read_only(false).cache(&cache);
        let fs = options.open_shared(Arc::clone(&disk)).unwrap();
        is_there(&fs, number);
        if !cut[number] {
            assert!(fs.read("/late").unwrap() == noise(number, 100_000), "{number}");
            assert!(fs.read("/after").unwrap() == noise(number, 50_000), "{number}");
        }
        fs.unmount().unwrap();
        let flat = dir.path().join("flat");
        flatten(&*disk, &flat);
        let report = e2fsck(&flat)?;
        assert!(report.is_clean(), "{number}: {}", report.text);
    }
    assert!(std::fs::read(&base).unwrap() == before, "the base has changed");
    Ok(())
}

#[test]
fn sixteen_overlays_on_one_base_are_written_at_once_and_cut() {
    let _alone = ALONE.lock();
    require!(many(16, Format::Raw));
    require!(many(16, Format::Qcow2));
}

#[test]
#[ignore = "takes a minute: 200 file systems at once"]
fn two_hundred_overlays_on_one_base_take_less_than_a_gibibyte() {
    let _alone = ALONE.lock();
    require!(many(200, Format::Raw));
    require!(many(200, Format::Qcow2));
}
