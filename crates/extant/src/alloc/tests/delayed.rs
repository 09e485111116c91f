//! Promises and pins.

use std::ops::Range;
use std::sync::atomic::AtomicU32;

use extant_base::{BlockCount, FileBlock};
use extant_format::extent::{Extent, ExtentState};

use super::*;
use crate::NewInode;
use crate::map::insert_run;
use crate::node::Node;

const ANYBODY: NewInode = NewInode { permissions: 0o644, uid: 1000, gid: 1000 };

impl Mount {
    /// A new file, its node kept in memory by the handle.
    fn file(&self, name: &str) -> crate::Inode {
        self.fs.root().unwrap().create(name, &ANYBODY).unwrap()
    }

    fn pin(&self, node: &Node, goal: u64, len: u32, min: u32) -> Result<Run> {
        let ask =
            BlockAsk { goal: FsBlock(goal), len, min, purpose: Purpose::Data, continues: false };
        self.alloc().pin(self.volume(), node, &ask, Growth::default())
    }

    fn promise(&self, clusters: u64) -> Result<()> {
        self.alloc().promise(self.volume(), clusters)
    }

    fn clusters(&self, run: Run) -> u64 {
        u64::from(run.len.div_ceil(self.volume().superblock().cluster_ratio()))
    }

    /// All that can be promised at once.
    fn promisable(&self) -> u64 {
        match self.promise(1 << 40) {
            Err(FsError::NoSpace { free, .. }) => free >> self.volume().superblock().cluster_bits(),
            other => panic!("{other:?}"),
        }
    }

    /// Takes a pinned run and maps it behind what the file has.
    fn publish(&self, node: &Arc<Node>, at: u32, run: Run) {
        let mut txn = self.txn();
        txn.take_pinned(node, run, self.clusters(run)).unwrap();
        let (len, state) = (BlockCount(run.len), ExtentState::Written);
        let extent = Extent { file_start: FileBlock(at), device_start: run.start, len, state };
        insert_run(&mut txn, node, extent).unwrap();
        let end = u64::from(at + run.len) * u64::from(self.volume().block_size().bytes());
        txn.update(node, |data| data.record.size = end).unwrap();
    }
}

fn each(run: Run) -> Range<u64> {
    run.start.0..run.start.0 + u64::from(run.len)
}

#[test]
fn a_promise_is_kept_from_everybody_else() {
    for (size, options) in LAYOUTS {
        let image = require!(Image::make(size, options, ""));
        let mount = Mount::of(&image);
        let before = mount.verify();
        let stat = mount.fs.statfs().unwrap();
        let all = mount.promisable();
        mount.promise(all).unwrap();
        assert!(mount.promise(1).is_err());
        assert_eq!(mount.alloc().promised(), all);
        let ratio = u64::from(mount.volume().superblock().cluster_ratio());
        let now = mount.fs.statfs().unwrap();
        assert_eq!(
            stat.blocks_free - now.blocks_free,
            all * ratio,
            "statfs counts promises as used"
        );
        // Others get what is neither promised nor the pool.
        let mut taken = Vec::new();
        while let Ok(run) = mount.take(0, 100, 1) {
            taken.push(run);
        }
        mount.verify();
        let clusters = mount.volume().superblock().blocks_count / ratio;
        let pool = (clusters / 50).min(4096).min(all);
        assert_eq!(mount.alloc().free_clusters(), all + pool, "{options:?}");
        // Ordinary metadata goes half into the pool, that of a publication to its end, and further
        // before data is lost.
        let ask = BlockAsk {
            goal: FsBlock(0),
            len: 1,
            min: 1,
            purpose: Purpose::Metadata,
            continues: false,
        };
        while let Ok(run) = mount.alloc().allocate(&mut mount.txn(), &ask, Right::Rescue, u64::MAX)
        {
            taken.push(run);
        }
        assert_eq!(mount.alloc().free_clusters(), all + pool / 2);
        for _ in 0..pool / 2 + 1 {
            let mut txn = mount.txn();
            txn.publishes();
            taken.push(mount.alloc().allocate(&mut txn, &ask, Right::Rescue, u64::MAX).unwrap());
        }
        assert_eq!(mount.alloc().free_clusters(), all - 1);
        mount.verify();
        mount.alloc().unpromise(all);
        for run in taken {
            mount.free(run.start.0, run.len).unwrap();
        }
        assert_eq!(mount.verify(), before);
        mount.end(&image);
    }
}

