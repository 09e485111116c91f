//! Bitmaps that a search reads before it comes to their groups.

use super::stalled::Odd;
use super::*;
use crate::alloc::ahead::GROUPS_MAX;
use crate::alloc::index::Visits;
use crate::alloc::window::Look;

/// 64 groups of 1024 blocks, whose bitmaps are all stored: side by side in flexible groups of 16,
/// or each in its own group.
const SIDE_BY_SIDE: &[&str] = &[
    "-t",
    "ext4",
    "-b",
    "1024",
    "-g",
    "1024",
    "-G",
    "16",
    "-N",
    "1024",
    "-O",
    "^metadata_csum,^uninit_bg,^has_journal",
];
const APART: &[&str] = &[
    "-N",
    "1024",
    "-t",
    "ext4",
    "-b",
    "1024",
    "-g",
    "1024",
    "-O",
    "^metadata_csum,^uninit_bg,^flex_bg,^resize_inode,^has_journal",
];

/// Fills a file system so that no group has a run of more than 8 blocks, and all have many of those.
fn fragment(image: &Image) {
    let mount = Mount::of(image);
    let mut runs = Vec::new();
    while let Ok(run) = mount.take(0, 8, 1) {
        runs.push(run);
    }
    runs.sort_unstable_by_key(|run| run.start);
    for run in runs.iter().step_by(2) {
        mount.free(run.start.0, run.len).unwrap();
    }
    mount.commit();
    mount.verify();
    mount.fs.unmount().unwrap();
}

fn bitmaps(mount: &Mount) -> Vec<u64> {
    let volume = mount.volume();
    mount.groups().map(|group| volume.stored_group(group).unwrap().block_bitmap.0).collect()
}

/// The batches that read bitmaps, and which; and the number of operations.
fn bitmap_reads(device: &Odd, bitmaps: &[u64]) -> (Vec<Vec<u64>>, usize) {
    let mut operations = 0;
    let batches = device.take_batches().into_iter().map(|batch| {
        let blocks: Vec<u64> = batch.iter().cloned().flatten().collect();
        let blocks: Vec<u64> = blocks.into_iter().filter(|block| bitmaps.contains(block)).collect();
        operations += if blocks.is_empty() { 0 } else { batch.len() };
        blocks
    });
    let batches = batches.filter(|batch: &Vec<u64>| !batch.is_empty()).collect();
    (batches, operations)
}

#[test]
fn a_search_through_groups_that_nobody_has_looked_at_reads_them_in_batches() {
    for layout in [SIDE_BY_SIDE, APART] {
        let image = require!(Image::make("64M", layout, ""));
        fragment(&image);
        let device = Odd::of(&image);
        let mount = Mount::on(&image, &device);
        let bitmaps = bitmaps(&mount);
        let groups = bitmaps.len();
        assert!(groups >= 60, "{groups}");
        device.take_batches();
        // The first group of a search is read alone.
        let ask = |len: u32, min: u32| mount.take(5 * 1024 + 100, len, min);
        let run = ask(4, 4).unwrap();
        assert_eq!(bitmap_reads(&device, &bitmaps), (vec![vec![bitmaps[5]]], 1), "{layout:?}");
        mount.free(run.start.0, run.len).unwrap();
        // No group has what is asked for: all are read, each once, and few at a time.
        assert!(ask(64, 64).is_err());
        let (batches, operations) = bitmap_reads(&device, &bitmaps);
        let mut read: Vec<u64> = batches.concat();
        assert_eq!(read.len(), groups - 1, "all but the one that was known");
        read.sort_unstable();
        read.dedup();
        assert_eq!(read.len(), groups - 1, "each once");
        assert_eq!(batches.len(), (groups - 1).div_ceil(GROUPS_MAX), "{layout:?}");
        assert!(batches.iter().all(|batch| batch.len() <= GROUPS_MAX));
        // Neighbours on the device are one operation.
        match layout == APART {
            true => assert_eq!(operations, read.len()),
            false => assert!(operations <= 2 * batches.len() + 4, "{operations} operations"),
        }
        let ahead = mount.alloc().stats().bitmaps_read_ahead;
        assert_eq!(ahead, groups as u64 - 1, "{layout:?}");
        // Known by now: nothing is read again.
        assert!(ask(64, 64).is_err());
        assert_eq!(bitmap_reads(&device, &bitmaps).1, 0);
        mount.commit();
        mount.verify();
    }
}

