//! File systems become smaller, files move in front of the new end, and no cut loses one.

mod common;

use std::sync::Arc;

use common::{
    LAYOUTS, Layout, hasty, made, many_files, problems, seen, to_size, with_at_the_end,
    with_files_at_the_end, with_inodes_at_the_end, with_last_inodes, with_size,
};
use extant::MountOptions;
use extant_base::Prng;
use extant_block::{BlockDevice, MemoryDevice, RecordingDevice, SharedDevice, Survival};
use extant_format::features::Feature;
use extant_format::superblock::{SUPERBLOCK_OFFSET, Superblock};
use extant_resize::{ChangeError, Goal, ResizeError, plan, resize};
use extant_testkit::image::e2fsck;
use extant_testkit::oracle::LoopMount;
use extant_testkit::{HastyClock, image, oracle, require, tempdir};
use rustix::mount::MountFlags;
use std::os::unix::fs::MetadataExt;

fn superblock(device: &MemoryDevice) -> Superblock {
    let mut bytes = [0; 1024];
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes).unwrap();
    Superblock::decode(&bytes).unwrap()
}

fn bytes(device: &MemoryDevice) -> u64 {
    let sb = superblock(device);
    sb.blocks_count * u64::from(sb.block_size.bytes())
}

fn smallest(device: &MemoryDevice) -> u64 {
    let shared: SharedDevice = Arc::new(device.snapshot());
    plan(&shared, Goal::Min, device.size_bytes()).unwrap().after.bytes
}

/// An image with files at its end, on a device of its size; `None` when its tools are missing.
fn full_at_the_end(dir: &std::path::Path, layout: Layout) -> Result<MemoryDevice, String> {
    let first = made(dir, layout)?;
    let (grown, _) = to_size(&first, bytes(&first) * 2).unwrap();
    // Opening an image with multi-mount protection takes half a minute.
    let full = match superblock(&grown).features.has(Feature::MMP) {
        true => grown,
        false => with_files_at_the_end(&grown),
    };
    let text = e2fsck(&full, dir)?;
    assert_eq!(text, "", "{layout:?}: before anything");
    Ok(full)
}

#[test]
fn every_layout_becomes_as_small_as_it_can_and_grows_again() {
    let mut moved = 0;
    for layout in LAYOUTS {
        let dir = tempdir().unwrap();
        let full = require!(full_at_the_end(dir.path(), *layout));
        let before = seen(&full);
        let size = bytes(&full);
        let least = smallest(&full);
        assert!(least < size, "{layout:?}: {least} of {size}");
        let middle = (size + least) / 2;
        let mut device = full;
        // What moved on the way may have maps of another size.
        let near = least + 8 * u64::from(superblock(&device).block_size.bytes());
        for wanted in [middle, near] {
            let (next, plan) = to_size(&device, wanted)
                .unwrap_or_else(|error| panic!("{layout:?} to {wanted}: {error}"));
            moved += plan.moved_files;
            let what = format!("{layout:?} to {wanted}, {plan:?}");
            assert_eq!(bytes(&next), plan.after.bytes, "{what}");
            assert!(plan.after.bytes <= wanted, "{what}");
            assert_eq!(require!(e2fsck(&next, dir.path())), "", "{what}");
            assert_eq!(problems(&next), [""; 0], "{what}");
            assert_eq!(seen(&next), before, "{what}");
            device = next;
        }
        let least = smallest(&device);
        let (device, _) = to_size(&device, least).unwrap();
        assert_eq!(bytes(&device), least, "{layout:?}: the smallest size can be reached");
        assert_eq!(require!(e2fsck(&device, dir.path())), "", "{layout:?}: {least}");
        assert_eq!(seen(&device), before, "{layout:?}: {least}");
        let (again, _) = to_size(&device, size).unwrap();
        assert_eq!(require!(e2fsck(&again, dir.path())), "", "{layout:?}");
        assert_eq!(seen(&again), before, "{layout:?}");
    }
    assert!(moved > 50, "{moved}");
}

