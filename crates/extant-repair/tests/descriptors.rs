//! Group descriptors that are gone: what they led to is found without them.

mod common;

use std::path::Path;
use std::sync::Arc;

use common::{NOW, SETS, e2fsck, losses, problems, repaired, sample, seen};
use extant::MountOptions;
use extant_base::GroupIndex;
use extant_block::{BlockDevice, MemoryDevice};
use extant_format::group::{GroupChecksum, GroupDescriptor};
use extant_format::superblock::Superblock;
use extant_layout::Heads;
use extant_repair::{Ask, Decision, Fix, RepairOptions, repair};
use extant_testkit::{image, oracle, require, tempdir};

fn superblock(device: &MemoryDevice) -> Superblock {
    let mut bytes = [0; 1024];
    device.read_at(1024, &mut bytes).unwrap();
    Superblock::decode_unverified(&bytes).unwrap()
}

/// Wipes the descriptors of groups `from..to` in the primary table, and in its copies if `copies` says so.
fn wipe(device: &MemoryDevice, from: u32, to: u32, copies: bool) {
    let sb = superblock(device);
    let heads = Heads::of(&sb);
    let (per_block, size) = (sb.descriptors_per_block(), usize::from(sb.desc_size.max(32)));
    let holders: Vec<GroupIndex> = match copies {
        true => heads.superblock_groups().collect(),
        false => vec![GroupIndex(0)],
    };
    let all = (0..sb.group_count).map(GroupIndex).filter(|group| copies || *group == GroupIndex(0));
    let holders: Vec<GroupIndex> = holders.into_iter().chain(all).collect();
    for group in from..to.min(sb.group_count) {
        for holder in &holders {
            let Some(block) = heads.descriptor_block_copy(group / per_block, *holder) else {
                continue;
            };
            let slot = (group % per_block) as usize * size;
            let at = block.0 * u64::from(sb.block_size.bytes()) + slot as u64;
            device.write_at(at, &vec![0; size]).unwrap();
        }
    }
}

#[test]
fn files_are_kept_of_groups_whose_descriptors_are_gone_with_all_copies() {
    let dir = tempdir().unwrap();
    for set in SETS {
        let good = require!(sample(dir.path(), set));
        let before = seen(&good);
        assert!(before.len() > 100, "{set:?}");
        let groups = superblock(&good).group_count;
        for (from, to) in [(0, 1), (1, 2), (0, groups)] {
            let device = good.snapshot();
            wipe(&device, from, to, true);
            let outcome = repaired(&device).unwrap();
            let what = format!("{set:?}, groups {from} to {to}: {:#?}", outcome.findings);
            assert!(outcome.is_clean, "{what}");
            assert!(outcome.findings.iter().all(|one| one.hint.is_none()), "{what}");
            assert_eq!(losses(&before, &device), Vec::<String>::new(), "{what}");
            assert_eq!(problems(&device), Vec::<String>::new(), "{what}");
            assert_eq!(require!(e2fsck(&device, dir.path(), false)), "", "{what}");
        }
    }
}

#[test]
fn the_only_superblock_loses_nothing_by_a_field_that_follows_from_others() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("one.img");
    let source = dir.path().join("few");
    std::fs::create_dir_all(source.join("d")).unwrap();
    std::fs::write(source.join("d/file"), "contents").unwrap();
    // One group: there is no backup.
    let words = ["-text4", "-b1024", "-Jsize=1", "-d", &source.display().to_string()];
    require!(oracle::mke2fs(&path, "8M", &words));
    let good = extant_testkit::image::load(&path);
    let before = seen(&good);
    let places: [(u64, &[u8]); 9] = [
        (0x174, &[164]),
        // The hash of new directories: none that Linux knows, so it mounts nothing.
        (0xfc, &[127]),
        // The UUID and the number of an external journal, beside the inode of the one inside.
        (0xd0, &[7; 16]),
        (0xe4, &[1, 2, 3, 4]),
        (0xce, &[0xff, 0xff]),
        // The revision, without which it has no features.
        (0x4c, &[0]),
        // The first inode that is not reserved: among the files, none at all, and one behind the last.
        (0x54, &[13, 0, 0, 0]),
        (0x54, &[0, 0, 0, 0]),
        (0x54, &[11, 0, 0, 0x40]),
    ];
    for (at, bytes) in places {
        let device = good.snapshot();
        device.write_at(1024 + at, bytes).unwrap();
        let outcome = repaired(&device).unwrap();
        let what = format!("{at:#x}: {:#?}", outcome.findings);
        assert!(outcome.is_clean && !outcome.findings.is_empty(), "{what}");
        assert_eq!(losses(&before, &device), Vec::<String>::new(), "{what}");
        assert_eq!(problems(&device), Vec::<String>::new(), "{what}");
        assert_eq!(require!(e2fsck(&device, dir.path(), false)), "", "{what}");
    }
}