#[test]
fn what_is_promised_can_be_pinned_to_the_last_cluster_and_is_sound() {
    for (size, options) in LAYOUTS {
        let image = require!(Image::make(size, options, ""));
        let mount = Mount::of(&image);
        let file = mount.file("a");
        let (free, _) = mount.verify();
        let all = mount.promisable();
        mount.promise(all).unwrap();
        // Nobody has a place yet: the rest goes to others first.
        let (mut runs, mut held) = (Vec::new(), HashSet::new());
        let mut left = all;
        while left > 0 {
            let run = mount.pin(file.node(), 9000, 1 << 20, 1).unwrap();
            left -= mount.clusters(run);
            assert!(each(run).all(|block| held.insert(block)), "pinned twice");
            runs.push(run);
        }
        assert!(mount.pin(file.node(), 0, 1, 1).is_err(), "more than was promised (S2)");
        assert_eq!(mount.alloc().free_clusters(), free, "free on the device");
        mount.verify();
        // A crash now leaves nothing behind.
        mount.commit();
        let copy = image.copy();
        let crashed = Mount::of(&copy);
        assert_eq!(crashed.verify().0, free);
        crashed.end(&copy);
        let mut at = 0;
        for run in runs {
            mount.publish(file.node(), at, run);
            at += run.len;
        }
        assert_eq!((mount.alloc().promised(), mount.alloc().space.pinned()), (0, 0));
        assert!(mount.alloc().free_clusters() <= free - all);
        mount.verify();
        drop(file);
        mount.end(&image);
    }
}

#[test]
fn pinned_blocks_are_nobody_elses() {
    for (size, options) in LAYOUTS {
        let image = require!(Image::make(size, options, ""));
        let mount = Mount::of(&image);
        let file = mount.file("a");
        let before = mount.verify();
        mount.promise(64).unwrap();
        let run = mount.pin(file.node(), 5000, 64, 1).unwrap();
        for at in each(run) {
            let other = mount.take(at, 1, 1).unwrap();
            assert!(each(other).all(|block| !each(run).contains(&block)));
            mount.free(other.start.0, other.len).unwrap();
            let one = Run { start: FsBlock(at), len: 1 };
            assert!(mount.alloc().claim_blocks(&mut mount.txn(), one).is_err());
        }
        assert!(mount.free(run.start.0, run.len).is_err(), "not in use on the device");
        mount.verify();
        mount.alloc().unpin(mount.volume(), run);
        let err = mount.txn().take_pinned(file.node(), run, 0).unwrap_err();
        assert!(err.to_string().contains("not pinned"), "{err}");
        mount.alloc().unpromise(64);
        assert_eq!(mount.verify(), before);
        drop(file);
        mount.end(&image);
    }
}

#[test]
fn parts_of_a_pinned_run_can_be_taken_and_the_rest_given_back() {
    for options in [SMALL_GROUPS, &["-t", "ext4", "-O", "bigalloc", "-C", "16384"]] {
        let image = require!(Image::make("256M", options, ""));
        let mount = Mount::of(&image);
        let ratio = mount.volume().superblock().cluster_ratio();
        let file = mount.file("a");
        mount.promise(32).unwrap();
        let run = mount.pin(file.node(), 5000, 32 * ratio, 32 * ratio).unwrap();
        assert_eq!(mount.clusters(run), 32);
        let part = |first: u32, len: u32| Run {
            start: FsBlock(run.start.0 + u64::from(first * ratio)),
            len: len * ratio,
        };
        mount.publish(file.node(), 0, part(0, 10));
        mount.alloc().unpin(mount.volume(), part(20, 12));
        mount.verify();
        assert_eq!(mount.alloc().promised(), 22);
        mount.publish(file.node(), 10 * ratio, part(10, 10));
        mount.alloc().unpromise(12);
        mount.verify();
        assert_eq!(mount.alloc().promised(), 0);
        if ratio > 1 {
            let odd = Run { start: FsBlock(part(0, 1).start.0 + 1), len: 1 };
            assert!(mount.txn().take_pinned(file.node(), odd, 0).is_err());
        }
        drop(file);
        mount.end(&image);
    }
}

