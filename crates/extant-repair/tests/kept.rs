//! What a repair keeps that looks like a part of what it takes away.

mod common;
#[path = "kept/elsewhere.rs"]
mod elsewhere;
#[path = "kept/hurd.rs"]
mod hurd;
#[path = "kept/log.rs"]
mod log;
#[path = "kept/names.rs"]
mod names;
#[path = "kept/quota.rs"]
mod quota;
#[path = "kept/reserved.rs"]
mod reserved;
#[path = "kept/values.rs"]
mod values;

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use common::{SETS, e2fsck, losses, problems, repaired, sample, seen};
use extant::{MountOptions, QuotaKind, QuotaLimits};
use extant_block::{BlockDevice, MemoryDevice};
use extant_format::checksum::inode_seed;
use extant_format::jbd2::JournalSuperblock;
use extant_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use extant_repair::{Ask, Decision, Fix, Preen, RepairOptions, repair};
use extant_testkit::{image, oracle, require, tempdir};

/// `good` after commands of debugfs.
fn damaged(dir: &Path, good: &MemoryDevice, commands: &str) -> Result<MemoryDevice, String> {
    let path = dir.join("damaged.img");
    let _removed = fs::remove_file(&path);
    image::save(good, &path);
    let _said = oracle::debugfs(&path, true, commands)?;
    Ok(image::load(&path))
}

/// Repairs everything.
fn mended(device: MemoryDevice, dir: &Path) -> extant::Fs {
    let outcome = repaired(&device).unwrap();
    assert!(outcome.is_clean, "{:#?}", outcome.findings);
    assert_eq!(problems(&device), Vec::<String>::new());
    assert_eq!(e2fsck(&device, dir, false).unwrap(), "");
    MountOptions::new().read_only(false).open(device).unwrap()
}

#[test]
fn limits_of_quota_stay_when_its_usage_is_counted_again() {
    let dir = tempdir().unwrap();
    let good = require!(sample(dir.path(), SETS[3]));
    let limits = QuotaLimits {
        space_hard_kib: 7 << 10,
        space_soft_kib: 5 << 10,
        inodes_hard: 900,
        inodes_soft: 800,
    };
    let device = Arc::new(good);
    let fs = MountOptions::new().read_only(false).open(Arc::clone(&device)).unwrap();
    fs.set_quota_limits(QuotaKind::User, 77, &limits).unwrap();
    fs.unmount().unwrap();
    let device = require!(damaged(dir.path(), &device, "set_inode_field /d/file5 uid 77"));
    let entry = mended(device, dir.path()).quota(QuotaKind::User, 77).unwrap().unwrap();
    assert_eq!((entry.inodes, entry.inode_hard_limit, entry.inode_soft_limit), (1, 900, 800));
    assert_eq!((entry.space_hard_limit, entry.space_soft_limit), (7 << 10, 5 << 10));
}

/// Repairs everything before the first count of links that is wrong.
struct UntilLinks;

impl Ask for UntilLinks {
    fn ask(&mut self, finding: &Fix) -> Decision {
        if finding.code == "links" { Decision::Stop } else { Decision::Fix }
    }
}

#[test]
fn who_stops_keeps_what_waited_in_the_log_and_changes_nothing_else() {
    let dir = tempdir().unwrap();
    let device = Arc::new(require!(sample(dir.path(), SETS[2])));
    let options = MountOptions::new().read_only(false).background(false);
    let fs = options.open(Arc::clone(&device)).unwrap();
    fs.write("/d/late", [9; 2000]).unwrap();
    fs.sync().unwrap();
    let left = device.snapshot();
    fs.unmount().unwrap();
    // A name of nothing, which is taken out first, and a count that is wrong, where it ends.
    let commands = "set_inode_field /d/file5 links_count 3\nclri /d/file6";
    let damaged = require!(damaged(dir.path(), &left, commands));
    let options = RepairOptions { now: common::NOW };
    let outcome = repair(Arc::new(damaged.snapshot()), &options, &mut UntilLinks).unwrap();
    assert!(
        outcome.is_stopped && outcome.findings.len() > 1 && outcome.transactions > 0,
        "{:#?}",
        outcome.findings
    );
    outcome.plan.apply(&damaged).unwrap();
    let fs = MountOptions::new().open(damaged.snapshot()).unwrap();
    assert_eq!(fs.read("/d/late").unwrap(), [9; 2000]);
    assert_eq!(fs.resolve("/d/file5").unwrap().metadata().links, 3);
    let mut names = fs.resolve("/d").unwrap().read_dir().unwrap();
    assert!(names.any(|one| one.unwrap().name() == b"file6"), "the change before it is not made");
    let again = repair(Arc::new(damaged), &options, &mut Preen).unwrap();
    assert_eq!((again.is_stopped, again.transactions, again.plan.is_empty()), (true, 0, true));
}

#[test]
fn a_name_that_two_blocks_have_for_one_file_is_one() {
    let dir = tempdir().unwrap();
    let good = require!(sample(dir.path(), SETS[0]));
    let name = format!("a long name so that there are many blocks {:040}", 0);
    let other = name.replacen("a l", "z l", 1);
    let mounted = MountOptions::new().open(good.snapshot()).unwrap();
    let ino = mounted.resolve(format!("/many/{name}")).unwrap().ino();
    let device = require!(damaged(dir.path(), &good, &format!("ln <{ino}> \"/many/{other}\"")));
    let mut bytes = vec![0; device.size_bytes() as usize];
    device.read_at(0, &mut bytes).unwrap();
    let find = |name: &str| {
        let name = name.as_bytes();
        let places: Vec<usize> =
            (0..bytes.len() - 100).filter(|at| bytes[*at..].starts_with(name)).collect();
        let [place] = places[..] else { panic!("{places:?}") };
        place
    };
    assert_ne!(find(&name) / 1024, find(&other) / 1024, "one block has both");
    device.write_at(find(&other) as u64, b"a").unwrap();
    let fs = mended(device, dir.path());
    assert_eq!(fs.resolve(format!("/many/{name}")).unwrap().metadata().links, 1);
    assert!(fs.resolve(format!("/many/{name}~0")).is_err());
}

