//! The allocator on images of mke2fs, against sets, e2fsck and itself after a crash.

mod ahead;
mod delayed;
mod extend;
mod index;
mod pitfalls;
mod stalled;
mod stripes;
mod trim;
mod windows;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use extant_base::{Ino, Prng};
use extant_block::BlockDevice;
use extant_format::group::GroupFlags;
use extant_format::inode::FileKind;
use extant_sync::threads::workers;
use extant_testkit::require;

use super::group::NotFreed;
use super::*;
use crate::fs::Fs;
use crate::map::MappingKind;
use crate::slot::BlockKind;
use crate::test_images::Image;
use crate::txn::Txn;

/// Small groups, four to a flexible one, tables not yet zeroed.
const SMALL_GROUPS: &[&str] =
    &["-t", "ext4", "-b", "4096", "-g", "2048", "-G", "4", "-E", "lazy_itable_init=1"];

const LAYOUTS: &[(&str, &[&str])] = &[
    ("256M", SMALL_GROUPS),
    ("64M", &["-t", "ext4", "-b", "1024", "-E", "lazy_itable_init=1"]),
    ("64M", &["-t", "ext4", "-b", "1024", "-O", "^flex_bg,^resize_inode"]),
    ("64M", &["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "meta_bg,^resize_inode"]),
    ("64M", &["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "^64bit,^metadata_csum,uninit_bg"]),
    ("64M", &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^uninit_bg"]),
    ("64M", &["-t", "ext4", "-b", "1024", "-g", "1024", "-O", "sparse_super2,^resize_inode"]),
    ("128M", &["-t", "ext4", "-b", "4096", "-g", "1024", "-G", "4", "-E", "packed_meta_blocks=1"]),
    ("512M", &["-t", "ext4", "-O", "bigalloc", "-C", "16384", "-E", "lazy_itable_init=1"]),
    ("64M", &["-t", "ext4", "-b", "1024", "-O", "bigalloc", "-C", "8192"]),
    ("64001K", &["-t", "ext2", "-b", "1024"]),
];

/// A writable mount with what the tests use of it.
struct Mount {
    fs: Fs,
}

impl Mount {
    fn of(image: &Image) -> Mount {
        Mount { fs: image.open() }
    }

    fn volume(&self) -> &crate::fs::Mount {
        self.fs.volume()
    }

    fn alloc(&self) -> &Allocator {
        self.volume().writer().unwrap().alloc()
    }

    fn txn(&self) -> Txn<'_> {
        Txn::begin(self.volume(), 60).unwrap()
    }

    fn commit(&self) {
        let journal = self.volume().writer().unwrap().journal();
        journal.commit(journal.running()).unwrap();
    }

    fn take(&self, goal: u64, len: u32, min: u32) -> Result<Run> {
        let ask =
            BlockAsk { goal: FsBlock(goal), len, min, purpose: Purpose::Data, continues: false };
        self.alloc().allocate(&mut self.txn(), &ask, Right::Rescue, u64::MAX)
    }

    /// Gives blocks back that must be in use.
    fn free(&self, start: u64, len: u32) -> Result<()> {
        let run = Run { start: FsBlock(start), len };
        self.alloc().free_or(&mut self.txn(), run, Purpose::Data, NotFreed::refused)
    }

    fn parent(&self, ino: Ino) -> Arc<crate::node::InodeData> {
        self.fs.inode(ino).unwrap().node().data()
    }

    fn new_inode(&self, parent: Ino, kind: FileKind, name: &str) -> Result<Ino> {
        let parent = self.parent(parent);
        self.alloc().allocate_inode(&mut self.txn(), &parent, kind, name.as_bytes())
    }

    fn groups(&self) -> impl Iterator<Item = GroupIndex> + use<> {
        (0..self.volume().superblock().group_count).map(GroupIndex)
    }

    /// Counters against bitmaps, everywhere; returns free clusters and inodes.
    fn verify(&self) -> (u64, u32) {
        let (alloc, volume) = (self.alloc(), self.volume());
        let (mut clusters, mut inodes, mut waiting) = (0, 0, 0);
        let (mut pinned, mut room, mut in_windows) = (0, 0, 0);
        for group in self.groups() {
            let mut locked = alloc.enter(volume, group, Needs::ALL).unwrap();
            let state = locked.state().unwrap();
            let (free_clusters, free_inodes) =
                (state.descriptor.free_clusters, state.descriptor.free_inodes);
            let blocks = state.blocks_mut().unwrap();
            let (stored, taken, len) = blocks.parts();
            assert_eq!(stored.count_clear(0..len), free_clusters, "clusters of {group}");
            assert!(stored.is_padded(len));
            let here = blocks.count_pinned(0..len);
            assert_eq!(here, blocks.pinned, "pins of {group}");
            waiting += u64::from(free_clusters - here - taken.count_clear(0..len));
            pinned += u64::from(here);
            room += i64::from(taken.count_clear(0..len));
            in_windows += u64::from(blocks.in_windows());
            let (stored, len) = state.inodes_mut().unwrap().parts();
            assert_eq!(stored.count_clear(0..len), free_inodes, "inodes of {group}");
            assert!(stored.is_padded(len));
            clusters += u64::from(free_clusters);
            inodes += free_inodes;
        }
        assert_eq!((alloc.free_clusters(), alloc.free_inodes()), (clusters, inodes), "totals");
        assert_eq!(alloc.free_pending(), waiting, "clusters that wait");
        assert_eq!(alloc.space.pinned(), pinned, "pins");
        assert_eq!(alloc.in_windows(), in_windows, "windows");
        // S1
        let (spare, promised) = (alloc.space.spare(), alloc.promised() as i64);
        assert_eq!(spare, clusters as i64 - promised - waiting as i64, "spare");
        assert_eq!(room, spare + promised - pinned as i64, "clear bits");
        (clusters, inodes)
    }

    fn end(self, image: &Image) {
        self.fs.unmount().unwrap();
        image.check().assert_clean();
    }
}

#[test]
fn free_runs_are_what_is_free_before_during_and_after_a_mount() {
    for (size, layout) in LAYOUTS {
        let image = require!(Image::make(size, layout, ""));
        let sum = |fs: &Fs| {
            let groups = (0..fs.superblock().group_count).map(GroupIndex);
            let mut last = 0;
            let runs = groups.flat_map(|group| fs.free_runs(group).unwrap());
            let lens = runs.map(|run| {
                assert!(last <= run.start && run.start < run.end, "{run:?} behind {last}");
                last = run.end;
                run.end - run.start
            });
            lens.sum::<u64>()
        };
        let mount = Mount::of(&image);
        let before = sum(&mount.fs);
        assert_eq!(before, mount.fs.statfs().unwrap().blocks_free, "{layout:?}");
        let run = mount.take(5000, 300, 1).unwrap();
        assert_eq!(sum(&mount.fs), before - u64::from(run.len), "{layout:?}");
        let past = GroupIndex(mount.volume().superblock().group_count);
        assert!(matches!(mount.fs.free_runs(past), Err(FsError::InvalidArgument { .. })));
        mount.free(run.start.0, run.len).unwrap();
        mount.end(&image);
        let reader = image.options().read_only(true).open_shared(image.device.clone()).unwrap();
        assert_eq!(sum(&reader), before, "{layout:?}");
        assert!(matches!(reader.free_runs(past), Err(FsError::InvalidArgument { .. })));
    }
}

/// Fills what was never written of inode tables with what looks like inodes.
fn soil_tables(image: &Image) {
    let fs = image.options().read_only(true).open_shared(Arc::clone(&image.device) as _).unwrap();
    let (volume, superblock) = (fs.volume(), fs.superblock());
    if !volume.has_uninit_groups() {
        return;
    }
    let block_bytes = superblock.block_size.bytes();
    let per_block = block_bytes / u32::from(superblock.inode_size);
    for group in (0..superblock.group_count).map(GroupIndex) {
        let descriptor = volume.stored_group(group).unwrap();
        if descriptor.flags.contains(GroupFlags::INODE_ZEROED) {
            continue;
        }
        let used = superblock.inodes_per_group - descriptor.itable_unused;
        for block in used.div_ceil(per_block)..superblock.inode_table_blocks() {
            let at = (descriptor.inode_table.0 + u64::from(block)) * u64::from(block_bytes);
            image.device.write_at(at, &vec![0xa5; block_bytes as usize]).unwrap();
        }
    }
}

#[test]
fn every_layout_of_mke2fs_is_believed() {
    for (size, options) in LAYOUTS {
        let image = require!(Image::make(size, options, ""));
        let stored = image.superblock();
        let mount = Mount::of(&image);
        let (clusters, inodes) = mount.verify();
        assert_eq!(clusters << stored.cluster_bits(), stored.free_blocks_count, "{options:?}");
        assert_eq!(inodes, stored.free_inodes_count, "{options:?}");
        assert!(mount.alloc().take_reports().is_empty());
        mount.end(&image);
    }
}

#[test]
fn a_random_history_gives_nothing_away_twice_and_ends_clean() {
    for (at, (size, options)) in LAYOUTS.iter().enumerate() {
        let image = require!(Image::make(size, options, ""));
        soil_tables(&image);
        history(&image, 100 + at as u64);
    }
}

fn history(image: &Image, seed: u64) {
    let mut random = Prng::new(seed);
    let mount = Mount::of(image);
    let superblock = mount.volume().superblock().clone();
    let before = mount.verify();
    let mut runs: Vec<(Run, Purpose)> = Vec::new();
    let mut inodes: Vec<(Ino, bool)> = Vec::new();
    let mut held: HashSet<u64> = HashSet::new();
    let mut waiting: HashMap<u64, u32> = HashMap::new();
    let mut numbers: HashSet<u32> = HashSet::new();
    let root = mount.parent(Ino::ROOT);
    let each = |run: Run| run.start.0..run.start.0 + u64::from(run.len);
    for step in 0..1500u32 {
        let alloc = mount.alloc();
        match random.below(16) {
            0..=5 => {
                let len = random.below(40) as u32 + 1;
                let min = random.below(u64::from(len)) as u32 + 1;
                let purpose = if random.one_in(2) { Purpose::Data } else { Purpose::Metadata };
                let goal = FsBlock(random.below(superblock.blocks_count * 11 / 10));
                let ask = BlockAsk { goal, len, min, purpose, continues: false };
                let mut txn = mount.txn();
                let run = alloc.allocate(&mut txn, &ask, Right::Rescue, u64::MAX).unwrap();
                assert!(run.len >= min, "{ask:?} got {run:?}");
                for block in each(run) {
                    assert!(!waiting.contains_key(&block), "{block} is not committed as free");
                    assert!(held.insert(block), "{block} given away twice");
                }
                if purpose == Purpose::Metadata {
                    txn.create_block(run.start, BlockKind::Plain, |bytes| bytes.fill(7)).unwrap();
                }
                runs.push((run, purpose));
            }
            6..=8 if !runs.is_empty() => {
                let (run, was) = runs.swap_remove(random.below(runs.len() as u64) as usize);
                let mut txn = mount.txn();
                let tid = txn.tid();
                alloc.free(&mut txn, run, was).unwrap();
                for block in each(run) {
                    held.remove(&block);
                    waiting.insert(block, tid);
                }
            }
            9..=12 => {
                let is_dir = random.one_in(3);
                let kind = if is_dir { FileKind::Directory } else { FileKind::Regular };
                let name = format!("{step}");
                let mut txn = mount.txn();
                let ino = alloc.allocate_inode(&mut txn, &root, kind, name.as_bytes()).unwrap();
                assert!(numbers.insert(ino.0), "{ino} given away twice");
                assert!(ino >= superblock.first_inode);
                inodes.push((ino, is_dir));
            }
            13 | 14 if !inodes.is_empty() => {
                let at = random.below(inodes.len() as u64) as usize;
                let (ino, is_dir) = inodes.swap_remove(at);
                alloc.free_inode(&mut mount.txn(), ino, is_dir).unwrap();
                numbers.remove(&ino.0);
            }
            _ if random.one_in(4) => {
                mount.commit();
                waiting.clear();
                assert_eq!(alloc.free_pending(), 0);
            }
            _ => {}
        }
        if step % 500 == 499 {
            let now = mount.verify();
            mount.commit();
            waiting.clear();
            // A crash now: what the journal brings back is the same.
            let copy = image.copy();
            assert_eq!(Mount::of(&copy).verify(), now);
        }
    }
    let alloc = mount.alloc();
    for (run, was) in runs {
        alloc.free(&mut mount.txn(), run, was).unwrap();
    }
    for (ino, is_dir) in inodes {
        alloc.free_inode(&mut mount.txn(), ino, is_dir).unwrap();
    }
    assert_eq!(mount.verify(), before);
    assert!(alloc.take_reports().is_empty());
    mount.end(image);
}

#[test]
fn a_full_device_says_so_and_has_room_again_after_a_commit() {
    for options in [&["-t", "ext4", "-b", "1024"][..], &["-t", "ext4", "-O", "bigalloc"]] {
        let image = require!(Image::make("48M", options, ""));
        let mount = Mount::of(&image);
        let mut runs = Vec::new();
        loop {
            match mount.take(0, 4000, 1) {
                Ok(run) => runs.push(run),
                Err(FsError::NoSpace { what: "blocks", wanted: 1, free: 0 }) => break,
                Err(other) => panic!("{other}"),
            }
        }
        assert_eq!(mount.verify().0, 0);
        let last = runs.pop().unwrap();
        mount.free(last.start.0, last.len).unwrap();
        assert!(mount.alloc().free_pending() > 0);
        assert!(matches!(mount.take(0, 1, 1), Err(FsError::NoSpace { .. })), "before the commit");
        mount.verify();
        mount.commit();
        assert_eq!(mount.take(0, last.len, last.len).unwrap(), last);
        for run in runs.into_iter().chain([last]) {
            mount.free(run.start.0, run.len).unwrap();
        }
        mount.end(&image);
    }
}

#[test]
fn reserved_blocks_are_for_those_who_may_use_them() {
    let image = require!(Image::make("16M", &["-t", "ext2", "-b", "1024", "-m", "10"], ""));
    let mount = Mount::of(&image);
    let reserved = mount.volume().superblock().reserved_blocks_count;
    let ask =
        BlockAsk { goal: FsBlock(0), len: 8000, min: 1, purpose: Purpose::Data, continues: false };
    let alloc = mount.alloc();
    let allocate = |right| alloc.allocate(&mut mount.txn(), &ask, right, u64::MAX);
    while allocate(Right::Ordinary).is_ok() {}
    assert_eq!(alloc.free_clusters(), reserved);
    assert!(allocate(Right::Privileged).is_ok());
    assert!(allocate(Right::Ordinary).is_err());
    while allocate(Right::Privileged).is_ok() {}
    assert_eq!(alloc.free_clusters(), 0, "without extents nothing is kept from root");
}

#[test]
fn everybody_leaves_alone_what_is_not_his() {
    for options in [
        &["-t", "ext4", "-b", "1024", "-m", "10"][..],
        &["-t", "ext4", "-O", "bigalloc", "-C", "16384", "-m", "3"],
        &["-t", "ext4", "-m", "0"],
    ] {
        let image = require!(Image::make("64M", options, ""));
        let mount = Mount::of(&image);
        let superblock = mount.volume().superblock();
        let (reserve, pool) = (promise::reserve_of(superblock), promise::pool_of(superblock));
        assert!(pool > 10);
        let (alloc, ratio) = (mount.alloc(), u64::from(superblock.cluster_ratio()));
        let bytes = |clusters: u64| clusters * superblock.cluster_bytes();
        let totals = || {
            let totals = mount.fs.statfs().unwrap();
            (totals.blocks_free / ratio, totals.blocks_available / ratio)
        };
        let room = || (mount.fs.room(false), mount.fs.room(true));
        let free = alloc.free_clusters();
        assert_eq!(totals(), (free, free - reserve - pool));
        assert_eq!(room(), (bytes(free - reserve - pool), bytes(free - pool)));
        // A promise counts for everybody, and comes back.
        alloc.promise(mount.volume(), 9).unwrap();
        assert_eq!(totals(), (free - 9, free - reserve - pool - 9));
        alloc.unpromise(9);
        let take = |purpose, right| {
            let ask = BlockAsk { goal: FsBlock(0), len: 4000, min: 1, purpose, continues: false };
            while alloc.allocate(&mut mount.txn(), &ask, right, u64::MAX).is_ok() {}
            alloc.free_clusters()
        };
        assert_eq!(take(Purpose::Data, Right::Ordinary), reserve + pool);
        assert_eq!(take(Purpose::Metadata, Right::Ordinary), reserve + pool);
        assert_eq!((totals(), room()), ((reserve + pool, 0), (0, bytes(reserve))));
        {
            let _ordinary = mount.fs.take_space_for(false);
            assert!(alloc.promise(mount.volume(), 1).is_err());
            let _root = mount.fs.take_space_for(true);
            assert_eq!(alloc.promise(mount.volume(), 1).is_ok(), reserve > 0);
            alloc.unpromise(u64::from(reserve > 0));
        }
        // Who says nothing owns the device.
        assert_eq!(Right::of_this_thread(), Right::Privileged);
        if reserve > 0 {
            // What is not reserved any more is everybody's at once.
            mount.fs.tune(&crate::Tune::new().reserve(crate::Reserve::Blocks(0))).unwrap();
            assert_eq!(totals(), (reserve + pool, reserve));
            mount
                .fs
                .tune(&crate::Tune::new().reserve(crate::Reserve::Blocks(reserve * ratio)))
                .unwrap();
            assert_eq!(totals(), (reserve + pool, 0));
        }
        assert_eq!(take(Purpose::Metadata, Right::Privileged), pool);
        assert_eq!(take(Purpose::Data, Right::Privileged), pool);
        assert_eq!((totals(), room()), ((pool, 0), (0, 0)));
        assert_eq!(take(Purpose::Metadata, Right::Rescue), 0);
    }
}

#[test]
fn inodes_run_out_and_come_back_at_once() {
    let image = require!(Image::make("16M", &["-t", "ext4", "-b", "1024", "-N", "64"], ""));
    let mount = Mount::of(&image);
    let free = mount.alloc().free_inodes();
    let mut taken = Vec::new();
    for _ in 0..free {
        taken.push(mount.new_inode(Ino::ROOT, FileKind::Regular, "a").unwrap());
    }
    let none = mount.new_inode(Ino::ROOT, FileKind::Regular, "a");
    assert!(matches!(none, Err(FsError::NoSpace { what: "inodes", .. })));
    mount.alloc().free_inode(&mut mount.txn(), taken[3], false).unwrap();
    assert_eq!(mount.new_inode(Ino::ROOT, FileKind::Regular, "a").unwrap(), taken[3]);
    for ino in taken {
        mount.alloc().free_inode(&mut mount.txn(), ino, false).unwrap();
    }
    mount.end(&image);
}

#[test]
fn what_must_not_be_freed_is_damage_and_changes_nothing() {
    let image = require!(Image::make("256M", SMALL_GROUPS, ""));
    let mount = Mount::of(&image);
    let before = mount.verify();
    let count = mount.volume().superblock().blocks_count;
    let mut own = vec![0, 1, count - 1, count, u64::MAX - 3];
    for group in mount.groups() {
        let descriptor = mount.alloc().group(mount.volume(), group).unwrap();
        own.extend([descriptor.block_bitmap.0, descriptor.inode_bitmap.0]);
        own.extend([descriptor.inode_table.0, descriptor.inode_table.0 + 1]);
    }
    for block in own {
        let error = mount.free(block, 1).expect_err("refused");
        assert_eq!(error.family(), Family::Damage, "{block}: {error}");
    }
    let journal = mount.fs.inode(Ino(8)).unwrap();
    for run in journal.map(0..1024) {
        let MappingKind::Mapped(start) = run.unwrap().kind else { continue };
        let error = mount.free(start.0, 1).expect_err("refused");
        assert!(error.to_string().contains("own structures"), "{error}");
    }
    let run = mount.take(3000, 4, 4).unwrap();
    let (start, len) = (run.start.0, run.len);
    assert!(mount.free(start - 1, 4).is_err() || mount.free(start + 1, 4).is_err());
    mount.free(start, len).unwrap();
    assert_eq!(mount.free(start, len).unwrap_err().family(), Family::Damage, "twice");
    mount.commit();
    assert_eq!(mount.free(start, len).unwrap_err().family(), Family::Damage, "after the commit");
    let alloc = mount.alloc();
    for ino in [Ino(2), Ino(8), Ino(u32::MAX)] {
        let error = alloc.free_inode(&mut mount.txn(), ino, false).expect_err("refused");
        assert_eq!(error.family(), Family::Damage, "{ino}");
    }
    assert_eq!(mount.verify(), before);
    mount.end(&image);
}

#[test]
fn a_run_over_several_groups_is_checked_before_it_is_freed() {
    let image = require!(Image::make("256M", SMALL_GROUPS, ""));
    let mount = Mount::of(&image);
    // The end of one group and the start of the next, free of the file system's own.
    let end = 2048 * 14;
    mount.take(end - 8, 8, 8).unwrap();
    mount.take(end, 8, 8).unwrap();
    let before = mount.verify();
    assert!(mount.free(end - 8, 17).is_err(), "one too many");
    assert_eq!(mount.verify(), before);
    mount.free(end - 8, 16).unwrap();
    mount.end(&image);
}

#[test]
fn parts_of_clusters_are_not_freed() {
    let image = require!(Image::make("512M", &["-t", "ext4", "-O", "bigalloc", "-C", "16384"], ""));
    let mount = Mount::of(&image);
    let run = mount.take(40_001, 3, 1).unwrap();
    assert_eq!((run.start.0 % 4, run.len), (0, 4));
    for (start, len) in [(0, 1), (1, 3), (0, 3), (2, 4)] {
        assert!(mount.free(run.start.0 + start, len).is_err(), "{start} {len}");
    }
    mount.free(run.start.0, 4).unwrap();
    mount.end(&image);
}

#[test]
fn p56_a_damaged_group_is_passed_over_and_reported_once() {
    for inodes in [false, true] {
        let image = require!(Image::make("64M", &["-t", "ext4", "-b", "1024"], ""));
        let fs =
            image.options().read_only(true).open_shared(Arc::clone(&image.device) as _).unwrap();
        let group = fs.volume().stored_group(GroupIndex(0)).unwrap();
        let bitmap = if inodes { group.inode_bitmap } else { group.block_bitmap };
        let mut byte = [0];
        let at = bitmap.0 * 1024 + 100;
        image.device.read_at(at, &mut byte).unwrap();
        image.device.write_at(at, &[byte[0] ^ 0x10]).unwrap();

        let mount = Mount::of(&image);
        for _ in 0..3 {
            let run = mount.take(1, 1, 1).unwrap();
            let ino = mount.new_inode(Ino::ROOT, FileKind::Regular, "a").unwrap();
            let superblock = mount.volume().superblock();
            let block_group = superblock.group_of_block(run.start).unwrap().0;
            let inode_group = superblock.group_of_inode(ino).unwrap().0;
            assert_eq!((block_group.0 == 0, inode_group.0 == 0), (inodes, !inodes));
        }
        let reports = mount.alloc().take_reports();
        assert_eq!(reports.len(), 1, "{reports:?}");
        let name = if inodes { "inode bitmap" } else { "block bitmap" };
        assert!(reports[0].to_string().contains(name), "{}", reports[0]);
        // Lost, not refused: whoever deletes a file there can go on.
        match inodes {
            false => mount.free(5000, 10).unwrap(),
            true => mount.alloc().free_inode(&mut mount.txn(), Ino(20), false).unwrap(),
        }
        assert!(mount.alloc().take_reports().is_empty());
    }
}

#[test]
fn a_group_is_encoded_once_in_a_transaction() {
    let image = require!(Image::make("256M", SMALL_GROUPS, ""));
    let mount = Mount::of(&image);
    mount.commit();
    let before = mount.alloc().groups_encoded();
    for _ in 0..500 {
        mount.take(40_000, 1, 1).unwrap();
        mount.new_inode(Ino::ROOT, FileKind::Regular, "a").unwrap();
    }
    mount.commit();
    assert_eq!(mount.alloc().groups_encoded() - before, 2);
    mount.commit();
    assert_eq!(mount.alloc().groups_encoded() - before, 2, "clean ones not at all");
}

#[test]
fn directories_spread_and_files_stay_with_them() {
    let image = require!(Image::make("256M", SMALL_GROUPS, ""));
    let mount = Mount::of(&image);
    let superblock = mount.volume().superblock().clone();
    let flex_of = |ino: Ino| superblock.group_of_inode(ino).unwrap().0.0 / 4;
    let mut flexes = HashSet::new();
    for at in 0..32 {
        let name = format!("top{at}");
        flexes.insert(flex_of(mount.new_inode(Ino::ROOT, FileKind::Directory, &name).unwrap()));
    }
    assert!(flexes.len() >= 6, "32 directories in {} of 8 flexible groups", flexes.len());

    // A directory somewhere else than the root, to be a parent.
    let mut parent = (*mount.parent(Ino::ROOT)).clone();
    let home = Ino(superblock.inodes_per_group * 9 + 1);
    parent.ino = home;
    let alloc = mount.alloc();
    let new = |kind| alloc.allocate_inode(&mut mount.txn(), &parent, kind, b"x").unwrap();
    for _ in 0..20 {
        let file = new(FileKind::Regular);
        assert_eq!(superblock.group_of_inode(file).unwrap().0, GroupIndex(9));
        assert_eq!(flex_of(new(FileKind::Directory)), 9 / 4);
    }
    // More than the group holds: the rest of the flexible group is next.
    let mut last = Ino(0);
    for _ in 0..superblock.inodes_per_group {
        last = new(FileKind::Regular);
    }
    assert_eq!((flex_of(last), superblock.group_of_inode(last).unwrap().0.0 == 9), (2, false));
    mount.verify();
}

#[test]
fn groups_leave_memory_and_come_back_as_they_were() {
    let image = require!(Image::make("256M", &["-t", "ext4", "-b", "1024", "-g", "512"], ""));
    let mount = Mount::of(&image);
    let groups = mount.volume().superblock().group_count;
    assert!(groups >= 500);
    let alloc = mount.alloc();
    let mut held: HashSet<u64> = HashSet::new();
    let mut random = Prng::new(9);
    for step in 0..6000u64 {
        let run = mount.take(random.below(250_000), 3, 1).unwrap();
        for block in run.start.0..run.start.0 + u64::from(run.len) {
            assert!(held.insert(block));
        }
        if step % 50 == 0 {
            mount.commit();
        }
        if step % 1000 == 999 {
            // As if there were less memory.
            for group in mount.groups() {
                let cell = alloc.cell(group).unwrap();
                let mut guard = cell.lock();
                if guard.as_ref().is_some_and(|state| state.is_clean()) {
                    cell.unload(&mut guard);
                }
            }
        }
    }
    mount.verify();
}

#[test]
fn memory_for_bitmaps_is_bounded() {
    let image = require!(Image::make("256M", &["-t", "ext4", "-b", "1024", "-g", "256"], ""));
    let fs = image.open();
    let volume = fs.volume();
    let mut alloc = Allocator::open(volume, true).unwrap();
    alloc.loaded_max = 64;
    let count = volume.superblock().group_count;
    assert!(count >= 1000);
    for group in (0..count).chain(0..count).map(GroupIndex) {
        let mut locked = alloc.enter(volume, group, Needs::BLOCKS).unwrap();
        let state = locked.state().unwrap();
        state.blocks_mut().unwrap();
        drop(locked);
        assert!(alloc.loaded_count.load(Ordering::Relaxed) <= 65);
    }
    let kept = (0..count).filter(|at| alloc.cell(GroupIndex(*at)).unwrap().state.lock().is_some());
    assert!(kept.count() <= 65);
}

/// As with Linux: what is freed twice is damage of the bitmap, and whoever frees it goes on.
#[test]
fn what_is_freed_and_free_already_is_lost_and_reported() {
    let image = require!(Image::make("64M", &["-t", "ext4", "-b", "1024"], ""));
    let mount = Mount::of(&image);
    let run = mount.take(20_000, 1, 1).unwrap();
    let (group, _) = mount.volume().superblock().group_of_block(run.start).unwrap();
    let twice = Run { start: run.start, len: 10 };
    mount.alloc().free(&mut mount.txn(), twice, Purpose::Data).unwrap();
    let reports = mount.alloc().take_reports();
    assert!(reports[0].to_string().contains("block bitmap"), "{reports:?}");
    assert_eq!((reports.len(), reports[0].errno()), (1, 117));
    let other = mount.take(run.start.0, 1, 1).unwrap();
    assert_ne!(mount.volume().superblock().group_of_block(other.start).unwrap().0, group);
    mount.free(other.start.0, 1).unwrap();

    let ino = mount.new_inode(Ino::ROOT, FileKind::Regular, "a").unwrap();
    mount.alloc().free_inode(&mut mount.txn(), Ino(ino.0 + 1), false).unwrap();
    let reports = mount.alloc().take_reports();
    assert!(reports[0].to_string().contains("inode bitmap"), "{reports:?}");
    assert_eq!((reports.len(), reports[0].errno()), (1, 117));
    let other = mount.new_inode(Ino::ROOT, FileKind::Regular, "b").unwrap();
    let group_of = |ino| mount.volume().superblock().group_of_inode(ino).unwrap().0;
    assert_ne!(group_of(other), group_of(ino));
}

#[test]
fn a_bitmap_that_gives_the_journal_away_is_not_believed() {
    let image = require!(Image::make("64M", &["-t", "ext3", "-b", "1024"], ""));
    let fs = image.options().read_only(true).open_shared(Arc::clone(&image.device) as _).unwrap();
    let run = fs.inode(Ino(8)).unwrap().map(0..1).next().unwrap().unwrap();
    let MappingKind::Mapped(start) = run.kind else { panic!("{run:?}") };
    let (group, bit) = fs.superblock().group_of_block(start).unwrap();
    let mut stored = fs.volume().stored_group(group).unwrap();
    // One more free, and counted: nothing but the journal itself tells.
    let at = stored.block_bitmap.0 * 1024 + u64::from(bit / 8);
    let mut byte = [0];
    image.device.read_at(at, &mut byte).unwrap();
    image.device.write_at(at, &[byte[0] & !(1 << (bit % 8))]).unwrap();
    stored.free_clusters += 1;
    let place = fs.volume().descriptor_place(group).unwrap().0 * 1024 + u64::from(group.0) * 32;
    let mut bytes = [0; 32];
    let checksum = extant_format::group::GroupChecksum::of(fs.superblock());
    stored.encode(group, &checksum, &mut bytes).unwrap();
    image.device.write_at(place, &bytes).unwrap();

    let mount = Mount::of(&image);
    for _ in 0..10 {
        let got = mount.take(start.0, 1, 1).unwrap();
        assert_ne!(fs.superblock().group_of_block(got.start).unwrap().0, group);
    }
    assert_eq!(mount.alloc().take_reports().len(), 1);
}

#[test]
fn p61_blocks_end_where_pointers_do() {
    let image = require!(Image::make("256M", SMALL_GROUPS, ""));
    let mount = Mount::of(&image);
    let ask = BlockAsk {
        goal: FsBlock(50_000),
        len: 500,
        min: 1,
        purpose: Purpose::Data,
        continues: false,
    };
    let end = 2048 * 5 + 100;
    let mut last = 0;
    loop {
        match mount.alloc().allocate(&mut mount.txn(), &ask, Right::Rescue, end) {
            Ok(run) => last = last.max(run.start.0 + u64::from(run.len)),
            Err(FsError::NoSpace { .. }) => break,
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(last, 2048 * 5);
    mount.verify();
}

#[test]
fn threads_share_what_there_is() {
    let image = require!(Image::make("256M", SMALL_GROUPS, ""));
    let mount = Mount::of(&image);
    let before = mount.verify();
    let root = mount.parent(Ino::ROOT);
    let held = Mutex::new(Rank::Leaf, HashSet::new());
    let numbers = Mutex::new(Rank::Leaf, HashSet::new());
    let worker = |seed: u64| {
        let mut random = Prng::new(seed);
        let (mut runs, mut inodes) = (Vec::new(), Vec::new());
        for _ in 0..2000 {
            match random.below(8) {
                0..=2 => {
                    let run = mount.take(30_000, random.below(8) as u32 + 1, 1).unwrap();
                    let mut held = held.lock();
                    for block in run.start.0..run.start.0 + u64::from(run.len) {
                        assert!(held.insert(block), "{block} given away twice");
                    }
                    runs.push(run);
                }
                3 | 4 if !runs.is_empty() => {
                    let run = runs.swap_remove(random.below(runs.len() as u64) as usize);
                    for block in run.start.0..run.start.0 + u64::from(run.len) {
                        held.lock().remove(&block);
                    }
                    mount.free(run.start.0, run.len).unwrap();
                }
                5 | 6 => {
                    let mut txn = mount.txn();
                    let kind = FileKind::Regular;
                    let ino = mount.alloc().allocate_inode(&mut txn, &root, kind, b"").unwrap();
                    assert!(numbers.lock().insert(ino), "{ino} given away twice");
                    inodes.push(ino);
                }
                _ if random.one_in(20) => mount.commit(),
                _ => {
                    let Some(ino) = inodes.pop() else { continue };
                    numbers.lock().remove(&ino);
                    mount.alloc().free_inode(&mut mount.txn(), ino, false).unwrap();
                }
            }
        }
        for run in runs {
            for block in run.start.0..run.start.0 + u64::from(run.len) {
                held.lock().remove(&block);
            }
            mount.free(run.start.0, run.len).unwrap();
        }
        for ino in inodes {
            numbers.lock().remove(&ino);
            mount.alloc().free_inode(&mut mount.txn(), ino, false).unwrap();
        }
    };
    workers("allocator", 4, |seed| worker(seed as u64)).unwrap();
    assert_eq!(mount.verify(), before);
    mount.end(&image);
}

#[test]
fn p62_the_first_inode_of_a_group_initialises_both_halves() {
    let image = require!(Image::make("256M", SMALL_GROUPS, ""));
    soil_tables(&image);
    let mount = Mount::of(&image);
    let both = GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_UNINIT;
    let group = |at| mount.alloc().group(mount.volume(), at).unwrap();
    let fresh = mount.groups().find(|at| group(*at).flags.contains(both)).expect("a fresh group");
    let per_group = mount.volume().superblock().inodes_per_group;
    let mut parent = (*mount.parent(Ino::ROOT)).clone();
    parent.ino = Ino(fresh.0 * per_group + 1);
    let alloc = mount.alloc();
    let kind = FileKind::Regular;
    let ino = alloc.allocate_inode(&mut mount.txn(), &parent, kind, b"x").unwrap();
    assert_eq!(ino, parent.ino);
    let now = group(fresh);
    assert!(!now.flags.intersects(both), "{:?}", now.flags);
    assert_eq!((now.itable_unused, now.free_inodes), (per_group - 1, per_group - 1));
    let block = mount.volume().read_block(now.inode_table).unwrap();
    assert!(block.bytes().iter().all(|byte| *byte == 0), "what was there is gone");
    alloc.free_inode(&mut mount.txn(), ino, false).unwrap();
    assert_eq!(group(fresh).itable_unused, per_group - 1, "used once is used");
    mount.end(&image);
}