#[test]
fn an_uninitialised_group_stays_so_until_a_pin_is_taken() {
    let image = require!(Image::make("256M", SMALL_GROUPS, ""));
    let mount = Mount::of(&image);
    let group = |at| mount.alloc().group(mount.volume(), at).unwrap();
    let uninit = |at: &GroupIndex| group(*at).flags.contains(GroupFlags::BLOCK_UNINIT);
    let fresh = mount.groups().find(uninit).expect("a fresh group");
    let first = mount.volume().superblock().group_first_block(fresh).unwrap();
    let file = mount.file("a");
    mount.promise(100).unwrap();
    let run = mount.pin(file.node(), first.0 + 1000, 100, 100).unwrap();
    assert_eq!(run.start.0, first.0 + 1000);
    mount.commit();
    assert!(uninit(&fresh));
    mount.publish(file.node(), 0, run);
    assert!(!uninit(&fresh));
    mount.verify();
    drop(file);
    mount.end(&image);
}

#[test]
fn a_group_with_pins_stays_in_memory() {
    let image = require!(Image::make("256M", &["-t", "ext4", "-b", "1024", "-g", "256"], ""));
    let fs = image.open();
    let volume = fs.volume();
    let mut alloc = Allocator::open(volume, true).unwrap();
    alloc.loaded_max = 64;
    let file = fs.root().unwrap();
    alloc.promise(volume, 500).unwrap();
    let mut runs = Vec::new();
    for at in 0..100u64 {
        let ask = BlockAsk {
            goal: FsBlock(at * 2560 + 200),
            len: 5,
            min: 5,
            purpose: Purpose::Data,
            continues: false,
        };
        runs.push(alloc.pin(volume, file.node(), &ask, Growth::default()).unwrap());
    }
    let count = volume.superblock().group_count;
    for group in (0..count).map(GroupIndex) {
        let mut locked = alloc.enter(volume, group, Needs::BLOCKS).unwrap();
        let state = locked.state().unwrap();
        state.blocks_mut().unwrap();
    }
    for run in &runs {
        let (group, bit) = volume.superblock().group_of_block(run.start).unwrap();
        let mut locked = alloc.enter(volume, group, Needs::BLOCKS).unwrap();
        let state = locked.state().unwrap();
        let blocks = state.blocks_mut().unwrap();
        assert_eq!(blocks.count_pinned(bit..bit + run.len), run.len);
    }
    for run in runs {
        alloc.unpin(volume, run);
    }
    assert_eq!(alloc.space.pinned(), 0);
}

#[test]
fn files_that_grow_together_stay_in_one_piece() {
    let image = require!(Image::make("512M", &["-t", "ext4", "-b", "4096"], ""));
    let mount = Mount::of(&image);
    let files: Vec<_> = (0..6).map(|at| mount.file(&at.to_string())).collect();
    let (mut ends, mut pieces) = (vec![None; 6], vec![0; 6]);
    for _ in 0..20 {
        for (file, (end, pieces)) in files.iter().zip(ends.iter_mut().zip(&mut pieces)) {
            let goal = match *end {
                Some(end) => end,
                None => mount.alloc().first_goal(mount.volume(), file.node().ino()).unwrap().0,
            };
            mount.promise(64).unwrap();
            let run = mount.pin(file.node(), goal, 64, 1).unwrap();
            assert_eq!(run.len, 64);
            *pieces += u32::from(*end != Some(run.start.0));
            *end = Some(each(run).end);
        }
    }
    assert!(pieces.iter().sum::<u32>() <= 16, "{pieces:?}");
}

