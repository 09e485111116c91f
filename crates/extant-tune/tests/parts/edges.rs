//! Conversions at the edge of what a layout has room for, and fields that nothing but another program reads.

use std::path::Path;
use std::sync::Arc;

use extant::{MountOptions, QuotaKind, QuotaLimits};
use extant_block::{BlockDevice, MemoryDevice};
use extant_format::features::Encoding;
use extant_format::record::{BLOCK, SIZE_HIGH, SIZE_LO, u32_at};
use extant_testkit::{image, oracle, require, tempdir};
use extant_tune::Request;

use crate::common::{LAYOUTS, Layout, e2fsck, features, made, problems, seen, tuned};
use crate::superblock;

/// `Request` for inodes of that many bytes.
fn inodes(words: &str, size: u16) -> Request {
    Request { inode_size: Some(size), ..features(words) }
}

fn debugged(device: &MemoryDevice, dir: &Path, commands: &str) -> (MemoryDevice, String) {
    let path = dir.join("debugged.img");
    let _removed = std::fs::remove_file(&path);
    image::save(device, &path);
    let said = oracle::debugfs(&path, true, commands).unwrap();
    (image::load(&path), said)
}

/// Refused by a word of the message, and nothing is written.
#[track_caller]
fn refused(device: &MemoryDevice, request: &Request, word: &str) {
    let error = tuned(device, request).expect_err(word).to_string();
    assert!(error.contains(word), "{error}");
}

#[test]
fn what_has_no_room_is_refused() {
    let dir = tempdir().unwrap();
    // Attributes in inodes that would have no room for them.
    let without = &["-text4", "-b1024", "-g512", "-O^extra_isize", "-Jsize=4"];
    let good = require!(made(dir.path(), Layout::new(without, "24M")));
    let (with, _) = debugged(&good, dir.path(), "ea_set / user.inside value");
    refused(&with, &inodes("", 128), "has attributes inside");
    // A descriptor of 64 bytes for each of 47 groups needs a block more, and none is reserved.
    let narrow = &["-text4", "-b1024", "-g512", "-O^64bit,^resize_inode", "-Jsize=4"];
    let narrow = require!(made(dir.path(), Layout::new(narrow, "24M")));
    assert_eq!(superblock(&narrow).descriptor_blocks(), 2);
    refused(&narrow, &features("64bit"), "0 are reserved");
    // A journal that leaves less than it takes.
    let plain = require!(made(dir.path(), LAYOUTS[1]));
    let free = superblock(&plain).free_blocks_count;
    let journal = |bytes| Request { journal_bytes: Some(bytes), ..Request::default() };
    refused(&plain, &journal((free / 2 + 1) * 1024), "more than half");
    // A log that is too short without the blocks for fast commits.
    let short = require!(made(dir.path(), Layout::new(&["-text4", "-b1024", "-Jsize=1"], "24M")));
    refused(&short, &features("fast_commit"), "needs 1280");
    // Keys of files, and hashes of attributes, depend on the UUID.
    let uuid = || Request { uuid: Some([7; 16]), ..Request::default() };
    let stable = require!(made(dir.path(), Layout::new(&["-text4", "-Ostable_inodes"], "24M")));
    refused(&stable, &uuid(), "stable_inodes");
    let values = Layout::new(&["-text4", "-Oea_inode,^metadata_csum"], "24M");
    let values = require!(made(dir.path(), values));
    refused(&values, &uuid(), "ea_inode");
}

#[test]
fn the_reserve_for_growth_gets_what_descriptors_give_back_as_far_as_it_goes() {
    let dir = tempdir().unwrap();
    let first =
        require!(made(dir.path(), Layout::new(&["-text4", "-b1024", "-g512", "-Jsize=4"], "24M")));
    let before = superblock(&first);
    assert_eq!((before.descriptor_blocks(), before.reserved_gdt_blocks), (3, 256));
    let (device, _) = tuned(&first, &features("^64bit")).unwrap();
    let after = superblock(&device);
    assert_eq!((after.descriptor_blocks(), after.reserved_gdt_blocks), (2, 256));
    assert_eq!(require!(e2fsck(&device, dir.path())), "");
    assert_eq!(problems(&device), Vec::<String>::new());
}

