//! The order in which a repair writes, where it puts what is new, and the way back.

mod common;

use std::collections::BTreeSet;
use std::io::Cursor;

use common::{SETS, losses, pieces, planned, problems, repaired, sample, seen};
use extant_block::{BlockDevice, MemoryDevice, Record, RecordingDevice};
use extant_repair::{UndoError, finish_undo, undo};
use extant_testkit::{oracle, require, tempdir};

/// The offset of `s_state` in the device.
const STATE: usize = 0x3a;

/// An image with a directory whose index is damaged, and a block that two files claim: both need new blocks.
fn needs_new_blocks() -> Result<MemoryDevice, String> {
    let dir = tempdir().unwrap();
    let good = sample(dir.path(), SETS[2])?;
    let path = dir.path().join("damaged.img");
    extant_testkit::image::save(&good, &path);
    let text = oracle::debugfs(&path, false, "blocks /d/file5\nblocks /many\nstat /d/file7")?;
    let lists: Vec<Vec<u64>> = text
        .lines()
        .map(|line| line.split_whitespace().map_while(|word| word.parse().ok()).collect())
        .filter(|list: &Vec<u64>| list.len() > 1)
        .collect();
    let (file, many) = (&lists[0], &lists[1]);
    // The root of the index: its limit.
    let at = many[0] * 1024 + 32;
    good.write_at(at, &[1, 0, 0, 0]).unwrap();
    let commands = format!("set_inode_field /d/file7 block[2] {}\n", file[0]);
    let commands = format!("{commands}set_inode_field /d/file7 block[5] {}\n", file[0] as u32);
    let path = dir.path().join("claimed.img");
    extant_testkit::image::save(&good, &path);
    let _said = oracle::debugfs(&path, true, &commands)?;
    let device = extant_testkit::image::load(&path);
    // Every second free block of the first group is marked as used: what is new lies beside what is not.
    let bitmap = bitmaps(&device)[0];
    let mut bits = vec![0; 1024];
    device.read_at(bitmap, &mut bits).unwrap();
    bits.iter_mut().for_each(|byte| *byte |= 0xaa);
    device.write_at(bitmap, &bits).unwrap();
    Ok(device)
}

/// Where the bitmaps of the blocks are; with blocks of 1 KiB.
fn bitmaps(device: &MemoryDevice) -> Vec<u64> {
    let mut sb = [0; 1024];
    device.read_at(1024, &mut sb).unwrap();
    let field = |at: usize| u32::from_le_bytes(sb[at..at + 4].try_into().unwrap());
    let groups = (field(4) - 1).div_ceil(field(0x20));
    let bitmap = |group: u32| {
        let mut at = [0; 4];
        device.read_at(2048 + u64::from(group) * 32, &mut at).unwrap();
        u64::from(u32::from_le_bytes(at)) * 1024
    };
    (0..groups).map(bitmap).collect()
}

/// Clusters that are in use in `device`, by its block bitmaps; with blocks of 1 KiB.
fn in_use(device: &MemoryDevice) -> Vec<bool> {
    let mut sb = [0; 1024];
    device.read_at(1024, &mut sb).unwrap();
    let field = |at: usize| u32::from_le_bytes(sb[at..at + 4].try_into().unwrap());
    let (blocks, per_group) = (field(4), field(0x20));
    let mut used = vec![true; blocks as usize];
    for (bitmap, group) in bitmaps(device).into_iter().zip(0..) {
        let mut bits = vec![0; 1024];
        device.read_at(bitmap, &mut bits).unwrap();
        for bit in 0..per_group.min(blocks - 1 - group * per_group) {
            let block = 1 + group * per_group + bit;
            used[block as usize] = bits[bit as usize / 8] >> (bit % 8) & 1 == 1;
        }
    }
    used
}

