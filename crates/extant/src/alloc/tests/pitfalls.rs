//! Pitfalls of allocation by their numbers in `docs/pitfalls.md`; those that have a subject of their
//! own are with it.

use extant_block::{FaultDevice, FaultPlan, FileDevice};
use extant_format::bitmap::Bitmap;
use extant_testkit::{oracle, tempdir};

use super::stalled::Odd;
use super::*;
use crate::alloc::group::Blocks;
use crate::alloc::window::Look;
use crate::{AlignedBuffer, Fallocate, Inode, NewInode};

fn blocks(len: u32) -> Blocks {
    Blocks::new(Bitmap::of_uninit_group(1024, len, []), Vec::new(), len)
}

impl Mount {
    fn anew(&self, name: &str) -> Inode {
        self.fs.root().unwrap().create(name, &NewInode::root(0o644)).unwrap()
    }

    /// The blocks of a file on the device.
    fn places(&self, file: &Inode) -> Vec<std::ops::Range<u64>> {
        let bytes = u64::from(self.volume().block_size().bytes());
        let runs = file.fiemap(0..u64::MAX, 1000, false).unwrap();
        runs.iter().map(|run| run.physical / bytes..(run.physical + run.len) / bytes).collect()
    }
}

/// In front of, on, and behind block 2^32, where a number of 32 bits would begin again.
#[test]
fn p51_runs_and_windows_around_block_2_to_32_do_not_overlap() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("image");
    let options = ["-t", "ext4", "-b", "2048", "-N", "600000", "-O", "^resize_inode,^has_journal"];
    let lazy = ["-E", "lazy_itable_init=1,nodiscard"];
    require!(oracle::mke2fs(&path, "9T", &[&options[..], &lazy].concat()));
    let clock = Arc::new(extant_sync::FixedClock::at(1_700_000_000, 0));
    let options =
        crate::MountOptions::new().read_only(false).clock(clock).seed(1).background(false);
    let device = FileDevice::open_read_write(&path).unwrap();
    let mount = Mount { fs: options.open(device).unwrap() };
    let (alloc, volume) = (mount.alloc(), mount.volume());
    let edge = 1u64 << 32;
    assert!(volume.superblock().blocks_count > edge);
    alloc.promise(volume, 4000).unwrap();
    let files: Vec<Inode> = (0..6).map(|at| mount.anew(&at.to_string())).collect();
    let growth = Growth { grows: true, continues: false, ahead: 300 };
    let mut runs: Vec<Run> = Vec::new();
    for (at, goal) in [edge - 200, edge - 20, edge, edge + 20, edge - 200, edge].iter().enumerate()
    {
        let node = files[at].node();
        let (goal, purpose, continues) = (FsBlock(*goal), Purpose::Data, false);
        let ask = BlockAsk { goal, len: 100, min: 100, purpose, continues };
        runs.push(alloc.pin(volume, node, &ask, growth).unwrap());
    }
    runs.push(mount.take(edge - 10, 200, 200).unwrap());
    runs.push(mount.take(edge - 1, 1, 1).unwrap());
    let near = |run: &&Run| run.start.0.abs_diff(edge) < 1 << 15;
    assert_eq!(runs.iter().filter(near).count(), runs.len(), "{runs:?}");
    assert!(
        runs.iter().any(|run| run.start.0 < edge) && runs.iter().any(|run| run.start.0 >= edge)
    );
    let ends = |run: &Run| run.start.0 + u64::from(run.len);
    for (at, run) in runs.iter().enumerate() {
        for other in &runs[..at] {
            let is_apart = ends(run) <= other.start.0 || ends(other) <= run.start.0;
            assert!(is_apart, "{run:?} and {other:?}");
        }
    }
    // Windows are where the group's own bitmaps have them, and not over anything.
    let (group, _) = volume.superblock().group_of_block(FsBlock(edge)).unwrap();
    for group in [GroupIndex(group.0 - 1), group] {
        let mut locked = alloc.enter(volume, group, Needs::BLOCKS).unwrap();
        locked.state().unwrap().blocks_mut().unwrap().parts();
    }
    // Pointers of 32 bits end in front of it.
    let ask = BlockAsk {
        goal: FsBlock(edge - 1),
        len: 8,
        min: 1,
        purpose: Purpose::Data,
        continues: false,
    };
    let low = alloc.allocate(&mut mount.txn(), &ask, Right::Rescue, edge).unwrap();
    assert!(ends(&low) <= edge, "{low:?}");
    let (pins, takes) = runs.split_at(files.len());
    pins.iter().for_each(|run| alloc.unpin(volume, *run));
    takes.iter().chain([&low]).for_each(|run| mount.free(run.start.0, run.len).unwrap());
    alloc.unpromise(4000);
    drop(files);
    mount.fs.unmount().unwrap();
}

