//! Devices that hold on or fail while a group is brought into memory: who waits, who goes elsewhere,
//! and what is left.

use std::collections::HashSet;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use extant_block::{DeviceError, DeviceFault, MemoryDevice, Operation, OperationKind, Pending};
use extant_sync::threads::scope;
use extant_sync::{Condvar, no_waiting};

use super::*;

/// All bitmaps are initialised, and so are read; 8 groups of 8192 blocks.
const ALL_STORED: &[&str] = &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^uninit_bg"];
const BLOCK: u64 = 1024;

#[derive(Default)]
struct State {
    /// Blocks whose reads wait, and those whose reads fail.
    stalls: HashSet<u64>,
    fails: HashSet<u64>,
    /// Blocks that no space can be allocated for.
    full: HashSet<u64>,
    waiting: u32,
    /// Blocks of all read operations, batch by batch.
    batches: Vec<Vec<Range<u64>>>,
}

/// A device in memory that stalls or fails where it is told.
pub(super) struct Odd {
    inner: Arc<MemoryDevice>,
    state: Mutex<State>,
    changed: Condvar,
}

impl Odd {
    pub(super) fn of(image: &Image) -> Arc<Odd> {
        let (inner, state) = (Arc::clone(&image.device), Mutex::new(Rank::Leaf, State::default()));
        Arc::new(Odd { inner, state, changed: Condvar::new() })
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }

    pub(super) fn fail(&self, block: FsBlock) {
        self.change(|state| state.fails.extend([block.0]));
    }

    /// Lets every read go on that waits, and fails none any more.
    pub(super) fn heal(&self) {
        self.change(|state| {
            state.stalls.clear();
            state.fails.clear();
            state.full.clear();
        });
    }

    /// Makes reads of `block` wait, until the guard is dropped, whatever happens.
    fn stall(self: &Arc<Odd>, block: FsBlock) -> Stall {
        self.change(|state| state.stalls.extend([block.0]));
        Stall(Arc::clone(self))
    }

    fn wait_for_a_reader(&self) {
        let mut state = self.state.lock();
        while state.waiting == 0 {
            self.changed.wait(&mut state);
        }
    }

    /// Takes what was read since the last call: the blocks of each operation of each batch.
    pub(super) fn take_batches(&self) -> Vec<Vec<Range<u64>>> {
        std::mem::take(&mut self.state.lock().batches)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let mut blocks = offset / BLOCK..(offset + out.len() as u64).div_ceil(BLOCK);
        let mut state = self.state.lock();
        while blocks.clone().any(|block| state.stalls.contains(&block)) {
            state.waiting += 1;
            self.changed.notify_all();
            self.changed.wait(&mut state);
            state.waiting -= 1;
        }
        if blocks.any(|block| state.fails.contains(&block)) {
            let fault = DeviceFault::Io(std::io::Error::from_raw_os_error(5));
            let (kind, len) = (OperationKind::Read, out.len() as u64);
            return Err(DeviceError::new(self.describe(), kind, offset, len, fault));
        }
        drop(state);
        self.inner.read_at(offset, out)
    }
}

struct Stall(Arc<Odd>);

impl Drop for Stall {
    fn drop(&mut self) {
        self.0.heal();
    }
}

impl BlockDevice for Odd {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        let reads = batch.iter().filter(|operation| operation.kind() == OperationKind::Read);
        let blocks = |read: &Operation| {
            read.offset() / BLOCK..(read.offset() + read.length()).div_ceil(BLOCK)
        };
        let reads: Vec<_> = reads.map(blocks).collect();
        if !reads.is_empty() {
            self.state.lock().batches.push(reads);
        }
        let done = batch.into_iter().map(|mut operation| {
            let result = match &mut operation {
                Operation::Read { offset, buffer } => self.read(*offset, buffer),
                other => {
                    let Operation::Write { offset, buffer, .. } = other else {
                        return extant_block::Completion { operation, result: Ok(()) };
                    };
                    self.inner.write_at(*offset, buffer)
                }
            };
            extant_block::Completion { operation, result }
        });
        Pending::done(done.collect())
    }

    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn describe(&self) -> Arc<str> {
        "odd".into()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let blocks = offset / BLOCK..(offset + out.len() as u64).div_ceil(BLOCK);
        self.state.lock().batches.push(vec![blocks]);
        self.read(offset, out)
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let state = self.state.lock();
        if (offset / BLOCK..(offset + len) / BLOCK).any(|block| state.full.contains(&block)) {
            let fault = DeviceFault::Io(std::io::Error::from_raw_os_error(28));
            return Err(DeviceError::new(
                "odd".into(),
                OperationKind::Allocate,
                offset,
                len,
                fault,
            ));
        }
        Ok(())
    }
}