#[test]
fn what_is_new_is_written_before_what_leads_there() {
    let device = require!(needs_new_blocks());
    let used = in_use(&device);
    let outcome = planned(&device).unwrap();
    let is_new = |offset: u64| !used[(offset / 1024) as usize];
    let places: Vec<bool> = pieces(&outcome).iter().map(|(offset, _)| is_new(*offset)).collect();
    let news = places.iter().filter(|new| **new).count();
    assert!(news >= 2, "{:#?}", outcome.findings);
    // The mark in the superblock, all that is new, and then the rest.
    assert!(places[1..=news].iter().all(|new| *new), "{places:?}");
}

#[test]
fn nothing_new_lies_where_something_was() {
    let device = require!(needs_new_blocks());
    let before = seen(&device);
    let used = in_use(&device);
    let outcome = planned(&device).unwrap();
    let news = pieces(&outcome).iter().filter(|(at, _)| !used[(*at / 1024) as usize]).count();
    // The first blocks alone change nothing that can be seen.
    let cut = device.snapshot();
    for (offset, bytes) in pieces(&outcome).into_iter().take(1 + news) {
        cut.write_at(offset, bytes).unwrap();
    }
    assert!(news >= 2);
    assert_eq!(seen(&cut), before);
    // Contents of files are never written over, from the first write to the last.
    let fixed: Vec<u64> = pieces(&outcome).iter().skip(1 + news).map(|(at, _)| at / 1024).collect();
    let done = device.snapshot();
    outcome.plan.apply(&done).unwrap();
    assert_eq!(problems(&done), Vec::<String>::new());
    assert!(fixed.len() < 40, "{fixed:?}");
}

#[test]
fn the_first_write_says_that_a_check_is_needed() {
    let device = require!(needs_new_blocks());
    let outcome = planned(&device).unwrap();
    let (offset, bytes) = outcome.plan.writes().next().unwrap();
    assert_eq!((offset, bytes.len()), (1024, 1024));
    assert_eq!(bytes[STATE] & 3, 2, "not clean, with errors");
    let (offset, bytes) = outcome.plan.writes().last().unwrap();
    assert_eq!((offset, bytes[STATE] & 3), (1024, 1), "the last one says that it is clean");
}

fn bytes_of(device: &MemoryDevice) -> Vec<u8> {
    let mut bytes = vec![0; device.size_bytes() as usize];
    device.read_at(0, &mut bytes).unwrap();
    bytes
}

fn put_back(device: &dyn BlockDevice, file: &[u8]) -> Result<u64, UndoError> {
    undo(device, &mut Cursor::new(file), false)
}

#[test]
fn each_step_is_durable_before_the_next_begins() {
    let device = require!(needs_new_blocks());
    let used = in_use(&device);
    let outcome = planned(&device).unwrap();
    let recording = RecordingDevice::over(device);
    outcome.plan.apply(&recording).unwrap();
    // What was written since the last flush: the superblock, what is new, or the rest.
    let (mut kinds, mut steps) = (BTreeSet::new(), 0);
    for record in recording.records() {
        match record {
            Record::Write { offset: 1024, .. } => _ = kinds.insert("superblock"),
            Record::Write { offset, .. } if used[(offset / 1024) as usize] => {
                kinds.insert("old");
            }
            Record::Write { .. } => _ = kinds.insert("new"),
            _ => {
                assert!(kinds.len() < 2, "{kinds:?} with one flush");
                kinds.clear();
                steps += 1;
            }
        }
    }
    assert!(kinds.is_empty(), "{kinds:?} are not flushed");
    assert!(steps >= 4, "{steps}");
}

