//! An image file that somebody makes shorter under a mount for writing: nobody hears that anything is durable.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};

use extant::{Family, Fs, FsError, MountOptions};
use extant_block::FileDevice;
use extant_testkit::oracle::mke2fs;
use extant_testkit::{require, tempdir};

const MIB: u64 = 1 << 20;
const EIO: i32 = 5;
const EROFS: i32 = 30;

fn set_len(path: &Path, bytes: u64) {
    OpenOptions::new().write(true).open(path).and_then(|file| file.set_len(bytes)).unwrap();
}

fn made(dir: &Path, options: &[&str]) -> Result<PathBuf, String> {
    let path = dir.join("a.img");
    let _ = std::fs::remove_file(&path);
    mke2fs(&path, "64M", &[&["-text4"], options].concat())?;
    Ok(path)
}

fn mounted(path: &Path) -> Fs {
    let options = MountOptions::new().read_only(false).background(false);
    options.open(FileDevice::open_read_write(path).unwrap()).unwrap()
}

/// The file is known to be too short.
fn is_told(error: &FsError) {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        text += &format!(": {next}");
        cause = next.source();
    }
    assert_eq!((error.family(), error.errno()), (Family::Device, EIO), "{text}");
    assert!(text.contains("67108864") && text.contains("somebody made it shorter"), "{text}");
}

#[test]
fn neither_sync_nor_unmount_succeeds_when_the_file_was_cut_off() {
    let dir = tempdir().unwrap();
    for options in [&[][..], &["-O^has_journal"], &["-Ofast_commit"]] {
        for cut in [4 * MIB, 40 * MIB, 64 * MIB - 1] {
            let path = require!(made(dir.path(), options));
            let fs = mounted(&path);
            fs.write("/before", vec![7; 3 << 20]).unwrap();
            fs.sync().unwrap();
            set_len(&path, cut);
            // Its blocks lie behind the new end for the most part: the file grows, and what was there is zeros.
            let written = fs.write("/after", vec![8; 30 << 20]);
            let synced = written.and_then(|()| fs.sync()).unwrap_err();
            is_told(&synced);
            let again = fs.sync().unwrap_err();
            assert!([EIO, EROFS].contains(&again.errno()), "{options:?} {cut}: {again}");
            let ended = fs.unmount().unwrap_err();
            assert!([EIO, EROFS].contains(&ended.errno()), "{options:?} {cut}: {ended}");
        }
    }
}

#[test]
fn a_mount_with_nothing_to_store_is_told_at_its_end_and_the_image_does_not_say_that_it_is_clean() {
    let dir = tempdir().unwrap();
    for options in [&[][..], &["-O^has_journal"]] {
        let path = require!(made(dir.path(), options));
        let fs = mounted(&path);
        fs.write("/before", vec![7; 3 << 20]).unwrap();
        fs.sync().unwrap();
        set_len(&path, 40 * MIB);
        is_told(&fs.unmount().unwrap_err());
        // As with everything that is not stored: what somebody gives back is looked at again.
        set_len(&path, 64 * MIB);
        assert!(!mounted_says_clean(&path), "{options:?}");
    }
}

/// Whether the superblock says that the file system was unmounted.
fn mounted_says_clean(path: &Path) -> bool {
    let bytes = std::fs::read(path).unwrap();
    let has_log = bytes[1024 + 0x60] & 4 != 0;
    bytes[1024 + 0x3a] & 1 != 0 && !has_log
}