#[test]
fn a_run_that_is_copied_in_several_pieces_moves_whole() {
    let dir = tempdir().unwrap();
    let first = require!(made(dir.path(), LAYOUTS[2]));
    let (grown, _) = to_size(&first, bytes(&first) * 2).unwrap();
    let full = with_at_the_end(&grown, |fs| {
        // Each block is another; a piece is 1 MiB.
        let content: Vec<u8> =
            (0..2600u32).flat_map(|block| [block.to_le_bytes(); 256].concat()).collect();
        fs.write("/long", content).unwrap();
        fs.sync().unwrap();
        let file = fs.resolve("/long").unwrap();
        let runs = file.map(0..2600).count();
        assert!(runs <= 2, "{runs} runs");
    });
    let before = seen(&full);
    let (small, plan) = to_size(&full, smallest(&full)).unwrap();
    assert!(plan.moved_files >= 1);
    assert_eq!(seen(&small), before);
    assert_eq!(require!(e2fsck(&small, dir.path())), "");
}

#[test]
fn less_than_the_smallest_size_is_refused_with_it() {
    let dir = tempdir().unwrap();
    let full = require!(full_at_the_end(dir.path(), LAYOUTS[3]));
    let least = smallest(&full);
    let shared: SharedDevice = Arc::new(full.snapshot());
    match resize(&shared, Goal::Bytes(least - 4096), &hasty(), &mut |_| {}) {
        Err(ResizeError::TooSmall { smallest, why }) => {
            assert_eq!(smallest, least);
            assert!(!why.is_empty());
        }
        other => panic!("{other:?}"),
    }
    // Nothing at all, too.
    assert!(matches!(
        resize(&shared, Goal::Bytes(0), &hasty(), &mut |_| {}),
        Err(ResizeError::TooSmall { .. })
    ));
    assert_eq!(bytes(&full), full.size_bytes() / 1024 * 1024);
}

#[test]
fn what_a_check_finds_wrong_is_not_made_smaller() {
    let dir = tempdir().unwrap();
    let full = require!(full_at_the_end(dir.path(), LAYOUTS[3]));
    let least = smallest(&full);
    let path = dir.path().join("damaged");
    image::save(&full, &path);
    // Its checksum is right, and only who counts names notices.
    require!(oracle::debugfs(&path, true, "set_inode_field <2> links_count 77"));
    let device = Arc::new(image::load(&path));
    let shared: SharedDevice = Arc::clone(&device) as SharedDevice;
    for goal in [Goal::Min, Goal::Bytes((least + bytes(&full)) / 2)] {
        let refused = resize(&shared, goal, &hasty(), &mut |_| {});
        let is_damaged = matches!(refused, Err(ResizeError::Change(ChangeError::Damaged { .. })));
        assert!(is_damaged, "{refused:?}");
    }
    assert_eq!(bytes(&device), bytes(&full));
}

/// An image with inodes of every kind in its last groups.
fn used_at_the_end(dir: &std::path::Path, layout: Layout) -> Result<MemoryDevice, String> {
    let first = made(dir, layout)?;
    let (grown, _) = to_size(&first, bytes(&first) * 2).unwrap();
    let full = with_inodes_at_the_end(&grown);
    let text = e2fsck(&full, dir)?;
    assert_eq!(text, "", "{layout:?}: before anything");
    Ok(full)
}

#[test]
fn inodes_move_in_front_of_the_new_end_and_the_tree_stays() {
    let (mut moved, mut layouts) = (0, 0);
    for layout in LAYOUTS {
        let dir = tempdir().unwrap();
        let first = require!(made(dir.path(), *layout));
        // Opening an image with multi-mount protection takes half a minute.
        if superblock(&first).features.has(Feature::MMP) {
            continue;
        }
        let full = require!(used_at_the_end(dir.path(), *layout));
        let before = seen(&full);
        let least = smallest(&full);
        let has_journal = superblock(&full).features.has(Feature::HAS_JOURNAL);
        let middle = (bytes(&full) + least) / 2;
        let near = least + 8 * u64::from(superblock(&full).block_size.bytes());
        let mut device = full;
        for wanted in [middle, near] {
            let (next, plan) = to_size(&device, wanted)
                .unwrap_or_else(|error| panic!("{layout:?} to {wanted}: {error}"));
            let what = format!("{layout:?} to {wanted}, {plan:?}");
            moved += plan.moved_inodes;
            layouts += u32::from(plan.moved_inodes > 0);
            assert!(has_journal || plan.moved_inodes == 0, "{what}");
            assert_eq!(require!(e2fsck(&next, dir.path())), "", "{what}");
            assert_eq!(problems(&next), [""; 0], "{what}");
            assert_eq!(seen(&next), before, "{what}");
            device = next;
        }
        if !has_journal && superblock(&device).group_count > 1 {
            let shared: SharedDevice = Arc::new(device.snapshot());
            let error = resize(&shared, Goal::Bytes(least / 2), &hasty(), &mut |_| {}).unwrap_err();
            assert!(error.to_string().contains("-O has_journal"), "{layout:?}: {error}");
        }
    }
    assert!(moved > 150 && layouts > 10, "{moved} inodes in {layouts} layouts");
}

