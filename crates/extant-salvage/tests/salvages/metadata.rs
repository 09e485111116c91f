//! Copies without contents: as sound as what they are copies of, with the same tree, and with nothing that a file held.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::common;
use common::{CONTENT_MARK, SETS, damage, metadata, of, reader, sample, seen};
use extant::MountOptions;
use extant_base::Prng;
use extant_block::{BlockDevice, MemoryDevice};
use extant_check::{CheckOptions, check};
use extant_format::inode::FileKind;
use extant_salvage::{Copied, CopyOptions, Image, Options, copy_metadata};
use extant_testkit::storm::layouts::LAYOUTS;
use extant_testkit::{image, oracle, require, tempdir};

fn copied(device: &MemoryDevice, scramble: bool) -> (MemoryDevice, Copied) {
    let image = Image::open(Arc::new(device.snapshot()), &Options::default()).unwrap();
    let out = MemoryDevice::new(device.size_bytes());
    let copied = copy_metadata(&image, &out, &CopyOptions { scramble }, &|| false).unwrap();
    (out, copied.unwrap())
}

fn problems(device: &MemoryDevice) -> Vec<String> {
    // Nobody believes the totals of a superblock whose journal was pending.
    let options = CheckOptions { strict_totals: false, ..CheckOptions::default() };
    match check(device, &options) {
        Ok(report) => report.problems.iter().map(ToString::to_string).collect(),
        Err(error) => vec![error.to_string()],
    }
}

fn fsck(device: &MemoryDevice, dir: &Path) -> Result<String, String> {
    let path = dir.join("fsck.img");
    let _removed = std::fs::remove_file(&path);
    image::save(device, &path);
    let report = oracle::e2fsck(&path)?;
    Ok(if report.is_clean() { String::new() } else { report.text })
}

/// Returns whether bytes are anywhere on the device.
fn holds(device: &MemoryDevice, mark: &[u8]) -> bool {
    let (mut tail, mut end) = (Vec::new(), 0);
    let mut found = false;
    let searched: Result<(), ()> = device.for_each_page(|offset, bytes| {
        if offset != end {
            tail.clear();
        }
        tail.extend_from_slice(bytes);
        found |= tail.windows(mark.len()).any(|window| window[0] == mark[0] && window == mark);
        tail.drain(..tail.len().saturating_sub(mark.len()));
        end = offset + bytes.len() as u64;
        Ok(())
    });
    searched.is_ok() && found
}

/// All bytes of a device but zeros.
fn contents(device: &MemoryDevice) -> Vec<(u64, Vec<u8>)> {
    let mut pages = Vec::new();
    let all: Result<(), ()> = device.for_each_page(|offset, bytes| {
        if bytes.iter().any(|byte| *byte != 0) {
            pages.push((offset, bytes.to_vec()));
        }
        Ok(())
    });
    all.unwrap();
    pages
}

/// Kind, size, permissions and time of each inode.
type Shapes = BTreeMap<u32, (FileKind, u64, u16, i64)>;

/// What of a tree stays: kinds, sizes, modes and times by inode, and how many names.
fn shape(device: &MemoryDevice) -> (Shapes, usize) {
    let fs = MountOptions::new().open(device.snapshot()).unwrap();
    let mut all = BTreeMap::new();
    let mut names = 0;
    for entry in fs.walk("/").unwrap() {
        let entry = entry.unwrap();
        let meta = entry.inode().metadata();
        let size = if meta.kind == FileKind::Directory { 0 } else { meta.size };
        all.insert(meta.ino.0, (meta.kind, size, meta.permissions, meta.mtime.seconds));
        names += 1;
    }
    (all, names)
}

fn paths(device: &MemoryDevice) -> Vec<String> {
    let fs = MountOptions::new().open(device.snapshot()).unwrap();
    let entries = fs.walk("/").unwrap().map(|entry| entry.unwrap().path().to_vec());
    let mut paths: Vec<_> =
        entries.map(|path| String::from_utf8_lossy(&path).into_owned()).collect();
    paths.sort();
    paths
}