#[test]
fn files_that_are_appended_to_in_turns_come_apart() {
    const SMALL: u32 = 16;
    let image = require!(Image::make("512M", &["-t", "ext4", "-b", "4096"], ""));
    let mount = Mount::of(&image);
    let files: Vec<_> = (0..6).map(|at| mount.file(&at.to_string())).collect();
    // All begin at the same place, a block each in turns.
    let (mut ends, mut pieces) = (vec![5000u64; 6], vec![0u32; 6]);
    for round in 0..300 {
        for (file, (end, pieces)) in files.iter().zip(ends.iter_mut().zip(&mut pieces)) {
            mount.promise(1).unwrap();
            let (goal, purpose) = (FsBlock(*end), Purpose::Data);
            let ask = BlockAsk { goal, len: 1, min: 1, purpose, continues: false };
            let growth = Growth { grows: round >= SMALL, ..Growth::default() };
            let run = mount.alloc().pin(mount.volume(), file.node(), &ask, growth).unwrap();
            *pieces += u32::from(*end != run.start.0);
            *end = each(run).end;
        }
    }
    assert!(pieces.iter().all(|pieces| *pieces <= SMALL + 4), "{pieces:?}");
    mount.verify();
}

#[test]
fn a_whole_run_elsewhere_is_better_than_pieces_here_and_the_longest_piece_than_a_short_one() {
    let image = require!(Image::make("256M", SMALL_GROUPS, ""));
    let mount = Mount::of(&image);
    let file = mount.file("a");
    // Group 14 gets crumbs only: every other block.
    let first = 2048 * 14;
    for at in (0..2048).step_by(2) {
        mount.take(first + at, 1, 1).unwrap();
    }
    mount.promise(20_000).unwrap();
    let whole = mount.pin(file.node(), first, 1000, 1).unwrap();
    assert_eq!(whole.len, 1000);
    assert!(whole.start.0 >= first + 2048, "{whole:?}");
    // More than any group has: not the crumbs at the goal, but nearly a group.
    let most = mount.pin(file.node(), first, 4000, 1).unwrap();
    assert!(most.len > 1000, "{most:?}");
    mount.verify();
}

#[test]
fn p61_blocks_end_where_pointers_do_for_pins_too() {
    let image = require!(Image::make("256M", SMALL_GROUPS, ""));
    let mount = Mount::of(&image);
    mount.promise(20_000).unwrap();
    let ask = BlockAsk {
        goal: FsBlock(50_000),
        len: 500,
        min: 1,
        purpose: Purpose::Data,
        continues: false,
    };
    let mut last = 0;
    let growth = Growth { grows: true, continues: true, ahead: 300 };
    loop {
        let pinning = blocks::Pinning { ino: Ino(12), growth, own: None, window: None };
        let taker = &mut blocks::Taker::Pin(pinning);
        let Ok(run) = mount.alloc().hunt(mount.volume(), &ask, 2048 * 5 + 100, taker) else {
            break;
        };
        last = last.max(each(run).end);
        let blocks::Taker::Pin(pinning) = taker else { unreachable!() };
        assert!(pinning.window.as_ref().is_none_or(|window| window.group.0 < 5), "P61");
    }
    assert_eq!(last, 2048 * 5);
}

#[test]
fn what_a_claim_takes_back_is_not_released_by_the_commit() {
    let image = require!(Image::make("256M", SMALL_GROUPS, ""));
    let mount = Mount::of(&image);
    let run = mount.take(5000, 30, 30).unwrap();
    let (start, before) = (run.start.0, mount.verify());
    let mut txn = mount.txn();
    mount.alloc().free(&mut txn, run, Purpose::Data).unwrap();
    let middle = Run { start: FsBlock(start + 10), len: 10 };
    mount.alloc().claim_blocks(&mut txn, middle).unwrap();
    drop(txn);
    assert_eq!(mount.alloc().free_pending(), 20);
    mount.verify();
    mount.commit();
    mount.verify();
    assert_eq!(
        mount.take(start, 30, 11).map(|run| each(run).contains(&(start + 10))).ok(),
        Some(false)
    );
    assert!(before.0 > 0);
}