/// Of one group there is no copy of anything: what lies there says that a descriptor is wrong.
#[test]
fn a_bitmap_over_the_inode_table_is_moved_and_not_written_also_where_pieces_share_clusters() {
    let dir = tempdir().unwrap();
    let words = ["-text4", "-b1024", "-Obigalloc,^has_journal,^resize_inode", "-C2048"];
    let good = require!(sample(dir.path(), &words));
    let before = seen(&good);
    let path = dir.path().join("over.img");
    for field in ["inode_bitmap", "block_bitmap"] {
        let mut table = [0; 4];
        good.read_at(2048 + 8, &mut table).unwrap();
        for at in [0, 3] {
            let block = u32::from_le_bytes(table) + at;
            let _removed = std::fs::remove_file(&path);
            image::save(&good, &path);
            let commands = format!("set_bg 0 {field} {block}\nset_bg 0 checksum calc");
            require!(oracle::debugfs(&path, true, &commands));
            let device = image::load(&path);
            let outcome = repaired(&device).unwrap();
            let what = format!("{field} {at}: {:#?}", outcome.findings);
            assert!(outcome.is_clean, "{what}");
            assert_eq!(losses(&before, &device), Vec::<String>::new(), "{what}");
            assert_eq!(problems(&device), Vec::<String>::new(), "{what}");
            assert_eq!(require!(e2fsck(&device, dir.path(), false)), "", "{what}");
        }
    }
}

#[test]
fn a_number_of_inodes_in_a_group_that_no_bitmap_has_is_wrong_and_not_their_sum() {
    let dir = tempdir().unwrap();
    let words = ["-text4", "-b4096", "-O^metadata_csum,uninit_bg", "-Jsize=4"];
    let good = require!(sample(dir.path(), &words));
    let before = seen(&good);
    for wrong in [39, 17, 513] {
        let device = good.snapshot();
        device.write_at(1024 + 0x28, &u32::to_le_bytes(wrong)).unwrap();
        let outcome = repaired(&device).unwrap();
        let what = format!("{wrong}: {:#?}", outcome.findings);
        assert!(outcome.is_clean, "{what}");
        assert_eq!(losses(&before, &device), Vec::<String>::new(), "{what}");
        assert_eq!(require!(e2fsck(&device, dir.path(), false)), "", "{what}");
    }
}

/// `mke2fs -r 0` writes down the sizes that revision 0 has anyway.
#[test]
fn a_file_system_of_revision_0_that_is_in_order_stays_one() {
    let dir = tempdir().unwrap();
    let good = require!(sample(dir.path(), &["-text2", "-r0", "-b1024"]));
    assert_eq!(problems(&good), Vec::<String>::new());
    let outcome = repaired(&good).unwrap();
    assert!(outcome.findings.is_empty() && outcome.plan.is_empty(), "{:#?}", outcome.findings);
    // Nor does one wrong count make another revision of it.
    good.write_at(1024 + 0xc, &[7]).unwrap();
    assert!(repaired(&good).unwrap().is_clean);
    let mut revision = [9; 4];
    good.read_at(1024 + 0x4c, &mut revision).unwrap();
    assert_eq!((revision, require!(e2fsck(&good, dir.path(), false))), ([0; 4], String::new()));
}

