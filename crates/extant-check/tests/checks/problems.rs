//! Each kind of problem, made on purpose and reported as what it is.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use extant_block::{BlockDevice, MemoryDevice};
use extant_check::{CheckOptions, Problem, check};
use extant_testkit::{TempDir, image, oracle, require, tempdir};

const EXT4: &[&str] = &["-text4", "-b1024"];
const EXT2: &[&str] = &["-text2", "-b1024"];
const UNSUMMED: &[&str] = &["-text4", "-b1024", "-O^metadata_csum,^uninit_bg"];
const QUOTA: &[&str] = &["-text4", "-b1024", "-Oquota"];

fn sample(dir: &TempDir, features: &[&str]) -> Result<PathBuf, String> {
    let source = dir.path().join("source");
    if !source.exists() {
        fs::create_dir_all(source.join("d/e")).unwrap();
        fs::write(source.join("big"), vec![3; 300_000]).unwrap();
        fs::write(source.join("file"), vec![3; 3000]).unwrap();
        symlink("x".repeat(40), source.join("fast")).unwrap();
        symlink("x".repeat(140), source.join("slow")).unwrap();
        for number in 0..40 {
            fs::write(source.join(format!("d/{number:0100}")), []).unwrap();
        }
        use std::os::unix::fs::FileExt;
        let sparse = fs::File::create(source.join("sparse")).unwrap();
        for hole in 0..12 {
            sparse.write_all_at(&[1; 512], hole * 9000).unwrap();
        }
    }
    let path = dir.path().join("sample.img");
    let _removed = fs::remove_file(&path);
    let from = source.display().to_string();
    let arguments: Vec<&str> = features.iter().copied().chain(["-N256", "-d", &from]).collect();
    oracle::mke2fs(&path, "4M", &arguments)?;
    Ok(path)
}

fn problems(path: &Path) -> Vec<Problem> {
    check(&image::load(path), &CheckOptions::default()).unwrap().problems
}

type Is = fn(&Problem) -> bool;