#[test]
fn what_else_is_in_a_directory_of_a_loop_keeps_its_name() {
    let dir = tempdir().unwrap();
    for set in [SETS[2], SETS[3]] {
        let good = require!(sample(dir.path(), set));
        let loops = "ln /d/file5 /d/e/f/kept\nln /d/e /d/e/f/again\nunlink /d/e";
        let fs = mended(require!(damaged(dir.path(), &good, loops)), dir.path());
        let lost = fs.resolve("/lost+found").unwrap().read_dir().unwrap();
        let names: Vec<String> =
            lost.map(|one| String::from_utf8(one.unwrap().name().to_vec()).unwrap()).collect();
        assert_eq!(names.len(), 1, "{set:?}: {names:?}");
        let found = [format!("/lost+found/{}", names[0]), format!("/lost+found/{}/f", names[0])];
        let kept = found.iter().find_map(|dir| fs.read(format!("{dir}/kept")).ok());
        assert_eq!(kept, Some(vec![6; 15000]), "{set:?}");
    }
}

#[test]
fn of_two_files_with_one_name_both_stay() {
    let dir = tempdir().unwrap();
    let good = require!(sample(dir.path(), SETS[2]));
    let mounted = MountOptions::new().open(good.snapshot()).unwrap();
    let seven = mounted.resolve("/d/file7").unwrap().ino();
    let twice = format!("unlink /d/file7\nln <{seven}> /d/a.name");
    let device = require!(damaged(dir.path(), &good, &twice));
    // Another name of the same length, in a directory without an index and checksums.
    let mut bytes = vec![0; device.size_bytes() as usize];
    device.read_at(0, &mut bytes).unwrap();
    let (old, new) = (b"\x06\x01a.name", b"\x06\x01file15");
    let places: Vec<usize> =
        (0..bytes.len() - 8).filter(|at| bytes[*at..].starts_with(old)).collect();
    let [place] = places[..] else { panic!("{places:?}") };
    device.write_at(place as u64, new).unwrap();
    let fs = mended(device, dir.path());
    let mut both = [fs.read("/d/file15").unwrap(), fs.read("/d/file15~0").unwrap()];
    both.sort();
    assert!(both == [vec![8; 21000], vec![16; 45000]]);
}

#[test]
fn an_empty_file_that_lost_its_name_is_kept_for_its_attributes() {
    let dir = tempdir().unwrap();
    let good = require!(sample(dir.path(), SETS[2]));
    fs::write(dir.path().join("long"), [b'v'; 700]).unwrap();
    let long = dir.path().join("long");
    for (set, len) in [
        ("ea_set /d/file0 user.a value".to_owned(), 5),
        (format!("ea_set -f {} /d/file0 user.a", long.display()), 700),
    ] {
        let commands = format!("{set}\nunlink /d/file0");
        let fs = mended(require!(damaged(dir.path(), &good, &commands)), dir.path());
        let found = fs.resolve("/lost+found").unwrap().read_dir().unwrap().next().unwrap().unwrap();
        assert_eq!(found.inode().unwrap().xattr("user.a").unwrap().len(), len);
    }
}

/// Where debugfs has the record of an inode, in bytes; with blocks of 1 KiB.
fn record_of(path: &Path, file: &str) -> Result<u64, String> {
    let text = oracle::debugfs(path, false, &format!("imap {file}"))?;
    let number = |mark: &str| {
        let rest = text.split(mark).nth(1).unwrap();
        rest.split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap().to_owned()
    };
    let block: u64 = number("located at block ").parse().unwrap();
    let within = number("offset 0x");
    Ok(block * 1024 + u64::from_str_radix(&within, 16).unwrap())
}

#[test]
fn who_shares_a_block_of_attributes_that_a_file_claims_shares_its_copy() {
    let dir = tempdir().unwrap();
    let good = require!(sample(dir.path(), SETS[2]));
    let path = dir.path().join("shared.img");
    image::save(&good, &path);
    let value = dir.path().join("value");
    fs::write(&value, [b'v'; 700]).unwrap();
    let set = format!("ea_set -f {} /d/file9 user.large\nstat /d/file9", value.display());
    let said = require!(oracle::debugfs(&path, true, &set));
    let shared: u64 = said
        .split("File ACL: ")
        .nth(1)
        .unwrap()
        .split_whitespace()
        .next()
        .unwrap()
        .parse()
        .unwrap();
    // Eight share it, and the file of the lowest number has it as its only block.
    let mounted = MountOptions::new().open(good.snapshot()).unwrap();
    let mut files: Vec<(u32, u32)> = (1..18)
        .map(|number| (mounted.resolve(format!("/d/file{number}")).unwrap().ino().0, number))
        .collect();
    files.sort_unstable();
    let (first, others) = (files[0].1, &files[files.len() - 8..]);
    let mut commands = String::new();
    for (_, number) in others {
        writeln!(commands, "set_inode_field /d/file{number} file_acl {shared}").unwrap();
    }
    writeln!(commands, "set_inode_field /d/file{first} block[5] {shared}").unwrap();
    writeln!(commands, "set_inode_field /d/file{first} block[4] 1").unwrap();
    let _said = require!(oracle::debugfs(&path, true, &commands));
    let device = image::load(&path);
    let outcome = repaired(&device).unwrap();
    assert!(outcome.is_clean, "{:#?}", outcome.findings);
    assert_eq!(problems(&device), Vec::<String>::new());
    let mounted = MountOptions::new().open(Arc::new(device)).unwrap();
    for (_, number) in others {
        let inode = mounted.resolve(format!("/d/file{number}")).unwrap();
        assert_eq!(inode.xattr("user.large").unwrap(), [b'v'; 700], "{number}");
    }
}