#[test]
fn of_two_groups_that_name_one_place_the_one_that_its_copy_contradicts_is_wrong() {
    let sets: [&[&str]; 3] = [
        &["-text3", "-b1024", "-Jsize=1"],
        &["-text4", "-b1024", "-O^metadata_csum,^uninit_bg,^64bit", "-Jsize=1"],
        &["-text4", "-b1024", "-O^metadata_csum,^uninit_bg,^64bit,^flex_bg", "-Jsize=1"],
    ];
    for features in sets {
        let dir = tempdir().unwrap();
        let good = require!(sample(dir.path(), features));
        let before = seen(&good);
        let mut table = [0; 4];
        good.read_at(2048 + 8, &mut table).unwrap();
        let table = u32::from_le_bytes(table);
        for by in [-3, -1, 1, 2, 9, 27] {
            let device = good.snapshot();
            device.write_at(2048 + 8, &table.wrapping_add_signed(by).to_le_bytes()).unwrap();
            let outcome = repaired(&device).unwrap();
            let what = format!("{features:?}, {by}: {:#?}", outcome.findings);
            assert_eq!(losses(&before, &device), Vec::<String>::new(), "{what}");
            assert!(outcome.is_clean, "{what}");
            assert_eq!(require!(e2fsck(&device, dir.path(), false)), "", "{what}");
        }
    }
}

#[test]
fn tables_keep_their_length_where_a_copy_of_the_superblock_has_it() {
    let dir = tempdir().unwrap();
    // Without checksums.
    let good = require!(sample(dir.path(), SETS[1]));
    let before = seen(&good);
    let per_group = superblock(&good).inodes_per_group;
    let count = superblock(&good).inodes_count;
    let places: [(u64, u32); 3] = [(0x28, per_group + 8), (0x28, per_group - 1), (0, count + 8)];
    for (at, value) in places {
        let device = good.snapshot();
        device.write_at(1024 + at, &value.to_le_bytes()).unwrap();
        let outcome = repaired(&device).unwrap();
        let what = format!("{at:#x}: {:#?}", outcome.findings);
        assert!(outcome.is_clean && !outcome.findings.is_empty(), "{what}");
        assert_eq!(losses(&before, &device), Vec::<String>::new(), "{what}");
        assert_eq!(superblock(&device).inodes_count, count);
        assert_eq!(require!(e2fsck(&device, dir.path(), false)), "", "{what}");
    }
}

/// `good`, with files that only the log has.
fn with_a_log(good: &MemoryDevice) -> MemoryDevice {
    let device = Arc::new(good.snapshot());
    let options = MountOptions::new().read_only(false).background(false);
    let fs = options.open(Arc::clone(&device)).unwrap();
    for number in 0..10 {
        fs.write(format!("/d/late{number}"), vec![number; 2000]).unwrap();
        fs.sync().unwrap();
    }
    let left = device.snapshot();
    fs.unmount().unwrap();
    left
}

#[test]
fn what_waits_in_the_log_is_brought_in_though_the_descriptors_are_gone() {
    let dir = tempdir().unwrap();
    let mut logs = 0;
    for set in SETS {
        let good = require!(sample(dir.path(), set));
        let left = with_a_log(&good);
        if superblock(&good).journal_inode.0 == 0 {
            continue;
        }
        let replayed = left.snapshot();
        assert!(repaired(&replayed).unwrap().transactions >= 10, "{set:?}");
        let before = seen(&replayed);
        logs += 1;
        for copies in [false, true] {
            let device = left.snapshot();
            wipe(&device, 0, u32::MAX, copies);
            let outcome = repaired(&device).unwrap();
            let what = format!("{set:?}, copies {copies}: {:#?}", outcome.findings);
            assert!(outcome.is_clean && outcome.transactions >= 10, "{what}");
            assert_eq!(losses(&before, &device), Vec::<String>::new(), "{what}");
            assert_eq!(problems(&device), Vec::<String>::new(), "{what}");
        }
    }
    assert!(logs >= 5, "{logs}");
}