/// What debugfs does, and what must be among the problems.
const BY_DEBUGFS: &[(&[&str], &str, Is)] = &[
    (EXT4, "freeb 700", |p| matches!(p, Problem::BlockBitmap { marked: false, .. })),
    (EXT4, "setb 3500", |p| matches!(p, Problem::BlockBitmap { marked: true, .. })),
    (EXT4, "freei /file", |p| matches!(p, Problem::InodeBitmap { marked: false, .. })),
    (EXT4, "seti <200>", |p| matches!(p, Problem::InodeBitmap { marked: true, .. })),
    (EXT4, "set_bg 0 free_blocks_count 7", |p| matches!(p, Problem::GroupCount { .. })),
    (EXT4, "set_bg 0 checksum 7", |p| matches!(p, Problem::Group(_))),
    (EXT4, "set_bg 0 block_bitmap_csum 7", |p| matches!(p, Problem::BitmapChecksum { .. })),
    (EXT4, "set_super_value free_blocks_count 7", |p| {
        matches!(p, Problem::SuperblockCount { what: "free blocks", .. })
    }),
    (EXT4, "set_super_value free_inodes_count 7", |p| {
        matches!(p, Problem::SuperblockCount { what: "free inodes", .. })
    }),
    (EXT4, "set_super_value state 0", |p| matches!(p, Problem::State { .. })),
    (EXT4, "set_super_value state 3", |p| matches!(p, Problem::State { state: 3 })),
    (EXT4, "set_super_value min_extra_isize 66", |p| matches!(p, Problem::ExtraSize { .. })),
    (EXT4, "feature needs_recovery", |p| matches!(p, Problem::NeedsRecovery)),
    (EXT4, "sif /file links_count 2", |p| {
        matches!(p, Problem::Links { stored: 2, counted: 1, .. })
    }),
    (EXT4, "sif /d links_count 9", |p| matches!(p, Problem::Links { stored: 9, counted: 3, .. })),
    (EXT4, "sif /file links_count 0", |p| matches!(p, Problem::EntryInode { .. })),
    (EXT4, "sif /file mode 0150644", |p| matches!(p, Problem::Mode { .. })),
    (EXT4, "sif /file mode 0040644", |p| matches!(p, Problem::EntryType { .. })),
    (EXT4, "sif /file dtime 77", |p| matches!(p, Problem::Dtime { dtime: 77, .. })),
    (EXT4, "sif /file size 1", |p| matches!(p, Problem::Size { size: 1, .. })),
    (EXT4, "sif /file blocks 2", |p| matches!(p, Problem::Sectors { stored: 2, .. })),
    (EXT4, "sif /file checksum 2", |p| matches!(p, Problem::Inode { .. })),
    (EXT4, "sif /d size 1024", |p| matches!(p, Problem::Size { .. })),
    (EXT4, "sif /fast size 41", |p| matches!(p, Problem::Symlink { .. })),
    (EXT4, "sif /slow size 41", |p| matches!(p, Problem::Symlink { .. })),
    (EXT4, "sif /file flags 0x10080000", |p| matches!(p, Problem::Flags { .. })),
    (EXT4, "sif /file file_acl 9999999", |p| matches!(p, Problem::BlockRange { .. })),
    (EXT4, "sif /file file_acl 700", |p| {
        matches!(p, Problem::Xattr { .. } | Problem::ClaimedTwice { .. })
    }),
    (EXT2, "sif /file block[0] 9999999", |p| matches!(p, Problem::BlockRange { .. })),
    (EXT2, "sif /file block[0] 5", |p| matches!(p, Problem::ClaimedTwice { .. })),
    (EXT2, "sif /big block[IND] 0", |p| matches!(p, Problem::Sectors { .. })),
    (EXT2, "sif /d block[0] 0", |p| matches!(p, Problem::DirHole { .. })),
    (EXT4, "clri /file", |p| matches!(p, Problem::EntryInode { .. })),
    (EXT4, "clri <2>", |p| matches!(p, Problem::SpecialInode { field: "the root", .. })),
    (EXT4, "clri <8>", |p| matches!(p, Problem::SpecialInode { field: "s_journal_inum", .. })),
    (EXT4, "clri <7>", |p| matches!(p, Problem::ResizeInode { .. })),
    (EXT4, "unlink /file", |p| matches!(p, Problem::Unreachable { .. })),
    (EXT4, "unlink /d", |p| matches!(p, Problem::Unreachable { .. })),
    (EXT4, "link /d /d/e/loop", |p| matches!(p, Problem::SecondParent { .. })),
    (EXT4, "unlink /d\nlink /d/e /d/e/again", |p| matches!(p, Problem::Unreachable { .. })),
    (EXT4, "link /file /other", |p| matches!(p, Problem::Links { stored: 1, counted: 2, .. })),
    (EXT4, "set_super_value last_orphan 3", |p| matches!(p, Problem::Orphan { .. })),
    (EXT4, "ssv last_orphan 14\nsif <14> dtime 0", |p| matches!(p, Problem::Orphans { count: 1 })),
    (QUOTA, "sif /file uid 77", |p| matches!(p, Problem::QuotaUsage { id: 77, .. })),
    (EXT4, "sif <1> flags 0x10000000", |p| {
        matches!(p, Problem::SpecialInode { field: "the list of bad blocks", .. })
    }),
    (QUOTA, "clri <3>", |p| matches!(p, Problem::SpecialInode { field: "s_usr_quota_inum", .. })),
];