/// Blocks that a fast commit says are in use were free for everybody: nobody is promised them any more.
#[test]
fn what_a_claim_takes_is_gone_for_promises() {
    let image = require!(Image::make("256M", SMALL_GROUPS, ""));
    let mount = Mount::of(&image);
    let run = mount.take(5000, 30, 30).unwrap();
    let mut txn = mount.txn();
    mount.alloc().free(&mut txn, run, Purpose::Data).unwrap();
    drop(txn);
    mount.commit();
    let (free, available) = (mount.verify().0, mount.alloc().available());
    for _ in 0..2 {
        let mut txn = mount.txn();
        mount.alloc().claim_blocks(&mut txn, run).unwrap();
        drop(txn);
        // A second time they are in use already.
        assert_eq!(mount.verify().0, free - 30);
        assert_eq!(mount.alloc().available(), available - 30);
    }
    mount.commit();
    assert_eq!(mount.verify().0, free - 30);
}

/// Every request here could be met if there were no others at work, because each has its part set
/// aside: none may fail (P54).
#[test]
fn nothing_is_refused_for_what_others_do_at_the_same_time() {
    let image = require!(Image::make("64M", &["-t", "ext4", "-b", "1024", "-g", "1024"], ""));
    let mount = Mount::of(&image);
    let file = mount.file("a");
    // All but eight small parts is taken, scattered.
    let (threads, part) = (8u64, 5u64);
    mount.promise(threads * part).unwrap();
    while mount.take(0, 1000, 1).is_ok() {}
    mount.alloc().unpromise(threads * part);
    let space = mount.alloc().free_clusters();
    for _ in 0..space - threads * part {
        mount.take(0, 1, 1).unwrap();
    }
    // The pool would be in the way of a promise.
    mount.alloc().space.promise_anyway(threads * part);
    let worker = |seed: u64| {
        let mut random = Prng::new(seed);
        let mut runs: Vec<Run> = Vec::new();
        let mut own = 0;
        for _ in 0..20_000 {
            let left = part - own;
            if left > 0 && (runs.is_empty() || random.one_in(2)) {
                let len = random.below(left) as u32 + 1;
                let run = mount.pin(file.node(), random.below(60_000), len, 1).expect("promised");
                own += u64::from(run.len);
                runs.push(run);
            } else {
                let run = runs.swap_remove(random.below(runs.len() as u64) as usize);
                own -= u64::from(run.len);
                mount.alloc().unpin(mount.volume(), run);
            }
        }
        runs.into_iter().for_each(|run| mount.alloc().unpin(mount.volume(), run));
    };
    workers("pins", threads as usize, |seed| worker(seed as u64)).unwrap();
    mount.verify();
    mount.alloc().unpromise(threads * part);
    // And each of the last clusters can be had, once.
    let got = AtomicU32::new(0);
    let worker = |_| {
        while mount.take(0, 1, 1).is_ok() {
            got.fetch_add(1, Ordering::Relaxed);
        }
    };
    workers("takers", threads as usize, worker).unwrap();
    assert_eq!(u64::from(got.into_inner()), threads * part);
    assert_eq!(mount.verify().0, 0);
    drop(file);
}