#[test]
fn undo_puts_back_what_was_first() {
    let device = require!(needs_new_blocks());
    let before = device.snapshot();
    let outcome = planned(&device).unwrap();
    let mut file = Cursor::new(Vec::new());
    outcome.plan.save_undo(&device, &mut file).unwrap();
    // What is written twice, as the superblock, has two records of the same bytes.
    outcome.plan.apply(&device).unwrap();
    let unfinished = file.get_ref().clone();
    finish_undo(&device, &mut file).unwrap();
    let file = file.into_inner();
    assert!(file.len() > unfinished.len());
    let after = device.snapshot();
    for file in [&file, &unfinished, &file[..file.len() - 7].to_vec()] {
        let device = after.snapshot();
        assert!(put_back(&device, file).unwrap() > 0);
        assert!(bytes_of(&device) == bytes_of(&before));
        // A second time, as after a cut in the middle.
        assert!(put_back(&device, file).unwrap() > 0);
        assert!(bytes_of(&device) == bytes_of(&before));
    }
    let recording = RecordingDevice::over(after.snapshot());
    put_back(&recording, &file).unwrap();
    assert_eq!(recording.records().last(), Some(&Record::Flush), "it is durable");
    // A damaged file, and one of another device, change nothing.
    for at in [0, 17, 24, 28, 40, unfinished.len() - 1, unfinished.len(), file.len() - 1] {
        let mut damaged = file.clone();
        damaged[at] ^= 1;
        assert!(put_back(&after, &damaged).is_err(), "{at}");
    }
    let other = MemoryDevice::new(device.size_bytes() + 1024);
    assert!(put_back(&other, &file).is_err());
    for len in [0, 20, 40, unfinished.len() - 1] {
        assert!(put_back(&after, &file[..len]).is_err(), "{len}");
    }
    assert!(bytes_of(&after) == bytes_of(&device));
}

/// What is written after a repair would be lost by what the undo file has.
#[test]
fn undo_leaves_alone_what_was_written_since_or_is_another_image() {
    let device = require!(needs_new_blocks());
    let before = device.snapshot();
    let outcome = planned(&device).unwrap();
    let mut file = Cursor::new(Vec::new());
    outcome.plan.save_undo(&device, &mut file).unwrap();
    let unfinished = file.get_ref().clone();
    outcome.plan.apply(&device).unwrap();
    finish_undo(&device, &mut file).unwrap();
    let file = file.into_inner();
    let refused = |device: &MemoryDevice, file: &[u8], what: &str| {
        let was = bytes_of(device);
        let result = put_back(device, file);
        assert!(matches!(result, Err(UndoError::Changed { .. })), "{what}: {result:?}");
        assert!(bytes_of(device) == was, "{what}");
    };
    // Each place of the repair, one byte changed since.
    for (offset, bytes) in outcome.plan.writes() {
        let changed = device.snapshot();
        let at = offset + bytes.len() as u64 - 1;
        let mut byte = [0];
        changed.read_at(at, &mut byte).unwrap();
        changed.write_at(at, &[byte[0] ^ 0x5a]).unwrap();
        refused(&changed, &file, &format!("changed at {at}"));
    }
    // Another file system of the same size, a mount since; also where nobody knows what the repair left.
    for (what, at) in [("UUID", 0x68), ("time of the last mount", 0x2c)] {
        let other = device.snapshot();
        other.write_at(1024 + at, &[0x77, 0x66]).unwrap();
        refused(&other, &file, what);
        refused(&other, &unfinished, what);
    }
    // Who insists gets it.
    let changed = device.snapshot();
    changed.write_at(1024 + 0x68, &[0x77]).unwrap();
    undo(&changed, &mut Cursor::new(&file), true).unwrap();
    assert!(bytes_of(&changed) == bytes_of(&before));
    // What the repair did not touch may change.
    let free = device.size_bytes() - 1;
    device.write_at(free, &[0x77]).unwrap();
    put_back(&device, &file).unwrap();
}

/// What a debugger or a torn write leaves, with blocks of 1 KiB, where block 0 belongs to nobody.
#[test]
fn a_map_that_leads_to_block_0_is_made_anew() {
    let dir = tempdir().unwrap();
    let device = require!(sample(dir.path(), SETS[2]));
    let path = dir.path().join("damaged.img");
    extant_testkit::image::save(&device, &path);
    // In the root of a tree: the low half of where its first extent lies.
    oracle::debugfs(&path, true, "set_inode_field /d/file1 block[5] 0").unwrap();
    let device = extant_testkit::image::load(&path);
    let found = problems(&device);
    assert!(found.iter().any(|problem| problem.contains("block 0 ")), "{found:?}");
    repaired(&device).unwrap();
    assert_eq!(problems(&device), [""; 0]);
}

