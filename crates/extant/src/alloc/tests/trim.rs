//! Discards of free space.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use extant_testkit::oracle::{LoopMount, Tool};

use super::*;

/// Runs that were told to the device.
fn trim(mount: &Mount, range: Range<u64>, min: u64) -> Vec<Range<u64>> {
    let mut runs = Vec::new();
    let mut discard = |start: FsBlock, len: u64| {
        runs.push(start.0..start.0 + len);
        Ok(())
    };
    let sum = mount.alloc().trim(mount.volume(), range, min, &mut discard).unwrap();
    assert_eq!(sum, runs.iter().map(|run| run.end - run.start).sum::<u64>());
    runs
}

#[test]
fn all_that_is_free_is_discarded_once_and_nothing_else() {
    for (at, (size, options)) in LAYOUTS.iter().enumerate() {
        let image = require!(Image::make(size, options, ""));
        let mount = Mount::of(&image);
        let ratio = u64::from(mount.volume().superblock().cluster_ratio());
        let mut random = Prng::new(at as u64);
        let file = mount.fs.root().unwrap();
        // What is in use, pinned, and freed without a commit.
        mount.alloc().promise(mount.volume(), 500).unwrap();
        let mut kept = Vec::new();
        for step in 0..300u32 {
            let goal = FsBlock(random.below(60_000));
            let (len, purpose) = (random.below(20) as u32 + 1, Purpose::Data);
            let ask = BlockAsk { goal, len, min: 1, purpose, continues: false };
            if step % 20 == 0 {
                kept.push(
                    mount
                        .alloc()
                        .pin(mount.volume(), file.node(), &ask, Growth::default())
                        .unwrap(),
                );
            } else {
                let run = mount.take(goal.0, len, 1).unwrap();
                if random.one_in(3) {
                    mount.free(run.start.0, run.len).unwrap();
                }
                kept.push(run);
            }
        }
        let before = mount.verify();
        let end = mount.volume().superblock().blocks_count;
        let runs = trim(&mount, 0..u64::MAX, 0);
        assert!(runs.is_sorted_by(|a, b| a.end <= b.start) && runs.last().unwrap().end <= end);
        for run in kept {
            let run = run.start.0..run.start.0 + u64::from(run.len);
            assert!(runs.iter().all(|free| free.end <= run.start || run.end <= free.start));
        }
        let blocks = runs.iter().map(|run| (run.end - run.start).div_ceil(ratio)).sum::<u64>();
        let space = &mount.alloc().space;
        assert_eq!(blocks, before.0 - space.pinned() - space.pending(), "{options:?}");
        assert_eq!(mount.verify(), before, "all is back");
        // A part of it, and only what is long enough.
        let (from, to) = (random.below(20_000), 20_000 + random.below(20_000));
        let inside = |run: &Range<u64>| {
            let base = u64::from(mount.volume().superblock().first_data_block);
            let low = from.saturating_sub(base).div_ceil(ratio) * ratio + base;
            let high = if to >= end { end } else { (to - base) / ratio * ratio + base };
            run.start.max(low)..run.end.min(high)
        };
        let min = 12u64;
        let long = |run: &Range<u64>| {
            !run.is_empty() && (run.end - run.start).div_ceil(ratio) >= min.div_ceil(ratio)
        };
        let wanted: Vec<_> = runs.iter().map(inside).filter(long).collect();
        assert_eq!(trim(&mount, from..to, min), wanted, "{options:?}: {from}..{to}");
        assert_eq!(trim(&mount, 7..7, 0), []);
    }
}

#[test]
fn a_discard_that_fails_ends_it_and_gives_everything_back() {
    let image = require!(Image::make("256M", SMALL_GROUPS, ""));
    let mount = Mount::of(&image);
    let before = mount.verify();
    let mut calls = 0;
    let mut discard = |_: FsBlock, _: u64| {
        calls += 1;
        if calls == 5 { Err(FsError::ReadOnly) } else { Ok(()) }
    };
    let result = mount.alloc().trim(mount.volume(), 0..u64::MAX, 1, &mut discard);
    assert!(matches!(result, Err(FsError::ReadOnly)));
    assert_eq!(calls, 5);
    assert_eq!(mount.verify(), before);
    mount.end(&image);
}

