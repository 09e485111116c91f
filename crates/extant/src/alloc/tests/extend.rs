//! Space behind the end of files, and threads that want the last of it.

use std::sync::atomic::AtomicU64;

use extant_sync::threads::{give_way, scope};

use super::*;
use crate::{Fallocate, Inode, NewInode};

const SPACE: Fallocate = Fallocate::Allocate { keep_size: false };
const BLOCK: u64 = 4096;

impl Mount {
    fn empty_file(&self, name: &str) -> Inode {
        self.fs.root().unwrap().create(name, &NewInode::root(0o644)).unwrap()
    }

    fn append(&self, file: &Inode, blocks: u64) -> Result<()> {
        let end = file.metadata().size;
        file.fallocate(SPACE, end..end + blocks * BLOCK)
    }

    /// The group of a file's last block.
    fn group_of(&self, file: &Inode) -> GroupIndex {
        let last = file.fiemap(0..u64::MAX, 1000, false).unwrap().pop().unwrap();
        let block = FsBlock((last.physical + last.len - 1) / BLOCK);
        self.volume().superblock().group_of_block(block).unwrap().0
    }
}

#[test]
fn a_small_file_leaves_a_group_that_somebody_is_at_and_a_larger_one_waits() {
    let image = require!(Image::make("256M", SMALL_GROUPS, ""));
    let mount = Mount::of(&image);
    let (small, large) = (mount.empty_file("small"), mount.empty_file("large"));
    mount.append(&small, 2).unwrap();
    for _ in 0..20 {
        mount.append(&large, 2).unwrap();
    }
    let busy = || mount.alloc().stats().groups_busy;
    for (file, waits) in [(&small, false), (&large, true)] {
        let before = (mount.group_of(file), busy());
        let somebody = mount.alloc().cell(before.0).unwrap().state.lock();
        scope(|scope| {
            let appending = scope.spawn("appending", || mount.append(file, 2)).unwrap();
            while waits && busy() == before.1 {
                give_way();
            }
            let mut somebody = Some(somebody);
            if waits {
                somebody = None;
            }
            appending.join().unwrap().unwrap();
            drop(somebody);
        })
        .unwrap();
        assert_eq!(mount.group_of(file) == before.0, waits);
        assert_eq!(file.fiemap(0..u64::MAX, 9, false).unwrap().len(), if waits { 1 } else { 2 });
        assert!(busy() > before.1);
    }
    // Where it went it stays, also from its beginning.
    let there = mount.group_of(&small);
    small.truncate(0).unwrap();
    mount.append(&small, 2).unwrap();
    assert_eq!(mount.group_of(&small), there);
    drop((small, large));
    mount.verify();
    mount.end(&image);
}

#[test]
fn p54_thirty_two_threads_have_every_cluster_there_is() {
    for (size, layout) in [LAYOUTS[0], LAYOUTS[8]] {
        let image = require!(Image::make(size, layout, ""));
        let mount = Mount::of(&image);
        mount.verify();
        let claimant = promise::Claimant::Purpose(Purpose::Data, Right::Ordinary);
        let there = mount.alloc().space.left_for(claimant);
        // All but a few for each: what is left is wanted by all of them at once.
        let ratio = mount.volume().superblock().cluster_ratio();
        let ask = |len: u32| BlockAsk {
            goal: FsBlock(0),
            len,
            min: ratio,
            purpose: Purpose::Data,
            continues: false,
        };
        let taken = AtomicU64::new(0);
        let take = |len: u32| -> Result<()> {
            let mut txn = mount.txn();
            let run = mount.alloc().allocate(&mut txn, &ask(len), Right::Ordinary, u64::MAX)?;
            taken.fetch_add(u64::from(run.len.div_ceil(ratio)), Ordering::Relaxed);
            Ok(())
        };
        while taken.load(Ordering::Relaxed) + 2000 < there {
            take(512 * ratio).unwrap();
        }
        let left = AtomicU64::new(0);
        workers("taker", 32, |_| {
            while take(ratio).is_ok() {}
            left.fetch_max(mount.alloc().space.left_for(claimant), Ordering::Relaxed);
        })
        .unwrap();
        assert_eq!(left.into_inner(), 0, "somebody was refused what was there");
        assert_eq!(taken.into_inner(), there, "{size}");
        mount.verify();
    }
}

#[test]
fn p54_what_comes_back_with_commits_is_found_by_thirty_two_threads() {
    let image = require!(Image::make("256M", SMALL_GROUPS, ""));
    let mount = Mount::of(&image);
    let files: Vec<Inode> = (0..32).map(|at| mount.empty_file(&format!("f{at}"))).collect();
    let filler = mount.empty_file("filler");
    // Room for two blocks each: one that it has, and one that waits for a commit.
    loop {
        let left = mount.alloc().promisable(Right::Privileged);
        if left <= 64 {
            break;
        }
        mount.append(&filler, (left - 64).min(4000)).unwrap();
    }
    workers("file", files.len(), |at| {
        for _ in 0..20 {
            mount.append(&files[at], 1).unwrap();
            files[at].truncate(0).unwrap();
        }
    })
    .unwrap();
    drop((files, filler));
    mount.commit();
    mount.verify();
    mount.end(&image);
}
