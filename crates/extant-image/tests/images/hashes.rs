//! Each hash of directory names, with bytes signed and unsigned, as e2fsck and the reader see it.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use crate::common;
use extant_image::options::{HashVersion, MkfsOptions};
use extant_image::profile::Profile;

/// Names of which most have bytes over 127, for which alone the signedness matters.
fn names() -> impl Iterator<Item = Vec<u8>> {
    (0..600u32).map(|n| {
        let mut name = format!("{n:03} ").into_bytes();
        name.extend((0..20 + n % 40).map(|i| 0xff - ((n * 7 + i * 5) % 120) as u8));
        name
    })
}

/// Whether e2fsck is content, and what it says.
fn e2fsck(image: &Path) -> (bool, String) {
    let output = Command::new("timeout")
        .args(["-s", "KILL", "60", "e2fsck", "-f", "-n"])
        .arg(image)
        .output()
        .unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn every_hash_makes_indexes_that_e2fsck_accepts() {
    if Command::new("e2fsck").arg("-V").output().is_err() {
        eprintln!("skipped: e2fsck is not installed (Debian package e2fsprogs)");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (source, image) = (dir.path().join("source"), dir.path().join("image"));
    fs::create_dir(&source).unwrap();
    for name in names() {
        fs::write(source.join(OsStr::from_bytes(&name)), b"").unwrap();
    }
    let dumped = |what: &str| {
        let output = Command::new("dumpe2fs").arg("-h").arg(&image).output().unwrap();
        String::from_utf8_lossy(&output.stdout).lines().any(|line| line.contains(what))
    };
    for hash in HashVersion::ALL.into_iter().filter(|hash| *hash != HashVersion::SipHash) {
        let mkfs = MkfsOptions { hash, ..common::options(Profile::Default, "", 1024, 0, "") };
        let summary = common::build(&source, &image, mkfs, common::AUTO, 1, true).unwrap();
        assert_eq!(summary.indexed_directories, 1, "{hash:?}");
        let (clean, text) = e2fsck(&image);
        assert!(clean, "{hash:?}: {text}");
        assert!(dumped(if hash.is_unsigned() { "unsigned_directory_hash" } else { " signed_" }));
        assert!(dumped(match hash.on_disk() {
            0 => "legacy",
            1 => "half_md4",
            _ => "tea",
        }));
        // Read with the other signedness, the same names are out of order.
        let flags = if hash.is_unsigned() { 1 } else { 2 };
        let request = format!("set_super_value flags {flags}");
        let set = Command::new("debugfs").args(["-w", "-R", &request]).arg(&image).output();
        assert!(set.unwrap().status.success());
        let (clean, text) = e2fsck(&image);
        assert!(!clean && text.contains("HTREE"), "{hash:?}: {text}");
    }
}