/// The second block of the reserve for growth lists a block behind the backups that there are.
#[test]
fn a_list_of_the_resize_inode_has_nothing_behind_its_end() {
    let dir = tempdir().unwrap();
    let device = require!(sample(dir.path(), SETS[2]));
    let mut sb = [0; 1024];
    device.read_at(1024, &mut sb).unwrap();
    assert_ne!(u16::from_le_bytes([sb[0xce], sb[0xcf]]), 0, "it has a reserve");
    // Behind the superblock and one block of descriptors.
    device.write_at(4 * 1024 + 700, &[1, 2, 3, 4]).unwrap();
    assert_eq!(problems(&device).len(), 1);
    repaired(&device).unwrap();
    assert_eq!(problems(&device), [""; 0]);
    assert_eq!(common::e2fsck(&device, dir.path(), false).unwrap(), "");
}

/// What descriptors without sense say to be free, or to overlap, is nothing to go by: before anything is moved
/// the backups count, for all groups.
#[test]
fn descriptors_that_are_gone_come_from_a_backup_and_no_file_is_touched() {
    let mut done = 0;
    for features in SETS {
        for byte in [0, 0xff] {
            let dir = tempdir().unwrap();
            let device = require!(sample(dir.path(), features));
            let before = seen(&device);
            let mut sb = [0; 1024];
            device.read_at(1024, &mut sb).unwrap();
            let word = |at: usize| u32::from_le_bytes(sb[at..at + 4].try_into().unwrap());
            let (blocks, first, in_group) = (word(4), word(20), word(32));
            if blocks - first <= in_group {
                println!("{features:?}: one group, no backup");
                continue;
            }
            let size = 1024u64 << word(24);
            let at = (u64::from(first) + 1) * size;
            device.write_at(at, &vec![byte; size as usize]).unwrap();
            repaired(&device).unwrap();
            assert_eq!(losses(&before, &device), [""; 0], "{features:?} {byte}");
            assert_eq!(problems(&device), [""; 0], "{features:?} {byte}");
            let said = common::e2fsck(&device, dir.path(), false).unwrap();
            assert_eq!(said, "", "{features:?} {byte}");
            done += 1;
        }
    }
    assert!(done >= 8, "{done}");
}

/// Without checksums, one place that cannot be makes doubtful what the others say, though it could be.
#[test]
fn a_descriptor_that_may_be_right_by_chance_is_doubted_beside_one_that_cannot_be() {
    let dir = tempdir().unwrap();
    let device = require!(sample(dir.path(), SETS[0]));
    let before = seen(&device);
    // The inode table of the first group elsewhere, and that of the second behind the end.
    device.write_at(2 * 1024 + 8, &5000u32.to_le_bytes()).unwrap();
    device.write_at(2 * 1024 + 32 + 8, &65_444u32.to_le_bytes()).unwrap();
    repaired(&device).unwrap();
    assert_eq!(losses(&before, &device), [""; 0]);
    assert_eq!(problems(&device), [""; 0]);
    assert_eq!(common::e2fsck(&device, dir.path(), false).unwrap(), "");
}

/// In a file system of 900 MiB the tree reads as pointers to blocks that there are, most of them in use.
#[test]
fn an_extent_tree_whose_flag_is_lost_gets_it_back_and_is_not_read_as_pointers() {
    let dir = tempdir().unwrap();
    let tree = dir.path().join("tree");
    std::fs::create_dir_all(tree.join("docs")).unwrap();
    for (name, len) in [("docs/one", 5001), ("docs/two", 300_000), ("empty", 0)] {
        std::fs::write(tree.join(name), vec![name.len() as u8; len]).unwrap();
    }
    let path = dir.path().join("lost.img");
    for checksums in ["metadata_csum", "^metadata_csum"] {
        let features = format!("-O{checksums}");
        let from = tree.display().to_string();
        let arguments = ["-text4", "-b4096", features.as_str(), "-d", from.as_str()];
        require!(oracle::mke2fs(&path, "900M", &arguments));
        let before = seen(&extant_testkit::image::load(&path));
        for file in ["<2>", "/docs", "/docs/one", "/docs/two", "/empty"] {
            let order = format!("set_inode_field {file} flags 0");
            let broken = dir.path().join("broken.img");
            extant_testkit::image::save(&extant_testkit::image::load(&path), &broken);
            oracle::debugfs(&broken, true, &order).unwrap();
            let device = extant_testkit::image::load(&broken);
            std::fs::remove_file(&broken).unwrap();
            let found = problems(&device);
            assert!(
                found.iter().any(|one| one.contains("the extent tree that it has")),
                "{checksums} {file}: {found:?}"
            );
            repaired(&device).unwrap();
            assert_eq!(losses(&before, &device), [""; 0], "{checksums} {file}");
            assert_eq!(problems(&device), [""; 0], "{checksums} {file}");
            assert_eq!(
                common::e2fsck(&device, dir.path(), false).unwrap(),
                "",
                "{checksums} {file}"
            );
        }
    }
}