/// An image without `flex_bg` in whose group 3 the inode table has another place than mke2fs gives it.
fn with_a_table_elsewhere(dir: &Path) -> Result<MemoryDevice, String> {
    let source = dir.join("source");
    for number in 0..200 {
        let sub = source.join(format!("d{}", number % 20));
        std::fs::create_dir_all(&sub).unwrap();
        std::fs::write(sub.join(format!("f{number}")), format!("{number}")).unwrap();
    }
    let (path, from) = (dir.join("elsewhere.img"), source.display().to_string());
    let words = ["-text4", "-b1024", "-g1024", "-N1024", "-O^flex_bg", "-d", &from];
    oracle::mke2fs(&path, "16M", &words)?;
    let device = extant_testkit::image::load(&path);
    let mut raw = [0; 64];
    device.read_at(2048 + 3 * 64, &mut raw).unwrap();
    let old = GroupDescriptor::decode(&raw).unwrap().inode_table.0;
    // 64 inodes of 256 bytes, to the last blocks of the group, which are free.
    let new = 1 + 4 * 1024 - 16;
    let mut table = vec![0; 16 << 10];
    device.read_at(old * 1024, &mut table).unwrap();
    device.write_at(new * 1024, &table).unwrap();
    // Zeros would be a table that was never used.
    device.write_at(old * 1024, &vec![b'x'; table.len()]).unwrap();
    std::fs::remove_file(&path).unwrap();
    extant_testkit::image::save(&device, &path);
    oracle::debugfs(&path, true, &format!("set_bg 3 inode_table {new}\nset_bg 3 checksum calc\n"))?;
    oracle::e2fsck_as(&path, "-fy", &[])?;
    Ok(extant_testkit::image::load(&path))
}

/// Stops at the first finding that has a hint.
struct UntilHint(Vec<String>);

impl Ask for UntilHint {
    fn ask(&mut self, finding: &Fix) -> Decision {
        self.0.extend(finding.hint.clone());
        if finding.hint.is_some() { Decision::Stop } else { Decision::Fix }
    }
}

/// Small images with tables where mke2fs does not put them by default, by the options that they are made with and the
/// words of tune2fs that follow.
const ELSEWHERE: [(&str, &[&str], &[&str]); 5] = [
    ("moved by larger inodes", &["-text4", "-O^flex_bg", "-I128", "-g2048"], &["-I", "256"]),
    ("moved by larger inodes, without checksums", &["-text3", "-I128", "-g2048"], &["-I", "256"]),
    ("packed", &["-text4", "-g1024", "-Epacked_meta_blocks=1"], &[]),
    (
        "packed, without checksums",
        &["-text4", "-O^metadata_csum", "-g1024", "-Epacked_meta_blocks=1"],
        &[],
    ),
    ("flex groups of 1024 groups", &["-text4", "-g1024", "-G2048"], &[]),
];

#[test]
fn a_table_is_found_by_its_inodes_where_neither_a_backup_nor_mke2fs_says() {
    let dir = tempdir().unwrap();
    let mut images = vec![("one moved", require!(with_a_table_elsewhere(dir.path())))];
    let source = dir.path().join("source").display().to_string();
    for (what, words, tune) in ELSEWHERE {
        let path = dir.path().join("one.img");
        let words = [words, &["-b1024", "-N1024", "-d", &source]].concat();
        require!(oracle::mke2fs(&path, "16M", &words));
        if !tune.is_empty() {
            let image = path.display().to_string();
            require!(oracle::Tool::find("tune2fs")).run([tune, &[&image]].concat());
            require!(oracle::e2fsck_as(&path, "-fy", &[]));
        }
        images.push((what, extant_testkit::image::load(&path)));
        std::fs::remove_file(&path).unwrap();
    }
    for (what, good) in images {
        let before = seen(&good);
        assert!(before.len() > 200, "{what}");
        assert!(repaired(&good.snapshot()).unwrap().findings.is_empty(), "{what}");
        let groups = superblock(&good).group_count;
        for (from, to) in [(3, 4), (0, groups)] {
            let device = good.snapshot();
            wipe(&device, from, to, true);
            let outcome = repaired(&device).unwrap();
            let what = format!("{what}, groups {from} to {to}: {:#?}", outcome.findings);
            assert!(outcome.is_clean, "{what}");
            assert_eq!(losses(&before, &device), Vec::<String>::new(), "{what}");
            assert_eq!(problems(&device), Vec::<String>::new(), "{what}");
            assert_eq!(require!(e2fsck(&device, dir.path(), false)), "", "{what}");
        }
    }
}