#[track_caller]
fn assert_copy(sound: &MemoryDevice, dir: &Path, what: &str) -> Result<(), String> {
    let wanted = (problems(sound), fsck(sound, dir)?, shape(sound), paths(sound));
    for scramble in [false, true] {
        let what = format!("{what}, scrambled: {scramble}");
        let (copy, copied) = copied(sound, scramble);
        assert_eq!(copied.left, Vec::<String>::new(), "{what}");
        assert_eq!(problems(&copy), wanted.0, "{what}");
        assert_eq!(fsck(&copy, dir)?, wanted.1, "{what}");
        assert_eq!(shape(&copy), wanted.2, "{what}");
        assert_eq!(paths(&copy) == wanted.3, !scramble, "{what}");
        assert!(!holds(&copy, CONTENT_MARK), "{what}: contents");
        if scramble {
            for mark in [
                &b"TARGET-OF-A-LINK"[..],
                b"VALUE-OF-AN-ATTRIBUTE",
                b"a long name so",
                b"small enough",
            ] {
                assert!(!holds(&copy, mark), "{what}: {}", String::from_utf8_lossy(mark));
            }
            let again = self::copied(sound, true).0;
            assert!(contents(&copy) == contents(&again), "{what}: the same each time");
        } else {
            // Targets and attributes are metadata.
            let links = |device: &MemoryDevice| {
                let all = seen(device).into_iter();
                all.filter(|(_, seen)| seen.kind == FileKind::Symlink).collect::<Vec<_>>()
            };
            assert_eq!(links(&copy), links(sound), "{what}");
            let xattrs = |device: &MemoryDevice| {
                seen(device).into_iter().map(|(path, seen)| (path, seen.xattrs)).collect::<Vec<_>>()
            };
            assert_eq!(xattrs(&copy), xattrs(sound), "{what}");
        }
    }
    Ok(())
}

/// A link of 60 bytes or more has its target in the inode, half of it as an attribute.
#[test]
fn a_target_in_an_inode_is_not_given_away() {
    let dir = tempdir().unwrap();
    let features = ["-text4", "-b1024", "-Oinline_data", "-Jsize=1"];
    let path = dir.path().join("inline.img");
    image::save(&require!(sample(dir.path(), &features)), &path);
    let target = "TARGET-OF-A-LINK".repeat(6);
    oracle::debugfs(&path, true, &format!("symlink /d/inside {target}")).unwrap();
    let text = oracle::debugfs(&path, false, "stat /d/inside").unwrap();
    assert!(text.contains("Flags: 0x10000000"), "{text}");
    require!(assert_copy(&image::load(&path), dir.path(), "a target in an inode"));
}

#[test]
fn copies_are_as_sound_as_the_image() {
    for features in SETS {
        let dir = tempdir().unwrap();
        let sound = require!(sample(dir.path(), features));
        assert!(holds(&sound, CONTENT_MARK) && holds(&sound, b"TARGET-OF-A-LINK"));
        require!(assert_copy(&sound, dir.path(), &format!("{features:?}")));
    }
}

#[test]
fn every_layout_is_copied() {
    for layout in LAYOUTS {
        let dir = tempdir().unwrap();
        let path = dir.path().join("layout.img");
        require!(layout.make(&path));
        let device = Arc::new(image::load(&path));
        let fs = MountOptions::new()
            .read_only(false)
            .background(false)
            .open_shared(Arc::clone(&device) as _)
            .unwrap();
        let new = extant::NewInode { permissions: 0o755, uid: 0, gid: 0 };
        fs.create_dir("/d", &new).unwrap();
        for number in 0..30u32 {
            let name = format!("/d/a long name so that there is more than one block {number:0100}");
            fs.write(name.as_str(), CONTENT_MARK.repeat(number as usize * 20)).unwrap();
        }
        fs.symlink("TARGET-OF-A-LINK", "/d/link", &new).unwrap();
        fs.unmount().unwrap();
        require!(assert_copy(&device, dir.path(), layout.name));
    }
}

#[test]
fn a_pending_journal_is_brought_in_and_left_empty() {
    let dir = tempdir().unwrap();
    let sound = require!(sample(dir.path(), SETS[3]));
    let device = Arc::new(sound.snapshot());
    let fs = MountOptions::new()
        .read_only(false)
        .background(false)
        .open_shared(Arc::clone(&device) as _)
        .unwrap();
    fs.write("/d/NAME-OF-THE-PAST", CONTENT_MARK).unwrap();
    fs.sync().unwrap();
    let cut = device.snapshot();
    drop(fs);
    for scramble in [false, true] {
        let (copy, copied) = copied(&cut, scramble);
        assert_eq!((copied.left.as_slice(), problems(&copy)), (&[][..], Vec::new()));
        assert_eq!(fsck(&copy, dir.path()), Ok(String::new()));
        assert_eq!(paths(&copy).len(), paths(&cut).len());
        assert!(!holds(&copy, CONTENT_MARK));
        assert_eq!(holds(&copy, b"NAME-OF-THE-PAST"), !scramble, "nowhere in the log either");
    }
}