/// As a mount leaves it that was cut off: it says that there may be orphans, and there are none.
#[test]
fn what_a_mount_said_of_orphans_goes_with_the_journal() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("cut.img");
    require!(oracle::mke2fs(&path, "64M", &["-text4", "-b4096", "-Oorphan_file"]));
    oracle::debugfs(&path, true, "feature needs_recovery orphan_present").unwrap();
    let device = extant_testkit::image::load(&path);
    repaired(&device).unwrap();
    assert_eq!(problems(&device), [""; 0]);
    assert_eq!(common::e2fsck(&device, dir.path(), false).unwrap(), "");
}

/// As tune2fs leaves them when it switches checksums off.
#[test]
fn blocks_of_an_orphan_file_have_no_checksum_where_nothing_has() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("unsummed.img");
    require!(oracle::mke2fs(&path, "24M", &["-text4", "-b4096", "-Oorphan_file,metadata_csum"]));
    let mut tune = require!(oracle::Tool::find("tune2fs")).command();
    assert!(tune.args(["-O", "^metadata_csum"]).arg(&path).output().unwrap().status.success());
    let device = extant_testkit::image::load(&path);
    assert_ne!(common::e2fsck(&device, dir.path(), false).unwrap(), "");
    let found = problems(&device);
    assert!(found.iter().any(|one| one.contains("orphan file block")), "{found:?}");
    repaired(&device).unwrap();
    assert_eq!(problems(&device), [""; 0]);
    assert_eq!(common::e2fsck(&device, dir.path(), false).unwrap(), "");
}

/// Of 64 MiB, where the log has the fewest blocks that the kernel takes, and none to give away.
#[test]
fn a_journal_that_is_made_anew_has_a_log_beside_its_fast_commits() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("fast.img");
    for damage in ["clri <8>", "zap_block -f <8> 0"] {
        require!(oracle::mke2fs(&path, "64M", &["-text4", "-b4096", "-Ofast_commit"]));
        oracle::debugfs(&path, true, damage).unwrap();
        let device = extant_testkit::image::load(&path);
        assert_ne!(problems(&device), [""; 0], "{damage}");
        repaired(&device).unwrap();
        assert_eq!(problems(&device), [""; 0], "{damage}");
        std::fs::remove_file(&path).unwrap();
        extant_testkit::image::save(&device, &path);
        // The kernel mounts it.
        drop(require!(oracle::LoopMount::read_write(&path)));
    }
}

#[test]
fn fast_commits_that_wait_in_the_log_are_brought_in() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("fast.img");
    require!(oracle::mke2fs(&path, "64M", &["-text4", "-b4096", "-Ofast_commit"]));
    let device = std::sync::Arc::new(extant_testkit::image::load(&path));
    let options = extant::MountOptions::new().read_only(false).background(false);
    let fs = options.open(std::sync::Arc::clone(&device)).unwrap();
    fs.write("/file", [1; 5000]).unwrap();
    fs.sync().unwrap();
    let file = fs.resolve("/file").unwrap();
    assert_eq!(file.write_at(&[2; 9000], 5000).unwrap(), 9000);
    file.sync().unwrap();
    let cut = device.snapshot();
    fs.unmount().unwrap();
    let outcome = repaired(&cut).unwrap();
    assert!(outcome.is_clean && outcome.fast_commits > 0, "{outcome:?}");
    assert_eq!(problems(&cut), [""; 0]);
    assert_eq!(common::e2fsck(&cut, dir.path(), false).unwrap(), "");
    let fs = extant::MountOptions::new().open(cut).unwrap();
    assert!(fs.read("/file").unwrap() == [vec![1; 5000], vec![2; 9000]].concat());
}