/// There is no tree in which a deleted entry could be in the way: the windows of a group are bits.
#[test]
fn p52_a_window_that_was_closed_hides_none_of_its_neighbours() {
    let mut random = Prng::new(52);
    for _ in 0..200 {
        let mut group = blocks(4000);
        let mut open: Vec<(Ino, std::ops::Range<u32>)> = Vec::new();
        for number in 1..60 {
            let start = random.below(3900) as u32;
            if random.one_in(3) && !open.is_empty() {
                let (owner, range) = open.swap_remove(random.below(open.len() as u64) as usize);
                assert_eq!(group.close_window(owner, &range), range.end - range.start);
            } else if group.is_open(start) {
                let owner = Ino(number);
                let len = random.below(200) as u32 + 1;
                let window = group.open_window(owner, start, len).expect("it begins open");
                for (other, range) in &open {
                    let is_apart = window.end <= range.start || range.end <= window.start;
                    assert!(is_apart, "{window:?} over {range:?} of {other}");
                }
                open.push((owner, window));
            }
            // What is found beside the windows is in none.
            let wanted = random.below(100) as u32 + 1;
            if let Some(run) = group.find(Look::Open, start, wanted, wanted).run {
                assert!(open.iter().all(|(_, at)| run.end <= at.start || at.end <= run.start));
            }
            let sum: u32 = open.iter().map(|(_, range)| range.end - range.start).sum();
            assert_eq!(group.in_windows(), sum);
        }
    }
}

/// A run that is cut to what there is begins where it was found, holds the block that it is for, and
/// its window begins where it ends.
#[test]
fn p53_a_run_that_is_cut_holds_what_it_is_for_and_its_window_is_behind_it() {
    for (size, layout) in [LAYOUTS[0], LAYOUTS[1], LAYOUTS[8]] {
        let image = require!(Image::make(size, layout, ""));
        let mount = Mount::of(&image);
        let (alloc, volume) = (mount.alloc(), mount.volume());
        let (bits, ratio) =
            (volume.superblock().cluster_bits(), volume.superblock().cluster_ratio());
        let root = mount.fs.root().unwrap();
        let promised = alloc.promisable(Right::Privileged) / 2;
        alloc.promise(volume, promised).unwrap();
        let mut random = Prng::new(53);
        let mut left = promised;
        for _ in 0..20_000 {
            if left == 0 {
                break;
            }
            let len = (random.below(4000) as u32 + 1) * ratio;
            let min = (random.below(u64::from(len / ratio)) as u32 + 1) * ratio;
            let goal = FsBlock(random.below(volume.superblock().blocks_count));
            let growth = Growth { grows: true, continues: false, ahead: random.below(3000) as u32 };
            let ask = BlockAsk { goal, len, min, purpose: Purpose::Data, continues: false };
            let pinning = blocks::Pinning { ino: root.ino(), growth, own: None, window: None };
            let taker = &mut blocks::Taker::Pin(pinning);
            let run = match alloc.hunt(volume, &ask, u64::MAX, taker) {
                Ok(run) => run,
                Err(_) if left < u64::from(len >> bits) || min > ratio => continue,
                Err(error) => panic!("{error}"),
            };
            let clusters = u64::from(run.len.div_ceil(ratio));
            assert!(clusters <= left, "{run:?} of {left}");
            assert!(run.len >= min.min(len) && run.len <= len, "{ask:?}: {run:?}");
            alloc.check_pinned(volume, run).unwrap();
            let (group, first) = volume.superblock().group_of_block(run.start).unwrap();
            let blocks::Taker::Pin(pinning) = taker else { unreachable!() };
            if let Some(window) = pinning.window.take() {
                assert_eq!(window.group, group);
                assert_eq!(window.clusters.start, (first + run.len) >> bits, "{layout:?}");
            }
            left -= clusters;
        }
        mount.verify();
    }
}