impl Mount {
    pub(super) fn on(image: &Image, device: &Arc<Odd>) -> Mount {
        Mount { fs: image.options().open_shared(Arc::clone(device) as _).expect("a mount") }
    }

    fn first_of(&self, group: u32) -> u64 {
        self.volume().superblock().group_first_block(GroupIndex(group)).unwrap().0
    }

    fn group_at(&self, block: FsBlock) -> u32 {
        self.volume().superblock().group_of_block(block).unwrap().0.0
    }

    fn descriptor(&self, group: u32) -> GroupDescriptor {
        self.volume().stored_group(GroupIndex(group)).unwrap()
    }
}

#[test]
fn a_bitmap_that_takes_its_time_holds_up_only_who_reads_it() {
    let image = require!(Image::make("64M", ALL_STORED, ""));
    let device = Odd::of(&image);
    let mount = Mount::on(&image, &device);
    let goal = mount.first_of(3) + 4000;
    let stall = device.stall(mount.descriptor(3).block_bitmap);
    scope(|scope| {
        let reader = scope.spawn("reader", || mount.take(goal, 8, 8)).unwrap();
        // Whatever fails from here on, the reader goes on.
        let stall = stall;
        device.wait_for_a_reader();
        let cell = mount.alloc().cell(GroupIndex(3)).unwrap();
        assert!(cell.try_lock().is_some(), "the lock is held over the read");
        // Who wants the same group goes elsewhere, and who wants another one gets it.
        let busy = mount.alloc().stats().groups_busy;
        let other = mount.take(goal, 8, 8).unwrap();
        assert_ne!(mount.group_at(other.start), 3);
        assert!(mount.alloc().stats().groups_busy > busy);
        let apart = mount.take(mount.first_of(1) + 4000, 8, 8).unwrap();
        assert_eq!(apart.start.0, mount.first_of(1) + 4000);
        mount.free(apart.start.0, 8).unwrap();
        mount.free(other.start.0, 8).unwrap();
        mount.alloc().promise(mount.volume(), 8).unwrap();
        let ask = BlockAsk {
            goal: FsBlock(goal),
            len: 8,
            min: 8,
            purpose: Purpose::Data,
            continues: false,
        };
        let root = mount.fs.root().unwrap();
        let (alloc, volume) = (mount.alloc(), mount.volume());
        let pinned = alloc.pin(volume, root.node(), &ask, Growth::default()).unwrap();
        assert_ne!(mount.group_at(pinned.start), 3);
        alloc.unpin(volume, pinned);
        alloc.unpromise(8);
        drop(stall);
        assert_eq!(reader.join().unwrap().unwrap().start.0, goal, "who read it got what it wanted");
        mount.free(goal, 8).unwrap();
    })
    .unwrap();
    mount.verify();
    mount.end(&image);
}

#[test]
fn who_comes_too_late_looks_again_and_is_told_what_is_left_then() {
    let image = require!(Image::make("64M", ALL_STORED, ""));
    let device = Odd::of(&image);
    let mount = Mount::on(&image, &device);
    let goal = mount.first_of(3) + 4000;
    for (left, found) in [(4, None), (20, Some(8))] {
        let bitmap = mount.descriptor(if found.is_none() { 3 } else { 5 }).block_bitmap;
        let goal = if found.is_none() { goal } else { mount.first_of(5) + 4000 };
        let stall = device.stall(bitmap);
        scope(|scope| {
            let stall = stall;
            let late = scope.spawn("late", || mount.take(goal, 8, 8)).unwrap();
            device.wait_for_a_reader();
            // It has seen that there is enough. While it reads, others are promised it.
            let promised = mount.alloc().promisable(Right::of_this_thread()) - left;
            mount.alloc().promise(mount.volume(), promised).unwrap();
            drop(stall);
            let taken = late.join().unwrap();
            mount.alloc().unpromise(promised);
            match (taken, found) {
                (Ok(run), Some(len)) => {
                    assert_eq!((run.start.0, run.len), (goal, len));
                    mount.free(goal, len).unwrap();
                }
                (Err(FsError::NoSpace { wanted, free, .. }), None) => {
                    assert_eq!((wanted, free), (8, left), "what was left when it looked first");
                }
                (taken, _) => panic!("{left} left: {taken:?}"),
            }
        })
        .unwrap();
    }
    mount.commit();
    mount.verify();
    mount.end(&image);
}

