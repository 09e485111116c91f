//! Full disks below: what an image file needs to be written at all is set aside before, what does not
//! fit is refused or kept, and nothing that was durable is lost.

use std::sync::Arc;

use extant::{Fs, FsError, Inode, MountErrors, MountOptions, NewInode};
use extant_block::{BlockDevice, MemoryDevice, SharedDevice, ThinDevice};
use extant_check::CheckOptions;
use extant_format::features::State;
use extant_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use extant_sync::FixedClock;
use extant_testkit::oracle::mke2fs;
use extant_testkit::{image, require, tempdir};

/// Layouts that have different blocks in holes: bitmaps and inode tables that were never written,
/// everything packed together, no journal, the journal as large as the rest.
const LAYOUTS: &[(&str, &[&str])] = &[
    ("ext4", &["-t", "ext4", "-J", "size=4"]),
    ("ext4-1k", &["-t", "ext4", "-b", "1024", "-J", "size=2"]),
    ("no-flex", &["-t", "ext4", "-b", "1024", "-O", "^flex_bg", "-J", "size=2"]),
    ("ext3", &["-t", "ext3", "-J", "size=4"]),
    ("quota", &["-t", "ext4", "-O", "quota", "-J", "size=4"]),
    ("ext2", &["-t", "ext2", "-b", "1024"]),
];

fn make(size: &str, arguments: &[&str]) -> Result<MemoryDevice, String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    mke2fs(&path, size, arguments)?;
    Ok(image::load(&path))
}

fn try_mount(device: &Arc<ThinDevice>) -> Result<Fs, FsError> {
    let clock = Arc::new(FixedClock::at(1_700_000_000, 0));
    let options = MountOptions::new().read_only(false).background(false).seed(1).clock(clock);
    // Want of room is no damage, whatever is to happen after that.
    let options = options.errors(MountErrors::RemountReadOnly);
    Ok(options.open_shared(Arc::clone(device) as SharedDevice)?)
}

fn mount(device: &Arc<ThinDevice>) -> Fs {
    try_mount(device).unwrap()
}

fn is_full(error: &FsError) -> bool {
    matches!(error, FsError::DeviceFull(_))
}

/// Both checkers find nothing, and nobody has recorded errors.
fn check(what: &str, device: &MemoryDevice) {
    let options = CheckOptions { require_clean_state: false, ..CheckOptions::default() };
    let mut bytes = [0; SUPERBLOCK_BYTES];
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes).unwrap();
    let superblock = Superblock::decode(&bytes).unwrap();
    assert!(superblock.error_count == 0 && !superblock.state.contains(State::ERROR), "{what}");
    let report = extant_check::check(device, &options).expect("checks");
    assert!(report.is_clean(), "{what}: {:#?}", report.problems);
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    image::save(device, &path);
    extant_testkit::oracle::e2fsck(&path).unwrap().assert_clean();
}

fn contents(number: usize) -> Vec<u8> {
    let byte = u8::try_from(number % 251).unwrap() + 1;
    vec![byte; 3000 + number * 37 % 9000]
}

/// Makes files in directories, a sync after each eighth; until something fails for good, or there are
/// so many. Returns how many were synced, how many were made, and the first error.
fn fill(fs: &Fs, most: usize) -> (usize, usize, Option<FsError>) {
    let (mut synced, mut first) = (0, None);
    for number in 0..most {
        let made = (|| -> Result<Inode, FsError> {
            if number % 16 == 0 {
                fs.create_dir(format!("/d{}", number / 16), &NewInode::root(0o755))?;
            }
            let path = format!("/d{}/f{number}", number / 16);
            fs.write(&path, contents(number))?;
            fs.resolve(&path)
        })();
        if let Err(error) = made {
            assert!(is_full(&error), "{error}");
            return (synced, number, Some(first.unwrap_or(error)));
        }
        if number % 8 == 7 {
            match fs.sync() {
                Ok(()) => synced = number + 1,
                Err(error) => {
                    assert!(is_full(&error), "{error}");
                    first.get_or_insert(error);
                }
            }
        }
    }
    (synced, most, first)
}