/// One bit of the superblock that says something of a journal which is not there: Linux mounts neither, and e2fsck stops.
#[test]
fn what_is_said_of_a_journal_that_is_not_there_is_set_right() {
    for damage in ["feature has_journal", "feature needs_recovery"] {
        let dir = tempdir().unwrap();
        let good = require!(sample(dir.path(), SETS[0]));
        let path = dir.path().join("damaged.img");
        extant_testkit::image::save(&good, &path);
        oracle::debugfs(&path, true, damage).unwrap();
        let device = extant_testkit::image::load(&path);
        assert_ne!(problems(&device), [""; 0], "{damage}");
        repaired(&device).unwrap();
        assert_eq!(problems(&device), [""; 0], "{damage}");
        assert_eq!(common::e2fsck(&device, dir.path(), false).unwrap(), "", "{damage}");
        assert_eq!(losses(&seen(&good), &device), [""; 0], "{damage}");
    }
}

/// A log of the fewest blocks, which says that some of them are for fast commits: Linux and e2fsck call it corrupt.
#[test]
fn a_journal_that_is_too_small_for_its_fast_commits_has_none() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("small.img");
    require!(oracle::mke2fs(&path, "16M", &["-text4", "-b1024", "-Jsize=1"]));
    let device = extant_testkit::image::load(&path);
    let mut bytes = vec![0; 16 << 20];
    device.read_at(0, &mut bytes).unwrap();
    let magic = b"\xc0\x3b\x39\x98\0\0\0\x04";
    let at = bytes.windows(8).position(|window| window == magic).unwrap() as u64;
    device.write_at(at + 0x28, &0x20_u32.to_be_bytes()).unwrap();
    let found = problems(&device);
    assert!(found.iter().any(|one| one.contains("fast commits")), "{found:?}");
    repaired(&device).unwrap();
    assert_eq!(problems(&device), [""; 0]);
    assert_eq!(common::e2fsck(&device, dir.path(), false).unwrap(), "");
}

#[test]
fn a_clean_image_is_not_written() {
    for features in SETS {
        let dir = tempdir().unwrap();
        let good = require!(sample(dir.path(), features));
        let outcome = repaired(&good).unwrap();
        assert!(
            outcome.plan.is_empty() && outcome.is_clean,
            "{features:?}: {:#?}",
            outcome.findings
        );
    }
}

/// What another program finds by the copies is what this one has set right.
#[test]
fn copies_say_the_same_as_what_was_set_right() {
    let dir = tempdir().unwrap();
    let good = require!(sample(dir.path(), SETS[1]));
    for damage in ["set_bg 1 inode_table 99999", "feature ^resize_inode", "clri <8>"] {
        let path = dir.path().join("damaged.img");
        let _removed = std::fs::remove_file(&path);
        extant_testkit::image::save(&good, &path);
        oracle::debugfs(&path, true, damage).unwrap();
        let device = extant_testkit::image::load(&path);
        // As they are when nobody has written them for a while.
        for block in 0..2 {
            device.write_at((8193 + block) * 1024, &[0xee; 1024]).unwrap();
        }
        repaired(&device).unwrap();
        let path = dir.path().join("repaired.img");
        let _removed = std::fs::remove_file(&path);
        extant_testkit::image::save(&device, &path);
        let said = oracle::e2fsck_as(&path, "-fn", &["-b", "8193", "-B", "1024"]).unwrap();
        assert!(said.status == Some(0) && !said.text.contains("? no"), "{damage}: {}", said.text);
    }
}

