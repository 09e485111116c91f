//! The public face: paths, handles, options, refusals.

use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::common;
use common::{open, work_dir};
use extant::{
    BlockSize, Family, FileKind, Fs, FsError, Ino, MappingKind, MountErrorKind, MountOptions,
};
use extant_block::{BlockDevice, FileDevice, MemoryDevice};
use extant_testkit::oracle::mke2fs;
use extant_testkit::{TempDir, require};

/// An image with a small tree.
fn image(dir: &TempDir, options: &[&str]) -> Result<std::path::PathBuf, String> {
    let root = dir.path().join("source");
    std::fs::create_dir_all(root.join("a/b")).unwrap();
    std::fs::write(root.join("a/file"), "hello\n").unwrap();
    std::fs::write(root.join("a/bytes"), [b'o', b'k', 0xff]).unwrap();
    std::fs::write(root.join("a/large"), vec![1; 200_000]).unwrap();
    let sparse = std::fs::File::create(root.join("a/sparse")).unwrap();
    sparse.set_len(3 << 30).unwrap();
    for (target, name) in [
        ("file", "a/link"),
        ("/a/file", "a/absolute"),
        ("../../../../../a/./b/../file", "a/winding"),
        ("loop-2", "loop-1"),
        ("loop-1", "loop-2"),
        ("nothing", "dangling"),
        ("a", "dir-link"),
    ] {
        symlink(target, root.join(name)).unwrap();
    }
    // A chain of links, one longer than allowed.
    symlink("a/file", root.join("chain-0")).unwrap();
    for index in 1..=40 {
        symlink(format!("chain-{}", index - 1), root.join(format!("chain-{index}"))).unwrap();
    }
    let image = dir.path().join("image.img");
    let _ = std::fs::remove_file(&image);
    let mut arguments = options.to_vec();
    let path = root.to_str().unwrap().to_owned();
    arguments.extend(["-d", &path]);
    mke2fs(&image, "32M", &arguments)?;
    Ok(image)
}

#[test]
fn paths_mean_what_they_mean_on_linux() {
    let dir = work_dir();
    let fs = open(&require!(image(&dir, &["-t", "ext4", "-b", "1024"])));
    for path in [
        "/a/file",
        "a/file",
        "//a//file",
        "/a/./file",
        "/a/b/../file",
        "/../a/file",
        "a/link",
        "a/absolute",
        "a/winding",
        "dir-link/file",
        "chain-0",
        "chain-39",
    ] {
        assert_eq!(fs.read_to_string(path).unwrap(), "hello\n", "{path}");
        assert_eq!(fs.canonicalize(path).unwrap(), b"/a/file", "{path}");
    }
    assert_eq!(fs.canonicalize("/").unwrap(), b"/");
    assert_eq!(fs.canonicalize("a/b/..").unwrap(), b"/a");
    for (path, errno) in [
        ("", 2),
        ("nothing", 2),
        ("a/nothing/x", 2),
        ("dangling", 2),
        ("a/file/x", 20),
        ("a/file/", 20),
        ("a/file/.", 20),
        ("a/file/..", 20),
        ("a/link/", 20),
        ("loop-1", 40),
        ("chain-40", 40),
    ] {
        let error = fs.resolve(path).unwrap_err();
        assert_eq!((error.errno(), error.family()), (errno, Family::Refusal), "{path}: {error}");
        assert!(!fs.exists(path).unwrap(), "{path}");
    }
    let long = "n".repeat(256);
    assert_eq!(fs.resolve(&long).unwrap_err().errno(), 36);
    assert_eq!(fs.resolve(&long[1..]).unwrap_err().errno(), 2);
    assert!(fs.exists("a/file").unwrap());
    assert_eq!(fs.read_link("dangling").unwrap(), b"nothing");
    assert_eq!(fs.read_link("a/file").unwrap_err().errno(), 22);
    assert!(fs.symlink_metadata("dir-link").unwrap().is_symlink());
    assert!(fs.symlink_metadata("dir-link/").unwrap().is_dir());
    assert!(fs.metadata("dir-link").unwrap().is_dir());
    assert_eq!(fs.read_dir("a/file").unwrap_err().errno(), 20);
    assert_eq!(fs.open("a").unwrap_err().errno(), 21);
}