#[test]
fn what_was_freed_is_discarded_after_its_commit_unless_it_was_taken_again() {
    for (size, options) in LAYOUTS {
        let image = require!(Image::make(size, options, ""));
        let mut mount_options = image.options();
        mount_options = mount_options.background(false).discard(true);
        let mount =
            Mount { fs: mount_options.open_shared(Arc::clone(&image.device) as _).unwrap() };
        let spent = |goes_on: bool| {
            let mut runs = Vec::new();
            let mut discard = |start: FsBlock, len: u64| {
                runs.push(start.0..start.0 + len);
                Ok(())
            };
            mount.alloc().discard_spent(mount.volume(), || goes_on, &mut discard);
            runs
        };
        let ratio = mount.volume().superblock().cluster_ratio().max(1);
        let run = mount.take(20_000, 64 * ratio, 64 * ratio).unwrap();
        mount.commit();
        let (start, end) = (run.start.0, run.start.0 + u64::from(run.len));
        let half = run.len / 2 / ratio * ratio;
        // In two pieces, the later one first.
        mount.free(start + u64::from(half), run.len - half).unwrap();
        mount.free(start, half).unwrap();
        assert_eq!(spent(true), [], "{options:?}: not committed");
        mount.commit();
        assert_eq!(spent(false), [], "its time is over");
        assert_eq!(spent(true), std::slice::from_ref(&(start..end)), "{options:?}: in one piece");
        assert_eq!(spent(true), [], "once");
        // The first half has an owner again when its turn comes.
        let run = mount.take(start, run.len, run.len).unwrap();
        assert_eq!(run.start.0, start);
        mount.commit();
        mount.free(start, run.len).unwrap();
        mount.commit();
        let again = mount.take(start, half, half).unwrap();
        assert_eq!((again.start.0, again.len), (start, half));
        let second = start + u64::from(half)..end;
        assert_eq!(spent(true), std::slice::from_ref(&second), "{options:?}");
        let before = mount.verify();
        mount.free(start, half).unwrap();
        mount.commit();
        let failing = &mut |_, _| Err(FsError::ReadOnly);
        mount.alloc().discard_spent(mount.volume(), || true, failing);
        assert_eq!(mount.alloc().spent().failed(), 1);
        assert_eq!(mount.verify().0, before.0 + u64::from(half / ratio), "all can be had");
        mount.end(&image);
    }
}

#[test]
fn units_and_limits_are_those_of_fitrim() {
    // P81
    let image = require!(Image::make("64M", &["-t", "ext4", "-b", "1024"], ""));
    let mount = Mount::of(&image);
    let fs = &mount.fs;
    let (free, _) = mount.verify();
    assert_eq!(fs.trim(0..u64::MAX, 0).unwrap(), free * 1024, "in bytes");
    for (range, min) in [(0..1023, 0), (64 << 20..u64::MAX, 0), (0..u64::MAX, (8192 << 10) + 1)] {
        let error = fs.trim(range, min).unwrap_err();
        assert!(matches!(error, FsError::InvalidArgument { .. }), "{error}");
    }
    assert_eq!(fs.trim(0..u64::MAX, 8192 << 10).unwrap() % (8192 << 10), 0);
    // The last free blocks: a range that holds one and two halves.
    let last = 40_000u64;
    let taken = mount.take(last, 1, 1).unwrap();
    assert_eq!(taken.start.0, last);
    assert_eq!(fs.trim((last + 1) * 1024 - 512..(last + 2) * 1024 + 512, 0).unwrap(), 1024);
    assert_eq!(fs.trim(last * 1024..(last + 1) * 1024, 0).unwrap(), 0);
    mount.free(last, 1).unwrap();
    let read_only = image.options().read_only(true);
    mount.end(&image);
    let fs = read_only.open_shared(Arc::clone(&image.device) as _).unwrap();
    assert!(matches!(fs.trim(0..u64::MAX, 0), Err(FsError::ReadOnly)));
}