/// The files that the file system keeps for itself, with the last numbers.
#[test]
fn inodes_of_quota_and_orphans_move() {
    let dir = tempdir().unwrap();
    let first = require!(made(dir.path(), LAYOUTS[2]));
    let (grown, _) = to_size(&first, bytes(&first) * 2).unwrap();
    let tune2fs = require!(oracle::Tool::find("tune2fs"));
    let full = with_last_inodes(&grown, 4, |filled| {
        let path = dir.path().join("filled.img");
        image::save(&filled, &path);
        for words in ["quota,project", "orphan_file"] {
            let output = tune2fs.command().args(["-O", words]).arg(&path).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        }
        image::load(&path)
    });
    assert_eq!(require!(e2fsck(&full, dir.path())), "");
    let before = seen(&full);
    let old = superblock(&full);
    let (next, plan) = to_size(&full, smallest(&full)).unwrap();
    let new = superblock(&next);
    for (one, other) in [
        (old.project_quota_inode, new.project_quota_inode),
        (old.orphan_file_inode, new.orphan_file_inode),
    ] {
        assert!(one.0 > new.inodes_count && other.0 <= new.inodes_count, "{plan:?}");
    }
    assert_eq!(require!(e2fsck(&next, dir.path())), "", "{plan:?}");
    assert_eq!(problems(&next), [""; 0], "{plan:?}");
    assert_eq!(seen(&next), before, "{plan:?}");
}