#[test]
fn a_list_of_attributes_without_an_end_loses_its_last() {
    let dir = tempdir().unwrap();
    let good = require!(sample(dir.path(), SETS[2]));
    let path = dir.path().join("full.img");
    image::save(&good, &path);
    let record = require!(record_of(&path, "/d/file9"));
    let mut extra = [0; 2];
    good.read_at(record + 128, &mut extra).unwrap();
    let at = 128 + usize::from(u16::from_le_bytes(extra));
    assert_eq!(at, 160);
    // Entries without values reach from the header to the last byte of the record.
    let mut space = 0xea02_0000u32.to_le_bytes().to_vec();
    for name in ["four", "a second", "a third.", "a fourth"] {
        space.extend([name.len() as u8, 1]);
        space.extend([0; 14]);
        space.extend(name.as_bytes());
    }
    assert_eq!(at + space.len(), 256);
    good.write_at(record + at as u64, &space).unwrap();
    assert_ne!(problems(&good), Vec::<String>::new());
    let outcome = repaired(&good).unwrap();
    assert!(outcome.is_clean, "{:#?}", outcome.findings);
    assert_eq!(problems(&good), Vec::<String>::new());
    assert_eq!(require!(e2fsck(&good, dir.path(), false)), "");
    let mounted = MountOptions::new().open(Arc::new(good)).unwrap();
    let names = mounted.resolve("/d/file9").unwrap().xattr_names().unwrap();
    let wanted: [&[u8]; 3] = [b"user.four", b"user.a second", b"user.a third."];
    assert_eq!(names, wanted);
}

#[test]
fn an_attribute_without_a_prefix_leaves_its_block_and_the_others_stay() {
    let dir = tempdir().unwrap();
    let good = require!(sample(dir.path(), SETS[2]));
    let path = dir.path().join("prefix.img");
    image::save(&good, &path);
    let value = dir.path().join("value");
    fs::write(&value, [b'v'; 250]).unwrap();
    let value = value.display();
    let set = format!(
        "ea_set -f {value} /d/file9 user.one\nea_set -f {value} /d/file9 user.other\nstat /d/file9"
    );
    let said = require!(oracle::debugfs(&path, true, &set));
    let block: u64 = said
        .split("File ACL: ")
        .nth(1)
        .unwrap()
        .split_whitespace()
        .next()
        .unwrap()
        .parse()
        .unwrap();
    let device = image::load(&path);
    let mut bytes = [0; 1024];
    device.read_at(block * 1024, &mut bytes).unwrap();
    let name = b"one";
    let entry = (32..1000).step_by(4).find(|at| &bytes[at + 16..at + 19] == name).unwrap();
    assert_eq!(bytes[entry..entry + 2], [3, 1]);
    // Neither its hash nor that of the block has the prefix in it.
    device.write_at(block * 1024 + entry as u64 + 1, &[0]).unwrap();
    assert_ne!(require!(e2fsck(&device, dir.path(), false)), "");
    assert_eq!(problems(&device).len(), 1, "{:?}", problems(&device));
    let mounted = mended(device, dir.path());
    let inode = mounted.resolve("/d/file9").unwrap();
    assert_eq!(inode.xattr("user.other").unwrap(), [b'v'; 250]);
    assert_eq!(inode.xattr_names().unwrap(), [b"user.other"]);
}

#[test]
fn an_extent_that_is_too_long_takes_nothing_from_those_behind_it() {
    let dir = tempdir().unwrap();
    let good = Arc::new(require!(sample(dir.path(), SETS[2])));
    let fs = MountOptions::new().read_only(false).open(Arc::clone(&good)).unwrap();
    // Four extents of a block, side by side on the device.
    let file = fs.open_options().write(true).create(true).open("/d/sparse").unwrap();
    for at in [0, 80, 160, 240] {
        assert_eq!(file.write_at(&[b'0' + (at / 80) as u8; 1024], at << 10).unwrap(), 1024);
    }
    file.sync().unwrap();
    drop(file);
    fs.unmount().unwrap();
    let before = seen(&good);
    let contents = MountOptions::new().open(good.snapshot()).unwrap().read("/d/sparse").unwrap();
    // The second word of a record has its length: of the first and second of the four.
    for (word, len) in [(4, 100), (4, 200), (4, 1 << 15), (7, 100), (7, 1 << 15)] {
        let command = format!("set_inode_field /d/sparse block[{word}] {len}");
        let device = require!(damaged(dir.path(), &good, &command));
        let outcome = repaired(&device).unwrap();
        assert!(outcome.is_clean, "{word} {len}: {:#?}", outcome.findings);
        assert_eq!(problems(&device), Vec::<String>::new(), "{word} {len}");
        assert_eq!(require!(e2fsck(&device, dir.path(), false)), "", "{word} {len}");
        assert_eq!(losses(&before, &device), Vec::<String>::new(), "{word} {len}");
        let now = MountOptions::new().open(Arc::new(device)).unwrap().read("/d/sparse").unwrap();
        assert!(now == contents, "{word} {len}: other contents");
    }
}

#[test]
fn a_file_that_is_marked_as_the_value_of_an_attribute_keeps_its_name() {
    let dir = tempdir().unwrap();
    let good = Arc::new(require!(sample(dir.path(), SETS[3])));
    let fs = MountOptions::new().read_only(false).open(Arc::clone(&good)).unwrap();
    fs.write("/d/large", vec![7; 50_000]).unwrap();
    fs.unmount().unwrap();
    // With the mark, and that of a file with extents.
    let device = require!(damaged(dir.path(), &good, "set_inode_field /d/large flags 0x280000"));
    assert_ne!(problems(&device), Vec::<String>::new());
    let mounted = mended(device, dir.path());
    assert_eq!(mounted.read("/d/large").unwrap(), [7; 50_000]);
}

#[test]
fn a_file_that_is_named_as_a_quota_file_keeps_its_name_where_there_is_no_quota() {
    let dir = tempdir().unwrap();
    let good = require!(sample(dir.path(), SETS[2]));
    let before = seen(&good);
    let mounted = MountOptions::new().open(good.snapshot()).unwrap();
    let ino = mounted.resolve("/d/file5").unwrap().ino().0;
    drop(mounted);
    // s_usr_quota_inum and s_grp_quota_inum.
    for at in [0x240, 0x244] {
        let device = good.snapshot();
        device.write_at(1024 + at, &ino.to_le_bytes()).unwrap();
        let mended_device = device.snapshot();
        drop(mended(mended_device.snapshot(), dir.path()));
        let outcome = repaired(&mended_device).unwrap();
        assert!(outcome.is_clean, "{:#?}", outcome.findings);
        assert_eq!(losses(&before, &mended_device), Vec::<String>::new(), "{at:#x}");
        let fs = MountOptions::new().open(Arc::new(mended_device)).unwrap();
        assert_eq!(fs.resolve("/d/file5").unwrap().ino().0, ino);
    }
}