#[test]
fn what_was_deleted_is_not_given_away() {
    let dir = tempdir().unwrap();
    let sound = require!(sample(dir.path(), SETS[3]));
    let path = dir.path().join("deleted.img");
    image::save(&sound, &path);
    let device = Arc::new(image::load(&path));
    let fs = MountOptions::new()
        .read_only(false)
        .background(false)
        .open_shared(Arc::clone(&device) as _)
        .unwrap();
    fs.remove_all("/d").unwrap();
    fs.unmount().unwrap();
    let (copy, _) = copied(&device, true);
    for mark in
        [CONTENT_MARK, b"TARGET-OF-A-LINK", b"VALUE-OF-AN-ATTRIBUTE", b"small enough", b"file1"]
    {
        assert!(!holds(&copy, mark), "{}", String::from_utf8_lossy(mark));
    }
    assert_eq!(problems(&copy), Vec::<String>::new());
}

#[test]
fn a_copy_takes_the_room_of_its_metadata() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("large.img");
    require!(oracle::mke2fs(&path, "256M", &["-text4", "-b4096", "-N", "1024"]));
    let device = Arc::new(image::load(&path));
    let fs = MountOptions::new()
        .read_only(false)
        .background(false)
        .open_shared(Arc::clone(&device) as _)
        .unwrap();
    fs.write("/large", vec![7; 64 << 20]).unwrap();
    fs.unmount().unwrap();
    let (copy, copied) = copied(&device, false);
    assert!(copy.stored_bytes() < 1 << 20, "{} bytes", copy.stored_bytes());
    assert!(copied.bytes <= copy.stored_bytes());
    assert!(device.stored_bytes() > 64 << 20);
}

#[test]
fn damaged_images_are_copied_too() {
    let (mut same, mut images) = (0, 0);
    for (number, features) in SETS.iter().enumerate() {
        let dir = tempdir().unwrap();
        let sound = require!(sample(dir.path(), features));
        let blocks = metadata(&sound);
        for round in 0..24u64 {
            let mut random = Prng::new((number as u64 + 50) * 1_000_000 + round);
            let device = sound.snapshot();
            for _damage in 0..=random.below(3) {
                damage(&device, &blocks, &mut random);
            }
            let Ok(image) = Image::open(Arc::new(device.snapshot()), &Options::default()) else {
                continue;
            };
            for scramble in [false, true] {
                let out = MemoryDevice::new(device.size_bytes());
                copy_metadata(&image, &out, &CopyOptions { scramble }, &|| false).unwrap();
                // Whatever it is: neither of the readers is harmed by it.
                let _ = (problems(&out), of(&out).is_ok());
                if !scramble {
                    images += 1;
                    same += u32::from(problems(&out).is_empty() == problems(&device).is_empty());
                }
            }
        }
    }
    println!("{same} of {images} with the same verdict");
    assert!(same * 10 >= images * 9, "{same} of {images}");
}

#[test]
fn an_index_that_is_left_out_leaves_a_directory() {
    let dir = tempdir().unwrap();
    let sound = require!(sample(dir.path(), SETS[6]));
    let fs = reader(&sound).unwrap();
    let (copy, copied) = copied(&sound, true);
    assert!(copied.names > 170, "{copied:?}");
    let other = reader(&copy).unwrap();
    let count = |fs: &extant::Fs| fs.walk("/").unwrap().filter(|entry| entry.is_ok()).count();
    assert_eq!(count(&other), count(&fs));
}

#[test]
fn a_copy_that_is_stopped_is_none() {
    let dir = tempdir().unwrap();
    let sound = require!(sample(dir.path(), SETS[0]));
    let image = Image::open(Arc::new(sound.snapshot()), &Options::default()).unwrap();
    let out = MemoryDevice::new(sound.size_bytes());
    assert_eq!(copy_metadata(&image, &out, &CopyOptions::default(), &|| true).unwrap(), None);
}