#[test]
fn files_read_and_seek() {
    let dir = work_dir();
    let image = require!(image(&dir, &["-t", "ext4", "-b", "1024"]));
    let fs = open(&image);
    let mut file = fs.open("a/file").unwrap();
    assert_eq!((file.len(), file.is_empty()), (6, false));
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "hello\n");
    assert_eq!(file.seek(SeekFrom::End(-2)).unwrap(), 4);
    text.clear();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "o\n");
    assert!(file.seek(SeekFrom::Current(-100)).is_err());
    assert_eq!(file.seek(SeekFrom::Start(1 << 40)).unwrap(), 1 << 40);
    assert_eq!(file.read(&mut [0; 10]).unwrap(), 0);
    let mut two = [0; 2];
    assert_eq!(file.read_at(&mut two, 1).unwrap(), 2);
    assert_eq!(&two, b"el");
    assert_eq!(file.read_at(&mut two, u64::MAX).unwrap(), 0);
    let error = fs.read_to_string("a/bytes").unwrap_err();
    assert!(matches!(error, FsError::NotUtf8 { valid_up_to: 2, .. }), "{error}");
    // 3 GiB of nothing is above the limit, whatever memory there is.
    let error = fs.read("a/sparse").unwrap_err();
    assert!(matches!(error, FsError::TooLarge { limit: 0x4000_0000, .. }), "{error}");
    let small = MountOptions::new().read_limit(5).open(FileDevice::open_read_only(&image).unwrap());
    assert_eq!(small.unwrap().read("a/file").unwrap_err().errno(), 27);
    let whole = fs.resolve("a/sparse").unwrap();
    let runs: Vec<_> = whole.map(0..whole.block_len()).map(Result::unwrap).collect();
    assert_eq!((runs.len(), runs[0].kind, runs[0].len), (1, MappingKind::Hole, 3 << 20));
}

#[test]
fn walks_are_complete_ordered_and_bounded() {
    let dir = work_dir();
    let fs = open(&require!(image(&dir, &["-t", "ext4", "-b", "1024"])));
    let paths = |walk: extant::Walk| -> Vec<String> {
        walk.map(|entry| String::from_utf8(entry.unwrap().path().to_vec()).unwrap()).collect()
    };
    let sorted = paths(fs.walk("/").unwrap().sorted(true));
    assert_eq!(sorted[..4], ["/", "/a", "/a/absolute", "/a/b"]);
    let mut stored = paths(fs.walk("/").unwrap());
    assert_eq!(stored[0], "/");
    stored.sort();
    let mut again = sorted.clone();
    again.sort();
    assert_eq!(stored, again);
    assert_eq!(paths(fs.walk("a").unwrap().sorted(true))[..2], ["a", "a/absolute"]);
    assert_eq!(paths(fs.walk("/").unwrap().max_depth(0)), ["/"]);
    let shallow = paths(fs.walk("/").unwrap().max_depth(1));
    assert!(shallow.contains(&"/a".to_owned()) && !shallow.contains(&"/a/b".to_owned()));
    assert_eq!(paths(fs.walk("a/file").unwrap()), ["a/file"]);
    let entry = fs.walk("/").unwrap().find(|e| e.as_ref().unwrap().path() == b"/a/b").unwrap();
    let entry = entry.unwrap();
    assert_eq!((entry.name(), entry.depth()), (b"b".as_slice(), 2));
    let dots: Vec<_> = fs.read_dir("a/b").unwrap().with_dots(true).map(Result::unwrap).collect();
    assert_eq!(
        dots.iter().map(extant::DirEntry::name).collect::<Vec<_>>(),
        [b".".as_slice(), b".."]
    );
    assert_eq!(dots[1].ino(), fs.resolve("a").unwrap().ino());
    assert_eq!(dots[1].kind(), Some(FileKind::Directory));
}

/// A directory that contains itself is reported, and entered once.
#[test]
fn a_directory_inside_itself_does_not_catch_a_walk() {
    let dir = work_dir();
    let image = require!(image(&dir, &["-t", "ext4", "-b", "1024"]));
    require!(extant_testkit::oracle::debugfs(&image, true, "cd /a/b\nln /a inner\n"));
    let fs = open(&image);
    let mut errors = Vec::new();
    let count = fs.walk("/").unwrap().filter_map(|e| e.map_err(|e| errors.push(e)).ok()).count();
    assert!(count < 100, "{count}");
    assert_eq!(errors.len(), 1);
    assert_eq!(errors[0].path, b"/a/b/inner");
    assert_eq!(errors[0].error.family(), Family::Damage);
    // By path it can still be followed as often as one likes.
    assert_eq!(fs.read("a/b/inner/b/inner/file").unwrap(), b"hello\n");
}

fn memory(image: &Path) -> MemoryDevice {
    extant_testkit::image::load(image)
}

fn open_memory(device: MemoryDevice) -> Result<Fs, FsError> {
    Ok(MountOptions::new().open(device)?)
}

