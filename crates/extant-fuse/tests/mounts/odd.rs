//! What images may hold that programs see rarely: long targets of links, directories that are damaged in part.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common;
use common::{Heard, obstacle, with_mount};
use extant::{Fs, MountOptions};
use extant_block::{
    BlockDevice, DeviceError, DeviceFault, MemoryDevice, Operation, OperationKind, Pending,
    SharedDevice, run_in_place,
};
use extant_fuse::Settings;
use extant_testkit::oracle::{LoopMount, debugfs, mke2fs};
use extant_testkit::{require, skip};

/// Lengths of targets as they are in the image, on blocks of 4096 bytes.
const TARGETS: [usize; 6] = [1, 59, 60, 4000, 4095, 4096];

fn long_targets(settings: &Settings) {
    let dir = extant_testkit::tempdir().unwrap();
    let image = dir.path().join("image");
    require!(mke2fs(&image, "16M", &["-t", "ext4", "-O", "^metadata_csum", "-b", "4096"]));
    let mut commands = String::new();
    for len in TARGETS {
        let target = dir.path().join(format!("target{len}"));
        fs::write(&target, vec![b'x'; len]).unwrap();
        if len < 60 {
            commands += &format!("symlink l{len} {}\n", "x".repeat(len));
        } else {
            commands += &format!("write {} l{len}\nsif l{len} mode 0120777\n", target.display());
        }
    }
    // Without a key a target is shown encoded, and takes less room than it has.
    commands += &format!("write {} encrypted\n", dir.path().join("target4096").display());
    commands += "sif encrypted mode 0120777\nsif encrypted flags 0x80800\n";
    require!(debugfs(&image, true, &commands));
    // What the kernel shows of them.
    let kernel: Vec<_> = match LoopMount::new(&image, rustix::mount::MountFlags::RDONLY, "noload") {
        Ok(mount) => TARGETS
            .iter()
            .map(|len| fs::read_link(mount.path().join(format!("l{len}"))).unwrap())
            .collect(),
        Err(reason) => {
            println!("not compared with the kernel's ext4: {reason}");
            TARGETS.iter().map(|len| "x".repeat((*len).min(4095)).into()).collect()
        }
    };
    let device = Arc::new(extant_testkit::image::load(&image));
    let fs = MountOptions::new().read_only(false).open_shared(device).unwrap();
    let (heard, at) = (Heard::new(), dir.path().join("mount"));
    fs::create_dir(&at).unwrap();
    let (served, ()) = with_mount(fs, &at, settings, &heard, |at| {
        // More often than there are threads.
        for _ in 0..20 {
            for (len, kernel) in TARGETS.iter().zip(&kernel) {
                let shown = fs::read_link(at.join(format!("l{len}"))).unwrap();
                assert_eq!(shown.as_os_str().len(), kernel.as_os_str().len(), "{len}");
                assert_eq!(&shown, kernel);
            }
            let encrypted = fs::read_link(at.join("encrypted"));
            assert!(encrypted.is_err() || encrypted.unwrap().as_os_str().as_bytes().len() < 4096);
        }
        let through = fs::metadata(at.join("l4096")).unwrap_err();
        assert_eq!(through.raw_os_error(), Some(36), "ENAMETOOLONG");
        fs::write(at.join("new"), "goes on").unwrap();
    });
    served.unwrap();
    assert_eq!(heard.bugs.load(Ordering::SeqCst), 0);
    assert!(!heard.says("did not take the answer"), "{:?}", heard.lines.lock());
}

#[test]
fn a_target_of_any_length_is_shown_as_the_kernel_shows_it() {
    if let Some(obstacle) = obstacle() {
        skip!("{obstacle}");
    }
    long_targets(&Settings::default());
    match common::over_rings() {
        Ok(settings) => long_targets(&settings),
        Err(obstacle) => println!("not over rings: {obstacle}"),
    }
}

/// Names that programs were given, and the error that came where the end should be.
type Listed = (BTreeSet<Vec<u8>>, Option<i32>);

fn listing(dir: &mut rustix::fs::Dir) -> Listed {
    let (mut names, mut error) = (BTreeSet::new(), None);
    while let Some(entry) = dir.read() {
        match entry {
            Ok(entry) => {
                let name = entry.file_name().to_bytes();
                if !matches!(name, b"." | b"..") {
                    assert!(names.insert(name.to_vec()), "{name:?} twice");
                }
            }
            Err(errno) => error = Some(errno.raw_os_error()),
        }
    }
    (names, error)
}

fn opened(path: &Path) -> rustix::fs::Dir {
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY;
    let file = rustix::fs::open(path, flags, rustix::fs::Mode::empty()).unwrap();
    rustix::fs::Dir::new(file).unwrap()
}