/// Promises of data that could not be stored end once, with the file; not a second time with the
/// mount.
#[test]
fn p55_promises_of_what_could_not_be_written_end_once() {
    for (size, layout) in [LAYOUTS[0], LAYOUTS[1], LAYOUTS[8]] {
        let image = require!(Image::make(size, layout, ""));
        let plan = FaultPlan { write_one_in: 1, ..FaultPlan::default() };
        let device = Arc::new(FaultDevice::new(Arc::clone(&image.device), plan));
        device.set_enabled(false);
        let mount = Mount { fs: image.options().open_shared(Arc::clone(&device) as _).unwrap() };
        let before = mount.verify();
        let spare = mount.alloc().space.spare();
        let files: Vec<Inode> = (0..4).map(|at| mount.anew(&at.to_string())).collect();
        mount.fs.sync().unwrap();
        let begun = mount.alloc().space.spare();
        for (at, file) in files.iter().enumerate() {
            assert_eq!(file.write_at(&vec![7; 300_000], at as u64 * 5000).unwrap(), 300_000);
        }
        assert!(mount.alloc().promised() > 0);
        device.set_enabled(true);
        for file in &files {
            assert!(file.write_back().is_err(), "{layout:?}");
        }
        device.set_enabled(false);
        mount.verify();
        // One is written after all, one is cut, two are removed.
        files[0].write_back().unwrap();
        files[1].truncate(100).unwrap();
        mount.verify();
        drop(files);
        for name in ["0", "1", "2", "3"] {
            mount.fs.remove_file(format!("/{name}")).unwrap();
        }
        mount.fs.sync().unwrap();
        assert_eq!(mount.alloc().promised(), 0, "{layout:?}");
        mount.commit();
        assert_eq!(mount.alloc().space.spare(), begun, "{layout:?}");
        assert_eq!((mount.verify(), mount.alloc().space.spare()), (before, spare), "{layout:?}");
        mount.end(&image);
    }
}

/// The old owner of blocks has them after a crash, and finds in them what it wrote, as long as the
/// transaction that freed them is not durable.
#[test]
fn p57_freed_blocks_hold_their_old_data_until_the_commit() {
    for (size, layout) in [LAYOUTS[0], LAYOUTS[1], LAYOUTS[8]] {
        let image = require!(Image::make(size, layout, ""));
        let mount = Mount::of(&image);
        let (old, filler) = (mount.anew("old"), mount.anew("filler"));
        // Nearly all there is, so that who looks for room comes to what was freed.
        let space = Fallocate::Allocate { keep_size: false };
        filler.fallocate(space, 0..(mount.fs.room(true) - (16 << 20)) & !0xffff).unwrap();
        let len = 12usize << 20;
        let contents: Vec<u8> = (0..len).map(|at| (at / 4096 % 251) as u8 + 1).collect();
        assert_eq!(old.write_at(&contents, 0).unwrap(), len);
        mount.fs.sync().unwrap();
        let places = mount.places(&old);
        drop(old);
        mount.fs.remove_file("/old").unwrap();
        assert!(mount.alloc().free_pending() > 0, "freed, and waiting");
        // More than what is free otherwise is not to be had without a commit.
        let new = mount.anew("new");
        let junk = AlignedBuffer::copy_of(&vec![0xee; 256 << 10]);
        let mut end = 0;
        while mount.fs.room(true) > 1 << 20 {
            end += new.write_direct_at(&junk, end).unwrap() as u64;
        }
        assert!(mount.alloc().free_pending() > 0, "nobody committed");
        assert!(end > 0);
        for place in mount.places(&new) {
            let over = places.iter().find(|old| old.start < place.end && place.start < old.end);
            assert_eq!(over, None, "{layout:?}: {place:?} is not free yet");
        }
        let after = Mount::of(&image.copy());
        assert!(after.fs.read("/old").unwrap() == contents, "{layout:?}: what was written over it");
        // After the commit they are.
        mount.commit();
        assert_eq!(mount.alloc().free_pending(), 0);
        drop((new, filler));
        mount.end(&image);
    }
}