#[test]
fn refusals_name_what_is_wrong() {
    let dir = work_dir();
    let image = require!(image(&dir, &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]));
    let error = open_memory(MemoryDevice::new(1 << 20)).unwrap_err();
    assert!(matches!(error, FsError::NotExt { magic: Some(0), .. }), "{error}");
    let error = open_memory(MemoryDevice::new(1000)).unwrap_err();
    assert!(matches!(error, FsError::NotExt { magic: None, .. }), "{error}");
    // Unknown incompatible features refuse, unknown read-only-compatible ones do not matter.
    let device = memory(&image);
    let mut word = [0; 4];
    device.read_at(1024 + 0x60, &mut word).unwrap();
    let unknown = u32::from_le_bytes(word) | 1 << 27 | 1;
    device.write_at(1024 + 0x60, &unknown.to_le_bytes()).unwrap();
    let error = open_memory(device).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot read this image: it uses features unknown here: compression, FEATURE_I27"
    );
    let device = memory(&image);
    device.read_at(1024 + 0x64, &mut word).unwrap();
    let unknown = u32::from_le_bytes(word) | 1 << 30;
    device.write_at(1024 + 0x64, &unknown.to_le_bytes()).unwrap();
    assert_eq!(open_memory(device).unwrap().read("a/file").unwrap(), b"hello\n");
    // What a reader may pass over, a writer may not.
    let device = memory(&image);
    device.write_at(1024 + 0x64, &unknown.to_le_bytes()).unwrap();
    let error = MountOptions::new().read_only(false).open(device).unwrap_err();
    assert!(matches!(*error, FsError::Unsupported { wanted: "write", .. }), "{error}");
}

#[test]
fn a_backup_superblock_serves_when_the_first_is_gone() {
    let dir = work_dir();
    let image = require!(image(&dir, &["-t", "ext4", "-b", "1024", "-g", "8192"]));
    let device = memory(&image);
    // Superblock and descriptors of group 0.
    device.write_at(1024, &[0; 8192]).unwrap();
    assert!(open_memory(device.snapshot()).is_err());
    let size = BlockSize::new(1024).unwrap();
    let fs = MountOptions::new().superblock(8193, size).open(device.snapshot()).unwrap();
    assert_eq!(fs.read("a/file").unwrap(), b"hello\n");
    let wrong = MountOptions::new().superblock(8193, BlockSize::new(4096).unwrap()).open(device);
    assert_eq!(wrong.unwrap_err().kind(), MountErrorKind::NotExt);
}

#[test]
fn a_wrong_checksum_is_damage_unless_nobody_looks() {
    let dir = work_dir();
    let image = require!(image(&dir, &["-t", "ext4", "-b", "1024"]));
    let ino = open(&image).resolve("a/file").unwrap().ino();
    let device = memory(&image);
    // The low half of the inode's access time.
    let fs = open_memory(device.snapshot()).unwrap();
    let superblock = fs.superblock();
    let (group, index) = superblock.group_of_inode(ino).unwrap();
    let table = fs.group(group).unwrap().inode_table.0 * 1024;
    let at = table + u64::from(index) * u64::from(superblock.inode_size) + 8;
    device.write_at(at, &[1, 2, 3]).unwrap();
    let fs = open_memory(device.snapshot()).unwrap();
    let error = fs.read("a/file").unwrap_err();
    assert_eq!((error.errno(), error.family()), (74, Family::Damage), "{error}");
    assert!(error.to_string().contains(&format!("inode {ino}")), "{error}");
    // Everything beside it is as it was.
    assert_eq!(fs.read("a/large").unwrap(), vec![1; 200_000]);
    let careless = MountOptions::new().verify_checksums(false).open(device).unwrap();
    assert_eq!(careless.read("a/file").unwrap(), b"hello\n");
}

#[test]
fn external_journals_are_recognised_and_asked_for() {
    let dir = work_dir();
    let journal = dir.path().join("journal.img");
    require!(mke2fs(&journal, "4M", &["-b", "1024", "-O", "journal_dev"]));
    let error = open_memory(memory(&journal)).unwrap_err();
    assert!(matches!(error, FsError::ExternalJournal { .. }), "{error}");
    assert!(error.to_string().starts_with("this is an external journal"), "{error}");
    let FsError::ExternalJournal { uuid } = error else { unreachable!() };
    // A file system that says its journal is there, and is dirty.
    let device = memory(&require!(image(&dir, &["-t", "ext2", "-b", "1024"])));
    let mut superblock = [0; 1024];
    device.read_at(1024, &mut superblock).unwrap();
    superblock[0x5c] |= 4; // has_journal
    superblock[0x60] |= 4; // needs_recovery
    superblock[0xd0..0xe0].copy_from_slice(&uuid);
    device.write_at(1024, &superblock).unwrap();
    let error = open_memory(device.snapshot()).unwrap_err();
    assert!(
        matches!(error, FsError::JournalDeviceMissing { uuid: named } if named == uuid),
        "{error}"
    );
    let fs = MountOptions::new().journal_device(memory(&journal)).open(device.snapshot()).unwrap();
    assert_eq!(fs.read("a/file").unwrap(), b"hello\n");
    assert!(fs.replayed().is_some());
    superblock[0xd0] ^= 1;
    device.write_at(1024, &superblock).unwrap();
    let error =
        MountOptions::new().journal_device(memory(&journal)).open(device.snapshot()).unwrap_err();
    assert!(matches!(*error, FsError::WrongJournalDevice { .. }), "{error}");
    let fs = MountOptions::new().ignore_journal(true).open(device).unwrap();
    assert_eq!(fs.read("a/file").unwrap(), b"hello\n");
}

