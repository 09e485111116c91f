//! Windows: room that is left to files that grow, and is anybody's who needs it.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32};

use super::super::window::Look;
use super::*;
use crate::{Fallocate, Inode, NewInode};

const ANYBODY: NewInode = NewInode { permissions: 0o644, uid: 1000, gid: 1000 };

impl Mount {
    /// A file that has grown twice, by 32 blocks each time, and has a window.
    fn growing(&self, name: &str) -> Inode {
        let file = self.fs.root().unwrap().create(name, &ANYBODY).unwrap();
        self.grow(&file, 32);
        self.grow(&file, 32);
        file
    }

    fn grow(&self, file: &Inode, blocks: usize) {
        let bytes = vec![0x77; blocks * self.volume().block_size().len()];
        let end = file.node().metadata(file.fs().volume().block_size()).size;
        assert_eq!(file.write_at(&bytes, end).unwrap(), bytes.len());
        file.sync().unwrap();
    }
}

#[test]
fn a_window_is_free_in_every_account_and_nothing_of_it_is_stored() {
    for (size, layout) in LAYOUTS {
        let image = require!(Image::make(size, layout, ""));
        let mount = Mount::of(&image);
        let before = mount.alloc().free_clusters();
        let file = mount.growing("a");
        assert!(mount.alloc().in_windows() > 0, "{layout:?}");
        let (free, _) = mount.verify();
        let ratio = u64::from(mount.volume().superblock().cluster_ratio());
        let stored = file.node().metadata(file.fs().volume().block_size()).blocks * 512
            / mount.volume().block_size().len() as u64;
        assert!(stored < 64 + 8, "{stored} blocks are charged for 64");
        // The file, and perhaps a block of the directory.
        assert!(before - free <= stored.div_ceil(ratio) + 1, "{layout:?}: {before} to {free}");
        let said = mount.fs.statfs().unwrap();
        assert_eq!(said.blocks_free, free * ratio, "{layout:?}");
        drop(file);
        mount.end(&image);
    }
}

#[test]
fn a_window_ends_with_the_last_handle_a_shorter_file_its_removal_and_its_own_fallocate() {
    let image = require!(Image::make("256M", SMALL_GROUPS, ""));
    let mount = Mount::of(&image);
    let windows = || mount.alloc().in_windows();
    let file = mount.growing("closed");
    let other = file.clone();
    drop(file);
    assert!(windows() > 0, "somebody has it open");
    drop(other);
    assert_eq!(windows(), 0, "closed");
    let file = mount.growing("cut");
    assert!(windows() > 0);
    file.truncate(5000).unwrap();
    assert_eq!(windows(), 0, "cut off");
    let file = mount.growing("removed");
    mount.fs.root().unwrap().unlink("removed").unwrap();
    mount.grow(&file, 8);
    assert!(windows() > 0, "without a name it may grow");
    drop(file);
    assert_eq!(windows(), 0, "removed");
    let file = mount.growing("told");
    file.fallocate(Fallocate::Allocate { keep_size: true }, 64 * 4096..400 * 4096).unwrap();
    assert_eq!(windows(), 0, "told how large it will be");
    // Written back when nobody has it open any more: nobody will write more.
    let file = mount.fs.root().unwrap().create("copied", &ANYBODY).unwrap();
    file.write_at(&[5; 1 << 20], 0).unwrap();
    drop(file);
    mount.fs.sync().unwrap();
    assert_eq!(windows(), 0, "whole when it was closed");
    mount.verify();
    mount.end(&image);
}

#[test]
fn a_file_goes_on_in_its_window_and_others_leave_it_alone() {
    let image = require!(Image::make("256M", &["-t", "ext4", "-b", "4096"], ""));
    let mount = Mount::of(&image);
    let file = mount.growing("a");
    let window = file.node().file_in_use().unwrap().window.lock().clone().unwrap();
    let first = mount.volume().superblock().group_first_block(window.group).unwrap().0;
    let inside = first + u64::from(window.clusters.start)..first + u64::from(window.clusters.end);
    // Data and metadata, near and in it.
    for goal in [inside.start, inside.start + 5, inside.end - 1] {
        for len in [1, 7, 40] {
            let run = mount.take(goal, len, 1).unwrap();
            let end = run.start.0 + u64::from(run.len);
            assert!(end <= inside.start || run.start.0 >= inside.end, "{run:?} is in {inside:?}");
        }
    }
    for _ in 0..4 {
        mount.grow(&file, 32);
    }
    assert_eq!(file.fiemap(0..u64::MAX, 100, false).unwrap().len(), 1);
    mount.verify();
}