#[test]
fn what_e2fsck_does_not_open_is_a_problem_also_where_linux_does_not_look() {
    let dir = tempdir().unwrap();
    let good = require!(sample(dir.path(), SETS[1]));
    let before = seen(&good);
    // s_desc_size without 64bit, s_log_groups_per_flex without flex_bg.
    for (at, bytes) in [(0xfe, &[0xff, 0xff][..]), (0xfe, &[33, 0]), (0x174, &[0xae])] {
        let device = good.snapshot();
        device.write_at(1024 + at, bytes).unwrap();
        assert_ne!(require!(e2fsck(&device, dir.path(), false)), "");
        assert_eq!(problems(&device).len(), 1, "{:?}", problems(&device));
        assert_eq!(losses(&before, &device), Vec::<String>::new(), "{at:#x}");
        drop(mended(device, dir.path()));
    }
}

#[test]
fn a_map_that_leads_into_a_table_of_inodes_is_what_is_left_of_it() {
    let dir = tempdir().unwrap();
    let good = Arc::new(require!(sample(dir.path(), SETS[2])));
    let fs = MountOptions::new().read_only(false).open(Arc::clone(&good)).unwrap();
    let file = fs.open_options().write(true).create(true).open("/d/sparse").unwrap();
    for at in 0..200 {
        assert_eq!(file.write_at(&[7; 1024], at << 13).unwrap(), 1024);
    }
    file.sync().unwrap();
    drop(file);
    fs.unmount().unwrap();
    let before = seen(&good);
    let mut table = [0; 4];
    good.read_at(2048 + 8, &mut table).unwrap();
    let table = u32::from_le_bytes(table);
    // The second word of the first index record is the block of the node.
    let command = format!("set_inode_field /d/sparse block[4] {}", table + 3);
    let device = require!(damaged(dir.path(), &good, &command));
    let lost = MountOptions::new().open(good.snapshot()).unwrap();
    let lost = lost.resolve("/d/sparse").unwrap().ino();
    let outcome = repaired(&device).unwrap();
    assert!(outcome.is_clean, "{:#?}", outcome.findings);
    assert_eq!(problems(&device), Vec::<String>::new());
    assert_eq!(require!(e2fsck(&device, dir.path(), false)), "");
    let mut others = losses(&before, &device);
    others.retain(|text| !text.contains(&format!("inode {lost} ")));
    assert_eq!(others, Vec::<String>::new());
}

#[test]
fn a_directory_that_reaches_over_tables_and_journal_takes_nothing_from_them() {
    let dir = tempdir().unwrap();
    for features in &SETS[2..] {
        let good = require!(sample(dir.path(), features));
        let before = seen(&good);
        // The root, of one block, is said to have many: bitmaps, tables and files lie behind it.
        for len in [17, 40, 345, 2000] {
            let command = format!("set_inode_field / block[4] {len}");
            let device = require!(damaged(dir.path(), &good, &command));
            let outcome = repaired(&device).unwrap();
            let what = format!("{features:?}, {len}: {:#?}", outcome.findings);
            assert_eq!(losses(&before, &device), Vec::<String>::new(), "{what}");
            assert!(outcome.is_clean, "{what}");
            assert_eq!(require!(e2fsck(&device, dir.path(), false)), "", "{what}");
        }
    }
}

#[test]
fn a_directory_that_has_the_type_of_a_device_or_pipe_is_one_again() {
    let dir = tempdir().unwrap();
    for features in [SETS[1], SETS[2], SETS[6]] {
        let good = require!(sample(dir.path(), features));
        let before = seen(&good);
        for (name, mode) in [("/d", "020755"), ("/many", "010755"), ("/d/e", "0140700")] {
            let command = format!("set_inode_field {name} mode {mode}");
            let device = require!(damaged(dir.path(), &good, &command));
            let outcome = repaired(&device).unwrap();
            let what = format!("{features:?}, {name}: {:#?}", outcome.findings);
            assert_eq!(losses(&before, &device), Vec::<String>::new(), "{what}");
            let fs = mended(device, dir.path());
            assert!(fs.read_dir("/many").unwrap().count() >= 150, "{what}");
            assert!(fs.resolve("/d/e/f").is_ok(), "{what}");
        }
    }
}

#[test]
fn a_journal_of_several_file_systems_is_this_ones_again() {
    let dir = tempdir().unwrap();
    for features in [SETS[1], SETS[6]] {
        let good = require!(sample(dir.path(), features));
        let path = dir.path().join("users.img");
        let _removed = fs::remove_file(&path);
        image::save(&good, &path);
        let said = require!(oracle::debugfs(&path, false, "bmap <8> 0"));
        let block: u64 = said.lines().find_map(|line| line.trim().parse().ok()).unwrap();
        let device = image::load(&path);
        let at = block * if features == SETS[1] { 1024 } else { 4096 };
        let mut bytes = [0; 1024];
        device.read_at(at, &mut bytes).unwrap();
        let mut journal = JournalSuperblock::decode(&bytes).unwrap();
        journal.user_count = 24;
        journal.encode(&mut bytes).unwrap();
        device.write_at(at, &bytes).unwrap();
        assert_ne!(require!(e2fsck(&device, dir.path(), false)), "");
        assert_eq!(problems(&device).len(), 1, "{:?}", problems(&device));
        drop(mended(device, dir.path()));
    }
}

#[test]
fn who_claims_the_ends_of_a_table_of_inodes_gets_copies() {
    let dir = tempdir().unwrap();
    let good = require!(sample(dir.path(), SETS[2]));
    let before = seen(&good);
    let number = |at: u64| {
        let mut bytes = [0; 4];
        good.read_at(at, &mut bytes).unwrap();
        u32::from_le_bytes(bytes)
    };
    let (table, per_group) = (number(2048 + 8), number(1024 + 0x28));
    let blocks = per_group * 256 / 1024;
    let path = dir.path().join("claimed.img");
    for block in [table, table + blocks - 1] {
        let _removed = fs::remove_file(&path);
        image::save(&good, &path);
        // The second and last of its extents; what it had there is free.
        let command = format!(
            "set_inode_field /d/file5 block[5] {block}\nset_inode_field /d/file5 block[4] 1"
        );
        let _said = require!(oracle::debugfs(&path, true, &command));
        let device = image::load(&path);
        let outcome = repaired(&device).unwrap();
        assert!(outcome.is_clean, "{block}: {:#?}", outcome.findings);
        assert_eq!(problems(&device), Vec::<String>::new());
        let file =
            MountOptions::new().open(device.snapshot()).unwrap().resolve("/d/file5").unwrap().ino();
        let own = format!("inode {file} has other contents");
        assert_eq!(losses(&before, &device), [own]);
    }
}

