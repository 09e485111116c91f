//! File systems of every layout become larger, and every cut of that leaves one of the two.

mod common;

use std::sync::Arc;

use common::{LAYOUTS, Layout, hasty, made, problems, seen, to_size, with_size};
use extant::MountOptions;
use extant_block::{MemoryDevice, RecordingDevice, SharedDevice, Survival};
use extant_format::features::Feature;
use extant_format::superblock::{SUPERBLOCK_OFFSET, Superblock};
use extant_resize::{ChangeError, Goal, ResizeError, plan, resize};
use extant_testkit::image::e2fsck;
use extant_testkit::oracle::{self, LoopMount};
use extant_testkit::{HastyClock, image, require, tempdir};
use rustix::mount::MountFlags;

const MIB: u64 = 1 << 20;

fn superblock(device: &MemoryDevice) -> Superblock {
    use extant_block::BlockDevice;
    let mut bytes = [0; 1024];
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes).unwrap();
    Superblock::decode(&bytes).unwrap()
}

/// Sizes to which a layout of `from` bytes is brought, one after the other.
fn sizes(from: u64) -> Vec<u64> {
    vec![from + 100 * 1024, from + 3 * MIB + 5 * 1024, from * 2 + MIB, from * 5 + 77 * 1024]
}

#[test]
fn every_layout_grows_step_by_step() {
    for layout in LAYOUTS {
        let dir = tempdir().unwrap();
        let first = require!(made(dir.path(), *layout));
        let before = seen(&first);
        let from = {
            let sb = superblock(&first);
            sb.blocks_count * u64::from(sb.block_size.bytes())
        };
        let mut device = first;
        for size in sizes(from) {
            let (next, plan) = to_size(&device, size)
                .unwrap_or_else(|error| panic!("{layout:?} to {size}: {error}"));
            let sb = superblock(&next);
            let bytes = sb.blocks_count * u64::from(sb.block_size.bytes());
            assert_eq!(bytes, plan.after.bytes, "{layout:?} {size}");
            assert!(bytes <= size && plan.after.groups == sb.group_count);
            let text = require!(e2fsck(&next, dir.path()));
            assert_eq!(text, "", "{layout:?} to {size}, {plan:?}");
            assert_eq!(problems(&next), [""; 0], "{layout:?} to {size}, {plan:?}");
            assert_eq!(seen(&next), before, "{layout:?} to {size}");
            device = next;
        }
        let sb = superblock(&device);
        let bytes = sb.blocks_count * u64::from(sb.block_size.bytes());
        assert!(bytes > from * 4, "{layout:?}: {bytes}");
    }
}

#[test]
fn what_lies_behind_the_old_end_is_not_taken_for_inodes() {
    use extant_block::BlockDevice;
    for layout in &LAYOUTS[..3] {
        let dir = tempdir().unwrap();
        let first = require!(made(dir.path(), *layout));
        let large = Arc::new(MemoryDevice::filled_with(0xa5, first.size_bytes() * 2 + MIB));
        let mut bytes = vec![0; first.size_bytes() as usize];
        first.read_at(0, &mut bytes).unwrap();
        large.write_at(0, &bytes).unwrap();
        let shared: SharedDevice = Arc::clone(&large) as SharedDevice;
        resize(&shared, Goal::Bytes(large.size_bytes()), &hasty(), &mut |_| {}).unwrap();
        assert_eq!(require!(e2fsck(&large, dir.path())), "", "{layout:?}");
        assert_eq!(problems(&large), [""; 0], "{layout:?}");
        assert_eq!(seen(&large), seen(&first), "{layout:?}");
    }
}

#[test]
fn the_kernel_mounts_what_has_grown_and_fills_it() {
    for layout in LAYOUTS {
        let dir = tempdir().unwrap();
        let first = require!(made(dir.path(), *layout));
        let size =
            superblock(&first).blocks_count * u64::from(superblock(&first).block_size.bytes());
        // The kernel has pages of 4 KiB.
        if superblock(&first).block_size.bytes() > 4096 {
            continue;
        }
        let (grown, _) = to_size(&first, size * 3).unwrap();
        let path = dir.path().join("grown.img");
        image::save(&first, &path);
        // Some layouts are not for every kernel, whatever their size.
        if require!(LoopMount::attempt(&path, MountFlags::empty(), "")).is_err() {
            println!("{layout:?}: not for this kernel");
            continue;
        }
        std::fs::remove_file(&path).unwrap();
        image::save(&grown, &path);
        println!("{layout:?}");
        {
            let mount = require!(LoopMount::read_write(&path));
            for number in 0..40 {
                let bytes = vec![number as u8; 300_000];
                std::fs::write(mount.path().join(format!("new{number}")), bytes).unwrap();
            }
        }
        require!(oracle::e2fsck(&path)).assert_clean();
        let (again, _) = to_size(&image::load(&path), size * 4).unwrap();
        assert_eq!(require!(e2fsck(&again, dir.path())), "", "{layout:?}");
        assert!(seen(&again).len() >= seen(&first).len() + 40);
    }
}