#[test]
fn who_would_lose_a_table_that_is_not_found_hears_of_salvage_before_anything_is_written() {
    let dir = tempdir().unwrap();
    let good = require!(with_a_table_elsewhere(dir.path()));
    let before = seen(&good);
    assert!(before.len() > 200);
    assert!(repaired(&good.snapshot()).unwrap().findings.is_empty());
    let device = good.snapshot();
    wipe(&device, 3, 4, true);
    // What the table is written over with is nothing that a table could be.
    device.write_at((1 + 4 * 1024 - 16) * 1024, &[b'y'; 16 << 10]).unwrap();
    let mut asked = UntilHint(Vec::new());
    let shared = Arc::new(device.snapshot());
    let stopped = repair(shared, &RepairOptions { now: NOW }, &mut asked).unwrap();
    assert!(stopped.is_stopped && stopped.plan.is_empty());
    let [hint] = &asked.0[..] else { panic!("{:?}", asked.0) };
    for word in ["group 3", "64 inodes", "extant salvage"] {
        assert!(hint.contains(word), "{hint}");
    }
    let outcome = repaired(&device).unwrap();
    assert!(outcome.is_clean);
    let hints: Vec<_> = outcome.findings.iter().filter_map(|one| one.hint.as_ref()).collect();
    assert_eq!(hints, [hint], "once for each group");
    assert!(losses(&before, &device).len() > 30, "it says what is true");
}

#[test]
fn two_descriptors_that_have_each_other_s_table_are_no_other_seed() {
    let dir = tempdir().unwrap();
    let source = dir.path().join("source");
    std::fs::create_dir_all(source.join("d/e")).unwrap();
    for number in 0..100 {
        std::fs::write(source.join(format!("d/file{number}")), vec![1; number * 20]).unwrap();
    }
    let path = dir.path().join("two.img");
    let from = source.display().to_string();
    let words = ["-text4", "-b1024", "-O^flex_bg,metadata_csum", "-Jsize=1", "-d", &from];
    require!(oracle::mke2fs(&path, "40M", &words));
    let good = extant_testkit::image::load(&path);
    let before = seen(&good);
    let sb = superblock(&good);
    let place = |group: u32| {
        let table = Heads::of(&sb).descriptor_block(0).unwrap().0 * 1024;
        table + u64::from(group) * u64::from(sb.desc_size)
    };
    for other in 1..sb.group_count {
        let device = good.snapshot();
        let mut pair = [0, other].map(|group| {
            let mut raw = vec![0; usize::from(sb.desc_size)];
            good.read_at(place(group), &mut raw).unwrap();
            (group, raw.clone(), GroupDescriptor::decode(&raw).unwrap())
        });
        let tables = [pair[1].2.inode_table, pair[0].2.inode_table];
        for ((group, raw, descriptor), table) in pair.iter_mut().zip(tables) {
            descriptor.inode_table = table;
            descriptor.encode(GroupIndex(*group), &GroupChecksum::of(&sb), raw).unwrap();
            device.write_at(place(*group), raw).unwrap();
        }
        let outcome = repaired(&device).unwrap();
        let what = format!("{other}: {:#?}", outcome.findings);
        assert!(outcome.findings.iter().all(|one| one.code != "checksum-seed"), "{what}");
        assert!(outcome.is_clean, "{what}");
        assert_eq!(losses(&before, &device), Vec::<String>::new(), "{what}");
        assert_eq!(require!(e2fsck(&device, dir.path(), false)), "", "{what}");
    }
}
