//! Group descriptors that are gone: what they led to is found without them.

mod common;

use std::sync::Arc;

use common::{SETS, e2fsck, losses, problems, repaired, sample, seen};
use extant::MountOptions;
use extant_base::GroupIndex;
use extant_block::{BlockDevice, MemoryDevice};
use extant_format::superblock::Superblock;
use extant_layout::Heads;
use extant_testkit::{require, tempdir};

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
            assert_eq!(losses(&before, &device), Vec::<String>::new(), "{what}");
            assert_eq!(problems(&device), Vec::<String>::new(), "{what}");
            assert_eq!(require!(e2fsck(&device, dir.path(), false)), "", "{what}");
        }
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