/// Grows over a device that records, and returns it.
fn recorded(device: &MemoryDevice, size: u64) -> RecordingDevice {
    let recording = Arc::new(RecordingDevice::over(with_size(device, size)));
    let shared: SharedDevice = Arc::clone(&recording) as SharedDevice;
    resize(&shared, Goal::Bytes(size), &hasty(), &mut |_| {}).unwrap();
    drop(shared);
    Arc::into_inner(recording).unwrap()
}

/// After each write, with everything written so far or only with what was flushed.
fn cuts(layout: Layout, factor: u64) -> Result<(), String> {
    let dir = tempdir().unwrap();
    let first = made(dir.path(), layout)?;
    let before = seen(&first);
    let old = superblock(&first);
    let size = old.blocks_count * u64::from(old.block_size.bytes());
    let recording = recorded(&first, size * factor);
    let journaled = old.features.has(Feature::HAS_JOURNAL);
    let mut sizes = std::collections::BTreeSet::new();
    for position in 0..=recording.len() {
        for survival in [Survival::Kept, Survival::Lost] {
            let cut = recording.image_at(position, |_, _| survival);
            let path = dir.path().join("cut.img");
            let _removed = std::fs::remove_file(&path);
            let what = format!("{layout:?} cut at {position}, {survival:?}");
            if journaled {
                let shared = Arc::new(cut.snapshot());
                let clone = Arc::clone(&shared) as SharedDevice;
                let options = MountOptions::new()
                    .read_only(false)
                    .clock(Arc::new(HastyClock))
                    .background(false);
                let fs = options.open_shared(clone).unwrap_or_else(|e| panic!("{what}: {e}"));
                fs.unmount().unwrap();
                assert_eq!(problems(&shared), [""; 0], "{what}");
                assert_eq!(seen(&shared), before, "{what}");
                sizes.insert(superblock(&shared).blocks_count);
                image::save(&cut, &path);
                // The journal is replayed, and nothing else is to be done.
                let done = oracle::e2fsck_as(&path, "-p", &[])?;
                assert!(matches!(done.status, Some(0 | 1)), "{what}: {}", done.text);
                oracle::e2fsck(&path)?.assert_clean();
            } else {
                image::save(&cut, &path);
                let done = oracle::e2fsck_as(&path, "-fy", &[])?;
                assert!(matches!(done.status, Some(0 | 1)), "{what}: {}", done.text);
                oracle::e2fsck(&path)?.assert_clean();
                let cut = image::load(&path);
                assert_eq!(seen(&cut), before, "{what}");
                sizes.insert(superblock(&cut).blocks_count);
            }
        }
    }
    assert_eq!(sizes.len(), 2, "{layout:?}: the old size and the new one: {sizes:?}");
    assert_eq!(sizes.first(), Some(&old.blocks_count));
    Ok(())
}

#[test]
fn a_cut_leaves_the_old_size_or_the_new() {
    for number in [2, 3, 6, 7, 14] {
        require!(cuts(LAYOUTS[number], 2));
    }
}

#[test]
fn a_cut_without_a_journal_leaves_what_a_check_sets_right() {
    for number in [0, 10] {
        require!(cuts(LAYOUTS[number], 3));
    }
}