/// A cluster is freed with the last block in it, mapped or delayed.
#[test]
fn p59_a_cluster_stays_while_one_of_its_blocks_lives() {
    let image = require!(Image::make("512M", LAYOUTS[8].1, ""));
    let mount = Mount::of(&image);
    let block = u64::from(mount.volume().block_size().bytes());
    let file = mount.anew("file");
    let free = || {
        mount.fs.sync().unwrap();
        mount.commit();
        mount.alloc().free_clusters()
    };
    let empty = free();
    let put = |at: u64, byte: u8| {
        assert_eq!(file.write_at(&vec![byte; block as usize], at * block).unwrap() as u64, block);
    };
    let punch = |blocks: std::ops::Range<u64>| {
        file.fallocate(Fallocate::PunchHole, blocks.start * block..blocks.end * block).unwrap();
    };
    (0..8).for_each(|at| put(at, at as u8 + 1));
    assert_eq!(free(), empty - 2);
    // Another extent of the same cluster lives.
    punch(0..1);
    punch(2..3);
    assert_eq!(free(), empty - 2, "blocks 1 and 3 are in it");
    // A delayed block lives in it, and it is the last: it keeps a cluster, that one or another.
    put(0, 9);
    punch(1..4);
    let left = mount.alloc().free_clusters() - mount.alloc().promised();
    assert_eq!(left, empty - 2, "a delayed block is in it");
    assert_eq!(free(), empty - 2);
    let mut expected = vec![0; 8 * block as usize];
    expected[..block as usize].fill(9);
    for at in 4..8 {
        expected[at * block as usize..(at + 1) * block as usize].fill(at as u8 + 1);
    }
    assert!(file.read_all().unwrap() == expected);
    punch(0..1);
    assert_eq!(free(), empty - 1, "the last one has gone");
    file.truncate(5 * block).unwrap();
    assert_eq!(free(), empty - 1, "a part of the cluster at the end");
    file.truncate(0).unwrap();
    assert_eq!(free(), empty);
    drop(file);
    mount.verify();
    mount.end(&image);
}

/// Whether an inode was deleted lately is not asked of a table that was never written: it is full of
/// garbage here, and nobody reads it.
#[test]
fn p62_a_table_of_inodes_that_was_never_written_is_not_read() {
    let options = ["-t", "ext4", "-b", "1024", "-E", "lazy_itable_init=1"];
    let image = require!(Image::make("64M", &options, ""));
    soil_tables(&image);
    let device = Odd::of(&image);
    let mount = Mount::on(&image, &device);
    let superblock = mount.volume().superblock().clone();
    let per_block = 1024 / u32::from(superblock.inode_size);
    let fresh: Vec<std::ops::Range<u64>> = mount
        .groups()
        .map(|group| {
            let descriptor = mount.volume().stored_group(group).unwrap();
            let used = superblock.inodes_per_group - descriptor.itable_unused;
            let table = descriptor.inode_table.0;
            let end = table + u64::from(superblock.inode_table_blocks());
            table + u64::from(used.div_ceil(per_block))..end
        })
        .collect();
    device.take_batches();
    for round in 0..3 {
        for at in 0..60 {
            let name = format!("d{round}-{at}");
            mount.fs.create_dir(format!("/{name}"), &NewInode::root(0o755)).unwrap();
            mount.fs.write(format!("/{name}/f"), vec![at as u8; 100]).unwrap();
        }
        for at in (0..60).step_by(2) {
            mount.fs.remove_file(format!("/d{round}-{at}/f")).unwrap();
        }
        mount.fs.sync().unwrap();
    }
    for read in device.take_batches().concat() {
        let over = fresh.iter().find(|table| table.start < read.end && read.start < table.end);
        assert_eq!(over, None, "{read:?} is read");
    }
    mount.verify();
    mount.end(&image);
}