#[test]
fn what_was_never_written_or_has_too_little_is_not_read_ahead() {
    let options = ["-t", "ext4", "-b", "1024", "-g", "1024", "-G", "16", "-N", "1024"];
    let image = require!(Image::make("64M", &options, ""));
    let device = Odd::of(&image);
    let mount = Mount::on(&image, &device);
    let (bitmaps, volume) = (bitmaps(&mount), mount.volume());
    let is_stored = |group: usize| {
        let descriptor = volume.stored_group(GroupIndex(group as u32)).unwrap();
        !descriptor.flags.contains(GroupFlags::BLOCK_UNINIT)
    };
    let stored: Vec<usize> = (0..bitmaps.len()).filter(|group| is_stored(*group)).collect();
    assert!(!stored.is_empty() && stored.len() < bitmaps.len(), "{stored:?}");
    device.take_batches();
    let groups = bitmaps.len() as u32;
    let visits = || Visits::new(None, stored[0] as u32, groups, 1);
    // Nobody has so much.
    mount.alloc().read_ahead(volume, visits(), 2000, Look::Open);
    assert_eq!(bitmap_reads(&device, &bitmaps).1, 0);
    mount.alloc().read_ahead(volume, visits(), 1, Look::Open);
    let ahead = mount.alloc().stats().bitmaps_read_ahead;
    assert!(ahead > 0 && ahead <= stored.len() as u64, "{ahead} of {stored:?}");
    let (batches, _) = bitmap_reads(&device, &bitmaps);
    assert_eq!(batches.len(), 1, "{batches:?}");
    // The flexible group's bitmaps lie side by side: those that are stored, and none between them.
    let firsts = stored.iter().map(|group| bitmaps[*group]).collect::<Vec<_>>();
    assert!(batches[0].iter().all(|block| firsts.contains(block)), "{batches:?} of {firsts:?}");
    mount.verify();
    mount.end(&image);
}

#[test]
fn an_error_ahead_is_met_by_who_needs_the_bitmap() {
    let image = require!(Image::make("64M", APART, ""));
    fragment(&image);
    let device = Odd::of(&image);
    let mount = Mount::on(&image, &device);
    let bitmaps = bitmaps(&mount);
    device.fail(FsBlock(bitmaps[9]));
    device.take_batches();
    let groups = bitmaps.len() as u32;
    mount.alloc().read_ahead(mount.volume(), Visits::new(None, 8, groups, 8), 8, Look::Open);
    assert_eq!(bitmap_reads(&device, &bitmaps).0.len(), 1);
    assert!(mount.alloc().take_reports().is_empty());
    // The others are there, and nothing is wrong as long as nobody needs that one.
    let goal = |group: u64| group * 1024 + 100;
    for group in [8, 10, 11] {
        let run = mount.take(goal(group), 8, 8).unwrap();
        assert_eq!(
            mount.volume().superblock().group_of_block(run.start).unwrap().0.0,
            group as u32
        );
        mount.free(run.start.0, 8).unwrap();
    }
    assert_eq!(bitmap_reads(&device, &bitmaps).1, 0, "read once");
    let volume = mount.volume();
    let needed = mount.alloc().enter(volume, GroupIndex(9), Needs::BLOCKS).map(drop);
    assert_eq!(needed.unwrap_err().family(), Family::Device);
    device.heal();
    let run = mount.take(goal(9), 8, 8).unwrap();
    assert_eq!(mount.volume().superblock().group_of_block(run.start).unwrap().0, GroupIndex(9));
    mount.free(run.start.0, 8).unwrap();
    mount.commit();
    mount.verify();
}