#[test]
fn the_kernel_trims_as_much() {
    let fstrim = require!(Tool::find("fstrim"));
    for (size, options) in LAYOUTS {
        let image = require!(Image::make(size, options, "write /dev/null empty\n"));
        let mount = Mount::of(&image);
        let trimmed = mount.fs.trim(0..u64::MAX, 0).unwrap();
        mount.end(&image);
        let dir = extant_testkit::tempdir().unwrap();
        let path = dir.path().join("image");
        extant_testkit::image::save(&image.device, &path);
        let kernel = require!(LoopMount::read_write(&path));
        let said = fstrim.run([std::ffi::OsStr::new("-v"), kernel.path().as_os_str()]);
        assert!(said.contains(&format!("({trimmed} bytes)")), "{options:?}: {trimmed}, {said}");
    }
}

#[test]
fn what_is_being_discarded_is_waited_for_and_not_given_away() {
    let image = require!(Image::make("64M", &["-t", "ext4", "-b", "1024", "-g", "1024"], ""));
    let mount = Mount::of(&image);
    let before = mount.verify();
    let (discarding, taken) =
        (Mutex::new(Rank::Device, HashSet::new()), Mutex::new(Rank::Leaf, HashSet::new()));
    let rounds = 60;
    let work = |at: usize| {
        if at == 0 {
            for _ in 0..rounds {
                let mut discard = |start: FsBlock, len: u64| {
                    let blocks = start.0..start.0 + len;
                    discarding.lock().extend(blocks.clone());
                    assert!(blocks.clone().all(|block| !taken.lock().contains(&block)));
                    blocks.for_each(|block| assert!(discarding.lock().remove(&block)));
                    Ok(())
                };
                mount.alloc().trim(mount.volume(), 0..u64::MAX, 1, &mut discard).unwrap();
            }
            return;
        }
        // Takes all there is, which must never be less for the other's sake.
        for _ in 0..3 {
            let mut runs = Vec::new();
            let mut sum = 0;
            while let Ok(run) = mount.take(at as u64 * 9000, 700, 1) {
                let blocks = run.start.0..run.start.0 + u64::from(run.len);
                assert!(blocks.clone().all(|block| !discarding.lock().contains(&block)));
                taken.lock().extend(blocks);
                sum += u64::from(run.len);
                runs.push(run);
            }
            assert_eq!(sum, before.0, "everything can be had");
            for run in runs {
                let mut taken = taken.lock();
                (run.start.0..run.start.0 + u64::from(run.len)).for_each(|block| {
                    taken.remove(&block);
                });
                drop(taken);
                mount.free(run.start.0, run.len).unwrap();
            }
            mount.commit();
        }
    };
    workers("trim", 2, work).unwrap();
    assert_eq!(mount.verify(), before);
    mount.end(&image);
}

#[test]
fn a_discard_that_goes_round_and_round_leaves_the_last_block_to_who_wants_it() {
    let image = require!(Image::make("64M", &["-t", "ext4", "-b", "4096"], ""));
    let mount = Mount::of(&image);
    let mut runs = Vec::new();
    while let Ok(run) = mount.take(0, 700, 1) {
        runs.push(run);
    }
    mount.free(runs[0].start.0, 1).unwrap();
    mount.commit();
    let (begins, calls) = (AtomicBool::new(false), AtomicU32::new(0));
    let work = |at: usize| {
        if at == 1 {
            while !begins.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            return mount.take(0, 1, 1).map(drop);
        }
        let mut discard = |_: FsBlock, _: u64| {
            begins.store(true, Ordering::Release);
            while !mount.alloc().held.is_anyone_hungry() {
                std::thread::yield_now();
            }
            calls.fetch_add(1, Ordering::Relaxed);
            // Nobody would become hungry again.
            if calls.load(Ordering::Relaxed) > 1 { Err(FsError::ReadOnly) } else { Ok(()) }
        };
        for _ in 0..100 {
            mount.alloc().trim(mount.volume(), 0..u64::MAX, 1, &mut discard)?;
        }
        Ok(())
    };
    workers("trim", 2, |at| work(at).unwrap()).unwrap();
    assert_eq!(calls.into_inner(), 1, "it was taken before the next round");
    for run in runs {
        mount.free(run.start.0, run.len).unwrap();
    }
    mount.end(&image);
}