#[test]
fn a_wrong_seed_of_checksums_is_one_problem_and_changes_no_inode() {
    let dir = tempdir().unwrap();
    // With a number of its own, and made of the UUID: in one group, and in several with backups.
    for (number, set) in [SETS[6], SETS[3], SETS[7]].into_iter().enumerate() {
        let good = require!(sample(dir.path(), set));
        let before = seen(&good);
        let field = ["checksum_seed 0x12345678", "uuid random", "uuid random"][number];
        let device = require!(damaged(dir.path(), &good, &format!("ssv {field}")));
        let outcome = repaired(&device).unwrap();
        assert!(outcome.is_clean, "{:#?}", outcome.findings);
        let codes: Vec<_> = outcome.findings.iter().map(|one| one.code).collect();
        assert_eq!(codes, ["checksum-seed"], "{set:?}: {:#?}", outcome.findings);
        // The superblocks, but no table of inodes.
        assert!(outcome.plan.byte_count() < 64 << 10, "{:?}", outcome.plan);
        assert_eq!(problems(&device), Vec::<String>::new());
        assert_eq!(e2fsck(&device, dir.path(), false).unwrap(), "");
        assert_eq!(losses(&before, &device), Vec::<String>::new());
    }
}

#[test]
fn a_wrong_uuid_is_that_of_a_backup_again() {
    let dir = tempdir().unwrap();
    let device = require!(sample(dir.path(), SETS[7]));
    let mut bytes = [0; SUPERBLOCK_BYTES];
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes).unwrap();
    let good = Superblock::decode(&bytes).unwrap();
    let bad = Superblock { uuid: [7; 16], ..good.clone() };
    device.write_at(SUPERBLOCK_OFFSET, &bad.encode()).unwrap();
    let outcome = repaired(&device).unwrap();
    let codes: Vec<_> = outcome.findings.iter().map(|one| one.code).collect();
    assert_eq!((codes, outcome.is_clean), (vec!["checksum-seed"], true), "{:#?}", outcome.findings);
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes).unwrap();
    let now = Superblock::decode(&bytes).unwrap();
    assert_eq!((now.uuid, now.features), (good.uuid, good.features));
    assert_eq!(problems(&device), Vec::<String>::new());
}

#[test]
fn an_entry_with_a_wrong_length_keeps_its_name_and_so_do_those_behind_it() {
    let dir = tempdir().unwrap();
    for features in [SETS[1], SETS[2], SETS[6]] {
        let good = require!(sample(dir.path(), features));
        let mounted = MountOptions::new().open(good.snapshot()).unwrap();
        let size = if features == SETS[6] { 4096 } else { 1024 };
        let mut bytes = vec![0; good.size_bytes() as usize];
        good.read_at(0, &mut bytes).unwrap();
        for name in ["file7", "file13", "e"] {
            let ino = mounted.resolve(format!("/d/{name}")).unwrap().ino().0;
            let kind = if name == "e" { 2 } else { 1 };
            let mark = [&[name.len() as u8, kind], name.as_bytes()].concat();
            let places: Vec<usize> = (0..bytes.len() - 16)
                .filter(|at| {
                    bytes[*at..].starts_with(&ino.to_le_bytes())
                        && bytes[at + 6..].starts_with(&mark)
                })
                .collect();
            let [place] = places[..] else { panic!("{name}: {places:?}") };
            for len in [0u16, 4, 8, 13, 0x46fe, size, 0xfffc, 0xffff] {
                let device = good.snapshot();
                device.write_at(place as u64 + 4, &len.to_le_bytes()).unwrap();
                let fs = mended(device, dir.path());
                let what = format!("{features:?}, {name}, {len}");
                for file in 0..20 {
                    let path = format!("/d/file{file}");
                    let wanted = mounted.resolve(&path).unwrap().ino();
                    let found = fs.resolve(&path).unwrap_or_else(|error| panic!("{what}: {error}"));
                    assert_eq!(found.ino(), wanted, "{what}");
                }
                assert!(fs.resolve("/d/e/f").is_ok(), "{what}");
                assert_eq!(fs.read_dir("/lost+found").unwrap().count(), 0, "{what}");
            }
        }
    }
}

#[test]
fn more_reserved_blocks_than_e2fsck_takes_and_a_last_group_without_bitmap_are_problems() {
    let dir = tempdir().unwrap();
    let good = require!(sample(dir.path(), SETS[2]));
    let before = seen(&good);
    let mut word = [0; 4];
    good.read_at(1024 + 4, &mut word).unwrap();
    let blocks = u32::from_le_bytes(word);
    for (reserved, is_clean) in [(blocks / 2, true), (blocks / 2 + 1, false)] {
        let device = good.snapshot();
        device.write_at(1024 + 8, &reserved.to_le_bytes()).unwrap();
        assert_eq!(require!(e2fsck(&device, dir.path(), false)).is_empty(), is_clean);
        assert_eq!(problems(&device).is_empty(), is_clean, "{:?}", problems(&device));
        let outcome = repaired(&device).unwrap();
        assert_eq!(outcome.plan.is_empty(), is_clean, "{:#?}", outcome.findings);
        assert_eq!(losses(&before, &device), Vec::<String>::new());
        drop(mended(device, dir.path()));
    }
    let device = require!(damaged(dir.path(), &good, "set_bg 1 flags 7\nset_bg 1 checksum calc"));
    assert_ne!(require!(e2fsck(&device, dir.path(), false)), "");
    assert_ne!(problems(&device), Vec::<String>::new());
    assert_eq!(losses(&before, &device), Vec::<String>::new());
    drop(mended(device, dir.path()));
}