#[test]
fn windows_keep_no_group_in_memory_and_go_with_it() {
    let image = require!(Image::make("256M", &["-t", "ext4", "-b", "1024", "-g", "256"], ""));
    let fs = image.open();
    let volume = fs.volume();
    let mut alloc = Allocator::open(volume, true).unwrap();
    alloc.loaded_max = 64;
    let file = fs.root().unwrap();
    alloc.promise(volume, 500).unwrap();
    let growth = Growth { ahead: 30, ..Growth::default() };
    for at in 0..100u64 {
        let (goal, purpose) = (FsBlock(at * 2560 + 200), Purpose::Data);
        let ask = BlockAsk { goal, len: 5, min: 5, purpose, continues: false };
        let run = alloc.pin(volume, file.node(), &ask, growth).unwrap();
        alloc.unpin(volume, run);
    }
    assert!(alloc.in_windows() > 1000, "{} in windows", alloc.in_windows());
    for group in (0..volume.superblock().group_count).map(GroupIndex) {
        let mut locked = alloc.enter(volume, group, Needs::BLOCKS).unwrap();
        let state = locked.state().unwrap();
        state.blocks_mut().unwrap();
    }
    assert!(alloc.loaded_count.load(Ordering::Relaxed) <= 65);
    // In the groups that were loaded last, if anywhere.
    assert!(alloc.in_windows() <= 65 * 30, "{} in windows", alloc.in_windows());
    let mut sum = 0;
    for group in (0..volume.superblock().group_count).map(GroupIndex) {
        let guard = alloc.cell(group).unwrap().state.lock();
        sum += guard.as_ref().map_or(0, |state| u64::from(state.in_windows()));
    }
    assert_eq!(alloc.in_windows(), sum);
}

#[test]
fn the_last_block_is_had_however_many_windows_are_open() {
    for (size, layout) in LAYOUTS {
        let image = require!(Image::make(size, layout, ""));
        let mount = Mount::of(&image);
        let files: Vec<_> = (0..12).map(|at| mount.growing(&at.to_string())).collect();
        assert!(mount.alloc().in_windows() > 0, "{layout:?}");
        let free = mount.alloc().free_clusters();
        let ratio = mount.volume().superblock().cluster_ratio();
        let mut taken = 0;
        while let Ok(run) = mount.take(taken, 3000, 1) {
            taken += u64::from(run.len.div_ceil(ratio));
        }
        assert_eq!((taken, mount.alloc().free_clusters()), (free, 0), "{layout:?}");
        assert_eq!((mount.verify().0, mount.alloc().in_windows()), (0, 0), "{layout:?}");
        drop(files);
    }
}

#[test]
fn eight_threads_have_all_of_it_while_windows_open_and_close() {
    let image = require!(Image::make("64M", &["-t", "ext4", "-b", "1024", "-g", "1024"], ""));
    let mount = Mount::of(&image);
    let files: Vec<_> = (0..4).map(|at| mount.growing(&at.to_string())).collect();
    // Two threads pin and unpin at the ends of files, with windows; the others fill the file system.
    let (pinners, pins) = (2u64, 60u32);
    mount.alloc().space.promise_anyway(pinners * u64::from(pins));
    // Data without a promise leaves alone what is promised, and as much of the pool.
    let space = mount.alloc().free_clusters() - 2 * pinners * u64::from(pins);
    let (got, is_full) = (AtomicU32::new(0), AtomicBool::new(false));
    let pinner = |seed: u64| {
        let file = &files[seed as usize];
        let mut random = Prng::new(seed);
        let growth = Growth { grows: true, continues: false, ahead: 900 };
        for round in 0.. {
            if round > 200 && is_full.load(Ordering::Acquire) {
                return;
            }
            let (goal, purpose) = (FsBlock(random.below(60_000)), Purpose::Data);
            let (mut left, mut runs) = (pins, Vec::new());
            while left > 0 {
                let ask = BlockAsk { goal, len: left, min: 1, purpose, continues: false };
                let run = mount.alloc().pin(mount.volume(), file.node(), &ask, growth);
                let run = run.expect("promised");
                left -= run.len;
                runs.push(run);
            }
            runs.into_iter().for_each(|run| mount.alloc().unpin(mount.volume(), run));
        }
    };
    let takers = AtomicU32::new(6);
    let taker = |seed: u64| {
        let mut random = Prng::new(seed);
        loop {
            let (goal, len) = (random.below(60_000), random.below(50) as u32 + 1);
            match mount.take(goal, len, 1) {
                Ok(run) => got.fetch_add(run.len, Ordering::Relaxed),
                Err(error) => {
                    assert!(matches!(error, FsError::NoSpace { .. }), "{error}");
                    break;
                }
            };
        }
        if takers.fetch_sub(1, Ordering::AcqRel) == 1 {
            is_full.store(true, Ordering::Release);
        }
    };
    workers("windows", 8, |at| match (at as u64) < pinners {
        true => pinner(at as u64),
        false => taker(at as u64),
    })
    .unwrap();
    assert_eq!(u64::from(got.into_inner()), space);
    mount.verify();
    mount.alloc().unpromise(pinners * u64::from(pins));
    drop(files);
    assert_eq!(mount.alloc().in_windows(), 0);
}