/// A log that is to be brought in, in a file system that is in order: nothing was wrong with it. The mark that it needs a
/// check, which lasts while it is written, is no finding either.
#[test]
fn a_journal_that_is_brought_in_is_no_problem() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    require!(oracle::mke2fs(&path, "16M", &["-t", "ext4", "-b", "1024", "-J", "size=1"]));
    let data = dir.path().join("data");
    std::fs::write(&data, [0xd7; 1024]).unwrap();
    let script = format!("jo -c\njw -b 9000 {}\njc\n", data.display());
    require!(oracle::debugfs(&path, true, &script));
    let device = extant_testkit::image::load(&path);
    let outcome = planned(&device).unwrap();
    let codes: Vec<&str> = outcome.findings.iter().map(|one| one.code).collect();
    assert_eq!((codes, outcome.transactions, outcome.is_clean), (vec![], 1, true));
    let (offset, bytes) = outcome.plan.writes().last().unwrap();
    assert_eq!((offset, bytes[STATE] & 3), (1024, 1), "it is marked as in order at last");
    outcome.plan.apply(&device).unwrap();
    let mut block = [0; 1024];
    device.read_at(9000 * 1024, &mut block).unwrap();
    assert_eq!(block, [0xd7; 1024]);
    assert!(planned(&device).unwrap().plan.is_empty());
}

/// A file of 100 bytes in its inode that says that it has more than any file: Linux reads nothing of it, and e2fsck
/// makes it empty.
#[test]
fn a_file_in_its_inode_is_not_longer_than_any_file() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("inline.img");
    let features = ["-text4", "-b1024", "-I256", "-Oinline_data,^metadata_csum"];
    require!(oracle::mke2fs(&path, "8M", &features));
    let device = std::sync::Arc::new(extant_testkit::image::load(&path));
    let fs = extant::MountOptions::new().read_only(false).open(std::sync::Arc::clone(&device));
    let fs = fs.unwrap();
    fs.write("/file", [7; 100]).unwrap();
    fs.unmount().unwrap();
    std::fs::remove_file(&path).unwrap();
    extant_testkit::image::save(&device.snapshot(), &path);
    oracle::debugfs(&path, true, "set_inode_field /file size 24558790502252639").unwrap();
    let device = extant_testkit::image::load(&path);
    assert!(problems(&device).iter().any(|text| text.contains("no map reaches so far")));
    assert!(repaired(&device).unwrap().is_clean);
    assert_eq!(problems(&device), [""; 0]);
    assert_eq!(common::e2fsck(&device, dir.path(), false).unwrap(), "");
    let fs = extant::MountOptions::new().open(device).unwrap();
    assert_eq!(fs.read("/file").unwrap(), [7; 100]);
}

#[test]
fn a_file_without_a_name_gets_one_in_the_root_where_no_inode_is_free() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("full.img");
    let good = require!(sample(dir.path(), SETS[2]));
    extant_testkit::image::save(&good, &path);
    oracle::debugfs(&path, true, "rmdir /lost+found").unwrap();
    let device = std::sync::Arc::new(extant_testkit::image::load(&path));
    let fs = extant::MountOptions::new().read_only(false).open(std::sync::Arc::clone(&device));
    let fs = fs.unwrap();
    let ino = fs.resolve("/d/file5").unwrap().ino();
    fs.write("/d/file21", [21; 100]).unwrap();
    let mut made = 0;
    while fs.write(format!("/many/{made}"), [1; 10]).is_ok() {
        made += 1;
    }
    assert!(made > 100, "{made}");
    fs.unmount().unwrap();
    std::fs::remove_file(&path).unwrap();
    extant_testkit::image::save(&device.snapshot(), &path);
    oracle::debugfs(&path, true, "unlink /d/file5").unwrap();
    let device = extant_testkit::image::load(&path);
    let outcome = repaired(&device).unwrap();
    assert!(outcome.is_clean, "{:#?}", outcome.findings);
    assert_eq!(problems(&device), [""; 0]);
    assert_eq!(common::e2fsck(&device, dir.path(), false).unwrap(), "");
    let fs = extant::MountOptions::new().open(device).unwrap();
    assert_eq!(fs.read(format!("/#{ino}")).unwrap(), vec![6; 15000]);
}