#[test]
fn a_file_with_another_type_than_its_name_has_is_what_the_name_says() {
    let dir = tempdir().unwrap();
    for features in [SETS[1], SETS[2], SETS[6]] {
        let good = Arc::new(require!(sample(dir.path(), features)));
        let fs = MountOptions::new().read_only(false).open(Arc::clone(&good)).unwrap();
        fs.write("/d/small", "a line\n").unwrap();
        fs.unmount().unwrap();
        for mode in ["0", "0120644", "0140644", "010644", "060644", "020644", "0130644"] {
            let mut commands = String::new();
            for file in ["small", "file1", "file7", "file19"] {
                writeln!(commands, "set_inode_field /d/{file} mode {mode}").unwrap();
            }
            let device = require!(damaged(dir.path(), &good, &commands));
            let fs = mended(device, dir.path());
            let what = format!("{features:?}, {mode}");
            assert!(fs.read("/d/small").unwrap() == b"a line\n", "{what}");
            for number in [1, 7, 19] {
                let wanted = vec![number as u8 + 1; number * 3000];
                assert!(fs.read(format!("/d/file{number}")).unwrap() == wanted, "{what}");
            }
        }
        // A link without a type, and a directory with that of a file.
        let commands = "set_inode_field /d/fast mode 0\nset_inode_field /d/slow mode 0";
        let device = require!(damaged(dir.path(), &good, commands));
        let fs = mended(device, dir.path());
        assert_eq!(fs.read_link("/d/fast").unwrap(), [b'x'; 40]);
        assert_eq!(fs.read_link("/d/slow").unwrap(), [b'x'; 140]);
        let commands = "set_inode_field /d mode 0100755\nset_inode_field /many mode 0100700";
        let device = require!(damaged(dir.path(), &good, commands));
        let fs = mended(device, dir.path());
        assert!(fs.resolve("/d/e/f").is_ok(), "{features:?}");
        assert!(fs.read_dir("/many").unwrap().count() >= 150, "{features:?}");
    }
}

#[test]
fn a_record_that_covers_the_checksum_of_its_block_is_a_problem() {
    let dir = tempdir().unwrap();
    let good = require!(sample(dir.path(), SETS[6]));
    let mounted = MountOptions::new().open(good.snapshot()).unwrap();
    let (d, inner) = (mounted.resolve("/d").unwrap().ino(), mounted.resolve("/d/e").unwrap().ino());
    let path = dir.path().join("tail.img");
    let _removed = fs::remove_file(&path);
    image::save(&good, &path);
    let said = require!(oracle::debugfs(&path, false, &format!("bmap <{d}> 0\nstat <{d}>")));
    let block: u64 = said.lines().find_map(|line| line.trim().parse().ok()).unwrap();
    let generation: u32 = said
        .split("Generation: ")
        .nth(1)
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap();
    let mut bytes = [0; 4096];
    good.read_at(block * 4096, &mut bytes).unwrap();
    let mark = [&inner.0.to_le_bytes()[..], &[12, 0, 1, 2, b'e']].concat();
    let at = (0..4000).step_by(4).find(|at| bytes[*at..].starts_with(&mark)).unwrap();
    bytes[at + 4..at + 6].copy_from_slice(&(4096 - at as u16).to_le_bytes());
    let mut superblock = [0; SUPERBLOCK_BYTES];
    good.read_at(SUPERBLOCK_OFFSET, &mut superblock).unwrap();
    let seed = Superblock::decode(&superblock).unwrap().checksum_seed();
    extant_format::dir::seal(inode_seed(seed, d, generation), &mut bytes);
    good.write_at(block * 4096, &bytes).unwrap();
    assert_ne!(require!(e2fsck(&good, dir.path(), false)), "");
    let found = problems(&good);
    assert!(found.iter().any(|text| text.contains("does not fit")), "{found:#?}");
    let fs = mended(good, dir.path());
    for file in 0..20 {
        let path = format!("/d/file{file}");
        assert_eq!(fs.resolve(&path).unwrap().ino(), mounted.resolve(&path).unwrap().ino());
    }
}

#[test]
fn a_mark_that_only_directories_have_goes() {
    let dir = tempdir().unwrap();
    let features = ["-text4", "-b1024", "-Ocasefold", "-Jsize=1"];
    let good = require!(sample(dir.path(), &features));
    let before = seen(&good);
    let device = require!(damaged(dir.path(), &good, "set_inode_field /d/file5 flags 0x40080000"));
    assert_ne!(require!(e2fsck(&device, dir.path(), false)), "");
    assert_eq!(problems(&device).len(), 1, "{:?}", problems(&device));
    let outcome = repaired(&device).unwrap();
    assert!(outcome.is_clean, "{:#?}", outcome.findings);
    assert_eq!(losses(&before, &device), Vec::<String>::new());
    drop(mended(device, dir.path()));
}

#[test]
fn a_file_with_a_name_and_without_links_was_not_deleted() {
    let dir = tempdir().unwrap();
    for features in [SETS[0], SETS[2], SETS[6]] {
        let good = require!(sample(dir.path(), features));
        let before = seen(&good);
        let commands = "set_inode_field /d links_count 0\nset_inode_field /d/file7 links_count 0";
        let device = require!(damaged(dir.path(), &good, commands));
        let outcome = repaired(&device).unwrap();
        assert!(outcome.is_clean, "{features:?}: {:#?}", outcome.findings);
        assert_eq!(losses(&before, &device), Vec::<String>::new(), "{features:?}");
        let fs = mended(device, dir.path());
        assert!(fs.read("/d/file7").unwrap() == [8; 21000], "{features:?}");
        assert!(fs.resolve("/d/e/f").is_ok(), "{features:?}");
        // One that was deleted stays so.
        let commands =
            "set_inode_field /d/file7 links_count 0\nset_inode_field /d/file7 dtime 1700000000";
        let fs = mended(require!(damaged(dir.path(), &good, commands)), dir.path());
        assert!(fs.resolve("/d/file7").is_err(), "{features:?}");
    }
}