/// The log is found by the descriptors, whose size the superblock says: it cannot carry both.
#[test]
fn another_width_is_no_transaction_and_says_so() {
    let dir = tempdir().unwrap();
    let first = require!(made(dir.path(), LAYOUTS[1]));
    for (words, is_atomic) in [("^64bit", false), ("orphan_file", true)] {
        let (_, plan) = tuned(&first, &features(words)).unwrap();
        assert_eq!(plan.steps.iter().all(|step| step.is_atomic), is_atomic, "{words}");
    }
}

#[test]
fn larger_inodes_have_room_for_parts_of_seconds() {
    let dir = tempdir().unwrap();
    let words = &["-text4", "-b1024", "-I128", "-O^extra_isize", "-Jsize=4"];
    let first = require!(made(dir.path(), Layout::new(words, "24M")));
    let (device, _) = tuned(&first, &inodes("", 256)).unwrap();
    assert_eq!(seen(&first), seen(&device));
    let (_, said) = debugged(&device, dir.path(), "stat /");
    assert!(said.contains("Size of extra inode fields: 32"), "{said}");
}

/// What a rescue finds the journal by, when its inode is gone.
#[test]
fn the_superblock_has_a_copy_of_the_map_of_the_journal_as_long_as_there_is_one() {
    let dir = tempdir().unwrap();
    let first = require!(made(dir.path(), LAYOUTS[0]));
    let (device, _) = tuned(&first, &features("has_journal")).unwrap();
    let (sb, mut record) = (superblock(&device), vec![0; 128]);
    let table = u64::from(u32_at(&group(&device), 8)) * 1024;
    device.read_at(table + 7 * u64::from(sb.inode_size), &mut record).unwrap();
    let words = (0..15).map(|slot| BLOCK + slot * 4).chain([SIZE_HIGH, SIZE_LO]);
    let wanted: Vec<u32> = words.map(|at| u32_at(&record, at)).collect();
    assert_eq!((sb.journal_backup.to_vec(), sb.raw.s_jnl_backup_type), (wanted, 1));
    assert_ne!(sb.journal_backup, [0; 17]);
    let (device, _) = tuned(&device, &features("^has_journal")).unwrap();
    assert_eq!(superblock(&device).journal_backup, [0; 17]);
}

/// The first descriptor, behind the superblock in a block of 1 KiB.
fn group(device: &MemoryDevice) -> [u8; 32] {
    let mut bytes = [0; 32];
    device.read_at(2048, &mut bytes).unwrap();
    bytes
}

#[test]
fn limits_of_quota_stay_where_usage_is_counted_again_and_projects_are_counted_with_the_others() {
    let dir = tempdir().unwrap();
    let device = Arc::new(require!(made(dir.path(), LAYOUTS[7])));
    let fs = MountOptions::new().read_only(false).open(Arc::clone(&device)).unwrap();
    let limits = QuotaLimits { inodes_hard: 4321, ..QuotaLimits::default() };
    fs.set_quota_limits(QuotaKind::User, 0, &limits).unwrap();
    fs.set_quota_limits(QuotaKind::User, 77, &limits).unwrap();
    fs.unmount().unwrap();
    let (device, _) = tuned(&device, &features("orphan_file")).unwrap();
    assert_eq!(require!(e2fsck(&device, dir.path())), "");
    let fs = MountOptions::new().read_only(false).open(device.snapshot()).unwrap();
    for id in [0, 77] {
        let entry = fs.quota(QuotaKind::User, id).unwrap().unwrap();
        assert_eq!(entry.inode_hard_limit, 4321, "{id}");
    }
    let (without, _) = tuned(&device, &features("^quota")).unwrap();
    let (with, _) = tuned(&without, &features("quota")).unwrap();
    let sb = superblock(&with);
    let kinds = [sb.user_quota_inode, sb.group_quota_inode, sb.project_quota_inode];
    assert!(kinds.iter().all(|ino| ino.0 != 0), "{kinds:?}");
}

#[test]
fn without_casefold_there_is_no_encoding() {
    let dir = tempdir().unwrap();
    let first = require!(made(dir.path(), LAYOUTS[1]));
    let (with, _) = tuned(&first, &features("casefold")).unwrap();
    assert_ne!(superblock(&with).encoding, Encoding::Unknown(0));
    let (without, _) = tuned(&with, &features("^casefold")).unwrap();
    assert_eq!(superblock(&without).encoding, Encoding::Unknown(0));
}