#[test]
fn encrypted_directories_show_names_that_can_be_looked_up() {
    let dir = work_dir();
    let image = require!(image(&dir, &["-t", "ext4", "-b", "1024", "-O", "encrypt"]));
    // EXTENTS and ENCRYPT, as if the names were ciphertext.
    let set = "sif /a flags 0x80800\nsif /a/file flags 0x80800\nsif /a/link flags 0x800\n";
    require!(extant_testkit::oracle::debugfs(&image, true, set));
    let fs = open(&image);
    let a = fs.resolve("/a").unwrap();
    let names: Vec<_> = a.read_dir().unwrap().map(Result::unwrap).collect();
    assert!(names.len() > 5);
    for entry in &names {
        assert_eq!(a.lookup(entry.name()).unwrap().ino(), entry.ino(), "{entry:?}");
    }
    assert_eq!(a.lookup(b"file").unwrap_err().errno(), 2);
    let file = names.iter().map(|e| e.inode().unwrap()).find(|i| i.is_encrypted() && i.is_file());
    let error = file.unwrap().read_all().unwrap_err();
    assert!(matches!(error, FsError::Encrypted { what: "contents", .. }), "{error}");
    assert_eq!(error.errno(), 126);
}

#[test]
fn inodes_that_do_not_exist_are_refused() {
    let dir = work_dir();
    let fs = open(&require!(image(&dir, &["-t", "ext4", "-b", "1024"])));
    let count = fs.superblock().inodes_count;
    for ino in [0, 9, count, count + 1, u32::MAX] {
        let error = fs.inode(Ino(ino)).unwrap_err();
        assert!(matches!(error, FsError::NoSuchInode { .. }), "{ino}: {error}");
    }
    assert!(fs.inode(Ino(8)).unwrap().is_file(), "the journal");
    let other = fs.clone();
    assert_eq!(fs.root().unwrap(), other.root().unwrap());
}

/// Everything that can be read of an image cut after `keep` bytes, as (files read, failures).
fn read_what_is_left(bytes: &[u8], keep: usize) -> (usize, Vec<FsError>) {
    let fs = match MountOptions::new().open(MemoryDevice::from_bytes(&bytes[..keep])) {
        Ok(fs) => fs,
        Err(error) => return (0, vec![error.into()]),
    };
    let (mut intact, mut failures) = (0, Vec::new());
    let walk = match fs.walk("/") {
        Ok(walk) => walk,
        Err(error) => return (0, vec![error]),
    };
    for entry in walk {
        match entry {
            Ok(entry) if entry.inode().is_file() && entry.inode().size() < 1 << 20 => {
                match entry.inode().read_all() {
                    Ok(_) => intact += 1,
                    Err(error) => failures.push(error),
                }
            }
            Ok(_) => {}
            Err(error) => failures.push(error.error),
        }
    }
    (intact, failures)
}

#[test]
fn an_image_cut_short_says_so_and_shows_what_it_has() {
    let dir = work_dir();
    let path = require!(image(&dir, &["-t", "ext4", "-b", "1024"]));
    let bytes = std::fs::read(path).unwrap();
    let (whole, failures) = read_what_is_left(&bytes, bytes.len());
    assert!(failures.is_empty(), "{failures:?}");
    let mut counts = Vec::new();
    // Closely where the files are, widely behind them.
    let close = (3072..4 << 20).step_by(97 * 1024);
    for keep in close.chain((4 << 20..bytes.len()).step_by(1021 * 1024)) {
        let (intact, failures) = read_what_is_left(&bytes, keep);
        counts.push(intact);
        for error in failures {
            let said = format!(
                "the image is cut short: the file system has {} bytes, the file has {keep}",
                bytes.len()
            );
            assert_eq!(error.to_string(), said);
            assert_eq!((error.family(), error.errno()), (Family::Damage, 117));
        }
    }
    assert_eq!(counts.first(), Some(&0), "nothing can be intact of 3 KiB");
    assert_eq!(counts.last(), Some(&whole), "the last blocks of the image are free space");
    assert!(counts.iter().any(|count| (1..whole).contains(count)), "never some: {counts:?}");
}