#[test]
fn a_first_inode_that_is_too_high_is_one_problem_and_no_file_is_called_reserved() {
    let dir = tempdir().unwrap();
    for features in [SETS[1], SETS[3]] {
        let good = require!(sample(dir.path(), features));
        let before = seen(&good);
        let device = require!(damaged(dir.path(), &good, "ssv first_ino 100"));
        let outcome = repaired(&device).unwrap();
        assert!(outcome.is_clean, "{:#?}", outcome.findings);
        let [only] = &outcome.findings[..] else { panic!("{:#?}", outcome.findings) };
        assert_eq!((only.objects.ino.unwrap().0, only.fix), (11, "set the number of the first"));
        assert_eq!(losses(&before, &device), Vec::<String>::new(), "{features:?}");
        drop(mended(device, dir.path()));
    }
}

#[test]
fn a_journal_whose_map_leads_elsewhere_is_found_by_its_copy_and_writes_over_nothing() {
    let dir = tempdir().unwrap();
    for features in [SETS[1], SETS[2], SETS[6]] {
        let good = Arc::new(require!(sample(dir.path(), features)));
        let fs = MountOptions::new().read_only(false).background(false).open(Arc::clone(&good));
        let fs = fs.unwrap();
        fs.write("/d/late", [9; 2000]).unwrap();
        fs.sync().unwrap();
        let pending = good.snapshot();
        fs.unmount().unwrap();
        let path = dir.path().join("clean.img");
        let _removed = fs::remove_file(&path);
        image::save(&good, &path);
        let said = require!(oracle::debugfs(&path, false, "bmap / 0\nbmap /d/file7 1\nbmap /d 0"));
        let mut targets: Vec<u64> =
            said.lines().filter_map(|line| line.trim().parse().ok()).collect();
        let at = if features == SETS[6] { 4096 } else { 2048 };
        let mut table = [0; 4];
        good.read_at(at + 8, &mut table).unwrap();
        targets.push(u64::from(u32::from_le_bytes(table)));
        let slot = if features == SETS[1] { 0 } else { 5 };
        for (device, has_copy) in [(&*good, true), (&pending, true), (&*good, false)] {
            let before = seen(device);
            for target in &targets {
                let mut command = format!("set_inode_field <8> block[{slot}] {target}");
                if !has_copy {
                    command += "\nssv jnl_blocks[0] 0\nssv jnl_blocks[5] 0";
                }
                let device = require!(damaged(dir.path(), device, &command));
                let outcome = repaired(&device).unwrap();
                let what = format!("{features:?}, {target}: {:#?}", outcome.findings);
                assert!(outcome.is_clean, "{what}");
                assert_eq!(losses(&before, &device), Vec::<String>::new(), "{what}");
                let fs = mended(device, dir.path());
                assert!(fs.read("/d/late").unwrap() == [9; 2000], "{what}");
                assert!(fs.resolve("/d/e/f").is_ok(), "{what}");
            }
        }
    }
}

#[test]
fn a_directory_whose_first_block_has_another_number_keeps_its_names() {
    let dir = tempdir().unwrap();
    for features in [SETS[2], SETS[4], SETS[6]] {
        let good = require!(sample(dir.path(), features));
        let before = seen(&good);
        for number in [1u32, 5, 4096, u32::MAX] {
            for name in ["/", "/d"] {
                let command = format!("set_inode_field {name} block[3] {number}");
                let device = require!(damaged(dir.path(), &good, &command));
                let outcome = repaired(&device).unwrap();
                let what = format!("{features:?}, {name}, {number}: {:#?}", outcome.findings);
                assert_eq!(losses(&before, &device), Vec::<String>::new(), "{what}");
                let fs = mended(device, dir.path());
                assert!(fs.resolve("/d/file7").is_ok(), "{what}");
            }
        }
    }
}

#[test]
fn a_record_of_the_directory_itself_that_is_too_long_hides_nothing() {
    let dir = tempdir().unwrap();
    for features in [SETS[1], SETS[2], SETS[6]] {
        let good = require!(sample(dir.path(), features));
        let before = seen(&good);
        let path = dir.path().join("dots.img");
        let _removed = fs::remove_file(&path);
        image::save(&good, &path);
        let size: u64 = if features == SETS[6] { 4096 } else { 1024 };
        for name in ["/", "/d", "/many"] {
            let said = require!(oracle::debugfs(&path, false, &format!("bmap {name} 0")));
            let block: u64 = said.lines().find_map(|line| line.trim().parse().ok()).unwrap();
            let most = size as u16;
            for len in [0, 8, 24, 36, 100, most - 12, most, 0xfffc] {
                let device = good.snapshot();
                device.write_at(block * size + 4, &len.to_le_bytes()).unwrap();
                let outcome = repaired(&device).unwrap();
                let what = format!("{features:?}, {name}, {len}: {:#?}", outcome.findings);
                assert_eq!(losses(&before, &device), Vec::<String>::new(), "{what}");
                let fs = mended(device, dir.path());
                assert!(fs.resolve("/d/file7").is_ok(), "{what}");
                assert!(fs.read_dir("/many").unwrap().count() >= 150, "{what}");
                assert_eq!(fs.read_dir("/lost+found").unwrap().count(), 0, "{what}");
            }
        }
    }
}

#[test]
fn a_journal_that_the_superblock_does_not_name_is_named_again() {
    let dir = tempdir().unwrap();
    for features in [SETS[1], SETS[2], SETS[6]] {
        let good = Arc::new(require!(sample(dir.path(), features)));
        let fs = MountOptions::new().read_only(false).background(false).open(Arc::clone(&good));
        let fs = fs.unwrap();
        fs.write("/d/late", [9; 2000]).unwrap();
        fs.sync().unwrap();
        let pending = good.snapshot();
        let file = fs.resolve("/d/file7").unwrap().ino().0;
        fs.unmount().unwrap();
        let before = seen(&good);
        for device in [&*good, &pending] {
            for number in [2, 7, 9, 11, file, 100_000] {
                let command = format!("ssv journal_inum {number}");
                let device = require!(damaged(dir.path(), device, &command));
                let outcome = repaired(&device).unwrap();
                let what = format!("{features:?}, {number}: {:#?}", outcome.findings);
                assert!(outcome.is_clean, "{what}");
                assert_eq!(losses(&before, &device), Vec::<String>::new(), "{what}");
                drop(mended(device, dir.path()));
            }
        }
    }
}