#[test]
fn windows_take_half_of_what_is_spare_at_most() {
    let image = require!(Image::make("64M", &["-t", "ext4", "-b", "1024"], ""));
    let mount = Mount::of(&image);
    let mut files = Vec::new();
    for at in 0..60 {
        files.push(mount.growing(&at.to_string()));
        let spare = mount.alloc().space.spare() as u64;
        // A window was as large as it may be before its blocks were taken.
        assert!(mount.alloc().in_windows() <= spare / 2 + 2 * 64 * 60, "{at} files");
    }
    mount.verify();
}

#[test]
fn a_random_history_of_windows_matches_a_set() {
    let image = require!(Image::make("64M", &["-t", "ext4", "-b", "1024"], ""));
    let fs = image.open();
    let volume = fs.volume();
    let alloc = Allocator::open(volume, true).unwrap();
    let mut locked = alloc.enter(volume, GroupIndex(1), Needs::BLOCKS).unwrap();
    let state = locked.state().unwrap();
    let blocks = state.blocks_mut().unwrap();
    let mut random = Prng::new(11);
    let len = blocks.len();
    let free: BTreeSet<u32> = (0..len).filter(|bit| blocks.is_open(*bit)).collect();
    let mut taken: BTreeSet<u32> = (0..len).filter(|bit| !free.contains(bit)).collect();
    let mut windows: Vec<BTreeSet<u32>> = vec![BTreeSet::new(); 8];
    for _ in 0..20_000 {
        let owner = random.below(8) as usize;
        let start = random.below(u64::from(len)) as u32;
        let range = start..(start + random.below(60) as u32 + 1).min(len);
        match random.below(8) {
            0..=2 => {
                let opened = blocks.open_window(Ino(owner as u32 + 20), start, range.len() as u32);
                let is_open = |bit: &u32| {
                    !taken.contains(bit) && !windows.iter().any(|window| window.contains(bit))
                };
                let model: Vec<u32> = range.take_while(is_open).collect();
                let opened: Range<u32> = opened.unwrap_or(0..0);
                assert_eq!(opened.clone().collect::<Vec<_>>(), model);
                windows[owner].extend(opened);
            }
            3 | 4 => {
                let closed = blocks.close_window(Ino(owner as u32 + 20), &range);
                let before = windows[owner].len();
                windows[owner].retain(|bit| !range.contains(bit));
                assert_eq!(closed as usize, before - windows[owner].len());
            }
            5 | 6 => {
                blocks.hide(range.clone());
                taken.extend(range.clone());
                windows.iter_mut().for_each(|window| window.retain(|bit| !range.contains(bit)));
            }
            _ => {
                // Only what is taken is given back, in one piece.
                let run = range.take_while(|bit| taken.contains(bit) && free.contains(bit));
                let run: Vec<u32> = run.collect();
                if let (Some(first), Some(last)) = (run.first(), run.last()) {
                    blocks.show(*first..last + 1);
                    run.iter().for_each(|bit| assert!(taken.remove(bit)));
                }
            }
        }
        let sum: usize = windows.iter().map(BTreeSet::len).sum();
        assert_eq!(blocks.in_windows() as usize, sum);
    }
    for bit in 0..len {
        let in_window = windows.iter().any(|window| window.contains(&bit));
        assert_eq!(blocks.is_open(bit), !taken.contains(&bit) && !in_window, "bit {bit}");
    }
    let found = blocks.find(Look::All, 0, len, 1).run.unwrap();
    assert!(found.clone().all(|bit| !taken.contains(&bit)), "{found:?}");
    blocks.check_windows();
}