#[test]
fn when_the_disk_below_is_full_the_journal_goes_on_and_nothing_durable_is_lost() {
    for (name, arguments) in LAYOUTS {
        let base = require!(make("96M", arguments));
        // From "not even the journal" to "some of the files".
        for spare in [64 << 10, 5 << 20, 8 << 20] {
            let what = format!("{name}, {spare} bytes left");
            let device = Arc::new(ThinDevice::new(base.snapshot(), spare));
            let fs = match try_mount(&device) {
                Ok(fs) => fs,
                Err(error) => {
                    // Refused before anything was changed.
                    assert!(is_full(&error) && spare < 5 << 20, "{what}: {error}");
                    continue;
                }
            };
            let (synced, made, error) = fill(&fs, 1200);
            let error = error.unwrap_or_else(|| panic!("{what}: everything fitted"));
            assert_eq!(error.errno(), 28, "{what}: {error}");
            assert!(error.to_string().contains("is full"), "{what}: {error}");
            assert_eq!(fs.stopped_because(), None, "{what}");
            // What is there can be removed, renamed and read, and small changes still be made durable.
            fs.remove_file("/d0/f3").unwrap();
            fs.rename("/d0/f4", "/d0/g4").unwrap();
            assert_eq!(fs.read("/d0/g4").unwrap(), contents(4), "{what}");
            let inode = fs.resolve("/d0").unwrap();
            inode.sync().unwrap_or_else(|error| panic!("{what}: {error}"));
            // A cut now, and a mount when there is room again.
            let cut = Arc::new(ThinDevice::new(device.snapshot(), 64 << 20));
            let after = mount(&cut);
            for number in (0..synced).filter(|number| !matches!(number, 3 | 4)) {
                let path = format!("/d{}/f{number}", number / 16);
                assert_eq!(after.read(&path).unwrap(), contents(number), "{what}: {path}");
            }
            assert!(after.resolve("/d0/f3").is_err(), "{what}");
            after.unmount().unwrap();
            // With room all of it is stored after all: nothing was thrown away.
            device.add_spare(64 << 20);
            fs.sync().unwrap_or_else(|error| panic!("{what}: with room: {error}"));
            let cut = Arc::new(ThinDevice::new(device.snapshot(), 64 << 20));
            let after = mount(&cut);
            for number in (0..made).filter(|number| !matches!(number, 3 | 4)) {
                let path = format!("/d{}/f{number}", number / 16);
                assert_eq!(after.read(&path).unwrap(), contents(number), "{what}: {path}");
            }
            drop(after);
            fs.unmount().unwrap();
            check(&what, &device.snapshot());
        }
    }
}

#[test]
fn a_mount_that_ends_on_a_full_disk_says_so_and_leaves_a_clean_image() {
    for (name, arguments) in LAYOUTS {
        let base = require!(make("96M", arguments));
        let device = Arc::new(ThinDevice::new(base, 6 << 20));
        let fs = mount(&device);
        fs.write("/stored", contents(1)).unwrap();
        fs.write("/lost", "").unwrap();
        fs.sync().unwrap();
        device.leave_spare(0);
        fs.write("/stored", contents(2)).unwrap();
        fs.write("/lost", vec![7; 200_000]).unwrap();
        let error = fs.unmount().unwrap_err();
        assert!(is_full(&error), "{name}: {error}");
        assert!(error.to_string().starts_with("the disk that holds "), "{name}: {error}");
        check(name, &device.snapshot());
        let after = MountOptions::new().open(device.snapshot()).unwrap();
        assert!(after.replayed().is_none(), "{name}: the journal is empty");
        assert_eq!(after.read("/lost").unwrap().len(), 0, "{name}");
    }
}

#[test]
fn a_disk_that_is_full_for_one_file_is_not_for_another_that_has_its_room() {
    let base = require!(make("96M", LAYOUTS[0].1));
    let device = Arc::new(ThinDevice::new(base, 32 << 20));
    let clock = Arc::new(FixedClock::at(1_700_000_000, 0));
    let options = MountOptions::new().read_only(false).background(false).seed(1).clock(clock);
    let options = options.data_cache_bytes(4 << 20);
    let fs = options.open_shared(Arc::clone(&device) as SharedDevice).unwrap();
    fs.write("/old", vec![1; 4 << 20]).unwrap();
    fs.sync().unwrap();
    device.leave_spare(0);
    fs.write("/new", vec![2; 600 << 10]).unwrap();
    assert!(is_full(&fs.resolve("/new").unwrap().sync().unwrap_err()));
    // In place, again and again: more than the cache holds.
    let old = fs.open_options().write(true).open("/old").unwrap();
    for round in 0..8u64 {
        for at in (0..4 << 20).step_by(256 << 10) {
            let written = old.write_at(&vec![3 + round as u8; 256 << 10], at);
            assert_eq!(written.unwrap_or_else(|error| panic!("{error}")), 256 << 10);
        }
    }
    fs.resolve("/old").unwrap().sync().unwrap();
    device.add_spare(1 << 20);
    fs.resolve("/new").unwrap().sync().unwrap();
    assert_eq!(fs.read("/new").unwrap(), vec![2; 600 << 10]);
    drop(old);
    fs.unmount().unwrap();
    check("two files", &device.snapshot());
}