/// The blocks of the orphan file have checksums with their place in them.
#[test]
fn an_orphan_file_behind_the_end_moves() {
    let dir = tempdir().unwrap();
    let first = require!(made(dir.path(), LAYOUTS[2]));
    let (grown, _) = to_size(&first, bytes(&first) * 2).unwrap();
    let tune2fs = require!(oracle::Tool::find("tune2fs"));
    let shared = Arc::new(grown);
    let opened = || {
        let options = MountOptions::new().read_only(false).background(false);
        options.open_shared(Arc::clone(&shared) as SharedDevice).unwrap()
    };
    let fs = opened();
    let filler = fs.open_options().write(true).create(true).open("/filler").unwrap();
    let mut at = 0;
    while let Ok(written @ 1..) = filler.write_at(&[0xee; 64 << 10], at)
        && filler.sync().is_ok()
    {
        at += written as u64;
    }
    filler.set_len(at - (1 << 20)).unwrap();
    drop(filler);
    fs.unmount().unwrap();
    let path = dir.path().join("filled.img");
    image::save(&shared, &path);
    let output = tune2fs.command().args(["-O", "orphan_file"]).arg(&path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let shared = Arc::new(image::load(&path));
    let options = MountOptions::new().read_only(false).background(false);
    let fs = options.open_shared(Arc::clone(&shared) as SharedDevice).unwrap();
    fs.remove_file("/filler").unwrap();
    fs.unmount().unwrap();
    let full = shared.snapshot();
    assert_eq!(require!(e2fsck(&full, dir.path())), "");
    let before = seen(&full);
    let small = smallest(&full);
    let blocks = |device: &MemoryDevice| {
        let path = dir.path().join("blocks.img");
        let _removed = std::fs::remove_file(&path);
        image::save(device, &path);
        let orphan_file = format!("blocks <{}>", superblock(device).orphan_file_inode);
        let text = oracle::debugfs(&path, false, &orphan_file)?;
        let numbers = text.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
        Ok::<_, String>(numbers.collect::<Vec<_>>())
    };
    let old = require!(blocks(&full));
    assert!(!old.is_empty() && old.iter().any(|block| block * 1024 >= small), "{old:?}");
    let (next, plan) = to_size(&full, small).unwrap();
    let new = require!(blocks(&next));
    assert!(new.len() == old.len() && new.iter().all(|block| block * 1024 < small), "{new:?}");
    assert_eq!(require!(e2fsck(&next, dir.path())), "", "{plan:?}");
    assert_eq!(problems(&next), [""; 0], "{plan:?}");
    assert_eq!(seen(&next), before, "{plan:?}");
}

#[test]
fn inodes_that_may_not_move_are_named() {
    let dir = tempdir().unwrap();
    let full = require!(used_at_the_end(dir.path(), LAYOUTS[3]));
    let least = smallest(&full);
    let mut sb = superblock(&full);
    sb.features.insert(Feature::STABLE_INODES);
    full.write_at(SUPERBLOCK_OFFSET, &sb.encode()).unwrap();
    assert!(smallest(&full) > least);
    let shared: SharedDevice = Arc::new(full.snapshot());
    let error = resize(&shared, Goal::Bytes(least), &hasty(), &mut |_| {}).unwrap_err();
    assert!(error.to_string().contains("stable_inodes"), "{error}");
}

#[test]
fn the_kernel_mounts_what_has_other_inodes_and_fills_it() {
    for number in [2, 4, 5, 16, 17] {
        let dir = tempdir().unwrap();
        let full = require!(used_at_the_end(dir.path(), LAYOUTS[number]));
        let before = seen(&full);
        let least = smallest(&full);
        let (next, plan) = to_size(&full, least + (2 << 20)).unwrap();
        assert!(plan.moved_inodes > 0, "{:?}: {plan:?}", LAYOUTS[number]);
        let path = dir.path().join("small.img");
        image::save(&full, &path);
        if require!(LoopMount::attempt(&path, MountFlags::empty(), "")).is_err() {
            println!("{:?}: not for this kernel", LAYOUTS[number]);
            continue;
        }
        std::fs::remove_file(&path).unwrap();
        image::save(&next, &path);
        {
            let mount = require!(LoopMount::read_write(&path));
            let last = mount.path().join("last");
            assert_eq!(std::fs::read_dir(last.join("d")).unwrap().count(), 75);
            let parent = std::fs::metadata(last.join("d/2/..")).unwrap();
            assert_eq!(parent.ino(), std::fs::metadata(last.join("d")).unwrap().ino());
            for number in 0..40 {
                std::fs::write(last.join(format!("d/new{number}")), vec![1; 3000]).unwrap();
            }
            for number in 0..40 {
                std::fs::remove_file(last.join(format!("d/new{number}"))).unwrap();
            }
        }
        let report = require!(oracle::e2fsck(&path));
        assert!(report.is_clean(), "{:?}: {}", LAYOUTS[number], report.text);
        let after = seen(&image::load(&path));
        // The directory has grown.
        let grown = b"/last/d".as_slice();
        let other = |(name, _): &(&Vec<u8>, &common::Seen)| name.as_slice() != grown;
        assert!(after.iter().filter(other).eq(before.iter().filter(other)), "{number}");
    }
}

/// What lies behind the new end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Blocks,
    Inodes,
    /// Blocks of more files than one transaction takes.
    Many,
}

/// After each write, with everything written so far or only with what was flushed.
fn cuts(layout: Layout, step: usize, what: What) -> Result<(), String> {
    let dir = tempdir().unwrap();
    let full = match what {
        What::Blocks => full_at_the_end(dir.path(), layout)?,
        What::Inodes => used_at_the_end(dir.path(), layout)?,
        What::Many => {
            let first = made(dir.path(), layout)?;
            let (grown, _) = to_size(&first, bytes(&first) * 2).unwrap();
            with_at_the_end(&grown, many_files)
        }
    };
    let before = seen(&full);
    let size = smallest(&full);
    let recording = Arc::new(RecordingDevice::over(with_size(&full, bytes(&full))));
    let shared: SharedDevice = Arc::clone(&recording) as SharedDevice;
    let plan = resize(&shared, Goal::Bytes(size), &hasty(), &mut |_| {}).unwrap();
    match what {
        What::Blocks => assert!(plan.moved_files > 3, "{layout:?}: {plan:?}"),
        What::Inodes => assert!(plan.moved_inodes > 0, "{layout:?}: {plan:?}"),
        What::Many => assert!(plan.moved_files > 100, "{layout:?}: {plan:?}"),
    }
    let journaled = superblock(&full).features.has(Feature::HAS_JOURNAL);
    for position in (0..=recording.len()).step_by(step) {
        for survival in [Survival::Kept, Survival::Lost] {
            let cut = recording.image_at(position, |_, _| survival);
            let what = format!("{layout:?} cut at {position}, {survival:?}");
            let path = dir.path().join("cut.img");
            if journaled {
                let device = Arc::new(cut.snapshot());
                let options = MountOptions::new()
                    .read_only(false)
                    .clock(Arc::new(HastyClock))
                    .background(false);
                let opened = options.open_shared(Arc::clone(&device) as SharedDevice);
                let fs = opened.unwrap_or_else(|error| panic!("{what}: {error}"));
                fs.unmount().unwrap();
                assert_eq!(problems(&device), [""; 0], "{what}");
                assert_eq!(seen(&device), before, "{what}");
                if position % (4 * step) != 0 {
                    continue;
                }
            }
            let _removed = std::fs::remove_file(&path);
            image::save(&cut, &path);
            let mode = if journaled { "-p" } else { "-fy" };
            let done = oracle::e2fsck_as(&path, mode, &[])?;
            assert!(matches!(done.status, Some(0 | 1)), "{what}: {}", done.text);
            oracle::e2fsck(&path)?.assert_clean();
            assert_eq!(seen(&image::load(&path)), before, "{what}");
        }
    }
    Ok(())
}