#[test]
fn promises_pins_and_allocations_never_exceed_what_is_free() {
    for options in [
        &["-t", "ext4", "-b", "1024", "-g", "1024", "-E", "lazy_itable_init=1"][..],
        &["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "4096"],
    ] {
        let image = require!(Image::make("48M", options, ""));
        let mount = Mount::of(&image);
        let ratio = u64::from(mount.volume().superblock().cluster_ratio());
        let files: Vec<_> = (0..8).map(|at| mount.file(&at.to_string())).collect();
        let before = mount.verify();
        let held = Mutex::new(Rank::Leaf, HashSet::new());
        let hold = |run: Run| {
            let mut held = held.lock();
            each(run).for_each(|block| assert!(held.insert(block), "{block} given away twice"));
        };
        let drop_run = |run: Run| {
            let mut held = held.lock();
            each(run).for_each(|block| assert!(held.remove(&block)));
        };
        let worker = |seed: u64| {
            let mut random = Prng::new(seed);
            let node = files[seed as usize].node();
            let alloc = mount.alloc();
            let (mut promised, mut pinned) = (0u64, 0u64);
            let mut pins: Vec<Run> = Vec::new();
            let mut taken: Vec<(Run, bool)> = Vec::new();
            for _ in 0..3000 {
                match random.below(12) {
                    0..=2 => {
                        let want = random.below(900) + 1;
                        promised += mount.promise(want).map_or(0, |()| want);
                    }
                    3..=5 if promised > pinned => {
                        let most = random.below(promised - pinned) + 1;
                        let goal = random.below(50_000);
                        let asked = (most * ratio) as u32;
                        let run = mount.pin(node, goal, asked, 1).expect("promised");
                        hold(run);
                        pinned += mount.clusters(run);
                        assert!(pinned <= promised);
                        pins.push(run);
                    }
                    6 if !pins.is_empty() => {
                        let run = pins.swap_remove(random.below(pins.len() as u64) as usize);
                        pinned -= mount.clusters(run);
                        drop_run(run);
                        alloc.unpin(mount.volume(), run);
                    }
                    7 | 8 if !pins.is_empty() => {
                        let run = pins.swap_remove(random.below(pins.len() as u64) as usize);
                        pinned -= mount.clusters(run);
                        promised -= mount.clusters(run);
                        mount.txn().take_pinned(node, run, mount.clusters(run)).unwrap();
                        taken.push((run, true));
                    }
                    9 => {
                        let Ok(run) = mount.take(random.below(50_000), 300, 1) else { continue };
                        hold(run);
                        taken.push((run, false));
                    }
                    10 if !taken.is_empty() => {
                        let (run, is_charged) =
                            taken.swap_remove(random.below(taken.len() as u64) as usize);
                        drop_run(run);
                        match is_charged {
                            true => mount.txn().release(node, run, Purpose::Data).unwrap(),
                            false => mount.free(run.start.0, run.len).unwrap(),
                        }
                    }
                    _ if random.one_in(20) => mount.commit(),
                    _ => {
                        let back = random.below(promised - pinned + 1);
                        promised -= back;
                        alloc.unpromise(back);
                    }
                }
                assert!(alloc.space.spare() >= 0);
            }
            for run in pins {
                drop_run(run);
                alloc.unpin(mount.volume(), run);
            }
            alloc.unpromise(promised);
            for (run, is_charged) in taken {
                drop_run(run);
                match is_charged {
                    true => mount.txn().release(node, run, Purpose::Data).unwrap(),
                    false => mount.free(run.start.0, run.len).unwrap(),
                }
            }
        };
        workers("delayed", 8, |seed| worker(seed as u64)).unwrap();
        mount.commit();
        assert_eq!(mount.verify(), before);
        assert_eq!((mount.alloc().promised(), mount.alloc().space.pinned()), (0, 0));
        drop(files);
        mount.end(&image);
    }
}

#[test]
fn what_was_freed_is_had_after_a_commit_whoever_made_it() {
    let image = require!(Image::make("48M", &["-t", "ext4", "-b", "1024"], ""));
    let mount = Mount::of(&image);
    let writer = mount.volume().writer().unwrap();
    let mut runs = Vec::new();
    while let Ok(run) = mount.take(0, 4000, 1) {
        runs.push(run);
    }
    let promise = || mount.promise(100);
    assert!(!mount.alloc().worth_a_commit());
    assert!(writer.with_commits(promise).is_err());
    for run in runs {
        mount.free(run.start.0, run.len).unwrap();
    }
    assert!(promise().is_err() && mount.alloc().worth_a_commit());
    writer.with_commits(promise).unwrap();
    mount.alloc().unpromise(100);
    // Somebody else's commit between the failure and the question.
    let mut is_first = true;
    let tried = writer.with_commits(|| {
        if std::mem::take(&mut is_first) {
            let all = mount.promisable();
            mount.promise(all).unwrap();
            let failed = mount.promise(1);
            mount.alloc().unpromise(all);
            let run = mount.take(0, 10, 10).unwrap();
            mount.free(run.start.0, run.len).unwrap();
            mount.commit();
            assert!(!mount.alloc().worth_a_commit());
            return failed;
        }
        mount.promise(1)
    });
    tried.unwrap();
    mount.alloc().unpromise(1);
    mount.verify();
    mount.end(&image);
}