#[test]
fn a_table_of_inodes_that_takes_its_time_holds_up_no_blocks() {
    let image = require!(Image::make("64M", ALL_STORED, ""));
    let device = Odd::of(&image);
    let mount = Mount::on(&image, &device);
    // Four inodes to a block: the next number is the first one of a block that nobody has read.
    while !mount.new_inode(Ino::ROOT, FileKind::Regular, "a").unwrap().0.is_multiple_of(4) {}
    let last = mount.new_inode(Ino::ROOT, FileKind::Regular, "b").unwrap();
    let (block, _) = mount.volume().inode_place(last).unwrap();
    let stall = device.stall(FsBlock(block.0 + 1));
    let goal = mount.first_of(0) + 5000;
    scope(|scope| {
        let stall = stall;
        let maker = scope.spawn("maker", || {
            (0..4).map(|_| mount.new_inode(Ino::ROOT, FileKind::Regular, "c").unwrap().0).max()
        });
        let maker = maker.unwrap();
        device.wait_for_a_reader();
        assert!(mount.alloc().cell(GroupIndex(0)).unwrap().try_lock().is_some());
        assert_eq!(mount.take(goal, 8, 8).unwrap().start.0, goal);
        mount.free(goal, 8).unwrap();
        drop(stall);
        assert_eq!(maker.join().unwrap(), Some(last.0 + 4));
    })
    .unwrap();
    mount.verify();
}

#[test]
fn a_bitmap_that_cannot_be_read_is_passed_over_and_nothing_is_lost() {
    let image = require!(Image::make("64M", ALL_STORED, ""));
    let device = Odd::of(&image);
    let mount = Mount::on(&image, &device);
    let before = (mount.alloc().free_clusters(), mount.alloc().space.spare());
    let goal = mount.first_of(3) + 4000;
    let (blocks, inodes) = (mount.descriptor(3).block_bitmap, mount.descriptor(0).inode_bitmap);
    device.fail(blocks);
    device.fail(inodes);
    let root = mount.fs.root().unwrap();
    for _ in 0..3 {
        let run = mount.take(goal, 8, 8).unwrap();
        assert_ne!(mount.group_at(run.start), 3);
        mount.free(run.start.0, 8).unwrap();
        let ino = mount.new_inode(Ino::ROOT, FileKind::Regular, "a").unwrap();
        assert_ne!(mount.volume().superblock().group_of_inode(ino).unwrap().0, GroupIndex(0));
        mount.alloc().free_inode(&mut mount.txn(), ino, false).unwrap();
        mount.alloc().promise(mount.volume(), 8).unwrap();
        let ask = BlockAsk {
            goal: FsBlock(goal),
            len: 8,
            min: 8,
            purpose: Purpose::Data,
            continues: false,
        };
        let (alloc, volume) = (mount.alloc(), mount.volume());
        let pinned = alloc.pin(volume, root.node(), &ask, Growth::default()).unwrap();
        assert_ne!(mount.group_at(pinned.start), 3);
        alloc.unpin(volume, pinned);
        alloc.unpromise(8);
        mount.commit();
    }
    assert_eq!((mount.alloc().free_clusters(), mount.alloc().space.spare()), before);
    assert!(mount.alloc().take_reports().is_empty(), "a device that fails is no damage");
    // Nothing else is left: the error is what the caller hears, and not that there is no space.
    let mut runs = Vec::new();
    let error = loop {
        match mount.take(0, 4000, 1) {
            Ok(run) => runs.push(run),
            Err(error) => break error,
        }
    };
    assert_eq!(error.family(), Family::Device, "{error}");
    assert_eq!(mount.free(mount.first_of(3) + 5000, 1).unwrap_err().family(), Family::Device);
    // Once it can be read, it is as good as the others.
    device.heal();
    assert_eq!(mount.group_at(mount.take(goal, 8, 8).unwrap().start), 3);
    mount.free(goal, 8).unwrap();
    runs.into_iter().for_each(|run| mount.free(run.start.0, run.len).unwrap());
    mount.commit();
    mount.verify();
    assert_eq!((mount.alloc().free_clusters(), mount.alloc().space.spare()), before);
    mount.end(&image);
}

#[test]
fn metadata_blocks_without_space_on_the_device_come_back() {
    let image = require!(Image::make("64M", ALL_STORED, ""));
    let device = Odd::of(&image);
    let mount = Mount::on(&image, &device);
    let before = mount.verify();
    let goal = mount.first_of(3) + 4000;
    device.change(|state| state.full.extend([goal]));
    let ask = BlockAsk {
        goal: FsBlock(goal),
        len: 1,
        min: 1,
        purpose: Purpose::Metadata,
        continues: false,
    };
    let take = || mount.alloc().allocate(&mut mount.txn(), &ask, Right::Rescue, u64::MAX);
    assert_eq!(take().unwrap_err().family(), Family::Device);
    mount.commit();
    assert_eq!(mount.verify(), before);
    // So it is for the bitmap of a group that was not changed yet: others have room.
    device.heal();
    let bitmap = mount.descriptor(4).block_bitmap.0;
    device.change(|state| state.full.extend([bitmap]));
    let run = mount.take(mount.first_of(4) + 4000, 8, 8).unwrap();
    assert_ne!(mount.group_at(run.start), 4);
    mount.free(run.start.0, 8).unwrap();
    device.heal();
    assert_eq!(take().unwrap().start.0, goal);
    mount.free(goal, 1).unwrap();
    mount.commit();
    assert_eq!(mount.verify(), before);
    mount.end(&image);
}