#[test]
fn a_cut_while_files_move_loses_nothing() {
    require!(cuts(LAYOUTS[5], 2, What::Blocks));
    require!(cuts(LAYOUTS[14], 3, What::Blocks));
}

#[test]
fn a_cut_while_inodes_move_loses_nothing() {
    require!(cuts(LAYOUTS[3], 3, What::Inodes));
    require!(cuts(LAYOUTS[16], 5, What::Inodes));
}

#[test]
fn a_cut_between_the_steps_of_a_long_shrink_loses_nothing() {
    require!(cuts(LAYOUTS[2], 53, What::Many));
}

#[test]
fn a_cut_while_files_move_without_a_journal_loses_nothing() {
    require!(cuts(LAYOUTS[0], 29, What::Blocks));
}

#[test]
#[ignore = "minutes: every cut of every layout that moves files"]
fn every_cut_while_files_move_loses_nothing() {
    for number in [0, 1, 5, 6, 10, 11, 14, 15, 17] {
        require!(cuts(LAYOUTS[number], 1, What::Blocks));
    }
}

#[test]
#[ignore = "minutes: every cut of many layouts that move inodes"]
fn every_cut_while_inodes_move_loses_nothing() {
    for number in [1, 2, 3, 4, 5, 7, 16, 17, 18] {
        require!(cuts(LAYOUTS[number], 1, What::Inodes));
    }
}

/// Sizes at random, one after the other, with e2fsck's word after each.
fn random_sizes(rounds: usize, seed: u64) -> Result<(), String> {
    let mut random = Prng::new(seed);
    let (mut device, mut before, mut start) = (MemoryDevice::new(0), Default::default(), 0);
    let dir = tempdir().unwrap();
    for round in 0..rounds {
        if round % 10 == 0 {
            let layout = LAYOUTS[random.below(LAYOUTS.len() as u64) as usize];
            let first = made(dir.path(), layout)?;
            let has_mmp = superblock(&first).features.has(Feature::MMP);
            device = match random.below(3) {
                0 => first,
                1 if !has_mmp => used_at_the_end(dir.path(), layout)?,
                _ => full_at_the_end(dir.path(), layout)?,
            };
            (before, start) = (seen(&device), bytes(&device));
        }
        let least = smallest(&device);
        let size = match random.below(4) {
            0 => least,
            1 => least + random.below(bytes(&device).saturating_sub(least).max(1)),
            2 => bytes(&device) + random.below(3 << 20),
            _ => least + random.below(start * 4),
        };
        let what = format!("seed {seed}, round {round}: {size}, at least {least}");
        let (next, plan) = to_size(&device, size).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert!(plan.after.bytes <= size.max(plan.before.bytes), "{what}: {plan:?}");
        let next = with_size(&next, plan.after.bytes);
        assert_eq!(e2fsck(&next, dir.path())?, "", "{what}: {plan:?}");
        assert_eq!(seen(&next), before, "{what}: {plan:?}");
        device = next;
    }
    Ok(())
}

#[test]
fn sizes_at_random() {
    require!(random_sizes(40, 1));
}

#[test]
#[ignore = "minutes: a thousand resizes"]
fn a_thousand_sizes_at_random() {
    for seed in 2..12 {
        require!(random_sizes(100, seed));
    }
}