#[test]
fn damage_by_debugfs_is_reported_by_kind() {
    let dir = tempdir().unwrap();
    let mut missed = Vec::new();
    for (features, commands, is_kind) in BY_DEBUGFS {
        let path = require!(sample(&dir, features));
        if *features != QUOTA {
            assert_eq!(problems(&path), [], "{features:?}");
        }
        oracle::debugfs(&path, true, commands).unwrap();
        let found = problems(&path);
        if !found.iter().any(is_kind) {
            missed.push(format!("{commands}: {found:?}"));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

type Poke = (&'static [&'static str], &'static [u8], i64, &'static [u8], Is);

/// Bytes that are looked for, what follows the last of them by so many bytes is changed, and what
/// must be among the problems.
const BY_POKING: &[Poke] = &[
    // The superblock's checksum, by its label.
    (EXT4, b"LABEL", 0, b"M", |p| matches!(p, Problem::SuperblockChecksum(_))),
    // Directory blocks.
    (EXT4, b"\x03\x01big", 2, b"c", |p| matches!(p, Problem::BlockChecksum { .. })),
    (UNSUMMED, b"\x03\x01big", 2, b"b/g", |p| matches!(p, Problem::Name { .. })),
    (UNSUMMED, b"\x03\x01big", -2, b"\x01", |p| matches!(p, Problem::Dir { .. })),
    (UNSUMMED, b"\x03\x01big", 1, b"\x03", |p| matches!(p, Problem::EntryType { .. })),
    (UNSUMMED, b"\x03\x01big", -4, b"\xff\xff", |p| matches!(p, Problem::EntryInode { .. })),
    (UNSUMMED, b"\x01\x02.\0", 2, b"x", |p| matches!(p, Problem::Dots { name: ".", .. })),
    (UNSUMMED, b"\x02\x02..", -4, b"\x0b", |p| matches!(p, Problem::Dots { name: "..", .. })),
    (UNSUMMED, b"\x02\x02..", 4, b"x", |p| matches!(p, Problem::DotsEnd { name: "..", .. })),
    (UNSUMMED, b"\x04\x07slow", 2, b"fast", |p| matches!(p, Problem::DuplicateName { .. })),
    // Journal: magic, errno.
    (EXT4, b"\xc0\x3b\x39\x98\0\0\0\x04", 0, b"\0", |p| matches!(p, Problem::Journal(_))),
    (EXT4, b"\xc0\x3b\x39\x98\0\0\0\x04", 0x23, b"\x05", |p| {
        matches!(p, Problem::JournalState { .. })
    }),
    (EXT4, b"\xc0\x3b\x39\x98\0\0\0\x04", 0x1f, b"\x01", |p| {
        matches!(p, Problem::JournalState { .. })
    }),
    // Journal: fast commits, for which it is too small.
    (EXT4, b"\xc0\x3b\x39\x98\0\0\0\x04", 0x2b, b"\x20", |p| {
        matches!(p, Problem::JournalState { .. })
    }),
    // Quota: magic.
    (QUOTA, b"\x11\x1f\xc0\xd9", 0, b"\0", |p| matches!(p, Problem::Quota { .. })),
    (QUOTA, b"\x11\x1f\xc0\xd9", 0, b"\x27\x19\xc0\xd9", |p| {
        matches!(p, Problem::QuotaKind { .. })
    }),
    // Quota: the list of leaves with room, behind the file.
    (QUOTA, b"\x11\x1f\xc0\xd9", 0x1c, b"\x37", |p| matches!(p, Problem::Quota { .. })),
    // An extent node of the sparse file: magic, then a length.
    (EXT4, b"\x0a\xf3\x0c\x00\x54", 0, b"\0", |p| matches!(p, Problem::Extent { .. })),
    (EXT4, b"\x0a\xf3\x0c\x00\x54", 8, b"\x09", |p| matches!(p, Problem::BlockChecksum { .. })),
    (EXT4, b"\x0a\xf3\x0c\x00\x54", 16, b"\x09", |p| {
        matches!(p, Problem::Extent { .. } | Problem::BlockChecksum { .. })
    }),
];

fn find(device: &MemoryDevice, wanted: &[u8]) -> Option<u64> {
    let mut bytes = vec![0; device.size_bytes() as usize];
    device.read_at(0, &mut bytes).unwrap();
    bytes.windows(wanted.len()).position(|window| window == wanted).map(|at| at as u64)
}

#[test]
fn poked_bytes_are_reported_by_kind() {
    let dir = tempdir().unwrap();
    let mut missed = Vec::new();
    for (features, wanted, offset, bytes, is_kind) in BY_POKING {
        let features: Vec<&str> = features.iter().copied().chain(["-LLABEL"]).collect();
        let path = require!(sample(&dir, &features));
        let device = image::load(&path);
        let Some(at) = find(&device, wanted) else {
            missed.push(format!("{wanted:x?}: not found"));
            continue;
        };
        device.write_at(at.wrapping_add_signed(*offset), bytes).unwrap();
        let found = check(&device, &CheckOptions::default()).unwrap().problems;
        if !found.iter().any(is_kind) {
            missed.push(format!("{wanted:x?} {offset}: {found:?}"));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// As [`BY_POKING`], in an image with an index and an attribute block.
const BY_POKING_MORE: &[(&[u8], i64, &[u8], Is)] = &[
    // Attribute block: references, hash, value.
    (ATTRIBUTES, 4, b"\x02", |p| {
        matches!(p, Problem::XattrReferences { stored: 2, counted: 1, .. })
    }),
    (ATTRIBUTES, 8, b"\x02", |p| matches!(p, Problem::Xattr { .. })),
    (ATTRIBUTES, 12, b"\x02\x02", |p| matches!(p, Problem::XattrBlockHash { .. })),
    (b"vvvvvvvv", 0, b"w", |p| matches!(p, Problem::XattrEntryHash { .. })),
    // Index: levels, count, hash and block of the second record.
    (INDEX, 6, b"\x05", |p| matches!(p, Problem::Htree { .. })),
    (INDEX, 10, b"\xff\xff", |p| matches!(p, Problem::Htree { .. })),
    (INDEX, 10, b"\x01\x00", |p| matches!(p, Problem::HtreeReference { times: 0, .. })),
    (INDEX, 19, b"\x01", |p| matches!(p, Problem::HtreeHash { .. })),
    (INDEX, 20, b"\x01", |p| matches!(p, Problem::HtreeReference { times: 2, .. })),
    (INDEX, 20, b"\xff", |p| matches!(p, Problem::Htree { .. })),
];
const ATTRIBUTES: &[u8] = b"\0\0\x02\xea\x01\0\0\0\x01\0\0\0";
/// Half MD4, info of 8 bytes, no inner nodes.
const INDEX: &[u8] = b"\0\0\0\0\x01\x08\0\0\x7c\0";

#[test]
fn damaged_indexes_and_attributes_are_reported_by_kind() {
    let dir = tempdir().unwrap();
    let path = require!(sample(&dir, UNSUMMED));
    let set = format!("ea_set /file user.large {}", "v".repeat(400));
    oracle::debugfs(&path, true, &set).unwrap();
    // Gives directories of several blocks an index.
    let fsck = require!(oracle::Tool::find("e2fsck"));
    fsck.command().arg("-fyD").arg(&path).output().unwrap();
    let good = image::load(&path);
    assert_eq!(check(&good, &CheckOptions::default()).unwrap().problems, []);
    let mut missed = Vec::new();
    for (wanted, offset, bytes, is_kind) in BY_POKING_MORE {
        let device = good.snapshot();
        let Some(at) = find(&device, wanted) else {
            missed.push(format!("{wanted:x?}: not found"));
            continue;
        };
        device.write_at(at.wrapping_add_signed(*offset), bytes).unwrap();
        let found = check(&device, &CheckOptions::default()).unwrap().problems;
        if !found.iter().any(is_kind) {
            missed.push(format!("{wanted:x?} {offset}: {found:?}"));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

/// What a kernel leaves that stops while it shortens a file: the size is the new one, the file is on the
/// list of orphans, and its blocks are there. The next mount goes on with it.
#[test]
fn a_truncation_that_was_cut_short_is_no_damage() {
    let dir = tempdir().unwrap();
    let path = require!(sample(&dir, EXT4));
    oracle::debugfs(&path, true, "sif /big size 100000").unwrap();
    let found = problems(&path);
    let [Problem::Size { ino, size: 100_000, .. }] = found[..] else {
        panic!("nobody has begun it: {found:?}")
    };
    let command = format!("ssv last_orphan {ino}\nsif /big dtime 0");
    oracle::debugfs(&path, true, &command).unwrap();
    assert_eq!(problems(&path), [Problem::Orphans { count: 1 }]);
    let lenient = CheckOptions { require_no_orphans: false, ..CheckOptions::default() };
    assert_eq!(check(&image::load(&path), &lenient).unwrap().problems, []);
}

#[test]
fn options_decide_what_is_a_problem() {
    let dir = tempdir().unwrap();
    let path = require!(sample(&dir, EXT4));
    let commands = "feature needs_recovery\nssv state 0\nssv free_blocks_count 7";
    oracle::debugfs(&path, true, commands).unwrap();
    let device = image::load(&path);
    assert_eq!(check(&device, &CheckOptions::default()).unwrap().problems.len(), 3);
    let lenient = CheckOptions {
        require_replayed: false,
        require_no_orphans: false,
        require_clean_state: false,
        strict_totals: false,
        ..CheckOptions::default()
    };
    let report = check(&device, &lenient).unwrap();
    assert_eq!(report.problems, []);
    assert!(report.state.needs_recovery && !report.state.is_clean);
    let few = CheckOptions { max_problems: 1, ..CheckOptions::default() };
    let report = check(&device, &few).unwrap();
    assert_eq!((report.problems.len(), report.dropped), (1, 2));
    assert!(!report.is_clean());
}

#[test]
fn a_device_that_was_cut_is_too_small() {
    let dir = tempdir().unwrap();
    let path = require!(sample(&dir, EXT4));
    fs::File::options().write(true).open(&path).unwrap().set_len(3 << 20).unwrap();
    let found = problems(&path);
    assert!(matches!(found.as_slice(), [Problem::DeviceTooSmall { .. }]), "{found:?}");
}