#[test]
fn what_is_too_large_is_refused_with_the_largest_size() {
    let dir = tempdir().unwrap();
    let first = require!(made(dir.path(), LAYOUTS[2]));
    let copy = first.snapshot();
    let shared: SharedDevice = Arc::new(first);
    // More than the device has.
    match plan(&shared, Goal::Bytes(64 * MIB), 20 * MIB) {
        Err(ResizeError::TooLarge { largest, .. }) => assert_eq!(largest, 20 * MIB),
        other => panic!("{other:?}"),
    }
    // More than numbers of 32 bits count, in blocks and in inodes.
    let layout = Layout { words: &["-text4", "-b1024", "-O^64bit", "-Jsize=1"], size: "12M" };
    let small: SharedDevice = Arc::new(require!(made(dir.path(), layout)));
    match plan(&small, Goal::Bytes(8 << 40), 16 << 40) {
        Err(ResizeError::TooLarge { largest, why }) => {
            assert!(largest < 4 << 40 && largest > (4 << 40) - (16 << 20), "{largest}");
            assert!(why.contains("64bit"));
            let largest = plan(&small, Goal::Bytes(largest), 16 << 40).unwrap();
            let more = largest.after.bytes;
            assert_eq!(plan(&small, Goal::Max, 16 << 40).unwrap().after.bytes, more);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(problems(&copy), [""; 0]);
}

#[test]
fn what_is_not_in_order_is_left_alone() {
    use extant_block::BlockDevice;
    let dir = tempdir().unwrap();
    let first = require!(made(dir.path(), LAYOUTS[2]));
    let mut sb = superblock(&first);
    sb.state.insert(extant_format::features::State::ERROR);
    let large = Arc::new(with_size(&first, 30 * MIB));
    large.write_at(SUPERBLOCK_OFFSET, &sb.encode()).unwrap();
    let shared: SharedDevice = Arc::clone(&large) as SharedDevice;
    let refused = resize(&shared, Goal::Max, &hasty(), &mut |_| {});
    assert!(
        matches!(refused, Err(ResizeError::Change(ChangeError::Damaged { .. }))),
        "{refused:?}"
    );
    assert_eq!(superblock(&large).blocks_count, superblock(&first).blocks_count);
}

/// A bitmap and an inode that their checksums call wrong, and a list of the resize inode that is a directory's block:
/// what is written by them would lie over files.
#[test]
fn nothing_is_written_by_what_is_damaged() {
    use extant_block::BlockDevice;
    use extant_format::group::GroupDescriptor;
    let dir = tempdir().unwrap();
    for (layout, what) in [(2, "block bitmap"), (2, "inode 7"), (0, "the list of the resize inode")]
    {
        let first = require!(made(dir.path(), LAYOUTS[layout]));
        let large = Arc::new(with_size(&first, 30 * MIB));
        let sb = superblock(&first);
        let size = usize::from(sb.desc_size);
        let descriptor = |group: u32| {
            let mut bytes = vec![0; size];
            large.read_at(2048 + u64::from(group) * size as u64, &mut bytes).unwrap();
            GroupDescriptor::decode(&bytes).unwrap()
        };
        // The pointer to the list, in the inode of the resize inode.
        let pointer = descriptor(0).inode_table.0 * 1024 + 6 * u64::from(sb.inode_size) + 40 + 52;
        match what {
            "block bitmap" => {
                let last = descriptor(sb.group_count - 1).block_bitmap.0;
                large.write_at(last * 1024 + 3, &[0xa5]).unwrap();
            }
            "inode 7" => large.write_at(pointer, &[0x77]).unwrap(),
            _ => {
                let mut all = vec![0; first.size_bytes() as usize];
                first.read_at(0, &mut all).unwrap();
                let name = b"lost+found";
                let at = all.windows(name.len()).position(|bytes| bytes == name).unwrap();
                large.write_at(pointer, &(at as u32 / 1024).to_le_bytes()).unwrap();
            }
        }
        let before = large.snapshot();
        let shared: SharedDevice = Arc::clone(&large) as SharedDevice;
        match resize(&shared, Goal::Max, &hasty(), &mut |_| {}) {
            Err(ResizeError::Change(ChangeError::Damaged { why })) => {
                assert!(why.contains(what), "{what}: {why}");
            }
            other => panic!("{what}: {other:?}"),
        }
        let (mut now, mut was) = (vec![0; 30 << 20], vec![0; 30 << 20]);
        large.read_at(0, &mut now).unwrap();
        before.read_at(0, &mut was).unwrap();
        assert!(now == was, "{what}");
    }
}

/// Without a journal nothing but the superblock's state is changed first.
#[test]
fn the_first_write_without_a_journal_says_that_a_check_is_needed() {
    use extant_block::Record;
    let dir = tempdir().unwrap();
    let first = require!(made(dir.path(), LAYOUTS[0]));
    let recording = recorded(&first, 40 * MIB);
    let end = superblock(&first).blocks_count * 1024;
    let inside: Vec<u64> = recording
        .records()
        .iter()
        .filter_map(|record| match record {
            Record::Write { offset, .. } if *offset < end => Some(*offset),
            _ => None,
        })
        .collect();
    assert!(inside.len() > 3, "{inside:?}");
    assert_eq!(inside.first(), Some(&SUPERBLOCK_OFFSET), "{inside:?}");
    let position = recording
        .records()
        .iter()
        .position(|record| matches!(record, Record::Write { offset, .. } if *offset == 1024))
        .unwrap();
    let cut = recording.image_with_all(position + 1);
    let state = superblock(&cut).state;
    assert!(!state.contains(extant_format::features::State::VALID), "{state:?}");
}