/// What the library says of a directory.
fn by_library(fs: &Fs, path: &str) -> Listed {
    let (mut names, mut error) = (BTreeSet::new(), None);
    for entry in fs.resolve(path).unwrap().read_dir().unwrap() {
        match entry {
            Ok(entry) => _ = names.insert(entry.name().to_vec()),
            Err(damage) => _ = error.get_or_insert(damage.errno()),
        }
    }
    (names, error)
}

/// A kind of damage: its name, and what is done to the blocks of a directory of so many bytes each.
type Harm = (&'static str, fn(&MemoryDevice, &[u64], u64));

fn flip(device: &MemoryDevice, at: u64, with: u8) {
    let mut byte = [0];
    device.read_at(at, &mut byte).unwrap();
    device.write_at(at, &[byte[0] ^ with]).unwrap();
}

const HARMS: [Harm; 6] = [
    // The length of the first record behind the dots, and of the first one of a middle and of the last block.
    ("first block", |device, blocks, size| flip(device, blocks[0] * size + 24 + 4, 0x03)),
    ("middle block", |device, blocks, size| {
        flip(device, blocks[blocks.len() / 2] * size + 4, 0x03);
    }),
    ("last block", |device, blocks, size| flip(device, blocks[blocks.len() - 1] * size + 4, 0x03)),
    // A letter of a name: only a checksum tells.
    ("one letter", |device, blocks, size| {
        flip(device, blocks[blocks.len() / 2] * size + 10, 0x01);
    }),
    // The count of the index, where the directory has one.
    ("index", |device, blocks, size| flip(device, blocks[0] * size + 34, 0xff)),
    ("all but the first block", |device, blocks, size| {
        blocks[1..].iter().for_each(|block| flip(device, block * size + 4, 0x03));
    }),
];

fn damaged_directories(settings: &Settings, options: &[&str], source: &Path) {
    let dir = extant_testkit::tempdir().unwrap();
    let (image, at) = (dir.path().join("image"), dir.path().join("mount"));
    fs::create_dir(&at).unwrap();
    let all = [&["-t", "ext4", "-b", "1024", "-d", source.to_str().unwrap()], options].concat();
    require!(mke2fs(&image, "16M", &all));
    // mke2fs makes no index; e2fsck does.
    let _ = std::process::Command::new("e2fsck").args(["-fyD"]).arg(&image).output().unwrap();
    let blocks = require!(debugfs(&image, false, "blocks /d"));
    let blocks: Vec<u64> = blocks.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!(blocks.len() > 5, "{blocks:?}");
    let whole = extant_testkit::image::load(&image);
    let mut errors = 0;
    for (harm, damage) in HARMS {
        let what = format!("{harm}, {options:?}");
        let device = whole.snapshot();
        damage(&device, &blocks, 1024);
        let device = Arc::new(device);
        let own = MountOptions::new().read_only(false).open_shared(Arc::new(device.snapshot()));
        let wanted = by_library(&own.unwrap(), "/d");
        errors += u32::from(wanted.1.is_some());
        let copy = dir.path().join("harmed");
        let _ = fs::remove_file(&copy);
        extant_testkit::image::save(&device, &copy);
        if let Ok(mount) = LoopMount::read_only(&copy) {
            let (names, error) = listing(&mut opened(&mount.path().join("d")));
            println!(
                "{what}: the kernel lists {} names, then {error:?}; here {} and {:?}",
                names.len(),
                wanted.0.len(),
                wanted.1
            );
            let more: Vec<_> = names.difference(&wanted.0).collect();
            // Without looking at checksums it may list what is in a damaged block.
            assert!(more.is_empty() || wanted.1.is_some(), "{what}: {more:?}");
        }
        let fs = MountOptions::new().read_only(false).open_shared(device).unwrap();
        let heard = Heard::new();
        let (served, ()) = with_mount(fs, &at, settings, &heard, |at| {
            let path = at.join("d");
            let mut twice = opened(&path);
            for round in 0..3 {
                assert_eq!(listing(&mut opened(&path)), wanted, "{what}: opened, {round}");
                assert_eq!(listing(&mut twice), wanted, "{what}: from the start, {round}");
                twice = rewound(twice);
                // With attributes, as `ls -l`, and without.
                for name in &wanted.0 {
                    let _ = fs::symlink_metadata(path.join(std::ffi::OsStr::from_bytes(name)));
                }
            }
            let listed = std::process::Command::new("ls").arg(&path).output().unwrap();
            assert_eq!(listed.status.success(), wanted.1.is_none(), "{what}: {listed:?}");
            // Others are none the worse.
            assert_eq!(listing(&mut opened(&at.join("other"))).1, None, "{what}");
        });
        served.unwrap();
        assert_eq!(heard.bugs.load(Ordering::SeqCst), 0);
    }
    // Without checksums nothing tells of a changed letter, nor of an index that is not read.
    assert!(errors >= 3, "{options:?}: little was damaged");
}

fn rewound(mut dir: rustix::fs::Dir) -> rustix::fs::Dir {
    dir.rewind();
    dir
}

#[test]
fn listings_of_damaged_directories_end_in_the_error_after_all_that_can_be_listed() {
    if let Some(obstacle) = obstacle() {
        skip!("{obstacle}");
    }
    let source = extant_testkit::tempdir().unwrap();
    for name in ["d", "other"] {
        fs::create_dir(source.path().join(name)).unwrap();
    }
    for index in 0..300 {
        let name = format!("a name that takes some room in its block {index:04}");
        fs::write(source.path().join("d").join(name), "").unwrap();
    }
    for options in [
        &["-O", "metadata_csum"][..],
        &["-O", "^metadata_csum"],
        &["-O", "^dir_index,metadata_csum"],
        &["-O", "^dir_index,^metadata_csum"],
    ] {
        damaged_directories(&Settings::default(), options, source.path());
    }
    match common::over_rings() {
        Ok(settings) => damaged_directories(&settings, &["-O", "metadata_csum"], source.path()),
        Err(obstacle) => println!("not over rings: {obstacle}"),
    }
}

/// A device that fails so many reads of one place.
struct Failing {
    inner: MemoryDevice,
    place: u64,
    failures: AtomicU64,
}

impl BlockDevice for Failing {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        run_in_place(self, batch)
    }
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }
    fn is_read_only(&self) -> bool {
        false
    }
    fn describe(&self) -> Arc<str> {
        "failing".into()
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let (kind, len) = (OperationKind::Read, out.len() as u64);
        let less = |left: u64| left.checked_sub(1);
        if (offset..offset + len).contains(&self.place)
            && self.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok()
        {
            let fault = DeviceFault::Io(std::io::Error::from_raw_os_error(5));
            return Err(DeviceError::new(self.describe(), kind, offset, len, fault));
        }
        self.inner.read_at(offset, out)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.inner.write_at(offset, bytes)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }
    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.inner.discard(offset, len)
    }
    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.inner.write_zeroes(offset, len)
    }
}