#[test]
fn under_the_lock_of_a_group_nobody_waits() {
    if !cfg!(debug_assertions) {
        return;
    }
    let image = require!(Image::make("64M", ALL_STORED, ""));
    let mount = Mount::of(&image);
    let locked = mount.alloc().enter(mount.volume(), GroupIndex(2), Needs::BLOCKS).unwrap();
    let reads = || mount.volume().read_block_uncached(FsBlock(4000));
    assert!(catch_unwind(AssertUnwindSafe(reads)).is_err(), "a read under the lock of a group");
    drop(locked);
    assert!(reads().is_ok());
    // Nor is anything needed that has to be waited for, once the group was entered.
    let run = mount.take(mount.first_of(2) + 4000, 8, 8).unwrap();
    let locked = mount.alloc().enter(mount.volume(), GroupIndex(2), Needs::CHANGED_BLOCKS).unwrap();
    let _scope = no_waiting();
    drop(locked);
    assert_eq!(mount.group_at(run.start), 2);
}

/// What was read of a group without its lock is not used after others had the group, changed it, and
/// dropped it from memory.
#[test]
fn p60_a_bitmap_that_was_read_before_others_changed_it_is_not_used() {
    for (size, layout) in [("64M", ALL_STORED), LAYOUTS[0], LAYOUTS[4]] {
        let image = require!(Image::make(size, layout, ""));
        let mount = Mount::of(&image);
        let (alloc, volume) = (mount.alloc(), mount.volume());
        let group = GroupIndex(3);
        let cell = alloc.cell(group).unwrap();
        let unload = || {
            let mut guard = cell.lock();
            if guard.as_ref().is_some_and(|state| state.is_clean()) {
                cell.unload(&mut guard);
            }
            assert!(guard.is_none(), "{layout:?}");
        };
        let goal = mount.first_of(3) + u64::from(volume.superblock().group_blocks(group)) / 2;
        drop(alloc.enter(volume, group, Needs::ALL).unwrap());
        unload();
        let early = alloc.bring_early(volume, group, Needs::BLOCKS).unwrap();
        let run = mount.take(goal, 64, 64).unwrap();
        assert_eq!(mount.group_at(run.start), 3);
        mount.commit();
        unload();
        let mut locked = alloc.enter_with(volume, group, Needs::BLOCKS, early).unwrap();
        let (first, bit) = (mount.first_of(3), volume.superblock().cluster_bits());
        let at = ((run.start.0 - first) >> bit) as u32;
        assert!(!locked.state().unwrap().blocks_mut().unwrap().is_open(at), "{layout:?}");
        drop(locked);
        mount.verify();
        mount.free(run.start.0, run.len).unwrap();
        mount.end(&image);
    }
}

/// Nor is a bitmap damaged that others changed after its descriptor was read.
#[test]
fn p60_a_bitmap_that_others_changed_after_its_descriptor_was_read_is_not_damaged() {
    let image = require!(Image::make("64M", ALL_STORED, ""));
    let mount = Mount::of(&image);
    let (alloc, volume, group) = (mount.alloc(), mount.volume(), GroupIndex(3));
    let cell = alloc.cell(group).unwrap();
    let early = mount.descriptor(3);
    let run = mount.take(mount.first_of(3) + 4000, 64, 64).unwrap();
    mount.commit();
    let late = || alloc.bring_blocks(volume, group, early).err().expect("another count");
    assert_eq!(late().1.family(), Family::Damage);
    // The group is loaded by others, or was.
    let failure = late();
    assert!(alloc.blame(cell, &cell.lock(), 0, failure).is_none());
    let mut guard = cell.lock();
    cell.unload(&mut guard);
    drop(guard);
    let failure = late();
    assert!(alloc.blame(cell, &cell.lock(), 0, failure).is_none());
    assert!(!cell.is_bad(Half::Blocks) && alloc.take_reports().is_empty());
    mount.free(run.start.0, run.len).unwrap();
    mount.verify();
    mount.end(&image);
}