#[test]
fn a_node_without_records_is_a_problem_and_the_others_stay() {
    let dir = tempdir().unwrap();
    let good = Arc::new(require!(sample(dir.path(), SETS[2])));
    let fs = MountOptions::new().read_only(false).open(Arc::clone(&good)).unwrap();
    let file = fs.open_options().write(true).create(true).open("/d/sparse").unwrap();
    for at in 0..200 {
        assert_eq!(file.write_at(&[7; 1024], at << 13).unwrap(), 1024);
    }
    file.sync().unwrap();
    drop(file);
    fs.unmount().unwrap();
    let path = dir.path().join("empty.img");
    image::save(&good, &path);
    let said = require!(oracle::debugfs(&path, false, "ex /d/sparse"));
    // The second line of leaves: that of the first has the level before it.
    let mut leaves: Vec<u64> = Vec::new();
    let mut bytes = [0; 1024];
    for word in said.split(|c: char| !c.is_ascii_digit()) {
        let Ok(block) = word.parse::<u64>() else { continue };
        if block == 0 || block >= good.size_bytes() / 1024 || leaves.contains(&block) {
            continue;
        }
        good.read_at(block * 1024, &mut bytes).unwrap();
        if bytes.starts_with(&[0x0a, 0xf3]) && bytes[6..8] == [0, 0] {
            leaves.push(block);
        }
    }
    assert!(leaves.len() >= 2, "{said}");
    good.write_at(leaves[1] * 1024 + 2, &[0, 0]).unwrap();
    assert_ne!(require!(e2fsck(&good, dir.path(), false)), "");
    let found = problems(&good);
    assert!(found.iter().any(|text| text.contains("is empty")), "{found:#?}");
    let fs = mended(good.snapshot(), dir.path());
    let contents = fs.read("/d/sparse").unwrap();
    assert!(contents.len() > 1 << 20 && contents[..1024] == [7; 1024]);
}

#[test]
fn a_directory_of_clusters_whose_extents_have_other_numbers_keeps_its_names() {
    let dir = tempdir().unwrap();
    let good = require!(sample(dir.path(), SETS[4]));
    let before = seen(&good);
    let path = dir.path().join("clusters.img");
    image::save(&good, &path);
    let said = require!(oracle::debugfs(&path, false, "ex /many\nstat /many"));
    // The second extent of the root of the tree is there if the first does not have all.
    for (word, number) in [(3, 1), (3, 2), (3, 4), (6, 1), (6, 7), (6, 5)] {
        let command = format!("set_inode_field /many block[{word}] {number}");
        let device = require!(damaged(dir.path(), &good, &command));
        let outcome = repaired(&device).unwrap();
        let what = format!("{said} {word} {number}: {:#?}", outcome.findings);
        assert!(outcome.is_clean, "{what}");
        assert_eq!(losses(&before, &device), Vec::<String>::new(), "{what}");
        let fs = mended(device, dir.path());
        assert!(fs.read_dir("/many").unwrap().count() >= 150, "{what}");
    }
}

/// Names of several directories lead to inodes where the descriptor of their group says that none are.
#[test]
fn names_in_two_directories_stay_that_lead_behind_the_used_part_of_a_table() {
    let dir = tempdir().unwrap();
    let good = require!(sample(dir.path(), SETS[3]));
    let device = Arc::new(good);
    let options = MountOptions::new().read_only(false).background(false);
    let fs = options.open(Arc::clone(&device)).unwrap();
    fs.create_dir("/other", &extant::NewInode::root(0o755)).unwrap();
    let mut numbers = Vec::new();
    for name in ["/d/first", "/other/second", "/third"] {
        fs.write(name, name.as_bytes()).unwrap();
        numbers.push(fs.resolve(name).unwrap().ino().0);
    }
    let sb = fs.superblock().clone();
    fs.unmount().unwrap();
    let least = numbers.iter().min().unwrap() - 1;
    assert!(numbers.iter().all(|number| *number <= sb.inodes_per_group), "{numbers:?}");
    let freed: String = numbers.iter().fold(String::new(), |mut text, number| {
        let _ = writeln!(text, "freei <{number}>");
        text
    });
    let unused = sb.inodes_per_group - least;
    let commands = format!("{freed}set_bg 0 itable_unused {unused}\nset_bg 0 checksum calc");
    let image = require!(damaged(dir.path(), &device, &commands));
    assert_ne!(problems(&image), Vec::<String>::new());
    let fs = mended(image, dir.path());
    for name in ["/d/first", "/other/second", "/third"] {
        assert_eq!(fs.read(name).unwrap(), name.as_bytes(), "{name}");
    }
}

/// A block of a directory that lies over one of another, which comes first: e2fsck asks the `..` of what is in it.
#[test]
fn a_directory_stays_where_its_own_entry_says_that_it_is() {
    let dir = tempdir().unwrap();
    let device = Arc::new(require!(sample(dir.path(), SETS[2])));
    let options = MountOptions::new().read_only(false).background(false);
    let fs = options.open(Arc::clone(&device)).unwrap();
    for name in ["/own", "/own/sub"] {
        fs.create_dir(name, &extant::NewInode::root(0o755)).unwrap();
    }
    fs.write("/own/sub/file", [9; 500]).unwrap();
    fs.unmount().unwrap();
    let path = dir.path().join("copied.img");
    image::save(&device, &path);
    let block = |name: &str| -> u64 {
        let said = oracle::debugfs(&path, false, &format!("blocks {name}")).unwrap();
        said.split_whitespace().filter_map(|word| word.parse().ok()).next().unwrap()
    };
    let (from, to) = (block("/own"), block("/lost+found"));
    let mut bytes = [0; 1024];
    device.read_at(from * 1024, &mut bytes).unwrap();
    device.write_at(to * 1024, &bytes).unwrap();
    assert!(repaired(&device).unwrap().is_clean);
    assert_eq!(problems(&device), Vec::<String>::new());
    assert_eq!(e2fsck(&device, dir.path(), false).unwrap(), "");
    let fs = MountOptions::new().open(device).unwrap();
    assert_eq!(fs.read("/own/sub/file").unwrap(), [9; 500]);
}