#[test]
fn a_listing_of_which_a_block_could_not_be_read_for_a_moment_is_whole_or_an_error() {
    if let Some(obstacle) = obstacle() {
        skip!("{obstacle}");
    }
    let dir = extant_testkit::tempdir().unwrap();
    let (image, at) = (dir.path().join("image"), dir.path().join("mount"));
    let source = dir.path().join("source");
    fs::create_dir(&at).unwrap();
    fs::create_dir_all(source.join("d")).unwrap();
    for index in 0..600 {
        fs::write(source.join(format!("d/a name that takes some room {index:04}")), "").unwrap();
    }
    let options = ["-t", "ext4", "-b", "1024", "-d", source.to_str().unwrap()];
    require!(mke2fs(&image, "16M", &options));
    let blocks = require!(debugfs(&image, false, "blocks /d"));
    let blocks: Vec<u64> = blocks.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let whole = extant_testkit::image::load(&image);
    for (read_only, index) in [false, true].into_iter().flat_map(|ro| [0, 7, 20].map(|i| (ro, i))) {
        for failures in [1, 2, u64::MAX] {
            let what = format!("block {index}, {failures} times, read-only: {read_only}");
            let place = blocks[index] * 1024;
            let failures = AtomicU64::new(failures);
            let device = Arc::new(Failing { inner: whole.snapshot(), place, failures });
            let shared = Arc::clone(&device) as SharedDevice;
            let fs = MountOptions::new().read_only(read_only).open_shared(shared).unwrap();
            let (served, ()) = with_mount(fs, &at, &Settings::default(), &Heard::new(), |at| {
                // Each time an error, for as long as there is one.
                for _ in 0..4 {
                    let works = device.failures.load(Ordering::SeqCst) == 0;
                    let (names, error) = listing(&mut opened(&at.join("d")));
                    assert!(
                        error == Some(5) || names.len() == 600,
                        "{what}: {} names",
                        names.len()
                    );
                    assert!(!works || error.is_none(), "{what}: {error:?}");
                }
                device.failures.store(0, Ordering::SeqCst);
                assert_eq!(fs::read_dir(at.join("d")).unwrap().count(), 600, "{what}");
            });
            served.unwrap();
        }
    }
}
